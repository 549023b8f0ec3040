//! The manager's part of the protocol with the coordinator: processes that started and
//! ended, and the state of the box for operators.
//!
//! Theory of operation. The coordinator decides, the manager has the processes. The
//! manager is asked to start and to fence processes, reports the outcome, and keeps its
//! reports: a new incarnation of the coordinator asks for them again. Runtimes' reports
//! and the coordinator's last word on the state of the box are kept too, so that
//! operators get answers while there is no coordinator.
//!
//! Managers of several hosts also tell each other which runtimes have ended: new flows
//! must not go to dead runtimes, with a coordinator or without.
//!
//! In: messages, the driver's news of processes. Out: messages, [`HostOrder`]es. Never: a
//! decision about a runtime.

mod hosts;
mod known;
mod lists;
mod logged;
mod orders;
mod ranks;

pub use orders::Move;
pub use ranks::RankParts;

use crate::channel::{Fabric, FabricConfig};
use crate::message::{
    Control, Drain, Failover, LastWord, Listing, Logged, MemberState, Notice, Report, Sealing,
    Standing, TraceStep, kind,
};
use crate::quorum::Quorum;
use crate::totals::Totals;
use holdfast_protection::Peer;
use holdfast_wire::{DropCounters, DropReason, NodeId};
use lists::Lists;
use logged::LoggedPackets;
use orders::{Ticket, Wanted};
use ranks::Rounds;
use std::collections::VecDeque;

/// An order to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostOrder {
    /// Start a runtime's process.
    Start(Peer),
    /// Accept nothing more from this incarnation.
    Fence(Peer),
    /// End the process: the runtime has nothing left to do.
    Stop(Peer),
    /// Serve the ports of this switch, counted from 0, in this term: begin its next
    /// incarnation, see [`Hub::begin`](crate::hub::Hub::begin).
    Serve(u16, u32),
    /// Stop serving this switch's ports: see [`Hub::retire`](crate::hub::Hub::retire).
    Retire(u16),
}

/// Ends of runtimes that are told again to a coordinator that was away.
pub const ENDS_KEPT: usize = 64;
/// Failovers that are kept for `status`.
const FAILOVERS_KEPT: usize = 64;
/// Requests to move and drains that are remembered.
const MOVES_KEPT: usize = 64;
/// Interval between reports on full rings, ns.
const CROWDED_INTERVAL: u64 = 100_000_000;
/// Interval between batches of rules, ns.
const RULES_INTERVAL: u64 = 1_000_000;
/// Beats are not queued behind more bytes than this: an old beat is useless.
const BEAT_BACKLOG: usize = 1024;

/// A runtime that has ended.
#[derive(Clone)]
struct End {
    peer: Peer,
    /// The flows that its switches sent there, as in [`Control::Ended`].
    flows: Option<u64>,
    last: Option<u64>,
    notice: Notice,
}

impl End {
    fn said(&self) -> Control {
        let End { peer: Peer { node, incarnation }, flows, last, ref notice } = *self;
        Control::Ended { node, incarnation, flows, last, notice: notice.clone() }
    }
}

