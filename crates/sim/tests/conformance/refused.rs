//! Refusals: the sender of a packet that a function refuses is told, and nothing
//! contradicts it.

use crate::sweep::{harms, sweep_over};
use crate::{
    MILLISECOND, Mix, READY, check_basics, check_finished, few_connections, require, scenario,
    sweep,
};
use holdfast_sim::{
    Connection, Fault, GUARDED, How, Outcome, Plan, Reset, SHUT, Scenario, Whom, limited, passes,
    play,
};
use std::collections::BTreeMap;

/// A function refuses most datagrams of some flows, and others from their first one on.
/// If nothing fails, each is answered once. If a runtime is killed between any two
/// events, each is answered at most once and none that passes. The runtime that serves
/// the flow afterwards remembers what was refused. The same sweep must see that forgotten
/// if answers do not wait for their flow's state.
pub(crate) fn refused_once(mix: Mix) -> Result<(), String> {
    let mut connections = few_connections();
    for (number, one) in connections.iter_mut().enumerate() {
        let local = ([10, 0, 0, 2 + number as u8], 1000 + number as u16);
        (one.tcp, one.ends) = (false, Some((local, if number % 3 == 2 { SHUT } else { GUARDED })));
    }
    let plan = |calm| Plan {
        connections: connections.clone(),
        calm,
        strict: mix.preset.is_strict(),
        lasts: 8_000 * MILLISECOND,
        ..Plan::default()
    };
    let is_shut = |id: u32| id.is_multiple_of(3);
    let answers = |outcome: &Outcome| {
        let mut answers: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        outcome.refused.iter().for_each(|one| *answers.entry(*one).or_default() += 1);
        answers
    };
    let undisturbed = play(scenario(81, mix), plan(true));
    check_basics(mix, &plan(true), &undisturbed)?;
    check_finished(mix, &plan(true), &undisturbed)?;
    let once = answers(&undisturbed);
    for (id, one) in (1u32..).zip(&connections) {
        for datagram in 1..=one.packets {
            let wanted = u32::from(is_shut(id) || !passes(datagram));
            let got = once.get(&(id, datagram)).copied().unwrap_or(0);
            require!(
                got == wanted,
                "datagram {datagram} of connection {id} was answered {got} times"
            );
        }
    }
    let mut answered = 0;
    for (seed, calm, step) in [(81, true, 7), (82, false, 23)] {
        sweep(scenario(seed, mix), &plan(calm), How::Kill, step, |plan, outcome| {
            check_basics(mix, plan, &outcome)?;
            if mix.preset.promises() {
                check_finished(mix, plan, &outcome)?;
            }
            // A network that doubles packets doubles answers.
            let answers = answers(&outcome);
            answered += answers.len();
            let twice = answers.iter().find(|(_, count)| calm && **count > 1);
            require!(twice.is_none(), "{:?}: answered more than once: {twice:?}", plan.steps);
            Ok(())
        })?;
    }
    require!(answered > 100 / mix.every(), "only {answered} answers");
    if !mix.preset.is_strict() {
        return Ok(());
    }
    let planted = Scenario { planted: Fault::ReleasesBeforeCommit.into(), ..scenario(81, mix) };
    let enough = 20 / mix.always_every();
    let forgotten = harms(planted, &plan(true), How::Kill, 7, enough, |_, outcome| {
        Ok(outcome.report.violations.iter().any(|one| one.text.contains("was refused")))
    })?;
    require!(forgotten > enough, "only {forgotten} kills were seen to lose what had been refused");
    Ok(())
}

/// A function refuses TCP connections in their middle, each at another segment, for good.
/// If nothing fails, each end is reset by one reset, which has the number that the end
/// expects. A runtime, or the switch, is killed between any two events: each end gets a
/// reset that it does not drop, and nothing else of the connection leaves after one,
/// whichever runtime serves the flow then. Worlds must show it if the second end is
/// forgotten, and the same sweep if resets do not wait for their flow's state.
pub(crate) fn both_ends_are_reset(mix: Mix) -> Result<(), String> {
    let limits: [u16; 9] = [1, 2, 3, 4, 5, 7, 8, 9, 12];
    let connections: Vec<Connection> = (0u64..)
        .zip(limits)
        .map(|(number, limit)| Connection {
            tcp: true,
            packets: 20,
            start: READY + number * 3 * MILLISECOND,
            pause: (2 + number) * MILLISECOND,
            ends: Some((([10, 0, 0, 2 + number as u8], 1000 + number as u16), limited(limit))),
            ..Connection::default()
        })
        .collect();
    let plan = |calm| Plan {
        connections: connections.clone(),
        calm,
        strict: mix.preset.is_strict(),
        live: true,
        lasts: 8_000 * MILLISECOND,
        ..Plan::default()
    };
    let undisturbed = play(scenario(91, mix), plan(true));
    check_basics(mix, &plan(true), &undisturbed)?;
    check_finished(mix, &plan(true), &undisturbed)?;
    for id in (1u32..).take(limits.len()) {
        let of_end = |end| {
            undisturbed
                .resets
                .iter()
                .filter(move |(of, is_client, _)| (*of, *is_client) == (id, end))
        };
        let at = [true, false].map(|end| of_end(end).map(|(.., how)| *how).collect::<Vec<_>>());
        require!(
            at == [[Reset::Exact], [Reset::Exact]],
            "the client and the server of connection {id} got resets: {at:?}"
        );
    }
    let mut resets = 0;
    for (seed, calm, step) in [(91, true, 7), (92, false, 23)] {
        for whom in [None, Some(Whom::Hub)] {
            let which = |number: usize| whom.unwrap_or(Whom::Number(number));
            let step = if whom.is_some() { step * 2 } else { step };
            sweep_over(
                scenario(seed, mix),
                &plan(calm),
                (which, How::Kill),
                step,
                |plan, outcome| {
                    resets += outcome.resets.len();
                    check_basics(mix, plan, &outcome)?;
                    if mix.preset.is_strict() {
                        check_finished(mix, plan, &outcome)
                    } else {
                        Ok(())
                    }
                },
            )?;
        }
    }
    require!(resets > 1000 / mix.every(), "only {resets} resets");
    let forgetful = Scenario { planted: Fault::TellsOneEnd.into(), ..scenario(91, mix) };
    let outcome = play(forgetful, Plan { strict: true, ..plan(true) });
    require!(
        outcome.report.violations.iter().any(|one| one.invariant == "resets"),
        "one end was told, and nobody noticed"
    );
    if !mix.preset.is_strict() {
        return Ok(());
    }
    let planted = Scenario { planted: Fault::ReleasesBeforeCommit.into(), ..scenario(91, mix) };
    let enough = 20 / mix.always_every();
    let forgotten = harms(planted, &plan(true), How::Kill, 7, enough, |_, outcome| {
        Ok(outcome.report.violations.iter().any(|one| one.text.contains("was reset")))
    })?;
    require!(
        forgotten > enough,
        "only {forgotten} kills were seen to lose why a connection was reset"
    );
    Ok(())
}
