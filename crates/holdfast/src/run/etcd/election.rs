//! The election: a candidate waits until there is no leader, and then leads for as long
//! as etcd hears it. A candidate tries only while it is wanted.
//!
//! A leader renews its lease several times before it ends, and counts it from before the
//! request: by its own clock its lead ends no later than by the server's. An incarnation
//! that follows another of the same box knows that the other has ended, and revokes its
//! lease; every other candidate waits for the lease's end.

use super::api::TxnResponse;
use super::client::{Client, changed_by, get, made_by, put, tls};
use super::log::EtcdStore;
use super::{CAMPAIGN, Contact, END, KEEPER, Trouble, boot_time, nanoseconds};
use crate::config::Etcd;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The leader, as written in etcd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::run) struct Leader {
    /// Host name.
    pub(in crate::run) host: String,
    /// Process id there.
    pub(in crate::run) pid: u32,
    /// The box's random number: only one process of a box is a candidate at a time.
    pub(in crate::run) life_of_box: String,
    /// The leader's incarnation.
    pub(in crate::run) incarnation: u32,
}

/// A candidate that has become the leader.
pub(in crate::run) struct Leadership {
    /// The incarnation, higher than any earlier leader's.
    pub(in crate::run) incarnation: u32,
    /// The earlier leaders' log, or why it cannot be read.
    pub(in crate::run) records: Result<Vec<Vec<u8>>, String>,
    /// The log for its own records.
    pub(in crate::run) store: EtcdStore,
}

/// A process that wants to lead. Dropping it ends the candidacy, or the lead.
pub(in crate::run) struct Candidacy {
    contact: Arc<Contact>,
    news: Receiver<Leadership>,
    client: Client,
    lease: Arc<AtomicI64>,
    going: Sender<()>,
}

/// The pause between two looks for a leader.
fn look_interval(config: &Etcd) -> Duration {
    Duration::from_millis((config.lease_ms / 10).clamp(50, 500))
}

/// Number of looks for which a modest candidate waits for others.
const MODESTY: u32 = 3;

/// The margin taken off a lease: clocks differ in speed, and a turn of a loop takes time.
fn margin(lease: Duration) -> Duration {
    (lease / 10).max(Duration::from_millis(100))
}

impl Candidacy {
    /// Begins to campaign, for the box with this number, or its part on the host of this
    /// name.
    ///
    /// # Errors
    /// If a file has no valid certificate or key; the system's error.
    pub(in crate::run) fn begin(
        config: Etcd,
        host: &str,
        life_of_box: u64,
    ) -> Result<Candidacy, Trouble> {
        let system = |error: io::Error| Trouble(error.to_string());
        let tls = tls(&config).map_err(Trouble)?;
        let contact = Arc::new(Contact::new().map_err(system)?);
        let config = Arc::new(config);
        let client = |number| {
            Client::new(number, config.clone(), tls.clone(), contact.clone()).map_err(system)
        };
        let (sender, news) = channel();
        let (going, stop) = channel();
        let lease = Arc::new(AtomicI64::new(0));
        let mut campaign = Campaign {
            me: Leader {
                host: host.to_owned(),
                pid: std::process::id(),
                life_of_box: format!("{life_of_box:016x}"),
                incarnation: 0,
            },
            client: client(CAMPAIGN)?,
            keeper: Some(client(KEEPER)?),
            lease: lease.clone(),
            vacant_since: None,
        };
        let client = client(END)?;
        let run = move || campaign.run(&stop, &sender);
        std::thread::Builder::new().name("etcd".to_owned()).spawn(run).map_err(system)?;
        Ok(Candidacy { client, contact, news, lease, going })
    }

    /// Allows the process to try to lead for `period`; a modest one only after others
    /// have had time to.
    pub(in crate::run) fn want(&self, period: Duration, is_modest: bool) {
        self.contact.is_modest.store(is_modest, Ordering::Relaxed);
        let was_wanted = self.contact.is_wanted();
        self.contact
            .wanted_until
            .store(boot_time().saturating_add(nanoseconds(period)), Ordering::Relaxed);
        if !was_wanted {
            // The thread has not reached its next look yet.
            let _ = self.going.send(());
        }
    }

