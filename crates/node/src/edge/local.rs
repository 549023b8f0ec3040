//! Packets for the box itself: ping is answered; on other ports and protocols the box
//! does not listen.
//!
//! In: packets to the box's own addresses, and pings that it answers in a chain's place,
//! all checked as others are. Out: answers, within rates. Never: an answer to a damaged
//! packet, or to many stations.

use super::icmp::{self, Problem};
use super::reassembly::Assembled;
use super::{Edge, EdgeOut, addresses, extension};
use crate::reset;
use holdfast_protection::Released;
use holdfast_wire::header::{proto, tcp_flags};
use holdfast_wire::selector::Prefix;
use holdfast_wire::{DropReason, Network, Packet, PacketPool, unmap_v4};

impl Edge {
    /// True if packets to this address are for the box. At an address that a chain uses
    /// too, as in masquerading, only ping is, unless it comes in fragments.
    pub(super) fn is_local(&self, port: u8, packet: &Packet, destination: &[u8; 16]) -> bool {
        if icmp::is_echo_request(packet)
            && self.config.answers_ping.iter().any(|prefix| prefix.contains(destination))
        {
            return true;
        }
        self.is_own(port, destination)
            && (!self.is_owned(destination) || icmp::is_echo_request(packet))
    }

    /// True if a station at this port may know this own address, or the operator lets
    /// ping be answered there. "Packets with private source or destination addresses
    /// should not be forwarded" between networks that do not share them (RFC 1918,
    /// section 3), so the box does not show its own private addresses there.
    fn is_known_at(&self, port: u8, address: &[u8; 16]) -> bool {
        let private = Prefix::private();
        let is_private = |address: &[u8; 16]| private.iter().any(|prefix| prefix.contains(address));
        let is_alike = |own: &[u8; 16]| {
            unmap_v4(own).is_some() == unmap_v4(address).is_some() && is_private(own)
        };
        let is_asked_for = self.config.answers_ping.iter().any(|prefix| prefix.contains(address));
        is_asked_for
            || !is_private(address)
            || self.own.iter().any(|own| own.port == port && is_alike(&own.address))
    }

    /// Handles a packet for the box itself: ping is answered, everything else refused.
    /// Senders are told (RFC 1122, sections 3.2.2.1 and 4.1.3.1; RFC 9293, section
    /// 3.10.7.1; RFC 8200, section 4), within rates.
    pub(super) fn handle_local(
        &mut self,
        mut port: u8,
        mut packet: Packet,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        if !addresses(&packet).is_some_and(|(_, destination)| self.is_known_at(port, &destination))
        {
            return self.drop(packet, DropReason::Local, pool);
        }
        if packet.layers.fragment {
            let assembled = self.reassembly.handle(packet, now, pool);
            self.drop_fragments(pool);
            match assembled {
                Assembled::Whole(whole, others) => {
                    self.consume(port, others);
                    // The answer goes back by the port of the first fragment.
                    (port, packet) = (whole.meta.ingress, whole);
                }
                Assembled::Held => return,
                Assembled::Dropped(packet, reason) => return self.drop(packet, reason, pool),
            }
        }
        if packet.layers.network == Network::V6
            && let Err(refused) = extension::read(&packet)
        {
            self.drops.count(DropReason::Local);
            return match refused {
                extension::Refused::With(problem) => {
                    self.answer_problem(port, packet, problem, now, out, pool)
                }
                extension::Refused::Silently => pool.put(packet),
            };
        }
        if packet.is_intact() == Some(false) {
            return self.drop(packet, DropReason::BadChecksum, pool);
        }
        if icmp::is_echo_request(&packet) && self.echoes.admit(now) {
            self.consume(port, 1);
            icmp::turn_echo(&mut packet);
            return self.send_back(port, Released::stateless(packet), out, pool);
        }
        self.drops.count(DropReason::Local);
        match packet.layers.protocol {
            proto::UDP => {
                self.answer_problem(port, packet, Problem::PortUnreachable, now, out, pool)
            }
            proto::TCP => {
                let is_reset = packet.tcp().is_none_or(|tcp| tcp.flags & tcp_flags::RST != 0);
                if is_reset || !reset::reset(&mut packet) || !self.resets.admit(now) {
                    return pool.put(packet);
                }
                self.send_back(port, Released::stateless(packet), out, pool);
            }
            proto::ICMP | proto::ICMPV6 if packet.icmp().is_some() => pool.put(packet),
            _ => self.answer_problem(port, packet, Problem::ProtocolUnreachable, now, out, pool),
        }
    }

    /// Drops fragments for the box itself whose datagrams are not complete in time. The
    /// sender of a first fragment is told (RFC 1122, section 3.3.2; RFC 8200, section
    /// 4.5).
    pub(super) fn expire_fragments(
        &mut self,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        while let Some(packet) = self.reassembly.poll_expired(now) {
            self.drops.count(DropReason::LocalFragment);
            self.answer_problem(
                packet.meta.ingress,
                packet,
                Problem::NotReassembled,
                now,
                out,
                pool,
            );
        }
    }
}
