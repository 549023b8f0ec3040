//! Worlds by the hundred, and the checkers checked.

use holdfast_sim::{Planted, Preset, Report, Scenario, run};

/// Seeds from here on stand for worlds with `reinforce`.
const REINFORCE: u64 = 1_000_000;
/// Seeds from here on stand for worlds with a state server.
const SERVED: u64 = 10_000_000;
/// Seeds from here on stand for worlds whose flows have their home at a state server.
const PAGED: u64 = 20_000_000;
/// Seeds from here on stand for the same with several of them.
const DIVIDED: u64 = 30_000_000;

fn broken(report: &Report) -> String {
    let lines: Vec<String> =
        report.violations.iter().map(|violation| format!("{}: {}", violation.invariant, violation.text)).collect();
    format!("seed {}: {}", report.seed, lines.join("; "))
}

/// Runtimes die and hang, frames are lost, doubled and reordered; every connection lives and nothing that left is forgotten. Some worlds of each kind: `make sim` plays thousands.
#[test]
fn nothing_breaks_under_faults() {
    let (mut kills, mut coordinators, mut meanwhile, mut servers) = (0, 0, 0, 0);
    let from = |first: u64| first..first + 20;
    for seed in (0..60).chain([REINFORCE, SERVED, PAGED, DIVIDED].into_iter().flat_map(from)) {
        let report = run(Scenario::of_seed(seed));
        assert!(report.violations.is_empty(), "{}", broken(&report));
        kills += report.faults.kills;
        coordinators += report.faults.coordinator_kills;
        meanwhile += report.faults.meanwhile;
        servers += report.faults.server_kills;
    }
    assert!(servers > 10, "the state server died only {servers} times");
    assert!(kills > 20 && coordinators > 20, "the worlds were too peaceful: {kills} kills, {coordinators} of the coordinator");
    assert!(meanwhile > 4, "only {meanwhile} failures while the coordinator was away");
}

/// Without faults every connection finishes, under every protection.
#[test]
fn every_connection_finishes_in_peace() {
    for seed in 0..30 {
        for preset in Preset::ALL {
            let report = run(Scenario {
                seed,
                preset,
                planted: Planted::default(),
                quiet: true,
                tight: false,
                served: false,
                by_key: false,
                servers: 1,
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

fn finds(planted: Planted) -> Report {
    finds_from(0, planted)
}

fn finds_from(first: u64, planted: Planted) -> Report {
    let mut reports = (first..first + 1000).map(|seed| run(Scenario { planted, ..Scenario::of_seed(seed) }));
    let found = reports.find(|report| !report.violations.is_empty());
    found.unwrap_or_else(|| panic!("{planted:?} was not noticed in 1000 seeds"))
}

/// Where a state server assigns the numbers: one that begins again gives live flows' numbers to others, or what it has not heard of for long is free.
#[test]
fn a_server_that_errs_is_noticed() {
    for planted in
        [Planted { server_forgets: true, ..Planted::default() }, Planted { server_expires_live: true, ..Planted::default() }]
    {
        let report = finds_from(SERVED, planted);
        assert_eq!(report.violations[0].invariant, "leases", "{planted:?}: {}", broken(&report));
    }
}

/// What a dead runtime had of the balancer's gauge is counted for ever.
#[test]
fn a_gauge_that_keeps_what_the_dead_had_is_noticed() {
    let report = finds_from(SERVED, Planted { server_keeps_the_dead: true, ..Planted::default() });
    assert_eq!(report.violations[0].invariant, "statistics", "{}", broken(&report));
}

/// Where flows have their home at a state server, and a few their state in memory: what goes from there is there as it is.
#[test]
fn a_state_that_goes_too_soon_is_noticed() {
    let planted = Planted { evicts_unsaved: true, ..Planted::default() };
    let report = finds_from(PAGED, planted);
    assert_eq!(report.violations[0].invariant, "output commit", "{}", broken(&report));
}

/// Under a weak protection too much is forgotten.
fn finds_loss(planted: Planted) {
    let mut reports = (0..1000).map(|seed| run(Scenario { planted, preset: Preset::NfActor, ..Scenario::of_seed(seed) }));
    let report = reports.find(|report| !report.violations.is_empty());
    let report = report.unwrap_or_else(|| panic!("{planted:?} was not noticed in 1000 seeds"));
    assert!(report.violations.iter().any(|violation| violation.invariant == "bounded loss"), "{}", broken(&report));
}

#[test]
fn snapshots_that_stay_away_are_noticed() {
    finds_loss(Planted { ignore_interval: true, ..Planted::default() });
}

#[test]
fn a_recovery_that_is_called_over_too_soon_is_noticed() {
    finds_loss(Planted { report_early: true, ..Planted::default() });
}

#[test]
fn a_release_before_the_commit_is_noticed() {
    finds(Planted { release_before_commit: true, ..Planted::default() });
}

/// Where packets are processed again instead of states being sent.
fn finds_in_replay(planted: Planted) {
    let mut reports = (REINFORCE..REINFORCE + 1000).map(|seed| run(Scenario { planted, ..Scenario::of_seed(seed) }));
    let report = reports.find(|report| !report.violations.is_empty());
    assert!(report.is_some(), "{planted:?} was not noticed in 1000 seeds");
}

#[test]
fn a_release_before_the_inputs_are_known_is_noticed() {
    finds_in_replay(Planted { release_before_commit: true, ..Planted::default() });
}

#[test]
fn packets_processed_again_in_another_order_are_noticed() {
    finds_in_replay(Planted { replays_backwards: true, ..Planted::default() });
}

#[test]
fn what_could_come_out_differently_and_is_not_sent_is_noticed() {
    finds_in_replay(Planted { misses_nondeterminism: true, ..Planted::default() });
}

#[test]
fn missing_epoch_checks_are_noticed() {
    finds(Planted { no_epoch_check: true, ..Planted::default() });
}

/// Copies are damaged now and then, where no packet looks: their owners ask about them, and find it.
#[test]
fn a_damaged_copy_is_noticed() {
    let planted = Planted { corrupts_copies: true, ..Planted::default() };
    let mut reports = (0..200).map(|seed| run(Scenario { planted, quiet: true, ..Scenario::of_seed(seed) }));
    let is_found = |report: &Report| {
        report.violations.iter().any(|violation| violation.invariant == "copies" && violation.text.contains("were found"))
    };
    assert!(reports.any(|report| is_found(&report)), "damaged copies were not noticed in 200 seeds");
}

#[test]
fn a_flow_that_changes_its_chain_is_noticed() {
    finds(Planted { reclassify: true, ..Planted::default() });
}

#[test]
fn a_port_given_twice_is_noticed() {
    finds(Planted { reuse_live_port: true, ..Planted::default() });
}

#[test]
fn a_coordinator_that_speaks_before_it_writes_is_noticed() {
    finds(Planted { speaks_before_writing: true, ..Planted::default() });
}
