//! `ips`: searches the bytes of flows, across the borders of packets, for the patterns of
//! rules, and alerts, drops or rejects (NFVactor, "Example NFs": an IPS with an
//! Aho-Corasick automaton).
//!
//! Theory of operation. Rules are in the language of Suricata and Snort ([`rules`]). All
//! their contents are compiled into two automata ([`automaton`]), and expressions that
//! may match anywhere into a third ([`regex`]). These are configuration. A flow has, per
//! direction, the automata's states, a bounded table of rules that have matched in part,
//! and the states of regular expressions under way ([`state`]). A TCP segment whose
//! checksum is right is inspected behind the bytes before it ([`stream`]); a packet of
//! every other protocol is inspected by itself. The function holds no packet: a segment
//! behind a gap is dropped, and its sender retransmits it. A packet for which the bounded
//! state does not suffice is counted and treated as configured.
//!
//! States belong to a set of rules, whose digest goes with each flow. Under other rules
//! the flow is inspected from its next byte on.
//!
//! In: a flow's packets. Out: the same packets, or none. Never: a changed byte, a packet
//! that is held, an outcome that depends on another flow.

mod automaton;
mod header;
mod inspect;
mod regex;
mod rules;
mod state;
mod stream;
mod text;

use holdfast_nf::{
    Alert, ConfigError, Context, Counters, Direction, DropReason, FlowKey, Log, NetworkFunction,
    Open, Opening, Packet, TextFile, Verdict,
};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::fnv1a;
use holdfast_wire::header::{proto, tcp_flags};
use inspect::{Engine, Scan};
use regex::Standing;
use rules::{Action, Rule, Step};
use schemars::JsonSchema;
use serde::Deserialize;
use state::{Inspected, Side, mode};
use std::collections::BTreeMap;
use std::path::PathBuf;
use stream::Inspection;

/// The treatment of a rule that other engines understand and this one does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unsupported {
    /// The configuration is refused.
    #[default]
    Refuse,
    /// The rule is left out, with a warning.
    Skip,
}

/// The action for a packet that cannot be inspected as the rules ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Uninspected {
    /// The packet is dropped.
    #[default]
    Drop,
    /// The packet passes, with a line in the log.
    Alert,
    /// The packet passes.
    Pass,
}

/// The action for retransmitted bytes when a border of their segment is not remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Retransmissions {
    /// The bytes are inspected by themselves. If a pattern could lie across their
    /// borders, [`Uninspected`] decides.
    #[default]
    Inspect,
    /// The bytes are dropped.
    Drop,
    /// The bytes are inspected by themselves, and pass.
    Pass,
}

/// The configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IpsConfig {
    /// Rules in the language that Suricata and Snort share: `drop tcp any any ->
    /// $HOME_NET 80 (msg:"a shell"; content:"/bin/sh"; sid:1;)`. Each item is a text of
    /// one rule or more, a line each; a line goes on behind a `\` at its end, and `#`
    /// at its beginning makes it a comment.
    #[serde(default)]
    pub rules: Vec<String>,
    /// Files with further rules, as they stand in `rules`, by paths relative to the
    /// configuration's own directory. They are read when a box starts, or with `check`
    /// and `apply`; their contents go along with the configuration to all processes and
    /// hosts. The configuration and all files have at most 4 MiB together.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub rule_files: Vec<TextFile>,
    /// A file for alerts, by its path from the root: a line of JSON for each, as in
    /// Suricata's EVE. A file of 16 MiB becomes `FILE.1`, in place of an earlier one.
    #[serde(default)]
    pub eve: Option<PathBuf>,
    /// Names for addresses and ports, without the `$` of the rules: `HOME_NET:
    /// "[10.0.0.0/8,192.168.0.0/16]"`.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// Treatment of a rule that is not supported: `refuse` (the default) or `skip`, with
    /// a warning. A rule that is wrong is refused in any case.
    #[serde(default)]
    pub unsupported: Unsupported,
    /// The action for a packet that cannot be inspected as the rules ask, because a table
    /// of its flow is full, retransmitted bytes differ from the first ones, a pattern
    /// could lie across the borders of retransmitted bytes, or it is a fragment: `drop`
    /// (the default), `alert` or `pass`.
    #[serde(default)]
    pub uninspected: Uninspected,
    /// The action for retransmitted TCP bytes when their segment does not begin and end
    /// where one of the last sixteen unacknowledged ones did, or an expression with `R`
    /// is under way: `inspect` (the default: by themselves; if a pattern could lie across
    /// their borders, `uninspected` decides), `drop`, or `pass` (inspected by themselves,
    /// and passed in any case).
    #[serde(default)]
    pub retransmissions: Retransmissions,
}

