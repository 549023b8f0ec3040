//! The role of a runtime: a process of its own, started by the guard for the manager.

use super::role::{self, Beginning, NewKeys};
use crate::config;
use crate::exit::{self, Failure};
use holdfast_io::process::Clock;
use holdfast_io::wait::{Patience, sleep};
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_protection::Peer;
use serde::{Deserialize, Serialize};

/// What a runtime is told besides.
#[derive(Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) node: u16,
    pub(super) seed: u64,
}

/// Frames per turn.
const BURST: usize = 64;
/// Turns without work before a runtime sleeps. On a core of its own more would do; here others want the core.
const SPINS: u32 = 50;
/// Longest sleep, ns: the heartbeat must go on.
const MAX_SLEEP: u64 = 10_000_000;

/// Runs until it is fenced or killed.
///
/// # Errors
/// If it was not started by a manager.
pub fn main() -> Result<(), Failure> {
    let Beginning { assignment, mut guest, keys } = role::begin::<Place>()?;
    let mistake = |mistake: config::Mistake| Failure::new(exit::CONFIGURATION, mistake.to_string());
    let checked = config::read(&assignment.file, &assignment.text).map_err(mistake)?;
    let chains = config::chains(&assignment.file, &assignment.text, &checked.config).map_err(mistake)?;
    let specs = chains
        .into_iter()
        .map(|built| ChainSpec { name: built.name, switch: built.switch, chain: built.chain, protection: built.protection })
        .collect();
    let runtime_config = RuntimeConfig {
        me: Peer { node: assignment.role.node, incarnation: assignment.incarnation },
        flows: checked.config.limits.flows,
        seed: assignment.role.seed,
        report_interval: checked.config.detection.heartbeat_ms * 1_000_000,
        fabric: assignment.fabric(),
    };
    let mut runtime = Runtime::new(runtime_config, specs);
    runtime.randomize(super::random_seed());
    runtime.show_hands(guest.hands());
    let new_keys = keys.map(|(ring, new)| {
        runtime.authenticate(&ring, assignment.life);
        new
    });
    // A panic of a function is contained and counted; its message would only repeat, per packet, what the counter says.
    std::panic::set_hook(Box::new(|_| {}));
    let clock = Clock::new();
    let mut patience = Patience::new(SPINS);
    let (mut rx, mut tx) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST * 4));
    while !runtime.is_fenced() {
        guest.beat();
        if let Some(ring) = new_keys.as_ref().and_then(NewKeys::take) {
            runtime.set_keys(&ring);
        }
        guest.receive(BURST, &mut rx);
        let now = clock.now();
        let had_work = runtime.turn(&mut rx, &mut tx, &mut guest, now);
        guest.transmit(&mut tx);
        if !patience.is_over(had_work) {
            continue;
        }
        let due = runtime.poll_timeout().unwrap_or(u64::MAX).saturating_sub(clock.now());
        if due > 1_000 && guest.prepare_sleep() {
            sleep(&[guest.wait_fd()], due.min(MAX_SLEEP));
        }
        guest.awake();
    }
    Ok(())
}
