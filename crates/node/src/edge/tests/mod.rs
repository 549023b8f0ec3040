//! Scenarios of the edge: a frame in words goes in, the edge's effects come out in words.
//!
//! The box has two ports. Port 0 (`10.0.0.1/24`, `2001:db8:a::1/64`) is where clients
//! are, port 1 (`203.0.113.1/24`, `2001:db8:b::1/64`, MTU 1400) leads to the rest of the
//! world through `203.0.113.254` and `2001:db8:b::fe`; `10.9.0.0/16` is behind the client
//! `10.0.0.254`. Its chains own `198.51.100.4/31`, the virtual addresses `10.0.0.100` and
//! `2001:db8:a::100`, and use the box's own `203.0.113.2`. The box answers ping at
//! `10.0.0.100`. The ports' link-local addresses are `fe80::ff:fe00:b0` and
//! `fe80::ff:fe00:b1`.

mod conservation;
mod egress;
mod fragmentation;
mod fragments;
mod frames;
mod ingress;
mod link_local;
mod liveness;
mod local;
mod refused;
mod resolution;

use super::*;
use frames::{describe, frame};
use holdfast_wire::MemoryPool;
use holdfast_wire::nsh::Flags;

pub(super) const SECOND: u64 = 1_000_000_000;

/// The box's MAC addresses.
pub(super) const BOX: [Mac; 2] = [[2, 0, 0, 0, 0, 0xb0], [2, 0, 0, 0, 0, 0xb1]];

pub(super) struct Bench {
    pub(super) edge: Edge,
    pub(super) pool: MemoryPool,
    pub(super) now: u64,
    pub(super) out: EdgeOut,
    drops: DropCounters,
}

pub(super) fn config() -> EdgeConfig {
    let ip = |text: &str| text.parse().expect("a test's address");
    let prefix = |text: &str| text.parse().expect("a test's prefix");
    let port = |at: usize, mtu, addresses: &[(&str, u8)]| EdgePort {
        mac: BOX[at],
        mtu,
        addresses: addresses.iter().map(|&(address, len)| (ip(address), len)).collect(),
        reverse_path: ReversePath::Feasible,
        flow_vlans: Vec::new(),
    };
    EdgeConfig {
        ports: vec![
            port(0, 1500, &[("10.0.0.1", 24), ("2001:db8:a::1", 64)]),
            port(1, 1400, &[("203.0.113.1", 24), ("203.0.113.2", 24), ("2001:db8:b::1", 64)]),
        ],
        routes: vec![
            EdgeRoute { prefix: prefix("10.9.0.0/16"), port: 0, gateway: Some(ip("10.0.0.254")) },
            EdgeRoute {
                prefix: prefix("192.0.0.0/8"),
                port: 1,
                gateway: Some(ip("203.0.113.254")),
            },
            EdgeRoute {
                prefix: prefix("2001:db8:f::/48"),
                port: 1,
                gateway: Some(ip("2001:db8:b::fe")),
            },
        ],
        owned: vec![
            prefix("198.51.100.4/31"),
            prefix("10.0.0.100"),
            prefix("2001:db8:a::100"),
            prefix("203.0.113.2"),
        ],
        answers_ping: vec![prefix("10.0.0.100")],
        bfd: Vec::new(),
        seed: 0,
    }
}

impl Bench {
    pub(super) fn new() -> Bench {
        Bench::with_buffers(256)
    }

    pub(super) fn with_buffers(buffers: usize) -> Bench {
        let drops = DropCounters::default();
        // Careless arithmetic overflows at this time.
        let now = 1_800_000_000 * SECOND;
        Bench {
            edge: Edge::new(config()),
            pool: MemoryPool::new(buffers),
            now,
            out: EdgeOut::default(),
            drops,
        }
    }

    /// The same bench without a check where sources are routed.
    pub(super) fn unchecked() -> Bench {
        Bench::with(|config| {
            config.ports.iter_mut().for_each(|port| port.reverse_path = ReversePath::Off)
        })
    }

    /// The same bench with changes.
    pub(super) fn with(change: impl FnOnce(&mut EdgeConfig)) -> Bench {
        let mut config = config();
        change(&mut config);
        Bench { edge: Edge::new(config), ..Bench::new() }
    }

