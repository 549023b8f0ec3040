//! What a coordinator remembers across its own death.
//!
//! Theory of operation. Everything that must not be forgotten lies in [`Memory`], and nothing changes it but [`Memory::apply`] with an
//! [`Entry`]. An entry is a decision that has been taken, not a question: applying the same entries in the same order gives the same memory,
//! in the life that took the decisions and in the one that reads them again. What runtimes must be told for good is part of it
//! ([`Ordered`]): it is derived by `apply` too, and sent until the runtime says that it has taken effect.
//!
//! What is not here is learned again: reports, who was heard when, who was asked for spare blocks.

use super::{Ledger, SECOND};
use crate::address::{FIRST_RUNTIME, NodeId, switch_node, switch_number};
use crate::message::{Cause, Control, Drain, Failover, Member, MemberState, Notice, Ordered, PoolId, Retried};
use crate::rules::RuleSet;
use holdfast_protection::Peer;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A process that keeps dying is given time, ns: twice as much each time, so often.
const SHORTEST_PAUSE: u64 = SECOND / 10;
const DOUBLINGS: u32 = 7;
/// A time that lies so far back when a coordinator begins is one of another host's clock, ns.
const AWAY: u64 = 600 * SECOND;
/// Failovers, and drains, that are remembered for `status`.
const KEPT: usize = 64;

/// A runtime's place, whoever has it now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) member: Member,
    pub(super) started_at: u64,
    /// How often in succession it has died young.
    pub(super) failures: u32,
    /// When it is to be started again.
    pub(super) start_at: Option<u64>,
    /// The last of its numbered messages that has taken effect.
    pub(super) handled: u64,
    /// What it must be told.
    pub(super) orders: Ordered,
    /// It was drained, or is spare: it is not started again.
    pub(super) is_drained: bool,
    /// It is started when its cluster grows.
    pub(super) is_spare: bool,
}

impl Place {
    /// The report on a place whose process keeps ending, while nobody serves there.
    pub(super) fn retried(&self) -> Option<Retried> {
        let Place { member, failures, start_at, .. } = *self;
        let is_waited_for = matches!(member.state, MemberState::Failed | MemberState::Starting) && !self.is_drained;
        (failures > 0 && is_waited_for).then_some(Retried { node: member.node, failures, start_at })
    }
}

/// A failure, and whose word is missing until it is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Recovery {
    pub(super) failover: Failover,
    pub(super) waiting: Vec<Peer>,
    /// Those of them of whom nothing is missing but what waits, at these switches, until others who failed have been swept.
    stuck: Vec<(Peer, Vec<NodeId>)>,
    /// Who is asked when these have reported, one group after the other: what the later ones have may be older. A replica lies on another host if there
    /// is one, and those that are leaving get none. Runtimes know of this order.
    later: VecDeque<Vec<Peer>>,
}

impl Recovery {
    /// It is not over.
    pub(super) fn is_open(&self) -> bool {
        self.failover.recovered_at.is_none()
    }

    /// Nobody will claim anything of the dead any more: all who live have reported. So it is of every one that is over.
    pub(super) fn is_heard(&self) -> bool {
        self.waiting.is_empty() && self.later.iter().all(Vec::is_empty)
    }

    /// Everybody has asked for everything because of this death; some of it waits until others who failed have been swept.
    fn may_be_swept(&self) -> bool {
        self.is_stuck() && self.later.iter().all(Vec::is_empty)
    }

    /// All who have been asked have reported, or wait for others.
    fn is_stuck(&self) -> bool {
        self.waiting.iter().all(|peer| self.stuck.iter().any(|(stuck, _)| stuck == peer))
    }
}

