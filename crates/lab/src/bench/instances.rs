//! `holdfast bench instances`: more and more NAT instances that share one pool of ports.
//! The plan is that of RESCue's figures on scaling and on returning flows (section VI).
//!
//! Throughput: all instances and state servers take turns in one thread, and each part's
//! work is measured by itself. The busiest part's work is the time: as if every part had
//! a core.
//!
//! Returning flows: each instance opens flows as quickly as it can, and then every flow's
//! answer comes back to the instance that has the answer's port. If two flows have one
//! port, one of them never gets its answer. Under `rescue` the server assigns the ports.
//! `stateless` takes them from a Redis, each with one command. `unsynchronised` looks for
//! a free port there before it takes it away, and several instances do so at a time.

use super::churn::{Churn, Lengths};
use super::datapath::{
    BURST, Beside, LEASE, PlaysOnce, SERVER, Sink, Stateless, ToRuntime, introduce, missing,
    runtime, server,
};
use super::median;
use super::redis::Redis;
use super::traffic::{self, FRAME_LEN};
use holdfast_nf::Chain;
use holdfast_node::runtime::Runtime;
use holdfast_node::state::StateServer;
use holdfast_protection::rescue::room_for_share;
use holdfast_protection::{Peer, Plan as Preset, Rescue};
use holdfast_state::SERVER_CREDIT;
use holdfast_wire::nsh::Flags;
use holdfast_wire::{MemoryPool, NodeId, Packet, PacketPool};
use serde::Serialize;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Number of instances, per row.
    pub instances: Vec<u16>,
    /// State servers among which the flows are divided, in each row of `rescue`. If there
    /// are fewer numbers than rows, the last number counts for the remaining rows.
    pub servers: Vec<u16>,
    /// Flows whose answers come back, of all instances together.
    pub flows: usize,
    /// Packets of each instance for measuring throughput, per round.
    pub packets: usize,
    /// Rounds; the median counts.
    pub rounds: usize,
}

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `rescue`, `stateless` or `unsynchronised`.
    pub case: &'static str,
    /// Instances.
    pub instances: u16,
    /// State servers; 0 in cases without them.
    pub servers: u16,
    /// Packets per second of all instances, millions, as if every part had a core: median
    /// over the rounds. `rescue` only.
    pub mpps: Option<f64>,
    /// Ratio to the first row's throughput per instance, times the instances.
    pub ratio_to_ideal: Option<f64>,
    /// Load of the busiest server while the busiest part worked all the time, percent.
    pub server_percent: Option<f64>,
    /// Flows whose answers were sent back.
    pub flows: usize,
    /// Flows whose answer did not arrive at their client.
    pub dropped: usize,
}

/// Room for flows of each instance: see [`Churn::new`].
const ROOM: usize = 327_680;
/// Packets of an instance that are under way at a time.
const UNDER_WAY: u64 = 1024;
/// Time limit of every wait.
const LIMIT: Duration = Duration::from_secs(60);

type Frame = [u8; FRAME_LEN];

/// Runs the plan.
///
/// # Errors
/// The output was wrong; no time counts then.
pub fn run(plan: &Plan, make: &dyn Fn(usize) -> Result<Chain, String>) -> Result<Vec<Row>, String> {
    if plan.servers.iter().any(|servers| !(1..=NodeId::MAX_STATE_SERVERS).contains(servers)) {
        return Err(format!("there are 1 to {} state servers", NodeId::MAX_STATE_SERVERS));
    }
    let most = plan.instances.iter().copied().max().unwrap_or(0);
    if plan.instances.contains(&0)
        || most == 0
        || most > 60
        || plan.flows == 0
        || plan.packets == 0
        || plan.rounds == 0
    {
        return Err("there is nothing to measure, or too many instances".to_owned());
    }
    let store = Redis::start()?;
    let mut rows = Vec::new();
    let mut of_one = None;
    for (at, &instances) in plan.instances.iter().enumerate() {
        let servers = plan.servers.get(at).or(plan.servers.last()).copied().unwrap_or(1);
        let of_case = |case: &'static str| {
            move |error: String| format!("{case}, {instances} instances: {error}")
        };
        let row =
            rescue(plan, (instances, servers), make, &mut of_one).map_err(of_case("rescue"))?;
        rows.push(row);
        for (case, is_synchronised) in [("stateless", true), ("unsynchronised", false)] {
            let (flows, dropped) =
                stateless(plan, instances, make, &store, is_synchronised).map_err(of_case(case))?;
            rows.push(Row {
                version: 1,
                case,
                instances,
                servers: 0,
                mpps: None,
                ratio_to_ideal: None,
                server_percent: None,
                flows,
                dropped,
            });
        }
    }
    Ok(rows)
}

