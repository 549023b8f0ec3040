//! The selector language: printed selectors parse back, and a selector matches what a
//! naive reader says.

use holdfast_wire::selector::{Prefix, Selector};
use holdfast_wire::{FlowKey, ip_addr, ip_bytes};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A side of a selector, as an operator means it.
#[derive(Debug, Clone)]
struct Side {
    network: Option<(IpAddr, u8)>,
    ports: Vec<(u16, u16)>,
}

#[derive(Debug, Clone)]
struct Model {
    protocol: &'static str,
    from: Option<Side>,
    to: Option<Side>,
}

const PROTOCOLS: [&str; 9] = ["", "any", "ip", "tcp", "udp", "icmp", "6", "proto-47", "17"];

fn takes_ports(protocol: &str) -> bool {
    matches!(protocol, "" | "any" | "ip" | "tcp" | "udp" | "6" | "17")
}

fn protocol_matches(protocol: &str, number: u16) -> bool {
    match protocol {
        "tcp" | "6" => number == 6,
        "udp" | "17" => number == 17,
        "icmp" => number == 1 || number == 58,
        "proto-47" => number == 47,
        _ => true,
    }
}

/// An address as a row of bits; of one family only.
fn bits(address: IpAddr) -> Vec<bool> {
    let bytes = match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1 == 1)).collect()
}

impl Side {
    fn matches(&self, address: IpAddr, port: u16, protocol: u16) -> bool {
        let in_network = self.network.is_none_or(|(network, len)| {
            network.is_ipv4() == address.is_ipv4()
                && bits(network)[..len.into()] == bits(address)[..len.into()]
        });
        // Only TCP and UDP have ports; an echo's identifier is not a port.
        let has_port = self.ports.is_empty()
            || (matches!(protocol, 6 | 17)
                && self.ports.iter().any(|&(low, high)| (low..=high).contains(&port)));
        in_network && has_port
    }

    fn write(&self, words: &mut Vec<String>, word: &str) {
        words.push(word.to_owned());
        words.push(match self.network {
            None => "any".to_owned(),
            Some((address, len))
                if len == (if address.is_ipv4() { 32 } else { 128 }) && len % 3 == 0 =>
            {
                address.to_string()
            }
            Some((address, len)) => format!("{address}/{len}"),
        });
        if !self.ports.is_empty() {
            words.push(if self.ports.len() == 1 { "port" } else { "ports" }.to_owned());
            let range = |&(low, high): &(u16, u16)| {
                if low == high { low.to_string() } else { format!("{low}-{high}") }
            };
            words.push(self.ports.iter().map(range).collect::<Vec<_>>().join(","));
        }
    }
}

impl Model {
    fn text(&self, is_swapped: bool, space: &str) -> String {
        let mut words =
            if self.protocol.is_empty() { Vec::new() } else { vec![self.protocol.to_owned()] };
        let mut sides = [("from", &self.from), ("to", &self.to)];
        if is_swapped {
            sides.reverse();
        }
        for (word, side) in sides {
            side.iter().for_each(|side| side.write(&mut words, word));
        }
        words.join(space)
    }

    fn matches(&self, key: &FlowKey) -> bool {
        protocol_matches(self.protocol, key.protocol)
            && self
                .from
                .as_ref()
                .is_none_or(|side| side.matches(key.source_ip(), key.source_port, key.protocol))
            && self.to.as_ref().is_none_or(|side| {
                side.matches(key.destination_ip(), key.destination_port, key.protocol)
            })
    }
}

/// An address of a family; never IPv4-mapped, which to this program is IPv4.
fn address(is_v6: bool) -> BoxedStrategy<IpAddr> {
    if is_v6 {
        let any = prop_oneof![Just(0u128), Just(0x2001_0db8u128 << 96), any::<u128>()];
        any.prop_filter("is IPv4", |bits| bits >> 32 != 0xffff)
            .prop_map(|bits| IpAddr::V6(Ipv6Addr::from(bits)))
            .boxed()
    } else {
        prop_oneof![Just(0u32), Just(0x0a00_0001), any::<u32>()]
            .prop_map(|bits| IpAddr::V4(Ipv4Addr::from(bits)))
            .boxed()
    }
}

