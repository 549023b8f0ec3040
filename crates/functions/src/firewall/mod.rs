//! `firewall`: an access list for new flows, connection tracking for the rest.
//!
//! Theory of operation. A flow's first packet is held against the rules, in order; the first that matches decides. Packets of a flow that was
//! let in pass as long as they fit its connection: for TCP the flags and the sequence windows of both directions ([`tcp`]), for the others
//! that there is one. ICMP errors pass if they quote a packet of the flow; they change nothing. The packet that opens a
//! TCP connection must be a SYN: what comes from the middle of an unknown connection is dropped.

mod tcp;

use crate::rewrite::is_error;
use holdfast_nf::{ConfigError, Context, Direction, DropReason, NetworkFunction, Open, Packet, Verdict};
use holdfast_wire::header::{icmp, icmpv6, proto};
use holdfast_wire::selector::{Selector, SelectorError};
use holdfast_wire::zone::Zones;
use holdfast_wire::{FlowKey, Network};
use schemars::JsonSchema;
use serde::Deserialize;
use tcp::{Connection, state};

const SECOND: u64 = 1_000_000_000;
/// The longest timeout, seconds: a week. What waits longer for a packet waits for nobody.
const LONGEST: u64 = 7 * 24 * 3600;

/// What happens to a new flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It passes.
    Allow,
    /// It is dropped.
    #[default]
    Deny,
}

/// How long a connection lives without a packet, seconds: from 1 to a week.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// TCP, established (RFC 5382, REQ-5: at least 2 h 4 min).
    pub tcp_established: u64,
    /// TCP, opening.
    pub tcp_opening: u64,
    /// TCP, closing or closed.
    pub tcp_closing: u64,
    /// UDP, answered (RFC 4787, REQ-5: 5 min).
    pub udp: u64,
    /// UDP, not answered yet.
    pub udp_unanswered: u64,
    /// ICMP echo (RFC 5508, REQ-2: at least 60 s).
    pub icmp: u64,
    /// Other protocols.
    pub other: u64,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            tcp_established: 7440,
            tcp_opening: 120,
            tcp_closing: 120,
            udp: 300,
            udp_unanswered: 120,
            icmp: 60,
            other: 300,
        }
    }
}

impl Timeouts {
    fn check(&self) -> Result<(), ConfigError> {
        let all = [
            ("tcp_established", self.tcp_established),
            ("tcp_opening", self.tcp_opening),
            ("tcp_closing", self.tcp_closing),
            ("udp", self.udp),
            ("udp_unanswered", self.udp_unanswered),
            ("icmp", self.icmp),
            ("other", self.other),
        ];
        match all.into_iter().find(|(_, seconds)| !(1..=LONGEST).contains(seconds)) {
            Some((name, seconds)) => {
                let message = format!("a timeout is from 1 to {LONGEST} seconds, a week, not {seconds}");
                Err(ConfigError::at(format!("timeouts.{name}"), message))
            }
            None => Ok(()),
        }
    }
}

/// What the operator writes.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FirewallConfig {
    /// `allow` or `deny`, then a selector: `allow tcp on lan from 10.0.0.0/24 to any port 80,443`. The first that matches decides. Behind `on` stand
    /// ports of the box or zones: by one of them the flow's first packet came in.
    #[serde(default)]
    pub rules: Vec<String>,
    /// What happens to flows that no rule matches; `deny` without it.
    #[serde(default)]
    pub default: Action,
    /// Timeouts.
    #[serde(default)]
    pub timeouts: Timeouts,
}

holdfast_nf::flow_state! {
    /// One connection.
    pub struct Tracked {
        /// TCP only.
        pub tcp: Connection,
        /// The other side has answered.
        pub answered: u8,
        /// Zero.
        pub spare: [u8; 3],
    }
}

/// See the module.
#[derive(Debug)]
pub struct Firewall {
    rules: Vec<(Action, Selector)>,
    default: Action,
    timeouts: Timeouts,
}

