//! Every node's own clock. The time of one clock means nothing to another node.

use super::hosts::Site;
use super::{BEGIN, World};
use crate::plan::{Clock, Plan};
use holdfast_wire::NodeId;

const MILLION: i128 = 1_000_000;

fn forward(clock: Clock, now: u64) -> u64 {
    let passed = i128::from(now) - i128::from(BEGIN);
    let local = i128::from(BEGIN)
        + i128::from(clock.ahead)
        + passed * (MILLION + i128::from(clock.drift)) / MILLION;
    local.clamp(0, i128::from(u64::MAX)) as u64
}

/// The first moment of the world at which the clock shows at least so much.
fn backward(clock: Clock, local: u64) -> u64 {
    let speed = MILLION + i128::from(clock.drift);
    let passed = i128::from(local) - i128::from(clock.ahead) - i128::from(BEGIN);
    let now = i128::from(BEGIN) + (passed * MILLION).div_euclid(speed) + 1;
    now.clamp(0, i128::from(u64::MAX)) as u64
}

fn clock_of(plan: &Plan, node: NodeId) -> Clock {
    plan.clocks.iter().find(|(of, _)| *of == node).map_or(Clock::default(), |(_, clock)| *clock)
}

/// The node whose clock a host has: the switch with one host, the host's manager with
/// several.
fn clock_node(hosts: u16, at: Site) -> NodeId {
    if hosts > 1 { NodeId::manager(at as u16) } else { NodeId::SWITCH }
}

/// Time that a host's clock shows when the world begins.
pub(super) fn of_host_at_beginning(plan: &Plan, at: Site) -> u64 {
    at_beginning(plan, clock_node(plan.hosts, at))
}

/// Time that this node's clock shows when the world begins.
pub(super) fn at_beginning(plan: &Plan, node: NodeId) -> u64 {
    forward(clock_of(plan, node), BEGIN)
}

impl World {
    /// Time that this node's clock shows.
    pub(super) fn local(&self, node: NodeId) -> u64 {
        forward(clock_of(&self.plan, node), self.now)
    }

    /// Time that a host's clock shows.
    pub(super) fn host_time(&self, at: Site) -> u64 {
        self.local(clock_node(self.plan.hosts, at))
    }

    /// The world's time at which a host's clock shows `local`.
    pub(super) fn host_world_time(&self, at: Site, local: u64) -> u64 {
        self.world_time(clock_node(self.plan.hosts, at), local)
    }

    pub(super) fn coordinator_time(&self) -> u64 {
        self.local(NodeId::COORDINATOR)
    }

    /// The world's time at which this node's clock shows `local`.
    pub(super) fn world_time(&self, node: NodeId, local: u64) -> u64 {
        let clock = clock_of(&self.plan, node);
        match local {
            u64::MAX => u64::MAX,
            _ if clock == Clock::default() => local,
            _ => backward(clock, local),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node sets a timer. When the world wakes it, its clock shows that time; shortly
    /// before it did not.
    #[test]
    fn a_node_is_woken_when_its_own_clock_says_so() {
        for drift in [-200, -1, 0, 7, 200] {
            for ahead in [0, 1, 86_400_000_000_000] {
                let clock = Clock { ahead, drift };
                for passed in [1, 999_999, 1_000_000_000, 60_000_000_001] {
                    let local = forward(clock, BEGIN + passed);
                    let woken = backward(clock, local);
                    assert!(forward(clock, woken) >= local, "{clock:?}, {passed}");
                    assert!(forward(clock, woken - 3) < local, "{clock:?}, {passed}");
                }
            }
        }
    }
}
