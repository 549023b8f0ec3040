//! Resets for a TCP segment that finds no connection: one to its sender, and where a
//! connection ends one to its receiver.

use crate::channel::format::after;
use holdfast_wire::build::{self, Ends, Ethernet};
use holdfast_wire::checksum::Delta;
use holdfast_wire::header::{Tcp, proto, tcp_flags};
use holdfast_wire::{FlowKey, Packet, ip_addr};
use std::net::IpAddr;
use zerocopy::{FromBytes, IntoBytes};

/// Makes a segment into the reset that its sender gets if there is no connection (RFC
/// 9293, section 3.10.7.1), without MAC addresses of its own. False, and nothing changed,
/// for a reset, for a damaged segment, and for a fragment, which does not show its
/// connection.
pub fn reset(packet: &mut Packet) -> bool {
    let Some(&refused) = packet.tcp() else { return false };
    let Some(&(mut ethernet)) = packet.bytes().first_chunk::<{ Ethernet::LEN }>() else {
        return false;
    };
    // The answer does not get the tag that a function has put on.
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
    // The segment's own headers were as long.
    packet.truncate(frame_len(&ends));
    let Some(frame) = packet.bytes_mut().get_mut(..frame_len(&ends)) else { return false };
    write(frame, &ethernet, &answer, &ends)
}

/// Makes an empty packet into the reset that a refused segment's receiver gets in its
/// place, between the ends of this key. The reset has the segment's own number, where the
/// receiver expects it. In place of a segment that was sent again, it comes behind all
/// that the receiver was sent, if that is known (`expected`). A receiver that misses some
/// of it answers with a challenge; it would ignore an earlier number. The reset
/// acknowledges what the segment does, so that a receiver that has only sent a SYN
/// believes it (RFC 9293, section 3.10.7.3; RFC 5961, section 3.2).
///
/// # Errors
/// Gives the empty packet back for a segment that is damaged, and for a fragment.
pub(crate) fn reset_ahead(
    refused: &Packet,
    key: &FlowKey,
    expected: Option<u32>,
    mut empty: Packet,
) -> Result<Packet, Packet> {
    let (Some(segment), Some(&(mut ethernet))) =
        (refused.tcp(), refused.bytes().first_chunk::<{ Ethernet::LEN }>())
    else {
        return Err(empty);
    };
    ethernet[12..].copy_from_slice(&refused.layers.ethertype.to_be_bytes());
    let ends = match (ip_addr(&key.source), ip_addr(&key.destination)) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Ends::V4(source.octets(), destination.octets())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Ends::V6(source.octets(), destination.octets())
        }
        _ => return Err(empty),
    };
    if refused.is_intact() != Some(true) {
        return Err(empty);
    }
    let is_first = segment.flags & tcp_flags::SYN != 0;
    let own = segment.sequence.get().wrapping_add(u32::from(is_first));
    let sequence = expected.filter(|next| after(*next, own)).unwrap_or(own);
    let (source, destination) = key.ports();
    let reset = build::Tcp {
        sequence,
        acknowledgement: segment.acknowledgement.get(),
        window: 0,
        ..build::Tcp::new(source, destination, tcp_flags::RST | segment.flags & tcp_flags::ACK)
    };
    empty.clear();
    let is_made = empty
        .extend_back(frame_len(&ends))
        .is_some_and(|frame| write(frame, &ethernet, &reset, &ends));
    empty.meta = refused.meta;
    if is_made && empty.parse().is_ok() { Ok(empty) } else { Err(empty) }
}

/// Raises a refused segment's acknowledgement to what its sender has asked for since. An
/// old segment is answered as the latest would be, with a reset that its sender believes.
pub(crate) fn acknowledge(refused: &mut Packet, asked_for: u32) {
    let Some((flags, before)) = refused.tcp().map(|tcp| (tcp.flags, tcp.acknowledgement)) else {
        return;
    };
    if flags & tcp_flags::ACK == 0 || !after(asked_for, before.get()) {
        return;
    }
    let now = asked_for.to_be_bytes();
    let Ok((tcp, _)) = Tcp::mut_from_prefix(refused.l4_mut()) else { return };
    let sum = Delta::new().bytes(before.as_bytes(), &now).apply(tcp.checksum.get());
    (tcp.acknowledgement, tcp.checksum) = (asked_for.into(), sum.into());
}

fn frame_len(ends: &Ends) -> usize {
    let ip = if let Ends::V4(..) = ends { build::Ipv4::LEN } else { build::Ipv6::LEN };
    Ethernet::LEN + ip + build::Tcp::LEN
}

