//! What a coordinator that is elected and the manager of its box tell each other.
//!
//! A process that is started as the coordinator is a candidate, and nobody for the manager: what it sends is not looked at. When it leads it says so, under which
//! incarnation, and asks for a word; with the word begins what any life of a coordinator begins with. Candidates and leaders say now and then how
//! the election stands. All of it goes through the virtual port, as frames of a kind of their own, and no further.
//!
//! In: what etcd's threads know; such frames. Out: such frames; a new coordinator for the hub. Never: a decision about flows or runtimes.

use super::etcd::{Candidacy, Leader, Leadership, Trouble};
use super::guard_link::ToGuard;
use super::{MILLISECOND, Manager, devices};
use crate::config::Etcd;
use crate::exit::{self, Failure};
use crate::status;
use holdfast_io::VportGuest;
use holdfast_io::process::Clock;
use holdfast_io::wait::sleep;
use holdfast_node::address::COORDINATOR;
use holdfast_wire::{Packet, PacketPool};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};

/// Ethernet's second type for local experiments; the fabric has the other.
const ETHERTYPE: u16 = 0x88b5;
const HEADER_LEN: usize = 14;
/// Between two reports, ns.
const INTERVAL: u64 = 100 * MILLISECOND;
/// Frames per turn.
const BURST: usize = 64;

/// What a coordinator's process has to say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Report {
    /// Under which it leads; none of a candidate.
    incarnation: Option<u32>,
    /// It waits for the manager's word.
    asks: bool,
    /// Who leads, as far as it knows.
    leader: Option<Leader>,
    /// How long ago etcd answered last, milliseconds; none if it has not in this life.
    silence_ms: Option<u64>,
    /// What is wrong with etcd.
    trouble: Option<String>,
}

/// The manager's word to a new leader.
#[derive(Debug, Serialize, Deserialize)]
struct Word {
    incarnation: u32,
    /// Nothing has been heard of a coordinator in this box: what the log says is of another.
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
}

/// A leader that may begin.
pub(super) struct Mandate {
    pub(super) elected: Elected,
    pub(super) leadership: Leadership,
    pub(super) begins_anew: bool,
}

impl Elected {
    /// Waits until it leads and the manager knows. None if it was told to end before.
    ///
    /// # Errors
    /// What keeps it from being a candidate, or from leading once it was elected.
    pub(super) fn campaign(
        etcd: &Etcd,
        life_of_box: u64,
        guest: &mut VportGuest,
        clock: &Clock,
        stop: &AtomicBool,
    ) -> Result<Option<Mandate>, Failure> {
        let refused = |trouble: Trouble| Failure::new(exit::CONFIGURATION, format!("etcd: {trouble}"));
        let candidacy = Candidacy::begin(etcd.clone(), life_of_box).map_err(refused)?;
        let mut elected = Elected { candidacy, incarnation: None, asks: false, reported_at: 0 };
        let mut leadership: Option<Leadership> = None;
        let (mut rx, mut tx) = (Vec::with_capacity(BURST), Vec::with_capacity(1));
        while !stop.load(Ordering::Relaxed) {
            guest.beat();
            elected.candidacy.contact().calm();
            if leadership.is_none() {
                leadership = elected.candidacy.poll();
                if let Some(leadership) = &leadership {
                    (elected.incarnation, elected.asks, elected.reported_at) = (Some(leadership.incarnation), true, 0);
                }
            }
            if elected.candidacy.contact().is_over() {
                return Err(elected.over());
            }
            guest.receive(BURST, &mut rx);
            let mut word: Option<Word> = None;
            for packet in rx.drain(..) {
                let come = if is_frame(&packet) { read::<Word>(&packet) } else { None };
                word = come.filter(|come| Some(come.incarnation) == elected.incarnation).or(word);
                guest.put(packet);
            }
            if let Some(word) = word
                && let Some(leadership) = leadership.take()
            {
                elected.asks = false;
                return Ok(Some(Mandate { elected, leadership, begins_anew: word.begins_anew }));
            }
            elected.report(guest, &mut tx, clock.now());
            guest.transmit(&mut tx);
            if guest.prepare_sleep() {
                sleep(&[guest.wait_fd(), elected.candidacy.contact().fd()], INTERVAL);
            }
            guest.awake();
        }
        Ok(None)
    }

