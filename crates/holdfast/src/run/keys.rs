//! The cluster's keys in a running box, given to every process at its start, and those for routers that are watched: both are read again on SIGHUP.

use super::guard_link::{ToGuard, memory_file};
use super::role::{BfdKey, Keys};
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

    /// Reads the files of keys for routers again. If one cannot be read nothing changes. Without such files there is nothing to say.
    pub(super) fn reload_bfd_keys(&mut self) -> Option<String> {
        let mut checked = config::read(&self.file, &self.text).ok()?;
        checked.on_host(self.number);
        if checked.bfd.iter().all(|peer| peer.key.is_none()) {
            return None;
        }
        let keys = match config::bfd_keys(&self.file, &self.text, &checked) {
            Ok(keys) => keys,
            Err(mistake) => return Some(format!("SIGHUP: the routers' keys stay as they are: {mistake}")),
        };
        let (now, mut changed) = (self.clock.now(), Vec::new());
        for (peer, key) in checked.bfd.iter().zip(&keys) {
            let address = holdfast_wire::ip_bytes(peer.address);
            if key.as_ref().is_some_and(|key| self.host.set_bfd_key(peer.port, &address, key, now)) {
                changed.push(peer.address.to_string());
            }
        }
        if changed.is_empty() {
            return Some("SIGHUP: the routers' keys are the same".to_owned());
        }
        let kept: Vec<Option<BfdKey>> = keys.iter().map(|key| key.as_ref().map(BfdKey::from)).collect();
        let kept = Zeroizing::new(serde_json::to_vec(&kept).unwrap_or_default());
        if let Ok(kept) = memory_file(&kept) {
            let _ = self.link.send(&ToGuard::BfdKeys, &[kept.as_fd()]);
        }
        Some(format!(
            "SIGHUP: another key for {}; the one before counts until the router uses the new one, at most a minute",
            changed.join(", ")
        ))
    }
}
