//! Scenarios for the functions that ship: packets in words go in, packets come out or a reason why not.
//!
//! What is sent and what is expected is made by etherparse ([`words`]), what comes out is read by it ([`reading`]); [`bench`] runs the chain.

mod bench;
mod chain;
mod firewall;
mod firewall_tcp;
mod holding;
mod load_balancer;
mod nat;
mod nat_pool;
mod nat_publish;
mod pages;
mod planted;
mod qos_marker;
mod reading;
mod round_trip;
mod small;
mod tracing;
mod words;
