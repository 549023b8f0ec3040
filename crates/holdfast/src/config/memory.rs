//! Memory that a configuration's limits allow, computed before any flow exists.
//!
//! In: a plan. Out: bytes, by part. [`Flows::memory_of`]
//! and [`Switch::memory_of`] give what a table of so many flows takes. The only estimate
//! is that every flow belongs to the chain with the largest flows. Tables take memory as
//! flows arrive. The memory of a process without flows is not included.

use super::chains::ChainPlan;
use super::plan::Plan;
use holdfast_node::switch::Switch;
use holdfast_protection::Flows;
use holdfast_wire::BUFFER_LEN;
use serde::Serialize;

/// Bytes that a box takes for all flows that its limits let it have, over all its hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// As many flows as all switches together may have.
    pub flows: usize,
    /// Routes, of all switches.
    pub switches: usize,
    /// Flow state of all runtimes together: each flow once at its owner, and once more
    /// where another runtime holds its replica.
    pub runtimes: usize,
    /// Flow state of a runtime that owns as many flows as it may and holds replicas of as
    /// many. A runtime does not return memory that it has taken.
    pub runtime_at_most: usize,
    /// Flow state at the state servers, for chains whose flows have their home there.
    pub state_servers: usize,
    /// Packet logs of the switches, for runtimes that may have to replay packets.
    pub logs_at_most: usize,
    /// Packet buffers of each host.
    pub buffers_at_most: usize,
}

impl Memory {
    /// For the chains of this plan.
    pub fn of(plan: &Plan) -> Memory {
        let limits = plan.limits;
        let switches = plan.switches.len().max(1);
        let flows = limits.flows * switches;
        let state = |chain: &ChainPlan| chain.layout.size;
        let slots = |chain: &ChainPlan| chain.protection.slots_per_flow();
        let largest =
            |bytes: &dyn Fn(&ChainPlan) -> usize| plan.chains.iter().map(bytes).max().unwrap_or(0);
        let logs = plan.chains.iter().zip(0..).map(|(chain, number)| {
            let runtimes = plan.clusters.iter().filter(|cluster| cluster.chains.contains(&number));
            chain.protection.log_size()
                * runtimes.map(|cluster| usize::from(cluster.max)).sum::<usize>()
        });
        Memory {
            flows,
            switches: Switch::memory_of(limits.flows, &plan.switch_limits()) * switches,
            runtimes: largest(&|chain| Flows::memory_of(flows * slots(chain), state(chain))),
            runtime_at_most: largest(&|chain| {
                Flows::memory_of(limits.flows * slots(chain), state(chain))
            }),
            state_servers: largest(&|chain| {
                if chain.protection.is_paged() { Flows::memory_of(flows, state(chain)) } else { 0 }
            }),
            logs_at_most: logs.sum(),
            buffers_at_most: limits.buffers as usize * BUFFER_LEN,
        }
    }

    /// Bytes for all flows, on all hosts.
    pub fn of_flows(&self) -> usize {
        self.switches + self.runtimes + self.state_servers
    }

    /// Bytes for a box on a single host.
    pub fn all(&self) -> usize {
        self.of_flows() + self.logs_at_most + self.buffers_at_most
    }
}
