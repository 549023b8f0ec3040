//! The channel to one peer: frames in flight to it, and frames from it that came early.

use super::FabricConfig;
use super::anti_replay::Replays;
use super::format::{Answer, Destination, ETHERNET_LEN, HEADER_LEN, after};
use super::inbox::Inbox;
use super::keys::{Opener, Seal};
use holdfast_protection::Peer;
use holdfast_wire::DropReason;
use std::collections::VecDeque;

/// Frames in flight per peer.
pub(super) const WINDOW: u32 = 1024;
/// Frames that may be sent to a peer that has not told its credit yet.
const FIRST_CREDIT: u32 = 64;
/// Overdue frames that are repeated together, when the peer is known to hear.
pub(super) const OVERDUE_AT_ONCE: usize = 16;
/// The newest counter is wrong if so many frames in succession rise below it.
const RISING: u32 = 8;
/// Timeouts in succession after which an incarnation that a single frame has named may
/// not exist.
const UNANSWERED: u32 = 3;
/// Bytes of records that wait to be put into frames, per peer.
pub(super) const QUEUE_BYTES: usize = 4 << 20;

pub(super) struct Sent {
    pub(super) sequence: u32,
    /// The frame before it is sealed.
    pub(super) bytes: Vec<u8>,
    /// The time of the last transmission.
    pub(super) at: u64,
    /// Transmissions so far.
    pub(super) tries: u32,
    /// A later frame has arrived without this one. The flag stays until the frame is
    /// overdue all the same: answers that were under way while it was repeated tell of
    /// the same gap.
    pub(super) missed: bool,
    /// The frame is to go out now: it was missed, or there is room for it again.
    pub(super) is_due: bool,
    pub(super) arrived: bool,
}

impl Sent {
    /// False if the frame was sent once and only waits for its acknowledgement.
    pub(super) fn is_disturbed(&self) -> bool {
        self.tries > 1 || self.is_due || self.arrived
    }
}

/// The endpoint's bookkeeping for a channel. The bookkeeping stays when the peer begins a
/// new incarnation.
#[derive(Default, Clone, Copy)]
pub(super) struct Place {
    /// The channel is in the list of those that may have something to do.
    pub(super) is_busy: bool,
    /// The channel is in the list of those whose room may have changed.
    pub(super) has_changed: bool,
}

/// An unproven claim that the peer has another incarnation than the known one.
#[derive(Clone, Copy)]
pub(super) struct Challenge {
    pub(super) incarnation: u32,
    pub(super) at: u64,
    /// Counters of the latest frames that asked for proof, 0 for none: the claimed
    /// incarnation must repeat one. The answer to one may be on its way while the next
    /// goes out.
    pub(super) counters: [u32; 16],
}

/// The channel between two nodes, in both directions.
pub(super) struct Channel {
    pub(super) peer: Peer,
    pub(super) place: Place,
    /// The peer's life number, once it is known; 0 without keys.
    life: u64,
    /// The incarnation has ended: nothing goes to it, and its frames are refused.
    is_closed: bool,
    /// More than one frame has named the incarnation, or the caller has.
    is_certain: bool,
    challenge: Option<Challenge>,
    /// The incarnation that the latest frame named while none is known here; 0 for none.
    named: u32,
    openers: Vec<Opener>,
    /// Only with sealed frames. Boxed because it is most of an unused channel's memory.
    replays: Option<Box<Replays>>,
    pub(super) next_sequence: u32,
    pub(super) flight: VecDeque<Sent>,
    /// Some frame in flight was repeated, is due, or has arrived out of order: only then
    /// all of them must be looked at.
    pub(super) is_disturbed: bool,
    pub(super) queue: Vec<u8>,
    pub(super) queued_from: usize,
    pub(super) expected: u32,
    /// Frames after `expected` that have arrived, by distance.
    early: VecDeque<Option<Vec<u8>>>,
    early_bytes: usize,
    pub(super) acknowledge: bool,
    /// The first frame for which the peer has not announced room.
    limit: u32,
    /// The counter of the newest frame that announced it.
    heard: u64,
    /// The counter of the last frame older than that, and how many such have come in
    /// succession, each newer than the one before.
    behind: (u64, u32),
    /// The credit that was last given to the peer.
    given: u16,
    /// The time at which the peer was last asked for its incarnation, or probed for room.
    pub(super) asked: Option<u64>,
    smoothed_rtt: u64,
    pub(super) backoff: u32,
    /// The arrival time of this incarnation's newest frame, in order or not.
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

