//! A lane: one chain in one runtime, with its flow actors, its protection, and the way of
//! a packet through both.

mod absent;
mod accounting;
mod ending;
mod fields;
mod heirs;
mod pressure;
mod replies;
mod tracing;
mod waiting;

pub(crate) use ending::contain;
pub(crate) use fields::PoolRequest;

use super::parking::Parking;
use super::replay::Replays;
use super::suspects::Suspect;
use super::timers::Wheel;
use super::{ChainSpec, Shared};
use crate::edge::ICMP_PER_SECOND;
use crate::prefetch::OfChain;
use crate::rate::TokenBucket;
use crate::reset::{acknowledge, reset_ahead};
use crate::tombstones::Tombstones;
use accounting::{account, judge};
use holdfast_nf::{Chain, Direction, Outcome, Position};
use holdfast_protection::flows::{ActorHeader, Event, Found, Journal, Life, NoReply, flag};
use holdfast_protection::{Admission, Epoch, Flows, Outbox, Plan, Protection, Released, Slot};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::proto;
use holdfast_wire::nsh::Flags;
use holdfast_wire::{DropReason, FlowKey, Packet, PacketPool};
use pressure::{LOOKS, Pressure};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tracing::{run_traced, trace_drop, trace_exit};

/// Tombstones of flows that have ended or left.
const GONE: usize = 16384;
/// A protection that copies a flow after at most so many packets reads its whole header
/// so often that prefetching all of it pays.
const OFTEN: u32 = 4;
/// The lifetime of a flow whose functions ask for none, ns.
const DEFAULT_LIFETIME: u64 = 300_000_000_000;
/// Packets of one turn for which there is room from the beginning. Fewer arrive, and a
/// table of this size begins and ends with a page.
const BURST: usize = 512;
/// Flows that one turn may expire: the rest expires in the next.
const EXPIRE_BUDGET: usize = 256;

/// The next step for a packet after the chain has seen it.
enum Step {
    Commit(Slot),
    Drop(DropReason),
    /// Dropped, and the packet's sender is to be told. The slot is that of the packet's
    /// flow, if there is one; the flag says if the packet has changed the flow.
    Turn(Option<(Slot, bool)>, DropReason),
    Park(Slot, Position),
    /// Waits, because there is no room for the state of the flow that the packet would
    /// open, and soon may be.
    WaitOutside,
}

/// A packet that came in, with the key and the hash of its flow.
pub(crate) struct Arrival {
    /// `None` once the packet's fate is decided.
    packet: Option<Packet>,
    key: FlowKey,
    hash: u64,
}

/// See the module.
pub(crate) struct Lane {
    pub(crate) index: u16,
    /// The switch peer of its flows, by its place in [`Shared::sides`].
    pub(crate) side: usize,
    pub(crate) name: String,
    pub(crate) chain: Chain,
    pub(crate) protection: Box<dyn Protection>,
    /// The plan of the protection.
    pub(crate) plan: Plan,
    pub(crate) flows: Flows,
    pub(crate) outbox: Outbox,
    pub(crate) wheel: Wheel,
    pressure: Pressure,
    resets: TokenBucket,
    pub(crate) parking: Parking,
    /// Flows that are being replayed: not yet as the dead owner had them.
    pub(crate) replays: Replays,
    /// Packets that were in flight at a dead owner.
    pub(crate) suspects: Vec<Suspect>,
    /// Packets of this turn, in order of arrival.
    pub(crate) work: Vec<Arrival>,
    /// Shared state has changed, or a flow came back: parked packets may go on.
    pub(crate) retry: bool,
    pub(crate) owned_limit: usize,
    /// Flows are copied after every packet or every few: each copy reads the whole
    /// header.
    copies_often: bool,
    /// A turn may be undone: flow actors are journalled whole before they change.
    is_undone: bool,
    likely: Vec<Option<Found>>,
    undo: Vec<u8>,
    running: Option<(Slot, bool)>,
    /// Scratch space: flows whose deadline has come.
    due: Vec<Slot>,
    pool_requests: Vec<PoolRequest>,
    pub(crate) gone: Tombstones,
}

impl OfChain for Lane {
    fn flow_of(&self, record: u8, body: &[u8]) -> Option<u64> {
        self.protection.flow_of(&self.flows, record, body)
    }

