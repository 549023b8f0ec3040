//! Reliable messages between nodes, over frames that may be lost, doubled, delayed and reordered.
//!
//! Theory of operation (NFVactor, section IV-C; DESIGN, section 5). Records for a peer are gathered into numbered frames up to the
//! fabric's MTU. The receiver delivers frames in order, keeps those that came early, and acknowledges with the next number that
//! it expects and a bitmap of what it has beyond. The sender repeats a frame when later ones have arrived without it, and when
//! nothing was heard for ten round trips. Both sides are known by node and incarnation: a frame from or for an earlier life is
//! refused, and a peer's new life starts a new sequence. The header has room for an authentication tag, zero for now.
//!
//! In: frames, records to send, the time. Out: frames, records in order, news of a peer's new life. Never: allocation per frame
//! once the queues have grown to their working size.

use crate::address::{NodeId, mac_of};
use holdfast_protection::Peer;
use holdfast_wire::DropReason;
use holdfast_wire::header::ETHERTYPE_FABRIC;
use std::collections::VecDeque;
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a fabric message frame begins with, after the Ethernet header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: U16,
    version: u8,
    flags: u8,
    cluster: U32,
    source: U16,
    destination: U16,
    source_incarnation: U32,
    /// 0: the sender does not know it yet.
    destination_incarnation: U32,
    /// Number of this frame, from 1, and after 2^32 of them from 0. Without meaning if the frame [only acknowledges](ONLY_ACKNOWLEDGES).
    sequence: U32,
    /// The next number that the sender expects from its peer.
    acknowledgement: U32,
    /// Bit n: the frame `acknowledgement + 1 + n` has arrived.
    selective: U64,
    /// Bytes of records after this header.
    length: U16,
    reserved: U16,
    /// Reserved for the AEAD tag.
    tag: [u8; 16],
}

const MAGIC: u16 = 0x4846;
const VERSION: u8 = 1;
/// Flag: the frame has no number and no records. Every number is some frame's, so none can say it.
const ONLY_ACKNOWLEDGES: u8 = 1;
const ETHERNET_LEN: usize = 14;
const HEADER_LEN: usize = size_of::<Header>();
const RECORD_HEADER_LEN: usize = 3;

/// Frames in flight per peer.
const WINDOW: u32 = 1024;
/// Overdue frames that are repeated together, when the peer is known to hear.
const OVERDUE_AT_ONCE: usize = 16;
/// Bytes of records that wait to be put into frames, per peer.
const QUEUE_BYTES: usize = 4 << 20;
const MILLISECOND: u64 = 1_000_000;

/// How a fabric endpoint behaves.
#[derive(Debug, Clone, Copy)]
pub struct FabricConfig {
    /// Frames of another cluster are refused.
    pub cluster: u32,
    /// Longest frame, bytes, Ethernet header included.
    pub mtu: usize,
    /// Shortest time before a frame is repeated, ns.
    pub min_timeout: u64,
    /// Longest, ns.
    pub max_timeout: u64,
}

impl Default for FabricConfig {
    fn default() -> FabricConfig {
        FabricConfig { cluster: 0, mtu: 2400, min_timeout: 20 * MILLISECOND, max_timeout: 1000 * MILLISECOND }
    }
}

struct Sent {
    sequence: u32,
    bytes: Vec<u8>,
    /// When it last went out.
    at: u64,
    /// How often it did.
    tries: u32,
    /// Something later has arrived without it. Stays until the frame is overdue all the same: answers that were under way while it was
    /// repeated tell of the same gap.
    missed: bool,
    /// For that reason it is to go out now.
    is_due: bool,
    arrived: bool,
}

/// One direction each way between two nodes.
struct Channel {
    peer: Peer,
    next_sequence: u32,
    flight: VecDeque<Sent>,
    queue: Vec<u8>,
    queued_from: usize,
    expected: u32,
    early: Vec<(u32, Vec<u8>)>,
    acknowledge: bool,
    smoothed_rtt: u64,
    backoff: u32,
}

fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

impl Channel {
    fn new(peer: Peer) -> Channel {
        Channel {
            peer,
            next_sequence: 1,
            flight: VecDeque::with_capacity(64),
            queue: Vec::new(),
            queued_from: 0,
            expected: 1,
            early: Vec::new(),
            acknowledge: false,
            smoothed_rtt: 0,
            backoff: 0,
        }
    }

    /// Bytes of records that may still be queued.
    fn room(&self) -> usize {
        QUEUE_BYTES.saturating_sub(self.queue.len() - self.queued_from)
    }

    fn timeout(&self, config: &FabricConfig) -> u64 {
        let base = (self.smoothed_rtt * 10).clamp(config.min_timeout, config.max_timeout);
        (base << self.backoff.min(6)).min(config.max_timeout)
    }

    /// Repeated frames that may be under way together. Against silence the oldest is enough: the rest would not tell more. Once the peer
    /// answers again, what is overdue follows.
    fn budget(&self) -> usize {
        if self.backoff > 0 { 1 } else { OVERDUE_AT_ONCE }
    }

    fn selective(&self) -> u64 {
        let mut bits = 0;
        for (sequence, _) in &self.early {
            let distance = sequence.wrapping_sub(self.expected).wrapping_sub(1);
            if distance < 64 {
                bits |= 1 << distance;
            }
        }
        bits
    }

    /// What the peer says it has: frames before `acknowledgement`, and those in the bitmap after it.
    fn handle_acknowledgement(&mut self, acknowledgement: u32, selective: u64, now: u64, spare: &mut Vec<Vec<u8>>) {
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
        if selective == 0 {
            return;
        }
        for sent in &mut self.flight {
            let distance = sent.sequence.wrapping_sub(acknowledgement).wrapping_sub(1);
            if distance < 64 && selective & 1 << distance != 0 && !sent.arrived {
                sent.arrived = true;
                measure(&mut self.smoothed_rtt, sent, now);
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
}

/// Takes the round trip of a frame that is known to have arrived just now, if it tells anything: of one that went out twice nobody knows
/// which copy is answered (Karn), and one that was missed is late by more than the way.
fn measure(smoothed_rtt: &mut u64, sent: &Sent, now: u64) {
    if sent.tries == 1 && !sent.missed {
        let sample = now.saturating_sub(sent.at).max(1);
        *smoothed_rtt = if *smoothed_rtt == 0 { sample } else { (*smoothed_rtt * 7 + sample) / 8 };
    }
}

/// A record that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// From whom.
    pub from: Peer,
    /// Its kind.
    pub kind: u8,
    start: usize,
    len: usize,
}

/// Records that arrived, in order per peer.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    records: Vec<Arrived>,
    /// Peers that began a new life; everything of the old one is void.
    pub restarted: Vec<Peer>,
}

impl Inbox {
    /// The records.
    pub fn records(&self) -> impl Iterator<Item = (Arrived, &[u8])> + '_ {
        self.records.iter().map(|record| (*record, &self.bytes[record.start..record.start + record.len]))
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
        self.restarted.clear();
    }

    fn take(&mut self, from: Peer, mut records: &[u8]) {
        while let Some((header, rest)) = records.split_first_chunk::<RECORD_HEADER_LEN>() {
            let len = u16::from_be_bytes([header[1], header[2]]) as usize;
            let Some(body) = rest.get(..len) else { return };
            let start = self.bytes.len();
            self.bytes.extend_from_slice(body);
            self.records.push(Arrived { from, kind: header[0], start, len });
            records = &rest[len..];
        }
    }
}

/// Why a record was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    /// The peer's queue is full.
    Full,
    /// The record does not fit into a frame.
    TooLong,
}

/// A node's endpoint on the fabric: a channel to every peer that it has talked to.
pub struct Fabric {
    me: Peer,
    config: FabricConfig,
    channels: Vec<Channel>,
    spare: Vec<Vec<u8>>,
    /// What arrived.
    pub inbox: Inbox,
}

