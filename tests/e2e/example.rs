//! The first configuration of README.md, unchanged, between two sides that send every
//! kind of packet.
//!
//! No packet with an inside address leaves by the outside port, and no packet comes in
//! that no rule allows. Wanted traffic works before and after.

use anyhow::{Context, Result, ensure};
use etherparse::{IcmpEchoHeader, Icmpv4Type, PacketBuilder};
use holdfast_lab::link::{self, Offloads};
use holdfast_lab::requirements::PING;
use holdfast_lab::running::RunningBox;
use holdfast_lab::topology::{Addresses, HOST_DEVICE, Topology};
use holdfast_lab::{Interrupt, Lab, Namespace, programs, until, until_every};
use holdfast_tests::flood::{self, Way};
use holdfast_tests::frames::{Listener, Sender};
use holdfast_tests::network::{PATIENT, ip};
use holdfast_tests::ping::Ping;
use holdfast_tests::runner::{Test, light};
use holdfast_tests::sockets::{accepted, begin, exchange, listen, opened};
use holdfast_tests::{TIMEOUT, binary};
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Test> {
    vec![light(
        "nothing_leaves_untranslated_and_nothing_uninvited_comes_in",
        10,
        &[PING],
        both_sides_send_everything,
    )]
}

/// The addresses of the configuration: the box inside and outside, the host with the
/// published service, another one, and the host outside.
const BOX: [&str; 2] = ["10.0.0.1", "198.51.100.1"];
const BOX_SIX: [&str; 2] = ["2001:db8:a::1", "2001:db8:b::1"];
const SERVICE: &str = "10.0.0.9";
const HOST: &str = "10.0.0.2";
const HOST_SIX: &str = "2001:db8:a::2";
const OUTSIDE: &str = "198.51.100.254";
const OUTSIDE_SIX: &str = "2001:db8:b::fe";
const POOL: [&str; 2] = ["198.51.100.4", "198.51.100.5"];
/// Addresses of a host behind the gateway.
const FOREIGN: &str = "203.0.113.7";
const FOREIGN_SIX: &str = "2001:db8:c::7";
/// Addresses that belong to no host, or not to a single one.
const STRANGE: &[&str] = &[
    "0.0.0.0",
    "127.0.0.1",
    "169.254.1.1",
    "192.168.1.1",
    "224.0.0.1",
    "239.1.2.3",
    "240.0.0.1",
    "255.255.255.255",
    "10.0.0.255",
    "198.51.100.255",
];
const STRANGE_SIX: &[&str] = &[
    "::",
    "::1",
    "::ffff:10.0.0.9",
    "fe80::1",
    "fd00::1",
    "ff02::1",
    "ff05::2",
    "64:ff9b::10.0.0.9",
];

/// The first configuration of README.md.
fn configuration() -> Result<String> {
    let readme = include_str!("../../README.md");
    let text = readme
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .context("README.md has a configuration")?;
    Ok(format!("{text}{PATIENT}"))
}

