//! The names in a coordinator's log, beside those that are configured.

use crate::coordinator_log::config;
use holdfast_node::coordinator::{Coordinator, CoordinatorConfig, IdentityKind, LogError, Misfit};
use holdfast_node::message::MemberState;

fn named(incarnation: u32, chains: &[&str]) -> CoordinatorConfig {
    let names = chains.iter().map(|name| (IdentityKind::Chain, (*name).to_owned())).collect();
    CoordinatorConfig { names, ..config(incarnation) }
}

/// The difference that keeps a coordinator from being restored.
fn misfit(log: &[Vec<u8>], config: CoordinatorConfig) -> Option<Misfit> {
    match Coordinator::restore(config, 1, log.iter().map(Vec::as_slice)) {
        Ok(_) => None,
        Err(LogError::OtherConfiguration(misfit)) => Some(misfit),
        Err(other) => panic!("it can be read: {other}"),
    }
}

/// A log of chains `lan` and `wan` fits these, with or without others behind them, and
/// none that would have another's number.
fn assert_has_lan_and_wan(log: &[Vec<u8>]) {
    let kind = IdentityKind::Chain;
    assert_eq!(misfit(log, named(3, &["lan", "wan"])), None);
    assert_eq!(
        misfit(log, named(3, &["aaa", "lan", "wan"])),
        Some(Misfit::Added(kind, "aaa".to_owned()))
    );
    assert_eq!(misfit(log, named(3, &["lan", "wan", "zzz"])), None);
    assert_eq!(misfit(log, named(3, &["lan"])), None);
    assert_eq!(misfit(log, named(3, &["wan"])), Some(Misfit::Removed(kind, "lan".to_owned())));
    let renamed = named(3, &["lan", "www"]);
    assert_eq!(misfit(log, renamed), Some(Misfit::Removed(kind, "wan".to_owned())));
    assert_eq!(
        misfit(log, named(3, &["wan", "lan"])),
        Some(Misfit::Renumbered(kind, "wan".to_owned(), 1))
    );
}

/// As many chains as before, under other names or in another order: their numbers would
/// mean others.
#[test]
fn a_log_fits_the_names_it_was_written_for() {
    let mut coordinator = Coordinator::new(named(1, &["lan", "wan"]), 1);
    let log: Vec<Vec<u8>> = coordinator.poll_log().into_iter().map(|record| record.bytes).collect();
    assert_has_lan_and_wan(&log);
}

/// The records of `log_v8.hex` were written by version 8, with three runtimes that run.
/// They are read as if names had the numbers of their order, and the log goes on in this
/// version, which knows the names from then on.
#[test]
fn a_log_of_the_version_before_gets_the_names() {
    let byte = |hex: &[u8]| {
        let digits = core::str::from_utf8(hex).expect("it is text");
        u8::from_str_radix(digits, 16).expect("it is hexadecimal")
    };
    let record = |line: &str| line.as_bytes().chunks(2).map(byte).collect();
    let mut log: Vec<Vec<u8>> = include_str!("log_v8.hex").lines().map(record).collect();
    assert!(log.iter().all(|record| record[0] == 8));
    let bytes = log.iter().map(Vec::as_slice);
    let mut coordinator =
        Coordinator::restore(named(2, &["lan", "wan"]), 1, bytes).expect("it can be read");
    let running = |coordinator: &Coordinator| {
        let runs = |member: MemberState| member == MemberState::Running;
        coordinator.status().filter(|status| runs(status.member.state)).count()
    };
    assert_eq!((running(&coordinator), coordinator.ledgers().len()), (3, 1));
    log.extend(coordinator.poll_log().into_iter().map(|record| record.bytes));
    assert!(log.iter().any(|record| record[0] == 9));
    assert_has_lan_and_wan(&log);
}