impl Fabric {
    /// An endpoint without peers.
    pub fn new(me: Peer, config: FabricConfig) -> Fabric {
        Fabric { me, config, channels: Vec::new(), spare: Vec::new(), inbox: Inbox::default() }
    }

    /// Who this is.
    pub fn me(&self) -> Peer {
        self.me
    }

    /// The longest record that fits into a frame, bytes.
    pub fn max_record(&self) -> usize {
        self.config.mtu - ETHERNET_LEN - HEADER_LEN - RECORD_HEADER_LEN
    }

    fn channel(&mut self, node: NodeId) -> &mut Channel {
        let at = match self.channels.iter().position(|channel| channel.peer.node == node) {
            Some(at) => at,
            None => {
                self.channels.push(Channel::new(Peer { node, incarnation: 0 }));
                self.channels.len() - 1
            }
        };
        &mut self.channels[at]
    }

    /// Learns who lives at a node now. A later life than the known one voids all that was sent to the old.
    pub fn set_peer(&mut self, peer: Peer) {
        let known = self.channel(peer.node);
        if known.peer.incarnation == 0 {
            known.peer = peer;
        } else if after(peer.incarnation, known.peer.incarnation) {
            *known = Channel::new(peer);
            self.inbox.restarted.push(peer);
        }
    }

    /// Who lives at a node, as far as its own messages or [`Fabric::set_peer`] have told.
    pub fn peer(&self, node: NodeId) -> Option<Peer> {
        self.channels.iter().map(|channel| channel.peer).find(|peer| peer.node == node && peer.incarnation != 0)
    }

    /// Forgets a node: nothing more is sent to it.
    pub fn remove_peer(&mut self, peer: Peer) {
        self.channels.retain(|channel| channel.peer != peer);
    }

    /// Bytes of records that the channel to a peer takes now. 0 if the peer of that incarnation is not known.
    pub fn room(&self, peer: Peer) -> usize {
        let channel = self.channels.iter().find(|channel| channel.peer == peer);
        // The frames' and records' own headers need some of it.
        channel.map_or(0, |channel| channel.room() / 2)
    }

    /// Queues a record for a node.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was queued.
    pub fn send(&mut self, node: NodeId, kind: u8, body: &[u8]) -> Result<(), SendError> {
        if body.len() > self.max_record() {
            return Err(SendError::TooLong);
        }
        let channel = self.channel(node);
        if channel.room() < body.len() + RECORD_HEADER_LEN {
            return Err(SendError::Full);
        }
        channel.queue.push(kind);
        channel.queue.extend_from_slice(&(body.len() as u16).to_be_bytes());
        channel.queue.extend_from_slice(body);
        Ok(())
    }