/// Who serves the ports of a switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Serving {
    /// The switch's chains. Of a box's only one none are named: it has all.
    pub(super) chains: Vec<u16>,
    pub(super) host: u16,
    /// The incarnation of that host's manager.
    pub(super) life: u32,
    pub(super) term: u32,
    /// The incarnation of the switch that has spoken last.
    pub(super) switch_life: u32,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Memory {
    pub(super) view: u64,
    pub(super) next_incarnation: u32,
    pub(super) places: Vec<Place>,
    pub(super) ledgers: Vec<Ledger>,
    /// Per ledger, who waits for a block; first come, first served.
    pub(super) wanting: Vec<Vec<Peer>>,
    pub(super) recoveries: Vec<Recovery>,
    pub(super) drains: Vec<Drain>,
    pub(super) rules: RuleSet,
    /// Per switch, who serves its ports.
    pub(super) services: Vec<Serving>,
    /// The chains of every virtual cluster.
    pub(super) chains: Vec<Vec<u16>>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Entry {
    /// A coordinator's new life, at this time by its clock, which may be another one than that of the life before.
    Began { at: u64 },
    /// A place is given to a new incarnation.
    Started { peer: Peer, at: u64 },
    /// It said hello.
    Joined { peer: Peer },
    /// It is given up.
    Failed { peer: Peer, cause: Cause, at: u64, flows: u64, notice: Notice },
    /// A numbered message of a runtime.
    Errand { from: Peer, number: u64, errand: Control },
    /// Blocks go to a runtime, which is to be told.
    Granted { to: Peer, pool: PoolId, blocks: Vec<u32> },
    /// A runtime has blocks of which nobody knew: a log was lost.
    Held { by: Peer, pool: PoolId, blocks: Vec<u32> },
    /// Everyone has reported what was recovered of the dead.
    Finished { dead: Peer, at: u64 },
    /// Flows of a dead runtime that nobody has asked this switch for.
    Unclaimed { dead: Peer, switch: NodeId, flows: u64 },
    /// A runtime is to be drained.
    Leaves { peer: Peer, at: u64, had: u64, becomes_spare: bool },
    /// A runtime is to be told that flows of it shall go elsewhere.
    Asked { of: Peer, order: Control },
    /// So many more of its flows are elsewhere.
    Moved { peer: Peer, flows: u64 },
    /// It has nothing left, and its process is to end.
    Drained { peer: Peer, at: u64 },
    /// A drained runtime comes back into service.
    Restored { node: NodeId, at: u64 },
    /// A runtime wants a block of which there was none when it came.
    Wants { peer: Peer, pool: PoolId },
    /// New rules.
    Rules { rules: RuleSet },
    /// The ports of a switch are to be served by a host.
    Serves { switch: u16, host: u16, term: u32, life: u32 },
    /// This life of a switch has spoken. What waits there has been said of an earlier one.
    Switch { switch: u16, life: u32 },
    /// An incarnation was seen that nobody remembers: none up to it is given again.
    Seen { incarnation: u32 },
}

impl Memory {
    /// Where a node's place is: they are numbered from the first one on.
    pub(super) fn at_node(&self, node: NodeId) -> Option<usize> {
        let at = usize::from(node.checked_sub(FIRST_RUNTIME)?);
        self.places.get(at).filter(|place| place.member.node == node).map(|_| at)
    }

    /// Where it is, if this life has its place.
    pub(super) fn at(&self, peer: Peer) -> Option<usize> {
        self.at_node(peer.node).filter(|at| self.places[*at].member.peer() == peer)
    }

    pub(super) fn place(&mut self, peer: Peer) -> Option<&mut Place> {
        self.at(peer).map(|at| &mut self.places[at])
    }

    pub(super) fn pool_at(&self, pool: PoolId) -> Option<usize> {
        self.ledgers.iter().position(|ledger| ledger.id == pool)
    }

    /// Those who have flows.
    pub(super) fn serving(&self) -> impl Iterator<Item = Peer> + '_ {
        let serves = |place: &&Place| place.member.state.serves();
        self.places.iter().filter(serves).map(|place| place.member.peer())
    }

    /// Those of a virtual cluster.
    pub(super) fn running_in(&self, cluster: u16) -> impl Iterator<Item = Peer> + '_ {
        let there = self.places.iter().filter(move |place| place.member.cluster == cluster);
        there.filter(|place| place.member.state == MemberState::Running).map(|place| place.member.peer())
    }

    /// The switch of the present term has: each term is one life of it.
    pub(super) fn has_spoken(&self, switch: NodeId) -> bool {
        let service = switch_number(switch).and_then(|number| self.services.get(usize::from(number)));
        service.is_none_or(|service| service.term == 0 || service.term == service.switch_life)
    }

    /// The incarnation of the switch with this node that has spoken last.
    pub(super) fn switch_life(&self, switch: NodeId) -> Option<u32> {
        let service = switch_number(switch).and_then(|number| self.services.get(usize::from(number)));
        service.map(|service| service.switch_life)
    }

    /// The switch on whose ports a chain's flows come and go, counted from 0.
    pub(super) fn switch_of(&self, chain: u16) -> u16 {
        self.services.iter().position(|service| service.chains.contains(&chain)).unwrap_or(0) as u16
    }

    /// The virtual cluster that serves a chain.
    pub(super) fn cluster_of(&self, chain: u16) -> Option<u16> {
        self.chains.iter().position(|chains| chains.contains(&chain)).map(|cluster| cluster as u16)
    }

    /// Whether flows of a chain ever come to a runtime: the chain's pools are divided among those.
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

    /// The failover of which everything is known, if there is one. That includes all others of the cluster: what a runtime that died had come to hold
    /// before that of another's numbers, those report who recover from it.
    pub(super) fn finished(&self) -> Option<Peer> {
        let unheard = self.clusters_with(|recovery| !recovery.is_heard());
        let is_done = |recovery: &&Recovery| recovery.is_open() && !unheard.contains(&self.cluster_of_dead(recovery));
        self.recoveries.iter().find(is_done).map(|recovery| recovery.failover.dead)
    }

    /// The dead whose routes may be swept, and whether nobody waits for that: where nothing is still to be asked for because of any other of their cluster.
    /// What led to one may be claimed because of another, who had it before; on a single host everybody has a copy of what it gives away, and asks for that because of the one.
    pub(super) fn to_be_swept(&self, has_hosts: bool) -> Vec<(Peer, bool)> {
        let asking = self.clusters_with(|recovery| !recovery.may_be_swept());
        let open = self.recoveries.iter().filter(|recovery| recovery.is_open());
        let is_alone = |recovery: &Recovery| !has_hosts && recovery.is_heard();
        let done = open.filter(|recovery| is_alone(recovery) || !asking.contains(&self.cluster_of_dead(recovery)));
        done.map(|recovery| (recovery.failover.dead, recovery.is_heard())).collect()
    }

    fn clusters_with(&self, is_meant: impl Fn(&Recovery) -> bool) -> Vec<Option<u16>> {
        let open = self.recoveries.iter().filter(|recovery| recovery.is_open());
        open.filter(|recovery| is_meant(recovery)).map(|recovery| self.cluster_of_dead(recovery)).collect()
    }

    fn cluster_of_dead(&self, recovery: &Recovery) -> Option<u16> {
        self.at_node(recovery.failover.dead.node).map(|at| self.places[at].member.cluster)
    }

    /// See the module.
    pub(super) fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Began { at } => self.began(*at),
            Entry::Started { peer, at } => self.started(*peer, *at),
            Entry::Joined { peer } => {
                if self.serving().next().is_none() {
                    self.ledgers.iter_mut().for_each(Ledger::forget_epochs);
                }
                if let Some(place) = self.place(*peer) {
                    place.member.state = MemberState::Running;
                    self.view += 1;
                    self.ask_successor(*peer);
                }
            }
            Entry::Failed { peer, cause, at, flows, notice } => {
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
            Entry::Errand { from, number, errand } => {
                if let Some(place) = self.place(*from) {
                    place.handled = *number;
                    self.errand(*from, errand);
                }
            }
            Entry::Granted { to, pool, blocks } => {
                let Some(at) = self.pool_at(*pool) else { return };
                let blocks = self.ledgers[at].take(*to, blocks);
                self.wanting[at].retain(|peer| peer != to);
                self.order(*to, Control::Grant { pool: *pool, blocks });
            }
            Entry::Held { by, pool, blocks } => {
                let Some(at) = self.pool_at(*pool) else { return };
                self.ledgers[at].take(*by, blocks);
            }
            Entry::Finished { dead, at } => {
                if let Some(recovery) = self.recoveries.iter_mut().find(|recovery| recovery.failover.dead == *dead) {
                    recovery.failover.recovered_at = Some(*at);
                }
                self.release(*dead);
            }
            Entry::Unclaimed { dead, switch, flows } => {
                if let Some(recovery) = self.recoveries.iter_mut().find(|recovery| recovery.failover.dead == *dead) {
                    recovery.failover.unclaimed.push((*switch, *flows));
                }
            }
            Entry::Leaves { peer, at, had, becomes_spare } => {
                self.leaves(*peer, *at, *had);
                if let Some(place) = self.place(*peer) {
                    place.is_spare = *becomes_spare;
                }
            }
            Entry::Asked { of, order } => self.order(*of, order.clone()),
            Entry::Moved { peer, flows } => {
                if let Some(drain) = self.drain(*peer) {
                    drain.moved += flows;
                }
            }
            Entry::Drained { peer, at } => {
                if let Some(drain) = self.drain(*peer) {
                    drain.ended_at = Some(*at);
                }
            }
            Entry::Restored { node, at } => {
                if let Some(place) = self.places.iter_mut().find(|place| place.member.node == *node) {
                    (place.is_drained, place.is_spare, place.start_at) = (false, false, Some(*at));
                }
            }
            Entry::Wants { peer, pool } => self.wants(*peer, *pool),
            Entry::Rules { rules } => self.rules.clone_from(rules),
            Entry::Switch { switch, life } => {
                if let Some(service) = self.services.get_mut(usize::from(*switch)) {
                    service.switch_life = *life;
                }
                let node = switch_node(*switch);
                for recovery in &mut self.recoveries {
                    recovery.stuck.retain(|(_, switches)| !switches.contains(&node));
                }
            }
            Entry::Serves { switch, host, term, life } => {
                if let Some(service) = self.services.get_mut(usize::from(*switch)) {
                    (service.host, service.term, service.life) = (*host, *term, *life);
                }
            }
            Entry::Seen { incarnation } => self.next_incarnation = self.next_incarnation.max(incarnation + 1),
        }
    }

    /// What a runtime must be told, if it is there.
    fn order(&mut self, to: Peer, order: Control) {
        if let Some(place) = self.place(to).filter(|place| place.member.state != MemberState::Failed) {
            place.orders.push(order);
        }
    }

    fn began(&mut self, at: u64) {
        self.view += 1;
        for place in &mut self.places {
            place.started_at = place.started_at.min(at);
            place.start_at = place.start_at.map(|due| due.min(at + (SHORTEST_PAUSE << DOUBLINGS)));
        }
        // What is under way is measured by this clock from now on. By the same one it began not so long ago, and not later.
        let date = |began_at: u64| if (at.saturating_sub(AWAY)..=at).contains(&began_at) { began_at } else { at };
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
        let Some(place) = self.places.iter_mut().find(|place| place.member.node == peer.node) else { return };
        place.member = Member { incarnation: peer.incarnation, state: MemberState::Starting, ..place.member };
        (place.started_at, place.start_at) = (at, None);
        (place.handled, place.orders) = (0, Ordered::default());
        self.next_incarnation = self.next_incarnation.max(peer.incarnation + 1);
        self.view += 1;
    }

    fn leaves(&mut self, peer: Peer, at: u64, had: u64) {
        let Some(place) = self.place(peer) else { return };
        (place.member.state, place.is_drained) = (MemberState::Leaving, true);
        self.view += 1;
        // One that is not over, or whose process is still to end, is needed: there are no more of those than places.
        let is_past = |drain: &Drain| drain.ended_at.is_some() && self.serving().all(|peer| peer != drain.peer);
        if self.drains.len() >= KEPT
            && let Some(past) = self.drains.iter().position(is_past)
        {
            self.drains.remove(past);
        }
        self.drains.push(Drain { peer, began_at: at, had, moved: 0, ended_at: None, failed: false });
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
        // A process that lives for a while is started again at once; one that keeps dying is given time.
        let lived = at.saturating_sub(place.started_at);
        place.failures = if lived > 10 * SECOND { 0 } else { place.failures + 1 };
        let pause = if place.failures <= 2 { 0 } else { SHORTEST_PAUSE << (place.failures - 3).min(DOUBLINGS) };
        place.start_at = if place.is_drained { None } else { Some(at + pause) };
        let serves = |place: &Place| place.member.state.serves();
        if !self.places.iter().any(|place| place.member.cluster == cluster && serves(place)) {
            // Patience is for who can be done without.
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
            && let Some(done) = self.recoveries.iter().position(|recovery| recovery.failover.recovered_at.is_some())
        {
            self.recoveries.remove(done);
        }
        let of_cluster = self.places.iter().map(|place| place.member).filter(|member| member.cluster == cluster);
        let group =
            |is_meant: &dyn Fn(&Member) -> bool| of_cluster.clone().filter(is_meant).map(|member| member.peer()).collect();
        let running = |member: &Member| member.state == MemberState::Running;
        let later = VecDeque::from([
            group(&|member| running(member) && member.host != host),
            group(&|member| running(member) && member.host == host),
            group(&|member| member.state == MemberState::Leaving),
        ]);
        self.recoveries.push(Recovery { failover, waiting: Vec::new(), stuck: Vec::new(), later });
        self.ask_later();
    }

    /// A runtime has come to where one was that is still being recovered from: others may have kept flows for it.
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

    /// The next group is asked when nobody else is waited for.
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

    fn errand(&mut self, from: Peer, errand: &Control) {
        let pool = match errand {
            Control::WantBlock { pool }
            | Control::Spared { pool, .. }
            | Control::Adopted { pool, .. }
            | Control::Returned { pool, .. } => self.pool_at(*pool),
            _ => None,
        };
        match (errand, pool) {
            (Control::WantBlock { pool }, _) => self.wants(from, *pool),
            (Control::Spared { blocks, .. }, Some(at)) => {
                blocks.iter().for_each(|block| self.ledgers[at].give_back(from, *block));
            }
            (Control::Adopted { pool, numbers }, Some(at)) => {
                let ledger = &mut self.ledgers[at];
                let taken = numbers
                    .iter()
                    .filter_map(|(number, epoch)| ledger.adopted(from, *number, *epoch).map(|owner| (owner, *number)));
                let taken: Vec<(Peer, u32)> = taken.collect();
                self.tell_owners(&taken, |numbers| Control::Taken { pool: *pool, numbers });
            }
            (Control::Returned { pool, numbers }, Some(at)) => {
                let ledger = &mut self.ledgers[at];
                let free: Vec<(Peer, u32)> =
                    numbers.iter().filter_map(|number| ledger.returned(from, *number).map(|owner| (owner, *number))).collect();
                self.tell_owners(&free, |numbers| Control::Returned { pool: *pool, numbers });
            }
            (Control::Waits { node, incarnation, switches }, _) => {
                let dead = Peer { node: *node, incarnation: *incarnation };
                // What it has heard of an earlier life of a switch it says again.
                let is_present = switches.iter().all(|switch| self.switch_life(switch.node) == Some(switch.incarnation));
                let known = self.recoveries.iter_mut().find(|recovery| recovery.failover.dead == dead);
                if let Some(recovery) = known.filter(|_| is_present) {
                    recovery.stuck.retain(|(stuck, _)| *stuck != from);
                    recovery.stuck.push((from, switches.iter().map(|switch| switch.node).collect()));
                }
                self.ask_later();
            }
            (Control::Recovered { node, incarnation, flows, broken }, _) => {
                let dead = Peer { node: *node, incarnation: *incarnation };
                if let Some(recovery) = self.recoveries.iter_mut().find(|recovery| recovery.failover.dead == dead) {
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

    /// What a dead runtime had is free, except what recovered flows hold.
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
    use crate::address::COORDINATOR;
    use crate::channel::FabricConfig;
    use crate::coordinator::{ClusterConfig, Coordinator, CoordinatorConfig, HostsConfig};

    fn memory() -> Memory {
        let config = CoordinatorConfig {
            me: Peer { node: COORDINATOR, incarnation: 1 },
            hosts: HostsConfig::one(),
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

    /// A runtime takes long to drain, another has nothing left and is still to end, and a third is drained and brought back more often than drains are
    /// remembered: what is forgotten is the oldest of those whose runtimes are gone.
    #[test]
    fn a_drain_is_remembered_while_it_is_needed() {
        let mut memory = memory();
        let leave = |memory: &mut Memory, peer: Peer| {
            memory.apply(&Entry::Started { peer, at: 1 });
            memory.apply(&Entry::Joined { peer });
            memory.apply(&Entry::Leaves { peer, at: 1, had: 1, becomes_spare: false });
        };
        let [open, ending] = [Peer { node: 16, incarnation: 1 }, Peer { node: 17, incarnation: 2 }];
        leave(&mut memory, open);
        leave(&mut memory, ending);
        memory.apply(&Entry::Drained { peer: ending, at: 2 });
        let last = KEPT as u32 + 9;
        for incarnation in 3..=last {
            let peer = Peer { node: 18, incarnation };
            leave(&mut memory, peer);
            memory.apply(&Entry::Drained { peer, at: 2 });
            memory.apply(&Entry::Failed { peer, cause: Cause::Drained, at: 2, flows: 0, notice: Notice::default() });
        }
        let known: Vec<Peer> = memory.drains.iter().map(|drain| drain.peer).collect();
        let latest = (last + 3 - KEPT as u32..=last).map(|incarnation| Peer { node: 18, incarnation });
        assert_eq!(known, [open, ending].into_iter().chain(latest).collect::<Vec<_>>());
    }
}
