//! `firewall`: an access list for new flows, connection tracking for the rest.
//!
//! Theory of operation. A flow's first packet is held against the rules, in order; the first that matches decides. Packets of a flow that was
//! let in pass as long as they fit its connection: for TCP the flags and the sequence windows of both directions ([`tcp`](crate::tcp)), for the others
//! that there is one. ICMP errors pass if they quote a packet of the flow, of TCP one that may be on its way (RFC 5927,
//! section 4.1), and ask for nothing impossible; they change nothing. The packet that opens a
//! TCP connection must be a SYN: what comes from the middle of an unknown connection is dropped.

use crate::rewrite::{has_possible_mtu, is_error, quoted_sequence};
use crate::tcp;
use crate::tracked::{FIREWALL, Lifetimes, Timeouts, Tracked};
use holdfast_nf::{ConfigError, Context, Direction, DropReason, NetworkFunction, Open, Packet, Verdict};
use holdfast_wire::header::{icmp, icmpv6, proto};
use holdfast_wire::selector::{Selector, SelectorError};
use holdfast_wire::zone::Zones;
use holdfast_wire::{FlowKey, Network};
use schemars::JsonSchema;
use serde::Deserialize;

/// What happens to a new flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It passes.
    Allow,
    /// It is dropped.
    #[default]
    Deny,
    /// It is dropped, and whoever sent the packet is told: by a TCP reset, or by ICMP "administratively prohibited".
    Reject,
}

/// What the operator writes.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FirewallConfig {
    /// `allow`, `deny` or `reject`, then a selector: `allow tcp on lan from 10.0.0.0/24 to any port 80,443`. The first that matches decides. Behind `on` stand
    /// ports of the box or zones: by one of them the flow's first packet came in.
    #[serde(default)]
    pub rules: Vec<String>,
    /// What happens to flows that no rule matches; `deny` without it.
    #[serde(default)]
    pub default: Action,
    /// How long connections live without a packet.
    #[serde(default)]
    pub timeouts: Timeouts,
}

/// See the module.
#[derive(Debug)]
pub struct Firewall {
    rules: Vec<(Action, Selector)>,
    default: Action,
    lifetimes: Lifetimes,
}

fn rule(at: usize, text: &str, zones: &Zones) -> Result<(Action, Selector), ConfigError> {
    let error = |offset: usize, message: String| ConfigError { path: format!("rules[{at}]"), message, offset: Some(offset) };
    let trimmed = text.trim_start();
    let (word, rest) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, ""));
    let action = match word {
        "allow" => Action::Allow,
        "deny" | "drop" => Action::Deny,
        "reject" => Action::Reject,
        _ => {
            return Err(error(
                text.len() - trimmed.len(),
                format!("`{word}` is not an action: a rule begins with `allow`, `deny` or `reject`"),
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
        proto::TCP => tcp::opens(packet),
        proto::ICMP if packet.layers.network == Network::V4 => packet.icmp().is_some_and(|header| header.kind == icmp::ECHO),
        proto::ICMPV6 if packet.layers.network == Network::V6 => packet.icmp().is_some_and(|header| header.kind == icmpv6::ECHO),
        _ => true,
    }
}

/// True for an ICMP error about a packet of the flow that its receiver should believe. It goes against the packet that it quotes.
fn may_pass(packet: &Packet, flow: &Tracked, key: &FlowKey, is_reverse: bool) -> bool {
    let is_tcp = key.protocol == u16::from(proto::TCP);
    has_possible_mtu(packet)
        && (!is_tcp || quoted_sequence(packet).is_some_and(|sequence| flow.tcp.quotes(!is_reverse, sequence)))
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
        let rules = config.rules.iter().enumerate().map(|(at, text)| rule(at, text, zones)).collect::<Result<Vec<_>, _>>()?;
        let lifetimes = config.timeouts.within(&FIREWALL)?;
        Ok((Firewall { rules, default: config.default, lifetimes }, ()))
    }

    fn open(&self, packet: &Packet, _shared: &mut (), _cx: &mut Context) -> Open<Tracked> {
        // As the functions before this one left it: rules mean the packet that this one sees.
        let Some(key) = FlowKey::of(packet) else { return Open::Drop(DropReason::StateInvalid) };
        let is_meant = |(_, selector): &&(Action, Selector)| selector.matches(&key, packet.meta.ingress);
        let action = self.rules.iter().find(is_meant).map_or(self.default, |(action, _)| *action);
        match action {
            Action::Allow => {}
            Action::Deny => return Open::Drop(DropReason::PolicyDenied),
            Action::Reject => return Open::Reject(DropReason::PolicyDenied),
        }
        if !may_open(packet) {
            return Open::Drop(DropReason::StateInvalid);
        }
        Open::Accept(Tracked::default())
    }

    #[inline]
    fn process(&self, packet: &mut Packet, flow: &mut Tracked, _shared: &mut (), cx: &mut Context) -> Verdict {
        // A later fragment belongs to a datagram whose first fragment passed; it has no header to look at.
        if packet.layers.fragment_offset != 0 {
            return Verdict::Forward;
        }
        let may_pass = match is_error(packet) {
            true => may_pass(packet, flow, cx.key(), cx.direction() == Direction::Reverse),
            false => flow.track(packet, &self.lifetimes, cx),
        };
        if may_pass { Verdict::Forward } else { Verdict::Drop(DropReason::StateInvalid) }
    }

    fn outdated(&self, flow: &mut Tracked, packets: u32) {
        flow.tcp.set_back(packets);
    }

    fn describe(&self, flow: &Tracked) -> &'static str {
        flow.describe()
    }
}