    /// Takes a frame in.
    ///
    /// # Errors
    /// The reason to count; nothing has changed then.
    pub fn handle_frame(&mut self, frame: &[u8], now: u64) -> Result<(), DropReason> {
        let body = frame.get(ETHERNET_LEN..).ok_or(DropReason::Malformed)?;
        let (header, rest) = Header::read_from_prefix(body).map_err(|_| DropReason::Malformed)?;
        if header.magic.get() != MAGIC || header.version != VERSION || header.cluster.get() != self.config.cluster {
            return Err(DropReason::Malformed);
        }
        if header.destination.get() != self.me.node {
            return Err(DropReason::UnknownNode);
        }
        let for_life = header.destination_incarnation.get();
        if for_life != 0 && for_life != self.me.incarnation {
            return Err(DropReason::StaleEpoch);
        }
        let records = rest.get(..header.length.get() as usize).ok_or(DropReason::Malformed)?;
        let from = Peer { node: header.source.get(), incarnation: header.source_incarnation.get() };
        if from.incarnation == 0 {
            return Err(DropReason::Malformed);
        }
        let known = self.channel(from.node).peer.incarnation;
        if known != 0 && after(known, from.incarnation) {
            return Err(DropReason::StaleEpoch);
        }
        self.set_peer(from);
        let Fabric { channels, spare, inbox, .. } = self;
        let Some(channel) = channels.iter_mut().find(|channel| channel.peer == from) else { return Err(DropReason::UnknownNode) };
        // Only what was sent to this very life is acknowledged; a frame that knows no life yet says nothing about ours.
        if for_life != 0 && !after(header.acknowledgement.get(), channel.next_sequence) {
            channel.handle_acknowledgement(header.acknowledgement.get(), header.selective.get(), now, spare);
        }
        if header.flags & ONLY_ACKNOWLEDGES != 0 {
            return Ok(());
        }
        let sequence = header.sequence.get();
        channel.acknowledge = true;
        if sequence == channel.expected {
            inbox.take(from, records);
            channel.expected = channel.expected.wrapping_add(1);
            while let Some(at) = channel.early.iter().position(|(early, _)| *early == channel.expected) {
                let (_, mut bytes) = channel.early.swap_remove(at);
                inbox.take(from, &bytes);
                bytes.clear();
                spare.push(bytes);
                channel.expected = channel.expected.wrapping_add(1);
            }
            Ok(())
        } else if after(sequence, channel.expected) && sequence.wrapping_sub(channel.expected) <= WINDOW {
            if !channel.early.iter().any(|(early, _)| *early == sequence) {
                let mut bytes = spare.pop().unwrap_or_default();
                bytes.clear();
                bytes.extend_from_slice(records);
                channel.early.push((sequence, bytes));
            }
            Ok(())
        } else {
            Err(DropReason::StaleDuplicate)
        }
    }

    /// Calls `transmit` with every frame that is due: new ones, repeated ones, acknowledgements. It returns false when it cannot take another.
    pub fn poll_transmit(&mut self, now: u64, mut transmit: impl FnMut(&[u8]) -> bool) {
        let Fabric { me, config, channels, spare, .. } = self;
        for channel in channels {
            let timeout = channel.timeout(config);
            let mut timed_out = false;
            let (expected, selective) = (channel.expected, channel.selective());
            let mut budget = channel.budget();
            for sent in &mut channel.flight {
                if budget == 0 {
                    break;
                }
                if sent.arrived {
                    continue;
                }
                let is_overdue = now >= sent.at.saturating_add(timeout);
                if !sent.is_due && !is_overdue {
                    // One that was repeated and is not answered yet counts: what follows it waits for the answer.
                    budget -= usize::from(sent.tries > 1);
                    continue;
                }
                let is_for_gap = sent.is_due && !is_overdue;
                timed_out |= !is_for_gap;
                refresh(&mut sent.bytes, channel.peer, expected, selective);
                if !transmit(&sent.bytes) {
                    return;
                }
                sent.at = now;
                sent.tries += 1;
                (sent.missed, sent.is_due) = (is_for_gap, false);
                channel.acknowledge = false;
                budget -= 1;
            }
            if timed_out {
                channel.backoff += 1;
            }
            while channel.queued_from < channel.queue.len() && channel.flight.len() < WINDOW as usize {
                let mut bytes = spare.pop().unwrap_or_default();
                bytes.clear();
                let end = gather(&channel.queue, channel.queued_from, config.mtu - ETHERNET_LEN - HEADER_LEN);
                let records = &channel.queue[channel.queued_from..end];
                frame(&mut bytes, *me, channel.peer, config.cluster, Some(channel.next_sequence), records);
                refresh(&mut bytes, channel.peer, expected, selective);
                if !transmit(&bytes) {
                    spare.push(bytes);
                    return;
                }
                channel.queued_from = end;
                channel.flight.push_back(Sent {
                    sequence: channel.next_sequence,
                    bytes,
                    at: now,
                    tries: 1,
                    missed: false,
                    is_due: false,
                    arrived: false,
                });
                channel.next_sequence = channel.next_sequence.wrapping_add(1);
                channel.acknowledge = false;
            }
            if channel.queued_from == channel.queue.len() {
                channel.queue.clear();
                channel.queued_from = 0;
            } else if channel.queued_from > QUEUE_BYTES / 2 {
                channel.queue.drain(..channel.queued_from);
                channel.queued_from = 0;
            }
            if channel.acknowledge {
                let mut bytes = spare.pop().unwrap_or_default();
                bytes.clear();
                frame(&mut bytes, *me, channel.peer, config.cluster, None, &[]);
                refresh(&mut bytes, channel.peer, expected, selective);
                channel.acknowledge = !transmit(&bytes);
                spare.push(bytes);
            }
        }
    }

