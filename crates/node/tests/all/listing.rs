//! Lists of flows: the work of a turn for them, and their guarantees.

use crate::runtime::{Bench, Closing, ME};
use crate::spot::{SECOND, Spot, accepting, datagram_from, frames_of};
use holdfast_nf::Function;
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::manager::Manager;
use holdfast_node::message::{Control, FlowPage, FlowsHead, ListCursor, kind};
use holdfast_protection::{Peer, Plan};
use holdfast_wire::NodeId;
use holdfast_wire::nsh::Flags;
use std::collections::BTreeMap;
use zerocopy::FromBytes;

pub(crate) const FIRST: Peer = ME;
pub(crate) const OTHER: Peer = Peer { node: NodeId::new(17), incarnation: 4 };
/// Limits on a turn's work for all lists together.
const SLOTS_PER_TURN: usize = 512;
const FLOWS_PER_TURN: usize = 32;

/// Opens flows, and lets time go on to `now`. A number's lower bits are the flow's port.
/// Flows from high ports end after ten seconds.
pub(crate) fn open(spot: &mut Spot, numbers: impl IntoIterator<Item = u32>, now: u64) {
    let numbers: Vec<u32> = numbers.into_iter().collect();
    for burst in numbers.chunks(128) {
        let frame = |number: &u32| {
            let datagram = datagram_from(
                2 + (number >> 16) as u8,
                *number as u16,
                u8::from(number & 0x8000 != 0),
            );
            spot.packet(&datagram, (now, 1, Flags::NEW))
        };
        let frames: Vec<_> = burst.iter().map(frame).collect();
        spot.turn(&frames, now);
    }
    let tick = spot.tick(now, 0);
    spot.turn(&[tick], now);
}

/// Ten clients ask at the same time for all flows, and one for flows that do not exist.
/// No turn looks at more slots, or sends more flows, than it would for one client.
#[test]
fn a_turn_does_little_however_many_ask_for_however_much() {
    const FLOWS: usize = 4000;
    let mut bench = Bench::new(vec![accepting::<Closing>()], 8192);
    open(&mut bench.spot, 1..=FLOWS as u32, SECOND);
    assert_eq!(bench.flows(), FLOWS);
    bench.manager.set_peer(ME);
    for request in 0..11 {
        let selector = if request == 0 { "tcp" } else { "" }.to_owned();
        let question = Control::ListFlows { request, limit: u32::MAX, selector, lane: 0, slot: 0 };
        assert!(bench.manager.send_control(ME.node, &question));
    }
    let (mut listed, mut open, mut turns) = (BTreeMap::<u32, usize>::new(), 11, 0);
    // The slot that each list has reached. Slots between two of its records have been
    // looked at.
    let mut reached = BTreeMap::<u32, u32>::new();
    while open > 0 {
        turns += 1;
        assert!(turns < 5000, "it ends");
        bench.stamp += 1_000_000;
        bench.hear();
        let (mut flows, mut slots) = (0, 0);
        for (record, body) in bench.manager.inbox.records() {
            if record.kind != kind::FLOWS {
                continue;
            }
            let (head, listed_here) = FlowsHead::read_from_prefix(body).unwrap();
            let request = head.request.get();
            let here = FlowPage { bytes: listed_here.to_vec(), next: None }.flows().unwrap().len();
            flows += here;
            *listed.entry(request).or_default() += here;
            if let Some((_, slot)) = head.next()
                && request != 0
            {
                slots += (slot - reached.insert(request, slot).unwrap_or(0)) as usize;
            }
            open -= usize::from(head.is_last);
        }
        bench.manager.inbox.clear();
        assert!(
            flows <= FLOWS_PER_TURN && slots <= SLOTS_PER_TURN,
            "{flows} flows and {slots} slots in a turn"
        );
        let is_due =
            bench.spot.runtime.poll_timeout().is_some_and(|due| due <= bench.stamp + 1_000_000);
        assert!(is_due || open == 0, "the next turn is due soon as long as somebody waits");
    }
    assert_eq!(listed.remove(&0), Some(0), "there is no TCP");
    assert!(listed.len() == 10 && listed.values().all(|count| *count == FLOWS), "{listed:?}");
    let least = 10 * FLOWS / FLOWS_PER_TURN + FLOWS / SLOTS_PER_TURN;
    assert!(turns >= least, "{turns} turns for what takes {least}");
}

/// A selector matches flows only at the end of a large table, or none. The answer comes
/// piece by piece, so no client waits for all of it.
#[test]
fn an_answer_ends_before_a_large_table_does() {
    const FLOWS: u32 = 70_000;
    let mut all = Host::new(1 << 17);
    let now = all.now;
    open(&mut all.spots[0], 0..FLOWS, now);
    assert_eq!(all.spots[0].flows(), FLOWS as usize);
    let first = all.piece(10, "tcp", None);
    assert_eq!(
        first,
        FlowPage {
            bytes: Vec::new(),
            next: Some(ListCursor { peer: FIRST, lane: 0, slot: 1 << 16 })
        }
    );
    let second = all.piece(10, "tcp", first.next);
    assert_eq!(
        second.next.map(|place| place.peer),
        Some(OTHER),
        "all of the first one's have been looked at"
    );
    assert_eq!(all.piece(10, "tcp", second.next), FlowPage::default());
}

