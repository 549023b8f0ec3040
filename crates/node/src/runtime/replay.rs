//! Replay: packets that a flow's dead owner processed are processed again here.
//!
//! Theory of operation (REINFORCE: replay). With a flow's route comes the number of its
//! packets in the switch's log. The protection says which of them the dead owner had
//! processed since the copy that is here, and in which order: the *inputs*. The inputs
//! are asked for, some at a time, and go through the chain in that order. Their output
//! does not leave, because it has left before. Packets behind the last input are as good
//! as new; others before it were lost on their way to the dead owner, or are in the copy.
//! New packets of the flow wait at the switch until the replay is over, and any that
//! arrive here wait in the parking lot. If an input is missing (the log died with the
//! switch), the flow's state would lack changes that have been revealed: the flow is
//! lost, and ends.
//!
//! In: packets marked as sent before. Out: requests for more, and messages that no more
//! are needed.

use super::lane::Lane;
use super::parking::Parked;
use super::{Shared, recovery::Recoveries};
use crate::channel::Fabric;
use crate::message::{Replay as Ask, kind};
use holdfast_nf::Position;
use holdfast_protection::flows::{Event, Found, Life, flag};
use holdfast_protection::{Epoch, FlowRef, Flows, Peer, Slot};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::nsh::Flags;
use holdfast_wire::{DropReason, FlowKey, NodeId, Packet, PacketPool};
use std::collections::{BTreeMap, VecDeque};
use zerocopy::IntoBytes;

const _: () = assert!(Ask::MOST <= u64::BITS);

/// Time before missing packets are asked for again, worker's time, ns.
const TIMEOUT: u64 = 10_000_000;
/// Packets of a flow that wait for an input before them. If there are more, that input
/// never comes.
const KEPT: usize = 1024;
/// Packets of all flows together that have been asked for and have not come.
const UNDER_WAY: u32 = 512;

/// The replay of one flow.
struct Replay {
    flow: FlowRef,
    dead: Peer,
    /// Number of logged packets, and of those among them that have come.
    total: u32,
    done: u32,
    /// The open request: how many packets from `done` on, and its time.
    asked: Option<(u32, u64)>,
    /// A bit for each requested packet that has come.
    came: u64,
    inputs: VecDeque<u64>,
    /// No packet up to this stamp is new.
    bar: u64,
    packets: BTreeMap<u64, Packet>,
    /// An input is missing, or its outcome differs: the flow cannot be restored.
    is_broken: bool,
}

impl Replay {
    /// True if the flow of this epoch is still the one that is being replayed.
    fn is_valid(&self, flows: &Flows, epoch: u32) -> bool {
        flows
            .get(self.flow)
            .is_some_and(|header| header.life() == Life::Replaying && header.epoch.get() == epoch)
    }
}

/// See the module. Replays of one chain.
#[derive(Default)]
pub(crate) struct Replays {
    /// Replays by epoch number, which names them in all fields below.
    flows: BTreeMap<u32, Replay>,
    /// Replays whose requested packets have all come, or that have not asked yet.
    ready: Vec<u32>,
    /// Replays that are to ask for more, when there is room.
    queue: VecDeque<u32>,
    /// Open requests with their times, in order.
    asked: VecDeque<(u64, u32)>,
    under_way: u32,
    /// Replays of which the switch is still to hear that they are over.
    over: Vec<u32>,
    /// Flows for which recoveries need not wait any longer, one per entry, and whether
    /// the flow is lost.
    settled: Vec<(Peer, bool)>,
}

impl Replays {
    /// True if no replay is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty() && self.over.is_empty()
    }

    /// True if the flow of this epoch is being replayed.
    pub(crate) fn has(&self, epoch: Epoch) -> bool {
        self.flows.contains_key(&epoch.get())
    }

    /// Tells the switch that its packets for this epoch are not needed.
    pub(crate) fn renounce(&mut self, epoch: Epoch) {
        self.over.push(epoch.get());
    }

    /// The time at which packets are to be asked for again, by the worker's clock.
    pub(crate) fn poll_timeout(&self) -> u64 {
        match self.ready.is_empty() {
            true => self.asked.front().map_or(u64::MAX, |(at, _)| at + TIMEOUT),
            false => 0,
        }
    }

    /// Takes a logged packet that has come. Gives it back if it was not asked for, or
    /// came before.
    pub(crate) fn take(&mut self, packet: Packet) -> Result<(), Packet> {
        let epoch = packet.meta.commit;
        let Some(replay) = self.flows.get_mut(&epoch) else { return Err(packet) };
        let number = packet.meta.epoch.wrapping_sub(replay.done as u16);
        let Some((count, _)) = replay.asked.filter(|(count, _)| u32::from(number) < *count) else {
            return Err(packet);
        };
        if replay.came >> number & 1 != 0 {
            // The packet came before.
            return Err(packet);
        }
        replay.came |= 1 << number;
        if replay.came.count_ones() == count {
            self.ready.push(epoch);
        }
        match replay.packets.insert(packet.meta.stamp, packet) {
            None => Ok(()),
            Some(other) => Err(other),
        }
    }
}

