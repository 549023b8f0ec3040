//! The end-to-end tests, all in one program: see [`holdfast_tests::runner`]. `cargo test -p holdfast-tests -- failover::` runs those of a file.
#![forbid(unsafe_code)]

mod bfd;
mod chains;
mod coordinator;
mod etcd;
mod failover;
mod faults;
mod forwarding;
mod hang;
mod hosts;
mod hosts_control;
mod hosts_detection;
mod hosts_etcd;
mod hosts_networks;
mod hosts_sealed;
mod hosts_switches;
mod laboratory;
mod ledger;
mod manager;
mod midway;
mod migration;
mod nfactor;
mod paged;
mod poison;
mod reinforce;
mod rules;
mod scaling;
mod served;
mod standby;
mod transports;

use holdfast_tests::{crowd, runner};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = crowd::role() {
        return code;
    }
    runner::main(vec![
        ("bfd", bfd::tests()),
        ("chains", chains::tests()),
        ("coordinator", coordinator::tests()),
        ("etcd", etcd::tests()),
        ("failover", failover::tests()),
        ("faults", faults::tests()),
        ("forwarding", forwarding::tests()),
        ("hang", hang::tests()),
        ("hosts", hosts::tests()),
        ("hosts_control", hosts_control::tests()),
        ("hosts_detection", hosts_detection::tests()),
        ("hosts_etcd", hosts_etcd::tests()),
        ("hosts_networks", hosts_networks::tests()),
        ("hosts_sealed", hosts_sealed::tests()),
        ("hosts_switches", hosts_switches::tests()),
        ("laboratory", laboratory::tests()),
        ("ledger", ledger::tests()),
        ("manager", manager::tests()),
        ("midway", midway::tests()),
        ("migration", migration::tests()),
        ("nfactor", nfactor::tests()),
        ("paged", paged::tests()),
        ("poison", poison::tests()),
        ("reinforce", reinforce::tests()),
        ("rules", rules::tests()),
        ("scaling", scaling::tests()),
        ("served", served::tests()),
        ("standby", standby::tests()),
        ("transports", transports::tests()),
    ])
}
