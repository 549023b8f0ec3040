//! Packets in words, made by etherparse, so that no code of the product makes its own
//! test input.
//!
//! `tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN seq 1`, `udp [2001:db8::1]:5 >
//! [2001:db8::2]:53 len 4`, `icmp 10.0.0.2 > 192.0.2.1 echo id 7`, `icmp 10.0.0.2 >
//! 192.0.2.1 type 200 id 7`, `icmp 192.0.2.9 > 10.0.0.2 unreachable quoting cut 28 udp
//! 10.0.0.2:5 > 192.0.2.1:53`. Omitted numbers are 0, the window 65535, TTLs 64. `tos
//! 184` is the byte of DSCP and ECN, `tag 24576` the control information of an 802.1Q
//! tag. `len 4` is a payload of as many bytes, `hex 4142` one of these. `scale 7` and
//! `tsval 1 tsecr 0` are options of a segment.
//!
//! Behind `quoting`, `cut 28` leaves that many bytes of the packet, `options 8` adds as
//! many bytes of IP options, `routed` adds a source route, and `behind 12` puts as many
//! bytes behind all of it. `more` makes a first fragment, `fragment 10.0.0.2 > 192.0.2.1
//! udp offset 16 len 8` a later one, and `nosum` omits a UDP checksum.

use etherparse::{
    EtherType, Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, IpFragOffset, IpNumber,
    Ipv4Header, Ipv6FragmentHeader, Ipv6Header, TcpHeader, TcpOptionElement, UdpHeader,
};
use std::net::{IpAddr, SocketAddr};

/// The words that have not been read yet.
struct Words<'a> {
    text: &'a str,
    left: Vec<&'a str>,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> &'a str {
        assert!(!self.left.is_empty(), "`{}` ends too early", self.text);
        self.left.remove(0)
    }

    /// Takes the word if it is there, and returns true then.
    fn flag(&mut self, word: &str) -> bool {
        let at = self.left.iter().position(|other| *other == word);
        at.map(|at| self.left.remove(at)).is_some()
    }

    /// The number after a word.
    fn number(&mut self, word: &str) -> Option<u64> {
        let at = self.left.iter().position(|other| *other == word)?;
        self.left.remove(at);
        let number = self.left.remove(at);
        Some(
            number
                .parse()
                .unwrap_or_else(|_| panic!("`{}`: `{number}` is not a number", self.text)),
        )
    }

    fn address(&mut self) -> IpAddr {
        let word = self.next();
        word.parse().unwrap_or_else(|_| panic!("`{}`: `{word}` is not an address", self.text))
    }

    fn end(&mut self) -> SocketAddr {
        let word = self.next();
        word.parse()
            .unwrap_or_else(|_| panic!("`{}`: `{word}` is not an address with a port", self.text))
    }

    fn arrow(&mut self) {
        assert_eq!(self.next(), ">", "`{}`: an arrow was expected", self.text);
    }
}

/// The payload: the bytes behind `hex`, or `len` bytes that differ.
fn data(words: &mut Words<'_>) -> Vec<u8> {
    let Some(at) = words.left.iter().position(|word| *word == "hex") else {
        return payload(words.number("len").unwrap_or(0));
    };
    let hex = words.left.remove(at + 1);
    words.left.remove(at);
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two hex digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// A payload whose bytes differ, so that a byte in the wrong place is noticed.
fn payload(len: u64) -> Vec<u8> {
    (0..len).map(|at| at as u8 ^ 0x5a).collect()
}

/// A fragment's offset in bytes, and whether more fragments follow.
#[derive(Clone, Copy)]
struct Fragment {
    offset: u64,
    more: bool,
}

fn ip(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    fragment: Fragment,
    segment: &[u8],
) -> Vec<u8> {
    let offset = IpFragOffset::try_new((fragment.offset / 8) as u16).expect("an offset that fits");
    let is_fragment = fragment.more || fragment.offset > 0;
    let mut packet = Vec::new();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = Ipv4Header::new(
                segment.len() as u16,
                64,
                IpNumber(protocol),
                source.octets(),
                destination.octets(),
            )
            .expect("fits");
            header.dont_fragment = !is_fragment;
            header.more_fragments = fragment.more;
            header.fragment_offset = offset;
            header.header_checksum = header.calc_header_checksum();
            packet.extend_from_slice(&header.to_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let extension = if is_fragment { Ipv6FragmentHeader::LEN } else { 0 };
            let header = Ipv6Header {
                payload_length: (segment.len() + extension) as u16,
                next_header: if is_fragment {
                    IpNumber::IPV6_FRAGMENTATION_HEADER
                } else {
                    IpNumber(protocol)
                },
                hop_limit: 64,
                source: source.octets(),
                destination: destination.octets(),
                ..Ipv6Header::default()
            };
            packet.extend_from_slice(&header.to_bytes());
            if is_fragment {
                packet.extend_from_slice(
                    &Ipv6FragmentHeader::new(IpNumber(protocol), offset, fragment.more, 1)
                        .to_bytes(),
                );
            }
        }
        _ => panic!("both addresses are of one family"),
    }
    packet.extend_from_slice(segment);
    packet
}