    fn touch(&mut self, hashes: &[u64]) -> u64 {
        let buckets = self.flows.touch_buckets(hashes.iter().copied());
        let slots = self.flows.touch_slots(hashes.iter().copied(), true, &mut self.likely);
        self.likely.clear();
        buckets.wrapping_add(slots)
    }
}

/// The switch had forgotten the flow's route and gave it anew, to the same runtime. A
/// packet of the new epoch says so.
fn renew_route(header: &mut ActorHeader, epoch: Epoch, is_reply: bool) {
    if !is_reply || is_planted(Fault::RepliesChangeEpochs) {
        header.epoch = epoch;
        header.flags |= flag::WHOLE;
    }
    // The switch may not know the reply key, and have taken a reply for a flow of its
    // own.
    header.flags |= flag::UNCONFIRMED;
}

impl Lane {
    pub(crate) fn new(
        index: u16,
        side: usize,
        spec: ChainSpec,
        owned_limit: usize,
        seed: u64,
    ) -> Lane {
        let ChainSpec { name, chain, protection, .. } = spec;
        let layout = chain.layout();
        let plan = protection.plan();
        let capacity = owned_limit * plan.slots_per_flow();
        let flows =
            Flows::with_room_for(plan.present_flows(), capacity, layout.size, layout.hash, seed);
        let undo = vec![0; layout.size];
        Lane {
            index,
            side,
            name,
            chain,
            protection,
            plan,
            flows,
            outbox: Outbox::default(),
            wheel: Wheel::new(),
            pressure: Pressure::default(),
            resets: TokenBucket::per_second(ICMP_PER_SECOND),
            parking: Parking::new(),
            replays: Replays::default(),
            suspects: Vec::new(),
            work: Vec::with_capacity(BURST),
            retry: false,
            owned_limit,
            copies_often: plan.promises() && plan.copied_after() <= OFTEN,
            is_undone: false,
            likely: Vec::with_capacity(BURST),
            undo,
            running: None,
            due: Vec::with_capacity(LOOKS),
            pool_requests: Vec::new(),
            gone: Tombstones::new(GONE),
        }
    }

    /// See [`Journal`].
    pub(crate) fn set_journal(&mut self, journal: Journal) {
        self.is_undone = true;
        self.flows.set_journal(journal);
        self.outbox.set_journal(journal);
        journal.scratch(&self.work);
        journal.scratch(&self.likely);
    }

    /// Adds a packet to this turn's work.
    #[inline]
    pub(crate) fn arrive(&mut self, packet: Packet, key: FlowKey) {
        self.work.push(Arrival { packet: Some(packet), hash: self.flows.hash(&key), key });
    }

    /// Prefetches what the removal of these flows needs, if departed flows are removed.
    pub(crate) fn expect_departures(&mut self, slots: impl Iterator<Item = Slot>) {
        if !self.plan.promises() {
            self.expect_removals(slots);
        }
    }

    /// Prefetches the buckets of these flows' keys. Their headers are in the cache.
    pub(super) fn expect_removals(&self, slots: impl Iterator<Item = Slot>) {
        let keys = slots.flat_map(|slot| {
            let header = self.flows.header(slot);
            [self.flows.hash(&header.key), self.flows.hash(&header.reply)]
        });
        core::hint::black_box(self.flows.touch_buckets(keys));
    }

    /// Takes this turn's packets through the chain.
    ///
    /// The look-ups of a burst are done in stages, so that their cache misses overlap.
    // Not inlined: the code around it would take the registers that the packets' path
    // needs.
    #[inline(never)]
    pub(crate) fn process(&mut self, shared: &mut Shared, pool: &mut dyn PacketPool) {
        if self.parking.outside() > 0 {
            self.let_in(shared, pool);
        }
        if self.work.is_empty() {
            return;
        }
        let mut work = core::mem::take(&mut self.work);
        if self.plan.has_log()
            && let Some(logged) = self.protection.logged_mut()
        {
            let bytes =
                work.iter().filter_map(|arrival| arrival.packet.as_ref()).map(Packet::len).sum();
            logged.begin_batch(work.len(), bytes);
        }
        core::hint::black_box(self.flows.touch_buckets(work.iter().map(|arrival| arrival.hash)));
        let hashes = work.iter().map(|arrival| arrival.hash);
        core::hint::black_box(self.flows.touch_slots(
            hashes,
            self.copies_often || self.is_undone,
            &mut self.likely,
        ));
        // A packet leaves its place only when its fate is known, so a panic loses none.
        let mut at = 0;
        while at < work.len() {
            let done = catch_unwind(AssertUnwindSafe(|| {
                while let Some(arrival) = work.get_mut(at) {
                    let likely = self.likely[at];
                    if let Some(packet) = &mut arrival.packet {
                        let step = self.step(packet, &arrival.key, arrival.hash, likely, shared);
                        if let Some(packet) = arrival.packet.take() {
                            self.settle(step, packet, &arrival.key, shared, pool);
                        }
                    }
                    at += 1;
                }
            }));
            if done.is_err() {
                self.contain_panic(work[at].packet.take(), shared, pool);
                at += 1;
            }
        }
        work.clear();
        self.work = work;
        self.likely.clear();
    }

