//! Requirements that every protection has to keep: one test per requirement and
//! protection, `requirement/protection`.
//!
//! Rows are made from every combination of a plan's answers that go together. A
//! protection becomes a row by its line in the table of answers. The row that promises
//! nothing (`none`) is held to the requirements that do not depend on a promise. For the
//! others it shows that the check can fail: the same faults must be seen to lose
//! something under `none`.
//!
//! A failure is tried after every few events of a run. `HOLDFAST_SHARE=K/N` tries every
//! N-th of these failures, beginning with the K-th, so that N runs with K = 0 … N-1 try
//! all of them. Without the variable a third is tried; `0/1` tries all.

#[path = "conformance/chains.rs"]
mod chains;
#[path = "conformance/full.rs"]
mod full;
#[path = "conformance/mix.rs"]
mod mix;
#[path = "conformance/pair.rs"]
mod pair;
#[path = "conformance/records.rs"]
mod records;
#[path = "conformance/refused.rs"]
mod refused;
#[path = "../../../tests/src/seconds.rs"]
mod seconds;
#[path = "conformance/server.rs"]
mod server;
#[path = "conformance/sweep.rs"]
mod sweep;
#[path = "conformance/together.rs"]
mod together;
#[path = "conformance/verdicts.rs"]
mod verdicts;

use holdfast_protection::plan::{Rebuild, Shared};
use holdfast_sim::{
    Connection, Fault, How, Plan, Planted, Preset, Scenario, Step, Violation, When, Whom,
    in_worlds, play,
};
use holdfast_wire::DropReason;
use libtest_mimic::{Arguments, Failed};
use mix::{Mix, SEVERAL, SHARE};
use proptest::prelude::*;
use std::process::ExitCode;
use sweep::{
    MICROSECOND, MILLISECOND, READY, by_flow, check_basics, check_finished, few_connections, harms,
    lines, require, runner, scenario, sweep,
};

type Check<T> = fn(T) -> Result<(), String>;

/// Requirements that are shown by worlds.
const REQUIREMENTS: &[(&str, Check<Mix>)] = &[
    ("transparent", transparent),
    ("output_commit", output_commit),
    ("single_owner", single_owner),
    ("local_standby", local_standby),
    ("no_buffer_lost", no_buffer_lost),
    ("full_table", full::full_table),
    ("full_of_replicas", full::full_of_replicas),
    ("flood", full::flood),
    ("counted_together", together::counted),
    ("settled_is_safe", settled_is_safe),
    ("bounded_loss", bounded_loss),
    ("several_switches", several_switches),
    ("refused_once", refused::refused_once),
    ("both_ends_are_reset", refused::both_ends_are_reset),
    ("verdicts", verdicts::verdicts),
    ("papers_chains", chains::papers_chains),
];

/// Requirements for rows with a state server.
const OF_SERVER: &[(&str, Check<Mix>)] = &[("server_dies", server::server_dies)];

