//! The command line: what can be asked for, and which part does it.
//!
//! Out: answers on standard output, as tables for people or, with `--json`, as JSON with a `version`; mistakes on standard error; one of the exit
//! codes of [`exit`]. Never: anything else on standard output.

mod apply;
mod asking;
pub(crate) mod bench;
mod certify;
mod check;
mod keygen;
mod moving;
mod reference;
mod simulate;

use crate::{demo, run};
use clap::{CommandFactory, Parser, Subcommand};
use holdfast_control::Target;
use holdfast_control::certify::Subject;
use holdfast_control::exit::{self, Failure};
use holdfast_control::remote::Endpoint;
use holdfast_control::tls::TlsPaths;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXIT_CODES: &str = "Exit codes: 0 well, 1 a negative answer, 2 wrong usage, 69 something needed is not there, 70 a fault of this \
                          program, 75 it took too long, 77 a privilege is missing, 78 the configuration is wrong. `holdfast explain CODE` says more.";

/// Chains of stateful network functions whose flows survive.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Arguments {
    /// Print JSON, with a `version`
    #[arg(long, global = true)]
    json: bool,
    /// The box that is meant: the path of its control socket, or `https://ADDRESS:PORT`; without it, the only one on this machine
    #[arg(long, global = true, value_name = "PATH|URL")]
    control: Option<String>,
    /// Your certificate for a control API: the directory that `holdfast certify` made, or three files
    #[arg(long, global = true, value_name = "DIR|CA,CERTIFICATE,KEY")]
    tls: Option<TlsPaths>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show connections surviving kill -9
    Demo(demo::DemoArgs),
    /// Check this machine, and a configuration file
    Check {
        /// The file; `-` is standard input
        file: Option<PathBuf>,
        /// Print the JSON Schema of configuration files
        #[arg(long)]
        schema: bool,
        /// Check the file only, for another machine
        #[arg(long, requires = "file")]
        no_host: bool,
        /// Look at a box that runs instead: are pools whole, and is no mapping two flows'?
        #[arg(long, conflicts_with_all = ["file", "schema", "no_host"])]
        live: bool,
        /// Seconds for which the box is looked at
        #[arg(long = "for", value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600), requires = "live")]
        seconds: u64,
    },
    /// Run a box until SIGTERM
    Run {
        /// The configuration file
        #[arg(required_unless_present = "join", conflicts_with = "join")]
        file: Option<PathBuf>,
        /// The directory that outlives the box; goes before the configuration's `state`
        #[arg(long, value_name = "DIRECTORY")]
        state_dir: Option<PathBuf>,
        /// Which of the configuration's `hosts` this one is
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
        /// Fetch the configuration, and the keys that it names, from the control API of a host that runs
        #[arg(long, value_name = "ADDRESS", requires_all = ["host", "tls"])]
        join: Option<Endpoint>,
    },
    /// Go by another configuration without stopping, all of it or nothing
    ///
    /// Applies the file's service-chain rules to the running box: flows that begin from now on take the chain that the new rules say, flows that
    /// there are keep theirs. Everything else in the file has to be as it is in the running box; what is not is listed, with its place, and
    /// nothing is changed then (exit code 78).
    Apply {
        /// The configuration file; `-` is standard input
        file: PathBuf,
        /// Only say what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Show processes, drops, failovers, and whether it is safe now
    Status,
    /// List flows
    Flows {
        /// Which, like `tcp from 10.0.0.0/24 to any port 80`, before or after NAT; all without it
        selector: Vec<String>,
        /// At most so many
        #[arg(long, default_value_t = 1000)]
        limit: u32,
    },
    /// Follow packets through the box
    Trace {
        /// Which, like `tcp from 10.0.0.0/24 to any port 80`; all without it
        selector: Vec<String>,
        /// How many packets
        #[arg(long, default_value_t = 10)]
        count: u32,
        /// How long to wait for them, seconds
        #[arg(long, default_value_t = 10)]
        wait: u64,
    },
    /// Move flows from one runtime to another; no packet is lost or reordered
    Migrate {
        /// The runtime that has them: a node id as in `holdfast status`
        #[arg(long, value_name = "RUNTIME")]
        from: u16,
        /// The runtime that is to have them; without it, all others by turns
        #[arg(long, value_name = "RUNTIME")]
        to: Option<u16>,
        /// At most so many
        #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
        flows: u64,
        /// Which, like `tcp from 10.0.0.0/24 to any port 80`, before or after NAT; all without it
        selector: Vec<String>,
    },
    /// Take a runtime, or all of a host, out of service: flows move, replicas are made elsewhere, and it ends
    Drain {
        /// A node id as in `holdfast status`, or a host's name
        what: String,
    },
    /// Bring a drained runtime, or those of a host, back into service
    Restore {
        /// A node id as in `holdfast status`, or a host's name
        what: String,
    },
    /// Explain a drop reason, a state, an exit code
    Explain {
        /// The word; all without it
        word: Vec<String>,
    },
    /// Run the deterministic simulator
    Sim {
        /// How many seeds
        #[arg(long, default_value_t = 100)]
        seeds: u64,
        /// The first
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Only this one
        #[arg(long)]
        seed: Option<u64>,
        /// Print every event of it
        #[arg(long, conflicts_with = "seeds")]
        trace: bool,
        /// If it breaks an invariant: make the failure small, and print it as a scenario. Of several seeds the first that fails is always shrunk
        #[arg(long, requires = "seed", conflicts_with_all = ["trace", "scenario"])]
        shrink: bool,
        /// Play what a file says instead of what a seed draws
        #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "seeds", "from"])]
        scenario: Option<PathBuf>,
    },
    /// Write a new key for `fabric: { key: FILE }` into a file that only its owner can read
    Keygen {
        /// The file; it must not be there yet
        file: PathBuf,
        /// Put the key behind those of a file that is there: accepted, and current once it is the first line everywhere
        #[arg(long)]
        add: bool,
    },
    /// Make certificates for the control API, and the authority that signs them
    ///
    /// Each name gets a directory with its certificate, its key and the authority's certificate, to be taken there; the first time the directory gets the
    /// authority too. Nothing is written over: whoever is added later is certified by the same authority.
    Certify {
        /// The directory of the authority
        directory: PathBuf,
        /// A host of the configuration, with the addresses at which it is asked (left=10.9.0.1,left.example); or operator:NAME, or viewer:NAME, who may only look
        #[arg(required = true, value_name = "NAME[=ADDRESS,…]")]
        subjects: Vec<Subject>,
        /// How long the certificates are good for
        #[arg(long, default_value_t = 825, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: u32,
    },
    /// Measure
    Bench {
        #[command(subcommand)]
        plan: Plan,
    },
    /// List network functions, or show the configuration of one
    Nf {
        /// The function
        name: Option<String>,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man {
        /// Write the pages of all commands into this directory
        #[arg(long)]
        directory: Option<PathBuf>,
    },
    /// The role of the manager; started by `run`
    #[command(hide = true)]
    Manager,
    /// The role of a runtime; started by `run`
    #[command(hide = true)]
    Runtime,
    /// The role of the coordinator; started by `run`
    #[command(hide = true)]
    Coordinator,
    /// The role of the state server; `run` starts it.
    #[command(hide = true)]
    StateServer,
}

#[derive(Debug, Subcommand)]
enum Plan {
    /// What the machinery costs per packet
    Datapath {
        /// Flows
        #[arg(long, default_value_t = 100_000)]
        flows: usize,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
    /// What it costs to move flows between runtimes under load
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
    /// What it costs that every packet's state is elsewhere before the packet leaves
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
        /// Flows of each
        #[arg(long, default_value_t = 1_000)]
        flows: usize,
    },
    /// What the remote standby of `reinforce` costs, by what that depends on
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
    /// What it costs that flows have their home at a state server, by how long they live; beside functions that keep nothing
    Rescue(bench::Churning),
    /// What it costs that a state server asks for ports of which it has heard nothing, by how soon it does
    Leases(bench::Churning),
    /// More and more NAT instances that share one pool of ports: throughput if each had a core, and answers that come back
    Instances {
        /// How many
        #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3, 4, 5, 6])]
        instances: Vec<u16>,
        /// State servers among which the flows are divided, in each of those cases; the last number is also that of all that are left
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
    /// What TCP transfers get while the instance that has the most of them is killed again and again, with the rest of the box (root)
    Rate {
        /// For how long, s, under each protection
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// An instance is killed as often, s
        #[arg(long, default_value_t = 10)]
        every: u64,
        /// Connections
        #[arg(long, default_value_t = 12)]
        connections: usize,
    },
    /// What it costs that a runtime has a local standby
    Local {
        /// Flows
        #[arg(long, default_value_t = 10_000)]
        flows: usize,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
    /// How long nothing leaves when a runtime's process is killed and its local standby goes on
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
    /// What one tenant's load does to another one's on the same processor
    Tenants {
        /// Flows of each
        #[arg(long, default_value_t = 1_000)]
        flows: usize,
        /// Packets per second of the first
        #[arg(long, default_value_t = 100_000)]
        rate: u64,
    },
    /// How long flows are not served when a runtime is killed and another one takes them over (root)
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
    /// A control message between a runtime and a state server on each of its ways: there and back, and how many go through
    Controls {
        /// Round trips
        #[arg(long, default_value_t = 50_000)]
        round_trips: usize,
        /// Messages one way
        #[arg(long, default_value_t = 2_000_000)]
        messages: usize,
    },
    /// What messages between processes cost, authenticated and not
    Messages {
        /// Messages per round
        #[arg(long, default_value_t = 200_000)]
        messages: usize,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
    /// What it costs that packets between hosts are sealed
    Sealing {
        /// Packets per round
        #[arg(long, default_value_t = 200_000)]
        packets: usize,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
}

/// Runs the command; its exit code is the process's.
pub fn main() -> ExitCode {
    let Arguments { json, control, tls, command } = Arguments::parse();
    if let Command::Demo(args) = command {
        return demo::run(&demo::DemoArgs { json: json || args.json, ..args });
    }
    match dispatch(command, json, &Target { control, tls }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                let _ = writeln!(std::io::stderr(), "holdfast: {failure}");
            }
            ExitCode::from(failure.code)
        }
    }
}

fn dispatch(command: Command, json: bool, target: &Target) -> Result<(), Failure> {
    match command {
        Command::Demo(_) => Ok(()),
        Command::Check { schema: true, .. } => print(&format!("{:#}\n", crate::config::schema())),
        Command::Check { live: true, seconds, .. } => check::live(target, Duration::from_secs(seconds), json),
        Command::Check { file, no_host, .. } => check::check(file.as_deref(), !no_host, json),
        Command::Apply { file, dry_run } => apply::apply(target, &file, dry_run, json),
        Command::Run { file, state_dir, host, join } => {
            run::main(run::Options { file, join, control: target.path()?, tls: target.tls.clone(), state: state_dir, host })
        }
        Command::Status => asking::status(target, json),
        Command::Flows { selector, limit } => asking::flows(target, &selector.join(" "), limit, json),
        Command::Trace { selector, count, wait } => {
            asking::trace(target, &selector.join(" "), count, Duration::from_secs(wait), json)
        }
        Command::Migrate { from, to, flows, selector } => moving::migrate(target, from, to, flows, &selector.join(" "), json),
        Command::Drain { what } => moving::drain(target, &what, json),
        Command::Restore { what } => moving::restore(target, &what, json),
        Command::Explain { word } => reference::explain(&word.join(" "), json),
        Command::Sim { scenario: Some(file), trace, .. } => simulate::play(&file, trace, json),
        Command::Sim { seed: Some(seed), shrink: true, .. } => simulate::shrink(seed, json),
        Command::Sim { seeds, from, seed, trace, .. } => simulate::simulate(seeds, from, seed, trace, json),
        Command::Keygen { file, add } => keygen::keygen(&file, add, json),
        Command::Certify { directory, subjects, days } => certify::certify(&directory, &subjects, days, json),
        Command::Bench { plan: Plan::Datapath { flows, rounds } } => bench::bench(flows, rounds, json),
        Command::Bench { plan: Plan::Growth { runtimes, flows } } => bench::growth(&runtimes, flows, json),
        Command::Bench { plan: Plan::Migration { flows, rounds } } => bench::migration(&flows, rounds, json),
        Command::Bench { plan: Plan::Recovery { flows, rounds } } => bench::recovery(&flows, rounds, json),
        Command::Bench { plan: Plan::Replication { flows, rounds, rate } } => bench::replication(flows, rounds, rate, json),
        Command::Bench { plan: Plan::Takeover { kills, flows, rate } } => bench::takeover(kills, flows, rate, json),
        Command::Bench { plan: Plan::Tenants { flows, rate } } => bench::tenants(flows, rate, json),
        Command::Bench { plan: Plan::Failover { kills, flows, rate } } => bench::failover(kills, flows, rate, json),
        Command::Bench { plan: Plan::Reinforce { flows, rounds, rate } } => bench::reinforce(flows, rounds, rate, json),
        Command::Bench { plan: Plan::Rescue(churning) } => bench::rescue(&churning, json),
        Command::Bench { plan: Plan::Leases(churning) } => bench::leases(&churning, json),
        Command::Bench { plan: Plan::Instances { instances, servers, flows, packets, rounds } } => {
            bench::instances(&instances, &servers, flows, packets, rounds, json)
        }
        Command::Bench { plan: Plan::Rate { seconds, every, connections } } => bench::rate(seconds, every, connections, json),
        Command::Bench { plan: Plan::Local { flows, rounds } } => bench::local(flows, rounds, json),
        Command::Bench { plan: Plan::Controls { round_trips, messages } } => bench::controls(round_trips, messages, json),
        Command::Bench { plan: Plan::Messages { messages, rounds } } => bench::messages(messages, rounds, json),
        Command::Bench { plan: Plan::Sealing { packets, rounds } } => bench::sealing(packets, rounds, json),
        Command::Nf { name } => reference::functions(name.as_deref(), json),
        Command::Completions { shell } => reference::completions(Arguments::command(), shell),
        Command::Man { directory } => reference::manual(Arguments::command(), directory.as_deref()),
        Command::Manager => run::manager_main(),
        Command::Runtime => run::runtime_main(),
        Command::Coordinator => run::coordinator_main(),
        Command::StateServer => run::state_server_main(),
    }
}

fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // A reader that has had enough (`| head`) is no failure.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(exit::UNAVAILABLE, format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn json_and_control_are_understood_before_and_after_the_command() {
        for line in
            ["holdfast --json --control /c status", "holdfast status --json --control /c", "holdfast --json status --control /c"]
        {
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            assert!(arguments.json && arguments.control.as_deref() == Some("/c"), "{line}");
        }
        for line in ["holdfast --json demo --quick", "holdfast demo --quick --json"] {
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            let Command::Demo(args) = arguments.command else { panic!("{line}") };
            assert!((arguments.json || args.json) && args.quick, "{line}");
        }
    }

    #[test]
    fn a_host_joins_with_a_name_and_a_certificate_and_without_a_file() {
        let parsed = |line: &str| Arguments::try_parse_from(line.split(' ')).map(|_| ()).map_err(|error| error.kind());
        use clap::error::ErrorKind::*;
        for (line, expected) in [
            ("holdfast run box.yaml", Ok(())),
            ("holdfast run box.yaml --host left --tls tls", Ok(())),
            ("holdfast run --host left --join 10.9.0.1 --tls tls", Ok(())),
            ("holdfast run --host left --join 10.9.0.1:99 --tls a,b,c", Ok(())),
            ("holdfast run", Err(MissingRequiredArgument)),
            ("holdfast run --join 10.9.0.1 --tls tls", Err(MissingRequiredArgument)),
            ("holdfast run --host left --join 10.9.0.1", Err(MissingRequiredArgument)),
            ("holdfast run box.yaml --host left --join 10.9.0.1 --tls tls", Err(ArgumentConflict)),
            ("holdfast run --host left --join 10.9.0.1:x --tls tls", Err(ValueValidation)),
            ("holdfast status --tls a,b", Err(ValueValidation)),
        ] {
            assert_eq!(parsed(line), expected, "{line}");
        }
    }

    #[test]
    fn a_selector_is_written_without_quotes() {
        let arguments = Arguments::try_parse_from("holdfast trace tcp from 10.0.0.0/24 --count 3".split(' ')).unwrap();
        let Command::Trace { selector, count: 3, .. } = arguments.command else { panic!("{arguments:?}") };
        assert_eq!(selector.join(" "), "tcp from 10.0.0.0/24");
    }
}