fn both_sides_send_everything(interrupt: &Interrupt) -> Result<()> {
    let mut lab = Lab::new(interrupt.clone())?;
    let addresses = Addresses {
        client: format!("{HOST}/24"),
        inside_gateway: BOX[0].to_owned(),
        servers: vec![format!("{OUTSIDE}/24")],
        behind_box: Vec::new(),
        devices: ("veth-in".to_owned(), "veth-out".to_owned()),
        offloads: Offloads::Off,
    };
    let topology = Topology::build(&mut lab, &addresses)?;
    let (inside, outside) = (&topology.client, &topology.server);
    for (namespace, address) in [
        (inside, format!("{SERVICE}/24")),
        (inside, format!("{HOST_SIX}/64")),
        (outside, format!("{OUTSIDE_SIX}/64")),
    ] {
        link::address(namespace, HOST_DEVICE, &address)?;
    }
    inside.ip(&format!("-6 route add default via {}", BOX_SIX[0]))?;
    // The outside host could answer a packet that comes out untranslated.
    outside.ip(&format!("route add 10.0.0.0/24 via {}", BOX[1]))?;
    outside.ip(&format!("-6 route add 2001:db8:a::/64 via {}", BOX_SIX[1]))?;
    let mut running = RunningBox::start(&lab, &topology.router, &binary()?, &configuration()?)?;
    let wanted = Wanted { inside, outside, interrupt };
    wanted.works().context("before")?;

    let inner = Side::new(inside, BOX[0], HOST, interrupt)?;
    let outer = Side::new(outside, BOX[1], OUTSIDE, interrupt)?;
    wanted.settle()?;
    inner.seen()?;
    outer.send(&from_outside(&outer)).context("from outside")?;
    wanted.settle()?;
    let came_in = inner.seen()?;
    ensure!(
        came_in.iter().any(Seen::is_transit),
        "nothing has come in, not even to the published service"
    );
    refuse(&came_in, "came in", |seen| {
        seen.is_resolution() || (seen.is_tcp_to(443) && seen.to == ip(SERVICE))
    })?;
    let went_out = outer.seen()?;
    refuse(&went_out, "went out for what came from outside", |seen| {
        !seen.is_transit() && !is_inside(seen.from)
    })?;

    inner.send(&from_inside(&inner)).context("from inside")?;
    wanted.settle()?;
    let went_out = outer.seen()?;
    ensure!(
        went_out.iter().any(Seen::is_transit),
        "nothing has gone out, not even what is allowed"
    );
    refuse(&went_out, "went out", |seen| match seen.from {
        _ if !seen.is_transit() => !is_inside(seen.from),
        IpAddr::V4(_) => POOL.map(ip).contains(&seen.from) && seen.is_allowed(),
        IpAddr::V6(_) => seen.from == ip(HOST_SIX) && seen.is_allowed(),
    })?;
    let came_back = inner.seen()?;
    refuse(&came_back, "came back in", |seen| {
        !seen.is_transit() || (POOL.map(ip).contains(&seen.from) && seen.is_allowed())
    })?;

    wanted.works().context("after")?;
    let status = running.stop(TIMEOUT, interrupt)?;
    ensure!(status.success(), "SIGTERM ended the box with {status}");
    Ok(())
}

fn is_inside(address: IpAddr) -> bool {
    address.to_string().starts_with("10.0.0.")
}

/// The traffic that the configuration is for.
struct Wanted<'a> {
    inside: &'a Namespace,
    outside: &'a Namespace,
    interrupt: &'a Interrupt,
}

/// Identifiers of the pings behind which no other packet is on its way through the box.
const SETTLING: std::ops::Range<u16> = 0x6000..0x6040;

impl Wanted<'_> {
    /// Waits until each runtime has handled its packets: some ping goes through every
    /// runtime.
    fn settle(&self) -> Result<()> {
        let mut ping = Ping::from(self.inside, HOST.parse()?, OUTSIDE.parse()?)?;
        until("pings are answered", TIMEOUT, self.interrupt, || {
            Ok((ping.ask(SETTLING, Duration::from_secs(2))?.len() == SETTLING.len()).then_some(()))
        })
    }

    fn works(&self) -> Result<()> {
        let (inside, outside) = (self.inside, self.outside);
        for (server, host, gateway) in
            [(OUTSIDE, HOST, BOX[0]), (OUTSIDE_SIX, HOST_SIX, BOX_SIX[0])]
        {
            self.connects(inside, (ip(host), outside), (server, 80), (server, 80))
                .with_context(|| format!("TCP to {server}"))?;
            self.asks(ip(host), ip(server)).with_context(|| format!("UDP to {server}"))?;
            for target in [server, gateway] {
                until("a ping is answered", TIMEOUT, self.interrupt, || {
                    let pings =
                        programs::ping(inside, ip(target), 1, 56, Duration::from_millis(10))?;
                    Ok((pings.received > 0).then_some(()))
                })
                .with_context(|| format!("to {target}"))?;
            }
        }
        let published = (POOL[0], 443);
        self.connects(outside, (ip(OUTSIDE), inside), published, (SERVICE, 443))
            .context("the published service")?;
        self.connects(inside, (ip(HOST), inside), published, (SERVICE, 443))
            .context("the published service from inside")
    }

    /// Opens a connection from an address in one namespace to a listener in another.
    fn connects(
        &self,
        from: &Namespace,
        (own, at): (IpAddr, &Namespace),
        to: (&str, u16),
        server: (&str, u16),
    ) -> Result<()> {
        let listener = listen(at, (ip(server.0), server.1).into())?;
        let opener = begin(from, (own, 0).into(), (ip(to.0), to.1).into())?;
        opened(&opener, self.interrupt)?;
        let acceptor = accepted(&listener, self.interrupt)?;
        exchange(&opener, &acceptor)?;
        let peer = acceptor.peer_addr()?.ip();
        ensure!(!own.is_ipv4() || !is_inside(peer), "the server sees {peer}");
        Ok(())
    }

    /// Sends a question and its answer, like a name server's.
    fn asks(&self, host: IpAddr, server: IpAddr) -> Result<()> {
        let names = self.outside.enter(|| UdpSocket::bind((server, 53)))??;
        let asker = self.inside.enter(|| UdpSocket::bind((host, 0)))??;
        names.set_read_timeout(Some(TIMEOUT))?;
        asker.set_read_timeout(Some(TIMEOUT))?;
        asker.send_to(b"who", (server, 53))?;
        let (_, peer) = names.recv_from(&mut [0; 16])?;
        ensure!(!is_inside(peer.ip()), "the server sees {peer}");
        names.send_to(b"me", peer)?;
        ensure!(
            asker.recv_from(&mut [0; 16])?.1 == SocketAddr::from((server, 53)),
            "somebody else answers"
        );
        Ok(())
    }
}