    /// When [`Fabric::poll_transmit`] is due next without further input.
    pub fn poll_timeout(&self) -> Option<u64> {
        let due = |channel: &Channel| {
            if channel.acknowledge || channel.queued_from < channel.queue.len() && channel.flight.len() < WINDOW as usize {
                return Some(0);
            }
            let timeout = channel.timeout(&self.config);
            let mut soonest = None::<u64>;
            let mut budget = channel.budget();
            for sent in channel.flight.iter().filter(|sent| !sent.arrived) {
                let due = if sent.is_due { 0 } else { sent.at.saturating_add(timeout) };
                soonest = Some(soonest.map_or(due, |soonest| soonest.min(due)));
                // Behind as many repeated frames as may be under way nothing goes out, however overdue it is: nobody needs to wake up for it.
                budget -= usize::from(sent.tries > 1);
                if budget == 0 {
                    break;
                }
            }
            soonest
        };
        self.channels.iter().filter_map(due).min()
    }

    /// True if everything sent to this node was acknowledged.
    pub fn is_settled(&self, node: NodeId) -> bool {
        self.channels
            .iter()
            .filter(|channel| channel.peer.node == node)
            .all(|channel| channel.flight.is_empty() && channel.queued_from == channel.queue.len())
    }
}

/// Where the records that fit into `limit` bytes end.
fn gather(queue: &[u8], from: usize, limit: usize) -> usize {
    let mut end = from;
    while let Some(header) = queue.get(end..end + RECORD_HEADER_LEN) {
        let next = end + RECORD_HEADER_LEN + u16::from_be_bytes([header[1], header[2]]) as usize;
        if next - from > limit {
            break;
        }
        end = next;
    }
    end
}

/// Writes a frame, without a number if it only acknowledges.
fn frame(bytes: &mut Vec<u8>, me: Peer, peer: Peer, cluster: u32, sequence: Option<u32>, records: &[u8]) {
    bytes.extend_from_slice(&mac_of(peer.node));
    bytes.extend_from_slice(&mac_of(me.node));
    bytes.extend_from_slice(&ETHERTYPE_FABRIC.to_be_bytes());
    let header = Header {
        magic: MAGIC.into(),
        version: VERSION,
        flags: if sequence.is_none() { ONLY_ACKNOWLEDGES } else { 0 },
        cluster: cluster.into(),
        source: me.node.into(),
        destination: peer.node.into(),
        source_incarnation: me.incarnation.into(),
        destination_incarnation: 0.into(),
        sequence: sequence.unwrap_or(0).into(),
        acknowledgement: 0.into(),
        selective: 0.into(),
        length: (records.len() as u16).into(),
        reserved: 0.into(),
        tag: [0; 16],
    };
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(records);
}

/// Writes what changes from one transmission of a frame to the next.
fn refresh(bytes: &mut [u8], peer: Peer, expected: u32, selective: u64) {
    if let Ok((header, _)) = Header::mut_from_prefix(&mut bytes[ETHERNET_LEN..]) {
        header.destination_incarnation = peer.incarnation.into();
        header.acknowledgement = expected.into();
        header.selective = selective.into();
    }
}

#[cfg(test)]
mod tests;
