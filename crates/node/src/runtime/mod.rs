//! The runtime: a single-threaded worker that owns flow actors.
//!
//! Theory of operation. A [`Runtime::turn`] takes what has arrived through a fixed graph
//! of modules. Frames are sorted into packets per chain, hand-overs and messages.
//! Messages are acted upon. Each chain's packets go through its functions in bursts.
//! Flows expire by stamped time, each protection commits its batch, and frames leave. If
//! the process dies at any point, no more is lost than the protection allows, because
//! nothing leaves before the protection says so.
//!
//! In: frames from the fabric, the worker's clock (for retransmission and heartbeats
//! only; functions never see it). Out: frames. Never: a system call, a lock, an
//! allocation per packet, a second copy of a flow's truth.

mod account;
mod counted;
mod frames;
mod in_flight;
mod lane;
mod listing;
mod migration;
mod parking;
mod pools;
mod ranking;
mod records;
mod recovery;
mod replay;
mod reporting;
mod resync;
mod served;
mod suspects;
mod switch_peer;
mod timers;

use crate::channel::{Fabric, FabricConfig, KeyRing};
use crate::message::{Control, LastWord, PoolId, TraceStep};
use crate::state::ControlTransport;
use core::num::NonZeroU64;
use core::sync::atomic::AtomicU64;
use counted::Counted;
use holdfast_nf::{Chain, Context};
use holdfast_protection::flows::Journal;
use holdfast_protection::{Flows, NodeIndex, Peer, Protection};
use holdfast_wire::nsh::Flags;
use holdfast_wire::{DropCounters, DropReason, FlowKey, NodeId, Packet, PacketPool};
use in_flight::InFlight;
use lane::Lane;
use listing::Listings;
use migration::Migrations;
use pools::CoordinatorRequests;
use ranking::Rankings;
use recovery::Recoveries;
use resync::Resync;
use served::Served;
use switch_peer::SwitchPeer;

/// The longest that a turn takes, ns.
const LONGEST_TURN: u64 = 1_000_000;
/// Steps of traced packets that wait for the next report.
const STEPS_KEPT: usize = 64;

/// A chain's specification for a runtime.
pub struct ChainSpec {
    /// The chain's name in the configuration.
    pub name: String,
    /// The switch on whose ports the chain's flows come and go.
    pub switch: NodeId,
    /// The functions.
    pub chain: Chain,
    /// The protection of the chain's flows.
    pub protection: Box<dyn Protection>,
}

/// A runtime's configuration.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    /// The runtime's node and incarnation.
    pub me: Peer,
    /// Flows that the runtime may own, per chain.
    pub flows: usize,
    /// The cluster's hash seed.
    pub seed: u64,
    /// Interval between two reports to the coordinator, ns.
    pub report_interval: u64,
    /// The fabric endpoint's configuration.
    pub fabric: FabricConfig,
}

/// State that all lanes share.
pub(crate) struct Shared {
    pub(crate) cx: Context,
    /// Switch peers, one per switch.
    pub(crate) sides: Vec<SwitchPeer>,
    pub(crate) drops: DropCounters,
    pub(crate) traces: Vec<TraceStep>,
    pub(crate) opened: u64,
    pub(crate) expired: u64,
    pub(crate) forgotten: u64,
    pub(crate) lost: u64,
    pub(crate) panics: u64,
    pub(crate) in_flight: InFlight,
    node: NodeId,
}

impl Shared {
    pub(crate) fn drop(&mut self, packet: Packet, reason: DropReason, pool: &mut dyn PacketPool) {
        self.drops.count(reason);
        if self.follows(&packet) {
            self.trace(&packet, format!("dropped: {reason}"));
        }
        pool.put(packet);
    }

    /// The switch peer of this node, if any of the chains belongs to that switch.
    pub(crate) fn side_of(&mut self, node: NodeId) -> Option<&mut SwitchPeer> {
        self.sides.iter_mut().find(|side| side.switch == node)
    }

    /// True if an operator traces the packet, and there is room for its steps. An
    /// operator who traces reads a few packets, not a flood.
    #[inline]
    pub(crate) fn follows(&self, packet: &Packet) -> bool {
        packet.meta.flags & Flags::TRACE != 0 && self.traces.len() < STEPS_KEPT
    }

