//! The role of a runtime: a process of its own, started by the guard for the manager.

use super::control_transport::{ConfiguredTransport, Opened};
use super::role::{self, NewKeys};
use super::workers::MOST_QUARANTINED;
use super::{devices, levels, privileges};
use crate::config::{ChainPlan, Plan};
use holdfast_control::assignment::RuntimePlace;
use holdfast_control::exit::{self, Failure};
use holdfast_io::control_transport::shared_memory::Side;
use holdfast_io::process::{Clock, thread_time};
use holdfast_io::standby::{self, Turns, Watch};
use holdfast_io::wait::SpinLimit;
use holdfast_io::{VportGuest, capture};
use holdfast_node::message::LastWord;
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_protection::Peer;
use holdfast_protection::flows::Journal;
use holdfast_wire::{DropReason, NodeId, Packet, announce_writes};
use std::path::Path;
use std::time::Duration;

/// The journal's functions for the state machine of a role with a standby.
pub(super) const JOURNAL: Journal =
    Journal { exempt: standby::exempt, before: standby::before, scratch: standby::scratch };

/// Frames per turn.
const BURST: usize = 64;
/// Turns without work before a runtime sleeps. More would pay on a core of its own; here
/// other processes share the core.
const SPINS: u32 = 50;
/// Maximum number of bursts of a logged turn: each turn copies some tens of pages that
/// change in every turn.
const BURSTS: usize = 4;
/// Longest sleep, ns: the heartbeat must continue.
const MAX_SLEEP: u64 = 10_000_000;

/// The process state of a runtime: all of it lies in the heap that a standby shares.
struct RuntimeProcess {
    runtime: Runtime,
    guest: VportGuest,
    rx: Vec<Packet>,
    tx: Vec<Packet>,
}

/// Runs until it is fenced or killed.
///
/// # Errors
/// If a manager has not started it, or there is no memory for its standby.
pub fn main() -> Result<(), Failure> {
    let mut given = role::take::<RuntimePlace>()?;
    let plan = role::plan_of(&given.assignment)?;
    let has_standby =
        levels::with_standby(&plan).contains(&NodeId::new(given.assignment.role.node));
    // The time-out is short enough that the runtime is not given up even if the next
    // worker hangs too.
    let timeout = Duration::from_millis(plan.detection.hang_ms / 3);
    // A function's panic is contained and counted; its message would repeat the counter
    // for every packet.
    std::panic::set_hook(Box::new(|_| {}));
    let refused = |error: std::io::Error| {
        Failure::new(exit::UNAVAILABLE, format!("the local standby: {error}"))
    };
    if has_standby {
        standby::create().map_err(refused)?;
    }
    // The value is never dropped: with a standby it is the worker's, which may be in the
    // middle of a turn.
    let process =
        Box::leak(standby::enter(|| RuntimeProcess::new(&mut given, &plan, has_standby))?);
    let transport = ConfiguredTransport::prepare(&plan.state_servers, Side::Runtime);
    privileges::restrict_calls(&plan)?;
    drop(plan);
    let quarantine = core::mem::take(&mut given.assignment.role.quarantine);
    let mut lines = given.keys.take().map(|(_, lines)| lines);
    if !has_standby {
        process.live(Turns::default(), lines.take(), &transport, &quarantine);
        return Ok(());
    }
    if let Some(turn) = standby::turn() {
        announce_writes(standby::before, turn);
    }
    let (pair, watch) = (process.guest.pair(), Watch { beats: process.guest.beats(), timeout });
    match standby::supervise(pair, watch, |turns| {
        process.live(turns, lines.take(), &transport, &quarantine)
    })
    .map_err(refused)?
    {
        0 => Ok(()),
        code => Err(Failure::said(code as u8)),
    }
}

impl RuntimeProcess {
    fn new(
        given: &mut role::Given<RuntimePlace>,
        plan: &Plan,
        has_standby: bool,
    ) -> Result<Box<RuntimeProcess>, Failure> {
        let guest = given.attach()?;
        let assignment = &given.assignment;
        let spec = |chain: &ChainPlan| ChainSpec {
            name: chain.name.clone(),
            switch: chain.switch,
            chain: chain.bind(),
            protection: chain.protection.build(),
        };
        let specs = plan.chains.iter().map(spec).collect();
        let runtime_config = RuntimeConfig {
            me: Peer {
                node: NodeId::new(assignment.role.node),
                incarnation: assignment.incarnation,
            },
            flows: plan.limits.flows,
            seed: assignment.role.seed,
            report_interval: plan.detection.heartbeat_ms * 1_000_000,
            fabric: role::fabric_of(assignment),
        };
        let mut runtime =
            Runtime::new(runtime_config, specs).with_state_servers(plan.state_server_count());
        runtime.randomize(super::random_seed());
        runtime.show_in_flight(guest.in_flight());
        runtime.show_last_word(LastWord::new(guest.last_word()));
        // The capacity is beyond any use, so that the allocation consists of whole pages.
        let frames = || Vec::<Packet>::with_capacity(BURST * 8);
        let (rx, tx) = (frames(), frames());
        if has_standby {
            runtime.set_journal(JOURNAL);
            [&rx, &tx].into_iter().for_each(|frames| JOURNAL.scratch(frames));
        }
        if let Some((ring, _)) = &given.keys {
            runtime.authenticate(ring, assignment.life);
        }
        Ok(Box::new(RuntimeProcess { runtime, guest, rx, tx }))
    }

