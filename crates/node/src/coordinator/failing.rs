//! Failures of runtimes: from silence, or the end of a process, to the account of the
//! recovery.
//!
//! In: the time, managers' reports. Out: fences, views, orders to recover. Never: a
//! failure before the fence is acknowledged.

use super::memory::{Decision, RuntimeSlot};
use super::{Coordinator, HOPELESS, Hearing, Swept};
use crate::message::{Cause, Control, Member, MemberState};
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use holdfast_wire::fault::{Fault, is_planted};

impl Coordinator {
    /// True if the runtime has been given up and every host where packets leave has
    /// fenced it.
    pub(super) fn is_fenced(&self, at: usize) -> bool {
        let Hearing { suspected, fenced, .. } = &self.hearings[at];
        let is_fenced = |host: &u16| fenced.iter().any(|(by, _)| by == host);
        suspected.is_some() && self.serving_hosts().iter().all(is_fenced)
    }

    /// True if other runtimes of its host are given up too and not yet fenced. Their
    /// failures count as one: a holder that is asked about the first alone would be told
    /// that another has the flow, and would throw away the copy that is needed when that
    /// one's end is known.
    fn is_one_of_several(&self, at: usize) -> bool {
        let host = self.memory.places[at].member.host;
        let is_pending = |other: usize| {
            let is_meant = other != at && self.memory.places[other].member.host == host;
            let hearing = &self.hearings[other];
            is_meant
                && (hearing.is_doubted || hearing.suspected == Some(Cause::Hung))
                && !self.is_fenced(other)
        };
        self.is_joined() && (0..self.hearings.len()).any(is_pending)
    }

    /// True if silence counts as a failure: other runtimes speak and could take over. If
    /// none is heard, the machine stands still, and giving up the last runtimes would
    /// lose every flow for nothing. Runtimes do not fall silent at the same instant, so a
    /// runtime that was heard last then is no witness against the others. A runtime that
    /// is silent for very long is given up all the same, so that a new one may serve.
    pub(super) fn has_failed(&self, at: usize, silent: u64, now: u64) -> bool {
        let timeout = self.config.hang_timeout;
        if silent <= timeout || now <= self.hearings[at].spared_until {
            return false;
        }
        let cluster = self.memory.places[at].member.cluster;
        let heard = self.memory.places.iter().zip(&self.hearings).enumerate();
        let heard =
            heard.filter(|(other, (place, _))| *other != at && place.member.cluster == cluster);
        let mut others = heard.map(|(_, (place, hearing))| {
            (place.member.state, now.saturating_sub(hearing.last_heard))
        });
        let is_witness = |heard: u64| {
            heard <= timeout
                && (heard + timeout / 2 <= silent || is_planted(Fault::BelievesLastHeard))
        };
        let is_anybody_heard =
            others.any(|(state, heard)| state == MemberState::Running && is_witness(heard));
        let may_wait = silent <= timeout + timeout / 2;
        is_anybody_heard && !(may_wait && self.may_fail_together(at, now))
            || silent > timeout.saturating_mul(HOPELESS)
    }

    /// True if another runtime of its host has been silent for nearly as long: that one
    /// will be heard soon, or fail with this one.
    pub(super) fn may_fail_together(&self, at: usize, now: u64) -> bool {
        let (host, timeout) = (self.memory.places[at].member.host, self.config.hang_timeout);
        let is_silent = |(other, (place, hearing)): (usize, (&RuntimeSlot, &Hearing))| {
            let is_meant = other != at && place.member.host == host && hearing.suspected.is_none();
            let serves = place.member.state.serves();
            is_meant
                && serves
                && (timeout / 2..=timeout).contains(&now.saturating_sub(hearing.last_heard))
        };
        self.is_joined() && self.memory.places.iter().zip(&self.hearings).enumerate().any(is_silent)
    }

    /// Fails the runtimes that are fenced everywhere, because their processes have ended,
    /// never started, or hang; and with them all whose failures count as one.
    pub(super) fn settle_ends(&mut self, now: u64) {
        let has_ended = |coordinator: &Coordinator, at: usize| {
            let is_hung = coordinator.hearings[at].suspected == Some(Cause::Hung);
            let was_drained = coordinator.has_drained(coordinator.memory.places[at].member.peer());
            coordinator.is_fenced(at)
                && (!is_hung || was_drained || !coordinator.is_one_of_several(at))
        };
        let mut is_any = false;
        while let Some(at) = (0..self.hearings.len()).find(|at| has_ended(self, *at)) {
            self.fail(at, now);
            is_any = true;
        }
        if is_any {
            self.finish_recoveries(now);
        }
    }

    /// A runtime is heard after all of its cluster were silent: the machine stood still,
    /// or the manager that carries their frames, or the link to this coordinator. The
    /// others get a moment longer. Runtimes that are only starting do not count as
    /// silent.
    pub(super) fn end_silence(&mut self, at: usize, now: u64) {
        let cluster = self.memory.places[at].member.cluster;
        let serves =
            |place: &RuntimeSlot| place.member.cluster == cluster && place.member.state.serves();
        let of_his = self.memory.places.iter().map(serves);
        let newest = self
            .hearings
            .iter()
            .zip(of_his)
            .filter(|(_, serves)| *serves)
            .map(|(hearing, _)| hearing.last_heard);
        if newest
            .max()
            .is_some_and(|newest| now.saturating_sub(newest) > self.config.hang_timeout / 2)
        {
            let silent = self
                .hearings
                .iter_mut()
                .zip(self.memory.places.iter().map(serves))
                .filter(|(_, serves)| *serves);
            silent.for_each(|(hearing, _)| hearing.last_heard = now);
        }
    }

