//! Lists of flows: what a turn does for them, and what they promise.

use holdfast_nf::{Bound, Chain, ConfigError, Context, NetworkFunction, Open, Verdict};
use holdfast_node::address::{COORDINATOR, MANAGER, SWITCH, mac_of, mac_of_life};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::manager::Manager;
use holdfast_node::message::{Control, FlowPage, NO_LANE, Place, kind};
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_protection::{Peer, Unprotected};
use holdfast_wire::nsh::{self, Flags, Outer, index};
use holdfast_wire::{MemoryPool, PacketPool};
use std::collections::BTreeMap;

const FIRST: Peer = Peer { node: 16, incarnation: 1 };
const SECOND: Peer = Peer { node: 17, incarnation: 4 };
const SECONDS: u64 = 1_000_000_000;
/// Limits on a turn's work for all lists together.
const SLOTS_PER_TURN: usize = 512;
const FLOWS_PER_TURN: usize = 32;

holdfast_nf::flow_state! {
    struct Nothing {
        spare: u64,
    }
}

/// Flows live for two hours; those of high ports for ten seconds.
struct Brief;

impl NetworkFunction for Brief {
    const NAME: &'static str = "brief";
    type Config = ();
    type Flow = Nothing;
    type Shared = ();

    fn new((): ()) -> Result<(Brief, ()), ConfigError> {
        Ok((Brief, ()))
    }

    fn open(&self, _: &holdfast_wire::Packet, _: &mut (), _: &mut Context) -> Open<Nothing> {
        Open::Accept(Nothing::default())
    }

    fn process(&self, packet: &mut holdfast_wire::Packet, _: &mut Nothing, _: &mut (), cx: &mut Context) -> Verdict {
        cx.keep(if packet.l4_mut()[0] & 0x80 == 0 { 7200 } else { 10 } * SECONDS);
        Verdict::Forward
    }
}

/// From a port of this number's lower bits.
fn datagram(number: u32) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend_from_slice(&[0x45, 0, 0, 29, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, (number >> 16) as u8, 2, 192, 0, 2, 1]);
    frame.extend_from_slice(&(number as u16).to_be_bytes());
    frame.extend_from_slice(&[0, 53, 0, 9, 0, 0, 0]);
    frame
}

/// A runtime with its pool.
struct Spot {
    me: Peer,
    runtime: Runtime,
    pool: MemoryPool,
}

impl Spot {
    fn new(me: Peer, flows: usize) -> Spot {
        let config = RuntimeConfig { me, flows, seed: 1, report_interval: SECONDS, fabric: FabricConfig::default() };
        let chain = Chain::new(vec![Box::new(Bound::<Brief>::new(()).expect("nothing to refuse"))]);
        let spec = ChainSpec { name: "test".to_owned(), switch: SWITCH, chain, protection: Box::new(Unprotected) };
        Spot { me, runtime: Runtime::new(config, vec![spec]), pool: MemoryPool::new(512) }
    }

    /// A turn with these frames; what is sent to managers.
    fn turn(&mut self, frames: &[Vec<u8>], now: u64) -> Vec<Vec<u8>> {
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for frame in frames {
            let mut packet = self.pool.take().expect("the pool is large enough");
            assert!(packet.copy_from(frame));
            rx.push(packet);
        }
        self.runtime.turn(&mut rx, &mut tx, &mut self.pool, now);
        let mut sent = Vec::new();
        for packet in tx {
            if packet.bytes()[..6] == mac_of(MANAGER) {
                sent.push(packet.bytes().to_vec());
            }
            self.pool.put(packet);
        }
        sent
    }

    /// Flows begin, and time goes on to `now`.
    fn open(&mut self, numbers: impl Iterator<Item = u32>, now: u64) {
        let numbers: Vec<u32> = numbers.collect();
        let outer = Outer { destination: mac_of_life(self.me), source: mac_of(SWITCH), index: index::TO_RUNTIME };
        for burst in numbers.chunks(256) {
            let mut rx = Vec::new();
            for number in burst {
                let mut packet = self.pool.take().expect("the pool is large enough");
                assert!(packet.copy_from(&datagram(*number)));
                (packet.meta.stamp, packet.meta.commit, packet.meta.flags) = (now, 1, Flags::NEW);
                assert!(nsh::encapsulate(&mut packet, outer));
                rx.push(packet);
            }
            let mut tx = Vec::new();
            self.runtime.turn(&mut rx, &mut tx, &mut self.pool, now);
            tx.into_iter().for_each(|packet| self.pool.put(packet));
        }
        let mut tick = self.pool.take().expect("the pool is large enough");
        (tick.meta.stamp, tick.meta.flags) = (now, Flags::OAM);
        assert!(nsh::encapsulate(&mut tick, outer));
        let mut tx = Vec::new();
        self.runtime.turn(&mut vec![tick], &mut tx, &mut self.pool, now);
        tx.into_iter().for_each(|packet| self.pool.put(packet));
    }

