//! Two runtimes with one flow: what the first does when the second owns it.

use holdfast_nf::shared::{Lease, Pool};
use holdfast_nf::{Bound, Chain, ConfigError, Context, DropReason, Function, NetworkFunction, Open, Verdict};
use holdfast_node::address::{COORDINATOR, SWITCH, mac_of, mac_of_life, node_of};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{Control, Member, MemberState};
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_protection::{NfvActor, Peer, Protection, ReleaseAt};
use holdfast_wire::nsh::{self, Flags, Outer, index};
use holdfast_wire::{MemoryPool, Packet, PacketPool};

const PEERS: [Peer; 2] = [Peer { node: 16, incarnation: 1 }, Peer { node: 17, incarnation: 2 }];
const SECOND: u64 = 1_000_000_000;

holdfast_nf::flow_state! {
    struct Leased {
        number: u32,
        spare: u32,
    }
}

holdfast_nf::shared_state! {
    struct Numbers {
        pool: Pool,
    }
}

/// Needs a number for every flow.
struct Leaser;

impl NetworkFunction for Leaser {
    const NAME: &'static str = "leaser";
    type Config = ();
    type Flow = Leased;
    type Shared = Numbers;

    fn new((): ()) -> Result<(Leaser, Numbers), ConfigError> {
        Ok((Leaser, Numbers { pool: Pool::new(256) }))
    }

    fn open(&self, _: &Packet, shared: &mut Numbers, cx: &mut Context) -> Open<Leased> {
        match shared.pool.lease(cx) {
            Lease::Granted(number) => Open::Accept(Leased { number, spare: 0 }),
            Lease::Wait => Open::Wait,
            Lease::Exhausted => Open::Drop(DropReason::PoolEmpty),
        }
    }

    fn process(&self, _: &mut Packet, _: &mut Leased, _: &mut Numbers, _: &mut Context) -> Verdict {
        Verdict::Forward
    }

    fn expire(&self, flow: &mut Leased, shared: &mut Numbers) {
        shared.pool.give_back(flow.number);
    }

    fn migrate_out(&self, flow: &mut Leased, shared: &mut Numbers) {
        shared.pool.forget(flow.number);
    }
}

/// Two runtimes that know each other, and the frames between them.
pub(crate) struct Pair {
    pub(crate) runtimes: [Runtime; 2],
    coordinator: Fabric,
    pool: MemoryPool,
    now: u64,
    /// Frames from one to the other.
    pub(crate) between: usize,
    /// Released packets, and those of them that were rejected.
    pub(crate) left: (usize, usize),
}

impl Pair {
    fn new() -> Pair {
        let leaser = || -> Box<dyn Function> { Box::new(Bound::<Leaser>::new(()).expect("nothing to refuse")) };
        Pair::of(leaser, || Box::new(NfvActor::new(ReleaseAt::Replica)))
    }

    /// Both have this function under this protection.
    pub(crate) fn of(function: impl Fn() -> Box<dyn Function>, protection: impl Fn() -> Box<dyn Protection>) -> Pair {
        let runtimes = PEERS.map(|me| {
            let config = RuntimeConfig { me, flows: 8, seed: 1, report_interval: SECOND, fabric: FabricConfig::default() };
            let (chain, protection) = (Chain::new(vec![function()]), protection());
            Runtime::new(config, vec![ChainSpec { name: "test".to_owned(), switch: SWITCH, chain, protection }])
        });
        let coordinator = Fabric::new(Peer { node: COORDINATOR, incarnation: 1 }, FabricConfig::default());
        let mut pair = Pair { runtimes, coordinator, pool: MemoryPool::new(256), now: SECOND, between: 0, left: (0, 0) };
        let member = |peer: Peer| Member {
            node: peer.node,
            incarnation: peer.incarnation,
            state: MemberState::Running,
            cluster: 0,
            host: 0,
        };
        for peer in PEERS {
            pair.coordinator.set_peer(peer);
            let view = Control::View { version: 1, members: PEERS.map(member).to_vec() };
            pair.coordinator.send_control(peer.node, &view);
        }
        let mut frames = Vec::new();
        pair.coordinator.poll_transmit(pair.now, |frame| {
            frames.push(frame.to_vec());
            true
        });
        for frame in frames {
            let at = usize::from(frame[..6] == mac_of(PEERS[1].node));
            let packet = pair.packet(&frame);
            pair.turn(at, vec![packet]);
        }
        pair
    }

