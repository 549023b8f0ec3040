//! The ledger of everything that clients and servers have seen of a box. The ledger must
//! balance whatever the box does and whichever process dies.
//!
//! Each flow has a number, and each of its two ends numbers its datagrams. The content of
//! a datagram follows from flow, direction and number ([`content`]), so the receiver can
//! check it. The ledger knows nothing of the box: clients and servers around the box fill
//! it in ([`crate::traffic`]).

use anyhow::{Result, ensure};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::mem::{self, Discriminant};
use std::net::SocketAddr;

/// An end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The end that began the flow.
    Client,
    /// The end that the flow was opened to.
    Server,
}

impl End {
    /// The other end of a flow.
    pub fn other(self) -> End {
        match self {
            End::Client => End::Server,
            End::Server => End::Client,
        }
    }
}

/// The transport of a flow. Each has ports of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// A stream.
    Tcp,
}

/// An error that the ledger has found.
#[expect(missing_docs, reason = "a field's name says what it is")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// The source address of a flow changed at the server.
    MappingChanged { flow: u32, was: SocketAddr, is: SocketAddr },
    /// Two flows had the same source address at the server.
    MappingShared { mapping: SocketAddr, flows: [u32; 2] },
    /// A datagram that was sent once came twice.
    Doubled { at: End, flow: u32, number: u64 },
    /// The content of a datagram differs from the sent one.
    Altered { at: End, flow: u32, number: u64 },
    /// A datagram came that no end has sent.
    NeverSent { at: End, flow: u32, number: u64 },
    /// A byte of a stream at this offset differs from the sent one.
    StreamAltered { at: End, flow: u32, offset: u64 },
    /// A stream ended elsewhere than its sender ended it.
    StreamCut { at: End, flow: u32, sent: u64, came: u64 },
    /// The connection broke.
    StreamBroken { at: End, flow: u32, cause: String },
    /// The box counts less than was seen: it has forgotten packets that it had released.
    CountForgotten { flow: u32, at: End, seen: u64, counted: u64 },
    /// The box counts more than was sent.
    CountInvented { flow: u32, at: End, sent: u64, counted: u64 },
    /// The box reports another mapping than the server saw.
    MappingMisreported { flow: u32, seen: SocketAddr, said: SocketAddr },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[derive(Debug, Default)]
struct Way {
    /// By number: how often it was sent; how often it has arrived, and the digest of the
    /// first arrival.
    sent: Vec<u32>,
    came: HashMap<u64, (u32, u64)>,
    /// The error of the box's count when it was last compared.
    miscounted: Option<Discriminant<Wrong>>,
}

#[derive(Debug, Default)]
struct Stream {
    /// Bytes sent; `None` before the sender has ended the stream.
    sent: Option<u64>,
    came: u64,
    is_over: bool,
}

#[derive(Debug, Default)]
struct Flow {
    mapping: Option<SocketAddr>,
    /// Datagrams to the client, and to the server.
    ways: [Way; 2],
    streams: [Stream; 2],
    is_stream: bool,
}

/// The ledger of all flows.
#[derive(Debug, Default)]
pub struct Ledger {
    flows: HashMap<u32, Flow>,
    mappings: HashMap<(Transport, SocketAddr), u32>,
    wrong: Vec<Wrong>,
    /// The number of errors beyond those that are kept.
    more: usize,
}

/// The most errors that a ledger keeps, and that it shows.
const KEPT: usize = 10_000;
const SHOWN: usize = 20;

/// Sums over the ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// Flows whose mapping the server knows.
    pub flows: usize,
    /// Datagrams sent, in both directions.
    pub sent: u64,
    /// Datagrams that arrived, each counted once.
    pub came: u64,
    /// Datagrams that never arrived, however often they were sent.
    pub missing: u64,
    /// Streams that were ended and arrived whole, each direction counted by itself.
    pub streams: usize,
    /// Bytes of these streams.
    pub bytes: u64,
}

