//! `rate_limiter`: lets packets pass up to a rate, of each flow, of each source, or of
//! the whole chain, and drops or marks packets beyond it.
//!
//! Theory of operation. The function is a policer of token buckets ([`Rate`]). A flow's
//! bucket is part of the flow's state, is filled by the packets' timestamps, and moves
//! with the flow. A shared bucket is kept by the switch, which all packets of its flows
//! pass ([`rate_limits`](NetworkFunction::rate_limits), `node/switch/rates`): one budget,
//! whichever runtimes serve the flows, and a flood is dropped before it reaches a
//! runtime. A packet must conform to the shared limits first, then to those of its flow,
//! each in the order of the configuration. A packet takes no tokens from a limit that it
//! exceeds, but has taken tokens from the limits before.
//!
//! In: packets. Out: the same packets, some of them marked. Never: a queue; a function
//! holds no packets, so it does not shape.

mod amount;

use crate::qos_marker::{DscpConfig, Mark};
use holdfast_nf::{
    Budget, ConfigError, Context, Direction, DropReason, FlowKey, NetworkFunction, Open, Opening,
    Packet, Rate, RateLimit, Verdict,
};
use holdfast_wire::selector::{Selector, SelectorError};
use holdfast_wire::zone::Zones;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;

/// Maximum number of limits per flow; each has a bucket in every flow's state.
const PER_FLOW: usize = 4;

/// The flows that share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// Each flow has a rate of its own.
    Flow,
    /// All flows that were opened from one address or network share the rate.
    Source,
    /// All flows of the chain share the rate.
    Chain,
}

/// The packets of a flow that count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// Packets of both directions together.
    #[default]
    Both,
    /// Packets from the side that opened the connection.
    Forward,
    /// Packets to the side that opened the connection.
    Reverse,
}

/// A limit.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitConfig {
    /// The flows that share the rate: those of a `source` or of the `chain`. A limit per
    /// `flow` gives each flow a rate of its own.
    pub per: Per,
    /// The rate, such as `10 Mbit/s` or `500 packets/s`. Bytes are those of IP packets.
    pub rate: String,
    /// The maximum that passes at once, such as `64 kB` or `50 packets`. The default is
    /// what the rate gives in 100 ms, and at least ten full packets.
    #[serde(default)]
    pub burst: Option<String>,
    /// The flows that are limited, as a selector such as `udp from any to any port 53`;
    /// all flows by default. Shared limits see a flow's addresses as the flow enters the
    /// chain, limits per flow as earlier functions of the chain left them.
    #[serde(default)]
    pub flows: Option<String>,
    /// The direction of the packets that count: `both` together, `forward` or `reverse`.
    #[serde(default)]
    pub direction: Counted,
    /// The length of an IPv4 source's prefix, for a limit per source; 32 by default.
    #[serde(default)]
    #[schemars(range(max = 32))]
    pub prefix_v4: Option<u8>,
    /// The length of an IPv6 source's prefix, for a limit per source; 64 by default.
    #[serde(default)]
    #[schemars(range(max = 128))]
    pub prefix_v6: Option<u8>,
    /// The DSCP of packets beyond the rate, for a limit per flow: they pass marked
    /// instead of being dropped.
    #[serde(default)]
    pub mark: Option<DscpConfig>,
}

/// The function's configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimiterConfig {
    /// The limits. A packet must conform to all that apply to it.
    pub limits: Vec<LimitConfig>,
}

holdfast_nf::flow_state! {
    /// State of one flow.
    pub struct Buckets {
        /// The flow's buckets, in the order of the limits per flow.
        pub buckets: [u64; PER_FLOW],
        /// The limits that apply to the flow, a bit each.
        pub limits: u8,
        /// 1 once a packet has exceeded one of these limits.
        pub exceeded: u8,
        /// Padding, zero.
        pub spare: [u8; 6],
    }
}

/// A limit that every flow has of its own.
#[derive(Debug)]
struct FlowLimit {
    rate: Rate,
    flows: Selector,
    counted: Counted,
    /// The mark of packets beyond the rate; `None` drops them.
    mark: Option<Mark>,
    /// The rate as written.
    text: String,
}

/// A rate limiter; see the module.
pub struct RateLimiter {
    /// Limits per flow, at most [`PER_FLOW`].
    own: Vec<FlowLimit>,
    shared: Vec<RateLimit>,
}

impl Counted {
    #[inline]
    fn counts(self, is_reply: bool) -> bool {
        match self {
            Counted::Both => true,
            Counted::Forward => !is_reply,
            Counted::Reverse => is_reply,
        }
    }
}

/// A limit of either kind.
enum Limit {
    Own(FlowLimit),
    Shared(RateLimit),
}

