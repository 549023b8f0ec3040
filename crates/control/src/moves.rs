//! What `holdfast migrate` and `holdfast drain` tell: how far flows are on their way to other runtimes.

use serde::{Deserialize, Serialize};

/// How far an order is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Version of this object.
    pub version: u32,
    /// Node id of the runtime whose flows move.
    pub runtime: u16,
    /// Flows that other runtimes serve now.
    pub moved: u64,
    /// Flows that nobody would have: they stayed.
    pub refused: u64,
    /// Flows that the runtime had when a drain began.
    #[serde(default)]
    pub had: Option<u64>,
    /// Nothing follows.
    pub done: bool,
    /// The runtime failed before it was done; its flows were recovered as after any failure.
    pub failed: bool,
    /// Microseconds since it began, or that it took.
    pub took_us: u64,
}
