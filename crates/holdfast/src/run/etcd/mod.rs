//! etcd: where coordinators elect one, and where the one that leads keeps its log.
//!
//! Theory of operation. Everything lies below the configured prefix. `leader` says who leads; it hangs on the leader's lease, and the revision that made
//! it is the guard of every write: once another leads, or nobody, a write of the old leader is refused. `incarnation` is the highest that a leader
//! ever had, `written` the last position in the log, and `log/` the log. etcd is spoken to through its JSON gateway, by threads of their own: the coordinator's
//! loop waits for none of it.
//!
//! In: the configuration, who this is, records. Out: that it leads, the log, that records are kept, that it leads no more. Never: a decision.
//!
//! The gateway and a small HTTP client cost seven crates, all of them for TLS; etcd's gRPC client would be seventy, and a compiler for protocol buffers at
//! build time.

mod election;
mod http;
mod log;
#[cfg(test)]
mod tests;

pub(super) use election::{Candidacy, Leader, Leadership};

use crate::config::Etcd;
use http::Connection;
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustls::ClientConfig;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde_json::{Value, json};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A time that goes on while the machine is suspended, as the server's does, ns.
fn boot_time() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Why etcd does not do what was asked: in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble(pub(super) String);

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the threads know and the coordinator's loop wants to.
pub(super) struct Contact {
    began_at: u64,
    /// When etcd answered last; 0 before it ever did.
    answered_at: AtomicU64,
    /// Until when this process leads for certain; 0 while it does not.
    leads_until: AtomicU64,
    /// Until when it may try to, and whether others are to try first.
    wanted_until: AtomicU64,
    is_modest: AtomicBool,
    words: Mutex<Words>,
    wake: OwnedFd,
}

#[derive(Default)]
struct Words {
    /// Of each client.
    troubles: [Option<String>; CLIENTS],
    leader: Option<Leader>,
    /// Why it leads no more.
    end: Option<String>,
}

impl Contact {
    fn new() -> io::Result<Contact> {
        Ok(Contact {
            began_at: boot_time(),
            answered_at: AtomicU64::new(0),
            leads_until: AtomicU64::new(0),
            wanted_until: AtomicU64::new(0),
            is_modest: AtomicBool::new(false),
            words: Mutex::default(),
            wake: rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        })
    }

    fn words(&self) -> std::sync::MutexGuard<'_, Words> {
        // Words are whole at every moment.
        self.words.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Readable when something has changed, until [`Contact::calm`].
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// What has changed is going to be looked at.
    pub(super) fn calm(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
    }

    fn answered(&self, client: usize) {
        self.answered_at.store(boot_time(), Ordering::Relaxed);
        self.words().troubles[client] = None;
    }

    fn trouble(&self, client: usize, trouble: &Trouble) {
        self.words().troubles[client] = Some(trouble.0.clone());
    }

    /// It leads no more, and why is known.
    pub(super) fn is_over(&self) -> bool {
        self.words().end.is_some()
    }

    /// Whether this process leads, for certain.
    pub(super) fn leads(&self) -> bool {
        boot_time() < self.leads_until.load(Ordering::Relaxed)
    }

    /// It may try to lead.
    fn is_wanted(&self) -> bool {
        boot_time() < self.wanted_until.load(Ordering::Relaxed)
    }

    /// It leads no more.
    fn end(&self, why: &str) {
        self.words().end.get_or_insert_with(|| why.to_owned());
        self.leads_until.store(0, Ordering::Relaxed);
        self.wake();
    }

    /// Why it leads no more.
    pub(super) fn why(&self) -> String {
        let silence = self.silence().as_millis();
        let words = self.words();
        let silent = || format!("etcd has not answered for {silence} ms");
        let why = words.end.clone().unwrap_or_else(silent);
        match words.troubles.iter().flatten().next() {
            Some(trouble) => format!("{why} ({trouble})"),
            None => why,
        }
    }

    /// Who leads, as far as is known.
    pub(super) fn leader(&self) -> Option<Leader> {
        self.words().leader.clone()
    }

    /// What is wrong with etcd, if anything is.
    pub(super) fn current_trouble(&self) -> Option<String> {
        self.words().troubles.iter().flatten().next().cloned()
    }

    /// Whether etcd has ever answered.
    pub(super) fn has_heard(&self) -> bool {
        self.answered_at.load(Ordering::Relaxed) > 0
    }

