//! The section `control:` of the configuration, and `control` of hosts.

use holdfast::config::{self, Plan};
use holdfast_control::tls::TlsPaths;
use std::path::Path;

const BOX: &str = "cluster: edge\nports: { a: { device: a, address: 10.0.0.1/24 } }\nchains: { c: { functions: [forward] } }\nrules: [{ chain: c }]\n";

fn read(section: &str) -> Result<Plan, String> {
    config::read("/etc/holdfast/edge.yaml", &format!("{BOX}{section}"))
        .map_err(|mistake| mistake.to_string())
}

fn listens(plan: &Plan, host: u16) -> Option<String> {
    plan.control_of(host).map(|entry| entry.listen.to_string())
}

/// All forms of the section: a directory or files, beside the configuration; a port or
/// the usual one.
#[test]
fn a_section_is_read_with_all_that_it_leaves_out() {
    assert!(read("").unwrap().control_of(0).is_none());
    let short = read("control: { listen: 10.9.0.1, tls: tls }\n").unwrap().control_of(0).unwrap();
    assert_eq!(short.listen.to_string(), "10.9.0.1:7443");
    assert_eq!(short.tls, TlsPaths::in_directory(Path::new("/etc/holdfast/tls")));
    assert_eq!(short.tls.key, Path::new("/etc/holdfast/tls/key.pem"));
    let long = "control:\n  listen: \"[fd00::1]:99\"\n  tls: { ca: /pki/ca.crt, certificate: host.crt, key: k/host.key }\n";
    let long = read(long).unwrap().control_of(0).unwrap();
    assert_eq!(long.listen.to_string(), "[fd00::1]:99");
    let files = [long.tls.ca, long.tls.certificate, long.tls.key];
    assert_eq!(
        files.map(|path| path.display().to_string()),
        ["/pki/ca.crt", "/etc/holdfast/host.crt", "/etc/holdfast/k/host.key"]
    );
}

/// A host listens at its own address, or at the section's; without either it does not.
#[test]
fn hosts_have_addresses_of_their_own() {
    let hosts = |more: &str| {
        format!(
            "state: /s\nhosts: {{ x: {{ fabric: e0, control: 10.9.0.1 }}, y: {{ fabric: e0{more} }} }}\n"
        )
    };
    let some = read(&format!("{}control: {{ tls: t }}\n", hosts(""))).unwrap();
    assert_eq!((listens(&some, 0).as_deref(), listens(&some, 1)), (Some("10.9.0.1:7443"), None));
    let both = read(&format!(
        "{}control: {{ listen: \"0.0.0.0:1\", tls: t }}\n",
        hosts(", coordinator: true")
    ))
    .unwrap();
    assert_eq!(
        (listens(&both, 0).as_deref(), listens(&both, 1).as_deref()),
        (Some("0.0.0.0:1"), Some("10.9.0.1:7443"))
    );
}

