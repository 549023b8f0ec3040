//! Configurations that are read with a warning, and configurations that give none.

use super::{EXAMPLE, edited, said};
use holdfast::config;

/// Line, column and message of each warning.
fn warned(text: &str) -> Vec<String> {
    let plan =
        config::read("edge.yaml", text).unwrap_or_else(|mistake| panic!("{mistake}\n{text}"));
    let warnings = plan.warnings();
    warnings
        .iter()
        .map(|warning| format!("{}:{}: {}", warning.line, warning.column, warning.message))
        .collect()
}

const OFFICE: &str = r#"cluster: office
ports:
  lan: { device: a, address: [ 10.0.0.1/24, "2001:db8:a::1/64" ] }
  dmz: { device: b, address: 10.0.1.1/24 }
  wan: { device: c, address: [ 198.51.100.1/24, "2001:db8:b::1/64" ], gateway: [ 198.51.100.254, "2001:db8:b::fe" ] }
routes: [ { to: 10.9.0.0/16, via: 10.0.0.9 } ]
zones: { inside: [ lan, dmz ] }
chains:
  office:
    functions:
      - firewall: { rules: [ "allow tcp on inside", "allow icmp from 10.0.0.0/16" ] }
      - nat: { pool: [ 198.51.100.4 ], inside: [ 10.0.0.0/8 ] }
  plain:
    functions:
      - firewall: { rules: [ "deny any from 10.0.0.0/8", "allow any on lan" ] }
rules:
  - { from: 0.0.0.0/0, chain: office }
  - { from: "::/0", chain: plain }
"#;

fn changed(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(OFFICE.to_owned(), |text, (right, other)| {
        assert!(text.contains(right), "no {right:?}");
        text.replacen(right, other, 1)
    })
}

fn one(changes: &[(&str, &str)]) -> String {
    let warnings = warned(&changed(changes));
    assert_eq!(warnings.len(), 1, "{changes:?}: {warnings:?}");
    warnings.into_iter().next().unwrap_or_default()
}

#[test]
fn what_is_meant_is_not_warned_of() {
    assert_eq!(warned(OFFICE), [] as [String; 0]);
    for changes in [
        // The provider's network is private itself: its routers translate.
        &[
            ("198.51.100.1/24", "192.168.7.2/24"),
            ("198.51.100.254", "192.168.7.1"),
            ("198.51.100.4", "192.168.7.9"),
            ("chain: office", "chain: plain"),
        ][..],
        // The rule's destination is reached by no default route.
        &[
            ("from: 0.0.0.0/0, chain: office", "from: 10.0.0.0/24, to: 10.0.1.0/24, chain: plain"),
            ("deny any", "allow any"),
        ],
        // A port without a check lets in packets from any source.
        &[
            ("address: 10.0.1.1/24", "address: 10.0.1.1/24, reverse_path: off"),
            ("10.0.0.0/16\"", "10.5.0.0/16\""),
        ],
        &[("\"allow tcp on inside\"", "\"allow tcp on wan from 192.0.2.0/24\"")],
        &[("\"allow tcp on inside\"", "\"allow log icmp type echo-request code 0\"")],
        &[("\"allow tcp on inside\"", "\"allow tcp on lan from 10.9.9.0/24\"")],
    ] {
        assert_eq!(warned(&changed(changes)), [] as [String; 0], "{changes:?}");
    }
}

#[test]
fn a_rule_that_never_decides() {
    let first =
        |rules: &str| one(&[("\"allow tcp on inside\", \"allow icmp from 10.0.0.0/16\"", rules)]);
    let never = |number: u8| {
        format!(
            "rule {number} comes first and matches all that this one does: this one never decides"
        )
    };
    assert_eq!(
        first("\"allow tcp\", \"deny tcp on wan to any port 22\""),
        format!("11:43: {}", never(1))
    );
    assert_eq!(first("\"allow log icmp\", \"deny icmp type 8\""), format!("11:48: {}", never(1)));
    assert_eq!(
        first("\"allow udp\", \"allow tcp on inside\", \"deny tcp on lan from 10.0.0.5\""),
        format!("11:66: {}", never(2))
    );
}

