//! The links that frames take in a world, and what happens to them there.

use super::hosts::{Site, TIMEOUT, WITNESS};
use super::served::Servers;
use super::streams::{Lane, Of};
use super::{BEGIN, Event, MILLISECOND, World};
use crate::frames;
use crate::plan::{Habits, Way};
use crate::random::Random;
use holdfast_node::fcs;
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use std::collections::BTreeMap;

/// Links that are cut, between a node and its hub or between a host and the others, and
/// until when. A host goes by its manager's name.
#[derive(Default)]
pub(super) struct Cuts(BTreeMap<(NodeId, bool), u64>);

impl Cuts {
    pub(super) fn cut(&mut self, node: NodeId, way: Way, until: u64) {
        for outwards in [true, false] {
            if way == Way::Both || (way == Way::Out) == outwards {
                let end = self.0.entry((node, outwards)).or_insert(until);
                *end = until.max(*end);
            }
        }
    }

    pub(super) fn heal(&mut self) {
        self.0.clear();
    }

    /// True if any link is cut.
    pub(super) fn any(&self, now: u64) -> bool {
        self.0.values().any(|until| *until > now)
    }

    /// Whether this node's link is cut in either direction.
    pub(super) fn are_felt(&self, node: NodeId, now: u64) -> bool {
        [true, false]
            .iter()
            .any(|outwards| self.0.get(&(node, *outwards)).is_some_and(|until| *until > now))
    }

    fn is_cut(&self, lane: Lane, peer: Peer, now: u64) -> bool {
        let is_cut = |node: NodeId, outwards| {
            self.0.get(&(node, outwards)).is_some_and(|until| *until > now)
        };
        match lane {
            Lane::ToHub | Lane::FromCoordinator | Lane::FromStateServer => is_cut(peer.node, true),
            Lane::ToRuntime | Lane::ToCoordinator | Lane::ToStateServer => is_cut(peer.node, false),
            Lane::Between | Lane::Beside => {
                is_cut(peer.node, true) || is_cut(NodeId::new(peer.incarnation as u16), false)
            }
            _ => false,
        }
    }
}

/// Time for which two networks are whole; then one of them is broken for as long, ns.
const SPELL: u64 = 4 * TIMEOUT;

/// An outage: one of two networks does not lead to a host, or from it. The two are never
/// broken together, nor one right after the other, so that an outage is no failure of a
/// host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Outage {
    host: NodeId,
    path: u8,
    way: Way,
}

impl Outage {
    /// The outage at `time`, ns since the world's beginning.
    fn at(seed: u64, hosts: u16, time: u64) -> Option<Outage> {
        let spell = time / SPELL;
        let mut random = Random::new(seed ^ spell.wrapping_mul(0x6e65_7477));
        let way = [Way::Both, Way::In, Way::Out][random.range(0, 3) as usize];
        let (host, path) =
            (NodeId::manager(random.range(0, hosts.into()) as u16), random.range(0, 2) as u8);
        (spell % 2 == 1).then_some(Outage { host, path, way })
    }

    fn is_felt(self, path: u8, from: NodeId, to: NodeId) -> bool {
        let is_its =
            from == self.host && self.way != Way::In || to == self.host && self.way != Way::Out;
        path == self.path && is_its
    }
}

/// Damaged messages whose checksum is right nevertheless, per thousand.
const UNNOTICED: u64 = 250;

/// Flips a bit of the sender's incarnation or of the frame's counter and recomputes the
/// checksum, so that no receiver can detect it.
fn lie(frame: &mut [u8], bit: usize) {
    const INCARNATION_AT: usize = 26;
    const COUNTER_AT: usize = 58;
    let at =
        if bit.is_multiple_of(2) { INCARNATION_AT + bit / 2 % 4 } else { COUNTER_AT + bit / 2 % 8 };
    frame[at] ^= 1 << (bit / 16 % 8);
    fcs::sum(frame);
}

