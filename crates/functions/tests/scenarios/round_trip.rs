//! Properties of translation, over packets of all shapes.
//!
//! A translated packet is sent back with its ends exchanged, like by a peer that echoes
//! everything. The packet that then comes out, with its ends exchanged again, must be the
//! one that went in, byte for byte. Exchanging ends changes no checksum but a ping's, so
//! the test makes up no data on the way; the bench checks all checksums of both packets.

use crate::bench::Bench;
use crate::{reading, words};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Corrects the checksum at the front of `place` for a sum that changed by `change` (RFC
/// 1071: modulo 65,535, and the sum of a non-zero packet is never 0).
fn correct(place: &mut [u8], change: i64) {
    let Some(old) = place.get(..2).map(|old| u16::from_be_bytes([old[0], old[1]])) else { return };
    let sum = (i64::from(!old) + change - 1).rem_euclid(65_535) + 1;
    place[..2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Exchanges source and destination of an IP packet: addresses, and ports if they are
/// there; request and reply of a ping.
fn mirror_packet(packet: &mut [u8]) {
    let (addresses, len, l4, protocol) = match packet[0] >> 4 {
        4 => (12, 4, usize::from(packet[0] & 15) * 4, packet[9]),
        _ => (8, 16, 40, packet[6]),
    };
    for at in addresses..addresses + len {
        packet.swap(at, at + len);
    }
    match protocol {
        6 | 17 => {
            packet.swap(l4, l4 + 2);
            packet.swap(l4 + 1, l4 + 3);
        }
        // An error also quotes a packet, whose own checksum compensates for its changes.
        // A host that is pinged with an identifier answers with it.
        1 if matches!(packet[l4], 3 | 11) => mirror_packet(&mut packet[l4 + 8..]),
        58 if packet[l4] < 128 => mirror_packet(&mut packet[l4 + 8..]),
        1 if matches!(packet[l4], 0 | 8) => {
            packet[l4] ^= 8;
            let change = if packet[l4] == 8 { 0x800 } else { -0x800 };
            correct(&mut packet[l4 + 2..], change);
        }
        _ => {}
    }
}

fn mirror(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    mirror_packet(&mut frame[14..]);
    frame
}

#[derive(Debug, Clone)]
enum Body {
    Tcp { flags: u8, sequence: u32, acknowledgement: u32, window: u16, len: u16 },
    Udp { len: u16, with_checksum: bool },
    Echo { sequence: u16, len: u16 },
}

impl Body {
    fn protocol(&self) -> &'static str {
        match self {
            Body::Tcp { .. } => "tcp",
            Body::Udp { .. } => "udp",
            Body::Echo { .. } => "icmp",
        }
    }

    /// The packet between these hosts; for pings the source's port is the identifier.
    fn between(&self, source: (&str, u16), destination: (&str, u16)) -> String {
        let end = |(host, port): (&str, u16)| {
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
        };
        let ends = format!("{} > {}", end(source), end(destination));
        match self {
            Body::Tcp { flags, sequence, acknowledgement, window, len } => {
                let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
                let flags: Vec<&str> =
                    (0..6).filter(|bit| flags & 1 << bit != 0).map(|bit| names[bit]).collect();
                format!(
                    "tcp {ends} {} seq {sequence} ack {acknowledgement} win {window} len {len}",
                    flags.join(" ")
                )
            }
            Body::Udp { len, with_checksum } => {
                format!("udp {ends} len {len} {}", if *with_checksum { "" } else { "nosum" })
            }
            Body::Echo { sequence, len } => {
                let (kind, id) =
                    if source.1 != 0 { ("echo", source.1) } else { ("reply", destination.1) };
                format!(
                    "icmp {} > {} {kind} id {id} seq {sequence} len {len}",
                    source.0, destination.0
                )
            }
        }
    }
}

fn body() -> impl Strategy<Value = Body> {
    let tcp = (any::<u8>(), any::<u32>(), any::<u32>(), any::<u16>(), 0u16..1400);
    prop_oneof![
        tcp.prop_map(|(flags, sequence, acknowledgement, window, len)| Body::Tcp {
            flags,
            sequence,
            acknowledgement,
            window,
            len
        }),
        (0u16..1400, any::<bool>())
            .prop_map(|(len, with_checksum)| Body::Udp { len, with_checksum }),
        (any::<u16>(), 0u16..1400).prop_map(|(sequence, len)| Body::Echo { sequence, len }),
    ]
}

/// The packet that opens a flow of this protocol: for TCP a SYN.
fn open(bench: &mut Bench, client: (&str, u16), service: (&str, u16), body: &Body) {
    if body.protocol() == "tcp" {
        let syn = Body::Tcp { flags: 2, sequence: 1, acknowledgement: 0, window: 1000, len: 0 };
        bench.send(&syn.between(client, service)).expect("a SYN opens");
    }
}

/// Sends a frame, sends the output back with its ends exchanged, and expects the frame
/// again. `look` gets the translated frame.
fn there_and_back(bench: &mut Bench, frame: &[u8], look: impl Fn(&[u8])) {
    let out = bench.send_frame(frame).expect("translated");
    assert_eq!(out.len(), frame.len());
    look(&out);
    let back = bench.send_frame(&mirror(&out)).expect("translated back");
    assert!(
        mirror(&back) == frame,
        "sent     {frame:02x?}\noutside  {out:02x?}\nreturned {:02x?}",
        mirror(&back)
    );
}

/// An error by the client about a reply to it, whose quote a router cuts to `cut` bytes.
fn error(client: (&str, u16), service: (&str, u16), body: &Body, cut: usize) -> Vec<u8> {
    let reply = body.between(service, client);
    words::frame(&format!(
        "icmp {} > {} unreachable quoting cut {cut} {reply}",
        client.0, service.0
    ))
}

fn chains() -> Vec<(&'static str, Vec<(&'static str, Value)>)> {
    let nat = ("nat", json!({ "pool": ["198.51.100.4/30"] }));
    let balancer = |policy: &str| {
        let backends = ["192.0.2.1:8080", "192.0.2.2:81", "192.0.2.255:65535"];
        (
            "load_balancer",
            json!({ "virtual": "203.0.113.10:80", "backends": backends, "policy": policy }),
        )
    };
    vec![
        ("tcp udp icmp", vec![nat.clone()]),
        ("tcp", vec![balancer("maglev")]),
        ("tcp", vec![nat, balancer("least_load")]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// IPv4 packets, and errors that quote them whole or cut, through every chain of
    /// translators and back.
    #[test]
    fn what_is_translated_back_is_what_was_sent(
        host in (1u8..255, any::<u8>(), 1u8..255),
        port in 1u16..,
        body in body(),
        cut in 28usize..600,
    ) {
        let host = format!("10.{}.{}.{}", host.0, host.1, host.2);
        let (client, service) = ((host.as_str(), port), ("203.0.113.10", 80));
        let service = if body.protocol() == "icmp" { (service.0, 0) } else { service };
        let inside: [u8; 4] = host.parse::<std::net::Ipv4Addr>().expect("an address").octets();
        for (protocols, functions) in chains() {
            if !protocols.contains(body.protocol()) {
                continue;
            }
            let mut bench = Bench::new(&functions);
            let translates_source = functions[0].0 == "nat";
            let frame = words::frame(&body.between(client, service));
            let look = |out: &[u8]| {
                let (source, destination) = reading::ends(out);
                assert_eq!(source.ip().to_string().starts_with("198.51.100."), translates_source);
                assert_eq!(destination.ip().to_string() == service.0, functions.len() == 1 && translates_source);
            };
            open(&mut bench, client, service, &body);
            there_and_back(&mut bench, &frame, look);
            let look = |out: &[u8]| {
                // In the error's own header, and in that of the packet that it quotes.
                let is_visible = out[26..30] == inside || out[58..62] == inside;
                assert_eq!(is_visible, !translates_source);
            };
            there_and_back(&mut bench, &error(client, service, &body, cut), look);
        }
    }

    /// IPv6 the same, through the balancer.
    #[test]
    fn ipv6_that_is_translated_back_is_what_was_sent(host in any::<u64>(), port in 1u16.., body in body(), cut in 48usize..600) {
        prop_assume!(body.protocol() != "icmp");
        let host = std::net::Ipv6Addr::from(0x2001_0db8u128 << 96 | u128::from(host)).to_string();
        let (client, service) = ((host.as_str(), port), ("2001:db8:ffff::10", 443));
        let config = json!({
            "virtual": "[2001:db8:ffff::10]:443",
            "protocol": body.protocol(),
            "backends": ["[2001:db8:eeee::ffff]:8443", "[2001:db8:eeee:1:2:3:4:5]:1"],
        });
        let mut bench = Bench::new(&[("load_balancer", config)]);
        let look = |out: &[u8]| assert!(reading::ends(out).1.ip().to_string().starts_with("2001:db8:eeee:"));
        open(&mut bench, client, service, &body);
        there_and_back(&mut bench, &words::frame(&body.between(client, service)), look);
        there_and_back(&mut bench, &error(client, service, &body, cut), look);
    }
}
