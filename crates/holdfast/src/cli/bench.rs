//! `holdfast bench`: what the machinery costs.

use super::print;
use crate::bench::{datapath, messages, migration};
use crate::exit::{self, Failure};
use crate::table::{Style, Table};
use serde_json::json;
use std::time::Duration;

/// The chain under test, with room for so many flows.
fn functions(flows: usize) -> [(String, serde_json::Value); 3] {
    let addresses = flows.div_ceil(64_512).next_power_of_two().max(1);
    let prefix = 32 - addresses.trailing_zeros();
    [
        ("firewall".to_owned(), json!({ "rules": ["allow udp from 10.0.0.0/8 to any port 80"], "default": "deny" })),
        ("nat".to_owned(), json!({ "pool": [format!("198.51.0.0/{prefix}")], "inside": ["10.0.0.0/8"] })),
        (
            "load_balancer".to_owned(),
            json!({ "virtual": "203.0.113.10:80", "protocol": "udp", "backends": ["192.0.2.11:80", "192.0.2.12:80"] }),
        ),
    ]
}

/// One line of JSON per row, or a table.
fn tell<T: serde::Serialize>(rows: &[T], json: bool, head: &[&str], cells: impl Fn(&T) -> Vec<String>) -> Result<(), Failure> {
    if json {
        for row in rows {
            let line = serde_json::to_string(row).map_err(|error| Failure::new(exit::NEGATIVE, error.to_string()))?;
            print(&format!("{line}\n"))?;
        }
        return Ok(());
    }
    print(&Table::of(head, rows.iter().map(cells)).text(Style::of_stdout()))
}

pub(super) fn migration(flows: &[usize], json: bool) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for &flows in flows {
        let functions = functions(flows);
        let make = || holdfast_functions::catalog::chain(&functions).map_err(|(_, error)| error.to_string());
        let measured = migration::run(flows, &make)
            .map_err(|error| Failure::new(exit::NEGATIVE, format!("the result is wrong, so no time counts: {error}")))?;
        rows.extend(measured);
    }
    let head = ["case", "flows", "packets/s", "ms", "us/flow", "pause p50 us", "p99 us", "lost", "reordered"];
    tell(&rows, json, &head, |row: &migration::Row| {
        vec![
            row.case.to_owned(),
            row.flows.to_string(),
            row.packets_per_second.to_string(),
            format!("{:.2}", row.milliseconds),
            format!("{:.2}", row.microseconds_per_flow),
            format!("{:.0}", row.pause_p50_us),
            format!("{:.0}", row.pause_p99_us),
            row.lost.to_string(),
            row.reordered.to_string(),
        ]
    })
}

pub(super) fn bench(flows: usize, rounds: usize, json: bool) -> Result<(), Failure> {
    let functions = functions(flows);
    let make = || holdfast_functions::catalog::chain(&functions).map_err(|(_, error)| error.to_string());
    let plan = datapath::Plan { flows, time: Duration::from_millis(200), rounds };
    let rows = datapath::run(&plan, &make, &holdfast_io::allocations)
        .map_err(|error| Failure::new(exit::NEGATIVE, format!("the result is wrong, so no time was taken: {error}")))?;
    let head = ["case", "flows", "ns/packet", "ratio to bare", "Mpps", "allocations/packet", "bytes/flow"];
    tell(&rows, json, &head, |row: &datapath::Row| {
        vec![
            row.case.to_owned(),
            row.flows.to_string(),
            format!("{:.1}", row.ns_per_packet),
            format!("{:.2}", row.ratio_to_bare),
            format!("{:.2}", row.mpps),
            format!("{:.4}", row.allocations_per_packet),
            row.bytes_per_flow.to_string(),
        ]
    })
}

pub(super) fn messages(messages: usize, rounds: usize, json: bool) -> Result<(), Failure> {
    let plan = messages::Plan { messages, rounds };
    let rows = messages::run(&plan, &holdfast_io::allocations)
        .map_err(|error| Failure::new(exit::NEGATIVE, format!("the result is wrong, so no time was taken: {error}")))?;
    let head = ["case", "bytes", "authenticated", "messages/s", "ns/message", "messages/frame", "allocations/message"];
    tell(&rows, json, &head, |row: &messages::Row| {
        vec![
            row.case.to_owned(),
            row.bytes.to_string(),
            if row.authenticated { "yes" } else { "no" }.to_owned(),
            format!("{:.0}", row.messages_per_second),
            format!("{:.1}", row.ns_per_message),
            format!("{:.2}", row.messages_per_frame),
            format!("{:.4}", row.allocations_per_message),
        ]
    })
}