    /// A bench on which `words` (as [`frame`] reads them) have come in by the port, so
    /// that their senders are known.
    pub(super) fn knowing(questions: &[(u8, &str)]) -> Bench {
        let mut bench = Bench::new();
        for (port, words) in questions {
            bench.port(*port, words);
        }
        bench
    }

    pub(super) fn packet(&mut self, bytes: &[u8]) -> Packet {
        let mut packet = self.pool.take().expect("the pool holds more than a test uses");
        packet.clear();
        assert!(packet.copy_from(bytes));
        packet
    }

    /// Brings a frame in words in by a port.
    pub(super) fn port(&mut self, port: u8, words: &str) -> Vec<String> {
        self.port_bytes(port, &frame(port, words))
    }

    pub(super) fn port_bytes(&mut self, port: u8, bytes: &[u8]) -> Vec<String> {
        let packet = self.packet(bytes);
        let forwarded =
            self.edge.handle_ingress(port, packet, self.now, &mut self.out, &mut self.pool);
        let mut effects = Vec::new();
        if let Some((key, packet)) = forwarded {
            effects.push(format!("forward {key}"));
            self.pool.put(packet);
        }
        self.effects(effects)
    }

    /// Releases a frame in words from a chain; the frame had come in by a port.
    pub(super) fn released(&mut self, ingress: u8, words: &str) -> Vec<String> {
        self.released_bytes(ingress, &frame(ingress, words))
    }

    pub(super) fn released_bytes(&mut self, ingress: u8, bytes: &[u8]) -> Vec<String> {
        self.released_with(ingress, 0, bytes)
    }

    /// Releases a packet with these flags.
    pub(super) fn released_with(&mut self, ingress: u8, flags: u8, bytes: &[u8]) -> Vec<String> {
        let mut packet = self.packet(bytes);
        (packet.meta.ingress, packet.meta.flags) = (ingress, flags);
        packet.parse().expect("what a chain releases is well formed");
        // The bench stands in for the protection.
        self.edge.handle_egress(
            Released::stateless(packet),
            self.now,
            &mut self.out,
            &mut self.pool,
        );
        self.effects(Vec::new())
    }

    /// Lets time pass, step by step from deadline to deadline.
    pub(super) fn wait(&mut self, ns: u64) -> Vec<String> {
        let end = self.now + ns;
        let mut effects = Vec::new();
        while self.edge.poll_timeout() <= end {
            self.now = self.now.max(self.edge.poll_timeout());
            self.edge.handle_timeout(self.now, &mut self.out, &mut self.pool);
            let seconds = (ns - (end - self.now)) as f64 / 1e9;
            effects.extend(
                self.effects(Vec::new())
                    .into_iter()
                    .map(|effect| format!("{seconds:.0}s {effect}")),
            );
        }
        self.now = end;
        effects
    }

    pub(super) fn announce(&mut self) -> Vec<String> {
        self.edge.announce(&mut self.out, &mut self.pool);
        self.effects(Vec::new())
    }

    /// Puts the effects into words, the drops last, and gives their buffers back: no
    /// buffer may be missing.
    fn effects(&mut self, mut effects: Vec<String>) -> Vec<String> {
        for (port, released) in self.out.transmit.drain(..) {
            let packet = released.into_inner();
            effects.push(format!("{port}< {}", describe(packet.bytes())));
            self.pool.put(packet);
        }
        for (port, packet) in core::mem::take(&mut self.out.reinject) {
            let words = describe(packet.bytes());
            match self.edge.handle_reinjected(port, packet, &mut self.pool) {
                Some((key, packet)) => {
                    assert_eq!(packet.meta.ingress, port);
                    // The box's own errors come in again, and fragments.
                    assert_eq!(packet.meta.flags == Flags::OWN, !packet.layers.fragment, "{words}");
                    effects.push(format!("again {port}> {words} as {key}"));
                    self.pool.put(packet);
                }
                None => effects.push(format!("again {port}> {words} refused")),
            }
        }
        for &reason in DropReason::ALL {
            for _ in self.drops.get(reason)..self.edge.drops().get(reason) {
                effects.push(format!("drop {reason}"));
            }
        }
        self.drops = self.edge.drops().clone();
        assert_eq!(
            self.pool.free() + self.edge.held(),
            self.pool.total(),
            "a buffer is lost, or there twice: {effects:?}"
        );
        effects
    }
}
