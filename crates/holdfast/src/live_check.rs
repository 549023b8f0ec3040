//! `holdfast check --live`: the invariants of a running box.
//!
//! Runtimes and state server report at their own times, while traffic goes on, so a
//! single look proves little. The box is looked at many times in succession, and
//! everything that runtimes ever had is compared with everything that the server ever
//! knew: a late report still counts.

use crate::host_check::Check;
use holdfast_control::exit;
use holdfast_control::flows::{Flow, Flows};
use holdfast_control::status::{Pool, STATE_RUNNING, ServerPool, Status};
use holdfast_wire::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Mappings by chain, and the flows that have each: their tuples before the chain.
type Shared<'a> = BTreeMap<(Option<&'a str>, u32, &'a str, &'a str), BTreeSet<(&'a str, &'a str)>>;

/// Checks successive `looks` at a box, and its flows at the beginning and at the end.
pub fn checks(looks: &[Status], flows: [&Flows; 2]) -> Vec<Check> {
    let Some(last) = looks.last() else { return Vec::new() };
    let mut checks: Vec<Check> = (0..last.pools.len()).map(|at| pool(at, looks)).collect();
    checks.push(mappings(flows));
    checks
}

fn pool(at: usize, looks: &[Status]) -> Check {
    let of_each: Vec<&Pool> = looks.iter().filter_map(|look| look.pools.get(at)).collect();
    let Some(pool) = of_each.last() else { return Check::ok("pools", "none") };
    let name = format!("pool {}/{}.{}", pool.chain, pool.function, pool.name);
    let size = i64::from(pool.size);
    let have = |pool: &Pool| i64::from(pool.held) + i64::from(pool.at_hand);
    let Some(server) = pool.server else {
        if pool.shared == holdfast_control::status::SHARED_STATE_SERVER {
            return Check::warn(
                name,
                "the state server has not said yet what there is",
                "ask again in a second",
            );
        }
        let least = of_each.iter().map(|pool| have(pool)).min().unwrap_or(0);
        if least > size {
            let found = format!("runtimes have {least} numbers of {size}");
            return Check::fail(
                exit::NEGATIVE,
                name,
                found,
                "a number is with two of them: report this",
            );
        }
        let found = format!(
            "{} held and {} at hand of {size}, divided among the runtimes",
            pool.held, pool.at_hand
        );
        return Check::ok(name, found);
    };
    // The first state server assigns all numbers.
    let is_there = |look: &Status| {
        look.processes.iter().any(|process| {
            process.id == u32::from(NodeId::STATE_SERVER) && process.state == STATE_RUNNING
        })
    };
    if !looks.iter().all(is_there) {
        let remedy =
            "it is started again, and runtimes tell it what they have: ask again in a second";
        return Check::warn(name, "the state server is away", remedy);
    }
    let all = |server: ServerPool| {
        [server.free, server.at_hand, server.held, server.resting]
            .into_iter()
            .map(i64::from)
            .sum::<i64>()
    };
    let servers = || of_each.iter().filter_map(|pool| pool.server);
    if let Some(wrong) = servers().find(|server| all(*server) != size) {
        let ServerPool { free, at_hand, held, resting } = wrong;
        let found = format!(
            "{free} free, {at_hand} at hand, {held} held and {resting} resting are {}, not {size}",
            all(wrong)
        );
        return Check::fail(
            exit::NEGATIVE,
            name,
            found,
            "the state server lost count: report this",
        );
    }
    let least_and_most = |of_each: &[i64]| {
        of_each.iter().copied().min().zip(of_each.iter().copied().max()).unwrap_or((0, 0))
    };
    let has = least_and_most(&of_each.iter().map(|pool| have(pool)).collect::<Vec<_>>());
    let known = least_and_most(
        &servers()
            .map(|server| i64::from(server.held) + i64::from(server.at_hand))
            .collect::<Vec<_>>(),
    );
    match (has, known) {
        ((least, _), (_, known)) if least > known => {
            let found = format!(
                "runtimes have {} numbers of {size} of which the state server does not know",
                least - known
            );
            Check::fail(exit::NEGATIVE, name, found, "it may give them to other flows: report this")
        }
        // Flows of a runtime that is being recovered have no owner for a moment.
        ((_, most), (known, _)) if known > most => {
            let found = format!(
                "the state server takes {} of {size} numbers for somebody's that no runtime has",
                known - most
            );
            Check::warn(
                name,
                found,
                "it asks for what it has not heard of for a minute: ask again in two",
            )
        }
        _ => {
            let found = format!(
                "{} free, {} at hand, {} held, {} resting: {size}, and the runtimes agree",
                server.free, server.at_hand, server.held, server.resting
            );
            Check::ok(name, found)
        }
    }
}

