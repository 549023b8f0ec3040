//! Two protections face to face, without a runtime around them: records and packets pass
//! between them when the test says so.

use holdfast_nf::zerocopy::FromBytes;
use holdfast_protection::flows::{ActorHeader, Life};
use holdfast_protection::{Admission, Commit, Epoch, Flows, Outbox, Peer, Protection, Slot, kind};
use holdfast_sim::Preset;
use holdfast_wire::{DropReason, FlowKey, MemoryPool, NodeId, Packet, PacketPool};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) const LAYOUT: u64 = 0x1111_2222_3333_4444;
const STATE_LEN: usize = 40;
/// Room for all flows of a test, owned ones and replicas; then room for fewer.
pub(crate) const ROOMY: usize = 16;
pub(crate) const CROWDED: usize = 6;

/// A record without the chain's number, as a runtime hands it to a protection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: u8,
    pub(crate) body: Vec<u8>,
}

/// A record with its sender and receiver.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) from: Peer,
    pub(crate) to: Peer,
    pub(crate) message: Message,
}

pub(crate) fn key(flow: u16) -> FlowKey {
    FlowKey { source_port: 1000 + flow, destination_port: 80, protocol: 17, ..FlowKey::default() }
}

/// A runtime's share of a chain.
pub(crate) struct Side {
    pub(crate) me: Peer,
    plan: Preset,
    pub(crate) protection: Box<dyn Protection>,
    pub(crate) flows: Flows,
    pub(crate) out: Outbox,
    pool: MemoryPool,
    peers: Vec<Peer>,
    /// Stamped time, ns: a second later each time room is given.
    now: u64,
    /// Records under way to this side.
    pub(crate) records: VecDeque<Message>,
    /// Packets handed over to this side: number of the commit, contents. A mark has no
    /// contents.
    pub(crate) handed: VecDeque<(Commit, Vec<u8>)>,
}

impl Side {
    pub(crate) fn new(preset: Preset, me: Peer, layout: u64, flows: usize) -> Side {
        Side {
            me,
            plan: preset,
            protection: preset.build(),
            flows: Flows::new(flows, STATE_LEN, layout, 5),
            out: Outbox::default(),
            pool: MemoryPool::new(256),
            peers: Vec::new(),
            now: 0,
            records: VecDeque::new(),
            handed: VecDeque::new(),
        }
    }

    /// Gives each channel room for so many bytes of records from now on.
    pub(crate) fn set_room(&mut self, room: usize) {
        self.now += 1_000_000_000;
        self.out.begin(0, self.now);
        self.out.set_peers(self.peers.iter().map(|peer| (*peer, room)));
    }

    pub(crate) fn set_peers(&mut self, peers: &[Peer]) {
        self.peers = peers.to_vec();
        self.set_room(1 << 20);
        self.protection.set_peers(&mut self.flows, peers, &[], &mut self.out);
    }

    /// True if the protection says that this side may die.
    pub(crate) fn is_settled(&self) -> bool {
        let safety = self.protection.safety(&self.flows);
        self.plan.promises() && safety.unprotected == 0 && !safety.resynchronising
    }

    pub(crate) fn find(&self, flow: u16) -> Option<(Slot, Life)> {
        let found = self.flows.find(&key(flow), self.flows.hash(&key(flow)))?;
        Some((found.slot, self.flows.header(found.slot).life()))
    }

    /// The count of a flow as this side knows it.
    pub(crate) fn count(&self, flow: u16) -> u64 {
        let state = |slot| {
            self.flows.state(slot).first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
        };
        self.find(flow).map_or(0, |(slot, _)| state(slot))
    }

    fn packet(&mut self, contents: &[u8]) -> Option<Packet> {
        let mut packet = self.pool.take()?;
        assert!(packet.copy_from(contents));
        Some(packet)
    }