/// See the module.
pub struct Manager {
    fabric: Fabric,
    /// Runtimes that were started, and have neither ended nor been fenced.
    present: Vec<Peer>,
    ended: VecDeque<End>,
    /// Last words of the runtimes of this host that have not ended.
    last_words: Vec<(Peer, LastWord)>,
    /// Notices of runtimes whose end is about to be told.
    noticed: Vec<(Peer, Notice)>,
    has_heard: bool,
    now: u64,
    standing: Option<Standing>,
    reports: Vec<(Peer, Report)>,
    /// The state server's last report on its lists.
    listings: Vec<Listing>,
    /// The totals of each of its lists of statistics, from the first number to the last
    /// that was told.
    totals: Totals,
    /// Totals by runtime, for statistics that no server adds up.
    counted: Vec<(Peer, Totals)>,
    failovers: Vec<Failover>,
    drains: Vec<Drain>,
    moves: Vec<Move>,
    tickets: Vec<Ticket>,
    next_ticket: u32,
    /// Rules that an operator wants.
    rules: Option<Wanted>,
    lists: Lists,
    rounds: Rounds,
    orders: Vec<HostOrder>,
    drops: DropCounters,
    /// By runtime, frames that found its ring full, and how many of them the coordinator
    /// has heard of.
    crowded: Vec<(Peer, u64, u64)>,
    told_crowded_at: u64,
    /// With several hosts: which are there, and which ports this host serves.
    quorum: Option<Quorum>,
    /// The time at which the coordinator was last heard.
    coordinator_at: Option<u64>,
    /// Runtimes of other hosts that may speak, if that has changed.
    admitted: Option<Vec<Peer>>,
    /// A beat has gone out since the hub's last look.
    has_beaten: bool,
    /// Announcements of other hosts' seals.
    sealings: Vec<(Peer, Sealing)>,
    /// Steps of traced packets.
    pub traces: Vec<TraceStep>,
    /// Packets that functions have logged, until the operator reads them.
    logged: LoggedPackets,
    /// Runtimes that do not stand still.
    alive: Vec<Peer>,
    /// Runtimes that have ended on other hosts, as these say.
    ended_elsewhere: Vec<Peer>,
    /// See [`Manager::take_longest`].
    longest_us: u32,
}

impl Manager {
    /// A manager that has started no process.
    pub fn new(me: Peer, fabric: FabricConfig) -> Manager {
        Manager {
            fabric: Fabric::new(me, fabric),
            present: Vec::new(),
            ended: VecDeque::new(),
            last_words: Vec::new(),
            noticed: Vec::new(),
            has_heard: false,
            now: 0,
            standing: None,
            reports: Vec::new(),
            listings: Vec::new(),
            totals: Totals::default(),
            counted: Vec::new(),
            failovers: Vec::new(),
            drains: Vec::new(),
            moves: Vec::new(),
            tickets: Vec::new(),
            next_ticket: 1,
            rules: None,
            lists: Lists::default(),
            rounds: Rounds::default(),
            orders: Vec::new(),
            drops: DropCounters::default(),
            crowded: Vec::new(),
            told_crowded_at: 0,
            quorum: None,
            coordinator_at: None,
            admitted: None,
            has_beaten: false,
            sealings: Vec::new(),
            traces: Vec::new(),
            logged: LoggedPackets::default(),
            alive: Vec::new(),
            ended_elsewhere: Vec::new(),
            longest_us: 0,
        }
    }

    /// True if the manager has reported this end.
    pub(crate) fn has_ended(&self, peer: Peer) -> bool {
        self.ended.iter().any(|end| end.peer == peer)
    }

    /// The incarnation of the coordinator that was heard last, or will be.
    pub fn coordinator(&self) -> Option<Peer> {
        self.fabric.peer(NodeId::COORDINATOR)
    }

    /// The runtimes of other hosts that may speak, if that has changed.
    pub(crate) fn take_admitted(&mut self) -> Option<Vec<Peer>> {
        self.admitted.take()
    }

    /// The time at which [`Manager::handle_records`] is due without input.
    pub fn poll_timeout(&self) -> u64 {
        let resync =
            self.rules.as_ref().filter(|wanted| wanted.told < wanted.records.records().len());
        let resync = resync.map_or(u64::MAX, |_| self.now + RULES_INTERVAL);
        self.quorum.as_ref().map_or(u64::MAX, Quorum::poll_timeout).min(resync)
    }

