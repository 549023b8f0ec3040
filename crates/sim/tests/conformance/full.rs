//! Tables that are full: of flows, of a flood, of replicas.

use crate::{MILLISECOND, Mix, READY, check_basics, check_finished, require, scenario};
use holdfast_sim::{
    Connection, Exit, Fault, How, Outcome, Plan, Planted, SILENT, Scenario, Step, When, Whom, play,
};
use holdfast_wire::DropReason;

/// Flows per runtime in worlds with full tables: twelve in all.
const SMALL: usize = 4;

pub(crate) fn crowd(count: u64) -> Vec<Connection> {
    (0..count)
        .map(|number| Connection {
            tcp: false,
            packets: 60,
            start: READY + number * MILLISECOND,
            pause: 10 * MILLISECOND,
            ..Connection::default()
        })
        .collect()
}

/// More connections come than there is room for. The first ones go on as if nothing were;
/// the others' packets are dropped with a reason.
pub(crate) fn full_table(mix: Mix) -> Result<(), String> {
    let plan = Plan {
        connections: crowd(15),
        flows: SMALL,
        calm: true,
        lasts: 4_000 * MILLISECOND,
        ..Plan::default()
    };
    let outcome = play(scenario(21, mix), plan.clone());
    check_basics(mix, &plan, &outcome)?;
    let done = outcome.finished.iter().filter(|done| **done).count();
    require!(
        done == 12 && outcome.finished[..12].iter().all(|done| *done),
        "finished: {:?}",
        outcome.finished
    );
    require!(
        outcome.drops.get(DropReason::FlowTableFull) > 100,
        "drops: {:?}",
        outcome.drops.iter().collect::<Vec<_>>()
    );
    require!(outcome.unprotected == 0, "{} packets left unprotected", outcome.unprotected);
    Ok(())
}

/// A flood opens several times as many connections to a silent server as tables have room
/// for. Established connections go on, and new ones are served; also when a runtime dies
/// meanwhile, under strict protections. Two planted faults show why: if half-open flows
/// are never evicted, new connections are not served, and if established ones are, these
/// break.
pub(crate) fn flood(mix: Mix) -> Result<(), String> {
    const OLD: usize = 6;
    const NEW: usize = 6;
    let tcp = |start: u64, packets: u32, ends| Connection {
        tcp: true,
        packets,
        start,
        pause: 50 * MILLISECOND,
        ends,
        ..Connection::default()
    };
    let mut connections: Vec<Connection> =
        (0..OLD as u64).map(|at| tcp(READY + at * MILLISECOND, 60, None)).collect();
    connections
        .extend((0..NEW as u64).map(|at| tcp(READY + (1200 + 100 * at) * MILLISECOND, 3, None)));
    let from = |at: u64| ([10, 1, (at / 250) as u8, (at % 250) as u8 + 1], 2000);
    connections.extend(
        (0..400).map(|at| tcp(READY + (300 + 4 * at) * MILLISECOND, 1, Some((from(at), SILENT)))),
    );
    let kill =
        Step { when: When::Time(READY + 1500 * MILLISECOND), whom: Whom::Owner, how: How::Kill };
    let plan = |steps| Plan {
        connections: connections.clone(),
        steps,
        flows: 40,
        calm: true,
        lasts: 8_000 * MILLISECOND,
        ..Plan::default()
    };
    let served =
        |outcome: &Outcome| outcome.finished[..OLD + NEW].iter().filter(|done| **done).count();
    let ends = |fault: Option<Fault>, steps: Vec<Step>| {
        let planted = fault.map_or_else(Planted::default, Planted::from);
        let plan = plan(steps);
        (play(Scenario { planted, ..scenario(31, mix) }, plan.clone()), plan)
    };
    let (outcome, undisturbed) = ends(None, Vec::new());
    check_basics(mix, &undisturbed, &outcome)?;
    require!(served(&outcome) == OLD + NEW, "finished: {:?}", &outcome.finished[..OLD + NEW]);
    require!(
        outcome.drops.get(DropReason::FlowTableFull) == 0,
        "drops: {:?}",
        outcome.drops.iter().collect::<Vec<_>>()
    );
    if mix.preset.is_strict() {
        let (outcome, plan) = ends(None, vec![kill]);
        check_basics(mix, &plan, &outcome)?;
        require!(
            served(&outcome) == OLD + NEW,
            "with a death: {:?}, drops: {:?}",
            &outcome.finished[..OLD + NEW],
            outcome.drops.iter().collect::<Vec<_>>()
        );
    }
    let (outcome, _) = ends(Some(Fault::ForgetsNothing), Vec::new());
    require!(served(&outcome) < OLD + NEW, "nothing made room, and nobody noticed");
    let (outcome, _) = ends(Some(Fault::ForgetsEstablished), Vec::new());
    require!(
        outcome.finished[..OLD].iter().any(|done| !done),
        "established connections made room, and nobody noticed"
    );
    Ok(())
}

/// A runtime dies while every table is full, and is away for a while: the others cannot
/// hold all its flows and their replicas. Packets without a place for their flow or its
/// replica are dropped with a reason, and flows that have a place go on. When the runtime
/// is back, all do.
pub(crate) fn full_of_replicas(mix: Mix) -> Result<(), String> {
    let (killed, back) = (READY + 200 * MILLISECOND, READY + 700 * MILLISECOND);
    let kill = Step { when: When::Time(killed), whom: Whom::Owner, how: How::Kill };
    let mut connections = crowd(12);
    connections.iter_mut().for_each(|one| one.packets = 120);
    let plan = Plan {
        connections,
        steps: vec![kill],
        flows: SMALL,
        calm: true,
        restart: back - killed,
        ..Plan::default()
    };
    let outcome = play(scenario(22, mix), plan.clone());
    check_basics(mix, &plan, &outcome)?;
    check_finished(mix, &plan, &outcome)?;
    require!(outcome.steps == 1, "nobody was killed");
    let served = |from: u64, to: u64| -> std::collections::BTreeSet<usize> {
        outcome
            .released
            .iter()
            .filter(|exit| (from..to).contains(&exit.at))
            .filter_map(Exit::connection)
            .collect()
    };
    let (before, meanwhile, after) = (
        served(READY, killed),
        served(killed + 50 * MILLISECOND, back),
        served(back + 200 * MILLISECOND, u64::MAX),
    );
    require!(
        before.len() == 12 && after.len() == 12,
        "served before: {before:?}, after: {after:?}"
    );
    // A packet that does not wait for its replica leaves without one.
    let most = if mix.preset.forgets_by_count() { 12 } else { 11 };
    require!(
        (SMALL..=most).contains(&meanwhile.len()),
        "with full tables were served: {meanwhile:?}"
    );
    if mix.preset.is_paged() {
        // A full table refuses no flow: a flow without a place here stays at its home.
        require!(outcome.unprotected == 0, "{} packets left unprotected", outcome.unprotected);
        return Ok(());
    }
    if mix.preset.promises() && !mix.preset.is_strict() {
        // A weak protection lets packets leave all the same, and counts them.
        require!(outcome.drops.get(DropReason::FlowTableFull) > 0, "nobody refused a snapshot");
        require!(outcome.unprotected > 0, "packets of flows without a snapshot were not counted");
        return Ok(());
    }
    require!(
        outcome.drops.get(DropReason::FlowTableFull) > 100,
        "drops: {:?}",
        outcome.drops.iter().collect::<Vec<_>>()
    );
    require!(outcome.unprotected == 0, "{} packets left unprotected", outcome.unprotected);
    Ok(())
}
