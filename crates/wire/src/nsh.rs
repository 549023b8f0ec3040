//! The data encapsulation of the fabric: Ethernet + NSH, MD type 1 (RFC 8300, section 2).
//!
//! The service path is the chain; the service index gives the packet's position
//! ([`index`]); the 16 context bytes carry [`Meta`]: stamp (8), ingress port (1), switch
//! (1), epoch (2), commit (4). Flags use two places that RFC 8300 leaves: the O bit marks
//! an in-band protocol packet; the others are in the upper byte of the 24-bit service
//! path. The next four bits are the priority with which the packet came in; a chain needs
//! the lower twelve.

use crate::header::{ETHERTYPE_NSH, Mac};
use crate::packet::{Meta, Packet};

/// Bytes that [`encapsulate`] puts in front of a frame: Ethernet 14, base and service
/// path 8, context 16.
pub const ENCAPSULATION_LEN: usize = 38;

/// Chains are numbered below this.
pub const MAX_CHAINS: u16 = 1 << CHAIN_BITS;
const CHAIN_BITS: u32 = 12;
/// The bits of a priority: PCP and DEI.
const PRIORITY: u8 = 0x0f;

/// Bits of [`Meta::flags`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags;

impl Flags {
    /// The packet has no route yet: its runtime may open a flow for it.
    pub const NEW: u8 = 1;
    /// On release: the switch does not know the reply's key yet, and learns it from this
    /// packet.
    pub const LEARN: u8 = 2;
    /// Report every step of this packet (per-packet trace).
    pub const TRACE: u8 = 4;
    /// The packet was sent before, to a runtime that has failed since. Replayed, it may
    /// not leave a second time.
    pub const REPLAY: u8 = 16;
    /// With [`Flags::REPLAY`]: a process ended while it processed this packet. After
    /// several, the packet is sent without content.
    pub const SUSPECT: u8 = 32;
    /// An in-band protocol packet, not traffic: NSH's O bit.
    pub const OAM: u8 = 8;
    /// On release: the chain has refused this packet, which is as it came in. The sender
    /// is to be told.
    pub const TURNED: u8 = 64;
    /// The box's own ICMP error about a packet that a chain had changed, on its way
    /// through that chain.
    pub const OWN: u8 = 128;
}

/// The position of a packet: values of the NSH service index.
pub mod index {
    /// From the switch to the runtime that owns the flow.
    pub const TO_RUNTIME: u8 = 255;
    /// From the flow's runtime to the replica that releases it.
    pub const TO_REPLICA: u8 = 254;
    /// Released, on the way to the port.
    pub const RELEASED: u8 = 253;
    /// An in-band mark, numbered by [`Meta::commit`](crate::Meta::commit). From the
    /// switch: no more packets follow on an old route. From a flow's runtime to a
    /// replica: no more packets that were handed over before.
    pub const MARK: u8 = 250;
    /// In-band notice to a runtime: the incarnation in
    /// [`Meta::commit`](crate::Meta::commit) is fenced.
    pub const FENCED: u8 = 251;
    /// A probe between managers of hosts that two networks join.
    /// [`Meta::ingress`](crate::Meta::ingress) is the network by which it was sent;
    /// [`Meta::commit`](crate::Meta::commit) has a bit for each of its own networks by
    /// which the receiver has been heard.
    pub const PROBE: u8 = 249;
}

/// The encapsulation's fields besides [`Meta`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outer {
    /// The receiving node.
    pub destination: Mac,
    /// The sending node.
    pub source: Mac,
    /// The packet's position; see [`index`].
    pub index: u8,
}

/// Puts the encapsulation in front of the frame. Returns false, and changes nothing, if
/// the headroom is used up.
#[inline(always)]
#[must_use]
pub fn encapsulate(packet: &mut Packet, outer: Outer) -> bool {
    let meta = packet.meta;
    let Some(header) = packet.push_front(ENCAPSULATION_LEN) else { return false };
    let header: &mut [u8; ENCAPSULATION_LEN] =
        header.try_into().expect("push_front gives what was asked for");
    header[0..6].copy_from_slice(&outer.destination);
    header[6..12].copy_from_slice(&outer.source);
    header[12..14].copy_from_slice(&ETHERTYPE_NSH.to_be_bytes());
    // Version 0, O bit, TTL 63 over both bytes, length 6 words.
    let oam = if meta.flags & Flags::OAM != 0 { 0x2000u16 } else { 0 };
    header[14..16].copy_from_slice(&(oam | 63 << 6 | 6).to_be_bytes());
    header[16] = 1; // MD type 1
    header[17] = 3; // next protocol: Ethernet
    let priority = u16::from(meta.priority & PRIORITY) << CHAIN_BITS;
    let low = priority | (meta.chain % MAX_CHAINS);
    let path = u32::from(meta.flags & !Flags::OAM) << 16 | u32::from(low);
    header[18..22].copy_from_slice(&(path << 8 | u32::from(outer.index)).to_be_bytes());
    header[22..30].copy_from_slice(&meta.stamp.to_be_bytes());
    header[30] = meta.ingress;
    header[31] = meta.switch;
    header[32..34].copy_from_slice(&meta.epoch.to_be_bytes());
    header[34..38].copy_from_slice(&meta.commit.to_be_bytes());
    true
}

/// Takes the encapsulation off: fills [`Packet::meta`] and leaves the inner frame.
/// Returns `None`, and changes nothing, if this is not NSH as [`encapsulate`] writes it.
#[inline]
pub fn decapsulate(packet: &mut Packet) -> Option<Outer> {
    let header: &[u8; ENCAPSULATION_LEN] =
        packet.bytes().get(..ENCAPSULATION_LEN)?.try_into().ok()?;
    if header[12..14] != ETHERTYPE_NSH.to_be_bytes() || header[16] != 1 || header[17] != 3 {
        return None;
    }
    let base = u16::from_be_bytes([header[14], header[15]]);
    if base >> 14 != 0 || base & 0x3f != 6 {
        return None;
    }
    let path = u32::from_be_bytes([header[18], header[19], header[20], header[21]]);
    let oam = if base & 0x2000 != 0 { Flags::OAM } else { 0 };
    let meta = Meta {
        stamp: u64::from_be_bytes(header[22..30].try_into().ok()?),
        ingress: header[30],
        switch: header[31],
        chain: (path >> 8) as u16 % MAX_CHAINS,
        priority: (path >> 8 >> CHAIN_BITS) as u8 & PRIORITY,
        flags: (path >> 24) as u8 & !Flags::OAM | oam,
        epoch: u16::from_be_bytes([header[32], header[33]]),
        commit: u32::from_be_bytes(header[34..38].try_into().ok()?),
    };
    let outer = Outer {
        destination: header[0..6].try_into().ok()?,
        source: header[6..12].try_into().ok()?,
        index: path as u8,
    };
    packet.meta = meta;
    packet.pull_front(ENCAPSULATION_LEN).then_some(outer)
}
