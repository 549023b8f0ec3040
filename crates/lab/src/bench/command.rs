//! `holdfast bench`: the cost of the machinery.

use super::chains::{chain, function, functions, monitor};
use super::{
    controls, datapath, failover, growth, instances, kernel, local, memory, messages, migration,
    questions, rate, recovery, reinforce, replication, rescue, sealing, takeover, tenants,
};
use crate::{Interrupt, daemon, demo};
use clap::Subcommand;
use holdfast_control::exit::{self, Failure};
use holdfast_control::table::{Style, Table, print};
use std::time::Duration;

/// Measure
#[derive(Debug, Subcommand)]
pub enum Plan {
    /// The cost of the machinery per packet
    Datapath {
        /// Flows
        #[arg(long, default_value_t = 100_000)]
        flows: usize,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
    /// The cost of moving flows between runtimes under load
    Migration {
        /// Flows
        #[arg(long, value_delimiter = ',', default_values_t = [500, 1_000, 100_000, 200_000])]
        flows: Vec<usize>,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// How long a dead runtime's flows are without an owner
    Recovery {
        /// Flows
        #[arg(long, value_delimiter = ',', default_values_t = [87_000, 1_000_000])]
        flows: Vec<usize>,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// The cost of saving every packet's state elsewhere before the packet leaves
    Replication {
        /// Flows
        #[arg(long, default_value_t = 10_000)]
        flows: usize,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 7)]
        rounds: usize,
        /// Packets per second at which latency is measured
        #[arg(long, default_value_t = 100_000)]
        rate: u64,
    },
    /// How moves and recoveries cost more in larger clusters, in a simulated box
    Growth {
        /// Runtimes
        #[arg(long, value_delimiter = ',', default_values_t = [10, 50, 200])]
        runtimes: Vec<u16>,
        /// Flows of each runtime
        #[arg(long, default_value_t = 1_000)]
        flows: usize,
    },
    /// A whole box beside the kernel's firewall and NAT, in turns: HTTP, a TCP stream,
    /// ping (root)
    Box {
        /// Protections of the box
        #[arg(long, value_delimiter = ',', default_values_t = ["none".to_owned(), "nfvactor".to_owned()])]
        protections: Vec<String>,
        /// Flows that exist during the load; each case is run once for every number
        #[arg(long, value_delimiter = ',', default_values_t = [0, 50_000])]
        flows: Vec<usize>,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Duration of each load, s
        #[arg(long, default_value_t = 5)]
        seconds: u32,
    },
    /// Memory of a whole box, without a flow, with many, and after a runtime was killed
    /// (root)
    Memory {
        /// Flows
        #[arg(long, default_value_t = 1_000_000)]
        flows: usize,
        /// The box's limit of flows; without it half as many again as `--flows`
        #[arg(long)]
        limit: Option<usize>,
        /// Runtimes
        #[arg(long, default_value_t = 3)]
        runtimes: u16,
    },
    /// The cost of control API questions to packets: the longest step for each question,
    /// and round trips of packets with and without the question (root)
    Questions {
        /// Flows of the box
        #[arg(long, default_value_t = 100_000)]
        flows: usize,
        /// Rules of each configuration that is applied
        #[arg(long, default_value_t = 4_000)]
        rules: usize,
        /// Datagrams per second
        #[arg(long, default_value_t = 10_000)]
        rate: u64,
        /// Windows of two seconds with each question, and as many without
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// The cost of the remote standby of `reinforce`, by the settings it depends on
    Reinforce {
        /// Flows
        #[arg(long, default_value_t = 10_000)]
        flows: usize,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Packets per second at which latency is measured
        #[arg(long, default_value_t = 100_000)]
        rate: u64,
    },
    /// The cost of a state server as the flows' home, by the length of flows; beside
    /// functions that keep no state
    Rescue(Churning),
    /// The cost of a state server's requests for ports of which it has had no report, by
    /// how soon it asks
    Leases(Churning),
    /// More and more NAT instances that share one pool of ports: throughput if each had a
    /// core, and answers that come back
    Instances {
        /// Number of instances in each case
        #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3, 4, 5, 6])]
        instances: Vec<u16>,
        /// State servers among which the flows are divided, in each of those cases; if
        /// there are fewer numbers than cases, the last number counts for the others
        #[arg(long, value_delimiter = ',', default_values_t = [1])]
        servers: Vec<u16>,
        /// Flows whose answers come back
        #[arg(long, default_value_t = 60_000)]
        flows: usize,
        /// Packets of each instance, per round
        #[arg(long, default_value_t = 500_000)]
        packets: usize,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// The rate of TCP transfers while the instance that has the most of them is killed
    /// again and again, with the rest of the box (root)
    Rate {
        /// Duration under each protection, s
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Interval between two kills of an instance, s
        #[arg(long, default_value_t = 10)]
        every: u64,
        /// Connections
        #[arg(long, default_value_t = 12)]
        connections: usize,
    },
    /// The cost of a runtime's local standby
    Local {
        /// Flows
        #[arg(long, default_value_t = 10_000)]
        flows: usize,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
    /// How long nothing leaves when a runtime's process is killed and its local standby
    /// goes on
    Takeover {
        /// Kills
        #[arg(long, default_value_t = 1_000)]
        kills: usize,
        /// Flows
        #[arg(long, default_value_t = 1_000)]
        flows: usize,
        /// Packets per second
        #[arg(long, default_value_t = 200_000)]
        rate: u64,
    },
    /// The effect of one tenant's load on another tenant on the same processor
    Tenants {
        /// Flows of each tenant
        #[arg(long, default_value_t = 1_000)]
        flows: usize,
        /// Packets per second of the first tenant
        #[arg(long, default_value_t = 100_000)]
        rate: u64,
    },
    /// How long flows are not served when a runtime is killed and another one takes them
    /// over (root)
    Failover {
        /// Kills under each protection
        #[arg(long, default_value_t = 200)]
        kills: usize,
        /// Flows
        #[arg(long, default_value_t = 60)]
        flows: usize,
        /// Datagrams per second
        #[arg(long, default_value_t = 3_000)]
        rate: u64,
    },
    /// Control messages between a runtime and a state server on each control transport:
    /// round-trip time, and throughput
    Controls {
        /// Round trips
        #[arg(long, default_value_t = 50_000)]
        round_trips: usize,
        /// Messages one way
        #[arg(long, default_value_t = 2_000_000)]
        messages: usize,
    },
    /// The cost of messages between processes, authenticated and not
    Messages {
        /// Messages per round
        #[arg(long, default_value_t = 200_000)]
        messages: usize,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
    /// The cost of sealing packets between hosts
    Sealing {
        /// Packets per round
        #[arg(long, default_value_t = 200_000)]
        packets: usize,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
}

/// Arguments of the measurements in which flows begin and end.
#[derive(Debug, clap::Args)]
pub struct Churning {
    /// Places for flows, half of which are taken
    #[arg(long, default_value_t = 327_680)]
    flows: usize,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Packets per second at which latency is measured
    #[arg(long, default_value_t = 5_000)]
    rate: u64,
}

impl Churning {
    fn plan(&self) -> replication::Plan {
        let Churning { flows, rounds, rate } = *self;
        replication::Plan {
            flows,
            time: Duration::from_millis(200),
            rounds,
            packets_per_second: rate,
        }
    }
}

impl Plan {
    /// Runs the measurement and prints its result.
    ///
    /// # Errors
    /// The message for the user, and the exit code.
    pub fn run(self, json: bool) -> Result<(), Failure> {
        match self {
            Plan::Datapath { flows, rounds } => bench(flows, rounds, json),
            Plan::Box { protections, flows, rounds, seconds } => {
                beside(&kernel::Plan { protections, flows, rounds, seconds }, json)
            }
            Plan::Memory { flows, limit, runtimes } => {
                memory(&memory::Plan { flows, limit, runtimes }, json)
            }
            Plan::Growth { runtimes, flows } => growth(&runtimes, flows, json),
            Plan::Migration { flows, rounds } => migration(&flows, rounds, json),
            Plan::Questions { flows, rules, rate, rounds } => {
                questions(flows, rules, rate, rounds, json)
            }
            Plan::Recovery { flows, rounds } => recovery(&flows, rounds, json),
            Plan::Replication { flows, rounds, rate } => replication(flows, rounds, rate, json),
            Plan::Takeover { kills, flows, rate } => takeover(kills, flows, rate, json),
            Plan::Tenants { flows, rate } => tenants(flows, rate, json),
            Plan::Failover { kills, flows, rate } => failover(kills, flows, rate, json),
            Plan::Reinforce { flows, rounds, rate } => reinforce(flows, rounds, rate, json),
            Plan::Rescue(churning) => rescue(&churning, json),
            Plan::Leases(churning) => leases(&churning, json),
            Plan::Instances { instances, servers, flows, packets, rounds } => {
                self::instances(&instances, &servers, flows, packets, rounds, json)
            }
            Plan::Rate { seconds, every, connections } => rate(seconds, every, connections, json),
            Plan::Local { flows, rounds } => local(flows, rounds, json),
            Plan::Controls { round_trips, messages } => controls(round_trips, messages, json),
            Plan::Messages { messages, rounds } => self::messages(messages, rounds, json),
            Plan::Sealing { packets, rounds } => sealing(packets, rounds, json),
        }
    }
}

/// Prints one line of JSON per row, or a table.
fn tell<T: serde::Serialize>(
    rows: &[T],
    json: bool,
    head: &[&str],
    cells: impl Fn(&T) -> Vec<String>,
) -> Result<(), Failure> {
    if json {
        for row in rows {
            let line = serde_json::to_string(row)
                .map_err(|error| Failure::new(exit::NEGATIVE, error.to_string()))?;
            print(&format!("{line}\n"))?;
        }
        return Ok(());
    }
    print(&Table::of(head, rows.iter().map(cells)).text(Style::of_stdout()))
}

/// The failure for a wrong result.
fn wrong(error: String) -> Failure {
    Failure::new(exit::NEGATIVE, format!("the result is wrong, so no time counts: {error}"))
}

fn recovery(flows: &[usize], rounds: usize, json: bool) -> Result<(), Failure> {
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

fn replication(
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

fn takeover(
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

fn failover(
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

fn questions(
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

fn rate(seconds: u64, every: u64, connections: usize, json: bool) -> Result<(), Failure> {
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

fn tenants(flows: usize, packets_per_second: u64, json: bool) -> Result<(), Failure> {
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

fn reinforce(
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

fn rescue(churning: &Churning, json: bool) -> Result<(), Failure> {
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

fn leases(churning: &Churning, json: bool) -> Result<(), Failure> {
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

fn instances(
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

fn local(flows: usize, rounds: usize, json: bool) -> Result<(), Failure> {
    let plan = local::Plan { flows, time: Duration::from_millis(100), rounds };
    let monitor =
        || holdfast_functions::catalog::chain(&monitor()).map_err(|(_, error)| error.to_string());
    let heavy = || chain(flows);
    let chains: [local::NamedChain<'_>; 2] = [
        ("monitor", super::chains::monitor().to_vec(), &monitor),
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

fn migration(flows: &[usize], rounds: usize, json: bool) -> Result<(), Failure> {
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

fn memory(plan: &memory::Plan, json: bool) -> Result<(), Failure> {
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

fn beside(plan: &kernel::Plan, json: bool) -> Result<(), Failure> {
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

fn growth(runtimes: &[u16], flows: usize, json: bool) -> Result<(), Failure> {
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

fn bench(flows: usize, rounds: usize, json: bool) -> Result<(), Failure> {
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

fn controls(round_trips: usize, messages: usize, json: bool) -> Result<(), Failure> {
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

fn messages(messages: usize, rounds: usize, json: bool) -> Result<(), Failure> {
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

fn sealing(packets: usize, rounds: usize, json: bool) -> Result<(), Failure> {
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