impl Lane {
    /// Begins the replay of a flow whose route has come. False if there is none: the
    /// switch has no packets, and there are no inputs.
    pub(crate) fn begin_replay(
        &mut self,
        slot: Slot,
        dead: Peer,
        total: u32,
        inputs: Vec<u64>,
    ) -> bool {
        if total == 0 && inputs.is_empty() {
            return false;
        }
        let header = self.flows.header_mut(slot);
        // During the replay no packet passes, and the flow does not move.
        header.parked += 1;
        header.flags |= if inputs.is_empty() { 0 } else { flag::EMPTY };
        let bar = inputs.iter().copied().fold(header.last_stamp, u64::max);
        let (epoch, flow) = (header.epoch.get(), header.reference(slot));
        self.flows.step(slot, Event::Replay);
        let replay = Replay {
            flow,
            dead,
            total,
            done: 0,
            asked: None,
            came: 0,
            inputs: inputs.into(),
            bar,
            packets: BTreeMap::new(),
            is_broken: false,
        };
        self.replays.flows.insert(epoch, replay);
        self.replays.ready.push(epoch);
        true
    }

    /// Processes packets that have come, and asks for more.
    pub(crate) fn go_on_replaying(
        &mut self,
        shared: &mut Shared,
        fabric: &mut Fabric,
        pool: &mut dyn PacketPool,
        clock: u64,
    ) {
        if self.replays.is_empty() {
            return;
        }
        let switch = shared.sides[self.side].switch;
        for epoch in core::mem::take(&mut self.replays.ready) {
            self.go_on_with(epoch, shared, pool);
        }
        while let Some(&epoch) = self.replays.queue.front() {
            let Replays { flows, queue, asked, under_way, .. } = &mut self.replays;
            if let Some(replay) = flows.get_mut(&epoch) {
                let count = (replay.total - replay.done).min(Ask::MOST);
                if *under_way + count > UNDER_WAY || !ask(fabric, switch, epoch, replay.done, count)
                {
                    break;
                }
                *under_way += count;
                (replay.asked, replay.came) = (Some((count, clock)), 0);
                asked.push_back((clock, epoch));
            }
            queue.pop_front();
        }
        while let Some((at, epoch)) =
            self.replays.asked.pop_front_if(|(at, _)| *at + TIMEOUT <= clock)
        {
            let Some(replay) = self.replays.flows.get_mut(&epoch) else { continue };
            let Some((count, _)) = replay.asked.filter(|(_, asked_at)| *asked_at == at) else {
                continue;
            };
            if !self.is_valid(epoch) {
                self.replays.ready.push(epoch);
                continue;
            }
            let Replays { flows, asked, .. } = &mut self.replays;
            // Packets before the first missing one and behind the last are not asked for
            // again: a ring too short for all of them would lose the same ones every
            // time. A packet that comes twice does no harm. If the channel is full, the
            // request follows later.
            if let Some(replay) = flows.get_mut(&epoch) {
                let before = replay.came.trailing_ones().min(count);
                let behind =
                    (replay.came << (u64::BITS - count)).leading_ones().min(count - before);
                let (before, behind) =
                    if is_planted(Fault::AsksForAllAgain) { (0, 0) } else { (before, behind) };
                let missing = count - before - behind;
                if missing > 0 {
                    let _ = ask(fabric, switch, epoch, replay.done + before, missing);
                }
                replay.asked = Some((count, clock));
                asked.push_back((clock, epoch));
            }
        }
        self.replays.over.retain(|epoch| !ask(fabric, switch, *epoch, 0, 0));
        // Requests that have been answered in full are not waited for.
        let Replays { flows, asked, .. } = &mut self.replays;
        let is_open = |at: u64, epoch: &u32| {
            flows.get(epoch).and_then(|replay| replay.asked).is_some_and(|(_, asked)| asked == at)
        };
        while asked.pop_front_if(|(at, epoch)| !is_open(*at, epoch)).is_some() {}
    }

