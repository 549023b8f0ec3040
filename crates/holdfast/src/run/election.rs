//! Messages between an elected coordinator and the manager of its host.
//!
//! A process started as the coordinator is a candidate, whose fabric frames the manager
//! ignores. A candidate that leads reports its incarnation, and asks for the manager's
//! permission; then it begins as any incarnation of a coordinator. Candidates and leaders
//! report the election's state from time to time, and get an answer each time. These
//! messages are frames of an EtherType of their own, on the virtual port only.
//!
//! Each of several hosts has a candidate. A candidate whose host is not connected to a
//! quorum does not try, and a leader without a quorum resigns after a while: etcd may be
//! on another network, and a leader must be heard by the hosts. A candidate on the host
//! that serves the ports lets others try first: if one host did both, its death would be
//! noticed only at the lease's end.
//!
//! In: the state of etcd's threads; such frames. Out: such frames; a new coordinator for
//! the hub. Never: a decision about flows or runtimes.

use super::etcd::{Candidacy, Leader, Leadership, Trouble};
use super::guard_link::ToGuard;
use super::{MILLISECOND, ManagerProcess, devices};
use crate::config::Etcd;
use holdfast_control::exit::{self, Failure};
use holdfast_control::status;
use holdfast_io::VportGuest;
use holdfast_io::process::Clock;
use holdfast_io::wait::sleep;
use holdfast_wire::{NodeId, Packet, PacketPool};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The second EtherType for local experiments; the fabric has the first.
const ETHERTYPE: u16 = 0x88b5;
const HEADER_LEN: usize = 14;
/// The pause between two reports, ns.
const INTERVAL: u64 = 100 * MILLISECOND;
/// Frames per turn.
const BURST: usize = 64;
/// Intervals for which a manager's answer is valid.
const WORD_HOLDS: u64 = 5;
/// Host time-outs (`detection.host_ms`) after which a leader without a quorum resigns.
/// The first passes before its manager reports it; in the others the manager may be
/// restarted.
const RESIGN_TIMEOUTS: u64 = 3;

/// The report of a coordinator's process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Report {
    /// The leader's incarnation; `None` for a candidate.
    incarnation: Option<u32>,
    /// True if the process waits for the manager's permission.
    asks: bool,
    /// The leader, as far as the process knows.
    leader: Option<Leader>,
    /// Time since etcd's last answer, milliseconds; `None` without one in this
    /// incarnation.
    silence_ms: Option<u64>,
    /// The present trouble with etcd.
    trouble: Option<String>,
}

/// The manager's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Word {
    /// The receiving leader's incarnation; 0 for a candidate.
    incarnation: u32,
    /// True if this host is connected to a quorum.
    is_connected: bool,
    /// True if this host serves the ports: another host should notice its death.
    serves: bool,
    /// True if no coordinator has been heard of in this box: the log is another box's.
    begins_anew: bool,
}

fn frame(what: &impl Serialize) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN];
    frame[12..].copy_from_slice(&ETHERTYPE.to_be_bytes());
    frame.extend_from_slice(&serde_json::to_vec(what).unwrap_or_default());
    frame
}

fn is_frame(packet: &Packet) -> bool {
    packet.bytes().get(12..HEADER_LEN) == Some(&ETHERTYPE.to_be_bytes())
}

fn read<T: DeserializeOwned>(packet: &Packet) -> Option<T> {
    serde_json::from_slice(packet.bytes().get(HEADER_LEN..)?).ok()
}

/// The coordinator's side.
pub(super) struct Elected {
    candidacy: Candidacy,
    incarnation: Option<u32>,
    asks: bool,
    reported_at: u64,
    /// See [`Place::host_timeout`].
    host_timeout: Option<u64>,
    /// Time when the manager last reported a quorum, and time of the last check.
    connected_at: Option<u64>,
    looked_at: u64,
    /// True if this host serves the ports.
    serves: bool,
}

/// The place of a candidacy.
pub(super) struct Place<'a> {
    pub(super) etcd: &'a Etcd,
    pub(super) host: &'a str,
    pub(super) life_of_box: u64,
    /// With several hosts: silence after which a host is not connected to another, ns.
    pub(super) host_timeout: Option<u64>,
}

/// A leader with the manager's permission.
pub(super) struct Mandate {
    pub(super) elected: Elected,
    pub(super) leadership: Leadership,
    pub(super) begins_anew: bool,
}

