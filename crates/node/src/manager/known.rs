//! The state of the box, as coordinator, runtimes and state servers have told it last:
//! operators get answers while there is no coordinator.

use super::Manager;
use crate::coordinator::RuntimeStatus;
use crate::message::{
    Failover, Listing, Member, MemberState, Protected, Report, Retried, Standing,
};
use crate::totals::Totals;
use holdfast_protection::Peer;
use holdfast_wire::{DropCounters, DropReason, NodeId};

impl Manager {
    pub(super) fn totals_of(&mut self, from: Peer) -> &mut Totals {
        if from.node == NodeId::STATE_SERVER {
            return &mut self.totals;
        }
        let at =
            self.counted.iter().position(|(peer, _)| peer.node == from.node).unwrap_or_else(|| {
                self.counted.push((from, Totals::default()));
                self.counted.len() - 1
            });
        if self.counted[at].0 != from {
            self.counted[at] = (from, Totals::default());
        }
        &mut self.counted[at].1
    }

    /// The runtimes as the coordinator told them last, those that have ended since as
    /// failed, each with its last report.
    pub fn status(&self) -> impl Iterator<Item = RuntimeStatus> + '_ {
        let members = self.standing.iter().flat_map(|standing| &standing.members);
        members.map(|member| {
            let has_ended = self.has_ended(member.peer());
            let state = if has_ended { MemberState::Failed } else { member.state };
            let report = self.reports.iter().find(|(peer, _)| *peer == member.peer());
            RuntimeStatus {
                member: Member { state, ..*member },
                report: report.map(|(_, report)| report.clone()).unwrap_or_default(),
                is_drained: self
                    .standing
                    .iter()
                    .any(|standing| standing.drained.contains(&member.node)),
                is_spare: self
                    .standing
                    .iter()
                    .any(|standing| standing.spare.contains(&member.node)),
                retried: self.retried(member.node),
            }
        })
    }

    fn retried(&self, node: NodeId) -> Option<Retried> {
        let retried = self.standing.iter().flat_map(|standing| &standing.retried);
        retried.copied().find(|retried| retried.node == node)
    }

    /// The longest processor time of a runtime's turn in which it listed or moved flows,
    /// as reported since the last call, µs.
    pub fn take_longest(&mut self) -> u32 {
        core::mem::take(&mut self.longest_us)
    }

    /// The state server's lists, as it reported them last, in order.
    pub fn listings(&self) -> &[Listing] {
        &self.listings
    }

    /// All numbers of a statistic, as the state server told them last. `statistic`: the
    /// index of its list, counted from 0. A manager that has just begun may know the
    /// first numbers only.
    pub fn totals(&self, statistic: usize) -> &[i64] {
        self.totals.of(statistic)
    }

    /// The numbers of this runtime's flows, as it told them last, for statistics that no
    /// server adds up.
    pub fn counted(&self, runtime: Peer, statistic: usize) -> &[i64] {
        self.counted
            .iter()
            .find(|(peer, _)| *peer == runtime)
            .map_or(&[], |(_, totals)| totals.of(statistic))
    }

    /// The state of the box as the coordinator told it last, if it ever has.
    pub fn standing(&self) -> Option<&Standing> {
        self.standing.as_ref()
    }

    /// Failures so far, latest last.
    pub fn failovers(&self) -> &[Failover] {
        &self.failovers
    }

    /// True once the coordinator has said that every runtime has started and knows the
    /// others.
    pub fn is_ready(&self) -> bool {
        self.standing.as_ref().is_some_and(|standing| standing.ready)
    }

    /// Whether flows would survive a failure, by the coordinator's last word and later
    /// news. Without a coordinator another failure would be the second. The same holds
    /// while a flow's home is an earlier incarnation than those in `servers`, the present
    /// state servers.
    pub fn protected(&self, is_coordinator_there: bool, servers: &[Peer]) -> Protected {
        let Some(standing) = &self.standing else { return Protected::No };
        // State that was written back to a server's earlier incarnation is gone.
        let is_there = |&(node, incarnation): &(NodeId, u32)| {
            node.state_server_number().is_none() || servers.contains(&Peer { node, incarnation })
        };
        let is_safe = |report: &Report| {
            let is_settled =
                report.unprotected == 0 && !report.resynchronising && report.view >= standing.view;
            is_settled && report.logs.iter().all(is_there)
        };
        let has_reported = |peer: Peer| {
            self.reports.iter().any(|(reporter, report)| *reporter == peer && is_safe(report))
        };
        let is_settled = |member: &Member| match member.state {
            MemberState::Failed => true,
            _ if self.has_ended(member.peer()) => false,
            MemberState::Running => has_reported(member.peer()),
            MemberState::Starting | MemberState::Leaving => true,
        };
        let is_certain = is_coordinator_there && standing.members.iter().all(is_settled);
        if standing.protected == Protected::Yes && !is_certain {
            Protected::Resynchronising
        } else {
            standing.protected
        }
    }

    /// The coordinator's drops, as it reported them last.
    pub fn coordinator_drops(&self) -> DropCounters {
        let mut drops = DropCounters::default();
        for (number, count) in self.standing.iter().flat_map(|standing| &standing.drops) {
            if let Some(reason) = DropReason::from_index(*number as usize) {
                drops.add_count(reason, *count);
            }
        }
        drops
    }
}
