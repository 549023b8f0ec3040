//! The firewall's view of TCP compared with the kernel's: random conversations through
//! both, segment by segment.
//!
//! A router's kernel forwards every segment that its connection tracking does not call
//! invalid, and from the server's side only segments of a connection. The firewall gets
//! the same segments in the same order, without a box around it. If the two differ,
//! docs/correctness.md must justify the difference, or the test fails and shows it.

use anyhow::{Context as _, Result, ensure};
use etherparse::{
    IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, PacketBuilder, TcpHeader, TcpOptionElement,
};
use holdfast_functions::catalog;
use holdfast_lab::link::{self, Offloads};
use holdfast_lab::requirements::NFT;
use holdfast_lab::topology::HOST_DEVICE;
use holdfast_lab::{Interrupt, Lab, Namespace, until_every};
use holdfast_nf::{Chain, Context, Direction, FlowKey, Outcome, Position};
use holdfast_tests::TIMEOUT;
use holdfast_tests::conversation::flags::{ACK, FIN, RST, SYN};
use holdfast_tests::conversation::{Segment, conversation};
use holdfast_tests::frames::{Ends, Listener, Sender};
use holdfast_tests::runner::{Test, light};
use holdfast_wire::{MemoryPool, Packet, PacketPool};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "the_kernel_passes_the_same_segments",
            10,
            &[NFT],
            the_kernel_passes_the_same_segments,
        ),
        light("what_the_ends_need_passes", 5, &[], what_the_ends_need_passes),
    ]
}

/// Number of conversations: in every run, and in the full form.
const SOME: u64 = 600;
const MANY: u64 = 100_000;
/// Conversations that a kernel's table holds without evicting any.
const AT_A_TIME: u64 = 10_000;

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const SERVER_PORT: u16 = 80;
/// Source of the datagram that follows a conversation.
const LAST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// A router whose kernel tracks connections, between two devices on which any frame can
/// be sent.
struct Kernel {
    client: (Sender, Listener, [u8; 6], [u8; 6]),
    server: (Sender, Listener, [u8; 6], [u8; 6]),
    /// Dropped last.
    _lab: Lab,
}

impl Kernel {
    fn new(interrupt: &Interrupt) -> Result<Kernel> {
        let mut lab = Lab::new(interrupt.clone())?;
        let (client, router, server) =
            (lab.namespace("client")?, lab.namespace("router")?, lab.namespace("server")?);
        let side = |far: &Namespace, near: &str, address: &str, neighbour: &str| -> Result<_> {
            link::silence(far)?;
            link::veth((&router, near), (far, HOST_DEVICE), Offloads::Off, interrupt)?;
            link::address(&router, near, address)?;
            let (own, other) = (link::mac(far, HOST_DEVICE)?, link::mac(&router, near)?);
            let words = own.map(|byte| format!("{byte:02x}")).join(":");
            router.ip(&format!(
                "neigh replace {neighbour} lladdr {words} dev {near} nud permanent"
            ))?;
            Ok((Sender::open(far, HOST_DEVICE)?, Listener::open(far, HOST_DEVICE)?, own, other))
        };
        let client = side(&client, "lan", "172.16.0.1/24", "172.16.0.2")?;
        let server = side(&server, "wan", "192.0.2.1/24", &SERVER.to_string())?;
        link::route(&router, "10.0.0.0/8", "172.16.0.2")?;
        for (key, value) in [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/lan/rp_filter", "0"),
            ("net/ipv4/conf/wan/rp_filter", "0"),
            // The kernel does not pick up connections in their middle.
            ("net/netfilter/nf_conntrack_tcp_loose", "0"),
            ("net/netfilter/nf_conntrack_tcp_be_liberal", "0"),
        ] {
            router.sysctl(key, value)?;
        }
        for line in [
            "nft add table ip edge",
            "nft add chain ip edge forward { type filter hook forward priority 0 ; policy drop ; }",
            "nft add rule ip edge forward ct state invalid drop",
            "nft add rule ip edge forward ct state established accept",
            "nft add rule ip edge forward iifname lan ct state new accept",
        ] {
            router.run(line)?;
        }
        Ok(Kernel { client, server, _lab: lab })
    }

