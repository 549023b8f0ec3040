//! The coordinator's write-ahead log: must be kept before any message that depends on it
//! leaves.
//!
//! Theory of operation. The coordinator appends an entry for each [`Decision`], and the
//! driver keeps the entries before it lets messages out. Every record has a version, its
//! number, and a checksum, so a damaged, missing or misplaced record is noticed. When the
//! entries since the last snapshot have become longer than a snapshot would be, a
//! snapshot replaces them all: the log is bounded.
//!
//! In: entries. Out: bytes to keep. Never: I/O.

use super::identities::{Change, Identities, Identity, IdentityKind};
use super::memory::{Decision, Memory};
use super::{CoordinatorConfig, Ledger};
use crate::message::PoolId;
use holdfast_wire::fnv1a;
use serde::de::DeserializeOwned;

/// Layout version of records, entries and memory.
const VERSION: u8 = 9;
/// The version before, which is read too. Its memory has no identity table, the last
/// field of this version's; its entries are the same.
const BEFORE: u8 = 8;
const SNAPSHOT: u8 = 1;
const ENTRY: u8 = 2;
/// Bytes of version, kind and number.
const HEADER_LEN: usize = 10;
const CHECKSUM_LEN: usize = 8;
/// Least bytes of entries that a snapshot replaces.
const SHORT: usize = 64 * 1024;

/// A log record to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// The record's number. Records are read again in this order.
    pub number: u64,
    /// The content.
    pub bytes: Vec<u8>,
    /// True if no earlier record is needed once this one is kept.
    pub replaces: bool,
}

/// Why a log cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogError {
    /// Another version wrote the log.
    Version(u8),
    /// A record is damaged: its index, counted from 0.
    Damaged(usize),
    /// A record is missing: its index. Also if the log is empty.
    Missing(usize),
    /// The log belongs to another configuration.
    OtherConfiguration(Misfit),
}

/// The first difference of a configuration from the log's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misfit {
    /// The log does not have the name.
    Added(IdentityKind, String),
    /// Only the log has the name.
    Removed(IdentityKind, String),
    /// The name has this number in the log, and another one here.
    Renumbered(IdentityKind, String, u16),
    /// All numbers of the kind are taken, or rest.
    Full(IdentityKind),
    /// There are more or fewer runtimes, or they are on other hosts.
    Runtimes,
    /// The clusters serve other chains.
    Clusters,
    /// The switches have other chains.
    Switches,
    /// The pools are others, or have other sizes.
    Pools,
}

impl core::fmt::Display for Misfit {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Misfit::Added(kind, name) => write!(f, "{kind} `{name}` is not in it"),
            Misfit::Removed(kind, name) => {
                write!(f, "{kind} `{name}` is in it, and is not configured")
            }
            Misfit::Renumbered(kind, name, number) => {
                write!(f, "{kind} `{name}` has number {number} in it, and another one here")
            }
            Misfit::Full(kind) => write!(f, "there is no free number for another {kind}"),
            Misfit::Runtimes => f.write_str("its runtimes are others, or on other hosts"),
            Misfit::Clusters => f.write_str("its clusters serve other chains"),
            Misfit::Switches => f.write_str("its switches have other chains"),
            Misfit::Pools => f.write_str("its pools are others"),
        }
    }
}

impl core::fmt::Display for LogError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LogError::Version(version) => write!(
                f,
                "it was written by another version ({version}; this one writes {VERSION})"
            ),
            LogError::Damaged(at) => write!(f, "record {at} is damaged"),
            LogError::Missing(at) => write!(f, "record {at} is missing"),
            LogError::OtherConfiguration(misfit) => {
                write!(f, "it was written for another configuration: {misfit}")
            }
        }
    }
}

impl core::error::Error for LogError {}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Log {
    next: u64,
    /// Records that the driver has not fetched.
    fresh: Vec<LogRecord>,
    /// Bytes of the last snapshot, and of the entries since.
    snapshot: usize,
    entries: usize,
}