    /// The runtime leases from its own block from now on.
    fn grant(&mut self, at: usize, used: [u64; 4]) {
        self.runtimes[at].visit_pools(|_, pool| pool.backend().grant_block(0, &used));
    }

    fn packet(&mut self, frame: &[u8]) -> Packet {
        let mut packet = self.pool.take().expect("the pool is large enough");
        assert!(packet.copy_from(frame));
        packet
    }

    /// A turn of one runtime; what it sends to the other arrives there.
    fn turn(&mut self, at: usize, mut rx: Vec<Packet>) {
        let mut at = at;
        for _ in 0..8 {
            let mut tx = Vec::new();
            self.runtimes[at].turn(&mut rx, &mut tx, &mut self.pool, self.now);
            let other = Some(PEERS[1 - at].node);
            for packet in tx {
                let bytes = packet.bytes();
                if bytes.first_chunk().and_then(node_of) == other {
                    self.between += 1;
                    rx.push(packet);
                    continue;
                }
                if bytes[12..14] == [0x89, 0x4f] && bytes[21] == index::RELEASED {
                    self.left.0 += 1;
                    self.left.1 += usize::from(bytes[18] & Flags::TURNED != 0);
                }
                self.pool.put(packet);
            }
            at = 1 - at;
        }
        rx.into_iter().for_each(|packet| self.pool.put(packet));
    }

    /// The switch sends a flow's first packet under this epoch.
    fn open(&mut self, at: usize, flow: u16, epoch: u32) {
        self.send(at, flow, epoch, Flags::NEW, 0);
    }

    /// The switch sends a packet of a flow, with a byte that tells the functions what to do.
    pub(crate) fn send(&mut self, at: usize, flow: u16, epoch: u32, flags: u8, order: u8) {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend_from_slice(&[0x45, 0, 0, 29, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 2, 192, 0, 2, 1]);
        frame.extend_from_slice(&flow.to_be_bytes());
        frame.extend_from_slice(&[0, 53, 0, 9, 0, 0, order]);
        let mut packet = self.packet(&frame);
        self.now += 1;
        (packet.meta.stamp, packet.meta.commit, packet.meta.flags) = (self.now, epoch, flags);
        let outer = Outer { destination: mac_of_life(PEERS[at]), source: mac_of(SWITCH), index: index::TO_RUNTIME };
        assert!(nsh::encapsulate(&mut packet, outer));
        self.turn(at, vec![packet]);
    }

    pub(crate) fn advance(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += SECOND;
            for (at, peer) in PEERS.iter().enumerate() {
                let mut tick = self.packet(&[]);
                (tick.meta.stamp, tick.meta.flags) = (self.now, Flags::OAM);
                let outer = Outer { destination: mac_of_life(*peer), source: mac_of(SWITCH), index: index::TO_RUNTIME };
                assert!(nsh::encapsulate(&mut tick, outer));
                self.turn(at, vec![tick]);
            }
        }
    }

    fn available(&mut self, at: usize) -> u32 {
        let mut available = 0;
        self.runtimes[at].visit_pools(|_, pool| available += pool.backend().available());
        available
    }

    fn owned(&self, at: usize) -> usize {
        self.runtimes[at].flows(0).map_or(0, |flows| flows.owned())
    }

    pub(crate) fn assert_no_buffer_lost(&self) {
        let held: usize = self.runtimes.iter().map(|runtime| runtime.held()).sum();
        assert_eq!(self.pool.free() + held, self.pool.total());
    }
}

/// A key lives again at the second runtime, and the first becomes the new flow's replica: its own flow has ended, its number is free, and
/// flows that were filed behind it in the timer wheel end in time although its slot is used again.
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

/// The flow waits for a number when its key comes to live at the other runtime: what waits is dropped, and no number is leased for it.
#[test]
fn a_flow_that_waits_to_open_gives_way() {
    let mut pair = Pair::new();
    pair.grant(1, [0; 4]);
    pair.open(0, 1, 1);
    assert_eq!(pair.runtimes[0].held(), 1);
    pair.open(1, 1, 2);
    assert_eq!((pair.runtimes[0].held(), pair.owned(0), pair.owned(1)), (0, 0, 1));
    assert_eq!(pair.runtimes[0].drops().get(DropReason::StaleEpoch), 1);
    pair.grant(0, [0; 4]);
    pair.advance(1);
    assert_eq!(pair.available(0), 256);
    pair.assert_no_buffer_lost();
}
