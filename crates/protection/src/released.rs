//! Output commit as a type: what a port may transmit.

use holdfast_wire::Packet;
use holdfast_wire::checksum::Delta;
use holdfast_wire::fragmentation::Cut;
use holdfast_wire::header::Mac;
use holdfast_wire::rewrite::{Side, adjust_transport, set_address};
use holdfast_wire::vlan::Tags;

/// A value that may leave the system. Every state change that it reveals survives a
/// failure, as far as its protection promises, or it reveals none.
///
/// Ports transmit only `Released<Packet>`. A chain's packet becomes one in two places and
/// nowhere else. A protection commits it, or the manager's fence accepts it from a
/// runtime whose incarnation may still release. Ports of the network between hosts carry
/// packets that have not left: [`Released::inside`].
#[derive(Debug)]
#[must_use = "a released packet is for a port"]
pub struct Released<T>(T);

impl<T> Released<T> {
    /// For protections: the commit rule holds for `inner`.
    pub(crate) fn by_commit(inner: T) -> Released<T> {
        Released(inner)
    }

    /// For packets that no flow's state stands behind. The box's own ARP, neighbour
    /// discovery, ICMP and resets are such, and a packet that opened no flow, on its way
    /// back to its sender. Never for a packet that a chain let pass.
    pub fn stateless(inner: T) -> Released<T> {
        Released(inner)
    }

    /// For frames between the hosts of one box. Their content has not left the box, and
    /// is released, if at all, at the other end.
    pub fn inside(inner: T) -> Released<T> {
        Released(inner)
    }

    /// The value.
    pub fn get(&self) -> &T {
        &self.0
    }

    /// Takes the value out, for the port that transmits it or the pool that its buffer
    /// returns to.
    pub fn into_inner(self) -> T {
        self.0
    }
}

/// Changes of the last hop, which neither reveal nor change what a function decided.
impl Released<Packet> {
    /// Sets the frame's MAC addresses.
    #[inline]
    pub fn set_macs(&mut self, destination: Mac, source: Mac) {
        if let Some(header) = self.0.ethernet_mut() {
            header.destination = destination;
            header.source = source;
        }
    }

    /// Puts the tags of a port's VLAN on the frame. False, with the frame spoiled, if
    /// there is no room for them.
    #[inline]
    #[must_use]
    pub fn put_tags(&mut self, tags: Tags) -> bool {
        tags.put_on(&mut self.0)
    }

    /// Takes one hop off the TTL or hop limit, which is not 0.
    #[inline]
    pub fn decrement_ttl(&mut self) {
        if let Some(ip) = self.0.ipv4_mut() {
            let (old, new) = (ip.ttl, ip.ttl.saturating_sub(1));
            ip.ttl = new;
            ip.checksum = Delta::new()
                .word(u16::from(old) << 8, u16::from(new) << 8)
                .apply(ip.checksum.get())
                .into();
        } else if let Some(ip) = self.0.ipv6_mut() {
            ip.hop_limit = ip.hop_limit.saturating_sub(1);
        }
    }

    /// Sets the source of an ICMP error that the box made to another address of the box.
    /// No change if the address is of another family.
    pub fn set_error_source(&mut self, source: &[u8; 16]) {
        let layers = self.0.layers;
        let bytes = self.0.bytes_mut();
        if let Some(changed) = set_address(bytes, &layers, Side::Source, source) {
            adjust_transport(bytes, &layers, changed, Delta::new());
        }
    }

    /// Writes one of the fragments behind the first into an empty packet. A fragment is
    /// released if the whole packet is.
    ///
    /// # Errors
    /// Gives the empty packet back if the fragment does not fit into it.
    pub fn later_fragment(
        &self,
        cut: &Cut,
        number: usize,
        mut empty: Packet,
    ) -> Result<Released<Packet>, Packet> {
        if cut.write_later(&self.0, number, &mut empty) { Ok(Released(empty)) } else { Err(empty) }
    }

    /// Turns the packet into an answer to its sender, which the box makes in its own name
    /// and which says no more than the packet did.
    ///
    /// # Errors
    /// Gives the packet back, spoiled perhaps, if `make` fails.
    pub fn remade(
        mut self,
        make: impl FnOnce(&mut Packet) -> bool,
    ) -> Result<Released<Packet>, Packet> {
        if make(&mut self.0) { Ok(self) } else { Err(self.0) }
    }

    /// Cuts the packet down to its first fragment, once the others are written.
    pub fn first_fragment(&mut self, cut: &Cut) {
        cut.keep_first(&mut self.0);
    }
}
