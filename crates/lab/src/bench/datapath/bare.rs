//! The baseline of the datapath benchmark: a plain hash table from both keys to the
//! flow's state, and a loop.

use super::super::bench_box::grant_all;
use super::super::traffic::{FRAME_LEN, Player};
use super::{BURST, PlaysOnce};
use holdfast_nf::{Chain, Context, Direction, Outcome, Position};
use holdfast_protection::flows::{Found, KeyTable};
use holdfast_wire::{FlowKey, MemoryPool, Packet, PacketPool};

/// A cache line.
#[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Offset of a flow's state, behind its two keys.
const STATE_AT: usize = 2 * size_of::<FlowKey>();

/// A loop with a plain hash table. Each key is hashed once, and a burst's look-ups are
/// done in stages, so that their cache misses overlap.
pub(super) struct Bare {
    chain: Chain,
    table: KeyTable,
    flows: Vec<Line>,
    stride: usize,
    used: usize,
    cx: Context,
    pool: MemoryPool,
    pub(super) player: Player<FRAME_LEN>,
    packets: Vec<Packet>,
    keys: Vec<(FlowKey, u64)>,
    found: Vec<Option<Found>>,
    now: u64,
}

impl PlaysOnce<FRAME_LEN> for Bare {
    fn play_once(
        &mut self,
        frames: &[[u8; FRAME_LEN]],
        _flags: u8,
    ) -> Result<Vec<[u8; FRAME_LEN]>, String> {
        let mut out = Vec::with_capacity(frames.len());
        for chunk in frames.chunks(BURST) {
            let mut packets = Vec::with_capacity(BURST);
            for frame in chunk {
                let mut packet = self.pool.take().ok_or("no buffer left")?;
                if !packet.copy_from(frame) {
                    return Err("the frame does not fit".to_owned());
                }
                packets.push(packet);
            }
            self.process(&mut packets, |packet, passed| {
                if passed && let Ok(frame) = packet.bytes().try_into() {
                    out.push(frame);
                }
            });
        }
        Ok(out)
    }
}

impl Bare {
    pub(super) fn new(flows: usize, mut chain: Chain) -> Bare {
        for function in chain.functions_mut() {
            function.shared().visit(&mut |_, field| {
                if let holdfast_nf::SharedField::Pool(pool) = field {
                    grant_all(pool);
                }
            });
        }
        let stride = (STATE_AT + chain.layout().size).div_ceil(size_of::<Line>());
        Bare {
            table: KeyTable::new(flows * 2),
            flows: vec![Line([0; 64]); flows * stride],
            stride,
            used: 0,
            cx: Context::new(7),
            pool: MemoryPool::new(1024),
            player: Player::new(Vec::new()),
            packets: Vec::with_capacity(BURST),
            keys: Vec::with_capacity(BURST),
            found: Vec::with_capacity(BURST),
            now: 1,
            chain,
        }
    }

    pub(super) fn bytes_per_flow(&self) -> usize {
        self.stride * size_of::<Line>() + self.table.memory() / self.used.max(1)
    }

    fn flow(&self, slot: u32) -> &[u8] {
        let start = slot as usize * self.stride;
        zerocopy::IntoBytes::as_bytes(&self.flows[start..start + self.stride])
    }

    fn flow_mut(&mut self, slot: u32) -> &mut [u8] {
        let start = slot as usize * self.stride;
        zerocopy::IntoBytes::as_mut_bytes(&mut self.flows[start..start + self.stride])
    }

    #[inline]
    fn is_key(&self, found: Found, key: &FlowKey) -> bool {
        let at = if found.is_reply { size_of::<FlowKey>() } else { 0 };
        let stored = self
            .flow(found.slot)
            .get(at..)
            .and_then(|bytes| <FlowKey as zerocopy::FromBytes>::ref_from_prefix(bytes).ok());
        stored.is_some_and(|(stored, _)| stored == key)
    }

    fn look_up(&mut self, packets: &mut [Packet]) {
        self.keys.clear();
        for packet in packets {
            let key = if packet.parse().is_ok() { FlowKey::of(packet) } else { None };
            let key = key.unwrap_or_default();
            self.keys.push((key, key.hash(7)));
        }
        let mut sum = 0u64;
        for (_, hash) in &self.keys {
            sum = sum.wrapping_add(self.table.touch(*hash));
        }
        self.found.clear();
        self.found.extend(self.keys.iter().map(|(_, hash)| self.table.candidate(*hash)));
        for found in self.found.iter().flatten() {
            let start = found.slot as usize * self.stride;
            for line in &self.flows[start..start + self.stride] {
                sum = sum.wrapping_add(line.0[0].into());
            }
        }
        core::hint::black_box(sum);
    }

    pub(super) fn burst(&mut self) -> u64 {
        let mut packets = core::mem::take(&mut self.packets);
        self.player.receive(BURST, &mut self.pool, &mut packets);
        let count = packets.len() as u64;
        self.process(&mut packets, |_, _| {});
        self.packets = packets;
        count
    }

    fn process(&mut self, packets: &mut Vec<Packet>, mut out: impl FnMut(&Packet, bool)) {
        self.look_up(packets);
        let len = self.chain.layout().size;
        for (at, mut packet) in packets.drain(..).enumerate() {
            self.now += 1;
            let (key, hash) = self.keys[at];
            let likely = self.found[at].filter(|found| self.is_key(*found, &key));
            let passed =
                match likely.or_else(|| self.table.find(hash, |found| self.is_key(found, &key))) {
                    Some(found) => {
                        let direction =
                            if found.is_reply { Direction::Reverse } else { Direction::Forward };
                        self.cx.begin(self.now, key, direction);
                        let start = found.slot as usize * self.stride;
                        let flow = zerocopy::IntoBytes::as_mut_bytes(
                            &mut self.flows[start..start + self.stride],
                        );
                        let state = &mut flow[STATE_AT..STATE_AT + len];
                        self.chain.run(&mut packet, state, Position::START, &mut self.cx)
                            == Outcome::Forward
                    }
                    None => self.open_flow(&mut packet, key, hash),
                };
            out(&packet, passed);
            self.pool.put(packet);
        }
    }

    fn open_flow(&mut self, packet: &mut Packet, key: FlowKey, hash: u64) -> bool {
        let slot = self.used as u32;
        if (self.used + 1) * self.stride > self.flows.len() {
            return false;
        }
        let len = self.chain.layout().size;
        self.cx.begin(self.now, key, Direction::Forward);
        let start = self.used * self.stride;
        let flow = zerocopy::IntoBytes::as_mut_bytes(&mut self.flows[start..start + self.stride]);
        let state = &mut flow[STATE_AT..STATE_AT + len];
        if self.chain.run(packet, state, Position::OPENING, &mut self.cx) != Outcome::Forward {
            return false;
        }
        let Some(reply) = FlowKey::of(packet).map(|key| key.reverse()) else { return false };
        let keys = &mut self.flow_mut(slot)[..STATE_AT];
        keys[..STATE_AT / 2].copy_from_slice(zerocopy::IntoBytes::as_bytes(&key));
        keys[STATE_AT / 2..].copy_from_slice(zerocopy::IntoBytes::as_bytes(&reply));
        self.used += 1;
        self.table.insert(hash, Found { slot, is_reply: false })
            && self.table.insert(reply.hash(7), Found { slot, is_reply: true })
    }
}
