//! Configurations that are accepted, and the messages about mistakes.

mod attached;
mod mistakes;
mod protections;
mod state_server;
mod warnings;

use holdfast::config;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A configuration with something of everything.
const EXAMPLE: &str = r#"cluster: edge
ports:
  inside:  { device: veth-in,  address: 10.0.0.1/24 }
  outside: { device: veth-out, address: 198.51.100.1/24, gateway: 198.51.100.254 }
chains:
  web:
    functions:
      - firewall: { rules: [ "allow tcp from 10.0.0.0/24 to any port 80,443", "allow icmp from any to any" ], default: deny }
      - nat: { pool: [ 198.51.100.4/31 ] }
    protection: nfvactor          # or { flow: …, shared: …, release: …, rebuild: … }
  rest: { functions: [ forward ], protection: none }
rules:                            # longest prefix match
  - { from: 10.0.0.0/24, proto: tcp, chain: web }
  - { chain: rest }
runtimes: { min: 2, max: 4 }
"#;

fn edited(right: &str, wrong: &str) -> String {
    assert!(EXAMPLE.contains(right), "the example has no {right:?}");
    EXAMPLE.replacen(right, wrong, 1)
}

fn said(text: &str) -> String {
    config::read("edge.yaml", text).err().map(|mistake| mistake.to_string()).unwrap_or_default()
}

#[test]
fn every_mistake_is_named_with_its_place_and_what_would_be_right() {
    for (right, wrong, expected) in mistakes::MISTAKES.iter().chain(protections::MISTAKES) {
        assert_eq!(said(&edited(right, wrong)), *expected, "\n{right:?} -> {wrong:?}");
    }
}

#[test]
fn the_example_of_the_design_is_read_as_it_is_meant() {
    let plan = config::read("edge.yaml", EXAMPLE).unwrap_or_else(|mistake| panic!("{mistake}"));
    assert_eq!(plan.cluster, "edge");
    assert_eq!((plan.limits.flows, plan.limits.half_open_per_source), (65_536, 6_553));
    let ports: Vec<(&str, &str)> =
        plan.ports.iter().map(|port| (port.name.as_str(), port.device.as_str())).collect();
    assert_eq!(ports, [("inside", "veth-in"), ("outside", "veth-out")]);
    assert_eq!(plan.ports[1].addresses, [("198.51.100.1".parse().unwrap(), 24)]);
    let [default] = plan.routes.as_slice() else { panic!("{:?}", plan.routes) };
    assert_eq!((default.prefix.to_string().as_str(), default.port), ("0.0.0.0/0", 1));
    assert_eq!(default.gateway, Some("198.51.100.254".parse().unwrap()));
    let rules: Vec<(String, u16)> =
        plan.rules.iter().map(|rule| (rule.selector.to_string(), rule.chain)).collect();
    assert_eq!(
        rules,
        [("tcp from 10.0.0.0/24 to any".into(), 1), ("any from any to any".into(), 0)]
    );
    assert_eq!(plan.runtimes(), 2);
    assert_eq!(
        plan.switches[0].owned.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["198.51.100.4/31"]
    );

    let functions: Vec<(&str, Vec<&str>)> = plan
        .chains
        .iter()
        .map(|chain| (chain.name.as_str(), chain.functions.iter().map(|f| f.name()).collect()))
        .collect();
    assert_eq!(functions, [("rest", vec!["forward"]), ("web", vec!["firewall", "nat"])]);
    assert!(plan.chains.iter().all(|chain| *chain.bind().layout() == chain.layout));
    let pools: Vec<(u8, &str, u32)> =
        plan.pools.iter().map(|pool| (pool.id.function, pool.field, pool.size)).collect();
    assert_eq!((pools, plan.partitioned_pools().len()), (vec![(1, "ports", 2 * 64_512)], 1));
}

/// A chain and the box share a port's own address, as masquerading does, in a pool or a
/// static mapping.
#[test]
fn a_pool_may_be_a_ports_own_address() {
    for nat in [
        "pool: [ 198.51.100.1 ]",
        "pool: [ 198.51.100.1 ], publish: [ \"tcp 198.51.100.1:22 -> 10.0.0.9:22\" ]",
    ] {
        let text = EXAMPLE.replace("pool: [ 198.51.100.4/31 ]", nat);
        let plan = config::read("edge.yaml", &text).unwrap_or_else(|mistake| panic!("{mistake}"));
        assert_eq!(
            plan.switches[0].owned.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["198.51.100.1/32"]
        );
    }
}

