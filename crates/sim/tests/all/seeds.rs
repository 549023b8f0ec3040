//! Worlds by their seeds: some of each kind.

use holdfast_sim::{
    COMBINED_FROM as COMBINED, INSPECTED_FROM as INSPECTED, LIMITED_FROM as LIMITED,
    PUBLISHED_FROM as PUBLISHED,
};
use holdfast_sim::{Planted, Report, Scenario, presets, run};

/// Seeds from here on stand for worlds with `reinforce`.
const REINFORCE: u64 = 1_000_000;
/// Seeds from here on stand for worlds with a state server.
const SERVED: u64 = 10_000_000;
/// Seeds from here on stand for worlds whose flows have their home at a state server.
const PAGED: u64 = 20_000_000;
/// Seeds from here on stand for worlds with several state servers.
const DIVIDED: u64 = 30_000_000;

fn broken(report: &Report) -> String {
    let lines: Vec<String> = report
        .violations
        .iter()
        .map(|violation| format!("{}: {}", violation.invariant, violation.text))
        .collect();
    format!("seed {}: {}", report.seed, lines.join("; "))
}

/// Runtimes die and hang, frames are lost, doubled and reordered. Every connection lives,
/// and nothing that left is forgotten. Some worlds of each kind are played here; `make
/// sim` plays thousands.
#[test]
fn nothing_breaks_under_faults() {
    let (mut kills, mut coordinators, mut meanwhile, mut servers) = (0, 0, 0, 0);
    let from = |first: u64| first..first + 20;
    let families = [REINFORCE, SERVED, PAGED, DIVIDED, PUBLISHED, LIMITED, COMBINED, INSPECTED];
    for seed in (0..60).chain(families.into_iter().flat_map(from)) {
        let report = run(Scenario::of_seed(seed));
        assert!(report.violations.is_empty(), "{}", broken(&report));
        kills += report.faults.kills;
        coordinators += report.faults.coordinator_kills;
        meanwhile += report.faults.meanwhile;
        servers += report.faults.server_kills;
    }
    assert!(servers > 10, "the state server died only {servers} times");
    assert!(
        kills > 20 && coordinators > 20,
        "the worlds were too peaceful: {kills} kills, {coordinators} of the coordinator"
    );
    assert!(meanwhile > 4, "only {meanwhile} failures while the coordinator was away");
}

/// Without faults every connection finishes, under every protection.
#[test]
fn every_connection_finishes_in_peace() {
    for seed in 0..30 {
        for preset in presets() {
            let report = run(Scenario {
                seed,
                preset,
                planted: Planted::default(),
                quiet: true,
                tight: false,
                served: false,
                by_key: false,
                servers: 1,
                published: false,
                inspected: false,
                inserted: &[],
            });
            assert_eq!(report.finished, report.connections, "{preset:?}: {}", broken(&report));
            assert!(report.violations.is_empty(), "{preset:?}: {}", broken(&report));
        }
    }
}

#[test]
fn one_seed_gives_one_hash() {
    for seed in 0..10 {
        assert_eq!(run(Scenario::of_seed(seed)), run(Scenario::of_seed(seed)));
    }
    assert_ne!(run(Scenario::of_seed(0)).hash, run(Scenario::of_seed(1)).hash);
}