    fn over(&self) -> Failure {
        Failure::new(exit::UNAVAILABLE, format!("the coordinator leads no more: {}", self.candidacy.contact().why()))
    }

    /// Says how things stand, if it is time to.
    pub(super) fn report(&mut self, guest: &mut VportGuest, tx: &mut Vec<Packet>, now: u64) {
        if now.saturating_sub(self.reported_at) < INTERVAL {
            return;
        }
        let contact = self.candidacy.contact();
        let report = Report {
            incarnation: self.incarnation,
            asks: self.asks,
            leader: contact.leader(),
            silence_ms: contact.has_heard().then(|| contact.silence().as_millis() as u64),
            trouble: contact.current_trouble(),
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

/// The manager's side: how the election stood when it was last heard of.
pub(super) struct Election {
    lease: u64,
    report: Option<Report>,
    /// When etcd answered last, as far as is known; since when it has not, before it ever has.
    contact_at: Option<u64>,
    /// It was said that etcd does not answer.
    is_lost: bool,
}

impl Election {
    pub(super) fn new(etcd: &Etcd) -> Election {
        Election { lease: etcd.lease_ms * MILLISECOND, report: None, contact_at: None, is_lost: false }
    }

    /// How long etcd has not answered, if that is too long, ns.
    fn silence(&self, now: u64) -> Option<u64> {
        self.contact_at.map(|at| now.saturating_sub(at)).filter(|silence| *silence > self.lease / 2)
    }

    fn handle(&mut self, report: Report, now: u64) {
        let at = report.silence_ms.map(|silence| now.saturating_sub(silence * MILLISECOND));
        self.contact_at = self.contact_at.max(at).or(Some(now));
        self.report = Some(report);
        let is_lost = self.silence(now).is_some();
        if core::mem::replace(&mut self.is_lost, is_lost) != is_lost {
            let trouble = self.report.as_ref().and_then(|report| report.trouble.clone()).unwrap_or_default();
            match is_lost {
                true => devices::say(&format!("etcd does not answer ({trouble}): traffic goes on meanwhile")),
                false => devices::say("etcd answers again"),
            }
        }
    }

    /// For `holdfast status`.
    pub(super) fn status(&self, now: u64) -> status::Election {
        let report = self.report.as_ref();
        status::Election {
            leader: report.and_then(|report| report.leader.clone()).map(|leader| status::Leader {
                host: leader.host,
                pid: leader.pid,
                incarnation: leader.incarnation.into(),
            }),
            silent_ms: self.silence(now).filter(|_| self.is_lost).map(|silence| silence / MILLISECOND),
            trouble: report.and_then(|report| report.trouble.clone()),
        }
    }
}

impl Manager {
    /// Takes out of the frames that this process has sent what is for the manager alone: of a candidate, all of it.
    pub(super) fn hear_election(&mut self, at: usize, now: u64) {
        if self.guard.election.is_none() || self.workers[at].peer.node != COORDINATOR || self.rx.is_empty() {
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
        if let Some(incarnation) = report.incarnation {
            if worker.peer.incarnation != incarnation {
                worker.peer.incarnation = incarnation;
                // First the guard: the next life of this process must know that there was a coordinator.
                let _ = self.link.send(&ToGuard::Leads { id: worker.id, incarnation }, &[]);
                self.guard.leads(incarnation, now);
                self.host.hub.handle_coordinator(worker.peer);
            }
            if report.asks {
                let word = Word { incarnation, begins_anew: !self.host.hub.manager.has_heard() };
                // If there is no room now it asks again.
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
            }
        }
        if let Some(election) = &mut self.guard.election {
            election.handle(report, now);
        }
    }
}
