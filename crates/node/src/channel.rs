//! Reliable messages between nodes, over frames that may be lost, doubled, delayed and
//! reordered, and without a key also forged.
//!
//! Theory of operation (NFVactor: reliable message passing). Records for a peer are
//! gathered into numbered frames up to the fabric's MTU. The receiver delivers frames in
//! order and keeps those that came early. The receiver acknowledges with the next number
//! that it expects and a bitmap of the frames beyond, and says for how many frames it has
//! room. The sender repeats a frame when later ones have arrived without it, and when
//! nothing was heard for ten round trips. Both sides are known by node and incarnation: a
//! frame from or for an earlier incarnation is refused, and a peer's new incarnation
//! starts a new sequence. A sender that does not know the peer's incarnation sends an
//! empty probe frame, and sends records when it has been told. A frame for no incarnation
//! in particular could be late and be taken by the next one. A sender that names an
//! earlier incarnation is told the present one.
//!
//! Without keys, a single frame cannot announce a new incarnation. If a damaged or forged
//! frame were believed, all frames of the true incarnation would count as the past. The
//! claimed incarnation is asked to repeat a number, which it cannot know if it is not
//! there, and is heard once it has. A sender must believe the first incarnation that it
//! hears of at a node: if that one does not answer, the sender asks again. Records are
//! taken only from an incarnation that two frames have named, or [`Fabric::set_peer`].
//!
//! A record that does not fit into a frame travels in parts, each in a frame, and is put
//! together before it is delivered: a channel keeps the order.
//!
//! With the cluster's keys every frame is sealed, bare acknowledgements too. A frame's
//! contents are believed only once its seal has been opened. Each incarnation of an
//! endpoint has a random *life number*, and a sender must name the receiver's. A frame
//! with another one was recorded for an earlier incarnation, or before the whole box was
//! started again, and is refused for that; a frame recorded under the present numbers is
//! refused for its counter.
//!
//! A cluster may have a thousand nodes, each with a channel to every other one. A channel
//! is found by its node at once. Only channels that have something to send or to wait for
//! are looked at when frames are due.
//!
//! In: frames, records to send, the time. Out: frames, records in order, news of a peer's
//! new incarnation. Never: allocation per frame once the queues have grown to their
//! working size.

pub(crate) mod anti_replay;
pub(crate) mod format;
mod inbox;
pub(crate) mod keys;
mod link;

pub use format::Overheard;
pub use inbox::{Arrived, Inbox};
pub use keys::{Key, KeyRing, KeyRingError, MAX_KEYS};

use core::num::NonZeroU64;
use format::{
    ASKS, Answer, Destination, ETHERNET_LEN, FIRST_PART, HEADER_LEN, Header, LAST_PART, MAGIC,
    ONLY_ACKNOWLEDGES, PART, PART_HEADER_LEN, RECORD_HEADER_LEN, SEALED, VERSION, after,
    are_records, gather, refresh, say_back, write,
};
use holdfast_protection::{NodeIndex, Peer};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, NodeId};
use keys::Seal;
use link::{Channel, Sent, WINDOW};
use std::collections::BTreeMap;
use zerocopy::FromBytes;

const MILLISECOND: u64 = 1_000_000;
/// Nodes whose probe waits for an answer. A node that gets none asks again, but only
/// after a while, and all nodes of a large cluster may ask at once.
const QUESTIONS: usize = 4096;

/// The longest record, bytes: a view of some thousand runtimes.
pub const MAX_LONG_RECORD: usize = 256 << 10;

/// A fabric endpoint's configuration.
#[derive(Debug, Clone, Copy)]
pub struct FabricConfig {
    /// The cluster's number. Frames of another cluster are refused.
    pub cluster: u32,
    /// Longest frame, bytes, Ethernet header included.
    pub mtu: usize,
    /// Shortest time before a frame is repeated, ns.
    pub min_timeout: u64,
    /// Longest time before a frame is repeated, ns.
    pub max_timeout: u64,
    /// Bytes of records that may wait in the inbox. Half as many may have come early, per
    /// peer.
    pub buffer: usize,
}