    /// Notes that a flow of this key has ended, or was not let in. The switch is told,
    /// and packets on their way under its epoch open no flow.
    fn end(&mut self, key: FlowKey, epoch: Epoch, shared: &mut Shared) {
        self.gone.note(self.flows.hash(&key), epoch);
        let side = &mut shared.sides[self.side];
        side.note_epoch(epoch);
        side.ended.push((key, epoch));
    }

    /// Finds the packet's flow and runs the chain.
    #[inline]
    fn step(
        &mut self,
        packet: &mut Packet,
        key: &FlowKey,
        hash: u64,
        likely: Option<Found>,
        shared: &mut Shared,
    ) -> Step {
        let (epoch, is_new) = (Epoch::new(packet.meta.commit), packet.meta.flags & Flags::NEW != 0);
        match self.flows.find_likely(key, hash, epoch, likely) {
            Some(found) => {
                let header = self.flows.header_mut(found.slot);
                let is_newer = epoch.is_later(header.epoch);
                match header.life() {
                    Life::Owned | Life::Leaving | Life::Replaying => {
                        if epoch != header.epoch {
                            if !(is_new && is_newer) {
                                return Step::Drop(DropReason::StaleEpoch);
                            }
                            if header.life() == Life::Replaying {
                                // The replay goes by the flow's epoch, and ends first.
                                return Step::Park(found.slot, Position::START);
                            }
                            renew_route(header, epoch, found.is_reply);
                        } else if is_new && header.flags & flag::UNCONFIRMED == 0 {
                            // The switch does not know the reply key any more, so another
                            // flow may have it.
                            header.flags |= flag::UNCONFIRMED | flag::WHOLE;
                        }
                        if header.parked > 0 {
                            return Step::Park(found.slot, Position::START);
                        }
                        self.run(packet, found, key, Position::START, shared)
                    }
                    Life::Opening | Life::Claiming | Life::Arriving => {
                        Step::Park(found.slot, Position::START)
                    }
                    _ if is_new && is_newer && !found.is_reply => {
                        // The flow of which this was the replica has ended unheard, and
                        // its key is opened again here.
                        self.flows.remove(found.slot);
                        self.open(packet, key, hash, shared)
                    }
                    _ => Step::Drop(DropReason::StaleEpoch),
                }
            }
            None if self.parking.is_outside(hash) => Step::WaitOutside,
            None if is_new && !self.gone.is_late(hash, epoch) => {
                self.open(packet, key, hash, shared)
            }
            None => {
                shared.sides[self.side].ended.push((*key, epoch));
                Step::Drop(DropReason::NoFlow)
            }
        }
    }

