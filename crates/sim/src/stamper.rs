//! A function that reveals its state: it counts a flow's packets and writes the count into each.
//!
//! What leaves the system then says how far the flow's state had come, and a checker outside can tell whether any of it was ever forgotten.

use crate::frames;
use holdfast_nf::{ConfigError, Context, Direction, NetworkFunction, Open, Verdict};
use holdfast_wire::Packet;
use holdfast_wire::header::proto;

holdfast_nf::flow_state! {
    /// Packets seen, per direction.
    pub struct Stamps {
        /// Forward and reverse.
        pub counts: [u64; 2],
    }
}

/// Where in a datagram's payload the counts are, forward and reverse, bytes.
pub(crate) const COUNT_AT: [usize; 2] = [8, 16];

/// Which connection a datagram belongs to, which way it goes, and the count that it reveals. `None` if it is no datagram of a client's.
pub(crate) fn revealed(seen: &frames::Seen<'_>) -> Option<(u32, usize, u64)> {
    if seen.protocol != proto::UDP || seen.payload.len() < 24 {
        return None;
    }
    let id = seen.payload.first_chunk::<4>()?;
    let way = usize::from(seen.destination.0[0] == 10);
    let count = seen.payload.get(COUNT_AT[way]..)?.first_chunk::<8>()?;
    Some((u32::from_be_bytes(*id), way, u64::from_be_bytes(*count)))
}

/// See the module.
pub(crate) struct Stamper;

impl NetworkFunction for Stamper {
    const NAME: &'static str = "stamper";
    type Config = ();
    type Flow = Stamps;
    type Shared = ();

    fn new((): ()) -> Result<(Stamper, ()), ConfigError> {
        Ok((Stamper, ()))
    }

    fn open(&self, _packet: &Packet, _shared: &mut (), _cx: &mut Context) -> Open<Stamps> {
        Open::Accept(Stamps::default())
    }

    fn process(&self, packet: &mut Packet, flow: &mut Stamps, _shared: &mut (), cx: &mut Context) -> Verdict {
        let way = match cx.direction() {
            Direction::Forward => 0,
            Direction::Reverse => 1,
        };
        flow.counts[way] += 1;
        if packet.layers.protocol == proto::UDP {
            frames::rewrite_udp(packet, COUNT_AT[way], flow.counts[way]);
        }
        Verdict::Forward
    }
}
