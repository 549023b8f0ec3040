//! Floods from both sides of the office at once: frames of one kind, each different, at a
//! given rate or as fast as one sender gets them onto the wires.
//!
//! [`KINDS`] lists the kinds. The source address of a frame is in the client's network or
//! behind the server's, but belongs to no host: no kernel answers returned packets.
//! [`Books`] checks whether the box has counted every frame.

use crate::frames::{Ends, Sender};
use crate::network::{Network, ip};
use anyhow::{Context, Result, ensure};
use etherparse::PacketBuilder;
use holdfast_control::status::{Port, Status};
use holdfast_lab::{Namespace, link, programs, topology::HOST_DEVICE};
use holdfast_wire::checksum::Delta;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An address behind the server without a host, if the server's kernel drops packets to
/// its network.
pub const NOWHERE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 77);
/// An address of the NAT's pool.
const POOL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 33);
/// Number of sending hosts in the client's network; the client is none of them.
const HOSTS: u32 = 200;
/// Number of neighbours of the server that do not exist, and of others that send ARP
/// requests for the box.
const MISSING: u32 = 100;
/// Source ports of one host.
const PORTS: u32 = 60_000;

/// Offsets in a frame: Ethernet, IPv4 without options, and the header behind it.
mod at {
    pub(super) const ARP_SENDER: usize = 28;
    pub(super) const ARP_TARGET: usize = 38;
    pub(super) const IP: usize = 14;
    pub(super) const ID: usize = 18;
    pub(super) const FRAGMENT: usize = 20;
    pub(super) const IP_SUM: usize = 24;
    pub(super) const SOURCE: usize = 26;
    pub(super) const DESTINATION: usize = 30;
    pub(super) const L4: usize = 34;
    pub(super) const UDP_SUM: usize = 40;
    pub(super) const TCP_SUM: usize = 50;
    pub(super) const ICMP_SUM: usize = 36;
    pub(super) const ICMP_ID: usize = 38;
}

/// The kind of a flood's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// TCP SYNs, all from one source on each side.
    SynsOfOne,
    /// TCP SYNs from many sources.
    SynsOfMany,
    /// Datagrams, each of a flow of its own.
    Udp,
    /// First fragments of datagrams whose other fragments never come.
    FirstFragments,
    /// Later fragments of datagrams whose first fragments never come.
    LaterFragments,
    /// ICMP echo requests, half of them to the box itself.
    Pings,
    /// Datagrams whose time to live ends at the box.
    LastHop,
    /// ARP requests, half of them for the box.
    ArpRequests,
    /// From inside: datagrams to neighbours of the server that do not exist. From outside
    /// the same as [`Kind::Udp`].
    UnknownNeighbours,
    /// Datagrams from sources that are behind the other port.
    Spoofed,
}

/// All kinds.
pub const KINDS: [Kind; 10] = [
    Kind::SynsOfOne,
    Kind::SynsOfMany,
    Kind::Udp,
    Kind::FirstFragments,
    Kind::LaterFragments,
    Kind::Pings,
    Kind::LastHop,
    Kind::ArpRequests,
    Kind::UnknownNeighbours,
    Kind::Spoofed,
];

/// The side from which frames come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// From the client's device.
    Inside,
    /// From the server's device.
    Outside,
}

/// Both sides, in the order of the box's ports.
pub const BOTH: [Side; 2] = [Side::Inside, Side::Outside];

impl Side {
    /// The `number`th sending host of this side.
    fn host(self, number: u32) -> Ipv4Addr {
        match self {
            Side::Inside => Ipv4Addr::new(172, 20, 5, 20 + (number % HOSTS) as u8),
            // Behind the server, which is the box's default gateway.
            Side::Outside => {
                Ipv4Addr::from_bits(u32::from_be_bytes([203, 0, 0, 0]) | number & 0xffff)
            }
        }
    }

    /// A neighbour of the box on this side that sends ARP requests.
    fn neighbour(self, number: u32) -> Ipv4Addr {
        match self {
            Side::Inside => self.host(number),
            Side::Outside => Ipv4Addr::new(192, 0, 2, 100 + (number % 28) as u8),
        }
    }

    /// The box's address on this side.
    fn own(self) -> Ipv4Addr {
        match self {
            Side::Inside => Ipv4Addr::new(172, 20, 5, 1),
            Side::Outside => Ipv4Addr::new(192, 0, 2, 2),
        }
    }