fn tcp(words: &mut Words<'_>) -> Vec<u8> {
    let source = words.end();
    words.arrow();
    let destination = words.end();
    let mut header = TcpHeader::new(source.port(), destination.port(), 0, 65_535);
    header.sequence_number = words.number("seq").unwrap_or(0) as u32;
    header.acknowledgment_number = words.number("ack").unwrap_or(0) as u32;
    header.window_size = words.number("win").unwrap_or(65_535) as u16;
    let mut options = Vec::new();
    if let Some(scale) = words.number("scale") {
        options.extend([TcpOptionElement::Noop, TcpOptionElement::WindowScale(scale as u8)]);
    }
    if let Some(ours) = words.number("tsval") {
        let theirs = words.number("tsecr").expect("an echo") as u32;
        options.extend([TcpOptionElement::Noop, TcpOptionElement::Noop]);
        options.push(TcpOptionElement::Timestamp(ours as u32, theirs));
    }
    header.set_options(&options).expect("room for options");
    let data = data(words);
    let fragment = Fragment { offset: 0, more: words.flag("more") };
    (header.syn, header.ack, header.fin) =
        (words.flag("SYN"), words.flag("ACK"), words.flag("FIN"));
    (header.rst, header.psh, header.urg) =
        (words.flag("RST"), words.flag("PSH"), words.flag("URG"));
    header.checksum = match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => header
            .calc_checksum_ipv4_raw(source.octets(), destination.octets(), &data)
            .expect("fits"),
        (IpAddr::V6(source), IpAddr::V6(destination)) => header
            .calc_checksum_ipv6_raw(source.octets(), destination.octets(), &data)
            .expect("fits"),
        _ => panic!("both addresses are of one family"),
    };
    let segment = [&header.to_bytes()[..], &data].concat();
    ip(source.ip(), destination.ip(), 6, fragment, &segment)
}

fn udp(words: &mut Words<'_>) -> Vec<u8> {
    let source = words.end();
    words.arrow();
    let destination = words.end();
    let data = data(words);
    let fragment = Fragment { offset: 0, more: words.flag("more") };
    let length = (8 + data.len()) as u16;
    let mut header = UdpHeader {
        source_port: source.port(),
        destination_port: destination.port(),
        length,
        checksum: 0,
    };
    if !words.flag("nosum") {
        header.checksum = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => header
                .calc_checksum_ipv4_raw(source.octets(), destination.octets(), &data)
                .expect("fits"),
            (IpAddr::V6(source), IpAddr::V6(destination)) => header
                .calc_checksum_ipv6_raw(source.octets(), destination.octets(), &data)
                .expect("fits"),
            _ => panic!("both addresses are of one family"),
        };
    }
    let segment = [&header.to_bytes()[..], &data].concat();
    ip(source.ip(), destination.ip(), 17, fragment, &segment)
}

/// Type, code, and the four bytes after the checksum.
fn icmp_kind(words: &mut Words<'_>, is_v6: bool) -> (u8, u8, [u8; 4]) {
    let word = words.next();
    match word {
        "echo" | "reply" | "timestamp" | "type" => {
            let numbered = (word == "type").then(|| words.next().parse().expect("a type's number"));
            let id = (words.number("id").unwrap_or(0) as u16).to_be_bytes();
            let sequence = (words.number("seq").unwrap_or(0) as u16).to_be_bytes();
            let kind = match (word, is_v6) {
                ("echo", false) => 8,
                ("reply", false) => 0,
                ("timestamp", false) => 13,
                ("echo", true) => 128,
                ("reply", true) => 129,
                _ => {
                    numbered.unwrap_or_else(|| panic!("`{}`: ICMPv6 has no timestamp", words.text))
                }
            };
            (kind, 0, [id[0], id[1], sequence[0], sequence[1]])
        }
        "redirect" => (5, 1, [192, 0, 2, 66]),
        "quench" => (4, 0, [0; 4]),
        "unreachable" => (if is_v6 { 1 } else { 3 }, if is_v6 { 4 } else { 3 }, [0; 4]),
        "exceeded" => (if is_v6 { 3 } else { 11 }, 0, [0; 4]),
        "too-big" => {
            let mtu = (words.number("mtu").unwrap_or(1280) as u32).to_be_bytes();
            if is_v6 { (2, 0, mtu) } else { (3, 4, mtu) }
        }
        _ => panic!("`{}`: `{word}` is no ICMP message", words.text),
    }
}