    /// How long ago etcd answered last, or this process began to ask.
    pub(super) fn silence(&self) -> Duration {
        let last = self.answered_at.load(Ordering::Relaxed).max(self.began_at);
        Duration::from_nanos(boot_time().saturating_sub(last))
    }
}

/// Who campaigns and then writes; who keeps the lease; who gives it up.
const CLIENTS: usize = 3;
const CAMPAIGN: usize = 0;
const KEEPER: usize = 1;
const END: usize = 2;

/// A client of its own for each thread.
struct Client {
    number: usize,
    config: Arc<Etcd>,
    tls: Option<Arc<ClientConfig>>,
    contact: Arc<Contact>,
    /// To the member that answered last.
    connection: Option<Connection>,
    at: usize,
}

impl Client {
    fn new(number: usize, config: Arc<Etcd>, tls: Option<Arc<ClientConfig>>, contact: Arc<Contact>) -> Client {
        Client { number, config, tls, contact, connection: None, at: 0 }
    }

    /// How long one member may take: two rounds fit into a lease.
    fn patience(&self) -> Duration {
        let members = self.config.endpoints.len().max(1) as u64;
        Duration::from_millis((self.config.lease_ms / (2 * members)).clamp(100, 2000))
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.config.prefix)
    }

    /// Asks a member; after an error the next one is asked the next time. What is asked must do no harm a second time: an answer may be lost, and a
    /// connection that was closed meanwhile is opened again.
    fn ask<T: DeserializeOwned>(&mut self, path: &str, body: &Value) -> Result<T, Trouble> {
        let result = self.ask_member(path, body);
        match &result {
            Ok(_) => self.contact.answered(self.number),
            Err(trouble) => {
                self.connection = None;
                self.at = (self.at + 1) % self.config.endpoints.len().max(1);
                self.contact.trouble(self.number, trouble);
            }
        }
        result
    }

    fn ask_member<T: DeserializeOwned>(&mut self, path: &str, body: &Value) -> Result<T, Trouble> {
        let Some(endpoint) = self.config.endpoints.get(self.at) else { return Err(Trouble("etcd has no endpoints".to_owned())) };
        let name = endpoint.text.clone();
        let wrong = |what: &dyn std::fmt::Display| Trouble(format!("{name}: {what}"));
        let patience = self.patience();
        let until = Instant::now() + patience;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::TimedOut => wrong(&format!("no answer within {} ms", patience.as_millis())),
            io::ErrorKind::UnexpectedEof => wrong(&"it closed the connection"),
            _ => wrong(&error),
        };
        let bytes = serde_json::to_vec(body).map_err(|error| wrong(&error))?;
        let kept = self.connection.take();
        let kept = kept.and_then(|connection| {
            let was_used = connection.is_used();
            match connection.post(path, &bytes, until) {
                Err(error) if was_used && error.kind() != io::ErrorKind::TimedOut => None,
                result => Some(result),
            }
        });
        let (answer, rest) = match kept {
            Some(result) => result,
            None => {
                Connection::open(endpoint, self.tls.as_ref(), until).and_then(|connection| connection.post(path, &bytes, until))
            }
        }
        .map_err(failed)?;
        self.connection = rest;
        if answer.status != 200 {
            #[derive(Deserialize)]
            struct Refusal {
                error: String,
            }
            let said = serde_json::from_slice::<Refusal>(&answer.body).map(|refusal| refusal.error);
            let said = said.unwrap_or_else(|_| format!("HTTP status {}", answer.status));
            // Whatever it is: nothing that moves the cursor, and no more than a line.
            return Err(wrong(&said.chars().filter(|c| !c.is_control()).take(200).collect::<String>()));
        }
        serde_json::from_slice(&answer.body).map_err(|error| wrong(&format!("this is no answer of etcd: {error}")))
    }

    fn range(&mut self, key: &str, end: Option<&str>, limit: usize, revision: i64) -> Result<RangeAnswer, Trouble> {
        let mut body = json!({ "key": encode(key.as_bytes()), "limit": limit.to_string(), "revision": revision.to_string() });
        if let Some(end) = end {
            body["range_end"] = encode(end.as_bytes()).into();
        }
        self.ask("/v3/kv/range", &body)
    }

    fn transaction(
        &mut self,
        compare: Vec<Value>,
        success: Vec<Value>,
        failure: Vec<Value>,
    ) -> Result<TransactionAnswer, Trouble> {
        self.ask("/v3/kv/txn", &json!({ "compare": compare, "success": success, "failure": failure }))
    }

    fn grant(&mut self, seconds: u64) -> Result<LeaseAnswer, Trouble> {
        let answer: LeaseAnswer = self.ask("/v3/lease/grant", &json!({ "TTL": seconds.to_string(), "ID": "0" }))?;
        if answer.id == 0 || answer.ttl <= 0 { Err(Trouble("etcd has granted no lease".to_owned())) } else { Ok(answer) }
    }

    /// What is left of the lease, seconds; 0 if there is none of that number any more.
    fn renew(&mut self, lease: i64) -> Result<i64, Trouble> {
        #[derive(Deserialize)]
        struct Renewed {
            result: LeaseAnswer,
        }
        let renewed: Renewed = self.ask("/v3/lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        Ok(renewed.result.ttl)
    }

    fn revoke(&mut self, lease: i64) -> Result<(), Trouble> {
        self.ask::<Value>("/v3/lease/revoke", &json!({ "ID": lease.to_string() })).map(drop)
    }
}

