//! What a world begins with: the network's habits and the connections.

use super::{BEGIN, MICROSECOND, MILLISECOND};
use crate::peers::{Client, TcpClient, UdpClient};
use crate::plan::{Connection, End, Habits};
use crate::random::Random;

/// Drawn per seed.
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
    (([10, 0, 0, 2 + (number % 3) as u8], 1000 + number as u16), if tcp { TCP_SERVER } else { UDP_SERVER })
}

/// As a plan says.
pub(super) fn clients(connections: &[Connection]) -> Vec<Client> {
    let make = |(number, connection): (usize, &Connection)| {
        let &Connection { tcp, packets, start, pause, .. } = connection;
        let (local, remote) = connection.ends.unwrap_or_else(|| ends(number, tcp));
        let (id, start) = (number as u32 + 1, BEGIN + start);
        if tcp {
            Client::Tcp(TcpClient::new(id, local, remote, packets, id.wrapping_mul(0x9e37_79b1), start, pause))
        } else {
            Client::Udp(UdpClient::new(id, local, remote, packets, start, pause))
        }
    };
    connections.iter().enumerate().map(make).collect()
}

/// As the seed says.
pub(super) fn connections(random: &mut Random) -> Vec<Connection> {
    let count = random.range(2, 10);
    (0..count)
        .map(|number| {
            let start = random.range(100, 800) * MILLISECOND;
            let pause = random.range(2, 80) * MILLISECOND;
            let tcp = random.chance(500);
            let packets = if tcp { random.range(5, 60) } else { random.range(10, 80) } as u32;
            Connection { tcp, packets, start, pause, ends: Some(ends(number as usize, tcp)) }
        })
        .collect()
}
