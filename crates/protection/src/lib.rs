//! Protections: where flow state lives, when a packet may leave, how lost state is
//! rebuilt.
//!
//! A [`Protection`] answers the three questions for one chain in one runtime. In: packets
//! that the chain has processed, records from other runtimes, changes of membership,
//! time-outs. Out: an [`Outbox`]. Never: I/O, a clock, a thread, a look into a function's
//! state.
#![forbid(unsafe_code)]

mod copies;
mod delta;
mod fence;
pub mod flows;
mod links;
mod nfvactor;
mod nodes;
mod none;
mod numbers;
mod outbox;
mod parts;
pub mod plan;
mod reinforce;
mod released;
pub mod rescue;
mod retirement;

pub use fence::Fence;
pub use flows::{FlowRef, Flows, Slot};
pub use nodes::NodeIndex;
pub use outbox::{ChannelRecord, Outbox};
pub use parts::{Logged, Paged};
pub use plan::Plan;
pub use released::Released;
pub use rescue::Rescue;

pub use holdfast_wire::{Commit, Epoch, Peer};

use holdfast_wire::{DropReason, Packet};
use nfvactor::NfvActor;
use none::Unprotected;
use reinforce::Reinforce;

/// Kinds of records that protections exchange. Every body begins with the chain's number
/// (2 bytes).
pub mod kind {
    /// Owner to holder: a flow's whole state. Commit number (4), layout hash (8), the
    /// flow actor's block.
    pub const STATE: u8 = 1;
    /// Holder to owner: every commit up to this number (4) is saved, or was refused
    /// before.
    pub const SAVED: u8 = 2;
    /// Owner to holder: the flow has ended. Commit number (4), epoch (4), forward key
    /// (40).
    pub const END: u8 = 3;
    /// Holder to owner: this commit (4) was not saved. Reason (1): a
    /// [`DropReason`](holdfast_wire::DropReason) number.
    pub const REFUSED: u8 = 4;
    /// Replica to owner: every packet handed over up to this commit (4) has left.
    pub const PASSED: u8 = 5;
    /// A new incarnation to possible holders: send the snapshots of my earlier
    /// incarnations. Number (4), the last incarnation that is meant (4).
    pub const FETCH: u8 = 6;
    /// Holder to new incarnation: one snapshot of many. Number (4), layout hash (8), the
    /// flow actor's block.
    pub const RESTORED: u8 = 7;
    /// Holder to new incarnation: there are no more snapshots. Number (4), the
    /// incarnation asked for (4).
    pub const FETCHED: u8 = 8;
    /// Owner to replica: the delta of a flow since its last record. Commit number (4),
    /// hash of the forward key (8), epoch (4), the version that has changed (4), and the
    /// change.
    pub const DELTA: u8 = 10;
    /// Owner to replica: a question whether the copy is like this. Number (4), hash of
    /// the forward key (8), epoch (4), version (4), digest (8). The replica refuses the
    /// number if it is not.
    pub const CHECK: u8 = 11;
    /// Owner to holder: packets processed since the holder's copies, in order. Commit
    /// number (4), a base stamp (8), and for each packet its flow's epoch (4) and its own
    /// stamp less the base (4, signed).
    pub const INPUTS: u8 = 12;
    /// Owner to holder of inputs: the copies contain them. Commit number (4), and the
    /// commit (4) up to which the copies contain everything that was sent.
    pub const COVERED: u8 = 13;
    /// Runtime to state server: this flow goes to another runtime. Commit number (4),
    /// epoch here (4), next owner (2 + 4), its epoch there (4), forward key (40).
    pub const PASS: u8 = 14;
    /// Runtime to state server: a request for the flows of this dead runtime (2 + 4).
    pub const RECALL: u8 = 15;
    /// State server to runtime: a flow to claim. Number (4), the dead owner (2 + 4),
    /// layout hash (8), the flow actor's block.
    pub const DEAL: u8 = 16;
    /// Runtime to state server: the answer to `DEAL`. The number (4); 0, or a
    /// [`DropReason`](holdfast_wire::DropReason) number plus 1 (1).
    pub const DEALT: u8 = 17;
    /// State server to runtime: there are no more flows of this dead runtime (2 + 4).
    pub const RECALLED: u8 = 18;
    /// State server to an owner: another runtime has the flow under a newer epoch. Layout
    /// hash (8), the flow actor's block as that runtime has it.
    pub const DISPLACED: u8 = 19;
    /// Runtime to state server: a request for the state of a flow that is paged out here.
    /// Forward key (40).
    pub const PAGE: u8 = 20;
    /// State server to runtime: the state asked for by `PAGE`. Layout hash (8), the
    /// flow actor's block.
    pub const PAGE_IN: u8 = 21;
    /// State server to runtime: there is no page for the runtime that asked by `PAGE`.
    /// Forward key (40).
    pub const NO_PAGE: u8 = 22;
    /// The highest kind that belongs to protections.
    pub const LAST: u8 = 31;
}

