//! The effects of DPDK on the process that it is loaded into. This file has a single
//! test, because DPDK is loaded once per process.
#![cfg(holdfast_dpdk)]

use holdfast_io::port;
use std::collections::BTreeSet;
use std::path::Path;

/// A line of what the kernel says about this thread.
fn status(field: &str) -> String {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field}")).trim().to_owned()
}

/// Signals with a handler, without those that the C library takes when a thread starts
/// (32 and 33).
fn caught() -> u64 {
    u64::from_str_radix(&status("SigCgt"), 16).unwrap() & !(3 << 31)
}

fn descriptors() -> BTreeSet<i32> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).collect()
}

fn is_inherited(fd: i32) -> bool {
    // A descriptor that has gone meanwhile was the listing's own.
    let Ok(text) = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")) else { return false };
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
    u32::from_str_radix(flags, 8).unwrap() & 0o2_000_000 == 0
}

/// A program opens two DPDK ports and closes them: its processors, signals and
/// directories are as they were, processes that it starts inherit nothing, and DPDK was
/// not loaded before it was asked for.
#[test]
fn a_process_is_as_it_was_except_for_its_ports() {
    let look = || {
        (
            status("Cpus_allowed"),
            status("SigBlk"),
            status("SigIgn"),
            caught(),
            Path::new("/var/run/dpdk").exists(),
        )
    };
    let libraries = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("librte_");
    assert!(!libraries());
    let (before, open) = (look(), descriptors());
    let ports = [port::open("dpdk:net_ring0").unwrap(), port::open("dpdk:net_null0").unwrap()];
    assert!(libraries());
    assert_eq!(look(), before);
    let new: Vec<i32> = descriptors().difference(&open).copied().collect();
    assert!(new.len() > 1, "DPDK has descriptors of its own: {new:?}");
    let inherited: Vec<i32> = new.into_iter().filter(|fd| is_inherited(*fd)).collect();
    assert_eq!(inherited, Vec::<i32>::new());
    // An earlier program may have left the directory above it.
    let own = format!("/var/run/dpdk/holdfast-{}", std::process::id());
    assert!(!Path::new(&own).exists(), "{own}");
    drop(ports);
    assert_eq!(look(), before);
}
