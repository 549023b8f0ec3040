//! Two runtimes with one flow: the first one's work when the second owns the flow.

use crate::spot::{SECOND, Spot, bound, datagram, frames_of, is_released, view_of};
use holdfast_nf::shared::{Lease, Pool};
use holdfast_nf::{
    ConfigError, Context, DropReason, Function, Leased, NetworkFunction, Open, Opening, Verdict,
};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{Ended, kind};
use holdfast_protection::{Peer, Plan, Protection};
use holdfast_wire::nsh::Flags;
use holdfast_wire::{FlowKey, NodeId, Packet, PacketPool};
use zerocopy::IntoBytes;

const PEERS: [Peer; 2] = [
    Peer { node: NodeId::new(16), incarnation: 1 },
    Peer { node: NodeId::new(17), incarnation: 2 },
];

/// The pool that flows lease from.
enum Pooled {}

holdfast_nf::flow_state! {
    struct Borrower {
        number: Leased<Pooled>,
        spare: u32,
    }
}

holdfast_nf::shared_state! {
    struct Numbers {
        pool: Pool<Pooled>,
    }
}

/// Needs a number for every flow.
struct Leaser;

impl NetworkFunction for Leaser {
    const NAME: &'static str = "leaser";
    type Config = ();
    type Flow = Borrower;
    type Shared = Numbers;

    fn new((): ()) -> Result<Leaser, ConfigError> {
        Ok(Leaser)
    }

    fn shared(&self) -> Numbers {
        Numbers { pool: Pool::new(256) }
    }

    fn open(&self, _: &Packet, shared: &mut Numbers, cx: &mut Opening<'_>) -> Open<Borrower> {
        match shared.pool.lease(cx) {
            Lease::Granted(number) => Open::Accept(Borrower { number, spare: 0 }),
            Lease::Wait => Open::Wait,
            Lease::Exhausted => Open::Drop(DropReason::PoolEmpty),
        }
    }

    fn process(
        &self,
        _: &mut Packet,
        _: &mut Borrower,
        _: &mut Numbers,
        _: &mut Context,
    ) -> Verdict {
        Verdict::Forward
    }
}

/// Two runtimes that know each other, and the frames between them.
pub(crate) struct Pair {
    pub(crate) spots: [Spot; 2],
    switch: Fabric,
    now: u64,
    /// Frames from one to the other.
    pub(crate) between: usize,
    /// Released packets, and rejected ones among them.
    pub(crate) left: (usize, usize),
    /// Released frames that have not been looked at.
    pub(crate) released: Vec<Vec<u8>>,
}

impl Pair {
    fn new() -> Pair {
        Pair::of(bound::<Leaser>, || Plan::NFVACTOR.build())
    }

    /// Two runtimes that have this function under this protection.
    pub(crate) fn of(
        function: impl Fn() -> Box<dyn Function>,
        protection: impl Fn() -> Box<dyn Protection>,
    ) -> Pair {
        let mut spots = PEERS.map(|me| Spot::new(me, vec![function()], protection(), 8, 128));
        for spot in &mut spots {
            [NodeId::COORDINATOR, NodeId::SWITCH]
                .into_iter()
                .for_each(|node| spot.meet(Peer { node, incarnation: 1 }, SECOND));
        }
        let mut switch =
            Fabric::new(Peer { node: NodeId::SWITCH, incarnation: 1 }, FabricConfig::default());
        PEERS.into_iter().for_each(|peer| switch.set_peer(peer));
        let mut pair =
            Pair { spots, switch, now: SECOND, between: 0, left: (0, 0), released: Vec::new() };
        let mut coordinator = Fabric::new(
            Peer { node: NodeId::COORDINATOR, incarnation: 1 },
            FabricConfig::default(),
        );
        for (at, peer) in PEERS.into_iter().enumerate() {
            coordinator.set_peer(peer);
            coordinator.send_control(peer.node, &view_of(PEERS));
            pair.turn(at, frames_of(&mut coordinator, pair.now));
        }
        pair
    }

    /// The runtime leases from its own block from now on.
    fn grant(&mut self, at: usize, used: [u64; 4]) {
        self.spots[at].runtime.visit_pools(|_, pool| pool.backend().grant_block(0, &used));
    }

    /// A turn of one runtime; its frames for the other arrive there.
    fn turn(&mut self, mut at: usize, mut frames: Vec<Vec<u8>>) {
        for _ in 0..8 {
            let mut sent = self.spots[at].turn(&frames, self.now);
            at = 1 - at;
            frames = sent
                .extract_if(.., |frame| {
                    frame.first_chunk().and_then(NodeId::of_mac) == Some(PEERS[at].node)
                })
                .collect();
            self.between += frames.len();
            for frame in sent.iter().filter(|frame| is_released(frame)) {
                self.left.0 += 1;
                self.left.1 += usize::from(frame[18] & Flags::TURNED != 0);
                self.released.push(frame.clone());
            }
        }
    }

    /// The switch sends a flow's first packet under this epoch.
    fn open(&mut self, at: usize, flow: u16, epoch: u32) {
        self.send(at, flow, epoch, Flags::NEW, 0);
    }

