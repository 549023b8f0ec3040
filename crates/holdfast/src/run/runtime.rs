//! The role of a runtime: a process of its own, started by the guard for the manager.

use crate::config;
use crate::exit::{self, Failure};
use holdfast_io::VportGuest;
use holdfast_io::process::{Clock, die_with_parent, inherited};
use holdfast_io::wait::{Patience, sleep};
use holdfast_node::channel::{FabricConfig, Key, KeyRing, KeyRingError};
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_protection::Peer;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

/// What the manager writes to the runtime's standard input, as a line: secrets show neither in arguments nor in the environment. Later lines are
/// [`Keys`].
#[derive(Serialize, Deserialize)]
pub(super) struct Assignment {
    pub(super) node: u16,
    pub(super) incarnation: u32,
    pub(super) cluster: u32,
    pub(super) seed: u64,
    pub(super) parent: u32,
    pub(super) file: String,
    pub(super) text: String,
    pub(super) keys: Option<Keys>,
    /// Tells this life from every other one.
    pub(super) life: NonZeroU64,
}

/// The cluster's keys on their way.
#[derive(Serialize, Deserialize)]
pub(super) struct Keys(Vec<(u8, [u8; 32])>);

impl From<&KeyRing> for Keys {
    fn from(ring: &KeyRing) -> Keys {
        Keys(ring.keys().iter().map(|key| (key.number, key.secret)).collect())
    }
}

impl Keys {
    pub(super) fn ring(self) -> Result<KeyRing, KeyRingError> {
        KeyRing::new(self.0.into_iter().map(|(number, secret)| Key { number, secret }).collect())
    }
}

/// Rings that the manager sends later, until it is gone. A thread waits for them: a pipe has no other way to be read without a system call per turn.
pub(super) struct NewKeys {
    rings: Receiver<KeyRing>,
    has_come: Arc<AtomicBool>,
}

impl NewKeys {
    pub(super) fn listen(mut lines: impl BufRead + Send + 'static) -> NewKeys {
        let (sender, rings) = channel();
        let has_come = Arc::new(AtomicBool::new(false));
        let flag = has_come.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|len| len > 0) {
                if let Some(ring) = serde_json::from_str::<Keys>(&line).ok().and_then(|keys| keys.ring().ok()) {
                    let _ = sender.send(ring);
                    flag.store(true, Ordering::Release);
                }
                line.clear();
            }
        });
        NewKeys { rings, has_come }
    }

    /// The newest.
    pub(super) fn take(&self) -> Option<KeyRing> {
        if !self.has_come.load(Ordering::Relaxed) {
            return None;
        }
        // First the flag: what comes after it was lowered raises it again.
        self.has_come.swap(false, Ordering::AcqRel);
        self.rings.try_iter().last()
    }
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
    let refused = |error: std::io::Error| Failure::new(exit::UNAVAILABLE, error.to_string());
    // A terminal that closes, or a signal to the whole service, reaches every process. The manager lives on, and so must its runtimes: all flows
    // would be lost at once.
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::new(AtomicBool::new(false))).map_err(refused)?;
    let mut fds = inherited(4).map_err(refused)?.into_iter();
    let mut text = String::new();
    let mut lines = BufReader::new(std::io::stdin());
    lines.read_line(&mut text).map_err(refused)?;
    let mut assignment: Assignment = serde_json::from_str(&text)
        .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("the manager's assignment: {error}")))?;
    die_with_parent(assignment.parent).map_err(refused)?;
    let (Some(arena), Some(port), Some(wake_host), Some(wake_guest)) = (fds.next(), fds.next(), fds.next(), fds.next()) else {
        return Err(Failure::new(exit::UNAVAILABLE, "descriptors are missing"));
    };
    let mut guest = VportGuest::attach(arena, port, wake_host, wake_guest).map_err(refused)?;
    let mistake = |mistake: config::Mistake| Failure::new(exit::CONFIGURATION, mistake.to_string());
    let checked = config::read(&assignment.file, &assignment.text).map_err(mistake)?;
    let chains = config::chains(&assignment.file, &assignment.text, &checked.config).map_err(mistake)?;
    let specs = chains
        .into_iter()
        .map(|built| ChainSpec { name: built.name, chain: built.chain, protection: built.protection })
        .collect();
    let runtime_config = RuntimeConfig {
        me: Peer { node: assignment.node, incarnation: assignment.incarnation },
        flows: checked.config.limits.flows,
        seed: assignment.seed,
        report_interval: checked.config.detection.heartbeat_ms * 1_000_000,
        fabric: FabricConfig { cluster: assignment.cluster, ..FabricConfig::default() },
    };
    let mut runtime = Runtime::new(runtime_config, specs);
    let new_keys = match assignment.keys.take() {
        Some(keys) => {
            let ring = keys.ring().map_err(|error| Failure::new(exit::UNAVAILABLE, format!("the manager's keys: {error}")))?;
            runtime.authenticate(&ring, assignment.life);
            Some(NewKeys::listen(lines))
        }
        None => None,
    };
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
