//! The ways that frames take in a world, and what happens to them there.

use super::hosts::WITNESS;
use super::streams::{Lane, Of};
use super::{Event, MILLISECOND, World};
use crate::frames;
use crate::plan::{Habits, Way};
use holdfast_node::address::{NodeId, host_of};
use holdfast_protection::Peer;
use std::collections::BTreeMap;

/// Links between a node and its hub, or between a host and the others, that carry nothing, until when. A host goes by its manager's name.
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

    /// Something is cut.
    pub(super) fn any(&self, now: u64) -> bool {
        self.0.values().any(|until| *until > now)
    }

    fn is_cut(&self, lane: Lane, peer: Peer, now: u64) -> bool {
        let is_cut = |node: NodeId, outwards| self.0.get(&(node, outwards)).is_some_and(|until| *until > now);
        match lane {
            Lane::ToHub | Lane::FromCoordinator => is_cut(peer.node, true),
            Lane::ToRuntime | Lane::ToCoordinator => is_cut(peer.node, false),
            Lane::Between => is_cut(peer.node, true) || is_cut(peer.incarnation as NodeId, false),
            _ => false,
        }
    }
}

impl World {
    /// Sends a frame over a link with its habits.
    pub(super) fn carry(&mut self, habits: Habits, lane: Lane, peer: Peer, frame: Vec<u8>, make: impl Fn(Vec<u8>) -> Event) {
        self.watch(true, lane, &frame);
        if self.cuts.is_cut(lane, peer, self.now) {
            self.faults.cut_off += 1;
            return;
        }
        let is_ill = !self.healed;
        let random = self.streams.of(Of::Lane(lane), peer);
        // Drawn whether they are wanted or not: what is drawn next does not depend on it.
        let mut happens = |chance: u64| random.chance(chance) && is_ill;
        let (is_lost, is_doubled, is_stale) = (happens(habits.lose), happens(habits.double), happens(habits.stale));
        if is_lost {
            self.faults.lost += 1;
            return;
        }
        let copies = if is_doubled { 2 } else { 1 };
        self.faults.doubled += copies - 1;
        if is_stale && frames::is_messages(&frame) {
            let time = self.now + self.streams.of(Of::Lane(lane), peer).range(20, 3_000) * MILLISECOND;
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

    /// A frame comes that was on its way for long: to whoever lives there now.
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
            Lane::FromCoordinator => self.handle(Event::ToHub(WITNESS, peer, frame)),
            Lane::Between => {
                let to = host_of(peer.incarnation as NodeId).unwrap_or(0).into();
                self.handle(Event::FromHost(to, frame));
            }
            _ => {}
        }
    }
}
