//! `firewall`: an access list for new flows, and connection tracking for existing ones.
//!
//! Theory of operation. A flow's first packet is matched against the rules; the first
//! match decides, which is found without a look at each ([`Classifier`]). Packets of an
//! admitted flow pass as long as they fit its connection: for TCP the flags and the
//! sequence windows of both directions ([`tcp`](crate::tcp)), for other protocols that
//! the flow exists. ICMP errors change nothing. An error passes if it asks for nothing
//! impossible and quotes a packet of the flow; for TCP, a packet that may be in flight
//! (RFC 5927, section 4.1). A TCP connection begins with a SYN. Segments from the middle
//! of an unknown connection are dropped, and a sender with a private address gets a
//! reset.

use crate::rewrite::{has_possible_mtu, quoted_sequence};
use crate::rule_text::RuleText;
use crate::tcp;
use crate::tracked::{FIREWALL, Lifetimes, Timeouts, Tracked};
use holdfast_nf::{
    ConfigError, Context, Counters, Direction, DropReason, Expected, Log, NetworkFunction, Open,
    Opening, Packet, Verdict,
};
use holdfast_wire::header::{icmp, icmpv6, proto};
use holdfast_wire::selector::{Classifier, PacketSelector};
use holdfast_wire::zone::Zones;
use holdfast_wire::{FlowKey, Network};
use schemars::JsonSchema;
use serde::Deserialize;

/// The decision about a new flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The flow passes.
    Allow,
    /// The packet is dropped.
    #[default]
    Deny,
    /// The packet is dropped and its sender told: by a TCP reset, or by ICMP
    /// "administratively prohibited".
    Reject,
}

impl Action {
    /// The action that a rule begins with.
    pub(crate) fn read(rule: &RuleText<'_>) -> Result<Action, ConfigError> {
        match rule.word {
            "allow" => Ok(Action::Allow),
            "deny" | "drop" => Ok(Action::Deny),
            "reject" => Ok(Action::Reject),
            word => Err(rule.wrong_word(format!(
                "`{word}` is not an action: a rule begins with `allow`, `deny` or `reject`"
            ))),
        }
    }
}

/// The firewall's configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FirewallConfig {
    /// Rules, of which the first match decides: `allow`, `deny` or `reject`, optionally
    /// `log`, then a selector: `allow tcp on lan from 10.0.0.0/24 to any port 80,443`.
    /// `on` names ports of the box, or zones, by which the flow's first packet came in.
    /// `icmp` may be followed by types and a code: `allow icmp type echo-request from
    /// any`, `deny icmp type 8,13 code 0`. Messages other than echo requests open a flow
    /// only if a rule names their type. Errors and replies pass with their flow without a
    /// rule. Decisions of rules with `log` appear in the daemon's log, at most ten lines
    /// per second and runtime.
    #[serde(default)]
    pub rules: Vec<String>,
    /// The action for flows that no rule matches; `deny` by default.
    #[serde(default)]
    pub default: Action,
    /// Lifetimes of connections without a packet.
    #[serde(default)]
    pub timeouts: Timeouts,
}

holdfast_nf::shared_state! {
    /// Counters and log that all flows of a firewall share.
    pub struct Decided {
        /// First packets decided by each rule, and by none.
        pub rules: Counters,
        /// First packets of rules with `log`, for the operator.
        pub log: Log,
    }
}

/// A firewall; see the module.
#[derive(Debug)]
pub struct Firewall {
    rules: Vec<Rule>,
    classifier: Classifier,
    default: Action,
    lifetimes: Lifetimes,
}

#[derive(Debug)]
struct Rule {
    action: Action,
    /// True if the rule has `log`.
    is_logged: bool,
    selector: PacketSelector,
    /// The rule as written.
    text: String,
}

/// Takes `log` after a rule's action: true if it is there, and the selector that follows.
pub fn take_log(rest: &str) -> (bool, &str) {
    match rest.trim_start().split_once(char::is_whitespace) {
        Some(("log", rest)) => (true, rest),
        None if rest.trim_start() == "log" => (true, ""),
        _ => (false, rest),
    }
}

fn rule(at: usize, text: &str, zones: &Zones) -> Result<Rule, ConfigError> {
    let written = RuleText::new(at, text);
    let action = Action::read(&written)?;
    let (is_logged, rest) = take_log(written.rest);
    let selector =
        PacketSelector::read(rest, zones).map_err(|wrong| written.wrong_selector(rest, wrong))?;
    Ok(Rule { action, is_logged, selector, text: text.trim().to_owned() })
}

