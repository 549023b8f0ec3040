//! The cases of TCP and ICMP that the functions' scenarios name, played by two Linux
//! kernels through a box: firewall, NAT, and both.
//!
//! Theory of operation. A case brings its ends to the critical point and returns the rest
//! of itself. All cases are played beside each other, each with ports of its own. All are
//! then begun again, every runtime is killed, and all are finished right behind the last
//! kill. Raw frames beside a kernel supply segments that it would not send by itself;
//! segments that it must not see yet are held before it. Two hosts are outside, the first
//! of which is a router with a small MTU towards the second.

mod icmp;
mod tcp;

use anyhow::{Context, Result, anyhow, bail};
use holdfast_lab::link::{self, Offloads};
use holdfast_lab::process::signal_pid;
use holdfast_lab::requirements::{NFT, TRACEROUTE};
use holdfast_lab::running::Victim;
use holdfast_lab::topology::HOST_DEVICE;
use holdfast_lab::{Interrupt, Namespace, programs, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::frames::{self, End, Ends, Listener, Segment, Sender};
use holdfast_tests::network::{
    CLIENT, Chain, INSIDE, Network, Options, PATIENT, POOL, RECOVERY_LIMIT, SERVER, SIX, ip,
};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::sockets::{Held, accepted, begin, exchange, listen, opened};
use rustix::process::Signal;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("cases_through_a_firewall", 8, &[NFT, TRACEROUTE], |interrupt| {
            play(Functions { firewall: true, nat: false }, interrupt)
        }),
        light("cases_through_a_nat", 8, &[NFT, TRACEROUTE], |interrupt| {
            play(Functions { firewall: false, nat: true }, interrupt)
        }),
        light("cases_through_firewall_and_nat", 8, &[NFT, TRACEROUTE], |interrupt| {
            play(Functions { firewall: true, nat: true }, interrupt)
        }),
    ]
}

/// The rest of a case.
type Rest<'a> = Box<dyn FnOnce() -> Result<()> + Send + 'a>;
type Case = for<'a> fn(&'a Stage<'a>) -> Result<Rest<'a>>;

const CASES: &[(&str, Case)] = &[
    ("simultaneous open", tcp::simultaneous_open),
    ("another SYN on an unanswered flow", tcp::another_syn),
    ("two answers", tcp::two_answers),
    ("SYN cookies", tcp::cookies),
    ("a closed port", tcp::closed_port),
    ("a crashed client connects again", tcp::crashed_client),
    ("a crashed server resets", tcp::crashed_server),
    ("TIME-WAIT and a newer SYN", tcp::time_wait),
    ("TIME-WAIT and a lower SYN with a later time", |stage| tcp::lower_syn(stage, true)),
    ("TIME-WAIT and a lower SYN", |stage| tcp::lower_syn(stage, false)),
    ("resets that are not exact", tcp::inexact_resets),
    ("blind segments", tcp::blind_segments),
    ("pings of each other", icmp::pings_of_each_other),
    ("requests and redirects for replies", icmp::poseurs),
    ("traceroute", icmp::traceroute),
    ("path MTU", |stage| icmp::path_mtu(stage, CLIENT, FAR)),
    ("path MTU, IPv6", |stage| icmp::path_mtu(stage, SIX[0], FAR_SIX)),
    ("port unreachable", |stage| icmp::port_unreachable(stage, CLIENT, SERVER)),
    ("port unreachable, IPv6", |stage| icmp::port_unreachable(stage, SIX[0], SIX[3])),
];

/// An inside host that outsiders may ping, and its translated address.
const PINGED: &str = "172.20.5.11";
const PUBLISHED: &str = "192.0.2.48";
/// The host behind the router, and the router there.
const FAR: &str = "203.0.113.9";
const FAR_SIX: &str = "2001:db8:9::9";
const SMALL_MTU: &str = "1300";