    /// A runtime has been silent for too long. Its host, if heard itself, says whether
    /// the runtime stands still. A runtime that only waits for a processor does not, nor
    /// does one whose messages have not been carried here yet: to give it up would cost
    /// flow state that no other node has yet. A runtime silent beyond hope is given up
    /// all the same.
    pub(super) fn doubt(&mut self, at: usize, silent: u64) {
        let Member { node, incarnation, host, .. } = self.memory.places[at].member;
        let is_hopeless = silent > self.config.hang_timeout.saturating_mul(HOPELESS);
        let is_unasked =
            is_planted(Fault::TakesStarvedForDead) || is_planted(Fault::BelievesLastHeard);
        let is_gone = self.is_joined() && self.is_gone(host, self.last_turn);
        if is_hopeless || is_unasked || is_gone {
            return self.suspect(at, Cause::Hung);
        }
        if !self.may_be_asked(host) {
            // The manager will be heard, or be given up with its host.
            return;
        }
        let hearing = &mut self.hearings[at];
        if hearing.suspected.is_none() && !core::mem::replace(&mut hearing.is_doubted, true) {
            self.pending.push((NodeId::manager(host), Control::Silent { node, incarnation }));
        }
    }

    /// The runtime's host says that it does not stand still.
    pub(super) fn spare(&mut self, peer: Peer, now: u64) {
        if let Some(at) = self.at(peer) {
            (self.hearings[at].is_doubted, self.hearings[at].spared_until) =
                (false, now + self.config.hang_timeout / 4);
        }
    }

    /// Suspects a runtime: it is given up as soon as it is fenced wherever packets leave.
    pub(super) fn suspect(&mut self, at: usize, cause: Cause) {
        if self.hearings[at].suspected.replace(cause).is_none() {
            self.hearings[at].suspected_at = self.last_turn;
            self.fence(at);
        }
    }

    /// Gives a runtime up. Its flows are counted by the switches' routes if all are
    /// known, which leave out flows of which nothing has been released; else by its last
    /// word; else by its last report.
    pub(super) fn fail(&mut self, at: usize, now: u64) {
        let peer = self.memory.places[at].member.peer();
        let hearing = core::mem::replace(&mut self.hearings[at], Hearing::new(now, false));
        let cause = if self.has_drained(peer) {
            Cause::Drained
        } else {
            hearing.suspected.unwrap_or(Cause::Exited)
        };
        let sent = hearing.fenced.iter().map(|(_, flows)| *flows).sum::<Option<u64>>();
        let flows = sent.or(hearing.last).unwrap_or(hearing.report.flows);
        let mut notice = hearing.notice;
        if cause == Cause::Hung && notice.silent == 0 {
            // The manager is gone with it, or has not seen the runtime stand still.
            notice.silent = hearing.suspected_at.saturating_sub(hearing.last_heard);
        }
        self.record(Decision::Failed { peer, cause, at: now, flows, notice });
        self.pending.forget(peer.node);
        self.forget_demand(peer);
        self.push_view();
        // A runtime that never served has no flows to recover.
        if self.failovers().all(|failover| failover.dead != peer) {
            let Peer { node, incarnation } = peer;
            let over = |server| (server, Control::Sweep { node, incarnation, is_over: true });
            self.pending.extend(self.servers().map(over));
        }
    }

    /// Asks the managers that have not confirmed it to fence the runtime.
    pub(super) fn fence(&mut self, at: usize) {
        let Peer { node, incarnation } = self.memory.places[at].member.peer();
        let own = self.memory.places[at].member.host;
        let serving = self.serving_hosts();
        let asked =
            [own].into_iter().filter(|own| !serving.contains(own)).chain(serving.iter().copied());
        for host in asked.filter(|host| self.hearings[at].fenced.iter().all(|(by, _)| by != host)) {
            self.pending.push((NodeId::manager(host), Control::Fence { node, incarnation }));
        }
    }

    /// Tells switches of which dead runtimes they may sweep the routes, and the state
    /// servers which recoveries are over.
    pub(super) fn tell_sweeps(&mut self) {
        for (dead, is_over) in self.memory.to_be_swept(self.is_joined()) {
            for observer in self.observers() {
                // A sweep may be sent twice. Claimants that waited may have waited for
                // this sweep, and their claims since may lead to another dead runtime; a
                // new incarnation of the switch waits for the final sweep.
                let known = self
                    .swept
                    .iter_mut()
                    .find(|swept| swept.dead == dead && swept.observer == observer);
                match known {
                    Some(swept) if swept.is_over || !is_over => continue,
                    Some(swept) => swept.is_over = true,
                    None => self.swept.push(Swept { observer, dead, is_over }),
                }
                self.pending.push((
                    observer,
                    Control::Sweep { node: dead.node, incarnation: dead.incarnation, is_over },
                ));
            }
        }
    }

    /// A switch that has seen all of a recovery tells how many flows were not claimed.
    /// The switch tells every incarnation of the coordinator; the first report counts.
    pub(super) fn note_unclaimed(&mut self, dead: Peer, switch: NodeId, flows: u64) {
        let known = self.failovers().find(|failover| failover.dead == dead);
        if known.is_some_and(|known| known.unclaimed.iter().all(|(other, _)| *other != switch)) {
            self.record(Decision::Unclaimed { dead, switch, flows });
        }
    }

    /// Ends the recoveries that are complete.
    pub(super) fn finish_recoveries(&mut self, now: u64) {
        self.tell_sweeps();
        while let Some(dead) = self.memory.finished() {
            self.swept.retain(|swept| swept.dead != dead);
            self.record(Decision::Finished { dead, at: now });
        }
        self.serve_all();
    }
}