impl Default for FabricConfig {
    fn default() -> FabricConfig {
        FabricConfig {
            cluster: 0,
            mtu: 2400,
            min_timeout: 20 * MILLISECOND,
            max_timeout: 1000 * MILLISECOND,
            buffer: 8 << 20,
        }
    }
}

/// Why a record was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    /// The peer's queue is full.
    Full,
    /// The record is longer than [`MAX_LONG_RECORD`].
    TooLong,
}

/// The sending side that all channels of an endpoint share.
struct Sender {
    me: Peer,
    config: FabricConfig,
    seal: Option<Box<Seal>>,
    /// Frames sent. Never set back: the counter is the nonce.
    counter: u64,
}

impl Sender {
    /// This endpoint's life number, 0 without keys.
    fn life(&self) -> u64 {
        self.seal.as_ref().map_or(0, |seal| seal.life())
    }

    /// The records of a frame, decrypted if it was sealed. For frames that have been
    /// opened.
    fn plain<'a>(&'a self, records: &'a [u8]) -> &'a [u8] {
        self.seal.as_ref().map_or(records, |seal| seal.opened())
    }

    /// Completes a frame, seals it if there are keys, and offers it to the network.
    fn emit(
        &mut self,
        frame: &mut [u8],
        to: Destination,
        answer: Answer,
        transmit: &mut impl FnMut(&[u8]) -> bool,
    ) -> bool {
        self.counter += 1;
        refresh(frame, to, answer, self.counter);
        match &mut self.seal {
            Some(seal) => seal.seal(frame, self.counter).is_some_and(transmit),
            None => transmit(frame),
        }
    }
}

/// An empty frame that is due to a node: it tells the incarnation here, repeats a
/// counter, or asks for one.
#[derive(Debug, Clone, Copy)]
struct Question {
    of: Destination,
    /// The counter to repeat, or 0.
    counter: u32,
    /// The node is to repeat this frame's counter.
    asks: bool,
}

/// A node's endpoint on the fabric: a channel to every peer that it has talked to.
pub struct Fabric {
    sender: Sender,
    channels: Vec<Channel>,
    at: NodeIndex,
    /// Positions of channels that may have something to do, in order.
    busy: Vec<u32>,
    /// Nodes of channels whose room or incarnation may have changed since the last look.
    changed: Vec<NodeId>,
    /// The channel that transmits first in the next turn.
    first: usize,
    /// Empty frames that are due, by node: the node has asked for the incarnation here,
    /// or must prove its own.
    questions: BTreeMap<NodeId, Question>,
    spare: Vec<Vec<u8>>,
    /// Records that have arrived.
    pub inbox: Inbox,
}

impl Fabric {
    /// An endpoint without peers and without keys.
    pub fn new(me: Peer, config: FabricConfig) -> Fabric {
        Fabric {
            sender: Sender { me, config, seal: None, counter: 0 },
            channels: Vec::new(),
            at: NodeIndex::default(),
            busy: Vec::new(),
            changed: Vec::new(),
            first: 0,
            questions: BTreeMap::new(),
            spare: Vec::new(),
            inbox: Inbox::default(),
        }
    }

    /// Gives the endpoint the cluster's keys, before it has sent or heard anything.
    /// `life`, the life number, must be random: it tells this incarnation from every
    /// other one of this node, also if incarnations are counted from the beginning again.
    pub fn authenticate(&mut self, ring: &KeyRing, life: NonZeroU64) {
        let Sender { me, config, seal, .. } = &mut self.sender;
        *seal = Some(Box::new(Seal::new(*me, config.cluster, life, ring)));
    }

    /// Changes the keys. Frames under way that can no longer be opened are repeated under
    /// the new current key. An endpoint that was made without keys stays without.
    pub fn set_keys(&mut self, ring: &KeyRing) {
        if let Some(seal) = &mut self.sender.seal {
            seal.set_keys(ring);
            self.channels.iter_mut().for_each(|channel| channel.set_openers(seal));
        }
    }

    /// True if frames are sealed.
    pub fn is_authenticated(&self) -> bool {
        self.sender.seal.is_some()
    }

    /// This node and its incarnation.
    pub fn me(&self) -> Peer {
        self.sender.me
    }

    /// The longest record that fits into a frame, bytes.
    pub fn max_record(&self) -> usize {
        self.sender.config.mtu - ETHERNET_LEN - HEADER_LEN - RECORD_HEADER_LEN
    }