    /// The frames that come out behind the router.
    fn passed(&self, frames: &[(bool, Vec<u8>)], interrupt: &Interrupt) -> Result<Vec<bool>> {
        for (is_forward, frame) in frames {
            let (sender, ..) = if *is_forward { &self.client } else { &self.server };
            sender.send(frame).context("sending a segment")?;
        }
        let mut passed = vec![false; frames.len()];
        // A last datagram each way, behind all other frames.
        for is_forward in [true, false] {
            let ((sender, _, from_mac, to_mac), (_, listener, ..)) = if is_forward {
                (&self.client, &self.server)
            } else {
                (&self.server, &self.client)
            };
            let (client, server) = ((LAST, 7), (SERVER, 9));
            let (from, to) = if is_forward { (client, server) } else { (server, client) };
            sender.send(&Ends { from_mac: *from_mac, to_mac: *to_mac, from, to }.udp(&[]))?;
            until_every(
                Duration::from_micros(50),
                "the last frame passes",
                TIMEOUT,
                interrupt,
                || {
                    while let Some(frame) = listener.receive()? {
                        let is_ours = frame.len() >= 34
                            && frame[12..14] == [8, 0]
                            && frame[26..30] == from.0.octets()[..];
                        let is_tcp = frame.len() >= 34 && frame[12..14] == [8, 0] && frame[23] == 6;
                        let is_this_way =
                            frame.len() >= 34 && (frame[30..34] == SERVER.octets()) == is_forward;
                        if is_tcp && is_this_way {
                            let at = usize::from(u16::from_be_bytes([frame[18], frame[19]]));
                            if let Some(passed) = passed.get_mut(at) {
                                *passed = true;
                            }
                        } else if is_ours && is_this_way && frame[23] == 17 {
                            return Ok(Some(()));
                        }
                    }
                    Ok(None)
                },
            )?;
        }
        Ok(passed)
    }
}

/// A chain's block is aligned to 16 bytes.
#[repr(align(16))]
struct Block([u8; 256]);

/// The firewall with one flow.
struct Firewall {
    chain: Chain,
    cx: Context,
    pool: MemoryPool,
    block: Block,
    is_open: bool,
    now: u64,
}

impl Firewall {
    fn new() -> Result<Firewall> {
        let rules = json!({ "rules": ["allow tcp from 10.0.0.0/8 to any"] });
        let chain =
            catalog::chain(&[("firewall".to_owned(), rules)]).map_err(|(_, error)| error)?;
        ensure!(chain.layout().size <= 256, "a flow's state is larger than the test's room for it");
        let (cx, pool, block) = (Context::new(1), MemoryPool::new(1), Block([0; 256]));
        Ok(Firewall { chain, cx, pool, block, is_open: false, now: 1_000_000_000 })
    }

    fn state(&self) -> &'static str {
        if self.is_open {
            self.chain.describe(&self.block.0[..self.chain.layout().size])
        } else {
            "no flow"
        }
    }

    fn passes(&mut self, frame: &[u8], is_forward: bool) -> Result<bool> {
        let mut packet = self.pool.take().context("the one buffer is back")?;
        let outcome = self.process(&mut packet, frame, is_forward);
        self.pool.put(packet);
        Ok(matches!(outcome?, Outcome::Forward))
    }

    fn process(&mut self, packet: &mut Packet, frame: &[u8], is_forward: bool) -> Result<Outcome> {
        ensure!(packet.copy_from(frame), "a frame does not fit");
        packet.parse().map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let key = FlowKey::of(packet).context("a segment has a key")?;
        let direction =
            if is_forward || !self.is_open { Direction::Forward } else { Direction::Reverse };
        self.now += 1_000_000;
        self.cx.begin(self.now, key, direction);
        let position = if self.is_open { Position::START } else { Position::OPENING };
        let size = self.chain.layout().size;
        let outcome = self.chain.run(packet, &mut self.block.0[..size], position, &mut self.cx);
        self.is_open |= matches!(outcome, Outcome::Forward);
        Ok(outcome)
    }
}

/// The client's address in the conversation with this number.
fn client(number: u64) -> (Ipv4Addr, u16) {
    (Ipv4Addr::from(0x0a01_0000 + (number % 0xff_0000) as u32), 1024 + (number % 60_000) as u16)
}

