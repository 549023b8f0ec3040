//! Orders of the coordinator, and the choice of flows to move.

use super::super::Lane;
use super::BATCH;
use super::departures::{Departing, Stage};
use crate::channel::Fabric;
use crate::message::Control;
use holdfast_protection::flows::Life;
use holdfast_protection::{FlowRef, Peer, Slot};
use holdfast_wire::NodeId;
use holdfast_wire::selector::Selector;

/// Interval between two reports on an order's progress, ns.
const PROGRESS: u64 = 100_000_000;

/// A flow that stayed here, and that another target may take: lane, flow, and number of
/// refusals.
pub(super) type Stayed = (usize, FlowRef, u8);

/// An order to move some of the runtime's flows.
pub(super) struct Order {
    pub(super) request: u32,
    pub(super) targets: Vec<Peer>,
    pub(super) next_target: usize,
    left: u64,
    selector: Selector,
    /// The lane and slot at which the search for flows continues; none at its end.
    at: Option<(usize, Slot)>,
    pub(super) again: Vec<Stayed>,
    pub(super) moved: u64,
    refused: u64,
    told_at: u64,
}

impl Order {
    pub(super) fn new(request: u32, targets: Vec<Peer>, limit: u64, selector: Selector) -> Order {
        let next_target = request as usize % targets.len().max(1);
        let (again, at) = (Vec::new(), Some((0, 0)));
        Order {
            request,
            targets,
            next_target,
            left: limit,
            selector,
            at,
            again,
            moved: 0,
            refused: 0,
            told_at: 0,
        }
    }

    /// Offers flows that stayed here to another target.
    pub(super) fn try_again(&mut self, flows: impl IntoIterator<Item = Stayed>) {
        for flow in flows {
            if usize::from(flow.2) < self.targets.len() {
                self.again.push(flow);
            } else {
                self.refused += 1;
            }
        }
    }

    /// The target whose turn it is. If no target is left, no more flows go.
    pub(super) fn target(&mut self) -> Option<Peer> {
        if self.targets.is_empty() {
            self.refused += self.again.len() as u64;
            self.again.clear();
            self.left = 0;
            return None;
        }
        Some(self.targets[self.next_target % self.targets.len()])
    }

    /// True if all flows have been looked at, or enough have been found.
    pub(super) fn is_exhausted(&self, lanes: usize) -> bool {
        self.left == 0 || self.at.is_none_or(|(lane, _)| lane >= lanes)
    }

    /// Reports the progress, now and then and at the end. True if the order is over and
    /// that has been reported.
    pub(super) fn report(
        &mut self,
        is_under_way: bool,
        fabric: &mut Fabric,
        listeners: &[NodeId],
        clock: u64,
    ) -> bool {
        let has_more = self.left > 0 && self.at.is_some() || !self.again.is_empty();
        let last = !is_under_way && !has_more;
        if !last && clock.saturating_sub(self.told_at) < PROGRESS {
            return false;
        }
        self.told_at = clock;
        tell(
            fabric,
            listeners,
            &Control::Migrated {
                request: self.request,
                moved: self.moved,
                refused: self.refused,
                last,
            },
        ) && last
    }

    /// The next flows to move, all of one lane.
    pub(super) fn choose(&mut self, lanes: &[Lane], budget: &mut u32) -> (usize, Vec<Departing>) {
        let mut chosen: Vec<Departing> = Vec::with_capacity(BATCH);
        let departing = |lane: &Lane, slot: Slot, tries: u8| {
            let header = lane.flows.header(slot);
            Departing {
                here: header.reference(slot),
                old_epoch: header.epoch,
                new_epoch: header.epoch,
                stage: Stage::Asked,
                tries,
                is_held: false,
            }
        };
        if let Some(&(first, ..)) = self.again.first() {
            let mut rest = Vec::with_capacity(self.again.len());
            for (at, flow, tries) in self.again.drain(..) {
                let header = lanes[at].flows.get(flow);
                if at != first || chosen.len() == BATCH {
                    rest.push((at, flow, tries));
                } else if header.is_some_and(|header| header.life() == Life::Owned) {
                    chosen.push(departing(&lanes[at], flow.slot, tries));
                }
            }
            self.again = rest;
            *budget = budget.saturating_sub(1);
            return (first, chosen);
        }
        while self.left > 0
            && *budget > 0
            && chosen.len() < BATCH
            && let Some((at, slot)) = self.at
        {
            let Some(lane) = lanes.get(at) else {
                self.at = None;
                break;
            };
            if slot >= lane.flows.reach() {
                if !chosen.is_empty() {
                    break;
                }
                self.at = Some((at + 1, 0));
                continue;
            }
            self.at = Some((at, slot + 1));
            *budget -= 1;
            let header = lane.flows.header(slot);
            if header.life() == Life::Owned
                && [header.key, header.reply.reverse()]
                    .iter()
                    .any(|key| self.selector.matches(key, header.ingress))
            {
                chosen.push(departing(lane, slot, 0));
                self.left -= 1;
            }
        }
        (self.at.map_or(0, |(lane, _)| lane), chosen)
    }
}

/// Tells the listeners how far a request is. False if one of them must be told again.
pub(super) fn tell(fabric: &mut Fabric, listeners: &[NodeId], message: &Control) -> bool {
    let untold = listeners.iter().filter(|node| !fabric.send_control(**node, message)).count();
    untold == 0
}
