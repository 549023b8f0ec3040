//! Answers to the senders of packets that a chain has rejected.
//!
//! In: a refused packet as it came in
//! ([`Flags::TURNED`](holdfast_wire::nsh::Flags::TURNED)), released as any other. Out: a
//! TCP reset, or an ICMP error "administratively prohibited", by the port by which the
//! packet came in, to the station that sent it. No answer is sent if none is allowed, or
//! too many have been given. Never: an answer to an answer, nor the reset to a segment's
//! receiver: its runtime makes that one.

use super::icmp::{self, Problem};
use super::{Edge, EdgeOut, addresses, is_multicast, is_nowhere};
use crate::reset::reset;
use holdfast_protection::Released;
use holdfast_wire::header::proto;
use holdfast_wire::{Packet, PacketPool};

impl Edge {
    /// Answers a packet that a chain has refused, and has counted. A packet without an
    /// answer gives its buffer back.
    pub(super) fn answer_refused(
        &mut self,
        refused: Released<Packet>,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let port = refused.get().meta.ingress;
        let known = self.config.ports.get(usize::from(port)).map(|known| known.mtu);
        let Some(mtu) = known.filter(|_| self.may_answer(refused.get())) else {
            return pool.put(refused.into_inner());
        };
        let answer = refused.remade(|packet| match packet.layers.protocol {
            proto::TCP => reset(packet),
            _ => addresses(packet)
                .and_then(|(source, destination)| self.error_source(port, (&source, &destination)))
                .is_some_and(|from| icmp::report(packet, Problem::Prohibited, &from, mtu)),
        });
        match answer {
            Ok(answer) if self.refusals.admit(now) => self.send_back(port, answer, out, pool),
            Ok(answer) => pool.put(answer.into_inner()),
            Err(packet) => pool.put(packet),
        }
    }

    /// True if a rejected packet may be answered. Later fragments, ICMP errors, and
    /// packets to or from groups or unusable addresses are not (RFC 1122, section 3.2.2;
    /// RFC 4443, section 2.4 (e); for resets RFC 9293, section 3.9.2.3).
    fn may_answer(&self, packet: &Packet) -> bool {
        let is_one = |address: &[u8; 16]| {
            !(is_multicast(address) || is_nowhere(address) || self.is_broadcast(address))
        };
        icmp::may_report(packet)
            && addresses(packet).is_some_and(|(source, destination)| {
                is_one(&source) && is_one(&destination) && !self.owns(packet.meta.ingress, &source)
            })
    }
}
