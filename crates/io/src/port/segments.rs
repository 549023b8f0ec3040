//! Work left by a device's offloads: checksums not filled in, packets not cut into
//! segments.
//!
//! With offloads on, the usual setting, the kernel hands over TCP "packets" of up to 64
//! KiB, and transport headers whose checksum is only the pseudo-header's sum. A header in
//! front of the frame reports it (virtio specification, section 5.1.6).

use holdfast_wire::header::{Tcp, Udp, proto, tcp_flags};
use holdfast_wire::{DropReason, Layers, Network, Packet, PacketPool, checksum};

/// `struct virtio_net_hdr`, in the machine's byte order.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct VirtioHeader {
    flags: u8,
    segmentation: u8,
    header_len: u16,
    segment_len: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

const NEEDS_CHECKSUM: u8 = 1;
const SEGMENT_TCP4: u8 = 1;
const SEGMENT_TCP6: u8 = 4;
const SEGMENT_UDP: u8 = 5;
const WITH_ECN: u8 = 0x80;

impl VirtioHeader {
    /// True if the packet must be cut.
    pub(super) fn is_uncut(&self) -> bool {
        self.segmentation != 0
    }

    /// True if the transport checksum is not filled in.
    pub(super) fn is_checksum_missing(&self) -> bool {
        self.flags & NEEDS_CHECKSUM != 0
    }
}

/// Fills in a transport checksum that an offload left as the pseudo-header's sum.
pub(super) fn complete_checksum(packet: &mut Packet) {
    if packet.parse().is_err() || packet.layers.fragment {
        return;
    }
    let layers = packet.layers;
    let bytes = packet.bytes_mut();
    fill_checksum(bytes, &layers);
}

/// As [`complete_checksum`], without a report: a packet with the pseudo-header's sum in
/// place of its checksum is completed. If the two happen to be equal, nothing changes.
pub(super) fn complete_partial_checksum(packet: &mut Packet) {
    if packet.parse().is_err() || packet.layers.fragment {
        return;
    }
    let layers = packet.layers;
    let bytes = packet.bytes_mut();
    let Some(at) = checksum_offset(&layers) else { return };
    let at = layers.l4 as usize + at;
    let Some(&[high, low]) = bytes.get(at..at + 2) else { return };
    let partial = checksum::fold(pseudo_sum(bytes, &layers) + layers.l4_len() as u64);
    if u16::from_be_bytes([high, low]) == partial {
        fill_checksum(bytes, &layers);
    }
}

/// The offset of the checksum in the transport header.
fn checksum_offset(layers: &Layers) -> Option<usize> {
    match layers.protocol {
        proto::TCP => Some(16),
        proto::UDP => Some(6),
        _ => None,
    }
}

/// The sum of the pseudo-header without its length (RFC 9293, section 3.1; RFC 8200,
/// section 8.1).
fn pseudo_sum(frame: &[u8], layers: &Layers) -> u64 {
    let l3 = layers.l3 as usize;
    let addresses = if layers.network == Network::V4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
    checksum::sum(&frame[addresses]) + u64::from(layers.protocol)
}

