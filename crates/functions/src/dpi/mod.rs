//! `dpi`: names the protocol of each flow, and treats flows by protocol and category
//! (REINFORCE, section 6: nDPI as a deep packet inspection function).
//!
//! Theory of operation. nDPI looks at a flow's first packets until it knows the protocol,
//! or gives up ([`holdfast_ndpi`]). Its own object of the flow is a cache of this runtime
//! ([`Cache`]), freed as soon as the flow is decided. The result is the flow's state:
//! protocols, category, packets inspected, whether it is decided. A decided flow keeps
//! its protocol wherever it goes, and never meets the library again. A flow that is
//! undecided when its object is gone (it moved, or its runtime died, or there was no
//! room) is decided by what was known by then: a protocol, or none. Each inspected packet
//! is non-deterministic, so that protections save the result instead of inspecting again.
//!
//! The library gets packets that carry data: no segment without, no fragment, no packet
//! with a wrong checksum ([`packet`]). A flow whose handshake alone has been seen has
//! thus no object, and loses nothing when it moves. With the first data of a connection
//! the library gets a SYN, made for it, by which it tells client from server.
//!
//! In: a flow's packets. Out: the same packets, perhaps marked, or drops. Never: a
//! verdict that changes when it is decided, a packet that is held.

mod config;
mod packet;
mod rule;

use crate::firewall::Action as Judgement;
use crate::tcp;
pub use config::DpiConfig;
use holdfast_ndpi::{Inspected, Library, Table, Verdict as Found};
use holdfast_nf::wire::header::proto;
use holdfast_nf::{
    Cache, Cached, ConfigError, Context, Counters, Direction, DropReason, NetworkFunction, Open,
    Opening, Packet, Store, Verdict,
};
use packet::{Kind, Syn};
use rule::{Action, Rule};

/// nDPI's objects of a runtime's undecided flows.
pub struct Objects(Table);