/// An instance, and the stand-in for its switch.
struct Instance {
    peer: Peer,
    runtime: Runtime,
    input: ToRuntime<FRAME_LEN>,
    sink: Sink<FRAME_LEN>,
    rx: Vec<Packet>,
    taken: u64,
    work: Duration,
}

/// A state server.
struct Server {
    server: StateServer,
    rx: Vec<Packet>,
    work: Duration,
}

/// All instances and servers, which take turns.
struct Cluster {
    instances: Vec<Instance>,
    servers: Vec<Server>,
    tx: Vec<Packet>,
    pool: MemoryPool,
    began: Instant,
}

impl Cluster {
    fn new(
        (instances, servers): (u16, u16),
        make: &dyn Fn(usize) -> Result<Chain, String>,
    ) -> Result<Cluster, String> {
        let all = usize::from(instances) * ROOM;
        let served = || -> Result<Chain, String> {
            let mut chain = make(all)?;
            chain.ask_server(SERVER_CREDIT, 0);
            Ok(chain)
        };
        let peers: Vec<Peer> =
            (0..instances).map(|at| Peer { node: NodeId::runtime(at), incarnation: 1 }).collect();
        let mut cluster = Cluster {
            instances: Vec::new(),
            servers: Vec::new(),
            tx: Vec::new(),
            pool: MemoryPool::new(16_384 + 8 * usize::from(instances) * UNDER_WAY as usize),
            began: Instant::now(),
        };
        for number in 0..servers {
            let peer = Peer { node: NodeId::state_server(number), ..SERVER };
            let flows = room_for_share(all, servers.into());
            let mut server = server(peer, flows, &mut served()?, LEASE)?;
            let said = introduce(&mut server, peer, &peers, &mut cluster.pool);
            said.into_iter().for_each(|packet| cluster.pool.put(packet));
            cluster.servers.push(Server { server, rx: Vec::new(), work: Duration::ZERO });
        }
        for &peer in &peers {
            let haste = Lengths::Empirical.haste(ROOM);
            let rescue = Rescue::new(Preset::RESCUE).with_stamps_hurrying(haste);
            let mut runtime =
                runtime(peer, ROOM, served()?, Box::new(rescue)).with_state_servers(servers);
            let said = introduce(&mut runtime, peer, &peers, &mut cluster.pool);
            let (input, sink) = (ToRuntime::for_runtime(peer), Sink::new());
            cluster.instances.push(Instance {
                peer,
                runtime,
                input,
                sink,
                rx: Vec::new(),
                taken: 0,
                work: Duration::ZERO,
            });
            cluster.tx.extend(said);
            cluster.deliver(cluster.instances.len() - 1);
        }
        let deadline = Instant::now() + LIMIT;
        while !cluster.instances.iter().all(|instance| instance.runtime.knows_state_servers()) {
            if Instant::now() > deadline {
                return Err("a state server never spoke".to_owned());
            }
            cluster.turn(0);
        }
        Ok(cluster)
    }

    /// Delivers this instance's output.
    fn deliver(&mut self, from: usize) {
        for packet in self.tx.drain(..) {
            let to = packet
                .bytes()
                .first_chunk()
                .and_then(NodeId::of_mac)
                .and_then(NodeId::state_server_number);
            if let Some(server) = to.and_then(|number| self.servers.get_mut(usize::from(number))) {
                server.rx.push(packet);
            } else {
                self.instances[from].sink.take(&packet);
                self.pool.put(packet);
            }
        }
    }

    /// Gives every part a turn; each instance gets `burst` more packets, unless too many
    /// are under way.
    fn turn(&mut self, burst: usize) {
        let now = self.began.elapsed().as_nanos() as u64 + 1;
        for at in 0..self.instances.len() {
            let instance = &mut self.instances[at];
            if instance.taken - instance.sink.released < UNDER_WAY {
                let before = instance.rx.len();
                instance.input.receive(burst, &mut self.pool, &mut instance.rx);
                instance.taken += (instance.rx.len() - before) as u64;
            }
            let began = Instant::now();
            instance.runtime.turn(&mut instance.rx, &mut self.tx, &mut self.pool, now);
            instance.work += began.elapsed();
            self.deliver(at);
        }
        for Server { server, rx, work } in &mut self.servers {
            let began = Instant::now();
            Beside::turn(server, rx, &mut self.tx, &mut self.pool, now);
            *work += began.elapsed();
        }
        for packet in self.tx.drain(..) {
            let to = packet.bytes().first_chunk().and_then(NodeId::of_mac);
            match self.instances.iter_mut().find(|instance| Some(instance.peer.node) == to) {
                Some(instance) => instance.rx.push(packet),
                None => self.pool.put(packet),
            }
        }
    }

