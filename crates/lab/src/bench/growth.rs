//! `holdfast bench growth`: the cost of moving flows, and of recovering from a death, in
//! clusters of more and more runtimes.
//!
//! A whole box runs in one thread: coordinator, hub and the wanted number of runtimes,
//! with as many flows each and a simulated clock. A step of that clock lasts as long as
//! the turn of the busiest part, and at least as long as a frame's way: as if every part
//! had a core to itself. The times are thus a model's, computed from measured work; their
//! growth is what counts. NFVactor's evaluation ends at some ten runtimes.
//!
//! A row counts only if every flow has one owner, at the right place, to which the
//! switch's route leads, and everything is protected again.

use super::bench_box::{MakeChain, first_packet};
use super::traffic::FRAME_LEN;
use holdfast_node::channel::{FabricConfig, Overheard};
use holdfast_node::coordinator::{ClusterConfig, Coordinator, CoordinatorConfig, HostsConfig};
use holdfast_node::hub::{Hub, HubOut};
use holdfast_node::manager::{HostOrder, Manager};
use holdfast_node::message::{Order, Protected};
use holdfast_node::pools;
use holdfast_node::rules::Rule;
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_node::switch::{Switch, SwitchConfig, SwitchLimits};
use holdfast_protection::{Peer, Plan as Preset};
use holdfast_wire::selector::Selector;
use holdfast_wire::{FlowKey, MemoryPool, NodeId, Packet, PacketPool};
use serde::Serialize;
use std::time::Instant;

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Sizes of the cluster.
    pub runtimes: Vec<u16>,
    /// Flows of each runtime.
    pub flows: usize,
}

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// Runtimes of the cluster.
    pub runtimes: u16,
    /// Flows of the whole cluster.
    pub flows: usize,
    /// Bytes per flow of the tables of switch and runtimes, once all flows are open.
    pub table_bytes_per_flow: f64,
    /// Time from the first start until every runtime knew every other one, ms.
    pub start_milliseconds: f64,
    /// Flows that one runtime gave to another.
    pub moved: usize,
    /// Time from the order until the last flow had gone, ms.
    pub move_milliseconds: f64,
    /// Work of all parts for the move, per flow, ns.
    pub move_ns_per_flow: f64,
    /// Flows of the runtime that was killed.
    pub recovered: usize,
    /// Runtimes that took over these flows.
    pub heirs: usize,
    /// Time from the death until the last flow was served elsewhere, ms.
    pub recover_milliseconds: f64,
    /// Work of all parts for the recovery, per flow, ns.
    pub recover_ns_per_flow: f64,
    /// The coordinator's part of this work, ms.
    pub coordinator_milliseconds: f64,
    /// The part of hub and switch, ms.
    pub hub_milliseconds: f64,
    /// Time from the death until the runtime was back and everything protected again, ms.
    pub safe_milliseconds: f64,
    /// Bytes of messages between all parts in that time, per recovered flow.
    pub message_bytes_per_flow: f64,
}

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
/// Time of a frame on its way, ns.
const STEP: u64 = 5 * MICROSECOND;
/// Time limit of every wait, ns.
const LIMIT: u64 = 120_000 * MILLISECOND;
const BUFFERS: usize = 131_072;
const OPENED_AT_ONCE: usize = 64;

/// Runs the plan.
///
/// # Errors
/// The result is wrong; no time counts then.
pub fn run(
    plan: &Plan,
    make: &dyn Fn(usize) -> Result<holdfast_nf::Chain, String>,
) -> Result<Vec<Row>, String> {
    let rows = plan.runtimes.iter().map(|runtimes| {
        let flows = usize::from(*runtimes) * plan.flows;
        // A fifth more than needed: a pool is divided into blocks.
        let make = move || make(flows + flows / 5);
        measure(*runtimes, plan.flows, &make)
            .map_err(|error| format!("{runtimes} runtimes: {error}"))
    });
    rows.collect()
}