    /// A packet of a flow passes the chain, which counts it and writes the count into it.
    /// The first packet opens the flow under `epoch`.
    pub(crate) fn process(&mut self, flow: u16, epoch: u32) {
        let slot = match self.find(flow) {
            Some((slot, Life::Owned)) => slot,
            Some(_) => return,
            None => {
                let Ok(slot) = self.flows.insert_owned(key(flow), self.flows.hash(&key(flow)))
                else {
                    return;
                };
                self.flows.header_mut(slot).epoch = Epoch::new(epoch);
                slot
            }
        };
        if self.protection.admit(&mut self.flows, slot) != Admission::Ready {
            return;
        }
        let count = self.count(flow) + 1;
        let (header, state) = self.flows.parts_mut(slot);
        header.count(0, 10);
        state[..8].copy_from_slice(&count.to_be_bytes());
        let contents = [&flow.to_be_bytes()[..], &count.to_be_bytes()].concat();
        let Some(packet) = self.packet(&contents) else { return };
        if let Some(logged) = self.protection.logged_mut() {
            logged.begin_batch(1, packet.len());
        }
        self.protection.commit(&mut self.flows, slot, packet, false, &mut self.out);
    }

    /// Ends a flow that is owned here.
    pub(crate) fn end(&mut self, flow: u16) -> bool {
        let Some((slot, Life::Owned)) = self.find(flow) else { return false };
        self.protection.ended(&mut self.flows, slot, &mut self.out);
        self.flows.remove(slot);
        true
    }

    pub(crate) fn flush(&mut self) {
        self.protection.flush(&mut self.flows, &mut self.out);
    }

    pub(crate) fn take_record(&mut self, from: Peer, message: &Message) -> Result<(), DropReason> {
        self.protection.handle_record(
            &mut self.flows,
            from,
            message.kind,
            &message.body,
            &mut self.out,
        )
    }

    pub(crate) fn take_handed(&mut self, from: Peer, commit: Commit, contents: &[u8]) {
        let Some(mut packet) = self.packet(contents) else { return };
        packet.meta.commit = commit.get();
        self.protection.handle_handed(&mut self.flows, from, packet, &mut self.out);
    }

    /// `dead` has failed, and the switch gives every claim a new epoch.
    pub(crate) fn recover(&mut self, dead: Peer, epoch: u32) {
        self.set_peers(&[]);
        self.protection.recover(&mut self.flows, dead, &mut self.out);
        for slot in core::mem::take(&mut self.out.claims) {
            self.claimed(slot, epoch);
        }
    }

    /// This side is the next incarnation of `dead`.
    pub(crate) fn restore(&mut self, dead: Peer) {
        self.protection.restore(&mut self.flows, dead, &mut self.out);
    }

    /// The route of a claimed flow leads here now.
    pub(crate) fn claimed(&mut self, slot: Slot, epoch: u32) {
        if self.flows.header(slot).life() == Life::Claiming {
            self.flows.header_mut(slot).epoch = Epoch::new(epoch);
            self.protection.claimed(&mut self.flows, slot);
        }
    }

    /// Does what the protection asks for. Records and packets are returned; everything
    /// else ends here.
    pub(crate) fn carry_out(&mut self) -> Effects {
        let mut effects = Effects {
            unprotected: core::mem::take(&mut self.out.released_unprotected),
            ..Effects::default()
        };
        effects.records = self
            .out
            .records()
            .map(|(record, body)| {
                (record.to, Message { kind: record.kind, body: body[2..].to_vec() })
            })
            .collect();
        self.out.clear_records();
        for released in self.out.released.drain(..) {
            let packet = released.into_inner();
            effects.released.push(packet.bytes().to_vec());
            self.pool.put(packet);
        }
        for (to, packet) in self.out.handed.drain(..) {
            effects.handed.push((to, Commit::new(packet.meta.commit), packet.bytes().to_vec()));
            self.pool.put(packet);
        }
        effects.marks = core::mem::take(&mut self.out.marks);
        for (packet, reason) in self.out.dropped.drain(..) {
            effects.dropped.push(reason);
            self.pool.put(packet);
        }
        effects.claims = core::mem::take(&mut self.out.claims);
        effects.claims.extend(self.out.late_claims.drain(..).map(|(_, slot)| slot));
        effects.demoted = core::mem::take(&mut self.out.demoted).len();
        effects
    }

