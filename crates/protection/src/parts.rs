//! Parts that only some protections have.
//!
//! A [`Protection`](crate::Protection) says which it has. The runtime asks none of this
//! for every packet.

use crate::{Epoch, Flows, Outbox, Peer, Slot};

/// A protection whose flows have their home at a state server. Memory is a cache of what
/// the server has, and the state of some flows may be absent.
pub trait Paged {
    /// The state of this flow is needed without a packet, because the flow is about to end.
    /// True if it is here. If not, it is fetched, and [`Outbox::loaded`] says when it came.
    fn fetch(&mut self, flows: &Flows, slot: Slot) -> bool;

    /// A flow is about to come for whose state there is no room: evicts that of another one.
    fn make_room(&mut self, flows: &mut Flows);

    /// How much of the [room](Flows::room) flows need that were here before: new ones do
    /// not take it.
    fn reserved(&self, room: usize) -> usize;

    /// The state of a flow that has moved here waits until there is room for it, and so do
    /// the flow's packets.
    fn keep_aside(&mut self, flows: &Flows, slot: Slot, state: &[u8]);

    /// How many states wait for room.
    fn aside(&self) -> usize;

    /// Visits the states that wait, each with its flow's slot and the slot's generation.
    fn visit_aside(&mut self, visit: &mut dyn FnMut(Slot, u32, &mut [u8]));

    /// The flow is about to be sent to `to`, to be served there under this epoch. False if
    /// that is not possible yet; the runtime asks again.
    fn departs(&mut self, flows: &Flows, slot: Slot, to: Peer, epoch: Epoch, out: &mut Outbox) -> bool;

    /// A sent flow's remainder here is as good as any copy until the new owner is heard. If
    /// the new owner dies before, the flow is claimed from it.
    fn keeps_sent(&self, flows: &Flows, slot: Slot) -> bool;
}

/// A protection for which the switch logs what it sends. Packets that a copy has not seen
/// are processed again after a failure.
pub trait Logged {
    /// A batch of so many packets and bytes begins. All of it is in the log, whatever the
    /// chain makes of it.
    fn begin_batch(&mut self, packets: usize, bytes: usize);

    /// This runtime's address, and whether the log would outlive it. Told when one of them
    /// changes, and before [`set_peers`](crate::Protection::set_peers).
    fn set_place(&mut self, flows: &mut Flows, me: Peer, is_log_safe: bool);

    /// The switch has lost its log of what it sent before.
    fn log_lost(&mut self, flows: &mut Flows);

    /// The stamps of the packets to process again, in this order, before the flow is what
    /// its dead owner had. Asked before [`claimed`](crate::Protection::claimed), while the
    /// header has the dead owner's epoch.
    fn take_inputs(&mut self, flows: &Flows, slot: Slot) -> Vec<u64>;

    /// The flow is what its dead owner had: its [inputs](Logged::take_inputs) are processed.
    fn replayed(&mut self, flows: &mut Flows, slot: Slot);

    /// For checkers: the copy in this slot is as after the packet with this stamp, or its
    /// owner has said that it processed that packet.
    #[doc(hidden)]
    fn has_input(&self, flows: &Flows, slot: Slot, stamp: u64) -> bool;
}
