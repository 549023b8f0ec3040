//! Packets of every kind between two addresses, as no kernel sends them: for tests of
//! what must not pass.

use etherparse::checksum::Sum16BitWords;
use std::net::IpAddr;

/// Time to live of all these packets, by which they are recognised.
pub const TTL: u8 = 77;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Sender and receiver.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// Source MAC address.
    pub from_mac: [u8; 6],
    /// Destination MAC address.
    pub to_mac: [u8; 6],
    /// Source address.
    pub from: IpAddr,
    /// Destination address, of the same family.
    pub to: IpAddr,
}

/// A packet behind its fixed header.
struct Body {
    /// Protocol number of the first header in `bytes`.
    protocol: u8,
    bytes: Vec<u8>,
    /// The fragment word of IPv4.
    fragment: u16,
    /// Options of IPv4.
    options: Vec<u8>,
}

impl Body {
    fn new(protocol: u8, bytes: Vec<u8>) -> Body {
        Body { protocol, bytes, fragment: 0, options: Vec::new() }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

impl Way {
    /// A few kinds: those that an attacker would try first.
    pub fn some(&self) -> Vec<Vec<u8>> {
        let mut bodies = vec![
            self.tcp(2, 40_000, 443),
            self.tcp(2, 40_000, 22),
            self.udp(40_000, 53),
            self.udp(53, 40_000),
        ];
        let kinds: &[u8] = if self.from.is_ipv4() {
            &[0, 3, 5, 8, 13]
        } else {
            &[1, 2, 128, 129, 133, 134, 136, 137]
        };
        bodies.extend(kinds.iter().map(|kind| self.icmp(*kind, &[0x12, 0x34, 0, 1])));
        bodies.push(Body::new(47, vec![0; 8]));
        bodies.iter().map(|body| self.frame(body)).collect()
    }

    /// Every kind: all flags of TCP, all types of ICMP, fragments, options, extension
    /// headers, other protocols, packets in packets. Inner and quoted packets have the
    /// source address `inner`.
    pub fn all(&self, inner: IpAddr) -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        for flags in 0..64 {
            bodies.extend(
                [(40_000, 443), (40_000, 22), (443, 40_001)]
                    .map(|(from, to)| self.tcp(flags, from, to)),
            );
        }
        bodies.extend(
            [(40_000, 53), (53, 40_000), (40_000, 443), (40_000, 5000), (0, 0), (68, 67)]
                .map(|(from, to)| self.udp(from, to)),
        );
        let inside = self.packet(inner, self.from, &self.tcp(2, 40_000, 22));
        let back = self.packet(self.to, self.from, &self.tcp(2, 40_000, 80));
        for kind in 0..=255 {
            bodies.push(self.icmp(kind, &[0x12, 0x34, 0, 1]));
        }
        for kind in [1, 2, 3, 4, 5, 11, 12, 137] {
            bodies.extend(
                [&inside, &back]
                    .map(|quoted| self.icmp(kind, &[&[0, 0, 5, 0], quoted.as_slice()].concat())),
            );
        }
        for protocol in [0, 2, 41, 47, 50, 51, 59, 89, 103, 112, 115, 132, 136, 255] {
            bodies.push(Body::new(protocol, vec![0; 24]));
        }
        bodies.push(Body::new(if self.from.is_ipv4() { 4 } else { 41 }, inside.clone()));
        bodies.push(Body::new(
            47,
            [&[0, 0, if self.from.is_ipv4() { 8 } else { 0x86 }, 0][..], &inside].concat(),
        ));
        match self.from {
            IpAddr::V4(_) => bodies.extend(self.only_v4(inner)),
            IpAddr::V6(_) => bodies.extend(self.only_v6(inner)),
        }
        bodies.iter().map(|body| self.frame(body)).collect()
    }

    fn only_v4(&self, inner: IpAddr) -> Vec<Body> {
        let mut bodies = Vec::new();
        for body in
            [self.tcp(2, 40_000, 22), self.udp(40_000, 53), self.icmp(8, &[0x12, 0x34, 0, 1])]
        {
            // The first of several fragments, a later one, one at nearly the largest
            // offset, and both flags.
            for fragment in [0x2000, 0x2001, 0x0001, 0x0008, 0x1fff, 0xa000] {
                bodies.push(Body {
                    fragment,
                    bytes: body.bytes.clone(),
                    ..Body::new(body.protocol, Vec::new())
                });
            }
            // Loose and strict source routes by way of an inside host, record route,
            // router alert.
            let host = octets(inner);
            for options in [&[131, 7, 4][..], &[137, 7, 4], &[7, 7, 4]] {
                let options = [options, &host, &[0]].concat();
                bodies.push(Body {
                    options,
                    bytes: body.bytes.clone(),
                    ..Body::new(body.protocol, Vec::new())
                });
            }
            bodies.push(Body { options: vec![148, 4, 0, 0], ..body });
        }
        bodies
    }

    fn only_v6(&self, inner: IpAddr) -> Vec<Body> {
        let mut bodies = Vec::new();
        for body in
            [self.tcp(2, 40_000, 22), self.udp(40_000, 53), self.icmp(128, &[0x12, 0x34, 0, 1])]
        {
            let behind =
                |header: u8, extension: &[u8]| Body::new(header, [extension, &body.bytes].concat());
            let next = body.protocol;
            bodies.extend([0_u16, 1, 8, 9, 0xfff8].map(|word| {
                let [high, low] = word.to_be_bytes();
                behind(44, &[next, 0, high, low, 0, 0, 0, 7])
            }));
            for kind in 0..=5 {
                bodies.push(behind(
                    43,
                    &[&[next, 2, kind, 1, 0, 0, 0, 0][..], &octets(inner)].concat(),
                ));
                bodies.push(behind(43, &[next, 0, kind, 0, 0, 0, 0, 0]));
            }
            // Padding in hop-by-hop and destination options, router alert, a jumbo
            // length.
            for extension in [
                [next, 0, 1, 4, 0, 0, 0, 0],
                [next, 0, 5, 2, 0, 0, 1, 0],
                [next, 0, 0xc2, 4, 0, 1, 0, 0],
            ] {
                bodies.extend([behind(0, &extension), behind(60, &extension)]);
            }
        }
        bodies
    }

    fn tcp(&self, flags: u8, from: u16, to: u16) -> Body {
        let mut bytes = [
            &from.to_be_bytes()[..],
            &to.to_be_bytes(),
            &[0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xfa, 0, 0, 0, 0, 0],
        ]
        .concat();
        self.sum(TCP, &mut bytes, 16);
        Body::new(TCP, bytes)
    }

    fn udp(&self, from: u16, to: u16) -> Body {
        let mut bytes =
            [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 16, 0, 0], b"anybody?"].concat();
        self.sum(UDP, &mut bytes, 6);
        Body::new(UDP, bytes)
    }