holdfast_nf::shared_state! {
    /// Counters and log that all flows share.
    pub struct Found {
        /// Matches of each rule, then the events (`EVENTS`).
        pub rules: Counters,
        /// Packets that matched, for the operator.
        pub log: Log,
    }
}

/// Counters beside those of the rules, in this order.
#[derive(Clone, Copy)]
enum Event {
    /// Segments behind a gap.
    BehindGap,
    /// Streams whose beginning was not seen.
    Midstream,
    /// Segments with retransmitted bytes.
    Again,
    /// Segments that could not be inspected together with the bytes around them.
    NoBorder,
    /// Segments across whose borders a pattern could lie.
    Uncertain,
    /// Segments whose retransmitted bytes differ from the first ones.
    OtherBytes,
    /// Packets in which a rule could not be followed for want of room.
    Overfull,
    /// Fragments.
    Fragment,
    /// SYNs with data.
    SynData,
    /// Flows whose rules have changed.
    Renewed,
    /// Ends of matches that were not counted for want of room.
    Missed,
}

/// Names of the events' counters.
const EVENTS: [&str; 11] = [
    "out_of_order",
    "midstream",
    "again",
    "again_alone",
    "again_uncertain",
    "again_other_bytes",
    "table_full",
    "fragment",
    "syn_with_data",
    "rules_changed",
    "matches_not_counted",
];

/// Maximum number of rules of a function.
const MOST_RULES: usize = 16_384;
/// Maximum size of all expressions' automata, bytes.
const MOST_EXPRESSIONS: usize = 64 << 20;

/// The intrusion prevention function; see the module.
#[derive(Debug)]
pub struct Ips {
    engine: Engine,
    uninspected: Uninspected,
    retransmissions: Retransmissions,
    /// The file for alerts.
    eve: Option<PathBuf>,
    /// Rules that were left out.
    skipped: Vec<ConfigError>,
}

impl IpsConfig {
    /// The texts of rules: the key of each, its name for people, and the text.
    fn texts(&self) -> impl Iterator<Item = (String, String, &str)> {
        let texts = self.rules.iter().enumerate().map(|(at, text)| {
            let key = format!("rules[{at}]");
            (key.clone(), key, text.as_str())
        });
        let files =
            self.rule_files.iter().enumerate().map(|(at, file)| {
                (format!("rule_files[{at}]"), file.path.clone(), file.text.as_str())
            });
        texts.chain(files)
    }
}

/// The text about expressions without `R` that do not fit.
const TOO_LARGE: &str = "the expressions without `R` up to this one need more than 2 MiB together: open repetitions such as `.*` take the most room";

/// The warning about a rule that is not supported.
fn left_out(error: ConfigError) -> ConfigError {
    ConfigError { message: format!("{}: the rule is left out", error.message), ..error }
}

/// The rules that are read, the automaton of their expressions without `R`, and an error
/// for each rule that is not supported and left out.
type Read = (Vec<Rule>, Option<Standing>, Vec<ConfigError>);

fn read(config: &IpsConfig) -> Result<Read, ConfigError> {
    let (mut rules, mut skipped): (Vec<Rule>, Vec<ConfigError>) = (Vec::new(), Vec::new());
    let mut sids: BTreeMap<u32, String> = BTreeMap::new();
    let mut room = MOST_EXPRESSIONS;
    let mut expressions = Vec::new();
    for (path, name, text) in config.texts() {
        let joined = text::joined(text);
        let (mut line_at, mut line_number) = (0, 1);
        for (offset, line) in text::lines(&joined) {
            let error = |offset: usize, message: String| ConfigError {
                path: path.clone(),
                message,
                offset: Some(offset),
            };
            let rule = match rules::read(offset, line, &config.variables) {
                Ok(rule) => rule,
                Err(wrong) if wrong.is_unsupported && config.unsupported == Unsupported::Skip => {
                    skipped.push(left_out(error(wrong.offset, wrong.message)));
                    continue;
                }
                Err(wrong) => return Err(error(wrong.offset, wrong.message)),
            };
            line_number += text[line_at..offset].matches('\n').count();
            line_at = offset;
            let place = format!("{name}, line {line_number}");
            if let Some(first) = sids.insert(rule.sid, place) {
                let message = format!("sid {} is that of {first}, too", rule.sid);
                return Err(error(rule.sid_at, message));
            }
            let size = |step: &Step| match step {
                Step::Expression(expression) => expression.size(),
                Step::Content(_) | Step::Standing(_) => 0,
            };
            let taken: usize = rule.chains.iter().flatten().map(size).sum();
            room = room.checked_sub(taken).ok_or_else(|| {
                error(
                    offset,
                    format!(
                        "the expressions up to this one take more than {} MiB",
                        MOST_EXPRESSIONS >> 20
                    ),
                )
            })?;
            if rules.len() == MOST_RULES {
                return Err(error(offset, format!("more than {MOST_RULES} rules")));
            }
            if let Some((_, pattern)) = rule.standing().next() {
                expressions.push((rules.len(), error(pattern.at, TOO_LARGE.to_owned())));
            }
            rules.push(rule);
        }
    }
    let standing = inspect::standing(&rules).or_else(|()| {
        // The automaton is too large from the first of these rules on.
        let mut standing = None;
        let first = expressions.partition_point(|(rule, _)| {
            let upto = inspect::standing(&rules[..=*rule]);
            upto.map(|upto| standing = upto).is_ok()
        });
        let mut over = expressions.split_off(first);
        if config.unsupported == Unsupported::Refuse {
            return Err(over.swap_remove(0).1);
        }
        over.iter().rev().for_each(|(rule, _)| drop(rules.remove(*rule)));
        skipped.extend(over.into_iter().map(|(_, error)| left_out(error)));
        Ok(standing)
    })?;
    Ok((rules, standing, skipped))
}

