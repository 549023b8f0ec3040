//! Parts that only some protections have.
//!
//! Each [`Protection`](crate::Protection) says which of them it has. The runtime asks
//! none of this for every packet.

use crate::{Epoch, FlowRef, Flows, Outbox, Peer, Slot};

/// A protection whose flows have their home at a state server. Memory is a cache of the
/// server's pages, and the state of some flows may be absent.
pub trait Paged {
    /// Requests the state of a flow that is about to end, without a packet. True if the
    /// state is here. If not, it is fetched, and [`Outbox::loaded`] says when it came.
    fn fetch(&mut self, flows: &Flows, slot: Slot) -> bool;

    /// Evicts the state of some flow, because another flow needs room for its state.
    fn make_room(&mut self, flows: &mut Flows);

    /// The part of the [room](Flows::room) that flows need which were here before. New
    /// flows do not take it.
    fn reserved(&self, room: usize) -> usize;

    /// Keeps the state of a flow that has moved here until there is room for it. The
    /// flow's packets wait as long.
    fn keep_aside(&mut self, flows: &Flows, slot: Slot, state: &[u8]);

    /// States that wait for room.
    fn aside(&self) -> usize;

    /// Visits the states that wait, each with its flow.
    fn visit_aside(&mut self, visit: &mut dyn FnMut(FlowRef, &mut [u8]));

    /// The flow is about to be sent to `to`, to be served there under this epoch. False
    /// if that is not possible yet; the runtime asks again.
    fn departs(
        &mut self,
        flows: &Flows,
        slot: Slot,
        to: Peer,
        epoch: Epoch,
        out: &mut Outbox,
    ) -> bool;

    /// True if the remainder of a sent flow is as good as any copy until the new owner is
    /// heard. If the new owner dies before, this runtime claims the flow from it.
    fn keeps_sent(&self, flows: &Flows, slot: Slot) -> bool;
}

/// A protection for which the switch logs the packets that it sends. Packets that no copy
/// has seen are processed again after a failure.
pub trait Logged {
    /// A batch of so many packets and bytes begins. All of it is in the log, whether the
    /// chain passes or drops it.
    fn begin_batch(&mut self, packets: usize, bytes: usize);

    /// Sets this runtime's address, and whether the log would outlive it. Called when one
    /// of them changes, and before [`set_peers`](crate::Protection::set_peers).
    fn set_place(&mut self, flows: &mut Flows, me: Peer, is_log_safe: bool);

    /// The switch has lost its log of the packets sent so far.
    fn log_lost(&mut self, flows: &mut Flows);

    /// The stamps of the packets to replay, in this order, until the flow is as its dead
    /// owner had it. Called before [`claimed`](crate::Protection::claimed), while the
    /// header still has the dead owner's epoch.
    fn take_inputs(&mut self, flows: &Flows, slot: Slot) -> Vec<u64>;

    /// The flow is as its dead owner had it: all [inputs](Logged::take_inputs) have been
    /// replayed.
    fn replayed(&mut self, flows: &mut Flows, slot: Slot);

    /// For checkers: true if the copy in this slot is as after the packet with this
    /// stamp, or if its owner has reported that packet as processed.
    #[doc(hidden)]
    fn has_input(&self, flows: &Flows, slot: Slot, stamp: u64) -> bool;
}
