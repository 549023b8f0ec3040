//! Virtual clusters and service-chain rules in the configuration, and the changes to a
//! configuration that a running box can make.

use holdfast::config::{self, Mistake};

const EXAMPLE: &str = "cluster: edge
ports:
  inside:  { device: veth-in,  address: 10.0.0.1/24 }
  outside: { device: veth-out, address: 198.51.100.1/24, gateway: 198.51.100.254 }
routes: [ { to: 192.0.2.0/24, via: 10.0.0.9 } ]
chains:
  gold: { functions: [ monitor ], protection: nfvactor, cluster: tenants-a }
  web:
    functions:
      - firewall: { default: allow }
      - forward
    protection: nfvactor
rules:
  - { from: 10.0.0.0/24, proto: tcp, chain: web }
  - { to: 192.0.2.0/24, chain: gold }
  - { chain: web }
runtimes: { min: 2, max: 4 }
clusters:
  tenants-a: { runtimes: { min: 3 } }
";

fn edited(changes: &[(&str, &str)]) -> String {
    let mut text = EXAMPLE.to_owned();
    for (right, other) in changes {
        assert!(text.contains(right), "the example has no {right:?}");
        text = text.replacen(right, other, 1);
    }
    text
}

fn read(text: &str) -> config::Plan {
    config::read("edge.yaml", text).unwrap_or_else(|mistake| panic!("{mistake}\n{text}"))
}

fn said(changes: &[(&str, &str)]) -> String {
    config::read("edge.yaml", &edited(changes))
        .err()
        .map(|mistake| mistake.to_string())
        .unwrap_or_default()
}

/// Two chains, one of them with a cluster of its own: the runtimes, the chains and the
/// rules of each are where they belong.
#[test]
fn a_chain_may_have_a_cluster_of_its_own() {
    let plan = read(EXAMPLE);
    let clusters: Vec<(&str, u16, &[u16])> = plan
        .clusters
        .iter()
        .map(|cluster| (cluster.name.as_str(), cluster.runtimes, cluster.chains.as_slice()))
        .collect();
    assert_eq!(clusters, [("default", 2, &[1][..]), ("tenants-a", 3, &[0][..])]);
    assert_eq!(plan.runtimes(), 5);
    let rules: Vec<(u16, u16)> = plan.rules.iter().map(|rule| (rule.chain, rule.cluster)).collect();
    assert_eq!(rules, [(1, 0), (0, 1), (1, 0)]);
    // Without a chain in it there is no default cluster.
    let only = read(&edited(&[
        ("    protection: nfvactor\n", "    protection: nfvactor\n    cluster: tenants-a\n"),
        ("runtimes: { min: 2, max: 4 }\n", ""),
    ]));
    assert_eq!(only.clusters.len(), 1);
    assert_eq!((only.clusters[0].runtimes, only.clusters[0].chains.as_slice()), (3, &[0, 1][..]));
}

/// Chains and ports have the names that are written, and each runtime one after its
/// cluster, in the order of their numbers. A name that is too long is refused.
#[test]
fn the_coordinator_gets_the_names() {
    let names: Vec<String> =
        read(EXAMPLE).names().iter().map(|(kind, name)| format!("{kind} {name}")).collect();
    let of = |kind: &str| -> Vec<&str> {
        names.iter().filter_map(|name| name.strip_prefix(kind)).collect()
    };
    assert_eq!(of("chain "), ["gold", "web"]);
    assert_eq!(of("cluster "), ["default", "tenants-a"]);
    let runtimes = ["default/0", "default/1", "default/2", "default/3"];
    let of_tenants = ["tenants-a/0", "tenants-a/1", "tenants-a/2"];
    assert_eq!(of("runtime "), [&runtimes[..], &of_tenants].concat());
    assert_eq!(of("port ").len(), read(EXAMPLE).ports.len());
    let long = format!("  {}:", "g".repeat(49));
    assert!(said(&[("  gold:", &long)]).contains("a chain's name has at most 48 bytes"));
}

