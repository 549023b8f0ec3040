//! What a world begins with: the network's habits and the connections.

use super::{BEGIN, MICROSECOND, MILLISECOND};
use crate::peers::{Client, TcpClient, UdpClient};
use crate::plan::Connection;
use crate::random::Random;

/// A link's habits, drawn per seed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Habits {
    pub(super) delay: (u64, u64),
    pub(super) loss: u64,
    pub(super) double: u64,
    /// Permille of frames that take ten times as long, so that later ones overtake them.
    pub(super) stray: u64,
}

impl Habits {
    /// Every frame arrives, once, after the same time.
    pub(super) const CALM: Habits = Habits { delay: (20 * MICROSECOND, 20 * MICROSECOND), loss: 0, double: 0, stray: 0 };
}

pub(super) fn habits(random: &mut Random) -> Habits {
    Habits {
        delay: (MICROSECOND, MICROSECOND * random.range(2, 300)),
        loss: if random.chance(500) { random.range(0, 40) } else { 0 },
        double: if random.chance(500) { random.range(0, 30) } else { 0 },
        stray: if random.chance(500) { random.range(0, 60) } else { 0 },
    }
}

const TCP_SERVER: ([u8; 4], u16) = ([203, 0, 113, 10], 80);
const UDP_SERVER: ([u8; 4], u16) = ([192, 0, 2, 7], 53);

fn local(number: usize) -> ([u8; 4], u16) {
    ([10, 0, 0, 2 + (number % 3) as u8], 1000 + number as u16)
}

/// As a plan says.
pub(super) fn planned(connections: &[Connection]) -> Vec<Client> {
    let make = |(number, connection): (usize, &Connection)| {
        let &Connection { tcp, packets, start, pause } = connection;
        let (id, start) = (number as u32 + 1, BEGIN + start);
        if tcp {
            Client::Tcp(TcpClient::new(id, local(number), TCP_SERVER, packets, id.wrapping_mul(0x9e37_79b1), start, pause))
        } else {
            Client::Udp(UdpClient::new(id, local(number), UDP_SERVER, packets, start, pause))
        }
    };
    connections.iter().enumerate().map(make).collect()
}

/// As the seed says.
pub(super) fn clients(random: &mut Random) -> Vec<Client> {
    let count = random.range(2, 10);
    (0..count)
        .map(|number| {
            let id = number as u32 + 1;
            let local = local(number as usize);
            let start = BEGIN + random.range(100, 800) * MILLISECOND;
            let pause = random.range(2, 80) * MILLISECOND;
            if random.chance(500) {
                let initial = random.draw() as u32;
                Client::Tcp(TcpClient::new(id, local, TCP_SERVER, random.range(5, 60) as u32, initial, start, pause))
            } else {
                Client::Udp(UdpClient::new(id, local, UDP_SERVER, random.range(10, 80) as u32, start, pause))
            }
        })
        .collect()
}
