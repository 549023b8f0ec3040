//! A link to a runtime that holds replicas of this runtime's flows.

use super::release_mode::Choice;
use super::unsaved::packets;
use crate::links::Holder;
use crate::numbers::Sent;
use crate::{Commit, FlowRef, Flows, Peer, Slot};
use holdfast_wire::Packet;
use std::collections::VecDeque;

/// A packet that waits here until the state that it reveals is saved.
pub(super) struct Latched {
    pub(super) commit: Commit,
    pub(super) flow: FlowRef,
    /// Packets of the flow up to this one, or up to a later one of the same batch.
    pub(super) packets: u32,
    pub(super) packet: Packet,
    /// The packet waits here only for earlier packets, and then at the replica for its
    /// state.
    pub(super) is_for_holder: bool,
}

/// A record that is not answered yet, with its flow.
#[derive(Clone, Copy)]
pub(crate) struct UnderWay {
    pub(crate) number: Commit,
    pub(super) flow: FlowRef,
    /// Packets of the flow that the record includes.
    pub(super) packets: u32,
    /// Time at which the record was sent, ns.
    pub(super) since: u64,
    /// Set if the record asks whether the copy equals the owner's state.
    pub(super) is_question: bool,
}

/// A link to a runtime that holds replicas of this runtime's flows.
pub(crate) struct Link {
    pub(crate) peer: Peer,
    pub(crate) numbers: Sent,
    /// Commits up to this one belong to a resynchronisation that is not saved yet.
    pub(super) resync_mark: Option<Commit>,
    /// Copies of this runtime's flows at the holder.
    pub(super) copies: u64,
    /// The holder refused a copy for want of room; the time before which it is asked to
    /// take no more, ns.
    pub(super) full_until: u64,
    /// Packets handed over up to this commit have left.
    pub(super) passed: Commit,
    /// The commit and the time of an unanswered mark.
    pub(super) marked: Option<(Commit, u64)>,
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
            passed: Commit::NONE,
            marked: None,
            // Queues grow to their working size, because a runtime has a link to every
            // other one.
            under_way: VecDeque::new(),
            latch: VecDeque::new(),
            choice,
        }
    }

    /// The holder has reported that every packet handed over up to this commit has left.
    pub(super) fn has_passed(&self, commit: Commit) -> bool {
        self.passed != Commit::NONE && self.passed.has_reached(commit)
    }

    pub(super) fn note_sent(
        &mut self,
        number: Commit,
        flows: &Flows,
        slot: Slot,
        since: u64,
        is_question: bool,
    ) {
        self.numbers.last = number;
        let header = flows.header(slot);
        let (flow, packets) = (header.reference(slot), packets(header));
        self.under_way.push_back(UnderWay { number, flow, packets, since, is_question });
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
