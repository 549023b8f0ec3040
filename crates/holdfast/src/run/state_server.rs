//! The role of the state server: a process of its own, started by the manager if a chain
//! has its shared state, or its flows' home, there. The manager's side watches it, and
//! starts it again.
//!
//! Several servers divide the flows among them; the first also has shared state, and the
//! control transport.
//!
//! A server is a worker and a standby with its memory ([`standby`]), unless configured as
//! one process. The server writes to no disk: if both processes end, or their keeper, the
//! next incarnation begins empty, and runtimes report their state to it.
//!
//! In: frames from its virtual port, and control messages from runtimes, if configured by
//! another transport. Out: the same. Never: a packet of a flow.

use super::control_transport::{ConfiguredTransport, Opened};
use super::restarts::Restarts;
use super::role::{self, NewKeys};
use super::runtime::JOURNAL;
use super::{MILLISECOND, ManagerProcess, devices, privileges};
use crate::config::{NamedStatistic, Plan, ServerStandby};
use holdfast_control::exit::{self, Failure};
use holdfast_control::status::Retry;
use holdfast_io::VportGuest;
use holdfast_io::control_transport::shared_memory::Side;
use holdfast_io::process::Clock;
use holdfast_io::standby::{self, Turns, Watch};
use holdfast_node::state::{StateServer, StateServerConfig};
use holdfast_protection::Peer;
use holdfast_protection::rescue::room_for_share;
use holdfast_state::{Kind, Limits};
use holdfast_wire::{NodeId, Packet, PacketPool};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Frames per turn.
const BURST: usize = 64;
/// Longest sleep, ns: the manager watches the loop's turns.
const MAX_SLEEP: u64 = 100 * MILLISECOND;
/// The pause between two ticks, ns.
const TICK: u64 = 10 * MILLISECOND;
/// Least time between two reports on its lists, ns.
const REPORT_INTERVAL: u64 = 100 * MILLISECOND;
/// Silence about a number after which its runtime is asked, and asked again, ns.
const LEASE: u64 = 60_000 * MILLISECOND;
const TIMEOUT: u64 = 1_000 * MILLISECOND;
/// The precision of these times, ns.
const STEP: u64 = 100 * MILLISECOND;
/// Maximum number of flows of a chain.
const MOST_PAGES: usize = 64_000_000;
/// Maximum number of unacknowledged messages of a runtime; one with more is ignored.
const WAITING: usize = 4096;

/// The state server's part of its assignment.
#[derive(Serialize, Deserialize)]
pub(super) struct Past {
    /// The server's number, from 0.
    number: u16,
    /// True for the first server of this box: no runtime has anything.
    is_first: bool,
    /// The seed of runtimes' hashes of flow keys.
    seed: u64,
}

/// The process state of a state server: all of it lies in the heap that a standby shares.
struct ServerProcess {
    server: StateServer,
    guest: VportGuest,
    rx: Vec<Packet>,
    tx: Vec<Packet>,
}

/// Runs until it is killed.
///
/// # Errors
/// If a manager has not started it, or there is no memory for its standby.
pub fn main() -> Result<(), Failure> {
    let mut given = role::take::<Past>()?;
    let plan = role::plan_of(&given.assignment)?;
    let has_standby = plan.state_servers.standby == ServerStandby::Local;
    // The time-out is short enough that the manager does not end the server even if the
    // next worker hangs too.
    let timeout = Duration::from_millis(plan.detection.hang_ms / 3);
    let longest_sleep = MAX_SLEEP.min(timeout.as_nanos() as u64 / 4);
    let name = name(given.assignment.role.number, plan.state_servers.count);
    let refused = |error: std::io::Error| {
        Failure::new(exit::UNAVAILABLE, format!("the standby of {name}: {error}"))
    };
    if has_standby {
        standby::create().map_err(refused)?;
    }
    // The value is never dropped: with a standby it is the worker's, which may be in the
    // middle of a turn.
    let process = Box::leak(standby::enter(|| ServerProcess::new(&mut given, &plan, has_standby))?);
    // The other servers have no control messages.
    let transport = if given.assignment.role.number == 0 {
        ConfiguredTransport::prepare(&plan.state_servers, Side::Server)
    } else {
        ConfiguredTransport::Fabric
    };
    privileges::restrict_calls(&plan)?;
    drop(plan);
    let mut lines = given.keys.take().map(|(_, lines)| lines);
    if !has_standby {
        process.live(Turns::default(), lines.take(), &transport, &name, longest_sleep);
        return Ok(());
    }
    let (pair, watch) = (process.guest.pair(), Watch { beats: process.guest.beats(), timeout });
    match standby::supervise(pair, watch, |turns| {
        process.live(turns, lines.take(), &transport, &name, longest_sleep)
    })
    .map_err(refused)?
    {
        0 => Ok(()),
        code => Err(Failure::said(code as u8)),
    }
}

