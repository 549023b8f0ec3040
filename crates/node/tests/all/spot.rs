//! A runtime with its own buffers, for tests: frames in, frames out. The file also has
//! functions for its chain and datagrams for its flows.

use holdfast_functions::Forward;
use holdfast_nf::{
    Bound, Chain, ConfigError, Context, FlowState, Function, Holds, NetworkFunction, Open, Opening,
    Verdict,
};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{Control, Member, MemberState, kind};
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_protection::{Peer, Plan, Protection};
use holdfast_wire::nsh::{self, Flags, Outer, index};
use holdfast_wire::{MemoryPool, Meta, NodeId, Packet, PacketPool};
use std::marker::PhantomData;

pub(crate) const SECOND: u64 = 1_000_000_000;

holdfast_nf::flow_state! {
    pub(crate) struct Nothing {
        spare: u64,
    }
}

/// A function that accepts every flow, by its work on each packet.
pub(crate) trait PerPacket: Send + Sync + 'static {
    const NAME: &'static str;
    type Flow: FlowState + Holds<()> + Default;

    fn process(packet: &mut Packet, flow: &mut Self::Flow, cx: &mut Context) -> Verdict;
}

struct Accepting<P>(PhantomData<P>);

impl<P: PerPacket> NetworkFunction for Accepting<P> {
    const NAME: &'static str = P::NAME;
    type Config = ();
    type Flow = P::Flow;
    type Shared = ();

    fn new((): ()) -> Result<Accepting<P>, ConfigError> {
        Ok(Accepting(PhantomData))
    }

    fn shared(&self) {}

    fn open(&self, _: &Packet, _: &mut (), _: &mut Opening<'_>) -> Open<P::Flow> {
        Open::Accept(P::Flow::default())
    }

    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut P::Flow,
        _: &mut (),
        cx: &mut Context,
    ) -> Verdict {
        P::process(packet, flow, cx)
    }
}

pub(crate) fn accepting<P: PerPacket>() -> Box<dyn Function> {
    bound::<Accepting<P>>()
}

pub(crate) fn bound<N: NetworkFunction<Config: Default>>() -> Box<dyn Function> {
    Box::new(Bound::<N>::new(N::Config::default()).expect("nothing to refuse"))
}

/// A UDP datagram from 10.0.0.2 and this port. The payload is one byte, an order to the
/// functions.
pub(crate) fn datagram(port: u16, order: u8) -> Vec<u8> {
    datagram_from(2, port, order)
}

/// As `datagram`, but from 10.0.0.`client`.
pub(crate) fn datagram_from(client: u8, port: u16, order: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend_from_slice(&[
        0x45, 0, 0, 29, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, client, 192, 0, 2, 1,
    ]);
    frame.extend_from_slice(&port.to_be_bytes());
    frame.extend_from_slice(&[0, 53, 0, 9, 0, 0, order]);
    frame
}

fn runtime(me: Peer, flows: usize, report_interval: u64, chains: Vec<ChainSpec>) -> Runtime {
    Runtime::new(
        RuntimeConfig { me, flows, seed: 1, report_interval, fabric: FabricConfig::default() },
        chains,
    )
}

/// A runtime with a forwarding chain for each of these switches, under this plan.
pub(crate) fn forwarding(
    me: Peer,
    report_interval: u64,
    plan: Plan,
    switches: impl IntoIterator<Item = NodeId>,
) -> Runtime {
    let spec = |(number, switch)| ChainSpec {
        name: format!("chain {number}"),
        switch,
        chain: Chain::new(vec![bound::<Forward>()]),
        protection: plan.build(),
    };
    runtime(me, 256, report_interval, switches.into_iter().enumerate().map(spec).collect())
}

/// The frames that an endpoint sends now.
pub(crate) fn frames_of(fabric: &mut Fabric, now: u64) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    fabric.poll_transmit(now, |frame| {
        frames.push(frame.to_vec());
        true
    });
    frames
}

/// True if the frame is a released packet.
pub(crate) fn is_released(frame: &[u8]) -> bool {
    frame[12..14] == [0x89, 0x4f] && frame[21] == index::RELEASED
}