fn fill_checksum(frame: &mut [u8], layers: &Layers) {
    let (l4, end) = (layers.l4 as usize, layers.end as usize);
    let Some(at) = checksum_offset(layers) else { return };
    let pseudo = pseudo_sum(frame, layers);
    let Some(segment) = frame.get_mut(l4..end).filter(|segment| segment.len() >= at + 2) else {
        return;
    };
    segment[at..at + 2].fill(0);
    let sum = match !checksum::fold(pseudo + segment.len() as u64 + checksum::sum(segment)) {
        0 => 0xffff,
        sum => sum,
    };
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Cuts a packet into segments as the device would have: each with the packet's headers,
/// its own lengths, sequence number and checksums.
pub(super) fn cut(
    frame: &[u8],
    header: VirtioHeader,
    pool: &mut dyn PacketPool,
    into: &mut Vec<Packet>,
) -> Result<(), DropReason> {
    let layers = Layers::parse(frame).map_err(DropReason::from)?;
    let kind = header.segmentation & !WITH_ECN;
    let transport_len = match (kind, layers.protocol) {
        (SEGMENT_TCP4 | SEGMENT_TCP6, proto::TCP) => {
            (frame[layers.l4 as usize + 12] >> 4) as usize * 4
        }
        (SEGMENT_UDP, proto::UDP) => size_of::<Udp>(),
        _ => return Err(DropReason::FrameTooLarge),
    };
    let headers_len = layers.l4 as usize + transport_len;
    let payload = frame.get(headers_len..layers.end as usize).ok_or(DropReason::Truncated)?;
    let size = header.segment_len as usize;
    if size == 0 {
        return Err(DropReason::BadLength);
    }
    let count = payload.len().div_ceil(size).max(1);
    for (number, part) in payload.chunks(size).enumerate() {
        let Some(mut packet) = pool.take() else { return Err(DropReason::ArenaEmpty) };
        packet.clear();
        let fits = packet.copy_from(&frame[..headers_len]);
        match packet.extend_back(part.len()).filter(|_| fits) {
            Some(place) => place.copy_from_slice(part),
            None => {
                pool.put(packet);
                return Err(DropReason::FrameTooLarge);
            }
        }
        set_headers(
            packet.bytes_mut(),
            &layers,
            number,
            number * size,
            part.len() + transport_len,
            number + 1 == count,
        );
        into.push(packet);
    }
    Ok(())
}

/// Adapts the copied headers of segment `number`, which begins `offset` bytes into the
/// payload and has `l4_len` bytes of transport.
fn set_headers(
    frame: &mut [u8],
    layers: &Layers,
    number: usize,
    offset: usize,
    l4_len: usize,
    is_last: bool,
) {
    let (l3, l4) = (layers.l3 as usize, layers.l4 as usize);
    let mut own = *layers;
    own.end = (l4 + l4_len) as u16;
    if layers.network == Network::V4 {
        let total = (l4 - l3 + l4_len) as u16;
        frame[l3 + 2..l3 + 4].copy_from_slice(&total.to_be_bytes());
        let id = u16::from_be_bytes([frame[l3 + 4], frame[l3 + 5]]).wrapping_add(number as u16);
        frame[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
        frame[l3 + 10..l3 + 12].fill(0);
        let sum = checksum::checksum(&frame[l3..l4]);
        frame[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let payload = (l4 - l3 - 40 + l4_len) as u16;
        frame[l3 + 4..l3 + 6].copy_from_slice(&payload.to_be_bytes());
    }
    if layers.protocol == proto::TCP {
        let at = l4 + core::mem::offset_of!(Tcp, sequence);
        let sequence = u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
            .wrapping_add(offset as u32);
        frame[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
        if !is_last {
            frame[l4 + core::mem::offset_of!(Tcp, flags)] &= !(tcp_flags::FIN | tcp_flags::PSH);
        }
    } else {
        frame[l4 + 4..l4 + 6].copy_from_slice(&(l4_len as u16).to_be_bytes());
    }
    fill_checksum(frame, &own);
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::MemoryPool;

    fn tcp_frame(payload: usize) -> Vec<u8> {
        let mut frame = vec![0; 54 + payload];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&((40 + payload) as u16).to_be_bytes());
        (frame[22], frame[23]) = (64, proto::TCP);
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[38..42].copy_from_slice(&0xffff_fff0u32.to_be_bytes());
        (frame[46], frame[47]) = (0x50, tcp_flags::ACK | tcp_flags::PSH);
        for (at, byte) in frame[54..].iter_mut().enumerate() {
            *byte = at as u8;
        }
        frame
    }

    #[test]
    fn a_large_packet_becomes_segments_that_a_receiver_accepts() {
        let frame = tcp_frame(4000);
        let header = VirtioHeader {
            flags: NEEDS_CHECKSUM,
            segmentation: SEGMENT_TCP4,
            segment_len: 1448,
            ..VirtioHeader::default()
        };
        let mut pool = MemoryPool::new(8);
        let mut packets = Vec::new();
        cut(&frame, header, &mut pool, &mut packets).unwrap();
        assert_eq!(
            packets.iter().map(Packet::len).collect::<Vec<_>>(),
            [54 + 1448, 54 + 1448, 54 + 1104]
        );
        let mut payload = Vec::new();
        for (number, packet) in packets.iter_mut().enumerate() {
            packet.parse().unwrap();
            let bytes = packet.bytes();
            assert_eq!(checksum::checksum(&bytes[14..34]), 0);
            assert_eq!(
                checksum::transport(&bytes[26..30], &bytes[30..34], proto::TCP, &bytes[34..]),
                0
            );
            let tcp = packet.tcp().unwrap();
            assert_eq!(tcp.sequence.get(), 0xffff_fff0u32.wrapping_add(1448 * number as u32));
            assert_eq!(tcp.flags & tcp_flags::PSH != 0, number == 2, "only the last pushes");
            payload.extend_from_slice(&bytes[54..]);
        }
        assert_eq!(payload, frame[54..]);
        for packet in packets {
            pool.put(packet);
        }
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let mut pool = MemoryPool::new(2);
        let mut packets = Vec::new();
        let header =
            VirtioHeader { segmentation: SEGMENT_UDP, segment_len: 100, ..VirtioHeader::default() };
        assert_eq!(
            cut(&tcp_frame(500), header, &mut pool, &mut packets),
            Err(DropReason::FrameTooLarge)
        );
        let header =
            VirtioHeader { segmentation: SEGMENT_TCP4, segment_len: 0, ..VirtioHeader::default() };
        assert_eq!(
            cut(&tcp_frame(500), header, &mut pool, &mut packets),
            Err(DropReason::BadLength)
        );
        for len in 0..60 {
            let _ = cut(
                &tcp_frame(500)[..len],
                VirtioHeader { segment_len: 100, ..header },
                &mut pool,
                &mut packets,
            );
        }
        assert!(packets.is_empty());
    }
}
