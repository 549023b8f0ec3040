//! A runtime in a process of its own, as in a box; this process stands for its manager,
//! switch and coordinator.

use super::PlaysOnce;
use super::bench_box::{MakeChain, room_for};
use crate::daemon;
use holdfast_control::assignment::{Assignment, RuntimePlace};
use holdfast_io::process::{Clock, Watched};
use holdfast_io::standby::Pair;
use holdfast_io::wait::sleep;
use holdfast_io::{Arena, VportHost};
use holdfast_nf::shared::BLOCK_LEN;
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{Control, kind, numbered};
use holdfast_node::pools;
use holdfast_protection::Peer;
use holdfast_wire::header::{ETHERTYPE_FABRIC, ETHERTYPE_NSH};
use holdfast_wire::nsh::{self, ENCAPSULATION_LEN, Flags, Outer, index};
use holdfast_wire::{NodeId, Packet, PacketPool};
use rustix::fd::BorrowedFd;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use std::io::Write;
use std::num::NonZeroU64;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const RUNTIME: Peer = Peer { node: NodeId::FIRST_RUNTIME, incarnation: 1 };
/// Buffers of the box.
const BUFFERS: u32 = 16_384;
/// Packets that are under way while a result is checked.
const AT_ONCE: usize = 64;
/// Time limit for steps that usually take milliseconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Time between two looks for messages, ns.
const WORD_INTERVAL: u64 = 1_000_000;

/// Starts a runtime of this configuration, with this process in the place of its manager:
/// with the box's memory, and the port that leads to it.
fn start_runtime(text: String, arena: BorrowedFd<'_>, port: &VportHost) -> Result<Watched, String> {
    let FabricConfig { cluster, mtu, .. } = FabricConfig::default();
    let assignment = Assignment {
        incarnation: RUNTIME.incarnation,
        cluster,
        mtu,
        parent: std::process::id(),
        file: "the configuration".to_owned(),
        text,
        keys: None::<()>,
        life: NonZeroU64::MIN,
        role: RuntimePlace { node: RUNTIME.node.get(), seed: 7, quarantine: PathBuf::new() },
    };
    let refused = |error: std::io::Error| format!("starting a runtime: {error}");
    let mut line = serde_json::to_vec(&assignment).map_err(|error| error.to_string())?;
    line.push(b'\n');
    let mut command = Command::new(daemon::binary().map_err(|failure| failure.message)?);
    command.arg0("holdfast").arg("runtime").stdin(Stdio::piped()).stdout(Stdio::null());
    let [rings, wake_host, wake_guest] = port.fds();
    let mut process =
        Watched::start(&mut command, &[arena, rings, wake_host, wake_guest]).map_err(refused)?;
    match process.take_stdin().map(|mut stdin| stdin.write_all(&line)) {
        Some(Err(error)) => {
            process.finish();
            Err(refused(error))
        }
        _ => Ok(process),
    }
}

/// A chain's functions by name, each with its configuration.
pub(super) type Functions = Vec<(String, Value)>;

/// Two processors that this thread may use, if there are two.
pub(super) fn processors() -> Result<Option<[usize; 2]>, String> {
    let allowed = sched_getaffinity(None).map_err(|error| error.to_string())?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number));
    Ok(processors.next().zip(processors.next()).map(<[usize; 2]>::from))
}

/// A runtime's process, and the stand-ins for manager, switch and coordinator.
pub(super) struct Served {
    process: Option<Watched>,
    port: VportHost,
    arena: Arena,
    coordinator: Fabric,
    manager: Fabric,
    clock: Clock,
    stamp: u64,
    next_word: u64,
    rx: Vec<Packet>,
    /// Frames that the runtime has released.
    pub(super) released: u64,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.finish();
        }
    }
}