/// A view in which all of these run, on one host.
pub(crate) fn view_of<const N: usize>(peers: [Peer; N]) -> Control {
    let member = |Peer { node, incarnation }| Member {
        node,
        incarnation,
        state: MemberState::Running,
        cluster: 0,
        host: 0,
    };
    Control::View { version: 1, members: peers.map(member).to_vec() }
}

/// See the module.
pub(crate) struct Spot {
    pub(crate) me: Peer,
    pub(crate) runtime: Runtime,
    pub(crate) pool: MemoryPool,
}

impl Spot {
    /// A runtime with one chain of these functions, and so many buffers.
    pub(crate) fn new(
        me: Peer,
        functions: Vec<Box<dyn Function>>,
        protection: Box<dyn Protection>,
        flows: usize,
        buffers: usize,
    ) -> Spot {
        let spec = ChainSpec {
            name: "test".to_owned(),
            switch: NodeId::SWITCH,
            chain: Chain::new(functions),
            protection,
        };
        Spot { me, runtime: runtime(me, flows, SECOND, vec![spec]), pool: MemoryPool::new(buffers) }
    }

    /// The peer asks for the runtime's incarnation, as every peer does that was not told
    /// it: after that its records are taken.
    pub(crate) fn meet(&mut self, other: Peer, now: u64) {
        let mut other = Fabric::new(other, FabricConfig::default());
        other.send(self.me.node, kind::CONTROL, &[]).expect("there is room");
        self.turn(&frames_of(&mut other, now), now);
    }

    fn take(&mut self, bytes: &[u8]) -> Packet {
        let mut packet = self.pool.take().expect("the pool is large enough");
        assert!(packet.copy_from(bytes));
        packet
    }

    /// This frame in the encapsulation in which the switch sends it here.
    pub(crate) fn encapsulated(&mut self, frame: &[u8], index: u8, meta: Meta) -> Vec<u8> {
        let mut packet = self.take(frame);
        packet.meta = meta;
        let outer = Outer { destination: self.me.mac(), source: NodeId::SWITCH.mac(), index };
        assert!(nsh::encapsulate(&mut packet, outer));
        let bytes = packet.bytes().to_vec();
        self.pool.put(packet);
        bytes
    }

    /// A flow's packet from the switch, with its stamp, the epoch of its route, and
    /// flags.
    pub(crate) fn packet(
        &mut self,
        frame: &[u8],
        (stamp, commit, flags): (u64, u32, u8),
    ) -> Vec<u8> {
        self.encapsulated(
            frame,
            index::TO_RUNTIME,
            Meta { stamp, commit, flags, ..Meta::default() },
        )
    }

    /// A tick of the switch, with its table's fill in 1/1000.
    pub(crate) fn tick(&mut self, stamp: u64, fill: u32) -> Vec<u8> {
        self.packet(&[], (stamp, fill, Flags::OAM))
    }

    /// A turn with these frames. Returns the frames that are sent.
    pub(crate) fn turn(&mut self, frames: &[Vec<u8>], now: u64) -> Vec<Vec<u8>> {
        let mut rx: Vec<Packet> = frames.iter().map(|frame| self.take(frame)).collect();
        let mut tx = Vec::new();
        self.runtime.turn(&mut rx, &mut tx, &mut self.pool, now);
        let sent = tx.iter().map(|packet| packet.bytes().to_vec()).collect();
        tx.into_iter().for_each(|packet| self.pool.put(packet));
        sent
    }

    pub(crate) fn flows(&self) -> usize {
        self.runtime.flows(0).map_or(0, |flows| flows.len())
    }

    /// Numbers that the runtime's pools could lease now.
    pub(crate) fn available(&mut self) -> u32 {
        let mut available = 0;
        self.runtime.visit_pools(|_, pool| available += pool.backend().available());
        available
    }

    /// Checks that every buffer is free, or held by a packet that waits.
    pub(crate) fn assert_no_buffer_lost(&self) {
        assert_eq!(self.pool.free() + self.runtime.held(), self.pool.total());
    }
}