struct Process {
    peer: Peer,
    runtime: Runtime,
    rx: Vec<Packet>,
    due: u64,
}

/// Work, ns.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    all: u64,
    coordinator: u64,
    hub: u64,
    message_bytes: u64,
}

impl Work {
    fn since(self, before: Work) -> Work {
        Work {
            all: self.all - before.all,
            coordinator: self.coordinator - before.coordinator,
            hub: self.hub - before.hub,
            message_bytes: self.message_bytes - before.message_bytes,
        }
    }
}

struct Cluster<'a> {
    make: MakeChain<'a>,
    flows: usize,
    now: u64,
    hub: Hub,
    out: HubOut,
    coordinator: Coordinator,
    me: Peer,
    coordinator_due: u64,
    /// By node number, from the first runtime on.
    processes: Vec<Option<Process>>,
    pool: MemoryPool,
    tx: Vec<Packet>,
    released: usize,
    work: Work,
}

fn fabric() -> FabricConfig {
    FabricConfig::default()
}

/// The runtime's place among the processes.
fn place_of(peer: Peer) -> usize {
    peer.node.runtime_number().map_or(usize::MAX, usize::from)
}

fn elapsed(began: Instant) -> u64 {
    began.elapsed().as_nanos() as u64
}

impl<'a> Cluster<'a> {
    fn new(count: u16, flows: usize, make: MakeChain<'a>) -> Result<Cluster<'a>, String> {
        let mut chain = make()?;
        let (layout, pools) = (chain.layout().hash, pools::of_chain(0, &mut chain));
        let all = usize::from(count) * flows;
        let switch = Switch::new(SwitchConfig {
            me: Peer { node: NodeId::SWITCH, incarnation: 1 },
            number: 1,
            flows: all + all / 4 + 1024,
            limits: SwitchLimits::default(),
            seed: 7,
            tick_interval: 50 * MILLISECOND,
            timeout: 3_000 * MILLISECOND,
            fabric: fabric(),
            logs: Vec::new(),
            succeeds: false,
        });
        let me = Peer { node: NodeId::COORDINATOR, incarnation: 1 };
        let mut hub = Hub::new(
            vec![switch],
            Manager::new(Peer { node: NodeId::MANAGER, incarnation: 1 }, fabric()),
        );
        hub.handle_coordinator(me);
        let now = MILLISECOND;
        let config = CoordinatorConfig {
            me,
            hosts: HostsConfig::one(),
            names: Vec::new(),
            clusters: ClusterConfig::only(count, 1, true),
            rules: vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }],
            hang_timeout: 1_000 * MILLISECOND,
            start_timeout: 10_000 * MILLISECOND,
            first_incarnation: 1,
            pools,
            state_servers: 0,
            layouts: vec![layout],
            fabric: fabric(),
        };
        Ok(Cluster {
            make,
            flows,
            now,
            hub,
            out: HubOut::default(),
            coordinator: Coordinator::new(config, now),
            me,
            coordinator_due: 0,
            processes: (0..count).map(|_| None).collect(),
            pool: MemoryPool::new(BUFFERS),
            tx: Vec::new(),
            released: 0,
            work: Work::default(),
        })
    }

    fn process(&self, at: usize) -> Option<&Process> {
        self.processes.get(at).and_then(Option::as_ref)
    }

    fn owned(&self, at: usize) -> usize {
        self.process(at)
            .and_then(|process| process.runtime.flows(0))
            .map_or(0, |flows| flows.owned())
    }

    fn all_owned(&self) -> usize {
        (0..self.processes.len()).map(|at| self.owned(at)).sum()
    }

    /// Bytes of the tables of switch and runtimes.
    fn memory(&self) -> usize {
        let runtimes = self.processes.iter().flatten().map(|process| process.runtime.memory());
        self.hub.switch().memory() + runtimes.sum::<usize>()
    }

    fn is_safe(&self) -> bool {
        self.coordinator.is_ready() && self.coordinator.protected() == Protected::Yes
    }

    /// Gives every part that has work a turn.
    fn step(&mut self) -> Result<(), String> {
        let mut longest = self.turn_coordinator();
        let began = Instant::now();
        self.hub.turn(self.now, &mut self.out, &mut self.pool);
        let mut of_hub = elapsed(began);
        self.deliver()?;
        for at in 0..self.processes.len() {
            let Some(process) = &mut self.processes[at] else { continue };
            if process.rx.is_empty() && self.now < process.due {
                continue;
            }
            let began = Instant::now();
            process.runtime.turn(&mut process.rx, &mut self.tx, &mut self.pool, self.now);
            process.due = process.runtime.poll_timeout().unwrap_or(u64::MAX);
            let took = elapsed(began);
            self.work.all += took;
            longest = longest.max(took);
            let peer = process.peer;
            for frame in &self.tx {
                self.work.message_bytes += bytes_of_messages(frame.bytes());
            }
            let began = Instant::now();
            self.hub.handle_frames(peer, &mut self.tx, self.now, &mut self.out, &mut self.pool);
            of_hub += elapsed(began);
            self.deliver()?;
        }
        self.work.hub += of_hub;
        self.work.all += of_hub;
        self.now += longest.max(of_hub).max(STEP);
        Ok(())
    }

    fn turn_coordinator(&mut self) -> u64 {
        if self.now < self.coordinator_due {
            return 0;
        }
        let began = Instant::now();
        self.coordinator.handle_records(self.now);
        self.coordinator.handle_timeout(self.now);
        self.coordinator.poll_log();
        self.coordinator.logged();
        let Cluster { coordinator, pool, tx, .. } = self;
        coordinator.fabric().poll_transmit(self.now, |frame| {
            let Some(mut packet) = pool.take() else { return false };
            if packet.copy_from(frame) {
                tx.push(packet);
            } else {
                pool.put(packet);
            }
            true
        });
        let due = coordinator.fabric().poll_timeout().unwrap_or(u64::MAX);
        self.coordinator_due = coordinator.poll_timeout().min(due);
        let took = elapsed(began);
        self.work.coordinator += took;
        self.work.all += took;
        for frame in &self.tx {
            self.work.message_bytes += bytes_of_messages(frame.bytes());
        }
        self.hub.handle_frames(self.me, &mut self.tx, self.now, &mut self.out, &mut self.pool);
        took
    }

    /// Delivers the hub's output.
    fn deliver(&mut self) -> Result<(), String> {
        for (peer, packet) in self.out.to_runtime.drain(..) {
            if peer.node == NodeId::COORDINATOR {
                let began = Instant::now();
                self.work.message_bytes += bytes_of_messages(packet.bytes());
                self.coordinator.handle_frame(packet.bytes(), self.now);
                let took = elapsed(began);
                self.work.coordinator += took;
                self.work.all += took;
                self.coordinator_due = 0;
                self.pool.put(packet);
                continue;
            }
            let process = self.processes.get_mut(place_of(peer)).and_then(Option::as_mut);
            match process.filter(|process| process.peer == peer) {
                Some(process) => process.rx.push(packet),
                None => self.pool.put(packet),
            }
        }
        for (_, packet) in self.out.released.drain(..) {
            self.released += 1;
            self.pool.put(packet.into_inner());
        }
        let orders: Vec<HostOrder> = self.out.orders.drain(..).collect();
        for order in orders {
            match order {
                HostOrder::Start(peer) => self.start(peer)?,
                HostOrder::Stop(peer) => self.kill(peer),
                HostOrder::Fence(_) | HostOrder::Serve(..) | HostOrder::Retire(_) => {}
            }
        }
        Ok(())
    }

    fn start(&mut self, peer: Peer) -> Result<(), String> {
        // Room for as many replicas as flows, and twice that after another runtime's
        // flows have come.
        let config = RuntimeConfig {
            me: peer,
            flows: self.flows * 4 + 64,
            seed: 7,
            report_interval: 100 * MILLISECOND,
            fabric: fabric(),
        };
        let protection = Preset::NFVACTOR.build();
        let spec = ChainSpec {
            name: "bench".to_owned(),
            switch: NodeId::SWITCH,
            chain: (self.make)()?,
            protection,
        };
        let process =
            Process { peer, runtime: Runtime::new(config, vec![spec]), rx: Vec::new(), due: 0 };
        let at = place_of(peer);
        *self.processes.get_mut(at).ok_or("a runtime was to start that nobody asked for")? =
            Some(process);
        self.hub.handle_started(peer);
        Ok(())
    }

    fn kill(&mut self, peer: Peer) {
        let at = place_of(peer);
        let Some(mut process) = self
            .processes
            .get_mut(at)
            .and_then(|slot| slot.take_if(|process| process.peer == peer))
        else {
            return;
        };
        process.rx.drain(..).for_each(|packet| self.pool.put(packet));
        process.runtime.abandon(&mut self.pool);
        self.hub.handle_ended(peer);
    }

    /// Advances until the condition holds. Returns the time, ns.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) -> Result<u64, String> {
        let began = self.now;
        while !is_so(self) {
            self.step()?;
            if self.now - began > LIMIT {
                return Err(format!("{what} did not come in {} s", LIMIT / MILLISECOND / 1000));
            }
        }
        Ok(self.now - began)
    }

    fn send(&mut self, frame: &[u8; FRAME_LEN]) -> Result<(), String> {
        let mut packet = self.pool.take().ok_or("no buffer is free")?;
        let fits = packet.copy_from(frame);
        let key = if fits && packet.parse().is_ok() { FlowKey::of(&packet) } else { None };
        self.hub.handle_packet(0, key.ok_or("a packet of the plan's is none")?, packet);
        Ok(())
    }

    /// Opens all flows: the switch spreads them over the runtimes.
    fn open(&mut self) -> Result<(), String> {
        let all = self.flows * self.processes.len();
        for flow in 0..all {
            self.send(&first_packet(flow))?;
            if flow % OPENED_AT_ONCE == OPENED_AT_ONCE - 1 {
                self.step()?;
            }
        }
        self.until("the first packet of every flow", |cluster| {
            cluster.released >= all && cluster.is_safe()
        })?;
        self.check(all)
    }

    /// Checks that every flow has one owner, to which its route leads.
    fn check(&self, all: usize) -> Result<(), String> {
        let (owned, routes) = (self.all_owned(), self.hub.switch().len());
        if owned != all || routes != all {
            return Err(format!("of {all} flows {owned} have an owner, and {routes} a route"));
        }
        for process in self.processes.iter().flatten() {
            let owned = process.runtime.flows(0).map_or(0, |flows| flows.owned());
            let routes = self.hub.switch().routes_to(process.peer);
            if owned != routes {
                return Err(format!(
                    "runtime {} owns {owned} flows, and {routes} routes lead there",
                    process.peer.node
                ));
            }
        }
        Ok(())
    }
}

