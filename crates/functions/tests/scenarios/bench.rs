//! A chain on a bench: flows in a list, shared state granted on request, time set by the
//! test. The bench does with a chain what a runtime's lane does, and no more.

use crate::{reading, words};
use holdfast_functions::catalog;
use holdfast_nf::shared::{Note, PoolEffect, SharedField};
use holdfast_nf::{Chain, Context, Direction, Function, Outcome, Position, Standing};
use holdfast_wire::header::{icmp, icmpv6};
use holdfast_wire::zone::Zones;
use holdfast_wire::{DropReason, FlowKey, MemoryPool, Network, Packet, PacketPool};
use serde_json::Value;
use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Once;

const SECOND: u64 = 1_000_000_000;
/// Lifetime of a flow for which no function gives one, ns.
const DEFAULT_LIFETIME: u64 = 300 * SECOND;

thread_local! {
    /// True while this thread's panics are expected and not printed.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Plays a scenario silently. The error has the message of the expectation that failed.
pub(crate) fn holds(scenario: fn()) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                usual(info);
            }
        }));
    });
    IS_QUIET.set(true);
    let outcome = std::panic::catch_unwind(scenario);
    IS_QUIET.set(false);
    let text = |said: Box<dyn Any + Send>| match said.downcast::<String>() {
        Ok(text) => *text,
        Err(said) => said.downcast_ref::<&str>().copied().unwrap_or_default().to_owned(),
    };
    outcome.map_err(text)
}

/// A chain's block is aligned to 16 bytes.
#[derive(Clone)]
#[repr(align(16))]
struct Block([u8; 1024]);

#[derive(Clone)]
struct Flow {
    key: FlowKey,
    reply: FlowKey,
    block: Block,
    expires_at: u64,
}

/// A record of all flows.
#[derive(Clone)]
pub(crate) struct Remembered(Vec<Flow>);

/// A chain and its flows, as the module's head says.
pub(crate) struct Bench {
    chain: Chain,
    /// The values that functions show of flows: function and name.
    names: Vec<(&'static str, &'static str)>,
    packets: MemoryPool,
    cx: Context,
    flows: Vec<Flow>,
    /// The flow keys of first fragments, by addresses and protocol.
    fragments: HashMap<(Vec<u8>, u8), FlowKey>,
    next_block: u32,
    /// Grants no numbers to pools.
    pub(crate) is_poor: bool,
    /// Stamped time, ns.
    pub(crate) now: u64,
    /// The port of the box at which packets come in.
    pub(crate) ingress: u8,
    /// True if the latest packet would come out differently when processed again.
    pub(crate) nondeterministic: bool,
    /// True if the sender of the latest packet must be told that it was dropped.
    is_rejected: bool,
    /// The functions' explanations of the latest packet.
    pub(crate) explained: Vec<String>,
}

/// A frame's addresses and protocol: the same in all fragments of a datagram.
fn datagram(packet: &Packet) -> (Vec<u8>, u8) {
    let l3 = packet.layers.l3 as usize;
    let range =
        if packet.layers.network == Network::V4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
    (packet.bytes()[range].to_vec(), packet.layers.protocol)
}

fn is_icmp_error(packet: &Packet) -> bool {
    packet.icmp().is_some_and(|header| match packet.layers.network {
        Network::V6 => icmpv6::is_error(header.kind),
        _ => icmp::is_error(header.kind),
    })
}

impl Bench {
    /// A chain of functions with their configurations.
    pub(crate) fn new(functions: &[(&str, Value)]) -> Bench {
        Bench::on(&Zones::default(), functions)
    }