fn cut(address: IpAddr, len: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            Ipv4Addr::from(u32::from(v4) & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0))
                .into()
        }
        IpAddr::V6(v6) => Ipv6Addr::from(
            u128::from(v6) & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0),
        )
        .into(),
    }
}

fn network(is_v6: bool) -> impl Strategy<Value = (IpAddr, u8)> {
    let lens = if is_v6 {
        vec![0u8, 1, 48, 64, 80, 95, 96, 97, 127, 128]
    } else {
        vec![0, 1, 8, 24, 31, 32]
    };
    (address(is_v6), prop::sample::select(lens)).prop_map(|(address, len)| (cut(address, len), len))
}

fn ports() -> impl Strategy<Value = Vec<(u16, u16)>> {
    let port = || prop_oneof![Just(0u16), Just(80), Just(u16::MAX), any::<u16>()];
    prop::collection::vec((port(), port()).prop_map(|(a, b)| (a.min(b), a.max(b))), 0..4)
}

fn model() -> impl Strategy<Value = Model> {
    (prop::sample::select(&PROTOCOLS[..]), any::<bool>()).prop_flat_map(|(protocol, is_v6)| {
        let side = move || {
            prop::option::of((prop::option::of(network(is_v6)), ports()).prop_map(
                move |(network, ports)| Side {
                    network,
                    ports: if takes_ports(protocol) { ports } else { Vec::new() },
                },
            ))
        };
        (side(), side()).prop_map(move |(from, to)| Model { protocol, from, to })
    })
}

