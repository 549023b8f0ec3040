//! `packet_limit`: limits the packets of a flow, both directions together. The guide's
//! example. An end that sends more is told. Both ends of a TCP connection are told at
//! once, by resets in sequence, so neither waits for the other.

use holdfast_nf::{
    ConfigError, Context, DropReason, NetworkFunction, Open, Opening, Packet, Verdict,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// The function's configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PacketLimitConfig {
    /// Maximum number of packets of a flow, both directions together.
    pub packets: u64,
}

holdfast_nf::flow_state! {
    /// State of one flow.
    pub struct Seen {
        /// Packets so far, those that were dropped included.
        pub packets: u64,
    }
}

/// A packet limit; see the module.
#[derive(Debug)]
pub struct PacketLimit {
    packets: u64,
}

impl NetworkFunction for PacketLimit {
    const NAME: &'static str = "packet_limit";
    type Config = PacketLimitConfig;
    type Flow = Seen;
    type Shared = ();

    fn new(config: PacketLimitConfig) -> Result<PacketLimit, ConfigError> {
        if config.packets == 0 {
            return Err(ConfigError::at(
                "packets",
                "0 packets would let no flow open; leave the function out, or deny in a firewall",
            ));
        }
        Ok(PacketLimit { packets: config.packets })
    }

    fn shared(&self) {}

    fn open(&self, _packet: &Packet, _shared: &mut (), _cx: &mut Opening<'_>) -> Open<Seen> {
        Open::Accept(Seen::default())
    }

    fn process(
        &self,
        _packet: &mut Packet,
        flow: &mut Seen,
        _shared: &mut (),
        _cx: &mut Context,
    ) -> Verdict {
        flow.packets += 1;
        if flow.packets > self.packets {
            Verdict::Reject(DropReason::QuotaExceeded)
        } else {
            Verdict::Forward
        }
    }
}
