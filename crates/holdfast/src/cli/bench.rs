//! `holdfast bench`: what the machinery costs.

use super::print;
use crate::bench::datapath;
use crate::exit::{self, Failure};
use crate::table::{Style, Table};
use serde_json::json;
use std::time::Duration;

pub(super) fn bench(flows: usize, rounds: usize, json: bool) -> Result<(), Failure> {
    let addresses = flows.div_ceil(64_512).next_power_of_two().max(1);
    let prefix = 32 - addresses.trailing_zeros();
    let functions = [
        ("firewall".to_owned(), json!({ "rules": ["allow udp from 10.0.0.0/8 to any port 80"], "default": "deny" })),
        ("nat".to_owned(), json!({ "pool": [format!("198.51.0.0/{prefix}")], "inside": ["10.0.0.0/8"] })),
        (
            "load_balancer".to_owned(),
            json!({ "virtual": "203.0.113.10:80", "protocol": "udp", "backends": ["192.0.2.11:80", "192.0.2.12:80"] }),
        ),
    ];
    let make = || holdfast_functions::catalog::chain(&functions).map_err(|(_, error)| error.to_string());
    let plan = datapath::Plan { flows, time: Duration::from_millis(200), rounds };
    let rows = datapath::run(&plan, &make, &holdfast_io::allocations)
        .map_err(|error| Failure::new(exit::NEGATIVE, format!("the result is wrong, so no time was taken: {error}")))?;
    if json {
        for row in &rows {
            let line = serde_json::to_string(row).map_err(|error| Failure::new(exit::NEGATIVE, error.to_string()))?;
            print(&format!("{line}\n"))?;
        }
        return Ok(());
    }
    let lines: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
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
        .collect();
    let head = ["case", "flows", "ns/packet", "ratio to bare", "Mpps", "allocations/packet", "bytes/flow"];
    print(&Table::of(&head, lines).text(Style::of_stdout()))
}