/// A mistake is shown at its place, with what would be right.
#[test]
fn mistakes_have_their_place() {
    let cases = [
        ("control: { listen: 10.9.0.1 }", "5:1: `control` has no `tls`"),
        (
            "control: { tls: t }",
            "5:1: `control` has no `listen`: the address at which the box can be asked",
        ),
        (
            "control: { listn: 10.9.0.1, tls: t }",
            "5:12: there is no key `listn` here: `listen`, `tls`; did you mean `listen`?",
        ),
        (
            "control: { listen: left, tls: t }",
            "5:20: `left` is no address with a port: ADDRESS:PORT, like 10.9.0.1:7443",
        ),
        (
            "control: { listen: \"10.9.0.1:0\", tls: t }",
            "5:20: `10.9.0.1:0` is no address with a port",
        ),
        (
            "control: { listen: \"10.9.0.1:99999\", tls: t }",
            "5:20: `10.9.0.1:99999` is no address with a port",
        ),
        (
            "control: { listen: 10.9.0.1, tls: \"\" }",
            "5:35: `tls` is the path of a directory: `holdfast certify",
        ),
        (
            "control: { listen: 10.9.0.1, tls: [a] }",
            "5:35: a directory, or a map with `ca`, `certificate` and `key` is expected",
        ),
        (
            "control: { listen: 10.9.0.1, tls: { ca: a, certificate: b } }",
            "5:30: `tls` has no `key`",
        ),
        (
            "control: { listen: 10.9.0.1, tls: { ca: a, certificate: b, keys: c } }",
            "5:60: there is no key `keys` here",
        ),
        (
            "control: { listen: 10.9.0.1, tls: { ca: a, certificate: \"\", key: c } }",
            "5:57: `certificate` is a file's path",
        ),
        (
            "state: /s\nhosts: { x: { fabric: e0, control: 10.9.0.1 }, y: { fabric: e0 } }",
            "6:27: a host's `control` needs the section `control: { tls: … }` too",
        ),
        (
            "state: /s\nhosts: { x: { fabric: e0, control: here }, y: { fabric: e0 } }\ncontrol: { tls: t }",
            "6:36: `here` is no address with a port",
        ),
        (
            "state: /s\nhosts: { x: { fabric: e0 }, y: { fabric: e0 } }\ncontrol: { tls: t }",
            "7:1: `control` has no `listen`, and no host an address of its own",
        ),
    ];
    for (section, expected) in cases {
        let said = read(section).err().unwrap_or_default();
        assert!(
            said.starts_with(&format!("/etc/holdfast/edge.yaml:{expected}")),
            "{section}\n{said}"
        );
    }
}

/// Files that cannot be used are shown where they are named.
#[test]
fn files_are_looked_at_where_they_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("edge.yaml").display().to_string();
    let text = format!("{BOX}control: {{ listen: 10.9.0.1, tls: tls/left }}\n");
    let look = || {
        let plan = config::read(&file, &text).unwrap_or_else(|mistake| panic!("{mistake}"));
        plan.read_identity().map(drop).map_err(|mistake| mistake.to_string())
    };
    let missing = look().unwrap_err();
    assert!(
        missing.starts_with(&format!("{file}:5:35: there is no file"))
            && missing.contains("holdfast certify"),
        "{missing}"
    );
    let subjects = ["left".parse().unwrap()];
    holdfast_control::certify::certify(
        &scratch.path().join("tls"),
        &subjects,
        1,
        time::OffsetDateTime::now_utc(),
    )
    .unwrap();
    assert_eq!(look(), Ok(()));
    std::fs::write(scratch.path().join("tls/left/key.pem"), "nothing").unwrap();
    assert!(look().unwrap_err().contains("there is no key in it"));
}

/// A running box goes on listening where it does. Another address or certificate takes a
/// restart, and the message names the place.
#[test]
fn another_address_takes_a_restart() {
    let hosts = |x: &str| {
        format!("state: /s\nhosts: {{ x: {{ fabric: e0, control: {x} }}, y: {{ fabric: e0 }} }}\n")
    };
    let running =
        read(&format!("{}control: {{ listen: 10.9.0.1, tls: t }}\n", hosts("10.9.0.2"))).unwrap();
    let differences = |section: &str| {
        config::differences(&running, &read(section).unwrap())
            .iter()
            .map(|difference| difference.mistake.to_string())
            .collect::<Vec<_>>()
    };
    assert!(
        differences(&format!("{}control: {{ listen: 10.9.0.1, tls: t }}\n", hosts("10.9.0.2")))
            .is_empty()
    );
    let changed =
        differences(&format!("{}control: {{ listen: 10.9.0.3, tls: u }}\n", hosts("10.9.0.4")));
    assert_eq!(changed.len(), 3, "{changed:?}");
    assert!(
        changed[0].contains(":6:36: `hosts.x.control` is `10.9.0.2` in the running box"),
        "{changed:?}"
    );
    assert!(
        changed[1].contains(":7:20: `control.listen` is `10.9.0.1` in the running box"),
        "{changed:?}"
    );
}
