//! Several hosts: which managers are there, which host serves which ports, and which
//! runtimes may speak there.
//!
//! Theory of operation. A manager is *known* when it has told, in this incarnation of the
//! coordinator, which processes it has; processes are started on known hosts only. The
//! ports are divided among switches, most often a single one. In each term a single host
//! serves the ports of a switch ([`quorum`](crate::quorum)). The coordinator begins
//! another term when the serving host is silent for a time-out, or says that it does not
//! serve although it knows of the term. A switch is given to its configured host if that
//! one may serve; otherwise to the host that serves the fewest. A switch does not move
//! back before it must. Beats say how many of the ports have links that are up. A switch
//! moves when another host has had more of them for a time-out, and at once from a host
//! that ends as planned, or whose runtimes are all drained. A silent host is given up
//! with all its processes.
//!
//! A runtime is fenced where packets leave: by every manager that serves a switch,
//! wherever the runtime's own host is, because each of them may have flows of it. The
//! runtime has failed when all of them have confirmed. Its own host's manager is asked
//! too, so that its process ends, but not waited for.

use super::memory::{Decision, RuntimeSlot, Serving};
use super::{Cause, Coordinator, MemberState};
use crate::message::{Beat, Control};
use crate::quorum::is_majority;
use holdfast_protection::Peer;
use holdfast_wire::{DropReason, NodeId};

/// A host of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostConfig {
    /// The host has the ports' devices: it may serve them.
    pub has_ports: bool,
    /// Runtimes are started on the host.
    pub has_runtimes: bool,
}

/// A switch of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwitchPlace {
    /// The chains on its ports, counted from 0. Empty for an only switch, which has all.
    pub chains: Vec<u16>,
    /// The host that is to serve the switch if it can.
    pub host: Option<u16>,
}

/// The hosts of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostsConfig {
    /// The hosts in the order of their numbers.
    pub hosts: Vec<HostConfig>,
    /// The switches among which the ports are divided, in the order of their numbers.
    pub switches: Vec<SwitchPlace>,
    /// The time-out of [`Quorum`](crate::quorum::Quorum), ns.
    pub timeout: u64,
}

impl HostsConfig {
    /// A single host.
    pub fn one() -> HostsConfig {
        HostsConfig {
            hosts: vec![HostConfig { has_ports: true, has_runtimes: true }],
            switches: vec![SwitchPlace::default()],
            timeout: 300_000_000,
        }
    }

    /// The initial services, before any host is known.
    pub(super) fn services(&self) -> Vec<Serving> {
        let host = self.hosts.iter().position(|host| host.has_ports).unwrap_or(0) as u16;
        let service = |place: &SwitchPlace| Serving {
            chains: place.chains.clone(),
            host,
            manager_incarnation: 0,
            term: 0,
            switch_incarnation: 0,
        };
        self.switches.iter().map(service).collect()
    }

    /// The hosts of runtimes, in the order of their places: by turns.
    pub(super) fn places(&self) -> impl Iterator<Item = u16> + Clone + '_ {
        let with = self
            .hosts
            .iter()
            .zip(0..)
            .filter(|(host, _)| host.has_runtimes)
            .map(|(_, number)| number);
        let with: Vec<u16> = with.collect();
        // Without any such host there is nothing to count.
        let with = if with.is_empty() { vec![0] } else { with };
        with.into_iter().cycle()
    }
}

/// The coordinator's knowledge of a host that need not be remembered.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// The manager has told which processes it has.
    pub(super) is_known: bool,
    heard_at: Option<u64>,
    beat: Option<Beat>,
    /// The arrival time of that beat.
    beat_at: u64,
    /// The time since which the host has not been connected to more than half of all.
    alone_since: Option<u64>,
}

impl Known {
    /// A host whose manager's new incarnation was heard at that time, and has told
    /// nothing yet.
    pub(super) fn heard(at: u64) -> Known {
        Known { heard_at: Some(at), ..Known::default() }
    }
}

impl Coordinator {
    /// True if there are other hosts.
    pub(super) fn is_joined(&self) -> bool {
        self.config.hosts.hosts.len() > 1
    }

    /// Places the coordinator on this host. To be called before any decision.
    pub fn live_on(&mut self, host: u16) {
        self.own_host = host;
        self.place_services();
    }

