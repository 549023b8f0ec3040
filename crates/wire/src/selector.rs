//! Selectors: prefixes, ports, and whole 5-tuples, as an operator writes them.
//!
//! The language of firewall rules, service-chain rules and trace filters: `tcp on lan
//! from 10.0.0.0/24 to any port 80,443`.

mod classifier;
mod messages;
mod values;

pub use classifier::Classifier;
pub use messages::PacketSelector;
pub use values::{Ports, Prefix, Protocol};

use crate::header::proto;
use crate::key::FlowKey;
use crate::zone::{Zone, Zones};
use core::cmp::Reverse;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// An error in a selector's text, with its place and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectorError {
    /// Byte offset of the wrong word; the text's length if something is missing.
    pub offset: usize,
    /// The text says what is wrong and what was expected.
    pub message: String,
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SelectorError {}

fn wrong(offset: usize, message: impl Into<String>) -> SelectorError {
    SelectorError { offset, message: message.into() }
}

/// A matcher of 5-tuples and of the box's ports by which packets come in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector {
    /// Protocol.
    pub protocol: Protocol,
    /// The ports of the box by which the packet, or a flow's first packet, comes in.
    pub on: Zone,
    /// Source address; `None` is any.
    pub from: Option<Prefix>,
    /// Source ports.
    pub from_ports: Ports,
    /// Destination address; `None` is any.
    pub to: Option<Prefix>,
    /// Destination ports.
    pub to_ports: Ports,
}

impl Selector {
    /// Matches everything.
    pub fn any() -> Selector {
        Selector::default()
    }

    /// True if a packet with this key matches that came in by this port of the box.
    #[inline]
    pub fn matches(&self, key: &FlowKey, ingress: u8) -> bool {
        self.on.contains(ingress) && self.matches_key(key)
    }

    /// True if the key matches, whatever the port of the box. Only TCP and UDP have
    /// ports: other values in their place, such as an echo's identifier, match no port
    /// here.
    #[inline]
    pub fn matches_key(&self, key: &FlowKey) -> bool {
        let has_ports =
            key.protocol == u16::from(proto::TCP) || key.protocol == u16::from(proto::UDP);
        let ports_match =
            |ports: &Ports, port: u16| ports.is_any() || (has_ports && ports.contains(port));
        self.protocol.matches(key.protocol)
            && self.from.is_none_or(|prefix| prefix.contains(&key.source))
            && self.to.is_none_or(|prefix| prefix.contains(&key.destination))
            && ports_match(&self.from_ports, key.source_port)
            && ports_match(&self.to_ports, key.destination_port)
    }

    /// The rank for the longest match.
    pub fn specificity(&self) -> Specificity {
        let len = |prefix: &Option<Prefix>| prefix.map_or(0, |prefix| u16::from(prefix.len()));
        let is_portless = !matches!(self.protocol, Protocol::Number(proto::TCP | proto::UDP));
        Specificity {
            prefixes: len(&self.from) + len(&self.to),
            has_family: self.from.is_some() || self.to.is_some(),
            ports: Reverse(self.from_ports.count(is_portless) * self.to_ports.count(is_portless)),
            protocol: Reverse(self.protocol.width()),
            on: Reverse(self.on.count()),
        }
    }

    /// True if every packet that matches the other selector matches this one. False also
    /// if this takes several of its port ranges together.
    pub fn covers(&self, other: &Selector) -> bool {
        let has = |own: &Option<Prefix>, other: &Option<Prefix>| match (own, other) {
            (Some(own), Some(other)) => own.covers(other),
            (own, _) => own.is_none(),
        };
        self.protocol.covers(&other.protocol)
            && self.on.covers(other.on)
            && has(&self.from, &other.from)
            && has(&self.to, &other.to)
            && self.from_ports.covers(&other.from_ports)
            && self.to_ports.covers(&other.to_ports)
    }

    /// True if some packet matches both.
    pub fn overlaps(&self, other: &Selector) -> bool {
        let meet = |a: &Option<Prefix>, b: &Option<Prefix>| match (a, b) {
            (Some(a), Some(b)) => a.overlaps(b),
            _ => true,
        };
        // Source and destination have one family, whichever selector gives it.
        let family =
            |selector: &Selector| selector.from.or(selector.to).map(|prefix| prefix.is_ipv4());
        let families_meet = match (family(self), family(other)) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        let has_ports = [&self.from_ports, &self.to_ports, &other.from_ports, &other.to_ports]
            .iter()
            .any(|ports| !ports.is_any());
        let is_common = |number: u8| {
            let (protocol, carries) =
                (u16::from(number), matches!(number, proto::TCP | proto::UDP));
            self.protocol.matches(protocol)
                && other.protocol.matches(protocol)
                && (carries || !has_ports)
        };
        families_meet
            && self.on.overlaps(other.on)
            && meet(&self.from, &other.from)
            && meet(&self.to, &other.to)
            && self.from_ports.overlaps(&other.from_ports)
            && self.to_ports.overlaps(&other.to_ports)
            && (0..=u8::MAX).any(is_common)
    }
}

