//! `holdfast sim`: seeds through the deterministic simulator.

use super::print;
use crate::exit::{self, Failure};
use serde_json::json;

pub(super) fn simulate(seeds: u64, from: u64, seed: Option<u64>, trace: bool, json: bool) -> Result<(), Failure> {
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
                let (mut events, mut connections, mut undone, mut bad) = (0u64, 0usize, 0u64, Vec::<Report>::new());
                for seed in (from + worker..from + seeds).step_by(workers as usize) {
                    let report = holdfast_sim::run(Scenario::of_seed(seed));
                    faults.add(&report.faults);
                    events += report.events;
                    connections += report.connections;
                    undone = undone.max(report.undone);
                    if !report.violations.is_empty() {
                        bad.push(report);
                    }
                }
                (faults, events, connections, undone, bad)
            })
        })
        .collect();
    let mut faults = Faults::default();
    let (mut events, mut connections, mut undone, mut bad) = (0, 0, 0, Vec::new());
    for part in parts {
        let (some_faults, some_events, some_connections, some_undone, some_bad) =
            part.join().map_err(|_| Failure::new(exit::NEGATIVE, "the simulator panicked"))?;
        faults.add(&some_faults);
        events += some_events;
        connections += some_connections;
        undone = undone.max(some_undone);
        bad.extend(some_bad);
    }
    if json {
        let text = json!({ "version": 1, "seeds": seeds, "from": from, "events": events, "connections": connections, "undone": undone,
            "faults": { "kills": faults.kills, "pauses": faults.pauses, "coordinator_kills": faults.coordinator_kills, "switch_kills": faults.hub_kills, "meanwhile": faults.meanwhile, "moves": faults.moves, "moved": faults.moved, "drains": faults.drains, "lost": faults.lost, "doubled": faults.doubled, "reordered": faults.reordered },
            "violations": bad.iter().flat_map(|report| report.violations.iter().map(|violation| json!({ "seed": report.seed, "invariant": violation.invariant, "text": violation.text }))).collect::<Vec<_>>() });
        print(&format!("{text}\n"))?;
    } else {
        print(&format!(
            "{seeds} seeds from {from}: {events} events, {connections} connections\nfaults: {} kills, {} pauses, {} of them without a coordinator, which was killed {} times; the switch was killed {} times; {} frames lost, {} doubled, {} reordered\nmeanwhile: {} orders to move flows ({} moved), {} drains\nunder `nfactor` a failure undid at most {undone} packets of a flow\n",
            faults.kills,
            faults.pauses,
            faults.meanwhile,
            faults.coordinator_kills,
            faults.hub_kills,
            faults.lost,
            faults.doubled,
            faults.reordered,
            faults.moves,
            faults.moved,
            faults.drains
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