#[test]
fn a_source_that_comes_from_nowhere() {
    assert_eq!(
        one(&[("allow icmp from 10.0.0.0/16", "allow icmp from 10.5.0.0/16")]),
        "11:53: nobody in 10.5.0.0/16 comes in by any port, because no route to them leads there: this matches nothing"
    );
    assert_eq!(
        one(&[("allow tcp on inside", "allow tcp on wan from 10.0.0.0/24")]),
        "11:30: nobody in 10.0.0.0/24 comes in by `wan`, because no route to them leads there: this matches nothing"
    );
    assert_eq!(
        one(&[("from: \"::/0\"", "from: \"::/0\", on: dmz")]),
        "18:13: nobody in ::/0 comes in by `dmz`, because no route to them leads there: this matches nothing"
    );
    assert_eq!(
        one(&[("inside: [ 10.0.0.0/8 ]", "inside: [ 10.0.0.0/16, 10.5.0.0/16 ]")]),
        "12:63: no port's network and no route meets 10.5.0.0/16: nobody there is translated"
    );
}

#[test]
fn private_sources_on_their_way_to_the_internet() {
    let leaves = |from: &str, port: &str| {
        format!(
            "sources in {from}, of port `{port}`, leave untranslated by port `wan`: chain `plain` has no `nat`, and no `firewall` that denies them"
        )
    };
    let rule = "from: 0.0.0.0/0, chain: office";
    assert_eq!(
        one(&[("deny any", "deny tcp"), (rule, "chain: plain")]),
        format!("17:5: {}", leaves("10.0.0.0/24", "lan"))
    );
    assert_eq!(
        one(&[("deny any", "deny udp"), (rule, "from: 10.0.0.5, chain: plain")]),
        format!("17:5: {}", leaves("10.0.0.5/32", "lan"))
    );
    // A more specific rule takes these sources; in the second case only their TCP.
    let taken = "from: 10.0.0.0/8, chain: office }\n  - { from: 0.0.0.0/0, chain: plain";
    assert_eq!(warned(&changed(&[("deny any", "deny udp"), (rule, taken)])), [] as [String; 0]);
    let taken =
        "from: 10.0.0.0/8, proto: tcp, chain: office }\n  - { from: 0.0.0.0/0, chain: plain";
    assert_eq!(
        one(&[("deny any", "deny udp"), (rule, taken)]),
        format!("18:5: {}", leaves("10.0.0.0/24", "lan"))
    );
    // The example leaves the rest to `forward`.
    let expected = "14:5: sources in 10.0.0.0/24, of port `inside`, leave untranslated by port `outside`: chain `rest` has no `nat`, and no `firewall` that denies them";
    assert_eq!(warned(EXAMPLE), [expected]);
}

/// Ranges in which no host may have an address are refused as pools.
#[test]
fn a_pool_is_of_hosts() {
    for pool in [
        "0.1.2.0/30",
        "0.0.0.0",
        "127.0.0.0/30",
        "169.254.1.0/30",
        "224.0.0.0/30",
        "239.255.255.255",
        "240.0.0.0/30",
        "255.255.255.255",
    ] {
        let said = said(&edited("198.51.100.4/31", pool));
        assert!(said.contains("is no range of addresses that hosts may have"), "{pool}: {said}");
    }
}

/// The first configuration of the README can face the Internet. The configuration gives
/// no warning, every chain ends what it does not know, and from outside only the
/// published service can be reached. `e2e/example.rs` sends it everything.
#[test]
fn the_readmes_first_configuration_is_right() {
    let readme = include_str!("../../../../../README.md");
    let text = readme
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("a configuration");
    assert_eq!(warned(text), [] as [String; 0]);
    let plan = config::read("edge.yaml", text).unwrap_or_else(|mistake| panic!("{mistake}"));
    assert!(
        plan.ports.iter().all(|port| port.addresses.iter().any(|(address, _)| address.is_ipv6()))
    );
    let written: serde_json::Value =
        serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}"));
    for (name, chain) in written["chains"].as_object().expect("chains") {
        let value = &chain["functions"][0]["firewall"];
        assert_eq!(value["default"], "deny", "{name}");
        let rules = value["rules"].as_array().expect("rules");
        let is_published =
            |rule: &&serde_json::Value| *rule == "allow tcp on outside to 198.51.100.4 port 443";
        let mut others = rules.iter().filter(|rule| name != "four" || !is_published(rule));
        assert!(
            others.all(|rule| rule.as_str().is_some_and(|rule| rule.contains(" on inside"))),
            "{name}: {rules:?}"
        );
    }
}

/// A function's own warnings stand where it has found them.
#[test]
fn rules_that_are_left_out_are_warned_of() {
    let ips = r#"- ips: { rules: [ 'alert tcp any any -> any any (dsize:5; content:"a"; sid:1;)', 'alert tcp any any -> any any (content:"a"; sid:2;)' ], unsupported: skip }"#;
    let found = one(&[(
        r#"- firewall: { rules: [ "deny any from 10.0.0.0/8", "allow any on lan" ] }"#,
        ips,
    )]);
    assert_eq!(found, "15:56: ips: option `dsize` is not supported: the rule is left out");
}
