//! Recovery of a switch: its next incarnation collects the routes again.
//!
//! Theory of operation. All that a switch knows is known elsewhere. Every flow actor has
//! its keys, its epoch, its chain and, by its place, its owner. The coordinator has the
//! rules and the members. A switch's state is therefore never replicated: a new
//! incarnation asks. First the incarnation waits for the list of dead runtimes that are
//! being recovered, and for the view behind that. Earlier messages were meant for the
//! previous incarnation. After that it asks every runtime that serves. Each first gives
//! up what it had under way with the old incarnation. After that it tells which flows it
//! has, and which it has sent to another runtime that may not have them yet. Packets
//! whose route has been told go on at once; others wait. The rest is in two steps:
//! - When all have told, epochs can be given again. The next one is beyond the newest
//!   that any runtime has seen or the coordinator remembers, by a good step for epochs
//!   that were lost on their way. Claims and moves are answered again.
//! - When in addition every recovery that was under way is over, a key without a route is
//!   a new flow's. Earlier it may be a key of a flow whose owner died with the switch,
//!   and whose replica is about to claim it.
//!
//! If a host died with the switch, no runtime knows which of two copies is newer. The
//! first claimant of a route then has it provisionally, and gives way to a claimant with
//! a newer epoch. The route is settled when every runtime has asked.
//!
//! A packet that the old incarnation sent and no runtime has processed must not open a
//! flow unknown to the new incarnation. Runtimes refuse it by the incarnation's number in
//! its metadata.

use super::Switch;
use super::ownership::opening;
use super::routes::{Route, RouteId};
use crate::message::{Claim, ClaimFlag, RouteInfo, kind};
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey, NodeId};
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// Epochs that the old incarnation may have given and no process remembers: as many as
/// flows can have been on their way.
const STEP: u32 = 1 << 20;

/// The first epoch behind the newest that any runtime had. The step also changes its
/// place in the ring of noted epochs, because replies of the newest flows may still have
/// to be learned.
pub(super) fn behind(newest: Epoch) -> Epoch {
    newest.ahead(STEP + 1)
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    has_view: bool,
    has_heard_of_recoveries: bool,
    /// Runtimes that have not told all their flows.
    waiting: Vec<Peer>,
    /// Dead runtimes whose recovery is not over: some replicas have not reported.
    recovering: Vec<Peer>,
    /// Dead runtimes among these whose flows have not all been claimed.
    unswept: Vec<Peer>,
    newest: Option<Epoch>,
    has_epochs: bool,
    /// By doubtful route, the stamp of the flow's first packet, ns.
    opened: BTreeMap<RouteId, u64>,
}

impl Rebuild {
    /// Notes how old the flow of a doubtful route is.
    pub(super) fn note_opened(&mut self, id: RouteId, claim: &Claim) {
        self.opened.insert(id, claim.opened_at());
    }

    /// True if the claimed flow is older than this route's, so that it more likely asked
    /// first for the key that both want.
    pub(super) fn is_older(&self, claim: &Claim, rival: RouteId) -> bool {
        let opened_at = claim.opened_at();
        opened_at != 0 && self.opened.get(&rival).is_some_and(|rival| opened_at < *rival)
    }

    /// Adds the runtimes that were being recovered when the coordinator heard of this
    /// incarnation, and the epoch that the coordinator remembers.
    pub(super) fn add_recovering(&mut self, dead: Vec<Peer>, epoch: Option<Epoch>) {
        self.has_heard_of_recoveries = true;
        self.recovering.extend(&dead);
        self.unswept.extend(dead);
        self.note_epoch(epoch);
    }

    fn note_epoch(&mut self, epoch: Option<Epoch>) {
        self.newest = Epoch::later(self.newest, epoch);
    }
}

impl Switch {
    /// True if new epochs can be given.
    pub(super) fn knows_epochs(&self) -> bool {
        self.rebuild.as_ref().is_none_or(|rebuild| rebuild.has_epochs)
    }

    /// True if every route of the previous incarnation is known.
    pub fn is_whole(&self) -> bool {
        self.rebuild.is_none()
    }

    /// True if the coordinator's messages are meant for this incarnation.
    pub(super) fn is_introduced(&self) -> bool {
        self.rebuild.as_ref().is_none_or(|rebuild| rebuild.has_heard_of_recoveries)
    }