impl Ledger {
    fn note(&mut self, wrong: Wrong) {
        if self.wrong.len() < KEPT {
            self.wrong.push(wrong);
        } else {
            self.more += 1;
        }
    }

    fn way(&mut self, flow: u32, to: End) -> &mut Way {
        &mut self.flows.entry(flow).or_default().ways[to as usize]
    }

    /// Notes a datagram that is about to be sent to this end. A number may be sent again,
    /// on purpose.
    pub fn send(&mut self, to: End, flow: u32, number: u64) {
        let sent = &mut self.way(flow, to).sent;
        let at = number as usize;
        if sent.len() <= at {
            sent.resize(at + 1, 0);
        }
        sent[at] += 1;
    }

    /// Notes the source address of a flow as seen by the server.
    pub fn see_mapping(&mut self, flow: u32, by: Transport, source: SocketAddr) {
        let known = self.flows.entry(flow).or_default().mapping.replace(source);
        if let Some(was) = known.filter(|was| *was != source) {
            self.note(Wrong::MappingChanged { flow, was, is: source });
        }
        // A connection that both ends have ended needs its mapping no more; minutes later
        // the box knows that too.
        let has_ended = |flow: &u32| {
            self.flows
                .get(flow)
                .is_some_and(|flow| flow.streams.iter().all(|stream| stream.is_over))
        };
        let other = self
            .mappings
            .insert((by, source), flow)
            .filter(|other| *other != flow && !has_ended(other));
        if let Some(other) = other {
            self.note(Wrong::MappingShared { mapping: source, flows: [other, flow] });
        }
    }

    /// Notes the arrival of a datagram; `digest` is that of its content.
    pub fn receive(&mut self, at: End, flow: u32, number: u64, digest: u64) {
        let way = self.way(flow, at);
        let sent = way.sent.get(number as usize).copied().unwrap_or(0);
        let came = way.came.entry(number).or_insert((0, digest));
        came.0 += 1;
        let (times, first) = *came;
        if sent == 0 {
            self.note(Wrong::NeverSent { at, flow, number });
        } else if digest != first || digest != digest_of(&content(flow, at, number)) {
            self.note(Wrong::Altered { at, flow, number });
        } else if times > sent {
            self.note(Wrong::Doubled { at, flow, number });
        }
    }

    /// Notes a connection that is about to be opened.
    pub fn open_stream(&mut self, flow: u32) {
        self.flows.entry(flow).or_default().is_stream = true;
    }

    /// Notes that a stream's sender has ended it after `sent` bytes.
    pub fn end_stream(&mut self, to: End, flow: u32, sent: u64) {
        self.flows.entry(flow).or_default().streams[to as usize].sent = Some(sent);
    }

    /// Notes more bytes of a stream. False if they differ from the sent ones.
    pub fn receive_stream(&mut self, at: End, flow: u32, bytes: &[u8]) -> bool {
        let stream = &mut self.flows.entry(flow).or_default().streams[at as usize];
        let offset = stream.came;
        stream.came += bytes.len() as u64;
        let is_right = |(place, byte): (u64, &u8)| *byte == stream_byte(flow, at, offset + place);
        if let Some(place) = (0..).zip(bytes).position(|found| !is_right(found)) {
            self.note(Wrong::StreamAltered { at, flow, offset: offset + place as u64 });
            return false;
        }
        true
    }

    /// Notes that a stream has ended for its receiver.
    pub fn finish_stream(&mut self, at: End, flow: u32) {
        self.flows.entry(flow).or_default().streams[at as usize].is_over = true;
    }

    /// Notes that the connection broke at this end.
    pub fn break_stream(&mut self, at: End, flow: u32, cause: &str) {
        self.note(Wrong::StreamBroken { at, flow, cause: cause.to_owned() });
    }

    /// The number of datagrams of a flow that arrived at the client and at the server,
    /// each counted once.
    pub fn came(&self, flow: u32) -> [u64; 2] {
        self.flows
            .get(&flow)
            .map_or([0; 2], |flow| [0, 1].map(|at| flow.ways[at].came.len() as u64))
    }

