//! Several processes of the box fail together. Flows may be lost then: they begin anew or
//! not at all, and are counted.

use crate::{MILLISECOND, Mix, READY, lines, require, scenario};
use holdfast_sim::{Connection, Exit, Fault, How, Outcome, Plan, Scenario, Step, When, Whom, play};
use std::collections::{BTreeMap, BTreeSet};

/// Length of a run, ns: by then the box has long recovered from all failures.
const LASTS: u64 = READY + 3_000 * MILLISECOND;
/// A stop so long that a runtime is given up.
const STOP: How = How::Pause(900 * MILLISECOND);

fn plan(steps: Vec<Step>) -> Plan {
    let connections = (0..12)
        .map(|number| Connection {
            packets: 90,
            start: READY + number * 3 * MILLISECOND,
            pause: (20 + number) * MILLISECOND,
            ..Connection::default()
        })
        .collect();
    Plan { connections, steps, calm: true, lasts: LASTS, ..Plan::default() }
}

/// A datagram that left: how many datagrams of its direction the flow had seen by then,
/// and the flow's trace of them. See `sim/src/stamper.rs`.
struct Shown {
    way: usize,
    datagram: u32,
    count: u32,
    trace: u32,
}

fn shown(exit: &Exit) -> Option<Shown> {
    let payload = exit.frame.get(42..)?;
    let way = usize::from(exit.ends[1].0[0] == 10);
    let word = |at: usize| Some(u32::from_be_bytes(*payload.get(at..)?.first_chunk()?));
    Some(Shown { way, datagram: word(4)?, trace: word(8 + 8 * way)?, count: word(12 + 8 * way)? })
}

/// The trace after one more datagram.
fn follow(trace: u32, datagram: u32) -> u32 {
    (trace.rotate_left(5) ^ datagram).wrapping_mul(0x9e37_79b1)
}

/// Connections of which something that had been revealed was forgotten. Their flows must
/// have begun anew: a packet that leaves later must not go on from the flow's old state.
fn begun_anew(outcome: &Outcome) -> Result<BTreeSet<usize>, String> {
    let mut traces: BTreeMap<(usize, usize), BTreeMap<u32, u32>> = BTreeMap::new();
    let mut anew = BTreeSet::new();
    for exit in &outcome.released {
        let Some((number, shown)) = exit.connection().zip(shown(exit)) else { continue };
        let before = traces.entry((number, shown.way)).or_default();
        if before.last_key_value().is_some_and(|(last, _)| shown.count <= *last) {
            let was = before.get(&(shown.count - 1)).copied();
            let goes_on = was.is_some_and(|trace| follow(trace, shown.datagram) == shown.trace);
            require!(
                !goes_on,
                "at {} ns connection {number} goes on from count {}, after {:?}",
                exit.at,
                shown.count,
                before.keys()
            );
            anew.insert(number);
            before.clear();
        }
        before.insert(shown.count, shown.trace);
    }
    Ok(anew)
}

const KILL_OWNER: (Whom, How) = (Whom::Owner, How::Kill);
const STOP_OWNER: (Whom, How) = (Whom::Owner, STOP);
const KILL_HUB: (Whom, How) = (Whom::Hub, How::Kill);
const KILL_COORDINATOR: (Whom, How) = (Whom::Coordinator, How::Kill);
/// Processes that fail, one after the other, in each run.
const TOGETHER: [&[(Whom, How)]; 16] = [
    &[KILL_HUB, KILL_OWNER],
    &[KILL_OWNER, KILL_HUB],
    &[STOP_OWNER, KILL_HUB],
    &[KILL_OWNER, KILL_OWNER],
    &[STOP_OWNER, KILL_OWNER],
    &[KILL_OWNER, STOP_OWNER],
    &[KILL_HUB, KILL_OWNER, KILL_OWNER],
    &[KILL_OWNER, KILL_HUB, KILL_OWNER],
    &[STOP_OWNER, KILL_OWNER, KILL_HUB],
    &[KILL_COORDINATOR, KILL_OWNER, KILL_OWNER],
    &[KILL_OWNER, KILL_OWNER, KILL_COORDINATOR],
    &[KILL_OWNER, KILL_OWNER, KILL_OWNER],
    &[KILL_COORDINATOR, KILL_HUB, KILL_OWNER, KILL_OWNER],
    &[KILL_OWNER, KILL_OWNER, KILL_HUB, KILL_COORDINATOR],
    &[STOP_OWNER, KILL_COORDINATOR, KILL_OWNER, KILL_HUB],
    &[KILL_HUB, KILL_OWNER, KILL_OWNER, KILL_OWNER, KILL_COORDINATOR],
];
/// Events between two failures.
const GAPS: [u64; 5] = [0, 30, 100, 300, 3000];
/// Moments of the first failure.
const MOMENTS: u64 = 3;

