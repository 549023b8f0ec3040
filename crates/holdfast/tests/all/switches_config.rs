//! The section `switches`, which divides the ports among several switches.

use holdfast::config::{self, Plan};
use holdfast_wire::NodeId;

const FILE: &str = "\
cluster: edge
state: /state
ports:
  lan-e: { device: a, address: 10.0.0.1/24 }
  lan-w: { device: b, address: 10.0.0.2/24 }
  wan-e: { device: c, address: 198.51.100.1/24, gateway: 198.51.100.254 }
  wan-w: { device: d, address: 203.0.113.1/24, gateway: 203.0.113.254 }
routes:
  - { to: 10.9.0.0/16, via: 10.0.0.9 }
chains:
  east: { functions: [ { nat: { pool: [ 198.51.100.4/31 ] } } ], protection: nfvactor, switch: east }
  west: { functions: [ { nat: { pool: [ 203.0.113.4/31 ] } } ], protection: nfvactor, switch: west }
rules:
  - { chain: east }
  - { chain: west }
hosts:
  left: { fabric: f }
  right: { fabric: f }
  witness: { fabric: f, serves: false, runtimes: false, coordinator: true }
switches:
  east: { ports: [lan-e, wan-e], host: left }
  west: { ports: [lan-w, wan-w], host: right }
";

/// A mistake: the line from the mistake's place on, and the message.
fn said(text: &str) -> (String, String) {
    let mistake = config::read("edge.yaml", text).expect_err("a mistake");
    (mistake.text.chars().skip(mistake.column - 1).collect(), mistake.message)
}

fn read(text: &str) -> Plan {
    config::read("edge.yaml", text).unwrap_or_else(|mistake| panic!("{mistake}"))
}

/// A port has its number among those of its switch. In a chain, a zone means those of its
/// ports that are the chain's switch's. A zone without any such port is a mistake.
#[test]
fn zones_are_each_switchs_own() {
    let zoned =
        FILE.replace("chains:\n", "zones: { lans: [lan-e, lan-w], west-only: [wan-w] }\nchains:\n");
    let with = |east: &str, west: &str| {
        let rule = |chain: &str, on: &str| format!("  - {{ on: {on}, chain: {chain} }}");
        zoned
            .replace("  - { chain: east }", &rule("east", east))
            .replace("  - { chain: west }", &rule("west", west))
    };
    let on = |text: &str| {
        read(text).rules.iter().map(|rule| rule.selector.on.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(on(&with("lans", "lans")), ["#0", "#0"]);
    assert_eq!(on(&with("wan-e", "west-only")), ["#1", "#1"]);
    let (place, message) = said(&with("west-only", "lans"));
    assert!(place.starts_with("west-only"), "{place}");
    assert_eq!(message, "`west-only` has no port of this chain's switch, so nothing would match");
    let firewall = |on: &str| {
        let function = format!("{{ firewall: {{ rules: [ \"allow tcp on {on}\" ] }} }}");
        zoned.replace("{ nat: { pool: [ 198.51.100.4/31 ] } }", &function)
    };
    assert!(config::read("edge.yaml", &firewall("lan-e")).is_ok());
    let (place, message) = said(&firewall("lan-w"));
    assert!(place.starts_with("lan-w"), "{place}");
    assert_eq!(
        message,
        "firewall: `lan-w` has no port of this chain's switch, so nothing would match"
    );
}

/// Each switch has an edge of its own: its ports, counted from 0, the routes by them, and
/// the addresses of its chains. The same network may be at ports of both switches.
#[test]
fn each_switch_has_its_own_ports_routes_and_addresses() {
    let plan = read(FILE);
    let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3], [2, 0, 0, 0, 0, 4]]
        .map(|mac| (mac, 1500));
    let edges = plan.edges(&macs, &[], || 0);
    let seen: Vec<_> = edges.iter().map(|(_, ports)| ports.clone()).collect();
    assert_eq!(seen, [vec![0, 2], vec![1, 3]]);
    for (at, (edge, ports)) in edges.iter().enumerate() {
        let own: Vec<u8> = edge.ports.iter().map(|port| port.mac[5] - 1).collect();
        assert_eq!(&own, ports);
        let routes: Vec<String> =
            edge.routes.iter().map(|route| format!("{} by {}", route.prefix, route.port)).collect();
        assert_eq!(routes, ["0.0.0.0/0 by 1", "10.9.0.0/16 by 0"]);
        let owned: Vec<String> = edge.owned.iter().map(ToString::to_string).collect();
        assert_eq!(owned, [["198.51.100.4/31"], ["203.0.113.4/31"]][at]);
    }
    assert_eq!(
        plan.chains.iter().map(|chain| chain.switch).collect::<Vec<_>>(),
        [NodeId::switch(0), NodeId::switch(1)]
    );
    let places = plan.hosts_config();
    // The coordinator's host has number 0.
    assert_eq!(
        places.switches.iter().map(|place| place.host).collect::<Vec<_>>(),
        [Some(1), Some(2)]
    );
    assert_eq!(
        places.switches.iter().map(|place| place.chains.clone()).collect::<Vec<_>>(),
        [[0], [1]]
    );
}