/// Whether a packet can be processed here and now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The flow's state is here.
    Ready,
    /// The flow's state is on its way. Park the packet; the protection says when to go
    /// on.
    Park,
    /// The packet cannot be processed, for this reason.
    Drop(DropReason),
}

/// The extra path of a packet that leaves by another runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detour {
    /// No extra path. The other runtime is on this host, where no packet is copied, or on
    /// the host where packets leave, which each of them reaches anyway.
    #[default]
    None,
    /// The packet crosses the network once more.
    Longer,
    /// The packet crosses the network twice instead of not at all, because packets leave
    /// at this host.
    ThereAndBack,
}

/// How safe the flows are at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Safety {
    /// Flows known to have no replica of their latest state.
    pub unprotected: u64,
    /// Flows whose state is not in memory. The state server has the only copy of nearly
    /// all of these.
    pub absent: u64,
    /// States fetched from the state server since the start.
    pub fetched: u64,
    /// Replicas are being filled, or states have been under way for too long.
    pub resynchronising: bool,
    /// Copies found to differ from the state of their owner here, since the start.
    pub differed: u64,
}

/// A plan's answers to the three questions, for one chain in one runtime.
///
/// If the switch logs packets, the runtime calls [`begin_batch`](Logged::begin_batch)
/// when packets have come. For every packet of a flow it calls
/// [`admit`](Protection::admit) and runs the chain. A packet that passed goes to
/// [`commit`](Protection::commit). For a packet that the chain dropped it calls
/// [`changed`](Protection::changed), or nothing if that packet has changed nothing of the
/// flow. A packet that passes and has changed nothing goes to
/// [`follow`](Protection::follow). At the end of the batch the runtime calls
/// [`flush`](Protection::flush) and carries out the outbox.
pub trait Protection: Send {
    /// The plan that built this protection. Its promises and needs follow from the plan.
    fn plan(&self) -> Plan;

    /// The part for flows whose home is a state server.
    fn paged(&self) -> Option<&dyn Paged> {
        None
    }

    /// [`paged`](Protection::paged), mutable.
    fn paged_mut(&mut self) -> Option<&mut dyn Paged> {
        None
    }

    /// The part for a switch that keeps a packet log.
    fn logged(&self) -> Option<&dyn Logged> {
        None
    }

    /// [`logged`](Protection::logged), mutable.
    fn logged_mut(&mut self) -> Option<&mut dyn Logged> {
        None
    }

    /// Decides whether the packet may be processed, and requests state that is paged out
    /// or remote.
    fn admit(&mut self, flows: &mut Flows, slot: Slot) -> Admission {
        let _ = (flows, slot);
        Admission::Ready
    }

    /// The chain has processed a packet of this flow and lets it pass: releases it, holds
    /// it, or hands it over. `nondeterministic`: a replay could come out differently.
    fn commit(
        &mut self,
        flows: &mut Flows,
        slot: Slot,
        packet: Packet,
        nondeterministic: bool,
        out: &mut Outbox,
    );

    /// The chain dropped a packet of this flow, with this stamp. The flow's state may
    /// have changed all the same. `nondeterministic`: see [`commit`](Protection::commit).
    fn changed(&mut self, flows: &mut Flows, slot: Slot, stamp: u64, nondeterministic: bool);

    /// A packet of this flow leaves that has changed nothing of the flow. The packet
    /// waits for the flow's earlier changes only.
    fn follow(&mut self, flows: &mut Flows, slot: Slot, packet: Packet, out: &mut Outbox) {
        self.commit(flows, slot, packet, false, out);
    }

    /// The flow is about to be removed.
    fn ended(&mut self, flows: &mut Flows, slot: Slot, out: &mut Outbox);

