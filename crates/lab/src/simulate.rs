//! `holdfast sim`: seeds and scenarios through the deterministic simulator.

use holdfast_control::exit::{self, Failure};
use holdfast_control::table::print;
use holdfast_sim::{Faults, Random, Report, Scenario, Script};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Run the deterministic simulator
#[derive(Debug, Clone, clap::Args)]
pub struct SimArgs {
    /// Number of seeds to play
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Play only this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Print every event of the seed or scenario
    #[arg(long, conflicts_with = "seeds")]
    trace: bool,
    /// If the seed breaks an invariant, shrink the failure and print it as a scenario. If
    /// several seeds are played, the first that fails is always shrunk
    #[arg(long, requires = "seed", conflicts_with_all = ["trace", "scenario"])]
    shrink: bool,
    /// Play the scenarios of a file instead of seeds
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "seeds", "from"])]
    scenario: Option<PathBuf>,
}

impl SimArgs {
    /// Plays the seeds or scenarios and prints the result.
    ///
    /// # Errors
    /// The message for the user, and the exit code.
    pub fn run(self, json: bool) -> Result<(), Failure> {
        match self {
            SimArgs { scenario: Some(file), trace, .. } => play(&file, trace, json),
            SimArgs { seed: Some(seed), shrink: true, .. } => shrink(seed, json),
            SimArgs { seeds, from, seed, trace, .. } => simulate(seeds, from, seed, trace, json),
        }
    }
}

/// Sums over many worlds.
#[derive(Default)]
struct Sum {
    faults: Faults,
    events: u64,
    /// Sum of the worlds' hashes, independent of their order: equal for two builds that
    /// do the same in every world.
    hash: u64,
    connections: usize,
    undone: u64,
    bad: Vec<Report>,
}

impl Sum {
    fn add(&mut self, report: Report) {
        self.faults.add(&report.faults);
        self.events += report.events;
        self.hash = self.hash.wrapping_add(mixed(report.seed, report.hash));
        self.connections += report.connections;
        self.undone = self.undone.max(report.undone);
        if !report.violations.is_empty() {
            self.bad.push(report);
        }
    }

    fn join(&mut self, other: Sum) {
        self.faults.add(&other.faults);
        self.events += other.events;
        self.hash = self.hash.wrapping_add(other.hash);
        self.connections += other.connections;
        self.undone = self.undone.max(other.undone);
        self.bad.extend(other.bad);
    }
}

/// A world's term in the sum of hashes. The seed is mixed in, so that two worlds with
/// exchanged hashes give another sum.
fn mixed(seed: u64, hash: u64) -> u64 {
    Random::new(hash ^ Random::new(seed).draw()).draw()
}

