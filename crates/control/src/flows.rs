//! The list of flows: what `holdfast flows --json` prints.

pub use crate::api::{Flow, ListFlowsReply as Flows};
use std::net::SocketAddr;

/// Version of the object, in its field `version`.
pub const VERSION: u32 = 1;

impl Flow {
    /// The protocol's name, or its number.
    pub fn protocol_name(&self) -> String {
        match self.protocol {
            1 => "icmp".to_owned(),
            6 => "tcp".to_owned(),
            17 => "udp".to_owned(),
            58 => "icmpv6".to_owned(),
            other => other.to_string(),
        }
    }

    /// The port from which the flow was opened; 0 if the box did not give an address.
    pub fn source_port(&self) -> u16 {
        self.source.parse().map_or(0, |source: SocketAddr| source.port())
    }
}