/// How specific a selector is: of several that match, the greatest decides. The order:
/// the lengths of both prefixes together, each in bits of its own family; a family over
/// none; fewer ports; fewer protocols; fewer ports of the box. A selector that matches
/// only a part of what another matches is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specificity {
    prefixes: u16,
    has_family: bool,
    ports: Reverse<u64>,
    protocol: Reverse<u8>,
    on: Reverse<u32>,
}

impl Serialize for Selector {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Selector, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &self.on)
    }
}

impl Selector {
    /// The selector in the operator's words, with these names of ports.
    pub fn display(&self, zones: &Zones) -> impl fmt::Display + use<> {
        core::fmt::from_fn({
            let (selector, on) = (self.clone(), zones.name(self.on));
            move |f| selector.write(f, &on)
        })
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, on: &dyn fmt::Display) -> fmt::Result {
        write!(f, "{}", self.protocol)?;
        if !self.on.is_any() {
            write!(f, " on {on}")?;
        }
        for (word, prefix, ports) in
            [("from", &self.from, &self.from_ports), ("to", &self.to, &self.to_ports)]
        {
            match prefix {
                Some(prefix) => write!(f, " {word} {prefix}")?,
                None => write!(f, " {word} any")?,
            }
            if !ports.is_any() {
                write!(f, " port {ports}")?;
            }
        }
        Ok(())
    }
}

/// The words left to read, with their offsets.
type Words<'t> = core::iter::Peekable<std::vec::IntoIter<(usize, &'t str)>>;

/// A reader of message types of a protocol.
type ReadTypes<'r, 't> = dyn FnMut(Protocol, &mut Words<'t>) -> Result<(), SelectorError> + 'r;

/// As [`Selector::read`], with the box's ports as numbers, as they are printed.
impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Selector, SelectorError> {
        Selector::read(text, &Zones::numbered())
    }
}

impl Selector {
    /// Reads `[PROTOCOL] [on PORT[,PORT…]] [from ADDRESS [port PORTS]] [to ADDRESS [port
    /// PORTS]]`. An address is a prefix, an address or `any`; a port behind `on` is a
    /// port of the box or a zone.
    ///
    /// # Errors
    /// The first wrong word.
    pub fn read(text: &str, zones: &Zones) -> Result<Selector, SelectorError> {
        Selector::parse(text, zones, None)
    }

