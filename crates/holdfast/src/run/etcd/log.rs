//! The coordinator's log in etcd.
//!
//! A record is one value, or several if it is long; each value begins with a byte that
//! marks a record's last. Keys only grow: the leader's incarnation, then a count. A
//! record without its last value was never kept, and is passed over. A snapshot's last
//! value is written together with the deletion of everything before it.
//!
//! Every write is a transaction that checks that this leader still leads, and that the
//! last write was its own: a request that etcd gets twice, or late, has no effect.

use super::api::{KeyValue, RequestOp};
use super::client::{Client, delete, get, is_value, made_by, put};
use super::{Contact, Trouble};
use crate::run::store::{LogStore, StoreError};
use holdfast_node::coordinator::LogRecord;
use rustix::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Bytes per value.
const PART: usize = 256 << 10;
/// Maximum number of operations and bytes of a transaction: half of etcd's default
/// limits.
const MAX_OPERATIONS: usize = 64;
const MAX_BYTES: usize = 768 << 10;
/// Values read at a time.
const PAGE: usize = 32;
/// The first byte of a value.
const MORE: u8 = 0;
const LAST: u8 = 1;
/// The pause between two tries of a write.
const PAUSE: Duration = Duration::from_millis(50);

/// The coordinator's side of the log; a [`Writer`] does the work. See the module.
pub(in crate::run) struct EtcdStore {
    contact: Arc<Contact>,
    batches: Sender<Vec<LogRecord>>,
    /// Batches given, and batches kept.
    given: u64,
    kept: Arc<AtomicU64>,
}

/// The thread's side.
pub(super) struct Writer {
    contact: Arc<Contact>,
    batches: Receiver<Vec<LogRecord>>,
    kept: Arc<AtomicU64>,
    incarnation: u32,
    /// The revision that made this process the leader.
    revision: i64,
    position: u64,
}

/// The key of a position in the log.
pub(super) fn place(incarnation: u32, position: u64) -> String {
    format!("{incarnation:010}-{position:012}")
}

impl EtcdStore {
    /// The value of `written` when a leader begins.
    pub(super) fn beginning(incarnation: u32) -> String {
        place(incarnation, 0)
    }

    pub(super) fn new(
        contact: Arc<Contact>,
        incarnation: u32,
        revision: i64,
    ) -> (EtcdStore, Writer) {
        let (sender, batches) = channel();
        let kept = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            contact: contact.clone(),
            batches,
            kept: kept.clone(),
            incarnation,
            revision,
            position: 0,
        };
        (EtcdStore { contact, batches: sender, given: 0, kept }, writer)
    }
}

impl LogStore for EtcdStore {
    fn keep(&mut self, records: Vec<LogRecord>) -> Result<(), StoreError> {
        self.given += 1;
        self.batches.send(records).map_err(|_| StoreError::new(self.contact.why()))
    }

    fn is_kept(&mut self) -> Result<bool, StoreError> {
        // The count is read first: batches kept before the end of the lease are kept, but
        // no message may leave after it.
        let is_kept = self.kept.load(Ordering::Acquire) == self.given;
        if self.contact.leads() { Ok(is_kept) } else { Err(StoreError::new(self.contact.why())) }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.contact.fd())
    }

    fn calm(&self) {
        self.contact.calm();
    }
}

/// A transaction's part of a batch.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Step {
    pub(super) values: Vec<(String, Vec<u8>)>,
    /// Deletes everything before this key.
    pub(super) replaces: Option<String>,
}

/// Divides records into transactions; `position` is the last one used, and advances.
pub(super) fn steps(records: &[LogRecord], incarnation: u32, position: &mut u64) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut step, mut bytes) = (Step::default(), 0);
    // Records that a later one replaces need not be written.
    let from = records.iter().rposition(|record| record.replaces).unwrap_or(0);
    for record in &records[from..] {
        let count = record.bytes.chunks(PART).count().max(1);
        let first = place(incarnation, *position + 1);
        for at in 0..count {
            let part = record.bytes.chunks(PART).nth(at).unwrap_or_default();
            if !step.values.is_empty()
                && (bytes + part.len() > MAX_BYTES || step.values.len() == MAX_OPERATIONS)
            {
                steps.push(core::mem::take(&mut step));
                bytes = 0;
            }
            *position += 1;
            let mut value = Vec::with_capacity(part.len() + 1);
            value.push(if at + 1 == count { LAST } else { MORE });
            value.extend_from_slice(part);
            bytes += value.len();
            step.values.push((place(incarnation, *position), value));
        }
        if record.replaces {
            step.replaces = Some(first);
        }
    }
    steps.push(step);
    steps.retain(|step| !step.values.is_empty());
    steps
}

