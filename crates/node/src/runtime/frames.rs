//! Frames to and from a runtime: packets to their chains, hand-overs to their
//! protections, messages to the fabric; and back.

use super::Runtime;
use super::switch_peer::SwitchPeer;
use holdfast_protection::{Commit, Epoch, Flows, Peer};
use holdfast_wire::header::{ETHERTYPE_FABRIC, ETHERTYPE_NSH, Mac};
use holdfast_wire::nsh::{self, Flags, Outer, index};
use holdfast_wire::{DropReason, FlowKey, NodeId, Packet, PacketPool};

impl Runtime {
    /// Sorts frames: packets to their chains, hand-overs to their protections, messages
    /// to the fabric.
    pub(super) fn sort(&mut self, rx: &mut Vec<Packet>, pool: &mut dyn PacketPool, clock: u64) {
        for mut packet in rx.drain(..) {
            let ethertype = packet
                .bytes()
                .get(12..14)
                .map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
            match ethertype {
                ETHERTYPE_NSH => match nsh::decapsulate(&mut packet) {
                    Some(outer) => self.sort_packet(packet, outer, pool),
                    None => self.shared.drop(packet, DropReason::Malformed, pool),
                },
                ETHERTYPE_FABRIC => {
                    if let Err(reason) = self.fabric.handle_frame(packet.bytes(), clock) {
                        self.shared.drops.count(reason);
                    }
                    pool.put(packet);
                }
                _ => self.shared.drop(packet, DropReason::Malformed, pool),
            }
        }
    }

    /// The runtime that sent a packet. `None` if an earlier incarnation of it did, whose
    /// packets do not count any more.
    #[inline]
    pub(super) fn sender(&self, source: &Mac) -> Option<Peer> {
        let node = NodeId::of_mac(source)?;
        // Messages of a runtime may come before the view that names it, because a runtime
        // that was just started is told last.
        let peer = self
            .member_at
            .get(node)
            .map(|at| self.members[at])
            .or_else(|| self.fabric.peer(node))?;
        (peer.mac() == *source).then_some(peer)
    }

    #[inline]
    fn sort_packet(&mut self, mut packet: Packet, outer: Outer, pool: &mut dyn PacketPool) {
        if outer.destination != self.config.me.mac() && outer.index != index::FENCED {
            // The packet is for an earlier incarnation of this node, whose flows have
            // other owners by now.
            return self.shared.drop(packet, DropReason::Fenced, pool);
        }
        if matches!(outer.index, index::TO_RUNTIME | index::MARK)
            && let Some(side) =
                NodeId::of_mac(&outer.source).and_then(|node| self.shared.side_of(node))
            && side.hear(packet.meta.switch)
        {
            let switch = side.switch;
            self.log_lost(|side| side.switch == switch, pool);
        }
        if packet.meta.flags & Flags::OAM != 0 {
            if outer.index == index::MARK {
                self.handle_mark(&packet, outer.source);
            }
            self.fenced |=
                outer.index == index::FENCED && packet.meta.commit == self.config.me.incarnation;
            match NodeId::of_mac(&outer.source).and_then(|node| self.shared.side_of(node)) {
                Some(side) if outer.index == index::TO_RUNTIME => {
                    side.tick(packet.meta.stamp, packet.meta.commit)
                }
                Some(side) => side.now = side.now.max(packet.meta.stamp),
                None => {}
            }
            pool.put(packet);
            return;
        }
        let sender =
            if outer.index == index::TO_REPLICA { self.sender(&outer.source) } else { None };
        let Some(lane) = self.lanes.get_mut(packet.meta.chain as usize) else {
            self.shared.drop(packet, DropReason::Malformed, pool);
            return;
        };
        let side = &mut self.shared.sides[lane.side];
        match outer.index {
            // Stamps, epochs and incarnations of another switch mean nothing here: the
            // sender is a host with another configuration.
            index::TO_RUNTIME if NodeId::of_mac(&outer.source) != Some(side.switch) => {
                self.shared.drop(packet, DropReason::Malformed, pool);
            }
            // The present incarnation of the switch would not know a flow opened, or a
            // route given anew, by this packet.
            index::TO_RUNTIME
                if packet.meta.flags & Flags::NEW != 0
                    && side.incarnation.is_some_and(|now| now != packet.meta.switch) =>
            {
                self.shared.drop(packet, DropReason::LostInFailure, pool);
            }
            index::TO_RUNTIME if packet.meta.flags & Flags::REPLAY != 0 => {
                if let Err(packet) = lane.replays.take(packet) {
                    self.shared.drop(packet, DropReason::StaleDuplicate, pool);
                }
            }
            index::TO_RUNTIME => {
                self.packets += 1;
                side.now = side.now.max(packet.meta.stamp);
                match SwitchPeer::identify(&mut packet) {
                    Ok(key) => lane.arrive(packet, key),
                    Err(reason) => self.shared.drop(packet, reason, pool),
                }
            }
            index::TO_REPLICA => match sender {
                Some(from) => {
                    lane.protection.handle_handed(&mut lane.flows, from, packet, &mut lane.outbox)
                }
                None => self.shared.drop(packet, DropReason::Fenced, pool),
            },
            _ => self.shared.drop(packet, DropReason::Malformed, pool),
        }
    }

