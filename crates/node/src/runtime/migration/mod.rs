//! Migration: flows move to another living runtime.
//!
//! Theory of operation (NFVactor, NFActor: flow migration). Once told where flows are to
//! go, the runtimes and the switch move them among themselves, a batch of flows per
//! message:
//! 1. *Prepare.* The target makes an empty actor under both keys of each flow, and says
//!    which flows are welcome. A flow is not welcome if the target has a copy from an
//!    earlier owner that is still
//!    [needed](holdfast_protection::Protection::needs_earlier). The source goes on
//!    processing.
//! 2. *Move.* The switch leads the routes to the target, under new epochs. Behind the
//!    last packet of the old routes it sends the source a mark, in band. Packets that
//!    reach the target meanwhile wait there.
//! 3. *Flow.* The source has processed all packets before the mark, and all of them have
//!    left, including those that a replica was to release or that waited for a lease.
//!    Only now the source sends the flow, and ceases to own it. The target serves the
//!    flow's packets in order, and says so. The source then forgets the flow, or keeps it
//!    as the target's replica.
//!
//! Records are delivered; a mark may be lost, and is asked for again. At every moment one
//! of the two has the whole flow, and each learns from the coordinator when the other
//! dies. The source then claims the routes back, under the epochs that they got. The
//! target claims flows of which it had a replica. The target renounces the others at the
//! switch, so that the route is as before and a replica elsewhere may claim it. A target
//! that is asked for the dead one's flows after others renounces all of them at once,
//! because runtimes that are asked earlier wait for that.
//!
//! In: orders, records, marks, deaths, the worker's time. Out: records, flows that come
//! and go. Never: a packet.

mod arrivals;
mod departures;
mod orders;

use super::recovery::Recoveries;
use super::{Lane, Shared};
use crate::channel::Fabric;
use crate::message::{Control, kind};
use arrivals::Arrivals;
use departures::Departure;
use holdfast_protection::Peer;
use holdfast_wire::selector::Selector;
use holdfast_wire::{DropReason, NodeId};
use orders::{Order, tell};

/// Flows in one batch: their claims fit one record.
const BATCH: usize = 25;
/// Orders at a time.
const ORDERS: usize = 8;

/// The parts of the runtime that a migration works on.
pub(crate) struct Parts<'a> {
    pub(crate) lanes: &'a mut [Lane],
    pub(crate) shared: &'a mut Shared,
    pub(crate) fabric: &'a mut Fabric,
    pub(crate) recoveries: &'a mut Recoveries,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Migrations {
    orders: Vec<Order>,
    departures: Vec<Departure>,
    pub(super) arrivals: Arrivals,
    /// Cancellations that targets have not been told yet: the target, the batch, and a
    /// bit for each flow that will not come.
    cancelled: Vec<(Peer, u32, u32)>,
    next_number: u32,
    /// A batch has just become ready: the next turn is due at once.
    is_urgent: bool,
}

