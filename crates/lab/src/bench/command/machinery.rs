//! Measurements of the machinery in one process: what each is run with, and its table.

use super::{Churning, tell, wrong};
use crate::bench::chains::{self, chain, function, functions, monitor};
use crate::bench::functions::{packets, payload, rules};
use crate::bench::{
    controls, datapath, growth, instances, local, messages, migration, recovery, reinforce,
    replication, rescue, sealing, takeover, tenants,
};
use holdfast_control::exit::Failure;
use std::time::Duration;

pub(super) fn recovery(flows: &[usize], rounds: usize, json: bool) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for &flows in flows {
        rows.push(
            recovery::run(&recovery::Plan { flows, rounds }, &|| chain(flows)).map_err(wrong)?,
        );
    }
    let head = [
        "case",
        "flows",
        "ms",
        "least",
        "most",
        "ns/flow",
        "half ms",
        "accounted ms",
        "longest turn ms",
        "checked",
    ];
    tell(&rows, json, &head, |row: &recovery::Row| {
        vec![
            row.case.to_owned(),
            row.flows.to_string(),
            format!("{:.2}", row.milliseconds),
            format!("{:.2}", row.least_milliseconds),
            format!("{:.2}", row.most_milliseconds),
            format!("{:.0}", row.ns_per_flow),
            format!("{:.2}", row.half_milliseconds),
            format!("{:.2}", row.accounted_milliseconds),
            format!("{:.2}", row.longest_turn_milliseconds),
            row.checked.to_string(),
        ]
    })
}

pub(super) fn replication(
    flows: usize,
    rounds: usize,
    packets_per_second: u64,
    json: bool,
) -> Result<(), Failure> {
    let plan =
        replication::Plan { flows, time: Duration::from_millis(200), rounds, packets_per_second };
    let rows = replication::run(&plan, &|| chain(flows)).map_err(wrong)?;
    let head = [
        "case",
        "bytes",
        "Mpps",
        "ratio to none",
        "p50 us",
        "p99",
        "p99.9",
        "added p50",
        "p99",
        "p99.9",
        "replication B",
        "fabric B",
    ];
    tell(&rows, json, &head, |row: &replication::Row| {
        let times = [
            row.latency_p50_us,
            row.latency_p99_us,
            row.latency_p999_us,
            row.added_p50_us,
            row.added_p99_us,
            row.added_p999_us,
        ];
        let mut cells = vec![
            row.case.to_owned(),
            row.bytes.to_string(),
            format!("{:.2}", row.mpps),
            format!("{:.2}", row.ratio_to_none),
        ];
        cells.extend(times.map(|time| format!("{time:.1}")));
        cells.extend(
            [row.replication_bytes_per_packet, row.fabric_bytes_per_packet]
                .map(|bytes| format!("{bytes:.0}")),
        );
        cells
    })
}

pub(super) fn takeover(
    kills: usize,
    flows: usize,
    packets_per_second: u64,
    json: bool,
) -> Result<(), Failure> {
    let plan = takeover::Plan { kills, flows, packets_per_second };
    let rows = takeover::run(&plan, &functions(flows).to_vec(), &|| chain(flows)).map_err(wrong)?;
    let head = [
        "processors",
        "case",
        "kills",
        "packets/s",
        "packets",
        "p50 us",
        "p90",
        "p99",
        "max",
        "lost",
        "doubled or late",
    ];
    tell(&rows, json, &head, |row: &takeover::Row| {
        let mut cells = vec![row.processors.to_owned(), row.case.to_owned()];
        cells.extend([
            row.kills.to_string(),
            row.packets_per_second.to_string(),
            row.packets.to_string(),
        ]);
        cells.extend(
            [row.p50_us, row.p90_us, row.p99_us, row.max_us].map(|time| format!("{time:.1}")),
        );
        cells.extend([row.lost, row.doubled_or_late].map(|count| count.to_string()));
        cells
    })
}

