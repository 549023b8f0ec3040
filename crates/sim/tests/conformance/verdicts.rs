//! A function with a library, whose objects of flows are no state: `dpi`. What it has
//! decided of a flow, and what its packets have shown of it, stays.

use crate::sweep::by_flow;
use crate::{
    MILLISECOND, Mix, READY, check_basics, check_finished, harms, require, scenario, sweep,
};
use holdfast_sim::{Connection, End, How, Inserted, Outcome, Plan, Preset, Scenario, play};
use holdfast_wire::header::proto;
use serde_json::json;
use std::sync::LazyLock;

/// DSCPs: `ef` and `af21`.
const KNOWN: u8 = 46;
const UNKNOWN: u8 = 18;
/// Packets of a flow that the library gets.
const INSPECTED: u32 = 6;

/// Echoes are known by their first packet. So are datagrams of some connections, which
/// begin as sFlow's do; those of the others are of no protocol, and the library gives up.
static DPI: LazyLock<Inserted> = LazyLock::new(|| Inserted {
    name: "dpi".to_owned(),
    config: json!({
        "rules": ["mark ef protocol ICMP|sFlow", "mark af21 protocol Unknown"],
        "other_packets": INSPECTED,
    }),
});

/// The ends of a connection: a server answers echoes at the client's identifier and 8.
fn ends(number: u8, ping: bool) -> (End, End) {
    let port = 1000 + u16::from(number);
    let there = if ping { port + 8 } else { 9000 };
    (([10, 0, 0, 2 + number], port), ([192, 0, 2, 20], there))
}

/// The DSCPs of the packets of each direction of each flow, in order, and its protocol.
pub(crate) fn marks(outcome: &Outcome) -> Vec<(u8, Vec<u8>)> {
    let of = |frames: Vec<&[u8]>| frames.iter().map(|frame| frame[15] >> 2).collect();
    by_flow(&outcome.released).into_iter().map(|((_, of_ip), all)| (of_ip, of(all))).collect()
}

/// True if a packet has another mark than one of its flow's before, that showed a
/// decision.
fn is_forgotten(marks: &[u8]) -> bool {
    let decided = marks.iter().position(|mark| *mark != 0).unwrap_or(marks.len());
    marks[decided..].iter().any(|mark| *mark != marks[decided])
}

/// Flows are decided, and marked by it. A runtime is killed between any two events: a
/// flow that is decided keeps its protocol, and an undecided one gets the one that it
/// would have got, or is unknown. Some must be seen to be unknown early, because the
/// library's object was lost. The same sweep must see that an unprotected flow forgets
/// its protocol.
pub(crate) fn verdicts(mix: Mix) -> Result<(), String> {
    let connections: Vec<Connection> = (0u64..9)
        .map(|number| Connection {
            ping: number % 3 == 2,
            packets: 10,
            start: READY + number * 3 * MILLISECOND,
            pause: (2 + number) * MILLISECOND,
            ends: Some(ends(number as u8, number % 3 == 2)),
            ..Connection::default()
        })
        .collect();
    let plan = Plan {
        connections,
        calm: true,
        strict: mix.preset.is_strict(),
        lasts: 8_000 * MILLISECOND,
        ..Plan::default()
    };
    let inserted = Scenario { inserted: std::slice::from_ref(&*DPI), ..scenario(61, mix) };
    let undisturbed = play(inserted, plan.clone());
    check_basics(mix, &plan, &undisturbed)?;
    check_finished(mix, &plan, &undisturbed)?;
    let mut directions = [0; 2];
    for (protocol, marks) in marks(&undisturbed) {
        let is_known = marks[0] == KNOWN;
        directions[usize::from(is_known)] += 1;
        let last = if is_known { KNOWN } else { UNKNOWN };
        let before = marks.iter().take_while(|mark| **mark == 0).count();
        require!(
            marks[before..].iter().all(|mark| *mark == last)
                && if is_known { before == 0 } else { (1..INSPECTED as usize).contains(&before) }
                && (is_known || protocol == proto::UDP),
            "protocol {protocol} is marked {marks:?}"
        );
    }
    require!(directions == [8, 10], "{directions:?} directions of flows");
    let (mut decided_later, mut hasty) = (0, 0);
    sweep(inserted, &plan, How::Kill, 7, |plan, outcome| {
        check_basics(mix, plan, &outcome)?;
        for (protocol, marks) in marks(&outcome) {
            let is_known = protocol == proto::ICMP || marks.contains(&KNOWN);
            let may_be = |mark: &u8| {
                *mark == UNKNOWN && (!is_known || mix.preset.may_forget() > 0)
                    || *mark == if is_known { KNOWN } else { 0 }
            };
            require!(
                marks.iter().all(may_be),
                "{:?}: protocol {protocol} is marked {marks:?}",
                plan.steps
            );
            if mix.preset.is_strict() {
                require!(!is_forgotten(&marks), "{:?}: {marks:?}", plan.steps);
            }
            decided_later += usize::from(marks.contains(&0) && marks.contains(&UNKNOWN));
            // Undisturbed, each direction has more packets before the decision.
            hasty += usize::from(
                marks.contains(&UNKNOWN) && marks.iter().filter(|mark| **mark == 0).count() < 2,
            );
        }
        Ok(())
    })?;
    require!(decided_later > 20 / mix.every(), "only {decided_later} flows were decided");
    require!(
        hasty > 0 || mix.every() > 3 || !mix.preset.promises(),
        "no undecided flow was cut short"
    );
    let none = Mix { preset: Preset::NONE, ..mix };
    let unprotected = Scenario { inserted: inserted.inserted, ..scenario(61, none) };
    let plan = Plan { strict: false, ..plan };
    let forgotten = harms(unprotected, &plan, How::Kill, 7, 0, |_, outcome| {
        Ok(marks(&outcome).iter().any(|(_, marks)| is_forgotten(marks)))
    })?;
    require!(forgotten > 0, "unprotected flows forgot no decision either");
    Ok(())
}
