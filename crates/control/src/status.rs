//! The status object: what `holdfast status --json` prints and the control socket answers.
//!
//! One definition for the process that fills it, the command that prints it, and whoever reads it (the demo, the tests). Fields are only
//! ever added; a change of meaning increases [`VERSION`].
//!
//! Each frame that comes to a box is in one counter of each of these rows, once the box is through with it:
//!
//! | frames | are as many as |
//! |---|---|
//! | that come to a port's device | the port's `received`, `lost` (all but `device_tx_…`), and `frame_too_large` of its `drops` |
//! | `received` and `originated` by all ports | `consumed` and `forwarded` by all ports, and the box's `drops` without those of the ports |
//!
//! A port is given to send what is forwarded, in fragments or whole, and the box's answers and questions for
//! neighbours: its `transmitted`, and its `drops` but `frame_too_large`. The device may lose some of the
//! transmitted frames (`device_tx_dropped`, `device_tx_errors`).
//!
//! Small differences remain. Packets wait inside: for a neighbour's address up to three seconds, for other fragments of their datagram, for a flow's state, in queues. Counters of runtimes
//! come here a few times in a second, those of devices once. The box's `drops` have messages between its processes, too, and copies of packets that are processed again after a failure; a packet that was inside a process when that ended is in none.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the object, in its field `version`.
pub const VERSION: u32 = 1;

/// The role of a worker that owns flow actors, in [`Process::role`].
pub const ROLE_RUNTIME: &str = "runtime";

/// The role that starts the manager, in [`Process::role`].
pub const ROLE_GUARD: &str = "guard";

/// The role that takes frames from the ports to the runtimes; the same process as the manager, in [`Process::role`].
pub const ROLE_SWITCH: &str = "switch";

/// The role that decides about failures and orders, in [`Process::role`].
pub const ROLE_COORDINATOR: &str = "coordinator";

/// The role that assigns numbers of pools, one by one, in [`Process::role`].
pub const ROLE_STATE_SERVER: &str = "state-server";

/// The state of a process that serves, in [`Process::state`].
pub const STATE_RUNNING: &str = "running";

/// The state of a process that has been started and has not spoken yet, in [`Process::state`].
pub const STATE_STARTING: &str = "starting";

/// The state of a coordinator or state server that has ended and is going to be started again, in [`Process::state`]. What it knew last is shown meanwhile.
pub const STATE_AWAY: &str = "away";

/// The state of a coordinator that waits to be elected, in [`Process::state`]. What another one knew last is shown meanwhile.
pub const STATE_CANDIDATE: &str = "candidate";

/// The state of a runtime that was taken out of service, in [`Process::state`].
pub const STATE_DRAINED: &str = "drained";

/// The state of a place in which a runtime is started when its cluster grows, in [`Process::state`].
pub const STATE_SPARE: &str = "spare";

/// The whole object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// Would every flow survive if one process failed now?
    pub protected: Protected,
    /// What may fail: `process`, or `host` with everything on it.
    #[serde(default = "process")]
    pub survives: String,
    /// The hosts, if several make the box, in the order of their numbers.
    #[serde(default)]
    pub hosts: Vec<Host>,
    /// Of a flow that survives a failure, the latest packets whose effects on its state may be undone: under the weakest chain's protection
    /// among those that promise anything. 0: none.
    #[serde(default)]
    pub may_forget: u32,
    /// Copies of flows that were found not to be what their owners have, in all runtimes that are there, since their start. They were made anew.
    #[serde(default)]
    pub copies_differed: u64,
    /// Flows whose state is at the state server alone, in all runtimes that are there.
    #[serde(default)]
    pub absent_flows: u64,
    /// States of flows that have been fetched from the state server, by runtimes that are there, since their start.
    #[serde(default)]
    pub fetched_states: u64,
    /// How full tables of flows are: of the switches that the host serves that answers, and of every runtime.
    #[serde(default)]
    pub flow_tables: Vec<FlowTable>,
    /// The ports, in the order of the configuration.
    #[serde(default)]
    pub ports: Vec<Port>,
    /// The service-chain rules.
    #[serde(default)]
    pub rules: Option<Rules>,
    /// How the election of a coordinator stands, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub election: Option<Election>,
    /// Every process of the cluster, the dead ones replaced by their successors.
    pub processes: Vec<Process>,
    /// Drops by reason (the names of `holdfast explain`), all parts together, since the start.
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
    /// What flows share of which each has numbers of its own, such as a NAT's ports: by chain, function and field.
    #[serde(default)]
    pub pools: Vec<Pool>,
    /// What flows have counted and measured, over the whole box: by chain, function and field.
    #[serde(default)]
    pub statistics: Vec<Statistic>,
    /// What failed since the start, oldest first.
    #[serde(default)]
    pub failovers: Vec<Failover>,
    /// The control API of the host that answers, if it listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlApi>,
}