    /// The flow's source address as known to the server.
    pub fn mapping(&self, flow: u32) -> Option<SocketAddr> {
        self.flows.get(&flow)?.mapping
    }

    /// Compares the box's account of a datagram flow with the ledger: packets processed
    /// to the client and to the server, and the mapping. `seen` must be the result of
    /// [`Ledger::came`] from *before* the box was asked: those datagrams had been
    /// released, and the box must not forget a released packet.
    pub fn compare(&mut self, flow: u32, seen: [u64; 2], counted: [u64; 2], mapping: SocketAddr) {
        let Some(known) = self.flows.get_mut(&flow) else { return };
        let mut found = Vec::new();
        for at in [End::Client, End::Server] {
            let way = &mut known.ways[at as usize];
            let sent = way.sent.iter().map(|times| u64::from(*times)).sum();
            let (seen, counted) = (seen[at as usize], counted[at as usize]);
            let wrong = if counted < seen {
                Some(Wrong::CountForgotten { flow, at, seen, counted })
            } else if counted > sent {
                Some(Wrong::CountInvented { flow, at, sent, counted })
            } else {
                None
            };
            // A count stays wrong however often the box is asked.
            let kind = wrong.as_ref().map(mem::discriminant);
            if mem::replace(&mut way.miscounted, kind) != kind {
                found.extend(wrong);
            }
        }
        found.into_iter().for_each(|wrong| self.note(wrong));
        self.compare_mapping(flow, mapping);
    }

    /// The number of bytes of a stream that arrived at the client and at the server.
    pub fn stream_came(&self, flow: u32) -> [u64; 2] {
        self.flows.get(&flow).map_or([0; 2], |flow| [0, 1].map(|at| flow.streams[at].came))
    }

    /// Compares the mapping that the box reports for a flow with the one that the server
    /// saw.
    pub fn compare_mapping(&mut self, flow: u32, said: SocketAddr) {
        if let Some(seen) = self.mapping(flow).filter(|seen| *seen != said) {
            self.note(Wrong::MappingMisreported { flow, seen, said });
        }
    }

    /// The sums so far; the traffic may go on.
    pub fn sum(&self) -> Sum {
        let mut sum = Sum { flows: self.mappings.len(), ..Sum::default() };
        for flow in self.flows.values() {
            for way in &flow.ways {
                sum.sent += way.sent.iter().map(|times| u64::from(*times)).sum::<u64>();
                sum.came += way.came.len() as u64;
                let is_missing =
                    |(number, times): &(u64, &u32)| **times > 0 && !way.came.contains_key(number);
                sum.missing += (0..).zip(&way.sent).filter(is_missing).count() as u64;
            }
            for stream in flow
                .streams
                .iter()
                .filter(|stream| stream.is_over && stream.sent == Some(stream.came))
            {
                sum.streams += 1;
                sum.bytes += stream.came;
            }
        }
        sum
    }

    /// The errors found so far.
    pub fn wrong(&self) -> &[Wrong] {
        &self.wrong
    }

    /// Closes the ledger after the traffic has ended.
    ///
    /// # Errors
    /// The ledger does not balance.
    pub fn close(mut self) -> Result<Sum> {
        self.note_cut();
        self.refuse(&self.wrong)?;
        Ok(self.sum())
    }

    fn note_cut(&mut self) {
        let cut: Vec<Wrong> = self
            .flows
            .iter()
            .filter(|(_, of)| of.is_stream)
            .flat_map(|(flow, of)| of.cut(*flow))
            .collect();
        cut.into_iter().for_each(|wrong| self.note(wrong));
    }

    fn refuse(&self, wrong: &[Wrong]) -> Result<()> {
        let found: Vec<String> = wrong.iter().take(SHOWN).map(Wrong::to_string).collect();
        let more = self.more + wrong.len() - found.len();
        ensure!(
            found.is_empty() && more == 0,
            "{:?}\n{}\nand {more} more",
            self.sum(),
            found.join("\n")
        );
        Ok(())
    }