    /// Like `new`, in a box whose ports have names.
    pub(crate) fn on(zones: &Zones, functions: &[(&str, Value)]) -> Bench {
        let configured = |(name, config): &(&str, Value)| {
            catalog::configured(name, config, zones)
                .unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let functions: Vec<_> = functions.iter().map(configured).collect();
        let names = functions
            .iter()
            .flat_map(|function| function.values().iter().map(|name| (function.name(), *name)));
        let chain = Chain::new(functions.iter().map(|function| function.bind()).collect());
        Bench { names: names.collect(), ..Bench::of(chain) }
    }

    /// A chain of any functions.
    pub(crate) fn of(chain: Chain) -> Bench {
        assert!(chain.layout().size <= size_of::<Block>());
        Bench {
            chain,
            names: Vec::new(),
            packets: MemoryPool::new(1),
            cx: Context::new(1),
            flows: Vec::new(),
            fragments: HashMap::new(),
            next_block: 0,
            is_poor: false,
            now: SECOND,
            ingress: 0,
            nondeterministic: false,
            is_rejected: false,
            explained: Vec::new(),
        }
    }

    /// Grants every block that a pool asks for, until there are no more.
    fn serve_pools(&mut self) {
        let (next_block, is_poor) = (&mut self.next_block, self.is_poor);
        for function in self.chain.functions_mut() {
            function.shared().visit(&mut |_, field| {
                let SharedField::Pool(pool) = field else { return };
                let blocks = pool.size().div_ceil(holdfast_nf::shared::BLOCK_LEN);
                while let Some(effect) = pool.backend().poll_effect() {
                    match effect {
                        PoolEffect::WantBlock if *next_block < blocks && !is_poor => {
                            pool.backend().grant_block(*next_block, &[0; 4]);
                            *next_block += 1;
                        }
                        PoolEffect::WantBlock => pool.backend().deny(),
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
        let size = self.chain.layout().size;
        let mut position = if opening { Position::OPENING } else { Position::START };
        for _ in 0..4 {
            let explained = &mut self.explained;
            let explain = |function: &dyn Function, packet: &Packet, state: &[u8]| {
                explained.extend(opening.then(|| function.explain(packet, None)));
                explained.push(function.explain(packet, Some(state)));
            };
            match self.chain.run_observed(
                packet,
                &mut block.0[..size],
                position,
                &mut self.cx,
                explain,
            ) {
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
        self.is_rejected = false;
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
            None if is_icmp_error(packet) => return Err(DropReason::StateInvalid),
            None => (self.flows.len(), Direction::Forward),
        };
        let mut flow = match found {
            Some(_) => self.flows[at].clone(),
            None => Flow {
                key,
                reply: FlowKey::default(),
                block: Block([0; 1024]),
                expires_at: self.now + DEFAULT_LIFETIME,
            },
        };
        self.cx.begin(self.now, key, direction);
        let outcome = self.run(packet, &mut flow.block, found.is_none());
        self.nondeterministic = self.cx.is_nondeterministic();
        if self.cx.lifetime() > 0 {
            let wish = self.now + self.cx.lifetime();
            let is_first_wish = found.is_none();
            flow.expires_at =
                if self.cx.is_ending() || is_first_wish { wish } else { flow.expires_at.max(wish) };
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
                let reply = FlowKey::of(packet)
                    .expect("what opened a flow has a key when it leaves")
                    .reverse();
                if reply == key || self.find(&reply).is_some() {
                    let size = self.chain.layout().size;
                    self.chain.expire(&mut flow.block.0[..size]);
                    return Err(DropReason::FlowTableFull);
                }
                flow.reply = reply;
                self.flows.push(flow);
            }
        }
        result
    }

    /// Sends a frame into the chain. Returns the frame that comes out, or the reason of
    /// the drop. An independent parser reads the frame and checks its checksums.
    pub(crate) fn send_frame(&mut self, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
        let out = self.send_unchecked(frame)?;
        if let Err(wrong) = reading::check(&out) {
            panic!("{:?} left with a wrong checksum: {wrong}", reading::ends(&out));
        }
        Ok(out)
    }

    /// Like [`Bench::send_frame`], for frames that come in damaged.
    pub(crate) fn send_unchecked(&mut self, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
        let mut packet = self.packets.take().expect("the one buffer is back");
        assert!(packet.copy_from(frame), "the frame fits a buffer");
        packet.meta.ingress = self.ingress;
        let result = self.process(&mut packet).map(|()| packet.bytes().to_vec());
        self.packets.put(packet);
        result
    }

    /// Sends a packet in words.
    pub(crate) fn send(&mut self, packet: &str) -> Result<Vec<u8>, DropReason> {
        self.send_frame(&words::frame(packet))
    }

    /// Sends a packet that must come out. Returns its source and destination afterwards.
    #[track_caller]
    pub(crate) fn passes(&mut self, packet: &str) -> (SocketAddr, SocketAddr) {
        match self.send(packet) {
            Ok(frame) => reading::ends(&frame),
            Err(reason) => panic!("`{packet}` was dropped: {reason}"),
        }
    }

    /// Sends a packet that must come out as another, byte for byte.
    #[track_caller]
    pub(crate) fn becomes(&mut self, packet: &str, expected: &str) {
        let out =
            self.send(packet).unwrap_or_else(|reason| panic!("`{packet}` was dropped: {reason}"));
        let wanted = words::frame(expected);
        if out != wanted {
            panic!(
                "`{packet}` should become `{expected}`\n  is     {out:02x?}\n  should {wanted:02x?}\n  {:?}",
                reading::ends(&out)
            );
        }
    }

    /// Sends a packet that must come out as it came.
    #[track_caller]
    pub(crate) fn unchanged(&mut self, packet: &str) {
        self.becomes(packet, packet);
    }

    /// Sends a packet that must be dropped for this reason.
    #[track_caller]
    pub(crate) fn drops(&mut self, packet: &str, reason: DropReason) {
        match self.send(packet) {
            Ok(out) => panic!(
                "`{packet}` came out as {:?}, and should have been dropped: {reason}",
                reading::ends(&out)
            ),
            Err(other) => assert_eq!((other, self.is_rejected), (reason, false), "`{packet}`"),
        }
    }

    /// Like `drops`; the sender must be told.
    #[track_caller]
    pub(crate) fn rejects(&mut self, packet: &str, reason: DropReason) {
        match self.send(packet) {
            Ok(out) => panic!(
                "`{packet}` came out as {:?}, and should have been rejected: {reason}",
                reading::ends(&out)
            ),
            Err(other) => assert_eq!((other, self.is_rejected), (reason, true), "`{packet}`"),
        }
    }

    /// Lets time pass, and ends flows whose lifetime is over.
    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now += seconds * SECOND;
        let size = self.chain.layout().size;
        let mut at = 0;
        while at < self.flows.len() {
            if self.flows[at].expires_at <= self.now {
                let mut flow = self.flows.remove(at);
                self.chain.expire(&mut flow.block.0[..size]);
            } else {
                at += 1;
            }
        }
    }

    /// The number of live flows.
    pub(crate) fn flows(&self) -> usize {
        self.flows.len()
    }

    /// The standing of the latest packet's flow, as functions have set it with that
    /// packet.
    pub(crate) fn standing(&self) -> Option<Standing> {
        self.cx.standing()
    }

    /// The word for the latest flow's state.
    pub(crate) fn state(&self) -> &'static str {
        let flow = self.flows.last().expect("a flow");
        self.chain.describe(&flow.block.0[..self.chain.layout().size])
    }

    /// The latest flow's values: function, name, value.
    pub(crate) fn values(&self) -> Vec<(&'static str, &'static str, Option<u64>)> {
        let flow = self.flows.last().expect("a flow");
        let values = self.chain.values(&flow.block.0[..self.chain.layout().size]);
        self.names
            .iter()
            .zip(values)
            .map(|(&(function, name), value)| (function, name, value))
            .collect()
    }

    /// A value of the latest flow.
    pub(crate) fn value(&self, function: &str, name: &str) -> Option<u64> {
        let values = self.values();
        let found = values.iter().find(|(of, known, _)| (*of, *known) == (function, name));
        found.unwrap_or_else(|| panic!("{function} shows no `{name}`")).2
    }

    /// Lowest and highest sequence number that the latest flow's receivers expect,
    /// forward and reverse.
    pub(crate) fn expected(&self) -> [Option<(u32, u32)>; 2] {
        let flow = self.flows.last().expect("a flow");
        let block = &flow.block.0[..self.chain.layout().size];
        let of = |direction| {
            self.chain.expected(block, direction).map(|expected| (expected.least, expected.most))
        };
        [Direction::Forward, Direction::Reverse].map(of)
    }

    /// Records the flows as they are now, for a later set-back.
    pub(crate) fn remember(&self) -> Remembered {
        Remembered(self.flows.clone())
    }

    /// Sets the flows back to a record from at most `packets` packets ago, like a weak
    /// protection.
    pub(crate) fn set_back(&mut self, Remembered(flows): Remembered, packets: u32) {
        self.flows = flows;
        let size = self.chain.layout().size;
        for flow in &mut self.flows {
            self.chain.outdated(&mut flow.block.0[..size], packets);
        }
    }

    /// Overwrites bytes of the latest flow's state, from byte `at` on.
    pub(crate) fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        let size = self.chain.layout().size;
        let flow = self.flows.last_mut().expect("a flow");
        let state = &mut flow.block.0[at..size];
        let len = state.len().min(bytes.len());
        state[..len].copy_from_slice(&bytes[..len]);
    }

    /// Takes over all flows of `other`, which no longer has them: it has failed, or the
    /// flows move.
    pub(crate) fn takes_over(&mut self, other: &mut Bench, is_alive: bool) {
        let size = self.chain.layout().size;
        for mut flow in core::mem::take(&mut other.flows) {
            self.chain.adopt(&mut flow.block.0[..size]);
            if is_alive {
                other.chain.forget(&mut flow.block.0[..size]);
            }
            self.flows.push(flow);
        }
        self.now = self.now.max(other.now);
    }

    /// Loses the latest flow, with the state that only it had: all other flows name their
    /// holdings.
    pub(crate) fn loses_one(&mut self) {
        let size = self.chain.layout().size;
        self.flows.pop().expect("a flow");
        let flows = &mut self.flows;
        self.chain.recount(|adopt| {
            flows.iter_mut().for_each(|flow| adopt(&mut flow.block.0[..size], None))
        });
    }

    /// The numbers that flows hold of each pool, and the flows in each item of each
    /// gauge.
    pub(crate) fn books(&mut self) -> Vec<Vec<i64>> {
        let mut books = Vec::new();
        for function in self.chain.functions_mut() {
            function.shared().visit(&mut |_, field| match field {
                SharedField::Pool(pool) => {
                    let (size, backend) = (pool.size(), pool.backend());
                    books.push(
                        (0..size)
                            .filter(|number| backend.is_held(*number))
                            .map(i64::from)
                            .collect(),
                    );
                }
                SharedField::Gauge(part) => books.push(part.own().to_vec()),
                _ => {}
            });
        }
        books
    }

    /// The effects of the pools, in order.
    pub(crate) fn effects(&mut self) -> Vec<PoolEffect> {
        let mut effects = Vec::new();
        for function in self.chain.functions_mut() {
            function.shared().visit(&mut |_, field| {
                if let SharedField::Pool(pool) = field {
                    effects.extend(core::iter::from_fn(|| pool.backend().poll_effect()));
                }
            });
        }
        effects
    }

    /// Numbers that pools could lease now, over all functions.
    pub(crate) fn free_ports(&mut self) -> u32 {
        let mut free = 0;
        for function in self.chain.functions_mut() {
            function.shared().visit(&mut |_, field| {
                if let SharedField::Pool(pool) = field {
                    free += pool.backend().available();
                }
            });
        }
        free
    }

    /// Values of the first gauge.
    pub(crate) fn gauge(&mut self) -> Vec<i64> {
        let mut values = Vec::new();
        for function in self.chain.functions_mut() {
            function.shared().visit(&mut |_, field| {
                if let SharedField::Gauge(gauge) = field {
                    values = gauge.own().to_vec();
                }
            });
        }
        values
    }

    /// The log entries of functions: the rule, the port, and the packet's addresses, or
    /// these and the text.
    pub(crate) fn logged(&mut self) -> Vec<String> {
        let text = |note: &Note| match note.text.is_empty() {
            true => format!("{} {} {}", note.about, note.ingress, note.key),
            false => format!("{} {}", note.key, String::from_utf8_lossy(&note.text)),
        };
        self.notes().iter().map(text).collect()
    }

    /// The log entries of functions.
    pub(crate) fn notes(&mut self) -> Vec<Note> {
        let mut notes = Vec::new();
        for function in self.chain.functions_mut() {
            function.shared().visit(&mut |_, field| {
                if let SharedField::Log(log) = field {
                    notes.extend(log.take());
                }
            });
        }
        notes
    }

    /// True if the sender of the latest packet must be told that it was dropped.
    pub(crate) fn has_told(&self) -> bool {
        self.is_rejected
    }

    /// All counters that are not 0, with their names.
    pub(crate) fn counters(&mut self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        for function in self.chain.functions_mut() {
            function.shared().visit(&mut |_, field| {
                if let SharedField::Counters(counters) = field {
                    let counts = counters.report().filter(|(_, count)| *count > 0);
                    all.extend(counts.map(|(name, count)| (name.to_owned(), count)));
                }
            });
        }
        all
    }

    /// Counters by name.
    pub(crate) fn counter(&mut self, name: &str) -> u64 {
        let mut value = None;
        for function in self.chain.functions_mut() {
            function.shared().visit(&mut |_, field| {
                if let SharedField::Counters(counters) = field {
                    value = counters
                        .report()
                        .find(|(other, _)| *other == name)
                        .map(|(_, value)| value)
                        .or(value);
                }
            });
        }
        value.unwrap_or_else(|| panic!("there is no counter `{name}`"))
    }
}
