//! A runtime's reports to the coordinator and the managers: safety, counters, lines for
//! the operator's log, steps of traced packets.

use super::Runtime;
use super::served::Served;
use crate::message::{Control, Report, Share};
use holdfast_wire::NodeId;

/// Notes of functions in a message.
const NOTES_PER_MESSAGE: usize = 16;
/// Bytes of unsent messages to a receiver, beyond which no report is added to them.
const REPORT_BACKLOG: usize = 16 * 1024;
/// Bytes of unsent messages to the manager, beyond which notes are lost: some hundred of
/// the longest texts.
const NOTES_BACKLOG: usize = 256 * 1024;

impl Runtime {
    /// The last incarnations heard of each switch whose log flows here need, and of the
    /// state servers if flows have their home there.
    fn needed_logs(&self) -> Vec<(NodeId, u32)> {
        let needs =
            |at: usize| self.lanes.iter().any(|lane| lane.side == at && lane.plan.has_log());
        let sides = self.shared.sides.iter().enumerate().filter(|(at, _)| needs(*at));
        let homes =
            self.served.iter().flat_map(Served::homes).map(|home| (home.node, home.incarnation));
        sides.filter_map(|(_, side)| Some((side.switch, side.heard?.into()))).chain(homes).collect()
    }

    /// True if every flow that is promised to survive would survive the end of this
    /// runtime, as far as the runtime knows.
    pub(super) fn is_settled(&self) -> bool {
        self.lanes.iter().all(|lane| {
            let safety = lane.protection.safety(&lane.flows);
            !lane.plan.promises()
                || safety.unprotected == 0 && !safety.resynchronising && lane.replays.is_empty()
        })
    }

    /// Sends what functions have noted to the manager of this host, ahead of all other
    /// messages: a state that goes first, and a death behind it, would leave a note that
    /// nobody makes again.
    pub(super) fn send_notes(&mut self) {
        let mut notes = Vec::new();
        self.lanes.iter_mut().for_each(|lane| lane.take_notes(&mut notes));
        let Some(first) = notes.first_mut() else { return };
        first.missed += core::mem::take(&mut self.lost_notes);
        let manager = NodeId::manager(self.my_host.unwrap_or(0));
        while !notes.is_empty() {
            let chunk: Vec<_> = notes.drain(..notes.len().min(NOTES_PER_MESSAGE)).collect();
            let count: u64 = chunk.iter().map(|note| note.missed + 1).sum();
            let has_room = self.fabric.backlog(manager) < NOTES_BACKLOG;
            if !has_room || !self.fabric.send_control(manager, &Control::Logged(chunk)) {
                self.lost_notes += count;
            }
        }
        self.fabric.put_first(manager);
    }

    /// Reports when it is time, and at once when the flows' safety has changed, because
    /// no receiver may call them safe meanwhile.
    pub(super) fn report(&mut self, clock: u64) {
        let is_settled = self.is_settled();
        if clock < self.next_report && is_settled == self.was_settled {
            return;
        }
        let is_news = core::mem::replace(&mut self.was_settled, is_settled) != is_settled;
        self.next_report = clock + self.config.report_interval;
        let mut report = Report {
            packets: self.packets,
            flows: self.owned(),
            view: self.view,
            departed: self.migrations.departed(&self.lanes),
            busy_permille: (self.busy_time * 1000 / self.time.max(1)) as u16,
            released_unprotected: self.released_unprotected,
            forgotten: self.shared.forgotten,
            fill: self.lanes.iter().map(|lane| lane.fill() as u16).max().unwrap_or(0),
            logs: self.needed_logs(),
            longest_us: core::mem::take(&mut self.longest_us),
            drops: self.shared.drops.iter().map(|(reason, count)| (reason as u8, count)).collect(),
            ..Report::default()
        };
        (self.busy_time, self.time) = (0, 0);
        self.visit_pools(|id, pool| {
            let pool = pool.backend();
            report.pools.push((id, Share { held: pool.held(), at_hand: pool.available() }));
        });
        for lane in &self.lanes {
            let safety = lane.protection.safety(&lane.flows);
            report.replicas += (lane.flows.len() - lane.flows.owned()) as u64;
            report.held +=
                (lane.protection.held() + lane.parking.len() + lane.parking.outside()) as u64;
            report.differed += safety.differed;
            report.absent += safety.absent;
            report.fetched += safety.fetched;
            if lane.plan.promises() {
                report.unprotected += safety.unprotected;
                report.resynchronising |= safety.resynchronising || !lane.replays.is_empty();
            }
        }
        let report = Control::Report(report);
        for node in self.listeners.iter().copied() {
            // While old messages to a listener that is away are unsent, no new report is
            // added: the listener asks when it is back.
            if is_news || self.fabric.backlog(node) < REPORT_BACKLOG {
                self.fabric.send_control(node, &report);
            }
        }
        let managers =
            || self.listeners.iter().copied().filter(|node| *node != NodeId::COORDINATOR);
        self.counted.tell(&mut self.lanes, clock, |message| {
            let there: Vec<NodeId> =
                managers().filter(|node| self.fabric.backlog(*node) < REPORT_BACKLOG).collect();
            there.into_iter().filter(|node| !self.fabric.send_control(*node, message)).count() == 0
        });
        self.send_notes();
        if !self.shared.traces.is_empty() {
            let steps = core::mem::take(&mut self.shared.traces);
            for chunk in steps.chunks(8) {
                for manager in self.listeners.iter().filter(|node| **node != NodeId::COORDINATOR) {
                    self.fabric.send_control(*manager, &Control::Trace(chunk.to_vec()));
                }
            }
        }
    }
}
