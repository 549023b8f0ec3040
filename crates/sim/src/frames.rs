//! Builds and reads the frames of simulated clients and servers.

use crate::script::record_name;
use holdfast_node::channel::Overheard;
use holdfast_node::message::{self, Control};
use holdfast_wire::header::{ETHERTYPE_FABRIC, ETHERTYPE_NSH, Ipv4, Tcp, Udp, icmp, proto};
use holdfast_wire::nsh::{Flags, index};
use holdfast_wire::{FlowKey, NodeId, Packet, checksum, map_v4};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

pub(crate) use crate::plan::End;
pub(crate) use holdfast_nf::bench::frames::{ipv4, tcp, udp};

/// Whether these are the ends of an echo request. As in [`FlowKey`], the source's port is
/// the identifier, and the destination's is the identifier plus the request's ICMP type;
/// a reply's ends are swapped.
fn is_echo_request(source: End, destination: End) -> bool {
    source.1.wrapping_add(icmp::ECHO.into()) == destination.1
}

/// The destination's port of an echo request with this identifier.
pub(crate) fn echo_port(identifier: u16) -> u16 {
    identifier.wrapping_add(icmp::ECHO.into())
}

/// An echo request or an echo reply: its ends say which.
pub(crate) fn echo(source: End, destination: End, payload: &[u8]) -> Vec<u8> {
    let is_request = is_echo_request(source, destination);
    let identifier = if is_request { source.1 } else { destination.1 };
    let [a, b] = identifier.to_be_bytes();
    let mut segment =
        vec![if is_request { icmp::ECHO } else { icmp::ECHO_REPLY }, 0, 0, 0, a, b, 0, 1];
    segment.extend_from_slice(payload);
    let sum = checksum::checksum(&segment);
    segment[2..4].copy_from_slice(&sum.to_be_bytes());
    ipv4(source.0, destination.0, proto::ICMP, &segment)
}

/// A UDP datagram, or an echo if the protocol is ICMP.
pub(crate) fn datagram(protocol: u8, source: End, destination: End, payload: &[u8]) -> Vec<u8> {
    if protocol == proto::ICMP {
        echo(source, destination, payload)
    } else {
        udp(source, destination, payload)
    }
}

/// The frame's packet in fragments, in order. The first has `first` bytes behind the IPv4
/// header, a multiple of 8; at most `rest` others share what remains.
pub(crate) fn split(frame: &[u8], id: u16, first: usize, rest: usize) -> Vec<Vec<u8>> {
    let (header, segment) = frame.split_at(34);
    let each = (segment.len() - first).div_ceil(rest).next_multiple_of(8);
    let mut pieces = Vec::with_capacity(1 + rest);
    let mut at = 0;
    while at < segment.len() {
        let end = if at == 0 { first } else { (at + each).min(segment.len()) };
        let mut piece = header.to_vec();
        let field = (at / 8) as u16 | if end < segment.len() { MORE } else { 0 };
        piece[16..18].copy_from_slice(&((20 + end - at) as u16).to_be_bytes());
        piece[18..20].copy_from_slice(&id.to_be_bytes());
        piece[20..22].copy_from_slice(&field.to_be_bytes());
        piece.extend_from_slice(&segment[at..end]);
        seal(&mut piece);
        pieces.push(piece);
        at = end;
    }
    pieces
}

/// IPv4 flag: more fragments follow.
const MORE: u16 = 0x2000;