/// The bytes behind the transport header of a packet that is not TCP.
fn payload(packet: &Packet) -> &[u8] {
    let header = match packet.layers.protocol {
        proto::UDP | proto::ICMP | proto::ICMPV6 if packet.layers.fragment_offset == 0 => 8,
        _ => 0,
    };
    packet.l4().get(header..).unwrap_or_default()
}

impl Ips {
    fn count(&self, event: Event, shared: &mut Found) {
        shared.rules.add(self.engine.rules.len() + event as usize, 1);
    }

    /// Inspects a TCP segment, and notes its SYN and its acknowledgement. None: not
    /// inspected.
    fn segment<'k>(
        &self,
        packet: &Packet,
        flow: &mut Inspected,
        way: usize,
        key: &'k FlowKey,
    ) -> Option<(Inspection, Scan<'k>)> {
        let (tcp, bytes) = packet.tcp_segment()?;
        let (flags, sequence) = (tcp.flags, tcp.sequence.get());
        let acknowledged = (flags & tcp_flags::ACK != 0).then_some(tcp.acknowledgement.get());
        let is_syn = flags & tcp_flags::SYN != 0;
        if is_syn {
            flow.synchronise(way, sequence, acknowledged);
        } else if flow.sides.iter().all(|side| side.is_started == 0) {
            // The handshake was before the flow: both sides have spoken.
            flow.seen |= 3;
        }
        if let Some(number) = acknowledged {
            flow.sides[1 - way].acknowledge(number);
        }
        // A receiver takes no data of a reset.
        if flags & tcp_flags::RST != 0 || flow.mode != mode::INSPECTED {
            return None;
        }
        let mut scan = Scan::new(key, way == 0, flow.is_established());
        let start = sequence.wrapping_add(u32::from(is_syn));
        let side = &mut flow.sides[way];
        let inspection =
            stream::segment(&self.engine, side, start, bytes, &mut scan, |inspection| {
                self.refuses(inspection)
            });
        Some((inspection, scan))
    }

    /// The reason to drop a TCP segment whatever the stream holds, if there is one.
    fn refuses_segment(
        &self,
        packet: &Packet,
        flow: &Inspected,
        shared: &mut Found,
    ) -> Option<DropReason> {
        let (tcp, data) = packet.tcp_segment()?;
        let is_syn = tcp.flags & tcp_flags::SYN != 0;
        if flow.mode != mode::INSPECTED && !is_syn {
            return None;
        }
        // The receiver drops this segment: it must neither move the stream nor be
        // remembered.
        if packet.is_intact() == Some(false) {
            return Some(DropReason::BadChecksum);
        }
        if is_syn && !data.is_empty() {
            // The server may take the data or not, which is not known here. Rules with
            // `established` would not look at them.
            self.count(Event::SynData, shared);
            return Some(DropReason::FunctionDenied);
        }
        None
    }

    /// True if a segment is dropped because of its retransmitted bytes.
    fn refuses(&self, inspection: &Inspection) -> bool {
        let is_strict = self.uninspected == Uninspected::Drop;
        inspection.has_other_bytes && is_strict
            || inspection.has_no_border
                && match self.retransmissions {
                    Retransmissions::Inspect => inspection.is_uncertain && is_strict,
                    Retransmissions::Drop => true,
                    Retransmissions::Pass => false,
                }
    }

    /// Inspects a packet by itself.
    fn datagram<'k>(
        &self,
        packet: &Packet,
        flow: &Inspected,
        way: usize,
        key: &'k FlowKey,
    ) -> Scan<'k> {
        let mut scan = Scan::new(key, way == 0, flow.is_established());
        self.engine.run(&mut Side::default(), 0, [0; 3], payload(packet), &mut scan);
        scan
    }

    /// Counts and logs the results of a packet's inspection, and returns its verdict.
    fn judge(
        &self,
        (inspection, scan): (Inspection, Scan<'_>),
        is_fragment: bool,
        flow: &mut Inspected,
        shared: &mut Found,
        mut note: impl FnMut(usize, &mut Log),
    ) -> Verdict {
        for (event, is_it) in [
            (Event::BehindGap, inspection.is_behind_gap),
            (Event::Midstream, inspection.is_midstream),
            (Event::Again, inspection.is_again),
            (Event::NoBorder, inspection.has_no_border),
        ] {
            if is_it {
                self.count(event, shared);
            }
        }
        if inspection.is_behind_gap {
            return Verdict::Drop(DropReason::StateInvalid);
        }
        if let Some((Action::Pass, rule)) = scan.strongest {
            shared.rules.add(rule.into(), 1);
            (flow.mode, flow.rule) = (mode::PASSED, rule + 1);
            return Verdict::Forward;
        }
        for &at in scan.hits() {
            flow.rule = at + 1;
            shared.rules.add(at.into(), 1);
            if !self.engine.rules[usize::from(at)].is_silent {
                note(at.into(), &mut shared.log);
            }
        }
        shared.rules.add(self.engine.rules.len() + Event::Missed as usize, scan.missed);
        if let Some((action @ (Action::Drop | Action::Reject), rule)) = scan.strongest {
            let is_reject = action == Action::Reject;
            flow.mode = if is_reject { mode::REJECTED } else { mode::DROPPED };
            flow.rule = rule + 1;
            return refuse(is_reject, DropReason::PolicyDenied);
        }
        for (event, is_it) in [
            (Event::Overfull, scan.is_overfull),
            (Event::OtherBytes, inspection.has_other_bytes),
            (Event::Uncertain, inspection.is_uncertain),
            (Event::Fragment, is_fragment),
        ] {
            if !is_it {
                continue;
            }
            self.count(event, shared);
            let counter = self.engine.rules.len() + event as usize;
            let is_left = matches!(event, Event::Uncertain)
                && self.retransmissions != Retransmissions::Inspect;
            match self.uninspected {
                _ if is_left => {}
                Uninspected::Pass => {}
                Uninspected::Alert => note(counter, &mut shared.log),
                Uninspected::Drop => {
                    if scan.is_overfull {
                        // A retransmission would fill the table again.
                        (flow.mode, flow.rule) = (mode::DROPPED, counter as u16 + 1);
                    }
                    return Verdict::Drop(DropReason::FunctionDenied);
                }
            }
        }
        if self.refuses(&inspection) {
            return Verdict::Drop(DropReason::FunctionDenied);
        }
        Verdict::Forward
    }

    /// The name of a counter.
    fn name(&self, counter: usize) -> Option<String> {
        let event = counter.checked_sub(self.engine.rules.len());
        match event {
            Some(event) => EVENTS.get(event).map(|name| (*name).to_owned()),
            None => Some(self.engine.rules[counter].name()),
        }
    }
}

