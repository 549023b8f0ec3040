//! The list of flows: what `holdfast flows --json` prints and the control socket answers.
//!
//! Fields are only ever added; a change of meaning increases [`VERSION`].

use holdfast_wire::selector::Selector;
use holdfast_wire::{FlowKey, ip_bytes};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Version of the object, in its field `version`.
pub const VERSION: u32 = 1;

/// Cursor at which the next page of a list begins; opaque to clients.
pub type Place = [u32; 4];

/// The whole object.
///
/// A list is no snapshot: its pages are built while packets are forwarded. A flow that
/// exists throughout and keeps its owner is in the list once. A flow that begins or ends
/// meanwhile may be in it. A flow that moves or is recovered meanwhile may be in it twice
/// or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// [`VERSION`].
    pub version: u32,
    /// The flows, in no order.
    pub flows: Vec<Flow>,
    /// There are, or may be, more than were asked for, or than are in this answer.
    #[serde(default)]
    pub truncated: bool,
    /// Cursor of the next page, if this answer does not complete the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Place>,
}

/// One flow. For ICMP the ports are the echo identifier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// IP protocol number.
    pub protocol: u16,
    /// Who began it.
    pub source: SocketAddr,
    /// Whom it asked for.
    pub destination: SocketAddr,
    /// Source after the chain.
    pub translated_source: SocketAddr,
    /// Destination after the chain.
    pub translated_destination: SocketAddr,
    /// Name of its chain.
    #[serde(default)]
    pub chain: Option<String>,
    /// What the functions say of it.
    pub state: String,
    /// Node id of the runtime that owns it.
    pub owner: u16,
    /// Node id of the runtime that has its replica.
    #[serde(default)]
    pub replica: Option<u16>,
    /// How often it has changed its owner.
    pub epoch: u32,
    /// Since its first packet, by the switch's stamps.
    pub age_ms: u64,
    /// Packets forward and back.
    pub packets: [u64; 2],
    /// Bytes forward and back.
    pub bytes: [u64; 2],
}

fn key(protocol: u16, source: SocketAddr, destination: SocketAddr) -> FlowKey {
    FlowKey {
        source: ip_bytes(source.ip()),
        destination: ip_bytes(destination.ip()),
        source_port: source.port(),
        destination_port: destination.port(),
        protocol,
        scope: 0,
    }
}

impl Flow {
    /// True if its tuple before or after the chain is meant. By which port it came in only its runtime knows, which has looked at that.
    pub fn matches(&self, selector: &Selector) -> bool {
        selector.matches_key(&key(self.protocol, self.source, self.destination))
            || selector.matches_key(&key(self.protocol, self.translated_source, self.translated_destination))
    }

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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(owner: u16, port: u16) -> Flow {
        Flow {
            protocol: 6,
            source: SocketAddr::from(([10, 0, 0, 2], port)),
            destination: "203.0.113.10:80".parse().unwrap(),
            translated_source: "198.51.100.4:1024".parse().unwrap(),
            translated_destination: "198.51.100.11:80".parse().unwrap(),
            chain: Some("web".into()),
            state: "established".into(),
            owner,
            replica: None,
            epoch: 1,
            age_ms: 5,
            packets: [1, 2],
            bytes: [3, 4],
        }
    }

    #[test]
    fn a_filter_means_the_tuple_before_or_after_the_chain() {
        for (filter, expected) in [
            ("", true),
            ("tcp from 10.0.0.0/8", true),
            ("to 203.0.113.10 port 80", true),
            ("from 198.51.100.4 port 1024", true),
            ("to 198.51.100.11", true),
            ("udp", false),
            ("from 10.0.0.0/8 to 198.51.100.11", false),
            ("to 10.0.0.2", false),
        ] {
            assert_eq!(flow(16, 5).matches(&filter.parse().unwrap()), expected, "{filter:?}");
        }
    }
}
