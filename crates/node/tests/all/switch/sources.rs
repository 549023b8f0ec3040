//! Limits on a source's flows.

use super::*;
use holdfast_node::message::ClaimFlag::HalfOpen;
use holdfast_node::switch::Opening;
use holdfast_wire::fault::{Fault, plant};
use holdfast_wire::header::tcp_flags::{ACK, RST, SYN};
use holdfast_wire::zone::Zones;

fn half_open(most: u32) -> SwitchLimits {
    SwitchLimits { half_open: Some(most), ..SwitchLimits::default() }
}

/// A TCP segment from port `from` of the inside, or one of its server.
fn segment(from: u16, is_reply: bool, flags: u8) -> Vec<u8> {
    let mut frame = datagram(from, is_reply);
    frame[17] = 40;
    frame[23] = 6;
    frame.truncate(38);
    frame.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xfa, 0, 0, 0, 0, 0]);
    frame
}

/// A datagram from port `from` of another host of the inside.
fn from_host(last: u8, from: u16) -> Vec<u8> {
    let mut frame = datagram(from, false);
    frame[29] = last;
    frame
}

impl Bench {
    fn limited(limits: SwitchLimits) -> Bench {
        let mut bench = Bench::with_limits(1, Vec::new(), limits);
        bench.view(&[X, Y], 1);
        bench.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
        bench
    }

    /// The first packet of the flow that begins with this frame leaves.
    fn leaves(&mut self, frame: &[u8]) {
        let (key, mut packet) = self.packet(frame);
        let epoch =
            self.switch.routes().find(|route| route.key == key).expect("a route").epoch.get();
        (packet.meta.commit, packet.meta.flags) = (epoch, Flags::LEARN);
        assert!(self.switch.handle_released(&packet));
        self.pool.put(packet);
    }

    fn refused(&self) -> u64 {
        self.switch.drops().get(DropReason::HalfOpenLimit)
    }
}

/// A host opens flows to three servers that do not answer, and may not open a fourth; its
/// existing flows go on. When one server has answered, or a flow has ended, it may open
/// another.
#[test]
fn a_source_has_so_many_half_open_flows_and_no_more() {
    let mut bench = Bench::limited(half_open(3));
    for from in 1..4 {
        assert!(bench.passes(&datagram(from, false)));
        bench.leaves(&datagram(from, false));
    }
    assert!(!bench.passes(&datagram(4, false)));
    assert_eq!((bench.refused(), bench.switch.half_open(), bench.switch.len()), (1, 3, 3));
    assert!(bench.passes(&datagram(1, false)), "it is a flow that there is");
    assert!(bench.passes(&datagram(1, true)));
    assert!(bench.passes(&datagram(4, false)));
    assert!(!bench.passes(&datagram(5, false)));
    let route = bench.route(2).expect("it is there");
    bench.end(route.owner, 2, route.epoch.get());
    assert!(bench.passes(&datagram(5, false)));
    assert_eq!((bench.refused(), bench.switch.half_open()), (2, 3));
    let _planted = plant(Fault::IgnoresHalfOpen.into());
    assert!(bench.passes(&datagram(6, false)));
}

/// A TCP flow is half open until its initiator goes on after the answer. A repeated SYN
/// does not count as that, and an error about the SYN is no answer. A reset by the server
/// ends the opening.
#[test]
fn how_far_an_opening_has_come() {
    let mut bench = Bench::limited(half_open(1));
    let opening = |bench: &Bench| bench.switch.routes().next().expect("a route").opening;
    let syn = segment(1, false, SYN);
    assert!(bench.passes(&syn));
    bench.leaves(&syn);
    assert!(bench.passes(&syn));
    assert_eq!(opening(&bench), Opening::Unanswered);
    assert!(bench.passes(&segment(1, true, SYN | ACK)));
    assert!(bench.passes(&syn));
    assert_eq!(opening(&bench), Opening::Answered);
    assert!(!bench.passes(&segment(2, false, SYN)));
    assert!(bench.passes(&segment(1, false, ACK)));
    assert_eq!((opening(&bench), bench.switch.half_open()), (Opening::Over, 0));
    assert!(bench.passes(&segment(2, false, SYN)));
    bench.leaves(&segment(2, false, SYN));
    assert!(!bench.passes(&segment(3, false, SYN)));
    assert!(bench.passes(&segment(2, true, RST | ACK)));
    assert!(bench.passes(&segment(3, false, SYN)));
    assert_eq!(bench.refused(), 2);
}

