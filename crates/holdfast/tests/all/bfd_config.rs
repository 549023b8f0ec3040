//! Routers that are watched: the values of a port's `bfd`, the messages about mistakes,
//! and the files of keys.

use holdfast::config::{self, Plan};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn text(bfd: &str, more: &str) -> String {
    format!(
        "cluster: edge\nports:\n  inside: {{ device: veth-in, address: [10.0.0.1/24, \"2001:db8:a::1/64\"] }}\n  outside:\n    device: veth-out\n    address: 198.51.100.1/24\n    gateway: 198.51.100.254\n    bfd: {bfd}\n\
         chains: {{ rest: {{ functions: [ forward ] }} }}\nrules: [ {{ chain: rest }} ]\n{more}"
    )
}

fn said(text: &str) -> String {
    config::read("edge.yaml", text).err().map(|mistake| mistake.to_string()).unwrap_or_default()
}

fn read(text: &str) -> Plan {
    config::read("edge.yaml", text).unwrap_or_else(|mistake| panic!("{mistake}"))
}

#[test]
fn a_peer_alone_has_sensible_intervals() {
    let plan = read(&text(
        "[ { peer: 198.51.100.254 }, { peer: 198.51.100.2, interval: 3300us, multiplier: 5, key: { type: keyed-sha1, id: 7, file: k } } ]",
        "",
    ));
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let peers: Vec<_> = plan
        .bfd
        .iter()
        .map(|peer| (peer.port, peer.address, peer.interval, peer.multiplier))
        .collect();
    assert_eq!(
        peers,
        [(1, address("198.51.100.254"), 50_000, 3), (1, address("198.51.100.2"), 3_300, 5)]
    );
    assert!(
        plan.bfd[0].key.is_none() && plan.bfd[1].key.as_ref().is_some_and(|(key, ..)| key.id == 7)
    );
    // The peers reach the edge whose port it is, with the port's number at that edge.
    let edges = plan.edges(&[([2; 6], 1500), ([4; 6], 1500)], &[None, None], || 9);
    assert_eq!((edges[0].0.bfd.len(), edges[0].0.bfd[0].port, edges[0].0.seed), (2, 1, 9));
    assert_eq!(
        (edges[0].0.bfd[1].settings.min_transmit, edges[0].0.bfd[1].settings.multiplier),
        (3_300, 5)
    );
}

/// The whole message about each mistake, after its place.
#[test]
fn mistakes_are_named_with_their_places() {
    let cases = [
        (
            "{ peer: 10.0.0.9 }",
            "8:20: 10.0.0.9 is in a network of port `inside`, not of port `outside`",
        ),
        ("{ peer: 203.0.113.9 }", "8:20: no port's network contains 203.0.113.9"),
        (
            "{ peer: 198.51.100.1 }",
            "8:20: 198.51.100.1 is the box's own address, not another router's",
        ),
        (
            "{ peer: 198.51.100.255 }",
            "8:20: 198.51.100.255 cannot be a router: it is the network's broadcast address",
        ),
        ("{ peer: gateway }", "8:20: `gateway` is not an IP address"),
        (
            "{ peer: 198.51.100.2 }, { peer: 198.51.100.2 }",
            "8:44: port `outside` watches 198.51.100.2 already",
        ),
        (
            "{ peer: 198.51.100.2, interval: 50 }",
            "8:44: `50` is no time: write a number and `ms`, `us` or `s`, like 50ms",
        ),
        (
            "{ peer: 198.51.100.2, interval: 1ms }",
            "8:44: `interval` is between 3300us and 10s, not 1ms",
        ),
        ("{ peer: 198.51.100.2, multiplier: 0 }", "8:46: `multiplier` is between 1 and 255, not 0"),
        ("{ peer: 198.51.100.2, multiplier: 256 }", "8:46: "),
        (
            "{ peer: 198.51.100.2, intervall: 50ms }",
            "8:34: there is no key `intervall` here: `peer`, `interval`, `multiplier`, `key`; did you mean `interval`?",
        ),
        ("{ interval: 50ms }", "8:12: "),
        ("{ peer: 198.51.100.2, key: { type: md5, id: 1, file: k } }", "`md5`"),
        ("{ peer: 198.51.100.2, key: { type: password, id: 256, file: k } }", "8:61: "),
        (
            "{ peer: 198.51.100.2, key: { type: password, id: 1, file: \"\" } }",
            "8:70: `file` is a file's path",
        ),
    ];
    for (bfd, expected) in cases {
        let said = said(&text(&format!("[ {bfd} ]"), ""));
        assert!(said.contains(expected), "{bfd}: {said}");
    }
    let nat = text("[ { peer: 198.51.100.9 } ]", "")
        .replace("[ forward ]", "[ { nat: { pool: [ 198.51.100.9 ] } } ]");
    assert!(
        said(&nat).contains("contains 198.51.100.9, a router on port `outside`"),
        "{}",
        said(&nat)
    );
}

