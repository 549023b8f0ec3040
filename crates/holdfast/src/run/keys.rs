//! The cluster's keys in a running box: given to every process at its start, and read again on SIGHUP.

use super::guard_link::{ToGuard, memory_file};
use super::role::Keys;
use super::{Manager, devices};
use crate::config;
use holdfast_node::channel::KeyRing;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::Write;
use std::num::NonZeroU64;
use zeroize::Zeroizing;

/// A number for a life that no other has: it decides under which key the life seals, so nothing but the system's randomness will do.
pub(super) fn new_life() -> std::io::Result<NonZeroU64> {
    loop {
        let mut bytes = [0u8; 8];
        if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? == bytes.len()
            && let Some(life) = NonZeroU64::new(u64::from_ne_bytes(bytes))
        {
            return Ok(life);
        }
    }
}

/// The way by which a process gets new keys: its standard input, which no longer waits for a reader.
pub(super) fn keep_open(stdin: OwnedFd) -> std::io::Result<File> {
    rustix::fs::fcntl_setfl(&stdin, OFlags::NONBLOCK)?;
    Ok(stdin.into())
}

impl Manager {
    /// Reads the file of keys again and gives them to everyone. If it cannot be read nothing changes.
    pub(super) fn reload_keys(&mut self, old: &KeyRing) {
        let ring = match config::keys(&self.file, &self.text, &self.config) {
            Ok(Some(ring)) if ring != *old => ring,
            Ok(_) => return devices::say("SIGHUP: the keys are the same"),
            Err(mistake) => return devices::say(&format!("SIGHUP: the keys stay as they are: {mistake}")),
        };
        if ring.keys().iter().any(|new| old.keys().iter().any(|old| old.number == new.number && old.secret != new.secret)) {
            devices::say("SIGHUP: a key has changed and kept its number: frames under way are repeated; better a new number");
        }
        self.host.hub.set_keys(&ring);
        let mut line = Zeroizing::new(serde_json::to_vec(&Keys::from(&ring)).unwrap_or_default());
        if let Ok(keys) = memory_file(&line) {
            let _ = self.link.send(&ToGuard::Keys, &[keys.as_fd()]);
        }
        line.push(b'\n');
        for worker in &mut self.workers {
            // A line is shorter than what a pipe takes at once or not at all.
            if let Some(Err(error)) = worker.stdin.as_mut().map(|stdin| stdin.write_all(&line))
                && worker.cause.is_none()
            {
                devices::say(&format!(
                    "SIGHUP: process {} did not get the new keys: {error}; stop it, and it starts with them",
                    worker.pid()
                ));
            }
        }
        devices::say(&format!("SIGHUP: key {} is the current one of {}", ring.keys()[0].number, ring.keys().len()));
        self.keys = Some(ring);
    }
}
