//! Where state lives, when a packet may leave, how what was lost is rebuilt.
//!
//! A [`Protection`] is one answer to each of the three questions, for one chain in one runtime. In: packets that the chain has processed,
//! records from other runtimes, changes of who is there, timeouts. Out: an [`Outbox`]. Never: I/O, a clock, a thread,
//! a look into a function's state.
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
mod parting;
mod parts;
pub mod plan;
mod reinforce;
mod released;
pub mod rescue;

pub use fence::Fence;
pub use flows::{Flows, Slot};
pub use nodes::NodeIndex;
pub use outbox::{Outbox, Record};
pub use parts::{Logged, Paged};
pub use plan::Plan;
pub use released::Released;
pub use rescue::Rescue;

pub use holdfast_wire::{Epoch, Peer};

use holdfast_wire::{DropReason, Packet};
use nfvactor::NfvActor;
use none::Unprotected;
use reinforce::Reinforce;

/// Kinds of records that protections exchange. Every body begins with the chain's number (2 bytes).
pub mod kind {
    /// A flow's state, to its replica: commit number (4), layout hash (8), the flow actor's block.
    pub const STATE: u8 = 1;
    /// To the owner: every commit up to this number (4) is saved.
    pub const SAVED: u8 = 2;
    /// The flow has ended: commit number (4), epoch (4), forward key (40).
    pub const END: u8 = 3;
    /// To the owner: this commit (4) was not saved; reason (1): a [`DropReason`](holdfast_wire::DropReason) number.
    pub const REFUSED: u8 = 4;
    /// Replica to owner: everything handed over up to this commit (4) has left.
    pub const PASSED: u8 = 5;
    /// To who may hold snapshots of the sender's earlier lives: a number (4), send those of lives up to this incarnation (4).
    pub const FETCH: u8 = 6;
    /// The answer, one of many: a number (4), layout hash (8), the flow actor's block.
    pub const RESTORED: u8 = 7;
    /// That was all: a number (4), the incarnation asked for (4).
    pub const FETCHED: u8 = 8;
    /// What has changed in a flow since the record before, to its replica: commit number (4), hash of the forward key (8), epoch (4), the version
    /// that has changed (4), and the change.
    pub const DELTA: u8 = 10;
    /// Is the copy like this? Number (4), hash of the forward key (8), epoch (4), version (4), digest (8). If not, it is refused.
    pub const CHECK: u8 = 11;
    /// What was processed of flows, in order, to who holds their copies: commit number (4), a stamp (8), and for each packet its flow's epoch (4) and its own stamp less that one
    /// (4, signed).
    pub const INPUTS: u8 = 12;
    /// To the same: commit number (4), and up to which one (4) everything that was said is in the copies.
    pub const COVERED: u8 = 13;
    /// Runtime to state server: this flow goes to another runtime: commit number (4), epoch here (4), whose it will be (2 + 4), under which epoch (4), forward key (40).
    pub const PASS: u8 = 14;
    /// Runtime to state server: what is there of this dead runtime's flows (2 + 4)?
    pub const RECALL: u8 = 15;
    /// State server to runtime: a flow to claim: a number (4), whose it was (2 + 4), layout hash (8), the flow actor's block.
    pub const DEAL: u8 = 16;
    /// The answer: the number (4); 0, or a [`DropReason`](holdfast_wire::DropReason) number plus 1 (1).
    pub const DEALT: u8 = 17;
    /// State server to runtime: of this dead runtime's flows (2 + 4) there are no more.
    pub const RECALLED: u8 = 18;
    /// State server to an owner: another one has the flow by a newer epoch: layout hash (8), the flow actor's block as that one has it.
    pub const DISPLACED: u8 = 19;
    /// Runtime to state server: what is there of this flow, whose state is absent here: forward key (40).
    pub const PAGE: u8 = 20;
    /// The answer: layout hash (8), the flow actor's block.
    pub const PAGE_IN: u8 = 21;
    /// Or: nothing. Forward key (40).
    pub const NO_PAGE: u8 = 22;
    /// The highest kind that belongs to protections.
    pub const LAST: u8 = 31;
}

/// Whether a packet can be processed here and now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The flow's state is here.
    Ready,
    /// It is on its way: park the packet; the protection says when to go on.
    Park,
    /// It cannot be.
    Drop(DropReason),
}

/// What it costs a packet to go by another runtime on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detour {
    /// Nothing: it is on the same host, where no packet is copied, or where packets leave, where each of them goes anyway.
    #[default]
    None,
    /// It crosses the network once more.
    Longer,
    /// It crosses the network twice instead of not at all: packets leave here.
    ThereAndBack,
}

/// How safe the flows are at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Safety {
    /// Flows known to have no replica of their latest state.
    pub unprotected: u64,
    /// Flows whose state is not in memory: the state server has the only copy of nearly all of these.
    pub absent: u64,
    /// States that have been fetched from the state server, since the start.
    pub fetched: u64,
    /// Replicas are being filled.
    pub resynchronising: bool,
    /// Copies that were found not to be what their flows' owner here has, since the start.
    pub differed: u64,
}

/// One answer to the three questions, for one chain in one runtime.
///
/// When packets have come the runtime says so by [`begin_batch`](Logged::begin_batch), if the switch logs them. For every packet of a flow it calls [`admit`](Protection::admit), runs the chain, and calls [`commit`](Protection::commit) or, if the chain dropped the
/// packet, [`changed`](Protection::changed), or neither if a packet that it refused has changed nothing of the flow ([`follow`](Protection::follow)); at the end of the batch it calls [`flush`](Protection::flush) and carries out the outbox.
pub trait Protection: Send {
    /// The plan that it was built by, from which follows what it promises and needs.
    fn plan(&self) -> Plan;

