//! No input makes a step panic, and every buffer is in exactly one place. [`Bench`]
//! checks the pool after every step.

use super::frames::frame;
use super::{Bench, SECOND};
use holdfast_wire::PacketPool;
use holdfast_wire::nsh::Flags;
use proptest::prelude::*;

/// An input of an edge.
#[derive(Debug, Clone)]
enum Step {
    Port(u8, Vec<u8>),
    Released(u8, Vec<u8>),
    Refused(u8, Vec<u8>),
    Wait(u64),
    Mtu(u8, u16),
}

const WORDS: &[&str] = &[
    "udp 10.0.0.9:1000 > 192.0.2.7:53",
    "tcp 10.0.0.9:1000 > 203.0.113.9:80 ttl=2",
    "ping 10.0.0.9 > 10.0.0.1",
    "ping 2001:db8:a::9 > 2001:db8:a::1",
    "udp 10.0.0.9:5 > 10.0.0.1:33434 ttl=1",
    "udp 10.0.0.9:5 > 192.0.2.7:33434 ttl=1",
    "udp 10.0.0.9:5 > 198.51.100.4:7 df len=1380",
    "udp 10.0.0.9:5 > 192.0.2.7:7 df len=1380",
    "udp 10.0.0.9:5 > 192.0.2.7:7 len=1472 id=6",
    "udp 10.0.0.9:5 > 203.0.113.9:7 len=2000 id=7",
    "ping 10.0.0.9 > 10.0.0.1 len=1400 id=8",
    "udp 10.0.0.9:0 > 192.0.2.7:0 at=1480 more id=6 len=1480",
    "udp 10.0.0.9:5 > 192.0.2.7:7 vlan=0",
    "udp 10.0.0.9:5 > 172.16.0.1:7",
    "udp 10.0.0.9:1000 > 192.0.2.7:53 more id=7 len=24",
    "udp 10.0.0.9:0 > 192.0.2.7:0 at=32 more id=7 len=32",
    "udp 10.0.0.9:0 > 192.0.2.7:0 at=64 id=7 len=5",
    "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2 more id=5 len=24",
    "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2 at=32 id=5",
    "udp [2001:db8:a::9]:1 > [2001:db8:b::9]:2 rh=0",
    "udp 10.0.0.9:1 > 192.0.2.7:2 lsrr",
    "arp who-has 10.0.0.1 tell 10.0.0.9",
    "arp 203.0.113.9 is-at 02:00:00:00:01:09 to=box1",
    "arp 203.0.113.254 is-at 02:00:00:00:01:fe to=box1",
    "ns 2001:db8:a::1 from 2001:db8:a::9",
    "na 2001:db8:b::fe",
    "na 2001:db8:b::9 bare flags=0",
    "rs",
    "tcp 10.0.0.9:5 > 10.0.0.1:22",
    "tcp [fe80::9]:5 > [fe80::ff:fe00:b0]:22 flags=16",
    "ping fe80::9 > fe80::ff:fe00:b0 ext=60.133.4",
    "ping 2001:db8:a::9 > 2001:db8:a::1 ext=43.253.1,60.1.4",
    "proto 2001:db8:a::9 > 2001:db8:a::1",
    "ping 10.0.0.9 > 10.0.0.1 more id=9",
    "ns fe80::ff:fe00:b0 from fe80::9",
];

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let word = 0..WORDS.len();
    prop_oneof![
        // Random bytes, mostly behind a plausible beginning.
        1 => prop::collection::vec(any::<u8>(), 0..200),
        1 => (0..4usize, prop::collection::vec(any::<u8>(), 0..120)).prop_map(|(kind, rest)| {
            let ethertype = [[8, 0], [8, 6], [0x86, 0xdd], [0x81, 0]][kind];
            [&super::BOX[0][..], &[2, 0, 0, 0, 1, 9], &ethertype, &[[0x45], [0], [0x60], [0]][kind], &rest].concat()
        }),
        // A right frame, as it is, cut, or with a byte changed.
        3 => word.clone().prop_map(|at| frame(0, WORDS[at])),
        1 => (word.clone(), any::<prop::sample::Index>()).prop_map(|(at, end)| {
            let bytes = frame(0, WORDS[at]);
            bytes[..end.index(bytes.len())].to_vec()
        }),
        2 => (word, any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, place, byte)| {
            let mut bytes = frame(0, WORDS[at]);
            let place = place.index(bytes.len());
            bytes[place] = byte;
            if bytes[12..14] == [8, 0] && bytes[14] == 0x45 {
                // A checksum that is right again lets the frame get further.
                bytes[24..26].fill(0);
                let sum = holdfast_wire::checksum::checksum(&bytes[14..34]);
                bytes[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            bytes
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..3, bytes()).prop_map(|(port, bytes)| Step::Port(port, bytes)),
        3 => (0u8..3, bytes()).prop_map(|(port, bytes)| Step::Released(port, bytes)),
        1 => (0u8..3, bytes()).prop_map(|(port, bytes)| Step::Refused(port, bytes)),
        1 => (0..40 * SECOND).prop_map(Step::Wait),
        1 => (0u8..3, prop_oneof![0u16..100, 100u16..3000]).prop_map(|(port, mtu)| Step::Mtu(port, mtu)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_packet_comes_out_in_exactly_one_way(steps in prop::collection::vec(step(), 1..40), buffers in 2usize..40) {
        let mut bench = Bench::with_buffers(buffers);
        let mut account = Account::default();
        for step in steps {
            // The edge may hold every buffer, and leave none to receive into.
            let has_room = bench.pool.free() > 0;
            match step {
                Step::Port(port, bytes) if has_room => {
                    let mut bytes = bytes;
                    if port == 1 && bytes.len() >= 6 && bytes[..6] == super::BOX[0] {
                        bytes[..6].copy_from_slice(&super::BOX[1]);
                    }
                    bench.port_quietly(port, &bytes, &mut account);
                }
                Step::Released(port, bytes) if has_room => bench.release_quietly(port, &bytes, 0, &mut account),
                Step::Refused(port, bytes) if has_room => bench.release_quietly(port, &bytes, Flags::TURNED, &mut account),
                Step::Wait(ns) => bench.wait_quietly(ns, &mut account),
                Step::Mtu(port, mtu) => bench.edge.set_mtu(port, mtu),
                Step::Port(..) | Step::Released(..) | Step::Refused(..) => {}
            }
            account.check(&bench);
        }
        bench.edge.abandon(&mut bench.pool);
        prop_assert_eq!(bench.pool.free(), bench.pool.total());
    }
}

/// Packets at the edge's two sides.
#[derive(Debug, Default)]
struct Account {
    /// Packets from ports and chains.
    came: u64,
    /// Packets to chains.
    went: u64,
}

impl Account {
    /// Checks that each packet that came, or that the box has made, is inside or in one
    /// counter.
    fn check(&self, bench: &Bench) {
        let (drops, counts) = (bench.edge.drops(), [0, 1].map(|port| bench.edge.counts(port)));
        let is = counts.iter().map(|counts| counts.consumed + counts.forwarded).sum::<u64>()
            + self.went
            + drops.total()
            + bench.edge.held() as u64;
        let was = self.came + counts.iter().map(|counts| counts.originated).sum::<u64>();
        assert_eq!(is, was, "{self:?}, {counts:?}, {drops:?}");
    }
}

/// Same as the methods that they are named after, but without words: these frames need
/// not be describable.
impl Bench {
    fn port_quietly(&mut self, port: u8, bytes: &[u8], account: &mut Account) {
        let packet = self.packet(bytes);
        account.came += 1;
        if let Some((_, packet)) =
            self.edge.handle_ingress(port, packet, self.now, &mut self.out, &mut self.pool)
        {
            account.went += 1;
            self.pool.put(packet);
        }
        self.collect(account);
    }

    fn release_quietly(&mut self, ingress: u8, bytes: &[u8], flags: u8, account: &mut Account) {
        let mut packet = self.packet(bytes);
        (packet.meta.ingress, packet.meta.flags) = (ingress, flags);
        if packet.parse().is_err() {
            return self.pool.put(packet);
        }
        // A packet that a chain has refused is counted by the chain.
        account.came += u64::from(flags & Flags::TURNED == 0);
        self.edge.handle_egress(
            super::Released::stateless(packet),
            self.now,
            &mut self.out,
            &mut self.pool,
        );
        self.collect(account);
    }

    fn wait_quietly(&mut self, ns: u64, account: &mut Account) {
        let end = self.now + ns;
        while self.edge.poll_timeout() <= end {
            let due = self.edge.poll_timeout();
            self.now = self.now.max(due);
            self.edge.handle_timeout(self.now, &mut self.out, &mut self.pool);
            assert!(self.edge.poll_timeout() > due, "a timeout that does not pass");
            self.collect(account);
        }
        self.now = end;
    }

    fn collect(&mut self, account: &mut Account) {
        for (_, released) in self.out.transmit.drain(..) {
            self.pool.put(released.into_inner());
        }
        for (port, packet) in core::mem::take(&mut self.out.reinject) {
            if let Some((_, packet)) = self.edge.handle_reinjected(port, packet, &mut self.pool) {
                account.went += 1;
                self.pool.put(packet);
            }
        }
        assert_eq!(
            self.pool.free() + self.edge.held(),
            self.pool.total(),
            "a buffer is lost, or there twice"
        );
    }
}