    /// The destination of frames that go through the box, or would.
    fn target(self) -> Ipv4Addr {
        match self {
            Side::Inside => NOWHERE,
            Side::Outside => POOL,
        }
    }

    fn other(self) -> Side {
        match self {
            Side::Inside => Side::Outside,
            Side::Outside => Side::Inside,
        }
    }
}

/// Writes a word of a frame, and corrects the checksums that cover it.
fn put(frame: &mut [u8], at: usize, word: u16, sums: &[usize]) {
    let read = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let change = Delta::new().word(read(frame, at), word);
    frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
    for &sum in sums {
        let corrected = change.apply(read(frame, sum));
        frame[sum..sum + 2].copy_from_slice(&corrected.to_be_bytes());
    }
}

fn put_address(frame: &mut [u8], at: usize, address: Ipv4Addr, sums: &[usize]) {
    let [a, b, c, d] = address.octets();
    put(frame, at, u16::from_be_bytes([a, b]), sums);
    put(frame, at + 2, u16::from_be_bytes([c, d]), sums);
}

impl Kind {
    /// A frame of this kind from one side, as a template.
    fn frame(self, side: Side, from_mac: [u8; 6], to_mac: [u8; 6]) -> Vec<u8> {
        let source = if self == Kind::Spoofed { side.other() } else { side }.host(0);
        let ends = Ends { from_mac, to_mac, from: (source, 1024), to: (side.target(), 80) };
        let mut frame = match self {
            Kind::SynsOfOne | Kind::SynsOfMany => return ends.syn(),
            Kind::ArpRequests => {
                let [sender, target] =
                    [side.neighbour(0), side.own()].map(|address| address.octets());
                let head = [&[0xff; 6][..], &from_mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
                let arp = [&from_mac[..], &sender, &[0; 6], &target].concat();
                return [head, arp].concat();
            }
            Kind::Pings => {
                let builder = PacketBuilder::ethernet2(from_mac, to_mac).ipv4(
                    source.octets(),
                    side.target().octets(),
                    64,
                );
                let builder = builder.icmpv4_echo_request(0, 1);
                let mut frame = Vec::with_capacity(builder.size(16));
                builder.write(&mut frame, &[0; 16]).expect("a small message has lengths that fit");
                return frame;
            }
            _ => ends.udp(&[0; 24]),
        };
        // Without a checksum a datagram may be varied freely.
        frame[at::UDP_SUM..at::UDP_SUM + 2].fill(0);
        match self {
            // More fragments follow, and the datagram's length includes them.
            Kind::FirstFragments => {
                put(&mut frame, at::FRAGMENT, 0x2000, &[at::IP_SUM]);
                put(&mut frame, at::L4 + 4, 1504, &[]);
            }
            // The last fragment, behind 1480 bytes.
            Kind::LaterFragments => put(&mut frame, at::FRAGMENT, 1480 / 8, &[at::IP_SUM]),
            Kind::LastHop => {
                let protocol = u16::from(frame[at::IP + 9]);
                put(&mut frame, at::IP + 8, 1 << 8 | protocol, &[at::IP_SUM]);
            }
            _ => {}
        }
        frame
    }

    /// Makes the template the flood's frame with this number.
    fn vary(self, side: Side, number: u32, frame: &mut [u8]) {
        let (ip, tcp) = ([at::IP_SUM], [at::IP_SUM, at::TCP_SUM]);
        let port = |number: u32| 1024 + (number % PORTS) as u16;
        match self {
            Kind::SynsOfOne => {
                put(frame, at::L4, port(number), &tcp[1..]);
                // Each pass over all ports has another destination host.
                put_address(
                    frame,
                    at::DESTINATION,
                    Ipv4Addr::from_bits(side.target().to_bits() + number / PORTS % 4),
                    &tcp,
                );
            }
            Kind::SynsOfMany => {
                put_address(frame, at::SOURCE, side.host(number), &tcp);
                put(frame, at::L4, port(number / HOSTS), &tcp[1..]);
            }
            Kind::Udp | Kind::LastHop => {
                put_address(frame, at::SOURCE, side.host(number), &ip);
                put(frame, at::L4, port(number / HOSTS), &[]);
            }
            Kind::FirstFragments | Kind::LaterFragments => {
                put_address(frame, at::SOURCE, side.host(number), &ip);
                put(frame, at::ID, (number / HOSTS) as u16, &ip);
                if self == Kind::FirstFragments {
                    put(frame, at::L4, port(number / HOSTS), &[]);
                }
            }
            Kind::Pings => {
                let to = if number.is_multiple_of(2) { side.own() } else { side.target() };
                put_address(frame, at::SOURCE, side.host(number / 2), &ip);
                put_address(frame, at::DESTINATION, to, &ip);
                put(frame, at::ICMP_ID, (number / HOSTS) as u16, &[at::ICMP_SUM]);
            }
            Kind::ArpRequests => {
                let target =
                    if number.is_multiple_of(2) { side.own() } else { side.neighbour(number + 1) };
                put_address(frame, at::ARP_SENDER, side.neighbour(number / 2), &[]);
                put_address(frame, at::ARP_TARGET, target, &[]);
            }
            Kind::UnknownNeighbours => {
                put_address(frame, at::SOURCE, side.host(number), &ip);
                put(frame, at::L4, port(number / HOSTS), &[]);
                if side == Side::Inside {
                    put_address(
                        frame,
                        at::DESTINATION,
                        Ipv4Addr::new(192, 0, 2, 130 + (number % MISSING) as u8),
                        &ip,
                    );
                }
            }
            Kind::Spoofed => {
                put_address(frame, at::SOURCE, side.other().host(number), &ip);
                put(frame, at::L4, port(number / HOSTS), &[]);
            }
        }
    }
}

/// A device from which a flood comes.
#[derive(Debug)]
struct Source {
    side: Side,
    sender: Sender,
    from_mac: [u8; 6],
    to_mac: [u8; 6],
}

/// Counts of the frames that a side has sent.
#[derive(Debug, Default)]
struct Sent {
    /// Frames that the kernel took.
    taken: AtomicU64,
    /// Frames for which the wire had no room.
    refused: AtomicU64,
}

/// A flood's stop flag, and the counts of frames sent.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    sent: [Sent; 2],
}

