//! `holdfast bench`: what can be measured, and how the rows of a measurement are printed.

mod machinery;
mod whole_box;

use super::functions::packets;
use super::{kernel, memory, replication};
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
    /// The cost of each function and of the papers' chains; of payload that is read; of
    /// a firewall's rules
    Functions {
        /// Flows, one or more numbers
        #[arg(long, value_delimiter = ',', default_values_t = [10_000, 1_000_000])]
        flows: Vec<usize>,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Only one of the three tables
        #[arg(long)]
        only: Option<Question>,
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
            Plan::Datapath { flows, rounds } => machinery::bench(flows, rounds, json),
            Plan::Box { protections, flows, rounds, seconds } => {
                whole_box::beside(&kernel::Plan { protections, flows, rounds, seconds }, json)
            }
            Plan::Memory { flows, limit, runtimes } => {
                whole_box::memory(&memory::Plan { flows, limit, runtimes }, json)
            }
            Plan::Growth { runtimes, flows } => machinery::growth(&runtimes, flows, json),
            Plan::Migration { flows, rounds } => machinery::migration(&flows, rounds, json),
            Plan::Questions { flows, rules, rate, rounds } => {
                whole_box::questions(flows, rules, rate, rounds, json)
            }
            Plan::Recovery { flows, rounds } => machinery::recovery(&flows, rounds, json),
            Plan::Replication { flows, rounds, rate } => {
                machinery::replication(flows, rounds, rate, json)
            }
            Plan::Takeover { kills, flows, rate } => machinery::takeover(kills, flows, rate, json),
            Plan::Tenants { flows, rate } => machinery::tenants(flows, rate, json),
            Plan::Failover { kills, flows, rate } => whole_box::failover(kills, flows, rate, json),
            Plan::Reinforce { flows, rounds, rate } => {
                machinery::reinforce(flows, rounds, rate, json)
            }
            Plan::Rescue(churning) => machinery::rescue(&churning, json),
            Plan::Leases(churning) => machinery::leases(&churning, json),
            Plan::Instances { instances, servers, flows, packets, rounds } => {
                machinery::instances(&instances, &servers, flows, packets, rounds, json)
            }
            Plan::Rate { seconds, every, connections } => {
                whole_box::rate(seconds, every, connections, json)
            }
            Plan::Local { flows, rounds } => machinery::local(flows, rounds, json),
            Plan::Controls { round_trips, messages } => {
                machinery::controls(round_trips, messages, json)
            }
            Plan::Messages { messages, rounds } => machinery::messages(messages, rounds, json),
            Plan::Functions { flows, rounds, only } => {
                let asks = |question| only.is_none_or(|only| only == question);
                if asks(Question::Packets) {
                    let time = Duration::from_millis(100);
                    machinery::packets(&packets::Plan { flows, time, rounds }, json)?;
                }
                if asks(Question::Payload) {
                    machinery::payload(rounds, json)?;
                }
                if asks(Question::Rules) {
                    machinery::new_flows(rounds, json)?;
                }
                Ok(())
            }
            Plan::Sealing { packets, rounds } => machinery::sealing(packets, rounds, json),
        }
    }
}

/// Prints one line of JSON per row, or a table.
/// A table of `bench functions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Question {
    /// The time per packet
    Packets,
    /// Bytes per second
    Payload,
    /// The time per new flow
    Rules,
}

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
