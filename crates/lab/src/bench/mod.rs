//! `holdfast bench`: measurements that check their results before they take their times.
//!
//! Figures are compared within one run on one machine; absolute times are of that
//! machine.

mod bench_box;
mod chains;
mod churn;
mod command;
pub mod controls;
pub mod datapath;
pub mod failover;
pub mod functions;
pub mod growth;
pub mod instances;
pub mod kernel;
pub mod local;
pub mod memory;
pub mod messages;
pub mod migration;
pub mod questions;
pub mod rate;
pub mod recovery;
mod redis;
pub mod reinforce;
pub mod replication;
pub mod rescue;
pub mod sealing;
mod served;
pub mod takeover;
pub mod tenants;
mod traffic;

pub use bench_box::MakeChain;
pub use command::{Churning, Plan};

use datapath::PlaysOnce;
use holdfast_wire::header::proto;
use holdfast_wire::{FlowKey, map_v4};

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The key of UDP datagrams from one address to another.
fn between(source: ([u8; 4], u16), destination: ([u8; 4], u16)) -> FlowKey {
    FlowKey {
        source: map_v4(source.0),
        destination: map_v4(destination.0),
        source_port: source.1,
        destination_port: destination.1,
        protocol: proto::UDP.into(),
        scope: 0,
    }
}
