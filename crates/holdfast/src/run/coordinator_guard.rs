//! The guard of the coordinator: starts it, watches it, restarts it.
//!
//! In: ends of the coordinator's incarnations, and the time. Out: its next incarnation.
//! Never: the end of the box for want of a coordinator: traffic needs none.

use super::coordinator::Memory;
use super::election::Election;
use super::restarts::Restarts;
use super::{ManagerProcess, devices};
use crate::config::Etcd;
use holdfast_control::status::Retry;
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use std::path::{Path, PathBuf};

/// The log of a box without a directory for it.
pub(super) fn temporary_log(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(".coordinator");
    PathBuf::from(path)
}

/// The guard of the coordinator; see the module.
pub(super) struct CoordinatorGuard {
    log: PathBuf,
    /// True if the log outlives the box.
    is_kept: bool,
    /// The number of incarnations so far.
    incarnation: u32,
    restarts: Restarts,
    cause: String,
    /// The log's place, as text.
    place: String,
    /// The election, if the coordinator is elected.
    pub(super) election: Option<Election>,
}

impl CoordinatorGuard {
    /// A guard of a coordinator with its log in the directory `state`, or beside the
    /// control socket for as long as the box runs. Under a later manager the coordinator
    /// has had `incarnations` incarnations, and the last of them may still run.
    pub(super) fn new(
        cluster: &str,
        control: &Path,
        state: Option<&Path>,
        etcd: Option<&Etcd>,
        incarnation: u32,
        incarnations: u32,
    ) -> CoordinatorGuard {
        // A log in etcd needs no directory.
        let state = state.filter(|_| etcd.is_none());
        let log = match state {
            Some(directory) => directory.join(format!("{cluster}.coordinator")),
            None => {
                let path = temporary_log(control);
                if incarnation == 1 {
                    // The file is a killed box's, whose runtimes are gone too.
                    let _ = std::fs::remove_file(&path);
                }
                path
            }
        };
        CoordinatorGuard {
            place: etcd.map_or_else(|| log.display().to_string(), Etcd::place),
            election: etcd.map(Election::new),
            log,
            is_kept: state.is_some(),
            incarnation: incarnations,
            restarts: Restarts::default(),
            cause: String::new(),
        }
    }

    /// The number of the present incarnation, or of the last one.
    pub(super) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Notes that a candidate has become the coordinator.
    pub(super) fn leads(&mut self, incarnation: u32, now: u64) {
        self.incarnation = incarnation;
        self.restarts.begun(now);
        devices::say(&format!(
            "the coordinator of this host was elected (incarnation {incarnation})"
        ));
    }

    /// Notes that an incarnation has ended.
    pub(super) fn ended(&mut self, cause: &str, has_traffic: bool, now: u64) {
        self.cause = cause.to_owned();
        let when = self.restarts.ended(now);
        let meanwhile = if has_traffic { "; traffic goes on meanwhile" } else { "" };
        devices::say(&format!(
            "the coordinator has ended ({cause}): it is started again {when}{meanwhile}"
        ));
    }

    /// The retry that `status` shows for a coordinator that keeps ending.
    pub(super) fn retry(&self, is_there: bool, now: u64) -> Option<Retry> {
        self.restarts.retry(is_there, &self.cause, now)
    }

    /// True if the coordinator ends after every start.
    pub(super) fn is_hopeless(&self) -> bool {
        self.restarts.is_hopeless()
    }

    /// The reason why the box cannot begin.
    pub(super) fn complaint(&self) -> String {
        format!(
            "the coordinator ends as soon as it starts ({}); its log is {}",
            self.cause, self.place
        )
    }

    /// Ends the box's log, unless it outlives the box.
    pub(super) fn finish(&self) {
        if !self.is_kept {
            let _ = std::fs::remove_file(&self.log);
        }
    }
}

impl ManagerProcess {
    /// Starts the coordinator when it is due, and ends one that hangs.
    pub(super) fn look_after_coordinator(&mut self, now: u64) {
        let present =
            self.workers.iter_mut().find(|worker| worker.peer.node == NodeId::COORDINATOR);
        if self.guard.restarts.look_after(present, now)
            && let Err(error) = self.start_coordinator(now)
        {
            self.guard.ended(&error.to_string(), self.is_ready, now);
        }
    }

    fn start_coordinator(&mut self, now: u64) -> std::io::Result<()> {
        self.guard.restarts.begun(now);
        let is_elected = self.guard.election.is_some();
        if !is_elected {
            self.guard.incarnation += 1;
        }
        // A candidate is no coordinator yet.
        let incarnation = if is_elected { 0 } else { self.guard.incarnation };
        let peer = Peer { node: NodeId::COORDINATOR, incarnation };
        let memory = Memory {
            host: self.host_name(),
            host_number: self.number,
            life_of_box: self.seed,
            begins_anew: !self.host.hub.manager.has_heard(),
            log: self.guard.log.clone(),
            is_kept: self.guard.is_kept,
        };
        self.start_role("coordinator", peer, memory, now)?;
        if !is_elected {
            self.host.hub.handle_coordinator(peer);
        }
        Ok(())
    }
}