/// A flood that goes on until it is stopped.
#[derive(Debug)]
pub struct Torrent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<nix::Result<()>>>,
}

/// A sender that was delayed for longer than this omits the frames that were due.
const LATE: Duration = Duration::from_millis(4);
/// Time between two bursts.
const PAUSE: Duration = Duration::from_micros(500);

impl Torrent {
    /// Begins a flood at this rate in frames per second, all sides together, or as fast
    /// as one sender can. `first` is the number of its first frame.
    pub fn start(
        network: &Network,
        kind: Kind,
        sides: &[Side],
        rate: Option<u64>,
        first: u32,
    ) -> Result<Torrent> {
        let source = |side: Side| -> Result<Source> {
            let namespace = match side {
                Side::Inside => &network.topology.client,
                Side::Outside => &network.topology.server,
            };
            let gateway = &side.own().to_string();
            programs::ping(namespace, ip(gateway), 1, 56, Duration::from_millis(10))?;
            Ok(Source {
                side,
                sender: Sender::open(namespace, HOST_DEVICE)?,
                from_mac: link::mac(namespace, HOST_DEVICE)?,
                to_mac: link::neighbour(namespace, gateway)?,
            })
        };
        let sources = sides.iter().map(|side| source(*side)).collect::<Result<Vec<Source>>>()?;
        let shared = Arc::new(Shared { stop: AtomicBool::new(false), sent: Default::default() });
        let theirs = Arc::clone(&shared);
        let pour = move || pour(kind, rate, first, &sources, &theirs);
        let thread = std::thread::Builder::new().name("flood".into()).spawn(pour)?;
        Ok(Torrent { shared, thread: Some(thread) })
    }

    /// Ends the flood. Returns the frames that each side's wire has taken and refused.
    ///
    /// # Errors
    /// A device refused a frame for another reason than that it was full.
    pub fn stop(mut self) -> Result<[(u64, u64); 2]> {
        let ended = self.end();
        ensure!(matches!(ended, Some(Ok(Ok(())))), "the flood ended by itself: {ended:?}");
        Ok([0, 1].map(|side| {
            let Sent { taken, refused } = &self.shared.sent[side];
            (taken.load(Ordering::Relaxed), refused.load(Ordering::Relaxed))
        }))
    }