/// A second route to a network stands by while the first one's router is watched, and is
/// a mistake otherwise.
#[test]
fn a_route_may_stand_by_for_one_that_is_watched() {
    let route = "routes: [ { to: 0.0.0.0/0, via: 198.51.100.9 } ]\n";
    let plan = read(&text("[ { peer: 198.51.100.254 } ]", route));
    let gateways: Vec<_> =
        plan.routes.iter().map(|route| route.gateway.unwrap().to_string()).collect();
    assert_eq!(gateways, ["198.51.100.254", "198.51.100.9"]);
    let said_of = |bfd: &str, routes: &str| said(&text(bfd, routes));
    let expected = "there is a default route or gateway already to 0.0.0.0/0; a second one is used while the first one's router is dead, if `bfd` watches 198.51.100.254";
    assert!(said_of("[]", route).contains(expected), "{}", said_of("[]", route));
    // A third route needs the standby's router to be watched, too.
    let third =
        "routes: [ { to: 0.0.0.0/0, via: 198.51.100.9 }, { to: 0.0.0.0/0, via: 198.51.100.8 } ]\n";
    assert!(
        said_of("[ { peer: 198.51.100.254 } ]", third).contains("if `bfd` watches 198.51.100.9")
    );
    assert!(said_of("[ { peer: 198.51.100.254 }, { peer: 198.51.100.9 } ]", third).is_empty());
    let twice = "routes: [ { to: 0.0.0.0/0, via: 198.51.100.254 } ]\n";
    let said = said_of("[ { peer: 198.51.100.254 } ]", twice);
    assert!(said.contains("there is a default route or gateway already to 0.0.0.0/0\n"), "{said}");
}

/// A running box keeps the routers that it watches. Two ways to write the same are no
/// difference.
#[test]
fn a_running_box_watches_whom_it_began_with() {
    let (old, same) = (
        text("[ { peer: 198.51.100.254 } ]", ""),
        text("[ { peer: 198.51.100.254, interval: 50000us, multiplier: 3 } ]", ""),
    );
    let differences = |new: &str| config::differences(&read(&old), &read(new));
    assert!(differences(&same).is_empty());
    for (bfd, expected) in [
        ("[]", "`ports.outside.bfd` is `198.51.100.254` in the running box and not set here"),
        (
            "[ { peer: 198.51.100.253 } ]",
            "`ports.outside.bfd` is `198.51.100.254` in the running box and `198.51.100.253` here",
        ),
        (
            "[ { peer: 198.51.100.254, interval: 51ms } ]",
            "`ports.outside.bfd[0].interval` is `50000us` in the running box and `51000us` here",
        ),
        (
            "[ { peer: 198.51.100.254, multiplier: 4 } ]",
            "`ports.outside.bfd[0].multiplier` is `3` in the running box and `4` here",
        ),
        (
            "[ { peer: 198.51.100.254, key: { type: password, id: 1, file: k } } ]",
            "the running box has no `ports.outside.bfd[0].key`",
        ),
    ] {
        let found = differences(&text(bfd, ""));
        assert_eq!(found.len(), 1, "{bfd}");
        assert!(found[0].mistake.message.starts_with(expected), "{}", found[0].mistake);
    }
}

#[test]
fn keys_are_in_files_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("edge.yaml").display().to_string();
    let path = directory.path().join("k");
    let keys = |kind: &str| {
        let text = text(
            &format!(
                "[ {{ peer: 198.51.100.2 }}, {{ peer: 198.51.100.254, key: {{ type: {kind}, id: 7, file: k }} }} ]"
            ),
            "",
        );
        config::read(&file, &text)
            .and_then(|plan| plan.read_bfd_keys())
            .map_err(|mistake| mistake.to_string())
    };
    let write = |path: &Path, secret: &str, mode: u32| {
        std::fs::write(path, secret).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let refused = |kind: &str, expected: &str| {
        let said = keys(kind).map(drop).unwrap_err();
        assert!(
            said.contains(expected) && said.contains(":8:") && !said.contains("hunter"),
            "{said}"
        );
    };
    refused("keyed-sha1", "there is no file");
    write(&path, "hunter2\n", 0o644);
    refused("keyed-sha1", "chmod 600");
    write(&path, "hunter2\n", 0o600);
    let read = keys("keyed-sha1").unwrap();
    let key = read[1].as_ref().unwrap();
    assert!(read[0].is_none() && (key.id(), key.secret()) == (7, &b"hunter2"[..]));
    write(&path, "hunter2hunter2hu!\n", 0o600);
    refused("password", "holds 17 bytes: a `password` has 1 to 16");
    assert!(keys("meticulous-keyed-sha1").is_ok());
    write(&path, "\n", 0o600);
    refused("keyed-sha1", "holds 0 bytes: a `keyed-sha1` has 1 to 20");
}
