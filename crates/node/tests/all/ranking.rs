//! The flows, hosts and ports with the most bytes: the work of a turn, rounds that end,
//! and values of flows in a list.

use crate::listing::{FIRST, Host, OTHER, open};
use crate::runtime::Closing;
use crate::spot::{accepting, bound, datagram_from};
use holdfast_functions::Monitor;
use holdfast_node::manager::RankParts;
use holdfast_node::ranks::{Ranked, Ranks};
use holdfast_wire::map_v4;

const TIMEOUT: u64 = 300_000_000;
/// Bytes of a datagram's frame.
const BYTES: u64 = 43;

/// Sends so many more packets of a flow that is there.
fn go_on(all: &mut Host, spot: usize, port: u16, count: u64) {
    let now = all.now;
    let spot = &mut all.spots[spot];
    for number in 0..count {
        let frame = spot.packet(&datagram_from(2, port, 0), (now + 1 + number, 1, 0));
        spot.turn(&[frame], now);
    }
}

/// The answer of a round, and how long it took, ns.
fn answer(all: &mut Host, round: u32) -> (RankParts, u64) {
    let began = all.now;
    for _ in 0..1000 {
        if let Some(parts) = all.manager.take_ranks(round) {
            return (parts, all.now - began);
        }
        all.turn();
    }
    panic!("no answer");
}

fn ranks(all: &mut Host) -> Ranks {
    let round = all.manager.request_ranks();
    answer(all, round).0.shown().unwrap()
}

/// Two runtimes have a hundred flows each, and three of them more packets than the
/// others. These are named first, and hosts and ports have the bytes of all.
#[test]
fn flows_of_all_runtimes_are_ranked_together() {
    let mut all = Host::of(4096, bound::<Monitor>);
    let now = all.now;
    open(&mut all.spots[0], 1..=100, now);
    open(&mut all.spots[1], 1001..=1100, now);
    go_on(&mut all, 0, 7, 5);
    go_on(&mut all, 1, 1033, 9);
    go_on(&mut all, 1, 1001, 2);
    let ranks = ranks(&mut all);
    let first: Vec<_> =
        ranks.flows.iter().take(3).map(|flow| (flow.of.source_port, flow.packets)).collect();
    assert_eq!(first, [(1033, 10), (7, 6), (1001, 3)]);
    assert_eq!((ranks.flows.len(), ranks.flows[0].bytes), (10, 10 * BYTES));
    let packets = 200 + 5 + 9 + 2;
    let host = |address| Ranked { of: map_v4(address), packets, bytes: packets * BYTES };
    assert_eq!(ranks.hosts, [host([10, 0, 0, 2]), host([192, 0, 2, 1])]);
    assert_eq!(ranks.ports, [Ranked { of: (17, 53), packets, bytes: packets * BYTES }]);
    assert_eq!((ranks.hosts_slack, ranks.ports_slack), (0, 0));
    // The list shows what the monitor knows of a flow.
    let flows = all.piece(1000, "", None).flows().unwrap();
    let flow = flows.iter().find(|flow| flow.key.source_port == 7).unwrap();
    assert_eq!(flow.values[..3], [Some(6), Some(6 * BYTES), None]);
    assert_eq!((flow.values.len(), flow.values[7]), (14, Some(0)));
}

/// A chain without a monitor is not ranked, and is not walked.
#[test]
fn other_chains_are_not_ranked() {
    let mut all = Host::of(4096, accepting::<Closing>);
    let now = all.now;
    open(&mut all.spots[0], 1..=100, now);
    assert_eq!(ranks(&mut all), Ranks::default());
}

/// A large table takes many turns, each of which adds up a few slots.
#[test]
fn a_turn_adds_up_little() {
    const FLOWS: u64 = 6000;
    let mut all = Host::of(8192, bound::<Monitor>);
    let now = all.now;
    open(&mut all.spots[0], 1..=FLOWS as u32, now);
    let round = all.manager.request_ranks();
    let (parts, took) = answer(&mut all, round);
    let ranks = parts.shown().unwrap();
    assert_eq!(ranks.hosts[0].packets, FLOWS);
    assert!(took / 1_000_000 >= FLOWS / 256, "{took} ns in turns of a millisecond");
}

/// Clients that ask while a round is under way get the next one, together.
#[test]
fn one_round_is_under_way_at_a_time() {
    let mut all = Host::of(4096, bound::<Monitor>);
    let now = all.now;
    open(&mut all.spots[0], 1..=3, now);
    let rounds = [(); 4].map(|()| all.manager.request_ranks());
    assert_eq!(rounds.map(|round| round - rounds[0]), [0, 1, 1, 1]);
    let packets = |all: &mut Host, round| {
        answer(all, round).0.shown().unwrap().hosts.first().map(|host| host.packets)
    };
    assert_eq!(packets(&mut all, rounds[0]), Some(3));
    go_on(&mut all, 0, 1, 5);
    assert_eq!(packets(&mut all, rounds[1]), Some(8));
    assert!(all.manager.take_ranks(rounds[3]).is_some(), "the same answer");
    assert!(all.manager.ranks_are_due(rounds[3]));
}

/// A runtime that hangs is missing in the answer after a while. One that has ended is
/// missing at once.
#[test]
fn nobody_waits_for_a_runtime_that_hangs() {
    let mut all = Host::of(4096, bound::<Monitor>);
    let now = all.now;
    open(&mut all.spots[0], 1..=3, now);
    open(&mut all.spots[1], 1001..=1004, now);
    all.spots.truncate(1);
    let round = all.manager.request_ranks();
    let (parts, took) = answer(&mut all, round);
    assert_eq!(parts.shown().unwrap().hosts[0].packets, 3);
    assert!((TIMEOUT..TIMEOUT + 5_000_000).contains(&took), "{took}");
    let round = all.manager.request_ranks();
    all.manager.handle_ended(OTHER, Some(4));
    let (parts, took) = answer(&mut all, round);
    assert_eq!(parts.shown().unwrap().hosts[0].packets, 3);
    assert!(took < 10_000_000, "{took}");
    all.manager.handle_ended(FIRST, Some(3));
    assert_eq!(ranks(&mut all), Ranks::default(), "nobody is there");
}