    /// Every flow actor as bytes: a refused record must not have changed them.
    pub(crate) fn snapshot(&self) -> (BTreeMap<Slot, Vec<u8>>, usize, usize) {
        let blocks =
            self.flows.iter().map(|(slot, _)| (slot, self.flows.block(slot).to_vec())).collect();
        (blocks, self.flows.owned(), self.protection.held())
    }

    /// Checks that the protection holds no more buffers than are out, and that the table
    /// agrees with the slots.
    pub(crate) fn check(&self) -> Result<(), String> {
        // Packets of a batch that is not flushed yet are out, but not held back.
        let missing = self.pool.total() - self.pool.free();
        if missing < self.protection.held() {
            return Err(format!(
                "{} packets are held, but only {missing} are out",
                self.protection.held()
            ));
        }
        let owned = self.flows.iter().filter(|(_, header)| header.life().is_own()).count();
        if owned != self.flows.owned() {
            return Err(format!("{owned} flows are owned, {} were counted", self.flows.owned()));
        }
        let mut keys = BTreeSet::new();
        for (slot, header) in self.flows.iter() {
            let found = self.flows.find(&header.key, self.flows.hash(&header.key));
            if found.is_none_or(|found| found.slot != slot) || !keys.insert(header.key) {
                return Err(format!("the flow in slot {slot} is not found by its key"));
            }
        }
        Ok(())
    }

    /// Ends the process. Every buffer must come back.
    pub(crate) fn take_apart(mut self) -> Result<(), String> {
        self.carry_out();
        self.protection.abandon(&mut self.out);
        self.carry_out();
        let lost = self.pool.total() - self.pool.free();
        if lost > 0 { Err(format!("{lost} buffers were lost")) } else { Ok(()) }
    }
}

/// The outputs of a protection.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    pub(crate) released: Vec<Vec<u8>>,
    pub(crate) handed: Vec<(Peer, Commit, Vec<u8>)>,
    /// Marks, each behind everything handed over so far.
    pub(crate) marks: Vec<(Peer, Commit)>,
    pub(crate) dropped: Vec<DropReason>,
    pub(crate) records: Vec<(Peer, Message)>,
    pub(crate) unprotected: u64,
    pub(crate) claims: Vec<Slot>,
    pub(crate) demoted: usize,
}

/// Flow and count of a packet that [`Side::process`] made.
pub(crate) fn read(contents: &[u8]) -> (u16, u64) {
    let flow = contents.first_chunk::<2>().map_or(0, |bytes| u16::from_be_bytes(*bytes));
    let count =
        contents.get(2..10).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes);
    (flow, count)
}

/// The highest count of a flow in states that were under way.
fn newest_in(records: &VecDeque<Message>, flow: u16) -> u64 {
    let state = |message: &Message| {
        // The number, the layout and the flow actor's header come first. The chain's
        // state begins with the count.
        let block = message.body.get(12..).filter(|_| message.kind == kind::STATE)?;
        let (header, state) = ActorHeader::read_from_prefix(block).ok()?;
        let count = u64::from_be_bytes(*state.first_chunk::<8>()?);
        (header.key == key(flow)).then_some(count)
    };
    records.iter().filter_map(state).max().unwrap_or(0)
}

/// A pair of protections, see the module. Packets that leave are compared with what
/// either side knows.
pub(crate) struct Pair {
    preset: Preset,
    room: usize,
    pub(crate) sides: [Side; 2],
    /// All records ever sent: material for duplicates.
    pub(crate) history: Vec<Sent>,
    /// Highest count of each flow that left under the protection's promise.
    revealed: BTreeMap<u16, u64>,
    ended: BTreeSet<u16>,
    pub(crate) released: usize,
    /// Marks sent so far.
    marks: usize,
    incarnations: u32,
    epoch: u32,
    /// A record was forged: packets released from then on prove nothing.
    pub(crate) forged: bool,
}