    pub(crate) fn trace(&mut self, packet: &Packet, text: String) {
        if self.traces.len() < STEPS_KEPT {
            self.traces.push(TraceStep {
                stamp: packet.meta.stamp,
                node: self.node,
                stage: 1,
                ingress: None,
                rule: None,
                text,
            });
        }
    }
}

/// Counters of a runtime, since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets from the switch.
    pub packets: u64,
    /// Packets released here.
    pub released: u64,
    /// Flows opened.
    pub opened: u64,
    /// Flows expired.
    pub expired: u64,
    /// Flows among these that were evicted because a table was nearly full.
    pub forgotten: u64,
    /// Flows whose state was at the state server alone, and is lost.
    pub lost: u64,
    /// Flow states that were at the state server alone, and came back.
    pub fetched: u64,
    /// Flows recovered.
    pub recovered: u64,
    /// Panics contained.
    pub panics: u64,
    /// Packets released although no replica had their state, because there was no replica
    /// to have it.
    pub unprotected: u64,
}

/// See the module.
pub struct Runtime {
    config: RuntimeConfig,
    fabric: Fabric,
    lanes: Vec<Lane>,
    shared: Shared,
    last_word: Option<LastWord>,
    recoveries: Recoveries,
    migrations: Migrations,
    listings: Listings,
    rankings: Rankings,
    clock: u64,
    requests: CoordinatorRequests,
    /// The sessions with the state servers, if any chain needs one.
    served: Option<Served>,
    counted: Counted,
    /// The coordinator was told that this runtime is there.
    is_announced: bool,
    /// The last numbered message of the coordinator that has taken effect here, and
    /// whether the coordinator waits to hear so.
    handled: u64,
    owes_word: bool,
    members: Vec<Peer>,
    member_at: NodeIndex,
    /// The host of each member, and of this runtime.
    hosts: Vec<(Peer, u16)>,
    my_host: Option<u16>,
    /// Receivers of reports: the coordinator, and the managers.
    listeners: Vec<NodeId>,
    view: u64,
    next_report: u64,
    /// Worker's time since the last report, and the part of it that busy turns took, ns.
    time: u64,
    busy_time: u64,
    was_busy: bool,
    /// The longest turn for an operator since the last report, µs: see
    /// [`Runtime::note_turn`].
    longest_us: u32,
    fenced: bool,
    was_settled: bool,
    /// Functions note texts, which leave ahead of the turn's states and packets.
    has_prompt_logs: bool,
    /// Notes for which the manager's channel had no room since the latest note that it
    /// took.
    lost_notes: u64,
    packets: u64,
    released: u64,
    released_unprotected: u64,
}

impl Runtime {
    /// A runtime of these chains, in the order of the configuration.
    pub fn new(config: RuntimeConfig, chains: Vec<ChainSpec>) -> Runtime {
        let fabric = Fabric::new(config.me, config.fabric);
        let mut sides: Vec<SwitchPeer> = Vec::new();
        let mut side_of = |switch: NodeId| {
            sides.iter().position(|side| side.switch == switch).unwrap_or_else(|| {
                sides.push(SwitchPeer::new(switch));
                sides.len() - 1
            })
        };
        let mut lanes: Vec<Lane> = chains
            .into_iter()
            .enumerate()
            .map(|(index, spec)| {
                Lane::new(index as u16, side_of(spec.switch), spec, config.flows, config.seed)
            })
            .collect();
        let served = Served::of(&mut lanes);
        let counted = Counted::of(&mut lanes);
        let has_prompt_logs = lanes.iter_mut().any(Lane::has_prompt_log);
        let shared = Shared {
            cx: Context::new(
                config.seed
                    ^ u64::from(config.me.incarnation) << 16
                    ^ u64::from(config.me.node.get()),
            ),
            sides,
            drops: DropCounters::default(),
            traces: Vec::new(),
            opened: 0,
            expired: 0,
            forgotten: 0,
            lost: 0,
            panics: 0,
            in_flight: InFlight::default(),
            node: config.me.node,
        };
        let recoveries = Recoveries::new(shared.sides.iter().map(|side| side.switch));
        let mut runtime = Runtime {
            config,
            fabric,
            lanes,
            shared,
            last_word: None,
            recoveries,
            migrations: Migrations::default(),
            listings: Listings::default(),
            rankings: Rankings::default(),
            clock: 0,
            requests: CoordinatorRequests::default(),
            served,
            counted,
            is_announced: false,
            handled: 0,
            owes_word: false,
            members: Vec::new(),
            member_at: NodeIndex::default(),
            hosts: Vec::new(),
            my_host: None,
            listeners: vec![NodeId::COORDINATOR, NodeId::MANAGER],
            view: 0,
            next_report: 0,
            time: 0,
            busy_time: 0,
            longest_us: 0,
            was_busy: false,
            fenced: false,
            was_settled: false,
            has_prompt_logs,
            lost_notes: 0,
            packets: 0,
            released: 0,
            released_unprotected: 0,
        };
        // A runtime that leases a server's numbers is announced when the server knows it.
        if runtime.served.is_none() {
            runtime.announce();
        }
        runtime
    }