/// How full a table of flows is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTable {
    /// Node id of the switch or runtime whose it is.
    pub id: u16,
    /// Flows in it.
    pub used: u64,
    /// Flows that it has room for; of a runtime, of all chains together.
    pub size: u64,
    /// How full it is, in 1/1000; of a runtime, the table of the chain whose is fullest.
    pub fill_permille: u16,
    /// Half-open flows, of a switch: unanswered ones, and TCP handshakes that the initiator has not completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half_open: Option<u64>,
    /// Flows of a runtime that were evicted since its start because a table was nearly full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgotten: Option<u64>,
}

impl FlowTable {
    /// Flows end before their time, so that new ones find room: from here on, in 1/1000.
    pub const NEARLY_FULL: u16 = 900;

    /// See [`FlowTable::NEARLY_FULL`].
    pub fn is_nearly_full(&self) -> bool {
        self.fill_permille >= FlowTable::NEARLY_FULL
    }
}

/// A pool, as its runtimes and whoever divides it have said last: each of them at its own time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Name of its chain.
    pub chain: String,
    /// Name of the function.
    pub function: String,
    /// Name of the pool in it.
    pub name: String,
    /// `partitioned`, or a `state-server`'s.
    pub shared: String,
    /// Numbers.
    pub size: u32,
    /// Of these, flows hold,
    pub held: u32,
    /// and the runtimes have at hand for their next flows.
    pub at_hand: u32,
    /// Where a state server assigns them: what there is for all that it knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerPool>,
}

/// A pool for all that the state server knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerPool {
    /// Nobody's.
    pub free: u32,
    /// Runtimes have them at hand.
    pub at_hand: u32,
    /// Flows have them, or had when they were last heard of.
    pub held: u32,
    /// Nobody's, and not given away for a while.
    pub resting: u32,
}

/// Numbers that every flow may change: counters, or a gauge. With a state server, what all runtimes that ever were have counted, and what those measure that live; without one, what those that live have said last, together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistic {
    /// Name of its chain.
    pub chain: String,
    /// Name of the function.
    pub function: String,
    /// Name of the statistic in it.
    pub name: String,
    /// `counters`, which only grow, or a `gauge`.
    pub kind: String,
    /// `partitioned`, or a `state-server`'s.
    pub shared: String,
    /// How many numbers it has.
    pub size: u32,
    /// The values in order. Fewer until runtimes have reported all of them.
    pub values: Vec<StatisticValue>,
}

/// One number of a statistic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatisticValue {
    /// A counter's name; of a gauge's items the number, counted from 0.
    pub name: String,
    /// What it is.
    pub value: i64,
}

impl Statistic {
    /// The number of this name, if it has been said.
    pub fn value(&self, name: &str) -> Option<i64> {
        self.values.iter().find(|value| value.name == name).map(|value| value.value)
    }
}

/// They only grow, in [`Statistic::kind`].
pub const KIND_COUNTERS: &str = "counters";

/// They grow and become less, in [`Statistic::kind`].
pub const KIND_GAUGE: &str = "gauge";

