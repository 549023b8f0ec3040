//! The coordinator's memory, which survives its death.
//!
//! Theory of operation. Everything that must not be forgotten lies in [`Memory`], and
//! changes only by [`Memory::apply`] with a [`Decision`]. An entry is a decision that has
//! been taken, not a question: the same entries in the same order give the same memory,
//! in the incarnation that decided and in the one that reads them again. Orders to
//! runtimes that must take effect are part of it ([`Ordered`]): `apply` derives them too,
//! and they are sent until the runtime says that they have taken effect.
//!
//! Decisions that follow from the memory alone are taken here, too: when a runtime that
//! has failed is started again ([`Memory::failed`]).
//!
//! Everything else is learned again: reports, times of messages, questions for spare
//! blocks.

use super::identities::{Change, Identities};
use super::{Ledger, SECOND};
use crate::message::{
    Cause, Control, Drain, Failover, Member, MemberState, Notice, Ordered, PoolId, Retried,
};
use crate::rules::RuleSet;
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The pause before a process that keeps dying is started again, ns, and how often it
/// doubles.
const SHORTEST_PAUSE: u64 = SECOND / 10;
const DOUBLINGS: u32 = 7;
/// A logged time that is farther back than this when a coordinator begins is of another
/// host's clock, ns.
const AWAY: u64 = 600 * SECOND;
/// Failovers, and drains, that are remembered for `status`.
const KEPT: usize = 64;

/// A runtime's place, with its present or last incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RuntimeSlot {
    pub(super) member: Member,
    pub(super) started_at: u64,
    /// Successive early deaths.
    pub(super) failures: u32,
    /// The time of the next start.
    pub(super) start_at: Option<u64>,
    /// The last of the runtime's numbered messages that has taken effect.
    pub(super) handled: u64,
    /// Orders for the runtime.
    pub(super) orders: Ordered,
    /// The place was drained, or is spare: its process is not started again.
    pub(super) is_drained: bool,
    /// The process is started when its cluster grows.
    pub(super) is_spare: bool,
}

impl RuntimeSlot {
    /// The report on a place whose process keeps ending, while none serves there.
    pub(super) fn retried(&self) -> Option<Retried> {
        let RuntimeSlot { member, failures, start_at, .. } = *self;
        let is_waited_for =
            matches!(member.state, MemberState::Failed | MemberState::Starting) && !self.is_drained;
        (failures > 0 && is_waited_for).then_some(Retried { node: member.node, failures, start_at })
    }
}

/// A recovery, and the runtimes whose reports are missing until it is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Recovery {
    pub(super) failover: Failover,
    pub(super) waiting: Vec<Peer>,
    /// Runtimes among these whose claims wait at these switches until other dead runtimes
    /// have been swept; they lack nothing else.
    stuck: Vec<(Peer, Vec<NodeId>)>,
    /// Groups that are asked when the earlier ones have reported, one after the other:
    /// copies of later groups may be older. A replica lies on another host if there is
    /// one, and runtimes that are leaving get none. Runtimes know of this order.
    later: VecDeque<Vec<Peer>>,
}

impl Recovery {
    /// True if the recovery is not over.
    pub(super) fn is_open(&self) -> bool {
        self.failover.recovered_at.is_none()
    }

    /// True if all living runtimes have reported, so that nothing of the dead will be
    /// claimed any more. True for every recovery that is over.
    pub(super) fn is_heard(&self) -> bool {
        self.waiting.is_empty() && self.later.iter().all(Vec::is_empty)
    }

    /// True if all claims because of this death have been made. Some of them may wait
    /// until other dead runtimes have been swept.
    fn may_be_swept(&self) -> bool {
        self.is_stuck() && self.later.iter().all(Vec::is_empty)
    }

    /// True if all asked runtimes have reported, or wait for other recoveries.
    fn is_stuck(&self) -> bool {
        self.waiting.iter().all(|peer| self.stuck.iter().any(|(stuck, _)| stuck == peer))
    }
}