pub(super) fn tenants(flows: usize, packets_per_second: u64, json: bool) -> Result<(), Failure> {
    let plan = tenants::Plan { flows, packets_per_second, time: Duration::from_millis(500) };
    let rows = tenants::run(&plan, &functions(flows).to_vec(), &|| chain(flows)).map_err(wrong)?;
    let head = [
        "protection",
        "the other's load",
        "kpps",
        "p50 us",
        "p99",
        "max",
        "the other's kpps",
        "kills",
    ];
    tell(&rows, json, &head, |row: &tenants::Row| {
        let times = [row.latency_p50_us, row.latency_p99_us, row.latency_max_us];
        let mut cells =
            vec![row.protection.to_owned(), row.other.to_owned(), format!("{:.0}", row.kpps)];
        cells.extend(times.map(|time| format!("{time:.1}")));
        cells.extend([format!("{:.0}", row.other_kpps), row.kills.to_string()]);
        cells
    })
}

pub(super) fn reinforce(
    flows: usize,
    rounds: usize,
    packets_per_second: u64,
    json: bool,
) -> Result<(), Failure> {
    let plan = reinforce::Plan {
        flows,
        time: Duration::from_millis(200),
        rounds,
        packets_per_second,
        fresh: 200_000,
    };
    let build = |(name, config): &(String, serde_json::Value)| {
        holdfast_functions::catalog::build(name, config)
    };
    let heavy = |flows| {
        functions(flows)
            .iter()
            .map(build)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| error.to_string())
    };
    let rows = reinforce::run(&plan, &heavy).map_err(wrong)?;
    let head = [
        "varied",
        "value",
        "Mpps",
        "none Mpps",
        "ratio",
        "p50 us",
        "p99",
        "max",
        "added p50",
        "p99",
        "max",
        "replication B",
    ];
    tell(&rows, json, &head, |row: &reinforce::Row| {
        let times = [
            row.latency_p50_us,
            row.latency_p99_us,
            row.latency_max_us,
            row.added_p50_us,
            row.added_p99_us,
            row.added_max_us,
        ];
        let mut cells = vec![row.varied.to_owned(), row.value.to_string()];
        cells.extend(
            [row.mpps, row.none_mpps, row.ratio_to_none].map(|value| format!("{value:.2}")),
        );
        cells.extend(times.map(|time| format!("{time:.1}")));
        cells.push(format!("{:.0}", row.replication_bytes_per_packet));
        cells
    })
}