    #[inline(never)]
    fn open(&mut self, packet: &mut Packet, key: &FlowKey, hash: u64, shared: &mut Shared) -> Step {
        let meta = packet.meta;
        let epoch = Epoch::new(meta.commit);
        shared.sides[self.side].note_epoch(epoch);
        let refused = if packet.is_icmp_error() {
            Some(DropReason::StateInvalid)
        } else if packet.is_intact() == Some(false) {
            // The receiver will drop a damaged packet, so it opens no flow.
            Some(DropReason::BadChecksum)
        } else if self.flows.owned() >= self.owned_limit {
            Some(DropReason::FlowTableFull)
        } else {
            None
        };
        if refused.is_none() && self.flows.is_paged() && self.make_room_for_new() == 0 {
            return Step::WaitOutside;
        }
        let slot = match refused {
            Some(reason) => Err(reason),
            None => {
                self.flows.insert(*key, hash, Event::Open).map_err(|_| DropReason::FlowTableFull)
            }
        };
        let slot = match slot {
            Ok(slot) => slot,
            Err(reason) => {
                shared.sides[self.side].is_full |= reason == DropReason::FlowTableFull;
                self.end(*key, epoch, shared);
                return Step::Drop(reason);
            }
        };
        let header = self.flows.header_mut(slot);
        header.epoch = epoch;
        header.switch = meta.switch;
        header.ingress = meta.ingress;
        header.chain = self.index;
        header.opened_at = meta.stamp;
        header.flags = flag::UNCONFIRMED;
        self.run(packet, Found { slot, is_reply: false }, key, Position::OPENING, shared)
    }

    /// Runs the chain from `position` on.
    #[inline(always)]
    fn run(
        &mut self,
        packet: &mut Packet,
        found: Found,
        key: &FlowKey,
        position: Position,
        shared: &mut Shared,
    ) -> Step {
        let slot = found.slot;
        match self.protection.admit(&mut self.flows, slot) {
            Admission::Ready => {}
            Admission::Park => return Step::Park(slot, position),
            Admission::Drop(reason) => return Step::Drop(reason),
        }
        let (header, state) = self.flows.parts_mut(slot);
        let before = header.last_stamp;
        let is_late = packet.meta.stamp <= before;
        header.last_stamp = header.last_stamp.max(packet.meta.stamp);
        let direction = if found.is_reply { Direction::Reverse } else { Direction::Forward };
        shared.cx.begin(header.last_stamp, *key, direction);
        self.undo.copy_from_slice(state);
        self.running = Some((slot, position.opening));
        shared.in_flight.take(shared.sides[self.side].switch, packet.meta.stamp);
        let outcome = if shared.follows(packet) {
            run_traced(&mut self.chain, packet, state, position, shared)
        } else {
            self.chain.run(packet, state, position, &mut shared.cx)
        };
        self.running = None;
        shared.in_flight.put();
        let is_whole = position == Position::START && packet.meta.flags & Flags::REPLAY == 0;
        // True if the switch's present incarnation has sent the packet, under the flow's
        // present epoch.
        let is_current = packet.meta.commit == header.epoch.get()
            && shared.sides[self.side].heard == Some(packet.meta.switch);
        if is_late || !is_whole || !is_current {
            // A replay would process the packet in the order of stamps, from the chain's
            // beginning, or would not have it at all.
            shared.cx.mark_nondeterministic();
        }
        match outcome {
            Outcome::Forward => {
                account(header, direction, packet, is_current, &shared.cx);
                if shared.cx.standing().is_none() {
                    judge(header, direction, packet);
                }
                if header.life() == Life::Opening {
                    return self.opened(packet, slot, shared);
                }
                mark(header, direction, packet);
                if shared.cx.is_ending() {
                    self.wheel.bring_forward(&mut self.flows, slot);
                }
                Step::Commit(slot)
            }
            Outcome::Drop(reason, function) | Outcome::Reject(reason, function) => {
                let is_answered = matches!(outcome, Outcome::Reject(..));
                if shared.follows(packet) {
                    let what = if is_answered { "rejected" } else { "dropped" };
                    let function = &self.chain.functions()[usize::from(function)];
                    let begins = header.life() == Life::Opening;
                    trace_drop(function.as_ref(), packet, (what, reason), begins, shared);
                }
                if header.life() == Life::Opening {
                    self.refuse_opening(slot, reason, shared);
                    return if is_answered { Step::Turn(None, reason) } else { Step::Drop(reason) };
                }
                let wants_nothing = shared.cx.lifetime() == 0 && !shared.cx.is_ending();
                let is_known =
                    packet.meta.commit == header.epoch.get() && header.flags & flag::WHOLE == 0;
                // A refused packet that changes nothing need not reach the copies, so a
                // flood of such packets makes no work elsewhere. A packet log, from which
                // packets are replayed, must have every one.
                if wants_nothing && is_known && !self.plan.has_log() && *state == *self.undo {
                    header.last_stamp = before;
                    return if is_answered {
                        Step::Turn(Some((slot, false)), reason)
                    } else {
                        Step::Drop(reason)
                    };
                }
                account(header, direction, packet, is_current, &shared.cx);
                if shared.cx.is_ending() {
                    self.wheel.bring_forward(&mut self.flows, slot);
                }
                if is_answered {
                    // The flow's new state is committed with the answer.
                    return Step::Turn(Some((slot, true)), reason);
                }
                self.protection.changed(
                    &mut self.flows,
                    slot,
                    packet.meta.stamp,
                    shared.cx.is_nondeterministic(),
                );
                Step::Drop(reason)
            }
            Outcome::Wait(position) => {
                // The packet may never go on, and changes made by earlier functions stay.
                header.flags |= if header.life().is_owned() { flag::WHOLE } else { 0 };
                Step::Park(slot, position)
            }
        }
    }