fn icmp(words: &mut Words<'_>) -> Vec<u8> {
    let source = words.address();
    words.arrow();
    let destination = words.address();
    let mut data = match words.left.iter().position(|word| *word == "quoting") {
        None => data(words),
        Some(at) => {
            let mut left = words.left.split_off(at);
            left.remove(0);
            let mut inner = Words { text: words.text, left };
            let (cut, behind) = (inner.number("cut"), inner.number("behind"));
            let none = vec![1; inner.number("options").unwrap_or(0) as usize];
            let options =
                if inner.flag("routed") { vec![131, 7, 4, 192, 0, 2, 66, 1] } else { none };
            let mut quoted = if inner.flag("garbage") {
                payload(inner.number("len").unwrap_or(64))
            } else {
                packet(inner)
            };
            add_options(&mut quoted, &options);
            quoted.truncate(cut.unwrap_or(u64::MAX) as usize);
            quoted.extend(payload(behind.unwrap_or(0)));
            quoted
        }
    };
    let (kind, code, rest) = icmp_kind(words, source.is_ipv6());
    let (protocol, header) = match (source, destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => {
            let unknown = Icmpv4Type::Unknown { type_u8: kind, code_u8: code, bytes5to8: rest };
            (1, Icmpv4Header::with_checksum(unknown, &data).to_bytes().to_vec())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let unknown = Icmpv6Type::Unknown { type_u8: kind, code_u8: code, bytes5to8: rest };
            let header =
                Icmpv6Header::with_checksum(unknown, source.octets(), destination.octets(), &data)
                    .expect("fits");
            (58, header.to_bytes().to_vec())
        }
        _ => panic!("both addresses are of one family"),
    };
    let mut segment = header;
    segment.append(&mut data);
    ip(source, destination, protocol, Fragment { offset: 0, more: false }, &segment)
}

fn fragment(words: &mut Words<'_>) -> Vec<u8> {
    let source = words.address();
    words.arrow();
    let destination = words.address();
    let protocol = if words.next() == "tcp" { 6 } else { 17 };
    let place =
        Fragment { offset: words.number("offset").expect("an offset"), more: words.flag("more") };
    let data = payload(words.number("len").unwrap_or(0));
    ip(source, destination, protocol, place, &data)
}

fn packet(mut words: Words<'_>) -> Vec<u8> {
    let packet = match words.next() {
        "tcp" => tcp(&mut words),
        "udp" => udp(&mut words),
        "icmp" => icmp(&mut words),
        "fragment" => fragment(&mut words),
        "gre" => {
            let source = words.address();
            words.arrow();
            let destination = words.address();
            ip(source, destination, 47, Fragment { offset: 0, more: false }, &payload(16))
        }
        other => panic!("`{}`: `{other}` is no protocol", words.text),
    };
    assert!(words.left.is_empty(), "`{}`: {:?} mean nothing there", words.text, words.left);
    packet
}

/// Adds options, a multiple of four bytes, to a whole IPv4 packet.
fn add_options(packet: &mut Vec<u8>, options: &[u8]) {
    if options.is_empty() {
        return;
    }
    let (mut header, rest) = Ipv4Header::from_slice(packet).expect("a header made here");
    header.options = options.try_into().expect("room for options");
    header.total_len += options.len() as u16;
    header.header_checksum = header.calc_header_checksum();
    *packet = [&header.to_bytes()[..], rest].concat();
}

/// Sets DSCP and ECN of a whole packet, and computes its header's checksum anew.
fn set_tos(packet: &mut [u8], tos: u8) {
    if packet[0] >> 4 == 4 {
        packet[1] = tos;
        let (header, _) = Ipv4Header::from_slice(packet).expect("a header made here");
        packet[10..12].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    } else {
        let (mut header, _) = Ipv6Header::from_slice(packet).expect("a header made here");
        header.traffic_class = tos;
        packet[..Ipv6Header::LEN].copy_from_slice(&header.to_bytes());
    }
}

/// The Ethernet frame that the words describe.
pub(crate) fn frame(text: &str) -> Vec<u8> {
    let mut words = Words { text, left: text.split_whitespace().collect() };
    let (tos, tag) = (words.number("tos"), words.number("tag"));
    let mut packet = packet(words);
    let ethertype = if packet[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 };
    if let Some(tos) = tos {
        set_tos(&mut packet, tos as u8);
    }
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if let Some(tag) = tag {
        frame.extend_from_slice(&EtherType::VLAN_TAGGED_FRAME.0.to_be_bytes());
        frame.extend_from_slice(&(tag as u16).to_be_bytes());
    }
    frame.extend_from_slice(&ethertype.0.to_be_bytes());
    frame.extend_from_slice(&packet);
    frame
}

/// As [`frame`], of a packet with this payload.
pub(crate) fn carrying(text: &str, data: &[u8]) -> Vec<u8> {
    let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
    frame(&if hex.is_empty() { text.to_owned() } else { format!("{text} hex {hex}") })
}
