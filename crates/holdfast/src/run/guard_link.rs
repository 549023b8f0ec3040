//! What the manager and the guard of its host tell each other, and the manager's side of it.
//!
//! In: messages of the guard. Out: messages for it, in order, whether it reads them now or later. Never: waiting for it.

use super::role::{BfdKey, Keys};
use holdfast_control::tls::TlsPaths;
use holdfast_io::{Heartbeat, Mailbox};
use rustix::fd::{BorrowedFd, OwnedFd};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use zeroize::Zeroizing;

/// What the guard writes to the manager's standard input, as a line. The descriptors are: the mailbox, the heartbeat, the manager's
/// notes, the two of the arena if there is one, and for each process rings, both bells, the process and, if it is kept, its standard input.
#[derive(Serialize, Deserialize)]
pub(super) struct Assignment {
    /// Counts the manager's lives, from 1.
    pub(super) incarnation: u32,
    /// The guard.
    pub(super) parent: u32,
    pub(super) seed: u64,
    /// Which host of the box this is, counted from 0.
    pub(super) host: u16,
    /// An earlier life has served.
    pub(super) has_served: bool,
    /// Short lives before this one in succession, and how the last one ended.
    pub(super) failures: u32,
    pub(super) cause: String,
    pub(super) file: String,
    pub(super) text: String,
    pub(super) keys: Option<Keys>,
    /// For the routers that are watched.
    pub(super) bfd_keys: Vec<Option<BfdKey>>,
    pub(super) control: PathBuf,
    /// The files of the control API that go before the configuration's.
    pub(super) tls: Option<TlsPaths>,
    pub(super) state: Option<PathBuf>,
    pub(super) has_arena: bool,
    /// Of several hosts: what was added to incarnations so that they are higher than those of the host's earlier times.
    pub(super) base: u32,
    /// The last life of the coordinator here; the base if there was none.
    pub(super) coordinators: u32,
    pub(super) processes: Vec<Stored>,
    /// Runtimes that earlier lives have buried, the latest ones.
    pub(super) buried: Vec<Buried>,
}

/// A runtime that an earlier life of the manager has buried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Buried {
    pub(super) node: u16,
    pub(super) incarnation: u32,
    /// Its last word: see [`LastWord`](holdfast_node::message::LastWord).
    pub(super) last: Option<u64>,
}

/// A process that an earlier life of the manager had started.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    /// Its virtual port in the arena's record.
    pub(super) id: u16,
    pub(super) node: u16,
    pub(super) incarnation: u32,
    pub(super) pid: u32,
    /// Process group: the process and those that it started.
    pub(super) group: u32,
    pub(super) keeps_stdin: bool,
    /// How it ended, if it has.
    pub(super) cause: Option<String>,
}

/// What the manager wants of the guard.
#[derive(Serialize, Deserialize)]
pub(super) enum ToGuard {
    /// Keep the arena for the next life. With its memory and its record.
    Arena,
    /// Start this program in a role. With the line for its standard input in a memory file, rings, the manager's bell, the process's bell.
    Start {
        /// Its virtual port in the arena's record.
        id: u16,
        role: String,
        node: u16,
        incarnation: u32,
        /// More lines may follow.
        keeps_stdin: bool,
    },
    /// The coordinator, started as a candidate with incarnation 0, was elected.
    Leads { id: u16, incarnation: u32 },
    /// The process has ended, and another one that it had made has taken its place. With the descriptor of that one.
    Passed { id: u16, pid: u32 },
    /// The process has ended and nothing is left of it but, of a runtime, what it said last.
    Buried { id: u16, last: Option<u64> },
    /// The box serves. With what to print.
    Ready { line: String },
    /// The configuration has changed. With its text in a memory file.
    Text,
    /// The keys have changed. With them in a memory file.
    Keys,
    /// The same of those for routers, in their order.
    BfdKeys,
}

/// What the guard has to tell.
#[derive(Serialize, Deserialize)]
pub(super) enum FromGuard {
    /// A process was started. With its descriptor and, if it is kept, its standard input.
    Started { id: u16, pid: u32 },
    /// A process could not be started.
    Refused { id: u16, error: String },
    /// A process has ended: this one, and not one that has taken its place since.
    Ended { id: u16, pid: u32, cause: String },
}

/// The bytes of a memory that was passed on.
pub(super) fn read_memory(fd: OwnedFd) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut file = File::from(fd);
    file.rewind()?;
    let len = file.metadata()?.len() as usize;
    // As long as the file from the start: no copy of a secret is left behind where it grew.
    let mut bytes = Zeroizing::new(Vec::with_capacity(len + 1));
    file.read_to_end(&mut bytes)?;
    // The memory may hold a secret, and its sender no longer needs it.
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

    /// The manager's loop has turned.
    pub(super) fn beat(&self) {
        self.heartbeat.beat();
    }

    /// Readable when the guard has something to tell.
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
