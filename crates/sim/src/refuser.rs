//! A network function that rejects packets, so that their senders are told.
//!
//! The refuser of simulated worlds rejects three of four datagrams to [`GUARDED`], by
//! their numbers, but never the first of a flow. The refuser rejects every flow to
//! [`SHUT`]. A TCP connection to a [`limited`] end may have so many packets, both
//! directions together; all later ones are rejected.

use crate::plan::End;
use holdfast_nf::{
    ConfigError, Context, Direction, DropReason, NetworkFunction, Open, Opening, Packet, Verdict,
};
use holdfast_wire::FlowKey;
use holdfast_wire::header::proto;

/// Server address to which most datagrams of a flow are rejected.
pub const GUARDED: End = ([192, 0, 2, 7], 4);
/// Server address to which every flow is rejected.
pub const SHUT: End = ([192, 0, 2, 7], 5);

/// Address of the ends whose connections have a limit. A port's distance from this one is
/// the limit.
const LIMITED: End = ([192, 0, 2, 8], 100);

/// The server end whose TCP connections may have `packets` packets, both directions
/// together.
pub fn limited(packets: u16) -> End {
    (LIMITED.0, LIMITED.1 + packets)
}

/// Packet limit of a TCP connection to this end, if it has one.
pub(crate) fn limit((address, port): End) -> Option<u64> {
    (address == LIMITED.0 && port > LIMITED.1).then(|| u64::from(port - LIMITED.1))
}

/// True if the datagram to [`GUARDED`] with this number passes.
pub fn passes(datagram: u32) -> bool {
    datagram % 4 == 1
}

holdfast_nf::flow_state! {
    /// Flow state of the refuser.
    pub struct Begun {
        /// Packets so far, both directions together.
        pub packets: u64,
    }
}

/// The network function, see the module.
pub(crate) struct Refuser;

/// Destination port of a UDP packet.
fn port(packet: &Packet) -> Option<u16> {
    FlowKey::of(packet)
        .filter(|key| key.protocol == u16::from(proto::UDP))
        .map(|key| key.destination_port)
}

/// Packet limit of a segment's connection, if it has one.
fn limit_of(packet: &Packet, direction: Direction) -> Option<u64> {
    let key = FlowKey::of(packet).filter(|key| key.protocol == u16::from(proto::TCP))?;
    let (address, port) = match direction {
        Direction::Forward => (key.destination, key.destination_port),
        Direction::Reverse => (key.source, key.source_port),
    };
    let [.., a, b, c, d] = address;
    limit(([a, b, c, d], port))
}

impl NetworkFunction for Refuser {
    const NAME: &'static str = "refuser";
    type Config = ();
    type Flow = Begun;
    type Shared = ();

    fn new((): ()) -> Result<Refuser, ConfigError> {
        Ok(Refuser)
    }

    fn shared(&self) {}

    fn open(&self, packet: &Packet, _shared: &mut (), _cx: &mut Opening<'_>) -> Open<Begun> {
        if port(packet) == Some(SHUT.1) {
            Open::Reject(DropReason::PolicyDenied)
        } else {
            Open::Accept(Begun::default())
        }
    }

    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Begun,
        _shared: &mut (),
        cx: &mut Context,
    ) -> Verdict {
        flow.packets += 1;
        if limit_of(packet, cx.direction()).is_some_and(|limit| flow.packets > limit) {
            return Verdict::Reject(DropReason::QuotaExceeded);
        }
        let is_guarded = cx.direction() == Direction::Forward
            && flow.packets > 1
            && port(packet) == Some(GUARDED.1);
        let number = packet
            .l4()
            .get(12..16)
            .and_then(|bytes| bytes.first_chunk())
            .map_or(0, |number| u32::from_be_bytes(*number));
        if is_guarded && !passes(number) {
            Verdict::Reject(DropReason::PolicyDenied)
        } else {
            Verdict::Forward
        }
    }
}
