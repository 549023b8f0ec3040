//! Planned worlds: the plan says which connections there are, and what is done to the
//! world and exactly when, in place of the seed.
//!
//! In: a [`Plan`]. Out: an [`Outcome`]. A plan does not change a world's past: two plans
//! that differ in a step after the n-th event give the same first n events. A test can
//! therefore count a run's events and then fail a runtime between any two of them. A
//! drawn world tells what it did as a plan, and does the same again when it is given that
//! plan.

use crate::conversation::Heard;
use crate::world::Report;
use holdfast_wire::{DropCounters, NodeId};

/// An end of a connection: address and port.
pub type End = ([u8; 4], u16);

/// A connection: `packets` datagrams, or chunks over TCP that the server echoes one at a
/// time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connection {
    /// TCP, or UDP.
    pub tcp: bool,
    /// Echo requests instead of datagrams. The client's port is their identifier; the
    /// server's is that plus 8.
    pub ping: bool,
    /// Datagrams and their replies are in fragments: in any order, some doubled or late,
    /// and in a lossy network now and then without one of them.
    pub large: bool,
    /// Number of packets.
    pub packets: u32,
    /// Time of its beginning, after the world's beginning, ns.
    pub start: u64,
    /// Time between two packets, ns.
    pub pause: u64,
    /// The client's end and the server's. `None`: the connection's number decides.
    pub ends: Option<(End, End)>,
}

/// A link's habits. Chances are in a thousand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Habits {
    /// Shortest and longest time that a frame takes, ns.
    pub delay: (u64, u64),
    /// Chance that a frame is lost.
    pub lose: u64,
    /// Chance that a frame arrives twice.
    pub double: u64,
    /// Chance that a frame takes ten to a hundred times as long, so that later ones
    /// overtake it.
    pub stray: u64,
    /// Chance that a frame with messages arrives again long after, at whatever
    /// incarnation is there by then.
    pub stale: u64,
}

impl Habits {
    /// Every frame arrives, once, after the same time.
    pub const CALM: Habits =
        Habits { delay: (20_000, 20_000), lose: 0, double: 0, stray: 0, stale: 0 };
}

/// A node's clock, compared with the world's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clock {
    /// Lead at the world's beginning, ns.
    pub ahead: u64,
    /// Additional speed, millionths; negative if the clock is slower.
    pub drift: i64,
}

/// Any node, in [`When::Sent`] and [`When::Reached`].
pub const ANYBODY: NodeId = NodeId::NONE;

/// The moment of a step. A step is never taken before the steps ahead of it in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Between this event (counted from 1) and the next.
    Event(u64),
    /// At this time, ns after the world's beginning.
    Time(u64),
    /// At the event boundary with this number, from 0 at the step before. Only boundaries
    /// count at which the system knows of every earlier failure and says that all flows
    /// would survive another.
    Settled(u64),
    /// At this time or later: as soon as every process runs, no link is cut, and the
    /// system says that all flows would survive a failure.
    Safe(u64),
    /// As soon as this node has sent a message with a record of this kind, after the step
    /// before.
    Sent(NodeId, u8),
    /// As soon as a message with a record of this kind has reached this node, after the
    /// step before.
    Reached(NodeId, u8),
}

/// The target of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// The runtime that owns most flows.
    Owner,
    /// A runtime of those that run, by number, round-robin.
    Number(usize),
    /// This runtime's node.
    Node(NodeId),
    /// The coordinator. A killed coordinator is away for as long as a pause says, or as
    /// the seed does, before its next incarnation begins.
    Coordinator,
    /// A state server, counted from 0. A killed server is away for as long as a pause
    /// says, or as the seed does, and begins again with nothing.
    StateServer(u16),
    /// Switches and manager of the host that serves, killed in the same way.
    Hub,
    /// Switches and manager of this host, whether it serves or not.
    Manager(u16),
    /// A host of several, with everything on it. The first has the coordinator and no
    /// runtimes.
    Host(u16),
    /// No node in particular. [`How::Slow`] then slows every runtime, every state server
    /// and the coordinator.
    World,
}