    fn position(&self, node: NodeId) -> Option<usize> {
        self.at.get(node)
    }

    fn of(&self, node: NodeId) -> Option<&Channel> {
        self.position(node).map(|at| &self.channels[at])
    }

    /// A node's channel, to change it.
    fn channel(&mut self, node: NodeId) -> &mut Channel {
        let at = match self.position(node) {
            Some(at) => at,
            None => {
                self.channels.push(Channel::new(Peer { node, incarnation: 0 }));
                self.at.set(node, self.channels.len() - 1);
                self.channels.len() - 1
            }
        };
        let channel = &mut self.channels[at];
        if !core::mem::replace(&mut channel.place.is_busy, true) {
            let place = self.busy.partition_point(|busy| *busy < at as u32);
            self.busy.insert(place, at as u32);
        }
        if !core::mem::replace(&mut channel.place.has_changed, true) {
            self.changed.push(node);
        }
        channel
    }

    /// A node whose [`Fabric::room`] may have changed; each once, until there is none.
    pub(crate) fn take_changed(&mut self) -> Option<NodeId> {
        let node = self.changed.pop()?;
        if let Some(at) = self.position(node) {
            self.channels[at].place.has_changed = false;
        }
        Some(node)
    }

    /// Learns a node's present incarnation. A later incarnation than the known one voids
    /// all that was sent to the old one, unless only a single frame had named that one
    /// and it never answered. An earlier incarnation is ignored once the later one has
    /// spoken: the news is old.
    pub fn set_peer(&mut self, peer: Peer) {
        if !self.channel(peer.node).has_heard_later(peer) {
            self.set_proven(peer);
        }
    }

    /// As [`Fabric::set_peer`], for an incarnation that has proven itself.
    fn set_proven(&mut self, peer: Peer) {
        self.learn_peer(peer);
        let channel = self.channel(peer.node);
        if channel.peer == peer {
            channel.set_certain();
        }
    }

    fn learn_peer(&mut self, peer: Peer) {
        if self.channel(peer.node).set_peer(peer) {
            self.inbox.restart(peer);
        }
    }

    /// The incarnation at a node, as far as its own messages or [`Fabric::set_peer`] have
    /// told.
    pub fn peer(&self, node: NodeId) -> Option<Peer> {
        self.of(node).filter(|channel| channel.is_open()).map(|channel| channel.peer)
    }

    /// The arrival time of this incarnation's newest frame. Its records may wait for a
    /// lost frame; that the sender lives is known before.
    pub fn heard_at(&self, peer: Peer) -> Option<u64> {
        self.of(peer.node)
            .filter(|channel| channel.peer == peer)
            .and_then(|channel| channel.heard_at)
    }

    /// Ends an incarnation: nothing is sent to it, and its late frames are refused.
    /// Records for its node wait for the next incarnation.
    pub fn remove_peer(&mut self, peer: Peer) {
        if self.of(peer.node).is_some_and(|channel| channel.peer == peer) {
            self.channel(peer.node).close();
        }
    }

    /// Bytes of records that the channel to a peer takes now. 0 if that incarnation is
    /// not known.
    pub fn room(&self, peer: Peer) -> usize {
        let channel =
            self.of(peer.node).filter(|channel| channel.peer == peer && channel.is_open());
        // Headers of frames and records need some of the room.
        channel.map_or(0, |channel| channel.room() / 2)
    }

    /// Bytes of records for a node that are in no frame yet, because as many frames as
    /// may be under way are not acknowledged.
    pub fn backlog(&self, node: NodeId) -> usize {
        self.of(node).map_or(0, |channel| channel.queue.len() - channel.queued_from)
    }

    /// Lets the channel to a node transmit first in the next turn: what it says must not
    /// come after what other nodes are told.
    pub(crate) fn put_first(&mut self, node: NodeId) {
        self.first = self.position(node).unwrap_or(self.first);
    }

    /// Queues a record for a node.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was queued.
    pub fn send(&mut self, node: NodeId, kind: u8, body: &[u8]) -> Result<(), SendError> {
        self.send_parts(node, kind, &[body])
    }