/// The service of a switch's ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Serving {
    /// The switch's chains. Empty for the only switch of a box, which has all.
    pub(super) chains: Vec<u16>,
    pub(super) host: u16,
    /// The incarnation of that host's manager.
    pub(super) manager_incarnation: u32,
    pub(super) term: u32,
    /// The incarnation of the switch that has spoken last.
    pub(super) switch_incarnation: u32,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Memory {
    pub(super) view: u64,
    pub(super) next_incarnation: u32,
    pub(super) places: Vec<RuntimeSlot>,
    pub(super) ledgers: Vec<Ledger>,
    /// By ledger, runtimes that wait for a block; first come, first served.
    pub(super) wanting: Vec<Vec<Peer>>,
    pub(super) recoveries: Vec<Recovery>,
    pub(super) drains: Vec<Drain>,
    pub(super) rules: RuleSet,
    /// By switch, the service of its ports.
    pub(super) services: Vec<Serving>,
    /// The chains of every virtual cluster.
    pub(super) chains: Vec<Vec<u16>>,
    /// The last field: logs of the version before end here without it.
    pub(super) identities: Identities,
}

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Decision {
    /// A new incarnation of the coordinator begins, at this time by its clock, which may
    /// differ from the earlier one's.
    Began { at: u64 },
    /// A place is given to a new incarnation.
    Started { peer: Peer, at: u64 },
    /// The incarnation has said hello.
    Joined { peer: Peer },
    /// The incarnation is given up.
    Failed { peer: Peer, cause: Cause, at: u64, flows: u64, notice: Notice },
    /// A numbered message of a runtime takes effect.
    CoordinatorRequest { from: Peer, number: u64, request: Control },
    /// Blocks are granted to a runtime, which is to be told.
    Granted { to: Peer, pool: PoolId, blocks: Vec<u32> },
    /// A runtime has blocks of which the log knows nothing: a log was lost.
    Held { by: Peer, pool: PoolId, blocks: Vec<u32> },
    /// The recovery of the dead is complete.
    Finished { dead: Peer, at: u64 },
    /// Flows of a dead runtime that were not claimed at this switch.
    Unclaimed { dead: Peer, switch: NodeId, flows: u64 },
    /// A runtime is to be drained.
    Leaves { peer: Peer, at: u64, had: u64, becomes_spare: bool },
    /// A runtime is ordered to move flows elsewhere.
    Asked { of: Peer, order: Control },
    /// More of the draining runtime's flows are elsewhere.
    Moved { peer: Peer, flows: u64 },
    /// The draining runtime has nothing left, and its process is to end.
    Drained { peer: Peer, at: u64 },
    /// A drained runtime comes back into service.
    Restored { node: NodeId, at: u64 },
    /// A runtime wants a block; none is free.
    Wants { peer: Peer, pool: PoolId },
    /// New rules.
    Rules { rules: RuleSet },
    /// The ports of a switch are to be served by a host.
    Serves { switch: u16, host: u16, term: u32, manager_incarnation: u32 },
    /// This incarnation of a switch has spoken. Claims that wait there are an earlier
    /// incarnation's.
    Switch { switch: u16, incarnation: u32 },
    /// An unknown incarnation was seen: none up to it is given again.
    Seen { incarnation: u32 },
    /// Names get numbers, and give up others.
    Identified { change: Change },
}

impl Memory {
    /// The index of a node's place: places are numbered from the first runtime on.
    pub(super) fn at_node(&self, node: NodeId) -> Option<usize> {
        let at = usize::from(node.runtime_number()?);
        self.places.get(at).filter(|place| place.member.node == node).map(|_| at)
    }

    /// The index of the place that has this incarnation.
    pub(super) fn at(&self, peer: Peer) -> Option<usize> {
        self.at_node(peer.node).filter(|at| self.places[*at].member.peer() == peer)
    }

    pub(super) fn place(&mut self, peer: Peer) -> Option<&mut RuntimeSlot> {
        self.at(peer).map(|at| &mut self.places[at])
    }

    pub(super) fn pool_at(&self, pool: PoolId) -> Option<usize> {
        self.ledgers.iter().position(|ledger| ledger.id == pool)
    }

