//! The keys of a running box: the cluster's, given to every process at its start, and
//! those for watched routers. SIGHUP reads both again.
//!
//! A thread of its own reads the files, and the configuration that names them: the packet
//! loop takes the result.

use super::guard_link::ToGuard;
use super::role::{BfdKey, Keys};
use super::{ManagerProcess, devices};
use crate::config::{Mistake, Plan};
use crate::control::stand_back;
use crate::files;
use holdfast_node::bfd::Key;
use holdfast_node::channel::KeyRing;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::mpsc::{TryRecvError, sync_channel};
use zeroize::Zeroizing;

/// A new life number. The number decides under which key the incarnation seals, so only
/// the system's randomness will do.
pub(super) fn new_life() -> std::io::Result<NonZeroU64> {
    loop {
        let mut bytes = [0u8; 8];
        if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?
            == bytes.len()
            && let Some(life) = NonZeroU64::new(u64::from_ne_bytes(bytes))
        {
            return Ok(life);
        }
    }
}

/// A process's standard input as a pipe for new keys, which does not block.
pub(super) fn keep_open(stdin: OwnedFd) -> std::io::Result<File> {
    rustix::fs::fcntl_setfl(&stdin, OFlags::NONBLOCK)?;
    Ok(stdin.into())
}

/// Contents of files that have been read again.
pub(super) struct Reread {
    /// A message for the operator about the control API's certificate.
    certificate: Option<String>,
    /// The cluster's keys, if the box has any.
    keys: Option<Result<Option<KeyRing>, Mistake>>,
    /// The keys for routers, if there are any.
    routers: Option<Result<RouterKeys, Mistake>>,
}

struct RouterKeys {
    /// The keys by port and address.
    keys: Vec<(u8, IpAddr, Key)>,
    /// All of them, in a memory file for the guard.
    kept: Option<OwnedFd>,
}

impl Reread {
    fn new(plan: &Plan, has_keys: bool, certificate: Option<String>) -> Reread {
        let keys = has_keys.then(|| plan.read_keys());
        let has_routers = plan.bfd.iter().any(|peer| peer.key.is_some());
        let routers = has_routers.then(|| plan.read_bfd_keys()).map(|read| {
            read.map(|keys| {
                let kept: Vec<Option<BfdKey>> =
                    keys.iter().map(|key| key.as_ref().map(BfdKey::from)).collect();
                let kept = Zeroizing::new(serde_json::to_vec(&kept).unwrap_or_default());
                let named = plan
                    .bfd
                    .iter()
                    .zip(keys)
                    .filter_map(|(peer, key)| Some((peer.port, peer.address, key?)));
                RouterKeys { keys: named.collect(), kept: files::memory(&kept).ok() }
            })
        });
        Reread { certificate, keys, routers }
    }
}

impl ManagerProcess {
    /// Reads the files of keys again, and calls `certificate`;
    /// [`ManagerProcess::take_reread`] has the result.
    pub(super) fn read_again(
        &mut self,
        certificate: Option<impl FnOnce() -> String + Send + 'static>,
    ) {
        let (plan, has_keys) = (self.plan.clone(), self.keys.is_some());
        let (done, reread) = sync_channel(1);
        let read = move || {
            stand_back();
            let certificate = certificate.map(|read| read());
            // The box may have ended.
            let _ = done.send(Reread::new(&plan, has_keys, certificate));
        };
        match std::thread::Builder::new().name("reload".to_owned()).spawn(read) {
            Ok(_) => self.reread = Some(reread),
            Err(error) => devices::say(&format!("SIGHUP: nothing was read again: {error}")),
        }
    }

    /// The files' contents once they have been read again.
    pub(super) fn take_reread(&mut self) -> Option<Reread> {
        let reread = match self.reread.as_ref()?.try_recv() {
            Err(TryRecvError::Empty) => return None,
            read => read.ok(),
        };
        self.reread = None;
        reread
    }

    /// Applies the files' contents. A file that cannot be read changes nothing. False if
    /// there was no file.
    pub(super) fn handle_reread(&mut self, reread: Reread) -> bool {
        let Reread { certificate, keys, routers } = reread;
        let had_any = certificate.is_some() || keys.is_some() || routers.is_some();
        certificate.iter().for_each(|news| devices::say(news));
        if let Some(read) = routers {
            let news = self.change_bfd_keys(read);
            devices::say(&news);
        }
        if let Some(read) = keys {
            self.change_keys(read);
        }
        had_any
    }

    /// Gives the cluster's keys to every process.
    fn change_keys(&mut self, read: Result<Option<KeyRing>, Mistake>) {
        let Some(old) = &self.keys else { return };
        let ring = match read {
            Ok(Some(ring)) if ring != *old => ring,
            Ok(_) => return devices::say("SIGHUP: the keys are the same"),
            Err(mistake) => {
                return devices::say(&format!("SIGHUP: the keys stay as they are: {mistake}"));
            }
        };
        if ring.keys().iter().any(|new| {
            old.keys().iter().any(|old| old.number == new.number && old.secret != new.secret)
        }) {
            devices::say(
                "SIGHUP: a key has changed and kept its number: frames under way are repeated; better a new number",
            );
        }
        self.host.hub.set_keys(&ring);
        let mut line = Zeroizing::new(serde_json::to_vec(&Keys::from(&ring)).unwrap_or_default());
        if let Ok(keys) = files::memory(&line) {
            let _ = self.link.send(&ToGuard::Keys, &[keys.as_fd()]);
        }
        line.push(b'\n');
        for worker in &mut self.workers {
            // A pipe takes a line of this length whole or not at all.
            if let Some(Err(error)) = worker.stdin.as_mut().map(|stdin| stdin.write_all(&line))
                && worker.cause.is_none()
            {
                devices::say(&format!(
                    "SIGHUP: process {} did not get the new keys: {error}; stop it, and it starts with them",
                    worker.pid()
                ));
            }
        }
        devices::say(&format!(
            "SIGHUP: key {} is the current one of {}",
            ring.keys()[0].number,
            ring.keys().len()
        ));
        self.keys = Some(ring);
    }

    /// Sets other keys for sessions with routers. Returns a message for the operator.
    fn change_bfd_keys(&mut self, read: Result<RouterKeys, Mistake>) -> String {
        let RouterKeys { keys, kept } = match read {
            Ok(read) => read,
            Err(mistake) => {
                return format!("SIGHUP: the routers' keys stay as they are: {mistake}");
            }
        };
        let (now, mut changed) = (self.clock.now(), Vec::new());
        for (port, router, key) in &keys {
            if self.host.set_bfd_key(*port, &holdfast_wire::ip_bytes(*router), key, now) {
                changed.push(router.to_string());
            }
        }
        if changed.is_empty() {
            return "SIGHUP: the routers' keys are the same".to_owned();
        }
        if let Some(kept) = kept {
            let _ = self.link.send(&ToGuard::BfdKeys, &[kept.as_fd()]);
        }
        format!(
            "SIGHUP: another key for {}; the one before counts until the router uses the new one, at most a minute",
            changed.join(", ")
        )
    }
}