    /// Queues a record for a node; its parts lie in different places.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was queued.
    pub fn send_parts(&mut self, node: NodeId, kind: u8, parts: &[&[u8]]) -> Result<(), SendError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > self.max_record() {
            return self.send_long(node, kind, &parts.concat());
        }
        let channel = self.channel(node);
        if channel.room() < len + RECORD_HEADER_LEN {
            return Err(SendError::Full);
        }
        channel.queue.push(kind);
        channel.queue.extend_from_slice(&(len as u16).to_be_bytes());
        parts.iter().for_each(|part| channel.queue.extend_from_slice(part));
        Ok(())
    }

    /// Queues a record that does not fit into a frame.
    fn send_long(&mut self, node: NodeId, kind: u8, body: &[u8]) -> Result<(), SendError> {
        if body.len() > MAX_LONG_RECORD || kind == PART {
            return Err(SendError::TooLong);
        }
        let most = self.max_record() - PART_HEADER_LEN;
        let count = body.len().div_ceil(most);
        let channel = self.channel(node);
        if channel.room() < body.len() + count * (RECORD_HEADER_LEN + PART_HEADER_LEN) {
            return Err(SendError::Full);
        }
        for (at, part) in body.chunks(most).enumerate() {
            let first = if at == 0 { FIRST_PART } else { 0 };
            let last = if at + 1 == count { LAST_PART } else { 0 };
            channel.queue.push(PART);
            channel.queue.extend_from_slice(&((part.len() + PART_HEADER_LEN) as u16).to_be_bytes());
            channel.queue.extend_from_slice(&[kind, first | last]);
            channel.queue.extend_from_slice(part);
        }
        Ok(())
    }

    /// Takes a frame in.
    ///
    /// # Errors
    /// The reason to count. No record was taken then. A frame that is malformed,
    /// unauthenticated, replayed or of another life number had no effect at all.
    pub fn handle_frame(&mut self, frame: &[u8], now: u64) -> Result<(), DropReason> {
        let me = self.sender.me;
        let body = frame.get(ETHERNET_LEN..).ok_or(DropReason::Malformed)?;
        let (header, rest) = Header::ref_from_prefix(body).map_err(|_| DropReason::Malformed)?;
        if header.magic.get() != MAGIC
            || header.version != VERSION
            || header.cluster.get() != self.sender.config.cluster
        {
            return Err(DropReason::Malformed);
        }
        if header.destination.get() != me.node.get() {
            return Err(DropReason::UnknownNode);
        }
        let records = rest.get(..header.length.get() as usize).ok_or(DropReason::Malformed)?;
        let from = Peer {
            node: NodeId::new(header.source.get()),
            incarnation: header.source_incarnation.get(),
        };
        let life = header.source_life.get();
        let known = self.position(from.node);
        let is_sealed = self.sender.seal.is_some();
        if (header.flags & SEALED != 0) != is_sealed {
            return Err(DropReason::Unauthenticated);
        }
        if let Some(seal) = &mut self.sender.seal {
            let openers = known.and_then(|at| self.channels[at].openers_of(from, life));
            if !seal.open(header, records, openers) {
                return Err(DropReason::Unauthenticated);
            }
        }
        // The frame is authentic from here on.
        let only_acknowledges = header.flags & ONLY_ACKNOWLEDGES != 0;
        let plain = self.sender.plain(records);
        let is_whole = if only_acknowledges { plain.is_empty() } else { are_records(plain) };
        if from.incarnation == 0 || is_sealed != (life != 0) || !is_whole {
            return Err(DropReason::Malformed);
        }
        if known.is_some_and(|at| self.channels[at].is_past(from))
            && !is_planted(Fault::HearsThePast)
        {
            return Err(DropReason::StaleEpoch);
        }
        if let Some(at) = known.filter(|_| is_sealed) {
            self.channels[at].accept_counter(from, life, header.counter.get())?;
        }
        let (incarnation, own_life) =
            (header.destination_incarnation.get(), header.destination_life.get());
        if incarnation == 0 || is_sealed && own_life == 0 {
            if !only_acknowledges {
                return Err(DropReason::Malformed);
            }
            // A channel for a node that asks: for so many nodes at most, if they are
            // nodes.
            if !is_sealed && (known.is_some() || self.channels.len() < QUESTIONS) {
                self.channel(from.node).note_named(from);
            }
            return self.ask(Destination { node: from.node, incarnation: from.incarnation, life });
        }
        let destination = Destination { node: from.node, incarnation: from.incarnation, life };
        if incarnation != me.incarnation || own_life != self.sender.life() {
            if !after(incarnation, me.incarnation) {
                // The sender must learn this incarnation now. If not, it would send to
                // the earlier one until this one sends, which may be long.
                self.ask(destination)?;
            }
            return Err(DropReason::StaleEpoch);
        }
        if header.flags & ASKS != 0 && only_acknowledges {
            self.put_question(Question {
                of: destination,
                counter: header.counter.get() as u32,
                asks: false,
            })?;
            if known.is_some_and(|at| self.channels[at].peer == from) {
                self.channel(from.node).repeat_all();
            }
        }
        let is_believed = is_sealed || is_planted(Fault::BelievesAnyIncarnation);
        let has_records = !only_acknowledges;
        if !is_believed
            && known.map_or(has_records, |at| self.channels[at].is_doubtful(from, has_records))
        {
            let pause = self.sender.config.min_timeout / 2;
            let said_back = if only_acknowledges { header.sequence.get() } else { 0 };
            let channel = self.channel(from.node);
            if !channel.has_answered(from, said_back) {
                channel.note_named(from);
                // Records of an unproven incarnation are not taken: their sender repeats
                // them.
                if channel.begin_challenge(from.incarnation, now, pause) {
                    self.put_question(Question { of: destination, counter: 0, asks: true })?;
                }
                return Ok(());
            }
            self.set_proven(from);
        }
        let is_new = self.of(from.node).is_none_or(|channel| channel.peer != from);
        match is_believed {
            true => self.set_peer(from),
            false => self.learn_peer(from),
        }
        let Some(at) = self.position(from.node) else { return Err(DropReason::UnknownNode) };
        let Fabric { channels, spare, inbox, sender, .. } = self;
        let channel = &mut channels[at];
        if channel.peer != from {
            return Err(DropReason::UnknownNode);
        }
        if let Some(seal) = &sender.seal {
            channel.set_life(life, header.counter.get(), seal);
        }
        // The peer may not know this incarnation.
        channel.acknowledge |= is_new;
        let (acknowledgement, selective) = (header.acknowledgement.get(), header.selective.get());
        let answer = Answer { acknowledgement, selective, credit: header.credit.get() };
        channel.handle_answer(answer, header.counter.get(), now, spare);
        if only_acknowledges {
            return Ok(());
        }
        channel.handle_records(
            header.sequence.get(),
            sender.plain(records),
            &sender.config,
            inbox,
            spare,
        )
    }

    /// Notes that a node asks for the incarnation here.
    fn ask(&mut self, from: Destination) -> Result<(), DropReason> {
        let is_sealed = self.is_authenticated();
        if self
            .of(from.node)
            .is_some_and(|channel| channel.is_known(is_sealed) && channel.destination() == from)
        {
            // The channel's next frame answers the question.
            self.channel(from.node).acknowledge = true;
            return Ok(());
        }
        self.put_question(Question { of: from, counter: 0, asks: false })
    }

    fn put_question(&mut self, question: Question) -> Result<(), DropReason> {
        let node = question.of.node;
        if self.questions.len() >= QUESTIONS && !self.questions.contains_key(&node) {
            return Err(DropReason::QueueFull);
        }
        let known = self.questions.get(&node).filter(|known| known.of == question.of);
        let counter = if question.counter == 0 {
            known.map_or(0, |known| known.counter)
        } else {
            question.counter
        };
        let asks = question.asks || known.is_some_and(|known| known.asks);
        self.questions.insert(node, Question { counter, asks, ..question });
        Ok(())
    }

    /// Calls `transmit` with every frame that is due: new ones, repeated ones,
    /// acknowledgements. `transmit` returns false when it cannot take another.
    pub fn poll_transmit(&mut self, now: u64, mut transmit: impl FnMut(&[u8]) -> bool) {
        if !self.answer_questions(&mut transmit) {
            return;
        }
        let Fabric { sender, channels, busy, changed, first, spare, inbox, .. } = self;
        let begin = busy.partition_point(|at| (*at as usize) < *first);
        for step in 0..busy.len() {
            let at = busy[(begin + step) % busy.len()] as usize;
            let channel = &mut channels[at];
            let room = channel.room();
            let mut out = Out { sender, spare, inbox, now, transmit: &mut transmit };
            let has_room = out.channel(channel);
            if channel.room() != room && !core::mem::replace(&mut channel.place.has_changed, true) {
                changed.push(channel.peer.node);
            }
            if !has_room {
                // Every channel gets its turn, even if one frame at a time gets through.
                *first = at + 1;
                break;
            }
        }
        busy.retain(|at| {
            let channel = &mut channels[*at as usize];
            channel.place.is_busy = !channel.is_idle(&sender.config);
            channel.place.is_busy
        });
    }

    /// Sends the empty frames that are due: they tell this incarnation and nothing else,
    /// because a question may be an old one.
    fn answer_questions(&mut self, transmit: &mut impl FnMut(&[u8]) -> bool) -> bool {
        while let Some(Question { of: to, counter, asks }) =
            self.questions.first_key_value().map(|(_, question)| *question)
        {
            let is_known = self.of(to.node).is_some_and(|channel| channel.destination() == to);
            if is_known {
                // The channel has to be looked at: this answer may need a correction.
                self.channel(to.node);
            }
            let Fabric { sender, channels, at, spare, inbox, .. } = self;
            let channel = at.get(to.node).filter(|_| is_known).map(|at| &mut channels[at]);
            let mut fresh = Channel::new(Peer { node: to.node, incarnation: to.incarnation });
            let answer = channel.unwrap_or(&mut fresh).answer(&sender.config, inbox);
            let mut bytes = spare.pop().unwrap_or_default();
            write(&mut bytes, sender.me, to.node, sender.config.cluster, None, &[]);
            say_back(&mut bytes, counter, asks);
            let is_sent = sender.emit(&mut bytes, to, answer, transmit);
            spare.push(bytes);
            if !is_sent {
                return false;
            }
            if let Some(at) = at.get(to.node).filter(|_| asks) {
                channels[at].note_challenge(to.incarnation, sender.counter);
            }
            self.questions.remove(&to.node);
        }
        true
    }

    /// The time at which [`Fabric::poll_transmit`] is due without further input.
    pub fn poll_timeout(&self) -> Option<u64> {
        if !self.questions.is_empty() {
            return Some(0);
        }
        let is_sealed = self.is_authenticated();
        let busy = self.busy.iter().map(|at| &self.channels[*at as usize]);
        busy.filter_map(|channel| channel.due(&self.sender.config, &self.inbox, is_sealed)).min()
    }

    /// True if everything sent to this node was acknowledged.
    pub fn is_settled(&self, node: NodeId) -> bool {
        self.of(node).is_none_or(Channel::is_settled)
    }
}