    /// Closes the ledger after the traffic has ended, through a box that has lost flows.
    /// Returns the lost flows, each with the first error that shows the loss. A lost
    /// connection breaks; the next datagram of a lost flow begins another flow. An error
    /// that follows from another flow's loss (a shared mapping, a forgotten count) is no
    /// further loss.
    ///
    /// # Errors
    /// An error that a lost flow does not explain: a connection never comes from another
    /// address, no datagram comes twice or altered, and every connection is opened in the
    /// end.
    pub fn close_with_losses(mut self) -> Result<BTreeMap<u32, Wrong>> {
        self.note_cut();
        let is_stream = |flow: &u32| self.flows.get(flow).is_some_and(|flow| flow.is_stream);
        let mut lost = BTreeMap::new();
        for wrong in &self.wrong {
            match wrong {
                Wrong::MappingChanged { flow, .. } | Wrong::MappingMisreported { flow, .. }
                    if !is_stream(flow) =>
                {
                    lost.entry(*flow).or_insert_with(|| wrong.clone());
                }
                Wrong::StreamBroken { flow, .. } | Wrong::StreamCut { flow, .. } => {
                    lost.entry(*flow).or_insert_with(|| wrong.clone());
                }
                _ => {}
            }
        }
        let is_explained = |wrong: &Wrong| match wrong {
            Wrong::MappingShared { flows, .. } => flows.iter().any(|flow| lost.contains_key(flow)),
            Wrong::MappingChanged { flow, .. } | Wrong::MappingMisreported { flow, .. } => {
                !is_stream(flow)
            }
            Wrong::CountForgotten { flow, .. } => lost.contains_key(flow) && !is_stream(flow),
            Wrong::StreamBroken { cause, .. } => !cause.starts_with(CONNECTING),
            Wrong::StreamCut { flow, .. } => lost.contains_key(flow),
            _ => false,
        };
        let unexplained: Vec<Wrong> =
            self.wrong.iter().filter(|wrong| !is_explained(wrong)).cloned().collect();
        self.refuse(&unexplained)?;
        Ok(lost)
    }
}

/// Prefix of the cause of a connection that broke before it was opened.
pub const CONNECTING: &str = "connecting: ";

impl Flow {
    fn cut(&self, flow: u32) -> impl Iterator<Item = Wrong> + '_ {
        [End::Client, End::Server].into_iter().filter_map(move |at| {
            let stream = &self.streams[at as usize];
            let sent = stream.sent.unwrap_or(0);
            let is_whole = stream.is_over && stream.sent == Some(stream.came);
            (!is_whole).then_some(Wrong::StreamCut { at, flow, sent, came: stream.came })
        })
    }
}

pub(crate) fn mix(value: u64) -> u64 {
    let z = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The content of a datagram to this end: its flow, its number, and further bytes whose
/// length and values follow from these.
pub fn content(flow: u32, to: End, number: u64) -> Vec<u8> {
    let seed = mix(u64::from(flow) << 1 | to as u64) ^ number;
    let mut bytes = [&flow.to_be_bytes()[..], &number.to_be_bytes()].concat();
    bytes.extend((0..24 + mix(seed) % 600).map(|at| mix(seed ^ at << 32) as u8));
    bytes
}

/// Flow and number in a datagram's content.
pub fn heading(bytes: &[u8]) -> Option<(u32, u64)> {
    let (flow, rest) = bytes.split_first_chunk::<4>()?;
    let (number, _) = rest.split_first_chunk::<8>()?;
    Some((u32::from_be_bytes(*flow), u64::from_be_bytes(*number)))
}

/// A byte of a stream's content.
pub fn stream_byte(flow: u32, to: End, offset: u64) -> u8 {
    (mix(u64::from(flow) << 1 | to as u64).wrapping_add(offset / 8 * 0x9e37) >> (offset % 8 * 8))
        as u8
        ^ (offset >> 8) as u8
}

/// 64-bit FNV-1a.
pub fn digest_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
