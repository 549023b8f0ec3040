//! The processes of runtimes and of the coordinator, as seen by the manager. The guard is
//! their parent.

use super::guard_link::{Buried, FromGuard, Stored, ToGuard};
use super::role::{Assignment, Keys};
use super::{BURST, MILLISECOND, ManagerProcess, devices, keys};
use crate::files;
use holdfast_control::assignment::RuntimePlace;
use holdfast_control::status::{LocalStandby, Protected};
use holdfast_io::process::{self, Stall, Watched};
use holdfast_io::wait::sleep;
use holdfast_io::{VportHost, capture};
use holdfast_node::message::{LastWord, Notice};
use holdfast_node::switch::Switch;
use holdfast_protection::Peer;
use holdfast_wire::{DropReason, NodeId};
use rustix::fd::{AsFd, OwnedFd};
use serde::Serialize;
use std::fs::File;
use std::sync::atomic::{AtomicU32, Ordering};
use zeroize::Zeroizing;

/// Maximum number of runtimes that may end before the box is ready.
const MAX_FAILED_STARTS: u32 = 12;
/// Time-out after which a fenced process that neither ends nor wakes up is killed, ns.
const ZOMBIE_TIMEOUT: u64 = 60_000 * MILLISECOND;
/// Time-out for a coordinator to resign when the box ends, ns.
const RESIGN_TIMEOUT: u64 = 500 * MILLISECOND;
/// Maximum number of bytes of the capture of quarantined packets.
pub(super) const MOST_QUARANTINED: u64 = 16 << 20;
/// Timeout for a deputy to replace a keeper that has ended, ns. After it the keeper's
/// other processes are killed.
const DEPUTY_TIMEOUT: u64 = 500 * MILLISECOND;
/// Timeout after a keeper's end, ns. When it is over, the keeper's processes count as
/// ended.
const ENDING_TIMEOUT: u64 = 2_000 * MILLISECOND;
/// The pause between two checks for ended processes, besides the guard's reports, ns.
const DEATH_LOOK_INTERVAL: u64 = 20 * MILLISECOND;

/// The process of a runtime or of the coordinator, with its virtual port.
pub(super) struct Worker {
    pub(super) peer: Peer,
    pub(super) id: u16,
    /// The process; none until the guard has started it.
    pub(super) process: Option<Watched>,
    /// The pipe for new keys, if there are any.
    pub(super) stdin: Option<File>,
    pub(super) port: VportHost,
    /// Turns of its loop when last looked at, and the time of their last change.
    pub(super) beats: u64,
    pub(super) alive_at: u64,
    /// Stall records of the process and of its standby, while its loop does not turn.
    stalls: [Stall; 2],
    pub(super) fenced_at: Option<u64>,
    /// The cause of its end, once it has ended.
    pub(super) cause: Option<String>,
    /// True if it was seen to have ended before the guard's report.
    is_dead: bool,
    /// Time at which some of its processes were found to outlive it.
    is_ending_since: Option<u64>,
}

impl Worker {
    fn last_word(&self) -> LastWord {
        LastWord::new(self.port.last_word())
    }

    fn new(peer: Peer, id: u16, port: VportHost, now: u64) -> Worker {
        Worker {
            peer,
            id,
            process: None,
            stdin: None,
            beats: port.heartbeat(),
            port,
            alive_at: now,
            stalls: [Stall::default(); 2],
            fenced_at: None,
            cause: None,
            is_dead: false,
            is_ending_since: None,
        }
    }

    /// Process id; 0 before there is one. With a standby: that of the worker.
    pub(super) fn pid(&self) -> u32 {
        match (self.port.pair().worker.load(Ordering::Relaxed), &self.process) {
            (0, process) => process.as_ref().map_or(0, Watched::pid),
            (_, None) => 0,
            (worker, _) => worker,
        }
    }

    /// True if no process uses the worker's buffers any more. The deputy of an ended
    /// keeper may be about to replace it. If none does in time, the remaining processes
    /// are killed.
    fn has_ended_whole(&mut self, now: u64) -> bool {
        let pair = self.port.pair();
        let is_alive = |pid: &AtomicU32| match pid.load(Ordering::Relaxed) {
            0 => false,
            pid => process::lives(pid),
        };
        if ![pair.worker, pair.standby, pair.deputy].into_iter().any(is_alive) {
            return true;
        }
        let waited = now.saturating_sub(*self.is_ending_since.get_or_insert(now));
        if waited > DEPUTY_TIMEOUT
            && let Some(process) = &self.process
        {
            process.kill_rest();
        }
        // Their process ids may have been reused by now.
        waited > ENDING_TIMEOUT
    }

