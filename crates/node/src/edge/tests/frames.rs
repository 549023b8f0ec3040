//! Frames in words. `udp 10.0.0.9:1000 > 192.0.2.7:53 ttl=1 df`, `arp who-has 10.0.0.1
//! tell 10.0.0.9`, and back.

use super::BOX;
use holdfast_wire::header::{Mac, icmp as icmp_kind, icmpv6, proto};
use holdfast_wire::{Layers, MemoryPool, PacketPool, checksum, ip_addr, ip_bytes, unmap_v4};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// The MAC address of the host with this address: its last byte.
pub(super) fn host_mac(address: &[u8; 16]) -> Mac {
    [2, 0, 0, 0, 1, address[15]]
}

fn mac(text: &str) -> Mac {
    match text {
        "all" => [0xff; 6],
        "box0" => BOX[0],
        "box1" => BOX[1],
        _ => {
            let bytes: Vec<u8> = text
                .split(':')
                .map(|byte| u8::from_str_radix(byte, 16).expect("a test's MAC address"))
                .collect();
            bytes.try_into().expect("six bytes")
        }
    }
}

fn mac_text(mac: &[u8]) -> String {
    match mac {
        [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => "all".to_owned(),
        mac if *mac == BOX[0] => "box0".to_owned(),
        mac if *mac == BOX[1] => "box1".to_owned(),
        [2, 0, 0, 0, 1, host] => format!("host{host}"),
        _ => mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"),
    }
}

fn ip(text: &str) -> [u8; 16] {
    ip_bytes(text.parse().unwrap_or_else(|_| panic!("`{text}` is not an address")))
}

fn end(text: &str) -> ([u8; 16], u16) {
    let end: SocketAddr =
        text.parse().unwrap_or_else(|_| panic!("`{text}` is not an address with a port"));
    (ip_bytes(end.ip()), end.port())
}

/// The words of one frame, the options apart.
struct Words<'a> {
    words: Vec<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl Words<'_> {
    fn number(&self, name: &str, default: u64) -> u64 {
        self.options.get(name).map_or(default, |text| text.parse().expect("a test's number"))
    }

    fn has(&self, name: &str) -> bool {
        self.options.contains_key(name)
    }
}

/// Builds the frame that the words describe, as it comes in by `port`.
///
/// `PROTO SOURCE > DESTINATION` with `udp`, `tcp`, `ping`, `pong`, `proto` (253); options
/// `ttl=`, `len=` (payload), `id=`, `at=` (fragment offset), `more`, `df`, `badsum`,
/// `badl4`, `nosum`, `lsrr`, `rh=` (an IPv6 routing header of this type), `ext=` (IPv6
/// extension headers of 8 bytes: their numbers, and bytes 2 and 3 of each, as
/// `60.5.4,43.253.0`), `proto=` (of `proto`), `from=MAC`, `to=MAC`, `vlan=`; of TCP
/// `flags=`, `seq=`, `ack=`. `arp who-has A tell B`, `arp A is-at MAC` (`target=`,
/// `op=`), `ns A from B`, `na A` (`flags=` as a number, `hops=`, `mac=`, `bare` without
/// option), `rs`, `ra`.
pub(super) fn frame(port: u8, text: &str) -> Vec<u8> {
    let (options, words): (Vec<&str>, Vec<&str>) = text.split_whitespace().partition(|word| {
        word.contains('=')
            || ["df", "more", "badsum", "badl4", "nosum", "lsrr", "bare"].contains(word)
    });
    let options =
        options.into_iter().map(|word| word.split_once('=').unwrap_or((word, ""))).collect();
    let words = Words { words, options };
    let (ethertype, source, destination, body) = match words.words[0] {
        "arp" => arp(&words),
        "ns" | "na" | "rs" | "ra" => neighbor_discovery(port, &words),
        _ => ip_packet(port, &words),
    };
    let source = words.options.get("from").map_or(source, |text| mac(text));
    let destination = words.options.get("to").map_or(destination, |text| mac(text));
    let mut frame = [destination, source].concat();
    if words.has("vlan") {
        frame.extend_from_slice(&0x8100u16.to_be_bytes());
        frame.extend_from_slice(&(words.number("vlan", 0) as u16).to_be_bytes());
    }
    frame.extend_from_slice(&ethertype.to_be_bytes());
    frame.extend_from_slice(&body);
    frame
}

type Parts = (u16, Mac, Mac, Vec<u8>);

