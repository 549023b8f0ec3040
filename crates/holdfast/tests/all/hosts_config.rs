//! The section `hosts:` of the configuration.

use holdfast::config::{self, Fabric, Plan};

const BOX: &str =
    "cluster: edge\nports: { inside: { device: v0, address: 10.0.0.1/24 }, outside: { device: v1, address: 198.51.100.1/24 } }
chains: { c: { functions: [forward] } }\nrules: [{ chain: c }]\nruntimes: { min: 2 }\n";

fn read(section: &str) -> Result<Plan, String> {
    config::read("edge.yaml", &format!("{BOX}{section}")).map_err(|mistake| mistake.to_string())
}

fn plan(section: &str) -> Plan {
    read(section).unwrap_or_else(|mistake| panic!("{mistake}"))
}

const THREE: &str = "state: /s\nhosts:
  alpha: { fabric: f0, devices: { outside: w1 } }
  beta:  { fabric: f0 }
  gamma: { fabric: f1, coordinator: true, serves: false, runtimes: false }\n";

/// A mistake is shown at its place, with what would be right.
#[test]
fn mistakes_have_their_place() {
    let cases = [
        (
            "hosts: { a: { fabric: f0 }, b: { fabric: f0 } }",
            "6:8: `hosts` needs `state`, a directory: each host keeps there what it must know when it is switched on again",
        ),
        (
            "state: /s\nhosts: { a: { fabric: f0 } }",
            "7:8: `hosts` names 2 to 8 hosts, not 1: a box on one host needs none",
        ),
        (
            "state: /s\nhosts: { a: { fabric: f0 }, b: { fabric: v0 } }",
            "7:42: port `inside` has this device: the hosts' network is one of its own",
        ),
        (
            "state: /s\nhosts: { a: { fabric: f0, devices: { insid: x } }, b: { fabric: f0 } }",
            "7:38: there is no port `insid`: `inside`, `outside`; did you mean `inside`?",
        ),
        (
            "state: /s\nhosts: { a: { fabric: f0, devices: { inside: v1 } }, b: { fabric: f0 } }",
            "7:36: port `outside` is on `v1`: port `inside` has this device already: ports share one if each has another `vlan`",
        ),
        (
            "state: /s\nhosts: { a: { fabric: f0, coordinator: true }, b: { fabric: f0, coordinator: true } }",
            "7:78: the coordinator lives on one host, and `a` has it already",
        ),
        (
            "state: /s\nhosts: { a: { fabric: f0, serves: false }, b: { fabric: f0, serves: false } }",
            "7:8: `serves` is false for every host: somebody has to",
        ),
        (
            "state: /s\nhosts: { a: { fabric: f0, runtimes: false }, b: { fabric: f0, runtimes: false } }",
            "7:8: `runtimes` is false for every host: somebody has to",
        ),
        (
            "state: /s\nhosts: { a: { fabric: f0 }, .b: { fabric: f0 } }",
            "7:29: a host's name is 1 to 48 letters, digits, `-`, `_` or `.`, and does not begin with `.`",
        ),
        (
            "state: /s\nhosts: { a: { fabric: { udp: 10.9.0.1:7000 } }, b: { fabric: { udp: 10.9.0.2:7000 } } }",
            "7:30: `udp` needs `fabric: { key: FILE }`: without a key the box would believe whoever can send datagrams; `holdfast keygen FILE` makes one",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: { udp: 10.9.0.1:7000 } }, b: { fabric: f0 } }",
            "8:62: host `a` is joined by UDP, and this one by a device: all are joined alike",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: f0 }, b: { fabric: { udp: 10.9.0.1:7000 } } }",
            "8:42: host `a` is joined by a device, and this one by UDP: all are joined alike",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: { udp: 10.9.0.1:7000 } }, b: { fabric: { udp: 10.9.0.1:7000 } } }",
            "8:69: host `a` has this address and port already",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: { udp: 10.9.0.1:7000 } }, b: { fabric: { udp: \"[2001:db8::2]:7000\" } } }",
            "8:69: [2001:db8::2]:7000 and 10.9.0.1:7000, of host `a`, are of different address families",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: { udp: 10.9.0.1 } }, b: { fabric: f0 } }",
            "8:30: `10.9.0.1` is no address with a port, like 10.9.0.1:7000 or [2001:db8::1]:7000",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: { udp: 0.0.0.0:7000 } }, b: { fabric: f0 } }",
            "8:30: `0.0.0.0` is no address of a host: the others send there, and know by it who has sent",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: { udp: 10.9.0.1:0 } }, b: { fabric: f0 } }",
            "8:30: the port is 0: the others could not send there",
        ),
        (
            "state: /s\nfabric: { key: k, mtu: 900 }\nhosts: { a: { fabric: f0 }, b: { fabric: f0 } }",
            "7:24: an MTU of 900 is too small for the network between hosts: at least 1280 is needed",
        ),
        (
            "state: /s\nhosts: { a: { fabric: { ucp: 10.9.0.1:7000 } }, b: { fabric: f0 } }",
            "7:25: there is no key `ucp` here: `udp`; did you mean `udp`?",
        ),
        (
            "state: /s\nhosts: { a: { fabric: 7 }, b: { fabric: f0 } }",
            "7:23: a device's name, or `{ udp: ADDRESS:PORT }`, or a list of two of these, is expected here, not integer `7`",
        ),
        (
            "state: /s\nhosts: { a: { fabric: [ f0, f1 ] }, b: { fabric: [ f0, f1 ] } }",
            "7:23: two networks need `fabric: { key: FILE }`: without a key anybody could say which of them leads somewhere; `holdfast keygen FILE` makes one",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: [ f0, f1 ] }, b: { fabric: f0 } }",
            "8:50: two networks join host `a` with the others, and one network this one: all are joined alike",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: f0 }, b: { fabric: [ f0, f1 ] } }",
            "8:42: one network joins host `a` with the others, and two networks this one: all are joined alike",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: [ f0, f0 ] }, b: { fabric: [ f0, f1 ] } }",
            "8:29: the first network has this device: two networks are two",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: [ f0, v0 ] }, b: { fabric: [ f0, f1 ] } }",
            "8:29: port `inside` has this device: the hosts' network is one of its own",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: [ f0, f1 ] }, b: { fabric: [ f0, { udp: 10.9.0.1:7000 } ] } }",
            "8:56: host `a` is joined by a device, and this one by UDP: all are joined alike",
        ),
        (
            "state: /s\nfabric: { key: k }\nhosts: { a: { fabric: [ f0, f1, f2 ] }, b: { fabric: [ f0, f1 ] } }",
            "8:23: one network or two join the hosts, not 3",
        ),
    ];
    for (section, expected) in cases {
        let said = read(section).err().unwrap_or_default();
        let first = said.lines().next().unwrap_or_default();
        assert_eq!(first, format!("edge.yaml:{expected}"), "{section}\n{said}");
    }
}