    /// After a new view: runtimes that serve and have not been asked began during this
    /// incarnation.
    pub(super) fn know_members(&mut self) {
        let is_asked = |peer: Peer| {
            self.rebuild.as_ref().is_some_and(|rebuild| rebuild.waiting.contains(&peer))
        };
        let serving =
            self.targets.iter().filter(|target| target.serves()).map(|target| target.peer);
        serving.filter(|peer| !is_asked(*peer)).for_each(|peer| self.claims.know(peer));
    }

    /// After a new view: asks each serving runtime once, and stops waiting for runtimes
    /// that are gone.
    pub(super) fn ask_members(&mut self) {
        let Some(rebuild) = &mut self.rebuild else { return };
        if rebuild.has_view {
            // The replicas of its flows are to claim them instead.
            for gone in rebuild.waiting.extract_if(.., |peer| !self.targets.serves(*peer)) {
                rebuild.recovering.push(gone);
                rebuild.unswept.push(gone);
            }
        } else {
            rebuild.has_view = true;
            rebuild.waiting.extend(
                self.targets.iter().filter(|target| target.serves()).map(|target| target.peer),
            );
            for peer in &rebuild.waiting {
                // The channel is new: it has room.
                let _ = self.fabric.send(peer.node, kind::TELL, &[self.config.number]);
            }
        }
        self.go_on_rebuilding();
    }

    /// Notes a sweep: all holders of copies have asked for the dead runtime's flows and,
    /// if it is over, have reported.
    pub(super) fn swept(&mut self, dead: Peer, is_over: bool) {
        let Some(rebuild) = &mut self.rebuild else { return };
        rebuild.unswept.retain(|other| *other != dead);
        if is_over {
            rebuild.recovering.retain(|other| *other != dead);
        }
        let cluster = self.cluster_of(dead.node);
        if !self.is_collecting(cluster) {
            self.claims.decide(cluster);
        }
        self.go_on_rebuilding();
    }

    /// True if one of several hosts has died with the switch, and some runtimes of this
    /// virtual cluster have not claimed their copies of its flows yet. An older copy may
    /// then be claimed before the newest.
    pub(super) fn is_collecting(&self, cluster: u16) -> bool {
        let is_of_cluster = |dead: &Peer| self.cluster_of(dead.node) == cluster;
        self.has_hosts
            && self
                .rebuild
                .as_ref()
                .is_some_and(|rebuild| rebuild.unswept.iter().any(is_of_cluster))
    }

    /// The virtual cluster of a node, in any incarnation.
    pub(super) fn cluster_of(&self, node: NodeId) -> u16 {
        self.targets.of_node(node).map_or(0, |target| target.cluster)
    }

    pub(super) fn go_on_rebuilding(&mut self) {
        let Some(rebuild) = &mut self.rebuild else { return };
        if !rebuild.has_epochs && rebuild.has_view && rebuild.waiting.is_empty() {
            rebuild.has_epochs = true;
            if let Some(newest) = rebuild.newest {
                self.next_epoch = behind(newest);
            }
        }
        if rebuild.has_epochs
            && (rebuild.recovering.is_empty() || is_planted(Fault::OpensBeforeRecoveries))
        {
            self.rebuild = None;
        }
    }

    /// Learns the routes that a runtime tells.
    pub(super) fn handle_routes(
        &mut self,
        from: Peer,
        body: &[u8],
        now: u64,
    ) -> Result<(), DropReason> {
        let Some(rebuild) = self.rebuild.as_mut().filter(|rebuild| rebuild.waiting.contains(&from))
        else {
            return Err(DropReason::StaleDuplicate);
        };
        let (&[asked_by, is_last], rest) = body.split_first_chunk().ok_or(DropReason::Malformed)?;
        if asked_by != self.config.number {
            // The runtime answers the previous incarnation still.
            return Err(DropReason::StaleDuplicate);
        }
        let (newest, rest) = rest.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
        let (stamp, rest) = rest.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        let infos = <[RouteInfo]>::ref_from_bytes(rest).map_err(|_| DropReason::Malformed)?;
        rebuild.note_epoch(Epoch::given(u32::from_be_bytes(*newest)));
        if is_last != 0 {
            rebuild.waiting.retain(|peer| *peer != from);
            self.claims.know(from);
        }
        self.go_on_from(u64::from_be_bytes(*stamp), now);
        let mut result = Ok(());
        for info in infos {
            result = result.and(self.learn(from, info, now));
        }
        self.go_on_rebuilding();
        result
    }