fn arp(words: &Words<'_>) -> Parts {
    let v4 = |text: &str| unmap_v4(&ip(text)).expect("ARP is for IPv4");
    let (operation, sender, sender_mac, target, to) = match words.words[2] {
        "is-at" => (
            2,
            v4(words.words[1]),
            mac(words.words[3]),
            v4(words.options.get("target").unwrap_or(&"10.0.0.1")),
            BOX[0],
        ),
        _ => (1, v4(words.words[4]), host_mac(&ip(words.words[4])), v4(words.words[2]), [0xff; 6]),
    };
    let mut body = vec![0, 1, 8, 0, 6, 4];
    body.extend_from_slice(&(words.number("op", operation) as u16).to_be_bytes());
    body.extend_from_slice(&sender_mac);
    body.extend_from_slice(&sender);
    body.extend_from_slice(&[0; 6]);
    body.extend_from_slice(&target);
    (0x0806, sender_mac, to, body)
}

fn neighbor_discovery(port: u8, words: &Words<'_>) -> Parts {
    let (kind, option) = match words.words[0] {
        "rs" => (icmpv6::ROUTER_SOLICITATION, 1),
        "ra" => (icmpv6::ROUTER_ADVERTISEMENT, 1),
        "ns" => (icmpv6::NEIGHBOR_SOLICITATION, 1),
        _ => (icmpv6::NEIGHBOR_ADVERTISEMENT, 2),
    };
    let target = words.words.get(1).map_or([0; 16], |text| ip(text));
    let (source, destination, to) = match words.words[0] {
        "na" => (target, ip(["2001:db8:a::1", "2001:db8:b::1"][port as usize]), BOX[port as usize]),
        "ns" => {
            let mut group = ip("ff02::1:ff00:0");
            group[13..].copy_from_slice(&target[13..]);
            (ip(words.words[3]), group, [0x33, 0x33, 0xff, target[13], target[14], target[15]])
        }
        _ => (ip("fe80::9"), ip("ff02::2"), [0x33, 0x33, 0, 0, 0, 2]),
    };
    let destination = words.options.get("dst").map_or(destination, |text| ip(text));
    let link = words.options.get("mac").map_or(host_mac(&source), |text| mac(text));
    let mut message = vec![
        kind,
        0,
        0,
        0,
        words.number("flags", 0x60) as u8 * u8::from(kind == icmpv6::NEIGHBOR_ADVERTISEMENT),
        0,
        0,
        0,
    ];
    message.extend_from_slice(&target);
    if !words.has("bare") {
        message.extend_from_slice(&[option, 1]);
        message.extend_from_slice(&link);
    }
    let sum = checksum::transport(&source, &destination, proto::ICMPV6, &message)
        ^ u16::from(words.has("badl4"));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    (
        0x86dd,
        link,
        to,
        v6_header(&source, &destination, proto::ICMPV6, words.number("hops", 255) as u8, &message),
    )
}

fn v6_header(
    source: &[u8; 16],
    destination: &[u8; 16],
    next: u8,
    hops: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut body = vec![0x60, 0, 0, 0];
    body.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    body.extend_from_slice(&[next, hops]);
    body.extend_from_slice(source);
    body.extend_from_slice(destination);
    body.extend_from_slice(payload);
    body
}

