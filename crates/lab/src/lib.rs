//! The laboratory shows, measures and tests a box, and is no part of a box. Never: a line
//! of the daemon; the laboratory asks it like any other client.
//!
//! Here: networks of namespaces and veth pairs with real programs in them, for the demo
//! and the end-to-end tests, and the commands [`demo`], [`bench`] and [`simulate`].
//!
//! A [`Lab`] owns everything it makes: namespaces named `hf-<pid>-<name>`, a scratch
//! directory, and the processes inside. Dropping it, also while a panic unwinds, removes
//! all of it; [`sweep`] removes the remains of a process that could not drop its lab
//! (killed, power cut). Programs run inside through `ip netns exec`; the laboratory's own
//! clients and servers are threads that move into a namespace.
//!
//! The laboratory needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) and never touches the
//! namespace it is started in.
#![forbid(unsafe_code)]

pub mod bench;
pub mod daemon;
pub mod demo;
pub mod download;
pub mod etcd;
pub mod hosts;
pub mod keepalive;
pub mod link;
pub mod namespace;
pub mod nginx;
pub mod process;
pub mod programs;
pub mod requirements;
pub mod running;
pub mod simulate;
pub mod topology;
pub mod udp;
pub mod wait;

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub use namespace::Namespace;
pub use process::Process;
pub use wait::{Interrupt, Interrupted, until, until_every};

/// The prefix of every name in the laboratory; the pid of the maker follows.
const PREFIX: &str = "hf-";

/// Labs made by this process; part of the names from the second on, so that several may
/// exist at once.
static SERIAL: AtomicU32 = AtomicU32::new(0);

/// Namespaces, scratch files and processes that vanish together.
#[derive(Debug)]
pub struct Lab {
    scratch: PathBuf,
    serial: u32,
    namespaces: Vec<Namespace>,
    interrupt: Interrupt,
    keep: bool,
}

impl Lab {
    /// Makes an empty laboratory, after removing the remains of dead processes.
    pub fn new(interrupt: Interrupt) -> Result<Lab> {
        sweep().context("removing what earlier runs left behind")?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let scratch = std::env::temp_dir().join(unique("scratch", serial));
        fs::create_dir(&scratch).with_context(|| format!("making {}", scratch.display()))?;
        Ok(Lab { scratch, serial, namespaces: Vec::new(), interrupt, keep: false })
    }

    /// Makes a namespace that ends with the laboratory.
    pub fn namespace(&mut self, name: &str) -> Result<Namespace> {
        self.interrupt.check()?;
        let namespace = Namespace::create(&unique(name, self.serial))?;
        self.namespaces.push(namespace.clone());
        Ok(namespace)
    }

    /// The directory of this laboratory's configurations, logs and sockets.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// The flag that ends every wait of this laboratory early.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// The laboratory's namespaces, in the order they were made.
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// Leaves everything in place on drop, for inspection. The next laboratory of another
    /// process sweeps it.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Writes a scratch file and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.scratch.join(name);
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        for namespace in self.namespaces.iter().rev() {
            if let Err(error) = namespace::remove(namespace.name()) {
                eprintln!(
                    "holdfast-lab: could not remove namespace {}: {error:#}",
                    namespace.name()
                );
            }
        }
        if let Err(error) = fs::remove_dir_all(&self.scratch) {
            eprintln!("holdfast-lab: could not remove {}: {error}", self.scratch.display());
        }
    }
}

fn unique(name: &str, serial: u32) -> String {
    let pid = std::process::id();
    if serial == 0 {
        format!("{PREFIX}{pid}-{name}")
    } else {
        format!("{PREFIX}{pid}-{name}-{serial}")
    }
}

/// The pid in a laboratory's name; `None` if the name is not a laboratory's.
fn maker_of(name: &str) -> Option<u32> {
    let (pid, rest) = name.strip_prefix(PREFIX)?.split_once('-')?;
    (!rest.is_empty()).then(|| pid.parse().ok()).flatten()
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Removes the namespaces (with the processes in them) and scratch directories of
/// processes that have ended; returns their names.
///
/// An item that cannot be removed is left and not named: another process may be sweeping
/// at the same time.
pub fn sweep() -> Result<Vec<String>> {
    let mut swept = Vec::new();
    for name in namespace::list()? {
        if maker_of(&name).is_some_and(|pid| !is_alive(pid)) && namespace::remove(&name).is_ok() {
            swept.push(name);
        }
    }
    for entry in fs::read_dir(std::env::temp_dir())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let dead = maker_of(&name).is_some_and(|pid| !is_alive(pid));
        if dead && entry.file_type()?.is_dir() && fs::remove_dir_all(entry.path()).is_ok() {
            swept.push(name);
        }
    }
    Ok(swept)
}

/// Waits for the machine-wide right to load the machine, and holds it until dropped:
/// heavy scenarios run one at a time, also across processes.
pub fn exclusive() -> Result<File> {
    let path = std::env::temp_dir().join("holdfast-lab.lock");
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    file.lock().with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_our_own_making_have_a_maker() {
        assert_eq!(maker_of(&unique("client", 0)), Some(std::process::id()));
        assert_eq!(maker_of(&unique("client", 3)), Some(std::process::id()));
        for foreign in
            ["hf-", "hf-12", "hf-12-", "hf--x", "hf-x-client", "xhf-1-client", "client", ""]
        {
            assert_eq!(maker_of(foreign), None, "{foreign:?}");
        }
        assert!(is_alive(std::process::id()));
    }
}