impl Store for Objects {
    fn forget(&mut self, flow: u64) {
        self.0.forget(flow);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

holdfast_nf::shared_state! {
    /// Counters that all flows share, and the library's objects.
    pub struct DpiCounts {
        /// Flows by protocol, counted when they are decided or end.
        pub protocols: Counters,
        /// Flows by rule, counted at the same time.
        pub rules: Counters,
        /// Events ([`EVENTS`]).
        pub inspection: Counters,
        /// nDPI's objects.
        pub objects: Cache<Objects>,
    }
}

/// Names of the events' counters.
const EVENTS: [&str; 5] = ["inspected", "decided", "given_up", "cut_short", "not_inspected"];

/// Counters of events, in this order.
#[derive(Clone, Copy)]
enum Event {
    /// Packets that the library got.
    Inspected,
    /// Flows that the library decided.
    Decided,
    /// Flows of which the library knew no protocol after all packets that it gets.
    GivenUp,
    /// Flows that were decided without the library, because its object was missing.
    CutShort,
    /// Packets of undecided flows that the library does not get: fragments, and those
    /// with a wrong checksum.
    NotInspected,
}

/// How far a flow is.
mod stage {
    /// The library gets its packets.
    pub(super) const UNDECIDED: u8 = 0;
    /// Packets of it were forgotten, so the library would not see them all.
    pub(super) const OUTDATED: u8 = 1;
    pub(super) const DECIDED: u8 = 2;
}

holdfast_nf::flow_state! {
    /// State of one flow.
    #[derive(Clone, Copy)]
    pub struct Classified {
        /// nDPI's object of the flow, and the packets that it has seen.
        pub object: Cached<Objects>,
        /// The protocol, 0 if it is not known.
        pub app: u16,
        /// The protocol that carries it, 0 if there is none.
        pub master: u16,
        /// The category.
        pub category: u16,
        /// How far it is.
        pub stage: u8,
        /// 1 if it is a connection that began with a SYN.
        pub has_syn: u8,
    }
}

const _: () = assert!(size_of::<Classified>() == 24, "bytes that protections copy");

/// The function; see the module.
pub struct Dpi {
    library: &'static Library,
    config: DpiConfig,
    rules: Vec<Rule>,
    /// For each protocol, and each category, the rule that decides.
    by_protocol: Vec<Option<u16>>,
    by_category: Vec<Option<u16>>,
    /// Rules up to this one are refusals or counts: they need not wait for a more special
    /// protocol.
    hasty: usize,
}

/// For each number, the first of these rules that matches it.
fn first(rules: &[Rule], numbers: usize, matches: impl Fn(&Rule, u16) -> bool) -> Vec<Option<u16>> {
    let decides = |number| {
        rules.iter().position(|rule| rule.action != Action::Count && matches(rule, number))
    };
    (0..numbers as u16).map(|number| decides(number).map(|at| at as u16)).collect()
}

impl Dpi {
    /// The rule that decides about the flow, by what is known of it now.
    #[inline]
    fn rule(&self, flow: &Classified) -> Option<usize> {
        let is_decided = flow.stage == stage::DECIDED;
        if flow.app == 0 && !is_decided {
            return None;
        }
        let of = |rules: &[Option<u16>], number: u16| rules.get(usize::from(number)).copied()?;
        let app = of(&self.by_protocol, flow.app);
        let master = if flow.master == 0 { None } else { of(&self.by_protocol, flow.master) };
        let category = of(&self.by_category, flow.category);
        let rule = [app, master, category].into_iter().flatten().min()?;
        let rule = usize::from(rule);
        let waits = !is_decided && rule >= self.hasty && self.rules[rule].action.is_refusal();
        (!waits).then_some(rule)
    }

    /// Notes that the flow is decided, and counts it.
    fn decide(&self, flow: &mut Classified, shared: &mut DpiCounts) {
        flow.stage = stage::DECIDED;
        shared.objects.forget(&mut flow.object);
        self.count(flow, shared);
    }

    fn count(&self, flow: &Classified, shared: &mut DpiCounts) {
        shared.protocols.add(flow.app.into(), 1);
        for (at, rule) in self.rules.iter().enumerate() {
            if rule.is_for_protocol(flow.app)
                || flow.master != 0 && rule.is_for_protocol(flow.master)
                || rule.is_for_category(flow.category)
            {
                shared.rules.add(at, 1);
                if rule.action != Action::Count {
                    return;
                }
            }
        }
        shared.rules.add(self.rules.len(), 1);
    }

    /// Gives a packet of an undecided flow to the library.
    #[cold]
    fn inspect(
        &self,
        packet: &Packet,
        flow: &mut Classified,
        shared: &mut DpiCounts,
        cx: &mut Context,
    ) {
        if flow.stage == stage::OUTDATED {
            shared.inspection.add(Event::CutShort as usize, 1);
            return self.decide(flow, shared);
        }
        let ip = match packet::kind(packet) {
            Kind::Whole(ip) => ip,
            Kind::Empty => return,
            Kind::Unfit => return shared.inspection.add(Event::NotInspected as usize, 1),
        };
        let most = if packet.layers.protocol == proto::TCP {
            self.config.tcp_packets
        } else {
            self.config.other_packets
        };
        let (objects, step) = shared.objects.step(&mut flow.object, cx);
        let has_syn = flow.has_syn != 0 && step.before == 0;
        let is_from_client = cx.direction() == Direction::Forward;
        let syn = if has_syn { Syn::of(packet, is_from_client) } else { None };
        let inspected = Inspected {
            flow: step.flow,
            step: step.before,
            ms: cx.now() / 1_000_000,
            ip,
            ahead: syn.as_ref().map(Syn::bytes),
            is_last: step.before.saturating_add(1) >= most,
        };
        let Some(found) = objects.0.inspect(inspected) else {
            shared.inspection.add(Event::CutShort as usize, 1);
            return self.decide(flow, shared);
        };
        shared.inspection.add(Event::Inspected as usize, 1);
        let Found { app, master, category, is_final } = found;
        (flow.app, flow.master, flow.category) = (app, master, category);
        if is_final {
            let event = if app == 0 { Event::GivenUp } else { Event::Decided };
            shared.inspection.add(event as usize, 1);
            self.decide(flow, shared);
        } else if self.rule(flow).is_some_and(|rule| self.rules[rule].action.is_refusal()) {
            shared.inspection.add(Event::Decided as usize, 1);
            self.decide(flow, shared);
        }
    }

    /// The name of the flow's protocol.
    fn name(&self, protocol: u16) -> &'static str {
        self.library.protocols().get(usize::from(protocol)).map_or("", String::as_str)
    }
}

impl NetworkFunction for Dpi {
    const NAME: &'static str = "dpi";
    type Config = DpiConfig;
    type Flow = Classified;
    type Shared = DpiCounts;