    /// The deputy that has replaced an ended keeper: its process id and descriptor.
    fn next_keeper(&self) -> Option<(u32, OwnedFd)> {
        let keeper = self.port.pair().keeper;
        let pid = keeper.load(Ordering::Acquire);
        let last = self.process.as_ref().map_or(0, Watched::pid);
        if pid == 0 || pid == last || !process::lives(pid) {
            return None;
        }
        let pidfd = process::open(pid).ok()?;
        // The keeper's word still names this id, so the descriptor is not of a process
        // that reused it.
        (keeper.load(Ordering::Acquire) == pid && process::lives(pid)).then_some((pid, pidfd))
    }

    /// True if its end would go unnoticed: it has a standby, a keeper to start another
    /// one, and a deputy to replace the keeper.
    fn is_kept(&self) -> bool {
        self.cause.is_none()
            && self.port.pair().deputy.load(Ordering::Relaxed) != 0
            && self.local_standby().is_some_and(|standby| standby.pid != 0)
    }

    /// True if the loop has turned within `timeout`, ns, or would have if it had had a
    /// processor. To be called regularly, because it measures the processor time since
    /// the last turn.
    pub(super) fn is_alive(&mut self, timeout: u64, now: u64) -> bool {
        let still = now.saturating_sub(self.alive_at);
        if still <= timeout / 8 {
            return true;
        }
        let standby = self.port.pair().standby.load(Ordering::Relaxed);
        let (beats, pids) = (self.beats, [self.pid(), standby]);
        // `count` below visits both processes, so that the time of both is measured.
        let waits = pids
            .into_iter()
            .zip(&mut self.stalls)
            .map(|(pid, stall)| pid != 0 && stall.waits(pid, beats, timeout / 2) == Some(true));
        let waiting = waits.filter(|waits| *waits).count();
        still <= timeout / 2 || waiting > 0
    }

    /// The standby's state, if it has or had one.
    pub(super) fn local_standby(&self) -> Option<LocalStandby> {
        let pair = self.port.pair();
        let (pid, worker) =
            (pair.standby.load(Ordering::Acquire), pair.worker.load(Ordering::Relaxed));
        // A standby that becomes the worker is in both words for a moment.
        let pid = if pid == worker { 0 } else { pid };
        (worker != 0)
            .then(|| LocalStandby { pid, takeovers: pair.takeovers.load(Ordering::Relaxed).into() })
    }

    pub(super) fn kill(&self) {
        if let Some(process) = &self.process {
            process.kill();
        }
    }
}

impl ManagerProcess {
    /// The protection, of those of these runtimes that run here, against the end of their
    /// process.
    pub(super) fn protected_locally(&self, which: &[NodeId]) -> Protected {
        if which.is_empty() {
            return Protected::No;
        }
        let mut runtimes = self
            .workers
            .iter()
            .filter(|worker| which.contains(&worker.peer.node) && worker.fenced_at.is_none());
        let is_ready = runtimes.all(Worker::is_kept);
        if is_ready && self.host.hub.has_coordinator() {
            Protected::Yes
        } else {
            Protected::ReSynchronising
        }
    }

