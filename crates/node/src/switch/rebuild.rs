//! The routes of a switch that has died, put together again by its next life.
//!
//! Theory of operation. What a switch knows is known elsewhere: every flow actor has its keys, its epoch, its chain and, by where it is, its owner; the
//! rules and the members are the coordinator's. So nothing of a switch is replicated while all goes well, and a new life asks. It asks every
//! runtime that serves, as soon as it has heard who is being recovered from, and the view behind that (what comes before was meant for the life before, and waited for whoever
//! is here): each first gives up what it had under way with the old life, then tells which flows it has,
//! and which it has sent to another runtime that may not have them yet. Packets whose route has been told go on at once; others wait. Then:
//! - When all have told, epochs can be given again: the newest that anybody has seen, or the coordinator remembers, and a good step beyond for those that died on their way. Claims and
//!   moves are answered again.
//! - When in addition every recovery that was under way is over, a key without a route is a new flow's. Not before: it may be one of a flow
//!   whose owner died with the switch, and whose replica is about to claim it.
//!
//! Where a host died with the switch, nobody is left who knows which of two copies is newer: then whoever asks for a route is the one for whom it is
//! meant until somebody asks who has it under a newer epoch, and gets it when everybody has asked.
//!
//! A packet that the old life sent and that nobody has processed must not open a flow behind the new life's back: runtimes refuse it by
//! the life's number in its metadata.

use super::Switch;
use super::ownership::opening;
use super::routes::{Route, RouteId};
use crate::address::NodeId;
use crate::message::{ClaimFlag, RouteInfo, kind};
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey};
use zerocopy::FromBytes;

/// Epochs that the old life may have given without anybody being left who knows: as many flows as can have been on their way.
const STEP: u32 = 1 << 20;

/// The first epoch behind the newest that anybody had. It is another one in what is noted by epoch, too: the newest flows' replies may still have to be learned.
pub(super) fn behind(newest: Epoch) -> Epoch {
    newest.ahead(STEP + 1)
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    has_view: bool,
    has_heard_of_recoveries: bool,
    /// Runtimes that have not told everything.
    waiting: Vec<Peer>,
    /// The dead whose replicas have not all reported.
    recovering: Vec<Peer>,
    /// Those of them of whom not everything has been asked for.
    unswept: Vec<Peer>,
    newest: Option<Epoch>,
    has_epochs: bool,
}

impl Rebuild {
    /// These were being recovered from when the coordinator heard of this life, which remembers this epoch.
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

    /// True if every route is known that the life before had.
    pub fn is_whole(&self) -> bool {
        self.rebuild.is_none()
    }

    /// What the coordinator says is said to this life.
    pub(super) fn is_introduced(&self) -> bool {
        self.rebuild.as_ref().is_none_or(|rebuild| rebuild.has_heard_of_recoveries)
    }

    /// After a new view: who serves and has not been asked began in this life.
    pub(super) fn know_members(&mut self) {
        let is_asked = |peer: Peer| self.rebuild.as_ref().is_some_and(|rebuild| rebuild.waiting.contains(&peer));
        let serving = self.targets.iter().filter(|target| target.serves()).map(|target| target.peer);
        serving.filter(|peer| !is_asked(*peer)).for_each(|peer| self.claims.know(peer));
    }

    /// After a new view: who serves is asked, once; who is no more will not answer.
    pub(super) fn ask_members(&mut self) {
        let Some(rebuild) = &mut self.rebuild else { return };
        if rebuild.has_view {
            // What it would have told is now its replicas' to claim.
            for gone in rebuild.waiting.extract_if(.., |peer| !self.targets.serves(*peer)) {
                rebuild.recovering.push(gone);
                rebuild.unswept.push(gone);
            }
        } else {
            rebuild.has_view = true;
            rebuild.waiting.extend(self.targets.iter().filter(|target| target.serves()).map(|target| target.peer));
            for peer in &rebuild.waiting {
                // The channel is new: it has room.
                let _ = self.fabric.send(peer.node, kind::TELL, &[self.config.number]);
            }
        }
        self.go_on_rebuilding();
    }

    /// All who had replicas of its flows have asked for them, and if it is over, have reported.
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

