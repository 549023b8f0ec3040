//! The processes of a box, by role and part, and the choice of the next to strike. A seed
//! determines the choices, so that a run can be repeated.
//!
//! A runtime or state server with a local standby is four processes: worker, standby, the
//! keeper that starts them, and the keeper's deputy. Status names the first two. Which
//! node a process belongs to is known from a status while the manager answers, and
//! remembered by its process group.

use crate::ledger::mix;
use crate::network::Network;
use crate::standby::{group, keeper};
use anyhow::{Context, Result};
use holdfast_control::status::{self, Process, Status};
use holdfast_lab::process::signal_pid;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The role of a process in the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Ports and switch.
    Manager,
    /// The coordinator.
    Coordinator,
    /// A runtime with this node id, 0 while that is not known.
    Runtime(u32),
    /// A state server with this node id.
    Server(u32),
}

/// The part of a process in its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The process that does the work, or the only one.
    Worker,
    /// The process that takes the worker's place.
    Standby,
    /// The process that starts the others.
    Keeper,
    /// The process that takes the keeper's place.
    Deputy,
}

/// A process that may be struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Its role.
    pub role: Role,
    /// Its part in that role.
    pub part: Part,
    /// The incarnation of the role that it belongs to, 0 while that is not known.
    pub incarnation: u64,
    /// Its process id.
    pub pid: u32,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target { role, part, pid, .. } = self;
        let part = match part {
            Part::Worker => "",
            Part::Standby => "'s standby",
            Part::Keeper => "'s keeper",
            Part::Deputy => "'s deputy",
        };
        match role {
            Role::Manager => write!(f, "the manager, {pid}"),
            Role::Coordinator => write!(f, "the coordinator, {pid}"),
            Role::Runtime(node) => write!(f, "runtime {node}{part}, {pid}"),
            Role::Server(node) => write!(f, "state server {node}{part}, {pid}"),
        }
    }
}

/// The processes of a box. See the module.
#[derive(Debug)]
pub struct Cast {
    guard: u32,
    /// Node ids and incarnations by process group.
    groups: BTreeMap<u32, (u32, u64)>,
    /// Workers and standbys, as the last status named them.
    named: BTreeMap<u32, Part>,
}

/// The runtimes and state servers.
fn with_groups(status: &Status) -> impl Iterator<Item = &Process> {
    let is_meant = |role: &str| [status::ROLE_RUNTIME, status::ROLE_STATE_SERVER].contains(&role);
    status.processes.iter().filter(move |process| is_meant(&process.role) && process.pid != 0)
}

impl Cast {
    /// The box's processes as a status shows them.
    ///
    /// # Errors
    /// The status shows no guard.
    pub fn new(status: &Status) -> Result<Cast> {
        let guard = status.guard().context("there is a guard")?.pid;
        let mut cast = Cast { guard, groups: BTreeMap::new(), named: BTreeMap::new() };
        cast.learn(status);
        Ok(cast)
    }

    /// Takes in the roles and parts that a status shows.
    pub fn learn(&mut self, status: &Status) {
        self.named.clear();
        for process in with_groups(status) {
            // A process that has ended since has no group any more.
            if let Ok(group) = group(process.pid) {
                self.groups.insert(group, (process.id, process.incarnation));
            }
            self.named.insert(process.pid, Part::Worker);
            if let Some(standby) = process.local_standby.filter(|standby| standby.pid != 0) {
                self.named.insert(standby.pid, Part::Standby);
            }
        }
    }

    /// Every process of the box but the guard, in the order of roles, nodes and parts.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn targets(&self, network: &Network) -> Result<Vec<Target>> {
        let mut found: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut targets = Vec::new();
        for pid in network.topology.router.pids()? {
            let role = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut single =
                |role| targets.push(Target { role, part: Part::Worker, incarnation: 0, pid });
            match role.as_slice() {
                _ if pid == self.guard => {}
                b"holdfast\0manager\0" => single(Role::Manager),
                b"holdfast\0coordinator\0" => single(Role::Coordinator),
                b"holdfast\0runtime\0" | b"holdfast\0state-server\0" => {
                    if let Ok(group) = group(pid) {
                        found.entry(group).or_default().push(pid);
                    }
                }
                _ => {}
            }
        }
        for (group, members) in found {
            let (node, incarnation) = self.groups.get(&group).copied().unwrap_or_default();
            let is_server = members.iter().any(|pid| is_state_server(*pid));
            let role = if is_server { Role::Server(node) } else { Role::Runtime(node) };
            let is_alone = members.len() == 1;
            let part = |pid: u32| match self.named.get(&pid) {
                Some(part) => *part,
                None if is_alone => Part::Worker,
                None if keeper(pid).is_ok_and(|parent| members.contains(&parent)) => Part::Deputy,
                None => Part::Keeper,
            };
            targets.extend(members.iter().map(|pid| Target {
                role,
                part: part(*pid),
                incarnation,
                pid: *pid,
            }));
        }
        targets.sort();
        Ok(targets)
    }
}

