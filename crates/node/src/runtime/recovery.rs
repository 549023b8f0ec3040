//! Recovery: takes over the flows of a runtime that failed.
//!
//! Theory of operation (NFVactor: replicating runtimes). The coordinator names the dead
//! runtime. Each protection lists the flows of which it holds replicas. Their routes are
//! claimed from the switch, many in one record, as fast as the channel takes them. A flow
//! is served when its own claim is granted. When no claim is open, the coordinator gets
//! the account: first the shared resources that the recovered flows hold, then that this
//! runtime is done.
//!
//! If several runtimes died together, flows may have been on their way from each to the
//! other. The open claims of each recovery then wait for the other's end. The coordinator
//! is told so, and has routes swept of recoveries with no other open claims.
//!
//! If the next incarnation of the dead takes its flows back (NFActor), it is asked to
//! recover too. The next incarnation claims flows as they come, and holders claim those
//! whose snapshots they kept in vain. The first copy of a flow to come may be from before
//! it moved. The latest snapshot may come while the switch is being asked for the older
//! one. The answer then says nothing about the newer copy, and the switch is asked again.

use super::Lane;
use super::pools::CoordinatorRequests;
use crate::channel::Fabric;
use crate::message::{Claim, ClaimFlag, Control, Grant, kind};
use holdfast_protection::flows::{Event, Life, flag};
use holdfast_protection::{Epoch, FlowRef, Peer, Slot};
use holdfast_wire::{DropReason, NodeId};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Interval at which claims that wait for others' sweeps are repeated, ns.
const PAUSE: u64 = 1_000_000;
/// Claims in one record, at most; the record also ends where a frame does.
const CLAIMS_PER_RECORD: usize = 64;
/// Bytes of unsent claims, beyond which no more are made: claims on their way stay in the
/// caches, and a turn stays short.
const BACKLOG: usize = 64 << 10;

struct Recovery {
    dead: Peer,
    open: usize,
    flows: u64,
    /// Flows whose routes were granted here, but whose state could not be restored.
    broken: u64,
    /// Places of the switch peers at which all open claims wait for others, as the
    /// coordinator was told. Empty before that.
    told: Vec<usize>,
}

/// A flow whose route is to be claimed, or given back.
#[derive(Clone, Copy)]
struct Wanted {
    dead: Peer,
    lane: u16,
    flow: FlowRef,
    /// The claim renounces the route. The copy is claimed later, when this runtime is
    /// asked for it, if no runtime has the flow then.
    gives_back: bool,
    /// The epoch of the copy in the latest claim.
    epoch: Option<Epoch>,
}

impl Wanted {
    fn new(dead: Peer, lane: u16, flow: FlowRef) -> Wanted {
        Wanted { dead, lane, flow, gives_back: false, epoch: None }
    }

    /// True if the copy is still the one for which the switch was asked.
    fn is_as_asked(&self, lanes: &[Lane]) -> bool {
        let header = lanes[self.lane as usize].flows.get(self.flow);
        header.is_some_and(|header| self.epoch == Some(header.epoch))
    }
}

struct Asked {
    number: u32,
    dead: Peer,
    gives_back: bool,
    /// The switch has answered [`Grant::AfterSweep`] before.
    waits: bool,
    flows: Vec<Wanted>,
}

/// Claims to one switch.
struct Asking {
    switch: NodeId,
    queue: VecDeque<Wanted>,
    asked: VecDeque<Asked>,
    /// Claims that the switch has answered with [`Grant::AfterSweep`].
    waiting: VecDeque<Wanted>,
    /// The time at which all of these are claimed again, by the worker's clock.
    ask_waiting_at: u64,
}

/// See the module.
pub(crate) struct Recoveries {
    running: Vec<Recovery>,
    /// Claims by switch peer of the runtime, in the same order.
    sides: Vec<Asking>,
    next_number: u32,
    /// A claim has begun to wait since the last check whether the coordinator is to be
    /// told.
    has_waited: bool,
    pub(crate) recovered: u64,
}