    /// The batch is over.
    fn flush(&mut self, flows: &mut Flows, out: &mut Outbox);

    /// Sets what it costs a packet to leave by each of these runtimes. Called before
    /// [`set_peers`](Protection::set_peers), and whenever a cost changes.
    fn set_detours(&mut self, detours: &[(Peer, Detour)]) {
        let _ = detours;
    }

    /// Sets the runtimes that may hold replicas now, without this one, in the
    /// coordinator's order. A runtime that is no longer among them has failed, has left,
    /// or is leaving. A leaving runtime still has the copies that it had.
    fn set_peers(&mut self, flows: &mut Flows, peers: &[Peer], leaving: &[Peer], out: &mut Outbox);

    /// Handles a record from another runtime, in order, without the chain's number.
    ///
    /// # Errors
    /// The reason to count if the record is not acceptable.
    fn handle_record(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        kind: u8,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason>;

    /// The key hash of the flow that a record is about. Records come by the thousand, so
    /// the caller prefetches what the hash leads to while it acts upon others.
    fn flow_of(&self, flows: &Flows, kind: u8, body: &[u8]) -> Option<u64> {
        let _ = (flows, kind, body);
        None
    }

    /// A packet that its owner handed over for release here.
    fn handle_handed(&mut self, flows: &mut Flows, from: Peer, packet: Packet, out: &mut Outbox);

    /// The runtime `dead` has failed: asks for the routes of its flows that can be
    /// recovered here (`out.claims`).
    fn recover(&mut self, flows: &mut Flows, dead: Peer, out: &mut Outbox);

    /// This runtime takes the place of `dead`, its own earlier incarnation. Fetches the
    /// copies that others have of its flows, and asks for their routes as they come
    /// (`out.late_claims`).
    fn restore(&mut self, flows: &mut Flows, dead: Peer, out: &mut Outbox) {
        let _ = (flows, dead, out);
    }

    /// True while some flow of `dead` has no new owner yet, as far as this runtime can
    /// tell. The account of `dead` stays open so long.
    fn is_recovering(&self, dead: Peer) -> bool {
        let _ = dead;
        false
    }

    /// The switch gave this runtime the flow's route, under the epoch now in its header.
    fn claimed(&mut self, flows: &mut Flows, slot: Slot);

    /// The switch refused the flow's route. The flow lives elsewhere under a newer epoch,
    /// or has ended, and is about to be removed here.
    fn unclaimed(&mut self, flows: &mut Flows, slot: Slot) {
        let _ = (flows, slot);
    }

    /// True if every packet of this flow that was processed here has left for good. The
    /// chain processes no further packet of it. The runtime asks repeatedly until this is
    /// true.
    fn has_drained(&mut self, flows: &Flows, slot: Slot, out: &mut Outbox) -> bool {
        let _ = (flows, slot, out);
        true
    }

    /// Every packet that `from` handed over before has arrived: see [`Outbox::marks`].
    fn handle_mark(&mut self, from: Peer, commit: Commit) {
        let _ = (from, commit);
    }

    /// True if no lasting copy of this flow has been saved yet. Copies that others have
    /// from earlier owners must stay.
    fn needs_earlier(&self, slot: Slot) -> bool {
        let _ = slot;
        false
    }

    /// The flow is served by `to` now, under the epoch in its header; its epoch here was
    /// `old_epoch`. True if the flow stays here as a replica.
    fn departed(
        &mut self,
        flows: &mut Flows,
        slot: Slot,
        to: Peer,
        old_epoch: Epoch,
        out: &mut Outbox,
    ) -> bool {
        let _ = (flows, slot, to, old_epoch, out);
        false
    }

    /// The flow has moved here from `from` and is owned here. The previous owner keeps a
    /// copy until it hears that this runtime serves the flow.
    fn arrived(&mut self, flows: &mut Flows, slot: Slot, from: Peer) {
        let _ = (flows, slot, from);
    }

    /// True if work goes on without input: call [`flush`](Protection::flush) again soon.
    fn is_busy(&self) -> bool {
        false
    }

    /// How safe the flows are.
    fn safety(&self, flows: &Flows) -> Safety;

    /// Packets held back at this moment.
    fn held(&self) -> usize {
        0
    }

    /// Gives up every packet that is held, as at the end of the process.
    fn abandon(&mut self, out: &mut Outbox);
}