fn is_state_server(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line == b"holdfast\0state-server\0")
}

impl Target {
    /// True if the status names another process in its place; `None` if the status does
    /// not name such processes.
    pub fn is_replaced(&self, status: &Status) -> Option<bool> {
        let of_role = |role: &str| status.processes.iter().find(|process| process.role == role);
        let of_node = |node: u32| with_groups(status).find(|process| process.id == node);
        let is_another =
            |pid: Option<u32>| Some(pid.is_some_and(|pid| pid != 0 && pid != self.pid));
        match (self.role, self.part) {
            (Role::Manager, _) => is_another(of_role("manager").map(|process| process.pid)),
            (Role::Coordinator, _) => {
                is_another(of_role(status::ROLE_COORDINATOR).map(|process| process.pid))
            }
            (Role::Runtime(node) | Role::Server(node), Part::Worker) => {
                is_another(of_node(node).map(|process| process.pid))
            }
            (Role::Runtime(node) | Role::Server(node), Part::Standby) => is_another(
                of_node(node).and_then(|process| process.local_standby).map(|standby| standby.pid),
            ),
            (Role::Runtime(_) | Role::Server(_), Part::Keeper | Part::Deputy) => None,
        }
    }

    /// True if a stalled process is replaced after a time.
    pub fn is_watched(&self) -> bool {
        self.part == Part::Worker
    }

    /// Sends the process a signal; if it has ended, that is no error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        signal_pid(self.pid, signal)
    }
}

/// The random draws for one strike, which do not depend on the number of draws for
/// another.
#[derive(Debug)]
pub struct Draws {
    state: u64,
}

impl Draws {
    /// The draws for this strike under this seed.
    pub fn new(seed: u64, number: usize) -> Draws {
        Draws { state: mix(mix(seed) ^ number as u64) }
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.state = mix(self.state);
        self.state % end.max(1)
    }

    /// A random time of at most `most`.
    pub fn time(&mut self, most: Duration) -> Duration {
        Duration::from_millis(self.below(most.as_millis() as u64))
    }

    /// A random target: each role is equally likely, and so is each of its parts.
    pub fn target(&mut self, targets: &[Target]) -> Option<Target> {
        let mut roles: Vec<Role> = targets.iter().map(|target| target.role).collect();
        roles.dedup();
        let (role, part) = (self.below(roles.len() as u64), self.below(u64::MAX));
        let role = roles.get(role as usize)?;
        let of_role: Vec<&Target> = targets.iter().filter(|target| target.role == *role).collect();
        of_role.get((part % of_role.len() as u64) as usize).map(|target| **target)
    }
}

/// The seed that `HOLDFAST_SEED` gives, or this one.
pub fn seed_or(other: u64) -> u64 {
    std::env::var("HOLDFAST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_repeated_and_reach_everybody() {
        let target = |role, part, pid| Target { role, part, incarnation: 1, pid };
        let targets = [
            target(Role::Manager, Part::Worker, 1),
            target(Role::Runtime(16), Part::Worker, 2),
            target(Role::Runtime(16), Part::Standby, 3),
            target(Role::Runtime(17), Part::Worker, 4),
        ];
        let play = |seed| {
            (0..100)
                .filter_map(|number| Draws::new(seed, number).target(&targets))
                .collect::<Vec<_>>()
        };
        assert_eq!(play(7), play(7));
        assert_ne!(play(7), play(8));
        for target in targets {
            assert!(play(7).iter().filter(|drawn| **drawn == target).count() > 5, "{target}");
        }
        assert_eq!(Draws::new(7, 0).target(&[]), None);
    }
}