    /// The endpoint, for the hub that carries its frames.
    pub fn fabric(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// Drops by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// Begins the incarnation after another one, in which these processes were found. The
    /// coordinator and the runtimes learn of it. Runtimes that ended before, with their
    /// last words, are reported again: the earlier incarnation's reports may be lost.
    pub fn succeed(&mut self, found: &[Peer], ended: &[(Peer, Option<u64>)]) {
        self.present = found.to_vec();
        self.has_heard = true;
        for &(peer, last) in ended {
            self.keep_end(End { peer, flows: None, last, notice: Notice::default() });
        }
        // Ends go before `Present`: the coordinator gives up every runtime that is not
        // present, without a count.
        for end in &self.ended {
            self.fabric.send_control(NodeId::COORDINATOR, &end.said());
        }
        self.fabric.send_control(NodeId::COORDINATOR, &Control::Present { peers: found.to_vec() });
        for peer in found {
            self.fabric.set_peer(*peer);
            self.fabric.send_control(peer.node, &Control::Account { handled: 0 });
        }
    }

    /// Once the coordinator has told the state of the box: calls `open` with every found
    /// process that it knows, and returns the others. `None` before.
    pub(crate) fn sort_found(&self, open: impl FnMut(Peer)) -> Option<Vec<Peer>> {
        let standing = self.standing.as_ref()?;
        let is_known = |peer: &Peer| {
            standing
                .members
                .iter()
                .any(|member| member.peer() == *peer && member.state != MemberState::Failed)
        };
        let (known, strangers): (Vec<Peer>, Vec<Peer>) =
            self.present.iter().copied().partition(is_known);
        known.into_iter().for_each(open);
        Some(strangers)
    }

    /// Orders to the host, in their order.
    pub fn poll_orders(&mut self) -> impl Iterator<Item = HostOrder> + '_ {
        self.orders.drain(..)
    }

    /// A runtime's process was started.
    pub fn handle_started(&mut self, peer: Peer) {
        self.fabric.set_peer(peer);
        let Peer { node, incarnation } = peer;
        self.fabric.send_control(NodeId::COORDINATOR, &Control::Started { node, incarnation });
    }

    /// The location of a runtime's last word, on this host.
    pub fn hear_last_word(&mut self, peer: Peer, word: LastWord) {
        self.last_words.push((peer, word));
    }

    /// Flows of a runtime by its last word, or by its last report if it ran on another
    /// host.
    fn last_of(&self, peer: Peer) -> Option<u64> {
        let word = self.last_words.iter().find(|(known, _)| *known == peer);
        let report = || self.reports.iter().find(|(known, _)| *known == peer);
        word.map_or_else(|| report().map(|(_, report)| report.flows), |(_, word)| word.heard())
    }

    fn keep_end(&mut self, end: End) {
        if self.ended.len() == ENDS_KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(end);
    }

    /// Notes how a runtime ended, before [`Manager::handle_ended`].
    pub fn note_end(&mut self, peer: Peer, notice: Notice) {
        self.noticed.push((peer, notice));
    }

    /// A runtime has ended, was fenced, or could not be started: nothing more of it is
    /// let out. `flows` is how many the switch sent there, if it knows.
    pub fn handle_ended(&mut self, peer: Peer, flows: Option<u64>) {
        let noticed = self.noticed.iter().position(|(noticed, _)| *noticed == peer);
        let notice = noticed.map_or_else(Notice::default, |at| self.noticed.swap_remove(at).1);
        if self.has_ended(peer) {
            return;
        }
        for order in
            self.moves.iter_mut().filter(|order| order.from == peer && order.ended_at.is_none())
        {
            (order.ended_at, order.failed) = (Some(self.now), true);
        }
        self.present.retain(|present| *present != peer);
        self.lists.handle_ended(peer);
        self.rounds.handle_ended(peer);
        let end = End { peer, flows, last: self.last_of(peer), notice };
        self.last_words.retain(|(known, _)| *known != peer);
        let ended = end.said();
        self.keep_end(end);
        self.fabric.send_control(NodeId::COORDINATOR, &ended);
        // The serving host must know the end even while there is no coordinator.
        for other in self.quorum.iter().flat_map(Quorum::others).map(NodeId::manager) {
            if self.fabric.backlog(other) < BEAT_BACKLOG {
                self.fabric.send_control(other, &ended);
            }
        }
    }

    /// Counts a frame that found the ring of a runtime full.
    #[inline]
    pub fn count_refused(&mut self, peer: Peer) {
        match self.crowded.iter_mut().find(|(known, ..)| *known == peer) {
            Some((_, count, _)) => *count += 1,
            None => self.crowded.push((peer, 1, 0)),
        }
    }

