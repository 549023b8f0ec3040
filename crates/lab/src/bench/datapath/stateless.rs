//! The comparison for `rescue`: functions that keep no state. Every flow's state, and
//! every number that flows share, is fetched from a store and written back before the
//! packet leaves (stateless network functions, after Kablan and others, with a Redis).
//!
//! A single command fetches a burst's states and another writes them; each number takes a
//! command of its own. Flows never expire, which is in this case's favour.

use super::runtime::{Runs, Sink, ToRuntime};
use super::{BURST, PlaysOnce};
use crate::bench::redis::Redis;
use holdfast_nf::shared::{BlockMask, Lease, PoolBackend, PoolEffect};
use holdfast_nf::{Chain, Context, Direction, Outcome, Position, SharedField};
use holdfast_wire::{FlowKey, MemoryPool, Packet, PacketPool, nsh};
use redis::Connection;
use std::collections::HashMap;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// First byte of a value: it contains a flow's state, or, for a reply's key, the key of
/// its flow.
const STATE: u8 = 0;
const REPLY: u8 = 1;

/// Aligned as functions require.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(16))]
struct Line([u8; 16]);

/// A flow of a burst.
struct Fetched {
    key: FlowKey,
    block: Vec<Line>,
    is_there: bool,
    reply: Option<FlowKey>,
}

/// Functions whose state is in a Redis, as the module's head says.
pub(in crate::bench) struct Stateless<const L: usize> {
    chain: Chain,
    connection: Connection,
    pool: MemoryPool,
    input: ToRuntime<L>,
    sink: Sink<L>,
    rx: Vec<Packet>,
    cx: Context,
    taken: u64,
    refused: Option<String>,
}

impl<const L: usize> Runs<L> for Stateless<L> {
    fn burst(&mut self, count: usize) -> usize {
        self.input.set_time(self.sink.now());
        self.input.receive(count, &mut self.pool, &mut self.rx);
        let taken = self.rx.len();
        if let Err(error) = self.turn() {
            self.refused.get_or_insert(error);
        }
        taken
    }

    fn input(&mut self) -> &mut ToRuntime<L> {
        &mut self.input
    }

    fn sink(&mut self) -> &mut Sink<L> {
        &mut self.sink
    }

    fn set_due(&mut self, due: u64) {
        self.input.due = due;
    }

    fn drain(&mut self) -> Result<(), String> {
        match (self.refused.take(), self.taken - self.sink.released) {
            (Some(error), _) => Err(error),
            (None, 0) => Ok(()),
            (None, lost) => Err(format!("{lost} packets did not come out")),
        }
    }
}

impl<const L: usize> PlaysOnce<L> for Stateless<L> {
    fn play_once(&mut self, frames: &[[u8; L]], flags: u8) -> Result<Vec<[u8; L]>, String> {
        self.sink.kept = Some(Vec::with_capacity(frames.len()));
        for (first, chunk) in (0..).step_by(BURST).zip(frames.chunks(BURST)) {
            self.input.once(Some(first), chunk, flags, &mut self.pool, &mut self.rx)?;
            self.turn()?;
        }
        self.sink.kept.take().ok_or_else(|| "nothing was kept".to_owned())
    }
}

impl<const L: usize> Stateless<L> {
    /// Empties the store, and fills it with every number of the chain's pools.
    pub(in crate::bench) fn new(mut chain: Chain, store: &Redis) -> Result<Stateless<L>, String> {
        let refused = |error: redis::RedisError| error.to_string();
        let mut connection = store.connect()?;
        redis::cmd("FLUSHALL").exec(&mut connection).map_err(refused)?;
        let mut outcome = Ok(());
        for (number, function) in chain.functions_mut().iter_mut().enumerate() {
            function.shared().visit(&mut |field, shared| {
                let SharedField::Pool(pool) = shared else { return };
                let all: Vec<u32> = (0..pool.size()).collect();
                let mut put = |some: &[u32]| {
                    redis::cmd("RPUSH").arg(name(number, field)).arg(some).exec(&mut connection)
                };
                if let Err(error) = all.chunks(10_000).try_for_each(&mut put) {
                    outcome = Err(error);
                }
            });
        }
        outcome.map_err(refused)?;
        Stateless::join(chain, store, true)
    }