/// Which frames a cut stops: those of the node, those for it, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Node to hub.
    Out,
    /// Hub to node.
    In,
    /// Both.
    Both,
}

/// The action of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// `kill -9`.
    Kill,
    /// Stopped, and continued after so many ns. Coordinator, state servers and hubs are
    /// killed instead, and their next incarnation begins then.
    Pause(u64),
    /// A host dies, and comes back with nothing on it after so many ns.
    Away(u64),
    /// The coordinator dies in the middle of writing to its log, as soon as it has
    /// something to write.
    KillWriting,
    /// For so many ns no frame passes in this direction between the node and the hub, or
    /// between the host and the others.
    Cut(Way, u64),
    /// The links of the host's ports are down for so many ns: packets neither come nor
    /// leave there.
    Unplug(u64),
    /// The node pauses after each turn for so many turns' length, for so many ns. On a
    /// busy machine, where all nodes are slow, each pause is drawn anew: up to twice as
    /// long.
    Slow(u64, u64),
    /// The operator orders at most so many of the node's flows to move: to this runtime,
    /// or wherever there is room.
    Move(Option<NodeId>, u64),
    /// The operator takes the node out of service, and asks again while that is refused.
    Drain,
    /// The operator takes the node back into service, as soon as its drain is over.
    Restore,
    /// From now on the network loses, doubles and reorders nothing, every link is whole,
    /// and no node is slow.
    Heal,
    /// This fact holds now, or the world is called broken.
    Expect(Fact),
}

/// A fact about a world that can be seen at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// The system says that every flow would survive a failure.
    Safe,
    /// The system does not say so.
    Unsafe,
    /// The runtime's process exists.
    There,
    /// The runtime's process does not exist.
    Gone,
    /// The runtime owns flows.
    Owns,
    /// The runtime owns no flow.
    OwnsNothing,
    /// The host serves the ports of a switch.
    Serves,
}

/// A step: an action at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Its moment.
    pub when: When,
    /// Its target.
    pub whom: Whom,
    /// Its action.
    pub how: How,
}

impl Step {
    /// Earliest time of the step, if a clock decides, ns after the world's beginning.
    pub fn time(&self) -> Option<u64> {
        match self.when {
            When::Time(time) | When::Safe(time) => Some(time),
            _ => None,
        }
    }
}

/// A plan, see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The connections.
    pub connections: Vec<Connection>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The network loses, doubles and reorders nothing and takes the same time for every
    /// frame. If false, the network does what the seed says.
    pub calm: bool,
    /// Habits of the links inside the box and of those outside, in place of those that
    /// `calm` decides.
    pub habits: Option<[Habits; 2]>,
    /// Number of hosts. The first of several has the coordinator, and neither ports nor
    /// runtimes.
    pub hosts: u16,
    /// Number of switches, among which the ports are divided. Each is to be served by
    /// another one of several hosts, if there are enough. Connections take turns among
    /// switches.
    pub switches: u16,
    /// Hosts have the cluster's keys: packets between them are sealed, and a stranger on
    /// their network forges some.
    pub sealed: bool,
    /// Frames between hosts that arrive with a flipped bit, per thousand, with keys or
    /// without.
    pub damaged: u64,
    /// Number of networks that join the hosts, 1 or 2; 2 only if hosts have keys. With
    /// two, now and then one of them does not lead to a host, or from it, for a while.
    pub networks: u8,
    /// Number of runtimes.
    pub runtimes: u16,
    /// Number of flows that a runtime may own.
    pub flows: usize,
    /// Number of frames that fit into a runtime's ring, an eighth of which is kept for
    /// messages. 0: as many as the runtime has buffers.
    pub ring: usize,
    /// Clocks that differ from the world's. The manager has the switch's clock.
    pub clocks: Vec<(NodeId, Clock)>,
    /// How long a process takes to start again after a failure, ns; 0 leaves it to the
    /// seed.
    pub restart: u64,
    /// Changes of the rules, in order: the time, ns after the world's beginning, and the
    /// chain (0 or 1, of each switch) that flows take which begin from then on.
    pub rules: Vec<(u64, u16)>,
    /// Check what a protection can promise even if this one promises nothing.
    pub strict: bool,
    /// Demand liveness. A connection that does not finish is a violation, if the
    /// protection promises that it does. A number that no flow has and none can get from
    /// the state server is a violation, too.
    pub live: bool,
    /// Simulated time after which the world ends even if a connection has not finished,
    /// ns.
    pub lasts: u64,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            connections: Vec::new(),
            steps: Vec::new(),
            calm: false,
            habits: None,
            hosts: 1,
            switches: 1,
            sealed: false,
            damaged: 0,
            networks: 1,
            runtimes: 3,
            flows: 64,
            ring: 0,
            clocks: Vec::new(),
            restart: 0,
            rules: Vec::new(),
            strict: false,
            live: false,
            lasts: 20_000_000_000,
        }
    }
}