impl Migrations {
    /// True if no order or batch is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.orders.is_empty()
            && self.departures.is_empty()
            && self.cancelled.is_empty()
            && self.arrivals.is_idle()
    }

    /// Number of flows that have been sent and are not known to have arrived.
    pub(crate) fn departed(&self, lanes: &[Lane]) -> u64 {
        self.departures.iter().map(|departure| departure.departed(&lanes[departure.lane])).sum()
    }

    /// True if flows have been sent that are not known to have arrived, or come back.
    pub(crate) fn is_anything_leaving(&self) -> bool {
        self.departures.iter().any(Departure::is_leaving)
    }

    /// Time until a turn is due without input, ns; `None` for never.
    pub(crate) fn timeout(&self) -> Option<u64> {
        match self {
            _ if self.is_idle() => None,
            _ if self.is_urgent => Some(0),
            _ => Some(1_000_000),
        }
    }

    /// Handles the coordinator's order to move flows. If it cannot be understood or is
    /// one too many, the answer is that no flow has moved.
    pub(crate) fn order(
        &mut self,
        request: u32,
        targets: Vec<Peer>,
        limit: u64,
        selector: &str,
        fabric: &mut Fabric,
        listeners: &[NodeId],
    ) {
        match selector.parse::<Selector>() {
            Ok(selector) if self.orders.len() < ORDERS && !targets.is_empty() => {
                self.orders.push(Order::new(request, targets, limit, selector));
                self.is_urgent = true;
            }
            _ => {
                tell(
                    fabric,
                    listeners,
                    &Control::Migrated { request, moved: 0, refused: 0, last: true },
                );
            }
        }
    }

    /// Handles a mark, which comes in band: no packet follows on the old routes of this
    /// batch.
    pub(crate) fn handle_mark(
        &mut self,
        switch: NodeId,
        number: u32,
        lanes: &[Lane],
        shared: &Shared,
    ) {
        let is_meant = |departure: &&mut Departure| {
            departure.number == number && shared.sides[lanes[departure.lane].side].switch == switch
        };
        if let Some(departure) = self.departures.iter_mut().find(is_meant) {
            departure.marked = true;
            self.is_urgent |= departure.answered;
        }
    }

    /// Handles a record of this protocol.
    ///
    /// # Errors
    /// The reason to count if it is not acceptable.
    pub(crate) fn handle_record(
        &mut self,
        from: Peer,
        record: u8,
        body: &[u8],
        parts: &mut Parts<'_>,
    ) -> Result<(), DropReason> {
        let (number, rest) = body.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
        let number = u32::from_be_bytes(*number);
        let bits =
            || <[u8; 4]>::try_from(rest).map(u32::from_be_bytes).map_err(|_| DropReason::Malformed);
        match record {
            kind::PREPARE => self.arrivals.handle_prepare(from, number, rest, parts),
            kind::PREPARED => self.handle_prepared(from, number, bits()?, parts.lanes),
            kind::MOVED => self.handle_moved(from.node, number, rest, parts),
            kind::FLOW => self.arrivals.handle_flow(from, number, rest, parts),
            kind::ARRIVED => self.handle_arrived(from, number, bits()?, parts.lanes),
            kind::CANCEL => self.arrivals.handle_cancel(from, number, bits()?, parts.lanes),
            _ => Err(DropReason::Malformed),
        }
    }

    /// Sends requests, answers and news of arrived flows, as far as the channels take
    /// them, and starts new batches.
    pub(crate) fn advance(
        &mut self,
        lanes: &mut [Lane],
        fabric: &mut Fabric,
        shared: &Shared,
        members: &[Peer],
        listeners: &[NodeId],
        clock: u64,
    ) {
        if self.is_idle() {
            return;
        }
        self.arrivals.tell(fabric, shared);
        self.ask_switch(lanes, fabric, shared, clock);
        // Cancellations go before the same flows are announced anew.
        self.cancelled.retain(|(to, number, bits)| {
            members.contains(to) && !cancel(fabric, *to, *number, *bits)
        });
        self.departures.retain(|departure| !departure.is_over());
        self.start(lanes, fabric, members, clock);
        self.report(fabric, listeners, clock);
    }

    fn report(&mut self, fabric: &mut Fabric, listeners: &[NodeId], clock: u64) {
        let Migrations { orders, departures, .. } = self;
        orders.retain_mut(|order| {
            let is_under_way =
                departures.iter().any(|departure| departure.request == order.request);
            !order.report(is_under_way, fabric, listeners, clock)
        });
    }
}

/// Sends a cancellation. False if the target's channel is full.
fn cancel(fabric: &mut Fabric, to: Peer, number: u32, bits: u32) -> bool {
    let mut body = [0; 8];
    body[..4].copy_from_slice(&number.to_be_bytes());
    body[4..].copy_from_slice(&bits.to_be_bytes());
    fabric.send(to.node, kind::CANCEL, &body).is_ok()
}
