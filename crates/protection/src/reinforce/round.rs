//! Rounds of checkpoints: copies that are behind are sent anew, and then the inputs
//! before them are no longer needed.
//!
//! In: flows with inputs since their copies. Out: their states, a few per flush. When all
//! are saved: the stamp up to which the switch may forget, and for each holder the commit
//! up to which its copies contain the inputs. Never: a packet.
//!
//! When a packet with a stamp from before the round's beginning comes late, the switch
//! might have forgotten it when it is needed. Its flow's state is therefore sent with its
//! commit.

use crate::flows::flag;
use crate::{Commit, FlowRef, Flows, NfvActor, Outbox, Peer, Plan, Slot, kind};

/// States sent per flush: so few that the batch's inputs hardly wait behind them, but
/// many if the log would otherwise fill up.
const SEND: usize = 4;
const SEND_URGENTLY: usize = 64;
/// Factor on the time between two rounds while no packet comes.
const IDLE: u64 = 16;
/// Inputs at holders that begin a round before its time. With twice as many, every state
/// goes with its commit.
const INPUTS: usize = 1 << 15;

struct Round {
    /// The copies contain all packets stamped up to here when the round is over.
    stamp: u64,
    flows: Vec<FlowRef>,
    at: usize,
    /// By holder: the last record that it was sent before the round.
    began: Vec<(Peer, Commit)>,
    /// Once all states have been sent, by holder: the record that it must have saved.
    sent: Option<Vec<(Peer, Commit)>>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Rounds {
    round: Option<Round>,
    /// Flows with inputs since their copies were sent.
    behind: Vec<FlowRef>,
    /// The last round's stamp.
    stamp: u64,
    not_before: u64,
    /// Inputs, and bytes of the log, since the last round began; and earlier inputs that
    /// may not be covered yet.
    inputs: usize,
    bytes: usize,
    before: usize,
    has_news: bool,
}

impl Rounds {
    /// Notes an input: the flow's copy is behind from now on.
    #[inline]
    pub(super) fn note_input(&mut self, flows: &mut Flows, slot: Slot) {
        self.inputs += 1;
        let header = flows.header_mut(slot);
        if header.flags & flag::BEHIND == 0 {
            header.flags |= flag::BEHIND;
            self.behind.push(header.reference(slot));
        }
    }

    /// Counts packets that have come, with their bytes. All are in the switch's log,
    /// whether the chain lets them pass or not.
    pub(super) fn note_logged(&mut self, packets: usize, bytes: usize) {
        self.bytes += bytes + packets * HEAD;
        self.has_news = true;
    }

    /// True if the packet with this stamp may soon be forgotten, or if there are too many
    /// inputs already.
    #[inline]
    pub(super) fn covers(&self, stamp: u64) -> bool {
        stamp <= self.stamp || self.inputs + self.before > 2 * INPUTS
    }

    /// The log is lost: ends the round.
    pub(super) fn forget(&mut self) {
        self.behind.clear();
        self.round = None;
        (self.inputs, self.before, self.bytes) = (0, 0, 0);
    }

    /// True if there are states to send.
    pub(super) fn is_busy(&self) -> bool {
        self.round.as_ref().is_some_and(|round| round.at < round.flows.len())
    }

    /// The batch is over: begins or continues a round.
    pub(super) fn go_on(
        &mut self,
        plan: &Plan,
        copies: &mut NfvActor,
        flows: &mut Flows,
        out: &mut Outbox,
    ) {
        let now = out.now();
        let is_urgent = self.bytes >= plan.log_bytes / 4 || self.inputs >= INPUTS;
        if self.round.is_none() {
            let idle = if self.has_news { 0 } else { IDLE * plan.checkpoint_every };
            if now < self.not_before + idle && !is_urgent {
                return;
            }
            self.has_news = false;
            self.not_before = now + plan.checkpoint_every;
            self.stamp = now;
            (self.before, self.inputs, self.bytes) = (self.inputs, 0, 0);
            let began = last_sent(copies);
            let behind = core::mem::take(&mut self.behind);
            self.round = Some(Round { stamp: now, flows: behind, at: 0, began, sent: None });
        }
        let Some(round) = &mut self.round else { return };
        let is_urgent = self.bytes >= plan.log_bytes / 4 || self.inputs >= INPUTS;
        let most = if is_urgent { SEND_URGENTLY } else { SEND };
        let mut sent = 0;
        while sent < most
            && let Some(&flow) = round.flows.get(round.at)
        {
            let header = *flows.header(flow.slot);
            if header.reference(flow.slot) == flow && header.flags & flag::BEHIND != 0 {
                match header.life() {
                    life if life.is_owned()
                        && copies.send_state(flows, flow.slot, None, out).is_err()
                        && !copies.links.is_empty() =>
                    {
                        return;
                    }
                    _ => sent += 1,
                }
            }
            round.at += 1;
        }
        if round.at < round.flows.len() {
            return;
        }
        let sent = round.sent.get_or_insert_with(|| last_sent(copies));
        // A flow whose holder is gone or leaving has another holder since, and has no
        // copy before that one has saved it.
        if sent.iter().any(|(peer, last)| is_open(copies, *peer, *last))
            || copies.is_filling() && !is_urgent
        {
            return;
        }
        for (peer, first) in &round.began {
            let Some(link) = copies.links.find(*peer).filter(|_| *first != Commit::NONE) else {
                continue;
            };
            let number = link.numbers.next();
            // If there is no room, the next round reports it.
            if out.send(*peer, kind::COVERED, &[&number.to_be_bytes(), &first.to_be_bytes()]) {
                link.numbers.last = number;
            }
        }
        out.cleared = Some(round.stamp);
        self.before = 0;
        self.round = None;
    }
}

/// True if a holder is still there and has not saved everything up to this record.
pub(super) fn is_open(copies: &NfvActor, holder: Peer, last: Commit) -> bool {
    let link = copies.links.iter().find(|link| link.peer == holder);
    link.is_some_and(|link| {
        last != Commit::NONE && !(link.numbers.has_answered() && link.numbers.has_saved(last))
    })
}

/// The last record that each holder has been sent so far.
pub(super) fn last_sent(copies: &NfvActor) -> Vec<(Peer, Commit)> {
    copies.links.iter().map(|link| (link.peer, link.numbers.last)).collect()
}

/// Bytes of a log entry besides the packet.
const HEAD: usize = 32;