impl Elected {
    /// Waits until it leads and the manager has answered. `None` if it was told to end
    /// before.
    ///
    /// # Errors
    /// The reason why the process cannot be a candidate, or not lead once elected.
    pub(super) fn campaign(
        place: &Place<'_>,
        guest: &mut VportGuest,
        clock: &Clock,
        stop: &AtomicBool,
    ) -> Result<Option<Mandate>, Failure> {
        let refused =
            |trouble: Trouble| Failure::new(exit::CONFIGURATION, format!("etcd: {trouble}"));
        let candidacy =
            Candidacy::begin(place.etcd.clone(), place.host, place.life_of_box).map_err(refused)?;
        let mut elected = Elected {
            candidacy,
            incarnation: None,
            asks: false,
            reported_at: 0,
            host_timeout: place.host_timeout,
            connected_at: None,
            looked_at: clock.now(),
            serves: false,
        };
        let mut leadership: Option<Leadership> = None;
        let (mut rx, mut tx) = (Vec::with_capacity(BURST), Vec::with_capacity(1));
        while !stop.load(Ordering::Relaxed) {
            guest.beat();
            elected.candidacy.contact().calm();
            if leadership.is_none() {
                leadership = elected.candidacy.poll();
                if let Some(leadership) = &leadership {
                    (elected.incarnation, elected.asks, elected.reported_at) =
                        (Some(leadership.incarnation), true, 0);
                }
            }
            if elected.candidacy.contact().is_over() {
                return Err(elected.over());
            }
            guest.receive(BURST, &mut rx);
            let now = clock.now();
            let mut word: Option<Word> = None;
            for packet in rx.drain(..) {
                let come = elected.hear(&packet, now).flatten();
                word = come.filter(|come| Some(come.incarnation) == elected.incarnation).or(word);
                guest.put(packet);
            }
            elected.be_wanted(now);
            if let Some(word) = word
                && let Some(leadership) = leadership.take()
            {
                elected.asks = false;
                return Ok(Some(Mandate { elected, leadership, begins_anew: word.begins_anew }));
            }
            elected.report(guest, &mut tx, now);
            guest.transmit(&mut tx);
            guest.publish();
            if guest.prepare_sleep() {
                sleep(&[guest.wait_fd(), elected.candidacy.contact().fd()], INTERVAL);
            }
            guest.awake();
        }
        Ok(None)
    }

    /// Takes a frame, if it is the manager's, and returns its answer.
    pub(super) fn hear(&mut self, packet: &Packet, now: u64) -> Option<Option<Word>> {
        if !is_frame(packet) {
            return None;
        }
        let word = read::<Word>(packet);
        if word.as_ref().is_some_and(|word| word.is_connected) {
            self.connected_at = Some(now);
        }
        self.serves = word.as_ref().map_or(self.serves, |word| word.serves);
        Some(word)
    }

    fn is_connected(&self, now: u64) -> bool {
        let holds = |at: u64| now.saturating_sub(at) <= WORD_HOLDS * INTERVAL;
        self.host_timeout.is_none() || self.connected_at.is_some_and(holds)
    }

    fn be_wanted(&self, now: u64) {
        if self.is_connected(now) {
            let period = if self.host_timeout.is_none() { u64::MAX } else { WORD_HOLDS * INTERVAL };
            self.candidacy
                .want(Duration::from_nanos(period), self.serves && self.host_timeout.is_some());
        }
    }

    /// Checks that a leader is connected to a quorum, or was until a moment ago.
    ///
    /// # Errors
    /// The reason if it is not: the leader resigns by ending.
    pub(super) fn check_reach(&mut self, now: u64) -> Result<(), Failure> {
        let Some(timeout) = self.host_timeout else { return Ok(()) };
        let last = core::mem::replace(&mut self.looked_at, now);
        // A process that stood still itself could not hear any other; at its start it was
        // connected.
        let since = self.connected_at.filter(|_| now.saturating_sub(last) <= timeout);
        let silence = now.saturating_sub(*self.connected_at.insert(since.unwrap_or(now)));
        if silence <= RESIGN_TIMEOUTS * timeout {
            return Ok(());
        }
        let why = format!(
            "this host has not been connected to more than half of the hosts for {} ms",
            silence / MILLISECOND
        );
        Err(Failure::new(exit::UNAVAILABLE, format!("the coordinator gives its place up: {why}")))
    }

    fn over(&self) -> Failure {
        Failure::new(
            exit::UNAVAILABLE,
            format!("the coordinator leads no more: {}", self.candidacy.contact().why()),
        )
    }

