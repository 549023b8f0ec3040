//! A network function that reveals its state. The stamper counts a flow's packets and
//! writes the count into each datagram, with a trace of which datagrams made it, in which
//! order.
//!
//! A checker outside can therefore tell from released packets whether any state was ever
//! forgotten.

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
        /// Digest of all datagrams so far and their order, per direction.
        pub traces: [u32; 2],
    }
}

/// Offsets of the counts in a datagram's payload, forward and reverse, bytes.
pub(crate) const COUNT_AT: [usize; 2] = [8, 16];

/// The trace after this datagram.
pub(crate) fn follow(trace: u32, datagram: u32) -> u32 {
    (trace.rotate_left(5) ^ datagram).wrapping_mul(0x9e37_79b1)
}

/// The stamp of a datagram, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Revealed {
    /// The connection it belongs to.
    pub(crate) id: u32,
    /// Its direction: forward (0) or reverse (1).
    pub(crate) way: usize,
    /// Its number among the connection's datagrams.
    pub(crate) datagram: u32,
    /// Packets of this direction that the flow had seen.
    pub(crate) count: u64,
    /// Trace of all of them.
    pub(crate) trace: u32,
}

/// Reads a packet's stamp. `None` unless it is a client's datagram, or the first fragment
/// of one.
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

/// The network function, see the module.
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

    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Stamps,
        _shared: &mut (),
        cx: &mut Context,
    ) -> Verdict {
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