fn write(
    frame: &mut [u8],
    ethernet: &[u8; Ethernet::LEN],
    segment: &build::Tcp<'_>,
    ends: &Ends,
) -> bool {
    let l4 = frame.len() - build::Tcp::LEN;
    frame[..Ethernet::LEN].copy_from_slice(ethernet);
    let written = segment.write(&mut frame[l4..], ends).and_then(|()| match *ends {
        Ends::V4(source, destination) => {
            build::Ipv4::new(source, destination, proto::TCP).write(&mut frame[Ethernet::LEN..])
        }
        Ends::V6(source, destination) => {
            build::Ipv6::new(source, destination, proto::TCP).write(&mut frame[Ethernet::LEN..])
        }
    });
    written.is_ok()
}

/// "If the ACK bit is off, sequence number zero is used,
/// <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>. If the ACK bit is on,
/// <SEQ=SEG.ACK><CTL=RST>." SEG.LEN counts SYN and FIN.
fn answer_to(refused: &Tcp, len: usize) -> build::Tcp<'static> {
    let (source, destination) = (refused.destination.get(), refused.source.get());
    if refused.flags & tcp_flags::ACK != 0 {
        let sequence = refused.acknowledgement.get();
        return build::Tcp { sequence, ..build::Tcp::new(source, destination, tcp_flags::RST) };
    }
    let header = usize::from(refused.data_offset >> 4) * 4;
    let controls = u32::from(refused.flags & tcp_flags::SYN != 0)
        + u32::from(refused.flags & tcp_flags::FIN != 0);
    let behind = refused
        .sequence
        .get()
        .wrapping_add(len.saturating_sub(header) as u32)
        .wrapping_add(controls);
    build::Tcp {
        acknowledgement: behind,
        ..build::Tcp::new(source, destination, tcp_flags::RST | tcp_flags::ACK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::header::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
    use holdfast_wire::{MemoryPool, PacketPool};

    const FOUR: Ends = Ends::V4([10, 0, 0, 9], [10, 0, 0, 1]);
    const SIX: Ends = Ends::V6([7; 16], [8; 16]);

    /// A frame with these bytes of data between the ends.
    fn frame(
        pool: &mut MemoryPool,
        segment: build::Tcp<'_>,
        data: usize,
        ends: &Ends,
        break_it: impl Fn(&mut [u8]),
    ) -> Packet {
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
        packet
    }

    /// The reset that a frame becomes.
    fn answered(
        segment: build::Tcp<'_>,
        data: usize,
        ends: &Ends,
        break_it: impl Fn(&mut [u8]),
    ) -> Option<Tcp> {
        let mut pool = MemoryPool::new(1);
        let mut packet = frame(&mut pool, segment, data, ends, break_it);
        let len = packet.len();
        if !reset(&mut packet) {
            assert_eq!(packet.len(), len, "nothing changed");
            return None;
        }
        packet.parse().expect("a reset is well formed");
        let tcp = *packet.tcp().expect("a reset is TCP");
        let is_turned = match *ends {
            Ends::V4(from, to) => {
                packet.ipv4().is_some_and(|ip| (ip.source, ip.destination) == (to, from))
            }
            Ends::V6(from, to) => {
                packet.ipv6().is_some_and(|ip| (ip.source, ip.destination) == (to, from))
            }
        };
        assert!(is_turned && packet.is_intact() == Some(true) && packet.l4().len() == 20);
        Some(tcp)
    }

    fn numbers(tcp: Option<Tcp>) -> (u16, u16, u8, u32, u32) {
        let tcp = tcp.expect("a reset");
        (
            tcp.source.get(),
            tcp.destination.get(),
            tcp.flags,
            tcp.sequence.get(),
            tcp.acknowledgement.get(),
        )
    }

    #[test]
    fn its_sequence_number_is_what_the_sender_expects() {
        use tcp_flags::{ACK, FIN, RST, SYN};
        for ends in [FOUR, SIX] {
            let segment = |flags| build::Tcp {
                sequence: u32::MAX,
                acknowledgement: 77,
                ..build::Tcp::new(5, 22, flags)
            };
            let answer = |flags, data| numbers(answered(segment(flags), data, &ends, |_| ()));
            assert_eq!(answer(SYN, 0), (22, 5, RST | ACK, 0, 0));
            assert_eq!(answer(SYN | FIN, 9), (22, 5, RST | ACK, 0, 10));
            assert_eq!(answer(0, 0), (22, 5, RST | ACK, 0, u32::MAX));
            assert_eq!(answer(ACK, 9), (22, 5, RST, 77, 0));
            assert_eq!(answer(SYN | ACK, 0), (22, 5, RST, 77, 0));
            let options = build::Tcp { options: &[1; 12], ..segment(SYN) };
            assert_eq!(
                numbers(answered(options, 3, &ends, |_| ())),
                (22, 5, RST | ACK, 0, 3),
                "options are no data"
            );
        }
    }

    /// The receiver's reset goes the segment's way, between the ends of the key, at the
    /// segment's number, behind a SYN, and acknowledges what the segment does.
    #[test]
    fn the_receiver_gets_a_reset_where_it_expects_the_segment() {
        use tcp_flags::{ACK, FIN, PSH, RST, SYN};
        const V4_OF: fn([u8; 4]) -> [u8; 16] =
            |address| std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets();
        for (ends, from, to) in
            [(FOUR, V4_OF([10, 0, 0, 7]), V4_OF([10, 0, 0, 8])), (SIX, [5; 16], [6; 16])]
        {
            let key = FlowKey {
                source: from,
                destination: to,
                source_port: 50,
                destination_port: 220,
                protocol: 6,
                ..FlowKey::default()
            };
            let ahead_of = |expected, flags, data, broken: bool| {
                let mut pool = MemoryPool::new(2);
                let segment = build::Tcp {
                    sequence: u32::MAX,
                    acknowledgement: 77,
                    ..build::Tcp::new(5, 22, flags)
                };
                let refused =
                    frame(&mut pool, segment, data, &ends, |frame| frame[50] ^= u8::from(broken));
                let empty = pool.take().expect("a buffer");
                let reset = reset_ahead(&refused, &key, expected, empty).ok()?;
                assert!(reset.is_intact() == Some(true) && reset.l4().len() == 20);
                assert_eq!(FlowKey::of(&reset), Some(key));
                reset.tcp().copied()
            };
            let ahead = |flags, data, broken| ahead_of(None, flags, data, broken);
            let again = |expected| numbers(ahead_of(Some(expected), ACK, 9, false));
            assert_eq!(again(3), (50, 220, RST | ACK, 3, 77), "what was sent again has come");
            assert_eq!(
                again(u32::MAX - 1),
                (50, 220, RST | ACK, u32::MAX, 77),
                "it is not known to have come"
            );
            assert_eq!(numbers(ahead(ACK | PSH, 9, false)), (50, 220, RST | ACK, u32::MAX, 77));
            assert_eq!(numbers(ahead(FIN | ACK, 0, false)), (50, 220, RST | ACK, u32::MAX, 77));
            assert_eq!(numbers(ahead(SYN | ACK, 0, false)), (50, 220, RST | ACK, 0, 77));
            assert_eq!(numbers(ahead(SYN, 0, false)), (50, 220, RST, 0, 77));
            assert_eq!(
                numbers(ahead(RST, 0, false)),
                (50, 220, RST, u32::MAX, 77),
                "a reset that was refused goes on"
            );
            assert!(ahead(ACK, 9, true).is_none(), "it is damaged");
        }
    }

    /// The sender of an old segment gets a reset at the number that it has asked for
    /// since. A SYN is answered as ever, and a damaged segment stays damaged.
    #[test]
    fn an_old_segment_is_answered_where_its_sender_is_by_now() {
        use tcp_flags::{ACK, RST, SYN};
        for ends in [FOUR, SIX] {
            let answered = |flags, asked_for, broken: bool| {
                let mut pool = MemoryPool::new(1);
                let segment = build::Tcp {
                    sequence: 5,
                    acknowledgement: u32::MAX,
                    ..build::Tcp::new(5, 22, flags)
                };
                let mut packet =
                    frame(&mut pool, segment, 9, &ends, |frame| frame[50] ^= u8::from(broken));
                acknowledge(&mut packet, asked_for);
                let is_answered = reset(&mut packet);
                packet.parse().expect("it is well formed");
                is_answered.then(|| numbers(packet.tcp().copied()))
            };
            assert_eq!(answered(ACK, 3, false), Some((22, 5, RST, 3, 0)));
            assert_eq!(
                answered(ACK, u32::MAX - 1, false),
                Some((22, 5, RST, u32::MAX, 0)),
                "it has heard of more"
            );
            assert_eq!(answered(SYN, 3, false), Some((22, 5, RST | ACK, 0, 15)));
            assert_eq!(answered(ACK, 3, true), None);
        }
    }

    #[test]
    fn resets_damaged_segments_and_fragments_get_none() {
        use tcp_flags::{ACK, RST, SYN};
        assert!(answered(build::Tcp::new(5, 22, RST), 0, &FOUR, |_| ()).is_none());
        assert!(answered(build::Tcp::new(5, 22, RST | ACK), 0, &SIX, |_| ()).is_none());
        assert!(answered(build::Tcp::new(5, 22, SYN), 0, &FOUR, |frame| frame[50] ^= 1).is_none());
        assert!(
            answered(build::Tcp::new(5, 22, SYN), 4, &FOUR, |frame| frame[20] |= 0x20).is_none(),
            "more fragments"
        );
    }
}