    /// Bytes of memory that flow actors take here: as many as there ever were at once.
    pub fn memory(&self) -> usize {
        self.lanes.iter().map(|lane| lane.flows.memory()).sum()
    }

    /// The runtime's node and incarnation.
    pub fn me(&self) -> Peer {
        self.config.me
    }

    /// Has every change of the large tables written to the journal first: see
    /// [`Journal`]. Call it before the first turn.
    pub fn set_journal(&mut self, journal: Journal) {
        self.lanes.iter_mut().for_each(|lane| lane.set_journal(journal));
    }

    /// Gives the runtime the cluster's keys, before its first turn: see
    /// [`Fabric::authenticate`].
    pub fn authenticate(&mut self, ring: &KeyRing, life: NonZeroU64) {
        self.fabric.authenticate(ring, life);
    }

    /// Seeds the functions' random numbers, before the first turn. The default seed
    /// follows from the cluster's seed, node and incarnation, so anyone who knows these
    /// could guess secrets that functions draw.
    pub fn randomize(&mut self, seed: u64) {
        self.shared.cx = Context::new(seed);
    }

    /// Shows the in-flight packet in these words, which should outlive the process: its
    /// stamp, 0 for none, and the node of the switch that stamped it.
    pub fn show_in_flight(&mut self, words: [&'static AtomicU64; 2]) {
        self.shared.in_flight.show(words);
    }

    /// Shows the number of flows here in this word, which should outlive the process.
    pub fn show_last_word(&mut self, word: LastWord) {
        self.last_word = Some(word);
    }

    /// Flows owned here.
    fn owned(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.flows.owned() as u64).sum()
    }

    /// Changes the keys: see [`Fabric::set_keys`].
    pub fn set_keys(&mut self, ring: &KeyRing) {
        self.fabric.set_keys(ring);
    }

    /// True if flows are listed or moved: an operator waits for the turns.
    pub fn is_asked(&self) -> bool {
        !self.listings.is_empty() || !self.rankings.is_empty() || !self.migrations.is_idle()
    }

    /// Notes the processor time of a turn, µs, that began while [`Runtime::is_asked`].
    /// The next report gives the longest.
    pub fn note_turn(&mut self, micros: u64) {
        self.longest_us = self.longest_us.max(micros.min(u64::from(u32::MAX)) as u32);
    }

    /// True if another incarnation has taken this one's place: the process has nothing
    /// left to do.
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// Counters.
    pub fn counts(&self) -> Counts {
        Counts {
            packets: self.packets,
            released: self.released,
            opened: self.shared.opened,
            expired: self.shared.expired,
            forgotten: self.shared.forgotten,
            lost: self.shared.lost,
            fetched: self
                .lanes
                .iter()
                .map(|lane| lane.protection.safety(&lane.flows).fetched)
                .sum(),
            recovered: self.recoveries.recovered,
            panics: self.shared.panics,
            unprotected: self.released_unprotected,
        }
    }

    /// Counts a packet that was dropped before it came here.
    pub fn count_drop(&mut self, reason: DropReason) {
        self.shared.drops.count(reason);
    }

