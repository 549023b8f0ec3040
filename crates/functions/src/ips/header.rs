//! A rule's header: selects packets by protocol, addresses, ports and direction.

use super::text::{Piece, Reader, Wrong, unsupported, wrong};
use holdfast_nf::FlowKey;
use holdfast_wire::header::proto;
use holdfast_wire::selector::Prefix;
use std::collections::BTreeMap;

/// Values of the variables that rules use, as `$HOME_NET`, by name without the `$`.
pub(super) type Variables = BTreeMap<String, String>;

/// Maximum depth of lists, negations and variables inside of each other.
const MOST_NESTED: usize = 8;

/// The protocol of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Tcp,
    Udp,
    Icmp,
    Ip,
}

impl Protocol {
    pub(super) fn matches(self, protocol: u16) -> bool {
        match self {
            Protocol::Tcp => protocol == u16::from(proto::TCP),
            Protocol::Udp => protocol == u16::from(proto::UDP),
            Protocol::Icmp => {
                protocol == u16::from(proto::ICMP) || protocol == u16::from(proto::ICMPV6)
            }
            Protocol::Ip => true,
        }
    }
}

/// A set: the items in one of `only` (all items, if that is empty) and in none of
/// `never`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Set<T> {
    only: Vec<T>,
    never: Vec<T>,
}

impl<T> Default for Set<T> {
    fn default() -> Set<T> {
        Set { only: Vec::new(), never: Vec::new() }
    }
}

impl<T> Set<T> {
    fn is_any(&self) -> bool {
        self.only.is_empty() && self.never.is_empty()
    }

    fn contains(&self, has: impl Fn(&T) -> bool) -> bool {
        (self.only.is_empty() || self.only.iter().any(&has)) && !self.never.iter().any(has)
    }
}

/// Ports from the first to the last, both included.
type Range = (u16, u16);

/// The source or the destination of a header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct End {
    addresses: Set<Prefix>,
    ports: Set<Range>,
}

impl End {
    fn matches(&self, address: &[u8; 16], port: u16, has_ports: bool) -> bool {
        let ports = &self.ports;
        self.addresses.contains(|prefix| prefix.contains(address))
            && (ports.is_any()
                || has_ports && ports.contains(|&(first, last)| (first..=last).contains(&port)))
    }
}

/// The header behind the action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) protocol: Protocol,
    source: End,
    destination: End,
    /// True for `<>`: either end may be the source.
    is_both_ways: bool,
}

impl Header {
    /// Reads the header.
    pub(super) fn read(reader: &mut Reader<'_>, variables: &Variables) -> Result<Header, Wrong> {
        let word = reader.word("a protocol")?;
        let protocol = match word.text {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "icmp" => Protocol::Icmp,
            "ip" => Protocol::Ip,
            other => {
                return Err(unsupported(
                    word.at,
                    format!("protocol `{other}` is not supported: `tcp`, `udp`, `icmp` or `ip`"),
                ));
            }
        };
        let source = End::read(reader, variables, "source")?;
        let word = reader.word("`->`")?;
        let is_both_ways = match word.text {
            "->" => false,
            "<>" => true,
            other => {
                return Err(wrong(
                    word.at,
                    format!("`{other}` is no direction: `->`, or `<>` for both"),
                ));
            }
        };
        let destination = End::read(reader, variables, "destination")?;
        Ok(Header { protocol, source, destination, is_both_ways })
    }

    /// True if the rule applies to a packet with this key.
    pub(super) fn matches(&self, key: &FlowKey) -> bool {
        let has_ports =
            key.protocol == u16::from(proto::TCP) || key.protocol == u16::from(proto::UDP);
        let between = |from: &End, to: &End| {
            from.matches(&key.source, key.source_port, has_ports)
                && to.matches(&key.destination, key.destination_port, has_ports)
        };
        self.protocol.matches(key.protocol)
            && (between(&self.source, &self.destination)
                || self.is_both_ways && between(&self.destination, &self.source))
    }
}