/// Mistakes that an operator makes with clusters and rules, each shown where it is.
#[test]
fn mistakes_in_clusters_and_rules_are_shown_where_they_are() {
    for (changes, expected) in [
        (
            &[("cluster: tenants-a }", "cluster: tenants-b }")][..],
            "edge.yaml:7:66: there is no cluster `tenants-b`: `tenants-a`; did you mean `tenants-a`?",
        ),
        (
            &[(", cluster: tenants-a }", " }")],
            "edge.yaml:19:3: no chain asks for `cluster: tenants-a`: nobody would use its runtimes",
        ),
        (
            &[("tenants-a", "default"), ("tenants-a", "default")],
            "edge.yaml:19:3: `default` is the cluster of all chains that ask for none",
        ),
        (
            &[("tenants-a", "a b"), ("tenants-a", "a b")],
            "edge.yaml:19:3: a cluster's name is 1 to 48 letters",
        ),
        (
            &[("{ min: 3 }", "{ min: 1 }")],
            "edge.yaml:7:47: under this protection other runtimes take over the flows of one that fails, so at least 2 are needed in cluster `tenants-a`",
        ),
        // Spare places count: 4 of the default cluster, of which 2 run at first.
        (
            &[("{ min: 3 }", "{ min: 63 }")],
            "edge.yaml:18:1: at most 64 runtimes are possible on one host, not 67",
        ),
        (
            &[("{ min: 3 }", "{ min: 0 }")],
            "edge.yaml:19:33: between 1 and 64 runtimes are possible, not 0",
        ),
        (
            &[("    protection: nfvactor\n", "    protection: nfvactor\n    cluster: tenants-a\n")],
            "edge.yaml:18:1: every chain asks for a cluster of its own: nobody would use these runtimes",
        ),
        (
            &[("proto: tcp, chain: web", "chain: web")],
            "edge.yaml:15:5: rule 1 (any from 10.0.0.0/24 to any) is as specific as this one (any from any to 192.0.2.0/24), and some packets match both",
        ),
    ] {
        let said = said(changes);
        assert!(said.starts_with(expected), "{changes:?}: {said}");
    }
    // Rules that lead to the same chain may overlap, and so may rules that are not
    // equally specific or never meet.
    for change in [
        ("to: 192.0.2.0/24, chain: gold", "to: 192.0.2.0/24, proto: tcp, chain: web"),
        ("to: 192.0.2.0/24, chain: gold", "to: 192.0.2.0/23, proto: tcp, chain: gold"),
        ("to: 192.0.2.0/24, chain: gold", "to: 192.0.2.0/24, proto: udp, chain: gold"),
    ] {
        // If no rule leads to `gold`, the chain alone asks for the cluster, which is
        // enough.
        assert_eq!(said(&[change]), "", "{change:?}");
    }
    let many = |count: usize| {
        let rules: String = (0..count)
            .map(|n| format!("  - {{ from: 10.{}.{}.0/25, chain: web }}\n", n / 256, n % 256))
            .collect();
        edited(&[
            ("rules:\n", &format!("rules:\n{rules}")),
            ("  - { from: 10.0.0.0/24, proto: tcp, chain: web }\n", ""),
        ])
    };
    let mistake = config::read("edge.yaml", &many(4095)).expect_err("too many");
    assert!(
        mistake.message == "there are 4097 rules, and 4096 are possible" && mistake.line == 4110,
        "{mistake}"
    );
    read(&many(4094));
    let ports = (1..=101).map(|port| (2 * port).to_string()).collect::<Vec<_>>().join(",");
    let mistake = said(&[("proto: tcp, chain", &format!("proto: tcp, ports: \"{ports}\", chain"))]);
    assert!(mistake.contains("at most 100 ports or ranges"), "{mistake}");
}

