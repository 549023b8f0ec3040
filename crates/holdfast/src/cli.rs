//! The command line.

use crate::bench::datapath;
use crate::control::{self, Request};
use crate::exit::{self, Failure};
use crate::{config, demo, explain, run};
use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Chains of stateful network functions whose flows survive.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Args)]
struct Asking {
    /// The control socket; without it, that of the only box on this machine
    #[arg(long)]
    control: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Asking {
    fn ask(&self, request: Request) -> Result<Value, Failure> {
        let path = match &self.control {
            Some(path) => path.clone(),
            None => control::find()?,
        };
        control::ask(&path, request)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show connections surviving kill -9
    Demo(demo::DemoArgs),
    /// Check a configuration file
    Check {
        /// The file
        file: Option<PathBuf>,
        /// Print the JSON Schema of configuration files
        #[arg(long)]
        schema: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a box until SIGTERM
    Run {
        /// The configuration file
        file: PathBuf,
        /// Where to make the control socket
        #[arg(long)]
        control: Option<PathBuf>,
    },
    /// Show processes, drops, failovers, and whether it is safe now
    Status {
        #[command(flatten)]
        asking: Asking,
    },
    /// List flows
    Flows {
        #[command(flatten)]
        asking: Asking,
        /// At most so many per runtime
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
        #[command(flatten)]
        asking: Asking,
    },
    /// Explain a word of the output
    Explain {
        /// The word; all without it
        word: Option<String>,
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
        #[arg(long, requires = "seed")]
        trace: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Measure
    Bench {
        #[command(subcommand)]
        plan: Plan,
    },
    /// The role of a runtime; started by `run`
    #[command(hide = true)]
    Runtime,
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
        /// Print JSON lines
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command; its exit code is the process's.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Command::Demo(args) = &arguments.command {
        return demo::run(args);
    }
    match dispatch(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "holdfast: {failure}");
            ExitCode::from(failure.code)
        }
    }
}

fn print(text: &str) -> Result<(), Failure> {
    // A reader that has had enough (`| head`) is no failure.
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(exit::UNAVAILABLE, format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Demo(_) => Ok(()),
        Command::Check { file, schema, json } => check(file.as_deref(), schema, json),
        Command::Run { file, control } => run::main(&file, control.as_deref()),
        Command::Status { asking } => {
            let status = asking.ask(Request::Status)?;
            if asking.json { print(&format!("{status}\n")) } else { print(&status_text(&status)) }
        }
        Command::Flows { asking, limit } => {
            let flows = asking.ask(Request::Flows { limit })?;
            if asking.json { print(&format!("{flows}\n")) } else { print(&flows_text(&flows)) }
        }
        Command::Trace { selector, count, wait, asking } => trace(&selector.join(" "), count, Duration::from_secs(wait), &asking),
        Command::Explain { word: Some(word) } => print(&format!("{}\n", explain::explain(&word)?)),
        Command::Explain { word: None } => print(&table(
            &["word", "meaning"],
            &explain::all().iter().map(|(word, text)| vec![(*word).to_owned(), (*text).to_owned()]).collect::<Vec<_>>(),
        )),
        Command::Sim { seeds, from, seed, trace, json } => simulate(seeds, from, seed, trace, json),
        Command::Bench { plan: Plan::Datapath { flows, rounds, json } } => bench(flows, rounds, json),
        Command::Runtime => run::runtime_main(),
    }
}

fn check(file: Option<&Path>, schema: bool, json: bool) -> Result<(), Failure> {
    if schema {
        return print(&format!("{:#}\n", config::schema()));
    }
    let Some(file) = file else {
        return Err(Failure::new(2, "name a configuration file, or ask for --schema"));
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(exit::CONFIGURATION, format!("{}: {error}", file.display())))?;
    match config::read(&file.display().to_string(), &text) {
        Ok(checked) if json => print(&format!(
            "{}\n",
            json!({ "version": 1, "ok": true, "chains": checked.config.chains.len(), "runtimes": checked.runtimes })
        )),
        Ok(checked) => print(&format!(
            "{}: {} chains, {} runtimes: all right\n",
            file.display(),
            checked.config.chains.len(),
            checked.runtimes
        )),
        Err(mistake) if json => {
            print(&format!(
                "{}\n",
                json!({ "version": 1, "ok": false, "line": mistake.line, "column": mistake.column, "message": mistake.message })
            ))?;
            Err(Failure::new(exit::CONFIGURATION, mistake.to_string()))
        }
        Err(mistake) => Err(Failure::new(exit::CONFIGURATION, mistake.to_string())),
    }
}

/// A table for people: columns as wide as their widest word.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|word| word.chars().count()).collect();
    for row in rows {
        for (width, word) in widths.iter_mut().zip(row) {
            *width = (*width).max(word.chars().count());
        }
    }
    let line = |words: &[String]| {
        let padded: Vec<String> = words.iter().zip(&widths).map(|(word, width)| format!("{word:width$}")).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&head.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    for row in rows {
        text += &line(row);
    }
    text
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

fn rows(list: &Value, fields: &[&str]) -> Vec<Vec<String>> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| fields.iter().map(|field| word(&item[*field])).collect()).collect()
}

