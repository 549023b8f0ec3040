//! The role of the state server: a process of its own, started by the manager where a chain's shared state is one's, or its flows have their home there. Its manager's side watches it, and starts it again.
//!
//! It keeps nothing on a disk: what runtimes have they know, and tell its next life.
//!
//! In: frames from its virtual port. Out: the same. Never: a packet of a flow.

use super::lives::Lives;
use super::role::{self, Beginning, NewKeys};
use super::{MILLISECOND, Manager, devices};
use crate::config;
use crate::exit::{self, Failure};
use holdfast_io::process::Clock;
use holdfast_io::wait::sleep;
use holdfast_node::address::{MANAGER, STATE_SERVER};
use holdfast_node::state::{StateServer, StateServerConfig};
use holdfast_protection::Peer;
use holdfast_state::{Kind, Limits};
use holdfast_wire::PacketPool;
use serde::{Deserialize, Serialize};

/// Frames per turn.
const BURST: usize = 64;
/// Longest sleep, ns: the manager sees that the loop turns.
const MAX_SLEEP: u64 = 100 * MILLISECOND;
/// Between two looks at what is due, ns.
const TICK: u64 = 10 * MILLISECOND;
/// What there is of its lists is said so often at the most, ns.
const REPORT_INTERVAL: u64 = 100 * MILLISECOND;
/// A number of which nothing has been heard for so long is asked for, ns; and so long after that again.
const LEASE: u64 = 60_000 * MILLISECOND;
const PATIENCE: u64 = 1_000 * MILLISECOND;
/// So exactly all of these are kept, ns.
const STEP: u64 = 100 * MILLISECOND;
/// Flows of a chain, at most.
const MOST_PAGES: usize = 64_000_000;
/// A runtime that leaves more messages unacknowledged is not listened to.
const WAITING: usize = 4096;

/// What a state server is told besides.
#[derive(Serialize, Deserialize)]
pub(super) struct Past {
    /// There was none before it in this box: no runtime has anything.
    is_first: bool,
    /// Under which runtimes hash their flows' keys.
    seed: u64,
}

/// Runs until it is killed.
///
/// # Errors
/// If it was not started by a manager.
pub fn main() -> Result<(), Failure> {
    let Beginning { assignment, mut guest, keys } = role::begin::<Past>()?;
    let mistake = |mistake: config::Mistake| Failure::new(exit::CONFIGURATION, mistake.to_string());
    let checked = config::read(&assignment.file, &assignment.text).map_err(mistake)?;
    let mut chains = config::chains(&assignment.file, &assignment.text, &checked.config).map_err(mistake)?;
    // By then an end has reached every copy of its flow, or who has it has failed and is recovered from.
    let unknown_rest = 2 * checked.config.detection.hang_ms * MILLISECOND;
    let kind = |served: config::ServedPool| {
        Kind::Indexes(Limits {
            size: served.size,
            credit: config::SERVER_CREDIT as u32,
            lease: LEASE,
            rest: served.hold.max(unknown_rest),
            unknown_rest,
            patience: PATIENCE,
            step: STEP,
        })
    };
    // Of all that runtimes may own.
    let pages = checked
        .config
        .limits
        .flows
        .saturating_mul(checked.clusters.iter().map(|cluster| usize::from(cluster.max)).sum())
        .min(MOST_PAGES);
    let me = Peer { node: STATE_SERVER, incarnation: assignment.incarnation };
    let server = StateServer::new(StateServerConfig {
        me,
        fabric: assignment.fabric(),
        pages: config::pages(&chains, pages, assignment.role.seed),
        kinds: config::served_pools(&mut chains).into_iter().map(kind).collect(),
        waiting: WAITING,
        memory: assignment.life.get(),
        is_first: assignment.role.is_first,
        tick: TICK,
        listener: MANAGER,
        report_interval: REPORT_INTERVAL,
        heartbeat: checked.config.detection.heartbeat_ms * MILLISECOND,
    });
    drop((checked, chains));
    let too_much = || Failure::new(exit::CONFIGURATION, "a state server has no names for so many pools, or for such large ones");
    let mut server = server.ok_or_else(too_much)?;
    let new_keys = keys.map(|(ring, new)| {
        server.fabric().authenticate(&ring, assignment.life);
        new
    });
    let clock = Clock::new();
    let (mut rx, mut tx) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
    loop {
        guest.beat();
        if let Some(ring) = new_keys.as_ref().and_then(NewKeys::take) {
            server.fabric().set_keys(&ring);
        }
        guest.receive(BURST, &mut rx);
        let is_idle = rx.is_empty();
        let now = clock.now();
        for packet in rx.drain(..) {
            server.handle_frame(packet.bytes(), now);
            guest.put(packet);
        }
        server.turn(now);
        role::poll_transmit(server.fabric(), now, &mut guest, &mut tx);
        guest.transmit(&mut tx);
        guest.publish();
        let due = server.poll_timeout().saturating_sub(clock.now()).min(MAX_SLEEP);
        if is_idle && due > 1_000 && guest.prepare_sleep() {
            sleep(&[guest.wait_fd()], due);
        }
        guest.awake();
    }
}

/// The manager's side.
pub(super) struct ServerGuard {
    /// Some chain's shared state is a server's, or its flows are.
    is_wanted: bool,
    /// The manager's life: incarnations of the server grow from one to the next.
    manager: u32,
    /// How many of the server's there have been in it.
    count: u32,
    lives: Lives,
}

impl ServerGuard {
    /// Of a manager in this life of it. The server of an earlier life may be there.
    pub(super) fn new(is_wanted: bool, manager: u32) -> ServerGuard {
        ServerGuard { is_wanted, manager, count: 0, lives: Lives::default() }
    }

    /// There is a state server, or would be one.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// A life has ended.
    pub(super) fn ended(&mut self, cause: &str, now: u64) {
        let when = self.lives.ended(now);
        devices::say(&format!(
            "the state server has ended ({cause}): it is started again {when}, and runtimes tell it what they have; flows go on meanwhile"
        ));
    }
}

impl Manager {
    /// Starts the state server when it is due, and ends one that hangs.
    pub(super) fn look_after_state_server(&mut self, now: u64) {
        let present = self.workers.iter_mut().find(|worker| worker.peer.node == STATE_SERVER);
        if self.server_guard.lives.look_after(present, now)
            && let Err(error) = self.start_state_server(now)
        {
            self.server_guard.ended(&error.to_string(), now);
        }
    }

    fn start_state_server(&mut self, now: u64) -> std::io::Result<()> {
        let guard = &mut self.server_guard;
        guard.lives.begun(now);
        guard.count += 1;
        // More lives than that of one manager's have pauses of seconds between them.
        let incarnation = guard.manager << 16 | guard.count & 0xffff;
        let past = Past { is_first: guard.manager == 1 && guard.count == 1, seed: self.flow_seed };
        let peer = Peer { node: STATE_SERVER, incarnation };
        self.start_role("state-server", peer, past, now)?;
        self.host.hub.handle_state_server(peer);
        Ok(())
    }
}
