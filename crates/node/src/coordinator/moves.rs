//! Flows that are to move, by order: who said so, and how far it is.
//!
//! The coordinator only says where flows shall go; runtimes and switch move them (NFVactor, section VI-B). A *drain* moves every flow of a runtime away
//! while no new one comes, waits until nobody's replica is there either, and ends its process. A runtime that fails meanwhile is recovered as ever.

use super::{Coordinator, MemberState, Wish};
use crate::address::NodeId;
use crate::message::Control;
use holdfast_protection::Peer;

/// A request to move flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Its number.
    pub request: u32,
    /// Whose flows.
    pub from: Peer,
    /// When it began, ns.
    pub began_at: u64,
    /// Flows that another runtime serves now.
    pub moved: u64,
    /// Flows that nobody would have.
    pub refused: u64,
    /// When it was over, ns.
    pub ended_at: Option<u64>,
    /// The runtime failed before it was over.
    pub failed: bool,
}

/// A runtime that is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Who.
    pub peer: Peer,
    /// When it was said, ns.
    pub began_at: u64,
    /// Flows that it had then.
    pub had: u64,
    /// Flows that other runtimes serve now.
    pub moved: u64,
    /// When its process was told to end, ns.
    pub ended_at: Option<u64>,
    /// It failed before: its flows were recovered, as far as their protection promises.
    pub failed: bool,
    request: Option<u32>,
    /// Since when it has had nothing to do.
    empty_since: Option<u64>,
}

/// Why flows cannot be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such runtime, or it serves no flows.
    NotServing(NodeId),
    /// The flows are there already.
    Same,
    /// Nobody else could have them.
    NobodyElse,
    /// It is leaving already.
    Leaving,
    /// It is of another virtual cluster.
    OtherCluster(NodeId),
}

/// A runtime ends when it has been empty so long, ns: a packet that was under way when its route was made has come by then.
const EMPTY_FOR: u64 = 200_000_000;
/// Requests and drains that are remembered.
const KEPT: usize = 64;