/// Every frame that the outside host sends: all kinds from its legal sources and an
/// inside host to the relevant destinations, and a few kinds from and to all addresses.
fn from_outside(side: &Side<'_>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let four = (
        [OUTSIDE, FOREIGN, HOST, POOL[1], BOX[1], BOX[0]],
        [SERVICE, HOST, POOL[0], POOL[1], BOX[1], BOX[0]],
        STRANGE,
        SERVICE,
    );
    let six = (
        [OUTSIDE_SIX, FOREIGN_SIX, HOST_SIX, BOX_SIX[1], BOX_SIX[0], "2001:db8:a::77"],
        [HOST_SIX, "2001:db8:a::77", BOX_SIX[0], BOX_SIX[1], "2001:db8:a::", FOREIGN_SIX],
        STRANGE_SIX,
        HOST_SIX,
    );
    for (sources, destinations, strange, inner) in [four, six] {
        for source in &sources[..3] {
            frames.extend(
                destinations[..4].iter().flat_map(|to| side.way(source, to).all(ip(inner))),
            );
        }
        frames.extend(
            side.some(&[&sources[..], strange].concat(), &[&destinations[..], strange].concat()),
        );
    }
    frames
}

/// The same from an inside host.
fn from_inside(side: &Side<'_>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let four = (
        [HOST, "192.168.1.1", FOREIGN, POOL[1], BOX[1], BOX[0]],
        [OUTSIDE, POOL[0], FOREIGN, POOL[1], BOX[1], BOX[0]],
        STRANGE,
        HOST,
    );
    let six = (
        [HOST_SIX, FOREIGN_SIX, OUTSIDE_SIX, BOX_SIX[1], BOX_SIX[0], "fd00::2"],
        [OUTSIDE_SIX, FOREIGN_SIX, BOX_SIX[1], BOX_SIX[0], "2001:db8:b::", "2001:db8:a::77"],
        STRANGE_SIX,
        HOST_SIX,
    );
    for (sources, destinations, strange, inner) in [four, six] {
        for source in &sources[..3] {
            frames.extend(
                destinations[..3].iter().flat_map(|to| side.way(source, to).all(ip(inner))),
            );
        }
        frames.extend(
            side.some(&[&sources[..], strange].concat(), &[&destinations[..], strange].concat()),
        );
    }
    frames
}

/// A side of the box.
struct Side<'a> {
    sender: Sender,
    listener: Listener,
    own: &'static str,
    own_mac: [u8; 6],
    box_address: &'static str,
    box_mac: [u8; 6],
    /// Frames that have come from the box.
    came: RefCell<Vec<Seen>>,
    pings: Cell<u16>,
    interrupt: &'a Interrupt,
}