    /// Of several hosts one has died with the switch, and not everybody in this virtual cluster has asked for what it has of the flows there: somebody may ask for an older state
    /// before somebody asks for the newest.
    pub(super) fn is_collecting(&self, cluster: u16) -> bool {
        let is_of_cluster = |dead: &Peer| self.cluster_of(dead.node) == cluster;
        self.has_hosts && self.rebuild.as_ref().is_some_and(|rebuild| rebuild.unswept.iter().any(is_of_cluster))
    }

    /// The virtual cluster of a node, whichever of its lives is there.
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
        if rebuild.has_epochs && (rebuild.recovering.is_empty() || is_planted(Fault::OpensBeforeRecoveries)) {
            self.rebuild = None;
        }
    }

    /// A runtime tells what it has.
    pub(super) fn handle_routes(&mut self, from: Peer, body: &[u8], now: u64) -> Result<(), DropReason> {
        let Some(rebuild) = self.rebuild.as_mut().filter(|rebuild| rebuild.waiting.contains(&from)) else {
            return Err(DropReason::StaleDuplicate);
        };
        let (&is_last, rest) = body.split_first().ok_or(DropReason::Malformed)?;
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

    /// Stamps go on where those of the life before ended, also if that was on another host, whose clock shows another time: flows live by stamps.
    fn go_on_from(&mut self, stamp: u64, now: u64) {
        if stamp != 0 {
            let ahead = stamp as i64 - now as i64;
            self.clock_ahead = Some(self.clock_ahead.map_or(ahead, |known| known.max(ahead)));
        }
    }

    fn learn(&mut self, from: Peer, info: &RouteInfo, now: u64) -> Result<(), DropReason> {
        let owner = Peer { node: info.node.get(), incarnation: info.incarnation.get() };
        let (key, epoch) = (FlowKey::from(info.claim.key), info.claim.epoch());
        let moved_from = Epoch::given(info.before.get()).map(|before| (from, before));
        let hash = self.routes.hash(&key);
        let id = match self.routes.find(&key, hash) {
            // A runtime may call a reply what another calls a flow of its own: see `settle_reply`.
            Some(found) if found.is_reply => {
                let is_keyed = info.claim.has(ClaimFlag::Keyed);
                if !is_keyed && self.routes.get(found.slot).is_some_and(|other| !other.is_doubtful()) {
                    return Ok(());
                }
                self.routes.take_reply(found.slot);
                None
            }
            Some(found) => {
                let Some(route) = self.routes.get(found.slot) else { return Ok(()) };
                // Of two who speak of one route the one that has the flow knows best.
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
                // Its first packet was delivered, or there would be nobody who knows of it.
                let opening = opening(&info.claim);
                let route = Route { is_real, opening, sent: 1, ..Route::new(key, owner, epoch, chain, now) };
                let id = self.routes.insert(hash, route).ok_or(DropReason::RouteTableFull)?;
                self.targets.count_opening(owner, isize::from(!is_real));
                id
            }
        };
        self.targets.count(owner, 1);
        if let Some(route) = self.routes.get_mut(id) {
            route.moved_from = moved_from;
        }
        let reply = FlowKey::from(info.claim.reply);
        if reply != FlowKey::default() && !self.give_reply(id, &info.claim, reply) {
            self.settle_reply(id, epoch, reply, now);
        }
        Ok(())
    }

    /// Two routes want one reply key. A flow whose own the key is known to be keeps it before one
    /// of which that is not known. The older of two of which it is not known keeps it, because it
    /// is more likely the first that asked; packets that come under the key soon may be for either,
    /// and go to neither. The newer of two that are known to have had it keeps it, because the
    /// older may have ended. A flow of which it is the forward key keeps it unless only the other
    /// is known to have it. The flow that goes without the key keeps its route: its owner may have
    /// it, and its next packet would open it a second time elsewhere.
    fn settle_reply(&mut self, id: RouteId, epoch: Epoch, reply: FlowKey, now: u64) {
        let Some(other) = self.routes.find(&reply, self.routes.hash(&reply)).filter(|found| found.slot != id) else { return };
        let Some(rival) = self.routes.get(other.slot).copied() else { return };
        let is_doubtful = self.routes.get(id).is_some_and(Route::is_doubtful);
        let yields = match other.is_reply {
            true if rival.is_doubtful() == is_doubtful => epoch.is_later(rival.epoch) != is_doubtful,
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