    /// Its part for flows whose home is a state server.
    fn paged(&self) -> Option<&dyn Paged> {
        None
    }

    /// [`paged`](Protection::paged), to be changed.
    fn paged_mut(&mut self) -> Option<&mut dyn Paged> {
        None
    }

    /// Its part for a switch that keeps a log.
    fn logged(&self) -> Option<&dyn Logged> {
        None
    }

    /// [`logged`](Protection::logged), to be changed.
    fn logged_mut(&mut self) -> Option<&mut dyn Logged> {
        None
    }

    /// May the packet be processed? Where state is paged or remote, here it is asked for.
    fn admit(&mut self, flows: &mut Flows, slot: Slot) -> Admission {
        let _ = (flows, slot);
        Admission::Ready
    }

    /// The chain is done with a packet of this flow and lets it pass: release it, hold it, or hand it over.
    /// `nondeterministic`: processing it again could come out differently.
    fn commit(&mut self, flows: &mut Flows, slot: Slot, packet: Packet, nondeterministic: bool, out: &mut Outbox);

    /// The chain dropped a packet of this flow, which had this stamp; its state may have changed all the same. `nondeterministic`: see [`commit`](Protection::commit).
    fn changed(&mut self, flows: &mut Flows, slot: Slot, stamp: u64, nondeterministic: bool);

    /// A packet of this flow is to leave that has changed nothing of it: it waits for what the flow has become before, and for nothing of its own.
    fn follow(&mut self, flows: &mut Flows, slot: Slot, packet: Packet, out: &mut Outbox) {
        self.commit(flows, slot, packet, false, out);
    }

    /// The flow is about to be removed.
    fn ended(&mut self, flows: &mut Flows, slot: Slot, out: &mut Outbox);

    /// The batch is over.
    fn flush(&mut self, flows: &mut Flows, out: &mut Outbox);

    /// What it costs a packet to leave by one of these. Told before [`set_peers`](Protection::set_peers), and when it changes.
    fn set_detours(&mut self, detours: &[(Peer, Detour)]) {
        let _ = detours;
    }

    /// The runtimes that may hold replicas now, without this one, in the coordinator's order. Who is no longer among them has failed or left, or is
    /// leaving: then it still has those that it had.
    fn set_peers(&mut self, flows: &mut Flows, peers: &[Peer], leaving: &[Peer], out: &mut Outbox);

    /// A record from another runtime, in order, without the chain's number.
    ///
    /// # Errors
    /// The reason to count if the record is not acceptable.
    fn handle_record(&mut self, flows: &mut Flows, from: Peer, kind: u8, body: &[u8], out: &mut Outbox)
    -> Result<(), DropReason>;

    /// Which flow a record is about, for records that come by the thousand: what the key's hash leads to is brought into the cache while others are acted upon.
    fn flow_of(&self, flows: &Flows, kind: u8, body: &[u8]) -> Option<u64> {
        let _ = (flows, kind, body);
        None
    }

    /// A packet that its owner handed over for release here.
    fn handle_handed(&mut self, flows: &mut Flows, from: Peer, packet: Packet, out: &mut Outbox);

    /// The runtime `dead` has failed: ask for the routes of its flows that can be recovered here (`out.claims`).
    fn recover(&mut self, flows: &mut Flows, dead: Peer, out: &mut Outbox);

    /// This runtime takes the place of `dead`, its own earlier life: fetch what others have of its flows, and ask for their routes as they
    /// come (`out.late_claims`).
    fn restore(&mut self, flows: &mut Flows, dead: Peer, out: &mut Outbox) {
        let _ = (flows, dead, out);
    }

    /// What `dead` had is not yet all with somebody who serves it, as far as this runtime can tell: its account stays open.
    fn is_recovering(&self, dead: Peer) -> bool {
        let _ = dead;
        false
    }

    /// The switch gave this runtime the flow's route, under the epoch now in its header.
    fn claimed(&mut self, flows: &mut Flows, slot: Slot);

    /// The switch refused the flow's route: it lives elsewhere under a newer epoch, or has ended, and is about to be removed here.
    fn unclaimed(&mut self, flows: &mut Flows, slot: Slot) {
        let _ = (flows, slot);
    }

    /// Has every packet of this flow that was processed here left for good? The chain processes no further one. Asked again and again until it has.
    fn has_drained(&mut self, flows: &Flows, slot: Slot, out: &mut Outbox) -> bool {
        let _ = (flows, slot, out);
        true
    }

    /// Everything that `from` handed over before has arrived: see [`Outbox::marks`].
    fn handle_mark(&mut self, from: Peer, commit: u32) {
        let _ = (from, commit);
    }

    /// No copy of this flow that lasts has been saved yet: what others have of it as it was with earlier owners is to stay.
    fn needs_earlier(&self, slot: Slot) -> bool {
        let _ = slot;
        false
    }

    /// The flow is served by `to` now, under the epoch in its header; here it had `old_epoch`. True if it stays here as a replica.
    fn departed(&mut self, flows: &mut Flows, slot: Slot, to: Peer, old_epoch: Epoch, out: &mut Outbox) -> bool {
        let _ = (flows, slot, to, old_epoch, out);
        false
    }

    /// The flow came from `from`, which keeps a copy until it knows. It is owned here.
    fn arrived(&mut self, flows: &mut Flows, slot: Slot, from: Peer) {
        let _ = (flows, slot, from);
    }

    /// Work goes on without input: call [`flush`](Protection::flush) again soon.
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