/// Requirements that are shown by two runtimes' halves of a protection alone: their
/// records do not depend on what flows share.
const OF_RECORDS: &[(&str, Check<Preset>)] = &[
    ("records_are_checked", records::are_checked),
    ("records_from_strangers", records::from_strangers),
    ("refusals_are_told", records::refusals_are_told),
    ("strays_hold_up_nobody", records::strays_hold_up_nobody),
    ("records_of_an_announced_flow", records::of_an_announced_flow),
    ("records_in_any_state", records::in_any_state),
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    // A plan does not tell `memory` from `partitioned`: the functions' pools decide who
    // has which part.
    let differing =
        || Preset::combinations().filter(|plan| plan.shared != Shared::Memory).map(in_worlds);
    let mix = |preset: Preset, servers| Mix {
        preset,
        served: preset.shared == Shared::StateServer,
        servers,
    };
    let with_one = || differing().map(move |preset| mix(preset, 1));
    let with_several = move |served| {
        differing()
            .filter(|preset| preset.is_paged())
            .map(move |preset| mix(preset, SEVERAL))
            .filter(move |mix| mix.served == served)
    };
    let mixes = || with_one().chain(with_several(false));
    let trial = |requirement: &str, check: Check<Mix>, mix: Mix| {
        seconds::trial(format!("{requirement}/{}", mix.name()), move || {
            check(mix).map_err(Failed::from)
        })
    };
    let worlds = REQUIREMENTS
        .iter()
        .flat_map(|&(requirement, check)| mixes().map(move |mix| trial(requirement, check, mix)));
    let of_server = || mixes().chain(with_several(true)).filter(|mix| mix.has_server());
    let served = OF_SERVER.iter().flat_map(|&(requirement, check)| {
        of_server().map(move |mix| trial(requirement, check, mix))
    });
    let between_runtimes =
        || differing().filter(|plan| !plan.is_paged() && plan.shared == Shared::Partitioned);
    let records = OF_RECORDS.iter().flat_map(|&(requirement, check)| {
        between_runtimes().map(move |preset| {
            seconds::trial(format!("{requirement}/{}", preset.name()), move || {
                check(preset).map_err(Failed::from)
            })
        })
    });
    let mut trials: Vec<_> = worlds.chain(served).chain(records).collect();
    // In the gate, this suite is a step of its own.
    if std::env::var("HOLDFAST_CONFORMANCE").is_ok_and(|value| value == "0") {
        trials.clear();
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Clients talk to servers, nothing fails: every flow's packets leave as they do without
/// protection, byte for byte and in order.
fn transparent(mix: Mix) -> Result<(), String> {
    let connection = (any::<bool>(), 1u32..30, 0u64..40_000, 1_000u64..9_000).prop_map(
        |(tcp, packets, start, pause)| Connection {
            tcp,
            packets,
            start: READY + start * MICROSECOND,
            pause: pause * MICROSECOND,
            ..Connection::default()
        },
    );
    let workload = prop::collection::vec(connection, 1..16);
    runner((48 / mix.every() as u32).max(2))
        .run(&(workload, any::<u64>()), |(connections, seed)| {
            // A runtime that waits for a state server is ready later. Unless the server
            // assigns the numbers, the runtimes' order decides who has which.
            let is_later = mix.preset.is_paged() && !mix.served;
            let plan = Plan { connections, calm: true, ..Plan::default() };
            let plan = if is_later { Plan { runtimes: 1, ..plan } } else { plan };
            let plain = play(scenario(seed, Mix { preset: Preset::NONE, ..mix }), plan.clone());
            let here = play(scenario(seed, mix), plan.clone());
            for outcome in [&plain, &here] {
                check_basics(mix, &plan, outcome)
                    .and_then(|()| check_finished(mix, &plan, outcome))
                    .map_err(TestCaseError::fail)?;
            }
            let (expected, got) = (by_flow(&plain.released), by_flow(&here.released));
            prop_assert_eq!(expected.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>());
            for (flow, packets) in &expected {
                prop_assert!(
                    packets == &got[flow],
                    "{:?} left otherwise than without protection",
                    flow
                );
            }
            prop_assert!(
                plain.released.len()
                    >= plan.connections.iter().map(|one| one.packets as usize).sum::<usize>()
            );
            Ok(())
        })
        .map_err(|error| error.to_string())
}

/// A runtime is killed between any two events: everything that had left is remembered by
/// the runtime that serves the flow afterwards, and every connection finishes. Without
/// that promise, or if packets leave before their state is saved, the same sweep must see
/// something forgotten.
fn output_commit(mix: Mix) -> Result<(), String> {
    let worlds = [(1, true, 5), (2, false, 11), (3, false, 11), (4, false, 11), (5, false, 11)];
    let plan =
        |calm| Plan { connections: few_connections(), calm, strict: true, ..Plan::default() };
    if mix.preset.is_strict() {
        for (seed, calm, step) in worlds {
            sweep(scenario(seed, mix), &plan(calm), How::Kill, step, |plan, outcome| {
                check_basics(mix, plan, &outcome)?;
                check_finished(mix, plan, &outcome)
            })?;
        }
    }
    let is_planted = mix.preset.is_strict();
    let planted = if is_planted { Fault::ReleasesBeforeCommit.into() } else { Planted::default() };
    let most = 30 / if is_planted { mix.always_every() } else { mix.every() };
    let mut forgotten = 0;
    for (seed, calm, step) in worlds.into_iter().take(3) {
        let scenario = Scenario { planted, ..scenario(seed, mix) };
        // Without a fault, each of the kills is looked at.
        let enough = if is_planted { most } else { usize::MAX };
        if forgotten > enough {
            break;
        }
        let enough = enough - forgotten;
        forgotten += harms(scenario, &plan(calm), How::Kill, step * 4, enough, |plan, outcome| {
            let (lost, others): (Vec<Violation>, Vec<Violation>) = outcome
                .report
                .violations
                .into_iter()
                .partition(|violation| violation.invariant == "output commit");
            require!(others.is_empty(), "seed {seed}, {:?}: {}", plan.steps, lines(&others));
            Ok(!lost.is_empty())
        })?;
    }
    require!(forgotten > most, "only {forgotten} kills were seen to lose anything");
    Ok(())
}

/// A runtime is stopped between any two events, given up, and continued: it releases
/// nothing any more, whatever it had in hand. The same sweep without fence and epochs
/// must see it release something.
fn single_owner(mix: Mix) -> Result<(), String> {
    let plan =
        Plan { connections: few_connections(), lasts: 8_000 * MILLISECOND, ..Plan::default() };
    let how = How::Pause(450 * MILLISECOND);
    let mut fenced = 0;
    for (seed, calm, step) in [(11, true, 41), (12, false, 43), (13, false, 47)] {
        let plan = Plan { calm, ..plan.clone() };
        sweep(scenario(seed, mix), &plan, how, step, |plan, outcome| {
            fenced += outcome.drops.get(DropReason::Fenced);
            check_basics(mix, plan, &outcome)?;
            if mix.preset.promises() { check_finished(mix, plan, &outcome) } else { Ok(()) }
        })?;
    }
    require!(
        fenced > 100 / mix.every() as u64,
        "the woken runtimes tried to send only {fenced} frames"
    );
    let planted = Fault::IgnoresEpochs.into();
    let plan = Plan { calm: true, lasts: 2_500 * MILLISECOND, ..plan };
    let unfenced = Scenario { planted, ..scenario(11, mix) };
    let released = harms(unfenced, &plan, how, 23, 0, |_, outcome| {
        Ok(outcome.report.violations.iter().any(|violation| violation.invariant == "one owner"))
    })?;
    require!(released > 0, "without a fence nobody released anything either");
    Ok(())
}

/// A process beside the runtime takes over between any two events: for everybody else the
/// runtime has stood still for a moment. Every packet leaves all the same, byte for byte
/// and in its flow's order, under any protection and under none (the level `local`). If
/// the runtime dies for good as soon as the other has taken over (`local+remote`), its
/// protection keeps what it promises. Without a process beside it the same sweep must see
/// that packets are missing.
fn local_standby(mix: Mix) -> Result<(), String> {
    let plan = |calm| Plan {
        connections: few_connections(),
        calm,
        strict: mix.preset.is_strict(),
        ..Plan::default()
    };
    let standstill = How::Pause(2 * MILLISECOND);
    let undisturbed = play(scenario(61, mix), plan(true));
    let expected = by_flow(&undisturbed.released);
    sweep(scenario(61, mix), &plan(true), standstill, 13, |plan, outcome| {
        check_basics(mix, plan, &outcome)?;
        check_finished(mix, plan, &outcome)?;
        require!(outcome.failovers == 0, "{:?}: the runtime was given up", plan.steps);
        require!(by_flow(&outcome.released) == expected, "{:?}: flows left otherwise", plan.steps);
        Ok(())
    })?;
    for (seed, calm, step) in [(62, true, 61), (63, false, 71)] {
        let first = play(scenario(seed, mix), plan(calm)).quiet_from / 4;
        for after in [0, 2, 10, 60] {
            let mut runs = 0;
            for event in mix.some_of(first..first * 4, step) {
                let whom = Whom::Number(runs);
                let takes_over = Step { when: When::Event(event), whom, how: standstill };
                let dies = Step { when: When::Event(event + after), whom, how: How::Kill };
                let plan = Plan { steps: vec![takes_over, dies], ..plan(calm) };
                let outcome = play(scenario(seed, mix), plan.clone());
                check_basics(mix, &plan, &outcome)?;
                if mix.preset.is_strict() {
                    check_finished(mix, &plan, &outcome)?;
                }
                runs += 1;
            }
            require!(runs > 5 / mix.every(), "only {runs} deaths");
        }
    }
    let missing = harms(scenario(61, mix), &plan(true), How::Kill, 41, 0, |_, outcome| {
        Ok(by_flow(&outcome.released) != expected)
    })?;
    require!(missing > 0, "without anybody beside them nothing was missing either");
    Ok(())
}

/// Runtimes die and hang, frames are lost, doubled and reordered: in the end every buffer
/// of the living and of the dead is back.
fn no_buffer_lost(mix: Mix) -> Result<(), String> {
    let (mut kills, mut drops) = (0, 0);
    // Every run plays as many worlds, but others.
    for seed in mix.some_of(0..60 * SHARE.of as u64, 1) {
        let outcome =
            holdfast_sim::World::new(Scenario { quiet: false, ..scenario(seed, mix) }, false)
                .play();
        kills += outcome.report.faults.kills;
        drops += outcome.drops.total();
        let lost: Vec<Violation> = outcome
            .report
            .violations
            .into_iter()
            .filter(|violation| violation.invariant == "no anonymous drop")
            .collect();
        require!(lost.is_empty(), "seed {seed}: {}", lines(&lost));
    }
    require!(
        kills > 20 / mix.thinning() as u64 && drops > 0,
        "the worlds were too peaceful: {kills} kills, {drops} drops"
    );
    Ok(())
}

/// A runtime is killed, or stopped until it is given up, between any two events: no flow
/// comes back with more forgotten than the protection says, and everything that was held
/// for it comes back. The same sweep must see more forgotten if the intervals between
/// snapshots are ignored, or if a recovery is reported too soon.
fn bounded_loss(mix: Mix) -> Result<(), String> {
    let mut connections = few_connections();
    connections.iter_mut().for_each(|one| one.packets *= 3);
    // A replica is told soon: only packets close behind each other are many of which it
    // does not know.
    if mix.preset.forgets_by_count() {
        connections
            .iter_mut()
            .for_each(|one| (one.pause, one.packets) = (one.pause / 50, one.packets * 2));
    }
    let plan = |calm| Plan {
        connections: connections.clone(),
        calm,
        lasts: 8_000 * MILLISECOND,
        ..Plan::default()
    };
    let worlds = [
        (1, true, How::Kill, 11),
        (2, false, How::Kill, 13),
        (3, false, How::Kill, 13),
        (4, true, How::Pause(450 * MILLISECOND), 47),
    ];
    for (seed, calm, how, step) in worlds {
        sweep(scenario(seed, mix), &plan(calm), how, step, |plan, outcome| {
            check_basics(mix, plan, &outcome)
        })?;
    }
    if mix.preset.may_forget() == 0 {
        return Ok(());
    }
    // A replica is claimed as soon as its owner's death is known, without a wait.
    let waits = mix.preset.rebuild != Rebuild::Replica;
    for fault in [Fault::IgnoresInterval].into_iter().chain(waits.then_some(Fault::ReportsEarly)) {
        // In a calm network a server answers as soon as the coordinator hears, and
        // nothing is on its way to a replica. Only a restless network shows the fault
        // then.
        let is_calm = !(mix.preset.is_paged() && fault == Fault::ReportsEarly
            || mix.preset.forgets_by_count());
        let step = if is_calm { 37 } else { 9 };
        let planted = Scenario { planted: fault.into(), ..scenario(1, mix) };
        let enough = 10 / mix.always_every();
        let lost = harms(planted, &plan(is_calm), How::Kill, step, enough, |_, outcome| {
            let is_lost = |violation: &Violation| violation.invariant == "bounded loss";
            Ok(outcome.report.violations.iter().any(is_lost))
        })?;
        require!(lost > enough, "{fault:?}: only {lost} kills were seen to lose too much");
    }
    Ok(())
}

/// Two switches divide the ports, and their flows share the runtimes. A runtime dies
/// between any two events, flows of both switches move, and switches with a host of their
/// own die one after the other. Every flow goes on at its own switch.
fn several_switches(mix: Mix) -> Result<(), String> {
    let mut connections = few_connections();
    connections.iter_mut().for_each(|one| one.packets *= 3);
    let plan = |calm| Plan {
        connections: connections.clone(),
        calm,
        switches: 2,
        lasts: 8_000 * MILLISECOND,
        ..Plan::default()
    };
    for (seed, calm, step) in [(41, true, 37), (42, false, 41)] {
        sweep(scenario(seed, mix), &plan(calm), How::Kill, step, |plan, outcome| {
            check_basics(mix, plan, &outcome)?;
            if mix.preset.promises() { check_finished(mix, plan, &outcome) } else { Ok(()) }
        })?;
    }
    let order = |number: u64| Step {
        when: When::Time(READY + (20 + number * 12) * MILLISECOND),
        whom: Whom::Number(number as usize),
        how: How::Move(None, 64),
    };
    let mut moved = 0;
    for seed in 43..49 {
        let plan = Plan { steps: (0..8).map(order).collect(), ..plan(seed % 2 == 0) };
        let outcome = play(scenario(seed, mix), plan.clone());
        check_basics(mix, &plan, &outcome)?;
        check_finished(mix, &plan, &outcome)?;
        moved += outcome.report.faults.moved;
    }
    require!(moved > 40, "only {moved} flows moved");
    let dies = |host| Step {
        when: When::Safe(READY),
        whom: Whom::Host(host),
        how: How::Away(400 * MILLISECOND),
    };
    let mut connections = connections.clone();
    connections.iter_mut().for_each(|one| (one.packets, one.pause) = (100, 20 * MILLISECOND));
    for seed in 49..55 {
        let steps = vec![dies(1 + (seed % 2) as u16), dies(2 - (seed % 2) as u16)];
        let plan = Plan {
            connections: connections.clone(),
            calm: true,
            steps,
            hosts: 3,
            switches: 2,
            runtimes: 4,
            ..Plan::default()
        };
        let mut outcome = play(scenario(seed, mix), plan.clone());
        require!(
            outcome.steps == 2 && outcome.report.faults.terms > 4,
            "seed {seed}: {:?}",
            outcome.report.faults
        );
        // Only a strict protection promises what it keeps when a whole host dies.
        if mix.preset.is_strict() {
            check_finished(mix, &plan, &outcome)?;
        } else {
            outcome.report.violations.retain(|violation| violation.invariant != "bounded loss");
        }
        check_basics(mix, &plan, &outcome)?;
    }
    Ok(())
}

/// Whenever the system says that its flows are safe, at first or again after a failure,
/// any runtime may be killed, or the state server if flows have their home there: nothing
/// that left is forgotten. A protection that promises nothing never says so.
fn settled_is_safe(mix: Mix) -> Result<(), String> {
    let mut connections = few_connections();
    connections.iter_mut().for_each(|one| one.packets *= 4);
    let (mut kills, mut worlds) = (0, 0);
    let homes = if mix.preset.is_paged() && !mix.preset.has_absent_flows() {
        usize::from(mix.servers)
    } else {
        0
    };
    let victim =
        |number: usize| if number < 3 { Whom::Number(number) } else { mix.server(number - 3) };
    for seed in mix.some_of(31..37, 1) {
        for first in [0, 40, 95] {
            for number in 0..3 + homes {
                for boundary in [0, 1, 2, 5, 12, 40, 150] {
                    let begin = Step {
                        when: When::Time(READY + first * MILLISECOND),
                        whom: Whom::Number(seed as usize % 3),
                        how: How::Kill,
                    };
                    let again = Step {
                        when: When::Settled(boundary),
                        whom: victim(number),
                        how: How::Kill,
                    };
                    let plan = Plan {
                        connections: connections.clone(),
                        steps: vec![begin, again],
                        strict: mix.preset.is_strict(),
                        ..Plan::default()
                    };
                    let outcome = play(scenario(seed, mix), plan.clone());
                    if !mix.preset.promises() {
                        require!(outcome.settled == 0, "seed {seed}: it called itself safe");
                        return Ok(());
                    }
                    kills += outcome.steps;
                    worlds += 1;
                    check_basics(mix, &plan, &outcome)?;
                    check_finished(mix, &plan, &outcome)?;
                }
            }
        }
    }
    require!(kills * 10 > worlds * 16, "only {kills} kills in {worlds} worlds");
    // The same kills without waiting for the system's word do lose something, so the word
    // is worth something.
    let loses = |(seed, pause): (u64, u64)| {
        let kill = |time, whom| Step { when: When::Time(time), whom, how: How::Kill };
        let begin = READY + 40 * MILLISECOND;
        // A server keeps what two runtimes lose: there the server has to die, too.
        let second = if mix.preset.is_paged() {
            mix.server(seed as usize)
        } else {
            Whom::Number(seed as usize)
        };
        let steps = vec![
            kill(begin, Whom::Number(seed as usize % 3)),
            kill(begin + pause * MILLISECOND, second),
        ];
        let plan = Plan {
            connections: connections.clone(),
            steps,
            strict: mix.preset.is_strict(),
            // A restless network would excuse the loss: state may be under way there for
            // longer.
            calm: mix.preset.is_paged(),
            ..Plan::default()
        };
        !play(scenario(seed, mix), plan).report.violations.is_empty()
    };
    let is_lost = (31..37).flat_map(|seed| [0, 1, 2, 4].map(|pause| (seed, pause))).any(loses);
    // In these few worlds the states that packets did not wait for had reached their
    // replicas.
    require!(
        is_lost || mix.served && mix.preset.forgets_by_count(),
        "two kills at once lost nothing either"
    );
    Ok(())
}