/// The transmission of one channel.
struct Out<'a, F> {
    sender: &'a mut Sender,
    spare: &'a mut Vec<Vec<u8>>,
    inbox: &'a Inbox,
    now: u64,
    transmit: &'a mut F,
}

impl<F: FnMut(&[u8]) -> bool> Out<'_, F> {
    /// False if the network takes no more.
    fn channel(&mut self, channel: &mut Channel) -> bool {
        if !channel.is_known(self.sender.seal.is_some()) {
            return self.ask(channel);
        }
        self.repeat(channel) && self.send(channel) && self.acknowledge(channel)
    }

    /// Asks for the peer's incarnation, if records wait.
    fn ask(&mut self, channel: &mut Channel) -> bool {
        if !channel.has_queued() {
            return true;
        }
        if channel
            .asked
            .is_some_and(|at| self.now < at.saturating_add(channel.timeout(&self.sender.config)))
        {
            return true;
        }
        let to = Destination { node: channel.peer.node, incarnation: 0, life: 0 };
        let is_sent = self.bare(channel, to);
        if is_sent {
            channel.backoff += u32::from(channel.asked.is_some());
            channel.asked = Some(self.now);
        }
        is_sent
    }

    /// A frame without records.
    fn bare(&mut self, channel: &mut Channel, to: Destination) -> bool {
        let mut bytes = self.spare.pop().unwrap_or_default();
        write(&mut bytes, self.sender.me, to.node, self.sender.config.cluster, None, &[]);
        let answer = channel.answer(&self.sender.config, self.inbox);
        let is_sent = self.sender.emit(&mut bytes, to, answer, self.transmit);
        self.spare.push(bytes);
        is_sent
    }

    fn repeat(&mut self, channel: &mut Channel) -> bool {
        let timeout = channel.timeout(&self.sender.config);
        channel.is_disturbed =
            channel.is_disturbed && channel.flight.iter().any(Sent::is_disturbed);
        if !channel.is_disturbed
            && channel
                .flight
                .front()
                .is_none_or(|oldest| self.now < oldest.at.saturating_add(timeout))
        {
            return true;
        }
        let (mut timed_out, mut is_first) = (false, true);
        let mut budget = channel.budget();
        for at in 0..channel.flight.len() {
            let sent = &channel.flight[at];
            if budget == 0 {
                break;
            }
            if sent.arrived {
                continue;
            }
            // Frames for which the peer has no room are not repeated, except the oldest:
            // its answer tells of room.
            if !is_first && !channel.has_credit(sent.sequence) {
                break;
            }
            is_first = false;
            let is_overdue = self.now >= sent.at.saturating_add(timeout);
            if !sent.is_due && !is_overdue {
                // A repeated frame without an answer counts: the frames behind it wait
                // for the answer.
                budget -= usize::from(sent.tries > 1);
                continue;
            }
            let is_for_gap = sent.is_due && !is_overdue;
            let (to, answer) =
                (channel.destination(), channel.answer(&self.sender.config, self.inbox));
            let sent = &mut channel.flight[at];
            if !self.sender.emit(&mut sent.bytes, to, answer, self.transmit) {
                return false;
            }
            timed_out |= !is_for_gap;
            sent.at = self.now;
            sent.tries += 1;
            channel.is_disturbed = true;
            (sent.missed, sent.is_due) = (is_for_gap, false);
            channel.acknowledge = false;
            budget -= 1;
        }
        if timed_out {
            channel.backoff += 1;
            if channel.may_be_nobody() && self.sender.seal.is_none() {
                let to = Destination { node: channel.peer.node, incarnation: 0, life: 0 };
                return self.bare(channel, to);
            }
        }
        true
    }

    fn send(&mut self, channel: &mut Channel) -> bool {
        let mut tries = channel.must_try()
            && channel.asked.is_none_or(|at| {
                self.now >= at.saturating_add(channel.timeout(&self.sender.config))
            });
        while channel.may_send() || tries {
            let limit = self.sender.config.mtu - ETHERNET_LEN - HEADER_LEN;
            let end = gather(&channel.queue, channel.queued_from, limit);
            let mut bytes = self.spare.pop().unwrap_or_default();
            let records = &channel.queue[channel.queued_from..end];
            let sequence = channel.next_sequence;
            write(
                &mut bytes,
                self.sender.me,
                channel.peer.node,
                self.sender.config.cluster,
                Some(sequence),
                records,
            );
            let (to, answer) =
                (channel.destination(), channel.answer(&self.sender.config, self.inbox));
            if !self.sender.emit(&mut bytes, to, answer, self.transmit) {
                self.spare.push(bytes);
                return false;
            }
            if tries {
                channel.asked = Some(self.now);
                tries = false;
            }
            channel.queued_from = end;
            channel.flight.push_back(Sent {
                sequence,
                bytes,
                at: self.now,
                tries: 1,
                missed: false,
                is_due: false,
                arrived: false,
            });
            channel.next_sequence = sequence.wrapping_add(1);
            channel.acknowledge = false;
        }
        channel.compact();
        true
    }

    fn acknowledge(&mut self, channel: &mut Channel) -> bool {
        if channel.acknowledge || channel.has_news_of_room(&self.sender.config, self.inbox) {
            channel.acknowledge = !self.bare(channel, channel.destination());
            return !channel.acknowledge;
        }
        true
    }
}

const _: () = assert!(WINDOW <= u16::MAX as u32, "a window's credit fits its field");

#[cfg(test)]
mod tests;
