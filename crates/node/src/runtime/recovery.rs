//! Taking over the flows of a runtime that failed.
//!
//! Theory of operation (NFVactor, section V-C). The coordinator names the dead; each protection lists the flows of which it holds
//! replicas; their routes are claimed from the switch, many in one record, as fast as the channel takes them. A flow is served when its
//! claim is granted, not when all are. When none is open the coordinator gets the account: first which shared resources the
//! recovered flows hold, then that this runtime is done.

use super::Lane;
use super::pools::Errands;
use crate::address::SWITCH;
use crate::channel::Fabric;
use crate::message::{AGAIN, Claim, Control, RENOUNCED, kind};
use holdfast_protection::flows::{flag, role};
use holdfast_protection::{Peer, Slot};
use holdfast_wire::DropReason;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Claims in one record.
const CLAIMS_PER_RECORD: usize = 20;

struct Recovery {
    dead: Peer,
    open: usize,
    flows: u64,
}

struct Asked {
    number: u32,
    dead: Peer,
    slots: Vec<(u16, Slot)>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Recoveries {
    running: Vec<Recovery>,
    queue: VecDeque<(Peer, u16, Slot)>,
    asked: VecDeque<Asked>,
    next_number: u32,
    pub(crate) recovered: u64,
}

impl Recoveries {
    /// True while claims wait to be sent.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// True if it was not under way.
    pub(crate) fn begin(&mut self, dead: Peer, lanes: &mut [Lane]) -> bool {
        if self.running.iter().any(|recovery| recovery.dead == dead) {
            return false;
        }
        let mut open = 0;
        for lane in lanes {
            lane.protection.recover(&mut lane.flows, dead, &mut lane.outbox);
            open += lane.outbox.claims.len();
            self.queue.extend(lane.outbox.claims.drain(..).map(|slot| (dead, lane.index, slot)));
        }
        self.running.push(Recovery { dead, open, flows: 0 });
        true
    }

    /// One more flow whose route is to be claimed because of that death; its role says so already.
    pub(crate) fn add(&mut self, dead: Peer, lane: u16, slot: Slot) {
        self.queue.push_back((dead, lane, slot));
        self.hold(dead);
    }

    /// The recovery is not over before as many calls of [`Recoveries::unhold`].
    pub(crate) fn hold(&mut self, dead: Peer) {
        if let Some(recovery) = self.running.iter_mut().find(|recovery| recovery.dead == dead) {
            recovery.open += 1;
        }
    }

    pub(crate) fn unhold(&mut self, dead: Peer) {
        if let Some(recovery) = self.running.iter_mut().find(|recovery| recovery.dead == dead) {
            recovery.open = recovery.open.saturating_sub(1);
        }
    }

    /// Sends as many claims as the channel to the switch takes.
    pub(crate) fn send_claims(&mut self, fabric: &mut Fabric, lanes: &[Lane]) {
        while let Some(&(dead, _, _)) = self.queue.front() {
            let mut slots = Vec::with_capacity(CLAIMS_PER_RECORD);
            let mut body = Vec::with_capacity(4 + CLAIMS_PER_RECORD * size_of::<Claim>());
            body.extend_from_slice(&self.next_number.to_be_bytes());
            while slots.len() < CLAIMS_PER_RECORD
                && let Some((_, lane, slot)) = self.queue.pop_front_if(|(other, _, _)| *other == dead)
            {
                let header = lanes[lane as usize].flows.header(slot);
                if header.role != role::CLAIMING {
                    // Newer state of it has come meanwhile: somebody has it.
                    self.unhold(dead);
                    continue;
                }
                let renounced = if header.flags & flag::EMPTY == 0 { 0 } else { RENOUNCED };
                let claim = Claim {
                    key: header.key.into(),
                    reply: header.reply.into(),
                    epoch: header.epoch.into(),
                    chain: (u32::from(lane) | renounced).into(),
                };
                body.extend_from_slice(claim.as_bytes());
                slots.push((lane, slot));
            }
            if slots.is_empty() {
                continue;
            }
            if fabric.send(SWITCH, kind::CLAIM, &body).is_err() {
                slots.into_iter().rev().for_each(|(lane, slot)| self.queue.push_front((dead, lane, slot)));
                return;
            }
            self.asked.push_back(Asked { number: self.next_number, dead, slots });
            self.next_number = self.next_number.wrapping_add(1);
        }
    }

    /// The switch's answer to one record of claims.
    pub(crate) fn handle_claimed(&mut self, body: &[u8], lanes: &mut [Lane]) -> Result<(), DropReason> {
        let (number, epochs) = body.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
        let number = u32::from_be_bytes(*number);
        let at = self.asked.iter().position(|asked| asked.number == number).ok_or(DropReason::StaleDuplicate)?;
        let Some(asked) = self.asked.remove(at) else { return Err(DropReason::StaleDuplicate) };
        let (mut granted, mut again) = (0, 0);
        for (at, (lane, slot)) in asked.slots.iter().enumerate() {
            let epoch =
                epochs.get(at * 4..at * 4 + 4).map_or(0, |bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            if epoch == AGAIN {
                self.queue.push_back((asked.dead, *lane, *slot));
                again += 1;
                continue;
            }
            let lane = &mut lanes[*lane as usize];
            if lane.flows.header(*slot).role != role::CLAIMING {
                continue;
            }
            if epoch == 0 {
                // The flow lives elsewhere under a newer epoch, or ended.
                lane.flows.remove(*slot);
                lane.retry = true;
            } else {
                lane.claimed(*slot, epoch);
                granted += 1;
            }
        }
        self.recovered += granted;
        if let Some(recovery) = self.running.iter_mut().find(|recovery| recovery.dead == asked.dead) {
            recovery.open = recovery.open.saturating_sub(asked.slots.len() - again);
            recovery.flows += granted;
        }
        Ok(())
    }

    /// Accounts for finished recoveries to the coordinator, after every number that their flows hold.
    pub(crate) fn report(&mut self, errands: &mut Errands) {
        self.running.retain(|recovery| {
            if recovery.open == 0 {
                let Peer { node, incarnation } = recovery.dead;
                errands.push_message(Control::Recovered { node, incarnation, flows: recovery.flows });
            }
            recovery.open > 0
        });
    }
}
