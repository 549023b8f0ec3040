//! `monitor`: measures flows, and changes nothing.
//!
//! Theory of operation. A flow's state has a [`Way`] for each direction, with its counts
//! and round-trip times. Only TCP has more than packets and bytes: sequence numbers tell
//! retransmissions from segments out of order, handshakes and timestamps give round-trip
//! times ([`way`]). An answered SYN begins another connection ([`offer`]). A value is
//! worked out when its packet passes, from the flow's own state and the packet's stamp,
//! so a replay gives the same. `holdfast flows` shows the values. `status` shows counters
//! of all flows, and the flows, hosts and ports with the most bytes, which are added up
//! when somebody asks ([`RANKS`](NetworkFunction::RANKS)).
//!
//! In: packets. Out: the same packets. Never: a drop, a changed byte, a table of flows.

mod offer;
mod way;

use holdfast_nf::{
    ConfigError, Context, Counters, NetworkFunction, Open, Opening, Packet, Verdict,
};
use offer::Offer;
use schemars::JsonSchema;
use serde::Deserialize;
use way::{Seen, Segment, Way};

/// The configuration: empty.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MonitorConfig {}

holdfast_nf::flow_state! {
    /// Measurements of one flow.
    pub struct Observed {
        /// Forward and reverse.
        pub ways: [Way; 2],
        /// The latest SYN inside a connection.
        pub offer: Offer,
    }
}

const _: () = assert!(size_of::<Observed>() == 272, "what protections copy");

/// The time within which bytes that were overtaken count as out of order if the handshake
/// was not measured, ns: that of Wireshark's dissector (`packet-tcp.c`).
const REORDERING: u64 = 3_000_000;

impl Observed {
    /// The longest time for which a segment can be late without having been sent again,
    /// ns: a round trip from end to end, as the handshake took it. A sender cannot have
    /// learnt sooner that a segment is missing.
    fn reordering(&self) -> u64 {
        let [forward, back] = self.ways.each_ref().map(Way::handshake);
        forward.zip(back).map_or(REORDERING, |(forward, back)| (forward + back) * 1_000)
    }

    /// Takes a segment of the direction `from`.
    fn pass(&mut self, from: usize, segment: &Segment, now: u64) -> Seen {
        if let Some(seen) = self.admit(from, segment, now) {
            self.ways[from].count(seen);
            return seen;
        }
        let reordering = self.reordering();
        self.ways[1 - from].answer(segment, now);
        self.ways[from].pass(segment, now, reordering)
    }
}

holdfast_nf::shared_state! {
    /// Counters that all flows of a monitor share.
    pub struct Totals {
        /// Indexes: [`COUNTERS`].
        pub counters: Counters,
    }
}

/// Names of counters in `status`.
const COUNTERS: [&str; 6] =
    ["flows", "packets", "bytes", "retransmitted", "out_of_order", "keep_alives"];

/// A monitor; see the module.
#[derive(Debug)]
pub struct Monitor;

impl NetworkFunction for Monitor {
    const NAME: &'static str = "monitor";
    const VALUES: &'static [&'static str] = &[
        "packets",
        "bytes",
        "retransmitted",
        "out_of_order",
        "handshake_us",
        "rtt_us",
        "rttvar_us",
        "packets_back",
        "bytes_back",
        "retransmitted_back",
        "out_of_order_back",
        "handshake_back_us",
        "rtt_back_us",
        "rttvar_back_us",
    ];
    const RANKS: bool = true;
    type Config = MonitorConfig;
    type Flow = Observed;
    type Shared = Totals;

    fn new(_config: MonitorConfig) -> Result<Monitor, ConfigError> {
        Ok(Monitor)
    }

    fn shared(&self) -> Totals {
        Totals { counters: Counters::new(COUNTERS) }
    }

    fn open(&self, _packet: &Packet, shared: &mut Totals, _cx: &mut Opening<'_>) -> Open<Observed> {
        shared.counters.add(0, 1);
        Open::Accept(Observed::default())
    }

    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Observed,
        shared: &mut Totals,
        cx: &mut Context,
    ) -> Verdict {
        let bytes = packet.len() as u64;
        let at = cx.direction() as usize;
        flow.ways[at].packets += 1;
        flow.ways[at].bytes += bytes;
        shared.counters.add(1, 1);
        shared.counters.add(2, bytes);
        let Some(segment) = Segment::of(packet) else { return Verdict::Forward };
        match flow.pass(at, &segment, cx.now()) {
            Seen::Nothing | Seen::New => {}
            Seen::Retransmitted => shared.counters.add(3, 1),
            Seen::OutOfOrder => shared.counters.add(4, 1),
            Seen::KeepAlive => shared.counters.add(5, 1),
        }
        Verdict::Forward
    }

    fn values(&self, flow: &Observed, into: &mut Vec<Option<u64>>) {
        for way in &flow.ways {
            let of_tcp = |value: u32| way.is_tcp().then_some(u64::from(value));
            let (rtt, rttvar) = way.rtt().unzip();
            into.extend([
                Some(way.packets),
                Some(way.bytes),
                of_tcp(way.retransmitted),
                of_tcp(way.out_of_order),
                way.handshake(),
                rtt,
                rttvar,
            ]);
        }
    }
}
