//! A chain on a bench, for tests of functions: flows in a list, shared state granted on
//! request, time set by the test. The bench does with a chain what a runtime's lane does,
//! and no more.
//!
//! In: frames, as they come from a link. Out: frames, or the reasons of drops; then what
//! is left in flows and shared state. Never: a protection, a second process, a real
//! clock. A box does not contain it: only tests use it.

mod books;
mod flows;
pub mod frames;
mod holdings;

pub use books::{Books, Count};
pub use holdings::{LONG, check_holdings};

use crate::shared::{BLOCK_LEN, PoolEffect, SharedField};
use crate::{Chain, Context, Direction, Function, Outcome, Position, Standing};
use flows::{Block, Flow};
use holdfast_wire::{DropReason, FlowKey, MemoryPool, Network, Packet, PacketPool};
use std::collections::HashMap;

const SECOND: u64 = 1_000_000_000;
/// Lifetime of a flow for which no function gives one, ns.
const DEFAULT_LIFETIME: u64 = 300 * SECOND;

/// A record of all flows.
#[derive(Clone)]
pub struct Remembered(Vec<Flow>);

/// The flow of the latest packet, with its state before and after that packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// The flow's key.
    pub key: FlowKey,
    /// True if the packet was the flow's first.
    pub is_opening: bool,
    /// The chain's block before the packet.
    pub before: Vec<u8>,
    /// The chain's block after it.
    pub after: Vec<u8>,
}

/// A chain and its flows, see the module.
pub struct Bench {
    chain: Chain,
    packets: MemoryPool,
    cx: Context,
    flows: Vec<Flow>,
    /// The flow keys of first fragments, by addresses and protocol.
    fragments: HashMap<(Vec<u8>, u8), FlowKey>,
    /// Next block of each pool, by function and field.
    next_block: HashMap<(usize, &'static str), u32>,
    passage: Option<Passage>,
    /// Grants no numbers to pools.
    pub is_poor: bool,
    /// Stamped time, ns.
    pub now: u64,
    /// The port of the box at which packets come in.
    pub ingress: u8,
    /// The priority with which packets come in: PCP and DEI.
    pub priority: u8,
    /// True if the latest packet would come out differently when processed again.
    pub nondeterministic: bool,
    /// True if the sender of the latest packet must be told that it was dropped.
    is_rejected: bool,
    /// The functions' explanations of the latest packet.
    pub explained: Vec<String>,
}

/// A frame's addresses and protocol: the same in all fragments of a datagram.
fn datagram(packet: &Packet) -> (Vec<u8>, u8) {
    let l3 = packet.layers.l3 as usize;
    let range =
        if packet.layers.network == Network::V4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
    (packet.bytes()[range].to_vec(), packet.layers.protocol)
}

impl Bench {
    /// A chain of any functions.
    pub fn new(chain: Chain) -> Bench {
        Bench::seeded(chain, 1)
    }

    /// As [`Bench::new`], with a seed for [`Context::random`].
    pub fn seeded(chain: Chain, seed: u64) -> Bench {
        Bench {
            chain,
            packets: MemoryPool::new(1),
            cx: Context::new(seed),
            flows: Vec::new(),
            fragments: HashMap::new(),
            next_block: HashMap::new(),
            passage: None,
            is_poor: false,
            now: SECOND,
            ingress: 0,
            priority: 0,
            nondeterministic: false,
            is_rejected: false,
            explained: Vec::new(),
        }
    }

    /// Grants every block that a pool asks for, until there are no more.
    fn serve_pools(&mut self) {
        let (next_block, is_poor) = (&mut self.next_block, self.is_poor);
        for (at, function) in self.chain.functions_mut().iter_mut().enumerate() {
            function.shared().visit(&mut |name, field| {
                let SharedField::Pool(pool) = field else { return };
                let blocks = pool.size().div_ceil(BLOCK_LEN);
                let next_block = next_block.entry((at, name)).or_default();
                while let Some(effect) = pool.backend().poll_effect() {
                    match effect {
                        PoolEffect::WantBlock if *next_block < blocks && !is_poor => {
                            pool.backend().grant_block(*next_block, &[0; 4]);
                            *next_block += 1;
                        }
                        PoolEffect::WantBlock => pool.backend().deny(),
                        // Numbers of flows that have come from elsewhere.
                        PoolEffect::Adopted(_) | PoolEffect::Return(_) | PoolEffect::Left(_) => {}
                        other => panic!("nobody else has a number of this pool: {other:?}"),
                    }
                }
            });
        }
    }

    fn find(&self, key: &FlowKey) -> Option<(usize, Direction)> {
        self.flows.iter().enumerate().find_map(|(at, flow)| match key {
            key if flow.key == *key => Some((at, Direction::Forward)),
            key if flow.reply == *key => Some((at, Direction::Reverse)),
            _ => None,
        })
    }

    /// Runs the chain, and continues after a wait for shared state.
    fn run(&mut self, packet: &mut Packet, block: &mut Block, opening: bool) -> Outcome {
        let mut position = if opening { Position::OPENING } else { Position::START };
        for _ in 0..4 {
            let explained = &mut self.explained;
            let explain = |function: &dyn Function, packet: &Packet, state: &[u8]| {
                explained.extend(opening.then(|| function.explain(packet, None)));
                explained.push(function.explain(packet, Some(state)));
            };
            let bytes = block.bytes_mut();
            match self.chain.run_observed(packet, bytes, position, &mut self.cx, explain) {
                Outcome::Wait(at) => position = at,
                done => {
                    if let Outcome::Drop(_, function) | Outcome::Reject(_, function) = done {
                        explained.push(
                            self.chain.functions()[usize::from(function)].explain(packet, None),
                        );
                    }
                    explained.retain(|text| !text.is_empty());
                    return done;
                }
            }
            self.serve_pools();
        }
        panic!("the chain waits for what it has been given");
    }