    /// Removes a flow whose first packet the chain refused. The chain has closed the
    /// flow.
    fn refuse_opening(&mut self, slot: Slot, reason: DropReason, shared: &mut Shared) {
        let header = self.flows.header(slot);
        let (key, epoch) = (header.key, header.epoch);
        shared.sides[self.side].is_full |= reason == DropReason::PoolEmpty;
        self.end(key, epoch, shared);
        self.flows.remove(slot);
    }

    /// Makes a flow of an opening whose first packet the chain let pass.
    fn opened(&mut self, packet: &mut Packet, slot: Slot, shared: &mut Shared) -> Step {
        let reply = FlowKey::of(packet).map(|key| key.reverse());
        let placed = reply.map(|reply| self.flows.set_reply(slot, reply));
        if placed != Some(Ok(())) {
            let reason = match placed {
                Some(Err(NoReply::Taken)) => DropReason::ReplyKeyTaken,
                _ => DropReason::FlowTableFull,
            };
            let header = self.flows.header(slot);
            self.end(header.key, header.epoch, shared);
            let (_, state) = self.flows.parts_mut(slot);
            contain(&mut self.chain, state, shared, Chain::expire);
            self.flows.remove(slot);
            return Step::Drop(reason);
        }
        self.flows.step(slot, Event::Serve);
        let header = self.flows.header_mut(slot);
        if shared.cx.lifetime() == 0 {
            header.set_deadline(header.last_stamp + DEFAULT_LIFETIME);
        }
        mark(header, Direction::Forward, packet);
        self.wheel.file(&mut self.flows, slot);
        shared.opened += 1;
        Step::Commit(slot)
    }

    #[inline(always)]
    fn settle(
        &mut self,
        step: Step,
        packet: Packet,
        key: &FlowKey,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) {
        match step {
            Step::Commit(slot) => {
                if shared.follows(&packet) {
                    trace_exit(&self.name, &packet, key, shared);
                }
                let nondeterministic = shared.cx.is_nondeterministic();
                self.protection.commit(
                    &mut self.flows,
                    slot,
                    packet,
                    nondeterministic,
                    &mut self.outbox,
                );
            }
            Step::Drop(reason) => shared.drop(packet, reason, pool),
            Step::Turn(flow, reason) => self.turn(flow, reason, packet, key, shared, pool),
            Step::WaitOutside => self.wait_outside(packet, key, shared, pool),
            Step::Park(slot, position) => self.park(slot, position, packet, key, shared, pool),
        }
    }

    /// Sends a refused packet back to the edge, restored to how it was sent, and the edge
    /// tells its sender. Any flow state that it may reveal is as safe by then as with
    /// every packet that leaves. If no flow came of it, there is no such state.
    #[cold]
    fn turn(
        &mut self,
        flow: Option<(Slot, bool)>,
        reason: DropReason,
        mut packet: Packet,
        key: &FlowKey,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) {
        let nondeterministic = shared.cx.is_nondeterministic();
        if !key.restore(&mut packet) {
            if let Some((slot, true)) = flow {
                self.protection.changed(&mut self.flows, slot, packet.meta.stamp, nondeterministic);
            }
            return shared.drop(packet, reason, pool);
        }
        shared.drops.count(reason);
        let ahead =
            flow.and_then(|(slot, _)| self.reset_for_receiver(slot, &packet, key, shared, pool));
        if let Some((slot, _)) = flow {
            let back = if self.flows.header(slot).is_reply(key) {
                Direction::Forward
            } else {
                Direction::Reverse
            };
            if let Some(expected) = self.chain.expected(&self.undo, back) {
                acknowledge(&mut packet, expected.least);
            }
        }
        packet.meta.flags = packet.meta.flags & Flags::TRACE | Flags::TURNED;
        if let Some((slot, _)) = flow {
            packet.meta.epoch = self.flows.header(slot).epoch.low();
        }
        match flow {
            Some((slot, true)) => self.protection.commit(
                &mut self.flows,
                slot,
                packet,
                nondeterministic,
                &mut self.outbox,
            ),
            Some((slot, false)) => {
                self.protection.follow(&mut self.flows, slot, packet, &mut self.outbox)
            }
            None => self.outbox.released.push(Released::stateless(packet)),
        }
        if let Some((packet, (slot, _))) = ahead.zip(flow) {
            self.protection.follow(&mut self.flows, slot, packet, &mut self.outbox);
        }
    }

