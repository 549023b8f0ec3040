//! One peer's channel: what is under way to it, and what came early from it.

use super::FabricConfig;
use super::format::{Answer, Destination, ETHERNET_LEN, HEADER_LEN, after};
use super::inbox::Inbox;
use super::keys::{Opener, Seal};
use super::replay::Replays;
use holdfast_protection::Peer;
use holdfast_wire::DropReason;
use std::collections::VecDeque;

/// Frames in flight per peer.
pub(super) const WINDOW: u32 = 1024;
/// Frames that may be sent to a peer that has not said yet how many it has room for.
const FIRST_CREDIT: u32 = 64;
/// Overdue frames that are repeated together, when the peer is known to hear.
pub(super) const OVERDUE_AT_ONCE: usize = 16;
/// If so many frames in succession rise below the newest counter, it is that one which was not true.
const RISING: u32 = 8;
/// After so many timeouts in succession a life that a single frame has named may not be there.
const UNANSWERED: u32 = 3;
/// Bytes of records that wait to be put into frames, per peer.
pub(super) const QUEUE_BYTES: usize = 4 << 20;

pub(super) struct Sent {
    pub(super) sequence: u32,
    /// As it is without a seal.
    pub(super) bytes: Vec<u8>,
    /// When it last went out.
    pub(super) at: u64,
    /// How often it did.
    pub(super) tries: u32,
    /// Something later has arrived without it. Stays until the frame is overdue all the same: answers that were under way while it was
    /// repeated tell of the same gap.
    pub(super) missed: bool,
    /// It is to go out now: it was missed, or there is room for it again.
    pub(super) is_due: bool,
    pub(super) arrived: bool,
}

impl Sent {
    /// It is not just waited for since it was sent.
    pub(super) fn is_disturbed(&self) -> bool {
        self.tries > 1 || self.is_due || self.arrived
    }
}

/// What the endpoint notes of a channel. It stays when the peer begins a new life.
#[derive(Default, Clone, Copy)]
pub(super) struct Place {
    /// It is in the list of those that may have something to do.
    pub(super) is_busy: bool,
    /// It is in the list of those whose room may have changed.
    pub(super) has_changed: bool,
}

/// A claim, not proven yet, that the peer lives under another incarnation than the known one.
#[derive(Clone, Copy)]
pub(super) struct Challenge {
    pub(super) incarnation: u32,
    pub(super) at: u64,
    /// Counters of the latest frames that asked for proof, 0 for none: the claimed life
    /// must repeat one. The answer to one may be on its way while the next goes out.
    pub(super) counters: [u32; 16],
}

/// One direction each way between two nodes.
pub(super) struct Channel {
    pub(super) peer: Peer,
    pub(super) place: Place,
    /// The peer's life, once it is known; 0 without keys.
    life: u64,
    /// That incarnation is no more: nothing goes to it, and nothing that comes from it counts.
    is_closed: bool,
    /// More than one frame has named the incarnation, or somebody who knows has.
    is_certain: bool,
    challenge: Option<Challenge>,
    /// The incarnation that the latest frame named while nobody is known to live here, 0 for none.
    named: u32,
    openers: Vec<Opener>,
    /// Only where frames are sealed: most of what a channel needs that is not used.
    replays: Option<Box<Replays>>,
    pub(super) next_sequence: u32,
    pub(super) flight: VecDeque<Sent>,
    /// Not all that is in flight was sent once, in order, and is waited for: only then it must be looked through.
    pub(super) is_disturbed: bool,
    pub(super) queue: Vec<u8>,
    pub(super) queued_from: usize,
    pub(super) expected: u32,
    /// The frames after `expected` that have come, each at its place.
    early: VecDeque<Option<Vec<u8>>>,
    early_bytes: usize,
    pub(super) acknowledge: bool,
    /// The first frame that the peer has not said to have room for.
    limit: u32,
    /// Counter of the newest frame that said so.
    heard: u64,
    /// Counter of the last frame that was older, and how many such have come in succession, each newer than the one before.
    behind: (u64, u32),
    /// The credit that was given to the peer last.
    given: u16,
    /// When the peer was last asked who it is, or tried for room.
    pub(super) asked: Option<u64>,
    smoothed_rtt: u64,
    pub(super) backoff: u32,
    /// When the newest frame of this life came, in its turn or not.
    pub(super) heard_at: Option<u64>,
}