impl Served {
    /// Starts a runtime of one chain, and grants it every number of the chain's pools.
    pub(super) fn start(
        functions: &Functions,
        protection: &Value,
        flows: usize,
        make: MakeChain<'_>,
    ) -> Result<Served, String> {
        let chain: Vec<Value> =
            functions.iter().map(|(name, config)| json!({ name: config })).collect();
        let text = json!({
            "cluster": "bench",
            "ports": {
                "inside": { "device": "inside", "address": "172.31.1.1/24" },
                "outside": { "device": "outside", "address": "172.31.2.1/24" },
            },
            "chains": { "bench": { "functions": chain, "protection": protection } },
            "rules": [{ "chain": "bench" }],
            "limits": { "flows": room_for(flows) },
        });
        let refused = |error: std::io::Error| error.to_string();
        let mut arena = Arena::create(BUFFERS).map_err(refused)?;
        let port = VportHost::create(1, &mut arena).map_err(refused)?;
        let process = start_runtime(text.to_string(), arena.fd(), &port)?;
        let speaker = |node| {
            let mut fabric = Fabric::new(Peer { node, incarnation: 1 }, FabricConfig::default());
            fabric.set_peer(RUNTIME);
            fabric
        };
        let mut coordinator = speaker(NodeId::COORDINATOR);
        for grant in grants(make)? {
            coordinator.send_control(RUNTIME.node, &grant);
        }
        Ok(Served {
            process: Some(process),
            port,
            arena,
            coordinator,
            manager: speaker(NodeId::MANAGER),
            clock: Clock::new(),
            stamp: 0,
            next_word: 0,
            rx: Vec::with_capacity(1024),
            released: 0,
        })
    }