/// Counts of the faults, by name, in the order of the output.
fn counts(faults: &Faults) -> [(&'static str, u64); 26] {
    [
        ("kills", faults.kills),
        ("pauses", faults.pauses),
        ("cuts", faults.cuts),
        ("cut_off", faults.cut_off),
        ("slowed", faults.slowed),
        ("starved", faults.starved),
        ("skewed", faults.skewed),
        ("coordinator_kills", faults.coordinator_kills),
        ("server_kills", faults.server_kills),
        ("switch_kills", faults.hub_kills),
        ("host_kills", faults.host_kills),
        ("host_stops", faults.host_stops),
        ("terms", faults.terms),
        ("meanwhile", faults.meanwhile),
        ("lost", faults.lost),
        ("doubled", faults.doubled),
        ("reordered", faults.reordered),
        ("incomplete", faults.incomplete),
        ("stale", faults.stale),
        ("forged", faults.forged),
        ("damaged", faults.damaged),
        ("overflowed", faults.overflowed),
        ("moves", faults.moves),
        ("moved", faults.moved),
        ("fetched", faults.fetched),
        ("drains", faults.drains),
    ]
}

fn violations(report: &Report) -> Vec<Value> {
    let line = |violation: &holdfast_sim::Violation| json!({ "seed": report.seed, "invariant": violation.invariant, "text": violation.text });
    report.violations.iter().map(line).collect()
}

fn simulate(
    seeds: u64,
    from: u64,
    seed: Option<u64>,
    trace: bool,
    json: bool,
) -> Result<(), Failure> {
    let (from, seeds) = seed.map_or((from, seeds), |seed| (seed, 1));
    if trace {
        let report = holdfast_sim::run_traced(Scenario::of_seed(from));
        print(&format!(
            "hash {:016x}, {} events, {:?}\n",
            report.hash, report.events, report.faults
        ))?;
        return conclude(&[report], json);
    }
    let workers = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(seeds.max(1) as usize) as u64;
    let parts: Vec<_> = (0..workers)
        .map(|worker| {
            std::thread::spawn(move || {
                let mut sum = Sum::default();
                for seed in (from + worker..from + seeds).step_by(workers as usize) {
                    let play = || holdfast_sim::run(Scenario::of_seed(seed));
                    sum.add(std::panic::catch_unwind(play).map_err(|_| seed)?);
                }
                Ok(sum)
            })
        })
        .collect();
    let mut sum = Sum::default();
    for part in parts {
        let part: Result<Sum, u64> =
            part.join().map_err(|_| Failure::new(exit::NEGATIVE, "the simulator panicked"))?;
        let panicked =
            |seed| format!("seed {seed} panicked; `holdfast sim --seed {seed} --trace` shows it");
        sum.join(part.map_err(|seed| Failure::new(exit::NEGATIVE, panicked(seed)))?);
    }
    sum.bad.sort_by_key(|report| report.seed);
    let Sum { faults, events, hash, connections, undone, bad } = sum;
    if json {
        let faults: serde_json::Map<String, Value> = counts(&faults)
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect();
        let text = json!({ "version": 1, "seeds": seeds, "from": from, "events": events, "hash": format!("{hash:016x}"), "connections": connections, "undone": undone,
            "faults": faults, "violations": bad.iter().flat_map(violations).collect::<Vec<_>>() });
        print(&format!("{text}\n"))?;
    } else {
        let Faults {
            kills,
            pauses,
            cuts,
            cut_off,
            slowed,
            skewed,
            coordinator_kills,
            server_kills,
            hub_kills,
            meanwhile,
            ..
        } = faults;
        let Faults { host_kills, host_stops, terms, incomplete, .. } = faults;
        let Faults {
            lost,
            doubled,
            reordered,
            stale,
            forged,
            damaged,
            overflowed,
            moves,
            moved,
            fetched,
            drains,
            ..
        } = faults;
        print(&format!(
            "{seeds} seeds from {from}: {events} events, {connections} connections; hash {hash:016x}\n\
             faults: {kills} kills, {pauses} pauses, {cuts} cuts ({cut_off} frames did not get through), {meanwhile} of them without a coordinator, \
             which was killed {coordinator_kills} times; the switch was killed {hub_kills} times, the state server {server_kills} times; {slowed} times a process was slow; \
             in {skewed} worlds clocks differed\n\
             hosts: {host_kills} killed, {host_stops} stopped; {terms} times one began to serve\n\
             frames: {lost} lost, {doubled} doubled, {reordered} reordered, {incomplete} datagrams without one of their fragments, {stale} came again long after, {forged} forged and {damaged} damaged between hosts, {overflowed} found a full ring\n\
             meanwhile: {moves} orders to move flows ({moved} moved), {drains} drains, {fetched} states of flows fetched from the state server\n\
             where packets leave at once a failure undid at most {undone} packets of a flow\n"
        ))?;
    }
    let result = conclude(&bad, json);
    if let Some(first) = bad.first().filter(|_| !json) {
        print_shrunk(first.seed)?;
    }
    result
}

fn conclude(reports: &[Report], json: bool) -> Result<(), Failure> {
    let broken: usize = reports.iter().map(|report| report.violations.len()).sum();
    if !json {
        print(&format!("violations: {broken}\n"))?;
        for report in reports {
            for violation in &report.violations {
                print(&format!(
                    "  seed {}: {}: {}\n",
                    report.seed, violation.invariant, violation.text
                ))?;
            }
        }
    }
    if broken == 0 {
        Ok(())
    } else {
        Err(Failure::new(
            exit::NEGATIVE,
            format!("{broken} violations; `holdfast sim --seed N --trace` shows one"),
        ))
    }
}

/// Prints the smallest scenario that breaks what the seed breaks, if a plan can do that.
/// True if the seed breaks anything.
fn print_shrunk(seed: u64) -> Result<bool, Failure> {
    let Some(script) = holdfast_sim::shrink(Scenario::of_seed(seed)) else { return Ok(false) };
    print(&format!("# seed {seed}, shrunk; `holdfast sim --scenario FILE` plays it\n{script}"))?;
    Ok(true)
}

fn shrink(seed: u64, json: bool) -> Result<(), Failure> {
    if json {
        let script = holdfast_sim::shrink(Scenario::of_seed(seed)).map(|script| script.to_string());
        print(&format!("{}\n", json!({ "version": 1, "seed": seed, "scenario": script })))?;
        return if script.is_none() {
            Ok(())
        } else {
            Err(Failure::new(exit::NEGATIVE, format!("seed {seed} breaks an invariant")))
        };
    }
    match print_shrunk(seed)? {
        true => Err(Failure::new(exit::NEGATIVE, format!("seed {seed} breaks an invariant"))),
        false => {
            print(&format!("seed {seed} breaks nothing, or not again when it is done by plan\n"))
        }
    }
}

fn play(file: &Path, trace: bool, json: bool) -> Result<(), Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(exit::USAGE, format!("{}: {error}", file.display())))?;
    let scripts = Script::read(&text)
        .map_err(|error| Failure::new(exit::USAGE, format!("{}: {error}", file.display())))?;
    let mut results = Vec::new();
    for script in &scripts {
        let (outcome, wrong) = script.play(trace);
        if !json {
            let name =
                if script.name.is_empty() { String::new() } else { format!("{}: ", script.name) };
            let Report { events, connections, finished, .. } = outcome.report;
            print(&format!(
                "{name}{events} events, {} steps taken, {finished} of {connections} connections finished\n",
                outcome.steps
            ))?;
            for line in &wrong {
                print(&format!("  {line}\n"))?;
            }
        }
        results.push((&script.name, outcome, wrong));
    }
    if json {
        let world = |(name, outcome, wrong): &(&String, holdfast_sim::Outcome, Vec<String>)| {
            json!({ "name": name, "events": outcome.report.events, "steps": outcome.steps,
            "connections": outcome.report.connections, "finished": outcome.report.finished, "wrong": wrong })
        };
        print(&format!(
            "{}\n",
            json!({ "version": 1, "worlds": results.iter().map(world).collect::<Vec<_>>() })
        ))?;
    }
    match results.iter().all(|(.., wrong)| wrong.is_empty()) {
        true => Ok(()),
        false => Err(Failure::new(
            exit::NEGATIVE,
            format!("{}: not as expected; `--trace` shows every event", file.display()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(seeds: &[u64]) -> Sum {
        let mut sum = Sum::default();
        seeds.iter().for_each(|&seed| sum.add(holdfast_sim::run(Scenario::of_seed(seed))));
        sum
    }

    #[test]
    fn the_hash_of_many_worlds_does_not_know_their_order() {
        let (mut first, second) = (sum(&[1, 2]), sum(&[3]));
        let hash = sum(&[3, 2, 1]).hash;
        first.join(second);
        assert_eq!(first.hash, hash);
        assert_ne!(hash, sum(&[1, 2]).hash);
        // Two worlds with exchanged hashes give another sum.
        assert_ne!(mixed(1, 5).wrapping_add(mixed(2, 6)), mixed(1, 6).wrapping_add(mixed(2, 5)));
    }
}
