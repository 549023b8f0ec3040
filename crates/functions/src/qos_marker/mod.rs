//! `qos_marker`: puts flows into classes, and marks packets with their flow's class for
//! the network that they leave to.
//!
//! Theory of operation. A classifier and a marker (RFC 2475, section 2.3) that know
//! flows. A flow's first packet is matched against the rules, in order; the first match
//! names the class. The class says for each direction which marks every packet gets: a
//! DSCP (RFC 2474, section 3), the priority of an 802.1Q tag (IEEE 802.1Q-2018, clause
//! 9.6), both or neither. A class may demote flows to a lower one after a number of
//! packets or bytes, both directions together; no flow comes back. Fragments and ICMP
//! errors are marked and counted with their flow. The mark depends on the flow's own
//! packets alone, so a replay gives the same marks.
//!
//! In: classes, rules, a flow's packets. Out: the same packets, marked. Never: a drop
//! because of a flow's class; a VLAN. The tag has VLAN 0 (a priority tag) unless an
//! earlier function has said another one, and the port puts its own in place of that.

mod dscp;
mod mark;

use crate::classes::{Classes, Names};
pub(crate) use dscp::DscpConfig;
use holdfast_nf::{
    ConfigError, Context, DropReason, NetworkFunction, Open, Opening, Packet, Verdict,
};
use holdfast_wire::zone::Zones;
pub(crate) use mark::Mark;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A class.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassConfig {
    /// DSCP of packets of both directions: a number from 0 to 63, or a name such as `ef`,
    /// `af21`, `cs1`, `le`. Without it packets keep theirs.
    #[serde(default)]
    pub dscp: Option<DscpConfig>,
    /// Priority (PCP) of packets of both directions, in an 802.1Q tag. Without it they
    /// get no tag.
    #[serde(default)]
    #[schemars(range(max = 7))]
    pub pcp: Option<u8>,
    /// Marks of packets from the side that opened the connection, in place of the
    /// class's.
    #[serde(default)]
    pub forward: Option<MarkConfig>,
    /// Marks of packets to the side that opened the connection, in place of the class's.
    #[serde(default)]
    pub reverse: Option<MarkConfig>,
    /// Limits beyond which a flow leaves the class for a lower one.
    #[serde(default)]
    pub demote: Option<DemoteConfig>,
}

/// Marks of packets in one direction.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MarkConfig {
    /// As in the class.
    #[serde(default)]
    pub dscp: Option<DscpConfig>,
    /// As in the class.
    #[serde(default)]
    #[schemars(range(max = 7))]
    pub pcp: Option<u8>,
}

/// The limits of a flow in its class. At least one limit is needed; the first that is
/// passed counts.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DemoteConfig {
    /// The class to which the flow then belongs.
    pub to: String,
    /// Maximum number of the flow's packets since it began, both directions together.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub after_packets: Option<u64>,
    /// Maximum number of bytes of the flow's IP packets since it began, both directions
    /// together.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub after_bytes: Option<u64>,
}

/// The marker's configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QosMarkerConfig {
    /// The classes by name.
    pub classes: BTreeMap<String, ClassConfig>,
    /// Rules, of which the first that matches a flow's first packet decides. Each is a
    /// class, then a selector: `voice udp on lan from any to any port 16384-32767`.
    #[serde(default)]
    pub rules: Vec<String>,
    /// The class of flows that no rule matches; without it they pass unchanged.
    #[serde(default)]
    pub default: Option<String>,
}

holdfast_nf::flow_state! {
    /// State of one flow.
    pub struct Marked {
        /// Packets since it began, while a limit counts them.
        pub packets: u64,
        /// Bytes of IP packets since it began, while a limit counts them.
        pub bytes: u64,
        /// The class whose marks its packets get, or `NONE`.
        pub class: u8,
        /// The class in which it began, or `NONE`.
        pub first: u8,
        /// Zero.
        pub spare: [u8; 6],
    }
}

/// The limits above which a flow belongs to another class.
#[derive(Debug, Clone, Copy)]
struct Limit {
    packets: u64,
    bytes: u64,
    to: u8,
}

#[derive(Debug, Clone)]
struct Class {
    /// Marks, forward and reverse.
    marks: [Mark; 2],
    limit: Option<Limit>,
}

/// A marker; see the module.
#[derive(Debug)]
pub struct QosMarker {
    /// In the order of their names. Limits lead from class to class, never in a circle.
    classes: Vec<Class>,
    flows: Classes,
}

fn mark(
    config: &ClassConfig,
    own: Option<&MarkConfig>,
    path: &str,
    way: &str,
) -> Result<Mark, ConfigError> {
    let of_own = |key: &str| format!("{path}.{way}.{key}");
    let of_both = |key: &str| format!("{path}.{key}");
    let own_dscp = own.and_then(|own| own.dscp.as_ref()).map(|dscp| (dscp, of_own("dscp")));
    let dscp = own_dscp.or_else(|| config.dscp.as_ref().map(|dscp| (dscp, of_both("dscp"))));
    let own_pcp = own.and_then(|own| own.pcp).map(|pcp| (pcp, of_own("pcp")));
    let pcp = own_pcp.or_else(|| config.pcp.map(|pcp| (pcp, of_both("pcp"))));
    let dscp = dscp
        .map(|(dscp, path)| dscp.read().map_err(|message| ConfigError::at(path, message)))
        .transpose()?;
    let pcp = match pcp {
        Some((pcp, path)) if pcp > 7 => {
            return Err(ConfigError::at(
                path,
                format!("{pcp} is not a priority of 802.1Q: a number from 0 to 7"),
            ));
        }
        pcp => pcp.map(|(pcp, _)| pcp),
    };
    Ok(Mark { dscp, pcp })
}

