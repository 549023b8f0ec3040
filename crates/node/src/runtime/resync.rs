//! Resynchronisation: tells a new incarnation of the switch which flows are here.
//!
//! Theory of operation. The switch asks ([`kind::TELL`]). First everything under way with
//! its previous incarnation is given up or asked for again. From here on only the flow
//! actors say where a flow is. After that the actors are told, a few slots per turn, as
//! the channel takes them. The switch itself takes part in all that happens to a flow
//! behind the place that the resync has reached. Changes ahead of that place are told
//! when it gets there. A flow that another runtime sent here before the switch died may
//! arrive when its place has been passed, and is told then. The resync ends only when
//! every such flow has arrived, is not to come any more, or is claimed because its source
//! has died.

use super::Lane;
use crate::channel::Fabric;
use crate::message::{Claim, RouteInfo, kind};
use holdfast_protection::flows::{ActorHeader, Life};
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::NodeId;
use zerocopy::IntoBytes;

/// Slots scanned per turn.
const SCAN: usize = 8192;
/// Routes in one record.
const ROUTES_PER_RECORD: usize = 20;

/// The route of the flow with this header.
pub(super) fn info(
    header: &ActorHeader,
    chain: u16,
    owner: Peer,
    before: Option<Epoch>,
) -> RouteInfo {
    RouteInfo {
        claim: Claim::of(header, chain),
        node: owner.node.get().into(),
        incarnation: owner.incarnation.into(),
        before: before.map_or(0, Epoch::get).into(),
        is_real: u8::from(header.life() != Life::Opening),
    }
}

/// See the module.
pub(super) struct Resync {
    me: Peer,
    /// The switch, and its switch peer: only flows of this switch's chains are told.
    switch: NodeId,
    side: usize,
    /// The number of the switch's incarnation that asked. To a later one this would be
    /// half an answer.
    asked_by: u8,
    /// The next slot to look at.
    at: (usize, u32),
    newest: Option<Epoch>,
    /// The latest stamp seen here when the resync began, of a packet or of a flow
    /// scanned since.
    stamp: u64,
    /// Routes that are not sent yet. Flows on their way to other runtimes come first.
    ready: Vec<RouteInfo>,
    is_blocked: bool,
}

impl Resync {
    /// A resync to the switch's incarnation of this number, with the newest epoch and the
    /// latest stamp seen here. The flows `departed` are on their way to other runtimes.
    pub(super) fn new(
        me: Peer,
        (switch, side, asked_by): (NodeId, usize, u8),
        newest: Option<Epoch>,
        stamp: u64,
        departed: Vec<RouteInfo>,
    ) -> Resync {
        let (at, ready) = ((0, 0), departed);
        Resync { me, switch, side, asked_by, at, newest, stamp, ready, is_blocked: false }
    }

    /// True if a turn would do something without input.
    pub(super) fn is_busy(&self) -> bool {
        !self.is_blocked
    }

    /// Adds a flow that has arrived at a slot behind the present place.
    pub(super) fn add(&mut self, header: &ActorHeader, chain: u16) {
        self.ready.push(info(header, chain, self.me, None));
    }

    /// Continues. True when everything has been told. While `expects_late` says so, flows
    /// that the switch does not know may still arrive, and the resync does not end.
    pub(super) fn go_on(
        &mut self,
        lanes: &[Lane],
        fabric: &mut Fabric,
        expects_late: bool,
    ) -> bool {
        let mut budget = SCAN;
        self.is_blocked = false;
        while budget > 0 {
            let Some(lane) = lanes.get(self.at.0) else { break };
            if lane.side != self.side {
                self.at = (self.at.0 + 1, 0);
                continue;
            }
            if self.ready.len() >= ROUTES_PER_RECORD && !self.send(fabric, false) {
                self.is_blocked = true;
                return false;
            }
            if self.at.1 >= lane.flows.reach() {
                self.at = (self.at.0 + 1, 0);
                continue;
            }
            let header = lane.flows.header(self.at.1);
            self.at.1 += 1;
            budget -= 1;
            if header.life() != Life::Free {
                // A runtime that has just begun may have seen no packet, but have copies
                // of flows that have.
                self.stamp = self.stamp.max(header.last_stamp);
                self.newest = Epoch::later(self.newest, Some(header.epoch));
            }
            if header.life().is_own() {
                self.ready.push(info(header, lane.index, self.me, None));
            }
        }
        while self.at.0 >= lanes.len() {
            if expects_late && self.ready.is_empty() {
                // The resync goes on when the next flow arrives.
                self.is_blocked = true;
                return false;
            }
            let is_last = self.ready.len() <= ROUTES_PER_RECORD && !expects_late;
            if !self.send(fabric, is_last) {
                self.is_blocked = true;
                return false;
            }
            if is_last {
                return true;
            }
        }
        false
    }

    fn send(&mut self, fabric: &mut Fabric, is_last: bool) -> bool {
        let count = self.ready.len().min(ROUTES_PER_RECORD);
        let mut body = Vec::with_capacity(14 + count * size_of::<RouteInfo>());
        body.extend_from_slice(&[self.asked_by, u8::from(is_last)]);
        body.extend_from_slice(&self.newest.map_or(0, Epoch::get).to_be_bytes());
        body.extend_from_slice(&self.stamp.to_be_bytes());
        body.extend_from_slice(self.ready[..count].as_bytes());
        let is_sent = fabric.send(self.switch, kind::ROUTES, &body).is_ok();
        if is_sent {
            self.ready.drain(..count);
        }
        is_sent
    }
}
