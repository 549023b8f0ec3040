//! Measurements of a whole box in namespaces (root): what each is run with, and its
//! table.

use super::tell;
use crate::bench::{failover, kernel, memory, questions, rate};
use crate::{Interrupt, daemon, demo};
use holdfast_control::exit::Failure;
use std::time::Duration;

pub(super) fn failover(
    kills: usize,
    flows: usize,
    packets_per_second: u64,
    json: bool,
) -> Result<(), Failure> {
    let plan = failover::Plan { kills, flows, packets_per_second };
    let failed = |error: anyhow::Error| Failure::new(demo::exit_code(&error), format!("{error:#}"));
    let binary = daemon::binary()?;
    let rows = failover::run(&plan, &binary).map_err(failed)?;
    let head = [
        "protection",
        "case",
        "kills",
        "flows each",
        "packets/s",
        "p50 us",
        "p90",
        "p99",
        "max",
        "packets",
        "lost each",
        "late",
    ];
    tell(&rows, json, &head, |row: &failover::Row| {
        let mut cells = vec![row.protection.to_owned(), row.case.to_owned(), row.kills.to_string()];
        cells.extend([format!("{:.0}", row.flows_each), row.packets_per_second.to_string()]);
        cells.extend(
            [row.p50_us, row.p90_us, row.p99_us, row.max_us].map(|time| format!("{time:.0}")),
        );
        cells.extend([
            row.packets.to_string(),
            format!("{:.1}", row.lost_each),
            row.late.to_string(),
        ]);
        cells
    })
}

pub(super) fn questions(
    flows: usize,
    rules: usize,
    packets_per_second: u64,
    rounds: usize,
    json: bool,
) -> Result<(), Failure> {
    let plan = questions::Plan {
        flows,
        rules,
        packets_per_second,
        rounds,
        window: Duration::from_secs(2),
    };
    let failed = |error: anyhow::Error| Failure::new(demo::exit_code(&error), format!("{error:#}"));
    let binary = daemon::binary()?;
    let interrupt = Interrupt::on_signals().map_err(failed)?;
    let rows = questions::run(&plan, &binary, &interrupt).map_err(failed)?;
    let head = [
        "question",
        "flows",
        "answers",
        "answer ms",
        "longest µs",
        "runtimes' µs",
        "p50 µs",
        "without",
        "p99",
        "without",
        "p99.9",
        "without",
        "lost",
    ];
    tell(&rows, json, &head, |row: &questions::Row| {
        let mut cells =
            vec![row.question.to_owned(), row.flows.to_string(), row.answers.to_string()];
        cells.push(format!("{:.1}", row.answer_ms));
        cells.extend([row.longest_us, row.runtimes_longest_us].map(|time| time.to_string()));
        let times = [
            row.p50_us,
            row.idle_p50_us,
            row.p99_us,
            row.idle_p99_us,
            row.p999_us,
            row.idle_p999_us,
        ];
        cells.extend(times.map(|time| format!("{time:.0}")));
        cells.push(row.lost.to_string());
        cells
    })
}

pub(super) fn rate(
    seconds: u64,
    every: u64,
    connections: usize,
    json: bool,
) -> Result<(), Failure> {
    let plan = rate::Plan { seconds, every, connections };
    let failed = |error: anyhow::Error| Failure::new(demo::exit_code(&error), format!("{error:#}"));
    let binary = daemon::binary()?;
    let rows = rate::run(&plan, &binary).map_err(failed)?;
    let head = [
        "protection",
        "second",
        "Mbit/s",
        "gap ms",
        "connections killed",
        "detected ms",
        "recovered ms",
        "their gap ms",
    ];
    tell(&rows, json, &head, |row: &rate::Row| {
        let one = |value: Option<String>| value.unwrap_or_default();
        vec![
            row.protection.to_owned(),
            row.second.to_string(),
            format!("{:.0}", row.mbps),
            row.gap_ms.to_string(),
            one(row.killed.map(|count| count.to_string())),
            one(row.detected_ms.map(|time| format!("{time:.1}"))),
            one(row.recovered_ms.map(|time| format!("{time:.1}"))),
            one(row.gap_of_its_ms.map(|time| time.to_string())),
        ]
    })
}

pub(super) fn memory(plan: &memory::Plan, json: bool) -> Result<(), Failure> {
    let failed = |error: anyhow::Error| Failure::new(demo::exit_code(&error), format!("{error:#}"));
    let binary = daemon::binary()?;
    let interrupt = Interrupt::on_signals().map_err(failed)?;
    let rows = memory::run(plan, &binary, &interrupt).map_err(failed)?;
    let head = [
        "case",
        "flows",
        "start ms",
        "MiB",
        "manager",
        "coordinator",
        "runtimes",
        "B/flow",
        "added B/flow",
    ];
    tell(&rows, json, &head, |row: &memory::Row| {
        let mut cells =
            vec![row.case.to_owned(), row.flows.to_string(), row.start_milliseconds.to_string()];
        let bytes = [row.bytes, row.manager_bytes, row.coordinator_bytes, row.runtimes_bytes];
        cells.extend(bytes.map(|bytes| (bytes >> 20).to_string()));
        cells.extend(
            [row.bytes_per_flow, row.added_bytes_per_flow].map(|bytes| format!("{bytes:.0}")),
        );
        cells
    })
}

pub(super) fn beside(plan: &kernel::Plan, json: bool) -> Result<(), Failure> {
    let failed = |error: anyhow::Error| Failure::new(demo::exit_code(&error), format!("{error:#}"));
    let binary = daemon::binary()?;
    let interrupt = Interrupt::on_signals().map_err(failed)?;
    let rows = kernel::run(plan, &binary, &interrupt).map_err(failed)?;
    let head = [
        "case",
        "flows",
        "requests/s",
        "ratio",
        "Mbit/s",
        "ratio",
        "ping µs",
        "ratio",
        "coordinator's wakes/s",
    ];
    tell(&rows, json, &head, |row: &kernel::Row| {
        vec![
            row.case.clone(),
            row.flows.to_string(),
            format!("{:.0}", row.requests_per_second),
            format!("{:.2}", row.requests_ratio),
            format!("{:.0}", row.stream_mbps),
            format!("{:.2}", row.stream_ratio),
            format!("{:.0}", row.ping_us),
            format!("{:.2}", row.ping_ratio),
            format!("{:.0}", row.coordinator_wakes_per_second),
        ]
    })
}