impl ServerProcess {
    fn new(
        given: &mut role::Given<Past>,
        plan: &Plan,
        has_standby: bool,
    ) -> Result<Box<ServerProcess>, Failure> {
        let guest = given.attach()?;
        let assignment = &given.assignment;
        // Within this time a flow's end has reached every copy, or a runtime with a copy
        // has failed and is recovered from.
        let unknown_rest = 2 * plan.detection.hang_ms * MILLISECOND;
        let indexes = |(size, rest): (u32, u64)| {
            Kind::Indexes(Limits {
                size,
                credit: holdfast_state::SERVER_CREDIT as u32,
                lease: LEASE,
                rest: rest.max(unknown_rest),
                unknown_rest,
                timeout: TIMEOUT,
                step: STEP,
            })
        };
        // All runtimes of all clusters.
        let runtimes = plan.clusters.iter().map(|cluster| usize::from(cluster.max)).sum();
        let number = assignment.role.number;
        let flows = plan.limits.flows.saturating_mul(runtimes).min(MOST_PAGES);
        let pages = room_for_share(flows, plan.state_servers.count.into());
        let mut kinds = Vec::new();
        if number == 0 {
            kinds.extend(
                plan.pools.iter().filter_map(|pool| Some((pool.size, pool.rest?))).map(indexes),
            );
            kinds.extend(
                plan.statistics
                    .iter()
                    .filter(|statistic| statistic.is_served)
                    .map(NamedStatistic::kind),
            );
        }
        let server = StateServer::new(StateServerConfig {
            me: Peer { node: NodeId::state_server(number), incarnation: assignment.incarnation },
            fabric: role::fabric_of(assignment),
            pages: plan.pages(pages, assignment.role.seed),
            kinds,
            waiting: WAITING,
            memory: assignment.life.get(),
            is_first: assignment.role.is_first,
            tick: TICK,
            listener: NodeId::MANAGER,
            report_interval: REPORT_INTERVAL,
            heartbeat: plan.detection.heartbeat_ms * MILLISECOND,
        });
        let too_much = || {
            Failure::new(
                exit::CONFIGURATION,
                "a state server has no names for so many pools and statistics, or for such large ones",
            )
        };
        let mut server = server.ok_or_else(too_much)?;
        // The capacity is beyond any use, so that the allocation consists of whole pages.
        let frames = || Vec::<Packet>::with_capacity(BURST * 8);
        let (rx, tx) = (frames(), frames());
        if has_standby {
            server.set_journal(JOURNAL);
            [&rx, &tx].into_iter().for_each(|frames| JOURNAL.scratch(frames));
        }
        if let Some((ring, _)) = &given.keys {
            server.fabric().authenticate(ring, assignment.life);
        }
        Ok(Box::new(ServerProcess { server, guest, rx, tx }))
    }

    /// Runs turns until it is killed, or a frame has ended two workers: this incarnation
    /// then ends, and the next one is told everything.
    fn live(
        &mut self,
        mut turns: Turns,
        mut lines: Option<role::Lines>,
        transport: &ConfiguredTransport,
        name: &str,
        longest_sleep: u64,
    ) -> i32 {
        if turns.takes_over() {
            self.guest.take_over();
        }
        if turns.is_poisoned() {
            devices::say(&format!(
                "two workers of {name} have ended with the same frame in hand: it begins anew"
            ));
            return i32::from(exit::UNAVAILABLE);
        }
        let mut new_keys = None;
        let mut words = transport.open();
        let clock = Clock::new();
        loop {
            let burst = turns.begin(BURST);
            let is_idle =
                standby::enter(|| self.turn(burst, new_keys.as_ref(), &mut words, clock.now()));
            turns.commit();
            self.guest.publish();
            words.publish();
            // Reading begins after the first turn, for which other processes may be
            // waiting.
            if let Some(lines) = lines.take() {
                new_keys = Some(NewKeys::listen(lines));
            }
            let due = self.server.poll_timeout().saturating_sub(clock.now()).min(longest_sleep);
            if is_idle && due > 1_000 && self.guest.prepare_sleep() {
                words.sleep(self.guest.wait_fd(), due);
            }
            self.guest.awake();
        }
    }

    /// Runs a turn. True if there was no input.
    fn turn(
        &mut self,
        burst: usize,
        new_keys: Option<&NewKeys>,
        words: &mut Opened,
        now: u64,
    ) -> bool {
        let ServerProcess { server, guest, rx, tx } = self;
        guest.beat();
        if let Some(ring) = new_keys.and_then(NewKeys::take) {
            server.fabric().set_keys(&ring);
        }
        guest.receive(burst, rx);
        let mut is_idle = rx.is_empty();
        for packet in rx.drain(..) {
            server.handle_frame(packet.bytes(), now);
            guest.put(packet);
        }
        is_idle &= !server.turn_with(words.words(), now);
        role::poll_transmit(server.fabric(), now, guest, tx);
        guest.transmit(tx);
        is_idle
    }
}