impl Recoveries {
    /// The recoveries of a runtime whose flows come from these switches.
    pub(crate) fn new(switches: impl Iterator<Item = NodeId>) -> Recoveries {
        let side = |switch| Asking {
            switch,
            queue: VecDeque::new(),
            asked: VecDeque::new(),
            waiting: VecDeque::new(),
            ask_waiting_at: 0,
        };
        Recoveries {
            running: Vec::new(),
            sides: switches.map(side).collect(),
            next_number: 0,
            has_waited: false,
            recovered: 0,
        }
    }

    /// True if no recovery is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// True while claims wait to be sent.
    pub(crate) fn is_waiting(&self) -> bool {
        self.sides.iter().any(|side| !side.queue.is_empty())
    }

    /// The time at which claims that wait for others' sweeps are repeated, by the
    /// worker's clock.
    pub(crate) fn poll_timeout(&self) -> u64 {
        let waiting = self.sides.iter().filter(|side| !side.waiting.is_empty());
        waiting.map(|side| side.ask_waiting_at).min().unwrap_or(u64::MAX)
    }

    /// Begins a recovery. True if it was not under way.
    pub(crate) fn begin(&mut self, dead: Peer, me: Peer, lanes: &mut [Lane]) -> bool {
        if self.running.iter().any(|recovery| recovery.dead == dead) {
            return false;
        }
        // Claims that are being given back are part of it, because there may be a copy
        // left to claim.
        let of_dead =
            self.sides.iter().flat_map(|side| &side.asked).filter(|asked| asked.dead == dead);
        let queued = self.sides.iter().flat_map(|side| side.queue.iter().chain(&side.waiting));
        let mut open = of_dead.map(|asked| asked.flows.len()).sum::<usize>()
            + queued.filter(|wanted| wanted.dead == dead).count();
        for lane in lanes {
            match dead.node == me.node {
                true => lane.protection.restore(&mut lane.flows, dead, &mut lane.outbox),
                false => lane.protection.recover(&mut lane.flows, dead, &mut lane.outbox),
            }
            open += lane.outbox.claims.len();
            let (index, flows) = (lane.index, &lane.flows);
            let wanted = |slot| Wanted::new(dead, index, flows.reference(slot));
            self.sides[lane.side].queue.extend(lane.outbox.claims.drain(..).map(wanted));
        }
        self.running.push(Recovery { dead, open, flows: 0, broken: 0, told: Vec::new() });
        true
    }

    /// Adds a flow whose route is to be claimed because of that death. Its life says so
    /// already.
    pub(crate) fn add(&mut self, dead: Peer, lane: &Lane, slot: Slot) {
        let wanted = Wanted::new(dead, lane.index, lane.flows.reference(slot));
        self.sides[lane.side].queue.push_back(wanted);
        self.hold(dead);
    }

    /// Adds a flow that was to come here from the dead runtime. Its route is given back
    /// before this runtime is asked for the dead one's flows. Its life says so already.
    pub(crate) fn give_back(&mut self, dead: Peer, lane: &Lane, slot: Slot) {
        let wanted = Wanted::new(dead, lane.index, lane.flows.reference(slot));
        self.sides[lane.side].queue.push_back(Wanted { gives_back: true, ..wanted });
        self.hold(dead);
    }

    /// Keeps the recovery from ending until as many calls of [`Recoveries::unhold`]
    /// follow.
    pub(crate) fn hold(&mut self, dead: Peer) {
        if let Some(recovery) = self.running.iter_mut().find(|recovery| recovery.dead == dead) {
            recovery.open += 1;
        }
    }

    pub(crate) fn unhold(&mut self, dead: Peer) {
        if let Some(recovery) = self.running.iter_mut().find(|recovery| recovery.dead == dead) {
            recovery.open = recovery.open.saturating_sub(1);
        }
    }