    /// The state of the election.
    pub(in crate::run) fn contact(&self) -> &Arc<Contact> {
        &self.contact
    }

    /// The leadership, once.
    pub(in crate::run) fn poll(&self) -> Option<Leadership> {
        self.news.try_recv().ok()
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        let lease = self.lease.load(Ordering::Relaxed);
        if lease != 0 && self.contact.leads() {
            self.contact.end("it was given up");
            // If this fails the lease ends by itself.
            let _ = self.client.revoke(lease);
        }
    }
}

struct Campaign {
    me: Leader,
    client: Client,
    keeper: Option<Client>,
    /// The lease of the leadership; 0 without one.
    lease: Arc<AtomicI64>,
    /// Time since when there has been no leader, as far as seen, ns.
    vacant_since: Option<u64>,
}

/// The leader, if readable, and its lease.
fn leader_of(seen: &TxnResponse) -> Option<(Option<Leader>, i64)> {
    seen.found(0).map(|found| (serde_json::from_slice(&found.value).ok(), found.lease))
}

struct Won {
    revision: i64,
    lease: i64,
    granted: Duration,
}

impl Campaign {
    fn run(&mut self, stop: &Receiver<()>, news: &Sender<Leadership>) {
        let interval = look_interval(&self.client.config);
        loop {
            match self.try_to_lead() {
                Ok(Some(won)) => return self.lead(&won, news),
                Ok(None) => {}
                Err(trouble) => self.client.contact.trouble(CAMPAIGN, &trouble),
            }
            if stop.recv_timeout(interval) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    /// Reads the leader and the highest incarnation.
    fn look(&mut self) -> Result<TxnResponse, Trouble> {
        let keys = vec![get(&self.client.key("leader")), get(&self.client.key("incarnation"))];
        self.client.transaction(Vec::new(), keys, Vec::new())
    }

    /// Becomes the leader if there is none.
    fn try_to_lead(&mut self) -> Result<Option<Won>, Trouble> {
        let (leader_key, incarnation_key) =
            (self.client.key("leader"), self.client.key("incarnation"));
        let mut seen = self.look()?;
        if let Some((leader, lease)) = leader_of(&seen)
            && leader.is_some_and(|leader| leader.life_of_box == self.me.life_of_box)
            && lease != 0
        {
            // The leader is of this box, and its process has ended: a box starts a
            // candidate only after the one before.
            self.client.revoke(lease)?;
            seen = self.look()?;
        }
        if let Some((leader, lease)) = leader_of(&seen) {
            self.vacant_since = None;
            let is_readable = leader.is_some();
            self.client.contact.words().leader = leader;
            return match lease {
                0 => Err(Trouble(format!(
                    "{leader_key} hangs on no lease, so no coordinator has put it there: delete it"
                ))),
                _ if !is_readable => Err(Trouble(format!(
                    "{leader_key} is not of this version: another program uses this prefix"
                ))),
                _ => Ok(None),
            };
        }
        self.client.contact.words().leader = None;
        let now = boot_time();
        let vacant = now.saturating_sub(*self.vacant_since.get_or_insert(now));
        let contact = &self.client.contact;
        let others_first = nanoseconds(MODESTY * look_interval(&self.client.config));
        if !contact.is_wanted()
            || contact.is_modest.load(Ordering::Relaxed) && vacant < others_first
        {
            return Ok(None);
        }
        let (highest, changed) = match seen.found(1) {
            None => (0, 0),
            Some(found) => {
                let text = std::str::from_utf8(&found.value).ok();
                let number = text
                    .and_then(|text| text.parse::<u32>().ok())
                    .filter(|number| *number < u32::MAX);
                let wrong = || {
                    Trouble(format!(
                        "{incarnation_key} is no number of a coordinator's incarnation"
                    ))
                };
                (number.ok_or_else(wrong)?, found.mod_revision)
            }
        };
        self.me.incarnation = highest + 1;
        let asked_at = boot_time();
        let granted = self.client.grant(self.client.config.lease_ms.div_ceil(1000))?;
        let value = serde_json::to_vec(&self.me).map_err(|error| Trouble(error.to_string()))?;
        let number = self.me.incarnation.to_string();
        let written = self.client.key("written");
        let answer = self.client.transaction(
            vec![made_by(&leader_key, 0), changed_by(&incarnation_key, changed)],
            vec![
                put(&leader_key, &value, granted.id),
                put(&incarnation_key, number.as_bytes(), 0),
                put(&written, EtcdStore::beginning(self.me.incarnation).as_bytes(), 0),
            ],
            Vec::new(),
        );
        match answer {
            Ok(answer) if answer.succeeded => {
                let lease = Duration::from_secs(granted.ttl as u64);
                // This candidate may be the first of several incarnations, and leads from
                // the first second on.
                self.hold(granted.id, asked_at, lease);
                Ok(Some(Won {
                    revision: answer.header.unwrap_or_default().revision,
                    lease: granted.id,
                    granted: lease,
                }))
            }
            // An unknown outcome: without the lease it does not lead.
            result => {
                let _ = self.client.revoke(granted.id);
                result.map(|_| None)
            }
        }
    }

    fn hold(&mut self, lease: i64, from: u64, granted: Duration) {
        let contact = &self.client.contact;
        self.lease.store(lease, Ordering::Relaxed);
        contact.leads_until.store(from + nanoseconds(granted - margin(granted)), Ordering::Relaxed);
        contact.words().leader = Some(self.me.clone());
    }

    /// Reads the earlier leaders' log, while another thread keeps the lease; then writes.
    fn lead(&mut self, won: &Won, news: &Sender<Leadership>) {
        let contact = self.client.contact.clone();
        let Some(keeper) = self.keeper.take() else { return };
        let Won { revision, lease, granted } = *won;
        let keep = move || keep_lease(keeper, lease, granted);
        if let Err(error) = std::thread::Builder::new().name("lease".to_owned()).spawn(keep) {
            return contact.end(&error.to_string());
        }
        let records = loop {
            match super::log::read(&mut self.client) {
                Ok(records) => break records,
                // etcd is away for now; the log is there.
                Err(_) if contact.leads() => std::thread::sleep(look_interval(&self.client.config)),
                Err(trouble) => return contact.end(&trouble.0),
            }
        };
        let (store, writer) = EtcdStore::new(contact.clone(), self.me.incarnation, revision);
        let leadership = Leadership { incarnation: self.me.incarnation, records, store };
        if news.send(leadership).is_err() {
            // The candidacy was dropped.
            contact.end("it was given up");
            let _ = self.client.revoke(lease);
            return;
        }
        contact.wake();
        writer.run(&mut self.client);
    }
}

/// Renews the lease until renewal has failed for the lease's whole time.
fn keep_lease(mut client: Client, lease: i64, granted: Duration) {
    let contact = client.contact.clone();
    let pause = (granted / 5).min(Duration::from_secs(2));
    while contact.leads() {
        let asked_at = boot_time();
        match client.renew(lease) {
            Ok(left) if left > 0 => {
                let left = Duration::from_secs(left as u64);
                let until = asked_at + nanoseconds(left.saturating_sub(margin(left)));
                // A lead that was ended meanwhile stays ended.
                let lengthen = |now: u64| (now != 0).then_some(until.max(now));
                let _ = contact.leads_until.fetch_update(
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                    lengthen,
                );
                std::thread::sleep(pause);
            }
            Ok(_) => return contact.end("its lease at etcd has ended"),
            Err(_) => std::thread::sleep(look_interval(&client.config).min(pause)),
        }
    }
    let silence = contact.silence().as_millis();
    contact.end(&format!(
        "etcd has not renewed its lease in time, and answered last {silence} ms ago"
    ));
}