/// A key near the model's edges, so that it often matches, and often just does not.
fn key_near(model: Model) -> impl Strategy<Value = (Model, FlowKey)> {
    let end = |side: &Option<Side>| {
        let network = side.as_ref().and_then(|side| side.network);
        let near = network.map_or(Just([0u8; 16]).boxed(), |(network, len)| {
            let width = if network.is_ipv4() { 32u32 } else { 128 };
            // The network's first address with one bit changed, inside or outside.
            let flip = (0..width).prop_map(move |bit| {
                let flipped = u128::from_be_bytes(ip_bytes(network)) ^ 1 << bit;
                flipped.to_be_bytes()
            });
            let all = Just(match network {
                IpAddr::V4(v4) => ip_bytes(
                    Ipv4Addr::from(u32::from(v4) | u32::MAX.checked_shr(len.into()).unwrap_or(0))
                        .into(),
                ),
                IpAddr::V6(v6) => {
                    (u128::from(v6) | u128::MAX.checked_shr(len.into()).unwrap_or(0)).to_be_bytes()
                }
            });
            prop_oneof![Just(ip_bytes(network)), flip, all].boxed()
        });
        let anybody = any::<bool>().prop_flat_map(address).prop_map(ip_bytes);
        let edges: Vec<u16> = side
            .iter()
            .flat_map(|side| side.ports.iter().copied())
            .flat_map(|(low, high)| [low, high, low.wrapping_sub(1), high.wrapping_add(1)])
            .chain([0])
            .collect();
        (
            prop_oneof![4 => near, 1 => anybody],
            prop_oneof![4 => prop::sample::select(edges), 1 => any::<u16>()],
        )
    };
    let protocol = prop::sample::select(vec![1u16, 6, 17, 47, 58, 132, 255]);
    (end(&model.from), end(&model.to), protocol).prop_map(
        move |((source, source_port), (destination, destination_port), protocol)| {
            (
                model.clone(),
                FlowKey { source, destination, source_port, destination_port, protocol, scope: 0 },
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// Scenario: an operator writes any selector, in either order and with any spaces.
    /// The selector is read; printed, it is read as the same again, and printed the same.
    #[test]
    fn what_is_printed_parses_back(model in model(), is_swapped: bool, space in prop::sample::select(vec![" ", "  ", "\t"])) {
        let text = model.text(is_swapped, space);
        let selector: Selector = text.parse().map_err(|error| TestCaseError::fail(format!("`{text}`: {error}")))?;
        let printed = selector.to_string();
        let again: Result<Selector, _> = printed.parse();
        prop_assert_eq!(again.as_ref(), Ok(&selector), "{}", printed);
        prop_assert_eq!(again.map(|again| again.to_string()), Ok(printed));
    }

    /// Scenario: any selector, and a key near its edges. The selector matches exactly
    /// when a reader of its words, who compares addresses bit by bit, says so.
    #[test]
    fn what_matches_is_what_is_written((model, key) in model().prop_flat_map(key_near)) {
        let selector: Selector = model.text(false, " ").parse().expect("it is a selector");
        prop_assert_eq!(selector.matches_key(&key), model.matches(&key), "`{}` and {}", selector, key);
    }

    /// Scenario: any prefix. Printed it parses back, has its own length, and holds its
    /// first address.
    #[test]
    fn a_prefix_is_what_it_was((address, len) in any::<bool>().prop_flat_map(network)) {
        let prefix = Prefix::new(address, len).expect("no bits beyond its length");
        prop_assert_eq!((prefix.first(), prefix.len(), prefix.is_ipv4()), (address, len, address.is_ipv4()));
        prop_assert_eq!(prefix.to_string().parse(), Ok(prefix));
        prop_assert_eq!(Prefix::network_of(address, len), Some(prefix));
        prop_assert!(prefix.contains(&ip_bytes(address)));
        prop_assert_eq!(ip_addr(&ip_bytes(address)), address);
        let width = if address.is_ipv4() { 32 } else { 128 };
        prop_assert_eq!(Prefix::new(address, width + 1), None);
        prop_assert_eq!(prefix.size(), 1u64.checked_shl(width as u32 - u32::from(len)).unwrap_or(u64::MAX));
    }

    /// Scenario: any two prefixes. The prefixes overlap when one holds the other's first
    /// address, whichever is asked.
    #[test]
    fn overlap_is_mutual(a in any::<bool>().prop_flat_map(network), b in any::<bool>().prop_flat_map(network)) {
        let (pa, pb) = (Prefix::new(a.0, a.1).expect("a prefix"), Prefix::new(b.0, b.1).expect("a prefix"));
        let common = usize::from(a.1.min(b.1));
        let expected = a.0.is_ipv4() == b.0.is_ipv4() && bits(a.0)[..common] == bits(b.0)[..common];
        prop_assert_eq!((pa.overlaps(&pb), pb.overlaps(&pa)), (expected, expected), "{} and {}", pa, pb);
    }

    /// Scenario: words of the language in any order, with others between. Every error has
    /// a place inside the text.
    #[test]
    fn an_error_has_a_place(words in prop::collection::vec(prop_oneof![
        prop::sample::select(vec![
            "tcp", "icmp", "any", "on", "#0", "#1-3,9", "from", "to", "port", "ports", "80", "80,", "-", "1-", "9-1", "70000", "10.0.0.0/8", "10.0.0.1/8", "::/0",
            "::1", "/", "/8", "0.0.0.0/", "1.2.3.4/33", "2001:db8::/129", "proto-", "proto-256", "ä",
        ]).prop_map(str::to_owned),
        "\\PC{0,6}",
    ], 0..8)) {
        let text = words.join(" ");
        if let Err(error) = text.parse::<Selector>() {
            prop_assert!(error.offset <= text.len() && text.is_char_boundary(error.offset), "{} in `{}`", error.offset, text);
            prop_assert!(!error.message.is_empty());
        }
    }
}

#[test]
fn families_do_not_meet_and_identifiers_are_no_ports() {
    // Scenario: rules that say IPv6, or a port, and packets that have neither. A default
    // route of IPv6 holds no IPv4; a ping has no port.
    let ping = FlowKey {
        source: ip_bytes("10.0.0.1".parse().expect("an address")),
        destination: ip_bytes("10.0.0.2".parse().expect("an address")),
        source_port: 53,
        destination_port: 53,
        protocol: 1,
        scope: 0,
    };
    let matches = |text: &str| text.parse::<Selector>().expect("a selector").matches(&ping, 0);
    assert!(matches("from 0.0.0.0/0") && matches("any") && matches("icmp"));
    assert!(!matches("from ::/0"));
    assert!(!matches("any from any to any port 53"));
    assert!(!matches("any from any port 0-65535"));
}

/// A small world in which everything can be tried: five addresses and one of the other
/// family, five ports, four protocols, and three ports of the box.
fn small_world() -> Vec<(FlowKey, u8)> {
    let four = ["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.9.0.0"];
    let mut keys = Vec::new();
    for protocol in [1, 6, 17, 47, 58] {
        for port in 0..5 {
            let key = |source: &str, destination: &str| FlowKey {
                source: ip_bytes(source.parse().expect("an address")),
                destination: ip_bytes(destination.parse().expect("an address")),
                source_port: 7,
                destination_port: port,
                protocol,
                scope: 0,
            };
            keys.extend(
                four.iter().flat_map(|source| {
                    four.iter().map(move |destination| key(source, destination))
                }),
            );
            keys.push(key("2001:db8::1", "2001:db8::2"));
        }
    }
    keys.into_iter().flat_map(|key| (0..3).map(move |ingress| (key, ingress))).collect()
}

fn small_selectors() -> Vec<Selector> {
    let sides = ["any", "0.0.0.0/0", "10.0.0.0/30", "10.0.0.0/31", "10.0.0.1/32", "::/0"];
    let mut selectors = Vec::new();
    for from in sides {
        for to in sides {
            for protocol in ["any", "tcp", "udp", "icmp", "proto-1", "proto-47"] {
                for ports in ["", " port 1-3", " port 1,2", " port 2", " port 2,2", " port 0-65535"]
                {
                    // All selectors with all zones would be too many to compare.
                    let zones: &[&str] =
                        if from == to { &["", " on #0-1", " on #1", " on #2"] } else { &[""] };
                    for on in zones {
                        let text = format!("{protocol}{on} from {from} to {to}{ports}");
                        // Some texts are invalid: ICMP has no ports, and families do not
                        // mix.
                        selectors.extend(text.parse::<Selector>().ok());
                    }
                }
            }
        }
    }
    selectors
}

#[test]
fn what_covers_another_has_all_of_it() {
    // Scenario: an earlier rule and a later one. The later one never decides where the
    // earlier one means all that it means.
    for (one, other, expected) in [
        ("any", "tcp from 10.0.0.0/8 port 5", true),
        ("tcp", "any", false),
        ("icmp", "proto-1", true),
        ("proto-1", "icmp", false),
        ("from 10.0.0.0/8", "udp from 10.1.0.0/16 to any port 53", true),
        ("from 10.1.0.0/16", "from 10.0.0.0/8", false),
        ("from 0.0.0.0/0", "any", false),
        ("from 0.0.0.0/0", "from 2001:db8::/32", false),
        ("tcp to any port 80-90,443", "tcp to any port 81,443", true),
        ("tcp to any port 80-90", "tcp to any port 85-95", false),
        ("tcp to any port 0-65535", "tcp", false),
        ("on #0-2", "tcp on #1", true),
        ("on #1", "tcp", false),
    ] {
        let read = |text: &str| text.parse::<Selector>().expect("a selector");
        assert_eq!(read(one).covers(&read(other)), expected, "`{one}` and `{other}`");
    }
}

/// If a selector matches only a part of what another one matches, it is the more specific
/// one, whatever they are made of. Two selectors overlap exactly if some packet matches
/// both.
#[test]
fn whoever_means_less_is_more_specific() {
    let world = small_world();
    let selectors = small_selectors();
    assert!(selectors.len() > 500);
    let meant: Vec<Vec<u64>> = selectors
        .iter()
        .map(|selector| {
            let mut bits = vec![0u64; world.len().div_ceil(64)];
            for (at, (key, ingress)) in world.iter().enumerate() {
                bits[at / 64] |= u64::from(selector.matches(key, *ingress)) << (at % 64);
            }
            bits
        })
        .collect();
    for (a, in_a) in selectors.iter().zip(&meant) {
        for (b, in_b) in selectors.iter().zip(&meant) {
            let is_part = in_a != in_b && in_a.iter().zip(in_b).all(|(a, b)| a & !b == 0);
            assert!(!is_part || a.specificity() > b.specificity(), "`{a}` means less than `{b}`");
            let is_all = in_a.iter().zip(in_b).all(|(a, b)| b & !a == 0);
            assert!(!a.covers(b) || is_all, "`{a}` and not all of `{b}`");
            let common = in_a.iter().zip(in_b).any(|(a, b)| a & b != 0);
            assert_eq!(a.overlaps(b), common, "`{a}` and `{b}`");
        }
    }
}
