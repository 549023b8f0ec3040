//! Several hosts: whose managers are there, which of them serves the ports, and who may speak there.
//!
//! Theory of operation. A manager is *known* when it has told, in this life of the coordinator, which processes it has; processes are started on known hosts only.
//! One host serves the ports in a term ([`quorum`](crate::quorum)). The coordinator begins another term when the host that serves is not heard
//! for a patience, or says that it does not serve although it knows of the term. Whoever lived on a host that is not heard is given up with it.
//!
//! A runtime is fenced where packets leave: by the manager that serves, wherever the runtime's own host is. That one is asked too, so that its process
//! ends, but not waited for.

use super::memory::Entry;
use super::{Cause, Coordinator, MemberState};
use crate::address::{NodeId, SWITCH, host_of, manager_of};
use crate::message::{Beat, Control};
use crate::quorum::is_majority;
use holdfast_protection::Peer;

/// A host of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostConfig {
    /// It has the ports' devices: it may serve them.
    pub has_ports: bool,
    /// Runtimes are started there.
    pub has_runtimes: bool,
}

/// The hosts of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostsConfig {
    /// In the order of their numbers.
    pub hosts: Vec<HostConfig>,
    /// See [`Quorum`](crate::quorum::Quorum), ns.
    pub patience: u64,
}

impl HostsConfig {
    /// Everything is on one host.
    pub fn one() -> HostsConfig {
        HostsConfig { hosts: vec![HostConfig { has_ports: true, has_runtimes: true }], patience: 300_000_000 }
    }

    /// The hosts of runtimes, in the order of their places: by turns.
    pub(super) fn places(&self) -> impl Iterator<Item = u16> + Clone + '_ {
        let with = self.hosts.iter().zip(0..).filter(|(host, _)| host.has_runtimes).map(|(_, number)| number);
        let with: Vec<u16> = with.collect();
        // With none at all there is nothing to count.
        let with = if with.is_empty() { vec![0] } else { with };
        with.into_iter().cycle()
    }
}

/// What is known of a host and need not be remembered.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// Its manager has told which processes it has.
    pub(super) is_known: bool,
    heard_at: Option<u64>,
    beat: Option<Beat>,
    /// Since when it has said that it is not connected to more than half of all.
    alone_since: Option<u64>,
}

impl Coordinator {
    /// There are other hosts.
    pub(super) fn is_joined(&self) -> bool {
        self.config.hosts.hosts.len() > 1
    }

    /// It is on this host, and not on the first. Said before anything is decided.
    pub fn live_on(&mut self, host: u16) {
        self.own_host = host;
        if self.memory.term == 0 {
            let may_serve = |host: &u16| self.config.hosts.hosts[usize::from(*host)].has_ports;
            self.memory.serving_host = self.in_order().find(may_serve).unwrap_or(0);
        }
    }

    /// The hosts in the order in which they are to serve: the coordinator's own is the last, so that both do not fail together.
    fn in_order(&self) -> impl Iterator<Item = u16> + use<> {
        let (own, count) = (self.own_host, self.hosts.len() as u16);
        (0..count).filter(move |host| *host != own).chain([own])
    }

    /// The manager that serves the ports.
    pub(super) fn serving_manager(&self) -> NodeId {
        manager_of(self.memory.serving_host)
    }

    /// The manager of the host where a node's process is.
    pub(super) fn manager_for(&self, node: NodeId) -> NodeId {
        let place = self.memory.places.iter().find(|place| place.member.node == node);
        place.map_or(self.serving_manager(), |place| manager_of(place.member.host))
    }

    /// The managers that are there.
    pub(super) fn managers(&self) -> Vec<NodeId> {
        let known = self.hosts.iter().zip(0..).filter(|(host, _)| host.is_known);
        known.map(|(_, number)| manager_of(number)).collect()
    }

    /// The manager that serves has not told yet who lives.
    pub(super) fn is_waiting_for_manager(&self) -> bool {
        !self.hosts[usize::from(self.memory.serving_host)].is_known
    }