/// The functions of the IPv4 chain. The IPv6 chain is a firewall.
#[derive(Debug, Clone, Copy)]
struct Functions {
    firewall: bool,
    nat: bool,
}

impl Functions {
    fn pinged(self) -> &'static str {
        if self.nat { PUBLISHED } else { PINGED }
    }

    fn configuration(self) -> String {
        let rules = format!(
            "      - firewall: {{ rules: [ allow tcp on lan, allow udp on lan, allow icmp on lan, allow icmp from any to {} ], default: deny }}\n",
            self.pinged()
        );
        let nat = format!(
            "      - nat: {{ pool: [ {POOL} ], inside: [ 172.20.5.0/24 ], publish: [ {PUBLISHED} -> {PINGED} ] }}\n"
        );
        let four = [(self.firewall, &rules), (self.nat, &nat)];
        let four: String = four
            .into_iter()
            .filter(|(is_there, _)| *is_there)
            .map(|(_, text)| text.as_str())
            .collect();
        format!(
            "cluster: branch\nports:\n  lan: {{ device: lan0, address: [ {INSIDE}/24, \"{}/64\" ] }}\n  \
             wan: {{ device: wan0, address: [ 192.0.2.2/24, \"{}/64\" ], gateway: [ {SERVER}, \"{}\" ] }}\n\
             chains:\n  four:\n    functions:\n{four}    protection: nfvactor\n  six:\n    functions:\n{rules}    protection: nfvactor\n\
             rules:\n  - {{ from: 0.0.0.0/0, chain: four }}\n  - {{ from: \"::/0\", chain: six }}\nruntimes: {{ min: 3, max: 3 }}\n{PATIENT}",
            SIX[1], SIX[2], SIX[3]
        )
    }
}

fn play(functions: Functions, interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start_with(
        &Options::protected(Chain::Plain),
        &functions.configuration(),
        interrupt,
    )?;
    let far = add_far(&mut network, interrupt)?;
    let stage = Stage::new(&network, functions, far)?;
    let played = &stage;
    let begun =
        || together("begins", CASES.iter().map(|(name, case)| (*name, move || case(played))));
    together("ends", begun()?)?;
    let rests = begun()?;
    // Every flow's owner, and its replica's holder, has died then; the last one only
    // just.
    let runtimes: Vec<u32> =
        network.running.status()?.runtimes().map(|process| process.id).collect();
    for (at, id) in runtimes.iter().enumerate() {
        network.wait_protected()?;
        let status = network.running.status()?;
        let victim = Victim::of(
            status.runtime(*id).with_context(|| format!("runtime {id} is not in {status:?}"))?,
        );
        if at + 1 < runtimes.len() {
            network.running.kill(&victim, true, RECOVERY_LIMIT, interrupt)?;
        } else {
            signal_pid(victim.pid, Signal::KILL)?;
        }
    }
    together("ends after kills", rests)?;
    drop(stage);
    network.stop()
}

/// Runs all jobs at the same time. Returns their results, or all their errors.
fn together<T: Send, J: FnOnce() -> Result<T> + Send>(
    what: &str,
    jobs: impl IntoIterator<Item = (&'static str, J)>,
) -> Result<Vec<(&'static str, T)>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            jobs.into_iter().map(|(name, job)| (name, scope.spawn(job))).collect();
        let (mut done, mut wrong) = (Vec::new(), Vec::new());
        for (name, thread) in threads {
            match thread.join().unwrap_or_else(|_| Err(anyhow!("it panicked"))) {
                Ok(value) => done.push((name, value)),
                Err(error) => wrong.push(format!("{name} {what}: {error:#}")),
            }
        }
        if wrong.is_empty() { Ok(done) } else { bail!("{}", wrong.join("\n")) }
    })
}