    fn tell_crowded(&mut self) {
        if self.now.saturating_sub(self.told_crowded_at) < CROWDED_INTERVAL
            || self.crowded.iter().all(|(_, now, told)| now == told)
        {
            return;
        }
        self.told_crowded_at = self.now;
        let present = &self.present;
        self.crowded.retain(|(peer, ..)| present.contains(peer));
        let refused: Vec<(Peer, u64)> =
            self.crowded.iter().map(|&(peer, count, _)| (peer, count)).collect();
        if self.fabric.send_control(NodeId::COORDINATOR, &Control::Crowded { refused }) {
            self.crowded.iter_mut().for_each(|(_, count, told)| *told = *count);
        }
    }

    /// Sets the runtimes of this host whose loops turn, or would if they had a processor.
    /// To be called before [`Manager::handle_records`]. All others may stand still.
    pub fn set_alive(&mut self, alive: impl Iterator<Item = Peer>) {
        self.alive.clear();
        self.alive.extend(alive);
    }

    /// The runtimes that were started and may speak.
    pub fn present(&self) -> &[Peer] {
        &self.present
    }

    /// True if a coordinator has ever spoken: then it has a log.
    pub fn has_heard(&self) -> bool {
        self.has_heard
    }

    /// Acts on the messages that have arrived.
    pub fn handle_records(&mut self, now: u64) {
        self.now = now;
        self.tell_crowded();
        let inbox = core::mem::take(&mut self.fabric.inbox);
        if inbox.restarted.iter().any(|peer| peer.node == NodeId::COORDINATOR) {
            // The earlier coordinator may have been on another host, and no notice of its
            // end may come.
            let known = self.coordinator();
            self.tickets.iter_mut().filter(|ticket| ticket.asked != known).for_each(Ticket::refuse);
            // The coordinator's new incarnation has none of the records that the earlier
            // one was sent, and asks for all.
            if let Some(wanted) = &mut self.rules {
                wanted.told = wanted.records.records().len();
            }
        }
        for (record, body) in inbox.records() {
            let taken = match record.kind {
                kind::FLOWS => Some(self.lists.handle_record(record.from, body)),
                kind::RANKS => Some(self.rounds.handle_record(record.from, body)),
                _ => None,
            };
            if let Some(taken) = taken {
                if let Err(reason) = taken {
                    self.drops.count(reason);
                }
                continue;
            }
            let message = if record.kind == kind::CONTROL {
                Control::decode(body)
            } else {
                Err(DropReason::Malformed)
            };
            match message {
                Ok(message) if record.from.node == NodeId::COORDINATOR => {
                    self.handle_coordinator(message)
                }
                Ok(Control::Beat(beat)) => {
                    let host = record.from.node.host();
                    let heard = host.and_then(|host| {
                        self.quorum.as_mut().map(|quorum| quorum.handle_beat(host, &beat, now))
                    });
                    self.change(heard.into_iter().flatten());
                }
                Ok(Control::Sealing(sealing)) if record.from.node.host().is_some() => {
                    self.sealings.push((record.from, sealing))
                }
                Ok(Control::Ended { node, incarnation, .. })
                    if record.from.node.host().is_some() =>
                {
                    self.ended_elsewhere.push(Peer { node, incarnation });
                }
                Ok(message) => self.handle_runtime(record.from, message),
                Err(reason) => self.drops.count(reason),
            }
        }
        self.fabric.inbox = inbox;
        self.fabric.inbox.clear();
        self.tell_rules();
        self.keep_quorum(now);
    }