    /// The present time, ns.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Frames of the runtime that can be received.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.port.waiting()
    }

    /// Pins this thread to the first of these processors, and the runtime's processes to
    /// the second, before they start.
    pub(super) fn part(&self, [here, there]: [usize; 2]) -> Result<(), String> {
        let refused = |error: rustix::io::Errno| error.to_string();
        let only = |number| {
            let mut set = CpuSet::new();
            set.set(number);
            set
        };
        let runtime = self.process.as_ref().and_then(|process| Pid::from_raw(process.pid() as i32));
        sched_setaffinity(runtime, &only(there)).map_err(refused)?;
        sched_setaffinity(None, &only(here)).map_err(refused)
    }

    /// The runtime's worker and standby processes.
    pub(super) fn pair(&self) -> Pair {
        self.port.pair()
    }

    /// Turns of the runtime's loop.
    pub(super) fn turns(&self) -> u64 {
        self.port.heartbeat()
    }

    /// Sends a frame to the runtime, as the switch does; [`Served::flush`] shows it.
    /// False if there is no room.
    #[inline]
    pub(super) fn send(&mut self, frame: &[u8], flags: u8) -> bool {
        self.send_with(frame, flags, |_| {})
    }

    /// Like [`Served::send`], with a change in the frame.
    #[inline]
    pub(super) fn send_with(
        &mut self,
        frame: &[u8],
        flags: u8,
        change: impl FnOnce(&mut [u8]),
    ) -> bool {
        let Some(mut packet) = self.arena.take() else { return false };
        let mut fits = packet.copy_from(frame);
        change(packet.bytes_mut());
        self.stamp = self.clock.now().max(self.stamp + 1);
        packet.meta.stamp = self.stamp;
        packet.meta.commit = 1;
        packet.meta.flags = flags;
        let outer = Outer {
            destination: RUNTIME.mac(),
            source: NodeId::SWITCH.mac(),
            index: index::TO_RUNTIME,
        };
        fits &= nsh::encapsulate(&mut packet, outer);
        debug_assert!(fits);
        match self.port.send_data(packet, &mut self.arena) {
            Ok(()) => true,
            Err(packet) => {
                self.arena.put(packet);
                false
            }
        }
    }

    /// Shows the runtime the frames that were sent.
    pub(super) fn flush(&mut self) {
        self.port.flush();
    }

    /// Takes the frames that have arrived; `released` gets each released frame.
    #[inline]
    pub(super) fn receive(&mut self, mut released: impl FnMut(&[u8])) {
        let mut rx = core::mem::take(&mut self.rx);
        self.port.receive(1024, &mut rx, &mut self.arena);
        for packet in rx.drain(..) {
            let bytes = packet.bytes();
            match bytes.get(12..14).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]])) {
                Some(ETHERTYPE_NSH) if bytes[21] == index::RELEASED => {
                    self.released += 1;
                    released(&bytes[ENCAPSULATION_LEN..]);
                }
                Some(ETHERTYPE_FABRIC) => self.hear(bytes),
                _ => {}
            }
            self.arena.put(packet);
        }
        self.rx = rx;
    }

    /// Handles a message: numbered messages are acknowledged at once; their content is
    /// for a real coordinator.
    fn hear(&mut self, frame: &[u8]) {
        let now = self.clock.now();
        let to = frame.first_chunk().and_then(NodeId::of_mac);
        let fabric =
            if to == Some(NodeId::COORDINATOR) { &mut self.coordinator } else { &mut self.manager };
        let _ = fabric.handle_frame(frame, now);
        let ordered = fabric.inbox.records().filter(|(record, _)| record.kind == kind::NUMBERED);
        let handled = ordered.filter_map(|(_, body)| Some(numbered(body).ok()?.0)).max();
        fabric.inbox.clear();
        if let Some(handled) = handled {
            fabric.send_control(RUNTIME.node, &Control::Settled { handled });
        }
    }

    /// Sends messages, if they are due.
    #[inline]
    pub(super) fn speak(&mut self, now: u64) {
        if now < self.next_word {
            return;
        }
        self.next_word = now + WORD_INTERVAL;
        let Served { coordinator, manager, port, arena, .. } = self;
        for fabric in [coordinator, manager] {
            fabric.poll_transmit(now, |frame| {
                let Some(mut packet) = arena.take() else { return false };
                if !packet.copy_from(frame) {
                    arena.put(packet);
                    return false;
                }
                port.send(packet, arena).map_err(|packet| arena.put(packet)).is_ok()
            });
        }
        self.port.flush();
    }

    /// Waits until the runtime's loop turns.
    pub(super) fn wait_until_it_turns(&mut self) -> Result<(), String> {
        self.wait_for("the runtime serves", |served| served.turns() > 0)
    }

    /// Waits until the worker has a standby that can take over, and acts accordingly.
    pub(super) fn wait_for_standby(&mut self) -> Result<(), String> {
        self.wait_for("there is a standby", |served| {
            served.pair().standby.load(Ordering::Acquire) != 0
        })?;
        // A whole turn must have begun since then.
        let turns = self.turns() + 2;
        self.wait_for("the worker turns", |served| served.turns() >= turns)
    }

    fn wait_for(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&Served) -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        while !is_so(self) {
            if self.process.as_ref().is_some_and(Watched::has_ended) {
                return Err("the runtime's process has ended".to_owned());
            }
            if Instant::now() > deadline {
                return Err(format!("after {LIMIT:?} it is not so that {what}"));
            }
            self.receive(|_| {});
            self.speak(self.now());
            sleep(&[], 100_000);
        }
        Ok(())
    }

    /// Plays frames once, in order, and returns what came out.
    fn play<const L: usize>(
        &mut self,
        frames: &[[u8; L]],
        flags: u8,
    ) -> Result<Vec<[u8; L]>, String> {
        let mut out = Vec::with_capacity(frames.len());
        let deadline = Instant::now() + LIMIT;
        for chunk in frames.chunks(AT_ONCE) {
            let wanted = out.len() + chunk.len();
            for frame in chunk {
                if !self.send(frame, flags) {
                    return Err("there is no room for a packet".to_owned());
                }
            }
            self.flush();
            while out.len() < wanted {
                self.receive(|frame| out.extend(<[u8; L]>::try_from(frame)));
                self.speak(self.now());
                if Instant::now() > deadline {
                    return Err(format!("{} of {} packets came out", out.len(), frames.len()));
                }
            }
        }
        Ok(out)
    }
}

impl<const L: usize> PlaysOnce<L> for Served {
    fn play_once(&mut self, frames: &[[u8; L]], flags: u8) -> Result<Vec<[u8; L]>, String> {
        self.play(frames, flags & Flags::NEW)
    }
}

/// Grants of all blocks of all pools.
fn grants(make: MakeChain<'_>) -> Result<Vec<Control>, String> {
    let mut grants = Vec::new();
    for (pool, size) in pools::of_chain(0, &mut make()?) {
        let blocks: Vec<u32> = (0..size.div_ceil(BLOCK_LEN)).collect();
        // As many blocks as fit in a record.
        let some = |some: &[u32]| Control::Grant {
            pool,
            blocks: some.iter().map(|&block| (block, [0; 4])).collect(),
        };
        grants.extend(blocks.chunks(100).map(some));
    }
    Ok(grants)
}