fn refuse(is_reject: bool, reason: DropReason) -> Verdict {
    if is_reject { Verdict::Reject(reason) } else { Verdict::Drop(reason) }
}

impl NetworkFunction for Ips {
    const NAME: &'static str = "ips";
    const FILES: &'static [&'static str] = &["rule_files"];
    type Config = IpsConfig;
    type Flow = Inspected;
    type Shared = Found;

    fn new(config: IpsConfig) -> Result<Ips, ConfigError> {
        let (rules, standing, skipped) = read(&config)?;
        if rules.is_empty() {
            let key = if config.rules.is_empty() { "rule_files" } else { "rules" };
            return Err(ConfigError::at(
                key,
                "there is no rule that is supported: without one the function does nothing",
            ));
        }
        if config.eve.as_ref().is_some_and(|file| !file.is_absolute()) {
            return Err(ConfigError::at(
                "eve",
                "the file for alerts has a path from the root, like /var/lib/holdfast/eve.json",
            ));
        }
        let texts: Vec<&str> = config.texts().map(|(_, _, text)| text).collect();
        let digest = fnv1a(format!("{texts:?} {:?}", config.variables).as_bytes());
        let engine = Engine::new(rules, standing, digest)
            .map_err(|message| ConfigError::at("rules", message))?;
        let IpsConfig { uninspected, retransmissions, eve, .. } = config;
        Ok(Ips { engine, uninspected, retransmissions, eve, skipped })
    }

    fn shared(&self) -> Found {
        let rules = self.engine.rules.iter().map(Rule::name);
        let names = rules.chain(EVENTS.iter().map(|name| (*name).to_owned()));
        Found { rules: Counters::new(names), log: Log::new() }
    }

    fn open(
        &self,
        _packet: &Packet,
        _shared: &mut Found,
        _cx: &mut Opening<'_>,
    ) -> Open<Inspected> {
        Open::Accept(Inspected { digest: self.engine.digest, ..Inspected::default() })
    }

    #[inline]
    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Inspected,
        shared: &mut Found,
        cx: &mut Context,
    ) -> Verdict {
        if flow.digest != self.engine.digest && !is_planted(Fault::KeepsStatesOfOtherRules) {
            flow.renew(self.engine.digest);
            self.count(Event::Renewed, shared);
        }
        if matches!(flow.mode, mode::DROPPED | mode::REJECTED) {
            let is_by_rule = usize::from(flow.rule) <= self.engine.rules.len();
            let reason =
                if is_by_rule { DropReason::PolicyDenied } else { DropReason::FunctionDenied };
            return refuse(flow.mode == mode::REJECTED, reason);
        }
        // An ICMP error does not belong to the streams of the flow that it quotes.
        if packet.is_icmp_error() {
            return Verdict::Forward;
        }
        if let Some(reason) = self.refuses_segment(packet, flow, shared) {
            return Verdict::Drop(reason);
        }
        let is_reverse = cx.direction() == Direction::Reverse;
        let way = usize::from(is_reverse);
        flow.seen |= 1 << way;
        // The key of the packet as the functions before this one left it. A later
        // fragment has no ports of its own: the edge knew them.
        let key = FlowKey::of(packet).unwrap_or(*cx.key());
        let is_fragment = packet.layers.fragment;
        let inspected = match packet.layers.protocol {
            proto::TCP if is_fragment => {
                let scan = Scan::new(&key, !is_reverse, flow.is_established());
                (flow.mode == mode::INSPECTED).then(|| (Inspection::default(), scan))
            }
            proto::TCP => self.segment(packet, flow, way, &key),
            _ if flow.mode == mode::PASSED => None,
            _ => Some((Inspection::default(), self.datagram(packet, flow, way, &key))),
        };
        let Some(inspected) = inspected else { return Verdict::Forward };
        let ingress = packet.meta.ingress;
        self.judge(inspected, is_fragment, flow, shared, |about, log| {
            log.note(about as u32, &key, ingress, cx);
        })
    }

    fn outdated(&self, flow: &mut Inspected, packets: u32) {
        if packets > 0 {
            flow.lose_place();
        }
    }

    fn describe(&self, flow: &Inspected) -> &'static str {
        match flow.mode {
            mode::PASSED => "passed",
            mode::DROPPED => "dropped",
            mode::REJECTED => "rejected",
            _ if flow.rule != 0 => "alerted",
            _ => "",
        }
    }

    fn explain(&self, _packet: &Packet, flow: Option<&Inspected>) -> String {
        let Some(flow) = flow else { return String::new() };
        let counter = usize::from(flow.rule).checked_sub(1);
        let name = counter.and_then(|counter| self.name(counter)).unwrap_or_default();
        match flow.mode {
            mode::PASSED => format!("not inspected, by its rule {name}"),
            mode::DROPPED | mode::REJECTED => format!("refused, because of {name}"),
            _ if name.is_empty() => String::new(),
            _ => format!("its rule {name} has matched"),
        }
    }

    fn alert(&self, about: u32) -> Option<Alert> {
        let file = self.eve.clone()?;
        let rule = self.engine.rules.get(about as usize)?;
        Some(Alert {
            is_blocked: matches!(rule.action, Action::Drop | Action::Reject),
            gid: rule.gid,
            sid: rule.sid,
            rev: rule.rev,
            signature: rule.message.clone(),
            category: rule.class.clone(),
            file,
        })
    }

    fn warnings(&self) -> Vec<ConfigError> {
        self.skipped.clone()
    }
}