/// A host behind a router, the server, with the smallest MTU of all links between them.
fn add_far(network: &mut Network, interrupt: &Interrupt) -> Result<Namespace> {
    let far = network.lab.namespace("far")?;
    let router = &network.topology.server;
    link::veth((router, "far0"), (&far, HOST_DEVICE), Offloads::Off, interrupt)?;
    // The host does not know the MTU: it announces segments as large as other hosts do.
    router.ip(&format!("link set far0 mtu {SMALL_MTU}"))?;
    for (namespace, device, addresses) in [
        (router, "far0", ["203.0.113.1/24", "2001:db8:9::1/64"]),
        (&far, HOST_DEVICE, ["203.0.113.9/24", "2001:db8:9::9/64"]),
    ] {
        addresses.iter().try_for_each(|address| link::address(namespace, device, address))?;
    }
    link::route(&far, "default", "203.0.113.1")?;
    far.ip("-6 route add default via 2001:db8:9::1")?;
    router.sysctl("net/ipv4/ip_forward", "1")?;
    router.sysctl("net/ipv6/conf/all/forwarding", "1")?;
    // The host keeps no state until its answer is acknowledged.
    far.sysctl("net/ipv4/tcp_syncookies", "2")?;
    let client = &network.topology.client;
    // A SYN without an answer is sent again every second; by kernels before 6.5 less and
    // less often.
    let _ = client.sysctl("net/ipv4/tcp_syn_linear_timeouts", "100");
    client.ip(&format!("-6 route add default via {}", SIX[1]))?;
    link::address(client, HOST_DEVICE, &format!("{PINGED}/24"))?;
    Ok(far)
}

/// An end's side of the box.
struct Side<'a> {
    namespace: &'a Namespace,
    /// Senders of frames to the box, and to the end as if from the box.
    up: Sender,
    down: Sender,
    own_mac: [u8; 6],
    box_mac: [u8; 6],
}

impl<'a> Side<'a> {
    fn new(
        namespace: &'a Namespace,
        near: (&'a Namespace, &'static str),
        gateway: &str,
    ) -> Result<Side<'a>> {
        programs::ping(namespace, ip(gateway), 1, 56, Duration::from_millis(10))?;
        let box_mac = link::neighbour(namespace, gateway)?;
        let (up, down) = (Sender::open(namespace, HOST_DEVICE)?, Sender::open(near.0, near.1)?);
        Ok(Side { namespace, up, down, own_mac: link::mac(namespace, HOST_DEVICE)?, box_mac })
    }

    fn listen(&self) -> Result<Listener> {
        Listener::open(self.namespace, HOST_DEVICE)
    }

    /// Sends a segment to the box as if the end's kernel had sent it.
    fn spoof(&self, from: End, to: End, segment: Segment) -> Result<()> {
        let ends = Ends { from_mac: self.own_mac, to_mac: self.box_mac, from, to };
        Ok(self.up.send(&ends.segment(&segment, &vec![b'x'; segment.len as usize]))?)
    }

    /// Shows the end's kernel a frame that was held before.
    fn deliver(&self, frame: &[u8]) -> Result<()> {
        Ok(self.down.send(frame)?)
    }

    fn hold(&self, matches: String) -> Result<Held> {
        Held::new(self.namespace, &matches)
    }
}

/// The stage on which cases are played.
struct Stage<'a> {
    functions: Functions,
    inside: Side<'a>,
    outside: Side<'a>,
    far: Namespace,
    interrupt: &'a Interrupt,
    /// Cases so far: each has ports of its own.
    cases: AtomicU16,
}