    /// True if the flow of this epoch is still the one that is being replayed.
    fn is_valid(&self, epoch: u32) -> bool {
        self.replays.flows.get(&epoch).is_some_and(|replay| replay.is_valid(&self.flows, epoch))
    }

    /// Continues a replay that has no open request.
    fn go_on_with(&mut self, epoch: u32, shared: &mut Shared, pool: &mut dyn PacketPool) {
        let is_valid = self.is_valid(epoch);
        let Some(mut replay) = self.replays.flows.remove(&epoch) else { return };
        if let Some((count, _)) = replay.asked.take() {
            self.replays.under_way -= count;
            replay.done += count;
        }
        if !is_valid {
            // The flow is another runtime's by now, or has ended.
            return self.finish(epoch, replay, shared, pool);
        }
        self.replay_packets(&mut replay, shared, pool);
        if replay.done == replay.total {
            self.replay_rest(&mut replay, shared, pool);
        }
        if replay.done == replay.total || replay.is_broken {
            return self.finish(epoch, replay, shared, pool);
        }
        self.replays.flows.insert(epoch, replay);
        self.replays.queue.push_back(epoch);
    }

    /// Replays the inputs before which no other is missing, after some logged packets
    /// have come.
    fn replay_packets(
        &mut self,
        replay: &mut Replay,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) {
        while !replay.is_broken
            && let Some(stamp) = replay.inputs.front()
            && let Some(packet) = replay.packets.remove(stamp)
        {
            replay.inputs.pop_front();
            replay.is_broken |= !self.replay(replay.flow.slot, packet, true, shared, pool);
        }
        if !replay.is_broken && replay.packets.len() > KEPT && !replay.inputs.is_empty() {
            self.give_up_replay(replay, shared);
        }
        if replay.is_broken {
            return;
        }
        let (first, bar) = (replay.inputs.front().copied(), replay.bar);
        let is_waited_for = |stamp: u64| first.is_some() && replay.inputs.contains(&stamp);
        let useless: Vec<u64> = replay
            .packets
            .range(..=bar)
            .map(|(stamp, _)| *stamp)
            .filter(|stamp| !is_waited_for(*stamp))
            .collect();
        for stamp in useless {
            if let Some(packet) = replay.packets.remove(&stamp) {
                shared.drop(packet, DropReason::ReleasedBefore, pool);
            }
        }
        if replay.inputs.is_empty() {
            // The flow is as it was when a packet of it last left.
            self.flows.header_mut(replay.flow.slot).flags &= !flag::EMPTY;
            self.replay_new(replay, shared, pool);
        }
    }

    /// Runs the packets that the dead owner had not processed, as far as is known.
    fn replay_new(&mut self, replay: &mut Replay, shared: &mut Shared, pool: &mut dyn PacketPool) {
        while let Some((_, packet)) = replay.packets.pop_first() {
            self.replay(replay.flow.slot, packet, false, shared, pool);
        }
    }

    /// Replays the rest, after all logged packets have come.
    fn replay_rest(&mut self, replay: &mut Replay, shared: &mut Shared, pool: &mut dyn PacketPool) {
        self.replay_packets(replay, shared, pool);
        if !replay.is_broken && !replay.inputs.is_empty() {
            self.give_up_replay(replay, shared);
        }
    }

    /// Gives up a replay whose next input does not come any more.
    fn give_up_replay(&mut self, replay: &mut Replay, shared: &mut Shared) {
        replay.is_broken = true;
        let is_missing = |stamp: &&u64| !replay.packets.contains_key(stamp);
        (0..replay.inputs.iter().filter(is_missing).count())
            .for_each(|_| shared.drops.count(DropReason::InputMissing));
    }

