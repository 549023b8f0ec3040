//! Draws what a world begins with: the network's habits and the connections.

use super::{BEGIN, MICROSECOND, MILLISECOND};
use crate::frames::echo_port;
use crate::peers::{Client, TcpClient, UdpClient};
use crate::plan::{Connection, End, Habits};
use crate::published;
use crate::random::Random;
use crate::refuser::limited;
use holdfast_wire::header::proto;

/// A link's habits, drawn from the seed.
pub(super) fn habits(random: &mut Random) -> Habits {
    Habits {
        delay: (MICROSECOND, MICROSECOND * random.range(2, 300)),
        lose: if random.chance(500) { random.range(0, 40) } else { 0 },
        double: if random.chance(500) { random.range(0, 30) } else { 0 },
        stray: if random.chance(500) { random.range(0, 60) } else { 0 },
        stale: 0,
    }
}

const TCP_SERVER: End = ([203, 0, 113, 10], 80);
const UDP_SERVER: End = ([192, 0, 2, 7], 53);

fn ends(number: usize, tcp: bool) -> (End, End) {
    (
        ([10, 0, 0, 2 + (number % 3) as u8], 1000 + number as u16),
        if tcp { TCP_SERVER } else { UDP_SERVER },
    )
}

/// The clients of a plan's connections.
pub(super) fn clients(connections: &[Connection]) -> Vec<Client> {
    let make = |(number, connection): (usize, &Connection)| {
        let &Connection { tcp, ping, large, packets, start, pause, .. } = connection;
        let (local, remote) = connection.ends.unwrap_or_else(|| ends(number, tcp));
        let (id, start) = (number as u32 + 1, BEGIN + start);
        if tcp {
            Client::Tcp(TcpClient::new(
                id,
                local,
                remote,
                packets,
                id.wrapping_mul(0x9e37_79b1),
                start,
                pause,
            ))
        } else {
            let protocol = if ping { proto::ICMP } else { proto::UDP };
            Client::Udp(UdpClient::new(id, (local, remote, protocol), large, packets, start, pause))
        }
    };
    connections.iter().enumerate().map(make).collect()
}

/// Connections drawn from the seed.
pub(super) fn connections(random: &mut Random) -> Vec<Connection> {
    let count = random.range(2, 10);
    (0..count)
        .map(|number| {
            let start = random.range(100, 800) * MILLISECOND;
            let pause = random.range(2, 80) * MILLISECOND;
            let tcp = random.chance(500);
            let packets = if tcp { random.range(5, 60) } else { random.range(10, 80) } as u32;
            Connection {
                tcp,
                packets,
                start,
                pause,
                ends: Some(ends(number as usize, tcp)),
                ..Connection::default()
            }
        })
        .collect()
}

/// Draws connections for a world with published hosts: datagrams in fragments,
/// connections from outside, from inside to published ends, from published hosts, and a
/// pair with one reply key.
pub(super) fn of_published(random: &mut Random, connections: &mut Vec<Connection>) {
    // A fragment's identification has four bits for its connection: at most 16
    // connections.
    connections.truncate(5);
    let drawn = |random: &mut Random, (local, remote): (End, End), protocol: u8, large: bool| {
        let (tcp, ping) = (protocol == proto::TCP, protocol == proto::ICMP);
        let packets = if tcp { random.range(5, 60) } else { random.range(10, 80) } as u32;
        let (start, pause) =
            (random.range(100, 800) * MILLISECOND, random.range(2, 80) * MILLISECOND);
        Connection { tcp, ping, large, packets, start, pause, ends: Some((local, remote)) }
    };
    let some_protocol =
        |random: &mut Random| if random.chance(400) { proto::TCP } else { proto::UDP };
    for _ in 0..random.range(3, 7) {
        let port = 2000 + connections.len() as u16;
        let (inside, outside) = (([10, 0, 0, 2 + (port % 3) as u8], port), ([192, 0, 2, 50], port));
        let large = random.chance(700);
        let to_published = |random: &mut Random| match some_protocol(random) {
            proto::TCP => (published::tcp_end(), proto::TCP),
            protocol => (published::udp_end(port), protocol),
        };
        let (ends, protocol) = match random.range(0, 8) {
            0 | 1 => ((inside, UDP_SERVER), proto::UDP),
            2 => ((inside, (UDP_SERVER.0, echo_port(port))), proto::ICMP),
            3 => {
                let (to, protocol) = to_published(random);
                ((outside, to), protocol)
            }
            4 => ((outside, published::whole_end(echo_port(port))), proto::ICMP),
            5 => ((outside, published::whole_end(port)), some_protocol(random)),
            6 => {
                let (to, protocol) = to_published(random);
                ((inside, to), protocol)
            }
            _ => ((published::udp_host(port), UDP_SERVER), proto::UDP),
        };
        connections.push(drawn(random, ends, protocol, large && protocol != proto::TCP));
    }
    if random.chance(700) {
        let (port, protocol) = (2000 + connections.len() as u16, some_protocol(random));
        let large = protocol == proto::UDP && random.chance(500);
        let mut both = published::services(protocol)
            .map(|service| drawn(random, (published::whole_host(port), service), protocol, large));
        // The two start close to each other, so that either may be the first.
        both[1].start = both[0].start + random.range(0, 40) * MILLISECOND * random.range(0, 2);
        if random.chance(500) {
            both.swap(0, 1);
        }
        // Connections alternate between two switches. A connection in between gives the
        // pair the same switch.
        let is_large = random.chance(500);
        let between = drawn(random, (([10, 0, 0, 2], port + 1), UDP_SERVER), proto::UDP, is_large);
        let [first, second] = both;
        connections.extend([first, between, second]);
    }
}

/// Draws TCP connections that are refused in their middle.
pub(super) fn of_limited(random: &mut Random, connections: &mut Vec<Connection>) {
    for _ in 0..random.range(2, 7) {
        let port = 3000 + connections.len() as u16;
        let (packets, limit) = (random.range(10, 40) as u32, random.range(1, 36) as u16);
        let (start, pause) =
            (random.range(100, 800) * MILLISECOND, random.range(2, 80) * MILLISECOND);
        let ends = (([10, 0, 0, 2 + (port % 3) as u8], port), limited(limit));
        connections.push(Connection {
            tcp: true,
            packets,
            start,
            pause,
            ends: Some(ends),
            ..Connection::default()
        });
    }
}