    /// Runtimes that have flows.
    pub(super) fn serving(&self) -> impl Iterator<Item = Peer> + '_ {
        let serves = |place: &&RuntimeSlot| place.member.state.serves();
        self.places.iter().filter(serves).map(|place| place.member.peer())
    }

    /// Running runtimes of a virtual cluster.
    pub(super) fn running_in(&self, cluster: u16) -> impl Iterator<Item = Peer> + '_ {
        let there = self.places.iter().filter(move |place| place.member.cluster == cluster);
        there
            .filter(|place| place.member.state == MemberState::Running)
            .map(|place| place.member.peer())
    }

    /// True if the switch of the present term has spoken: each term is one incarnation of
    /// it.
    pub(super) fn has_spoken(&self, switch: NodeId) -> bool {
        let service =
            switch.switch_number().and_then(|number| self.services.get(usize::from(number)));
        service
            .is_none_or(|service| service.term == 0 || service.term == service.switch_incarnation)
    }

    /// The incarnation of the switch with this node that has spoken last.
    pub(super) fn switch_incarnation(&self, switch: NodeId) -> Option<u32> {
        let service =
            switch.switch_number().and_then(|number| self.services.get(usize::from(number)));
        service.map(|service| service.switch_incarnation)
    }

    /// The switch on whose ports a chain's flows come and go, counted from 0.
    pub(super) fn switch_of(&self, chain: u16) -> u16 {
        self.services.iter().position(|service| service.chains.contains(&chain)).unwrap_or(0) as u16
    }

    /// The virtual cluster that serves a chain.
    pub(super) fn cluster_of(&self, chain: u16) -> Option<u16> {
        self.chains.iter().position(|chains| chains.contains(&chain)).map(|cluster| cluster as u16)
    }

    /// True if flows of a chain ever come to the runtime: the chain's pools are divided
    /// among such runtimes.
    pub(super) fn serves(&self, peer: Peer, chain: u16) -> bool {
        let place = self.at(peer).map(|at| &self.places[at]);
        place.is_some_and(|place| self.cluster_of(chain) == Some(place.member.cluster))
    }

    fn wants(&mut self, peer: Peer, pool: PoolId) {
        if let Some(at) = self.pool_at(pool)
            && self.serves(peer, pool.chain)
            && !self.wanting[at].contains(&peer)
        {
            self.wanting[at].push(peer);
        }
    }

    /// The drain of this incarnation, if there is one.
    fn drain(&mut self, peer: Peer) -> Option<&mut Drain> {
        self.drains.iter_mut().find(|drain| drain.peer == peer)
    }

    /// The next recovery that is complete. All others of its cluster must be heard too: a
    /// runtime may have died after it took over numbers of an earlier one, and the
    /// runtimes that recover it report those.
    pub(super) fn finished(&self) -> Option<Peer> {
        let unheard = self.clusters_with(|recovery| !recovery.is_heard());
        let is_done = |recovery: &&Recovery| {
            recovery.is_open() && !unheard.contains(&self.cluster_of_dead(recovery))
        };
        self.recoveries.iter().find(is_done).map(|recovery| recovery.failover.dead)
    }

    /// The dead whose routes may be swept, and whether their sweep is final. A cluster is
    /// swept when no claim is left to be made because of any of its dead. A route to one
    /// may be claimed because of another that had the flow before. On a single host every
    /// runtime has a copy of each flow that it gives away, and claims it because of the
    /// one death.
    pub(super) fn to_be_swept(&self, has_hosts: bool) -> Vec<(Peer, bool)> {
        let asking = self.clusters_with(|recovery| !recovery.may_be_swept());
        let open = self.recoveries.iter().filter(|recovery| recovery.is_open());
        let is_alone = |recovery: &Recovery| !has_hosts && recovery.is_heard();
        let done = open.filter(|recovery| {
            is_alone(recovery) || !asking.contains(&self.cluster_of_dead(recovery))
        });
        done.map(|recovery| (recovery.failover.dead, recovery.is_heard())).collect()
    }

    fn clusters_with(&self, is_meant: impl Fn(&Recovery) -> bool) -> Vec<Option<u16>> {
        let open = self.recoveries.iter().filter(|recovery| recovery.is_open());
        open.filter(|recovery| is_meant(recovery))
            .map(|recovery| self.cluster_of_dead(recovery))
            .collect()
    }

    fn cluster_of_dead(&self, recovery: &Recovery) -> Option<u16> {
        self.at_node(recovery.failover.dead.node).map(|at| self.places[at].member.cluster)
    }

    /// See the module.
    pub(super) fn apply(&mut self, entry: &Decision) {
        match entry {
            Decision::Began { at } => self.began(*at),
            Decision::Started { peer, at } => self.started(*peer, *at),
            Decision::Joined { peer } => {
                if self.serving().next().is_none() {
                    self.ledgers.iter_mut().for_each(Ledger::forget_epochs);
                }
                if let Some(place) = self.place(*peer) {
                    place.member.state = MemberState::Running;
                    self.view += 1;
                    self.ask_successor(*peer);
                }
            }
            Decision::Failed { peer, cause, at, flows, notice } => {
                let (dead, cause, detected_at, notice) = (*peer, *cause, *at, notice.clone());
                let (had, unclaimed) = (*flows, Vec::new());
                self.failed(Failover {
                    dead,
                    cause,
                    detected_at,
                    recovered_at: None,
                    had,
                    flows: 0,
                    broken: 0,
                    unclaimed,
                    notice,
                });
            }
            Decision::CoordinatorRequest { from, number, request } => {
                if let Some(place) = self.place(*from) {
                    place.handled = *number;
                    self.request(*from, request);
                }
            }
            Decision::Granted { to, pool, blocks } => {
                let Some(at) = self.pool_at(*pool) else { return };
                let blocks = self.ledgers[at].take(*to, blocks);
                self.wanting[at].retain(|peer| peer != to);
                self.order(*to, Control::Grant { pool: *pool, blocks });
            }
            Decision::Held { by, pool, blocks } => {
                let Some(at) = self.pool_at(*pool) else { return };
                self.ledgers[at].take(*by, blocks);
            }
            Decision::Finished { dead, at } => {
                if let Some(recovery) =
                    self.recoveries.iter_mut().find(|recovery| recovery.failover.dead == *dead)
                {
                    recovery.failover.recovered_at = Some(*at);
                }
                self.release(*dead);
            }
            Decision::Unclaimed { dead, switch, flows } => {
                if let Some(recovery) =
                    self.recoveries.iter_mut().find(|recovery| recovery.failover.dead == *dead)
                {
                    recovery.failover.unclaimed.push((*switch, *flows));
                }
            }
            Decision::Leaves { peer, at, had, becomes_spare } => {
                self.leaves(*peer, *at, *had);
                if let Some(place) = self.place(*peer) {
                    place.is_spare = *becomes_spare;
                }
            }
            Decision::Asked { of, order } => self.order(*of, order.clone()),
            Decision::Moved { peer, flows } => {
                if let Some(drain) = self.drain(*peer) {
                    drain.moved += flows;
                }
            }
            Decision::Drained { peer, at } => {
                if let Some(drain) = self.drain(*peer) {
                    drain.ended_at = Some(*at);
                }
            }
            Decision::Restored { node, at } => {
                if let Some(place) = self.places.iter_mut().find(|place| place.member.node == *node)
                {
                    (place.is_drained, place.is_spare, place.start_at) = (false, false, Some(*at));
                }
            }
            Decision::Wants { peer, pool } => self.wants(*peer, *pool),
            Decision::Rules { rules } => self.rules.clone_from(rules),
            Decision::Switch { switch, incarnation } => {
                if let Some(service) = self.services.get_mut(usize::from(*switch)) {
                    service.switch_incarnation = *incarnation;
                }
                let node = NodeId::switch(*switch);
                for recovery in &mut self.recoveries {
                    recovery.stuck.retain(|(_, switches)| !switches.contains(&node));
                }
            }
            Decision::Serves { switch, host, term, manager_incarnation } => {
                if let Some(service) = self.services.get_mut(usize::from(*switch)) {
                    (service.host, service.term, service.manager_incarnation) =
                        (*host, *term, *manager_incarnation);
                }
            }
            Decision::Seen { incarnation } => {
                self.next_incarnation = self.next_incarnation.max(incarnation + 1)
            }
            Decision::Identified { change } => self.identities.apply(change),
        }
    }

    /// Adds an order for a runtime, if it is there.
    fn order(&mut self, to: Peer, order: Control) {
        if let Some(place) =
            self.place(to).filter(|place| place.member.state != MemberState::Failed)
        {
            place.orders.push(order);
        }
    }

    fn began(&mut self, at: u64) {
        self.view += 1;
        self.identities.began(at);
        for place in &mut self.places {
            place.started_at = place.started_at.min(at);
            place.start_at = place.start_at.map(|due| due.min(at + (SHORTEST_PAUSE << DOUBLINGS)));
        }
        // Times of recoveries under way are converted to this clock. By the same clock
        // they lie in the recent past.
        let date = |began_at: u64| {
            if (at.saturating_sub(AWAY)..=at).contains(&began_at) { began_at } else { at }
        };
        for failover in self.recoveries.iter_mut().map(|recovery| &mut recovery.failover) {
            if failover.recovered_at.is_none() {
                failover.detected_at = date(failover.detected_at);
            }
        }
        for drain in self.drains.iter_mut().filter(|drain| drain.ended_at.is_none()) {
            drain.began_at = date(drain.began_at);
        }
    }

    fn started(&mut self, peer: Peer, at: u64) {
        let Some(place) = self.places.iter_mut().find(|place| place.member.node == peer.node)
        else {
            return;
        };
        place.member =
            Member { incarnation: peer.incarnation, state: MemberState::Starting, ..place.member };
        (place.started_at, place.start_at) = (at, None);
        (place.handled, place.orders) = (0, Ordered::default());
        self.next_incarnation = self.next_incarnation.max(peer.incarnation + 1);
        self.view += 1;
    }

    fn leaves(&mut self, peer: Peer, at: u64, had: u64) {
        let Some(place) = self.place(peer) else { return };
        (place.member.state, place.is_drained) = (MemberState::Leaving, true);
        self.view += 1;
        // A drain is needed while it is not over, or its process has not ended: there are
        // no more of those than places.
        let is_past = |drain: &Drain| {
            drain.ended_at.is_some() && self.serving().all(|peer| peer != drain.peer)
        };
        if self.drains.len() >= KEPT
            && let Some(past) = self.drains.iter().position(is_past)
        {
            self.drains.remove(past);
        }
        self.drains.push(Drain {
            peer,
            began_at: at,
            had,
            moved: 0,
            ended_at: None,
            failed: false,
        });
    }

    fn failed(&mut self, failover: Failover) {
        let (peer, at) = (failover.dead, failover.detected_at);
        if let Some(drain) = self.drain(peer).filter(|drain| drain.ended_at.is_none()) {
            (drain.ended_at, drain.failed) = (Some(at), true);
        }
        let Some(place) = self.place(peer) else { return };
        let Member { cluster, host, .. } = place.member;
        let was_running = place.member.state.serves();
        place.member.state = MemberState::Failed;
        place.orders = Ordered::default();
        // A process that has lived for a while is started again at once; one that keeps
        // dying is given time.
        let lived = at.saturating_sub(place.started_at);
        place.failures = if lived > 10 * SECOND { 0 } else { place.failures + 1 };
        let pause = if place.failures <= 2 {
            0
        } else {
            SHORTEST_PAUSE << (place.failures - 3).min(DOUBLINGS)
        };
        place.start_at = if place.is_drained { None } else { Some(at + pause) };
        let serves = |place: &RuntimeSlot| place.member.state.serves();
        if !self.places.iter().any(|place| place.member.cluster == cluster && serves(place)) {
            // No runtime of the cluster serves any more: pauses are cut short.
            let of_cluster = self.places.iter_mut().filter(|place| place.member.cluster == cluster);
            for start_at in of_cluster.filter_map(|place| place.start_at.as_mut()) {
                *start_at = (*start_at).min(at + SECOND / 10);
            }
        }
        self.ledgers.iter_mut().for_each(|ledger| ledger.quarantine(peer));
        self.wanting.iter_mut().for_each(|wanting| wanting.retain(|other| *other != peer));
        for recovery in &mut self.recoveries {
            recovery.waiting.retain(|waiting| *waiting != peer);
            recovery.later.iter_mut().for_each(|later| later.retain(|later| *later != peer));
        }
        self.view += 1;
        if !was_running {
            self.ask_later();
            return self.release(peer);
        }
        if self.recoveries.len() >= KEPT
            && let Some(done) =
                self.recoveries.iter().position(|recovery| recovery.failover.recovered_at.is_some())
        {
            self.recoveries.remove(done);
        }
        let of_cluster =
            self.places.iter().map(|place| place.member).filter(|member| member.cluster == cluster);
        let group = |is_meant: &dyn Fn(&Member) -> bool| {
            of_cluster.clone().filter(is_meant).map(|member| member.peer()).collect()
        };
        let running = |member: &Member| member.state == MemberState::Running;
        let later = VecDeque::from([
            group(&|member| running(member) && member.host != host),
            group(&|member| running(member) && member.host == host),
            group(&|member| member.state == MemberState::Leaving),
        ]);
        self.recoveries.push(Recovery { failover, waiting: Vec::new(), stuck: Vec::new(), later });
        self.ask_later();
    }

    /// A runtime begins in the place of one that is still being recovered: others may
    /// have kept flows for it.
    fn ask_successor(&mut self, successor: Peer) {
        let mut open = Vec::new();
        for recovery in self.recoveries.iter_mut().filter(|recovery| !recovery.is_heard()) {
            if recovery.failover.dead.node == successor.node {
                recovery.waiting.push(successor);
                open.push(recovery.failover.dead);
            }
        }
        for Peer { node, incarnation } in open {
            self.order(successor, Control::Recover { node, incarnation });
        }
    }

    /// Asks the next group when all earlier ones have reported.
    fn ask_later(&mut self) {
        let mut asked = Vec::new();
        for recovery in &mut self.recoveries {
            while recovery.is_open()
                && recovery.is_stuck()
                && let Some(next) = recovery.later.pop_front()
            {
                asked.extend(next.iter().map(|peer| (*peer, recovery.failover.dead)));
                recovery.waiting.extend(next);
            }
        }
        for (peer, Peer { node, incarnation }) in asked {
            self.order(peer, Control::Recover { node, incarnation });
        }
    }

    fn request(&mut self, from: Peer, request: &Control) {
        let pool = match request {
            Control::WantBlock { pool }
            | Control::Spared { pool, .. }
            | Control::Adopted { pool, .. }
            | Control::Returned { pool, .. } => self.pool_at(*pool),
            _ => None,
        };
        match (request, pool) {
            (Control::WantBlock { pool }, _) => self.wants(from, *pool),
            (Control::Spared { blocks, .. }, Some(at)) => {
                blocks.iter().for_each(|block| self.ledgers[at].give_back(from, *block));
            }
            (Control::Adopted { pool, numbers }, Some(at)) => {
                let ledger = &mut self.ledgers[at];
                let taken = numbers.iter().filter_map(|(number, epoch)| {
                    ledger.adopted(from, *number, *epoch).map(|owner| (owner, *number))
                });
                let taken: Vec<(Peer, u32)> = taken.collect();
                self.tell_owners(&taken, |numbers| Control::Taken { pool: *pool, numbers });
            }
            (Control::Returned { pool, numbers }, Some(at)) => {
                let ledger = &mut self.ledgers[at];
                let free: Vec<(Peer, u32)> = numbers
                    .iter()
                    .filter_map(|number| {
                        ledger.returned(from, *number).map(|owner| (owner, *number))
                    })
                    .collect();
                self.tell_owners(&free, |numbers| Control::Returned { pool: *pool, numbers });
            }
            (Control::Waits { node, incarnation, switches }, _) => {
                let dead = Peer { node: *node, incarnation: *incarnation };
                // A report that depends on an earlier incarnation of a switch does not
                // count: the runtime reports again.
                let is_present = switches
                    .iter()
                    .all(|switch| self.switch_incarnation(switch.node) == Some(switch.incarnation));
                let known =
                    self.recoveries.iter_mut().find(|recovery| recovery.failover.dead == dead);
                if let Some(recovery) = known.filter(|_| is_present) {
                    recovery.stuck.retain(|(stuck, _)| *stuck != from);
                    recovery
                        .stuck
                        .push((from, switches.iter().map(|switch| switch.node).collect()));
                }
                self.ask_later();
            }
            (Control::Recovered { node, incarnation, flows, broken }, _) => {
                let dead = Peer { node: *node, incarnation: *incarnation };
                if let Some(recovery) =
                    self.recoveries.iter_mut().find(|recovery| recovery.failover.dead == dead)
                {
                    recovery.waiting.retain(|waiting| *waiting != from);
                    let failover = &mut recovery.failover;
                    failover.flows += flows;
                    failover.broken += broken;
                    // A flow that was opened just before is known by its copy alone.
                    failover.had = failover.had.max(failover.flows + failover.broken);
                }
                self.ask_later();
            }
            _ => {}
        }
    }

    /// Frees a dead runtime's blocks, except the numbers that recovered flows hold.
    fn release(&mut self, dead: Peer) {
        for at in 0..self.ledgers.len() {
            let lost = self.ledgers[at].release(dead);
            let pool = self.ledgers[at].id;
            self.tell_owners(&lost, |numbers| Control::Returned { pool, numbers });
        }
    }

    fn tell_owners(&mut self, numbers: &[(Peer, u32)], message: impl Fn(Vec<u32>) -> Control) {
        for owned in numbers.chunk_by(|a, b| a.0 == b.0) {
            for part in owned.chunks(200) {
                self.order(owned[0].0, message(part.iter().map(|(_, number)| *number).collect()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::FabricConfig;
    use crate::coordinator::{ClusterConfig, Coordinator, CoordinatorConfig, HostsConfig};
    use holdfast_wire::NodeId;

    fn memory() -> Memory {
        let config = CoordinatorConfig {
            me: Peer { node: NodeId::COORDINATOR, incarnation: 1 },
            hosts: HostsConfig::one(),
            names: Vec::new(),
            clusters: ClusterConfig::only(3, 1, true),
            rules: Vec::new(),
            hang_timeout: SECOND,
            start_timeout: SECOND,
            first_incarnation: 1,
            pools: Vec::new(),
            state_servers: 0,
            layouts: Vec::new(),
            fabric: FabricConfig::default(),
        };
        Coordinator::new(config, 1).memory
    }

    /// A runtime takes long to drain, another has nothing left and is still to end, and a
    /// third is drained and brought back more often than drains are remembered: the
    /// oldest drain whose runtime is gone is forgotten.
    #[test]
    fn a_drain_is_remembered_while_it_is_needed() {
        let mut memory = memory();
        let leave = |memory: &mut Memory, peer: Peer| {
            memory.apply(&Decision::Started { peer, at: 1 });
            memory.apply(&Decision::Joined { peer });
            memory.apply(&Decision::Leaves { peer, at: 1, had: 1, becomes_spare: false });
        };
        let [open, ending] = [
            Peer { node: NodeId::new(16), incarnation: 1 },
            Peer { node: NodeId::new(17), incarnation: 2 },
        ];
        leave(&mut memory, open);
        leave(&mut memory, ending);
        memory.apply(&Decision::Drained { peer: ending, at: 2 });
        let last = KEPT as u32 + 9;
        for incarnation in 3..=last {
            let peer = Peer { node: NodeId::new(18), incarnation };
            leave(&mut memory, peer);
            memory.apply(&Decision::Drained { peer, at: 2 });
            memory.apply(&Decision::Failed {
                peer,
                cause: Cause::Drained,
                at: 2,
                flows: 0,
                notice: Notice::default(),
            });
        }
        let known: Vec<Peer> = memory.drains.iter().map(|drain| drain.peer).collect();
        let latest = (last + 3 - KEPT as u32..=last)
            .map(|incarnation| Peer { node: NodeId::new(18), incarnation });
        assert_eq!(known, [open, ending].into_iter().chain(latest).collect::<Vec<_>>());
    }
}