impl World {
    /// Sends a frame from one host to another by one of the networks.
    pub(super) fn carry_between(&mut self, path: u8, from: Site, to: Site, mut frame: Vec<u8>) {
        let [from, to_node] = [from, to].map(|site| NodeId::manager(site as u16));
        let between = Peer { node: from, incarnation: u32::from(to_node) };
        let outage =
            Outage::at(self.scenario.seed, self.plan.hosts, self.now.saturating_sub(BEGIN));
        let is_felt = outage.is_some_and(|outage| outage.is_felt(path, from, to_node));
        if is_felt && self.plan.networks > 1 && !self.healed {
            self.faults.cut_off += 1;
            return;
        }
        // Messages are never sealed in simulated worlds, because checkers read them. If
        // packets are sealed, messages have no checksum either: no receiver could detect
        // damage.
        let is_checked = !self.plan.sealed || !frames::is_messages(&frame);
        if self.plan.damaged > 0 && is_checked && !self.healed {
            let random = self.streams.of(Of::Damage, between);
            let (is_damaged, bit) = (
                random.chance(self.plan.damaged),
                random.range(0, frame.len() as u64 * 8) as usize,
            );
            if is_damaged {
                let is_unnoticed =
                    !self.plan.sealed && frames::is_messages(&frame) && random.chance(UNNOTICED);
                match is_unnoticed {
                    true => lie(&mut frame, bit),
                    false => frame[bit / 8] ^= 1 << (bit % 8),
                }
                self.faults.damaged += 1;
            }
        }
        let lane = if path == 0 { Lane::Between } else { Lane::Beside };
        self.carry(self.inside, lane, between, frame, |frame| Event::FromHost(to, frame));
    }

    /// Sends a frame over a link with its habits.
    pub(super) fn carry(
        &mut self,
        habits: Habits,
        lane: Lane,
        peer: Peer,
        frame: Vec<u8>,
        make: impl Fn(Vec<u8>) -> Event,
    ) {
        self.watch(true, lane, &frame);
        if self.cuts.is_cut(lane, peer, self.now) {
            self.faults.cut_off += 1;
            return;
        }
        // A frame that is sent at the world's last moment arrives nowhere in any case;
        // the world heals then, too.
        let is_ill = !self.healed && self.now < self.deadline;
        let random = self.streams.of(Of::Lane(lane), peer);
        // Chances are drawn whether they apply or not, so that later draws do not depend
        // on that.
        let mut happens = |chance: u64| random.chance(chance) && is_ill;
        let (is_lost, is_doubled, is_stale) =
            (happens(habits.lose), happens(habits.double), happens(habits.stale));
        if is_lost {
            self.faults.lost += 1;
            return;
        }
        let copies = if is_doubled { 2 } else { 1 };
        self.faults.doubled += copies - 1;
        if is_stale && frames::is_messages(&frame) {
            let time =
                self.now + self.streams.of(Of::Lane(lane), peer).range(20, 3_000) * MILLISECOND;
            self.faults.stale += 1;
            self.at(time, Event::Stale(lane, peer, frame.clone()));
        }
        for _ in 0..copies {
            let random = self.streams.of(Of::Lane(lane), peer);
            let mut delay = random.range(habits.delay.0, habits.delay.1);
            let is_stray = random.chance(habits.stray) && is_ill;
            if is_stray {
                delay *= random.range(10, 100);
            }
            let mut time = self.now + delay;
            let last = self.last_arrival.entry((lane, peer)).or_insert(0);
            if is_stray {
                self.faults.reordered += 1;
            } else {
                // A link delivers in order unless a frame strays.
                time = time.max(*last + 1);
                *last = time;
            }
            self.at(time, make(frame.clone()));
        }
    }

    /// Delivers a frame that was under way for long to the node's present incarnation.
    pub(super) fn stale_arrives(&mut self, lane: Lane, peer: Peer, frame: Vec<u8>) {
        match lane {
            Lane::ToRuntime => {
                let there = self.processes.keys().find(|there| there.node == peer.node).copied();
                if let Some(there) = there {
                    self.runtime_receives(there, &frame);
                }
            }
            Lane::ToCoordinator => {
                if let Some(there) = self.coordinator.peer() {
                    self.coordinator_receives(there, &frame);
                }
            }
            Lane::ToHub => {
                let at = self.processes.get(&peer).map_or(WITNESS, |process| process.host);
                self.handle(Event::ToHub(at, peer, frame));
            }
            Lane::ToStateServer => {
                let there = self
                    .servers
                    .iter()
                    .flat_map(Servers::peers)
                    .flatten()
                    .find(|there| there.node == peer.node);
                if let Some(there) = there {
                    self.server_process_receives(there, &frame);
                }
            }
            Lane::FromCoordinator | Lane::FromStateServer => {
                self.handle(Event::ToHub(WITNESS, peer, frame))
            }
            Lane::Between | Lane::Beside => {
                let to = NodeId::new(peer.incarnation as u16).host().unwrap_or(0).into();
                self.handle(Event::FromHost(to, frame));
            }
            _ => {}
        }
    }
}