/// Mistakes that an operator makes with the section `scaling`: the message, and a caret
/// below the value, or the key if that is wrong.
#[test]
fn mistakes_in_scaling_are_shown_where_they_are() {
    let less =
        "must be less than `busy_percent`: a steady load would start a runtime and stop it again";
    let keys = "`period_ms`, `drops`, `busy_percent`, `idle_percent`, `move_flows`, `calm_periods`";
    let no_key =
        format!("there is no key `idle_percents` here: {keys}; did you mean `idle_percent`?");
    for (setting, marked, message) in [
        ("period_ms: 9", "9", "between 10 ms and an hour are possible"),
        ("period_ms: 3600001", "3600001", "between 10 ms and an hour are possible"),
        ("busy_percent: 0", "0", "a percentage between 1 and 100"),
        ("busy_percent: 101", "101", "a percentage between 1 and 100"),
        ("idle_percent: 90", "90", less),
        ("busy_percent: 30, idle_percent: 31", "31", less),
        ("move_flows: 0", "0", "at least one flow at a time"),
        ("calm_periods: 0", "0", "between 1 and 100000 periods are possible"),
        ("calm_periods: 100001", "100001", "between 1 and 100000 periods are possible"),
        ("idle_percents: 30", "idle_percents", no_key.as_str()),
    ] {
        let line = format!("scaling: {{ {setting} }}");
        let at = if setting.starts_with(marked) { line.find(marked) } else { line.rfind(marked) }
            .expect("it is marked");
        let caret = format!("{}{}", " ".repeat(at), "^".repeat(marked.len()));
        let expected = format!("edge.yaml:17:{}: {message}\n17 | {line}\n   | {caret}", at + 1);
        assert_eq!(
            said(&[("runtimes: { min: 2", &format!("{line}\nruntimes: {{ min: 2"))]),
            expected,
            "{setting}"
        );
    }
    for right in [
        "period_ms: 10",
        "period_ms: 3600000",
        "busy_percent: 1, idle_percent: 0",
        "idle_percent: 89",
        "calm_periods: 100000, drops: 0",
    ] {
        assert_eq!(
            said(&[(
                "runtimes: { min: 2",
                &format!("scaling: {{ {right} }}\nruntimes: {{ min: 2")
            )]),
            "",
            "{right}"
        );
    }
}

fn differences(changes: &[(&str, &str)]) -> Vec<Mistake> {
    let found = config::differences(&read(EXAMPLE), &read(&edited(changes)));
    found.into_iter().map(|difference| difference.mistake).collect()
}

