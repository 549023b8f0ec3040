//! Rounds of checkpoints: what is behind is sent anew, and then nobody needs what led there.
//!
//! In: which flows have had inputs since their copies. Out: their states, a few per flush; when all are saved the stamp up to which the switch may forget, and to
//! each holder up to which commit the inputs are in its copies.
//!
//! A packet that comes with a stamp from before a round began, because another overtook it, could find the switch without it when it is needed: its flow's state goes with its commit.

use crate::flows::{flag, role};
use crate::numbers::reached;
use crate::{Flows, NfvActor, Outbox, Peer, Plan, Slot, kind};

/// States sent per flush: so few that the batch's inputs hardly wait behind them; and so many when the log would be full otherwise.
const SEND: usize = 4;
const SEND_URGENTLY: usize = 64;
/// Times as long between two rounds while no packet comes.
const IDLE: u64 = 16;
/// Inputs that may lie at holders before a round begins whatever the time; with twice as many every state goes with its commit.
const INPUTS: usize = 1 << 15;

struct Round {
    /// What was stamped up to here is in the copies when the round is over.
    stamp: u64,
    flows: Vec<(Slot, u32)>,
    at: usize,
    /// By holder: what it was sent before the round.
    began: Vec<(Peer, u32)>,
    /// Once all states have been sent, by holder: what it must have saved.
    sent: Option<Vec<(Peer, u32)>>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Rounds {
    round: Option<Round>,
    /// Flows with inputs since their copies were sent.
    behind: Vec<(Slot, u32)>,
    /// The last round's stamp.
    stamp: u64,
    not_before: u64,
    /// Inputs, and bytes of the log, since the last round began, and inputs before that may not be covered yet.
    inputs: usize,
    bytes: usize,
    before: usize,
    has_news: bool,
}

impl Rounds {
    /// The copy is behind this flow from now on.
    #[inline]
    pub(super) fn note_input(&mut self, flows: &mut Flows, slot: Slot) {
        self.inputs += 1;
        let header = flows.header_mut(slot);
        if header.flags & flag::BEHIND == 0 {
            header.flags |= flag::BEHIND;
            self.behind.push((slot, header.generation));
        }
    }

    /// So many packets with so many bytes in all have come: whether the chain lets them pass or not, they are in the switch's log.
    pub(super) fn note_logged(&mut self, packets: usize, bytes: usize) {
        self.bytes += bytes + packets * HEAD;
        self.has_news = true;
    }

    /// What has this stamp may be forgotten soon, or too much is to be remembered already.
    #[inline]
    pub(super) fn covers(&self, stamp: u64) -> bool {
        stamp <= self.stamp || self.inputs + self.before > 2 * INPUTS
    }

    /// The log is no more: nothing is waited for.
    pub(super) fn forget(&mut self) {
        self.behind.clear();
        self.round = None;
        (self.inputs, self.before, self.bytes) = (0, 0, 0);
    }

    /// Something is to be sent.
    pub(super) fn is_busy(&self) -> bool {
        self.round.as_ref().is_some_and(|round| round.at < round.flows.len())
    }

    /// The batch is over.
    pub(super) fn go_on(&mut self, plan: &Plan, copies: &mut NfvActor, flows: &mut Flows, out: &mut Outbox) {
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
            && let Some(&(slot, generation)) = round.flows.get(round.at)
        {
            let header = *flows.header(slot);
            if header.generation == generation && header.flags & flag::BEHIND != 0 {
                match header.role {
                    role::OWNER if copies.send_state(flows, slot, None, out).is_err() && !copies.links.is_empty() => return,
                    _ => sent += 1,
                }
            }
            round.at += 1;
        }
        if round.at < round.flows.len() {
            return;
        }
        let sent = round.sent.get_or_insert_with(|| last_sent(copies));
        // What has another holder since, because the one that it had is gone or going, has no copy before that one has saved it.
        if sent.iter().any(|(peer, last)| is_open(copies, *peer, *last)) || copies.is_filling() && !is_urgent {
            return;
        }
        for (peer, first) in &round.began {
            let Some(link) = copies.links.find(*peer).filter(|_| *first != 0) else { continue };
            let number = link.numbers.next();
            // If there is no room the next round says so.
            if out.send(*peer, kind::COVERED, &[&number.to_be_bytes(), &first.to_be_bytes()]) {
                link.numbers.last = number;
            }
        }
        out.cleared = Some(round.stamp);
        self.before = 0;
        self.round = None;
    }
}

/// A holder that is still there has not saved all up to here.
pub(super) fn is_open(copies: &NfvActor, holder: Peer, last: u32) -> bool {
    let link = copies.links.iter().find(|link| link.peer == holder);
    link.is_some_and(|link| last != 0 && !(link.numbers.saved != 0 && reached(link.numbers.saved, last)))
}

/// What each holder has been sent so far.
pub(super) fn last_sent(copies: &NfvActor) -> Vec<(Peer, u32)> {
    copies.links.iter().map(|link| (link.peer, link.numbers.last)).collect()
}

/// Bytes that an entry of the log takes beside the packet.
const HEAD: usize = 32;
