//! A function with every kind of shared state, the packet's accessors, and drop reasons
//! of its own: docs/write-an-nf.md shows parts of it, word by word.

use holdfast_nf::bench::{Bench, frames};
use holdfast_nf::wire::checksum::Delta;
use holdfast_nf::wire::header::tcp_flags;
use holdfast_nf::wire::ip_bytes;
use holdfast_nf::wire::rewrite::{End, Side, set_end};
use holdfast_nf::{
    Bound, Chain, ConfigError, Context, Counted, Counters, Direction, DropReason, Gauge, Lease,
    Leased, Log, NetworkFunction, Open, Opening, Packet, Pool, ReadOnly, Table, Verdict,
};
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr};

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DeskConfig {
    /// Ports of TCP that are not served.
    refused: Vec<u16>,
    /// Address to which everything is sent.
    server: Ipv4Addr,
}

enum Tickets {}
enum Kinds {}

holdfast_nf::shared_state! {
    struct Desk {
        tickets: Pool<Tickets>,
        kinds: Gauge<Kinds>,
        counts: Counters,
        clients: Table<[u8; 16], u32>,
        notes: Log,
        refused: ReadOnly<Vec<u16>>,
    }
}

holdfast_nf::flow_state! {
    struct Ticket {
        client: [u8; 16],
        asked: [u8; 16],
        number: Leased<Tickets>,
        kind: Counted<Kinds>,
        port: u16,
    }
}

/// The function's own reasons: counters by name, which notes name, too.
const REASONS: [&str; 2] = ["refused_port", "no_push"];
const REFUSED_PORT: usize = 0;
const NO_PUSH: usize = 1;

impl Desk {
    /// Counts a packet that is dropped, and notes it for the operator.
    fn refuse(&mut self, reason: usize, packet: &Packet, cx: &Context) -> DropReason {
        self.counts.add(reason, 1);
        self.notes.note(reason as u32, cx.key(), packet.meta.ingress, cx);
        DropReason::FunctionDenied
    }
}

struct Front {
    refused: Vec<u16>,
    server: [u8; 16],
}

/// Marks a packet of IPv4 as that of a lower effort (RFC 8622).
fn mark(packet: &mut Packet) {
    const LE: u8 = 1 << 2;
    if let Some(header) = packet.ipv4_mut() {
        let (old, new) = (header.tos, LE | header.tos & 3);
        header.tos = new;
        let delta = Delta::new().word(old.into(), new.into());
        header.checksum = delta.apply(header.checksum.get()).into();
    }
}

impl NetworkFunction for Front {
    const NAME: &'static str = "front";
    type Config = DeskConfig;
    type Flow = Ticket;
    type Shared = Desk;

    fn new(config: DeskConfig) -> Result<Front, ConfigError> {
        let server = ip_bytes(IpAddr::V4(config.server));
        Ok(Front { refused: config.refused, server })
    }

    fn shared(&self) -> Desk {
        Desk {
            tickets: Pool::new(1024),
            kinds: Gauge::new(2),
            counts: Counters::new(REASONS),
            clients: Table::new(4096),
            notes: Log::new(),
            refused: ReadOnly::new(self.refused.clone()),
        }
    }

    fn open(&self, packet: &Packet, shared: &mut Desk, cx: &mut Opening<'_>) -> Open<Ticket> {
        if let Some(tcp) = packet.tcp()
            && shared.refused.get().contains(&tcp.destination.get())
        {
            return Open::Reject(shared.refuse(REFUSED_PORT, packet, cx));
        }
        let number = match shared.tickets.lease(cx) {
            Lease::Granted(number) => number,
            Lease::Wait => return Open::Wait,
            Lease::Exhausted => return Open::Drop(DropReason::PoolEmpty),
        };
        let kind = shared.kinds.count(usize::from(packet.udp().is_some()), cx);
        if !shared.clients.update(cx.key().source, 0, |flows| *flows += 1) {
            return Open::Drop(DropReason::QuotaExceeded);
        }
        let (client, asked) = (cx.key().source, cx.key().destination);
        Open::Accept(Ticket { client, asked, number, kind, port: cx.key().destination_port })
    }

    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Ticket,
        shared: &mut Desk,
        cx: &mut Context,
    ) -> Verdict {
        if let Some((tcp, data)) = packet.tcp_segment()
            && !data.is_empty()
            && tcp.flags & tcp_flags::PSH == 0
        {
            return Verdict::Drop(shared.refuse(NO_PUSH, packet, cx));
        }
        // Replies come from the address that the client has asked.
        let (side, address) = match cx.direction() {
            Direction::Forward => (Side::Destination, self.server),
            Direction::Reverse => (Side::Source, flow.asked),
        };
        if !set_end(packet, side, End { address, port: flow.port }) {
            return Verdict::Drop(DropReason::NotTranslatable);
        }
        mark(packet);
        Verdict::Forward
    }

    fn expire(&self, flow: &Ticket, shared: &mut Desk) {
        shared.clients.update_or_remove(&flow.client, |flows| {
            *flows = flows.saturating_sub(1);
            *flows > 0
        });
    }
}

const CLIENT: frames::End = ([10, 0, 0, 2], 4000);
const ASKED: frames::End = ([203, 0, 113, 10], 80);
const SERVER: frames::End = ([198, 51, 100, 11], 80);

fn bench() -> Bench {
    let config = DeskConfig { refused: vec![23], server: Ipv4Addr::from(SERVER.0) };
    let front = Bound::<Front>::new(config).expect("a right configuration");
    Bench::new(Chain::new(vec![Box::new(front)]))
}

/// The frame, marked as the function marks it.
fn marked(mut frame: Vec<u8>) -> Vec<u8> {
    frame[15] = 1 << 2;
    frame[24..26].fill(0);
    let sum = holdfast_nf::wire::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn packets_go_to_the_server_and_back() {
    let mut bench = bench();
    let asked = frames::udp(CLIENT, ASKED, b"a question");
    assert_eq!(bench.send(&asked), Ok(marked(frames::udp(CLIENT, SERVER, b"a question"))));
    let answer = frames::udp(SERVER, CLIENT, b"an answer");
    assert_eq!(bench.send(&answer), Ok(marked(frames::udp(ASKED, CLIENT, b"an answer"))));
    assert_eq!((bench.flows(), bench.gauge()), (1, vec![0, 1]));
    bench.wait(3_600_000_000_000);
    assert_eq!((bench.flows(), bench.gauge()), (0, vec![0, 0]));
    assert!(bench.tables().iter().all(|table| table.values == [0]));
}

#[test]
fn a_reason_of_its_own_has_a_counter_and_a_note() {
    let mut bench = bench();
    let syn = frames::tcp(CLIENT, (ASKED.0, 23), tcp_flags::SYN, 1, 0, &[]);
    assert_eq!(bench.send(&syn), Err(DropReason::FunctionDenied));
    assert!(bench.has_told());
    assert_eq!((bench.counter("refused_port"), bench.counter("no_push")), (1, 0));
    assert_eq!(bench.logged(), ["0 0 tcp 10.0.0.2:4000 > 203.0.113.10:23"]);
    let syn = frames::tcp(CLIENT, ASKED, tcp_flags::SYN, 1, 0, &[]);
    assert!(bench.send(&syn).is_ok());
    let data = frames::tcp(CLIENT, ASKED, tcp_flags::ACK, 2, 1, b"!");
    assert_eq!(bench.send(&data), Err(DropReason::FunctionDenied));
    assert_eq!((bench.flows(), bench.counter("no_push")), (1, 1));
}