    /// Runs a logged packet through the chain. If `is_known`, its output has left before.
    /// False if the flow is not as the dead owner had it after this packet.
    fn replay(
        &mut self,
        slot: Slot,
        mut packet: Packet,
        is_known: bool,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) -> bool {
        if packet.is_empty() {
            // The packet has been set aside.
            if is_known {
                shared.drops.count(DropReason::InputMissing);
            }
            pool.put(packet);
            return !is_known;
        }
        let header = self.flows.header(slot);
        let is_parsed = packet.parse().is_ok();
        let own = FlowKey::noted(&packet).filter(|_| is_parsed);
        let is_reply = own.is_some_and(|key| key == header.reply && key != header.key);
        let key = if is_reply { header.reply } else { header.key };
        // The packet proves nothing about the switch's present incarnation.
        packet.meta.commit = 0;
        if is_known {
            let stamp = packet.meta.stamp;
            let is_as_before = self.run_again(&mut packet, Found { slot, is_reply }, &key, shared);
            self.protection.changed(&mut self.flows, slot, stamp, true);
            shared.drop(packet, DropReason::ReleasedBefore, pool);
            return is_as_before;
        } else if packet.meta.flags & Flags::SUSPECT != 0 {
            self.suspect(Found { slot, is_reply }, key, packet, shared, pool);
        } else if header.parked == 1 {
            // The packet is as good as new.
            let found = Found { slot, is_reply };
            self.run_late(packet, found, &key, shared, pool);
        } else {
            // An earlier packet of the flow waits, so this one waits behind it.
            let (flow, since) = (header.reference(slot), shared.sides[self.side].now);
            let parked = Parked { flow, key, position: Position::START, since, packet };
            let header = self.flows.header_mut(slot);
            match self.parking.push(parked, header.parked) {
                Ok(()) => header.parked += 1,
                Err(packet) => shared.drop(packet, DropReason::ParkedOverflow, pool),
            }
        }
        true
    }

    fn finish(
        &mut self,
        epoch: u32,
        mut replay: Replay,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) {
        let reason =
            if replay.is_broken { DropReason::LostInFailure } else { DropReason::StaleEpoch };
        while let Some((_, packet)) = replay.packets.pop_first() {
            shared.drop(packet, reason, pool);
        }
        if let Some((count, _)) = replay.asked {
            self.replays.under_way -= count;
        }
        let (is_valid, slot) = (replay.is_valid(&self.flows, epoch), replay.flow.slot);
        if is_valid {
            let header = self.flows.header_mut(slot);
            header.flags &= !flag::EMPTY;
            header.parked = header.parked.saturating_sub(1);
            self.flows.step(slot, Event::Restore);
            if replay.is_broken {
                self.lose(slot, shared, pool);
            } else {
                self.wheel.remove(&mut self.flows, slot);
                self.wheel.file(&mut self.flows, slot);
                if let Some(logged) = self.protection.logged_mut() {
                    logged.replayed(&mut self.flows, slot);
                }
            }
        }
        self.retry = true;
        self.replays.over.push(epoch);
        self.replays.settled.push((replay.dead, is_valid && replay.is_broken));
    }

    /// Ends the replay of a flow of which the switch has no more packets.
    pub(crate) fn end_replay(
        &mut self,
        epoch: Epoch,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) {
        let epoch = epoch.get();
        let is_valid = self.is_valid(epoch);
        let Some(mut replay) = self.replays.flows.remove(&epoch) else { return };
        if is_valid {
            self.replay_rest(&mut replay, shared, pool);
        }
        self.finish(epoch, replay, shared, pool);
    }

    /// Ends all replays, because the switch that had the log has died: no more packets
    /// come.
    pub(crate) fn end_replays(&mut self, shared: &mut Shared, pool: &mut dyn PacketPool) {
        for (epoch, mut replay) in core::mem::take(&mut self.replays.flows) {
            if replay.is_valid(&self.flows, epoch) {
                self.replay_rest(&mut replay, shared, pool);
            }
            self.finish(epoch, replay, shared, pool);
        }
        let Replays { ready, queue, asked, over, under_way, .. } = &mut self.replays;
        ready.clear();
        queue.clear();
        asked.clear();
        over.clear();
        *under_way = 0;
    }

    /// Tells the recoveries which flows they need not wait for any longer.
    pub(crate) fn settle_replays(&mut self, recoveries: &mut Recoveries) {
        for (dead, is_lost) in self.replays.settled.drain(..) {
            recoveries.settle(dead, is_lost);
        }
    }

    /// Gives back all packets, for the end of the process.
    pub(crate) fn abandon_replays(&mut self, shared: &mut Shared, pool: &mut dyn PacketPool) {
        for replay in core::mem::take(&mut self.replays.flows).into_values() {
            for packet in replay.packets.into_values() {
                shared.drop(packet, DropReason::ShuttingDown, pool);
            }
        }
    }
}

/// Sends a request. False if the channel has no room now.
fn ask(fabric: &mut Fabric, switch: NodeId, epoch: u32, first: u32, count: u32) -> bool {
    let ask = Ask { epoch: epoch.into(), first: first.into(), count: count.into() };
    fabric.send(switch, kind::REPLAY, ask.as_bytes()).is_ok()
}