impl Pair {
    pub(crate) fn new(preset: Preset) -> Pair {
        Pair::with(preset, ROOMY)
    }

    /// A pair with `flows` slots on each side.
    pub(crate) fn with(preset: Preset, flows: usize) -> Pair {
        let peer = |at: u16| Peer { node: NodeId::runtime(at), incarnation: 1 + u32::from(at) };
        let mut sides = [0, 1].map(|at| Side::new(preset, peer(at), LAYOUT, flows));
        sides[0].set_peers(&[peer(1)]);
        sides[1].set_peers(&[peer(0)]);
        Pair {
            preset,
            room: flows,
            sides,
            history: Vec::new(),
            revealed: BTreeMap::new(),
            ended: BTreeSet::new(),
            released: 0,
            marks: 0,
            incarnations: 2,
            epoch: 1,
            forged: false,
        }
    }

    /// Processes a packet of a flow at the side that has it. Even flows begin at the
    /// first side, odd ones at the second.
    pub(crate) fn process(&mut self, flow: u16) {
        let owner = (0..2).find(|&at| matches!(self.sides[at].find(flow), Some((_, Life::Owned))));
        let at = owner.unwrap_or(usize::from(flow % 2));
        if owner.is_none() {
            if self.sides.iter().any(|side| side.find(flow).is_some()) || self.ended.contains(&flow)
            {
                return;
            }
            self.epoch += 1;
        }
        let epoch = self.epoch;
        self.sides[at].process(flow, epoch);
    }

    pub(crate) fn end(&mut self, flow: u16) {
        for at in 0..2 {
            if self.sides[at].end(flow) {
                self.ended.insert(flow);
            }
        }
    }

    /// Does what a side asks for, and checks what it released.
    pub(crate) fn settle(&mut self, at: usize) -> Result<Effects, String> {
        let effects = self.sides[at].carry_out();
        let me = self.sides[at].me;
        for slot in &effects.claims {
            self.epoch += 1;
            self.sides[at].claimed(*slot, self.epoch);
        }
        let other = 1 - at;
        for (to, message) in &effects.records {
            self.history.push(Sent { from: me, to: *to, message: message.clone() });
            if *to == self.sides[other].me {
                self.sides[other].records.push_back(message.clone());
            }
        }
        for (to, commit, contents) in &effects.handed {
            if *to == self.sides[other].me {
                self.sides[other].handed.push_back((*commit, contents.clone()));
            }
        }
        let opposite = self.sides[other].me;
        for (_, commit) in effects.marks.iter().filter(|(to, _)| *to == opposite) {
            self.sides[other].handed.push_back((*commit, Vec::new()));
            self.marks += 1;
        }
        self.released += effects.released.len();
        for contents in &effects.released {
            let (flow, count) = read(contents);
            if self.forged
                || !self.preset.promises()
                || effects.unprotected > 0
                || self.ended.contains(&flow)
            {
                continue;
            }
            for side in self.sides.iter().filter(|_| self.preset.is_strict()) {
                if side.count(flow) < count {
                    return Err(format!(
                        "flow {flow}: count {count} left, node {} knows {}",
                        side.me.node,
                        side.count(flow)
                    ));
                }
            }
            let known = self.revealed.entry(flow).or_default();
            *known = count.max(*known);
        }
        self.sides[at].check()?;
        Ok(effects)
    }

    /// Delivers the next record for this side.
    pub(crate) fn deliver(&mut self, at: usize) -> Result<(), String> {
        let Some(message) = self.sides[at].records.pop_front() else { return Ok(()) };
        let from = self.sides[1 - at].me;
        let result = self.sides[at].take_record(from, &message);
        if let Err(reason) = result
            && !self.forged
            && reason != DropReason::FlowTableFull
            && reason != DropReason::StaleEpoch
        {
            return Err(format!("a good record of kind {} was refused: {reason}", message.kind));
        }
        self.settle(at).map(|_| ())
    }