    /// Adds an instance beside others. Without synchronisation it reads the first free
    /// number, and then takes it away: two commands, between which other instances do the
    /// same.
    pub(in crate::bench) fn join(
        mut chain: Chain,
        store: &Redis,
        is_synchronised: bool,
    ) -> Result<Stateless<L>, String> {
        let connection = store.connect()?;
        let mut outcome = Ok(());
        for (number, function) in chain.functions_mut().iter_mut().enumerate() {
            function.shared().visit(&mut |field, shared| {
                let SharedField::Pool(pool) = shared else { return };
                match store.connect() {
                    Ok(connection) => {
                        pool.attach(Box::new(Numbers {
                            connection,
                            name: name(number, field),
                            is_synchronised,
                            held: 0,
                        }));
                    }
                    Err(error) => outcome = Err(error),
                }
            });
        }
        outcome?;
        Ok(Stateless {
            chain,
            connection,
            pool: MemoryPool::new(1024),
            input: ToRuntime::new(),
            sink: Sink::new(),
            rx: Vec::with_capacity(BURST),
            cx: Context::new(super::runtime::SEED),
            taken: 0,
            refused: None,
        })
    }

    fn turn(&mut self) -> Result<(), String> {
        let mut packets = core::mem::take(&mut self.rx);
        self.taken += packets.len() as u64;
        let done = self.process(&mut packets);
        packets.drain(..).for_each(|packet| self.pool.put(packet));
        self.rx = packets;
        done
    }

    /// Processes packets; forwarded packets leave after the changed states are written
    /// back. After an error some packets remain.
    fn process(&mut self, packets: &mut Vec<Packet>) -> Result<(), String> {
        if packets.is_empty() {
            return Ok(());
        }
        let mut keys = Vec::with_capacity(packets.len());
        for packet in packets.iter_mut() {
            nsh::decapsulate(packet).ok_or("a packet is not encapsulated")?;
            let is_right = packet.parse().is_ok();
            keys.push(FlowKey::of(packet).filter(|_| is_right).ok_or("a packet has no flow")?);
        }
        let (mut flows, at) = self.fetch(&keys)?;
        let mut passed = Vec::with_capacity(packets.len());
        for ((packet, key), at) in packets.iter_mut().zip(&keys).zip(at) {
            let flow = &mut flows[at];
            let direction = if flow.key == *key { Direction::Forward } else { Direction::Reverse };
            let position = if flow.is_there { Position::START } else { Position::OPENING };
            self.cx.begin(packet.meta.stamp, *key, direction);
            let block = &mut flow.block.as_mut_bytes()[..self.chain.layout().size];
            let passes = self.chain.run(packet, block, position, &mut self.cx) == Outcome::Forward;
            if passes && !flow.is_there {
                flow.is_there = true;
                flow.reply = FlowKey::of(packet).map(|key| key.reverse());
            }
            passed.push(passes);
        }
        self.write_back(&flows)?;
        let (sink, pool) = (&mut self.sink, &mut self.pool);
        for (packet, passes) in packets.drain(..).zip(passed) {
            if passes {
                sink.note(packet.bytes());
            }
            pool.put(packet);
        }
        Ok(())
    }

    /// Fetches each key's flow. Returns the flows, and the index of each key's flow.
    fn fetch(&mut self, keys: &[FlowKey]) -> Result<(Vec<Fetched>, Vec<usize>), String> {
        let lines = self.chain.layout().size.div_ceil(size_of::<Line>());
        let mut flows: Vec<Fetched> = Vec::new();
        let mut known: HashMap<FlowKey, usize> = HashMap::new();
        let mut found = self.get(keys)?;
        // The keys of replies' flows are found first.
        let of_flows: Vec<FlowKey> =
            found.iter().filter_map(|value| flow_of(value.as_deref()?)).collect();
        let mut states =
            if of_flows.is_empty() { Vec::new() } else { self.get(&of_flows)? }.into_iter();
        let mut of_flows = of_flows.into_iter();
        let mut at = Vec::with_capacity(keys.len());
        for (key, value) in keys.iter().zip(&mut found) {
            let mut key = *key;
            if value.as_deref().and_then(flow_of).is_some() {
                key = of_flows.next().ok_or("a reply has no flow")?;
                *value = states.next().ok_or("a flow has no state")?;
            }
            at.push(*known.entry(key).or_insert_with(|| {
                let mut block = vec![Line([0; 16]); lines];
                let state = value.as_deref().and_then(|value| value.strip_prefix(&[STATE]));
                if let Some(state) = state {
                    block.as_mut_bytes()[..state.len()].copy_from_slice(state);
                }
                flows.push(Fetched { key, block, is_there: state.is_some(), reply: None });
                flows.len() - 1
            }));
        }
        Ok((flows, at))
    }