fn rule(at: usize, text: &str, zones: &Zones) -> Result<(Action, Selector), ConfigError> {
    let error = |offset: usize, message: String| ConfigError { path: format!("rules[{at}]"), message, offset: Some(offset) };
    let trimmed = text.trim_start();
    let (word, rest) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, ""));
    let action = match word {
        "allow" => Action::Allow,
        "deny" | "drop" => Action::Deny,
        _ => {
            return Err(error(
                text.len() - trimmed.len(),
                format!("`{word}` is not an action: a rule begins with `allow` or `deny`"),
            ));
        }
    };
    let wrong = |wrong: SelectorError| error(text.len() - rest.len() + wrong.offset, wrong.message);
    let selector = Selector::read(rest, zones).map_err(wrong)?;
    Ok((action, selector))
}

/// True if the packet may open a flow of its protocol.
fn may_open(packet: &Packet) -> bool {
    match packet.layers.protocol {
        proto::TCP => packet.tcp().is_some_and(|header| tcp::is_opening(header.flags)),
        proto::ICMP if packet.layers.network == Network::V4 => packet.icmp().is_some_and(|header| header.kind == icmp::ECHO),
        proto::ICMPV6 if packet.layers.network == Network::V6 => packet.icmp().is_some_and(|header| header.kind == icmpv6::ECHO),
        _ => true,
    }
}

impl NetworkFunction for Firewall {
    const NAME: &'static str = "firewall";
    type Config = FirewallConfig;
    type Flow = Tracked;
    type Shared = ();

    fn new(config: FirewallConfig) -> Result<(Firewall, ()), ConfigError> {
        Firewall::with_zones(config, &Zones::default())
    }

    fn with_zones(config: FirewallConfig, zones: &Zones) -> Result<(Firewall, ()), ConfigError> {
        config.timeouts.check()?;
        let rules = config.rules.iter().enumerate().map(|(at, text)| rule(at, text, zones)).collect::<Result<Vec<_>, _>>()?;
        Ok((Firewall { rules, default: config.default, timeouts: config.timeouts }, ()))
    }

    fn open(&self, packet: &Packet, _shared: &mut (), _cx: &mut Context) -> Open<Tracked> {
        // As the functions before this one left it: rules mean the packet that this one sees.
        let Some(key) = FlowKey::of(packet) else { return Open::Drop(DropReason::StateInvalid) };
        let is_meant = |(_, selector): &&(Action, Selector)| selector.matches(&key, packet.meta.ingress);
        let action = self.rules.iter().find(is_meant).map_or(self.default, |(action, _)| *action);
        if action == Action::Deny {
            return Open::Drop(DropReason::PolicyDenied);
        }
        if !may_open(packet) {
            return Open::Drop(DropReason::StateInvalid);
        }
        Open::Accept(Tracked::default())
    }

    #[inline]
    fn process(&self, packet: &mut Packet, flow: &mut Tracked, _shared: &mut (), cx: &mut Context) -> Verdict {
        // A later fragment belongs to a datagram whose first fragment passed; it has no header to look at.
        if packet.layers.fragment_offset != 0 || is_error(packet) {
            return Verdict::Forward;
        }
        let is_reverse = cx.direction() == Direction::Reverse;
        flow.answered |= u8::from(is_reverse);
        let timeouts = &self.timeouts;
        let seconds = match packet.layers.protocol {
            proto::TCP => {
                if !flow.tcp.track(packet, is_reverse) {
                    return Verdict::Drop(DropReason::StateInvalid);
                }
                match flow.tcp.state {
                    state::ESTABLISHED => timeouts.tcp_established,
                    state::OPENING | state::ANSWERED => timeouts.tcp_opening,
                    state::HALF_CLOSED => timeouts.tcp_established,
                    _ => {
                        cx.ending();
                        timeouts.tcp_closing
                    }
                }
            }
            proto::UDP if flow.answered == 0 => timeouts.udp_unanswered,
            proto::UDP => timeouts.udp,
            proto::ICMP | proto::ICMPV6 => timeouts.icmp,
            _ => timeouts.other,
        };
        cx.keep(seconds * SECOND);
        Verdict::Forward
    }

    fn outdated(&self, flow: &mut Tracked, packets: u32) {
        flow.tcp.set_back(packets);
    }

    fn describe(&self, flow: &Tracked) -> &'static str {
        match flow.tcp.state {
            state::NONE if flow.answered == 0 => "unanswered",
            state::NONE => "answered",
            state::OPENING => "opening",
            state::ANSWERED => "answered",
            state::ESTABLISHED => "established",
            state::HALF_CLOSED => "half-closed",
            state::CLOSED => "closed",
            _ => "reset",
        }
    }
}
