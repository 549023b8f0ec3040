//! A world that is told what to do: which connections, what is done to it and exactly when, instead of what its seed would draw.
//!
//! In: a [`Plan`]. Out: an [`Outcome`]. A plan changes nothing of a world's past: two plans that differ in a step after the n-th event
//! give the same first n events, so that a test can count a run's events and then fail a runtime between any two of them. A world that was drawn
//! tells what it did as a plan, and does the same again when it is given that.

use crate::conversation::Heard;
use crate::world::Report;
use holdfast_node::address::NodeId;
use holdfast_wire::DropCounters;

/// The end of a connection: address and port.
pub type End = ([u8; 4], u16);

/// One connection: `packets` datagrams, or chunks over TCP that the server echoes one at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connection {
    /// TCP, or UDP.
    pub tcp: bool,
    /// Echo requests instead of datagrams. The client's port is their identifier; the server's is
    /// that plus 8.
    pub ping: bool,
    /// Datagrams and their replies are in fragments: in any order, some doubled or late, and in a
    /// lossy network now and then without one of them.
    pub large: bool,
    /// How many.
    pub packets: u32,
    /// When it begins, after the world's beginning, ns.
    pub start: u64,
    /// Between two packets, ns.
    pub pause: u64,
    /// The client's and the server's; by its number if there are none.
    pub ends: Option<(End, End)>,
}

/// A link's habits. Chances are in a thousand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Habits {
    /// Shortest and longest time that a frame takes, ns.
    pub delay: (u64, u64),
    /// Frames that are lost.
    pub lose: u64,
    /// Frames that come twice.
    pub double: u64,
    /// Frames that take ten to a hundred times as long, so that later ones overtake them.
    pub stray: u64,
    /// Frames with messages that come again long after, whoever lives there by then.
    pub stale: u64,
}

impl Habits {
    /// Every frame arrives, once, after the same time.
    pub const CALM: Habits = Habits { delay: (20_000, 20_000), lose: 0, double: 0, stray: 0, stale: 0 };
}

/// How a node's clock differs from the world's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clock {
    /// At the world's beginning, ns.
    pub ahead: u64,
    /// How much faster it goes, or slower, millionths.
    pub drift: i64,
}

/// In [`When::Sent`] and [`When::Reached`]: whoever it is.
pub const ANYBODY: NodeId = 0;

/// When a step is taken. It is never taken before the steps ahead of it in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Between this event (counted from 1) and the next.
    Event(u64),
    /// At this time, ns after the world's beginning.
    Time(u64),
    /// At this event boundary (counted from 0) of those at which the system knows of every earlier failure and says that all flows
    /// would survive another.
    Settled(u64),
    /// At this time, or as soon after it as every process runs, no link is cut, and the system says that all flows would survive a failure.
    Safe(u64),
    /// As soon as this node has sent a message with a record of this kind, after the step before.
    Sent(NodeId, u8),
    /// As soon as one has reached it.
    Reached(NodeId, u8),
}

/// Whom it happens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// The runtime that owns most flows.
    Owner,
    /// One of those there are, by number, round-robin.
    Number(usize),
    /// This runtime.
    Node(NodeId),
    /// The coordinator. It is away for as long as a pause says, or as the seed does, and then begins a new life.
    Coordinator,
    /// One of the state servers, from 0. It is away for as long as a pause says, or as the seed does, and begins again with nothing.
    StateServer(u16),
    /// Switch and manager, in the same way: of several hosts, those of the one that serves.
    Hub,
    /// Switch and manager of this host, whether it serves or not.
    Manager(u16),
    /// One of several hosts, with everything on it. The first has the coordinator and no runtimes.
    Host(u16),
    /// No node in particular. [`How::Slow`] then slows every runtime, every state server and the
    /// coordinator.
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

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// `kill -9`.
    Kill,
    /// Stopped, and continued after so many ns. Coordinator and hub are killed, and their next life begins then.
    Pause(u64),
    /// A host dies, and comes back with nothing on it after so many ns.
    Away(u64),
    /// The coordinator dies in the middle of writing something down, as soon as it has to.
    KillWriting,
    /// No frame goes this way between it and the hub, or between the host and the others, for so many ns.
    Cut(Way, u64),
    /// The links of the host's ports are down for so many ns: packets neither come nor leave there.
    Unplug(u64),
    /// After each turn the node pauses for so many times a turn's length, for so many ns. On a busy
    /// machine, where all are slow, each pause is drawn anew: up to twice as long.
    Slow(u64, u64),
    /// The operator wants at most so many of its flows to move, there or wherever there is room.
    Move(Option<NodeId>, u64),
    /// The operator takes it out of service; if that is refused he asks again until it is not.
    Drain,
    /// The operator takes it back into service, as soon as it is out of it.
    Restore,
    /// From now on the network loses, doubles and reorders nothing, every link is whole and nobody slow.
    Heal,
    /// This is so now, or the world is called broken.
    Expect(Fact),
}

