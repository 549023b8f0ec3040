//! Coordinator and hosts' managers: state of the box, living processes, operators'
//! orders.
//!
//! A manager is told what has changed since it was told last. A new incarnation of one,
//! or one that is heard again, is told everything. The manager says which processes live
//! before anything else that it says is believed ([`Coordinator::present`]).

use super::hosts::Known;
use super::memory::{Decision, RuntimeSlot, Serving};
use super::{Cause, Coordinator, MemberState};
use crate::message::{Control, Failover, Notice, Standing};
use holdfast_protection::Peer;
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, NodeId};

impl Coordinator {
    /// Tells the managers what has changed.
    pub(super) fn tell_manager(&mut self) {
        let is_ready = self.is_ready();
        self.was_ready = self.is_joined() && (self.was_ready || is_ready);
        let standing = Standing {
            view: self.memory.view,
            ready: is_ready || self.was_ready,
            protected: self.protected(),
            members: self.memory.places.iter().map(|place| place.member).collect(),
            drained: self
                .memory
                .places
                .iter()
                .filter(|place| place.is_drained)
                .map(|place| place.member.node)
                .collect(),
            spare: self
                .memory
                .places
                .iter()
                .filter(|place| place.is_spare)
                .map(|place| place.member.node)
                .collect(),
            retried: self.memory.places.iter().filter_map(RuntimeSlot::retried).collect(),
            drops: self.drops.iter().map(|(reason, count)| (reason as u8, count)).collect(),
            hosts: self.hosts_that(|host| host.is_known),
            serving: self.memory.services.iter().map(|service| service.host).collect(),
            rules: self.rules_in_force(),
            coordinator: self.own_host,
            survives_host: self.survives_host(),
        };
        // Failures go first: an operator must know what was wrong when all is well again.
        let changed = self.memory.recoveries.iter().map(|recovery| &recovery.failover);
        let changed: Vec<Failover> =
            changed.filter(|failover| !self.told_failovers.contains(failover)).cloned().collect();
        for failover in changed {
            self.told_failovers.retain(|told| told.dead != failover.dead);
            self.told_failovers.push(failover.clone());
            self.tell_all(&Control::Failover(failover));
        }
        if self.told_failovers.len() > self.memory.recoveries.len() {
            let known = &self.memory.recoveries;
            self.told_failovers
                .retain(|told| known.iter().any(|recovery| recovery.failover.dead == told.dead));
        }
        if self.told_drains != self.memory.drains {
            let news = self.memory.drains.iter().filter(|drain| !self.told_drains.contains(drain));
            for drain in news.cloned().collect::<Vec<_>>() {
                self.tell_all(&Control::Draining(drain));
            }
            self.told_drains.clone_from(&self.memory.drains);
        }
        if self.standing.as_ref() != Some(&standing) {
            self.told_managers()
                .into_iter()
                .for_each(|node| self.pending.push_standing(node, standing.clone()));
            self.standing = Some(standing);
        }
    }

    /// Managers that are there. A manager that is alone counts as there.
    fn told_managers(&self) -> Vec<NodeId> {
        if self.is_joined() { self.managers() } else { vec![NodeId::MANAGER] }
    }

    /// Sends a message to every manager that is there.
    fn tell_all(&mut self, message: &Control) {
        self.pending.extend(self.told_managers().into_iter().map(|node| (node, message.clone())));
    }

    pub(super) fn forget_told(&mut self) {
        self.standing = None;
        self.told_failovers.clear();
        self.told_drains.clear();
    }

    pub(super) fn ask_managers(&mut self) {
        for host in 0..self.hosts.len() as u16 {
            self.ask_manager(NodeId::manager(host));
        }
    }

    pub(super) fn handle_manager(&mut self, from: Peer, host: u16, message: Control, now: u64) {
        // A message of an earlier incarnation says nothing of the present one, ends of
        // processes above all; both may have come in one batch.
        if self.fabric.peer(from.node) != Some(from) {
            return self.drops.count(DropReason::StaleEpoch);
        }
        match message {
            Control::Started { node, incarnation } => {
                if let Some(at) = self.at(Peer { node, incarnation }) {
                    self.hearings[at].last_heard = now;
                }
            }
            Control::Ended { node, incarnation, flows, last, notice } => {
                let peer = Peer { node, incarnation };
                self.note_last(host, peer, last);
                self.handle_ended(host, peer, (flows, notice), now);
            }
            Control::Present { peers } => self.present(host, &peers, now),
            Control::Alive { node, incarnation } => self.spare(Peer { node, incarnation }, now),
            Control::Beat(beat) => self.handle_beat(from, beat, now),
            Control::Rules { version, part, parts, rules } => {
                self.handle_rules(version, part, parts, rules)
            }
            Control::Crowded { refused } => self.handle_crowded(&refused),
            Control::Order { ticket, order } => {
                let result = self.order(&order, now);
                self.answers.push((from.node, Control::Answer { ticket, result }));
            }
            _ => self.drops.count(DropReason::Malformed),
        }
    }