    /// Ends the wait for a flow that was granted: it has been restored, or is lost.
    pub(crate) fn settle(&mut self, dead: Peer, is_lost: bool) {
        self.unhold(dead);
        if is_lost {
            self.recovered = self.recovered.saturating_sub(1);
            if let Some(recovery) = self.running.iter_mut().find(|recovery| recovery.dead == dead) {
                (recovery.flows, recovery.broken) =
                    (recovery.flows.saturating_sub(1), recovery.broken + 1);
            }
        }
    }

    /// Adds claims of flows that a protection found after it had been told of the
    /// failure.
    pub(crate) fn take_late_claims(&mut self, lane: &mut Lane) {
        for (node, slot) in lane.outbox.late_claims.drain(..) {
            let known = self.running.iter_mut().find(|recovery| recovery.dead.node == node);
            // If the recovery is over, no account counts the flow, which does it no harm.
            let dead = known.map_or(Peer { node, incarnation: 0 }, |recovery| {
                recovery.open += 1;
                recovery.dead
            });
            let wanted = Wanted::new(dead, lane.index, lane.flows.reference(slot));
            self.sides[lane.side].queue.push_back(wanted);
        }
    }

    /// Sends as many claims as the channel to each switch takes. `clock` is the worker's.
    pub(crate) fn send_claims(&mut self, fabric: &mut Fabric, lanes: &[Lane], clock: u64) {
        for at in 0..self.sides.len() {
            let side = &mut self.sides[at];
            if clock >= side.ask_waiting_at && !side.waiting.is_empty() {
                side.ask_waiting_at = clock.saturating_add(PAUSE);
                let waiting = core::mem::take(&mut side.waiting).into_iter();
                let (waiting, newer) =
                    waiting.partition::<VecDeque<_>, _>(|wanted| wanted.is_as_asked(lanes));
                side.queue.extend(newer);
                self.send_queue(at, waiting, true, fabric, lanes);
            }
            if !self.sides[at].queue.is_empty() {
                let queue = core::mem::take(&mut self.sides[at].queue);
                self.send_queue(at, queue, false, fabric, lanes);
            }
        }
    }

    /// Sends as many of these claims as the channel takes; the others wait.
    fn send_queue(
        &mut self,
        at: usize,
        mut queue: VecDeque<Wanted>,
        waits: bool,
        fabric: &mut Fabric,
        lanes: &[Lane],
    ) {
        let switch = self.sides[at].switch;
        let most = ((fabric.max_record() - 4) / size_of::<Claim>()).clamp(1, CLAIMS_PER_RECORD);
        let mut body = Vec::with_capacity(4 + most * size_of::<Claim>());
        while let Some(&Wanted { dead, gives_back, .. }) = queue.front()
            && fabric.backlog(switch) < BACKLOG
        {
            let mut flows = Vec::with_capacity(most);
            body.clear();
            body.extend_from_slice(&self.next_number.to_be_bytes());
            while flows.len() < most
                && let Some(wanted) =
                    queue.pop_front_if(|next| (next.dead, next.gives_back) == (dead, gives_back))
            {
                let header = lanes[wanted.lane as usize].flows.get(wanted.flow);
                let Some(header) = header.filter(|header| header.life() == Life::Claiming) else {
                    // Newer state of the flow has come meanwhile, so another runtime has
                    // it.
                    self.unhold(dead);
                    continue;
                };
                let is_renounced = gives_back || header.flags & flag::EMPTY != 0;
                let claim = Claim::of(header, wanted.lane).with(ClaimFlag::Renounced, is_renounced);
                body.extend_from_slice(claim.as_bytes());
                flows.push(Wanted { epoch: Some(header.epoch), ..wanted });
            }
            if flows.is_empty() {
                continue;
            }
            if fabric.send(switch, kind::CLAIM, &body).is_err() {
                flows.into_iter().rev().for_each(|wanted| queue.push_front(wanted));
                break;
            }
            self.sides[at].asked.push_back(Asked {
                number: self.next_number,
                dead,
                gives_back,
                waits,
                flows,
            });
            self.next_number = self.next_number.wrapping_add(1);
        }
        match waits {
            true => self.sides[at].waiting = queue,
            false => self.sides[at].queue = queue,
        }
    }

