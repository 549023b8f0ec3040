//! The coordinator's account of the box: its runtimes, their failures, and whether
//! another failure would cost flows.
//!
//! In: memory and reports. Out: what `status` shows. Never: a decision.

use super::memory::RuntimeSlot;
use super::{Coordinator, Hearing, Ledger};
use crate::message::{Failover, Member, MemberState, Protected, Report, Retried};
use holdfast_protection::Peer;
use holdfast_wire::NodeId;

/// A runtime as `status` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// Node, incarnation, state.
    pub member: Member,
    /// Its last report.
    pub report: Report,
    /// The runtime is out of service, or about to be.
    pub is_drained: bool,
    /// The runtime is started when its cluster grows.
    pub is_spare: bool,
    /// Set if the process keeps ending and is started again.
    pub retried: Option<Retried>,
}

impl Coordinator {
    /// All runtimes, as `status` shows them.
    pub fn status(&self) -> impl Iterator<Item = RuntimeStatus> + '_ {
        let heard = self.memory.places.iter().zip(&self.hearings);
        heard.map(|(place, hearing)| RuntimeStatus {
            member: place.member,
            report: hearing.report.clone(),
            is_drained: place.is_drained,
            is_spare: place.is_spare,
            retried: place.retried(),
        })
    }

    /// Failures so far, latest last.
    pub fn failovers(&self) -> impl Iterator<Item = &Failover> + '_ {
        self.memory.recoveries.iter().map(|recovery| &recovery.failover)
    }

    /// The accounts of the pools.
    pub fn ledgers(&self) -> &[Ledger] {
        &self.memory.ledgers
    }

    /// The latest view's version.
    pub fn view(&self) -> u64 {
        self.memory.view
    }

    /// True once every runtime has started and knows the others, and the switches know
    /// the rules.
    pub fn is_ready(&self) -> bool {
        let is_ruled = self.rules_in_force() == self.memory.rules.version();
        // If a host does not come, more than half of the hosts begin without it after a
        // while.
        let may_lack = self.is_joined()
            && self.last_turn.saturating_sub(self.began_at) > self.config.start_timeout;
        let is_waited_for = |place: &RuntimeSlot| !may_lack || self.is_there(place.member.host);
        let are_all_there = may_lack || self.hosts.iter().all(|host| host.is_known);
        is_ruled
            && are_all_there
            && self.memory.places.iter().zip(&self.hearings).all(|(place, hearing)| {
                match place.member.state {
                    MemberState::Running => hearing.report.view == self.memory.view,
                    MemberState::Leaving => true,
                    _ => place.is_drained || !is_waited_for(place),
                }
            })
    }

    /// By state server, the incarnation that has reported last, if flows have their home
    /// there.
    pub fn state_servers(&self) -> impl Iterator<Item = Option<Peer>> + '_ {
        self.servers_heard.iter().map(|heard| heard.map(|(peer, ..)| peer))
    }

    /// Whether flows would survive a failure.
    pub fn protected(&self) -> Protected {
        let promising = |cluster: u16| {
            self.config.clusters.get(usize::from(cluster)).is_some_and(|cluster| cluster.promises)
        };
        // Runtimes that are leaving count too: their flows are still theirs.
        let serving = || {
            let heard = self.memory.places.iter().zip(&self.hearings);
            let serves = |state: MemberState| state.serves();
            let is_meant = move |place: &RuntimeSlot| {
                serves(place.member.state) && promising(place.member.cluster)
            };
            heard.filter(move |(place, _)| is_meant(place)).map(|(_, hearing)| hearing)
        };
        let mut clusters =
            (0..self.config.clusters.len() as u16).filter(|cluster| promising(*cluster)).peekable();
        if clusters.peek().is_none()
            || clusters.any(|cluster| self.memory.running_in(cluster).count() < 2)
        {
            return Protected::No;
        }
        // A state server that has been silent for a while may have failed already:
        // another failure now would be the second.
        let is_server_present = |server: u16, number: u32| {
            let is_it = |(peer, view, at): &(Peer, u64, u64)| {
                let is_late = self.last_turn.saturating_sub(*at) > self.config.hang_timeout / 2;
                peer.incarnation == number && *view == self.memory.view && !is_late
            };
            self.servers_heard.get(usize::from(server)).and_then(Option::as_ref).is_some_and(is_it)
        };
        let is_present = |&(switch, number): &(NodeId, u32)| match switch.state_server_number() {
            Some(server) => is_server_present(server, number),
            None => {
                self.memory
                    .switch_incarnation(switch)
                    .is_none_or(|incarnation| u32::from(incarnation as u8) == number)
                    && self.memory.has_spoken(switch)
            }
        };
        let settled = |hearing: &Hearing| {
            hearing.suspected.is_none()
                // A runtime that has not heard of a switch's new incarnation still counts
                // on the earlier one's packet log. The same holds for a state server.
                && hearing.report.logs.iter().all(is_present)
                && hearing.report.view == self.memory.view
                && !hearing.report.resynchronising
                && hearing.report.unprotected == 0
                && self.last_turn.saturating_sub(hearing.last_heard) <= self.config.hang_timeout / 2
        };
        let is_recovering = self.failovers().any(|failover| failover.recovered_at.is_none());
        if is_recovering
            || self.is_waiting_for_manager()
            || self.is_anybody_unwell()
            || !serving().all(settled)
        {
            Protected::Resynchronising
        } else {
            Protected::Yes
        }
    }
}