impl End {
    fn read(reader: &mut Reader<'_>, variables: &Variables, side: &str) -> Result<End, Wrong> {
        let mut end = End::default();
        let word = reader.word(&format!("the {side}'s address"))?;
        add(&mut end.addresses, word, true, variables, address, 0)?;
        let word = reader.word(&format!("the {side}'s port"))?;
        add(&mut end.ports, word, true, variables, ports, 0)?;
        Ok(end)
    }
}

/// Adds an item, a list, a negation or a variable to the set. `is_wanted` is false under
/// a negation.
fn add<T>(
    set: &mut Set<T>,
    item: Piece<'_>,
    is_wanted: bool,
    variables: &Variables,
    read: fn(Piece<'_>) -> Result<T, Wrong>,
    depth: usize,
) -> Result<(), Wrong> {
    if depth > MOST_NESTED {
        return Err(wrong(
            item.at,
            format!("lists, negations and variables are nested deeper than {MOST_NESTED} times"),
        ));
    }
    let len = item.text.len();
    if item.text.starts_with('!') {
        if !is_wanted {
            return Err(unsupported(item.at, "a negation inside of a negation is not supported"));
        }
        let rest = item.part(1, len).trimmed();
        if rest.text == "any" {
            return Err(wrong(item.at, "`!any` is nothing: the rule would never match"));
        }
        return add(set, rest, false, variables, read, depth + 1);
    }
    if item.text.starts_with('[') {
        if !item.text.ends_with(']') {
            return Err(wrong(item.at, "`]` of the list that begins here is missing"));
        }
        for inner in item.part(1, len - 1).items() {
            add(set, inner, is_wanted, variables, read, depth + 1)?;
        }
        return Ok(());
    }
    if let Some(name) = item.text.strip_prefix('$') {
        let Some(text) = variables.get(name) else {
            let known = variables.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>();
            let known = match known.is_empty() {
                true => "there are none".to_owned(),
                false => format!("there are {}", known.join(", ")),
            };
            return Err(wrong(item.at, format!("`{name}` is not among the `variables`: {known}")));
        };
        // An offset inside of the variable's text means nothing in the rule: the error
        // has the offset of the variable's name.
        return add(set, Piece { at: 0, text: text.trim() }, is_wanted, variables, read, depth + 1)
            .map_err(|error| Wrong {
                offset: item.at,
                message: format!("variable `{name}`: {}", error.message),
                ..error
            });
    }
    match item.text {
        "any" if is_wanted => {}
        "any" => return Err(wrong(item.at, "not `any` is nothing: the rule would never match")),
        _ if is_wanted => set.only.push(read(item)?),
        _ => set.never.push(read(item)?),
    }
    Ok(())
}

fn address(item: Piece<'_>) -> Result<Prefix, Wrong> {
    let prefix = item.text.parse();
    prefix.map_err(|_| {
        wrong(
            item.at,
            format!(
                "`{}` is no address: `any`, 10.0.0.1, 10.0.0.0/8, 2001:db8::/32, [A,B], !A or $NAME",
                item.text
            ),
        )
    })
}

fn ports(item: Piece<'_>) -> Result<Range, Wrong> {
    let read = |text: &str, open: u16| match text.trim() {
        "" => Some(open),
        text => text.parse().ok(),
    };
    let range = match item.text.split_once(':') {
        Some((first, last)) if !(first.is_empty() && last.is_empty()) => {
            read(first, 0).zip(read(last, u16::MAX))
        }
        Some(_) => None,
        None => item.text.parse().ok().map(|port| (port, port)),
    };
    range.filter(|(first, last)| first <= last).ok_or_else(|| {
        wrong(
            item.at,
            format!("`{}` is no port: `any`, 80, 1024:, 80:90, [80,443], !80 or $NAME", item.text),
        )
    })
}