/// What can be seen of a world at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// The system says that every flow would survive a failure.
    Safe,
    /// It does not.
    Unsafe,
    /// The runtime's process is there.
    There,
    /// It is not.
    Gone,
    /// The runtime owns flows.
    Owns,
    /// It owns none.
    OwnsNothing,
    /// The host serves the ports of a switch.
    Serves,
}

/// One thing that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// When.
    pub when: When,
    /// To whom.
    pub whom: Whom,
    /// What.
    pub how: How,
}

impl Step {
    /// When at the earliest, if a clock says it, ns after the world's beginning.
    pub fn time(&self) -> Option<u64> {
        match self.when {
            When::Time(time) | When::Safe(time) => Some(time),
            _ => None,
        }
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The connections.
    pub connections: Vec<Connection>,
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// A network that loses, doubles and reorders nothing and takes the same time for every frame; otherwise it does what the seed says.
    pub calm: bool,
    /// The habits of the links inside the box and of those outside, if neither.
    pub habits: Option<[Habits; 2]>,
    /// Hosts: one, or several. Of several the first has the coordinator, and neither ports nor runtimes.
    pub hosts: u16,
    /// Switches among which the ports are divided: of several hosts each is to be served by another one, if there are enough. Connections take turns among them.
    pub switches: u16,
    /// Hosts have the cluster's keys: packets between them are sealed, and somebody on their network forges some.
    pub sealed: bool,
    /// Frames between hosts that arrive with a flipped bit, per thousand, with keys or without.
    pub damaged: u64,
    /// Networks that join the hosts, 1 or 2; two of hosts that have keys only. Now and then one of two leads to a host, or from it, no more, for a while.
    pub networks: u8,
    /// Runtimes.
    pub runtimes: u16,
    /// Flows that a runtime may own.
    pub flows: usize,
    /// Frames that fit into a runtime's ring; an eighth of it is kept for messages. 0: as many as it has buffers.
    pub ring: usize,
    /// Clocks that differ from the world's. The switch's is the manager's, too.
    pub clocks: Vec<(NodeId, Clock)>,
    /// How long a process takes to start again after a failure, ns; 0 leaves it to the seed.
    pub restart: u64,
    /// Changes of the rules, in order: when, ns after the world's beginning, and the chain (0 or 1; of several switches, of each) that all flows take which begin from then on.
    pub rules: Vec<(u64, u16)>,
    /// Check what a protection promises even if this one promises nothing.
    pub strict: bool,
    /// A connection that does not finish is a violation, if the protection promises that it does; and so is a state server's number that no flow has and none can get.
    pub live: bool,
    /// Simulated time after which the world ends even if a connection has not finished, ns.
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
    /// When, ns after the world's beginning.
    pub at: u64,
    /// Source and destination, addresses and ports, as it left.
    pub ends: [([u8; 4], u16); 2],
    /// IP protocol.
    pub protocol: u8,
    /// All of it.
    pub frame: Vec<u8>,
}

impl Exit {
    /// The number of the connection (from 0) that a datagram belongs to: its payload says so.
    pub fn connection(&self) -> Option<usize> {
        let seen = crate::frames::read(&self.frame).filter(|seen| seen.protocol == holdfast_wire::header::proto::UDP)?;
        let id = seen.payload.first_chunk::<4>()?;
        (u32::from_be_bytes(*id) as usize).checked_sub(1)
    }
}

/// A TCP end's judgement of a reset (RFC 9293, section 3.10.7; RFC 5961, section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// It has the number that the end expects, and ends the connection there.
    Exact,
    /// It is in the window, and its sender is asked to say so again.
    Challenged,
    /// It is dropped.
    Ignored,
}

/// What a planned world gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// As of any world. A connection that did not finish is not a violation here: see `finished`.
    pub report: Report,
    /// Per connection, whether it finished.
    pub finished: Vec<bool>,
    /// What left, in order.
    pub released: Vec<Exit>,
    /// Of whose datagrams their sender was told that they were refused: connections, from 1, and numbers of datagrams, in order.
    pub refused: Vec<(u32, u32)>,
    /// Resets that came to ends of connections with a limit that had been reset by none yet, in order:
    /// connections, from 1, whether it was the client's end, and what that made of it.
    pub resets: Vec<(u32, bool, Reset)>,
    /// Drops of all parts, the dead included.
    pub drops: DropCounters,
    /// Steps that were taken.
    pub steps: usize,
    /// What was done, as a plan that does it again.
    pub plan: Plan,
    /// Failovers that the coordinator knows of, and flows that were lost by them, as it says.
    pub failovers: usize,
    /// See `failovers`.
    pub lost: u64,
    /// Events until every connection had finished; all of them if one never did.
    pub quiet_from: u64,
    /// Events after which the coordinator said that every flow would survive a failure.
    pub settled: u64,
    /// Packets that left while no replica could be had.
    pub unprotected: u64,
    /// Messages between nodes, in order, if the world was listened to.
    pub conversation: Vec<Heard>,
}