    /// A new incarnation of a manager knows nothing, and may not have done what the
    /// earlier one was asked.
    pub(super) fn begin_with_manager(&mut self, host: u16, now: u64) {
        let Some(known) = self.hosts.get_mut(usize::from(host)) else { return };
        // The manager has just been heard: its host is there, even before any of its
        // messages has arrived.
        *known = if is_planted(Fault::ForgetsHeardManagers) {
            Known::default()
        } else {
            Known::heard(now)
        };
        self.forget_told();
        let serving = self.serving_hosts();
        // Each term is one incarnation of the switch.
        let begun = |(service, _): &(&Serving, u16)| service.host == host && service.term > 0;
        let served: Vec<u16> =
            self.memory.services.iter().zip(0..).filter(begun).map(|(_, switch)| switch).collect();
        for switch in served {
            self.give_service(switch, host, now);
        }
        // If packets leave at other hosts too, a manager there has been asked to fence
        // the suspects.
        let may_be_fenced = serving.iter().any(|serving| *serving != host);
        for (place, hearing) in self.memory.places.iter().zip(&mut self.hearings) {
            hearing.fenced.retain(|(by, _)| *by != host);
            if !may_be_fenced && (serving.contains(&host) || place.member.host == host) {
                // A silent runtime is given up, and fenced, anew.
                (hearing.suspected, hearing.last) = (None, None);
            }
        }
        self.ask_manager(NodeId::manager(host));
        self.stop_again();
    }

    /// Notes how many flows a runtime had at its end. Only its own host has its last
    /// word. Other hosts know its last report, which counts if this coordinator has none.
    fn note_last(&mut self, host: u16, peer: Peer, last: Option<u64>) {
        let Some(at) = self.at(peer) else { return };
        let hearing = &mut self.hearings[at];
        let is_own = self.memory.places[at].member.host == host;
        if is_own || hearing.last.is_none() && hearing.report.flows == 0 {
            hearing.last = last.or(hearing.last);
        }
    }

    /// A manager says that nothing comes from a runtime any more. The runtime has failed
    /// when all hosts where packets leave say so; if only its process has ended, it still
    /// has to be fenced.
    fn handle_ended(
        &mut self,
        host: u16,
        peer: Peer,
        (flows, notice): (Option<u64>, Notice),
        now: u64,
    ) {
        let Some(at) =
            self.at(peer).filter(|at| self.memory.places[*at].member.state != MemberState::Failed)
        else {
            return;
        };
        let is_asked =
            self.memory.places[at].member.host == host || self.serving_hosts().contains(&host);
        if !is_asked {
            return;
        }
        let hearing = &mut self.hearings[at];
        hearing.fenced.retain(|(by, _)| *by != host);
        hearing.fenced.push((host, flows));
        if !notice.cause.is_empty() {
            hearing.notice = notice;
        }
        if hearing.suspected.is_none() {
            let cause = if hearing.is_doubted { Cause::Hung } else { Cause::Exited };
            self.suspect(at, cause);
        }
        self.settle_ends(now);
    }

    /// A manager names its living processes. All others that this coordinator, or one
    /// before it, has started there have died meanwhile.
    fn present(&mut self, host: u16, peers: &[Peer], now: u64) {
        if self.is_there(host) {
            return;
        }
        self.welcome(host);
        let there = |place: &&RuntimeSlot| {
            place.member.host == host
                && place.member.state != MemberState::Failed
                && !peers.contains(&place.member.peer())
        };
        let gone: Vec<Peer> =
            self.memory.places.iter().filter(there).map(|place| place.member.peer()).collect();
        for peer in gone {
            self.handle_ended(host, peer, (None, Notice::default()), now);
        }
        for peer in peers {
            if self.at(*peer).is_none() {
                // The log does not know this incarnation, so its number must not be given
                // again.
                if peer.incarnation >= self.memory.next_incarnation {
                    self.record(Decision::Seen { incarnation: peer.incarnation });
                }
                self.pending.push((
                    NodeId::manager(host),
                    Control::Fence { node: peer.node, incarnation: peer.incarnation },
                ));
            }
        }
        // The earlier coordinator may have died after the last report, before acting upon
        // it.
        self.ask_again(now);
        self.finish_recoveries(now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClusterConfig, CoordinatorConfig, HostsConfig};
    use super::*;
    use crate::channel::FabricConfig;
    use holdfast_wire::NodeId;

    /// Managers of three hosts say how many flows a runtime had last. In any order, the
    /// word of its own host counts, which alone can have heard it, even if that host has
    /// lost it since.
    #[test]
    fn the_last_word_is_that_of_the_runtimes_own_host() {
        let said = [(0, Some(9)), (1, Some(4)), (2, Some(5))];
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let config = CoordinatorConfig {
                me: Peer { node: NodeId::COORDINATOR, incarnation: 1 },
                clusters: ClusterConfig::only(1, 1, true),
                hosts: HostsConfig::one(),
                names: Vec::new(),
                rules: Vec::new(),
                hang_timeout: 1,
                start_timeout: 1,
                first_incarnation: 1,
                pools: Vec::new(),
                state_servers: 0,
                layouts: Vec::new(),
                fabric: FabricConfig::default(),
            };
            let mut coordinator = Coordinator::new(config, 1);
            let peer = coordinator.memory.places[0].member.peer();
            for (host, last) in order.map(|at| said[at]).into_iter().chain([(0, None)]) {
                coordinator.note_last(host, peer, last);
            }
            assert_eq!(coordinator.hearings[0].last, Some(9));
        }
    }
}