/// Recomputes the IPv4 header's checksum.
fn seal(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Reassembly key of a datagram: source, destination, identification, protocol.
type Datagram = ([u8; 4], [u8; 4], u16, u8);

/// How long a peer keeps fragments, ns.
const KEEPS: u64 = 2_000_000_000;

/// Fragments of a datagram by offset in bytes, with whether more follow.
type Pieces = BTreeMap<usize, (Vec<u8>, bool)>;

/// Reassembles datagrams as a peer's kernel does.
#[derive(Default)]
pub(crate) struct Reassembly(BTreeMap<Datagram, (u64, Pieces)>);

impl Reassembly {
    /// Takes a frame. Returns the packet if the frame is or completes one, and whether it
    /// was in fragments.
    pub(crate) fn take(&mut self, frame: &[u8], now: u64) -> Option<(Vec<u8>, bool)> {
        let Some((header, segment)) = ip(frame) else { return Some((frame.to_vec(), false)) };
        let field = header.flags_fragment.get();
        let (at, more) = (usize::from(field & 0x1fff) * 8, field & MORE != 0);
        if at == 0 && !more {
            return Some((frame.to_vec(), false));
        }
        let datagram = (header.source, header.destination, header.id.get(), header.protocol);
        self.0.retain(|_, (since, _)| *since + KEEPS > now);
        let (_, pieces) = self.0.entry(datagram).or_insert((now, Pieces::new()));
        pieces.insert(at, (segment.to_vec(), more));
        let mut whole = Vec::new();
        while let Some((piece, more)) = pieces.get(&whole.len()) {
            whole.extend_from_slice(piece);
            if !more {
                self.0.remove(&datagram);
                let mut all = frame[..34].to_vec();
                all[16..18].copy_from_slice(&((20 + whole.len()) as u16).to_be_bytes());
                all[20..22].fill(0);
                seal(&mut all);
                all.extend_from_slice(&whole);
                return Some((all, true));
            }
        }
        None
    }
}

/// A frame as a peer sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) source: End,
    pub(crate) destination: End,
    pub(crate) protocol: u8,
    /// TCP only.
    pub(crate) flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) payload: &'a [u8],
    /// The packet is a fragment.
    pub(crate) is_part: bool,
    /// The packet is a fragment other than the first: it has no ports, and all of it is
    /// payload.
    pub(crate) is_later: bool,
}

/// The IPv4 header and the bytes behind it. `None` if the header's checksum is wrong.
fn ip(frame: &[u8]) -> Option<(&Ipv4, &[u8])> {
    let (header, _) = Ipv4::ref_from_prefix(frame.get(14..)?).ok()?;
    if checksum::checksum(header.as_bytes()) != 0 {
        return None;
    }
    Some((header, frame.get(34..14 + header.total_len.get() as usize)?))
}

/// Reads an IPv4 frame with TCP, UDP or an echo, checksums included. `None` if a peer's
/// kernel would not deliver it.
pub(crate) fn read(frame: &[u8]) -> Option<Seen<'_>> {
    look(frame).filter(|seen| !seen.is_part)
}

/// Like [`read`], but takes fragments, too. A fragment's transport checksum covers the
/// whole datagram and cannot be verified.
pub(crate) fn look(frame: &[u8]) -> Option<Seen<'_>> {
    let (header, segment) = ip(frame)?;
    let field = header.flags_fragment.get();
    let is_part = field & (MORE | 0x1fff) != 0;
    let mut seen = Seen {
        source: (header.source, 0),
        destination: (header.destination, 0),
        protocol: header.protocol,
        flags: 0,
        sequence: 0,
        acknowledgement: 0,
        payload: segment,
        is_part,
        is_later: field & 0x1fff != 0,
    };
    if seen.is_later {
        return Some(seen);
    }
    let sum = match header.protocol {
        proto::ICMP => checksum::checksum(segment),
        protocol => checksum::transport(&header.source, &header.destination, protocol, segment),
    };
    if !is_part && sum != 0 {
        return None;
    }
    match header.protocol {
        proto::UDP => {
            let (udp, payload) = Udp::ref_from_prefix(segment).ok()?;
            (seen.source.1, seen.destination.1, seen.payload) =
                (udp.source.get(), udp.destination.get(), payload);
        }
        proto::TCP => {
            let (tcp, payload) = Tcp::ref_from_prefix(segment).ok()?;
            (seen.source.1, seen.destination.1, seen.payload) =
                (tcp.source.get(), tcp.destination.get(), payload);
            (seen.flags, seen.sequence, seen.acknowledgement) =
                (tcp.flags, tcp.sequence.get(), tcp.acknowledgement.get());
        }
        proto::ICMP => {
            let identifier = u16::from_be_bytes(*segment.get(4..)?.first_chunk()?);
            (seen.source.1, seen.destination.1) = match *segment.first()? {
                icmp::ECHO => (identifier, echo_port(identifier)),
                icmp::ECHO_REPLY => (echo_port(identifier), identifier),
                _ => return None,
            };
            seen.payload = &segment[8..];
        }
        _ => return None,
    }
    Some(seen)
}

/// The key under which a frame's flow is found.
pub(crate) fn key(source: End, destination: End, protocol: u8) -> FlowKey {
    FlowKey {
        source: map_v4(source.0),
        destination: map_v4(destination.0),
        source_port: source.1,
        destination_port: destination.1,
        protocol: u16::from(protocol),
        scope: 0,
    }
}

