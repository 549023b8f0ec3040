//! IPv6 extension headers of a packet for the box itself, as its destination reads them
//! (RFC 8200, section 4).
//!
//! Forwarded packets are not examined: a router processes hop-by-hop options only if it
//! is configured to (section 4.3).

use super::icmp::Problem;
use holdfast_wire::Packet;
use holdfast_wire::header::proto;

/// "No next header": nothing follows, and bytes behind it are ignored (RFC 8200, section
/// 4.7).
const NO_NEXT_HEADER: u8 = 59;
/// Offset of the IPv6 header's Next Header field, and the header's length, bytes.
const NEXT_HEADER: usize = 6;
const HEADER: usize = 40;
/// Codes of a parameter problem (RFC 4443, section 3.4).
const ERRONEOUS: u8 = 0;
const UNKNOWN_HEADER: u8 = 1;
const UNKNOWN_OPTION: u8 = 2;
/// An option of one byte without a length (RFC 8200, section 4.2).
const PAD1: u8 = 0;

/// Why a packet goes no further here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The sender is not told.
    Silently,
    /// The sender is told.
    With(Problem),
}

/// Reads all extension headers of a parsed IPv6 packet that is no fragment.
///
/// # Errors
/// If a header, or the protocol behind the headers, is unknown to the box.
pub(super) fn read(packet: &Packet) -> Result<(), Refused> {
    let ip = packet
        .bytes()
        .get(usize::from(packet.layers.l3)..usize::from(packet.layers.end))
        .unwrap_or(&[]);
    let problem = |code, at: usize| Err(Refused::With(Problem::Parameter { code, at: at as u32 }));
    let (mut says, mut at) = (NEXT_HEADER, HEADER);
    // Parsing has checked that all headers are whole, and not too many.
    while let Some(&next) = ip.get(says) {
        let len = match next {
            // A hop-by-hop header anywhere but first is an unknown header (RFC 8200,
            // section 4).
            proto::HOP_BY_HOP if says != NEXT_HEADER => return problem(UNKNOWN_HEADER, says),
            proto::HOP_BY_HOP | proto::DESTINATION_OPTIONS => {
                let len = ip.get(at + 1).map_or(0, |len| (usize::from(*len) + 1) * 8);
                options(ip.get(at..at + len).unwrap_or(&[]), at)?;
                len
            }
            proto::ROUTING => {
                // The box knows no routing type (of type 0: RFC 5095, section 3). A
                // header without segments left is skipped (RFC 8200, section 4.4).
                if ip.get(at + 3).is_none_or(|segments_left| *segments_left != 0) {
                    return problem(ERRONEOUS, at + 2);
                }
                ip.get(at + 1).map_or(0, |len| (usize::from(*len) + 1) * 8)
            }
            proto::FRAGMENT => 8,
            proto::TCP | proto::UDP | proto::ICMPV6 => return Ok(()),
            NO_NEXT_HEADER => return Err(Refused::Silently),
            _ => return problem(UNKNOWN_HEADER, says),
        };
        (says, at) = (at, at + len);
    }
    Err(Refused::Silently)
}

/// Reads the options of the header that begins at this place of the packet. The type of
/// an unknown option decides what becomes of the packet (RFC 8200, section 4.2).
fn options(header: &[u8], place: usize) -> Result<(), Refused> {
    let mut at = 2;
    while let Some(&kind) = header.get(at) {
        if kind == PAD1 {
            at += 1;
            continue;
        }
        let Some(len) = header
            .get(at + 1)
            .map(|len| usize::from(*len) + 2)
            .filter(|len| at + len <= header.len())
        else {
            return Err(Refused::Silently);
        };
        match kind >> 6 {
            // PadN is among these types.
            0 => {}
            1 => return Err(Refused::Silently),
            // Types 10 and 11 differ for multicast destinations only, and this one is
            // unicast.
            _ => {
                return Err(Refused::With(Problem::Parameter {
                    code: UNKNOWN_OPTION,
                    at: (place + at) as u32,
                }));
            }
        }
        at += len;
    }
    Ok(())
}