/// The name of a server in a sentence.
fn name(number: u16, servers: u16) -> String {
    if servers > 1 { format!("state server {number}") } else { "the state server".to_owned() }
}

/// The manager's side of the state servers.
pub(super) struct ServerGuard {
    /// The manager's incarnation: a server's incarnations grow from one manager to the
    /// next.
    manager: u32,
    /// The servers that chains use.
    servers: Vec<Guarded>,
}

/// A server.
#[derive(Default)]
struct Guarded {
    /// The number of its incarnations under this manager.
    count: u32,
    restarts: Restarts,
    /// The end of the last one.
    cause: String,
}

impl ServerGuard {
    /// Servers under this incarnation of the manager. The server of an earlier manager
    /// may still run.
    pub(super) fn new(servers: u16, manager: u32) -> ServerGuard {
        ServerGuard { manager, servers: (0..servers).map(|_| Guarded::default()).collect() }
    }

    /// The nodes of all servers, running or not.
    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.servers.len() as u16).map(NodeId::state_server)
    }

    /// The retry that `status` shows for this state server if it keeps ending.
    pub(super) fn retry(&self, number: u16, is_there: bool, now: u64) -> Option<Retry> {
        let Guarded { restarts, cause, .. } = self.servers.get(usize::from(number))?;
        restarts.retry(is_there, cause, now)
    }

    /// Notes that an incarnation has ended.
    pub(super) fn ended(&mut self, number: u16, cause: &str, has_traffic: bool, now: u64) {
        let name = name(number, self.servers.len() as u16);
        let Some(server) = self.servers.get_mut(usize::from(number)) else { return };
        cause.clone_into(&mut server.cause);
        let when = server.restarts.ended(now);
        let meanwhile = if has_traffic { "; flows go on meanwhile" } else { "" };
        devices::say(&format!(
            "{name} has ended ({cause}): it is started again {when}, and runtimes tell it what they have{meanwhile}"
        ));
    }
}

impl ManagerProcess {
    /// Starts state servers that are due, and ends those that hang.
    pub(super) fn look_after_state_servers(&mut self, now: u64) {
        for number in 0..self.server_guard.servers.len() as u16 {
            let present = self
                .workers
                .iter_mut()
                .find(|worker| worker.peer.node == NodeId::state_server(number));
            if self.server_guard.servers[usize::from(number)].restarts.look_after(present, now)
                && let Err(error) = self.start_state_server(number, now)
            {
                self.server_guard.ended(number, &error.to_string(), self.is_ready, now);
            }
        }
    }

    fn start_state_server(&mut self, number: u16, now: u64) -> std::io::Result<()> {
        let manager = self.server_guard.manager;
        let server = &mut self.server_guard.servers[usize::from(number)];
        server.restarts.begun(now);
        server.count += 1;
        // A manager with more of them has pauses of seconds in between.
        let incarnation = manager << 16 | server.count & 0xffff;
        let past =
            Past { number, is_first: manager == 1 && server.count == 1, seed: self.flow_seed };
        let peer = Peer { node: NodeId::state_server(number), incarnation };
        self.start_role("state-server", peer, past, now)?;
        self.host.hub.handle_state_server(peer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{ServerGuard, name};
    use holdfast_wire::NodeId;

    #[test]
    fn one_of_several_has_a_number() {
        assert_eq!(
            [(0, 1), (0, 3), (2, 3)].map(|(at, of)| name(at, of)),
            ["the state server", "state server 0", "state server 2"]
        );
        let guard = ServerGuard::new(3, 1);
        assert_eq!(guard.nodes().next(), Some(NodeId::STATE_SERVER), "the first has the lists");
        assert!(guard.nodes().map(NodeId::state_server_number).eq([0, 1, 2].map(Some)));
        assert_eq!(ServerGuard::new(0, 1).nodes().count(), 0);
    }

    /// Each server has pauses and incarnations of its own.
    #[test]
    fn one_that_keeps_ending_holds_nobody_else_up() {
        let mut guard = ServerGuard::new(2, 1);
        for _ in 0..4 {
            guard.ended(1, "exited with code 1", true, 5);
        }
        guard.ended(7, "of an earlier configuration", true, 5);
        let due: Vec<bool> =
            guard.servers.iter_mut().map(|server| server.restarts.look_after(None, 5)).collect();
        assert_eq!(due, [true, false]);
    }
}