    fn process(&mut self, packet: &mut Packet) -> Result<(), DropReason> {
        (self.is_rejected, self.nondeterministic, self.passage) = (false, false, None);
        self.explained.clear();
        packet.parse().map_err(DropReason::from)?;
        let is_later = packet.layers.fragment_offset != 0;
        let key = if is_later {
            self.fragments.get(&datagram(packet)).copied().ok_or(DropReason::FragmentUnknown)?
        } else {
            FlowKey::of(packet).ok_or(DropReason::StateInvalid)?
        };
        if packet.layers.fragment && !is_later {
            self.fragments.insert(datagram(packet), key);
        }
        self.now += 1;
        let found = self.find(&key);
        let (at, direction) = match found {
            Some(found) => found,
            None if packet.is_icmp_error() => return Err(DropReason::StateInvalid),
            None => (self.flows.len(), Direction::Forward),
        };
        let mut flow = match found {
            Some(_) => self.flows[at].clone(),
            None => Flow {
                key,
                reply: FlowKey::default(),
                block: Block::new(self.chain.layout().size),
                expires_at: self.now + DEFAULT_LIFETIME,
            },
        };
        self.cx.begin(self.now, key, direction);
        let before = flow.block.bytes().to_vec();
        let outcome = self.run(packet, &mut flow.block, found.is_none());
        self.nondeterministic = self.cx.is_nondeterministic();
        let after = flow.block.bytes().to_vec();
        let is_opening = found.is_none();
        self.passage = Some(Passage { key: flow.key, is_opening, before, after });
        if self.cx.lifetime() > 0 {
            let wish = self.now + self.cx.lifetime();
            flow.expires_at =
                if self.cx.is_ending() || is_opening { wish } else { flow.expires_at.max(wish) };
        }
        self.is_rejected = matches!(outcome, Outcome::Reject(..));
        let result = match outcome {
            Outcome::Forward => Ok(()),
            Outcome::Drop(reason, _) | Outcome::Reject(reason, _) => Err(reason),
            Outcome::Wait(_) => unreachable!("run goes on"),
        };
        match found {
            Some(_) => self.flows[at] = flow,
            None if result.is_err() => return result,
            None => {
                // A fragment that outlives its flow has no ports, and so no reply's key.
                let reply = FlowKey::of(packet).map(|key| key.reverse());
                let is_free = |reply: &FlowKey| *reply != key && self.find(reply).is_none();
                let Some(reply) = reply.filter(is_free) else {
                    self.chain.expire(flow.block.bytes_mut());
                    return Err(
                        reply.map_or(DropReason::FragmentUnknown, |_| DropReason::FlowTableFull)
                    );
                };
                flow.reply = reply;
                self.flows.push(flow);
            }
        }
        result
    }

    /// Sends a frame into the chain. Returns the frame that comes out, or the reason of
    /// the drop.
    ///
    /// # Errors
    /// The reason why a function, or the bench, dropped the packet.
    ///
    /// # Panics
    /// If the frame does not fit a buffer, or a function waits for ever.
    pub fn send(&mut self, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
        let mut packet = self.packets.take().expect("the one buffer is back");
        assert!(packet.copy_from(frame), "the frame fits a buffer");
        (packet.meta.ingress, packet.meta.priority) = (self.ingress, self.priority);
        let result = self.process(&mut packet).map(|()| packet.bytes().to_vec());
        self.packets.put(packet);
        result
    }

    /// Lets `ns` pass, and ends flows whose lifetime is over.
    pub fn wait(&mut self, ns: u64) {
        self.now += ns;
        let mut at = 0;
        while at < self.flows.len() {
            if self.flows[at].expires_at <= self.now {
                let mut flow = self.flows.remove(at);
                self.chain.expire(flow.block.bytes_mut());
            } else {
                at += 1;
            }
        }
    }

    /// The number of live flows.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// The flow of the latest packet. `None` if the packet had none.
    pub fn passage(&self) -> Option<&Passage> {
        self.passage.as_ref()
    }

    /// The standing of the latest packet's flow, as functions have set it with that
    /// packet.
    pub fn standing(&self) -> Option<Standing> {
        self.cx.standing()
    }

    /// True if the sender of the latest packet must be told that it was dropped.
    pub fn has_told(&self) -> bool {
        self.is_rejected
    }

    /// The word for the latest flow's state.
    pub fn state(&self) -> &'static str {
        self.flows.last().map_or("", |flow| self.chain.describe(flow.block.bytes()))
    }

    /// The latest flow's values: see [`Chain::values`].
    pub fn values(&self) -> Vec<Option<u64>> {
        self.flows.last().map_or(Vec::new(), |flow| self.chain.values(flow.block.bytes()))
    }

    /// Lowest and highest sequence number that the latest flow's receivers expect,
    /// forward and reverse.
    pub fn expected(&self) -> [Option<(u32, u32)>; 2] {
        let of = |direction| {
            let block = self.flows.last()?.block.bytes();
            let expected = self.chain.expected(block, direction)?;
            Some((expected.least, expected.most))
        };
        [Direction::Forward, Direction::Reverse].map(of)
    }
}