#[test]
fn the_demos_boxes_are_right() {
    use holdfast_lab::demo::{ELASTIC, HOSTS, PROTECTED, UNPROTECTED};
    let elastic = PROTECTED.replace("{ min: 3, max: 3 }", "{ min: 2, max: 3 }") + ELASTIC;
    let hosts = PROTECTED.to_owned() + &HOSTS.replace("STATE", "/state");
    for text in [PROTECTED, UNPROTECTED, &elastic, &hosts] {
        assert_eq!(said(text), "");
    }
    assert!(elastic.contains("{ min: 2, max: 3 }"));
}

/// A router's port is the one whose network has the router's address, or the port that
/// the configuration names.
#[test]
fn routers_may_be_link_local_or_outside_of_all_networks() {
    let routers = |text: &str| -> Vec<_> {
        let plan = config::read("edge.yaml", text).unwrap_or_else(|mistake| panic!("{mistake}"));
        let text = |ip: std::net::IpAddr| ip.to_string();
        plan.routes
            .iter()
            .map(|route| {
                (route.prefix.to_string(), route.gateway.map_or(String::new(), text), route.port)
            })
            .collect()
    };
    let route = |to: &str, via: &str, port: u8| (to.to_owned(), via.to_owned(), port);
    let gateways = edited("gateway: 198.51.100.254", "gateway: [ 198.51.100.254, \"fe80::1\" ]");
    assert_eq!(
        routers(&gateways),
        [route("0.0.0.0/0", "198.51.100.254", 1), route("::/0", "fe80::1", 1)]
    );
    let beside = "routes:\n  - { to: 192.0.2.0/24, via: 172.16.0.1, on: outside }\n  - { to: \"2001:db8::/32\", via: \"fe80::1\", on: inside }\nchains:\n";
    assert_eq!(
        routers(&edited("chains:\n", beside))[1..],
        [route("192.0.2.0/24", "172.16.0.1", 1), route("2001:db8::/32", "fe80::1", 0)]
    );
    // A router that is watched, and the same address on another link.
    let twice =
        gateways.replace("\"fe80::1\" ]", "\"fe80::1\" ], bfd: [ { peer: \"fe80::1\" } ]").replace(
            "chains:\n",
            "routes: [ { to: \"::/0\", via: \"fe80::1\", on: inside } ]\nchains:\n",
        );
    assert_eq!(routers(&twice)[1..], [route("::/0", "fe80::1", 1), route("::/0", "fe80::1", 0)]);
    assert!(
        said(&twice.replace("on: inside", "on: outside"))
            .contains("there is a default route or gateway already to ::/0\n")
    );
    // A box with a single port need not name it.
    let single = "cluster: a\nports: { x: { device: e, address: 10.0.0.1/24 } }\nroutes: [ { to: \"::/0\", via: \"fe80::1\" } ]\nchains: { c: { functions: [ forward ] } }\nrules: [ { chain: c } ]\n";
    assert_eq!(routers(single), [route("::/0", "fe80::1", 0)]);
    // A link-local address may occur on every link, but only once on each.
    let own = edited("address: 10.0.0.1/24", "address: [ 10.0.0.1/24, \"fe80::1/64\" ]")
        .replace("address: 198.51.100.1/24", "address: [ 198.51.100.1/24, \"fe80::1/64\" ]");
    assert_eq!(said(&own), "");
    let doubled = own.replacen("\"fe80::1/64\" ]", "\"fe80::1/64\", \"fe80::1/64\" ]", 1);
    assert!(
        said(&doubled).contains("the box has the address fe80::1 already"),
        "{}",
        said(&doubled)
    );
    let itself = own.replace("gateway: 198.51.100.254", "gateway: \"fe80::1\"");
    assert!(
        said(&itself).contains("fe80::1 is the box's own address, not another router's"),
        "{}",
        said(&itself)
    );
}

#[test]
fn pools_and_services_answer_ping_where_somebody_asks_for_it() {
    let pinged = |text: &str| -> Vec<String> {
        let plan = config::read("edge.yaml", text).unwrap_or_else(|mistake| panic!("{mistake}"));
        let edges = plan.edges(&[([2; 6], 1500); 2], &[], || 1);
        edges[0].0.answers_ping.iter().map(ToString::to_string).collect()
    };
    assert_eq!(pinged(EXAMPLE), [] as [String; 0]);
    let with = |list: &str| {
        edited(
            "    protection: nfvactor ",
            &format!("    answers_ping: {list}\n    protection: nfvactor "),
        )
    };
    assert_eq!(pinged(&with("198.51.100.4/31")), ["198.51.100.4/31"]);
    assert_eq!(pinged(&with("[ 198.51.100.5 ]")), ["198.51.100.5/32"]);
}

