//! The first line on the standard input of a process of a box.
//!
//! In: a manager's, or a bench's, values. Out: the same ones, in the process that it has
//! started. Never: a secret among a process's arguments or in its environment.

use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use std::path::PathBuf;

/// The first line that a manager writes to a process's standard input. Later lines are
/// new keys (`K`). `T` is the role's own part.
#[derive(Serialize, Deserialize)]
pub struct Assignment<T, K> {
    /// The process's incarnation.
    pub incarnation: u32,
    /// The cluster's number in frames.
    pub cluster: u32,
    /// Longest frame of messages, bytes.
    pub mtu: usize,
    /// The process id of the parent, with which the process ends.
    pub parent: u32,
    /// The configuration file's name, for messages.
    pub file: String,
    /// The configuration.
    pub text: String,
    /// The cluster's keys, if it has any.
    pub keys: Option<K>,
    /// The process's life number.
    pub life: NonZeroU64,
    /// The role's own part.
    pub role: T,
}

/// A runtime's own part.
#[derive(Serialize, Deserialize)]
pub struct RuntimePlace {
    /// The runtime's node number.
    pub node: u16,
    /// The seed of the hash of flows' keys.
    pub seed: u64,
    /// The file for quarantined packets, each of which ended two workers; empty for none.
    pub quarantine: PathBuf,
}