fn limit(
    config: &DemoteConfig,
    name: &str,
    path: &str,
    names: &Names<'_>,
) -> Result<Limit, ConfigError> {
    let to = names
        .number(&config.to)
        .map_err(|message| ConfigError::at(format!("{path}.to"), message))?;
    for (key, limit) in
        [("after_packets", config.after_packets), ("after_bytes", config.after_bytes)]
    {
        if limit == Some(0) {
            let message = format!(
                "0 would keep every flow out of `{name}`; let rules name `{}` instead",
                config.to
            );
            return Err(ConfigError::at(format!("{path}.{key}"), message));
        }
    }
    if config.after_packets.is_none() && config.after_bytes.is_none() {
        return Err(ConfigError::at(
            path,
            "a limit is missing: `after_packets`, `after_bytes`, or both",
        ));
    }
    Ok(Limit {
        packets: config.after_packets.unwrap_or(u64::MAX),
        bytes: config.after_bytes.unwrap_or(u64::MAX),
        to,
    })
}

fn class(name: &str, config: &ClassConfig, names: &Names<'_>) -> Result<Class, ConfigError> {
    let path = format!("classes.{name}");
    // A value that both directions override is checked too.
    mark(config, None, &path, "")?;
    let marks = [
        mark(config, config.forward.as_ref(), &path, "forward")?,
        mark(config, config.reverse.as_ref(), &path, "reverse")?,
    ];
    let demote = config.demote.as_ref();
    let limit =
        demote.map(|demote| limit(demote, name, &format!("{path}.demote"), names)).transpose()?;
    Ok(Class { marks, limit })
}

impl QosMarker {
    /// The class in which a flow that began in `class` would go round forever.
    fn circle(&self, class: u8) -> Option<u8> {
        let mut at = class;
        for _ in &self.classes {
            at = self.classes[usize::from(at)].limit?.to;
            if at == class {
                return Some(class);
            }
        }
        None
    }

    /// Counts the packet, and finds the flow's class for it. Without a further limit
    /// nothing is counted: unchanged state needs no replication.
    #[inline]
    fn count(&self, packet: &Packet, flow: &mut Marked) -> Option<&Class> {
        let mut class = self.classes.get(usize::from(flow.class))?;
        if class.limit.is_some() {
            flow.packets = flow.packets.saturating_add(1);
            flow.bytes = flow.bytes.saturating_add(packet.ip_len());
        }
        while let Some(limit) =
            class.limit.filter(|limit| flow.packets > limit.packets || flow.bytes > limit.bytes)
        {
            flow.class = limit.to;
            class = self.classes.get(usize::from(limit.to))?;
        }
        Some(class)
    }
}

impl NetworkFunction for QosMarker {
    const NAME: &'static str = "qos_marker";
    type Config = QosMarkerConfig;
    type Flow = Marked;
    type Shared = ();

    fn new(config: QosMarkerConfig) -> Result<QosMarker, ConfigError> {
        QosMarker::with_zones(config, &Zones::default())
    }

    fn with_zones(config: QosMarkerConfig, zones: &Zones) -> Result<QosMarker, ConfigError> {
        let names = Names::read(config.classes.keys(), "{ voice: { dscp: ef } }")?;
        let classes = config.classes.iter().map(|(name, written)| class(name, written, &names));
        let classes = classes.collect::<Result<Vec<_>, _>>()?;
        let flows = Classes::read(&config.rules, config.default.as_ref(), &names, zones)?;
        let marker = QosMarker { classes, flows };
        if let Some(class) = (0..marker.classes.len() as u8).find_map(|class| marker.circle(class))
        {
            let name = names.name(class);
            return Err(ConfigError::at(
                format!("classes.{name}.demote.to"),
                format!("from there a flow would come back to `{name}`"),
            ));
        }
        Ok(marker)
    }

    fn shared(&self) {}

    fn open(&self, packet: &Packet, _shared: &mut (), cx: &mut Opening<'_>) -> Open<Marked> {
        let class = self.flows.of(packet, cx);
        Open::Accept(Marked { class, first: class, ..Marked::default() })
    }

    #[inline]
    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Marked,
        _shared: &mut (),
        cx: &mut Context,
    ) -> Verdict {
        let Some(class) = self.count(packet, flow) else { return Verdict::Forward };
        let mark = class.marks[cx.direction() as usize];
        if mark.write(packet) { Verdict::Forward } else { Verdict::Drop(DropReason::FrameTooLarge) }
    }

    fn describe(&self, flow: &Marked) -> &'static str {
        if flow.class == flow.first { "" } else { "demoted" }
    }

    fn added_bytes(&self) -> usize {
        let is_tagging =
            self.classes.iter().flat_map(|class| class.marks).any(|mark| mark.pcp.is_some());
        if is_tagging { 4 } else { 0 }
    }
}