    fn get(&mut self, keys: &[FlowKey]) -> Result<Vec<Option<Vec<u8>>>, String> {
        let mut command = redis::cmd("MGET");
        keys.iter().for_each(|key| _ = command.arg(key.as_bytes()));
        command.query(&mut self.connection).map_err(|error| error.to_string())
    }

    fn write_back(&mut self, flows: &[Fetched]) -> Result<(), String> {
        let mut command = redis::cmd("MSET");
        let mut value = Vec::new();
        let mut is_empty = true;
        for flow in flows.iter().filter(|flow| flow.is_there) {
            is_empty = false;
            value.clear();
            value.push(STATE);
            value.extend_from_slice(&flow.block.as_bytes()[..self.chain.layout().size]);
            command.arg(flow.key.as_bytes()).arg(&value[..]);
            if let Some(reply) = &flow.reply {
                value.clear();
                value.push(REPLY);
                value.extend_from_slice(flow.key.as_bytes());
                command.arg(reply.as_bytes()).arg(&value[..]);
            }
        }
        if is_empty {
            return Ok(());
        }
        command.exec(&mut self.connection).map_err(|error| error.to_string())
    }
}

/// The name of the list of a pool's free numbers.
fn name(function: usize, field: &str) -> String {
    format!("pool {function} {field}")
}

/// The flow key in a value, if the value is a reply's.
fn flow_of(value: &[u8]) -> Option<FlowKey> {
    FlowKey::read_from_bytes(value.strip_prefix(&[REPLY])?).ok()
}

/// A pool whose free numbers are a list in the store.
struct Numbers {
    connection: Connection,
    name: String,
    is_synchronised: bool,
    held: u32,
}

impl Numbers {
    fn take(&mut self) -> redis::RedisResult<Option<u32>> {
        if self.is_synchronised {
            return redis::cmd("LPOP").arg(&self.name).query(&mut self.connection);
        }
        let number = redis::cmd("LINDEX").arg(&self.name).arg(0).query(&mut self.connection)?;
        redis::cmd("LTRIM").arg(&self.name).arg(1).arg(-1).exec(&mut self.connection)?;
        Ok(number)
    }
}

impl PoolBackend for Numbers {
    fn lease(&mut self, _preferred: &Range<u32>, _random: Option<u64>) -> Lease {
        match self.take() {
            Ok(Some(number)) => {
                self.held += 1;
                Lease::Granted(number)
            }
            _ => Lease::Exhausted,
        }
    }

    fn give_back(&mut self, number: u32) {
        self.held -= 1;
        // A missing store shows when the next number is requested.
        let _ = redis::cmd("RPUSH").arg(&self.name).arg(number).exec(&mut self.connection);
    }

    fn adopt(&mut self, _number: u32) {}

    fn forget(&mut self, _number: u32) {}

    fn grant_block(&mut self, _block: u32, _used: &BlockMask) {}

    fn assign(&mut self, _number: u32) {}

    fn deny(&mut self) {}

    fn returned(&mut self, _number: u32) -> bool {
        false
    }

    fn taken(&mut self, _number: u32) {}

    fn spare(&mut self) {}

    fn poll_effect(&mut self) -> Option<PoolEffect> {
        None
    }

    fn available(&self) -> u32 {
        0
    }

    fn is_free(&self, _number: u32) -> bool {
        false
    }

    fn is_held(&self, _number: u32) -> bool {
        false
    }

    fn held(&self) -> u32 {
        self.held
    }

    fn granted(&self) -> u32 {
        self.held
    }
}