    /// Chooses the first serving hosts, while no service has begun.
    pub(super) fn place_services(&mut self) {
        if self.memory.services.iter().all(|service| service.term == 0) {
            let may_serve = |coordinator: &Coordinator, host| {
                coordinator.config.hosts.hosts[usize::from(host)].has_ports
            };
            for switch in 0..self.memory.services.len() {
                let before = &self.memory.services[..switch];
                self.memory.services[switch].host =
                    self.choose(switch, before, |host| may_serve(self, host)).unwrap_or(0);
            }
        }
    }

    /// The host that is to serve a switch beside those services: the configured one, or
    /// one that serves the fewest.
    fn choose(
        &self,
        switch: usize,
        beside: &[Serving],
        may_serve: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        let preferred = self.config.hosts.switches[switch].host;
        let count = |host: &u16| beside.iter().filter(|service| service.host == *host).count();
        let any = || self.in_order().filter(|host| may_serve(*host)).min_by_key(count);
        preferred.filter(|host| may_serve(*host)).or_else(any)
    }

    /// The hosts in the order in which they are to serve: the coordinator's own is the
    /// last, so that both do not fail together.
    fn in_order(&self) -> impl Iterator<Item = u16> + use<> {
        let (own, count) = (self.own_host, self.hosts.len() as u16);
        (0..count).filter(move |host| *host != own).chain([own])
    }

