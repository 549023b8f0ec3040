//! The death of a state server.

use crate::full::crowd;
use crate::sweep::sweep_over;
use crate::{MILLISECOND, Mix, READY, check_basics, check_finished, require, scenario};
use holdfast_sim::{
    Fault, How, Outcome, Plan, Planted, Scenario, Step, Violation, Way, When, Whom, play,
};

/// The state server is killed between any two events, alone and together with a runtime,
/// and begins with nothing. Its death costs no packet, no two flows have one number, and
/// in the end every number without a flow is free. If flows have their home there, server
/// and runtime are two failures, and only numbers given twice count. A server's death
/// alone is not tried if it has the only copy of some states: these flows are lost, and
/// their numbers are free again. The same runs must see numbers given twice if the server
/// takes unknown numbers for free.
pub(crate) fn server_dies(mix: Mix) -> Result<(), String> {
    let mut connections = crowd(12);
    connections.iter_mut().zip(0..).for_each(|(one, number)| {
        (one.start, one.packets) = (one.start + number * 9 * MILLISECOND, 15)
    });
    let plan =
        |calm, live| Plan { connections: connections.clone(), calm, live, ..Plan::default() };
    let away = How::Pause(30 * MILLISECOND);
    // If a server has the only copy of flows' states, these flows are lost with it.
    let kept =
        [(71, true, 103), (72, false, 109)].into_iter().filter(|_| !mix.preset.has_absent_flows());
    for (seed, calm, step) in kept {
        let scenario = Scenario { tight: true, ..scenario(seed, mix) };
        sweep_over(
            scenario,
            &plan(calm, true),
            (|number| mix.server(number), away),
            step,
            |plan, outcome| {
                check_basics(mix, plan, &outcome)?;
                check_finished(mix, plan, &outcome)
            },
        )?;
    }
    let both = |planted: Planted, seed: u64, first: How| {
        let scenario = Scenario { planted, tight: true, ..scenario(seed, mix) };
        (0..8).map(move |at| {
            let time = READY + at * 4 * MILLISECOND;
            let step =
                |pause, whom, how| Step { when: When::Time(time + pause * MILLISECOND), whom, how };
            let steps = vec![
                step(0, Whom::Number(at as usize), first),
                step(at % 4, mix.server(at as usize), away),
            ];
            // With several servers, numbers of lost flows cannot be told from those of
            // flows whose state only another server has.
            let is_told = !mix.preset.has_absent_flows() || mix.servers == 1;
            let plan = Plan { steps, ..plan(false, planted == Planted::default() && is_told) };
            let outcome = play(scenario, plan.clone());
            (plan, outcome)
        })
    };
    let cut_off = How::Cut(Way::Both, 150 * MILLISECOND);
    // Without a promise a dead runtime's numbers are soon other flows'.
    let firsts = if mix.preset.promises() { vec![cut_off, How::Kill] } else { vec![cut_off] };
    let is_twice = |violation: &Violation| matches!(violation.invariant, "leases" | "one owner");
    for (plan, mut outcome) in firsts
        .into_iter()
        .flat_map(|first| (74..78).flat_map(move |seed| both(Planted::default(), seed, first)))
    {
        outcome.report.violations.retain(|violation| !mix.preset.is_paged() || is_twice(violation));
        check_basics(mix, &plan, &outcome)?;
        require!(outcome.steps == 2, "{:?} never happened", plan.steps);
    }
    if !mix.served {
        return Ok(());
    }
    let forgets = Fault::ServerForgets.into();
    let is_seen = |outcome: &Outcome| {
        outcome.report.violations.iter().any(|one| is_twice(one) || !mix.preset.is_paged())
    };
    let mut twice = (74..78).flat_map(|seed| both(forgets, seed, cut_off));
    require!(twice.any(|(_, outcome)| is_seen(&outcome)), "a server that forgets did no harm");
    Ok(())
}