/// Every setting but the rules is changed, one at a time. Each change is named with its
/// place, and nothing else is.
#[test]
fn whatever_a_running_box_cannot_change_is_named_with_its_place() {
    for (change, line, column, expected) in [
        (
            ("cluster: edge", "cluster: rim"),
            1,
            10,
            "`cluster` is `edge` in the running box and `rim` here: it is changed by a restart only, which ends all flows; afterwards flows are served as before",
        ),
        (
            ("device: veth-in", "device: veth-on"),
            3,
            22,
            "`ports.inside.device` is `veth-in` in the running box and `veth-on` here",
        ),
        (
            ("10.0.0.1/24", "[10.0.0.1/24, 10.0.0.2/24]"),
            3,
            41,
            "`ports.inside.address` is `10.0.0.1/24` in the running box and `10.0.0.1/24, 10.0.0.2/24` here",
        ),
        (
            (", gateway: 198.51.100.254", ""),
            4,
            12,
            "`ports.outside.gateway` is `198.51.100.254` in the running box and not set here",
        ),
        (
            ("address: 198.51.100.1/24", "mtu: 1400, address: 198.51.100.1/24"),
            4,
            37,
            "`ports.outside.mtu` is not set in the running box and `1400` here",
        ),
        (
            ("address: 198.51.100.1/24", "reverse_path: off, address: 198.51.100.1/24"),
            4,
            46,
            "`ports.outside.reverse_path` is `feasible` in the running box and `off` here",
        ),
        (
            ("chains:\n", "zones: { net: [inside] }\nchains:\n"),
            6,
            10,
            "the running box has no `zones.net`: it is added by a restart only",
        ),
        (
            ("  outside:", "  third: { device: c, address: 10.3.0.1/24 }\n  outside:"),
            4,
            3,
            "the running box has no `ports.third`",
        ),
        (
            ("10.0.0.9 }", "10.0.0.8 }"),
            5,
            11,
            "the running box has no `routes: 192.0.2.0/24 via 10.0.0.8`",
        ),
        (
            ("10.0.0.9 }", "10.0.0.9, on: inside }"),
            5,
            11,
            "the running box has no `routes: 192.0.2.0/24 via 10.0.0.9 on inside`",
        ),
        (
            ("- forward", "- forward\n      - monitor"),
            12,
            9,
            "`chains.web.functions` is `firewall, forward` in the running box and `firewall, forward, monitor` here",
        ),
        (
            ("default: allow", "default: deny"),
            10,
            30,
            "`chains.web.functions[0].firewall.default` is `allow` in the running box and `deny` here: it is changed by a restart only, which ends all flows; afterwards other flows pass",
        ),
        (
            ("      - forward\n", ""),
            9,
            5,
            "`chains.web.functions` is `firewall, forward` in the running box and `firewall` here",
        ),
        (
            ("    protection: nfvactor\n", "    protection: none\n"),
            12,
            17,
            "`chains.web.protection` is `flow: replica, shared: partitioned, release: replica, rebuild: replica` in the running box and `flow: memory, shared: ",
        ),
        (
            ("  web:\n", "  new: { functions: [forward] }\n  web:\n"),
            8,
            3,
            "the running box has no `chains.new`",
        ),
        (
            ("{ min: 2, max: 4 }", "3"),
            17,
            11,
            "`runtimes` is `2 to 4` in the running box and `3` here",
        ),
        (
            ("{ min: 3 }", "4"),
            19,
            26,
            "`clusters.tenants-a.runtimes` is `3` in the running box and `4` here",
        ),
        (
            ("runtimes: { min: 2", "limits: { flows: 9 }\nruntimes: { min: 2"),
            17,
            18,
            "`limits.flows` is `65536` in the running box and `9` here",
        ),
        (
            ("runtimes: { min: 2", "limits: { flows_per_source: 9 }\nruntimes: { min: 2"),
            17,
            29,
            "`limits.flows_per_source` is not set in the running box and `9` here",
        ),
        (
            ("runtimes: { min: 2", "detection: { hang_ms: 900 }\nruntimes: { min: 2"),
            17,
            23,
            "`detection.hang_ms` is `500` in the running box and `900` here",
        ),
        (
            ("runtimes: { min: 2", "scaling: { period_ms: 500 }\nruntimes: { min: 2"),
            17,
            23,
            "`scaling.period_ms` is `1000` in the running box and `500` here: it is changed by a restart only",
        ),
        (
            ("runtimes: { min: 2", "scaling: { drops: 0 }\nruntimes: { min: 2"),
            17,
            19,
            "`scaling.drops` is `100` in the running box and `0` here: it is changed by a restart only",
        ),
        (
            ("runtimes: { min: 2", "scaling: { busy_percent: 80 }\nruntimes: { min: 2"),
            17,
            26,
            "`scaling.busy_percent` is `90` in the running box and `80` here: it is changed by a restart only",
        ),
        (
            ("runtimes: { min: 2", "scaling: { idle_percent: 30 }\nruntimes: { min: 2"),
            17,
            26,
            "`scaling.idle_percent` is `40` in the running box and `30` here: it is changed by a restart only",
        ),
        (
            ("runtimes: { min: 2", "scaling: { move_flows: 100 }\nruntimes: { min: 2"),
            17,
            24,
            "`scaling.move_flows` is `500` in the running box and `100` here: it is changed by a restart only",
        ),
        (
            ("runtimes: { min: 2", "scaling: { calm_periods: 60 }\nruntimes: { min: 2"),
            17,
            26,
            "`scaling.calm_periods` is `30` in the running box and `60` here: it is changed by a restart only",
        ),
        (
            ("runtimes: { min: 2", "fabric: { key: keys }\nruntimes: { min: 2"),
            17,
            16,
            "`fabric.key` is not set in the running box and `keys` here",
        ),
    ] {
        let found = differences(&[change]);
        let first = &found[0];
        assert!(first.message.starts_with(expected), "{change:?}: {first}");
        assert_eq!((first.line, first.column), (line, column), "{first}");
        // A changed route is named twice: the route that came, and the route that is
        // gone.
        assert_eq!(found.len(), if expected.contains("routes") { 2 } else { 1 }, "{found:?}");
    }
    let several = differences(&[
        ("cluster: edge", "cluster: rim"),
        (
            "functions: [ monitor ], protection: nfvactor, cluster: tenants-a",
            "functions: [ forward ]",
        ),
        ("\nclusters:\n  tenants-a: { runtimes: { min: 3 } }", ""),
    ]);
    let lines: Vec<usize> = several.iter().map(|mistake| mistake.line).collect();
    assert_eq!(several.len(), 5, "{several:?}");
    assert_eq!(lines, [1, 7, 7, 7, 1], "what is not in the file at all is shown at its beginning");
}

