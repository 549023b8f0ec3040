//! `dpi` over captures of real clients and servers: the protocols are those that
//! ndpiReader gives. `tests/captures/README.md` says how its answers are had.

use crate::bench::Bench;
use crate::captures::{checked_in, flow, packets, read};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The function's answers on a capture, as `ndpi.sh` writes ndpiReader's.
fn answers(capture: &Path) -> BTreeSet<String> {
    let name = capture.file_stem().expect("a file").to_string_lossy();
    let mut bench = Bench::new(&[("dpi", json!({}))]);
    let mut flows: BTreeMap<String, String> = BTreeMap::new();
    for frame in packets(capture) {
        // Messages to groups (RFC 4291, section 2.7) belong to no flow of a box.
        let Some(flow) = flow(&frame).filter(|flow| !flow.contains("[ff")) else { continue };
        bench.send_frame(&frame).expect("no rule refuses a packet");
        let said = bench.explained.last().expect("every packet is explained");
        let (protocol, rest) = said.split_once(" (category ").expect("a category");
        let (category, _) = rest.split_once(')').expect("an end");
        flows.insert(flow, format!("{protocol} {category}"));
    }
    flows.iter().map(|(flow, answer)| format!("{name} {flow} {answer}")).collect()
}

/// With the directory of `HOLDFAST_CAPTURES`, in which `ndpi.sh` has written `ndpi.txt`,
/// these captures are compared instead of those that are checked in.
#[test]
fn the_protocols_are_those_of_ndpireader() {
    let other = std::env::var_os("HOLDFAST_CAPTURES").map(std::path::PathBuf::from);
    let directory = other.unwrap_or_else(checked_in);
    let theirs: BTreeSet<String> =
        read(&directory.join("ndpi.txt")).lines().map(str::to_owned).collect();
    let mut ours = BTreeSet::new();
    for entry in std::fs::read_dir(&directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "pcap") {
            ours.extend(answers(&path));
        }
    }
    let differing: Vec<_> = theirs.symmetric_difference(&ours).collect();
    assert!(differing.is_empty(), "ndpiReader and the function differ: {differing:#?}");
    let protocols: BTreeSet<&str> =
        theirs.iter().filter_map(|line| line.split(' ').nth(4)).collect();
    assert!(protocols.len() > 10, "only {protocols:?}");
}