fn limit(config: &LimitConfig, path: &str, zones: &Zones) -> Result<Limit, ConfigError> {
    let error = |key: &str, message: String| ConfigError::at(format!("{path}.{key}"), message);
    let rate = amount::rate(&config.rate, config.burst.as_deref())
        .map_err(|(key, message)| error(key, message))?;
    let wrong = |wrong: SelectorError| ConfigError {
        path: format!("{path}.flows"),
        message: wrong.message,
        offset: Some(wrong.offset),
    };
    let flows = config.flows.as_ref().map(|text| Selector::read(text, zones).map_err(wrong));
    let flows = flows.transpose()?.unwrap_or_default();
    for (key, prefix, most) in
        [("prefix_v4", config.prefix_v4, 32), ("prefix_v6", config.prefix_v6, 128)]
    {
        match prefix {
            Some(_) if config.per != Per::Source => {
                return Err(error(key, "only a limit `per: source` has a prefix".to_owned()));
            }
            Some(bits) if bits > most => {
                return Err(error(
                    key,
                    format!("{bits} is more than the {most} bits of an address"),
                ));
            }
            _ => {}
        }
    }
    if config.per == Per::Flow {
        let mark = config.mark.as_ref().map(DscpConfig::read).transpose();
        let mark = mark.map_err(|message| error("mark", message))?;
        let mark = mark.map(|dscp| Mark { dscp: Some(dscp), pcp: None });
        let (counted, text) = (config.direction, config.rate.clone());
        return Ok(Limit::Own(FlowLimit { rate, flows, counted, mark, text }));
    }
    if config.mark.is_some() {
        let message = "only a limit `per: flow` can mark: what exceeds a shared one is dropped before it comes to a runtime";
        return Err(error("mark", message.to_owned()));
    }
    if !flows.on.is_any() {
        let message = "a shared limit cannot name ports of the box: it counts later packets too, and replies come in by another port. Name addresses, or let a service-chain rule name the port";
        return Err(error("flows", message.to_owned()));
    }
    let budget = match config.per {
        Per::Chain => Budget::Chain,
        _ => {
            let (v4, v6) = (config.prefix_v4.unwrap_or(32), config.prefix_v6.unwrap_or(64));
            Budget::Source { v4, v6 }
        }
    };
    let counted = config.direction;
    let counts = Arc::new(move |key: &FlowKey, is_reply: bool| {
        counted.counts(is_reply) && flows.matches_key(key)
    });
    Ok(Limit::Shared(RateLimit { rate, budget, counts }))
}

impl RateLimiter {
    /// The limits with a bit in `limits`, with their indexes.
    #[inline]
    fn limits_of(&self, limits: u8) -> impl Iterator<Item = (usize, &FlowLimit)> {
        self.own.iter().enumerate().filter(move |(at, _)| limits >> at & 1 == 1)
    }
}

impl NetworkFunction for RateLimiter {
    const NAME: &'static str = "rate_limiter";
    type Config = RateLimiterConfig;
    type Flow = Buckets;
    type Shared = ();

    fn new(config: RateLimiterConfig) -> Result<RateLimiter, ConfigError> {
        RateLimiter::with_zones(config, &Zones::default())
    }

    fn with_zones(config: RateLimiterConfig, zones: &Zones) -> Result<RateLimiter, ConfigError> {
        if config.limits.is_empty() {
            let message = "there must be at least one limit, like { per: source, rate: 10 Mbit/s }";
            return Err(ConfigError::at("limits", message));
        }
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        for (at, config) in config.limits.iter().enumerate() {
            match limit(config, &format!("limits[{at}]"), zones)? {
                Limit::Own(_) if own.len() == PER_FLOW => {
                    let message = format!("more than {PER_FLOW} limits per flow");
                    return Err(ConfigError::at(format!("limits[{at}]"), message));
                }
                Limit::Own(limit) => own.push(limit),
                Limit::Shared(limit) => shared.push(limit),
            }
        }
        Ok(RateLimiter { own, shared })
    }

    fn shared(&self) {}

    fn open(&self, packet: &Packet, _shared: &mut (), cx: &mut Opening<'_>) -> Open<Buckets> {
        // A later fragment has no ports of its own; the edge found them.
        let key = FlowKey::of(packet).unwrap_or(*cx.key());
        let mut flow = Buckets::default();
        for (at, limit) in self.own.iter().enumerate() {
            if limit.flows.matches(&key, packet.meta.ingress) {
                flow.limits |= 1 << at;
                flow.buckets[at] = limit.rate.full(cx.now());
            }
        }
        Open::Accept(flow)
    }

    #[inline]
    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Buckets,
        _shared: &mut (),
        cx: &mut Context,
    ) -> Verdict {
        let is_reply = cx.direction() == Direction::Reverse;
        let bytes = packet.ip_len();
        for (at, limit) in self.limits_of(flow.limits) {
            let conforms = !limit.counted.counts(is_reply)
                || limit.rate.take(&mut flow.buckets[at], cx.now(), bytes);
            if conforms {
                continue;
            }
            flow.exceeded = 1;
            match limit.mark {
                // A DSCP needs no room, so this cannot fail.
                Some(mark) => _ = mark.write(packet),
                None => return Verdict::Drop(DropReason::RateExceeded),
            }
        }
        Verdict::Forward
    }

    fn describe(&self, flow: &Buckets) -> &'static str {
        if flow.exceeded == 0 { "" } else { "exceeded" }
    }

    fn explain(&self, _packet: &Packet, flow: Option<&Buckets>) -> String {
        let Some(flow) = flow else { return String::new() };
        let limits: Vec<&str> =
            self.limits_of(flow.limits).map(|(_, limit)| limit.text.as_str()).collect();
        match limits.as_slice() {
            [] => "no limit per flow".to_owned(),
            limits => format!("may have {}", limits.join(", ")),
        }
    }

    fn rate_limits(&self) -> Vec<RateLimit> {
        self.shared.clone()
    }
}
