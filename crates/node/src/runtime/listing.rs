//! Listing: an operator asks for flows.
//!
//! Theory of operation. A question names the place to begin at and the number of flows
//! wanted. The table is walked slot by slot, a few in each turn, whatever there is to
//! find and however many questions are open: packets wait for no list. Flows go out as
//! soon as they are found, as [`kind::FLOWS`], and the last record says where the list
//! goes on. An answer ends when it has as many flows as were wanted, or has looked at so
//! many slots, so that no client waits long for it. The runtime keeps nothing between
//! answers: an asker may not come back.
//!
//! A flow keeps its slot as long as it is here. If this runtime owns it from the first
//! answer to the last, it is in exactly one of them.
//!
//! In: questions, the time of turns. Out: records. Never: a packet, a change of a flow.

use super::{Lane, Shared};
use crate::channel::Fabric;
use crate::message::{FlowInfo, FlowsHead, kind};
use holdfast_protection::Slot;
use holdfast_protection::flows::flag;
use holdfast_wire::NodeId;
use holdfast_wire::selector::Selector;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// The name of a flow's state that only the state server has.
const ABSENT: &str = "absent";
/// Slots scanned per turn: some ten microseconds if none of them is in the cache.
const SLOTS_PER_TURN: u32 = 512;
/// Records sent per turn.
const RECORDS_PER_TURN: u32 = 4;
/// Flows in a record: with the record's header they fit a frame, unless functions show
/// many values of them.
const FLOWS_PER_RECORD: u32 = 8;
/// Slots that one answer looks at: some hundred turns.
const SLOTS_PER_ANSWER: u32 = 1 << 16;
/// Questions under way. There are never so many managers' clients.
const MOST: usize = 128;

/// The place behind every lane.
const END: (usize, Slot) = (usize::MAX, 0);

/// A question that is not answered yet.
struct Listing {
    to: NodeId,
    request: u32,
    selector: Selector,
    /// The place where the search goes on: lane and slot.
    at: (usize, Slot),
    flows_left: u32,
    slots_left: u32,
}

/// See the module.
#[derive(Default)]
pub(super) struct Listings {
    open: VecDeque<Listing>,
    /// The channel had no room.
    is_blocked: bool,
}

impl Listings {
    /// Takes a question in: flows from this lane and slot on.
    pub(super) fn ask(
        &mut self,
        to: NodeId,
        request: u32,
        limit: u32,
        selector: &str,
        (lane, slot): (u16, Slot),
    ) {
        // A selector that cannot be read matches no flow: its asker has checked it
        // before.
        let (selector, at) = match selector.parse() {
            Ok(selector) => (selector, (usize::from(lane), slot)),
            Err(_) => (Selector::any(), END),
        };
        if self.open.len() == MOST {
            self.open.pop_front();
        }
        self.open.push_back(Listing {
            to,
            request,
            selector,
            at,
            flows_left: limit,
            slots_left: SLOTS_PER_ANSWER,
        });
    }

    /// Drops a node's questions, because the node waits for no answer any more.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.open.retain(|listing| listing.to != node);
    }

    /// True if no node waits for an answer.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Time until a turn is due without input, ns; `None` for never.
    pub(super) fn timeout(&self) -> Option<u64> {
        match self.open.is_empty() {
            true => None,
            false => Some(if self.is_blocked { 1_000_000 } else { 0 }),
        }
    }

    /// Continues one of the answers.
    pub(super) fn go_on(&mut self, lanes: &[Lane], shared: &Shared, fabric: &mut Fabric) {
        let Some(mut listing) = self.open.pop_front() else { return };
        // Records that wait for the same channel go first.
        self.is_blocked = fabric.backlog(listing.to) > 0;
        if self.is_blocked {
            return self.open.push_back(listing);
        }
        let mut slots = SLOTS_PER_TURN;
        for _ in 0..RECORDS_PER_TURN {
            match listing.send_record(&mut slots, lanes, shared, fabric) {
                Sent::Some if slots > 0 => {}
                Sent::Some => break,
                Sent::Last => return,
                Sent::Nothing => {
                    self.is_blocked = true;
                    break;
                }
            }
        }
        self.open.push_back(listing);
    }
}

enum Sent {
    /// The record was sent, and more follow.
    Some,
    Last,
    /// The channel is full.
    Nothing,
}

impl Listing {
    /// Scans slots, at most so many, until a record is full, and sends it.
    fn send_record(
        &mut self,
        slots: &mut u32,
        lanes: &[Lane],
        shared: &Shared,
        fabric: &mut Fabric,
    ) -> Sent {
        let Listing { mut at, mut flows_left, mut slots_left, .. } = *self;
        let (mut flows, mut count) = (Vec::new(), 0);
        while *slots > 0 && slots_left > 0 && flows_left > 0 && count < FLOWS_PER_RECORD {
            let Some(lane) = lanes.get(at.0) else { break };
            if at.1 >= lane.flows.reach() {
                at = (at.0 + 1, 0);
                continue;
            }
            let slot = at.1;
            at.1 += 1;
            *slots -= 1;
            slots_left -= 1;
            if let Some(info) = self.look(lane, slot, shared) {
                info.encode(&mut flows);
                count += 1;
                flows_left -= 1;
            }
        }
        let is_over = at.0 >= lanes.len();
        let is_last = is_over || flows_left == 0 || slots_left == 0;
        if is_last || count > 0 {
            let head =
                FlowsHead::new(self.request, is_last, (!is_over).then_some((at.0 as u16, at.1)));
            if fabric.send_parts(self.to, kind::FLOWS, &[head.as_bytes(), &flows]).is_err() {
                return Sent::Nothing;
            }
        }
        (self.at, self.flows_left, self.slots_left) = (at, flows_left, slots_left);
        if is_last { Sent::Last } else { Sent::Some }
    }

    /// The flow in this slot, if the selector matches.
    fn look(&self, lane: &Lane, slot: Slot, shared: &Shared) -> Option<FlowInfo> {
        let header = lane.flows.header(slot);
        let is_meant = header.life().is_owned()
            && [header.key, header.reply.reverse()]
                .iter()
                .any(|key| self.selector.matches(key, header.ingress));
        is_meant.then(|| FlowInfo {
            key: header.key,
            reply: header.reply,
            chain: lane.index,
            state: if lane.flows.is_present(slot) {
                lane.chain.describe(lane.flows.state(slot))
            } else {
                ABSENT
            }
            .to_owned(),
            owner: shared.node,
            replica: if header.flags & flag::UNPROTECTED == 0 {
                header.holder().node
            } else {
                NodeId::NONE
            },
            epoch: header.epoch.get(),
            age: shared.sides[lane.side].now.saturating_sub(header.opened_at),
            packets: header.packets(),
            bytes: header.bytes(),
            values: match lane.flows.is_present(slot) {
                true => lane.chain.values(lane.flows.state(slot)),
                false => Vec::new(),
            },
        })
    }
}