/// Without `switches` there is a single switch, which has everything.
#[test]
fn without_them_there_is_one() {
    let one = FILE
        .split("switches:")
        .next()
        .unwrap_or_default()
        .replace(", switch: east", "")
        .replace(", switch: west", "");
    let one = one.replace(
        "lan-w: { device: b, address: 10.0.0.2/24 }",
        "lan-w: { device: b, address: 10.1.0.1/24 }",
    );
    let one = one
        .replace(", gateway: 203.0.113.254", "")
        .replace("  - { chain: west }\n", "  - { from: 10.1.0.0/24, chain: west }\n");
    let plan = read(&one);
    assert_eq!(plan.switches.len(), 1);
    assert_eq!(
        (plan.switches[0].ports.clone(), plan.switches[0].chains.clone()),
        (vec![0, 1, 2, 3], vec![0, 1])
    );
    let places = plan.hosts_config();
    assert!(
        places.switches.len() == 1
            && places.switches[0].chains.is_empty()
            && places.switches[0].host.is_none()
    );
}

#[test]
fn mistakes_say_what_would_be_right() {
    let cases = [
        (
            "[lan-e, wan-e]",
            "[lan-e, wan-x]",
            "wan-x]",
            "there is no port `wan-x`: `lan-e`, `lan-w`, `wan-e`, `wan-w`; did you mean `wan-e`?",
        ),
        (
            "[lan-e, wan-e]",
            "[lan-e, wan-e, lan-w]",
            "lan-w, wan-w]",
            "port `lan-w` belongs to switch `east` already: each belongs to one",
        ),
        (
            "[lan-e, wan-e]",
            "[lan-e]",
            "wan-e: {",
            "port `wan-e` belongs to no switch: each of `switches` says which `ports` are its",
        ),
        ("[lan-e, wan-e]", "[]", "east:", "switch `east` needs ports, like `ports: [lan, wan]`"),
        (
            ", switch: west",
            "",
            "west:",
            "chain `west` says no switch, like `switch: east`: its flows come and go by that one's ports",
        ),
        (
            "switch: west",
            "switch: wset",
            "wset",
            "there is no switch `wset`: `east`, `west`; did you mean `west`?",
        ),
        (
            "switch: west",
            "switch: east",
            "west:",
            "no chain says `switch: west`: nothing that comes by its ports would go anywhere",
        ),
        (
            "  - { chain: west }\n",
            "",
            "rules:",
            "no rule names a chain of switch `west`: nothing that comes by its ports would go anywhere",
        ),
        (
            "host: right",
            "host: rihgt",
            "rihgt",
            "there is no host `rihgt`: `left`, `right`; did you mean `right`?",
        ),
        (
            "host: right",
            "host: witness",
            "witness",
            "host `witness` does not serve ports: `left`, `right` do",
        ),
        (
            "  west: { ports: [lan-w, wan-w], host: right }\n",
            "",
            "switches:",
            "`switches` names 2 to 6 switches, not 1: without it one has all ports",
        ),
        (
            "gateway: 203.0.113.254",
            "gateway: 198.51.100.253",
            "198.51.100.253",
            "the gateway 198.51.100.253 is in a network of port `wan-e`, not of port `wan-w`",
        ),
        (
            "203.0.113.4/31",
            "198.51.100.4/31",
            "198.51.100.4/31",
            "nat: 198.51.100.4/31 overlaps 198.51.100.4/31 of `nat` in chain `east`",
        ),
        (
            "203.0.113.4/31",
            "198.51.100.1",
            "198.51.100.1 ]",
            "nat: 198.51.100.1/32 contains 198.51.100.1, the box's own address on port `wan-e`, which is another switch's: what is sent there never reaches this chain",
        ),
        ("10.0.0.2/24", "10.0.0.1/24", "10.0.0.1/24", "the box has the address 10.0.0.1 already"),
        (
            "[lan-w, wan-w], host",
            "[lan-w, wan-w], hots",
            "hots",
            "there is no key `hots` here: `ports`, `host`; did you mean `host`?",
        ),
    ];
    for (one, other, at, expected) in cases {
        assert!(FILE.contains(one), "{one}");
        let (place, message) = said(&FILE.replacen(one, other, 1));
        assert!(place.starts_with(at) && message == expected, "{other}: {place}: {message}");
    }
    let hosts = FILE.find("hosts:").unwrap_or(0)..FILE.find("switches:").unwrap_or(0);
    let (place, message) = said(&FILE.replace(&FILE[hosts], ""));
    assert!(place.starts_with("switches:"), "{place}");
    assert_eq!(
        message,
        "`switches` are for several `hosts`, each of which serves some: a box on one host has one switch"
    );
    let (place, message) = said(FILE.split("switches:").next().unwrap_or_default());
    assert!(place.starts_with("switch: east"), "{place}");
    assert_eq!(
        message,
        "`switch` says which of several `switches` a chain belongs to, and there are none: leave it out"
    );
}

