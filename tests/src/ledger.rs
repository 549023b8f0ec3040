//! What clients and servers have seen of a box: who came from where, with what. Whatever a box does and whoever dies in it, the book must balance.
//!
//! A flow has a number of its own, and each of its two ends numbers what it sends. What a number stands for follows from flow, direction and number ([`content`]), so
//! that each side can tell whether what came is what was sent. The ledger knows nothing of the box: it is filled in by those around it ([`crate::traffic`]).

use anyhow::{Result, ensure};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;

/// Who received it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// Who began the flow.
    Client,
    /// Who was asked.
    Server,
}

impl End {
    /// The one who sends to this one.
    pub fn other(self) -> End {
        match self {
            End::Client => End::Server,
            End::Server => End::Client,
        }
    }
}

/// By what a flow came. Each has ports of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// A stream.
    Tcp,
}

/// What must not be.
#[expect(missing_docs, reason = "a field's name says what it is")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// A flow that the server knew by one address came from another one.
    MappingChanged { flow: u32, was: SocketAddr, is: SocketAddr },
    /// Two flows came from one address.
    MappingShared { mapping: SocketAddr, flows: [u32; 2] },
    /// What was sent once came twice.
    Doubled { at: End, flow: u32, number: u64 },
    /// What came under a number is not what was sent under it.
    Altered { at: End, flow: u32, number: u64 },
    /// Nobody has sent it.
    NeverSent { at: End, flow: u32, number: u64 },
    /// A stream has another byte than was sent, at this place.
    StreamAltered { at: End, flow: u32, offset: u64 },
    /// A stream ended elsewhere than its sender ended it.
    StreamCut { at: End, flow: u32, sent: u64, came: u64 },
    /// The connection broke.
    StreamBroken { at: End, flow: u32, cause: String },
    /// The box says less than was seen: it has forgotten what it had let out.
    CountForgotten { flow: u32, at: End, seen: u64, counted: u64 },
    /// The box says more than there was.
    CountInvented { flow: u32, at: End, sent: u64, counted: u64 },
    /// The box says another mapping than was seen.
    MappingMisreported { flow: u32, seen: SocketAddr, said: SocketAddr },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[derive(Debug, Default)]
struct Way {
    /// By number: how often it was sent, how often it has come, and the digest of the first that came.
    sent: Vec<u32>,
    came: HashMap<u64, (u32, u64)>,
}

#[derive(Debug, Default)]
struct Stream {
    /// None before its sender has ended it.
    sent: Option<u64>,
    came: u64,
    is_over: bool,
}

#[derive(Debug, Default)]
struct Flow {
    mapping: Option<SocketAddr>,
    /// What came at the client and at the server.
    ways: [Way; 2],
    streams: [Stream; 2],
    is_stream: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Ledger {
    flows: HashMap<u32, Flow>,
    mappings: HashMap<(Transport, SocketAddr), u32>,
    wrong: Vec<Wrong>,
    /// What was wrong beyond those that are kept.
    more: usize,
}

/// Findings that a ledger keeps, and those of them that it shows.
const KEPT: usize = 10_000;
const SHOWN: usize = 20;

/// What a book says altogether.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// Flows whose mapping the server knows.
    pub flows: usize,
    /// Datagrams, in both directions: sent, and of these the ones that came.
    pub sent: u64,
    /// Those that came, each once.
    pub came: u64,
    /// Those of which none has come, however often each was sent.
    pub missing: u64,
    /// Streams that were ended and came whole, each direction for itself.
    pub streams: usize,
    /// Their bytes.
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

    /// A datagram is about to be sent to this end. A number may be sent again, on purpose.
    pub fn send(&mut self, to: End, flow: u32, number: u64) {
        let sent = &mut self.way(flow, to).sent;
        let at = number as usize;
        if sent.len() <= at {
            sent.resize(at + 1, 0);
        }
        sent[at] += 1;
    }