fn status_text(status: &Value) -> String {
    let fields = ["role", "id", "incarnation", "pid", "state", "flows", "packets"];
    let mut text = format!("protected: {}\n\n", word(&status["protected"]));
    text += &table(&fields, &rows(&status["processes"], &fields));
    let drops: Vec<Vec<String>> = status["drops"]
        .as_object()
        .map(|drops| drops.iter().map(|(reason, count)| vec![reason.clone(), word(count)]).collect())
        .unwrap_or_default();
    if !drops.is_empty() {
        text += "\n";
        text += &table(&["dropped", "packets"], &drops);
    }
    let fields = ["runtime", "incarnation", "cause", "detection_us", "recovered_us", "flows"];
    let failovers = rows(&status["failovers"], &fields);
    if !failovers.is_empty() {
        text += "\n";
        text += &table(&["failed", "incarnation", "cause", "detection_us", "recovered_us", "flows"], &failovers);
    }
    text
}

fn flows_text(flows: &Value) -> String {
    let fields = [
        "protocol",
        "source",
        "destination",
        "translated_source",
        "translated_destination",
        "state",
        "owner",
        "replica",
        "age_ms",
        "packets",
        "bytes",
    ];
    table(&fields, &rows(&flows["flows"], &fields))
}

fn trace(selector: &str, count: u32, patience: Duration, asking: &Asking) -> Result<(), Failure> {
    // What an earlier trace left is not this one's.
    asking.ask(Request::Traces)?;
    asking.ask(Request::Trace { selector: selector.to_owned(), count })?;
    let started = Instant::now();
    let mut seen = std::collections::BTreeSet::new();
    let mut quiet = 0;
    while started.elapsed() < patience && (seen.len() < count as usize || quiet < 3) {
        std::thread::sleep(Duration::from_millis(100));
        let answer = asking.ask(Request::Traces)?;
        let steps = answer["steps"].as_array().cloned().unwrap_or_default();
        quiet = if steps.is_empty() { quiet + 1 } else { 0 };
        for step in steps {
            seen.insert(step["packet"].as_u64());
            if asking.json {
                print(&format!("{step}\n"))?;
            } else {
                print(&format!("packet {}  node {}  {}\n", word(&step["packet"]), word(&step["node"]), word(&step["text"])))?;
            }
        }
    }
    if seen.is_empty() {
        return Err(Failure::new(exit::TIMEOUT, "no packet matched in time"));
    }
    Ok(())
}

fn simulate(seeds: u64, from: u64, seed: Option<u64>, trace: bool, json: bool) -> Result<(), Failure> {
    use holdfast_sim::{Faults, Report, Scenario};
    let (from, seeds) = seed.map_or((from, seeds), |seed| (seed, 1));
    if trace {
        let report = holdfast_sim::run_traced(Scenario::of_seed(from));
        print(&format!("hash {:016x}, {} events, {:?}\n", report.hash, report.events, report.faults))?;
        return conclude(&[report], json);
    }
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(seeds.max(1) as usize) as u64;
    let parts: Vec<_> = (0..workers)
        .map(|worker| {
            std::thread::spawn(move || {
                let mut faults = Faults::default();
                let (mut events, mut connections, mut bad) = (0u64, 0usize, Vec::<Report>::new());
                for seed in (from + worker..from + seeds).step_by(workers as usize) {
                    let report = holdfast_sim::run(Scenario::of_seed(seed));
                    faults.add(&report.faults);
                    events += report.events;
                    connections += report.connections;
                    if !report.violations.is_empty() {
                        bad.push(report);
                    }
                }
                (faults, events, connections, bad)
            })
        })
        .collect();
    let mut faults = Faults::default();
    let (mut events, mut connections, mut bad) = (0, 0, Vec::new());
    for part in parts {
        let (some_faults, some_events, some_connections, some_bad) =
            part.join().map_err(|_| Failure::new(exit::NEGATIVE, "the simulator panicked"))?;
        faults.add(&some_faults);
        events += some_events;
        connections += some_connections;
        bad.extend(some_bad);
    }
    if json {
        let text = json!({ "version": 1, "seeds": seeds, "from": from, "events": events, "connections": connections,
            "faults": { "kills": faults.kills, "pauses": faults.pauses, "lost": faults.lost, "doubled": faults.doubled, "reordered": faults.reordered },
            "violations": bad.iter().flat_map(|report| report.violations.iter().map(|violation| json!({ "seed": report.seed, "invariant": violation.invariant, "text": violation.text }))).collect::<Vec<_>>() });
        print(&format!("{text}\n"))?;
    } else {
        print(&format!(
            "{seeds} seeds from {from}: {events} events, {connections} connections\nfaults: {} kills, {} pauses, {} frames lost, {} doubled, {} reordered\n",
            faults.kills, faults.pauses, faults.lost, faults.doubled, faults.reordered
        ))?;
    }
    conclude(&bad, json)
}

fn conclude(reports: &[holdfast_sim::Report], json: bool) -> Result<(), Failure> {
    let broken: usize = reports.iter().map(|report| report.violations.len()).sum();
    if !json {
        print(&format!("violations: {broken}\n"))?;
        for report in reports {
            for violation in &report.violations {
                print(&format!("  seed {}: {}: {}\n", report.seed, violation.invariant, violation.text))?;
            }
        }
    }
    if broken == 0 {
        Ok(())
    } else {
        Err(Failure::new(exit::NEGATIVE, format!("{broken} violations; `holdfast sim --seed N --trace` shows one")))
    }
}

fn bench(flows: usize, rounds: usize, json: bool) -> Result<(), Failure> {
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
    print(&table(&["case", "flows", "ns/packet", "ratio to bare", "Mpps", "allocations/packet", "bytes/flow"], &lines))
}