/// A packet that left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Time of leaving, ns after the world's beginning.
    pub at: u64,
    /// Source and destination of the packet as it left: addresses and ports.
    pub ends: [([u8; 4], u16); 2],
    /// IP protocol.
    pub protocol: u8,
    /// The whole frame.
    pub frame: Vec<u8>,
}

impl Exit {
    /// The number of a datagram's connection, from 0: the payload has it.
    pub fn connection(&self) -> Option<usize> {
        let seen = crate::frames::read(&self.frame)
            .filter(|seen| seen.protocol == holdfast_wire::header::proto::UDP)?;
        let id = seen.payload.first_chunk::<4>()?;
        (u32::from_be_bytes(*id) as usize).checked_sub(1)
    }
}

/// A TCP end's judgement of a reset (RFC 9293, section 3.10.7; RFC 5961, section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// The reset has the number that the end expects, and ends the connection there.
    Exact,
    /// The reset is in the window, and the end asks its sender to repeat it.
    Challenged,
    /// The reset is dropped.
    Ignored,
}

/// The outcome of a planned world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The report, as of any world. A connection that did not finish is not a violation
    /// here: see `finished`.
    pub report: Report,
    /// Per connection, whether it finished.
    pub finished: Vec<bool>,
    /// Packets that left, in order.
    pub released: Vec<Exit>,
    /// Datagrams whose sender was told that they were refused, in order: connections,
    /// from 1, and numbers of datagrams.
    pub refused: Vec<(u32, u32)>,
    /// Resets that came to ends of connections with a limit, if the end had not been
    /// reset yet, in order: connections, from 1, whether it was the client's end, and
    /// that end's judgement.
    pub resets: Vec<(u32, bool, Reset)>,
    /// Drops of all parts, including the dead ones.
    pub drops: DropCounters,
    /// Number of steps that were taken.
    pub steps: usize,
    /// The run as a plan that does the same again.
    pub plan: Plan,
    /// Failovers that the coordinator knows of. `lost`: flows that they lost, as it says.
    pub failovers: usize,
    /// Flows lost in `failovers`.
    pub lost: u64,
    /// Events until every connection had finished; all of them if one never did.
    pub quiet_from: u64,
    /// Events after which the coordinator said that every flow would survive a failure,
    /// and knew of every earlier one.
    pub settled: u64,
    /// Packets that left while no replica could be had.
    pub unprotected: u64,
    /// Messages between nodes, in order, if the world recorded them.
    pub conversation: Vec<Heard>,
}

impl Outcome {
    /// Connections that did not finish, from 0.
    pub fn unfinished(&self) -> Vec<usize> {
        (0..self.finished.len()).filter(|&at| !self.finished[at]).collect()
    }
}