    /// The server has seen this flow come from there.
    pub fn see_mapping(&mut self, flow: u32, by: Transport, source: SocketAddr) {
        let known = self.flows.entry(flow).or_default().mapping.replace(source);
        if let Some(was) = known.filter(|was| *was != source) {
            self.note(Wrong::MappingChanged { flow, was, is: source });
        }
        // A connection that both ends have ended needs it no more, and minutes later the box knows that too.
        let has_ended = |flow: &u32| self.flows.get(flow).is_some_and(|flow| flow.streams.iter().all(|stream| stream.is_over));
        let other = self.mappings.insert((by, source), flow).filter(|other| *other != flow && !has_ended(other));
        if let Some(other) = other {
            self.note(Wrong::MappingShared { mapping: source, flows: [other, flow] });
        }
    }

    /// A datagram has come. `digest` is of its content as it came.
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

    /// A connection is about to be opened.
    pub fn open_stream(&mut self, flow: u32) {
        self.flows.entry(flow).or_default().is_stream = true;
    }

    /// A stream's sender has ended it after so many bytes.
    pub fn end_stream(&mut self, to: End, flow: u32, sent: u64) {
        self.flows.entry(flow).or_default().streams[to as usize].sent = Some(sent);
    }

    /// More of a stream has come. False if it is not what was sent.
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

    /// The stream was ended by its sender, as far as its receiver knows.
    pub fn finish_stream(&mut self, at: End, flow: u32) {
        self.flows.entry(flow).or_default().streams[at as usize].is_over = true;
    }

    /// The connection broke at this end.
    pub fn break_stream(&mut self, at: End, flow: u32, cause: &str) {
        self.note(Wrong::StreamBroken { at, flow, cause: cause.to_owned() });
    }

    /// How many datagrams of a flow have come, at the client and at the server; each once.
    pub fn came(&self, flow: u32) -> [u64; 2] {
        self.flows.get(&flow).map_or([0; 2], |flow| [0, 1].map(|at| flow.ways[at].came.len() as u64))
    }

    /// The address by which the server knows the flow, if it does.
    pub fn mapping(&self, flow: u32) -> Option<SocketAddr> {
        self.flows.get(&flow)?.mapping
    }

    /// What the box says of a flow of datagrams: how many it has processed to the client and to the server, and which address it has given it. `seen` is what [`Ledger::came`] said
    /// *before* the box was asked: what had come by then had been released, and what was released must not be forgotten.
    pub fn compare(&mut self, flow: u32, seen: [u64; 2], counted: [u64; 2], mapping: SocketAddr) {
        let Some(known) = self.flows.get(&flow) else { return };
        let sent = [0, 1].map(|at| known.ways[at].sent.iter().map(|times| u64::from(*times)).sum::<u64>());
        for at in [End::Client, End::Server] {
            let (seen, counted, sent) = (seen[at as usize], counted[at as usize], sent[at as usize]);
            if counted < seen {
                self.note(Wrong::CountForgotten { flow, at, seen, counted });
            }
            if counted > sent {
                self.note(Wrong::CountInvented { flow, at, sent, counted });
            }
        }
        self.compare_mapping(flow, mapping);
    }

    /// How many bytes of a stream have come, at the client and at the server.
    pub fn stream_came(&self, flow: u32) -> [u64; 2] {
        self.flows.get(&flow).map_or([0; 2], |flow| [0, 1].map(|at| flow.streams[at].came))
    }

    /// Which address the box says that it has given to a flow.
    pub fn compare_mapping(&mut self, flow: u32, said: SocketAddr) {
        if let Some(seen) = self.mapping(flow).filter(|seen| *seen != said) {
            self.note(Wrong::MappingMisreported { flow, seen, said });
        }
    }

    /// The sum, while the traffic goes on.
    pub fn sum(&self) -> Sum {
        let mut sum = Sum { flows: self.mappings.len(), ..Sum::default() };
        for flow in self.flows.values() {
            for way in &flow.ways {
                sum.sent += way.sent.iter().map(|times| u64::from(*times)).sum::<u64>();
                sum.came += way.came.len() as u64;
                let is_missing = |(number, times): &(u64, &u32)| **times > 0 && !way.came.contains_key(number);
                sum.missing += (0..).zip(&way.sent).filter(is_missing).count() as u64;
            }
            for stream in flow.streams.iter().filter(|stream| stream.is_over && stream.sent == Some(stream.came)) {
                sum.streams += 1;
                sum.bytes += stream.came;
            }
        }
        sum
    }