fn frame(
    segment: &Segment,
    number: u64,
    index: usize,
    macs: ([u8; 6], [u8; 6]),
) -> Result<Vec<u8>> {
    let (client, server) = (client(number), (SERVER, SERVER_PORT));
    let (from, to) = if segment.is_forward { (client, server) } else { (server, client) };
    let mut ip = Ipv4Header::new(0, 64, IpNumber::TCP, from.0.octets(), to.0.octets())?;
    ip.identification = index as u16;
    let mut tcp = TcpHeader::new(from.1, to.1, segment.sequence, segment.window);
    tcp.acknowledgment_number = segment.acknowledgement;
    let has = |flag: u8| segment.flags & flag != 0;
    (tcp.fin, tcp.syn, tcp.rst, tcp.ack) = (has(FIN), has(SYN), has(RST), has(ACK));
    if let Some(scale) = segment.scale {
        tcp.set_options(&[TcpOptionElement::Noop, TcpOptionElement::WindowScale(scale)])?;
    }
    let builder = PacketBuilder::ethernet2(macs.0, macs.1)
        .ip(IpHeaders::Ipv4(ip, Ipv4Extensions::default()))
        .tcp_header(tcp);
    let payload = vec![0x5a; usize::from(segment.len)];
    let mut frame = Vec::with_capacity(builder.size(payload.len()));
    builder.write(&mut frame, &payload)?;
    Ok(frame)
}

fn words(segment: &Segment) -> String {
    let names = [(SYN, "SYN "), (FIN, "FIN "), (RST, "RST "), (ACK, "ACK ")];
    let flags: String =
        names.iter().filter(|(flag, _)| segment.flags & flag != 0).map(|(_, name)| *name).collect();
    let way = if segment.is_forward { ">" } else { "<" };
    let spoofed = if segment.is_spoofed { " (spoofed)" } else { "" };
    let scale = segment.scale.map_or(String::new(), |scale| format!(" scale {scale}"));
    let Segment { sequence, acknowledgement, window, len, .. } = segment;
    let useful = if segment.is_useful { " *" } else { "" };
    format!(
        "{way} {flags}seq {sequence} ack {acknowledgement} len {len} win {window}{scale}{spoofed}{useful}"
    )
}

/// A difference between the two: the firewall's state, and the segment that only one of
/// them lets pass.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Difference {
    state: &'static str,
    is_forward: bool,
    is_spoofed: bool,
    is_useful: bool,
    flags: u8,
    has_data: bool,
    firewall_passes: bool,
}

impl Difference {
    fn new(state: &'static str, segment: &Segment, firewall_passes: bool) -> Difference {
        let Segment { is_forward, is_spoofed, is_useful, flags, len, .. } = *segment;
        Difference {
            state,
            is_forward,
            is_spoofed,
            is_useful,
            flags,
            has_data: len > 0,
            firewall_passes,
        }
    }

    /// The row of docs/correctness.md that justifies the difference.
    fn row(&self) -> Option<&'static str> {
        let Difference { state, is_forward, is_spoofed, is_useful, flags, firewall_passes, .. } =
            *self;
        let is_over = matches!(state, "closed" | "reset");
        match (firewall_passes, is_spoofed) {
            (true, true) if state == "opening" && !is_forward && matches!(flags, SYN | ACK) => {
                Some("a SYN that crosses, or a challenge")
            }
            (true, true) if state == "opening" && is_forward && flags & RST != 0 => {
                Some("a reset while a SYN is unanswered")
            }
            (true, true) if is_forward && flags == SYN => Some("a SYN in the initiator's name"),
            (true, true) => None,
            // The kernel has lost track, and refuses a legitimate end.
            (true, false) if flags & RST != 0 => Some("a reset that an end expects"),
            (true, false) => Some("the SYN or SYN-ACK that the ends have agreed on"),
            (false, false)
                if is_useful
                    && (flags & (SYN | RST) != 0
                        || matches!(state, "opening" | "answered" | "reset")) =>
            {
                Some("the answer to one of several SYNs")
            }
            (false, false) if is_useful => None,
            (false, _) if flags & (SYN | ACK) == SYN | ACK => Some("a SYN-ACK that opens nothing"),
            (false, _) if flags & RST != 0 && state == "opening" && !is_forward => {
                Some("a reset that acknowledges no SYN")
            }
            (false, _) if flags & RST != 0 => Some("a reset that the receiver ignores"),
            (false, _) if state == "opening" && !is_forward => Some("data before the handshake"),
            (false, true) if !is_over || flags & SYN == 0 => {
                Some("a segment older than the window")
            }
            (false, true) if !is_forward && flags == SYN => Some("a SYN of the other side"),
            (false, true) if flags == SYN | FIN => Some("a SYN with a FIN"),
            (false, true) => None,
            (false, false) => Some("a segment of the connection before, or older than the window"),
        }
    }
}

/// The numbers of conversations: those of earlier runs, and new ones with every commit.
fn numbers(count: u64) -> impl Iterator<Item = u64> {
    let run: u64 = std::env::var("HOLDFAST_RUN").ok().and_then(|run| run.parse().ok()).unwrap_or(0);
    (0..count / 2).chain((0..count / 2).map(move |at| 1_000_000 + run * count + at))
}

