//! A function that refuses, so that senders are told.
//!
//! The refuser of simulated worlds rejects three datagrams of four to [`GUARDED`], by their
//! numbers, but never the first of a flow, and every flow to [`SHUT`].

use crate::plan::End;
use holdfast_nf::{ConfigError, Context, Direction, DropReason, NetworkFunction, Open, Packet, Verdict};
use holdfast_wire::FlowKey;
use holdfast_wire::header::proto;

/// Server address to which most datagrams of a flow are rejected.
pub const GUARDED: End = ([192, 0, 2, 7], 4);
/// Server address to which every flow is rejected.
pub const SHUT: End = ([192, 0, 2, 7], 5);

/// Datagrams to [`GUARDED`] that pass.
pub fn passes(datagram: u32) -> bool {
    datagram % 4 == 1
}

holdfast_nf::flow_state! {
    /// Flow state of the refuser.
    pub struct Begun {
        /// Packets so far.
        pub packets: u64,
    }
}

/// See the module.
pub(crate) struct Refuser;

/// The port for which a datagram is.
fn port(packet: &Packet) -> Option<u16> {
    FlowKey::of(packet).filter(|key| key.protocol == u16::from(proto::UDP)).map(|key| key.destination_port)
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

    fn open(&self, packet: &Packet, _shared: &mut (), _cx: &mut Context) -> Open<Begun> {
        if port(packet) == Some(SHUT.1) { Open::Reject(DropReason::PolicyDenied) } else { Open::Accept(Begun::default()) }
    }

    fn process(&self, packet: &mut Packet, flow: &mut Begun, _shared: &mut (), cx: &mut Context) -> Verdict {
        flow.packets += 1;
        let is_guarded = cx.direction() == Direction::Forward && flow.packets > 1 && port(packet) == Some(GUARDED.1);
        let number =
            packet.l4().get(12..16).and_then(|bytes| bytes.first_chunk()).map_or(0, |number| u32::from_be_bytes(*number));
        if is_guarded && !passes(number) { Verdict::Reject(DropReason::PolicyDenied) } else { Verdict::Forward }
    }
}