/// Sources are checked at every port that does not say otherwise, and `off` is a word,
/// not a truth value.
#[test]
fn sources_are_checked_unless_a_port_says_otherwise() {
    use holdfast_node::edge::ReversePath::{Feasible, Off};
    let checks = |text: &str| -> Vec<_> {
        let plan = config::read("edge.yaml", text).unwrap_or_else(|mistake| panic!("{mistake}"));
        let edges = plan.edges(&[([2; 6], 1500); 2], &[], || 1);
        edges[0].0.ports.iter().map(|port| port.reverse_path).collect()
    };
    assert_eq!(checks(EXAMPLE), [Feasible, Feasible]);
    assert_eq!(
        checks(&edited("device: veth-out", "device: veth-out, reverse_path: off")),
        [Feasible, Off]
    );
}

#[test]
fn json_is_accepted() {
    let text = r#"{ "cluster": "a", "ports": { "x": { "device": "eth0", "address": ["10.0.0.1/24", "10.0.0.2/24", "2001:db8::1/64"],
        "gateway": ["10.0.0.9", "2001:db8::9"] } }, "chains": { "c": { "functions": ["forward"] } },
        "rules": [{ "proto": 47, "chain": "c" }, { "proto": "udp", "port": 53, "chain": "c" }], "runtimes": { "count": 1 } }"#;
    let plan = config::read("edge.json", text).unwrap_or_else(|mistake| panic!("{mistake}"));
    assert_eq!((plan.ports[0].addresses.len(), plan.routes.len(), plan.runtimes()), (3, 2, 1));
    let rules: Vec<String> = plan.rules.iter().map(|rule| rule.selector.to_string()).collect();
    assert_eq!(rules, ["proto-47 from any to any", "udp from any to any port 53"]);
}

#[test]
fn other_ways_to_say_the_same_are_understood() {
    let same = [
        ("{ min: 2, max: 4 }", "2"),
        ("{ min: 2, max: 4 }", "{ count: 2 }"),
        ("protection: nfvactor ", "protection: { preset: nfvactor, release: source } "),
        ("protection: nfvactor ", "protection: { preset: nfvactor, release: auto } "),
        ("protection: nfvactor ", "protection: { flow: replica, release: auto } "),
        ("protection: nfvactor ", "protection: { preset: nfvactor, release: at-once } "),
        (
            "protection: nfvactor ",
            "protection: { flow: replica, release: at-once, unsaved_packets: 5 } ",
        ),
        (
            "protection: nfvactor ",
            "protection: { flow: replica, shared: partitioned, release: source, rebuild: replica } ",
        ),
        ("protection: nfvactor ", "protection: { flow: memory, release: at-once } "),
        ("protection: nfvactor ", "protection: { preset: nfvactor, shared: state-server } "),
        ("protection: nfvactor ", "protection: { preset: nfvactor, shared: partitioned } "),
        ("protection: nfvactor ", "protection: rescue "),
        ("protection: nfvactor ", "protection: { preset: rescue, shared: partitioned } "),
        (
            "protection: nfvactor ",
            "protection: { preset: rescue, release: at-once, write_back_packets: 5, hold_s: 7 } ",
        ),
        ("protection: nfvactor ", "protection: { flow: paged } "),
        ("protection: nfvactor ", "protection: { preset: rescue, resident_flows: 16 } "),
        (
            "protection: nfvactor ",
            "protection: { flow: paged, release: at-once, resident_flows: 5000 } ",
        ),
        (
            "protection: nfvactor ",
            "protection: { flow: paged, shared: partitioned, release: at-once, rebuild: pages, write_back_ms: 5 } ",
        ),
        ("protection: nfvactor ", "protection: { flow: memory, shared: state-server, hold_s: 0 } "),
        (
            "protection: nfvactor ",
            "protection: { preset: reinforce, level: local, shared: state-server, hold_s: 3600 } ",
        ),
        ("protection: none", "protection: { preset: none }"),
        ("protection: nfvactor ", "protection: nfactor "),
        (
            "protection: nfvactor ",
            "protection: { preset: nfactor, release: at-once, snapshot_every: 25 } ",
        ),
        (
            "protection: nfvactor ",
            "protection: { flow: snapshot, release: at-once, rebuild: snapshots, snapshot_every: 1 } ",
        ),
        ("- nat: { pool: [ 198.51.100.4/31 ] }", "- nat:\n          pool: [ 198.51.100.4/31 ]"),
        ("[ forward ]", "[ forward: {} ]"),
        (
            "[ forward ], protection: none",
            "[ monitor ], protection: { preset: none, shared: state-server }",
        ),
        ("gateway: 198.51.100.254", "gateway: [198.51.100.254], mtu: 1400"),
        ("gateway: 198.51.100.254", "gateway: 198.51.100.254, reverse_path: feasible"),
        ("device: veth-out", "device: \"afpacket:veth-out\""),
        ("device: veth-out", "device: \"dpdk:0000:01:00.0\""),
        ("device: veth-out", "device: \"dpdk:net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap\""),
        ("cluster: edge", "\u{feff}cluster: edge"),
    ];
    for (one, other) in same {
        assert_eq!(said(&edited(one, other)), "", "{other}");
    }
    for standby in ["local", "none"] {
        let text = format!(
            "{}\nstate_server: {{ standby: {standby} }}\n",
            edited("protection: nfvactor ", "protection: rescue ")
        );
        assert_eq!(said(&text), "", "{text}");
    }
}

