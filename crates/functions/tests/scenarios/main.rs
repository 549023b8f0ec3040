//! Scenarios for the functions that ship: packets in words go in, and packets or drop
//! reasons come out.
//!
//! etherparse makes the sent and the expected packets ([`words`]) and reads the output
//! ([`reading`]); [`bench`] runs the chain.

mod bench;
mod captures;
mod chain;
mod dpi;
mod dpi_captures;
mod firewall;
mod firewall_tcp;
mod firewall_tcp_set_back;
mod holding;
mod http;
mod http_conversation;
mod http_evasion;
mod http_log;
mod http_rules;
mod ips;
mod ips_evasion;
mod ips_rules;
mod load_balancer;
mod monitor;
mod nat;
mod nat_pool;
mod nat_publish;
mod pages;
mod planted;
mod qos_marker;
mod rate_limiter;
mod reading;
mod round_trip;
mod small;
mod tracing;
mod vlan;
mod words;