fn ip_packet(port: u8, words: &Words<'_>) -> Parts {
    let proto_word = words.words[0];
    let has_ports = matches!(proto_word, "udp" | "tcp");
    let (source, source_port) =
        if has_ports { end(words.words[1]) } else { (ip(words.words[1]), 0) };
    let (destination, destination_port) =
        if has_ports { end(words.words[3]) } else { (ip(words.words[3]), 0) };
    let is_v4 = words.words[1].contains('.') && !words.words[1].contains("::");
    let cut = |address: &[u8; 16]| if is_v4 { address[12..].to_vec() } else { address.to_vec() };
    let payload = vec![0xa5; words.number("len", 16) as usize];
    let offset = words.number("at", 0) as u16;
    let (protocol, mut segment) = match proto_word {
        "udp" => {
            let len = (8 + payload.len()) as u16;
            (
                proto::UDP,
                [
                    source_port.to_be_bytes(),
                    destination_port.to_be_bytes(),
                    len.to_be_bytes(),
                    [0; 2],
                ]
                .concat(),
            )
        }
        "tcp" => {
            let mut header = [source_port.to_be_bytes(), destination_port.to_be_bytes()].concat();
            header.extend_from_slice(&(words.number("seq", 1) as u32).to_be_bytes());
            header.extend_from_slice(&(words.number("ack", 0) as u32).to_be_bytes());
            header.extend_from_slice(&[
                0x50,
                words.number("flags", 2) as u8,
                0xff,
                0xff,
                0,
                0,
                0,
                0,
            ]);
            (proto::TCP, header)
        }
        "ping" | "pong" => {
            let is_ping = proto_word == "ping";
            let (protocol, kind) = match (is_v4, is_ping) {
                (true, true) => (proto::ICMP, icmp_kind::ECHO),
                (true, false) => (proto::ICMP, icmp_kind::ECHO_REPLY),
                (false, true) => (proto::ICMPV6, icmpv6::ECHO),
                (false, false) => (proto::ICMPV6, icmpv6::ECHO_REPLY),
            };
            (protocol, vec![kind, 0, 0, 0, 0, 7, 0, 1])
        }
        "proto" => (words.number("proto", 253) as u8, Vec::new()),
        other => panic!("`{other}` is not a protocol of these tests"),
    };
    segment.extend_from_slice(&payload);
    if offset > 0 {
        segment = payload;
    } else {
        let at = match protocol {
            proto::UDP => Some(6),
            proto::TCP => Some(16),
            proto::ICMP | proto::ICMPV6 => Some(2),
            _ => None,
        };
        if let Some(at) = at {
            let sum = match protocol {
                proto::ICMP => checksum::checksum(&segment),
                _ => checksum::transport(&cut(&source), &cut(&destination), protocol, &segment),
            };
            let sum = sum ^ u16::from(words.has("badl4"));
            let sum = if words.has("nosum") { 0 } else { sum };
            segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
    }
    let ttl = words.number("ttl", 64) as u8;
    let is_fragment = offset > 0 || words.has("more");
    let body = if is_v4 {
        let options: &[u8] = if words.has("lsrr") { &[131, 7, 4, 10, 0, 0, 9, 0] } else { &[] };
        let total = (20 + options.len() + segment.len()) as u16;
        let flags = (offset / 8)
            | (u16::from(words.has("more")) << 13)
            | (u16::from(words.has("df")) << 14);
        let mut body = vec![0x45 + (options.len() / 4) as u8, 0];
        body.extend_from_slice(&total.to_be_bytes());
        body.extend_from_slice(&(words.number("id", 0) as u16).to_be_bytes());
        body.extend_from_slice(&flags.to_be_bytes());
        body.extend_from_slice(&[ttl, protocol, 0, 0]);
        body.extend_from_slice(&source[12..]);
        body.extend_from_slice(&destination[12..]);
        body.extend_from_slice(options);
        let sum = checksum::checksum(&body) ^ u16::from(words.has("badsum"));
        body[10..12].copy_from_slice(&sum.to_be_bytes());
        body.extend_from_slice(&segment);
        body
    } else {
        let (mut next, mut payload) = (protocol, segment);
        if is_fragment {
            let mut header = vec![next, 0];
            header.extend_from_slice(&(offset | u16::from(words.has("more"))).to_be_bytes());
            header.extend_from_slice(&(words.number("id", 0) as u32).to_be_bytes());
            (next, payload) = (proto::FRAGMENT, [header, payload].concat());
        }
        if words.has("rh") {
            let kind = words.number("rh", 0) as u8;
            (next, payload) =
                (proto::ROUTING, [vec![next, 2, kind, 1], vec![0; 20], payload].concat());
        }
        let extensions = words.options.get("ext").into_iter().flat_map(|text| text.split(','));
        for text in extensions.collect::<Vec<_>>().into_iter().rev() {
            let bytes: Vec<u8> =
                text.split('.').map(|byte| byte.parse().expect("a test's byte")).collect();
            let (number, header) = (bytes[0], vec![next, 0, bytes[1], bytes[2], 0, 0, 0, 0]);
            (next, payload) = (number, [header, payload].concat());
        }
        v6_header(&source, &destination, next, ttl, &payload)
    };
    (if is_v4 { 0x0800 } else { 0x86dd }, host_mac(&source), BOX[port as usize], body)
}

/// A frame that the edge made or passed on, in words; its checksums are checked.
pub(super) fn describe(bytes: &[u8]) -> String {
    let to = mac_text(&bytes[..6]);
    let from = mac_text(&bytes[6..12]);
    if bytes[12..14] == [8, 6] {
        let v4 =
            |at: usize| IpAddr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).expect("four bytes"));
        return match bytes[21] {
            1 => format!("{from}>{to} arp who-has {} tell {}", v4(38), v4(28)),
            _ => format!(
                "{from}>{to} arp {} is-at {} for {}",
                v4(28),
                mac_text(&bytes[22..28]),
                v4(38)
            ),
        };
    }
    let mut pool = MemoryPool::new(1);
    let mut packet = pool.take().expect("one buffer");
    packet.clear();
    assert!(packet.copy_from(bytes));
    packet.parse().expect("the edge makes and passes on what parses");
    if let Some(ip) = packet.ipv4() {
        let len = (ip.version_ihl & 15) as usize * 4;
        let l3 = packet.layers.l3 as usize;
        assert_eq!(checksum::checksum(&bytes[l3..l3 + len]), 0, "IPv4 header checksum");
    }
    let tag = match packet.layers.vlan_tags {
        0 => String::new(),
        _ => format!(" vlan={}", u16::from_be_bytes([bytes[14], bytes[15]])),
    };
    let words = format!("{from}>{to} {}{tag}", describe_ip(bytes, &packet.layers));
    if packet.icmp().is_some() && !packet.layers.fragment || words.contains("reset") {
        assert_eq!(packet.is_intact(), Some(true), "checksum of {words}");
    }
    pool.put(packet);
    words
}

