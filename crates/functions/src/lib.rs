//! The network functions that ship, one module each.
//!
//! In: packets, one flow's state, shared state. Out: verdicts. Never: a line about
//! surviving failures.
#![forbid(unsafe_code)]

pub mod catalog;
mod classes;
mod dpi;
mod firewall;
mod forward;
mod http;
mod ips;
mod load_balancer;
mod monitor;
mod nat;
mod packet_limit;
mod publish;
mod qos_marker;
mod rate_limiter;
mod rewrite;
mod rule_text;
mod tag;
mod tcp;
mod tracked;
mod vlan;

pub use dpi::{Dpi, DpiConfig};
pub use firewall::{Firewall, FirewallConfig, take_log};
pub use forward::{Forward, ForwardConfig};
pub use http::{Http, HttpConfig, HttpCounts, HttpFlow, HttpLog};
pub use ips::{Ips, IpsConfig, Retransmissions, Uninspected, Unsupported};
pub use load_balancer::{Balanced, LoadBalancer, LoadBalancerConfig};
pub use monitor::{Monitor, MonitorConfig};
pub use nat::{Nat, NatConfig};
pub use packet_limit::{PacketLimit, PacketLimitConfig};
pub use qos_marker::{ClassConfig, DemoteConfig, MarkConfig, QosMarker, QosMarkerConfig};
pub use rate_limiter::{LimitConfig, RateLimiter, RateLimiterConfig};
pub use tracked::Timeouts;
pub use vlan::{TagConfig, Vlan, VlanClassConfig, VlanFunctionConfig};