    /// Adopts an earlier manager's processes, which live on, with everything in their
    /// rings.
    pub(super) fn adopt(
        &mut self,
        processes: Vec<Stored>,
        buried: &[Buried],
        mut fds: impl Iterator<Item = OwnedFd>,
        succeeds: bool,
        now: u64,
    ) -> std::io::Result<()> {
        let mut next = || {
            fds.next().ok_or_else(|| {
                std::io::Error::new(std::io::ErrorKind::InvalidData, "descriptors are missing")
            })
        };
        for stored in processes {
            let (rings, wake_host, wake_guest, pidfd) = (next()?, next()?, next()?, next()?);
            let stdin = if stored.keeps_stdin { Some(next()?) } else { None };
            let peer = Peer { node: stored.node, incarnation: stored.incarnation };
            let process = Watched::of(stored.pid, stored.group, pidfd);
            match VportHost::adopt(stored.id, rings, wake_host, wake_guest, &self.arena) {
                Ok(port) => {
                    let mut worker = Worker::new(peer, stored.id, port, now);
                    worker.process = Some(process);
                    worker.stdin = stdin.map(File::from);
                    worker.cause = stored.cause;
                    self.workers.push(worker);
                }
                // The process's holdings are unknown: it ends before its buffers are
                // freed.
                Err(error) => {
                    devices::say(&format!(
                        "process {} cannot be taken over and is ended: {error}",
                        stored.pid
                    ));
                    process.finish();
                    self.link.send(&ToGuard::Buried { id: stored.id, last: None }, &[])?;
                }
            }
        }
        let known: Vec<u16> = self.workers.iter().map(|worker| worker.id).collect();
        self.arena.reclaim_unknown(&known);
        // Ended processes are included: frames that they have sent are processed before
        // they are buried.
        let found: Vec<Peer> = self.workers.iter().map(|worker| worker.peer).collect();
        // A candidate is no coordinator yet.
        if let Some(coordinator) =
            found.iter().find(|peer| peer.node == NodeId::COORDINATOR && peer.incarnation > 0)
        {
            self.host.hub.handle_coordinator(*coordinator);
        }
        for server in found.iter().filter(|peer| peer.node.state_server_number().is_some()) {
            self.host.hub.handle_state_server(*server);
        }
        let runtimes: Vec<Peer> = found.into_iter().filter(|peer| peer.node.is_runtime()).collect();
        for worker in self.workers.iter().filter(|worker| worker.peer.node.is_runtime()) {
            self.host.hub.manager.hear_last_word(worker.peer, worker.last_word());
        }
        if succeeds {
            let peer =
                |buried: &Buried| Peer { node: buried.node, incarnation: buried.incarnation };
            let ended: Vec<_> = buried.iter().map(|buried| (peer(buried), buried.last)).collect();
            self.host.hub.succeed(&runtimes, &ended);
        }
        Ok(())
    }

    /// Notes that the coordinator gave a runtime up. A process that still runs was
    /// silent, and is told when it speaks again.
    pub(super) fn note_fenced(&mut self, peer: Peer, now: u64) {
        if let Some(worker) = self.workers.iter_mut().find(|worker| worker.peer == peer)
            && worker.fenced_at.is_none()
        {
            worker.fenced_at = Some(now);
            // A runtime without a cause is silent, and the coordinator has reported that
            // itself.
            if let Some(cause) = &worker.cause {
                self.host
                    .hub
                    .manager
                    .note_end(peer, Notice::new(cause, now.saturating_sub(worker.alive_at)));
            }
            // A packet that it was processing may be the cause.
            if let Some((switch, stamp)) = worker.port.take_in_flight() {
                self.host.hub.handle_suspect(NodeId::new(switch), stamp, now);
            }
        }
    }

    /// Writes the packets that switches have quarantined.
    fn keep_set_aside(&mut self) {
        for aside in self.host.hub.serving_mut().flat_map(Switch::take_set_aside) {
            let chain = self.plan.chain_name(aside.meta.chain);
            let what = format!("of {} in chain {chain}, stamp {}", aside.key, aside.meta.stamp);
            let comment = format!("two runtimes ended while they had this packet in hand: {what}");
            devices::say(&match capture::append(
                &self.quarantine,
                MOST_QUARANTINED,
                &aside.bytes,
                &comment,
            ) {
                Ok(()) => {
                    format!(
                        "a packet is set aside in {}: two runtimes ended with it in hand; {what}",
                        self.quarantine.display()
                    )
                }
                Err(error) => {
                    format!(
                        "a packet is set aside: two runtimes ended with it in hand; {what}; it cannot be kept: {error}"
                    )
                }
            });
        }
    }

    /// Ends a runtime that has nothing left to do. Its death is noticed as any other.
    pub(super) fn stop(&mut self, peer: Peer) {
        if let Some(process) = self
            .workers
            .iter()
            .find(|worker| worker.peer == peer)
            .and_then(|worker| worker.process.as_ref())
        {
            process.terminate();
        }
    }

    pub(super) fn start(&mut self, peer: Peer, now: u64) {
        if let Err(error) = self.start_runtime(peer, now) {
            self.cannot_start(peer, &error.to_string(), now);
        }
    }

    fn cannot_start(&mut self, peer: Peer, error: &str, now: u64) {
        if peer.node == NodeId::COORDINATOR {
            self.host.hub.handle_coordinator_ended(peer);
            return self.guard.ended(error, self.is_ready, now);
        }
        if let Some(number) = peer.node.state_server_number() {
            self.host.hub.handle_state_server_ended(peer);
            return self.server_guard.ended(number, error, self.is_ready, now);
        }
        devices::say(&format!("runtime {} cannot be started: {error}", peer.node));
        self.failed_starts += 1;
        error.clone_into(&mut self.last_cause);
        self.causes.insert(peer.node, error.to_owned());
        self.host.hub.handle_ended(peer);
    }