/// Two to five processes of the box, the runtimes with most flows among them, are killed
/// or stopped between any two events, one some time after the other. No flow goes on as
/// if it had not forgotten what had been revealed of it: such flows begin anew. The
/// coordinator counts at least as many as lost, even if no process lives that had watched
/// the dead ones. Runs in which nobody hears the last words of the dead must be counted
/// wrong. The same runs must fail if heirs give away unfinished copies.
pub(crate) fn counted(mix: Mix) -> Result<(), String> {
    if !mix.preset.is_strict() || mix.preset.is_paged() {
        return Ok(());
    }
    let undisturbed = play(scenario(71, mix), plan(Vec::new()));
    require!(
        begun_anew(&undisturbed)?.is_empty() && undisturbed.lost == 0,
        "flows were lost before anybody failed"
    );
    let first = play(scenario(71, mix), Plan { lasts: READY, ..plan(Vec::new()) }).report.events;
    let range = undisturbed.report.events / 2 - first;
    let mut all = Vec::new();
    for (at, together) in (0..).zip(TOGETHER) {
        for gap in GAPS {
            for moment in 0..MOMENTS {
                let event = first + range * moment / MOMENTS + (at * 31 + gap * 7) % 997;
                let step = |(number, &(whom, how))| Step {
                    when: When::Event(event + number * gap),
                    whom,
                    how,
                };
                all.push((0..).zip(together).map(step).collect::<Vec<_>>());
            }
        }
    }
    let (mut runs, mut lost, mut counted) = (0, 0, 0);
    for number in mix.some_of(0..all.len() as u64, 1) {
        let steps = &all[number as usize];
        let outcome = play(scenario(71, mix), plan(steps.clone()));
        runs += 1;
        let anew = begun_anew(&outcome).map_err(|error| format!("{steps:?}: {error}"))?;
        lost += anew.len();
        counted += outcome.lost;
        require!(
            anew.len() as u64 <= outcome.lost,
            "{steps:?}: {anew:?} were lost, {} counted",
            outcome.lost
        );
        let expected = ["output commit", "mappings"];
        let others: Vec<_> = outcome
            .report
            .violations
            .into_iter()
            .filter(|found| !expected.contains(&found.invariant))
            .collect();
        require!(others.is_empty(), "{steps:?}: {}", lines(&others));
    }
    require!(
        lost > 0 || mix.every() > 3,
        "in {runs} worlds {lost} flows were lost, {counted} counted"
    );
    let planted = Scenario { planted: Fault::IgnoresLastWords.into(), ..scenario(71, mix) };
    let is_found = |steps: &Vec<Step>| {
        let outcome = play(planted, plan(steps.clone()));
        begun_anew(&outcome).is_ok_and(|anew| anew.len() as u64 > outcome.lost)
    };
    let unwatched = |steps: &&Vec<Step>| {
        [KILL_HUB, KILL_COORDINATOR]
            .iter()
            .all(|both| steps.iter().any(|step| (step.whom, step.how) == *both))
    };
    require!(
        all.iter().filter(unwatched).any(is_found),
        "nobody had heard the last words, and nobody noticed"
    );
    if mix.preset.has_log() {
        let planted = Scenario { planted: Fault::CopiesUnfinished.into(), ..scenario(71, mix) };
        let is_found = |steps: &Vec<Step>| begun_anew(&play(planted, plan(steps.clone()))).is_err();
        let deaths =
            all.iter().filter(|steps| steps.iter().all(|step| (step.whom, step.how) == KILL_OWNER));
        require!(
            deaths.clone().any(is_found),
            "heirs gave unfinished flows away, and nobody noticed"
        );
    }
    Ok(())
}