    /// Reports the election's state, if a report is due.
    pub(super) fn report(&mut self, guest: &mut VportGuest, tx: &mut Vec<Packet>, now: u64) {
        if now.saturating_sub(self.reported_at) < INTERVAL {
            return;
        }
        let contact = self.candidacy.contact();
        let alone = || "this host is not connected to more than half of the hosts: its coordinator is not elected";
        let alone = (self.incarnation.is_none() && !self.is_connected(now)).then(alone);
        let report = Report {
            incarnation: self.incarnation,
            asks: self.asks,
            leader: contact.leader(),
            silence_ms: contact.has_heard().then(|| contact.silence().as_millis() as u64),
            trouble: contact.current_trouble().or(alone.map(str::to_owned)),
        };
        let Some(mut packet) = guest.take() else { return };
        if packet.copy_from(&frame(&report)) {
            self.reported_at = now;
            tx.push(packet);
        } else {
            guest.put(packet);
        }
    }
}

/// The manager's side: the election's state when last heard.
pub(super) struct Election {
    lease: u64,
    report: Option<Report>,
    /// Time of etcd's last known answer; before the first, time since which there has
    /// been none.
    contact_at: Option<u64>,
    /// True if it was reported that etcd does not answer.
    is_lost: bool,
}

impl Election {
    pub(super) fn new(etcd: &Etcd) -> Election {
        Election {
            lease: etcd.lease_ms * MILLISECOND,
            report: None,
            contact_at: None,
            is_lost: false,
        }
    }

    /// Time without an answer of etcd, if too long, ns.
    fn silence(&self, now: u64) -> Option<u64> {
        self.contact_at.map(|at| now.saturating_sub(at)).filter(|silence| *silence > self.lease / 2)
    }

    fn handle(&mut self, report: Report, now: u64) {
        let at = report.silence_ms.map(|silence| now.saturating_sub(silence * MILLISECOND));
        self.contact_at = self.contact_at.max(at).or(Some(now));
        self.report = Some(report);
        let is_lost = self.silence(now).is_some();
        if core::mem::replace(&mut self.is_lost, is_lost) != is_lost {
            let trouble =
                self.report.as_ref().and_then(|report| report.trouble.clone()).unwrap_or_default();
            match is_lost {
                true => devices::say(&format!(
                    "etcd does not answer ({trouble}): traffic goes on meanwhile"
                )),
                false => devices::say("etcd answers again"),
            }
        }
    }

    /// The election, for `holdfast status`.
    pub(super) fn status(&self, now: u64) -> status::Election {
        let report = self.report.as_ref();
        status::Election {
            leader: report.and_then(|report| report.leader.clone()).map(|leader| status::Leader {
                host: leader.host,
                pid: leader.pid,
                incarnation: leader.incarnation.into(),
            }),
            silent_ms: self
                .silence(now)
                .filter(|_| self.is_lost)
                .map(|silence| silence / MILLISECOND),
            trouble: report.and_then(|report| report.trouble.clone()),
        }
    }
}