    fn start_runtime(&mut self, peer: Peer, now: u64) -> std::io::Result<()> {
        let role = RuntimePlace {
            node: peer.node.get(),
            seed: self.flow_seed,
            quarantine: self.quarantine.clone(),
        };
        self.start_role("runtime", peer, role, now)
    }

    /// Has the guard start this program in another role, with a virtual port and an
    /// assignment.
    pub(super) fn start_role(
        &mut self,
        name: &str,
        peer: Peer,
        role: impl Serialize,
        now: u64,
    ) -> std::io::Result<()> {
        let assignment = Assignment {
            incarnation: peer.incarnation,
            cluster: self.fabric_config.cluster,
            mtu: self.fabric_config.mtu,
            parent: self.parent,
            file: self.file.clone(),
            text: self.text.to_string(),
            keys: self.keys.as_ref().map(Keys::from),
            life: keys::new_life()?,
            role,
        };
        let mut line = Zeroizing::new(serde_json::to_vec(&assignment)?);
        while self.next_id == 0 || self.workers.iter().any(|worker| worker.id == self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        line.push(b'\n');
        let line = files::memory(&line)?;
        let port = VportHost::create(id, &mut self.arena)?;
        let message = ToGuard::Start {
            id,
            role: name.to_owned(),
            node: peer.node,
            incarnation: peer.incarnation,
            keeps_stdin: self.keys.is_some(),
        };
        let [rings, wake_host, wake_guest] = port.fds();
        let sent = self.link.send(&message, &[line.as_fd(), rings, wake_host, wake_guest]);
        if let Err(error) = sent {
            port.reclaim(&mut self.arena);
            return Err(error);
        }
        let worker = Worker::new(peer, id, port, now);
        if peer.node.is_runtime() {
            self.host.hub.manager.hear_last_word(peer, worker.last_word());
        }
        self.workers.push(worker);
        Ok(())
    }

    /// Handles the guard's reports.
    fn hear_guard(&mut self, now: u64) {
        while let Some((message, fds)) = self.link.receive() {
            let (FromGuard::Started { id, .. }
            | FromGuard::Refused { id, .. }
            | FromGuard::Ended { id, .. }) = &message;
            let Some(at) = self.workers.iter().position(|worker| worker.id == *id) else {
                continue;
            };
            let mut fds = fds.into_iter();
            match message {
                FromGuard::Started { pid, .. } => {
                    let worker = &mut self.workers[at];
                    worker.process = fds.next().map(|pidfd| Watched::of(pid, pid, pidfd));
                    worker.stdin = fds.next().and_then(|stdin| keys::keep_open(stdin).ok());
                    worker.alive_at = now;
                    let peer = worker.peer;
                    if peer.node.is_runtime() {
                        self.host.hub.handle_started(peer);
                    }
                }
                FromGuard::Refused { error, .. } => {
                    let worker = self.workers.swap_remove(at);
                    worker.port.reclaim(&mut self.arena);
                    self.cannot_start(worker.peer, &error, now);
                }
                FromGuard::Ended { pid, cause, .. } => {
                    let worker = &mut self.workers[at];
                    if worker.process.as_ref().is_none_or(|process| process.pid() == pid) {
                        worker.cause = Some(cause);
                    }
                }
            }
        }
    }

    pub(super) fn look_after_processes(&mut self, now: u64) {
        self.hear_guard(now);
        // The guard reports which processes have ended, and how, but may stand still
        // itself.
        if now.saturating_sub(self.last_death_look) > DEATH_LOOK_INTERVAL {
            self.last_death_look = now;
            for worker in self.workers.iter_mut().filter(|worker| worker.cause.is_none()) {
                let was_dead = worker.is_dead;
                worker.is_dead = worker.process.as_ref().is_some_and(Watched::has_ended);
                if was_dead {
                    worker.cause = Some("ended".to_owned());
                }
            }
            let timeout = self.plan.detection.hang_ms * MILLISECOND;
            let runtimes = self
                .workers
                .iter_mut()
                .filter(|worker| worker.peer.node.is_runtime() && worker.cause.is_none());
            let alive =
                runtimes.filter_map(|worker| worker.is_alive(timeout, now).then_some(worker.peer));
            self.host.hub.manager.set_alive(alive);
        }
        self.keep_set_aside();
        let mut at = 0;
        while at < self.workers.len() {
            let worker = &mut self.workers[at];
            if worker.cause.is_some()
                && let Some((pid, pidfd)) = worker.next_keeper()
                && let Some(process) = &mut worker.process
            {
                // If the guard cannot be told, nothing has changed, and it is tried
                // again.
                if self.link.send(&ToGuard::Passed { id: worker.id, pid }, &[pidfd.as_fd()]).is_ok()
                {
                    process.pass_to(pid, pidfd);
                    (worker.cause, worker.is_dead, worker.is_ending_since) = (None, false, None);
                }
                at += 1;
                continue;
            }
            if worker.cause.is_some()
                && worker.has_ended_whole(now)
                && self.host.hub.may_hear(worker.peer)
            {
                self.bury(at, now);
                continue;
            }
            if worker.fenced_at.is_some_and(|fenced| now.saturating_sub(fenced) > ZOMBIE_TIMEOUT) {
                worker.kill();
            }
            at += 1;
        }
    }

    /// The end of the runtimes, if none of them can begin to serve.
    pub(super) fn hopeless_start(&self) -> Option<&str> {
        (!self.has_served && self.failed_starts >= MAX_FAILED_STARTS)
            .then_some(self.last_cause.as_str())
    }

    /// Buries an ended process: its sent frames are processed, its role is given up, its
    /// buffers are freed.
    fn bury(&mut self, at: usize, now: u64) {
        let peer = self.workers[at].peer;
        let is_coordinator = peer.node == NodeId::COORDINATOR;
        if peer.node.is_runtime() {
            let cause = self.workers[at].cause.clone().unwrap_or_default();
            if !self.is_ready {
                self.failed_starts += 1;
                self.last_cause.clone_from(&cause);
            }
            self.causes.insert(peer.node, cause);
        }
        loop {
            self.workers[at].port.receive(BURST, &mut self.rx, &mut self.arena);
            if self.rx.is_empty() {
                break;
            }
            self.hear_election(at, now);
            self.host.handle_runtime(
                self.workers[at].peer,
                &mut self.rx,
                now,
                &mut self.out,
                &mut self.arena,
            );
            self.carry_out(now);
        }
        // A candidate's last report may have been that it leads.
        let peer = self.workers[at].peer;
        if is_coordinator {
            // The unread frames are messages, which its next incarnation asks for again.
            self.host.hub.handle_coordinator_ended(peer);
            self.guard.ended(
                self.workers[at].cause.as_deref().unwrap_or_default(),
                self.is_ready,
                now,
            );
        } else if let Some(number) = peer.node.state_server_number() {
            self.host.hub.handle_state_server_ended(peer);
            self.server_guard.ended(
                number,
                self.workers[at].cause.as_deref().unwrap_or_default(),
                self.is_ready,
                now,
            );
        } else {
            for _ in 0..self.workers[at].port.unread() {
                self.drops.count(DropReason::LostInFailure);
            }
            self.note_fenced(peer, now);
            self.host.hub.handle_ended(peer);
        }
        self.host.turn(now, &mut self.out, &mut self.arena);
        self.carry_out(now);
        self.host.hub.handle_buried(peer);
        let worker = self
            .workers
            .swap_remove(self.workers.iter().position(|worker| worker.peer == peer).unwrap_or(at));
        let last = worker.last_word().heard();
        worker.port.reclaim(&mut self.arena);
        // The guard is told after the buffers are freed: a manager that begins earlier
        // repeats the burial.
        let _ = self.link.send(&ToGuard::Buried { id: worker.id, last }, &[]);
    }

    /// Ends every process, and waits for their ends.
    pub(super) fn finish(mut self) {
        self.alerts.finish();
        self.host.hub.abandon(&mut self.arena);
        if self.guard.election.is_some()
            && let Some(process) = self
                .workers
                .iter()
                .find(|worker| worker.peer.node == NodeId::COORDINATOR)
                .and_then(|worker| worker.process.as_ref())
        {
            // A successor then need not wait for the end of the lease.
            process.terminate();
            sleep(&[process.wait_fd()], RESIGN_TIMEOUT);
        }
        for process in self.workers.into_iter().filter_map(|worker| worker.process) {
            process.finish();
        }
        self.guard.finish();
    }

    /// Gives the guard the applied configuration for the next manager.
    pub(super) fn keep_text(&mut self) {
        if let Some(text) = self.applied.take() {
            let _ = self.link.send(&ToGuard::Text, &[text.as_fd()]);
        }
    }
}