    /// Drops by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.shared.drops
    }

    /// Flow actors of a chain, for inspection.
    pub fn flows(&self, chain: usize) -> Option<&Flows> {
        self.lanes.get(chain).map(|lane| &lane.flows)
    }

    /// For checkers: true if the flow of this key is here as after the packet with this
    /// stamp, or can be brought there.
    #[doc(hidden)]
    pub fn has_input(&self, chain: usize, key: &FlowKey, stamp: u64) -> bool {
        let lane = self.lanes.get(chain);
        let found = lane.and_then(|lane| Some((lane, lane.flows.find(key, lane.flows.hash(key))?)));
        let logged =
            found.and_then(|(lane, found)| Some((lane.protection.logged()?, lane, found.slot)));
        logged.is_some_and(|(logged, lane, slot)| logged.has_input(&lane.flows, slot, stamp))
    }

    /// Calls `visit` with every pool of this runtime, for inspection and, in benchmarks
    /// and tests, to grant blocks directly.
    pub fn visit_pools(
        &mut self,
        mut visit: impl FnMut(PoolId, &mut holdfast_nf::shared::Numbers),
    ) {
        for lane in &mut self.lanes {
            let chain = lane.index;
            lane.visit_pools(|function, field, pool| {
                visit(PoolId { chain, function, field }, pool)
            });
        }
    }

    /// Sets the number of state servers, among which the flows with their home there are
    /// divided. Call it before the first turn.
    #[must_use]
    pub fn with_state_servers(mut self, servers: u16) -> Runtime {
        self.served.iter_mut().for_each(|served| served.divide(servers.max(1)));
        self
    }

    /// True if every state server that is home of flows here has been heard.
    pub fn knows_state_servers(&self) -> bool {
        self.served.as_ref().is_some_and(Served::are_homes_known)
    }

    /// Packets that wait here for state, leases or commits.
    pub fn held(&self) -> usize {
        self.lanes
            .iter()
            .map(|lane| {
                lane.parking.len()
                    + lane.parking.outside()
                    + lane.protection.held()
                    + lane.suspects.len()
            })
            .sum()
    }

    /// Gives back every packet that is held, for the end of the process.
    pub fn abandon(&mut self, pool: &mut dyn PacketPool) {
        for lane in &mut self.lanes {
            lane.protection.abandon(&mut lane.outbox);
            lane.abandon_replays(&mut self.shared, pool);
            lane.abandon_suspects(&mut self.shared, pool);
            while let Some(parked) = lane.parking.pop() {
                self.shared.drop(parked.packet, DropReason::ShuttingDown, pool);
            }
            for visitor in lane.parking.come_in(usize::MAX) {
                self.shared.drop(visitor.packet, DropReason::ShuttingDown, pool);
            }
            for (packet, reason) in lane.outbox.dropped.drain(..) {
                self.shared.drop(packet, reason, pool);
            }
        }
    }

    /// Runs a turn through the module graph. The runtime takes every frame of `rx`, and
    /// appends the frames to send to `tx`. `clock` is the worker's time, ns. True if
    /// there was anything to do.
    pub fn turn(
        &mut self,
        rx: &mut Vec<Packet>,
        tx: &mut Vec<Packet>,
        pool: &mut dyn PacketPool,
        clock: u64,
    ) -> bool {
        self.turn_with(rx, tx, pool, None, clock)
    }

    /// As `Runtime::turn`, where messages to and from the state server may use the
    /// control transport `words`.
    pub fn turn_with(
        &mut self,
        rx: &mut Vec<Packet>,
        tx: &mut Vec<Packet>,
        pool: &mut dyn PacketPool,
        mut words: Option<&mut (dyn ControlTransport + '_)>,
        clock: u64,
    ) -> bool {
        let elapsed = if self.clock == 0 { 0 } else { clock.saturating_sub(self.clock) };
        self.time += elapsed;
        // A busy turn is followed at once by the next one. An interval longer than any
        // turn is not this worker's work.
        self.busy_time += if self.was_busy { elapsed.min(LONGEST_TURN) } else { 0 };
        self.clock = clock;
        self.lanes.iter_mut().for_each(|lane| lane.flows.begin_turn());
        let had_input = !rx.is_empty();
        let sent_before = tx.len();
        if !self.migrations.is_idle() {
            let Runtime { migrations, lanes, shared, fabric, recoveries, .. } = self;
            migrations.depart(&mut migration::Parts { lanes, shared, fabric, recoveries });
        }
        self.sort(rx, pool, clock);
        self.handle_records(pool);
        let mut had_words = words.as_mut().is_some_and(|words| self.hear_words(&mut **words));
        let may_try = self.may_try_suspects();
        for at in 0..self.lanes.len() {
            self.note_rooms();
            let lane = &mut self.lanes[at];
            lane.outbox.begin(lane.index, self.shared.sides[lane.side].now);
            lane.settle_pages(&mut self.shared, pool);
            lane.go_on_replaying(&mut self.shared, &mut self.fabric, pool, clock);
            lane.settle_replays(&mut self.recoveries);
            lane.relieve(&mut self.shared);
            lane.process(&mut self.shared, pool);
            if !lane.suspects.is_empty() {
                lane.try_suspects(may_try, &mut self.shared, pool, clock);
            }
            if lane.retry {
                lane.unpark(&mut self.shared, pool);
            }
            lane.expire_parked(&mut self.shared, pool);
            lane.expire_flows(&mut self.shared);
            lane.protection.flush(&mut lane.flows, &mut lane.outbox);
            self.recoveries.take_late_claims(lane);
            self.carry_out_records(at);
        }
        self.serve_pools();
        had_words |= self.speak_with_server(words);
        self.migrations.advance(
            &mut self.lanes,
            &mut self.fabric,
            &self.shared,
            &self.members,
            &self.listeners,
            clock,
        );
        self.recoveries.send_claims(&mut self.fabric, &self.lanes, clock);
        for (lane, slot) in self.migrations.arrivals.take_late() {
            if let Some(resync) = &mut self.shared.sides[self.lanes[lane].side].resync {
                resync.add(self.lanes[lane].flows.header(slot), lane as u16);
            }
        }
        for (at, side) in self.shared.sides.iter_mut().enumerate() {
            if let Some(resync) = &mut side.resync
                && resync.go_on(
                    &self.lanes,
                    &mut self.fabric,
                    self.migrations.arrivals.expects_late(at, &self.lanes),
                )
            {
                side.resync = None;
            }
            side.report(&mut self.fabric);
        }
        if self.has_prompt_logs {
            self.send_notes();
        }
        self.listings.go_on(&self.lanes, &self.shared, &mut self.fabric);
        self.rankings.go_on(&self.lanes, &mut self.fabric);
        self.report(clock);
        // Recoveries report after the report proper: for the coordinator a recovery is
        // over only when it knows that the recovered flows want new replicas.
        self.recoveries.report(&mut self.requests, &self.lanes, &self.fabric);
        self.requests.send(&mut self.fabric);
        if core::mem::take(&mut self.owes_word) {
            self.fabric
                .send_control(NodeId::COORDINATOR, &Control::Settled { handled: self.handled });
        }
        self.transmit_messages(tx, pool, clock);
        for at in 0..self.lanes.len() {
            self.carry_out_packets(at, tx, pool);
        }
        if let Some(word) = self.last_word {
            word.say(self.owned());
        }
        let is_busy = had_input || had_words || tx.len() > sent_before;
        self.was_busy = is_busy;
        is_busy
    }

    /// Tells every lane's outbox how much room channels have, for channels whose room may
    /// have changed.
    fn note_rooms(&mut self) {
        while let Some(node) = self.fabric.take_changed() {
            for lane in &mut self.lanes {
                lane.outbox.set_room(node, |peer| self.fabric.room(peer));
            }
        }
    }

    /// The time at which a turn is due without input, worker's time.
    pub fn poll_timeout(&self) -> Option<u64> {
        let is_resyncing =
            self.shared.sides.iter().any(|side| side.resync.as_ref().is_some_and(Resync::is_busy));
        let has_work = |lane: &Lane| lane.protection.is_busy() || lane.retry || lane.may_let_in();
        if self.lanes.iter().any(has_work) || self.recoveries.is_waiting() || is_resyncing {
            return Some(0);
        }
        let fabric = self.fabric.poll_timeout().unwrap_or(u64::MAX);
        let after = |timeout: Option<u64>| match timeout {
            Some(0) => 0,
            Some(timeout) => self.clock.saturating_add(timeout),
            None => u64::MAX,
        };
        let (migrations, listings, rankings) = (
            after(self.migrations.timeout()),
            after(self.listings.timeout()),
            after(self.rankings.timeout()),
        );
        let replays =
            self.lanes.iter().map(|lane| lane.replays.poll_timeout()).min().unwrap_or(u64::MAX);
        let has_suspects = self.lanes.iter().any(|lane| !lane.suspects.is_empty());
        let suspects =
            if has_suspects { self.clock.saturating_add(suspects::LOOK_EVERY) } else { u64::MAX };
        let words = self.served.as_ref().map_or(u64::MAX, |served| served.poll_timeout());
        Some(
            words
                .min(self.next_report)
                .min(fabric)
                .min(migrations)
                .min(listings)
                .min(rankings)
                .min(self.recoveries.poll_timeout())
                .min(replays)
                .min(suspects),
        )
    }
}