impl Coordinator {
    /// Asks a runtime to move at most `limit` flows that the selector means to `to`, or to all others by turns.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn request_move(
        &mut self,
        from: NodeId,
        to: Option<NodeId>,
        limit: u64,
        selector: &str,
        now: u64,
    ) -> Result<u32, Refusal> {
        let is_there = |state| matches!(state, MemberState::Running | MemberState::Leaving);
        let source = self.runtimes.iter().find(|runtime| runtime.member.node == from && is_there(runtime.member.state));
        let Some((source, cluster)) = source.map(|runtime| (runtime.member.peer(), runtime.member.cluster)) else {
            return Err(Refusal::NotServing(from));
        };
        if to == Some(from) {
            return Err(Refusal::Same);
        }
        let elsewhere = |runtime: &super::Runtime| Some(runtime.member.node) == to && runtime.member.cluster != cluster;
        if let Some(to) = to.filter(|_| self.runtimes.iter().any(elsewhere)) {
            return Err(Refusal::OtherCluster(to));
        }
        let targets: Vec<(NodeId, u32)> = self
            .running_in(cluster)
            .filter(|peer| peer.node != from && to.is_none_or(|to| to == peer.node))
            .map(|peer| (peer.node, peer.incarnation))
            .collect();
        if targets.is_empty() {
            return Err(to.map_or(Refusal::NobodyElse, Refusal::NotServing));
        }
        let request = self.next_request;
        self.next_request += 1;
        self.fabric.send_control(from, &Control::Migrate { request, targets, limit, selector: selector.to_owned() });
        if self.moves.len() >= KEPT
            && let Some(done) = self.moves.iter().position(|order| order.ended_at.is_some())
        {
            self.moves.remove(done);
        }
        self.moves.push(Move { request, from: source, began_at: now, moved: 0, refused: 0, ended_at: None, failed: false });
        Ok(request)
    }

    /// Requests so far, latest last.
    pub fn moves(&self) -> impl Iterator<Item = &Move> {
        self.moves.iter()
    }

    /// How far a request is.
    pub fn moving(&self, request: u32) -> Option<&Move> {
        self.moves.iter().find(|order| order.request == request)
    }

    /// Takes a runtime out of service: it gets no new flow, those that it has move, and its process ends.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn drain(&mut self, node: NodeId, now: u64) -> Result<(), Refusal> {
        let Some(runtime) = self.runtimes.iter_mut().find(|runtime| runtime.member.node == node) else {
            return Err(Refusal::NotServing(node));
        };
        match runtime.member.state {
            MemberState::Leaving => return Err(Refusal::Leaving),
            MemberState::Running => {}
            _ => return Err(Refusal::NotServing(node)),
        }
        let (peer, had, cluster) = (runtime.member.peer(), runtime.report.flows, runtime.member.cluster);
        if self.running_in(cluster).count() < 2 {
            return Err(Refusal::NobodyElse);
        }
        if let Some(runtime) = self.at(peer) {
            runtime.member.state = MemberState::Leaving;
            runtime.is_drained = true;
        }
        self.push_view();
        if self.drains.len() >= KEPT {
            self.drains.remove(0);
        }
        self.drains.push(Drain {
            peer,
            began_at: now,
            had,
            moved: 0,
            ended_at: None,
            failed: false,
            request: None,
            empty_since: None,
        });
        self.go_on_draining(now);
        Ok(())
    }

    /// Drains so far, latest last.
    pub fn drains(&self) -> &[Drain] {
        &self.drains
    }

    /// Brings a drained runtime back into service.
    ///
    /// # Errors
    /// It is there, or there is none with this node.
    pub fn restore(&mut self, node: NodeId, now: u64) -> Result<(), Refusal> {
        let runtime = self.runtimes.iter_mut().find(|runtime| runtime.member.node == node && runtime.is_drained);
        let runtime = runtime.filter(|runtime| runtime.member.state == MemberState::Failed).ok_or(Refusal::NotServing(node))?;
        runtime.is_drained = false;
        runtime.start_at = Some(now);
        Ok(())
    }

    pub(super) fn handle_migrated(&mut self, from: Peer, request: u32, [moved, refused]: [u64; 2], last: bool, now: u64) {
        let Some(order) = self.moves.iter_mut().find(|order| order.request == request && order.from == from) else { return };
        let more = moved.saturating_sub(order.moved);
        (order.moved, order.refused) = (moved, refused);
        if last {
            order.ended_at = Some(now);
        }
        if let Some(drain) = self.drains.iter_mut().find(|drain| drain.request == Some(request)) {
            drain.moved += more;
            if last {
                drain.request = None;
            }
        }
    }

    pub(super) fn forget_moves(&mut self, dead: Peer, now: u64) {
        for order in self.moves.iter_mut().filter(|order| order.from == dead && order.ended_at.is_none()) {
            (order.ended_at, order.failed) = (Some(now), true);
        }
        for drain in self.drains.iter_mut().filter(|drain| drain.peer == dead && drain.ended_at.is_none()) {
            (drain.ended_at, drain.failed) = (Some(now), true);
        }
    }

    /// What the runtimes that are leaving have to do next.
    pub(super) fn go_on_draining(&mut self, now: u64) {
        for at in 0..self.drains.len() {
            let Drain { peer, request, ended_at, .. } = self.drains[at];
            if ended_at.is_some() || request.is_some() {
                continue;
            }
            let Some(runtime) = self.at(peer) else { continue };
            let knows_view = |report: &crate::message::Report, view| report.view >= view;
            let (flows, held, report) = (runtime.report.flows, runtime.report.held, runtime.report.clone());
            let cluster = runtime.member.cluster;
            let is_told = knows_view(&report, self.view);
            if !is_told || held > 0 {
                continue;
            }
            if flows > 0 {
                self.drains[at].empty_since = None;
                self.drains[at].request = self.request_move(peer.node, None, u64::MAX, "any", now).ok();
                continue;
            }
            // Nobody's replica is here either when the others know that this one leaves, and have filled others.
            let of_cluster = self.runtimes.iter().filter(|runtime| runtime.member.cluster == cluster);
            let others = of_cluster.filter(|runtime| runtime.member.state == MemberState::Running);
            let are_settled = others.clone().all(|runtime| {
                knows_view(&runtime.report, self.view) && !runtime.report.resynchronising && runtime.report.unprotected == 0
            });
            let is_calm = self.failovers.iter().all(|failover| failover.recovered_at.is_some());
            // With one left there is nowhere to put replicas, and nothing to wait for.
            if !is_calm || !are_settled && others.count() > 1 {
                continue;
            }
            let since = *self.drains[at].empty_since.get_or_insert(now);
            if now.saturating_sub(since) >= EMPTY_FOR {
                self.drains[at].ended_at = Some(now);
                self.wishes.push(Wish::Stop(peer));
            }
        }
    }
}