/// A manager, and its two runtimes.
pub(crate) struct Host {
    pub(crate) manager: Manager,
    coordinator: Fabric,
    pub(crate) spots: Vec<Spot>,
    pub(crate) now: u64,
}

impl Host {
    fn new(flows: usize) -> Host {
        Host::of(flows, accepting::<Closing>)
    }

    /// Both runtimes have a chain of one function.
    pub(crate) fn of(flows: usize, function: fn() -> Box<dyn Function>) -> Host {
        let config = FabricConfig::default;
        let manager = Manager::new(Peer { node: NodeId::MANAGER, incarnation: 1 }, config());
        let coordinator = Fabric::new(Peer { node: NodeId::COORDINATOR, incarnation: 1 }, config());
        let spots = [FIRST, OTHER]
            .map(|me| Spot::new(me, vec![function()], Plan::NONE.build(), flows, 512))
            .into();
        let mut all = Host { manager, coordinator, spots, now: SECOND };
        all.coordinator.set_peer(Peer { node: NodeId::MANAGER, incarnation: 1 });
        for Peer { node, incarnation } in [FIRST, OTHER] {
            all.coordinator.send_control(NodeId::MANAGER, &Control::Start { node, incarnation });
        }
        all.turn();
        for peer in [FIRST, OTHER] {
            all.manager.handle_started(peer);
        }
        // The runtimes' first reports come.
        for _ in 0..100 {
            all.turn();
        }
        all
    }

    /// Every process takes its next turn.
    pub(crate) fn turn(&mut self) {
        let now = self.now;
        for frame in frames_of(&mut self.coordinator, now)
            .iter()
            .filter(|frame| frame[..6] == NodeId::MANAGER.mac())
        {
            self.manager.fabric().handle_frame(frame, now).unwrap();
        }
        let frames = frames_of(self.manager.fabric(), now);
        for frame in frames.iter().filter(|frame| frame[..6] == NodeId::COORDINATOR.mac()) {
            self.coordinator.handle_frame(frame, now).unwrap();
        }
        for spot in &mut self.spots {
            let own: Vec<_> =
                frames.iter().filter(|frame| frame[..6] == spot.me.node.mac()).cloned().collect();
            for frame in
                spot.turn(&own, now).iter().filter(|frame| frame[..6] == NodeId::MANAGER.mac())
            {
                // Frames from an earlier incarnation are refused.
                let _ = self.manager.fabric().handle_frame(frame, now);
            }
        }
        self.manager.handle_records(now);
        self.now += 1_000_000;
    }

    /// The next piece of a list.
    pub(crate) fn piece(&mut self, limit: u32, selector: &str, at: Option<ListCursor>) -> FlowPage {
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

/// A list of 1,200 flows is read in pieces, between which hundreds of others begin and
/// end. Each of the long-lived flows is in it once.
#[test]
fn each_flow_that_stays_is_listed_once_whatever_comes_and_goes() {
    let mut all = Host::new(4096);
    let now = all.now;
    let long = |spot: u32| spot * 1000 + 1..=spot * 1000 + 600;
    let mut brief = 0x8000..0x1_0000;
    for (number, spot) in (0..).zip(&mut all.spots) {
        // Other flows are there before, between and behind the long-lived ones, and have
        // ended when the list gets there.
        for ports in long(number).collect::<Vec<_>>().chunks(50) {
            open(spot, brief.by_ref().take(20), now);
            open(spot, ports.iter().copied(), now);
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
        all.now += 11 * SECOND;
        for spot in &mut all.spots {
            open(spot, brief.by_ref().take(30), all.now);
        }
    }
    assert!(pieces > 20, "{pieces}");
    for port in long(0).chain(long(1)) {
        assert_eq!(listed.get(&port), Some(&1), "{port} in {pieces} pieces");
    }
    assert!(listed.len() > 1200, "some of the others are there too");
}

/// The asked runtime ends: the list goes on with the other one, and no client waits.
#[test]
fn a_list_goes_on_behind_a_runtime_that_has_ended() {
    let mut all = Host::new(4096);
    let now = all.now;
    for spot in &mut all.spots {
        open(spot, 1..=100, now);
    }
    let first = all.piece(10, "", None);
    assert_eq!(
        (first.flows().unwrap().len(), first.next.map(|place| place.peer)),
        (10, Some(FIRST))
    );
    let request = all.manager.request_flows(50, "", first.next);
    all.manager.handle_ended(FIRST, Some(100));
    let broken = all.manager.take_flows(request).expect("nobody else answers");
    assert_eq!(broken.next, Some(ListCursor { peer: OTHER, lane: 0, slot: 0 }));
    let rest = all.piece(1000, "", broken.next);
    assert_eq!((rest.flows().unwrap().len(), rest.next), (100, None));
    // A place in the dead runtime's flows leads to those of the next one.
    assert_eq!(all.piece(1000, "", first.next).flows().unwrap().len(), 100);
    all.manager.handle_ended(OTHER, Some(100));
    assert_eq!(all.piece(1000, "", None), FlowPage::default(), "nobody is there");
}