/// The runtimes divide it among themselves, in [`Pool::shared`].
pub const SHARED_PARTITIONED: &str = "partitioned";

/// A state server assigns its numbers, in [`Pool::shared`].
pub const SHARED_STATE_SERVER: &str = "state-server";

/// The control API, as it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlApi {
    /// Where it listens.
    pub listen: String,
    /// Connections that are open.
    pub connections: u32,
    /// Calls that were answered, refusals included.
    pub calls: u64,
    /// Connections and calls that were refused, by reason (the names of `holdfast explain`).
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
}

fn process() -> String {
    UNIT_PROCESS.to_owned()
}

/// Any one process may fail, in [`Status::survives`].
pub const UNIT_PROCESS: &str = "process";

/// Any one host may fail, in [`Status::survives`].
pub const UNIT_HOST: &str = "host";

/// A host that serves ports, in [`Host::state`].
pub const STATE_SERVING: &str = "serving";

/// A host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name in the configuration.
    pub name: String,
    /// `serving` the ports, `running`, or `away`: as the coordinator saw it last.
    pub state: String,
    /// It is the one that answers.
    pub is_this: bool,
    /// Of a host that two networks join with the one that answers: both.
    #[serde(default)]
    pub networks: Vec<Network>,
}

/// One of two networks to another host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The device or address by which the host that answers reaches it.
    pub device: String,
    /// What goes there arrives.
    pub leads: bool,
    /// It is the one that is used; none if neither leads there.
    pub used: bool,
}

/// Whether a single failure now would be survived by every flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protected {
    /// Every flow has its replica.
    #[serde(rename = "yes")]
    Yes,
    /// The protection does not promise it, or there is nobody left to hold a replica.
    #[serde(rename = "no")]
    No,
    /// Some flows have no replica yet.
    #[serde(rename = "re-synchronising")]
    ReSynchronising,
}

/// A port of the box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its name in the configuration.
    pub name: String,
    /// The device.
    pub device: String,
    /// How the device is reached: `afxdp`, `afpacket`, …
    pub driver: String,
    /// Its MAC address.
    pub mac: String,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// False while the device is down or gone.
    pub up: bool,
    /// Frames that came in.
    pub received: u64,
    /// Frames that went out: packets of chains, in fragments or whole, and the box's own.
    pub transmitted: u64,
    /// Received frames for the box itself that it used: ARP, neighbour discovery, ping, BFD of its routers.
    #[serde(default)]
    pub consumed: u64,
    /// Packets that went out to a neighbour: those of chains, and those that were originated; a packet in fragments once.
    #[serde(default)]
    pub forwarded: u64,
    /// Packets of the box itself that were forwarded or dropped: errors about packets of chains, BFD, and answers that could not be sent.
    #[serde(default)]
    pub originated: u64,
    /// Drops by reason, of the port itself: `frame_too_large` of frames that would have come in, all else of frames that would have gone out.
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
    /// Frames that the kernel and the device lost outside the port, by their counters (the names of `holdfast explain`), while this host serves it. A frame that
    /// would have come in is in one of them.
    #[serde(default)]
    pub lost: BTreeMap<String, u64>,
    /// Routers there that are watched, while this host serves the port.
    #[serde(default)]
    pub bfd: Vec<Bfd>,
}

/// A router that is watched (RFC 5880).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bfd {
    /// Its address.
    pub peer: String,
    /// The session's: `AdminDown`, `Down`, `Init` or `Up`.
    pub state: String,
    /// Why that changed last: `none`, `control detection time expired`, …
    pub diagnostic: String,
    /// The router's state of the session, as it said last; `Down` while it is not heard.
    pub remote_state: String,
    /// Why that changed last.
    pub remote_diagnostic: String,
    /// It was up and is dead: nothing is routed through it.
    pub dead: bool,
    /// Between packets of the box, before they are spread, microseconds.
    pub transmit_us: u32,
    /// Between packets of the router, microseconds; absent while it is not heard.
    #[serde(default)]
    pub receive_us: Option<u32>,
    /// After so long without a packet it is taken for dead, microseconds; absent while it is not heard.
    #[serde(default)]
    pub detection_us: Option<u64>,
    /// How long the state has been this one, milliseconds.
    pub since_ms: u64,
    /// How often it was up and went down, since this host serves the port.
    pub downs: u64,
    /// Why it went down last; absent if it never did.
    #[serde(default)]
    pub last_down: Option<String>,
}