impl<'a> Side<'a> {
    fn new(
        namespace: &Namespace,
        box_address: &'static str,
        own: &'static str,
        interrupt: &'a Interrupt,
    ) -> Result<Side<'a>> {
        programs::ping(namespace, ip(box_address), 1, 56, Duration::from_millis(10))?;
        let (sender, listener) =
            (Sender::open(namespace, HOST_DEVICE)?, Listener::open(namespace, HOST_DEVICE)?);
        let (own_mac, box_mac) =
            (link::mac(namespace, HOST_DEVICE)?, link::neighbour(namespace, box_address)?);
        let came = RefCell::default();
        Ok(Side {
            sender,
            listener,
            own,
            own_mac,
            box_address,
            box_mac,
            came,
            pings: Cell::new(0),
            interrupt,
        })
    }

    fn way(&self, from: &str, to: &str) -> Way {
        Way { from_mac: self.own_mac, to_mac: self.box_mac, from: ip(from), to: ip(to) }
    }

    /// A few frames from each source to each destination, to the box's MAC address and to
    /// the broadcast address.
    fn some(&self, sources: &[&str], destinations: &[&str]) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for source in sources {
            for destination in destinations {
                let way = self.way(source, destination);
                frames.extend(way.some());
                frames.extend(Way { to_mac: [0xff; 6], ..way }.some());
            }
        }
        frames
    }

    /// Sends these frames, no faster than the box takes them in: the box must answer a
    /// ping after every few.
    fn send(&self, frames: &[Vec<u8>]) -> Result<()> {
        self.seen()?;
        for few in frames.chunks(64) {
            few.iter().try_for_each(|frame| self.sender.send(frame)).context("sending a frame")?;
            self.wait_for_box()?;
        }
        Ok(())
    }

    fn wait_for_box(&self) -> Result<()> {
        let sequence = self.pings.replace(self.pings.get() + 1);
        let echo = Icmpv4Type::EchoRequest(IcmpEchoHeader { id: 0x7777, seq: sequence });
        let [from, to]: [Ipv4Addr; 2] = [self.own.parse()?, self.box_address.parse()?];
        let builder = PacketBuilder::ethernet2(self.own_mac, self.box_mac)
            .ipv4(from.octets(), to.octets(), 64)
            .icmpv4(echo);
        let mut request = Vec::new();
        builder.write(&mut request, &[])?;
        let mut sent = None;
        until_every(
            Duration::from_micros(100),
            "the box answers a ping",
            TIMEOUT,
            self.interrupt,
            || {
                // On a busy machine a ring may be full.
                if sent.is_none_or(|sent: Instant| sent.elapsed() > Duration::from_millis(200)) {
                    self.sender.send(&request)?;
                    sent = Some(Instant::now());
                }
                self.look()?;
                let came = self.came.borrow();
                Ok(came
                    .iter()
                    .rev()
                    .take_while(|seen| seen.echo != Some((0x7777, sequence.wrapping_sub(1))))
                    .any(|seen| seen.echo == Some((0x7777, sequence)))
                    .then_some(()))
            },
        )
    }

    fn look(&self) -> Result<()> {
        while let Some(frame) = self.listener.receive()? {
            if frame[6..12] == self.box_mac {
                self.came.borrow_mut().push(Seen::read(&frame));
            }
        }
        Ok(())
    }

    /// Frames that have come from the box since the last call.
    fn seen(&self) -> Result<Vec<Seen>> {
        self.look()?;
        Ok(self.came.take())
    }
}

/// The fields of a frame from the box that the test checks.
#[derive(Debug, Clone)]
struct Seen {
    ether_type: u16,
    ttl: u8,
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    /// The first four bytes behind the IP header and an extension header, if the frame is
    /// a packet's beginning.
    first: Option<[u8; 4]>,
    /// Identifier and sequence number of an echo reply over IPv4.
    echo: Option<(u16, u16)>,
    frame: Vec<u8>,
}

