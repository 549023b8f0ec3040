//! Classes of addresses. All are 16 bytes, IPv4 as IPv4-mapped.

use holdfast_wire::unmap_v4;

/// True for addresses of many stations; for IPv4 also the reserved class E with the
/// limited broadcast address.
pub(super) fn is_multicast(address: &[u8; 16]) -> bool {
    match unmap_v4(address) {
        Some(v4) => v4[0] >= 224,
        None => address[0] == 0xff,
    }
}

/// True for addresses that no station on a network has: unspecified, loopback, "this
/// network" (RFC 6890).
pub(super) fn is_nowhere(address: &[u8; 16]) -> bool {
    match unmap_v4(address) {
        Some(v4) => v4[0] == 0 || v4[0] == 127,
        None => address[..15] == [0; 15] && address[15] <= 1,
    }
}

pub(super) fn is_link_local(address: &[u8; 16]) -> bool {
    match unmap_v4(address) {
        Some(v4) => v4[0] == 169 && v4[1] == 254,
        None => address[0] == 0xfe && address[1] & 0xc0 == 0x80,
    }
}