    /// As [`Selector::read`]; `types`, if given, reads the words behind `type`.
    fn parse<'t>(
        text: &'t str,
        zones: &Zones,
        mut types: Option<&mut ReadTypes<'_, 't>>,
    ) -> Result<Selector, SelectorError> {
        let mut words = Vec::new();
        let mut at = 0;
        for word in text.split_whitespace() {
            let start = at + text[at..].find(word).unwrap_or(0);
            words.push((start, word));
            at = start + word.len();
        }
        let mut words = words.into_iter().peekable();
        let mut selector = Selector::any();
        if let Some((offset, word)) =
            words.next_if(|(_, word)| !matches!(*word, "on" | "from" | "to" | "type"))
        {
            selector.protocol =
                word.parse().map_err(|error: SelectorError| wrong(offset, error.message))?;
        }
        let mut seen = [false; 4];
        while let Some((offset, word)) = words.next() {
            let side = match word {
                "from" => 0,
                "to" => 1,
                "on" => 2,
                "type" => 3,
                _ => {
                    return Err(wrong(
                        offset,
                        format!(
                            "`{word}` was not expected here: `on PORT`, `from ADDRESS`, `to ADDRESS` or the end"
                        ),
                    ));
                }
            };
            if core::mem::replace(&mut seen[side], true) {
                return Err(wrong(offset, format!("`{word}` comes twice")));
            }
            if side == 3 {
                let Some(types) = &mut types else {
                    let message = "`type` is for the rules of a `firewall`: here packets are known by their flow";
                    return Err(wrong(offset, message));
                };
                if !selector.protocol.is_icmp() {
                    return Err(wrong(
                        offset,
                        format!("`{}` has no types: only `icmp` has", selector.protocol),
                    ));
                }
                types(selector.protocol, &mut words)?;
                continue;
            }
            if side == 2 {
                let missing =
                    || wrong(text.len(), "a port of the box, or a zone, is missing after `on`");
                let (offset, names) = words.next().ok_or_else(missing)?;
                selector.on = zones
                    .read(names)
                    .map_err(|error| wrong(offset + error.offset, error.message))?;
                continue;
            }
            let (offset, address) = words.next().ok_or_else(|| {
                wrong(
                    text.len(),
                    format!(
                        "an address is missing after `{word}`: a prefix like 10.0.0.0/24, or `any`"
                    ),
                )
            })?;
            let prefix =
                match address {
                    "any" => None,
                    _ => Some(address.parse().map_err(|error: SelectorError| {
                        wrong(offset + error.offset, error.message)
                    })?),
                };
            let mut ports = Ports::any();
            if let Some((port_offset, _)) =
                words.next_if(|(_, word)| matches!(*word, "port" | "ports"))
            {
                if !selector.protocol.has_ports() {
                    return Err(wrong(
                        port_offset,
                        format!("`{}` has no ports", selector.protocol),
                    ));
                }
                let (offset, list) = words.next().ok_or_else(|| {
                    wrong(text.len(), "ports are missing after `port`: like 80,443 or 1000-2000")
                })?;
                ports = list
                    .parse()
                    .map_err(|error: SelectorError| wrong(offset + error.offset, error.message))?;
            }
            if side == 0 {
                (selector.from, selector.from_ports) = (prefix, ports);
            } else {
                (selector.to, selector.to_ports) = (prefix, ports);
            }
        }
        if let (Some(from), Some(to)) = (&selector.from, &selector.to)
            && from.is_ipv4() != to.is_ipv4()
        {
            return Err(wrong(0, "one address is IPv4 and the other IPv6: nothing would match"));
        }
        Ok(selector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ip_bytes;

    pub(super) fn key(text: &str) -> FlowKey {
        let parts: Vec<&str> = text.split(' ').collect();
        let ip = |text: &str| ip_bytes(text.parse().expect("a test's address"));
        FlowKey {
            source: ip(parts[1]),
            source_port: parts[2].parse().expect("a test's port"),
            destination: ip(parts[3]),
            destination_port: parts[4].parse().expect("a test's port"),
            protocol: parts[0].parse().expect("a test's protocol"),
            scope: 0,
        }
    }

    #[test]
    fn what_is_written_is_what_matches() {
        let selector: Selector =
            "tcp from 10.0.0.0/24 to any port 80,443,1000-2000".parse().unwrap();
        assert!(selector.matches_key(&key("6 10.0.0.9 5 192.0.2.1 443")));
        assert!(selector.matches_key(&key("6 10.0.0.9 5 192.0.2.1 1500")));
        assert!(!selector.matches_key(&key("6 10.0.1.9 5 192.0.2.1 443")));
        assert!(!selector.matches_key(&key("17 10.0.0.9 5 192.0.2.1 443")));
        assert!(!selector.matches_key(&key("6 10.0.0.9 5 192.0.2.1 444")));
        assert!(
            "icmp from any to any"
                .parse::<Selector>()
                .unwrap()
                .matches_key(&key("58 2001:db8::1 0 2001:db8::2 0"))
        );
        assert!(
            "from 2001:db8::/32"
                .parse::<Selector>()
                .unwrap()
                .matches_key(&key("17 2001:db8::1 1 2001:db9::2 2"))
        );
        assert!(
            !"from 0.0.0.0/0"
                .parse::<Selector>()
                .unwrap()
                .matches_key(&key("17 2001:db8::1 1 2001:db9::2 2"))
        );
        assert!(Selector::any().matches(&key("1 10.0.0.1 0 10.0.0.2 0"), 9));
    }

    #[test]
    fn display_parses_back() {
        for text in [
            "tcp from 10.0.0.0/24 to any port 80,443",
            "any from any to any",
            "udp from any port 53 to 192.0.2.0/24",
            "proto-47 from ::/0 to any",
            "tcp on #0-1,5 from any to any port 80",
        ] {
            let selector: Selector = text.parse().unwrap();
            assert_eq!(selector.to_string(), text);
            assert_eq!(selector.to_string().parse(), Ok(selector));
        }
    }

    #[test]
    fn errors_point_at_the_word() {
        let error = |text: &str| {
            let error = text.parse::<Selector>().unwrap_err();
            (error.offset, error.message)
        };
        assert_eq!(error("tcq from any").0, 0);
        assert_eq!(
            error("tcp from 10.0.0.1/24"),
            (
                9,
                "`10.0.0.1/24` has bits set beyond its length; did you mean `10.0.0.0/24`?"
                    .to_owned()
            )
        );
        assert_eq!(error("tcp from 10.0.0.0/33").0, 18);
        assert_eq!(error("tcp from").0, 8);
        assert_eq!(
            error("tcp from any port 80,70000"),
            (21, "`70000` is not a port from 0 to 65535".to_owned())
        );
        assert_eq!(error("icmp from any port 5"), (14, "`icmp` has no ports".to_owned()));
        assert_eq!(error("tcp to any to any").0, 11);
        assert_eq!(error("tcp from any too any").0, 13);
        assert_eq!(
            error("tcp from any port 90-80").1,
            "`90-80` ends before it begins; did you mean `80-90`?"
        );
    }

    #[test]
    fn a_port_of_the_box_has_a_name() {
        let zones = Zones::new(
            [("lan", vec![0]), ("wan", vec![1]), ("all", vec![0, 1])]
                .map(|(n, of)| (n.to_owned(), Zone::of(of))),
        );
        let read = |text: &str| Selector::read(text, &zones);
        let tcp = key("6 10.0.0.9 5 192.0.2.1 443");
        let selector = read("tcp on lan from 10.0.0.0/24").unwrap();
        assert!(selector.matches(&tcp, 0) && !selector.matches(&tcp, 1));
        assert!(!selector.matches(&key("6 10.0.1.9 5 192.0.2.1 443"), 0));
        assert_eq!(
            read("from 10.0.0.0/24 on lan").map(|other| other.on),
            Ok(selector.on),
            "in any order"
        );
        assert_eq!(selector.to_string(), "tcp on #0 from 10.0.0.0/24 to any");
        assert_eq!(selector.to_string().parse(), Ok(selector.clone()));
        assert_eq!(selector.display(&zones).to_string(), "tcp on lan from 10.0.0.0/24 to any");
        assert_eq!(read(&selector.display(&zones).to_string()), Ok(selector));
        assert!(
            read("on wan,lan").unwrap().matches(&tcp, 1)
                && !read("on wan,lan").unwrap().matches(&tcp, 2)
        );
        let error =
            |text: &str| read(text).map_err(|error| (error.offset, error.message)).unwrap_err();
        assert_eq!(
            error("tcp on lam to any"),
            (7, "unknown port or zone `lam`, expected one of `lan`, `wan`, `all`".to_owned())
        );
        assert_eq!(
            error("on lan,#1"),
            (7, "unknown port or zone `#1`, expected one of `lan`, `wan`, `all`".to_owned())
        );
        assert_eq!(
            error("tcp on"),
            (6, "a port of the box, or a zone, is missing after `on`".to_owned())
        );
        assert_eq!(error("on lan on wan"), (7, "`on` comes twice".to_owned()));
        // Without names for ports, `on` is an error and not ignored.
        assert!("on lan".parse::<Selector>().is_err());
        assert!(read("on lan").unwrap().specificity() > read("on all").unwrap().specificity());
        assert!(read("on all").unwrap().specificity() > read("any").unwrap().specificity());
        assert!(read("tcp").unwrap().specificity() > read("on lan").unwrap().specificity());
        assert!(read("on lan").unwrap().overlaps(&read("on all").unwrap()));
        assert!(!read("on lan").unwrap().overlaps(&read("on wan").unwrap()));
    }

    #[test]
    fn more_specific_comes_first() {
        let specificity = |text: &str| text.parse::<Selector>().unwrap().specificity();
        assert!(specificity("from 10.0.0.0/24") > specificity("from 10.0.0.0/16"));
        assert!(specificity("from 10.0.0.0/16") > specificity("tcp from any to any port 80"));
        assert!(specificity("tcp") > specificity("any"));
        assert!(specificity("tcp to any port 80") > specificity("tcp"));
        assert!(
            specificity("any to any port 80") > specificity("tcp"),
            "ports come before the protocol"
        );
        assert!(specificity("to any port 80") > specificity("to any port 80-81"));
        assert!(specificity("to any port 0-65535") > specificity("any"));
        assert_eq!(specificity("to any port 80,80-81,81"), specificity("to any port 5-6"));
        assert!(specificity("proto-1") > specificity("icmp"));
        // A family alone says less than an address of that family.
        assert!(specificity("to 192.0.2.1") > specificity("from 0.0.0.0/0 to 0.0.0.0/0"));
        assert!(specificity("from 0.0.0.0/0") > specificity("any"));
    }

    #[test]
    fn selectors_overlap_if_some_packet_is_meant_by_both() {
        for (a, b, expected) in [
            ("from 10.0.0.0/24", "to 192.0.2.0/24", true),
            ("from 10.0.0.0/24", "from 10.0.1.0/24", false),
            ("from 10.0.0.0/24", "to 2001:db8::/32", false),
            ("tcp", "udp", false),
            ("icmp", "proto-58", true),
            ("tcp to any port 80", "tcp to any port 70-80", true),
            ("tcp to any port 80", "tcp to any port 81", false),
            ("tcp to any port 80", "tcp from any port 81", true),
            ("icmp", "to any port 80", false),
            ("tcp", "to any port 80", true),
        ] {
            let (a, b): (Selector, Selector) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!((a.overlaps(&b), b.overlaps(&a)), (expected, expected), "{a} and {b}");
        }
    }
}
