//! To a runtime that holds replicas of ours.

use super::unsaved::packets;
use super::way::Choice;
use crate::links::Holder;
use crate::numbers::Sent;
use crate::{Flows, Peer, Slot};
use holdfast_wire::Packet;
use std::collections::VecDeque;

/// A packet that waits here until the state that it reveals is saved.
pub(super) struct Latched {
    pub(super) commit: u32,
    pub(super) slot: Slot,
    pub(super) generation: u32,
    /// Packets of its flow up to this one, or one of the same batch.
    pub(super) packets: u32,
    pub(super) packet: Packet,
    /// It waits here only for what is before it, and for its state at who holds the replica.
    pub(super) is_for_holder: bool,
}

/// A record that is not answered yet, with the flow that it is about.
#[derive(Clone, Copy)]
pub(crate) struct UnderWay {
    pub(crate) number: u32,
    pub(super) slot: Slot,
    pub(super) generation: u32,
    /// Packets of the flow that it knows of.
    pub(super) packets: u32,
    /// Time at which it was sent, ns.
    pub(super) since: u64,
    /// It asks whether the copy is as it should be.
    pub(super) is_question: bool,
}

/// To a runtime that holds replicas of ours.
pub(crate) struct Link {
    pub(crate) peer: Peer,
    pub(crate) numbers: Sent,
    /// Commits up to here belong to a re-synchronisation that is not saved yet.
    pub(super) resync_mark: Option<u32>,
    /// Copies of our flows there.
    pub(super) copies: u64,
    /// It refused one for want of room: not before this time it is asked to take more, ns.
    pub(super) full_until: u64,
    /// What was handed over up to this commit has left.
    pub(super) passed: u32,
    /// The commit and the time of a mark that is not answered yet.
    pub(super) marked: Option<(u32, u64)>,
    pub(crate) under_way: VecDeque<UnderWay>,
    pub(super) latch: VecDeque<Latched>,
    pub(super) choice: Choice,
}

impl Link {
    pub(super) fn new(peer: Peer, numbers: Sent, choice: Choice) -> Link {
        Link {
            peer,
            numbers,
            resync_mark: None,
            copies: 0,
            full_until: 0,
            passed: 0,
            marked: None,
            // They grow to their working size: a runtime has a link to every other one.
            under_way: VecDeque::new(),
            latch: VecDeque::new(),
            choice,
        }
    }

    pub(super) fn note_sent(&mut self, number: u32, flows: &Flows, slot: Slot, since: u64, is_question: bool) {
        self.numbers.last = number;
        let header = flows.header(slot);
        let (generation, packets) = (header.generation, packets(header));
        self.under_way.push_back(UnderWay { number, slot, generation, packets, since, is_question });
    }
}

impl Holder for Link {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn numbers(&mut self) -> &mut Sent {
        &mut self.numbers
    }
}