fn put(key: &str, value: &[u8], lease: i64) -> Value {
    json!({ "request_put": { "key": encode(key.as_bytes()), "value": encode(value), "lease": lease.to_string() } })
}

fn get(key: &str) -> Value {
    json!({ "request_range": { "key": encode(key.as_bytes()) } })
}

fn delete(key: &str, end: &str) -> Value {
    json!({ "request_delete_range": { "key": encode(key.as_bytes()), "range_end": encode(end.as_bytes()) } })
}

/// A revision that made a key (0: there is none of that name), or changed it last.
fn made_by(key: &str, revision: i64) -> Value {
    json!({ "target": "CREATE", "result": "EQUAL", "key": encode(key.as_bytes()), "create_revision": revision.to_string() })
}

fn changed_by(key: &str, revision: i64) -> Value {
    json!({ "target": "MOD", "result": "EQUAL", "key": encode(key.as_bytes()), "mod_revision": revision.to_string() })
}

fn is_value(key: &str, value: &str) -> Value {
    json!({ "target": "VALUE", "result": "EQUAL", "key": encode(key.as_bytes()), "value": encode(value.as_bytes()) })
}

/// The gateway writes 64-bit numbers as texts, and leaves out zeros.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Text(String),
        Number(i64),
    }
    match Form::deserialize(deserializer)? {
        Form::Text(text) => text.parse().map_err(|_| D::Error::custom("a number is none")),
        Form::Number(number) => Ok(number),
    }
}

/// Bytes come in base64.
fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    decode(&text).ok_or_else(|| D::Error::custom("a value is not in base64"))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Header {
    #[serde(deserialize_with = "number")]
    revision: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct KeyValue {
    #[serde(deserialize_with = "bytes")]
    key: Vec<u8>,
    #[serde(deserialize_with = "bytes")]
    value: Vec<u8>,
    #[serde(deserialize_with = "number")]
    create_revision: i64,
    #[serde(deserialize_with = "number")]
    mod_revision: i64,
    #[serde(deserialize_with = "number")]
    lease: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RangeAnswer {
    header: Header,
    kvs: Vec<KeyValue>,
    more: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TransactionAnswer {
    header: Header,
    succeeded: bool,
    responses: Vec<OneAnswer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OneAnswer {
    response_range: Option<RangeAnswer>,
}

impl TransactionAnswer {
    /// What one of its requests has found.
    fn found(&self, at: usize) -> Option<&KeyValue> {
        self.responses.get(at)?.response_range.as_ref()?.kvs.first()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LeaseAnswer {
    #[serde(rename = "ID", deserialize_with = "number")]
    id: i64,
    #[serde(rename = "TTL", deserialize_with = "number")]
    ttl: i64,
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 (RFC 4648) with padding.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let is_there = at <= chunk.len();
            text.push(if is_there { char::from(ALPHABET[(group >> (18 - 6 * at) & 63) as usize]) } else { '=' });
        }
    }
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0u32, 0);
    for character in text {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    // A single character more than whole groups says nothing.
    (text.len() % 4 != 1).then_some(bytes)
}
