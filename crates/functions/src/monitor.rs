//! `monitor`: counts packets and bytes, per flow and in total, and changes nothing.

use holdfast_nf::{
    ConfigError, Context, Counters, Direction, NetworkFunction, Open, Opening, Packet, Verdict,
};
use holdfast_wire::header::tcp_flags;
use schemars::JsonSchema;
use serde::Deserialize;

/// The configuration: empty.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MonitorConfig {}

holdfast_nf::flow_state! {
    /// Counts of one flow.
    pub struct Observed {
        /// Stamp of the first packet, ns.
        pub first_seen: u64,
        /// Stamp of the latest packet, ns.
        pub last_seen: u64,
        /// Packets, forward and reverse.
        pub packets: [u64; 2],
        /// Bytes of frames, forward and reverse.
        pub bytes: [u64; 2],
        /// From the SYN to the first answer, ns; 0 if unknown.
        pub handshake: u64,
        /// TCP flags seen, forward and reverse.
        pub flags: [u8; 2],
        /// Zero.
        pub spare: [u8; 6],
    }
}

holdfast_nf::shared_state! {
    /// Counters that all flows of a monitor share.
    pub struct Totals {
        /// Flows, packets, bytes.
        pub counters: Counters,
    }
}

/// A monitor; see the module.
#[derive(Debug)]
pub struct Monitor;

impl NetworkFunction for Monitor {
    const NAME: &'static str = "monitor";
    type Config = MonitorConfig;
    type Flow = Observed;
    type Shared = Totals;

    fn new(_config: MonitorConfig) -> Result<Monitor, ConfigError> {
        Ok(Monitor)
    }

    fn shared(&self) -> Totals {
        Totals { counters: Counters::new(["flows", "packets", "bytes"]) }
    }

    fn open(&self, _packet: &Packet, shared: &mut Totals, cx: &mut Opening<'_>) -> Open<Observed> {
        shared.counters.add(0, 1);
        Open::Accept(Observed { first_seen: cx.now(), ..Observed::default() })
    }

    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Observed,
        shared: &mut Totals,
        cx: &mut Context,
    ) -> Verdict {
        let way = cx.direction() as usize;
        let bytes = packet.len() as u64;
        flow.last_seen = cx.now();
        flow.packets[way] += 1;
        flow.bytes[way] += bytes;
        if let Some(tcp) = packet.tcp() {
            flow.flags[way] |= tcp.flags;
            let is_answer =
                tcp.flags & (tcp_flags::SYN | tcp_flags::ACK) == tcp_flags::SYN | tcp_flags::ACK;
            if cx.direction() == Direction::Reverse && is_answer && flow.handshake == 0 {
                flow.handshake = cx.now() - flow.first_seen;
            }
        }
        shared.counters.add(1, 1);
        shared.counters.add(2, bytes);
        Verdict::Forward
    }
}
