//! Messages between the manager and its host's guard, and the manager's side of them.
//!
//! In: messages of the guard. Out: messages for it, in order, whether it reads them now
//! or later. Never: waiting for the guard.

use super::role::{BfdKey, Keys};
use holdfast_control::tls::TlsPaths;
use holdfast_io::{Heartbeat, Mailbox};
use holdfast_wire::NodeId;
use rustix::fd::{BorrowedFd, OwnedFd};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The line that the guard writes to the manager's standard input. The descriptors: the
/// mailbox, the heartbeat, the manager's notes, the arena's two if there is one, and for
/// each process rings, both bells, the process and, if it is kept, its standard input.
#[derive(Serialize, Deserialize)]
pub(super) struct Assignment {
    /// The manager's incarnation, from 1.
    pub(super) incarnation: u32,
    /// The guard's process id.
    pub(super) parent: u32,
    pub(super) seed: u64,
    /// The number of this host, from 0.
    pub(super) host: u16,
    /// True if an earlier incarnation has served.
    pub(super) has_served: bool,
    /// Short incarnations before this one in succession, and the end of the last one.
    pub(super) failures: u32,
    pub(super) cause: String,
    pub(super) file: String,
    pub(super) text: String,
    pub(super) keys: Option<Keys>,
    /// Keys for the watched routers.
    pub(super) bfd_keys: Vec<Option<BfdKey>>,
    pub(super) control: PathBuf,
    /// The files of the control API that override the configuration's.
    pub(super) tls: Option<TlsPaths>,
    pub(super) state: Option<PathBuf>,
    pub(super) has_arena: bool,
    /// With several hosts: the offset that makes incarnations higher than those of the
    /// host's earlier runs.
    pub(super) base: u32,
    /// The latest incarnation of the coordinator here; `base` if there was none.
    pub(super) coordinators: u32,
    pub(super) processes: Vec<Stored>,
    /// The latest runtimes that earlier managers have buried.
    pub(super) buried: Vec<Buried>,
}

/// A runtime that an earlier manager has buried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Buried {
    pub(super) node: NodeId,
    pub(super) incarnation: u32,
    /// The runtime's last message: see [`LastWord`](holdfast_node::message::LastWord).
    pub(super) last: Option<u64>,
}

/// A process that an earlier manager had started.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    /// The virtual port in the arena's record.
    pub(super) id: u16,
    pub(super) node: NodeId,
    pub(super) incarnation: u32,
    pub(super) pid: u32,
    /// Process group: the process and those that it started.
    pub(super) group: u32,
    pub(super) keeps_stdin: bool,
    /// The cause of its end, if it has ended.
    pub(super) cause: Option<String>,
}

/// The manager's requests to the guard.
#[derive(Serialize, Deserialize)]
pub(super) enum ToGuard {
    /// Keep the arena for the next manager. Descriptors: its memory and its record.
    Arena,
    /// Start this program in a role. Descriptors: a memory file with the line for its
    /// standard input, rings, the manager's bell, the process's bell.
    Start {
        /// The virtual port in the arena's record.
        id: u16,
        role: String,
        node: NodeId,
        incarnation: u32,
        /// More lines may follow.
        keeps_stdin: bool,
    },
    /// The coordinator, started as a candidate with incarnation 0, was elected.
    Leads { id: u16, incarnation: u32 },
    /// The process has ended, and another one that it had made has taken its place.
    /// Descriptor: the new process's.
    Passed { id: u16, pid: u32 },
    /// The process has ended and is cleared away; of a runtime its last message is left.
    Buried { id: u16, last: Option<u64> },
    /// The box serves: print this line.
    Ready { line: String },
    /// The configuration has changed. Descriptor: a memory file with its text.
    Text,
    /// The keys have changed. Descriptor: a memory file with them.
    Keys,
    /// The keys for routers have changed. Descriptor: a memory file with them in their
    /// order.
    BfdKeys,
}

/// The guard's reports.
#[derive(Serialize, Deserialize)]
pub(super) enum FromGuard {
    /// A process was started. Descriptors: the process and, if it is kept, its standard
    /// input.
    Started { id: u16, pid: u32 },
    /// A process could not be started.
    Refused { id: u16, error: String },
    /// A process has ended: the one with this `pid`, not one that has taken its place
    /// since.
    Ended { id: u16, pid: u32, cause: String },
}

/// The bytes of a memory file that was passed on.
pub(super) fn read_memory(fd: OwnedFd) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut file = File::from(fd);
    file.rewind()?;
    let len = file.metadata()?.len() as usize;
    // The capacity is the file's length from the start: growing would leave copies of a
    // secret behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(len + 1));
    file.read_to_end(&mut bytes)?;
    // The memory may hold a secret that its sender no longer needs.
    file.rewind()?;
    file.write_all(&vec![0; bytes.len()])?;
    Ok(bytes)
}

/// The manager's side.
pub(super) struct GuardLink {
    mailbox: Mailbox,
    heartbeat: Heartbeat,
}

impl GuardLink {
    pub(super) fn new(mailbox: Mailbox, heartbeat: Heartbeat) -> GuardLink {
        GuardLink { mailbox, heartbeat }
    }

    /// Notes that the manager's loop has turned.
    pub(super) fn beat(&self) {
        self.heartbeat.beat();
    }

    /// Readable when the guard has sent a message.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.mailbox.fd()
    }

    /// Sends a message, now or when the guard reads again.
    pub(super) fn send(&mut self, message: &ToGuard, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.mailbox.send(&serde_json::to_vec(message)?, fds)
    }

    /// The next message.
    pub(super) fn receive(&mut self) -> Option<(FromGuard, Vec<OwnedFd>)> {
        self.mailbox.flush();
        // If the guard is gone the kernel ends this process too.
        let (bytes, fds) = self.mailbox.receive().ok().flatten()?;
        Some((serde_json::from_slice(&bytes).ok()?, fds))
    }
}