    /// Ends the thread, once. Returns how it ended.
    fn end(&mut self) -> Option<std::thread::Result<nix::Result<()>>> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take()?;
        thread.thread().unpark();
        Some(thread.join())
    }
}

impl Drop for Torrent {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn pour(
    kind: Kind,
    rate: Option<u64>,
    first: u32,
    sources: &[Source],
    shared: &Shared,
) -> nix::Result<()> {
    let frame = |source: &Source| kind.frame(source.side, source.from_mac, source.to_mac);
    let (mut frames, sides) =
        (sources.iter().map(frame).collect::<Vec<Vec<u8>>>(), sources.len() as u32);
    let (mut number, mut last) = (first, Instant::now());
    // Billionths of a frame that are due.
    let mut due = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let frames_due = match rate {
            Some(rate) => {
                let now = Instant::now();
                due += (now - last).min(LATE).as_nanos() as u64 * rate;
                last = now;
                let whole = due / 1_000_000_000;
                due %= 1_000_000_000;
                whole
            }
            None => 64,
        };
        for _ in 0..frames_due {
            let at = (number % sides) as usize;
            let (Source { side, sender, .. }, frame) = (&sources[at], &mut frames[at]);
            kind.vary(*side, number / sides, frame);
            number = number.wrapping_add(1);
            let sent = &shared.sent[*side as usize];
            match sender.send(frame) {
                Ok(()) => sent.taken.fetch_add(1, Ordering::Relaxed),
                Err(nix::errno::Errno::ENOBUFS | nix::errno::Errno::EAGAIN) => {
                    sent.refused.fetch_add(1, Ordering::Relaxed)
                }
                Err(error) => return Err(error),
            };
        }
        if rate.is_some() {
            // The sender waits until more frames are due, or the flood is stopped.
            std::thread::park_timeout(PAUSE);
        }
    }
    Ok(())
}

/// Counts of packets and frames that a host has sent.
#[derive(Debug, Clone, Copy)]
struct Host {
    /// IP packets that its kernel has sent by itself. A TCP packet may be several frames.
    own: u64,
    /// Frames on its wire.
    frames: u64,
}

impl Host {
    fn of(namespace: &Namespace) -> Result<Host> {
        let read = |file: &'static str| {
            namespace
                .enter(move || std::fs::read_to_string(format!("/proc/thread-self/net/{file}")))
        };
        let (snmp, dev) = (read("snmp")??, read("dev")??);
        let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Ip: "));
        let (names, values) = (lines.next().context("names")?, lines.next().context("values")?);
        let mut pairs = names.split(' ').zip(values.split(' '));
        let (_, own) = pairs
            .find(|(name, _)| *name == "OutRequests")
            .context("the kernel counts what it sends")?;
        let mut devices = dev.lines().filter_map(|line| line.trim().split_once(':'));
        let (_, counters) =
            devices.find(|(name, _)| *name == HOST_DEVICE).context("the device has counters")?;
        // Eight counters of received frames, then bytes and packets of sent ones.
        let frames = counters.split_whitespace().nth(9).context("frames that were sent")?;
        Ok(Host { own: own.parse()?, frames: frames.parse()? })
    }
}

/// The counters of the box and of the hosts beside it, at one time.
#[derive(Debug, Clone)]
pub struct Books {
    status: Status,
    /// Client and server.
    hosts: [Host; 2],
}

impl Books {
    /// Reads the counters.
    pub fn open(network: &Network) -> Result<Books> {
        let hosts = [Host::of(&network.topology.client)?, Host::of(&network.topology.server)?];
        Ok(Books { status: network.running.status()?, hosts })
    }

    /// Frames that the box has handled since then, without those for which it had no room
    /// inside.
    pub fn handled(&self, since: &Books) -> u64 {
        let received: u64 = self.status.ports.iter().map(|port| port.received).sum();
        let before: u64 = since.status.ports.iter().map(|port| port.received).sum();
        let crowded = ["queue_full", "arena_empty", "held_overflow", "parked_overflow", "log_full"];
        let crowded =
            |status: &Status| crowded.iter().map(|reason| status.dropped(reason)).sum::<u64>();
        (received - before).saturating_sub(crowded(&self.status) - crowded(&since.status))
    }