    fn flows(&self) -> usize {
        self.runtime.flows(0).map_or(0, |flows| flows.len())
    }
}

/// Ten clients ask at the same time for everything, and one for what is not there. No turn looks at more slots, or sends more flows, than it would for one of them.
#[test]
fn a_turn_does_little_however_many_ask_for_however_much() {
    const FLOWS: usize = 4000;
    let mut at = Spot::new(FIRST, 8192);
    at.open(1..=FLOWS as u32, SECONDS);
    assert_eq!(at.flows(), FLOWS);
    let mut manager = Fabric::new(Peer { node: MANAGER, incarnation: 1 }, FabricConfig::default());
    manager.set_peer(FIRST);
    for request in 0..11 {
        let selector = if request == 0 { "tcp" } else { "" }.to_owned();
        let question = Control::ListFlows { request, limit: u32::MAX, selector, lane: 0, slot: 0 };
        assert!(manager.send_control(FIRST.node, &question));
    }
    let mut asked = Vec::new();
    manager.poll_transmit(SECONDS, |frame| {
        asked.push(frame.to_vec());
        true
    });
    let (mut listed, mut open, mut turns) = (BTreeMap::<u32, usize>::new(), 11, 0);
    // The slot that each list has reached: those between two of its records have been looked at.
    let mut reached = BTreeMap::<u32, u32>::new();
    while open > 0 {
        turns += 1;
        assert!(turns < 5000, "it ends");
        let now = SECONDS + turns * 1_000_000;
        let (mut flows, mut slots) = (0, 0);
        for frame in at.turn(&asked, now) {
            manager.handle_frame(&frame, now).unwrap();
        }
        for (record, body) in manager.inbox.records() {
            if record.kind != kind::FLOWS {
                continue;
            }
            let request = u32::from_be_bytes(body[..4].try_into().unwrap());
            let (lane, slot) = (u16::from_be_bytes([body[5], body[6]]), u32::from_be_bytes(body[7..11].try_into().unwrap()));
            let here = FlowPage { bytes: body[11..].to_vec(), next: None }.flows().unwrap().len();
            flows += here;
            *listed.entry(request).or_default() += here;
            if lane != NO_LANE && request != 0 {
                slots += (slot - reached.insert(request, slot).unwrap_or(0)) as usize;
            }
            open -= usize::from(body[4]);
        }
        manager.inbox.clear();
        assert!(flows <= FLOWS_PER_TURN && slots <= SLOTS_PER_TURN, "{flows} flows and {slots} slots in a turn");
        let is_due = at.runtime.poll_timeout().is_some_and(|due| due <= now + 1_000_000);
        assert!(is_due || open == 0, "the next turn is due soon as long as somebody waits");
        asked.clear();
        manager.poll_transmit(now, |frame| {
            asked.push(frame.to_vec());
            true
        });
    }
    assert_eq!(listed.remove(&0), Some(0), "there is no TCP");
    assert!(listed.len() == 10 && listed.values().all(|count| *count == FLOWS), "{listed:?}");
    let least = 10 * FLOWS / FLOWS_PER_TURN + FLOWS / SLOTS_PER_TURN;
    assert!(turns as usize >= least, "{turns} turns for what takes {least}");
}

/// A selector matches flows only at the end of a large table, or none. The answer comes
/// piece by piece, so that nobody waits for all of it.
#[test]
fn an_answer_ends_before_a_large_table_does() {
    const FLOWS: u32 = 70_000;
    let mut all = Host::new(1 << 17);
    let now = all.now;
    all.spots[0].open(0..FLOWS, now);
    assert_eq!(all.spots[0].flows(), FLOWS as usize);
    let first = all.piece(10, "tcp", None);
    assert_eq!(first, FlowPage { bytes: Vec::new(), next: Some(Place { peer: FIRST, lane: 0, slot: 1 << 16 }) });
    let second = all.piece(10, "tcp", first.next);
    assert_eq!(second.next.map(|place| place.peer), Some(SECOND), "all of the first one's have been looked at");
    assert_eq!(all.piece(10, "tcp", second.next), FlowPage::default());
}

/// A manager, and its two runtimes.
struct Host {
    manager: Manager,
    coordinator: Fabric,
    spots: Vec<Spot>,
    now: u64,
}