/// A change that takes a restart is named.
#[test]
fn they_are_changed_by_a_restart_only() {
    let running = read(FILE);
    let differences = |text: &str| {
        config::differences(&running, &read(text))
            .iter()
            .map(|difference| difference.mistake.message.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(differences(&FILE.replace("[lan-e, wan-e]", "[wan-e, lan-e]")), [""; 0]);
    assert_eq!(
        differences(&FILE.replace("host: right", "host: left")),
        [
            "`switches.west.host` is `right` in the running box and `left` here: it is changed by a restart only, which ends all flows; afterwards packets come and go another way"
        ]
    );
    let swapped = FILE
        .replace("[lan-e, wan-e]", "[lan-w, wan-e]")
        .replace("ports: [lan-w, wan-w]", "ports: [lan-e, wan-w]");
    assert_eq!(
        differences(&swapped),
        [
            "`switches.east.ports` is `lan-e, wan-e` in the running box and `lan-w, wan-e` here: it is changed by a restart only, which ends all flows; afterwards packets come and go another way",
            "`switches.west.ports` is `lan-w, wan-w` in the running box and `lan-e, wan-w` here: it is changed by a restart only, which ends all flows; afterwards packets come and go another way"
        ]
    );
    let renamed =
        FILE.replace("  west: { ports", "  wild: { ports").replace("switch: west", "switch: wild");
    assert_eq!(
        differences(&renamed),
        [
            "`chains.west.switch` is `west` in the running box and `wild` here: it is changed by a restart only, which ends all flows; afterwards packets come and go another way",
            "`switches.west` of the running box is not here: it is removed by a restart only, which ends all flows; afterwards packets come and go another way",
            "the running box has no `switches.wild`: it is added by a restart only, which ends all flows; afterwards packets come and go another way"
        ]
    );
}