/// The service-chain rules that decide about new flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Counts changes: 1 for those that the box began with.
    pub version: u64,
    /// How many there are; of several switches, at those of this host.
    pub count: usize,
    /// Every switch goes by them.
    pub in_force: bool,
}

/// The election of a coordinator, as this box's process saw it last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Election {
    /// Who leads; absent while nobody does, or nobody knows.
    #[serde(default)]
    pub leader: Option<Leader>,
    /// Milliseconds since etcd answered last; absent while it answers.
    #[serde(default)]
    pub silent_ms: Option<u64>,
    /// What is wrong with etcd, or with what lies there.
    #[serde(default)]
    pub trouble: Option<String>,
}

/// The coordinator that was elected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Host name.
    pub host: String,
    /// Process id on its host; 0 where only etcd knows it, and does not answer.
    pub pid: u32,
    /// Higher than that of any before.
    pub incarnation: u64,
}

/// One process, or one role of a process that has several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// `guard`, `manager`, `switch`, `coordinator` or `runtime`.
    pub role: String,
    /// Node id on the fabric; 0 of the guard, which is not there.
    pub id: u16,
    /// Which start of this node this is: larger than that of its predecessor, not by one. Runtimes have theirs from one counter for the whole box.
    pub incarnation: u64,
    /// Process id on its host; 0 while there is no process.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// The name of a switch, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The virtual cluster of a runtime.
    #[serde(default)]
    pub cluster: Option<String>,
    /// `starting`, `running`, `leaving`, `failed`, `drained` (by an operator's order) or `spare` (nobody is meant to be there for now); of a coordinator `running`, `candidate` or `away`.
    pub state: String,
    /// Flows that it owns (a runtime) or routes (a switch); replicas do not count.
    pub flows: u64,
    /// Packets handled since its start.
    pub packets: u64,
    /// Of a runtime: for how much of the time before its last report it had packets or messages to handle, in 1/1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_permille: Option<u16>,
    /// Its own drops by reason.
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
    /// Of a runtime: the process beside it that goes on when it is killed, where the configuration asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_standby: Option<LocalStandby>,
    /// Restarts of a process that keeps ending. Absent again once the process has lived for some seconds, or,
    /// of a runtime, serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

/// How a process that keeps ending is started again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Short lives in succession.
    pub failures: u32,
    /// Milliseconds until the next start; absent if that was made, and of a runtime where the coordinator is on another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_ms: Option<u64>,
    /// How the last life ended; empty if only another host knows it.
    pub cause: String,
}

/// A process that shares a runtime's memory and takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalStandby {
    /// Its process id; 0 while none is ready to take over.
    pub pid: u32,
    /// How often a standby has taken this runtime's place.
    pub takeovers: u64,
}

/// One failure and what was done about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failover {
    /// Node id of the runtime that failed.
    pub runtime: u16,
    /// The incarnation that failed.
    pub incarnation: u64,
    /// What was seen: `exited`, `killed by signal 9`, `no heartbeat`.
    pub cause: String,
    /// When it was seen, in nanoseconds of the box's clock.
    pub detected_at_ns: u64,
    /// Microseconds from the failure (the last sign of life, where the failure itself is not dated) to its detection.
    #[serde(default)]
    pub detection_us: Option<u64>,
    /// Microseconds from the detection until every flow that survives was served again; absent while that is not so.
    #[serde(default)]
    pub recovered_us: Option<u64>,
    /// Flows that the failed runtime owned.
    pub flows: u64,
    /// Those of them that other runtimes serve now.
    #[serde(default)]
    pub recovered: u64,
    /// Those that nobody had a replica of, known when the recovery is over.
    #[serde(default)]
    pub lost: u64,
}

