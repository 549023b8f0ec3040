//! The IPS over captures of real clients and servers: rules that Suricata understands
//! find what Suricata finds. `tests/captures/README.md` says how its alerts are had, and
//! has the reasons for differences.

use crate::bench::Bench;
use holdfast_wire::{FlowKey, MemoryPool, PacketPool};
use pcap_file::pcap::PcapReader;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// An alert's engine, its capture, and its rule.
type Difference = (String, String, String);

pub(crate) fn checked_in() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures")
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The flow of a packet in words: its protocol and both ends, in the order of their
/// texts.
pub(crate) fn flow(frame: &[u8]) -> Option<String> {
    let mut packets = MemoryPool::new(1);
    let mut packet = packets.take().expect("it has one");
    let is_whole = packet.copy_from(frame) && packet.parse().is_ok();
    let key = is_whole.then(|| FlowKey::of(&packet)).flatten()?;
    let end = |address, port| match key.protocol {
        6 | 17 => SocketAddr::new(address, port).to_string(),
        _ if address.is_ipv6() => format!("[{address}]"),
        _ => address.to_string(),
    };
    let mut ends =
        [end(key.source_ip(), key.source_port), end(key.destination_ip(), key.destination_port)];
    ends.sort();
    let protocol = match key.protocol {
        6 => "tcp",
        17 => "udp",
        _ => "icmp",
    };
    Some(format!("{protocol} {} {}", ends[0], ends[1]))
}

/// The frames of a capture.
pub(crate) fn packets(capture: &Path) -> impl Iterator<Item = Vec<u8>> {
    let file = File::open(capture).unwrap_or_else(|error| panic!("{}: {error}", capture.display()));
    let mut packets = PcapReader::new(file).expect("a capture");
    std::iter::from_fn(move || {
        packets.next_packet().map(|packet| packet.expect("a whole packet").data.into_owned())
    })
}

/// The function's alerts on a capture, as `suricata.sh` writes Suricata's.
fn alerts(capture: &Path, rules: &str) -> BTreeSet<String> {
    let name = capture.file_stem().expect("a file").to_string_lossy();
    let file = json!({ "path": "captures.rules", "text": rules });
    let config = json!({ "rule_files": [file], "uninspected": "alert" });
    let mut bench = Bench::new(&[("ips", config)]);
    let mut alerts = BTreeSet::new();
    let mut before: Vec<(String, u64)> = Vec::new();
    for frame in packets(capture) {
        // Packets of other network protocols belong to no flow.
        let Some(flow) = flow(&frame) else { continue };
        // A refused segment counts as well as one that passes.
        let _ = bench.send_frame(&frame);
        let after = bench.counters();
        for (counter, _) in after.iter().filter(|counter| !before.contains(counter)) {
            let first = counter.split(' ').next().unwrap_or_default();
            if first.parse::<u32>().is_ok() {
                alerts.insert(format!("{name} {flow} {first}"));
            }
        }
        before = after;
    }
    for event in ["table_full", "matches_not_counted", "rules_changed"] {
        assert_eq!(bench.counter(event), 0, "{name}: {event}");
    }
    alerts
}

fn difference(whose: &str, alert: &str) -> Difference {
    let words: Vec<&str> = alert.split(' ').collect();
    (whose.to_owned(), words[0].to_owned(), words[words.len() - 1].to_owned())
}

/// Every alert of Suricata is one of the function, and the reverse, but for differences
/// that have a reason. `HOLDFAST_CAPTURES` names a directory with other captures of the
/// same kinds, and with Suricata's alerts in `suricata.txt`.
#[test]
fn what_suricata_finds_is_found() {
    let other = std::env::var_os("HOLDFAST_CAPTURES").map(PathBuf::from);
    let directory = other.clone().unwrap_or_else(checked_in);
    let rules = read(&checked_in().join("captures.rules"));
    let theirs: BTreeSet<String> =
        read(&directory.join("suricata.txt")).lines().map(str::to_owned).collect();
    let mut ours = BTreeSet::new();
    let entries = std::fs::read_dir(&directory).expect("a directory");
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.extension().is_some_and(|extension| extension == "pcap") {
            ours.extend(alerts(&path, &rules));
        }
    }
    assert!(ours.len() > 100, "only {} alerts", ours.len());
    let found: BTreeSet<Difference> = theirs
        .difference(&ours)
        .map(|alert| difference("suricata", alert))
        .chain(ours.difference(&theirs).map(|alert| difference("ips", alert)))
        .collect();
    let text = read(&checked_in().join("differences.txt"));
    let known: BTreeSet<Difference> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            assert_eq!(words.len(), 4, "`{line}` has no reason");
            (words[0].to_owned(), words[1].to_owned(), words[2].to_owned())
        })
        .collect();
    let unknown: Vec<_> = found.difference(&known).collect();
    assert!(unknown.is_empty(), "these alerts are of one only: {unknown:#?}");
    // Another recording may happen not to differ.
    let gone: Vec<_> = known.difference(&found).filter(|_| other.is_none()).collect();
    assert!(gone.is_empty(), "these differences are no more: {gone:?}");
}

/// Each rule is found in some capture, but for those that say that they never are.
#[test]
fn every_rule_is_tried() {
    let alerts = read(&checked_in().join("suricata.txt"));
    let known = read(&checked_in().join("differences.txt"));
    let found: BTreeSet<&str> = alerts
        .lines()
        .filter_map(|line| line.split(' ').next_back())
        .chain(known.lines().filter_map(|line| line.split(' ').nth(2)))
        .collect();
    let rules = read(&checked_in().join("captures.rules"));
    for rule in rules.lines().filter(|line| line.starts_with("alert")) {
        let sid = rule.split("sid:").nth(1).and_then(|rest| rest.split(';').next());
        let is_never = rule.contains("never");
        assert_eq!(found.contains(sid.expect("a sid")), !is_never, "{rule}");
    }
}