    /// The reset that tells the other end of a flow that a segment of its connection was
    /// refused. The sender is told too, so neither end waits for the other. A receiver
    /// that expects another segment asks back (RFC 5961, section 3.2). Its question is
    /// refused like any segment, with an answer that it believes. The rate of resets is
    /// limited.
    fn reset_for_receiver(
        &mut self,
        slot: Slot,
        packet: &Packet,
        key: &FlowKey,
        shared: &Shared,
        pool: &mut dyn PacketPool,
    ) -> Option<Packet> {
        let now = shared.sides[self.side].now;
        if is_planted(Fault::TellsOneEnd)
            || packet.layers.protocol != proto::TCP
            || !self.flows.is_present(slot)
            || !self.resets.admit(now)
        {
            return None;
        }
        let header = self.flows.header(slot);
        let (direction, leaves) = match header.is_reply(key) {
            true => (Direction::Reverse, header.key.reverse()),
            false => (Direction::Forward, header.reply.reverse()),
        };
        // The expectation is from before this packet, which functions ahead of the
        // refusing one have seen.
        let expected = self.chain.expected(&self.undo, direction).map(|expected| expected.most);
        match reset_ahead(packet, &leaves, expected, pool.take()?) {
            Ok(mut reset) => {
                mark(header, direction, &mut reset);
                Some(reset)
            }
            Err(empty) => {
                pool.put(empty);
                None
            }
        }
    }

    /// Contains a function's panic: the flow is as before the packet, the packet is
    /// dropped, the others go on. A flow that was being opened does not exist. The
    /// functions that have it open close it, so no lease is lost.
    fn contain_panic(
        &mut self,
        packet: Option<Packet>,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) {
        self.roll_back(shared);
        if let Some(packet) = packet {
            shared.drop(packet, DropReason::FunctionPanicked, pool);
        }
    }

    fn roll_back(&mut self, shared: &mut Shared) {
        shared.panics += 1;
        let stamp = shared.in_flight.put();
        if stamp != 0 {
            shared.sides[self.side].note_suspect(stamp);
        }
        if let Some((slot, opening)) = self.running.take() {
            if opening {
                let header = self.flows.header(slot);
                self.end(header.key, header.epoch, shared);
                let (_, state) = self.flows.parts_mut(slot);
                contain(&mut self.chain, state, shared, Chain::close_rest);
                self.flows.remove(slot);
            } else {
                self.flows.parts_mut(slot).1.copy_from_slice(&self.undo);
                self.flows.header_mut(slot).flags |= flag::WHOLE;
            }
        }
    }
}

/// Marks a packet that the chain let pass for its release: the epoch, and whether the
/// switch must learn the reply key. A later fragment has no key to learn from, so it gets
/// the flow's, as it is on this side of the chain.
#[inline]
fn mark(header: &ActorHeader, direction: Direction, packet: &mut Packet) {
    let is_learning = header.flags & flag::UNCONFIRMED != 0;
    if is_learning && packet.layers.fragment_offset != 0 && !is_planted(Fault::LetsFragmentsPass) {
        let back = if direction == Direction::Forward { &header.reply } else { &header.key };
        back.reverse().note(packet);
    }
    packet.meta.flags = packet.meta.flags & (Flags::TRACE | Flags::OWN)
        | if is_learning { Flags::LEARN } else { 0 };
    packet.meta.epoch = header.epoch.low();
}