    /// The status at that time.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Checks that each frame sent since then is in one counter, with a tolerance of one
    /// in a hundred. `flood` has the frames of a flood that each side's wires took and
    /// refused; the kernels' frames are added.
    ///
    /// # Errors
    /// Frames are in no counter, or in two.
    pub fn balance(&self, since: &Books, flood: [(u64, u64); 2]) -> Result<()> {
        let (now, then) = (&self.status, &since.status);
        let mut all = 0;
        for (side, (taken, refused)) in flood.into_iter().enumerate() {
            let (port, before) = (&now.ports[side], &then.ports[side]);
            let (host, host_before) = (self.hosts[side], since.hosts[side]);
            let (came, frames, own) = (
                at_device(port) - at_device(before),
                host.frames - host_before.frames,
                host.own - host_before.own,
            );
            let slack = taken / 100 + 40;
            ensure!(
                frames + slack >= taken + own,
                "{taken} frames of a flood and {own} packets of the kernel are {frames} frames on the wire to port {}",
                port.name
            );
            // A frame that was refused may have been counted by a device that had no room
            // for it.
            ensure!(
                (frames.saturating_sub(slack)..=frames + refused + slack).contains(&came),
                "{frames} frames came to port {}, {taken} of a flood that tried {refused} more, and {came} are counted: {before:?}, then {port:?}",
                port.name
            );
            all += taken;
        }
        let received = |status: &Status| {
            status.ports.iter().map(|port| port.received + port.originated).sum::<u64>()
        };
        let (came, became) = (received(now) - received(then), settled(now) - settled(then));
        ensure!(
            came.abs_diff(became) <= all / 100 + 40,
            "of {came} frames that were received or originated {became} are counted as something: {:?} {:?}, then {:?} {:?}",
            then.ports,
            then.drops,
            now.ports,
            now.drops
        );
        Ok(())
    }
}

/// Frames that came to a port's device.
fn at_device(port: &Port) -> u64 {
    let lost = port.lost.iter().filter(|(name, _)| !name.starts_with("device_tx"));
    port.received
        + lost.map(|(_, count)| count).sum::<u64>()
        + port.drops.get("frame_too_large").copied().unwrap_or(0)
}

/// Frames that the box has finished with: consumed, forwarded or dropped.
fn settled(status: &Status) -> u64 {
    let of_ports: u64 = status.ports.iter().flat_map(|port| port.drops.values()).sum();
    status.ports.iter().map(|port| port.consumed + port.forwarded).sum::<u64>()
        + status.drops.values().sum::<u64>()
        - of_ports
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{CLIENT, SERVER};
    use holdfast_wire::checksum;
    use std::collections::BTreeSet;

    /// Varied frames have good checksums, and no two are alike within the size of a
    /// table.
    #[test]
    fn frames_differ_and_are_sound() {
        for kind in KINDS {
            for side in BOTH {
                let mut frame = kind.frame(side, [2; 6], [4; 6]);
                let mut seen = BTreeSet::new();
                for number in 0..70_000 {
                    kind.vary(side, number, &mut frame);
                    if !seen.contains(&frame) {
                        seen.insert(frame.clone());
                    }
                    if kind == Kind::ArpRequests || !number.is_multiple_of(997) {
                        continue;
                    }
                    assert_eq!(checksum::checksum(&frame[at::IP..at::L4]), 0, "{kind:?}");
                    let (from, to) =
                        (&frame[at::SOURCE..at::DESTINATION], &frame[at::DESTINATION..at::L4]);
                    let sum = match frame[at::IP + 9] {
                        6 => checksum::transport(from, to, 6, &frame[at::L4..]),
                        1 => checksum::checksum(&frame[at::L4..]),
                        _ => u16::from_be_bytes([frame[at::UDP_SUM], frame[at::UDP_SUM + 1]]),
                    };
                    assert_eq!(sum, 0, "{kind:?}");
                    let hosts =
                        [CLIENT, SERVER].map(|host| host.parse::<Ipv4Addr>().unwrap().octets());
                    assert!(hosts.iter().all(|host| host != from && host != to), "{kind:?}");
                }
                let least = if kind == Kind::ArpRequests { 50 } else { 65_536 };
                assert!(seen.len() >= least, "{kind:?}: {}", seen.len());
            }
        }
    }
}