/// Writes `value` over 8 bytes of a UDP payload and keeps the checksum right.
pub(crate) fn rewrite_udp(packet: &mut Packet, at: usize, value: u64) {
    let segment = packet.l4_mut();
    let place = 8 + at;
    let Some(old) = segment.get(place..place + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok())
    else {
        return;
    };
    let new = value.to_be_bytes();
    segment[place..place + 8].copy_from_slice(&new);
    let sum = u16::from_be_bytes([segment[6], segment[7]]);
    let sum = checksum::Delta::new().bytes(&old, &new).apply_udp(sum);
    segment[6..8].copy_from_slice(&sum.to_be_bytes());
}

fn ethertype(frame: &[u8]) -> u16 {
    frame.get(12..14).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// True for a frame with messages.
pub(crate) fn is_messages(frame: &[u8]) -> bool {
    ethertype(frame) == ETHERTYPE_FABRIC
}

/// Switch and stamp of a packet that a switch sends to a runtime for the first time.
/// `None` for replays and OAM frames.
pub(crate) fn in_hand(frame: &[u8]) -> Option<(NodeId, u64)> {
    let (of, stamp) = (frame.get(14..22)?, frame.get(22..30)?);
    let is_packet = ethertype(frame) == ETHERTYPE_NSH
        && of[7] == index::TO_RUNTIME
        && of[0] & 0x20 == 0
        && of[4] & Flags::REPLAY == 0;
    let switch = node_at(frame, 6).filter(|_| is_packet)?;
    Some((switch, u64::from_be_bytes(stamp.try_into().ok()?)))
}

fn node_at(frame: &[u8], at: usize) -> Option<NodeId> {
    NodeId::of_mac(frame.get(at..at + 6)?.try_into().ok()?)
}

/// The node that sent a frame.
pub(crate) fn source(frame: &[u8]) -> Option<NodeId> {
    node_at(frame, 6)
}

/// The node that a frame is addressed to.
pub(crate) fn destination(frame: &[u8]) -> Option<NodeId> {
    node_at(frame, 0)
}

/// Kinds of the records in a frame.
pub(crate) fn records(frame: &[u8]) -> impl Iterator<Item = u8> {
    Overheard::read(frame)
        .into_iter()
        .flat_map(|overheard| overheard.records())
        .map(|(kind, _)| kind)
}

/// A record in a few words. Control messages, which are rare, are shown whole.
fn describe_record((kind, body): (u8, &[u8])) -> String {
    let message = match kind {
        message::kind::CONTROL => Control::decode(body).ok(),
        message::kind::NUMBERED => message::numbered(body).ok().map(|(_, message)| message),
        _ => None,
    };
    let name = record_name(kind);
    match message {
        Some(message) => format!("{name} {message:?}"),
        None => name,
    }
}

/// A frame in a few words, for traces.
pub(crate) fn describe(frame: &[u8]) -> String {
    match ethertype(frame) {
        0x894f => {
            let inner = frame.get(38..).map_or(String::new(), describe);
            let index = frame.get(21).copied().unwrap_or(0);
            let commit = frame.get(34..38).map_or(0, |bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            format!("nsh index {index} flags {:02x} commit {commit} [{inner}]", frame.get(18).copied().unwrap_or(0))
        }
        ETHERTYPE_FABRIC => Overheard::read(frame).map_or("sealed messages".to_owned(), |overheard| {
            let records: Vec<String> = overheard.records().map(describe_record).collect();
            let Overheard { source, destination, sequence, acknowledgement, .. } = overheard;
            let records = records.join(", ");
            format!("{source} > {destination} messages sequence {sequence} acknowledges {acknowledgement}: {records}")
        }),
        0x0800 => match look(frame) {
            Some(seen) if seen.is_later => {
                format!("fragment {:?} > {:?} {:02x?}", seen.source.0, seen.destination.0, seen.payload)
            }
            Some(seen) if seen.protocol == proto::TCP => format!(
                "tcp {:?} > {:?} flags {:02x} seq {} ack {} len {}",
                seen.source,
                seen.destination,
                seen.flags,
                seen.sequence,
                seen.acknowledgement,
                seen.payload.len()
            ),
            Some(seen) => {
                let name = if seen.protocol == proto::UDP { "udp" } else { "echo" };
                let part = if seen.is_part { " in fragments" } else { "" };
                format!("{name} {:?} > {:?}{part} {:02x?}", seen.source, seen.destination, seen.payload)
            }
            None => "unreadable".to_owned(),
        },
        _ => String::new(),
    }
}