#[test]
fn a_mistake_in_what_an_anchor_names_is_shown_where_it_is_written() {
    let text = EXAMPLE
        .replace("cluster: edge", "cluster: &net 10.0.0.1")
        .replace("from: 10.0.0.0/24", "from: *net");
    let plan = config::read("edge.yaml", &text);
    assert!(plan.is_ok(), "an alias is the text that it names");
    let text = EXAMPLE
        .replace("cluster: edge", "cluster: &net nowhere")
        .replace("from: 10.0.0.0/24", "from: *net");
    let mistake = config::read("edge.yaml", &text).expect_err("this is no prefix");
    assert_eq!((mistake.line, mistake.text.as_str()), (1, "cluster: &net nowhere"));
}

#[test]
fn whole_files_that_are_none() {
    let bomb = "cluster: a\nrules: [&a [x,x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]]\n";
    let cases = [
        ("", "edge.yaml: the file is empty"),
        ("# nothing", "edge.yaml: the file is empty"),
        (
            "- a",
            "edge.yaml:1:1: keys with values are expected here, like `key: value`\n1 | - a\n  | ^",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(said(text), expected);
    }
    assert!(
        said(&format!("{EXAMPLE}---\n{EXAMPLE}"))
            .starts_with("edge.yaml:17:1: a second document begins here")
    );
    assert!(said(&"[".repeat(200_000)).contains("limit"));
    assert!(!said(bomb).is_empty());
    assert!(said(&"#".repeat(holdfast_control::MAX_FILE + 1)).contains("longer than 4 MiB"));
}

/// Every `$ref` in a schema.
fn references(value: &serde_json::Value, into: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            into.extend(map.get("$ref").and_then(|target| target.as_str()).map(str::to_owned));
            map.values().for_each(|value| references(value, into));
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| references(item, into)),
        _ => {}
    }
}

#[test]
fn the_schema_knows_every_key_and_every_function_and_is_closed() {
    let schema = config::schema();
    let properties = schema["properties"].as_object().expect("an object has properties");
    let expected = [
        "chains",
        "cluster",
        "clusters",
        "control",
        "detection",
        "etcd",
        "fabric",
        "hosts",
        "limits",
        "ports",
        "routes",
        "rules",
        "runtimes",
        "scaling",
        "seccomp",
        "state",
        "state_server",
        "switches",
        "zones",
    ];
    assert_eq!(
        properties.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>(),
        expected.into()
    );
    let scaling = &schema["$defs"]["ScalingConfig"];
    assert_eq!(scaling["additionalProperties"], false);
    assert_eq!(scaling["properties"]["busy_percent"]["maximum"], 100);
    assert_eq!(scaling["properties"].as_object().map(serde_json::Map::len), Some(6), "{scaling}");
    let functions = &schema["$defs"]["FunctionConfig"]["anyOf"][1]["properties"];
    for name in holdfast_functions::catalog::names() {
        assert!(functions[name].is_object(), "{name}");
    }
    let mut targets = Vec::new();
    references(&schema, &mut targets);
    assert!(targets.len() > 10, "{targets:?}");
    for target in targets {
        let pointer = target.strip_prefix('#').expect("a reference stays in the file");
        assert!(schema.pointer(pointer).is_some(), "{target} leads nowhere");
    }
}