/// True if the packet may open a flow of its protocol. `is_named`: a rule names its ICMP
/// type, which is then not one of errors or replies in both IPv4 and IPv6.
fn may_open(packet: &Packet, is_named: bool) -> bool {
    let asks = |echo: u8, exchange: fn(u8) -> Option<(u8, bool)>| {
        packet.icmp().is_some_and(|header| {
            header.kind == echo
                || is_named && exchange(header.kind).is_none_or(|(_, is_reply)| !is_reply)
        })
    };
    match packet.layers.protocol {
        proto::TCP => tcp::opens(packet),
        proto::ICMP if packet.layers.network == Network::V4 => asks(icmp::ECHO, icmp::exchange),
        proto::ICMPV6 if packet.layers.network == Network::V6 => {
            asks(icmpv6::ECHO, icmpv6::exchange)
        }
        _ => true,
    }
}

/// True for an ICMP error about a packet of the flow that its receiver should believe.
/// The error travels against the packet that it quotes.
fn may_pass(packet: &Packet, flow: &Tracked, key: &FlowKey, is_reverse: bool) -> bool {
    let is_tcp = key.protocol == u16::from(proto::TCP);
    has_possible_mtu(packet)
        && (!is_tcp
            || quoted_sequence(packet)
                .is_some_and(|sequence| flow.tcp.quotes(!is_reverse, sequence)))
}

impl Firewall {
    /// The rule that decides about a flow's first packet, which has this key.
    fn find(&self, key: &FlowKey, packet: &Packet) -> Option<usize> {
        self.classifier.first(key, |at| self.rules[at].selector.matches(key, packet))
    }
}

impl NetworkFunction for Firewall {
    const NAME: &'static str = "firewall";
    type Config = FirewallConfig;
    type Flow = Tracked;
    type Shared = Decided;

    fn new(config: FirewallConfig) -> Result<Firewall, ConfigError> {
        Firewall::with_zones(config, &Zones::default())
    }

    fn with_zones(config: FirewallConfig, zones: &Zones) -> Result<Firewall, ConfigError> {
        let rules = config
            .rules
            .iter()
            .enumerate()
            .map(|(at, text)| rule(at, text, zones))
            .collect::<Result<Vec<_>, _>>()?;
        let lifetimes = config.timeouts.within(&FIREWALL)?;
        let classifier = Classifier::new(rules.iter().map(|rule| rule.selector.flow()));
        Ok(Firewall { rules, classifier, default: config.default, lifetimes })
    }

    fn shared(&self) -> Decided {
        let names = self.rules.iter().map(|rule| rule.text.as_str()).chain(["default"]);
        Decided { rules: Counters::new(names), log: Log::new() }
    }

    fn open(&self, packet: &Packet, shared: &mut Decided, cx: &mut Opening<'_>) -> Open<Tracked> {
        // Rules see the packet as the functions before this one left it.
        let Some(key) = FlowKey::of(packet) else { return Open::Drop(DropReason::StateInvalid) };
        let at = self.find(&key, packet);
        shared.rules.add(at.unwrap_or(self.rules.len()), 1);
        let rule = at.and_then(|at| self.rules.get(at));
        if let Some(at) = at.filter(|_| rule.is_some_and(|rule| rule.is_logged)) {
            shared.log.note(at as u32, &key, packet.meta.ingress, cx);
        }
        match rule.map_or(self.default, |rule| rule.action) {
            Action::Allow => {}
            Action::Deny => return Open::Drop(DropReason::PolicyDenied),
            Action::Reject => return Open::Reject(DropReason::PolicyDenied),
        }
        if !may_open(packet, rule.is_some_and(|rule| rule.selector.has_types())) {
            return tcp::unknown(packet, tcp::is_private(&key.source));
        }
        Open::Accept(Tracked::default())
    }

    #[inline]
    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Tracked,
        _shared: &mut Decided,
        cx: &mut Context,
    ) -> Verdict {
        // A later fragment belongs to a datagram whose first fragment passed; it has no
        // header to look at.
        if packet.layers.fragment_offset != 0 {
            return Verdict::Forward;
        }
        let may_pass = match packet.is_icmp_error() {
            true => may_pass(packet, flow, cx.key(), cx.direction() == Direction::Reverse),
            false => flow.track(packet, &self.lifetimes, cx),
        };
        if may_pass { Verdict::Forward } else { Verdict::Drop(DropReason::StateInvalid) }
    }

    fn explain(&self, packet: &Packet, flow: Option<&Tracked>) -> String {
        if flow.is_some() {
            return String::new();
        }
        let at = FlowKey::of(packet).and_then(|key| self.find(&key, packet));
        at.map_or_else(
            || "by default, because no rule means it".to_owned(),
            |at| format!("by its rule `{}`", self.rules[at].text),
        )
    }

    fn outdated(&self, flow: &mut Tracked, packets: u32) {
        flow.tcp.set_back(packets);
    }

    fn expected(&self, flow: &Tracked, direction: Direction) -> Option<Expected> {
        flow.expected(direction)
    }

    fn describe(&self, flow: &Tracked) -> &'static str {
        flow.describe()
    }
}