impl Seen {
    fn read(frame: &[u8]) -> Seen {
        let nobody = IpAddr::from([0; 4]);
        let ether_type = u16::from_be_bytes([frame[12], frame[13]]);
        let mut seen = Seen {
            ether_type,
            ttl: 0,
            from: nobody,
            to: nobody,
            protocol: 0,
            first: None,
            echo: None,
            frame: frame.to_vec(),
        };
        let bytes = |at: usize| -> Option<[u8; 4]> {
            frame.get(at..at + 4).and_then(|bytes| bytes.try_into().ok())
        };
        match ether_type {
            0x0800 if frame.len() >= 34 => {
                let address = |at: usize| {
                    IpAddr::from([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
                };
                (seen.ttl, seen.protocol, seen.from, seen.to) =
                    (frame[22], frame[23], address(26), address(30));
                let behind = 14 + 4 * usize::from(frame[14] & 15);
                let is_first = u16::from_be_bytes([frame[20], frame[21]]) & 0x1fff == 0;
                seen.first = bytes(behind).filter(|_| is_first);
                let is_reply = seen.protocol == 1 && seen.first.is_some_and(|first| first[0] == 0);
                seen.echo = bytes(behind + 4)
                    .filter(|_| is_reply)
                    .map(|[a, b, c, d]| (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])));
            }
            0x86dd if frame.len() >= 54 => {
                let address = |at: usize| {
                    frame[at..at + 16]
                        .try_into()
                        .map(|bytes: [u8; 16]| IpAddr::from(bytes))
                        .unwrap_or(nobody)
                };
                (seen.protocol, seen.ttl, seen.from, seen.to) =
                    (frame[20], frame[21], address(22), address(38));
                seen.first = bytes(54);
                // Behind a fragment header, options or a route, the next header tells the
                // protocol. The box refuses routes of known types.
                let [next, len, kind, ..] = seen.first.unwrap_or_default();
                let is_refused = seen.protocol == 43 && matches!(kind, 0 | 2 | 3 | 4);
                if matches!(seen.protocol, 0 | 43 | 44 | 60) && !is_refused {
                    let is_first = seen.protocol != 44
                        || u16::from_be_bytes([frame[56], frame[57]]) & 0xfff8 == 0;
                    let behind = if seen.protocol == 44 { 62 } else { 62 + 8 * usize::from(len) };
                    (seen.protocol, seen.first) = (next, bytes(behind).filter(|_| is_first));
                }
            }
            _ => {}
        }
        seen
    }

    /// True if the frame is one that the test sent.
    fn is_transit(&self) -> bool {
        self.ttl == flood::TTL - 1
    }

    /// True for ARP, or neighbour discovery that does not leave the link.
    fn is_resolution(&self) -> bool {
        let is_neighbour =
            self.protocol == 58 && self.ttl == 255 && matches!(self.first, Some([135 | 136, ..]));
        self.ether_type == 0x0806 || is_neighbour
    }

    fn is_tcp_to(&self, port: u16) -> bool {
        self.protocol == 6
            && self.first.is_some_and(|first| u16::from_be_bytes([first[2], first[3]]) == port)
    }

    /// True if the configuration's rules let the packet out. A later fragment is judged
    /// with its datagram.
    fn is_allowed(&self) -> bool {
        let port = self.first.map(|first| u16::from_be_bytes([first[2], first[3]]));
        match self.protocol {
            6 => port.is_none_or(|port| [53, 80, 443].contains(&port)),
            17 => port.is_none_or(|port| [53, 123, 443].contains(&port)),
            1 => self.first.is_none_or(|first| first[0] == 8),
            58 => self.first.is_none_or(|first| first[0] == 128),
            _ => false,
        }
    }
}

/// Fails if there is a frame that may not be there.
fn refuse(seen: &[Seen], what: &str, may_be: impl Fn(&Seen) -> bool) -> Result<()> {
    let wrong: Vec<&Seen> = seen
        .iter()
        .filter(|seen| seen.echo.is_none_or(|(id, _)| !SETTLING.contains(&id)) && !may_be(seen))
        .collect();
    let few: Vec<String> = wrong
        .iter()
        .take(5)
        .map(|seen| format!("{} > {}: {:02x?}", seen.from, seen.to, seen.frame))
        .collect();
    ensure!(
        wrong.is_empty(),
        "{} frames {what} that must not, as\n{}",
        wrong.len(),
        few.join("\n")
    );
    Ok(())
}