    /// Continues the stamps where those of the previous incarnation ended, even if that
    /// was on a host whose clock differs: flows live by stamps.
    fn go_on_from(&mut self, stamp: u64, now: u64) {
        if stamp != 0 {
            let ahead = stamp as i64 - now as i64;
            self.clock_ahead = Some(self.clock_ahead.map_or(ahead, |known| known.max(ahead)));
        }
    }

    fn learn(&mut self, from: Peer, info: &RouteInfo, now: u64) -> Result<(), DropReason> {
        let owner =
            Peer { node: NodeId::new(info.node.get()), incarnation: info.incarnation.get() };
        let (key, epoch) = (FlowKey::from(info.claim.key), info.claim.epoch());
        let moved_from = Epoch::given(info.before.get()).map(|before| (from, before));
        let hash = self.routes.hash(&key);
        let id = match self.routes.find(&key, hash) {
            // A runtime's reply key may be another runtime's forward key: see
            // `settle_reply`.
            Some(found) if found.is_reply => {
                let is_keyed = info.claim.has(ClaimFlag::Keyed);
                if !is_keyed
                    && self.routes.get(found.slot).is_some_and(|other| !other.is_doubtful())
                {
                    return Ok(());
                }
                self.routes.take_reply(found.slot);
                None
            }
            Some(found) => {
                let Some(route) = self.routes.get(found.slot) else { return Ok(()) };
                // If two runtimes tell one route, the runtime that has the flow knows
                // best.
                if route.epoch.is_later(epoch) || route.epoch == epoch && moved_from.is_some() {
                    return Ok(());
                }
                let before = route.owner;
                self.give(found.slot, owner, epoch);
                self.targets.count(before, -1);
                Some(found.slot)
            }
            None => None,
        };
        let id = match id {
            Some(id) => id,
            None => {
                let chain = info.claim.chain();
                let is_real = info.is_real != 0;
                // The flow's first packet was delivered, or no runtime would know the
                // flow.
                let opening = opening(&info.claim);
                let route = Route {
                    is_real,
                    opening,
                    sent: 1,
                    ..Route::new(key, owner, epoch, chain, now)
                };
                let id = self.routes.insert(hash, route).ok_or(DropReason::RouteTableFull)?;
                self.targets.count_opening(owner, isize::from(!is_real));
                id
            }
        };
        self.targets.count(owner, 1);
        if let Some(route) = self.routes.get_mut(id) {
            route.moved_from = moved_from;
        }
        if let Some(rebuild) = &mut self.rebuild {
            rebuild.note_opened(id, &info.claim);
        }
        let reply = FlowKey::from(info.claim.reply);
        if reply != FlowKey::default() && !self.give_reply(id, &info.claim, reply) {
            self.settle_reply(id, &info.claim, reply, now);
        }
        Ok(())
    }

    /// Decides which of two routes keeps one reply key. A flow of which the key is known
    /// to be its own keeps it before a flow of which that is not known. If it is known of
    /// neither, the older flow keeps the key, because it more likely asked first. Packets
    /// that soon arrive under the key may be for either, and go to neither. If both are
    /// known to have had the key, the newer flow keeps it, because the older may have
    /// ended. A flow whose forward key it is keeps it unless only the other is known to
    /// have it. The flow that loses the key keeps its route: its owner may have it, and
    /// its next packet would open it a second time elsewhere.
    fn settle_reply(&mut self, id: RouteId, claim: &Claim, reply: FlowKey, now: u64) {
        let Some(other) =
            self.routes.find(&reply, self.routes.hash(&reply)).filter(|found| found.slot != id)
        else {
            return;
        };
        let Some(rival) = self.routes.get(other.slot).copied() else { return };
        let is_doubtful = self.routes.get(id).is_some_and(Route::is_doubtful);
        let yields = match other.is_reply {
            true if rival.is_doubtful() && is_doubtful => {
                self.rebuild.as_ref().is_some_and(|rebuild| rebuild.is_older(claim, other.slot))
            }
            true if !rival.is_doubtful() && !is_doubtful => claim.epoch().is_later(rival.epoch),
            true => rival.is_doubtful(),
            false => !is_doubtful && (rival.is_doubtful() || !rival.is_real),
        };
        match (yields, other.is_reply) {
            (false, _) => self.routes.take_reply(id),
            (true, true) => self.routes.take_reply(other.slot),
            (true, false) => self.end_rival(other.slot),
        }
        if yields {
            self.routes.set_reply(id, reply);
        }
        if is_doubtful && other.is_reply && rival.is_doubtful() {
            self.contest(if yields { id } else { other.slot }, now);
        }
    }
}
