//! The reset that a TCP segment gets where there is no connection for it.

use holdfast_wire::build::{self, Ends, Ethernet};
use holdfast_wire::header::{Tcp, proto, tcp_flags};
use holdfast_wire::{Network, Packet};

/// Makes a segment into the reset that its sender gets where there is no connection (RFC 9293, section 3.10.7.1), without MAC addresses of its own. False, and nothing changed, for a reset,
/// for a segment that is damaged, and for a fragment, of which nobody can tell.
pub(super) fn reset(packet: &mut Packet) -> bool {
    let Some(&refused) = packet.tcp() else { return false };
    let Some(&(mut ethernet)) = packet.bytes().first_chunk::<{ Ethernet::LEN }>() else { return false };
    // A tag that a function has put on is not the answer's.
    ethernet[12..].copy_from_slice(&packet.layers.ethertype.to_be_bytes());
    let ends = match (packet.ipv4(), packet.ipv6()) {
        (Some(ip), _) => Ends::V4(ip.destination, ip.source),
        (_, Some(ip)) => Ends::V6(ip.destination, ip.source),
        _ => return false,
    };
    if refused.flags & tcp_flags::RST != 0 || packet.is_intact() != Some(true) {
        return false;
    }
    let answer = build::Tcp { window: 0, ..answer_to(&refused, packet.l4().len()) };
    let l4 = Ethernet::LEN + if packet.layers.network == Network::V4 { build::Ipv4::LEN } else { build::Ipv6::LEN };
    // The segment's own headers were as long.
    packet.truncate(l4 + build::Tcp::LEN);
    let Some(frame) = packet.bytes_mut().get_mut(..l4 + build::Tcp::LEN) else { return false };
    frame[..Ethernet::LEN].copy_from_slice(&ethernet);
    let written = answer.write(&mut frame[l4..], &ends).and_then(|()| match ends {
        Ends::V4(source, destination) => build::Ipv4::new(source, destination, proto::TCP).write(&mut frame[Ethernet::LEN..]),
        Ends::V6(source, destination) => build::Ipv6::new(source, destination, proto::TCP).write(&mut frame[Ethernet::LEN..]),
    });
    written.is_ok()
}

/// "If the ACK bit is off, sequence number zero is used, <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>. If the ACK bit is on, <SEQ=SEG.ACK><CTL=RST>." SEG.LEN counts
/// SYN and FIN.
fn answer_to(refused: &Tcp, len: usize) -> build::Tcp<'static> {
    let (source, destination) = (refused.destination.get(), refused.source.get());
    if refused.flags & tcp_flags::ACK != 0 {
        let sequence = refused.acknowledgement.get();
        return build::Tcp { sequence, ..build::Tcp::new(source, destination, tcp_flags::RST) };
    }
    let header = usize::from(refused.data_offset >> 4) * 4;
    let controls = u32::from(refused.flags & tcp_flags::SYN != 0) + u32::from(refused.flags & tcp_flags::FIN != 0);
    let behind = refused.sequence.get().wrapping_add(len.saturating_sub(header) as u32).wrapping_add(controls);
    build::Tcp { acknowledgement: behind, ..build::Tcp::new(source, destination, tcp_flags::RST | tcp_flags::ACK) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::header::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
    use holdfast_wire::{MemoryPool, PacketPool};

    const FOUR: Ends = Ends::V4([10, 0, 0, 9], [10, 0, 0, 1]);
    const SIX: Ends = Ends::V6([7; 16], [8; 16]);

    /// A frame with these bytes of data between the ends, and the reset that it becomes.
    fn answered(segment: build::Tcp<'_>, data: usize, ends: &Ends, break_it: impl Fn(&mut [u8])) -> Option<Tcp> {
        let mut pool = MemoryPool::new(1);
        let mut packet = pool.take().expect("a buffer");
        packet.clear();
        let ip = if let Ends::V4(..) = ends { 20 } else { 40 };
        let len = 14 + ip + build::Tcp::LEN + segment.options.len() + data;
        let frame = packet.extend_back(len).expect("room");
        segment.write(&mut frame[14 + ip..], ends).expect("it fits");
        let ethertype = match *ends {
            Ends::V4(from, to) => {
                build::Ipv4::new(from, to, proto::TCP).write(&mut frame[14..]).expect("it fits");
                ETHERTYPE_IPV4
            }
            Ends::V6(from, to) => {
                build::Ipv6::new(from, to, proto::TCP).write(&mut frame[14..]).expect("it fits");
                ETHERTYPE_IPV6
            }
        };
        Ethernet { destination: [2; 6], source: [4; 6], ethertype }.write(frame).expect("it fits");
        break_it(frame);
        packet.parse().expect("it is well formed");
        if !reset(&mut packet) {
            assert_eq!(packet.len(), len, "nothing changed");
            return None;
        }
        packet.parse().expect("a reset is well formed");
        let tcp = *packet.tcp().expect("a reset is TCP");
        let is_turned = match *ends {
            Ends::V4(from, to) => packet.ipv4().is_some_and(|ip| (ip.source, ip.destination) == (to, from)),
            Ends::V6(from, to) => packet.ipv6().is_some_and(|ip| (ip.source, ip.destination) == (to, from)),
        };
        assert!(is_turned && packet.is_intact() == Some(true) && packet.l4().len() == 20);
        Some(tcp)
    }

    fn numbers(tcp: Option<Tcp>) -> (u16, u16, u8, u32, u32) {
        let tcp = tcp.expect("a reset");
        (tcp.source.get(), tcp.destination.get(), tcp.flags, tcp.sequence.get(), tcp.acknowledgement.get())
    }

    #[test]
    fn its_sequence_number_is_what_the_sender_expects() {
        use tcp_flags::{ACK, FIN, RST, SYN};
        for ends in [FOUR, SIX] {
            let segment = |flags| build::Tcp { sequence: u32::MAX, acknowledgement: 77, ..build::Tcp::new(5, 22, flags) };
            let answer = |flags, data| numbers(answered(segment(flags), data, &ends, |_| ()));
            assert_eq!(answer(SYN, 0), (22, 5, RST | ACK, 0, 0));
            assert_eq!(answer(SYN | FIN, 9), (22, 5, RST | ACK, 0, 10));
            assert_eq!(answer(0, 0), (22, 5, RST | ACK, 0, u32::MAX));
            assert_eq!(answer(ACK, 9), (22, 5, RST, 77, 0));
            assert_eq!(answer(SYN | ACK, 0), (22, 5, RST, 77, 0));
            let options = build::Tcp { options: &[1; 12], ..segment(SYN) };
            assert_eq!(numbers(answered(options, 3, &ends, |_| ())), (22, 5, RST | ACK, 0, 3), "options are no data");
        }
    }

    #[test]
    fn resets_damaged_segments_and_fragments_get_none() {
        use tcp_flags::{ACK, RST, SYN};
        assert!(answered(build::Tcp::new(5, 22, RST), 0, &FOUR, |_| ()).is_none());
        assert!(answered(build::Tcp::new(5, 22, RST | ACK), 0, &SIX, |_| ()).is_none());
        assert!(answered(build::Tcp::new(5, 22, SYN), 0, &FOUR, |frame| frame[50] ^= 1).is_none());
        assert!(answered(build::Tcp::new(5, 22, SYN), 4, &FOUR, |frame| frame[20] |= 0x20).is_none(), "more fragments");
    }
}
