//! A function that reveals its state: it counts a flow's packets and writes the count into each, and with it a trace of which datagrams made it, in which order.
//!
//! What leaves the system then says how far the flow's state had come, and a checker outside can tell whether any of it was ever forgotten.

use crate::frames;
use crate::peers::{self, Client};
use holdfast_nf::{ConfigError, Context, Direction, NetworkFunction, Open, Opening, Verdict};
use holdfast_wire::Packet;
use holdfast_wire::header::proto;

holdfast_nf::flow_state! {
    /// Packets seen, per direction.
    pub struct Stamps {
        /// Forward and reverse.
        pub counts: [u64; 2],
        /// What follows from all datagrams so far and their order.
        pub traces: [u32; 2],
    }
}

/// Where in a datagram's payload the counts are, forward and reverse, bytes.
pub(crate) const COUNT_AT: [usize; 2] = [8, 16];

/// What a trace becomes with this datagram.
pub(crate) fn follow(trace: u32, datagram: u32) -> u32 {
    (trace.rotate_left(5) ^ datagram).wrapping_mul(0x9e37_79b1)
}

/// What a datagram reveals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Revealed {
    /// Which connection it belongs to.
    pub(crate) id: u32,
    /// Which way it goes: forward (0) or reverse.
    pub(crate) way: usize,
    /// Which of the connection's datagrams it is.
    pub(crate) datagram: u32,
    /// Packets of this way that the flow had seen.
    pub(crate) count: u64,
    /// What followed from all of them.
    pub(crate) trace: u32,
}

/// Reads a packet's stamp. `None` unless it is a client's datagram, or the first fragment of one.
pub(crate) fn revealed(seen: &frames::Seen<'_>, clients: &[Client]) -> Option<Revealed> {
    if seen.protocol != proto::UDP || seen.is_later || seen.payload.len() < peers::WRITTEN {
        return None;
    }
    let (client, way) = peers::whose(clients, seen)?;
    let value = u64::from_be_bytes(*seen.payload.get(COUNT_AT[way]..)?.first_chunk::<8>()?);
    let datagram = u32::from_be_bytes(*seen.payload.get(4..)?.first_chunk::<4>()?);
    let (count, trace) = (value & u64::from(u32::MAX), (value >> 32) as u32);
    Some(Revealed { id: client.id(), way, datagram, count, trace })
}

/// See the module.
pub(crate) struct Stamper;

impl NetworkFunction for Stamper {
    const NAME: &'static str = "stamper";
    type Config = ();
    type Flow = Stamps;
    type Shared = ();

    fn new((): ()) -> Result<Stamper, ConfigError> {
        Ok(Stamper)
    }

    fn shared(&self) {}

    fn open(&self, _packet: &Packet, _shared: &mut (), _cx: &mut Opening<'_>) -> Open<Stamps> {
        Open::Accept(Stamps::default())
    }

    fn process(&self, packet: &mut Packet, flow: &mut Stamps, _shared: &mut (), cx: &mut Context) -> Verdict {
        // Only a datagram's first fragment has the bytes that are stamped.
        if packet.layers.fragment_offset != 0 {
            return Verdict::Forward;
        }
        let way = match cx.direction() {
            Direction::Forward => 0,
            Direction::Reverse => 1,
        };
        flow.counts[way] += 1;
        if packet.layers.protocol == proto::UDP {
            let number = packet.l4().get(12..16).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
            flow.traces[way] = follow(flow.traces[way], number.map_or(0, u32::from_be_bytes));
            let count = flow.counts[way] & u64::from(u32::MAX);
            frames::rewrite_udp(packet, COUNT_AT[way], u64::from(flow.traces[way]) << 32 | count);
        }
        Verdict::Forward
    }
}
