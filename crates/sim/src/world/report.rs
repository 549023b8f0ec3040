//! The results of a world's run.

use crate::checkers::Violation;

/// Counts of what was done to a world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Processes killed.
    pub kills: u64,
    /// Processes stopped for longer than the coordinator waits, then continued.
    pub pauses: u64,
    /// Links between a process and the hub cut, one way or both.
    pub cuts: u64,
    /// Frames that a cut stopped.
    pub cut_off: u64,
    /// Times that a process was slow for a while.
    pub slowed: u64,
    /// Times that the machine was busy.
    pub starved: u64,
    /// Worlds whose nodes' clocks differed.
    pub skewed: u64,
    /// Messages that came again long after.
    pub stale: u64,
    /// Frames that a stranger on the hosts' network made of sealed ones.
    pub forged: u64,
    /// Frames between hosts with a flipped bit.
    pub damaged: u64,
    /// Frames that found a runtime's ring full.
    pub overflowed: u64,
    /// Orders to move flows.
    pub moves: u64,
    /// Flows that moved.
    pub moved: u64,
    /// States of flows that were at the state server alone and came back.
    pub fetched: u64,
    /// Runtimes taken out of service.
    pub drains: u64,
    /// Incarnations of the coordinator that were killed.
    pub coordinator_kills: u64,
    /// Incarnations of state servers that were killed.
    pub server_kills: u64,
    /// Incarnations of a hub, with switches and manager, that were killed.
    pub hub_kills: u64,
    /// Hosts that died with everything on them.
    pub host_kills: u64,
    /// Hosts that were stopped with everything on them.
    pub host_stops: u64,
    /// Terms in which one of several hosts began to serve the ports.
    pub terms: u64,
    /// Runtimes killed or stopped while there was no coordinator; counted above too.
    pub meanwhile: u64,
    /// Frames lost.
    pub lost: u64,
    /// Frames delivered twice.
    pub doubled: u64,
    /// Frames delivered after a later one.
    pub reordered: u64,
    /// Datagrams that were sent without one of their fragments.
    pub incomplete: u64,
}

impl Faults {
    /// Adds another world's counts.
    pub fn add(&mut self, other: &Faults) {
        self.kills += other.kills;
        self.pauses += other.pauses;
        self.cuts += other.cuts;
        self.cut_off += other.cut_off;
        self.slowed += other.slowed;
        self.starved += other.starved;
        self.skewed += other.skewed;
        self.stale += other.stale;
        self.forged += other.forged;
        self.damaged += other.damaged;
        self.overflowed += other.overflowed;
        self.moves += other.moves;
        self.moved += other.moved;
        self.fetched += other.fetched;
        self.drains += other.drains;
        self.coordinator_kills += other.coordinator_kills;
        self.server_kills += other.server_kills;
        self.hub_kills += other.hub_kills;
        self.host_kills += other.host_kills;
        self.host_stops += other.host_stops;
        self.terms += other.terms;
        self.meanwhile += other.meanwhile;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.reordered += other.reordered;
        self.incomplete += other.incomplete;
    }
}

/// The report of a world's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash over all events, in order.
    pub hash: u64,
    /// Events.
    pub events: u64,
    /// Faults injected.
    pub faults: Faults,
    /// Invariants broken.
    pub violations: Vec<Violation>,
    /// Connections.
    pub connections: usize,
    /// Connections that finished.
    pub finished: usize,
    /// Most packets of one flow that a failure undid, among those that had left some time
    /// before it. Only a weak protection makes it more than 0.
    pub undone: u64,
}
