//! Moves of flows on an operator's order, and drains.
//!
//! The coordinator only says where flows shall go; runtimes and switch move them
//! (NFVactor: flow migration). A *drain* moves every flow of a runtime away while no new
//! one comes, waits until all have arrived and no replica is left there, and ends its
//! process. A runtime that fails meanwhile is recovered as ever. The log remembers which
//! runtimes are leaving, and every request until its runtime has it. The log does not
//! remember which request of a drain is under way: a new incarnation of the coordinator
//! asks for the rest.

use super::memory::Decision;
use super::{Coordinator, MemberState};
use crate::message::{Control, Drain, Order, Refusal, Report};
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use holdfast_wire::fault::{Fault, is_planted};

/// The progress of a drain.
#[derive(Debug)]
pub(super) struct Draining {
    peer: Peer,
    request: Option<u32>,
    moved: u64,
    /// The latest request is done; the next report tells how many flows are left.
    awaits_report: bool,
    /// The time since which the runtime has been empty.
    empty_since: Option<u64>,
}

/// A runtime ends when it has been empty for so long, ns: a packet that was under way
/// when its route was made has arrived by then.
const EMPTY_FOR: u64 = 200_000_000;

impl Coordinator {
    /// Carries out an operator's order. Returns the number of the resulting request, or 0
    /// if there is none.
    ///
    /// # Errors
    /// The reason why it is not carried out.
    pub fn order(&mut self, order: &Order, now: u64) -> Result<u32, Refusal> {
        match order {
            Order::Move { from, to, limit, selector } => {
                self.request_move(*from, *to, *limit, selector)
            }
            Order::Drain { node, force } => self.drain(*node, *force, now).map(|()| 0),
            Order::Restore(node) => self.bring_back(*node, now).map(|()| 0),
        }
    }

    pub(super) fn request_move(
        &mut self,
        from: NodeId,
        to: Option<NodeId>,
        limit: u64,
        selector: &str,
    ) -> Result<u32, Refusal> {
        let member_at = |node: NodeId| {
            self.memory.places.iter().map(|place| place.member).find(|member| member.node == node)
        };
        let Some(source) = member_at(from)
            .filter(|member| self.memory.serving().any(|peer| peer == member.peer()))
        else {
            return Err(Refusal::NotServing(from));
        };
        let cluster = source.cluster;
        if to == Some(from) {
            return Err(Refusal::Same);
        }
        if let Some(to) =
            to.filter(|to| member_at(*to).is_some_and(|member| member.cluster != cluster))
        {
            return Err(Refusal::OtherCluster(to));
        }
        let others = self
            .memory
            .running_in(cluster)
            .filter(|peer| peer.node != from && to.is_none_or(|to| to == peer.node));
        let targets: Vec<(NodeId, u32)> =
            others.map(|peer| (peer.node, peer.incarnation)).collect();
        if targets.is_empty() {
            return Err(to.map_or(Refusal::NobodyElse, Refusal::NotServing));
        }
        let request = self.next_request;
        self.next_request += 1;
        let order = Control::Migrate { request, targets, limit, selector: selector.to_owned() };
        self.record(Decision::Asked { of: source.peer(), order });
        Ok(request)
    }

    fn drain(&mut self, node: NodeId, force: bool, now: u64) -> Result<(), Refusal> {
        let at = self
            .memory
            .places
            .iter()
            .position(|place| place.member.node == node)
            .ok_or(Refusal::NotServing(node))?;
        match self.memory.places[at].member.state {
            MemberState::Leaving => return Err(Refusal::Leaving),
            MemberState::Running => {}
            _ => return Err(Refusal::NotServing(node)),
        }
        let cluster = self.memory.places[at].member.cluster;
        let promises =
            self.config.clusters.get(usize::from(cluster)).is_some_and(|cluster| cluster.promises);
        match self.memory.running_in(cluster).count() {
            0 | 1 => return Err(Refusal::NobodyElse),
            2 if promises && !force => return Err(Refusal::Unsafe(node)),
            _ => {}
        }
        let (peer, had) = (self.memory.places[at].member.peer(), self.hearings[at].report.flows);
        self.record(Decision::Leaves { peer, at: now, had, becomes_spare: false });
        self.push_view();
        self.go_on_draining(now);
        Ok(())
    }

    /// Drains so far, latest last.
    pub fn drains(&self) -> &[Drain] {
        &self.memory.drains
    }