impl Writer {
    /// Writes batches until this leader leads no more.
    pub(super) fn run(mut self, client: &mut Client) {
        while let Ok(records) = self.batches.recv() {
            let before = self.position;
            let mut last = place(self.incarnation, before);
            for step in steps(&records, self.incarnation, &mut self.position) {
                let next =
                    step.values.last().map_or_else(|| last.clone(), |(place, _)| place.clone());
                loop {
                    if !self.contact.leads() {
                        return;
                    }
                    match write(client, self.revision, &step, &last, &next) {
                        Ok(true) => break,
                        Ok(false) => {
                            return self.contact.end("another coordinator leads, or its log was written by somebody else");
                        }
                        Err(_) => std::thread::sleep(PAUSE),
                    }
                }
                last = next;
            }
            self.kept.fetch_add(1, Ordering::Release);
            self.contact.wake();
        }
    }
}

/// Writes a step. False if etcd refused it.
pub(super) fn write(
    client: &mut Client,
    revision: i64,
    step: &Step,
    last: &str,
    next: &str,
) -> Result<bool, Trouble> {
    let (leader, written) = (client.key("leader"), client.key("written"));
    let mut success: Vec<RequestOp> = Vec::new();
    if let Some(first) = &step.replaces {
        success.push(delete(&client.key("log/"), &client.key(&format!("log/{first}"))));
    }
    success.extend(
        step.values
            .iter()
            .map(|(place, value)| put(&client.key(&format!("log/{place}")), value, 0)),
    );
    success.push(put(&written, next.as_bytes(), 0));
    let compare = vec![made_by(&leader, revision), is_value(&written, last)];
    let answer = client.transaction(compare, success, vec![get(&leader), get(&written)])?;
    // An earlier try may have succeeded without its answer.
    let leads = || answer.found(0).is_some_and(|found| found.create_revision == revision);
    let is_written = || answer.found(1).is_some_and(|found| found.value == next.as_bytes());
    Ok(answer.succeeded || leads() && is_written())
}

/// Reads the earlier leaders' records, in order; or says what is wrong with them.
pub(super) fn read(client: &mut Client) -> Result<Result<Vec<Vec<u8>>, String>, Trouble> {
    let (mut from, end) = (client.key("log/"), client.key("log0"));
    let (mut values, mut revision) = (Vec::new(), 0);
    loop {
        let mut answer = client.range(&from, Some(&end), PAGE, revision)?;
        // All pages show one revision.
        revision =
            if revision == 0 { answer.header.unwrap_or_default().revision } else { revision };
        let last = answer.kvs.last().map(|last| String::from_utf8_lossy(&last.key).into_owned());
        values.append(&mut answer.kvs);
        match last {
            Some(last) if answer.more => from = last + "\0",
            _ => return Ok(decode(&client.key("log/"), &values)),
        }
    }
}

/// Joins values into records; never panics.
pub(super) fn decode(prefix: &str, values: &[KeyValue]) -> Result<Vec<Vec<u8>>, String> {
    let mut records = Vec::new();
    // The unfinished record, and the incarnation that wrote it.
    let (mut record, mut writer): (Vec<u8>, &[u8]) = (Vec::new(), &[]);
    for value in values {
        let wrong = || format!("`{}` is no part of it", value.key.escape_ascii());
        let place = value.key.strip_prefix(prefix.as_bytes()).ok_or_else(wrong)?;
        let (incarnation, position) = place.split_at_checked(10).ok_or_else(wrong)?;
        let is_number = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
        if !is_number(incarnation)
            || position.len() != 13
            || position[0] != b'-'
            || !is_number(&position[1..])
        {
            return Err(wrong());
        }
        if incarnation != writer {
            // A record that another leader has not finished was never kept.
            record.clear();
            writer = incarnation;
        }
        let (kind, part) = value.value.split_first().ok_or_else(wrong)?;
        record.extend_from_slice(part);
        match *kind {
            MORE => {}
            LAST => records.push(core::mem::take(&mut record)),
            _ => return Err(wrong()),
        }
    }
    Ok(records)
}