/// The coordinator's host is the first, whatever its place in the file; the others keep
/// their order. A host's own devices take the ports' places.
#[test]
fn hosts_are_numbered_from_the_coordinators() {
    let plan = plan(THREE);
    let names: Vec<&str> = plan.hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["gamma", "alpha", "beta"]);
    let found = |name| plan.host(Some(name)).unwrap_or_else(|text| panic!("{text}"));
    assert_eq!((found("gamma"), found("alpha"), found("beta")), (0, 1, 2));
    let devices: Vec<&[String]> = plan.hosts.iter().map(|host| host.devices.as_slice()).collect();
    assert_eq!(devices, [["v0", "v1"], ["v0", "w1"], ["v0", "v1"]]);
    let roles: Vec<(bool, bool)> =
        plan.hosts_config().hosts.iter().map(|host| (host.has_ports, host.has_runtimes)).collect();
    assert_eq!(roles, [(false, false), (true, true), (true, true)]);
}

/// If there are several hosts, each has to be told which one it is. A misspelt name is
/// answered with the names that there are.
#[test]
fn a_host_must_be_named_where_there_are_several() {
    let plan = plan(THREE);
    assert_eq!(
        plan.host(None),
        Err("the box has several hosts: say which this one is, `--host NAME`; `gamma`, `alpha`, `beta`".to_owned())
    );
    assert_eq!(
        plan.host(Some("bta")),
        Err("there is no host `bta`: `gamma`, `alpha`, `beta`; did you mean `beta`?".to_owned())
    );
    assert_eq!(
        plan.host(Some("")),
        Err("there is no host ``: `gamma`, `alpha`, `beta`".to_owned())
    );
}

/// A box on one host has no names.
#[test]
fn the_only_host_needs_no_name_and_has_none() {
    let plan = plan("");
    assert_eq!(plan.host(None), Ok(0));
    assert_eq!(
        plan.host(Some("alpha")),
        Err("`--host alpha`: the configuration has no `hosts`".to_owned())
    );
}

/// A host that serves no port has none to open.
#[test]
fn a_host_has_its_own_ports_and_one_that_serves_none_has_none() {
    let ports_of = |number| {
        plan(THREE).on_host(number).ports.into_iter().map(|port| port.device).collect::<Vec<_>>()
    };
    assert_eq!(
        (ports_of(0), ports_of(1), ports_of(2)),
        (vec![], vec!["v0".into(), "w1".into()], vec!["v0".into(), "v1".into()])
    );
}

/// Two networks may join the hosts, each of either kind.
#[test]
fn two_networks_may_join_the_hosts() {
    let plan = plan(
        "state: /s\nfabric: { key: k }\nhosts:\n  a: { fabric: [ f0, { udp: 10.9.0.1:7000 } ] }\n  b: { fabric: [ f9, { udp: 10.9.0.2:7000 } ] }\n",
    );
    let networks = |host: &str, address: &str| {
        let address = address.parse().unwrap_or_else(|error| panic!("{error}"));
        vec![Fabric::Device(host.to_owned()), Fabric::Udp(address)]
    };
    let found: Vec<_> = plan.hosts.iter().map(|host| host.fabric.clone()).collect();
    assert_eq!(found, [networks("f0", "10.9.0.1:7000"), networks("f9", "10.9.0.2:7000")]);
}

/// Hosts that no Ethernet joins have addresses instead, in the order of the hosts.
#[test]
fn hosts_may_be_joined_by_udp() {
    let plan = plan(
        "state: /s\nfabric: { key: k, mtu: 1400 }\nhosts:\n  a: { fabric: { udp: 10.9.0.1:7000 } }\n  b: { fabric: { udp: 10.9.0.2:7001 }, coordinator: true }\n",
    );
    let fabrics: Vec<&Fabric> = plan.hosts.iter().flat_map(|host| &host.fabric).collect();
    let address = |text: &str| Fabric::Udp(text.parse().unwrap_or_else(|error| panic!("{error}")));
    assert_eq!(fabrics, [&address("10.9.0.2:7001"), &address("10.9.0.1:7000")]);
    assert_eq!(plan.fabric_mtu, Some(1400));
}