/// A new incarnation of the switch counts the flows that runtimes tell and replicas
/// claim, as far as they are half open.
#[test]
fn a_new_incarnation_has_the_right_counts() {
    let mut bench = Bench::with_limits(2, Vec::new(), half_open(3));
    bench.introduce(&[X, Y], &[]);
    bench.tell_as(X, &[(1, 40, None), (2, 41, None)], Some(HalfOpen), 41, true);
    bench.tell(Y, &[(3, 42, None), (4, 43, None)], 43, true);
    assert_eq!((bench.switch.len(), bench.switch.half_open()), (4, 2));
    assert!(bench.switch.is_whole());
    given(bench.claim_replied(Y, 5, 5, 39, Some(HalfOpen)));
    assert_eq!((bench.switch.len(), bench.switch.half_open()), (5, 3));
    assert!(!bench.passes(&datagram(6, false)));
    assert!(bench.passes(&datagram(1, true)));
    assert!(bench.passes(&datagram(6, false)));
}

/// Flows come for several runtimes, and a function allows twenty per host. The
/// twenty-first is refused and counted, whichever runtime would have got it. When one has
/// ended, another is admitted. Another host may have twenty, too.
#[test]
fn a_functions_limit_holds_for_all_runtimes_together() {
    let nat = serde_json::json!({ "pool": ["198.51.100.4/31"], "limit_per_host": 20, "publish": ["udp 198.51.100.9:1-3 -> 10.0.0.2:1-3"] });
    let nat =
        holdfast_functions::catalog::configured("nat", &nat, &Zones::default()).expect("right");
    let mut bench = Bench::limited(SwitchLimits {
        chains: vec![nat.source_limit()],
        ..SwitchLimits::default()
    });
    let passed = (1..30).filter(|from| bench.passes(&datagram(*from, false))).count();
    assert_eq!(passed, 20 + 3, "three ports are published and need none of the pool's");
    assert!((1..24).all(|from| bench.route(from).is_some()), "those that came first");
    assert_eq!(
        (bench.switch.drops().get(DropReason::QuotaExceeded), bench.switch.len()),
        (29 - 23, 23)
    );
    assert!(bench.switch.routes_to(X) > 0 && bench.switch.routes_to(Y) > 0);
    assert!(bench.passes(&datagram(7, false)), "it is a flow that there is");
    let route = bench.route(7).expect("it is there");
    bench.end(route.owner, 7, route.epoch.get());
    assert!(bench.passes(&datagram(40, false)) && !bench.passes(&datagram(41, false)));
    // An outside client that opens a published port is no inside host.
    assert!(bench.passes(&datagram(42, true)));
    let others = (1..30).filter(|from| bench.passes(&from_host(3, *from))).count();
    assert_eq!(
        (others, bench.switch.drops().get(DropReason::QuotaExceeded)),
        (20, 7 + 9),
        "another host has its own"
    );
    let _planted = plant(Fault::IgnoresHostLimits.into());
    assert!(bench.passes(&datagram(41, false)));
}

/// Every tick tells the runtimes the table's fill.
#[test]
fn ticks_say_how_full_the_table_is() {
    let mut bench = Bench::new();
    for from in 0..48 {
        bench.send(from);
    }
    bench.deliver();
    bench.now += SECOND / 20;
    bench.switch.handle_timeout(bench.now, &mut bench.out, &mut bench.pool);
    let told: Vec<u32> = bench
        .out
        .drain(..)
        .map(|(_, mut tick)| {
            nsh::decapsulate(&mut tick).expect("a tick");
            let fill = tick.meta.commit;
            bench.pool.put(tick);
            fill
        })
        .collect();
    assert_eq!(told, [750, 750]);
}