impl ManagerProcess {
    /// Takes the frames for the manager alone out of this process's frames: all frames of
    /// a candidate.
    pub(super) fn hear_election(&mut self, at: usize, now: u64) {
        if self.guard.election.is_none()
            || self.workers[at].peer.node != NodeId::COORDINATOR
            || self.rx.is_empty()
        {
            return;
        }
        let mut last: Option<Report> = None;
        for packet in core::mem::take(&mut self.rx) {
            if is_frame(&packet) {
                last = read(&packet).or(last);
                self.arena.put(packet);
            } else if self.workers[at].peer.incarnation > 0 {
                self.rx.push(packet);
            } else {
                self.arena.put(packet);
            }
        }
        let Some(report) = last else { return };
        let worker = &mut self.workers[at];
        if let Some(incarnation) = report.incarnation
            && worker.peer.incarnation != incarnation
        {
            worker.peer.incarnation = incarnation;
            // The guard is told first: this process's next incarnation must know that
            // there was a coordinator.
            let _ = self.link.send(&ToGuard::Leads { id: worker.id, incarnation }, &[]);
            self.guard.leads(incarnation, now);
            self.host.hub.handle_coordinator(worker.peer);
        }
        let manager = &self.host.hub.manager;
        let word = Word {
            incarnation: report.incarnation.unwrap_or(0),
            is_connected: manager.is_connected(),
            serves: self.host.hub.is_serving(),
            begins_anew: !manager.has_heard(),
        };
        // If there is no room now, the process reports again.
        if let Some(mut packet) = self.arena.take() {
            let unsent = match packet.copy_from(&frame(&word)) {
                true => worker.port.send(packet, &mut self.arena).err(),
                false => Some(packet),
            };
            if let Some(packet) = unsent {
                self.arena.put(packet);
            }
            worker.port.flush();
        }
        if let Some(election) = &mut self.guard.election {
            election.handle(report, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Endpoint;
    use holdfast_wire::MemoryPool;

    const TIMEOUT: u64 = 400 * MILLISECOND;
    /// Time between two turns of a leader's loop.
    const TURN: u64 = 50 * MILLISECOND;

    /// A coordinator whose etcd does not exist.
    fn new(host_timeout: Option<u64>) -> Elected {
        let endpoint = Endpoint {
            text: "http://127.0.0.1:1".to_owned(),
            host: "127.0.0.1".to_owned(),
            port: 1,
        };
        let prefix = "/holdfast/test".to_owned();
        let etcd = Etcd {
            endpoints: vec![endpoint],
            prefix,
            ca: None,
            certificate: None,
            lease_ms: 60_000,
        };
        let candidacy = Candidacy::begin(etcd, "here", 1).unwrap();
        Elected {
            candidacy,
            incarnation: Some(1),
            asks: false,
            reported_at: 0,
            host_timeout,
            connected_at: None,
            looked_at: 0,
            serves: false,
        }
    }

    fn say(elected: &mut Elected, is_connected: bool, now: u64) {
        let mut packet = MemoryPool::new(1).take().unwrap();
        assert!(packet.copy_from(&frame(&Word {
            incarnation: 1,
            is_connected,
            serves: false,
            begins_anew: false
        })));
        assert!(
            elected
                .hear(&packet, now)
                .flatten()
                .is_some_and(|word| word.is_connected == is_connected)
        );
    }

    /// How long the leader leads from a time, while its manager says that it is not
    /// connected, or is silent.
    fn leads_on(elected: &mut Elected, from: u64, says: bool) -> u64 {
        let turns = (from..from + 100 * TIMEOUT).step_by(TURN as usize);
        let mut turns = turns.skip_while(|now| {
            if says {
                say(elected, false, *now);
            }
            elected.check_reach(*now).is_ok()
        });
        turns.next().expect("it gives its place up") - from
    }

    /// The manager of a leader's host says that the host is not connected, or is silent.
    /// The leader resigns after three time-outs, and not while it is told now and then
    /// that all is well.
    #[test]
    fn who_does_not_reach_the_others_gives_its_place_up() {
        for says in [false, true] {
            let mut elected = new(Some(TIMEOUT));
            let mut now = 0;
            for _ in 0..5 {
                say(&mut elected, true, now);
                for _ in 0..3 * TIMEOUT / TURN {
                    assert!(elected.check_reach(now).is_ok());
                    now += TURN;
                }
            }
            say(&mut elected, true, now);
            let led = leads_on(&mut elected, now, says);
            assert!((3 * TIMEOUT..=3 * TIMEOUT + TURN).contains(&led), "{led}");
        }
    }

    /// The leader's process stands still for long. The leader heard nothing because of
    /// that, so its quorum is not lost, and it looks again.
    #[test]
    fn who_stood_still_looks_again() {
        let mut elected = new(Some(TIMEOUT));
        say(&mut elected, true, 0);
        assert!(elected.check_reach(TURN).is_ok());
        let woken = 50 * TIMEOUT;
        let led = leads_on(&mut elected, woken, true);
        assert!((3 * TIMEOUT..=3 * TIMEOUT + TURN).contains(&led), "{led}");
    }

    /// A candidate may be elected only while the manager's word holds; with one host,
    /// always.
    #[test]
    fn a_word_holds_for_a_moment() {
        let mut elected = new(Some(TIMEOUT));
        assert!(!elected.is_connected(0));
        say(&mut elected, true, TURN);
        assert!(elected.is_connected(TURN + WORD_HOLDS * INTERVAL));
        assert!(!elected.is_connected(TURN + WORD_HOLDS * INTERVAL + 1));
        say(&mut elected, false, TURN);
        assert!(elected.is_connected(TURN), "the quorum's own time-out decides, not a single word");
        let mut alone = new(None);
        assert!(alone.is_connected(0) && alone.check_reach(100 * TIMEOUT).is_ok());
    }
}