/// Modules of the configuration do not depend on each other in a circle.
#[test]
fn no_two_modules_need_each_other() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config");
    let word = |text: &str| {
        text.trim()
            .split(|c: char| !c.is_ascii_lowercase() && c != '_')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let mut needs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(directory).expect("the sources") {
        let path = entry.expect("a file").path();
        if path.is_dir() || path.ends_with("mod.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source");
        let code = text
            .split("#[cfg(test)]")
            .next()
            .unwrap_or_default()
            .lines()
            .filter(|line| !line.trim().starts_with("//"));
        let code: Vec<&str> = code.collect();
        let named = code
            .join("\n")
            .split("super::")
            .skip(1)
            .flat_map(|rest| match rest.strip_prefix('{') {
                Some(group) => {
                    group.split('}').next().unwrap_or_default().split(',').map(word).collect()
                }
                None => vec![word(rest)],
            })
            .collect();
        needs.insert(path.file_stem().expect("a name").to_string_lossy().into_owned(), named);
    }
    assert!(needs.len() > 15 && needs["plan"].contains("chains"), "{needs:?}");
    // Modules that depend on no remaining one are removed, until only circles remain.
    while let Some(free) = needs
        .iter()
        .find(|(_, of)| of.iter().all(|one| !needs.contains_key(one)))
        .map(|(name, _)| name.clone())
    {
        needs.remove(&free);
    }
    assert!(needs.is_empty(), "a circle: {needs:?}");
}

/// The table of kinds has a row for each key that may be written, and no other row.
#[test]
fn every_key_of_the_schema_has_a_row_in_the_table() {
    let schema = config::schema();
    let functions = holdfast_functions::catalog::names();
    let mut written: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut take = |name: &str, definition: &serde_json::Value| {
        let keys =
            definition["properties"].as_object().into_iter().flatten().map(|(key, _)| key.clone());
        // A struct of a function has the function's name before its own.
        written.entry(name.rsplit('.').next().unwrap_or(name).to_owned()).or_default().extend(keys);
    };
    take("Config", &schema);
    schema["$defs"]
        .as_object()
        .expect("definitions")
        .iter()
        .for_each(|(name, definition)| take(name, definition));
    written.retain(|_, keys| !keys.is_empty());
    let rows =
        config::KEYS.iter().chain(config::FUNCTION_KEYS).filter(|(_, keys)| !keys.is_empty());
    let rows: BTreeMap<String, BTreeSet<String>> = rows
        .map(|(name, keys)| {
            ((*name).to_owned(), keys.iter().map(|(key, _)| (*key).to_owned()).collect())
        })
        .collect();
    assert_eq!(rows, written);
    assert!(
        functions.iter().all(|name| config::FUNCTION_KEYS.iter().any(|(known, _)| known == name)),
        "{functions:?}"
    );
    let all = config::KEYS.iter().chain(config::FUNCTION_KEYS).flat_map(|(_, keys)| keys.iter());
    assert!(
        all.clone().count() > 100
            && all.clone().all(|(key, row)| !key.is_empty() && !row.flows.is_empty())
    );
    // The keys that a running box can change today.
    let live: Vec<&str> =
        all.filter(|(_, row)| row.kind == config::Kind::Live).map(|(key, _)| *key).collect();
    assert_eq!(live, ["rules", "on", "from", "to", "proto", "ports", "chain"]);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        config::fuzz(&bytes);
    }

    #[test]
    fn no_damage_to_a_right_file_makes_it_panic(
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0usize..12, any::<char>()), 1..6),
    ) {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for (at, from, len, other) in cuts {
            let at = at.index(text.len());
            match len {
                0 => text[at] = other,
                // A piece of the file is repeated where it does not belong.
                1..=6 => {
                    let from = from.index(text.len());
                    let piece: Vec<char> = text[from..text.len().min(from + len * 4)].to_vec();
                    text.splice(at..at, piece);
                }
                _ => {
                    let end = text.len().min(at + len);
                    text.drain(at..end);
                }
            }
        }
        config::fuzz(text.into_iter().collect::<String>().as_bytes());
    }
}