impl Host {
    fn new(flows: usize) -> Host {
        let config = FabricConfig::default;
        let manager = Manager::new(Peer { node: MANAGER, incarnation: 1 }, config());
        let coordinator = Fabric::new(Peer { node: COORDINATOR, incarnation: 1 }, config());
        let spots = [FIRST, SECOND].map(|peer| Spot::new(peer, flows)).into();
        let mut all = Host { manager, coordinator, spots, now: SECONDS };
        all.coordinator.set_peer(Peer { node: MANAGER, incarnation: 1 });
        for Peer { node, incarnation } in [FIRST, SECOND] {
            all.coordinator.send_control(MANAGER, &Control::Start { node, incarnation });
        }
        all.turn();
        for peer in [FIRST, SECOND] {
            all.manager.handle_started(peer);
        }
        // Their first reports come.
        for _ in 0..100 {
            all.turn();
        }
        all
    }

    /// Everybody's next turn.
    fn turn(&mut self) {
        let (now, manager) = (self.now, &mut self.manager);
        self.coordinator
            .poll_transmit(now, |frame| frame[..6] != mac_of(MANAGER) || manager.fabric().handle_frame(frame, now).is_ok());
        let mut frames = Vec::new();
        self.manager.fabric().poll_transmit(now, |frame| {
            frames.push(frame.to_vec());
            true
        });
        for frame in frames.iter().filter(|frame| frame[..6] == mac_of(COORDINATOR)) {
            self.coordinator.handle_frame(frame, now).unwrap();
        }
        for spot in &mut self.spots {
            let own: Vec<_> = frames.iter().filter(|frame| frame[..6] == mac_of(spot.me.node)).cloned().collect();
            for frame in spot.turn(&own, now) {
                // Frames from a life that is over are refused.
                let _ = self.manager.fabric().handle_frame(&frame, now);
            }
        }
        self.manager.handle_records(now);
        self.now += 1_000_000;
    }

    /// The next piece of a list.
    fn piece(&mut self, limit: u32, selector: &str, at: Option<Place>) -> FlowPage {
        let request = self.manager.request_flows(limit, selector, at);
        for _ in 0..1000 {
            if let Some(page) = self.manager.take_flows(request) {
                return page;
            }
            self.turn();
        }
        panic!("no answer");
    }
}

/// A list of 1,200 flows in pieces, between which hundreds of others begin and end: each of those that live long is in it once.
#[test]
fn each_flow_that_stays_is_listed_once_whatever_comes_and_goes() {
    let mut all = Host::new(4096);
    let now = all.now;
    let long = |spot: u32| spot * 1000 + 1..=spot * 1000 + 600;
    let mut brief = 0x8000..0x1_0000;
    for (number, spot) in (0..).zip(&mut all.spots) {
        // Others are there before, between and behind those that stay, and are not when the list comes there.
        for ports in long(number).collect::<Vec<_>>().chunks(50) {
            spot.open(brief.by_ref().take(20), now);
            spot.open(ports.iter().copied(), now);
        }
    }
    let (mut listed, mut next, mut pieces) = (BTreeMap::<u32, usize>::new(), None, 0);
    loop {
        let page = all.piece(37, "from 10.0.0.2", next);
        let flows = page.flows().unwrap();
        assert!(flows.len() <= 37, "as many as were asked for");
        for flow in &flows {
            *listed.entry(flow.key.ports().0.into()).or_default() += 1;
        }
        pieces += 1;
        next = page.next;
        if next.is_none() {
            break;
        }
        // Brief flows are over, and others take their slots.
        all.now += 11 * SECONDS;
        for spot in &mut all.spots {
            spot.open(brief.by_ref().take(30), all.now);
        }
    }
    assert!(pieces > 20, "{pieces}");
    for port in long(0).chain(long(1)) {
        assert_eq!(listed.get(&port), Some(&1), "{port} in {pieces} pieces");
    }
    assert!(listed.len() > 1200, "some of the others are there too");
}

/// The runtime that is asked ends: the list goes on with the other one, and nobody waits.
#[test]
fn a_list_goes_on_behind_a_runtime_that_has_ended() {
    let mut all = Host::new(4096);
    let now = all.now;
    for spot in &mut all.spots {
        spot.open(1..=100, now);
    }
    let first = all.piece(10, "", None);
    assert_eq!((first.flows().unwrap().len(), first.next.map(|place| place.peer)), (10, Some(FIRST)));
    let request = all.manager.request_flows(50, "", first.next);
    all.manager.handle_ended(FIRST, 100);
    let broken = all.manager.take_flows(request).expect("nobody else answers");
    assert_eq!(broken.next, Some(Place { peer: SECOND, lane: 0, slot: 0 }));
    let rest = all.piece(1000, "", broken.next);
    assert_eq!((rest.flows().unwrap().len(), rest.next), (100, None));
    // A place in the dead runtime's flows leads to those of the next one.
    assert_eq!(all.piece(1000, "", first.next).flows().unwrap().len(), 100);
    all.manager.handle_ended(SECOND, 100);
    assert_eq!(all.piece(1000, "", None), FlowPage::default(), "nobody is there");
}
