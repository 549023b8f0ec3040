//! Packet selectors, which also match an ICMP message's type and code: `icmp type
//! echo-request code 0 from any`.

use super::{Protocol, Selector, SelectorError, Words, wrong};
use crate::header::{icmp, icmpv6, proto};
use crate::zone::Zones;
use crate::{FlowKey, Network, Packet};
use core::fmt;

/// A type: its number over IPv4 and over IPv6, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Type {
    v4: Option<u8>,
    v6: Option<u8>,
}

/// Named types. The first ones open a flow; the others are known so that an error can
/// name them.
const NAMES: [(&str, Type); 9] = [
    ("echo-request", Type { v4: Some(icmp::ECHO), v6: Some(icmpv6::ECHO) }),
    ("timestamp-request", Type { v4: Some(icmp::TIMESTAMP), v6: None }),
    ("echo-reply", Type { v4: Some(icmp::ECHO_REPLY), v6: Some(icmpv6::ECHO_REPLY) }),
    ("timestamp-reply", Type { v4: Some(icmp::TIMESTAMP_REPLY), v6: None }),
    (
        "destination-unreachable",
        Type { v4: Some(icmp::UNREACHABLE), v6: Some(icmpv6::UNREACHABLE) },
    ),
    ("packet-too-big", Type { v4: None, v6: Some(icmpv6::PACKET_TOO_BIG) }),
    ("time-exceeded", Type { v4: Some(icmp::TIME_EXCEEDED), v6: Some(icmpv6::TIME_EXCEEDED) }),
    (
        "parameter-problem",
        Type { v4: Some(icmp::PARAMETER_PROBLEM), v6: Some(icmpv6::PARAMETER_PROBLEM) },
    ),
    ("redirect", Type { v4: Some(icmp::REDIRECT), v6: None }),
];

impl Type {
    fn of(self, network: Network) -> Option<u8> {
        match network {
            Network::V4 => self.v4,
            Network::V6 => self.v6,
            Network::Other => None,
        }
    }

    /// The part of the type that exists in a protocol.
    fn within(self, protocol: Protocol) -> Type {
        let has = |number: u8| protocol.matches(number.into());
        Type {
            v4: self.v4.filter(|_| has(proto::ICMP)),
            v6: self.v6.filter(|_| has(proto::ICMPV6)),
        }
    }

    fn is_error(self) -> bool {
        self.v4.is_none_or(icmp::is_error) && self.v6.is_none_or(icmpv6::is_error)
    }

    fn is_reply(self) -> bool {
        let is_reply =
            |exchange: Option<(u8, bool)>| exchange.is_some_and(|(_, is_reply)| is_reply);
        let v4 = self.v4.is_none_or(|kind| is_reply(icmp::exchange(kind)));
        v4 && self.v6.is_none_or(|kind| is_reply(icmpv6::exchange(kind)))
    }

    fn read(text: &str, protocol: Protocol) -> Result<Type, SelectorError> {
        let named = NAMES.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
        let numbered =
            || text.parse().ok().map(|number| Type { v4: Some(number), v6: Some(number) });
        let Some(kind) = named.or_else(numbered) else {
            let names = NAMES
                .iter()
                .filter(|(_, kind)| !kind.is_error() && !kind.is_reply())
                .map(|(name, _)| *name);
            let names = names.collect::<Vec<_>>().join(", ");
            return Err(wrong(
                0,
                format!(
                    "`{text}` is not a type of ICMP: one of {names}, or a number from 0 to 255"
                ),
            ));
        };
        let kind = kind.within(protocol);
        if kind.v4.is_none() && kind.v6.is_none() {
            return Err(wrong(0, format!("`{protocol}` has no `{text}`")));
        }
        if kind.is_error() {
            return Err(wrong(
                0,
                format!(
                    "`{text}` is an error about a packet: it passes with the flow of that packet, and no rule is asked"
                ),
            ));
        }
        if kind.is_reply() {
            return Err(wrong(
                0,
                format!(
                    "`{text}` is a reply: it passes with what it replies to, and no rule is asked"
                ),
            ));
        }
        Ok(kind)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, kind)| kind == self) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.v4.or(self.v6).unwrap_or_default()),
        }
    }
}

/// A matcher of packets: their flow's key, and type and code of ICMP messages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PacketSelector {
    /// Matches the key.
    pub flow: Selector,
    /// Types of messages; empty for all.
    types: Vec<Type>,
    code: Option<u8>,
}