    /// Everyone whose place is on a host that is there.
    pub(super) fn is_there(&self, host: u16) -> bool {
        self.hosts.get(usize::from(host)).is_some_and(|host| host.is_known)
    }

    /// A manager is asked who lives. What it was to be told before, it is told anew when it has answered.
    pub(super) fn ask_manager(&mut self, node: NodeId) {
        self.pending.forget(node);
        self.pending.push((node, Control::Account { handled: 0 }));
    }

    /// A manager lives.
    pub(super) fn handle_beat(&mut self, from: Peer, beat: Beat, now: u64) {
        let Some(host) = host_of(from.node).filter(|host| usize::from(*host) < self.hosts.len()) else { return };
        let is_connected = is_majority(beat.connected, self.hosts.len() as u16);
        let known = &mut self.hosts[usize::from(host)];
        let was_there = known.heard_at.is_some() && known.alone_since.is_none();
        (known.heard_at, known.beat) = (Some(now), Some(beat));
        known.alone_since = if is_connected { None } else { known.alone_since.or(Some(now)) };
        // It was away for a while and is the same as before: what it has is another question.
        if is_connected && !was_there && !known.is_known {
            self.ask_manager(from.node);
        }
    }

    /// A manager has told who lives, after everything else that it had to say.
    pub(super) fn welcome(&mut self, host: u16) {
        self.hosts[usize::from(host)].is_known = true;
        self.forget_told();
        if !self.is_joined() {
            return;
        }
        self.tell_service(self.last_turn);
        self.tell_managers();
        self.admit();
    }

    fn tell_service(&mut self, now: u64) {
        self.refreshed_at = now;
        let (host, term, life) = (self.memory.serving_host, self.memory.term, self.memory.serving_life);
        for node in self.managers() {
            self.pending.push((node, Control::Serve { host, term, life }));
        }
    }

    /// Runtimes report to the managers that are there.
    pub(super) fn tell_managers(&mut self) {
        if self.is_joined() {
            let peers: Vec<Peer> = self.managers().into_iter().filter_map(|node| self.fabric.peer(node)).collect();
            let runtimes: Vec<NodeId> = self.memory.serving().map(|peer| peer.node).collect();
            let message = Control::Managers { serving: self.memory.serving_host, peers };
            self.pending.extend(runtimes.into_iter().map(|node| (node, message.clone())));
        }
    }

    /// The manager that serves is told who of other hosts may speak. Not who is about to be fenced.
    pub(super) fn admit(&mut self) {
        if !self.is_joined() || self.is_waiting_for_manager() {
            return;
        }
        let serving = self.memory.serving_host;
        let may_speak = self.memory.places.iter().zip(&self.hearings).filter(|(place, hearing)| {
            place.member.host != serving && place.member.state != MemberState::Failed && hearing.suspected.is_none()
        });
        let peers = may_speak.map(|(place, _)| place.member.peer()).collect();
        self.pending.push((self.serving_manager(), Control::Admit { peers }));
    }

    /// More than half of the hosts are heard, and its own is connected to as many, both ways. Without that it is this coordinator that is cut off: it gives
    /// nobody up.
    pub(super) fn has_quorum(&self) -> bool {
        if !self.is_joined() {
            return true;
        }
        // When its own link is cut, all the others fall silent within a moment: the last of them to be missed must not be taken for a majority.
        let is_fresh = |host: &Known| self.is_fresh(host);
        // Nor does it help to hear the others while they do not hear what is decided here.
        let own = Some(&self.hosts[usize::from(self.own_host)]).filter(|own| is_fresh(own));
        let connected = own.and_then(|own| own.beat.as_ref()).map_or(0, |beat| beat.connected);
        let count = self.hosts.len() as u16;
        is_majority(connected, count) && is_majority(self.hosts_that(is_fresh), count)
    }

    /// It has been heard a moment ago.
    fn is_fresh(&self, host: &Known) -> bool {
        host.heard_at.is_some_and(|at| self.last_turn.saturating_sub(at) <= self.config.hosts.patience / 2)
    }

