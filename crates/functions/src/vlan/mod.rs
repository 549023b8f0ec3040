//! `vlan`: puts flows into VLANs of the ports where they leave, and sets the priority of
//! their tags.
//!
//! Theory of operation. A flow's first packet is matched against the rules, in order; the
//! first match names the class. The class says for each direction how the tag is that
//! packets leave with: its VLAN, which must be among the `flow_vlans` of the port, its
//! priority (PCP) and drop eligibility (DEI), or that there is none. The tag is part of
//! the packet from here on, so it is held, handed over and replayed with it. The edge
//! refuses a VLAN that the port does not have, and the port puts its own where the tag
//! says none (`holdfast_wire::vlan`). The tag depends on the flow's class and the packet
//! alone, so a replay gives the same one.
//!
//! In: classes, rules, a flow's packets. Out: the same packets, tagged. Never: a choice
//! of the port or the next router, which the packet's destination makes.

use crate::classes::{Classes, NONE, Names};
use crate::tag::Tag;
use holdfast_nf::{
    ConfigError, Context, Direction, DropReason, NetworkFunction, Open, Opening, Packet, Verdict,
};
use holdfast_wire::vlan::MAX_ID;
use holdfast_wire::zone::Zones;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// A class: the tags of packets in either direction. Packets of a direction that is not
/// there pass unchanged.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VlanClassConfig {
    /// The tag of packets from the side that opened the connection.
    #[serde(default)]
    pub forward: Option<TagConfig>,
    /// The tag of packets to the side that opened the connection.
    #[serde(default)]
    pub reverse: Option<TagConfig>,
}

/// The tag with which packets leave.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TagConfig {
    /// The VLAN, one of the `flow_vlans` of the port where the packets leave; 0 for the
    /// port's own, in place of an earlier function's. Without it the VLAN stays.
    #[serde(default)]
    #[schemars(range(max = 4094))]
    pub id: Option<u16>,
    /// The priority (PCP), 0 to 7. Without it the priority stays.
    #[serde(default)]
    #[schemars(range(max = 7))]
    pub pcp: Option<u8>,
    /// Drop eligibility (DEI). Without it the bit stays.
    #[serde(default)]
    pub dei: Option<bool>,
    /// Priority and drop eligibility are those of the tag with which the packet came in,
    /// both 0 if it had none.
    #[serde(default)]
    pub keep: bool,
    /// The tag of an earlier function is taken off. Nothing else can be said beside it.
    #[serde(default)]
    pub pop: bool,
}

/// The function's configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VlanFunctionConfig {
    /// The classes by name.
    pub classes: BTreeMap<String, VlanClassConfig>,
    /// Rules, of which the first that matches a flow's first packet decides. Each is a
    /// class, then a selector: `video udp on lan from any to any port 5000-5999`.
    #[serde(default)]
    pub rules: Vec<String>,
    /// The class of flows that no rule matches; without it they pass unchanged.
    #[serde(default)]
    pub default: Option<String>,
}

holdfast_nf::flow_state! {
    /// State of one flow.
    pub struct Tagged {
        /// The class, or 255 for none.
        pub class: u8,
        /// Zero.
        pub spare: [u8; 7],
    }
}

/// The change of a packet's tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Pass,
    Set { tag: Tag, keeps_priority: bool },
    Pop,
}

/// The function; see the module.
#[derive(Debug)]
pub struct Vlan {
    /// Actions, forward and reverse, in the order of the classes' names.
    actions: Vec<[Action; 2]>,
    classes: Classes,
}