    /// Sets the sequence numbers as after many frames.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, sequence: u32) {
        (self.next_sequence, self.expected, self.limit) =
            (sequence, sequence, sequence.wrapping_add(FIRST_CREDIT));
    }

    /// True if the peer's incarnation is known, and with keys its life number. Before
    /// that only probes go to it.
    pub(super) fn is_known(&self, is_sealed: bool) -> bool {
        !self.is_closed && self.peer.incarnation != 0 && (!is_sealed || self.life != 0)
    }

    /// True if the incarnation lives, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closed && self.peer.incarnation != 0
    }

    /// True if a single frame has named the incarnation, and it does not answer: that
    /// frame may have been damaged.
    pub(super) fn may_be_nobody(&self) -> bool {
        !self.is_certain && self.backoff >= UNANSWERED
    }

    /// True if a single frame has named the incarnation, which has sent nothing, and no
    /// frame to it has arrived.
    fn is_unproven(&self) -> bool {
        let sent = self.next_sequence.wrapping_sub(1);
        let has_arrived =
            self.flight.len() as u32 != sent || self.flight.iter().any(|sent| sent.arrived);
        !self.is_certain && self.expected == 1 && !has_arrived
    }

    /// Records in flight, and those that wait behind them. For frames that are not
    /// sealed.
    fn unanswered(&self) -> Vec<u8> {
        let under_way = self.flight.iter().map(|sent| &sent.bytes[ETHERNET_LEN + HEADER_LEN..]);
        under_way.chain([&self.queue[self.queued_from..]]).collect::<Vec<_>>().concat()
    }

    /// True if this incarnation of the node is an old one.
    pub(super) fn is_past(&self, peer: Peer) -> bool {
        let known = self.peer.incarnation;
        let is_certain = self.is_certain || self.is_closed;
        known != 0
            && (is_certain && after(known, peer.incarnation)
                || self.is_closed && known == peer.incarnation)
    }

    /// True if a later incarnation has sent or received something here: its channel
    /// cannot begin anew, because the other end continues it.
    pub(super) fn has_heard_later(&self, peer: Peer) -> bool {
        self.is_open() && after(self.peer.incarnation, peer.incarnation) && !self.is_unproven()
    }

    /// True if a frame does not prove that it comes from this incarnation. If a damaged
    /// or forged frame were believed, true ones would count as the past for good. In
    /// doubt are frames that name another incarnation than the known one, and, while none
    /// is known, frames with records that are the first to name theirs.
    pub(super) fn is_doubtful(&self, peer: Peer, has_records: bool) -> bool {
        match self.is_open() {
            true => self.peer.incarnation != peer.incarnation,
            false => has_records && self.named != peer.incarnation,
        }
    }

    /// Notes that a frame has named this incarnation without being believed, or only
    /// asked for ours.
    pub(super) fn note_named(&mut self, peer: Peer) {
        self.named = peer.incarnation;
    }

    /// Begins to ask the incarnation for proof. False if it, or another, was asked a
    /// moment ago.
    pub(super) fn begin_challenge(&mut self, incarnation: u32, now: u64, pause: u64) -> bool {
        let is_due =
            self.challenge.is_none_or(|challenge| now >= challenge.at.saturating_add(pause));
        if is_due {
            let same = self.challenge.filter(|challenge| challenge.incarnation == incarnation);
            let counters = same.map_or([0; 16], |challenge| challenge.counters);
            self.challenge = Some(Challenge { incarnation, at: now, counters });
        }
        is_due
    }

    /// Notes the counter of the frame that asked this incarnation for proof.
    pub(super) fn note_challenge(&mut self, incarnation: u32, counter: u64) {
        if let Some(challenge) =
            self.challenge.as_mut().filter(|challenge| challenge.incarnation == incarnation)
        {
            challenge.counters.rotate_right(1);
            challenge.counters[0] = counter as u32;
        }
    }

    /// True if the peer has repeated the counter of a frame that asked it for proof.
    pub(super) fn has_answered(&self, peer: Peer, counter: u32) -> bool {
        let is_answer = |challenge: Challenge| {
            challenge.incarnation == peer.incarnation && challenge.counters.contains(&counter)
        };
        counter != 0 && self.challenge.is_some_and(is_answer)
    }

    /// Makes the known incarnation certain: earlier ones count as past.
    pub(super) fn set_certain(&mut self) {
        self.is_certain = true;
    }

    /// Has all frames in flight go out again: the peer refused them before it knew this
    /// incarnation.
    pub(super) fn repeat_all(&mut self) {
        self.is_disturbed |= !self.flight.is_empty();
        self.flight.iter_mut().filter(|sent| !sent.arrived).for_each(|sent| sent.is_due = true);
    }

    /// Ends the incarnation.
    pub(super) fn close(&mut self) {
        *self = Channel { is_closed: true, place: self.place, ..Channel::new(self.peer) };
    }

    /// Learns the node's incarnation. True if another one was known.
    pub(super) fn set_peer(&mut self, peer: Peer) -> bool {
        if self.is_past(peer) || self.peer == peer {
            return false;
        }
        if self.is_open() {
            // An unproven incarnation may never have existed. Its records are for the
            // true one, as before any was known.
            let is_unproven = self.is_unproven();
            let queue = if is_unproven { self.unanswered() } else { Vec::new() };
            *self = Channel { place: self.place, queue, ..Channel::new(peer) };
            return !is_unproven;
        }
        // No incarnation was known: waiting records are for whichever comes.
        (self.peer, self.is_closed, self.is_certain, self.asked, self.backoff) =
            (peer, false, false, None, 0);
        false
    }

    /// Learns the peer's life number from a frame, and derives the keys of its other
    /// frames.
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

    /// The keys that open a peer's frames under one life number, if it is this channel's.
    pub(super) fn openers_of(&self, peer: Peer, life: u64) -> Option<&[Opener]> {
        (self.peer == peer && self.life == life && life != 0).then_some(self.openers.as_slice())
    }

    /// Refuses frames under another life number of the same incarnation, and replayed
    /// ones. For frames whose seal has been opened.
    pub(super) fn accept_counter(
        &mut self,
        peer: Peer,
        life: u64,
        counter: u64,
    ) -> Result<(), DropReason> {
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

    /// Frees the part of the queue that has been sent.
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

    /// Repeated frames that may be under way together. A silent peer gets the oldest
    /// only: more would not tell more. Once the peer answers again, overdue frames
    /// follow.
    pub(super) fn budget(&self) -> usize {
        if self.backoff > 0 { 1 } else { OVERDUE_AT_ONCE }
    }

    /// True if the peer has room for a frame of this number.
    pub(super) fn has_credit(&self, sequence: u32) -> bool {
        after(self.limit, sequence)
    }

    /// True if the next frame may be sent.
    pub(super) fn may_send(&self) -> bool {
        self.has_queued()
            && self.flight.len() < WINDOW as usize
            && self.has_credit(self.next_sequence)
    }

    /// True if records wait, the peer has no room, and no frame is under way whose answer
    /// would tell of room. A frame is then sent all the same, now and then: the news of
    /// room may have been lost.
    pub(super) fn must_try(&self) -> bool {
        self.has_queued() && self.flight.is_empty() && !self.has_credit(self.next_sequence)
    }

    /// Frames from the expected one on for which this side has room, including those that
    /// came early. Half of the buffer is for these, the other half for the frames that go
    /// before them into the inbox.
    fn credit(config: &FabricConfig, inbox: &Inbox) -> u16 {
        let free = (config.buffer / 2).saturating_sub(inbox.len());
        (free / config.mtu).min(WINDOW as usize) as u16
    }

    /// True if the peer was told of little room, and there is much more now.
    pub(super) fn has_news_of_room(&self, config: &FabricConfig, inbox: &Inbox) -> bool {
        self.has_told_of_little(config) && Channel::credit(config, inbox) >= Channel::much(config)
    }

    /// The credit with which the peer continues at full speed.
    fn much(config: &FabricConfig) -> u16 {
        Channel::credit(config, &Inbox::default()).div_ceil(2)
    }

    fn has_told_of_little(&self, config: &FabricConfig) -> bool {
        // The initial credit does not count as little.
        self.given < Channel::much(config).min(FIRST_CREDIT as u16)
    }

    /// True if the channel has nothing to send and nothing to wait for: [`Channel::due`]
    /// is `None` until a record is queued or a frame arrives.
    pub(super) fn is_idle(&self, config: &FabricConfig) -> bool {
        self.is_settled() && !self.acknowledge && !self.has_told_of_little(config)
    }

    /// Acknowledgement and credit to tell the peer now.
    pub(super) fn answer(&mut self, config: &FabricConfig, inbox: &Inbox) -> Answer {
        self.given = Channel::credit(config, inbox);
        let bit = |(at, frame): (usize, &Option<Vec<u8>>)| u64::from(frame.is_some()) << at;
        let selective = self.early.iter().take(64).enumerate().map(bit).sum();
        Answer { acknowledgement: self.expected, selective, credit: self.given }
    }

    /// Takes the peer's acknowledgement (frames before `acknowledgement`, and those in
    /// the bitmap after it) and its credit.
    pub(super) fn handle_answer(
        &mut self,
        answer: Answer,
        counter: u64,
        now: u64,
        spare: &mut Vec<Vec<u8>>,
    ) {
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
            // Only a new counter shows that the peer lives: a late or repeated frame may
            // be from a peer that died long ago.
            self.is_certain |= self.heard > 0;
            (self.heard, self.behind, self.heard_at) = (counter, (0, 0), Some(now));
            let limit = acknowledgement.wrapping_add(credit.into());
            if self.flight.front().is_some_and(|front| {
                !after(self.limit, front.sequence) && after(limit, front.sequence)
            }) {
                // The peer was silent for want of room only.
                self.backoff = 0;
            }
            // Frames beyond the old limit were refused if they arrived; now the peer has
            // room for them.
            if self.flight.back().is_some_and(|last| !after(self.limit, last.sequence)) {
                self.is_disturbed = true;
                for sent in &mut self.flight {
                    if !sent.arrived
                        && !after(self.limit, sent.sequence)
                        && after(limit, sent.sequence)
                    {
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

    /// A frame is older than the newest. True if so many have come that the newest
    /// counter must be wrong.
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
                // The peer hears: frames that it misses need no longer time-out.
                self.backoff = 0;
            }
        }
        // A later frame has arrived, so a missing one before it is lost, or so late that
        // repeating it costs less.
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
        // A refused frame is acknowledged too: the peer repeats it because an
        // acknowledgement was lost.
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
        // A frame that was delivered comes again because its acknowledgement is late: no
        // loss.
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
        // Half of the room is kept for the missing frame: without that frame these would
        // never leave.
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

    /// The time at which this channel has something to send, without further input.
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
            // A full budget of repeated frames holds back all frames behind it, however
            // overdue: none of them is due.
            budget -= usize::from(sent.tries > 1);
            if budget == 0 {
                break;
            }
        }
        soonest
    }

    /// True if all that was sent has arrived.
    pub(super) fn is_settled(&self) -> bool {
        self.flight.is_empty() && !self.has_queued()
    }
}

/// Measures the round trip of a frame that is known to have arrived just now. A frame
/// that went out twice tells nothing, because the answer may be to either copy (Karn),
/// and a missed frame is later than its round trip.
fn measure(smoothed_rtt: &mut u64, sent: &Sent, now: u64) {
    if sent.tries == 1 && !sent.missed {
        let sample = now.saturating_sub(sent.at).max(1);
        *smoothed_rtt = if *smoothed_rtt == 0 { sample } else { (*smoothed_rtt * 7 + sample) / 8 };
    }
}