    /// The hosts that serve ports.
    pub(super) fn serving_hosts(&self) -> Vec<u16> {
        let mut hosts: Vec<u16> = self.memory.services.iter().map(|service| service.host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// The manager of the host where a node's process is.
    pub(super) fn manager_for(&self, node: NodeId) -> NodeId {
        let memory = &self.memory;
        NodeId::manager(
            memory
                .at_node(node)
                .map_or(memory.services[0].host, |at| memory.places[at].member.host),
        )
    }

    /// The managers that are known.
    pub(super) fn managers(&self) -> Vec<NodeId> {
        let known = self.hosts.iter().zip(0..).filter(|(host, _)| host.is_known);
        known.map(|(_, number)| NodeId::manager(number)).collect()
    }

    /// True if a serving manager has not told yet which processes live.
    pub(super) fn is_waiting_for_manager(&self) -> bool {
        self.memory.services.iter().any(|service| !self.is_there(service.host))
    }

    /// True if the host's manager is known.
    pub(super) fn is_there(&self, host: u16) -> bool {
        self.hosts.get(usize::from(host)).is_some_and(|host| host.is_known)
    }

    /// Asks a manager for its living processes. Messages that wait for it are dropped: it
    /// is told everything when it has answered.
    pub(super) fn ask_manager(&mut self, node: NodeId) {
        self.pending.forget(node);
        let is_its = |place: &RuntimeSlot| NodeId::manager(place.member.host) == node;
        let its =
            self.memory.places.iter().zip(&mut self.hearings).filter(|(place, _)| is_its(place));
        its.for_each(|(_, hearing)| hearing.is_doubted = false);
        self.pending.push((node, Control::Account { handled: 0 }));
    }

    /// Takes a manager's beat.
    pub(super) fn handle_beat(&mut self, from: Peer, beat: Beat, now: u64) {
        let Some(host) = from.node.host().filter(|host| usize::from(*host) < self.hosts.len())
        else {
            return;
        };
        if beat.services.len() != self.memory.services.len() {
            // The manager has another configuration, or another version.
            return self.drops.count(DropReason::Malformed);
        }
        let is_connected = is_majority(beat.connected, self.hosts.len() as u16);
        // This beat may hide a long silence before it.
        self.note_unsteady(now);
        let known = &mut self.hosts[usize::from(host)];
        let was_there = known.heard_at.is_some() && known.alone_since.is_none();
        (known.heard_at, known.beat, known.beat_at) = (Some(now), Some(beat), now);
        known.alone_since = if is_connected { None } else { known.alone_since.or(Some(now)) };
        // The manager was away for a while, in the same incarnation: its processes may
        // have changed.
        if is_connected && !was_there && !known.is_known {
            self.ask_manager(from.node);
        }
    }

    /// A manager has told which processes live, after all its earlier news.
    pub(super) fn welcome(&mut self, host: u16) {
        self.hosts[usize::from(host)].is_known = true;
        self.forget_told();
        if !self.is_joined() {
            return;
        }
        self.tell_service(self.last_turn);
        self.tell_managers();
        // Its earlier orders may be lost.
        let is_asked = |at: &usize| {
            self.hearings[*at].suspected.is_some()
                && self.memory.places[*at].member.state != MemberState::Failed
        };
        for at in (0..self.hearings.len()).filter(is_asked).collect::<Vec<_>>() {
            self.fence(at);
        }
        self.admit();
    }

    fn tell_service(&mut self, now: u64) {
        self.refreshed_at = now;
        for node in self.managers() {
            let services = self.memory.services.iter().zip(0..);
            let serve = |(service, switch): (&Serving, u16)| {
                let Serving { host, term, manager_incarnation, .. } = *service;
                (node, Control::Serve { switch, host, term, manager_incarnation })
            };
            self.pending.extend(services.map(serve));
        }
    }

    /// Tells the runtimes to which managers they report.
    pub(super) fn tell_managers(&mut self) {
        if self.is_joined() {
            let peers: Vec<Peer> =
                self.managers().into_iter().filter_map(|node| self.fabric.peer(node)).collect();
            let runtimes: Vec<NodeId> = self.memory.serving().map(|peer| peer.node).collect();
            let serving = self.memory.services.iter().map(|service| service.host).collect();
            let message = Control::Managers { serving, peers };
            self.pending.extend(runtimes.into_iter().map(|node| (node, message.clone())));
        }
    }

    /// Tells the serving managers which runtimes of other hosts may speak: all but those
    /// about to be fenced.
    pub(super) fn admit(&mut self) {
        if !self.is_joined() {
            return;
        }
        let there = |host: &u16| self.is_there(*host);
        for serving in self.serving_hosts().into_iter().filter(there).collect::<Vec<_>>() {
            let may_speak =
                self.memory.places.iter().zip(&self.hearings).filter(|(place, hearing)| {
                    place.member.host != serving
                        && place.member.state != MemberState::Failed
                        && hearing.suspected.is_none()
                });
            let peers = may_speak.map(|(place, _)| place.member.peer()).collect();
            self.pending.push((NodeId::manager(serving), Control::Admit { peers }));
        }
    }

    /// True if more than half of the hosts are heard, and the own host is connected to as
    /// many, both ways. If not, this coordinator is cut off itself, and gives no runtime
    /// up.
    pub(super) fn has_quorum(&self) -> bool {
        if !self.is_joined() {
            return true;
        }
        // When the own link is cut, all the others fall silent within a moment: the last
        // of them to be missed must not be taken for a majority.
        let is_fresh = |host: &Known| self.is_fresh(host);
        // Hearing the others does not help while they do not hear this coordinator's
        // decisions.
        let own = Some(&self.hosts[usize::from(self.own_host)]).filter(|own| is_fresh(own));
        let connected = own.and_then(|own| own.beat.as_ref()).map_or(0, |beat| beat.connected);
        let count = self.hosts.len() as u16;
        is_majority(connected, count) && is_majority(self.hosts_that(is_fresh), count)
    }

    /// True if the host was heard within half of a time-out.
    pub(super) fn is_fresh(&self, host: &Known) -> bool {
        host.heard_at
            .is_some_and(|at| self.last_turn.saturating_sub(at) <= self.config.hosts.timeout / 2)
    }

    /// True if a host is known, is heard, and hears more than half of all.
    fn is_well(&self, host: &Known) -> bool {
        let is_leaving = host.beat.as_ref().is_some_and(|beat| beat.is_leaving);
        host.is_known && self.is_fresh(host) && host.alone_since.is_none() && !is_leaving
    }

    /// True if the host has said that it is about to end.
    pub(super) fn is_leaving(&self, host: u16) -> bool {
        self.hosts[usize::from(host)].beat.as_ref().is_some_and(|beat| beat.is_leaving)
    }

    /// True if all of its runtimes are out of service by an operator's order.
    fn is_drained(&self, host: u16) -> bool {
        let mut own = self
            .memory
            .places
            .iter()
            .filter(|place| place.member.host == host && !place.is_spare)
            .peekable();
        own.peek().is_some()
            && own.all(|place| place.is_drained && place.member.state == MemberState::Failed)
    }

    /// How well a host could serve a switch: whether it stays, and how many links it has.
    /// `None` if it could not serve at all.
    fn rank(&self, switch: usize, host: u16) -> Option<(bool, u8)> {
        let (at, count) = (usize::from(host), self.hosts.len() as u16);
        let known = &self.hosts[at];
        let may_serve = |beat: &&Beat| {
            known.is_known
                && self.config.hosts.hosts[at].has_ports
                && is_majority(beat.connected, count)
        };
        let beat = known.beat.as_ref().filter(may_serve)?;
        let stays = !self.is_leaving(host) && !self.is_drained(host);
        Some((stays, beat.services.get(switch).map_or(0, |service| service.links)))
    }

    /// The best rank of all hosts.
    fn best_rank(&self, switch: usize) -> Option<(bool, u8)> {
        (0..self.hosts.len() as u16).filter_map(|host| self.rank(switch, host)).max()
    }

    /// True if another host could serve a switch better than the present one.
    fn is_badly_served(&self, switch: usize) -> bool {
        let own = self.rank(switch, self.memory.services[switch].host);
        own.is_some_and(|own| self.best_rank(switch) > Some(own))
    }

    fn is_any_badly_served(&self) -> bool {
        (0..self.memory.services.len()).any(|switch| self.is_badly_served(switch))
    }

    /// True if the switch has been badly served for long enough to move it: links come
    /// and go. A host that is about to end is not given that time.
    fn is_to_move(&mut self, switch: u16, now: u64) -> bool {
        let at = usize::from(switch);
        let own = self.rank(at, self.memory.services[at].host);
        if !self.is_badly_served(at) {
            self.worse_since[at] = None;
            return false;
        }
        let since = *self.worse_since[at].get_or_insert(now);
        own.is_some_and(|(stays, _)| !stays)
            || now.saturating_sub(since) > self.config.hosts.timeout
    }

    /// True if a known host is silent or hears no majority: it may be about to be given
    /// up, with its runtimes. Also true for a time-out after a host was cut off: it may
    /// still hear too few, and if one of those dies it stops to serve, and its switch's
    /// packet log is lost.
    pub(super) fn is_anybody_unwell(&self) -> bool {
        let was_unsteady =
            self.last_turn.saturating_sub(self.unsteady_at) <= self.config.hosts.timeout;
        self.is_joined()
            && (was_unsteady
                || self.is_any_badly_served()
                || self.hosts.iter().any(|host| host.is_known && !self.is_well(host)))
    }

    /// Notes the time if a known host does not hear this host's manager, or is not heard
    /// here. Echoes show both: a beat that is long on its way, or from a host that hears
    /// nothing, echoes an old beat.
    fn note_unsteady(&mut self, now: u64) {
        if self.longest_way(now).is_none_or(|longest| longest > self.config.hosts.timeout / 2) {
            self.unsteady_at = now;
        }
    }

    /// The age of the oldest beat of this host that another host's last beat echoes, by
    /// this host's clock. `None` if a known host has sent no beat.
    fn longest_way(&self, now: u64) -> Option<u64> {
        let own = usize::from(self.own_host);
        let Known { beat, beat_at, .. } = &self.hosts[own];
        let own_time = beat.as_ref()?.sent.saturating_add(now.saturating_sub(*beat_at));
        let there =
            self.hosts.iter().enumerate().filter(|(host, known)| *host != own && known.is_known);
        let echoes = there.map(|(_, known)| known.beat.as_ref()?.echoes.get(own).copied());
        echoes
            .map(|echo| Some(own_time.saturating_sub(echo?)))
            .try_fold(0, |longest, way| Some(way?.max(longest)))
    }

    /// A bit mask of the hosts that match.
    pub(super) fn hosts_that(&self, are_meant: impl Fn(&Known) -> bool) -> u16 {
        self.hosts
            .iter()
            .zip(0..)
            .filter(|(host, _)| are_meant(host))
            .fold(0, |bits, (_, number)| bits | 1 << number)
    }

    /// Gives up silent hosts, and has the ports served.
    pub(super) fn look_after_hosts(&mut self, now: u64) {
        if !self.is_joined() {
            return;
        }
        let timeout = self.config.hosts.timeout;
        self.hear_hosts();
        self.note_unsteady(now);
        let has_quorum = self.has_quorum();
        let had_quorum = core::mem::replace(&mut self.had_quorum, has_quorum);
        if !has_quorum {
            return;
        }
        if !had_quorum {
            // This coordinator was cut off, or no host was there yet: the others' silence
            // says nothing about them.
            for known in &mut self.hosts {
                (known.heard_at, known.alone_since) =
                    (known.heard_at.map(|_| now), known.alone_since.map(|_| now));
            }
            self.hearings.iter_mut().for_each(|hearing| hearing.last_heard = now);
            self.quorum_at = now;
        }
        // A host that does not hear the others is given up too: its link is cut in one
        // direction.
        let is_late = |at: Option<u64>| at.is_some_and(|at| now.saturating_sub(at) > timeout);
        let is_lost =
            |host: &Known| is_late(host.heard_at) || is_late(host.alone_since) && host.is_known;
        let lost: Vec<u16> = self
            .hosts
            .iter()
            .zip(0..)
            .filter(|(host, _)| is_lost(host))
            .map(|(_, number)| number)
            .collect();
        for host in &lost {
            let known = &mut self.hosts[usize::from(*host)];
            let (heard_at, alone_since) =
                (known.heard_at.filter(|at| !is_late(Some(*at))), known.alone_since);
            *known = Known {
                heard_at,
                alone_since: alone_since.filter(|_| heard_at.is_some()),
                ..Known::default()
            };
            self.pending.forget(NodeId::manager(*host));
        }
        if !lost.is_empty() {
            self.tell_managers();
        }
        self.give_up(&lost);
        let switches = 0..self.memory.services.len() as u16;
        let (served, unserved): (Vec<u16>, Vec<u16>) = switches
            .partition(|switch| !self.is_to_move(*switch, now) && self.is_served(*switch, now));
        for switch in unserved {
            self.serve_elsewhere(switch, now);
        }
        if !served.is_empty() && now.saturating_sub(self.refreshed_at) > timeout {
            // The message also tells the managers that there is a coordinator.
            self.tell_service(now);
        }
    }

    /// This process stood still for so long: all deadlines of hosts move by that time.
    pub(super) fn stand_still(&mut self, unwatched: u64, now: u64) {
        let later = |at: &mut u64| *at = now.min(*at + unwatched);
        let of_hosts =
            self.hosts.iter_mut().flat_map(|known| [&mut known.heard_at, &mut known.alone_since]);
        of_hosts.chain(&mut self.worse_since).flatten().for_each(later);
        self.given_at.iter_mut().chain([&mut self.began_at, &mut self.quorum_at]).for_each(later);
    }

    /// Any frame of a manager counts as a sign of life: its messages may be stuck behind
    /// a lost one.
    fn hear_hosts(&mut self) {
        for host in 0..self.hosts.len() {
            let heard = self
                .fabric
                .peer(NodeId::manager(host as u16))
                .and_then(|peer| self.fabric.heard_at(peer));
            let known = &mut self.hosts[host];
            known.heard_at = known.heard_at.map(|at| heard.map_or(at, |heard| at.max(heard)));
        }
    }

    /// Gives up all processes of these hosts.
    fn give_up(&mut self, lost: &[u16]) {
        for at in 0..self.memory.places.len() {
            let member = self.memory.places[at].member;
            if member.state != MemberState::Failed && lost.contains(&member.host) {
                self.suspect(at, Cause::Hung);
            }
        }
    }

    /// True if a new service, or a new incarnation of this coordinator, is to be given
    /// time. While the coordinator is cut off that time does not begin.
    fn is_soon_after(&self, since: u64, now: u64) -> bool {
        now.saturating_sub(since.max(self.quorum_at)) <= 3 * self.config.hosts.timeout
    }

    /// True if a host has never been heard, although it has had the time to speak.
    pub(super) fn is_gone(&self, host: u16, now: u64) -> bool {
        self.hosts[usize::from(host)].heard_at.is_none() && !self.is_soon_after(self.began_at, now)
    }

    /// True if the host's manager would answer a question.
    pub(super) fn may_be_asked(&self, host: u16) -> bool {
        let known = &self.hosts[usize::from(host)];
        known.is_known && (!self.is_joined() || self.is_fresh(known))
    }

    /// True if the host that is to serve a switch does, or may be about to.
    fn is_served(&self, switch: u16, now: u64) -> bool {
        let at = usize::from(switch);
        let (Serving { host, term, manager_incarnation, .. }, count) =
            (&self.memory.services[at], self.hosts.len() as u16);
        let known = &self.hosts[usize::from(*host)];
        let Some(beat) = known.beat.as_ref().filter(|_| *term > 0) else {
            // A new incarnation of its manager has been heard, whose first beat may be
            // late or lost.
            let is_new = known.heard_at.is_some() && self.is_soon_after(self.given_at[at], now);
            return *term > 0 && (is_new || self.is_soon_after(self.began_at, now));
        };
        let service = beat.services.get(at).copied().unwrap_or_default();
        match service {
            // The manager that was to serve is gone. Each term is one incarnation of the
            // switch: the next manager cannot continue it.
            _ if self.manager_incarnation(*host) != *manager_incarnation => false,
            service if service.term > *term => false,
            service if service.term == *term && !service.serves => {
                is_majority(beat.connected, count) && self.is_soon_after(self.given_at[at], now)
            }
            _ => true,
        }
    }

    /// The incarnation of a host's manager, as far as it has been heard; or 0.
    fn manager_incarnation(&self, host: u16) -> u32 {
        self.fabric.peer(NodeId::manager(host)).map_or(0, |peer| peer.incarnation)
    }

    /// Gives a switch's service to a host, in a new term.
    pub(super) fn give_service(&mut self, switch: u16, host: u16, now: u64) {
        let at = usize::from(switch);
        let heard = self
            .hosts
            .iter()
            .filter_map(|known| known.beat.as_ref())
            .filter_map(|beat| beat.services.get(at));
        let highest = heard.map(|service| service.term).max().unwrap_or(0);
        let term = self.memory.services[at].term.max(highest) + 1;
        let manager_incarnation = self.manager_incarnation(host);
        self.record(Decision::Serves { switch, host, term, manager_incarnation });
        self.given_at[at] = now;
        self.tell_service(now);
        self.tell_managers();
    }

    /// Begins another term of a switch, at another host or the same: one that has ports,
    /// as many of them up as any, and is connected to more than half of all.
    fn serve_elsewhere(&mut self, switch: u16, now: u64) {
        let at = usize::from(switch);
        let Some(best) = self.best_rank(at) else { return };
        let may_serve = |host: u16| self.rank(at, host) == Some(best);
        let services = &self.memory.services;
        let (serving, term) = (services[at].host, services[at].term);
        let beside: Vec<Serving> = services
            .iter()
            .zip(0..)
            .filter(|(_, other)| *other != switch)
            .map(|(one, _)| one.clone())
            .collect();
        let chosen =
            if may_serve(serving) { Some(serving) } else { self.choose(at, &beside, may_serve) };
        let Some(host) = chosen else { return };
        // The hosts begin together: the first one may need a moment longer.
        if term == 0
            && host != serving
            && now.saturating_sub(self.began_at) < self.config.start_timeout
        {
            return;
        }
        self.give_service(switch, host, now);
        // Suspects have to be fenced where packets leave now; runtimes of a host that is
        // gone go with it.
        for at in 0..self.memory.places.len() {
            let member = self.memory.places[at].member;
            if member.state == MemberState::Failed {
                continue;
            }
            if self.hearings[at].suspected.is_some() {
                self.fence(at);
            } else if self.is_gone(member.host, now) {
                self.suspect(at, Cause::Hung);
            }
        }
        self.admit();
        // The switch there is new, and asks for what it needs.
        let node = NodeId::switch(switch);
        self.pending.forget(node);
        self.switches.retain(|(known, _)| known.node != node);
    }

    /// When [`Coordinator::look_after_hosts`] is due next.
    pub(super) fn next_host_look(&self) -> u64 {
        if !self.is_joined() {
            return u64::MAX;
        }
        let timeout = self.config.hosts.timeout;
        // A host that is late is given up at once, not at the next regular turn.
        let late = self.hosts.iter().filter_map(|host| host.heard_at).map(|at| at + timeout + 1);
        late.filter(|at| *at > self.last_turn).fold(self.last_turn + timeout / 4, u64::min)
    }

    /// True if flows would survive the death of any one host, as far as the hosts
    /// themselves go.
    pub fn survives_host(&self) -> bool {
        let count = self.hosts.len() as u16;
        let well = self.hosts_that(|host| self.is_well(host));
        let survives = |dead: u16| {
            let rest = well & !(1 << dead);
            // A host with fewer links up than the serving one is no replacement.
            let is_as_good = |switch: usize, host: u16| {
                let serving = self.rank(switch, self.memory.services[switch].host);
                rest & 1 << host != 0
                    && self.rank(switch, host).is_some_and(|rank| rank.0 && Some(rank) >= serving)
            };
            let can_serve = |switch: usize| (0..count).any(|host| is_as_good(switch, host));
            let is_enough =
                is_majority(rest, count) && (0..self.memory.services.len()).all(can_serve);
            let serve = |cluster: u16| {
                let of_cluster =
                    self.memory.places.iter().filter(move |place| place.member.cluster == cluster);
                let mut running =
                    of_cluster.filter(|place| place.member.state == MemberState::Running);
                running.any(|place| place.member.host != dead)
            };
            is_enough && (0..self.config.clusters.len() as u16).all(serve)
        };
        self.is_joined()
            && !self.is_any_badly_served()
            && (0..count).filter(|host| well & 1 << host != 0).all(survives)
    }
}
