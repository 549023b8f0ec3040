//! The common beginning of every role: the manager's assignment, a virtual port, the
//! cluster's keys.

use super::privileges;
use crate::config::{self, Plan};
use holdfast_control::exit::{self, Failure};
use holdfast_io::VportGuest;
use holdfast_io::process::{die_with_parent, inherited};
use holdfast_node::bfd::{self, KeyKind};
use holdfast_node::channel::{Fabric, FabricConfig, Key, KeyRing, KeyRingError};
use holdfast_wire::{Packet, PacketPool};
use rustix::fd::OwnedFd;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Stdin};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// The first line that the manager writes to the process's standard input. Later lines
/// are [`Keys`].
pub(super) type Assignment<T> = holdfast_control::assignment::Assignment<T, Keys>;

/// The fabric of a process with this assignment.
pub(super) fn fabric_of<T>(assignment: &Assignment<T>) -> FabricConfig {
    FabricConfig { cluster: assignment.cluster, mtu: assignment.mtu, ..FabricConfig::default() }
}

/// The plan of its box.
pub(super) fn plan_of<T>(assignment: &Assignment<T>) -> Result<Plan, Failure> {
    let wrong = |mistake: config::Mistake| Failure::new(exit::CONFIGURATION, mistake.to_string());
    config::read(&assignment.file, &assignment.text).map_err(wrong)
}

/// The cluster's keys, serialised.
#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub(super) struct Keys(Vec<(u8, [u8; 32])>);

impl From<&KeyRing> for Keys {
    fn from(ring: &KeyRing) -> Keys {
        Keys(ring.keys().iter().map(|key| (key.number, key.secret)).collect())
    }
}

impl Keys {
    pub(super) fn ring(self) -> Result<KeyRing, KeyRingError> {
        KeyRing::new(
            self.0
                .iter()
                .map(|(number, secret)| Key { number: *number, secret: *secret })
                .collect(),
        )
    }
}

/// A key for BFD, serialised: kind of signature, number, bytes.
#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub(super) struct BfdKey(u8, u8, Vec<u8>);

const BFD_KINDS: [KeyKind; 3] =
    [KeyKind::Password, KeyKind::KeyedSha1, KeyKind::MeticulousKeyedSha1];

impl From<&bfd::Key> for BfdKey {
    fn from(key: &bfd::Key) -> BfdKey {
        let kind = BFD_KINDS.iter().position(|kind| *kind == key.kind()).unwrap_or_default();
        BfdKey(kind as u8, key.id(), key.secret().to_vec())
    }
}

impl BfdKey {
    /// The key; `None` if it is invalid.
    pub(super) fn key(&self) -> Option<bfd::Key> {
        bfd::Key::new(*BFD_KINDS.get(usize::from(self.0))?, self.1, &self.2)
    }
}

/// Later lines from the manager, and the last one read, for a process that continues
/// reading after another's death.
pub(super) struct Lines {
    lines: BufReader<Stdin>,
    last: Arc<File>,
}

/// Bytes before the line in [`Lines::last`]: its length.
const LENGTH: usize = 4;

impl Lines {
    fn new(lines: BufReader<Stdin>) -> std::io::Result<Lines> {
        let last = rustix::fs::memfd_create("holdfast-keys", rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(Lines { lines, last: Arc::new(File::from(last)) })
    }

    /// The last line that an earlier process had read, if any.
    fn kept(&self) -> Option<KeyRing> {
        let mut length = [0; LENGTH];
        self.last.read_exact_at(&mut length, 0).ok()?;
        let mut line = Zeroizing::new(vec![0; u32::from_le_bytes(length) as usize]);
        self.last.read_exact_at(&mut line, LENGTH as u64).ok()?;
        ring_of(&line)
    }
}

/// Overwrites the whole memory: no part of a longer earlier line is left behind.
fn keep(memory: &File, mut line: Zeroizing<Vec<u8>>) {
    let before = memory.metadata().map_or(0, |metadata| metadata.len() as usize);
    let len = before.max(line.len());
    let mut whole = Zeroizing::new(Vec::with_capacity(len));
    whole.append(&mut line);
    whole.resize(len, 0);
    // Writing fails only without memory.
    let _ = memory.write_all_at(&whole, 0);
}

fn ring_of(line: &[u8]) -> Option<KeyRing> {
    serde_json::from_slice::<Keys>(line).ok()?.ring().ok()
}

/// Key rings that the manager sends later. A thread waits for them: reading a pipe
/// otherwise takes a system call per turn.
pub(super) struct NewKeys {
    rings: Receiver<KeyRing>,
    has_come: Arc<AtomicBool>,
}

impl NewKeys {
    pub(super) fn listen(mut from: Lines) -> NewKeys {
        let (sender, rings) = channel();
        let has_come = Arc::new(AtomicBool::new(false));
        let flag = has_come.clone();
        if let Some(ring) = from.kept() {
            let _ = sender.send(ring);
            has_come.store(true, Ordering::Release);
        }
        std::thread::spawn(move || {
            let mut line = Zeroizing::new(String::new());
            while from.lines.read_line(&mut line).is_ok_and(|len| len > 0) {
                if let Some(ring) = ring_of(line.as_bytes()) {
                    let mut kept = Zeroizing::new(Vec::with_capacity(LENGTH + line.len()));
                    kept.extend_from_slice(&(line.len() as u32).to_le_bytes());
                    kept.extend_from_slice(line.as_bytes());
                    keep(&from.last, kept);
                    let _ = sender.send(ring);
                    flag.store(true, Ordering::Release);
                }
                line.clear();
            }
        });
        NewKeys { rings, has_come }
    }