    fn new(config: DpiConfig) -> Result<Dpi, ConfigError> {
        config.check()?;
        let library = Library::open().map_err(|error| ConfigError::at("", error))?;
        let rules = config.rules.iter().enumerate();
        let rules = rules.map(|(at, text)| Rule::read(at, text, library));
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        let by_protocol = first(&rules, library.protocols().len(), Rule::is_for_protocol);
        let by_category = first(&rules, library.categories().len(), Rule::is_for_category);
        let is_hasty = |rule: &Rule| rule.action.is_refusal() || rule.action == Action::Count;
        let hasty = rules.iter().position(|rule| !is_hasty(rule)).unwrap_or(rules.len());
        Ok(Dpi { library, config, rules, by_protocol, by_category, hasty })
    }

    fn shared(&self) -> DpiCounts {
        let bytes = u64::from(self.config.memory_mib) << 20;
        let table = self.library.table(self.config.undecided_flows, bytes);
        let rules = self.rules.iter().map(|rule| rule.text.as_str());
        DpiCounts {
            protocols: Counters::new(self.library.protocols()),
            rules: Counters::new(rules.chain(["default"])),
            inspection: Counters::new(EVENTS),
            objects: Cache::new(Objects(table)),
        }
    }

    fn open(
        &self,
        packet: &Packet,
        _shared: &mut DpiCounts,
        _cx: &mut Opening<'_>,
    ) -> Open<Classified> {
        let has_syn = tcp::opens(packet);
        Open::Accept(Classified { has_syn: has_syn.into(), ..Classified::default() })
    }

    #[inline]
    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Classified,
        shared: &mut DpiCounts,
        cx: &mut Context,
    ) -> Verdict {
        if flow.stage != stage::DECIDED {
            self.inspect(packet, flow, shared, cx);
        }
        let Some(rule) = self.rule(flow) else { return Verdict::Forward };
        match self.rules[rule].action {
            Action::Judge(Judgement::Allow) | Action::Count => Verdict::Forward,
            Action::Judge(Judgement::Deny) => Verdict::Drop(DropReason::FunctionDenied),
            Action::Judge(Judgement::Reject) => Verdict::Reject(DropReason::FunctionDenied),
            Action::Mark(mark) if mark.write(packet) => Verdict::Forward,
            Action::Mark(_) => Verdict::Drop(DropReason::FrameTooLarge),
        }
    }

    fn expire(&self, flow: &Classified, shared: &mut DpiCounts) {
        if flow.stage != stage::DECIDED {
            self.count(flow, shared);
        }
    }

    fn outdated(&self, flow: &mut Classified, _packets: u32) {
        if flow.stage == stage::UNDECIDED {
            flow.stage = stage::OUTDATED;
        }
    }

    fn describe(&self, flow: &Classified) -> &'static str {
        let is_known = flow.app != 0 || flow.stage == stage::DECIDED;
        if is_known { self.name(flow.app) } else { "" }
    }

    fn explain(&self, _packet: &Packet, flow: Option<&Classified>) -> String {
        let Some(flow) = flow else { return String::new() };
        let protocol = match (flow.master, flow.app) {
            (0, app) => self.name(app).to_owned(),
            (master, app) if master == app => self.name(app).to_owned(),
            (master, app) => format!("{}.{}", self.name(master), self.name(app)),
        };
        let category = self.library.categories().get(usize::from(flow.category));
        let category = category.map_or("", String::as_str);
        let how = if flow.stage == stage::DECIDED { "decided" } else { "so far" };
        let packets = flow.object.steps();
        let rule = self.rule(flow).map_or_else(
            || "no rule means it".to_owned(),
            |rule| format!("by its rule `{}`", self.rules[rule].text),
        );
        format!("{protocol} (category {category}), {how} after {packets} packets with data, {rule}")
    }
}