fn encode(kind: u8, number: u64, body: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = vec![VERSION, kind];
    bytes.extend_from_slice(&number.to_be_bytes());
    // Encoding into a vector fails only for types that postcard does not support, and
    // entries have none.
    let mut bytes = postcard::to_extend(body, bytes).expect("entries are plain data");
    let sum = fnv1a(&bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
    bytes
}

fn decode<T: DeserializeOwned>(body: &[u8], at: usize) -> Result<T, LogError> {
    postcard::from_bytes(body).map_err(|_| LogError::Damaged(at))
}

/// A snapshot of the version before, with an empty identity table.
fn with_identities(body: &[u8]) -> Vec<u8> {
    // See `encode`.
    postcard::to_extend(&Identities::default(), body.to_vec()).expect("the table is plain data")
}

/// Compares a configuration with the log's: first the names, so that equal numbers mean
/// the same afterwards. Returns the change of the names, if there is one: some joined the
/// others or left them, and nobody's number is another one for that. A log of the version
/// before is read as if its names had the numbers of their order.
pub(super) fn compare(
    memory: &Memory,
    config: &CoordinatorConfig,
    now: u64,
) -> Result<Option<Change>, Misfit> {
    let change = memory.identities.change(&config.names, now)?;
    let mut identities = memory.identities.clone();
    identities.apply(&change);
    for (at, name) in config.names.iter().enumerate() {
        let before = config.names[..at].iter().filter(|before| before.0 == name.0).count();
        let is_other = |number: &u16| usize::from(*number) != before;
        let Some(number) = identities.number(name).filter(is_other) else { continue };
        // The name that is in its way, if there is one, says more.
        let of_kind = |identity: &&Identity| identity.kind == name.0;
        return Err(
            match (change.given_up.iter().find(of_kind), change.given.iter().find(of_kind)) {
                (Some(gone), _) => Misfit::Removed(gone.kind, gone.name.clone()),
                (_, Some(new)) => Misfit::Added(new.kind, new.name.clone()),
                _ => Misfit::Renumbered(name.0, name.1.clone(), number),
            },
        );
    }
    let count = |cluster: &super::ClusterConfig| usize::from(cluster.runtimes + cluster.spare);
    let runtimes: usize = config.clusters.iter().map(count).sum();
    let hosts = memory.places.iter().map(|place| place.member.host);
    if memory.places.len() != runtimes || hosts.ne(config.hosts.places().take(runtimes)) {
        return Err(Misfit::Runtimes);
    }
    if !memory.chains.iter().eq(config.clusters.iter().map(|cluster| &cluster.chains)) {
        return Err(Misfit::Clusters);
    }
    let switches = config.hosts.switches.iter().map(|place| &place.chains);
    if !memory.services.iter().map(|service| &service.chains).eq(switches) {
        return Err(Misfit::Switches);
    }
    let fits =
        |(ledger, (id, size)): (&Ledger, &(PoolId, u32))| ledger.id == *id && ledger.fits(*size);
    if memory.ledgers.len() != config.pools.len()
        || !memory.ledgers.iter().zip(&config.pools).all(fits)
    {
        return Err(Misfit::Pools);
    }
    let is_change = !(change.given.is_empty() && change.given_up.is_empty());
    Ok(is_change.then_some(change))
}

/// A record as text, for traces.
pub fn describe(record: &[u8]) -> String {
    let body =
        record.get(HEADER_LEN..record.len().saturating_sub(CHECKSUM_LEN)).unwrap_or_default();
    match record.get(1) {
        Some(&ENTRY) => decode::<Decision>(body, 0)
            .map_or_else(|error| error.to_string(), |entry| format!("{entry:?}")),
        _ => "a snapshot".to_owned(),
    }
}

impl Log {
    pub(super) fn append(&mut self, entry: &Decision) {
        let bytes = encode(ENTRY, self.next, entry);
        self.entries += bytes.len();
        self.fresh.push(LogRecord { number: self.next, bytes, replaces: false });
        self.next += 1;
    }

    /// The records to be kept now. `memory` is the state after every entry so far.
    pub(super) fn take(&mut self, memory: &Memory) -> Vec<LogRecord> {
        let is_long = self.entries > self.snapshot.max(SHORT);
        if self.snapshot == 0 || is_long && !self.fresh.is_empty() {
            let bytes = encode(SNAPSHOT, self.next, memory);
            (self.snapshot, self.entries) = (bytes.len(), 0);
            self.fresh.clear();
            self.fresh.push(LogRecord { number: self.next, bytes, replaces: true });
            self.next += 1;
        }
        core::mem::take(&mut self.fresh)
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.snapshot == 0 || !self.fresh.is_empty()
    }

    /// Reads records in order. Records before the last snapshot are skipped.
    pub(super) fn read<'a>(
        records: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(Log, Memory), LogError> {
        let mut log = Log::default();
        let mut memory: Option<Memory> = None;
        for (at, record) in records.enumerate() {
            let split = record
                .len()
                .checked_sub(CHECKSUM_LEN)
                .filter(|split| *split >= HEADER_LEN)
                .ok_or(LogError::Damaged(at))?;
            let (covered, sum) = record.split_at(split);
            if fnv1a(covered).to_be_bytes() != sum {
                return Err(LogError::Damaged(at));
            }
            if !matches!(covered[0], BEFORE | VERSION) {
                return Err(LogError::Version(covered[0]));
            }
            let number = covered[2..HEADER_LEN]
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte));
            let body = &covered[HEADER_LEN..];
            match (covered[1], &mut memory) {
                (SNAPSHOT, memory) => {
                    *memory = Some(if covered[0] == BEFORE {
                        decode(&with_identities(body), at)?
                    } else {
                        decode(body, at)?
                    });
                    (log.snapshot, log.entries) = (record.len(), 0);
                }
                (ENTRY, Some(memory)) if number == log.next => {
                    memory.apply(&decode(body, at)?);
                    log.entries += record.len();
                }
                (ENTRY, _) => return Err(LogError::Missing(at)),
                _ => return Err(LogError::Damaged(at)),
            }
            log.next = number + 1;
        }
        memory.map(|memory| (log, memory)).ok_or(LogError::Missing(0))
    }
}