    fn handle_coordinator(&mut self, message: Control) {
        self.has_heard = true;
        self.coordinator_at = Some(self.now);
        match message {
            Control::Start { node, incarnation } => {
                let peer = Peer { node, incarnation };
                let is_known = self.present.contains(&peer) || self.has_ended(peer);
                if !is_known {
                    self.present.push(peer);
                    self.orders.push(HostOrder::Start(peer));
                }
            }
            Control::Silent { node, incarnation }
                if self.alive.contains(&Peer { node, incarnation }) =>
            {
                self.fabric
                    .send_control(NodeId::COORDINATOR, &Control::Alive { node, incarnation });
            }
            Control::Fence { node, incarnation } | Control::Silent { node, incarnation } => {
                let peer = Peer { node, incarnation };
                match self.ended.iter().find(|end| end.peer == peer) {
                    Some(end) => {
                        self.fabric.send_control(NodeId::COORDINATOR, &end.said());
                    }
                    None => self.orders.push(HostOrder::Fence(peer)),
                }
            }
            Control::Account { .. } => {
                for end in &self.ended {
                    self.fabric.send_control(NodeId::COORDINATOR, &end.said());
                }
                self.fabric.send_control(
                    NodeId::COORDINATOR,
                    &Control::Present { peers: self.present.clone() },
                );
                if let Some(wanted) = &mut self.rules {
                    wanted.told = 0;
                }
            }
            Control::Serve { switch, host, term, manager_incarnation } => {
                let me = self.fabric.me();
                let is_meant =
                    NodeId::manager(host) == me.node && manager_incarnation == me.incarnation;
                let change = self
                    .quorum
                    .as_mut()
                    .and_then(|quorum| quorum.handle_term(switch, is_meant, term));
                self.change(change);
            }
            Control::Admit { peers } => self.admitted = Some(peers),
            Control::Stop { node, incarnation } => {
                self.orders.push(HostOrder::Stop(Peer { node, incarnation }))
            }
            Control::Answer { ticket, result } => {
                let Some(known) = self.tickets.iter_mut().find(|known| known.number == ticket)
                else {
                    return;
                };
                known.answer = Some(result);
                let from = known
                    .from
                    .and_then(|node| self.present.iter().copied().find(|peer| peer.node == node));
                if let (Ok(request), Some(from)) = (result, from) {
                    self.moving_mut(request, from);
                }
            }
            Control::Draining(drain) => {
                match self.drains.iter_mut().find(|known| known.peer == drain.peer) {
                    Some(known) => *known = drain,
                    None => self.drains.push(drain),
                }
                // A drain is needed while it is not over: there are no more of those than
                // runtimes.
                if self.drains.len() > MOVES_KEPT
                    && let Some(over) =
                        self.drains.iter().position(|drain| drain.ended_at.is_some())
                {
                    self.drains.remove(over);
                }
            }
            Control::Standing(standing) => {
                let is_member =
                    |peer: &Peer| standing.members.iter().any(|member| member.peer() == *peer);
                self.reports.retain(|(peer, _)| is_member(peer));
                self.counted.retain(|(peer, _)| is_member(peer));
                self.standing = Some(standing);
            }
            Control::Failover(failover) => {
                match self.failovers.iter_mut().find(|known| known.dead == failover.dead) {
                    Some(known) => *known = failover,
                    None => self.failovers.push(failover),
                }
                if self.failovers.len() > FAILOVERS_KEPT {
                    self.failovers.remove(0);
                }
            }
            _ => self.drops.count(DropReason::Malformed),
        }
    }

    fn handle_runtime(&mut self, from: Peer, message: Control) {
        match message {
            Control::Report(report) => {
                self.longest_us = self.longest_us.max(report.longest_us);
                match self.reports.iter_mut().find(|(peer, _)| peer.node == from.node) {
                    Some(known) => *known = (from, report),
                    None => self.reports.push((from, report)),
                }
            }
            Control::Lists(lists) if from.node == NodeId::STATE_SERVER => self.listings = lists,
            Control::Totals { statistic, first, values } => {
                self.totals_of(from).take(statistic as usize, first as usize, &values);
            }
            Control::Trace(steps) => self.traces.extend(steps),
            Control::Logged(packets) => self.logged.handle(packets),
            Control::Migrated { request, moved, refused, last } => {
                let now = self.now;
                let order = self.moving_mut(request, from);
                (order.moved, order.refused) = (moved, refused);
                if last {
                    order.ended_at.get_or_insert(now);
                }
            }
            _ => self.drops.count(DropReason::Malformed),
        }
    }

    /// Packets that functions have logged since the last call.
    pub fn take_logged(&mut self) -> Vec<Logged> {
        self.logged.take()
    }