    fn icmp(&self, kind: u8, rest: &[u8]) -> Body {
        let protocol = if self.from.is_ipv4() { ICMP } else { ICMPV6 };
        let mut bytes = [&[kind, 0, 0, 0], rest].concat();
        self.sum(protocol, &mut bytes, 2);
        Body::new(protocol, bytes)
    }

    fn sum(&self, protocol: u8, bytes: &mut [u8], at: usize) {
        let mut sum = Sum16BitWords::new().add_slice(bytes);
        if protocol != ICMP {
            let length = (bytes.len() as u16).to_be_bytes();
            sum = sum
                .add_slice(&octets(self.from))
                .add_slice(&octets(self.to))
                .add_2bytes([0, protocol])
                .add_2bytes(length);
        }
        bytes[at..at + 2].copy_from_slice(&sum.ones_complement().to_ne_bytes());
    }

    fn packet(&self, from: IpAddr, to: IpAddr, body: &Body) -> Vec<u8> {
        let Body { protocol, bytes, fragment, options } = body;
        match from {
            IpAddr::V4(_) => {
                let length = (20 + options.len() + bytes.len()) as u16;
                let first = 0x45 + (options.len() / 4) as u8;
                let [[length, length_low], [fragment, fragment_low]] =
                    [length.to_be_bytes(), fragment.to_be_bytes()];
                let fixed = [
                    first,
                    0,
                    length,
                    length_low,
                    0,
                    7,
                    fragment,
                    fragment_low,
                    TTL,
                    *protocol,
                    0,
                    0,
                ];
                let mut header = [&fixed[..], &octets(from), &octets(to), options].concat();
                let sum = Sum16BitWords::new().add_slice(&header).ones_complement().to_ne_bytes();
                header[10..12].copy_from_slice(&sum);
                [&header, bytes.as_slice()].concat()
            }
            IpAddr::V6(_) => {
                let [length, low] = (bytes.len() as u16).to_be_bytes();
                [
                    &[0x60, 0, 0, 0, length, low, *protocol, TTL][..],
                    &octets(from),
                    &octets(to),
                    bytes,
                ]
                .concat()
            }
        }
    }

    fn frame(&self, body: &Body) -> Vec<u8> {
        let ether_type: [u8; 2] = if self.from.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
        [&self.to_mac[..], &self.from_mac, &ether_type, &self.packet(self.from, self.to, body)]
            .concat()
    }
}