fn action(config: Option<&TagConfig>, path: &str) -> Result<Action, ConfigError> {
    let Some(config) = config else { return Ok(Action::Pass) };
    let error = |key: &str, message: String| Err(ConfigError::at(format!("{path}.{key}"), message));
    let TagConfig { id, pcp, dei, keep, pop } = *config;
    if let Some(id) = id.filter(|id| *id > MAX_ID) {
        return error(
            "id",
            format!("{id} is no VLAN: a number up to {MAX_ID}, or 0 for the port's own"),
        );
    }
    if let Some(pcp) = pcp.filter(|pcp| *pcp > 7) {
        return error("pcp", format!("{pcp} is not a priority of 802.1Q: a number from 0 to 7"));
    }
    let says_priority = pcp.is_some() || dei.is_some();
    if pop && (id.is_some() || says_priority || keep) {
        return error("pop", "a tag that is taken off has no VLAN and no priority".to_owned());
    }
    if keep && says_priority {
        let message = "the priority is the packet's own, or it is `pcp` and `dei`: leave one out";
        return error("keep", message.to_owned());
    }
    match pop {
        true => Ok(Action::Pop),
        false if id.is_none() && !says_priority && !keep => Err(ConfigError::at(
            path,
            "nothing is said about the tag: `id`, `pcp`, `dei`, `keep` or `pop`",
        )),
        false => Ok(Action::Set { tag: Tag { id, pcp, dei }, keeps_priority: keep }),
    }
}

impl Action {
    /// Returns false if the packet has no room for a tag.
    #[inline]
    #[must_use]
    fn apply(self, packet: &mut Packet) -> bool {
        match self {
            Action::Pass => true,
            Action::Set { tag, keeps_priority: false } => tag.write(packet),
            Action::Set { tag, keeps_priority: true } => {
                let received = packet.meta.priority;
                let (pcp, dei) = (Some(received >> 1), Some(received & 1 != 0));
                Tag { pcp, dei, ..tag }.write(packet)
            }
            Action::Pop => {
                packet.layers.vlan_tags == 0 || packet.pull_tag() && packet.parse().is_ok()
            }
        }
    }
}

impl NetworkFunction for Vlan {
    const NAME: &'static str = "vlan";
    type Config = VlanFunctionConfig;
    type Flow = Tagged;
    type Shared = ();

    fn new(config: VlanFunctionConfig) -> Result<Vlan, ConfigError> {
        Vlan::with_zones(config, &Zones::default())
    }

    fn with_zones(config: VlanFunctionConfig, zones: &Zones) -> Result<Vlan, ConfigError> {
        let names = Names::read(config.classes.keys(), "{ video: { forward: { pcp: 4 } } }")?;
        let actions = config.classes.iter().map(|(name, class)| {
            let path = |way: &str| format!("classes.{name}.{way}");
            if class.forward.is_none() && class.reverse.is_none() {
                let message = "a class says something about `forward`, `reverse` or both";
                return Err(ConfigError::at(format!("classes.{name}"), message));
            }
            let forward = action(class.forward.as_ref(), &path("forward"))?;
            Ok([forward, action(class.reverse.as_ref(), &path("reverse"))?])
        });
        let actions = actions.collect::<Result<Vec<_>, _>>()?;
        let classes = Classes::read(&config.rules, config.default.as_ref(), &names, zones)?;
        Ok(Vlan { actions, classes })
    }

    fn shared(&self) {}

    fn open(&self, packet: &Packet, _shared: &mut (), cx: &mut Opening<'_>) -> Open<Tagged> {
        Open::Accept(Tagged { class: self.classes.of(packet, cx), ..Tagged::default() })
    }

    #[inline]
    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Tagged,
        _shared: &mut (),
        cx: &mut Context,
    ) -> Verdict {
        let Some(actions) = self.actions.get(usize::from(flow.class)) else {
            return Verdict::Forward;
        };
        match actions[usize::from(cx.direction() == Direction::Reverse)].apply(packet) {
            true => Verdict::Forward,
            false => Verdict::Drop(DropReason::FrameTooLarge),
        }
    }

    fn describe(&self, flow: &Tagged) -> &'static str {
        if flow.class == NONE { "" } else { "tagged" }
    }

    fn added_bytes(&self) -> usize {
        let is_tagging =
            self.actions.as_flattened().iter().any(|action| matches!(action, Action::Set { .. }));
        if is_tagging { 4 } else { 0 }
    }

    fn vlans(&self) -> BTreeSet<u16> {
        let id = |action: &Action| match action {
            Action::Set { tag, .. } => tag.id.filter(|id| *id != 0),
            _ => None,
        };
        self.actions.as_flattened().iter().filter_map(id).collect()
    }
}