impl Channel {
    pub(super) fn new(peer: Peer) -> Channel {
        Channel {
            peer,
            place: Place::default(),
            life: 0,
            is_closed: false,
            is_certain: false,
            challenge: None,
            named: 0,
            openers: Vec::new(),
            replays: None,
            next_sequence: 1,
            flight: VecDeque::new(),
            is_disturbed: false,
            queue: Vec::new(),
            queued_from: 0,
            expected: 1,
            early: VecDeque::new(),
            early_bytes: 0,
            acknowledge: false,
            limit: 1 + FIRST_CREDIT,
            heard: 0,
            behind: (0, 0),
            given: FIRST_CREDIT as u16,
            asked: None,
            smoothed_rtt: 0,
            backoff: 0,
            heard_at: None,
        }
    }

    /// As after many frames.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, sequence: u32) {
        (self.next_sequence, self.expected, self.limit) = (sequence, sequence, sequence.wrapping_add(FIRST_CREDIT));
    }

    /// True if the peer's present life is known: only then is anything sent to it that is not for another.
    pub(super) fn is_known(&self, is_sealed: bool) -> bool {
        !self.is_closed && self.peer.incarnation != 0 && (!is_sealed || self.life != 0)
    }

    /// True if that incarnation lives, as far as anybody has told.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closed && self.peer.incarnation != 0
    }

    /// True if a single frame has named the incarnation, and nobody answers: that frame may have
    /// been damaged.
    pub(super) fn may_be_nobody(&self) -> bool {
        !self.is_certain && self.backoff >= UNANSWERED
    }

    /// True if a single frame has named the incarnation, which said nothing, and nothing that was sent to it has arrived.
    fn is_unproven(&self) -> bool {
        let sent = self.next_sequence.wrapping_sub(1);
        let has_arrived = self.flight.len() as u32 != sent || self.flight.iter().any(|sent| sent.arrived);
        !self.is_certain && self.expected == 1 && !has_arrived
    }

    /// Records that are under way, and those that wait behind them. For frames that are not sealed.
    fn unanswered(&self) -> Vec<u8> {
        let under_way = self.flight.iter().map(|sent| &sent.bytes[ETHERNET_LEN + HEADER_LEN..]);
        under_way.chain([&self.queue[self.queued_from..]]).collect::<Vec<_>>().concat()
    }

    /// True if this incarnation of the node is an old one.
    pub(super) fn is_past(&self, peer: Peer) -> bool {
        let known = self.peer.incarnation;
        let is_certain = self.is_certain || self.is_closed;
        known != 0 && (is_certain && after(known, peer.incarnation) || self.is_closed && known == peer.incarnation)
    }

    /// True if a later incarnation has said something here, or taken something: its channel
    /// cannot begin anew, because the other end goes on where it is.
    pub(super) fn has_heard_later(&self, peer: Peer) -> bool {
        self.is_open() && after(self.peer.incarnation, peer.incarnation) && !self.is_unproven()
    }

    /// True if a frame is not believed that it comes from this life: what is damaged or forged would
    /// be believed, and what is true be taken for the past for good. Either another one is known to
    /// live here, or nobody is, the frame has records, and none before it has named the same life.
    pub(super) fn is_doubtful(&self, peer: Peer, has_records: bool) -> bool {
        match self.is_open() {
            true => self.peer.incarnation != peer.incarnation,
            false => has_records && self.named != peer.incarnation,
        }
    }

    /// Notes that a frame has named this life, and not more: it asked who lives here, or was not
    /// believed.
    pub(super) fn note_named(&mut self, peer: Peer) {
        self.named = peer.incarnation;
    }

    /// Begins to ask that incarnation to show that it is there. False if it, or another, was asked a moment ago.
    pub(super) fn begin_challenge(&mut self, incarnation: u32, now: u64, pause: u64) -> bool {
        let is_due = self.challenge.is_none_or(|challenge| now >= challenge.at.saturating_add(pause));
        if is_due {
            let same = self.challenge.filter(|challenge| challenge.incarnation == incarnation);
            let counters = same.map_or([0; 16], |challenge| challenge.counters);
            self.challenge = Some(Challenge { incarnation, at: now, counters });
        }
        is_due
    }

    /// Notes the counter of the frame that asked this incarnation to prove itself.
    pub(super) fn note_challenge(&mut self, incarnation: u32, counter: u64) {
        if let Some(challenge) = self.challenge.as_mut().filter(|challenge| challenge.incarnation == incarnation) {
            challenge.counters.rotate_right(1);
            challenge.counters[0] = counter as u32;
        }
    }

    /// True if the peer has repeated the counter of a frame that asked it to prove itself.
    pub(super) fn has_answered(&self, peer: Peer, counter: u32) -> bool {
        let is_answer = |challenge: Challenge| challenge.incarnation == peer.incarnation && challenge.counters.contains(&counter);
        counter != 0 && self.challenge.is_some_and(is_answer)
    }

    /// Makes the known incarnation certain: earlier ones count as past.
    pub(super) fn set_certain(&mut self) {
        self.is_certain = true;
    }

    /// The peer has not taken what this side sent before it knew who is here: it is to go out again.
    pub(super) fn repeat_all(&mut self) {
        self.is_disturbed |= !self.flight.is_empty();
        self.flight.iter_mut().filter(|sent| !sent.arrived).for_each(|sent| sent.is_due = true);
    }

    /// The incarnation is no more.
    pub(super) fn close(&mut self) {
        *self = Channel { is_closed: true, place: self.place, ..Channel::new(self.peer) };
    }

    /// Learns who lives there now. True if somebody else was known to.
    pub(super) fn set_peer(&mut self, peer: Peer) -> bool {
        if self.is_past(peer) || self.peer == peer {
            return false;
        }
        if self.is_open() {
            // An unproven incarnation may never have been. Its records are for whoever is there, as before anybody was known.
            let is_unproven = self.is_unproven();
            let queue = if is_unproven { self.unanswered() } else { Vec::new() };
            *self = Channel { place: self.place, queue, ..Channel::new(peer) };
            return !is_unproven;
        }
        // Nobody was known: what waits is for whoever it is.
        (self.peer, self.is_closed, self.is_certain, self.asked, self.backoff) = (peer, false, false, None, 0);
        false
    }

    /// Learns the peer's life from a frame, with what opens the others.
    pub(super) fn set_life(&mut self, life: u64, counter: u64, seal: &Seal) {
        if self.life != life {
            self.life = life;
            (self.asked, self.backoff) = (None, 0);
            let mut replays = Replays::default();
            replays.note(counter);
            self.replays = Some(Box::new(replays));
            self.set_openers(seal);
        }
    }

    pub(super) fn set_openers(&mut self, seal: &Seal) {
        self.openers = if self.life == 0 { Vec::new() } else { seal.openers(self.peer, self.life) };
    }

    /// What opens the frames of a peer in one life, if that is the one here.
    pub(super) fn openers_of(&self, peer: Peer, life: u64) -> Option<&[Opener]> {
        (self.peer == peer && self.life == life && life != 0).then_some(self.openers.as_slice())
    }

    /// Refuses what another life of the same incarnation has sent, and what came before. For frames whose seal has been opened.
    pub(super) fn accept_counter(&mut self, peer: Peer, life: u64, counter: u64) -> Result<(), DropReason> {
        if self.peer != peer || self.life == 0 {
            return Ok(());
        }
        if self.life != life {
            return Err(DropReason::StaleEpoch);
        }
        let replays = self.replays.get_or_insert_default();
        if !replays.is_fresh(counter) {
            return Err(DropReason::Replayed);
        }
        replays.note(counter);
        Ok(())
    }

    pub(super) fn destination(&self) -> Destination {
        Destination { node: self.peer.node, incarnation: self.peer.incarnation, life: self.life }
    }

    /// Bytes of records that may still be queued.
    pub(super) fn room(&self) -> usize {
        QUEUE_BYTES.saturating_sub(self.queue.len() - self.queued_from)
    }

    pub(super) fn has_queued(&self) -> bool {
        self.queued_from < self.queue.len()
    }

    /// Gives back the queue's room that is not needed any more.
    pub(super) fn compact(&mut self) {
        if !self.has_queued() {
            self.queue.clear();
            self.queued_from = 0;
        } else if self.queued_from > QUEUE_BYTES / 2 {
            self.queue.drain(..self.queued_from);
            self.queued_from = 0;
        }
    }

    pub(super) fn timeout(&self, config: &FabricConfig) -> u64 {
        let base = (self.smoothed_rtt * 10).clamp(config.min_timeout, config.max_timeout);
        (base << self.backoff.min(6)).min(config.max_timeout)
    }

    /// Repeated frames that may be under way together. Against silence the oldest is enough: the rest would not tell more. Once the peer
    /// answers again, what is overdue follows.
    pub(super) fn budget(&self) -> usize {
        if self.backoff > 0 { 1 } else { OVERDUE_AT_ONCE }
    }

    /// True if the peer has room for a frame of this number.
    pub(super) fn has_credit(&self, sequence: u32) -> bool {
        after(self.limit, sequence)
    }

    /// True if the next frame may be sent.
    pub(super) fn may_send(&self) -> bool {
        self.has_queued() && self.flight.len() < WINDOW as usize && self.has_credit(self.next_sequence)
    }

    /// True if records wait, the peer has no room, and no frame is under way whose answer would tell of some. One is then sent all the same, now
    /// and then: the news of room may have been lost.
    pub(super) fn must_try(&self) -> bool {
        self.has_queued() && self.flight.is_empty() && !self.has_credit(self.next_sequence)
    }

    /// Frames from the expected one on that this side has room for. Those that came early are among them. Half of the buffer is for them, the other
    /// half for what goes before them into the inbox.
    fn credit(config: &FabricConfig, inbox: &Inbox) -> u16 {
        let free = (config.buffer / 2).saturating_sub(inbox.len());
        (free / config.mtu).min(WINDOW as usize) as u16
    }

    /// True if the peer was told of little room, and there is much more now.
    pub(super) fn has_news_of_room(&self, config: &FabricConfig, inbox: &Inbox) -> bool {
        self.has_told_of_little(config) && Channel::credit(config, inbox) >= Channel::much(config)
    }

    /// As many frames as make the peer go on as before.
    fn much(config: &FabricConfig) -> u16 {
        Channel::credit(config, &Inbox::default()).div_ceil(2)
    }

    fn has_told_of_little(&self, config: &FabricConfig) -> bool {
        // What is given before anything was said does not count as little.
        self.given < Channel::much(config).min(FIRST_CREDIT as u16)
    }

    /// True if there is nothing to send and nothing to wait for: [`Channel::due`] is never, until something is queued or comes.
    pub(super) fn is_idle(&self, config: &FabricConfig) -> bool {
        self.is_settled() && !self.acknowledge && !self.has_told_of_little(config)
    }

    /// What the peer is told now.
    pub(super) fn answer(&mut self, config: &FabricConfig, inbox: &Inbox) -> Answer {
        self.given = Channel::credit(config, inbox);
        let bit = |(at, frame): (usize, &Option<Vec<u8>>)| u64::from(frame.is_some()) << at;
        let selective = self.early.iter().take(64).enumerate().map(bit).sum();
        Answer { acknowledgement: self.expected, selective, credit: self.given }
    }

    /// What the peer says it has, frames before `acknowledgement` and those in the bitmap after it, and has room for.
    pub(super) fn handle_answer(&mut self, answer: Answer, counter: u64, now: u64, spare: &mut Vec<Vec<u8>>) {
        let Answer { acknowledgement, selective, credit } = answer;
        if after(acknowledgement, self.next_sequence) {
            return;
        }
        while let Some(front) = self.flight.front() {
            if !after(acknowledgement, front.sequence) {
                break;
            }
            if let Some(done) = self.flight.pop_front() {
                if !done.arrived {
                    measure(&mut self.smoothed_rtt, &done, now);
                }
                self.backoff = 0;
                spare.push(done.bytes);
            }
        }
        self.handle_selective(acknowledgement, selective, now);
        if counter > self.heard || self.rises_behind(counter) {
            // Whoever sends nothing new may be dead for long: what is late, or comes again, says nothing of now.
            self.is_certain |= self.heard > 0;
            (self.heard, self.behind, self.heard_at) = (counter, (0, 0), Some(now));
            let limit = acknowledgement.wrapping_add(credit.into());
            if self.flight.front().is_some_and(|front| !after(self.limit, front.sequence) && after(limit, front.sequence)) {
                // The peer was silent for want of room only.
                self.backoff = 0;
            }
            // Frames beyond the old limit were refused for want of room, if they came: now they are not.
            if self.flight.back().is_some_and(|last| !after(self.limit, last.sequence)) {
                self.is_disturbed = true;
                for sent in &mut self.flight {
                    if !sent.arrived && !after(self.limit, sent.sequence) && after(limit, sent.sequence) {
                        sent.is_due = true;
                    }
                }
            }
            self.limit = limit;
            if credit > 0 && self.flight.is_empty() {
                (self.asked, self.backoff) = (None, 0);
            }
        }
    }

    /// A frame is older than the newest. True if there have been so many of them that the newest cannot be what it says.
    fn rises_behind(&mut self, counter: u64) -> bool {
        let (last, count) = self.behind;
        self.behind = (counter, if counter > last { count + 1 } else { 1 });
        self.behind.1 >= RISING
    }

    fn handle_selective(&mut self, acknowledgement: u32, selective: u64, now: u64) {
        if selective == 0 {
            return;
        }
        self.is_disturbed = true;
        for sent in &mut self.flight {
            let distance = sent.sequence.wrapping_sub(acknowledgement).wrapping_sub(1);
            if distance < 64 && selective & 1 << distance != 0 && !sent.arrived {
                sent.arrived = true;
                measure(&mut self.smoothed_rtt, sent, now);
                // The peer hears: no reason to be patient with what it misses.
                self.backoff = 0;
            }
        }
        // Something later has arrived: what is missing before it was lost, or is late by so much that repeating it costs less.
        let last_arrived = self.flight.iter().rposition(|sent| sent.arrived).unwrap_or(0);
        for sent in self.flight.iter_mut().take(last_arrived) {
            if !sent.arrived && !sent.missed {
                (sent.missed, sent.is_due) = (true, true);
            }
        }
    }

    /// Takes a numbered frame in.
    pub(super) fn handle_records(
        &mut self,
        sequence: u32,
        records: &[u8],
        config: &FabricConfig,
        inbox: &mut Inbox,
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<(), DropReason> {
        // Also of what is refused: the peer repeats it because it does not know better.
        self.acknowledge = true;
        if sequence == self.expected {
            if inbox.len() + records.len() > config.buffer {
                return Err(DropReason::QueueFull);
            }
            inbox.take(self.peer, records);
            self.expected = self.expected.wrapping_add(1);
            while let Some(Some(mut bytes)) = self.early.pop_front() {
                inbox.take(self.peer, &bytes);
                self.early_bytes -= bytes.len();
                bytes.clear();
                spare.push(bytes);
                self.expected = self.expected.wrapping_add(1);
            }
            return Ok(());
        }
        let distance = sequence.wrapping_sub(self.expected);
        // A frame that was delivered before comes again because its acknowledgement is late: nothing is lost.
        if !after(sequence, self.expected) {
            return Ok(());
        }
        if distance > WINDOW {
            return Err(DropReason::StaleDuplicate);
        }
        let place = distance as usize - 1;
        if self.early.get(place).is_some_and(Option::is_some) {
            return Ok(());
        }
        // Half of the room is kept for the frame that is missing: without it these would never leave.
        if inbox.len() + self.early_bytes + records.len() > config.buffer / 2 {
            return Err(DropReason::QueueFull);
        }
        let mut bytes = spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(records);
        self.early_bytes += bytes.len();
        while self.early.len() <= place {
            self.early.push_back(None);
        }
        self.early[place] = Some(bytes);
        Ok(())
    }

    /// When this channel has something to send, without further input.
    pub(super) fn due(&self, config: &FabricConfig, inbox: &Inbox, is_sealed: bool) -> Option<u64> {
        if !self.is_known(is_sealed) {
            let ask = |at: Option<u64>| at.map_or(0, |at| at.saturating_add(self.timeout(config)));
            return self.has_queued().then(|| ask(self.asked));
        }
        if self.acknowledge || self.may_send() || self.has_news_of_room(config, inbox) {
            return Some(0);
        }
        let timeout = self.timeout(config);
        if self.must_try() {
            return Some(self.asked.map_or(0, |at| at.saturating_add(timeout)));
        }
        if !self.is_disturbed {
            return self.flight.front().map(|oldest| oldest.at.saturating_add(timeout));
        }
        let mut soonest = None::<u64>;
        let mut budget = self.budget();
        for sent in self.flight.iter().filter(|sent| !sent.arrived) {
            if soonest.is_some() && !self.has_credit(sent.sequence) {
                break;
            }
            let due = if sent.is_due { 0 } else { sent.at.saturating_add(timeout) };
            soonest = Some(soonest.map_or(due, |soonest| soonest.min(due)));
            // Behind as many repeated frames as may be under way nothing goes out, however overdue it is: nobody needs to wake up for it.
            budget -= usize::from(sent.tries > 1);
            if budget == 0 {
                break;
            }
        }
        soonest
    }

    /// True if everything that was sent has arrived.
    pub(super) fn is_settled(&self) -> bool {
        self.flight.is_empty() && !self.has_queued()
    }
}

/// Takes the round trip of a frame that is known to have arrived just now, if it tells anything: of one that went out twice nobody knows
/// which copy is answered (Karn), and one that was missed is late by more than the way.
fn measure(smoothed_rtt: &mut u64, sent: &Sent, now: u64) {
    if sent.tries == 1 && !sent.missed {
        let sample = now.saturating_sub(sent.at).max(1);
        *smoothed_rtt = if *smoothed_rtt == 0 { sample } else { (*smoothed_rtt * 7 + sample) / 8 };
    }
}
