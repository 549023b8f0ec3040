//! Virtual clusters that grow and shrink by themselves.
//!
//! Theory of operation (NFVactor: dynamic scaling). Once per period the workload of every
//! runtime is looked at: packets that it, or its ring, has dropped for overload, the
//! share of its time that it was busy, its number of flows.
//! - A runtime that dropped more than it may, or was busy nearly all the time for several
//!   periods, gets help: a spare place is given to a new process, and when that serves,
//!   flows move to it some hundred at a time until half of the load is there. With no
//!   spare place left, a runtime that has less than half as many flows helps instead.
//! - When the others would have time to spare without it, for many periods in succession,
//!   the runtime with the fewest flows leaves: it is drained as by an operator's order,
//!   and its place is spare again.
//! - A runtime that began in the place of a failed one, when the others had all the
//!   flows, gets some of them, if all runtimes have time for that. Clusters that do not
//!   grow are levelled, too. Flows that an operator has moved stay.
//!
//! A single change is made at a time, and none while a runtime fails, starts or leaves.
//! Two rules keep a steady load from growing and shrinking a cluster in turn. The loads
//! that make it grow and shrink lie far apart, and a cluster that had to grow soon after
//! it had shrunk shrinks only after twice the time.
//!
//! The log remembers which places are spare, but not how far the help is: a new
//! incarnation of the coordinator sees the load again.

use super::memory::Decision;
use super::{Coordinator, MemberState};
use holdfast_protection::Peer;
use holdfast_wire::{DropReason, NodeId};

/// The parameters of scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scaling {
    /// Interval between looks, ns.
    pub period: u64,
    /// Packets that a runtime may drop for overload in a period.
    pub drops: u64,
    /// A runtime that is busy for more of its time than this, in 1/1000, for three
    /// periods in succession needs help.
    pub busy_permille: u16,
    /// A runtime is dispensable if the others would then be busy for less of their time
    /// than this on average, in 1/1000.
    pub idle_permille: u16,
    /// Flows that are moved at a time.
    pub move_flows: u64,
    /// Periods in succession in which a runtime is dispensable, before it leaves.
    pub calm_periods: u32,
}

/// Periods in succession in which a runtime is busy before it gets help; only drops are
/// an emergency.
const BUSY_PERIODS: u32 = 3;
/// Periods in succession in which all have time, before flows are levelled.
const IDLE_PERIODS: u32 = 10;
/// Flows by which a runtime must exceed twice another's before flows are levelled.
const FEW: u64 = 64;
/// Doublings of the time before shrinking, at most.
const DOUBLINGS: u32 = 6;

impl Default for Scaling {
    fn default() -> Scaling {
        Scaling {
            period: 1_000_000_000,
            drops: 100,
            busy_permille: 900,
            idle_permille: 400,
            move_flows: 500,
            calm_periods: 30,
        }
    }
}

/// Flows on their way to a runtime that helps another.
#[derive(Debug)]
struct Relief {
    from: Peer,
    to: NodeId,
    /// The incarnation that was there before the help, which is not the help. `None` if
    /// the help is a runtime that runs already.
    not: Option<u32>,
    /// Flows still to move; known when the help serves.
    left: Option<u64>,
    request: Option<(u32, u64)>,
}

/// A cluster's workload.
#[derive(Debug, Default)]
pub(super) struct Workload {
    next_look: u64,
    /// By runtime: drops for overload so far, by itself and by its ring; periods for
    /// which it has been busy.
    seen: Vec<(Peer, u64, u32)>,
    calm: u32,
    idle: u32,
    relief: Option<Relief>,
    shrunk_at: Option<u64>,
    doublings: u32,
    /// Overloads so far that could not be relieved.
    pub(super) helpless: u64,
}

/// True for reasons of drops that mean overload.
fn is_overload(reason: u8) -> bool {
    DropReason::from_index(reason.into()).is_some_and(|reason| {
        matches!(
            reason,
            DropReason::QueueFull
                | DropReason::FlowTableFull
                | DropReason::ParkedOverflow
                | DropReason::HeldOverflow
        )
    })
}

/// A runtime's load in one period.
struct Load {
    peer: Peer,
    drops: u64,
    busy: u16,
    busy_for: u32,
    flows: u64,
}

impl Coordinator {
    /// Takes the manager's counts of frames that found a runtime's ring full, since each
    /// began.
    pub(super) fn handle_crowded(&mut self, refused: &[(Peer, u64)]) {
        for &(peer, count) in refused {
            if let Some(at) = self.at(peer) {
                self.hearings[at].refused = self.hearings[at].refused.max(count);
            }
        }
    }