/// Bytes of a frame, if it carries messages.
fn bytes_of_messages(frame: &[u8]) -> u64 {
    if Overheard::read(frame).is_some() { frame.len() as u64 } else { 0 }
}

fn milliseconds(time: u64) -> f64 {
    time as f64 / MILLISECOND as f64
}

fn measure(count: u16, flows: usize, make: MakeChain<'_>) -> Result<Row, String> {
    if count < 3 || flows == 0 {
        return Err(
            "there is nothing to measure: three runtimes at least, with a flow each".to_owned()
        );
    }
    let all = usize::from(count) * flows;
    let mut cluster = Cluster::new(count, flows, make)?;
    let start = cluster.until("the start of all runtimes", Cluster::is_safe)?;
    cluster.open()?;
    let memory = cluster.memory();

    let (moved, before) = (cluster.owned(0), cluster.work);
    let there = cluster.owned(1);
    let order = Order::Move {
        from: NodeId::FIRST_RUNTIME,
        to: Some(NodeId::runtime(1)),
        limit: u64::MAX,
        selector: "any".to_owned(),
    };
    cluster.hub.manager.order(order);
    let move_time = cluster.until("the last flow's move", |cluster| {
        cluster.owned(0) == 0 && cluster.owned(1) == there + moved
    })?;
    let move_work = cluster.work.since(before);
    cluster.until("safety after the move", Cluster::is_safe)?;
    cluster.check(all)?;

    let dead = usize::from(count) / 2;
    let (recovered, before) = (cluster.owned(dead), cluster.work);
    let owned: Vec<usize> = (0..usize::from(count)).map(|at| cluster.owned(at)).collect();
    let peer = cluster.process(dead).ok_or("there is no runtime to kill")?.peer;
    cluster.kill(peer);
    let recover_time =
        cluster.until("the recovery of every flow", |cluster| cluster.all_owned() == all)?;
    let recover_work = cluster.work.since(before);
    let heirs = (0..usize::from(count)).filter(|at| cluster.owned(*at) > owned[*at]).count();
    let safe_time = recover_time
        + cluster.until("safety after the recovery", |cluster| {
            cluster.process(dead).is_some() && cluster.is_safe()
        })?;
    let safe_work = cluster.work.since(before);
    cluster.check(all)?;
    if cluster.coordinator.failovers().count() != 1 {
        return Err("more has failed than was killed".to_owned());
    }
    Ok(Row {
        version: 1,
        runtimes: count,
        flows: all,
        table_bytes_per_flow: memory as f64 / all as f64,
        start_milliseconds: milliseconds(start),
        moved,
        move_milliseconds: milliseconds(move_time),
        move_ns_per_flow: move_work.all as f64 / moved.max(1) as f64,
        recovered,
        heirs,
        recover_milliseconds: milliseconds(recover_time),
        recover_ns_per_flow: recover_work.all as f64 / recovered.max(1) as f64,
        coordinator_milliseconds: milliseconds(recover_work.coordinator),
        hub_milliseconds: milliseconds(recover_work.hub),
        safe_milliseconds: milliseconds(safe_time),
        message_bytes_per_flow: safe_work.message_bytes as f64 / recovered.max(1) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small cluster and a larger one.
    #[test]
    fn flows_move_and_are_recovered_in_clusters_of_any_size() {
        let rows =
            run(&Plan { runtimes: vec![3, 24], flows: 20 }, &crate::bench::chains::chain).unwrap();
        assert_eq!(
            rows.iter().map(|row| (row.runtimes, row.flows)).collect::<Vec<_>>(),
            [(3, 60), (24, 480)]
        );
        for row in &rows {
            assert!(row.moved > 0 && row.recovered > 0 && row.heirs > 0, "{row:?}");
            assert!(row.recover_milliseconds <= row.safe_milliseconds, "{row:?}");
        }
        assert_eq!(rows[0].heirs, 2);
        assert!((10..=23).contains(&rows[1].heirs), "{:?}", rows[1]);
    }

    /// Table memory of one flow of firewall, NAT and load balancer under `nfvactor`: its
    /// owner, its replica and its route. The number is the same on every machine, and
    /// part of what is promised for a whole box.
    #[test]
    fn a_flows_place_in_all_tables_has_a_size() {
        let rows =
            run(&Plan { runtimes: vec![3], flows: 2_000 }, &crate::bench::chains::chain).unwrap();
        let bytes = rows[0].table_bytes_per_flow;
        assert!((1_200.0..1_300.0).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_cluster_of_two_has_nobody_to_compare() {
        assert!(
            run(&Plan { runtimes: vec![2], flows: 5 }, &crate::bench::chains::chain)
                .unwrap_err()
                .contains("three runtimes")
        );
    }
}
