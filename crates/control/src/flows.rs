//! The list of flows: what `holdfast flows --json` prints.

pub use crate::api::{Flow, FlowValue, ListFlowsReply as Flows};
use std::net::SocketAddr;

/// Version of the object, in its field `version`.
pub const VERSION: u32 = 1;

/// The protocol's name, or its number.
pub fn protocol_name(protocol: u32) -> String {
    match protocol {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        other => other.to_string(),
    }
}

impl Flow {
    /// The protocol's name, or its number.
    pub fn protocol_name(&self) -> String {
        protocol_name(self.protocol)
    }

    /// The value with this name of this function, if it is known.
    pub fn value(&self, function: &str, name: &str) -> Option<u64> {
        self.values
            .iter()
            .find(|value| value.function == function && value.name == name)
            .map(|value| value.value)
    }

    /// The port from which the flow was opened; 0 if the box did not give an address.
    pub fn source_port(&self) -> u16 {
        self.source.parse().map_or(0, |source: SocketAddr| source.port())
    }
}