    /// Repeats all open claims at this switch peer, because the switch has a new
    /// incarnation.
    pub(crate) fn ask_again(&mut self, at: usize) {
        let side = &mut self.sides[at];
        while let Some(Asked { flows, .. }) = side.asked.pop_back() {
            flows.into_iter().rev().for_each(|wanted| side.queue.push_front(wanted));
        }
        side.queue.extend(side.waiting.drain(..));
        // The coordinator has forgotten messages about the previous incarnation.
        self.running
            .iter_mut()
            .filter(|recovery| recovery.told.contains(&at))
            .for_each(|recovery| recovery.told.clear());
    }

    /// Handles the switch's answer to one record of claims.
    pub(crate) fn handle_claimed(
        &mut self,
        switch: NodeId,
        body: &[u8],
        lanes: &mut [Lane],
    ) -> Result<(), DropReason> {
        let (number, answers) = body.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
        let number = u32::from_be_bytes(*number);
        let side = self
            .sides
            .iter_mut()
            .find(|side| side.switch == switch)
            .ok_or(DropReason::Malformed)?;
        let at = side
            .asked
            .iter()
            .position(|asked| asked.number == number)
            .ok_or(DropReason::StaleDuplicate)?;
        let Some(asked) = side.asked.remove(at) else { return Err(DropReason::StaleDuplicate) };
        let Some(grants) = grants_of(answers, asked.flows.len()) else {
            // The channel delivers an answer once, so without a repeated claim the
            // recovery would not end.
            side.queue.extend(asked.flows);
            return Err(DropReason::Malformed);
        };
        let is_running = self.running.iter().any(|recovery| recovery.dead == asked.dead);
        let (mut granted, mut again) = (0, 0);
        for (wanted, grant) in asked.flows.iter().zip(grants) {
            let is_as_asked = wanted.is_as_asked(lanes);
            if matches!(grant, Grant::Retry | Grant::AfterSweep) {
                // A copy that is newer than the claimed one need not wait: it may be the
                // newest of all.
                let waits = grant == Grant::AfterSweep && is_as_asked;
                let queue = if waits { &mut side.waiting } else { &mut side.queue };
                queue.push_back(*wanted);
                self.has_waited |= waits;
                again += 1;
                continue;
            }
            let slot = wanted.flow.slot;
            let lane = &mut lanes[wanted.lane as usize];
            let header = lane.flows.get(wanted.flow);
            let Some(header) = header.filter(|header| header.life() == Life::Claiming) else {
                if let Grant::Given { epoch, logged: 1.. } = grant {
                    lane.replays.renounce(epoch);
                }
                continue;
            };
            let is_kept = asked.gives_back && header.flags & flag::EMPTY == 0;
            // The refused copy is not here any more. Another runtime has newer state of
            // the flow, and the copy here may be that state.
            let is_newer = grant == Grant::Refused && !is_as_asked;
            if is_kept && is_running || is_newer {
                side.queue.push_back(Wanted { gives_back: false, ..*wanted });
                again += 1;
                continue;
            }
            if is_kept {
                lane.flows.step(slot, Event::Withdraw);
                lane.retry = true;
            } else if let Grant::Given { epoch, logged } = grant {
                // The flow counts as recovered once its packets have been replayed.
                again += usize::from(lane.claimed(slot, epoch, asked.dead, logged));
                granted += 1;
            } else {
                // The flow lives elsewhere under a newer epoch, or has ended.
                lane.protection.unclaimed(&mut lane.flows, slot);
                lane.flows.remove(slot);
                lane.retry = true;
            }
        }
        self.recovered += granted;
        if let Some(recovery) = self.running.iter_mut().find(|recovery| recovery.dead == asked.dead)
        {
            recovery.open = recovery.open.saturating_sub(asked.flows.len() - again);
            recovery.flows += granted;
        }
        Ok(())
    }