pub(super) fn rescue(churning: &Churning, json: bool) -> Result<(), Failure> {
    let plan = churning.plan();
    let make = |name| move |flows| function(name, flows);
    let (firewall, nat, balancer) = (make("firewall"), make("nat"), make("load_balancer"));
    let functions: [rescue::NamedFunction<'_>; 3] =
        [("firewall", &firewall), ("nat", &nat), ("load_balancer", &balancer)];
    let rows = rescue::run(&plan, &functions).map_err(wrong)?;
    let head = ["function", "flows are", "case", "Mpps", "ratio to none", "p50 us", "p99", "flows"];
    tell(&rows, json, &head, |row: &rescue::Row| {
        vec![
            row.function.to_owned(),
            row.lengths.to_owned(),
            row.case.to_owned(),
            format!("{:.3}", row.mpps),
            format!("{:.2}", row.ratio_to_none),
            format!("{:.1}", row.latency_p50_us),
            format!("{:.1}", row.latency_p99_us),
            row.flows.to_string(),
        ]
    })
}

pub(super) fn leases(churning: &Churning, json: bool) -> Result<(), Failure> {
    let plan = churning.plan();
    let rows = rescue::leases(&plan, &|flows| function("nat", flows)).map_err(wrong)?;
    tell(
        &rows,
        json,
        &["lease ms", "Mpps", "ratio to none", "p50 us", "p99"],
        |row: &rescue::LeaseRow| {
            vec![
                if row.lease_ms == 0 { "none".to_owned() } else { row.lease_ms.to_string() },
                format!("{:.3}", row.mpps),
                format!("{:.2}", row.ratio_to_none),
                format!("{:.1}", row.latency_p50_us),
                format!("{:.1}", row.latency_p99_us),
            ]
        },
    )
}

pub(super) fn instances(
    instances: &[u16],
    servers: &[u16],
    flows: usize,
    packets: usize,
    rounds: usize,
    json: bool,
) -> Result<(), Failure> {
    let plan = instances::Plan {
        instances: instances.to_vec(),
        servers: servers.to_vec(),
        flows,
        packets,
        rounds,
    };
    let rows = instances::run(&plan, &|flows| function("nat", flows)).map_err(wrong)?;
    let head =
        ["case", "instances", "servers", "Mpps", "ratio to ideal", "server %", "flows", "dropped"];
    tell(&rows, json, &head, |row: &instances::Row| {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        vec![
            row.case.to_owned(),
            row.instances.to_string(),
            if row.servers == 0 { "-".to_owned() } else { row.servers.to_string() },
            number(row.mpps, 2),
            number(row.ratio_to_ideal, 2),
            number(row.server_percent, 0),
            row.flows.to_string(),
            row.dropped.to_string(),
        ]
    })
}

pub(super) fn local(flows: usize, rounds: usize, json: bool) -> Result<(), Failure> {
    let plan = local::Plan { flows, time: Duration::from_millis(100), rounds };
    let monitor =
        || holdfast_functions::catalog::chain(&monitor()).map_err(|(_, error)| error.to_string());
    let heavy = || chain(flows);
    let chains: [local::NamedChain<'_>; 2] = [
        ("monitor", chains::monitor().to_vec(), &monitor),
        ("firewall, nat, balancer", functions(flows).to_vec(), &heavy),
    ];
    let rows = local::run(&plan, &chains).map_err(wrong)?;
    let head = ["chain", "case", "bytes", "flows", "ns/packet", "Mpps", "ratio to none"];
    tell(&rows, json, &head, |row: &local::Row| {
        vec![
            row.chain.to_owned(),
            row.case.to_owned(),
            row.bytes.to_string(),
            row.flows.to_string(),
            format!("{:.1}", row.ns_per_packet),
            format!("{:.2}", row.mpps),
            format!("{:.2}", row.ratio_to_none),
        ]
    })
}

pub(super) fn migration(flows: &[usize], rounds: usize, json: bool) -> Result<(), Failure> {
    let most = flows.iter().copied().max().unwrap_or(0);
    let plan = migration::Plan { flows: flows.to_vec(), rounds };
    let rows = migration::run(&plan, &|| chain(most)).map_err(wrong)?;
    let head = [
        "case",
        "flows",
        "packets/s",
        "ms",
        "us/flow",
        "idle us/flow",
        "pause p50 us",
        "p99 us",
        "packets",
        "lost",
        "reordered",
    ];
    tell(&rows, json, &head, |row: &migration::Row| {
        vec![
            row.case.to_owned(),
            row.flows.to_string(),
            row.packets_per_second.to_string(),
            format!("{:.2}", row.milliseconds),
            format!("{:.2}", row.microseconds_per_flow),
            format!("{:.2}", row.idle_microseconds_per_flow),
            format!("{:.0}", row.pause_p50_us),
            format!("{:.0}", row.pause_p99_us),
            row.packets.to_string(),
            row.lost.to_string(),
            row.reordered.to_string(),
        ]
    })
}

pub(super) fn growth(runtimes: &[u16], flows: usize, json: bool) -> Result<(), Failure> {
    let plan = growth::Plan { runtimes: runtimes.to_vec(), flows };
    let rows = growth::run(&plan, &chain).map_err(wrong)?;
    let head = [
        "runtimes",
        "flows",
        "table B/flow",
        "start ms",
        "moved",
        "ms",
        "ns/flow",
        "recovered",
        "heirs",
        "ms",
        "ns/flow",
        "coordinator ms",
        "hub ms",
        "safe ms",
        "message B/flow",
    ];
    tell(&rows, json, &head, |row: &growth::Row| {
        vec![
            row.runtimes.to_string(),
            row.flows.to_string(),
            format!("{:.0}", row.table_bytes_per_flow),
            format!("{:.1}", row.start_milliseconds),
            row.moved.to_string(),
            format!("{:.2}", row.move_milliseconds),
            format!("{:.0}", row.move_ns_per_flow),
            row.recovered.to_string(),
            row.heirs.to_string(),
            format!("{:.2}", row.recover_milliseconds),
            format!("{:.0}", row.recover_ns_per_flow),
            format!("{:.2}", row.coordinator_milliseconds),
            format!("{:.2}", row.hub_milliseconds),
            format!("{:.1}", row.safe_milliseconds),
            format!("{:.0}", row.message_bytes_per_flow),
        ]
    })
}

pub(super) fn bench(flows: usize, rounds: usize, json: bool) -> Result<(), Failure> {
    let plan = datapath::Plan { flows, time: Duration::from_millis(200), rounds };
    let rows = datapath::run(&plan, &|| chain(flows), &holdfast_io::allocations).map_err(wrong)?;
    let head =
        ["case", "flows", "ns/packet", "ratio to bare", "Mpps", "allocations/packet", "bytes/flow"];
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

pub(super) fn controls(round_trips: usize, messages: usize, json: bool) -> Result<(), Failure> {
    let skip = |why: &str| eprintln!("skipped: {why}");
    let rows = controls::run(&controls::Plan { round_trips, messages }, skip).map_err(wrong)?;
    let head = ["transport", "round trip p50 µs", "p99 µs", "messages/s"];
    tell(&rows, json, &head, |row: &controls::Row| {
        vec![
            row.transport.clone(),
            format!("{:.1}", row.round_trip_us_p50),
            format!("{:.1}", row.round_trip_us_p99),
            format!("{:.0}", row.messages_per_second),
        ]
    })
}

pub(super) fn messages(messages: usize, rounds: usize, json: bool) -> Result<(), Failure> {
    let plan = messages::Plan { messages, rounds };
    let rows = messages::run(&plan, &holdfast_io::allocations).map_err(wrong)?;
    let head = [
        "case",
        "bytes",
        "authenticated",
        "messages/s",
        "ns/message",
        "messages/frame",
        "allocations/message",
    ];
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

pub(super) fn sealing(packets: usize, rounds: usize, json: bool) -> Result<(), Failure> {
    let rows = sealing::run(&sealing::Plan { packets, rounds }, &holdfast_io::allocations)
        .map_err(wrong)?;
    let head = ["case", "bytes", "ns/packet", "ratio to plain", "allocations/packet"];
    tell(&rows, json, &head, |row: &sealing::Row| {
        vec![
            row.case.to_owned(),
            row.bytes.to_string(),
            format!("{:.1}", row.ns_per_packet),
            format!("{:.2}", row.ratio_to_plain),
            format!("{:.4}", row.allocations_per_packet),
        ]
    })
}

pub(super) fn packets(plan: &packets::Plan, json: bool) -> Result<(), Failure> {
    let rows = packets::run(plan, &holdfast_io::allocations).map_err(wrong)?;
    let head = [
        "chain",
        "flows",
        "frames",
        "none ns/packet",
        "nfvactor",
        "ratio",
        "allocations/packet",
        "bytes/flow",
    ];
    tell(&rows, json, &head, |row: &packets::Row| {
        vec![
            row.chain.to_owned(),
            row.flows.to_string(),
            row.frames.to_owned(),
            format!("{:.0}", row.none_ns),
            format!("{:.0}", row.nfvactor_ns),
            format!("{:.2}", row.ratio),
            format!("{:.4}", row.allocations_per_packet),
            row.bytes_per_flow.to_string(),
        ]
    })
}

pub(super) fn payload(rounds: usize, json: bool) -> Result<(), Failure> {
    let plan = payload::Plan { bytes: 4_000_000, streams: 5, rounds };
    let rows = payload::run(&plan, &holdfast_io::allocations).map_err(wrong)?;
    let head = ["function", "patterns", "Gbit/s", "bare", "ratio", "whole", "allocations/segment"];
    tell(&rows, json, &head, |row: &payload::Row| {
        vec![
            row.function.to_owned(),
            row.patterns.to_string(),
            format!("{:.2}", row.gbps),
            format!("{:.2}", row.bare_gbps),
            format!("{:.2}", row.ratio),
            format!("{:.2}", row.whole_gbps),
            format!("{:.4}", row.allocations_per_segment),
        ]
    })
}

pub(super) fn new_flows(rounds: usize, json: bool) -> Result<(), Failure> {
    let plan = rules::Plan { flows: 200_000, rounds };
    let rows = rules::run(&plan, &holdfast_io::allocations).map_err(wrong)?;
    let head = ["function", "rules", "ns/new flow", "ratio", "allocations/new flow"];
    tell(&rows, json, &head, |row: &rules::Row| {
        vec![
            row.function.to_owned(),
            row.rules.to_string(),
            format!("{:.1}", row.ns_per_new_flow),
            format!("{:.2}", row.ratio),
            format!("{:.4}", row.allocations_per_new_flow),
        ]
    })
}