impl PacketSelector {
    /// As [`Selector::read`], with `type TYPE[,TYPE…] [code NUMBER]` behind `icmp`: names
    /// or numbers of messages that open a flow.
    ///
    /// # Errors
    /// The first wrong word.
    pub fn read(text: &str, zones: &Zones) -> Result<PacketSelector, SelectorError> {
        let (mut types, mut code) = (Vec::new(), None);
        let mut read = |protocol: Protocol, words: &mut Words<'_>| -> Result<(), SelectorError> {
            let (offset, list) = words.next().ok_or_else(|| {
                wrong(
                    text.len(),
                    "a type is missing after `type`: a name like echo-request, or a number",
                )
            })?;
            let mut at = offset;
            for name in list.split(',') {
                let kind = Type::read(name, protocol)
                    .map_err(|error| wrong(at + error.offset, error.message))?;
                types.push(kind);
                at += name.len() + 1;
            }
            if words.next_if(|(_, word)| *word == "code").is_some() {
                let (offset, word) = words
                    .next()
                    .ok_or_else(|| wrong(text.len(), "a number is missing after `code`"))?;
                code =
                    Some(word.parse::<u8>().map_err(|_| {
                        wrong(offset, format!("`{word}` is not a code from 0 to 255"))
                    })?);
            }
            Ok(())
        };
        let flow = Selector::parse(text, zones, Some(&mut read))?;
        Ok(PacketSelector { flow, types, code })
    }

    /// True if the packet, which has this key, matches.
    #[inline]
    pub fn matches(&self, key: &FlowKey, packet: &Packet) -> bool {
        self.flow.matches(key, packet.meta.ingress)
            && (!self.has_types() || self.matches_message(packet))
    }

    /// The selector of flows, without the types of messages.
    pub fn flow(&self) -> &Selector {
        &self.flow
    }

    /// True if types of messages are named.
    pub fn has_types(&self) -> bool {
        !self.types.is_empty()
    }

    fn matches_message(&self, packet: &Packet) -> bool {
        packet.icmp().is_some_and(|header| {
            self.types.iter().any(|kind| kind.of(packet.layers.network) == Some(header.kind))
                && self.code.is_none_or(|code| header.code == code)
        })
    }

    /// True if every packet that matches the other selector matches this one. False also
    /// if this takes several of its port ranges together.
    pub fn covers(&self, other: &PacketSelector) -> bool {
        let has = |network: Network, kind: &Type| {
            kind.of(network)
                .is_none_or(|number| self.types.iter().any(|own| own.of(network) == Some(number)))
        };
        let has_types = !self.has_types()
            || other.has_types()
                && other.types.iter().all(|kind| has(Network::V4, kind) && has(Network::V6, kind));
        self.flow.covers(&other.flow)
            && has_types
            && self.code.is_none_or(|code| other.code == Some(code))
    }
}

impl fmt::Display for PacketSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flow = self.flow.to_string();
        let protocol = self.flow.protocol.to_string();
        f.write_str(&protocol)?;
        for (at, kind) in self.types.iter().enumerate() {
            write!(f, "{}{kind}", if at == 0 { " type " } else { "," })?;
        }
        if let Some(code) = self.code {
            write!(f, " code {code}")?;
        }
        f.write_str(&flow[protocol.len()..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<PacketSelector, (usize, String)> {
        PacketSelector::read(text, &Zones::numbered())
            .map_err(|error| (error.offset, error.message))
    }

    #[test]
    fn display_parses_back() {
        for text in [
            "icmp type echo-request from any to any",
            "icmp type echo-request,17 code 0 on #1 from 10.0.0.0/24 to any",
            "proto-1 type timestamp-request from any to any",
            "proto-58 type 200 code 255 from ::/0 to any",
            "tcp from any to any port 80",
        ] {
            let selector = read(text).unwrap();
            assert_eq!(selector.to_string(), text);
            assert_eq!(read(&selector.to_string()), Ok(selector));
        }
        assert_eq!(
            read("icmp from any type 8,128 to any").map(|one| one.to_string()),
            Ok("icmp type 8,128 from any to any".into())
        );
    }

    #[test]
    fn errors_point_at_the_word() {
        let error = |text: &str| read(text).unwrap_err();
        assert_eq!(
            error("icmp type echo-request,pong"),
            (23, "`pong` is not a type of ICMP: one of echo-request, timestamp-request, or a number from 0 to 255".to_owned())
        );
        assert_eq!(error("icmp type 256").0, 10);
        assert_eq!(
            error("icmp type"),
            (9, "a type is missing after `type`: a name like echo-request, or a number".to_owned())
        );
        assert_eq!(error("icmp type 8 code"), (16, "a number is missing after `code`".to_owned()));
        assert_eq!(
            error("icmp type 8 code 256"),
            (17, "`256` is not a code from 0 to 255".to_owned())
        );
        assert_eq!(error("icmp code 0").0, 5);
        assert_eq!(error("icmp type 8 type 9").0, 12);
        assert_eq!(error("tcp type 8"), (4, "`tcp` has no types: only `icmp` has".to_owned()));
        assert_eq!(error("type 8"), (0, "`any` has no types: only `icmp` has".to_owned()));
        assert_eq!(
            error("proto-58 type timestamp-request"),
            (14, "`proto-58` has no `timestamp-request`".to_owned())
        );
        // No rule matches these messages.
        assert_eq!(error("icmp type time-exceeded").0, 10);
        assert!(error("icmp type 3").1.contains("is an error about a packet"));
        assert!(error("icmp type echo-reply").1.contains("is a reply"));
        assert!(error("proto-58 type 129").1.contains("is a reply"));
        // A number that is an error over one IP version and not over the other is taken
        // for the other.
        assert!(
            read("icmp type 5").is_ok()
                && read("proto-1 type 5").is_err()
                && read("proto-58 type 5").is_ok()
        );
    }

    #[test]
    fn who_knows_flows_only_has_no_types() {
        let error = "icmp type 8".parse::<Selector>().unwrap_err();
        assert_eq!(
            (error.offset, error.message.contains("`type` is for the rules of a `firewall`")),
            (5, true)
        );
    }

    #[test]
    fn what_covers_what() {
        for (a, b, expected) in [
            ("icmp", "icmp type 8", true),
            ("icmp type 8", "icmp", false),
            ("icmp type 8,200", "icmp type 200", true),
            ("icmp type 8", "icmp type echo-request", false),
            ("icmp type 8,128", "icmp type echo-request", true),
            ("icmp type echo-request", "proto-1 type 8", true),
            ("icmp type 8", "icmp type 8 code 0", true),
            ("icmp type 8 code 0", "icmp type 8", false),
            ("icmp type 8 code 0", "icmp type 8 code 1", false),
            ("icmp type 8 from 10.0.0.0/8", "icmp type 8", false),
        ] {
            assert_eq!(read(a).unwrap().covers(&read(b).unwrap()), expected, "{a} and {b}");
        }
    }
}