    /// What was wrong so far.
    pub fn wrong(&self) -> &[Wrong] {
        &self.wrong
    }

    /// The traffic has ended: the book is closed.
    ///
    /// # Errors
    /// What does not balance.
    pub fn close(mut self) -> Result<Sum> {
        self.note_cut();
        self.refuse(&self.wrong)?;
        Ok(self.sum())
    }

    fn note_cut(&mut self) {
        let cut: Vec<Wrong> = self.flows.iter().filter(|(_, of)| of.is_stream).flat_map(|(flow, of)| of.cut(*flow)).collect();
        cut.into_iter().for_each(|wrong| self.note(wrong));
    }

    fn refuse(&self, wrong: &[Wrong]) -> Result<()> {
        let found: Vec<String> = wrong.iter().take(SHOWN).map(Wrong::to_string).collect();
        let more = self.more + wrong.len() - found.len();
        ensure!(found.is_empty() && more == 0, "{:?}\n{}\nand {more} more", self.sum(), found.join("\n"));
        Ok(())
    }

    /// The traffic has ended, through a box that has lost flows: those of which the book says so, each with
    /// the first finding that shows it. A connection that is lost breaks; the next datagram of a lost flow
    /// begins another flow. A mapping shared with a lost flow, or a count forgotten of it, is no other loss.
    ///
    /// # Errors
    /// A finding that not even a lost flow explains: a connection never comes from another address, nothing
    /// comes twice or altered, and every connection is opened in the end.
    pub fn close_with_losses(mut self) -> Result<BTreeMap<u32, Wrong>> {
        self.note_cut();
        let is_stream = |flow: &u32| self.flows.get(flow).is_some_and(|flow| flow.is_stream);
        let mut lost = BTreeMap::new();
        for wrong in &self.wrong {
            match wrong {
                Wrong::MappingChanged { flow, .. } | Wrong::MappingMisreported { flow, .. } if !is_stream(flow) => {
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
            Wrong::MappingChanged { flow, .. } | Wrong::MappingMisreported { flow, .. } => !is_stream(flow),
            Wrong::CountForgotten { flow, .. } => lost.contains_key(flow) && !is_stream(flow),
            Wrong::StreamBroken { cause, .. } => !cause.starts_with(CONNECTING),
            Wrong::StreamCut { flow, .. } => lost.contains_key(flow),
            _ => false,
        };
        let unexplained: Vec<Wrong> = self.wrong.iter().filter(|wrong| !is_explained(wrong)).cloned().collect();
        self.refuse(&unexplained)?;
        Ok(lost)
    }
}

/// How the cause begins for which a connection broke that was never opened.
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

/// What a datagram to this end says: its flow, its number, and more of a length and with bytes that follow from these.
pub fn content(flow: u32, to: End, number: u64) -> Vec<u8> {
    let seed = mix(u64::from(flow) << 1 | to as u64) ^ number;
    let mut bytes = [&flow.to_be_bytes()[..], &number.to_be_bytes()].concat();
    bytes.extend((0..24 + mix(seed) % 600).map(|at| mix(seed ^ at << 32) as u8));
    bytes
}

/// Flow and number of a datagram, as it says itself.
pub fn heading(bytes: &[u8]) -> Option<(u32, u64)> {
    let (flow, rest) = bytes.split_first_chunk::<4>()?;
    let (number, _) = rest.split_first_chunk::<8>()?;
    Some((u32::from_be_bytes(*flow), u64::from_be_bytes(*number)))
}

/// A byte of a stream.
pub fn stream_byte(flow: u32, to: End, offset: u64) -> u8 {
    (mix(u64::from(flow) << 1 | to as u64).wrapping_add(offset / 8 * 0x9e37) >> (offset % 8 * 8)) as u8 ^ (offset >> 8) as u8
}

/// 64-bit FNV-1a.
pub fn digest_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