    /// Sends the protection's packets, after the messages that they must not overtake.
    pub(super) fn carry_out_packets(
        &mut self,
        at: usize,
        tx: &mut Vec<Packet>,
        pool: &mut dyn PacketPool,
    ) {
        let me = self.config.me.mac();
        let lane = &mut self.lanes[at];
        for (to, mut packet) in lane.outbox.handed.drain(..) {
            let outer = Outer { destination: to.mac(), source: me, index: index::TO_REPLICA };
            if nsh::encapsulate(&mut packet, outer) {
                tx.push(packet);
            } else {
                self.shared.drop(packet, DropReason::FrameTooLarge, pool);
            }
        }
        send_marks(&mut lane.outbox.marks, lane.index, me, tx, pool);
        self.released_unprotected += core::mem::take(&mut lane.outbox.released_unprotected);
        let switch = self.shared.sides[lane.side].switch.mac();
        for released in lane.outbox.released.drain(..) {
            let mut packet = released.into_inner();
            if encapsulate_released(&mut packet, &lane.flows, me, switch) {
                self.released += 1;
                tx.push(packet);
            } else {
                self.shared.drop(packet, DropReason::FrameTooLarge, pool);
            }
        }
        for (packet, reason) in lane.outbox.dropped.drain(..) {
            self.shared.drop(packet, reason, pool);
        }
    }

    pub(super) fn transmit_messages(
        &mut self,
        tx: &mut Vec<Packet>,
        pool: &mut dyn PacketPool,
        clock: u64,
    ) {
        self.fabric.poll_transmit(clock, |frame| {
            let Some(mut packet) = pool.take() else { return false };
            if packet.copy_from(frame) {
                tx.push(packet);
                true
            } else {
                pool.put(packet);
                false
            }
        });
    }
}

/// Asks replicas which of the packets that were handed to them have arrived.
#[inline(never)]
fn send_marks(
    marks: &mut Vec<(Peer, Commit)>,
    chain: u16,
    me: [u8; 6],
    tx: &mut Vec<Packet>,
    pool: &mut dyn PacketPool,
) {
    for (to, commit) in marks.drain(..) {
        // Without a buffer no mark is sent, and the protection asks again.
        let Some(mut mark) = pool.take() else { break };
        mark.meta.flags = Flags::OAM;
        mark.meta.chain = chain;
        mark.meta.commit = commit.get();
        let outer = Outer { destination: to.mac(), source: me, index: index::MARK };
        if nsh::encapsulate(&mut mark, outer) {
            tx.push(mark);
        } else {
            pool.put(mark);
        }
    }
}

/// Encapsulates a released packet for the switch's egress. Frames are marked as released
/// only here. False if there is no room.
#[inline]
fn encapsulate_released(packet: &mut Packet, flows: &Flows, me: Mac, switch: Mac) -> bool {
    if packet.meta.flags & Flags::LEARN != 0 {
        // The switch finds the route by its epoch, of which the packet has the low bits.
        // The flow may have got a later epoch meanwhile, or only another flow that wants
        // the same reply key may be left here. The epoch is therefore the packet's own:
        // the one with these low bits that is nearest to that of the flow with this key.
        let key =
            packet.parse().ok().and_then(|()| FlowKey::noted(packet)).map(|key| key.reverse());
        let found = key.and_then(|key| flows.find_meant(&key, flows.hash(&key), packet.meta.epoch));
        let epoch = found.map(|found| flows.header(found.slot).epoch.nearest(packet.meta.epoch));
        // Without an epoch the switch lets the packet out unless its replies would be
        // another flow's.
        packet.meta.commit = epoch.map_or(0, Epoch::get);
    }
    nsh::encapsulate(packet, Outer { destination: switch, source: me, index: index::RELEASED })
}