    /// The switch sends a packet of a flow, with a byte that tells the functions what to
    /// do.
    pub(crate) fn send(&mut self, at: usize, flow: u16, epoch: u32, flags: u8, order: u8) {
        self.send_frame(at, &datagram(flow, order), epoch, flags);
    }

    pub(crate) fn send_frame(&mut self, at: usize, frame: &[u8], epoch: u32, flags: u8) {
        self.now += 1;
        let packet = self.spots[at].packet(frame, (self.now, epoch, flags));
        self.turn(at, vec![packet]);
    }

    /// The switch has given the key of this flow to another flow.
    fn give_key_away(&mut self, at: usize, flow: u16, epoch: u32) {
        let mut frame = self.spots[at].pool.take().expect("a buffer");
        assert!(frame.copy_from(&datagram(flow, 0)) && frame.parse().is_ok());
        let key = FlowKey::of(&frame).expect("a key");
        self.spots[at].pool.put(frame);
        let ended = Ended { key: key.into(), epoch: epoch.into() };
        self.switch.send(PEERS[at].node, kind::ENDED, ended.as_bytes()).expect("room");
        let frames = frames_of(&mut self.switch, self.now);
        self.turn(at, frames);
    }

    pub(crate) fn advance(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += SECOND;
            for at in 0..2 {
                let tick = self.spots[at].tick(self.now, 0);
                self.turn(at, vec![tick]);
            }
        }
    }

    fn available(&mut self, at: usize) -> u32 {
        self.spots[at].available()
    }

    fn owned(&self, at: usize) -> usize {
        self.spots[at].runtime.flows(0).map_or(0, |flows| flows.owned())
    }

    pub(crate) fn assert_no_buffer_lost(&self) {
        self.spots.iter().for_each(Spot::assert_no_buffer_lost);
    }
}

/// A key is opened again at the second runtime, and the first becomes the new flow's
/// replica. The first one's own flow has ended, and its number is free. Flows filed
/// behind it in the timer wheel end in time, although its slot is used again.
#[test]
fn a_flow_that_lives_again_elsewhere_ends_here() {
    let mut pair = Pair::new();
    (0..2).for_each(|at| pair.grant(at, [0; 4]));
    pair.open(0, 2, 1);
    pair.open(0, 1, 2);
    assert_eq!((pair.owned(0), pair.available(0)), (2, 254));
    pair.open(1, 1, 3);
    assert_eq!((pair.owned(0), pair.available(0)), (1, 255), "the second runtime owns the flow");
    assert_eq!((pair.owned(1), pair.available(1)), (1, 255));
    pair.advance(100);
    pair.open(0, 1, 4);
    assert_eq!((pair.owned(0), pair.available(0)), (2, 254), "it lives here again");
    assert_eq!((pair.owned(1), pair.available(1)), (0, 256));
    pair.advance(250);
    assert_eq!((pair.owned(0), pair.available(0)), (1, 255), "the other flow has ended");
    pair.advance(100);
    assert_eq!((pair.owned(0), pair.available(0)), (0, 256));
    pair.assert_no_buffer_lost();
}

/// The switch has given the keys of flows to others, and says so. The flows end here
/// under the epochs that it names, including one that waited to open. Numbers that they
/// had leased are free, their copies go, and flows under other epochs live on.
#[test]
fn a_flow_whose_key_is_anothers_ends_here() {
    let mut pair = Pair::new();
    pair.open(0, 3, 1);
    assert_eq!(pair.spots[0].runtime.held(), 1);
    pair.give_key_away(0, 3, 1);
    assert_eq!((pair.spots[0].runtime.held(), pair.owned(0)), (0, 0));
    assert_eq!(pair.spots[0].runtime.drops().get(DropReason::StaleEpoch), 1);
    (0..2).for_each(|at| pair.grant(at, [0; 4]));
    pair.open(0, 1, 2);
    pair.open(0, 2, 3);
    assert_eq!((pair.owned(0), pair.available(0), pair.spots[1].flows()), (2, 254, 2));
    pair.give_key_away(0, 1, 9);
    pair.advance(1);
    assert_eq!(pair.owned(0), 2, "a flow of another epoch was meant");
    pair.give_key_away(0, 1, 2);
    pair.advance(1);
    assert_eq!((pair.owned(0), pair.available(0), pair.spots[1].flows()), (1, 255, 1));
    pair.assert_no_buffer_lost();
}

/// A flow waits for a number when its key is opened at the other runtime. Its waiting
/// packets are dropped, and no number is leased for it.
#[test]
fn a_flow_that_waits_to_open_gives_way() {
    let mut pair = Pair::new();
    pair.grant(1, [0; 4]);
    pair.open(0, 1, 1);
    assert_eq!(pair.spots[0].runtime.held(), 1);
    pair.open(1, 1, 2);
    assert_eq!((pair.spots[0].runtime.held(), pair.owned(0), pair.owned(1)), (0, 0, 1));
    assert_eq!(pair.spots[0].runtime.drops().get(DropReason::StaleEpoch), 1);
    pair.grant(0, [0; 4]);
    pair.advance(1);
    assert_eq!(pair.available(0), 256);
    pair.assert_no_buffer_lost();
}
