//! Rules decide about packets, and traces say which rule it was.

use super::*;

/// An operator traces two packets of a flow. A rule decides about the first one, and each
/// has the port by which it came in.
#[test]
fn a_trace_says_which_rule_decided() {
    let mut bench = Bench::new();
    let rule = Rule {
        selector: "udp from any to any port 53".parse().expect("a selector"),
        chain: 0,
        cluster: 0,
    };
    bench.rules(2, vec![rule.clone(), Rule { selector: Selector::any(), chain: 1, cluster: 0 }]);
    bench.switch.set_trace(Selector::any(), 2);
    for _ in 0..3 {
        bench.send_by(1, 7);
    }
    bench.deliver();
    let steps: Vec<_> =
        bench.switch.traces.iter().map(|step| (step.ingress, step.rule.clone())).collect();
    assert_eq!(steps, [(Some(1), None), (None, Some(rule)), (Some(1), None)]);
}

/// An operator traces twenty packets, and a burst has thirty: the packets behind wait for
/// the text of sixteen, and no more.
#[test]
fn a_burst_waits_for_few_traces() {
    let mut bench = Bench::new();
    bench.switch.set_trace(Selector::any(), 20);
    let mut traced = Vec::new();
    for _ in 0..3 {
        for from in 1..=30 {
            let (key, packet) = bench.packet(&datagram(from, false));
            bench.switch.handle_packet(key, packet);
        }
        bench.switch.forward(bench.now, &mut bench.out, &mut bench.pool);
        traced.push(
            bench.out.iter().filter(|(_, packet)| packet.meta.flags & Flags::TRACE != 0).count(),
        );
        bench.deliver();
    }
    assert_eq!(traced, [16, 4, 0]);
}

/// A rule is for one port of the box: a packet by another port finds no rule.
#[test]
fn a_rule_for_a_port_means_who_comes_in_by_it() {
    let mut bench = Bench::incarnation(1);
    bench.view(&[X, Y], 1);
    bench.rules(
        1,
        vec![Rule { selector: "udp on #1".parse().expect("a selector"), chain: 0, cluster: 0 }],
    );
    bench.send_by(0, 1);
    bench.send_by(1, 2);
    assert_eq!((bench.route(1), bench.out.len()), (None, 1));
    assert_eq!(bench.switch.drops().get(DropReason::NoRule), 1);
    bench.deliver();
}
