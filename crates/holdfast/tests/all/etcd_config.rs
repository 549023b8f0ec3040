//! The section `etcd:` of the configuration.

use holdfast::config;
use std::path::Path;

const BOX: &str = "cluster: edge\nports: { a: { device: a, address: 10.0.0.1/24 } }\nchains: { c: { functions: [forward] } }\nrules: [{ chain: c }]\n";

fn said(section: &str) -> String {
    config::read("/etc/holdfast/edge.yaml", &format!("{BOX}{section}"))
        .err()
        .map(|mistake| mistake.to_string())
        .unwrap_or_default()
}

fn etcd(section: &str) -> config::Etcd {
    config::read("/etc/holdfast/edge.yaml", &format!("{BOX}{section}"))
        .map_err(|mistake| mistake.to_string())
        .unwrap()
        .etcd
        .unwrap()
}

/// Endpoints are read in every form that there is. A setting that is left out has its
/// default, and files lie beside the configuration.
#[test]
fn a_section_is_read_with_all_that_it_leaves_out() {
    let short = etcd(
        "etcd: { endpoints: [http://127.0.0.1, \"http://[::1]:99/\", http://etcd-1.example:2380] }\n",
    );
    let ends: Vec<(&str, u16)> =
        short.endpoints.iter().map(|endpoint| (endpoint.host.as_str(), endpoint.port)).collect();
    assert_eq!(ends, [("127.0.0.1", 2379), ("::1", 99), ("etcd-1.example", 2380)]);
    assert_eq!(
        (short.prefix.as_str(), short.lease_ms, &short.ca, &short.certificate),
        ("/holdfast/edge", 2000, &None, &None)
    );
    let long = etcd(
        "etcd:\n  endpoints: [https://10.0.0.9:2379]\n  prefix: /a/b\n  ca: tls/ca.pem\n  certificate: /c.pem\n  key: k.pem\n  lease_ms: 5000\n",
    );
    assert_eq!((long.prefix.as_str(), long.lease_ms), ("/a/b", 5000));
    assert_eq!(long.ca.as_deref(), Some(Path::new("/etc/holdfast/tls/ca.pem")));
    let (certificate, key) = long.certificate.as_ref().unwrap();
    assert_eq!(
        (certificate.as_path(), key.as_path()),
        (Path::new("/c.pem"), Path::new("/etc/holdfast/k.pem"))
    );
}

/// With etcd the hosts elect their coordinator, so they are only in the order of their
/// names.
#[test]
fn hosts_elect_their_coordinator() {
    let section = "hosts: { z: { fabric: e0 }, x: { fabric: e0, coordinator: false }, y: { fabric: e0 } }\nstate: /s\netcd: { endpoints: [http://a] }\n";
    let plan = config::read("/etc/holdfast/edge.yaml", &format!("{BOX}{section}"))
        .map_err(|mistake| mistake.to_string())
        .unwrap();
    let names: Vec<&str> = plan.hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["x", "y", "z"]);
    assert!(plan.etcd.is_some());
}

/// A mistake is shown at its place, with what would be right.
#[test]
fn mistakes_have_their_place() {
    let cases = [
        ("etcd: { endpoints: [] }", "5:20: etcd has 1 to 16 endpoints here, not 0"),
        ("etcd: { prefix: /a }", "5:1: `etcd` has no `endpoints`"),
        (
            "etcd: { endpoint: [http://a] }",
            "5:9: there is no key `endpoint` here: `endpoints`, `prefix`, `ca`, `certificate`, `key`, `lease_ms`; did you mean `endpoints`?",
        ),
        (
            "etcd: { endpoints: [http://a, 10.0.0.1:2379] }",
            "5:31: `10.0.0.1:2379` is no address of etcd: `https://HOST:PORT`, like https://10.0.0.1:2379",
        ),
        ("etcd: { endpoints: [ftp://a] }", "5:21: `ftp://a` is no address"),
        ("etcd: { endpoints: [\"http://a:0\"] }", "5:21: `http://a:0` is no address"),
        ("etcd: { endpoints: [\"http://a/b\"] }", "5:21: `http://a/b` is no address"),
        ("etcd: { endpoints: [\"http://u@a\"] }", "5:21: `http://u@a` is no address"),
        ("etcd: { endpoints: [\"http://[::1\"] }", "5:21: `http://[::1` is no address"),
        (
            "etcd: { endpoints: [http://a, https://b] }",
            "5:31: the endpoints are all `https`, or all `http`",
        ),
        ("etcd: { endpoints: [https://a] }", "5:1: `https` needs `ca`"),
        ("etcd: { endpoints: [http://a], ca: x }", "5:32: `ca` is for endpoints with `https`"),
        ("etcd: { endpoints: [https://a], ca: x, key: y }", "5:40: `key` needs `certificate`"),
        (
            "etcd: { endpoints: [https://a], ca: x, certificate: y }",
            "5:40: `certificate` needs `key`",
        ),
        ("etcd: { endpoints: [http://a], prefix: a/b }", "5:40: `a/b` is no prefix"),
        ("etcd: { endpoints: [http://a], prefix: /a/ }", "5:40: `/a/` is no prefix"),
        (
            "hosts: { x: { fabric: e0 }, y: { fabric: e0, coordinator: true } }\nstate: /s\netcd: { endpoints: [http://a] }",
            "5:46: with `etcd` the coordinator is elected, and lives on any of the hosts: `coordinator` is for a box without `etcd`",
        ),
        (
            "hosts: { x: { fabric: e0 }, y: { fabric: e0 } }\netcd: { endpoints: [http://a] }",
            "5:8: `hosts` needs `state`, a directory: each host keeps there what it must know when it is switched on again",
        ),
        (
            "etcd: { endpoints: [http://a], lease_ms: 10 }",
            "5:42: `lease_ms` is between 1000 and 60000, not 10",
        ),
    ];
    for (section, expected) in cases {
        let message = said(&format!("{section}\n"));
        assert!(
            message.starts_with(&format!("/etc/holdfast/edge.yaml:{expected}")),
            "{section}: {message}"
        );
    }
}

/// A running box keeps its etcd. Another etcd, or none, takes a restart, and the message
/// names the place.
#[test]
fn another_etcd_takes_a_restart() {
    let read = |section: &str| {
        config::read("edge.yaml", &format!("{BOX}{section}"))
            .map_err(|mistake| mistake.to_string())
            .unwrap()
    };
    let running = read("etcd: { endpoints: [http://a], lease_ms: 2000 }\n");
    let differences = |section: &str| {
        config::differences(&running, &read(section))
            .iter()
            .map(|difference| difference.mistake.to_string())
            .collect::<Vec<_>>()
    };
    assert!(differences("etcd: { endpoints: [http://a] }\n").is_empty());
    let changed =
        differences("etcd: { endpoints: [http://a, http://b], prefix: /x, lease_ms: 3000 }\n");
    assert_eq!(changed.len(), 3, "{changed:?}");
    assert!(
        changed[0].starts_with("edge.yaml:5:20: `etcd.endpoints` is `http://a` in the running box"),
        "{changed:?}"
    );
    let without = differences("");
    assert!(
        without.len() == 1 && without[0].contains("`etcd` of the running box is not here"),
        "{without:?}"
    );
}