    /// Plays these frames, by instance, once; returns the output, by instance.
    fn play(&mut self, frames: &[Vec<Frame>], flags: u8) -> Result<Vec<Vec<Frame>>, String> {
        for (instance, frames) in self.instances.iter_mut().zip(frames) {
            instance.sink.kept = Some(Vec::with_capacity(frames.len()));
        }
        let mut chunks: Vec<_> = frames.iter().map(|frames| frames.chunks(BURST)).collect();
        loop {
            let mut is_over = true;
            for (instance, chunks) in self.instances.iter_mut().zip(&mut chunks) {
                if instance.taken - instance.sink.released >= UNDER_WAY {
                    is_over = false;
                } else if let Some(chunk) = chunks.next() {
                    is_over = false;
                    instance.input.once(None, chunk, flags, &mut self.pool, &mut instance.rx)?;
                    instance.taken += chunk.len() as u64;
                }
            }
            self.turn(0);
            if is_over {
                break;
            }
        }
        self.drain(flags & Flags::NEW != 0)?;
        Ok(self
            .instances
            .iter_mut()
            .map(|instance| instance.sink.kept.take().unwrap_or_default())
            .collect())
    }

    /// Waits for packets under way. With `all`, a packet that does not come out is an
    /// error.
    fn drain(&mut self, all: bool) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        let mut idle = 0;
        loop {
            let under_way = |instance: &Instance| instance.taken - instance.sink.released;
            let released: u64 = self.instances.iter().map(|instance| instance.sink.released).sum();
            let Some(late) = self.instances.iter().find(|instance| under_way(instance) > 0) else {
                return Ok(());
            };
            if Instant::now() > deadline || (!all && idle > 1000) {
                if all {
                    return Err(missing(under_way(late), &late.runtime));
                }
                // A dropped packet will not come out any more.
                self.instances
                    .iter_mut()
                    .for_each(|instance| instance.taken = instance.sink.released);
                return Ok(());
            }
            self.turn(0);
            let now: u64 = self.instances.iter().map(|instance| instance.sink.released).sum();
            idle = if now == released { idle + 1 } else { 0 };
        }
    }
}

fn rescue(
    plan: &Plan,
    (count, servers): (u16, u16),
    make: &dyn Fn(usize) -> Result<Chain, String>,
    of_one: &mut Option<f64>,
) -> Result<Row, String> {
    let mut cluster = Cluster::new((count, servers), make)?;
    let forward = first_packets(plan.flows, count);
    let flows = forward.iter().map(Vec::len).sum();
    let opened = cluster.play(&forward, Flags::NEW)?;
    let answers = answers(&opened);
    let by_instance = answers
        .iter()
        .map(|answers| answers.iter().map(|(_, answer)| *answer).collect())
        .collect::<Vec<_>>();
    let back = cluster.play(&by_instance, 0)?;
    let dropped = flows - came_back(&forward, &back);

    for (at, instance) in cluster.instances.iter_mut().enumerate() {
        // Instances have no clients in common.
        instance.input.churn(Churn::new(Lengths::Empirical, 1_000_000 * (at + 1), ROOM));
    }
    let (mut mpps, mut busy) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds + 1 {
        let released = |cluster: &Cluster| {
            cluster.instances.iter().map(|instance| instance.sink.released).sum::<u64>()
        };
        let before = released(&cluster);
        cluster.servers.iter_mut().for_each(|server| server.work = Duration::ZERO);
        cluster.instances.iter_mut().for_each(|instance| instance.work = Duration::ZERO);
        while released(&cluster) - before < plan.packets as u64 * u64::from(count) {
            cluster.turn(BURST);
        }
        let packets = released(&cluster) - before;
        let server =
            cluster.servers.iter().map(|server| server.work).fold(Duration::ZERO, Duration::max);
        let busiest =
            cluster.instances.iter().map(|instance| instance.work).fold(server, Duration::max);
        // The first round warms caches and queues up and is not counted.
        if round > 0 {
            mpps.push(packets as f64 / busiest.as_secs_f64() / 1e6);
            busy.push(100.0 * server.as_secs_f64() / busiest.as_secs_f64());
        }
        cluster.drain(true)?;
    }
    let mpps = median(&mpps);
    let ideal = *of_one.get_or_insert(mpps / f64::from(count)) * f64::from(count);
    Ok(Row {
        version: 1,
        case: "rescue",
        instances: count,
        servers,
        mpps: Some(mpps),
        ratio_to_ideal: Some(mpps / ideal),
        server_percent: Some(median(&busy)),
        flows,
        dropped,
    })
}