/// Every useful segment passes the firewall, and no harmful segment of a blind attacker
/// does. In about one conversation of a hundred a segment must be sent again: the
/// initiator retries again and again while answers to its earlier SYNs overtake each
/// other.
fn what_the_ends_need_passes(_: &Interrupt) -> Result<()> {
    let count = if holdfast_tests::soak() { MANY } else { 10 * SOME };
    let (mut useful, mut refused, mut late, mut lucky) = (0, 0, 0, 0);
    for number in numbers(count) {
        let said = conversation(number);
        let mut firewall = Firewall::new()?;
        for (index, segment) in said.iter().enumerate() {
            let state = firewall.state();
            let passes = firewall
                .passes(&frame(segment, number, index, ([2; 6], [4; 6]))?, segment.is_forward)?;
            let difference = Difference::new(state, segment, passes);
            if segment.is_spoofed && passes && segment.flags != SYN && difference.row().is_none() {
                // Windows are large: one in a thousand guesses lies in a window.
                lucky += 1;
                break;
            }
            if segment.is_useful && !passes {
                late += 1;
                break;
            }
            if segment.is_spoofed
                && passes
                && segment.flags == SYN
                && !matches!(state, "established" | "half-closed")
            {
                // The attacker has opened a connection, or tried to at the same time.
                break;
            }
            useful += u32::from(segment.is_useful);
            refused += u32::from(!passes && segment.is_spoofed);
        }
    }
    ensure!(lucky * 200 < refused, "{lucky} of a stranger's segments passed, {refused} did not");
    // 0.9 % of 100,000; fewer conversations scatter around that.
    ensure!(
        late * 50 < count,
        "in {late} of {count} conversations something that an end needed was refused"
    );
    ensure!(
        useful > 10_000 && refused > 500,
        "{useful} segments were of use, {refused} were a stranger's"
    );
    Ok(())
}

/// Differences between kernel and firewall that no row justifies: their number, and the
/// shortest conversation with each.
#[derive(Default)]
struct Wrong(BTreeMap<Difference, (u32, String)>);

impl Wrong {
    fn note(&mut self, difference: Difference, said: &[Segment], number: u64) {
        let (times, shown) = self.0.entry(difference).or_insert((0, String::new()));
        *times += 1;
        if shown.is_empty() || said.len() < shown.lines().count() - 1 {
            *shown = format!("conversation {number}");
            said.iter().for_each(|segment| _ = write!(shown, "\n    {}", words(segment)));
        }
    }

    fn say(&self, beside: &str) -> Result<()> {
        let mut report = String::new();
        for (difference, (times, example)) in &self.0 {
            let _ = write!(report, "\n{times} times: {difference:?}, as in {example}");
        }
        ensure!(self.0.is_empty(), "{beside}:{report}");
        Ok(())
    }
}

fn the_kernel_passes_the_same_segments(interrupt: &Interrupt) -> Result<()> {
    let count = if holdfast_tests::soak() { MANY } else { SOME };
    let mut kernel = None;
    let mut unjustified = Wrong::default();
    let (mut segments, mut parted) = (0, BTreeMap::new());
    for (at, number) in (0..).zip(numbers(count)) {
        if at % AT_A_TIME == 0 {
            drop(kernel.take());
            kernel = Some(Kernel::new(interrupt)?);
        }
        let kernel = kernel.as_ref().context("there is one")?;
        let said = conversation(number);
        let mut frames = Vec::with_capacity(said.len());
        for (index, segment) in said.iter().enumerate() {
            let (_, _, own, other) =
                if segment.is_forward { &kernel.client } else { &kernel.server };
            frames.push((segment.is_forward, frame(segment, number, index, (*own, *other))?));
        }
        let passed = kernel.passed(&frames, interrupt)?;
        let mut firewall = Firewall::new()?;
        for (index, (segment, (is_forward, frame))) in said.iter().zip(&frames).enumerate() {
            let state = firewall.state();
            let firewall_passes = firewall.passes(frame, *is_forward)?;
            segments += 1;
            if firewall_passes == passed[index] {
                continue;
            }
            let difference = Difference::new(state, segment, firewall_passes);
            match difference.row() {
                Some(row) => *parted.entry(row).or_insert(0) += 1,
                None => unjustified.note(difference, &said[..=index], number),
            }
            // From here on the states of the two differ.
            break;
        }
    }
    unjustified
        .say(&format!("after {segments} segments, {parted:?}: the kernel says otherwise"))?;
    ensure!(segments > count as usize * 8, "only {segments} segments were compared");
    Ok(())
}
