//! What a chain has refused: its sender is told.
//!
//! In: a refused packet as it came in ([`Flags::TURNED`](holdfast_wire::nsh::Flags::TURNED)), released as any other. Out: a TCP reset, or an ICMP error that says "administratively prohibited", by the port
//! by which the packet came in, to the station that sent it; or nothing, where an answer is not allowed or too many have been given. Never: an answer to
//! an answer.

use super::icmp::{self, Problem};
use super::{Edge, EdgeOut, addresses, is_multicast, is_nowhere};
use holdfast_protection::Released;
use holdfast_wire::build::{self, Ends, Ethernet};
use holdfast_wire::header::{Tcp, proto, tcp_flags};
use holdfast_wire::{Network, Packet, PacketPool, checksum};

impl Edge {
    /// Answers a packet that a chain has refused, which was counted there. Without an answer its buffer is free again.
    pub(super) fn answer_refused(&mut self, refused: Released<Packet>, now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        let port = refused.get().meta.ingress;
        let known = self.config.ports.get(usize::from(port)).map(|known| known.mtu);
        let Some(mtu) = known.filter(|_| self.may_answer(refused.get()) && self.refusals.admit(now)) else {
            return pool.put(refused.into_inner());
        };
        let answer = refused.remade(|packet| match packet.layers.protocol {
            proto::TCP => reset(packet),
            _ => addresses(packet)
                .and_then(|(source, _)| self.own_address(port, &source))
                .is_some_and(|from| icmp::report(packet, Problem::Prohibited, &from, mtu)),
        });
        match answer {
            Ok(answer) => self.send_back(port, answer, out, pool),
            Err(packet) => pool.put(packet),
        }
    }

    /// Nobody is told of a later fragment or an error, and nothing goes to many or to nobody (RFC 1122, section 3.2.2; RFC 4443, section 2.4 (e); for resets RFC 9293, section
    /// 3.9.2.3).
    fn may_answer(&self, packet: &Packet) -> bool {
        let is_one = |address: &[u8; 16]| !(is_multicast(address) || is_nowhere(address) || self.is_broadcast(address));
        icmp::may_report(packet)
            && addresses(packet)
                .is_some_and(|(source, destination)| is_one(&source) && is_one(&destination) && !self.owns(&source))
    }
}

/// Makes a segment into the reset that its sender gets where there is no connection (RFC 9293, section 3.10.7.1). False for a reset, for one that is damaged, and for a fragment, of which
/// nobody can tell.
fn reset(packet: &mut Packet) -> bool {
    let Some(&refused) = packet.tcp() else { return false };
    let Some(&(mut ethernet)) = packet.bytes().first_chunk::<{ Ethernet::LEN }>() else { return false };
    // A tag that a function has put on is not the answer's.
    ethernet[12..].copy_from_slice(&packet.layers.ethertype.to_be_bytes());
    let ends = match (packet.ipv4(), packet.ipv6()) {
        (Some(ip), _) => Ends::V4(ip.destination, ip.source),
        (_, Some(ip)) => Ends::V6(ip.destination, ip.source),
        _ => return false,
    };
    let is_intact = match ends {
        Ends::V4(source, destination) => checksum::transport(&source, &destination, proto::TCP, packet.l4()) == 0,
        Ends::V6(source, destination) => checksum::transport(&source, &destination, proto::TCP, packet.l4()) == 0,
    };
    if packet.layers.fragment || refused.flags & tcp_flags::RST != 0 || !is_intact {
        return false;
    }
    let answer = build::Tcp { window: 0, ..answer_to(&refused, packet.l4().len()) };
    let l4 = Ethernet::LEN + if packet.layers.network == Network::V4 { build::Ipv4::LEN } else { build::Ipv6::LEN };
    // The segment's own headers were as long.
    packet.truncate(l4 + build::Tcp::LEN);
    let Some(frame) = packet.bytes_mut().get_mut(..l4 + build::Tcp::LEN) else { return false };
    frame[..Ethernet::LEN].copy_from_slice(&ethernet);
    let written = answer.write(&mut frame[l4..], &ends).and_then(|()| match ends {
        Ends::V4(source, destination) => build::Ipv4::new(source, destination, proto::TCP).write(&mut frame[Ethernet::LEN..]),
        Ends::V6(source, destination) => build::Ipv6::new(source, destination, proto::TCP).write(&mut frame[Ethernet::LEN..]),
    });
    written.is_ok()
}

/// "If the ACK bit is off, sequence number zero is used, <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>. If the ACK bit is on, <SEQ=SEG.ACK><CTL=RST>." SEG.LEN counts
/// SYN and FIN.
fn answer_to(refused: &Tcp, len: usize) -> build::Tcp<'static> {
    let (source, destination) = (refused.destination.get(), refused.source.get());
    if refused.flags & tcp_flags::ACK != 0 {
        let sequence = refused.acknowledgement.get();
        return build::Tcp { sequence, ..build::Tcp::new(source, destination, tcp_flags::RST) };
    }
    let header = usize::from(refused.data_offset >> 4) * 4;
    let controls = u32::from(refused.flags & tcp_flags::SYN != 0) + u32::from(refused.flags & tcp_flags::FIN != 0);
    let behind = refused.sequence.get().wrapping_add(len.saturating_sub(header) as u32).wrapping_add(controls);
    build::Tcp { acknowledgement: behind, ..build::Tcp::new(source, destination, tcp_flags::RST | tcp_flags::ACK) }
}