/// Number of flows and of lost answers, with instances in threads of their own.
fn stateless(
    plan: &Plan,
    count: u16,
    make: &dyn Fn(usize) -> Result<Chain, String>,
    store: &Redis,
    is_synchronised: bool,
) -> Result<(usize, usize), String> {
    // Room for numbers that are taken and then lost.
    let room = plan.flows * 2 + 65_536;
    drop(Stateless::<FRAME_LEN>::new(make(room)?, store)?);
    let mut instances = Vec::new();
    for _ in 0..count {
        instances.push(Stateless::<FRAME_LEN>::join(make(room)?, store, is_synchronised)?);
    }
    let forward = first_packets(plan.flows, count);
    let flows = forward.iter().map(Vec::len).sum();
    let opened = in_threads(&mut instances, &forward, Flags::NEW)?;
    let by_instance: Vec<Vec<Frame>> = answers(&opened)
        .iter()
        .map(|answers| answers.iter().map(|(_, answer)| *answer).collect())
        .collect();
    let back = in_threads(&mut instances, &by_instance, 0)?;
    Ok((flows, flows - came_back(&forward, &back)))
}

/// Each instance plays its frames, all at the same time.
fn in_threads(
    instances: &mut [Stateless<FRAME_LEN>],
    frames: &[Vec<Frame>],
    flags: u8,
) -> Result<Vec<Vec<Frame>>, String> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = instances
            .iter_mut()
            .zip(frames)
            .map(|(instance, frames)| scope.spawn(move || instance.play_once(frames, flags)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// The first packets of each instance's flows.
fn first_packets(flows: usize, instances: u16) -> Vec<Vec<Frame>> {
    let of = |at: u16| (usize::from(at)..flows).step_by(instances.into());
    (0..instances)
        .map(|at| {
            of(at).map(|flow| traffic::udp(traffic::client(flow), traffic::VIRTUAL)).collect()
        })
        .collect()
}

/// The answers to each instance's ports, by port. A port belongs to the flow that had it
/// last, as with a switch that has one route for it.
fn answers(opened: &[Vec<Frame>]) -> Vec<Vec<([u8; 6], Frame)>> {
    let mut owners: HashMap<[u8; 6], (usize, Frame)> = HashMap::new();
    for (at, frames) in opened.iter().enumerate() {
        for frame in frames {
            owners.insert(source_of(frame), (at, traffic::reply_to(frame)));
        }
    }
    let mut answers = vec![Vec::new(); opened.len()];
    let mut all: Vec<_> = owners.into_iter().collect();
    all.sort_unstable();
    all.into_iter().for_each(|(port, (at, answer))| answers[at].push((port, answer)));
    answers
}

/// Source address and port of a frame.
fn source_of(frame: &Frame) -> [u8; 6] {
    let mut source = [0; 6];
    source[..4].copy_from_slice(&frame[26..30]);
    source[4..].copy_from_slice(&frame[34..36]);
    source
}

/// The number of flows whose client got a sound answer.
fn came_back(forward: &[Vec<Frame>], back: &[Vec<Frame>]) -> usize {
    let mut clients: HashMap<Frame, bool> = forward
        .iter()
        .flatten()
        .map(|frame| (to_client(&traffic::reply_to(frame)), false))
        .collect();
    for frame in back.iter().flatten().filter(|frame| traffic::is_sound(&frame[..])) {
        if let Some(is_there) = clients.get_mut(&to_client(frame)) {
            *is_there = true;
        }
    }
    clients.values().filter(|is_there| **is_there).count()
}

/// The identity of an answer: its addresses and ports.
fn to_client(frame: &Frame) -> Frame {
    let mut only = [0; FRAME_LEN];
    only[26..38].copy_from_slice(&frame[26..38]);
    only
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run, if there is a Redis: no answer is dropped if one server assigns
    /// ports, and many are if every instance takes ports as it sees them.
    #[test]
    fn answers_come_back_where_ports_are_nobody_elses() {
        if Redis::start().is_err() {
            eprintln!("SKIPPED: there is no redis-server (`make setup` installs it)");
            return;
        }
        let nat = |flows| crate::bench::chains::function("nat", flows);
        let plan = Plan {
            instances: vec![1, 3],
            servers: vec![1, 2],
            flows: 6000,
            packets: 10_000,
            rounds: 1,
        };
        let rows = run(&plan, &nat).unwrap();
        let found: Vec<_> = rows.iter().map(|row| (row.case, row.instances, row.flows)).collect();
        let expected = [1, 3].into_iter().flat_map(|count| {
            ["rescue", "stateless", "unsynchronised"].map(|case| (case, count, 6000))
        });
        assert_eq!(found, expected.collect::<Vec<_>>());
        for row in &rows {
            let collides = row.case == "unsynchronised" && row.instances > 1;
            assert_eq!(row.dropped > 0, collides, "{row:?}");
            assert_eq!(
                row.servers,
                if row.case == "rescue" { row.instances.div_ceil(2) } else { 0 }
            );
            assert_eq!(row.mpps.is_some_and(|mpps| mpps > 0.0), row.case == "rescue", "{row:?}");
        }
    }
}