    /// Delivers the next packet for this side. Packets and records may overtake each
    /// other.
    pub(crate) fn deliver_handed(&mut self, at: usize) -> Result<(), String> {
        let Some((commit, contents)) = self.sides[at].handed.pop_front() else { return Ok(()) };
        let from = self.sides[1 - at].me;
        match contents.is_empty() {
            true => self.sides[at].protection.handle_mark(from, commit),
            false => self.sides[at].take_handed(from, commit, &contents),
        }
        self.settle(at).map(|_| ())
    }

    /// A turn of each side, to which everything is delivered.
    pub(crate) fn talk(&mut self) -> Result<(), String> {
        for at in 0..2 {
            self.sides[at].flush();
            self.settle(at)?;
            while !self.sides[at].records.is_empty() {
                self.deliver(at)?;
            }
            while !self.sides[at].handed.is_empty() {
                self.deliver_handed(at)?;
            }
        }
        Ok(())
    }

    /// Both sides talk until there is nothing more to say.
    pub(crate) fn drain(&mut self) -> Result<(), String> {
        for _ in 0..200 {
            self.sides.iter_mut().for_each(|side| side.set_room(1 << 20));
            let (before, marks) = (self.history.len(), self.marks);
            self.talk()?;
            // A side may ask at any time whether a copy is as it should be.
            let is_asking = |sent: &Sent| matches!(sent.message.kind, kind::CHECK | kind::SAVED);
            let was_quiet = self.history[before..].iter().all(is_asking) && self.marks == marks;
            if was_quiet && !self.sides.iter().any(|side| side.protection.is_busy()) {
                for at in 0..2 {
                    while !self.sides[at].records.is_empty() {
                        self.deliver(at)?;
                    }
                }
                return Ok(());
            }
        }
        Err("two protections never came to rest".to_owned())
    }

    /// True if a side may be killed under the contract: the protection says so, or
    /// promises nothing.
    pub(crate) fn may_fail(&self, at: usize) -> bool {
        self.sides[at].is_settled() || !self.preset.promises()
    }

    /// Kills a side. The other recovers its flows, and a new one takes the place:
    /// everything that had left under the promise is known.
    pub(crate) fn fail(&mut self, at: usize) -> Result<(Peer, VecDeque<Message>), String> {
        let (dead, other) = (self.sides[at].me, 1 - at);
        self.incarnations += 1;
        let reborn = Peer { incarnation: self.incarnations, ..dead };
        let late = core::mem::take(&mut self.sides[other].records);
        self.sides[other].handed.clear();
        let old = core::mem::replace(
            &mut self.sides[at],
            Side::new(self.preset, reborn, LAYOUT, self.room),
        );
        old.take_apart()?;
        self.epoch += 1;
        let epoch = self.epoch;
        self.sides[other].recover(dead, epoch);
        if self.preset.promises() && !self.forged {
            for (flow, count) in &mut self.revealed {
                let (known, under_way) = (self.sides[other].count(*flow), newest_in(&late, *flow));
                let may_forget = u64::from(self.preset.may_forget());
                // The flow's first snapshot was under way, or had been refused and its
                // owner had not heard of it yet.
                let was_young =
                    may_forget > 0 && known == 0 && (under_way > 0 || self.room < ROOMY);
                if self.ended.contains(flow) || was_young {
                    *count = 0;
                    continue;
                }
                if known.max(under_way) + may_forget < *count {
                    return Err(format!(
                        "flow {flow}: count {count} had left, the survivor knows {known}, {under_way} was under way"
                    ));
                }
                if may_forget > 0 {
                    // Forgotten counts leave again.
                    *count = known.min(*count);
                }
            }
        }
        self.settle(other)?;
        let survivor = self.sides[other].me;
        self.sides[other].set_peers(&[reborn]);
        self.sides[at].set_peers(&[survivor]);
        self.settle(other)?;
        self.sides[at].restore(dead);
        Ok((dead, late))
    }
}
