//! Accounting: what a processed packet changes in its flow's header.

use holdfast_nf::{Context, Direction, Standing};
use holdfast_protection::flows::{ActorHeader, flag};
use holdfast_wire::Packet;
use holdfast_wire::header::proto;
use holdfast_wire::nsh::Flags;

/// Accounts a processed packet to its flow: counters, deadline, and, if it `is_current`,
/// whether the switch has shown that it knows the reply key.
#[inline]
pub(super) fn account(
    header: &mut ActorHeader,
    direction: Direction,
    packet: &Packet,
    is_current: bool,
    cx: &Context,
) {
    // An error about a packet of the flow is none of its packets.
    if !packet.is_icmp_error() {
        header.count(direction as usize, packet.len() as u16);
    }
    if is_current {
        let is_known = direction == Direction::Reverse || packet.meta.flags & Flags::NEW == 0;
        header.flags =
            header.flags & !flag::UNCONFIRMED | if is_known { 0 } else { flag::UNCONFIRMED };
    }
    if cx.lifetime() > 0 {
        let deadline = header.last_stamp + cx.lifetime();
        if cx.is_ending() || deadline > header.expires_at {
            header.set_deadline(deadline);
        }
    }
    if let Some(standing) = cx.standing() {
        header.set_standing(standing);
    }
}

/// Judges the standing of a flow if no function does. A flow is answered when a reply
/// other than an error has passed; a TCP flow is established when its initiator has gone
/// on after that.
#[inline(never)]
pub(super) fn judge(header: &mut ActorHeader, direction: Direction, packet: &Packet) {
    match (direction, header.standing()) {
        (Direction::Reverse, Standing::Unreplied) if !packet.is_icmp_error() => {
            header.set_standing(Standing::Answered)
        }
        (Direction::Forward, Standing::Answered) if packet.layers.protocol == proto::TCP => {
            header.set_standing(Standing::Established);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_nf::bench::frames;
    use holdfast_wire::{MemoryPool, PacketPool};
    use zerocopy::FromZeros;

    /// As conntrack, a flow counts its own packets, and no error about one of them.
    #[test]
    fn errors_are_not_counted() {
        let (client, server) = (([10, 0, 0, 2], 5), ([192, 0, 2, 1], 7));
        let sent = frames::udp(client, server, b"12345678");
        let unreachable = [&[3, 1, 0, 0, 0, 0, 0, 0][..], &sent[14..]].concat();
        let error = frames::ipv4([192, 0, 2, 2], client.0, proto::ICMP, &unreachable);
        let mut header = ActorHeader::new_zeroed();
        let (mut pool, cx) = (MemoryPool::new(2), Context::new(1));
        for (frame, direction) in [(&sent, Direction::Forward), (&error, Direction::Reverse)] {
            let mut packet = pool.take().expect("a buffer");
            assert!(packet.copy_from(frame) && packet.parse().is_ok());
            account(&mut header, direction, &packet, true, &cx);
        }
        assert_eq!((header.packets(), header.bytes()), ([1, 0], [sent.len() as u64, 0]));
    }
}