fn describe_ip(bytes: &[u8], layers: &Layers) -> String {
    let (l3, l4) = (layers.l3 as usize, layers.l4 as usize);
    let is_v4 = layers.ethertype == 0x0800;
    let address = |at: usize, len: usize| match len {
        4 => IpAddr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).expect("four bytes")),
        _ => ip_addr(&bytes[at..at + 16].try_into().expect("sixteen bytes")),
    };
    let (source, destination, ttl) = if is_v4 {
        (address(l3 + 12, 4), address(l3 + 16, 4), bytes[l3 + 8])
    } else {
        (address(l3 + 8, 16), address(l3 + 24, 16), bytes[l3 + 7])
    };
    let plain = format!("{source} > {destination}");
    if layers.fragment_offset > 0 {
        return format!(
            "fragment {plain} ttl={ttl} at={} len={}",
            layers.fragment_offset,
            layers.l4_len()
        );
    }
    let port = |at: usize| u16::from_be_bytes([bytes[l4 + at], bytes[l4 + at + 1]]);
    let with_ports = || {
        format!("{} > {}", SocketAddr::new(source, port(0)), SocketAddr::new(destination, port(2)))
    };
    let quoted = || {
        let inner = &bytes[l4 + 8..layers.end as usize];
        let layers = Layers::parse_quoted(inner).expect("a quote begins with a whole header");
        format!("{plain} ttl={ttl} about [{}]", describe_ip(inner, &layers))
    };
    let target = || ip_addr(&bytes[l4 + 8..l4 + 24].try_into().expect("sixteen bytes"));
    let (kind, code, number) =
        (bytes.get(l4).copied().unwrap_or(0), bytes.get(l4 + 1).copied().unwrap_or(0), |at| {
            port(at)
        });
    match layers.protocol {
        proto::UDP => format!("udp {} ttl={ttl}", with_ports()),
        proto::TCP if bytes.get(l4 + 13).is_some_and(|flags| flags & 4 != 0) => {
            let number = |at: usize| {
                u32::from_be_bytes(bytes[l4 + at..l4 + at + 4].try_into().expect("four bytes"))
            };
            let flags = bytes[l4 + 13];
            format!(
                "reset {} ttl={ttl} flags={flags} seq={} ack={}",
                with_ports(),
                number(4),
                number(8)
            )
        }
        proto::TCP => format!("tcp {} ttl={ttl}", with_ports()),
        proto::ICMP if kind == icmp_kind::ECHO => format!("ping {plain} ttl={ttl}"),
        proto::ICMP if kind == icmp_kind::ECHO_REPLY => format!("pong {plain} ttl={ttl}"),
        proto::ICMP if kind == icmp_kind::TIME_EXCEEDED => format!("time-exceeded {}", quoted()),
        proto::ICMP if (kind, code) == (3, 4) => format!("too-big mtu={} {}", number(6), quoted()),
        proto::ICMP if (kind, code) == (3, 13) => format!("admin {}", quoted()),
        proto::ICMP if kind == 3 => {
            format!("{} {}", ["net", "host", "proto", "port"][code as usize], quoted())
        }
        proto::ICMPV6 => match kind {
            icmpv6::ECHO => format!("ping {plain} ttl={ttl}"),
            icmpv6::ECHO_REPLY => format!("pong {plain} ttl={ttl}"),
            icmpv6::TIME_EXCEEDED => format!("time-exceeded {}", quoted()),
            icmpv6::PACKET_TOO_BIG => format!("too-big mtu={} {}", number(6), quoted()),
            icmpv6::PARAMETER_PROBLEM => {
                let at = u32::from_be_bytes(bytes[l4 + 4..l4 + 8].try_into().expect("four bytes"));
                format!("problem code={code} at={at} {}", quoted())
            }
            icmpv6::UNREACHABLE => {
                format!("{} {}", ["net", "admin", "scope", "host", "port"][code as usize], quoted())
            }
            icmpv6::NEIGHBOR_SOLICITATION => {
                format!(
                    "ns {} from {source} to {destination} mac={}",
                    target(),
                    mac_text(&bytes[l4 + 26..l4 + 32])
                )
            }
            icmpv6::NEIGHBOR_ADVERTISEMENT => {
                let flags = bytes[l4 + 4];
                format!(
                    "na {} to {destination} mac={} flags={flags:#x}",
                    target(),
                    mac_text(&bytes[l4 + 26..l4 + 32])
                )
            }
            other => format!("icmp6-{other} {plain}"),
        },
        other => format!("proto-{other} {plain} ttl={ttl}"),
    }
}