    /// Looks at the clusters that are due.
    pub(super) fn scale(&mut self, now: u64) {
        for cluster in 0..self.config.clusters.len() {
            let (grows, scaling) = (
                self.config.clusters[cluster].scaling.is_some(),
                self.config.clusters[cluster].scaling.unwrap_or_default(),
            );
            if now < self.workloads[cluster].next_look {
                continue;
            }
            self.workloads[cluster].next_look = now + scaling.period;
            let loads = self.poll_workload(cluster, &scaling);
            if self.workloads[cluster].relief.is_some() {
                self.relieve(cluster, &scaling);
                continue;
            }
            if grows {
                self.decide(cluster, &scaling, &loads, now);
            }
            self.level(cluster, &scaling, &loads);
        }
    }

    /// When [`Coordinator::scale`] is due next.
    pub(super) fn next_look(&self) -> u64 {
        self.workloads.iter().map(|workload| workload.next_look).min().unwrap_or(u64::MAX)
    }

    /// Times that a cluster was overloaded and could not grow.
    pub fn helpless(&self) -> u64 {
        self.workloads.iter().map(|workload| workload.helpless).sum()
    }

    fn poll_workload(&mut self, cluster: usize, scaling: &Scaling) -> Vec<Load> {
        let workload = &mut self.workloads[cluster];
        let mut loads = Vec::new();
        for (place, hearing) in self.memory.places.iter().zip(&self.hearings) {
            if usize::from(place.member.cluster) != cluster
                || place.member.state != MemberState::Running
            {
                continue;
            }
            let (peer, report) = (place.member.peer(), &hearing.report);
            let total = report
                .drops
                .iter()
                .filter(|(reason, _)| is_overload(*reason))
                .map(|(_, count)| count)
                .sum::<u64>()
                + hearing.refused;
            let known = workload.seen.iter().position(|(seen, ..)| *seen == peer);
            let (before, busy_for) =
                known.map_or((total, 0), |at| (workload.seen[at].1, workload.seen[at].2));
            let busy_for =
                if report.busy_permille >= scaling.busy_permille { busy_for + 1 } else { 0 };
            let drops = total.saturating_sub(before);
            loads.push(Load {
                peer,
                drops,
                busy: report.busy_permille,
                busy_for,
                flows: report.flows,
            });
            match known {
                Some(at) => workload.seen[at] = (peer, total, busy_for),
                None => workload.seen.push((peer, total, busy_for)),
            }
        }
        workload.seen.retain(|(peer, ..)| loads.iter().any(|load| load.peer == *peer));
        loads
    }

    /// True if every process of the cluster runs or is not meant to, all know so, and no
    /// recovery is under way.
    fn is_calm(&self, cluster: usize) -> bool {
        let recovers = self.failovers().any(|failover| failover.recovered_at.is_none());
        let is_settled =
            |(place, hearing): (&super::RuntimeSlot, &super::Hearing)| match place.member.state {
                _ if usize::from(place.member.cluster) != cluster => true,
                MemberState::Running => hearing.report.view >= self.memory.view,
                MemberState::Failed => place.is_drained,
                MemberState::Starting | MemberState::Leaving => false,
            };
        !recovers
            && !self.is_waiting_for_manager()
            && self.memory.places.iter().zip(&self.hearings).all(is_settled)
    }

    fn decide(&mut self, cluster: usize, scaling: &Scaling, loads: &[Load], now: u64) {
        if !self.is_calm(cluster) {
            self.workloads[cluster].calm = 0;
            return;
        }
        let suffers = |load: &&Load| load.drops > scaling.drops || load.busy_for >= BUSY_PERIODS;
        if let Some(worst) =
            loads.iter().filter(suffers).max_by_key(|load| (load.drops, load.busy, load.flows))
        {
            return self.help(cluster, scaling, worst, loads, now);
        }
        let count = loads.len() as u64;
        let others_busy =
            loads.iter().map(|load| u64::from(load.busy)).sum::<u64>() / (count.max(2) - 1);
        let is_spared = count > u64::from(self.config.clusters[cluster].runtimes)
            && loads.iter().all(|load| load.drops == 0)
            && others_busy <= u64::from(scaling.idle_permille);
        let workload = &mut self.workloads[cluster];
        workload.calm = if is_spared { workload.calm + 1 } else { 0 };
        if workload.calm < scaling.calm_periods << workload.doublings {
            return;
        }
        workload.calm = 0;
        workload.shrunk_at = Some(now);
        if let Some(least) = loads.iter().min_by_key(|load| load.flows) {
            let (peer, had) = (least.peer, least.flows);
            self.record(Decision::Leaves { peer, at: now, had, becomes_spare: true });
            self.push_view();
            self.go_on_draining(now);
        }
    }