    /// Runs turns until it is fenced.
    fn live(
        &mut self,
        mut turns: Turns,
        mut lines: Option<role::Lines>,
        transport: &ConfiguredTransport,
        quarantine: &Path,
    ) -> i32 {
        if turns.takes_over() {
            self.guest.take_over();
        }
        if turns.is_poisoned() {
            self.set_aside(&mut turns, quarantine);
        }
        let mut new_keys = None;
        let mut words = transport.open();
        let clock = Clock::new();
        let mut spins = SpinLimit::new(SPINS);
        let mut is_due = true;
        while !self.runtime.is_fenced() {
            // A turn has a cost even without work. A turn with work is followed by
            // another, which measures how long it took.
            let is_due_now = is_due
                || self.guest.has_input()
                || words.has_input()
                || self.runtime.poll_timeout().is_some_and(|due| due <= clock.now());
            let mut had_work = false;
            if is_due_now {
                let burst = turns.begin(BURST);
                let bursts = if turns.are_logged() && burst == BURST { BURSTS } else { 1 };
                had_work = standby::enter(|| {
                    self.bursts(bursts, burst, new_keys.as_ref(), &mut words, &clock)
                });
                turns.commit();
                self.guest.publish();
                words.publish();
            } else {
                self.guest.beat();
            }
            // Reading begins after the first turn, for which other processes may be
            // waiting.
            if let Some(lines) = lines.take() {
                new_keys = Some(NewKeys::listen(lines));
            }
            is_due = had_work;
            if !spins.is_over(had_work) {
                continue;
            }
            is_due = true;
            let due = self.runtime.poll_timeout().unwrap_or(u64::MAX).saturating_sub(clock.now());
            if due > 1_000 && self.guest.prepare_sleep() {
                words.sleep(self.guest.wait_fd(), due.min(MAX_SLEEP));
            }
            self.guest.awake();
        }
        0
    }

    /// Quarantines the next frame, which has ended two workers in succession, the second
    /// while it processed nothing else.
    fn set_aside(&mut self, turns: &mut Turns, quarantine: &Path) {
        turns.begin(1);
        let frame = standby::enter(|| self.guest.discard());
        if frame.is_some() {
            self.runtime.count_drop(DropReason::Quarantined);
        }
        turns.commit();
        self.guest.publish();
        let Some(frame) = frame else { return };
        let kept = capture::append(
            quarantine,
            MOST_QUARANTINED,
            &frame,
            "two workers of a runtime ended while they had this frame in hand",
        );
        devices::say(&match kept {
            Ok(()) => {
                format!(
                    "a packet is set aside in {}: two workers of a runtime ended with it in hand",
                    quarantine.display()
                )
            }
            Err(error) => {
                format!(
                    "a packet is set aside: two workers of a runtime ended with it in hand; it cannot be kept: {error}"
                )
            }
        });
    }

    /// Processes bursts while input is left, at most `bursts`.
    #[inline]
    fn bursts(
        &mut self,
        bursts: usize,
        burst: usize,
        new_keys: Option<&NewKeys>,
        words: &mut Opened,
        clock: &Clock,
    ) -> bool {
        let mut had_work = self.turn(burst, new_keys, words, clock.now());
        for _ in 1..bursts {
            if !had_work || !self.guest.has_input() {
                break;
            }
            had_work |= self.turn(burst, new_keys, words, clock.now());
        }
        had_work
    }

    fn turn(
        &mut self,
        burst: usize,
        new_keys: Option<&NewKeys>,
        words: &mut Opened,
        now: u64,
    ) -> bool {
        let RuntimeProcess { runtime, guest, rx, tx } = self;
        guest.beat();
        if let Some(ring) = new_keys.and_then(NewKeys::take) {
            runtime.set_keys(&ring);
        }
        guest.receive(burst, rx);
        let began = runtime.is_asked().then(thread_time);
        let had_work = runtime.turn_with(rx, tx, guest, words.words(), now);
        if let Some(began) = began {
            runtime.note_turn((thread_time() - began) / 1000);
        }
        guest.transmit(tx);
        had_work
    }
}