/// Checks that no two flows look the same to their peer.
fn mappings([before, after]: [&Flows; 2]) -> Check {
    fn shared(flows: &Flows) -> Shared<'_> {
        let mut by_mapping = Shared::new();
        for Flow {
            chain,
            protocol,
            source,
            destination,
            translated_source,
            translated_destination,
            ..
        } in &flows.flows
        {
            let mapping = (
                chain.as_deref(),
                *protocol,
                translated_source.as_str(),
                translated_destination.as_str(),
            );
            // Both runtimes may report a moving flow.
            by_mapping.entry(mapping).or_default().insert((source.as_str(), destination.as_str()));
        }
        by_mapping.retain(|_, who| who.len() > 1);
        by_mapping
    }
    let (first, last) = (shared(before), shared(after));
    // A flow may have ended and another begun while runtimes were asked in turn.
    let lasting = last.iter().filter_map(|(mapping, who)| {
        let both: Vec<_> = first.get(mapping)?.intersection(who).collect();
        (both.len() > 1).then_some((mapping, both))
    });
    if let Some((mapping, who)) = lasting.into_iter().next() {
        let flows: Vec<String> =
            who.iter().map(|(source, destination)| format!("{source} > {destination}")).collect();
        let found = format!("{} are all {} > {} outside", flows.join(", "), mapping.2, mapping.3);
        return Check::fail(
            exit::NEGATIVE,
            "mappings",
            found,
            "replies reach one of them only: report this",
        );
    }
    let who = after.flows.iter().map(|flow| (flow.protocol, &flow.source, &flow.destination));
    let count = who.collect::<BTreeSet<_>>().len();
    Check::ok("mappings", format!("{count} flows, each with one of its own"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_check::Outcome;
    use holdfast_control::status::{
        Process, ROLE_STATE_SERVER, SHARED_PARTITIONED, SHARED_STATE_SERVER, STATE_AWAY,
    };
    use serde_json::json;

    fn look(pool: Pool) -> Status {
        let server = json!({ "role": ROLE_STATE_SERVER, "id": 65534, "incarnation": 1, "pid": 7, "host": "h", "state": STATE_RUNNING,
            "flows": 0, "packets": 0, "drops": {} });
        let status = json!({ "version": 1, "protected": "yes", "processes": [server] });
        Status { pools: vec![pool], ..serde_json::from_value(status).unwrap() }
    }

    fn served(held: u32, at_hand: u32, server: [u32; 4]) -> Status {
        let [free, has_at_hand, has_held, resting] = server;
        let server = ServerPool { free, at_hand: has_at_hand, held: has_held, resting };
        look(Pool { held, at_hand, server: Some(server), ..pool(SHARED_STATE_SERVER) })
    }

    fn pool(shared: &str) -> Pool {
        Pool {
            chain: "web".into(),
            function: "nat".into(),
            name: "ports".into(),
            shared: shared.into(),
            size: 100,
            held: 0,
            at_hand: 0,
            server: None,
        }
    }

    fn outcome(looks: &[Status]) -> Outcome {
        super::pool(0, looks).outcome
    }

    /// Values in transit differ in both directions, wrong ones in a single direction.
    #[test]
    fn what_is_wrong_is_so_in_every_look() {
        let right = served(10, 4, [80, 4, 10, 6]);
        assert_eq!(
            outcome(&[right.clone(), served(11, 4, [80, 4, 10, 6]), served(9, 4, [80, 4, 10, 6])]),
            Outcome::Ok
        );
        let unknown = served(12, 4, [80, 4, 10, 6]);
        assert_eq!(outcome(&[unknown.clone(), served(13, 4, [80, 4, 11, 5])]), Outcome::Fail);
        assert_eq!(outcome(&[unknown, right.clone()]), Outcome::Ok);
        assert_eq!(
            outcome(&[served(9, 4, [80, 4, 10, 6]), served(8, 4, [80, 4, 10, 6])]),
            Outcome::Warn
        );
        assert_eq!(
            outcome(&[right.clone(), served(10, 4, [81, 4, 10, 6])]),
            Outcome::Fail,
            "101 of 100"
        );
        let [growing, shrinking] = [[10, 11, 12], [12, 11, 10]]
            .map(|held| held.map(|held| served(held + 1, 4, [90 - held, 4, held, 6])));
        assert_eq!(
            (outcome(&growing), outcome(&shrinking)),
            (Outcome::Ok, Outcome::Ok),
            "the server is heard later"
        );
        let away = Status { processes: Vec::new(), ..right.clone() };
        assert_eq!(outcome(&[right, away]), Outcome::Warn);
        assert_eq!(outcome(&[look(pool(SHARED_STATE_SERVER))]), Outcome::Warn, "it has not spoken");
        let divided = |held, at_hand| look(Pool { held, at_hand, ..pool(SHARED_PARTITIONED) });
        assert_eq!(outcome(&[divided(50, 51), divided(50, 50)]), Outcome::Ok);
        assert_eq!(outcome(&[divided(50, 51), divided(50, 52)]), Outcome::Fail);
    }

    /// Only the first state server has numbers.
    #[test]
    fn of_several_state_servers_the_first_has_to_be_there() {
        let with = |states: [&str; 2]| {
            let mut look = served(10, 4, [80, 4, 10, 6]);
            let first = look.processes[0].clone();
            let server =
                |(id, state): (u32, &str)| Process { id, state: state.into(), ..first.clone() };
            look.processes = [65534, 65533].into_iter().zip(states).map(server).collect();
            outcome(&[look])
        };
        assert_eq!(with([STATE_RUNNING, STATE_RUNNING]), Outcome::Ok);
        assert_eq!(with([STATE_RUNNING, STATE_AWAY]), Outcome::Ok);
        assert_eq!(with([STATE_AWAY, STATE_RUNNING]), Outcome::Warn);
    }

    #[test]
    fn two_flows_with_one_mapping_are_found() {
        let flow = |source: &str, owner: u32| Flow {
            protocol: 17,
            source: source.to_owned(),
            destination: "192.0.2.7:53".to_owned(),
            translated_source: "198.51.100.4:1024".to_owned(),
            translated_destination: "192.0.2.7:53".to_owned(),
            owner,
            ..Flow::default()
        };
        let list = |flows: Vec<Flow>| Flows { flows, ..Flows::default() };
        let moving = list(vec![flow("10.0.0.1:5", 16), flow("10.0.0.1:5", 17)]);
        let two = list(vec![flow("10.0.0.1:5", 16), flow("10.0.0.2:6", 17)]);
        assert_eq!(mappings([&moving, &moving]).outcome, Outcome::Ok);
        assert_eq!(mappings([&moving, &two]).outcome, Outcome::Ok, "one ended meanwhile");
        let turned = list(two.flows.iter().rev().cloned().collect());
        let check = mappings([&two, &turned]);
        assert_eq!(check.outcome, Outcome::Fail);
        assert!(check.found.contains("10.0.0.2:6 > 192.0.2.7:53"), "{}", check.found);
    }
}