    fn bring_back(&mut self, node: NodeId, now: u64) -> Result<(), Refusal> {
        let is_out = self.memory.places.iter().any(|place| {
            place.member.node == node
                && place.is_drained
                && place.member.state == MemberState::Failed
        });
        if !is_out {
            return Err(Refusal::NotDrained(node));
        }
        self.record(Decision::Restored { node, at: now });
        Ok(())
    }

    pub(super) fn handle_migrated(&mut self, from: Peer, request: u32, moved: u64, last: bool) {
        self.relieved(from, request, moved, last);
        let is_its =
            |draining: &&mut Draining| draining.peer == from && draining.request == Some(request);
        let Some(draining) = self.draining.iter_mut().find(is_its) else { return };
        let flows = moved.saturating_sub(core::mem::replace(&mut draining.moved, moved));
        if last {
            (draining.request, draining.moved, draining.awaits_report) = (None, 0, true);
        }
        if flows > 0 {
            self.record(Decision::Moved { peer: from, flows });
        }
    }

    /// A report has come from a runtime, which may be leaving.
    pub(super) fn handle_report(&mut self, from: Peer) {
        if let Some(draining) = self.draining.iter_mut().find(|draining| draining.peer == from) {
            draining.awaits_report = false;
        }
    }

    /// Does the next step of each drain.
    pub(super) fn go_on_draining(&mut self, now: u64) {
        let open: Vec<Peer> = self
            .memory
            .drains
            .iter()
            .filter(|drain| drain.ended_at.is_none())
            .map(|drain| drain.peer)
            .collect();
        self.draining.retain(|draining| open.contains(&draining.peer));
        for peer in open {
            let Some(at) = self.at(peer) else { continue };
            let which = match self.draining.iter().position(|draining| draining.peer == peer) {
                Some(which) => which,
                None => {
                    self.draining.push(Draining {
                        peer,
                        request: None,
                        moved: 0,
                        awaits_report: false,
                        empty_since: None,
                    });
                    self.draining.len() - 1
                }
            };
            let (view, cluster) = (self.memory.view, self.memory.places[at].member.cluster);
            let report = &self.hearings[at].report;
            let waits =
                self.draining[which].request.is_some() || self.draining[which].awaits_report;
            if waits || report.view < view || report.held > 0 {
                continue;
            }
            if report.flows > 0 {
                self.draining[which].empty_since = None;
                self.draining[which].request =
                    self.request_move(peer.node, None, u64::MAX, "any").ok();
                continue;
            }
            // Flows are on their way for another request, an operator's or an earlier
            // incarnation's: no request of this drain tells when they have arrived.
            if report.departed > 0 && !is_planted(Fault::EndsDrainEarly) {
                self.draining[which].empty_since = None;
                continue;
            }
            // No replica is left here once the others know that this runtime leaves, and
            // have filled other replicas.
            let others = self
                .memory
                .places
                .iter()
                .zip(&self.hearings)
                .filter(|(place, _)| place.member.cluster == cluster);
            let others = others
                .filter(|(place, _)| place.member.state == MemberState::Running)
                .map(|(_, hearing)| &hearing.report);
            let is_settled = |report: &Report| {
                report.view >= view && !report.resynchronising && report.unprotected == 0
            };
            let are_settled = others.clone().all(is_settled);
            let is_calm = self.failovers().all(|failover| failover.recovered_at.is_some());
            // A single other runtime has no place for replicas, so there is nothing to
            // wait for.
            if !is_calm || !are_settled && others.count() > 1 {
                continue;
            }
            let since = *self.draining[which].empty_since.get_or_insert(now);
            if now.saturating_sub(since) >= EMPTY_FOR {
                self.record(Decision::Drained { peer, at: now });
                self.stop(peer);
            }
        }
    }

    fn stop(&mut self, Peer { node, incarnation }: Peer) {
        self.pending.push((self.manager_for(node), Control::Stop { node, incarnation }));
    }

    /// A new incarnation stops drained runtimes again: they may not have been stopped.
    pub(super) fn stop_again(&mut self) {
        let ended = self
            .memory
            .drains
            .iter()
            .filter(|drain| drain.ended_at.is_some())
            .map(|drain| drain.peer);
        for peer in ended.collect::<Vec<_>>() {
            if self.memory.serving().any(|serving| serving == peer) {
                self.stop(peer);
            }
        }
    }
}