impl<'a> Stage<'a> {
    fn new(network: &'a Network, functions: Functions, far: Namespace) -> Result<Stage<'a>> {
        let (topology, interrupt) = (&network.topology, network.lab.interrupt());
        let inside = Side::new(&topology.client, (&topology.router, "lan0"), INSIDE)?;
        let outside = Side::new(&topology.server, (&topology.router, "wan0"), "192.0.2.2")?;
        Ok(Stage { functions, inside, outside, far, interrupt, cases: AtomicU16::new(0) })
    }

    /// A number for one case alone.
    fn number(&self) -> u16 {
        self.cases.fetch_add(1, Ordering::Relaxed)
    }

    /// The ends of a connection for one case alone.
    fn ends(&self, client: &str, server: &str) -> (SocketAddr, SocketAddr) {
        let case = self.number();
        (SocketAddr::new(ip(client), 40_000 + case), SocketAddr::new(ip(server), 8000 + case))
    }

    /// A connection through the box, with data both ways that both ends have
    /// acknowledged.
    fn connection(&self) -> Result<(Connection, TcpStream, TcpStream)> {
        let (client, server) = self.ends(CLIENT, SERVER);
        let (inside, outside) = (self.inside.listen()?, self.outside.listen()?);
        let listener = listen(self.outside.namespace, server)?;
        let opener = begin(self.inside.namespace, client, server)?;
        opened(&opener, self.interrupt)?;
        let acceptor = accepted(&listener, self.interrupt)?;
        exchange(&opener, &acceptor)?;
        let peer = acceptor.peer_addr()?;
        let (mut next, mut acknowledged) = ([0; 2], [0; 2]);
        let note = |listener: &Listener,
                    from: SocketAddr,
                    to: SocketAddr,
                    next: &mut u32,
                    acknowledged: &mut u32|
         -> Result<()> {
            while let Some(frame) = listener.receive()? {
                if let Some((source, destination, segment)) = frames::segment(&frame)
                    && (source, destination) == (v4(from), v4(to))
                {
                    *next = segment.sequence.wrapping_add(segment.len);
                    *acknowledged = segment.acknowledgement;
                }
            }
            Ok(())
        };
        until("all data are acknowledged", TIMEOUT, self.interrupt, || {
            note(&outside, peer, server, &mut next[0], &mut acknowledged[1])?;
            note(&inside, server, client, &mut next[1], &mut acknowledged[0])?;
            Ok((next == acknowledged).then_some(()))
        })?;
        Ok((Connection { client, server, peer, listener, next }, opener, acceptor))
    }

    /// Waits for such a segment, and returns its sender and its frame too.
    fn see(
        &self,
        on: &Listener,
        what: &str,
        is_it: impl Fn(End, End, &Segment) -> bool,
    ) -> Result<(End, Segment, Vec<u8>)> {
        until(what, TIMEOUT, self.interrupt, || {
            while let Some(frame) = on.receive()? {
                if let Some((from, to, segment)) = frames::segment(&frame)
                    && is_it(from, to, &segment)
                {
                    return Ok(Some((from, segment, frame)));
                }
            }
            Ok(None)
        })
    }

    /// Waits until the server's end of a connection is in TIME-WAIT.
    fn waits(&self, server: SocketAddr) -> Result<()> {
        let line = format!("ss -Htn state time-wait sport = :{}", server.port());
        until("TIME-WAIT", TIMEOUT, self.interrupt, || {
            Ok((!self.outside.namespace.run(&line)?.is_empty()).then_some(()))
        })
    }
}

fn v4(address: SocketAddr) -> End {
    match address {
        SocketAddr::V4(address) => (*address.ip(), address.port()),
        SocketAddr::V6(_) => (Ipv4Addr::UNSPECIFIED, 0),
    }
}

/// An open connection.
struct Connection {
    client: SocketAddr,
    server: SocketAddr,
    /// The client, as the server sees it.
    peer: SocketAddr,
    listener: TcpListener,
    /// The sequence numbers that the client and the server send next.
    next: [u32; 2],
}

impl Connection {
    /// Opens the connection anew from the same port.
    fn again(&self, stage: &Stage<'_>) -> Result<TcpStream> {
        begin(stage.inside.namespace, self.client, self.server)
    }

    /// Checks that the new connection is open.
    fn is_again(&self, again: &TcpStream, stage: &Stage<'_>) -> Result<()> {
        opened(again, stage.interrupt)?;
        exchange(again, &accepted(&self.listener, stage.interrupt)?)
    }
}