    /// A host is silent that was there: it may be about to be given up, with its runtimes.
    pub(super) fn is_anybody_silent(&self) -> bool {
        self.is_joined() && self.hosts.iter().any(|host| host.is_known && !self.is_fresh(host))
    }

    /// A bit for each of these hosts.
    pub(super) fn hosts_that(&self, are_meant: impl Fn(&Known) -> bool) -> u16 {
        self.hosts.iter().zip(0..).filter(|(host, _)| are_meant(host)).fold(0, |bits, (_, number)| bits | 1 << number)
    }

    /// Looks whether the hosts are there, and whether the ports are served.
    pub(super) fn look_after_hosts(&mut self, now: u64) {
        if !self.is_joined() {
            return;
        }
        let patience = self.config.hosts.patience;
        self.hear_hosts();
        let has_quorum = self.has_quorum();
        let had_quorum = core::mem::replace(&mut self.had_quorum, has_quorum);
        if !has_quorum {
            return;
        }
        if !had_quorum {
            // This coordinator was cut off, or nobody was there yet: how long the others were silent says nothing about them.
            for known in &mut self.hosts {
                (known.heard_at, known.alone_since) = (known.heard_at.map(|_| now), known.alone_since.map(|_| now));
            }
            self.hearings.iter_mut().for_each(|hearing| hearing.last_heard = now);
        }
        // One that does not hear the others is no use either: its link is cut in one direction.
        let is_late = |at: Option<u64>| at.is_some_and(|at| now.saturating_sub(at) > patience);
        let is_lost = |host: &Known| is_late(host.heard_at) || is_late(host.alone_since) && host.is_known;
        let lost: Vec<u16> = self.hosts.iter().zip(0..).filter(|(host, _)| is_lost(host)).map(|(_, number)| number).collect();
        for host in &lost {
            let known = &mut self.hosts[usize::from(*host)];
            let (heard_at, alone_since) = (known.heard_at.filter(|at| !is_late(Some(*at))), known.alone_since);
            *known = Known { heard_at, alone_since: alone_since.filter(|_| heard_at.is_some()), ..Known::default() };
            self.pending.forget(manager_of(*host));
        }
        if !lost.is_empty() {
            self.tell_managers();
        }
        self.give_up(&lost);
        if !self.is_served(now) {
            self.serve_elsewhere(now);
        } else if now.saturating_sub(self.refreshed_at) > patience {
            // By this the managers know, too, that there is a coordinator.
            self.tell_service(now);
        }
    }

    /// Frames of a manager count as hearing its host: what it says may be stuck behind one that was lost.
    fn hear_hosts(&mut self) {
        for host in 0..self.hosts.len() {
            let heard = self.fabric.peer(manager_of(host as u16)).and_then(|peer| self.fabric.heard_at(peer));
            let known = &mut self.hosts[host];
            known.heard_at = known.heard_at.map(|at| heard.map_or(at, |heard| at.max(heard)));
        }
    }

    /// Whoever lives on these hosts is given up.
    fn give_up(&mut self, lost: &[u16]) {
        for at in 0..self.memory.places.len() {
            let member = self.memory.places[at].member;
            if member.state != MemberState::Failed && lost.contains(&member.host) {
                self.suspect(at, Cause::Hung);
            }
        }
    }

    /// Whoever is to serve is given time to begin; and in a new life of this coordinator, every host to be heard.
    fn is_soon_after(&self, since: u64, now: u64) -> bool {
        now.saturating_sub(since) <= 3 * self.config.hosts.patience
    }

    /// Nothing is heard of a host, although it has had the time to say something.
    fn is_gone(&self, host: u16, now: u64) -> bool {
        self.hosts[usize::from(host)].heard_at.is_none() && !self.is_soon_after(self.began_at, now)
    }

