//! The end-to-end tests, all in one program: see [`holdfast_tests::runner`]. `cargo test
//! -p holdfast-tests -- failover::` runs those of a file.
#![forbid(unsafe_code)]

mod access_log;
mod asking;
mod bfd;
mod chains;
mod conntrack;
mod coordinator;
mod dpi;
mod etcd;
mod example;
mod failover;
mod faults;
mod flood;
mod forwarding;
mod hang;
mod hosts;
mod hosts_control;
mod hosts_damaged;
mod hosts_detection;
mod hosts_etcd;
mod hosts_networks;
mod hosts_sealed;
mod hosts_switches;
mod inspection;
mod kernels;
mod kills;
mod laboratory;
mod ledger;
mod manager;
mod memory;
mod midway;
mod migration;
mod monitor;
mod nfactor;
mod outside;
mod paged;
mod poison;
mod privileges;
mod rates;
mod reinforce;
mod rules;
mod scaling;
mod served;
mod standby;
mod transports;
mod vlans;

use holdfast_tests::{crowd, runner, tagger};
use std::process::ExitCode;

/// The tests that `make quick` runs (`HOLDFAST_QUICK`): some of each kind that take a
/// moment.
const QUICK: &[&str] = &[
    "coordinator::a_killed_coordinator_is_back_within_a_second",
    "failover::keep_alive_connections_live",
    "failover::the_status_tells_the_story",
    "forwarding::plain_forwarding_of_both_families",
    "hang::a_woken_runtime_releases_nothing",
    "hosts::a_host_is_drained_and_restored",
    "ledger::the_ledger_balances_under_nfvactor",
    "manager::runtimes_still_fail_over_afterwards",
    "migration::flows_move_and_nothing_is_lost",
    "nfactor::the_next_incarnation_gets_the_flows_back",
    "reinforce::a_download_goes_on",
    "served::datagrams_do_not_notice_the_servers_end",
    "standby::datagrams_do_not_notice_kills",
];

fn main() -> ExitCode {
    if let Some(code) = crowd::role().or_else(tagger::role) {
        return code;
    }
    let files = vec![
        ("access_log", access_log::tests()),
        ("asking", asking::tests()),
        ("bfd", bfd::tests()),
        ("chains", chains::tests()),
        ("conntrack", conntrack::tests()),
        ("coordinator", coordinator::tests()),
        ("dpi", dpi::tests()),
        ("etcd", etcd::tests()),
        ("example", example::tests()),
        ("failover", failover::tests()),
        ("faults", faults::tests()),
        ("flood", flood::tests()),
        ("forwarding", forwarding::tests()),
        ("hang", hang::tests()),
        ("hosts", hosts::tests()),
        ("hosts_control", hosts_control::tests()),
        ("hosts_detection", hosts_detection::tests()),
        ("hosts_etcd", hosts_etcd::tests()),
        ("hosts_networks", hosts_networks::tests()),
        ("hosts_damaged", hosts_damaged::tests()),
        ("hosts_sealed", hosts_sealed::tests()),
        ("hosts_switches", hosts_switches::tests()),
        ("inspection", inspection::tests()),
        ("kernels", kernels::tests()),
        ("kills", kills::tests()),
        ("laboratory", laboratory::tests()),
        ("ledger", ledger::tests()),
        ("manager", manager::tests()),
        ("memory", memory::tests()),
        ("midway", midway::tests()),
        ("migration", migration::tests()),
        ("monitor", monitor::tests()),
        ("nfactor", nfactor::tests()),
        ("outside", outside::tests()),
        ("paged", paged::tests()),
        ("poison", poison::tests()),
        ("privileges", privileges::tests()),
        ("rates", rates::tests()),
        ("reinforce", reinforce::tests()),
        ("rules", rules::tests()),
        ("scaling", scaling::tests()),
        ("served", served::tests()),
        ("standby", standby::tests()),
        ("transports", transports::tests()),
        ("vlans", vlans::tests()),
    ];
    runner::main(files, QUICK)
}