    /// The newest ring.
    pub(super) fn take(&self) -> Option<KeyRing> {
        if !self.has_come.load(Ordering::Relaxed) {
            return None;
        }
        // The flag is lowered first: a later ring raises it again.
        self.has_come.swap(false, Ordering::AcqRel);
        self.rings.try_iter().last()
    }
}

/// The beginning of a role.
pub(super) struct Beginning<T> {
    pub(super) assignment: Assignment<T>,
    pub(super) guest: VportGuest,
    /// The keys to begin with, and the source of later ones.
    pub(super) keys: Option<(KeyRing, NewKeys)>,
}

/// The manager's inputs to a new process, before anything is opened.
pub(super) struct Given<T> {
    pub(super) assignment: Assignment<T>,
    fds: Vec<OwnedFd>,
    /// The keys to begin with, and the source of later ones.
    pub(super) keys: Option<(KeyRing, Lines)>,
}

impl<T> Given<T> {
    /// Attaches the virtual port; once.
    pub(super) fn attach(&mut self) -> Result<VportGuest, Failure> {
        let mut fds = core::mem::take(&mut self.fds).into_iter();
        let (Some(arena), Some(port), Some(wake_host), Some(wake_guest)) =
            (fds.next(), fds.next(), fds.next(), fds.next())
        else {
            return Err(Failure::new(exit::UNAVAILABLE, "descriptors are missing"));
        };
        VportGuest::attach(arena, port, wake_host, wake_guest)
            .map_err(|error| Failure::new(exit::UNAVAILABLE, error.to_string()))
    }
}

/// Puts the endpoint's frames into buffers of the virtual port, while there are any.
pub(super) fn poll_transmit(
    fabric: &mut Fabric,
    now: u64,
    guest: &mut VportGuest,
    tx: &mut Vec<Packet>,
) {
    fabric.poll_transmit(now, |frame| {
        let Some(mut packet) = guest.take() else { return false };
        if packet.copy_from(frame) {
            tx.push(packet)
        } else {
            guest.put(packet)
        }
        true
    });
}

/// Takes the manager's assignment and opens everything.
///
/// # Errors
/// If a manager has not started this process.
pub(super) fn begin<T: DeserializeOwned>() -> Result<Beginning<T>, Failure> {
    let mut given = take::<T>()?;
    let guest = given.attach()?;
    let keys = given.keys.map(|(ring, lines)| (ring, NewKeys::listen(lines)));
    Ok(Beginning { assignment: given.assignment, guest, keys })
}

/// As [`begin`], for a process that forks before it has a second thread.
///
/// # Errors
/// If a manager has not started this process.
pub(super) fn take<T: DeserializeOwned>() -> Result<Given<T>, Failure> {
    let unavailable = |message: String| Failure::new(exit::UNAVAILABLE, message);
    let refused = |error: std::io::Error| unavailable(error.to_string());
    // A closing terminal, or a signal to the whole service, reaches every process. The
    // manager survives it, and so must its processes, or all flows would be lost at once.
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::new(AtomicBool::new(false)))
        .map_err(refused)?;
    let fds = inherited(4).map_err(refused)?;
    let mut text = Zeroizing::new(String::new());
    let mut lines = BufReader::new(std::io::stdin());
    lines.read_line(&mut text).map_err(refused)?;
    let mut assignment: Assignment<T> = serde_json::from_str(&text)
        .map_err(|error| unavailable(format!("the manager's assignment: {error}")))?;
    die_with_parent(assignment.parent).map_err(refused)?;
    privileges::let_go().map_err(refused)?;
    let keys = match assignment.keys.take() {
        Some(keys) => {
            let ring =
                keys.ring().map_err(|error| unavailable(format!("the manager's keys: {error}")))?;
            Some((ring, Lines::new(lines).map_err(refused)?))
        }
        None => None,
    };
    Ok(Given { assignment, fds, keys })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory holds the last line followed by zeros, also if an earlier line was
    /// longer.
    #[test]
    fn a_new_key_leaves_nothing_of_the_old_one() {
        let memory =
            File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        for line in [
            "a long line with three keys",
            "two keys",
            "",
            "again three, and a word more than at first",
        ] {
            keep(&memory, Zeroizing::new(line.as_bytes().to_vec()));
            let mut all = vec![0; memory.metadata().unwrap().len() as usize];
            memory.read_exact_at(&mut all, 0).unwrap();
            assert!(
                all.starts_with(line.as_bytes()) && all[line.len()..].iter().all(|byte| *byte == 0),
                "{all:?}"
            );
        }
    }
}