/// The protection is more than where flows survive: it is also where numbers come from,
/// for how long they rest, and whether there are standbys.
#[test]
fn what_stands_beside_a_preset_is_changed_by_a_restart_only() {
    let with = |protection: &str| {
        format!(
            "cluster: c\nports: {{ a: {{ device: a, address: 10.0.0.1/24 }} }}\nchains: {{ x: {{ functions: [ nat: {{ pool: [198.51.100.4/31] }} ], \
             protection: {protection} }} }}\nrules: [ {{ chain: x }} ]\nruntimes: 2\n"
        )
    };
    let differs = |running: &str, new: &str| {
        let found = config::differences(&read(&with(running)), &read(&with(new)));
        found.iter().any(|mistake| mistake.path == "chains.x.protection")
    };
    let served = "{ preset: nfvactor, shared: state-server }";
    assert!(differs("nfvactor", served) && differs(served, "nfvactor"));
    assert!(differs(served, "{ preset: nfvactor, shared: state-server, hold_s: 9 }"));
    assert!(!differs(served, "{ preset: nfvactor, shared: state-server, hold_s: 120 }"));
    assert!(differs("none", "{ preset: reinforce, level: local }"));
    let at_once = "{ preset: nfvactor, release: at-once }";
    assert!(differs("nfvactor", at_once));
    assert!(differs(at_once, "{ preset: nfvactor, release: at-once, unsaved_packets: 5 }"));
    assert!(!differs(at_once, "{ flow: replica, release: at-once, unsaved_packets: 128 }"));
}

/// Another spelling of the same, and other rules: a running box can take over both.
#[test]
fn another_spelling_is_no_difference_and_neither_are_rules() {
    for change in [
        ("10.0.0.1/24", "[10.0.0.1/24]"),
        ("{ min: 3 }", "{ min: 3, max: 3 }"),
        ("{ min: 3 }", "3"),
        ("- forward", "- forward: {}"),
        ("protection: nfvactor, ", "protection: { flow: replica }, "),
        ("cluster: edge", "# a remark\ncluster: edge\nlimits: { flows: 65536 }"),
        ("  - { chain: web }\n", ""),
        ("proto: tcp, chain: web", "proto: tcp, chain: gold"),
    ] {
        assert_eq!(differences(&[change]), [], "{change:?}");
    }
    let rules = |changes: &[(&str, &str)]| {
        let changes = config::rule_changes(&read(EXAMPLE).rules, &read(&edited(changes)).rules);
        changes
            .iter()
            .map(|change| (change.is_new, change.rule.selector.to_string(), change.rule.chain))
            .collect::<Vec<_>>()
    };
    assert_eq!(rules(&[]), []);
    let other_order = [("  - { chain: web }\n", ""), ("rules:\n", "rules:\n  - { chain: web }\n")];
    assert_eq!(rules(&other_order), [], "their order means nothing");
    let changed = rules(&[("proto: tcp, chain: web", "proto: tcp, chain: gold")]);
    let selector = || "tcp from 10.0.0.0/24 to any".to_owned();
    assert_eq!(changed, [(false, selector(), 1), (true, selector(), 0)]);
}