impl Status {
    /// The runtimes, in the order of the list.
    pub fn runtimes(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| process.role == ROLE_RUNTIME)
    }

    /// The box's guard, if there is one.
    pub fn guard(&self) -> Option<&Process> {
        self.processes.iter().find(|process| process.role == ROLE_GUARD)
    }

    /// What is counted or measured under this name by this function.
    pub fn statistic(&self, function: &str, name: &str) -> Option<&Statistic> {
        self.statistics.iter().find(|statistic| statistic.function == function && statistic.name == name)
    }

    /// The runtime with this node id.
    pub fn runtime(&self, id: u16) -> Option<&Process> {
        self.runtimes().find(|process| process.id == id)
    }

    /// The serving runtime that owns most flows, not counting `except`.
    pub fn busiest_runtime(&self, except: Option<u16>) -> Option<&Process> {
        self.runtimes()
            .filter(|process| process.state == STATE_RUNNING && Some(process.id) != except)
            .max_by_key(|process| process.flows)
    }

    /// The failure of this incarnation of this runtime, if it was seen.
    pub fn failover(&self, runtime: u16, incarnation: u64) -> Option<&Failover> {
        self.failovers.iter().find(|failover| failover.runtime == runtime && failover.incarnation == incarnation)
    }

    /// How many packets were dropped for this reason.
    pub fn dropped(&self, reason: &str) -> u64 {
        self.drops.get(reason).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(id: u16, flows: u64, state: &str) -> Process {
        Process {
            role: ROLE_RUNTIME.into(),
            id,
            incarnation: 1,
            pid: 1,
            host: "h".into(),
            name: None,
            cluster: None,
            state: state.into(),
            flows,
            packets: 0,
            busy_permille: None,
            drops: BTreeMap::new(),
            local_standby: None,
            retry: None,
        }
    }

    #[test]
    fn reads_what_the_contract_says_and_ignores_what_later_versions_add() {
        let text = r#"{"version":1,"protected":"re-synchronising","processes":[{"role":"runtime","id":16,"incarnation":2,"pid":7,"host":"h",
            "state":"running","flows":3,"packets":9,"drops":{"no_flow":1},"colour":"red"}],"drops":{"no_flow":1},
            "failovers":[{"runtime":16,"incarnation":1,"cause":"killed by signal 9","detected_at_ns":5,"detection_us":90,"flows":3}]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!(status.protected, Protected::ReSynchronising);
        assert_eq!(status.dropped("no_flow"), 1);
        assert_eq!(status.dropped("fenced"), 0);
        assert_eq!(status.failover(16, 1).unwrap().recovered_us, None);
        assert!(status.failover(16, 2).is_none());
        assert_eq!(serde_json::to_value(Protected::Yes).unwrap(), "yes");
        assert_eq!(serde_json::to_value(Protected::No).unwrap(), "no");
    }

    #[test]
    fn the_busiest_runtime_is_one_that_serves() {
        let mut status = Status {
            survives: process(),
            hosts: Vec::new(),
            version: VERSION,
            protected: Protected::Yes,
            may_forget: 0,
            copies_differed: 0,
            absent_flows: 0,
            fetched_states: 0,
            flow_tables: Vec::new(),
            ports: Vec::new(),
            rules: None,
            election: None,
            processes: vec![runtime(16, 5, STATE_RUNNING), runtime(17, 9, "failed"), runtime(18, 2, STATE_RUNNING)],
            drops: BTreeMap::new(),
            pools: Vec::new(),
            statistics: Vec::new(),
            failovers: Vec::new(),
            control: None,
        };
        assert_eq!(status.busiest_runtime(None).unwrap().id, 16);
        assert_eq!(status.busiest_runtime(Some(16)).unwrap().id, 18);
        status.processes[0].role = "switch".into();
        assert_eq!(status.busiest_runtime(None).unwrap().id, 18);
    }
}