    /// The host that is to serve does, or may be about to.
    fn is_served(&self, now: u64) -> bool {
        let (term, count) = (self.memory.term, self.hosts.len() as u16);
        match &self.hosts[usize::from(self.memory.serving_host)].beat {
            _ if term == 0 => false,
            None => self.is_soon_after(self.began_at, now),
            // The manager that was to serve is no more. Each term is one life of the switch: the next manager cannot go on with it.
            Some(_) if self.manager_life(self.memory.serving_host) != self.memory.serving_life => false,
            Some(beat) if beat.term > term => false,
            Some(beat) if beat.term == term && !beat.serves => {
                is_majority(beat.connected, count) && self.is_soon_after(self.given_at, now)
            }
            Some(_) => true,
        }
    }

    /// The incarnation of a host's manager, as far as it has been heard; or 0.
    fn manager_life(&self, host: u16) -> u32 {
        self.fabric.peer(manager_of(host)).map_or(0, |peer| peer.incarnation)
    }

    /// Service is given to a host.
    pub(super) fn give_service(&mut self, host: u16, now: u64) {
        let highest = self.hosts.iter().filter_map(|known| known.beat.as_ref()).map(|beat| beat.term).max().unwrap_or(0);
        let term = self.memory.term.max(highest) + 1;
        let life = self.manager_life(host);
        self.record(Entry::Serves { host, term, life });
        self.given_at = now;
        self.tell_service(now);
        self.tell_managers();
    }

    /// Another host, or the same anew, is to serve: one that has ports and is connected to more than half of all.
    fn serve_elsewhere(&mut self, now: u64) {
        let count = self.hosts.len() as u16;
        let may_serve = |host: &u16| {
            let known = &self.hosts[usize::from(*host)];
            let is_connected = known.beat.as_ref().is_some_and(|beat| is_majority(beat.connected, count));
            known.is_known && is_connected && self.config.hosts.hosts[usize::from(*host)].has_ports
        };
        let serving = self.memory.serving_host;
        let Some(host) = [serving].into_iter().chain(self.in_order()).find(may_serve) else { return };
        // They begin together: the first one may need a moment longer.
        if self.memory.term == 0 && host != serving && now.saturating_sub(self.began_at) < self.config.start_timeout {
            return;
        }
        self.give_service(host, now);
        // Whoever was to be fenced is fenced where packets leave now; those of a host that is gone go with it.
        for at in 0..self.memory.places.len() {
            let member = self.memory.places[at].member;
            if member.state == MemberState::Failed {
                continue;
            }
            let cause = self.hearings[at].suspected.take();
            if let Some(cause) = cause.or(self.is_gone(member.host, now).then_some(Cause::Hung)) {
                self.suspect(at, cause);
            }
        }
        self.admit();
        // The switch there knows nobody: what it is told it asks for.
        self.pending.forget(SWITCH);
        self.switches.retain(|(switch, _)| switch.node != SWITCH);
    }

    /// When [`Coordinator::look_after_hosts`] is due next.
    pub(super) fn next_host_look(&self) -> u64 {
        if self.is_joined() { self.last_turn + self.config.hosts.patience / 4 } else { u64::MAX }
    }

    /// Whether flows would survive the death of any one host, as far as the hosts themselves go.
    pub fn survives_host(&self) -> bool {
        let count = self.hosts.len() as u16;
        let known = self.hosts_that(|host| host.is_known);
        let survives = |dead: u16| {
            let rest = known & !(1 << dead);
            let has = |is_meant: fn(&HostConfig) -> bool| {
                self.config.hosts.hosts.iter().zip(0..).any(|(host, number)| rest & 1 << number != 0 && is_meant(host))
            };
            let is_enough = is_majority(rest, count) && has(|host| host.has_ports);
            let serve = |cluster: u16| {
                let of_cluster = self.memory.places.iter().filter(move |place| place.member.cluster == cluster);
                let mut running = of_cluster.filter(|place| place.member.state == MemberState::Running);
                running.any(|place| place.member.host != dead)
            };
            is_enough && (0..self.config.clusters.len() as u16).all(serve)
        };
        self.is_joined() && (0..count).filter(|host| known & 1 << host != 0).all(survives)
    }
}