    /// The manager's node.
    pub fn node(&self) -> NodeId {
        self.fabric.me().node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;
    use holdfast_wire::NodeId;

    /// A runtime died before this incarnation of the manager, one dies in it, and one on
    /// another host. The coordinator hears the last word of each. For the first, it hears
    /// it before it hears which processes exist.
    #[test]
    fn what_the_dead_said_last_is_told() {
        static WORD: AtomicU64 = AtomicU64::new(0);
        let [buried, here, elsewhere, silent] =
            [16, 17, 18, 19].map(|node| Peer { node: NodeId::new(node), incarnation: 1 });
        let coordinator = Peer { node: NodeId::COORDINATOR, incarnation: 1 };
        let mut manager =
            Manager::new(Peer { node: NodeId::MANAGER, incarnation: 2 }, FabricConfig::default());
        manager.fabric().set_peer(coordinator);
        let word = LastWord::new(&WORD);
        word.say(5);
        manager.hear_last_word(here, word);
        manager.succeed(&[here], &[(buried, Some(9))]);
        manager.handle_runtime(here, Control::Report(Report { flows: 3, ..Report::default() }));
        manager
            .handle_runtime(elsewhere, Control::Report(Report { flows: 4, ..Report::default() }));
        word.say(6);
        for (peer, flows) in [(here, None), (elsewhere, Some(2)), (silent, None)] {
            manager.handle_ended(peer, flows);
        }
        let mut heard = Fabric::new(coordinator, FabricConfig::default());
        heard.set_peer(Peer { node: NodeId::MANAGER, incarnation: 2 });
        manager.fabric().poll_transmit(1, |frame| {
            // Frames for runtimes are refused here.
            let _ = heard.handle_frame(frame, 1);
            true
        });
        let ended = |Peer { node, incarnation }: Peer, flows, last| Control::Ended {
            node,
            incarnation,
            flows,
            last,
            notice: Notice::default(),
        };
        let told: Vec<Control> =
            heard.inbox.records().filter_map(|(_, body)| Control::decode(body).ok()).collect();
        let present = Control::Present { peers: vec![here] };
        let ends = [
            ended(here, None, Some(6)),
            ended(elsewhere, Some(2), Some(4)),
            ended(silent, None, None),
        ];
        assert_eq!(told, [vec![ended(buried, None, Some(9)), present], ends.to_vec()].concat());
    }

    /// More drains are over than are remembered, while the first of them is not.
    #[test]
    fn a_drain_that_is_not_over_is_not_forgotten() {
        let mut manager =
            Manager::new(Peer { node: NodeId::MANAGER, incarnation: 1 }, FabricConfig::default());
        let last = MOVES_KEPT as u32 + 9;
        for incarnation in 1..=last {
            let ended_at = (incarnation > 1).then_some(2);
            let peer = Peer { node: NodeId::new(16), incarnation };
            manager.handle_coordinator(Control::Draining(Drain {
                peer,
                began_at: 1,
                had: 1,
                moved: 0,
                ended_at,
                failed: false,
            }));
        }
        let known: Vec<u32> = manager.drains().iter().map(|drain| drain.peer.incarnation).collect();
        let latest = last + 2 - MOVES_KEPT as u32..=last;
        assert_eq!(known, [1].into_iter().chain(latest).collect::<Vec<_>>());
    }

    /// Counts are kept per incarnation of a runtime: the next one has none before it has
    /// told some.
    #[test]
    fn what_runtimes_have_counted_is_known_by_incarnation() {
        let mut manager =
            Manager::new(Peer { node: NodeId::MANAGER, incarnation: 1 }, FabricConfig::default());
        let [one, other, next] = [(16, 1), (17, 2), (16, 3)]
            .map(|(node, incarnation)| Peer { node: NodeId::new(node), incarnation });
        let say = |manager: &mut Manager, from: Peer, values: &[i64]| {
            manager.handle_runtime(
                from,
                Control::Totals { statistic: 0, first: 0, values: values.to_vec() },
            );
        };
        say(&mut manager, one, &[1, 2]);
        say(&mut manager, other, &[3]);
        assert_eq!(
            [one, other, next].map(|peer| manager.counted(peer, 0).to_vec()),
            [vec![1, 2], vec![3], vec![]]
        );
        say(&mut manager, next, &[9]);
        assert_eq!(
            [one, other, next].map(|peer| manager.counted(peer, 0).to_vec()),
            [vec![], vec![3], vec![9]]
        );
        assert!(manager.totals(0).is_empty(), "nobody adds anything up");
    }
}
