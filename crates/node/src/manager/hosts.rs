//! The manager of one of several hosts: beats to the others, and the ports that this host
//! serves.
//!
//! In: links, terms that an earlier incarnation knew, the time. Out: beats, orders to
//! serve ports or to stop. Never: a decision about which host serves: see [`Quorum`].

use super::{BEAT_BACKLOG, HostOrder, Manager};
use crate::message::{Control, Sealing};
use crate::quorum::{Change, Quorum};
use holdfast_protection::Peer;
use holdfast_wire::NodeId;

impl Manager {
    /// Makes this host one of so many, with so many switches. `timeout`: the time-out of
    /// [`Quorum`], ns.
    pub fn join(&mut self, hosts: u16, switches: u16, timeout: u64, now: u64) {
        let me = self.fabric.me().node.host().unwrap_or(0);
        self.quorum = Some(Quorum::new(me, hosts, switches, timeout, now));
    }

    /// Sets how many of a switch's ports have links that are up here; for one of several
    /// hosts.
    pub fn set_links(&mut self, switch: u16, links: u8) {
        if let Some(quorum) = &mut self.quorum {
            quorum.set_links(switch, links);
        }
    }

    /// Announces that this host, one of several, is about to end, so that others take
    /// over its service. False if none is there.
    pub fn leave(&mut self) -> bool {
        let Some(quorum) = &mut self.quorum else { return false };
        quorum.leave();
        let own = 1 << self.fabric.me().node.host().unwrap_or(0);
        self.standing.as_ref().is_some_and(|standing| standing.hosts & !own != 0)
    }

    /// An earlier incarnation of this manager knew this term of a switch's service; for
    /// one of several hosts.
    pub fn remember_term(&mut self, switch: u16, term: u32) {
        if let Some(quorum) = &mut self.quorum {
            quorum.remember(switch, term);
        }
    }

    /// Terms to keep for [`Manager::remember_term`], by switch, if one has changed. To be
    /// kept before anything is sent.
    pub fn take_terms(&mut self) -> Option<impl Iterator<Item = u32> + '_> {
        self.quorum.as_mut()?.take_news()
    }

    /// True if the coordinator, on any of several hosts, was heard within a time-out.
    pub(crate) fn is_coordinator_heard(&self) -> bool {
        let timeout = self.quorum.as_ref().map_or(0, Quorum::timeout);
        self.coordinator_at.is_some_and(|at| self.now.saturating_sub(at) <= 4 * timeout)
    }

    /// True if no other host serves now what this one does: see [`Quorum::may_serve_at`].
    pub(crate) fn may_serve_at(&self, now: u64) -> bool {
        self.quorum.as_ref().is_none_or(|quorum| quorum.may_serve_at(now))
    }

    /// Announcements of other hosts' seals, with their managers.
    pub(crate) fn take_sealings(&mut self) -> Vec<(Peer, Sealing)> {
        core::mem::take(&mut self.sealings)
    }

    /// True if a beat has gone out since the last call.
    pub(crate) fn take_beaten(&mut self) -> bool {
        core::mem::take(&mut self.has_beaten)
    }

    /// Announces this host's seal to another host's manager. False if that one takes no
    /// message now.
    pub(crate) fn tell_sealing(&mut self, host: u16, sealing: Sealing) -> bool {
        let node = NodeId::manager(host);
        self.fabric.backlog(node) < BEAT_BACKLOG
            && self.fabric.send_control(node, &Control::Sealing(sealing))
    }

    pub(super) fn change(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.orders.extend(changes.into_iter().map(|change| match change {
            Change::Begin(switch, term) => HostOrder::Serve(switch, term),
            Change::Retire(switch) => HostOrder::Retire(switch),
        }));
    }

    /// True if this host is connected to more than half of the hosts; always true for a
    /// single host.
    pub fn is_connected(&self) -> bool {
        self.quorum.as_ref().is_none_or(|quorum| quorum.is_connected(self.now))
    }

    /// Checks whether this host is still to serve, or to begin, and sends beats.
    pub(super) fn keep_quorum(&mut self, now: u64) {
        let Some(quorum) = &mut self.quorum else { return };
        let change = quorum.turn(now);
        if let Some(beat) = quorum.poll_beat(now) {
            self.has_beaten = true;
            let others = quorum.others().map(NodeId::manager).chain([NodeId::COORDINATOR]);
            let beat = Control::Beat(beat);
            for node in others {
                if self.fabric.backlog(node) < BEAT_BACKLOG {
                    self.fabric.send_control(node, &beat);
                }
            }
        }
        self.change(change);
    }

    /// Runtimes of other hosts that have ended, as these say.
    pub(crate) fn take_ended_elsewhere(&mut self) -> Vec<Peer> {
        core::mem::take(&mut self.ended_elsewhere)
    }

    /// Hosts that this one is not connected to, a bit each.
    pub(crate) fn hosts_away(&self, now: u64) -> u16 {
        self.quorum.as_ref().map_or(0, |quorum| !quorum.connected(now))
    }
}