    /// Moves flows to a runtime that began when the others had all of them, when there is
    /// time for that.
    fn level(&mut self, cluster: usize, scaling: &Scaling, loads: &[Load]) {
        let came_late =
            |load: &&Load| self.at(load.peer).is_some_and(|at| self.hearings[at].came_late);
        let (least, most) = (
            loads.iter().filter(came_late).min_by_key(|load| load.flows),
            loads.iter().max_by_key(|load| load.flows),
        );
        let is_idle =
            loads.iter().all(|load| load.drops == 0 && load.busy <= scaling.idle_permille);
        let may_move = self.workloads[cluster].relief.is_none() && is_idle && self.is_calm(cluster);
        let (Some(least), Some(most), true) = (least, most, may_move) else {
            self.workloads[cluster].idle = 0;
            return;
        };
        if most.flows <= 2 * least.flows + FEW {
            let at = self.at(least.peer);
            at.into_iter().for_each(|at| self.hearings[at].came_late = false);
            return;
        }
        let workload = &mut self.workloads[cluster];
        workload.idle += 1;
        if workload.idle < IDLE_PERIODS {
            return;
        }
        workload.idle = 0;
        let left = Some((most.flows - least.flows) / 2);
        workload.relief =
            Some(Relief { from: most.peer, to: least.peer.node, not: None, left, request: None });
        self.relieve(cluster, scaling);
    }

    fn help(&mut self, cluster: usize, scaling: &Scaling, worst: &Load, loads: &[Load], now: u64) {
        let workload = &mut self.workloads[cluster];
        workload.calm = 0;
        let shrinking =
            scaling.period.saturating_mul(u64::from(scaling.calm_periods << workload.doublings));
        if workload
            .shrunk_at
            .take()
            .is_some_and(|at| now.saturating_sub(at) < shrinking.saturating_mul(2))
        {
            workload.doublings = (workload.doublings + 1).min(DOUBLINGS);
        }
        let is_free = |place: &&super::RuntimeSlot| {
            usize::from(place.member.cluster) == cluster
                && place.is_spare
                && place.member.state == MemberState::Failed
        };
        let spare = self
            .memory
            .places
            .iter()
            .find(is_free)
            .map(|place| (place.member.node, Some(place.member.incarnation)));
        let idle =
            loads.iter().filter(|load| load.peer != worst.peer && load.flows < worst.flows / 2);
        let idle = idle.min_by_key(|load| load.flows).map(|load| (load.peer.node, None));
        let Some((to, not)) = spare.or(idle) else {
            self.workloads[cluster].helpless += 1;
            return;
        };
        self.workloads[cluster].relief =
            Some(Relief { from: worst.peer, to, not, left: None, request: None });
        if spare.is_some() {
            self.record(Decision::Restored { node: to, at: now });
        }
        self.relieve(cluster, scaling);
    }

    /// Moves the next flows to the runtime that helps, when it serves.
    fn relieve(&mut self, cluster: usize, scaling: &Scaling) {
        let Some(relief) = &self.workloads[cluster].relief else { return };
        let (from, to) = (relief.from, relief.to);
        let Some(helper) = self.memory.places.iter().find(|place| place.member.node == to) else {
            return;
        };
        let has_come = helper.member.state == MemberState::Running
            && Some(helper.member.incarnation) != relief.not;
        // The first process there is still to come, or came and died.
        let is_lost = helper.member.state == MemberState::Failed
            && (helper.start_at.is_none() || relief.left.is_some());
        let is_needed = self.memory.running_in(cluster as u16).any(|peer| peer == from);
        if is_lost || !is_needed {
            self.workloads[cluster].relief = None;
            return;
        }
        if !has_come || relief.request.is_some() {
            return;
        }
        let flows = self.at(from).map_or(0, |at| self.hearings[at].report.flows);
        let left = relief.left.unwrap_or(flows / 2);
        let step = left.min(scaling.move_flows);
        let request =
            if step == 0 { None } else { self.request_move(from.node, Some(to), step, "any").ok() };
        if let Some(relief) = &mut self.workloads[cluster].relief {
            relief.left = Some(left);
            relief.request = request.map(|request| (request, 0));
        }
        if request.is_none() {
            self.workloads[cluster].relief = None;
        }
    }

    /// A runtime reports on a request that may be one of these.
    pub(super) fn relieved(&mut self, from: Peer, request: u32, moved: u64, last: bool) {
        for cluster in 0..self.workloads.len() {
            let Some(relief) = &mut self.workloads[cluster].relief else { continue };
            let Some((_, known)) = relief
                .request
                .as_mut()
                .filter(|(number, _)| *number == request && relief.from == from)
            else {
                continue;
            };
            let news = moved.saturating_sub(*known);
            *known = (*known).max(moved);
            relief.left = relief.left.map(|left| left.saturating_sub(news));
            if last {
                relief.request = None;
                if moved == 0 || relief.left == Some(0) {
                    self.workloads[cluster].relief = None;
                } else {
                    let scaling = self.config.clusters[cluster].scaling.unwrap_or_default();
                    self.relieve(cluster, &scaling);
                }
            }
        }
    }
}

/// True for a place whose process may be started when a cluster grows.
pub(super) fn is_spare(config: &super::ClusterConfig, number: u16) -> bool {
    number >= config.runtimes
}