    /// Number of claims that wait at a switch for other nodes' sweeps, because of any
    /// incarnation of this node. A claim whose copy has become newer since does not
    /// count: the switch has not said that the newer copy waits. If the sweep came before
    /// the newer copy is claimed, the route would go to an older one.
    fn waiting(side: &Asking, node: NodeId, lanes: &[Lane]) -> usize {
        let asked = side.asked.iter().filter(|asked| asked.waits).flat_map(|asked| &asked.flows);
        let waiting = side.waiting.iter().chain(asked);
        waiting.filter(|wanted| wanted.dead.node == node && wanted.is_as_asked(lanes)).count()
    }

    /// Tells the coordinator of recoveries whose open claims all wait for others. If a
    /// node died twice, claims may belong to either incarnation.
    fn tell_waiting(
        &mut self,
        requests: &mut CoordinatorRequests,
        lanes: &[Lane],
        fabric: &Fabric,
    ) {
        if !core::mem::take(&mut self.has_waited) {
            return;
        }
        for at in 0..self.running.len() {
            let dead = self.running[at].dead;
            let of_its_node =
                || self.running.iter().filter(|recovery| recovery.dead.node == dead.node);
            let open = of_its_node().map(|recovery| recovery.open).sum::<usize>();
            let is_recovering = |recovery: &Recovery| {
                lanes.iter().any(|lane| lane.protection.is_recovering(recovery.dead))
            };
            let waiting: Vec<usize> =
                self.sides.iter().map(|side| Self::waiting(side, dead.node, lanes)).collect();
            let has_told = !self.running[at].told.is_empty();
            if !has_told
                && open > 0
                && open == waiting.iter().sum::<usize>()
                && !of_its_node().any(is_recovering)
            {
                let told: Vec<usize> =
                    (0..waiting.len()).filter(|side| waiting[*side] > 0).collect();
                let incarnation = |switch| fabric.peer(switch).map_or(0, |peer| peer.incarnation);
                let switches = told.iter().map(|side| self.sides[*side].switch);
                let switches =
                    switches.map(|node| Peer { node, incarnation: incarnation(node) }).collect();
                self.running[at].told = told;
                requests.push_message(Control::Waits {
                    node: dead.node,
                    incarnation: dead.incarnation,
                    switches,
                });
            }
        }
    }

    /// Accounts for finished recoveries to the coordinator, behind every number that
    /// their flows hold.
    pub(crate) fn report(
        &mut self,
        requests: &mut CoordinatorRequests,
        lanes: &[Lane],
        fabric: &Fabric,
    ) {
        self.tell_waiting(requests, lanes, fabric);
        // If a node died twice, late claims may belong to either incarnation.
        let open: Vec<NodeId> = self
            .running
            .iter()
            .filter(|recovery| recovery.open > 0)
            .map(|recovery| recovery.dead.node)
            .collect();
        self.running.retain(|recovery| {
            let Peer { node, incarnation } = recovery.dead;
            let is_open = |lane: &Lane| lane.protection.is_recovering(recovery.dead);
            if open.contains(&node) || lanes.iter().any(is_open) {
                return true;
            }
            requests.push_message(Control::Recovered {
                node,
                incarnation,
                flows: recovery.flows,
                broken: recovery.broken,
            });
            false
        });
    }
}

/// Decodes the answers to so many claims. `None` if they do not fit.
fn grants_of(answers: &[u8], claims: usize) -> Option<Vec<Grant>> {
    let (answers, rest) = answers.as_chunks::<{ Grant::LEN }>();
    let grants =
        answers.iter().map(|answer| Grant::decode(*answer)).collect::<Result<Vec<_>, _>>().ok()?;
    (rest.is_empty() && grants.len() == claims).then_some(grants)
}
