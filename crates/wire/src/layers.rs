//! The offsets of a frame's layers.
//!
//! A single pass over the headers, without allocation; every length is checked against
//! the frame's bytes. Views, keys and rewriting trust these offsets.

use crate::header::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, proto};

/// The reasons why a frame cannot be parsed. Each has its own
/// [`DropReason`](crate::DropReason).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than a header that it announces.
    Truncated,
    /// An IP header length or total length that contradicts itself or the frame; a frame
    /// beyond 65,535 bytes.
    BadLength,
    /// An IP version other than the EtherType's.
    BadVersion,
    /// More than two VLAN tags, or an extension header chain longer than allowed.
    TooDeep,
    /// A TCP or UDP header whose length field contradicts the packet.
    BadTransport,
    /// A fragment that is inconsistent: zero length, beyond 65,535 bytes, or not a
    /// multiple of 8 with more to come.
    BadFragment,
}

/// The kind of the network layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Network {
    /// Neither IPv4 nor IPv6 (ARP, or anything else).
    #[default]
    Other,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Offsets from the start of the frame, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layers {
    /// EtherType after VLAN tags.
    pub ethertype: u16,
    /// Start of the network header.
    pub l3: u16,
    /// Start of the transport header (or of the fragment's data).
    pub l4: u16,
    /// End of the IP packet; Ethernet padding may follow.
    pub end: u16,
    /// IP version.
    pub network: Network,
    /// Protocol after extension headers, 0 if not IP.
    pub protocol: u8,
    /// The packet is a fragment.
    pub fragment: bool,
    /// Fragment offset in bytes.
    pub fragment_offset: u16,
    /// More fragments follow.
    pub more_fragments: bool,
    /// Offset of the IPv6 fragment header, 0 if there is none.
    pub v6_fragment: u16,
    /// A source route is present: IPv4 LSRR or SSRR, or an IPv6 routing header that leads
    /// on.
    pub source_route: bool,
    /// The number of VLAN tags.
    pub vlan_tags: u8,
}

/// Types of IPv6 routing headers that lead a packet on past the destination that its
/// header names, and so past rules for this destination: 0 (RFC 5095), 2 (mobile nodes:
/// RFC 6275, section 6.4), 3 (RPL: RFC 6554) and 4 (segment routing: RFC 8754).
const SOURCE_ROUTES: [u8; 4] = [0, 2, 3, 4];

/// Types for experiments (RFC 4727), without meaning for hosts outside the experiment.
const EXPERIMENTS: [u8; 2] = [253, 254];

/// True for a routing header that leads a packet on. A header of an unknown type does so
/// while it has segments left; with none left, no node has to know the type (RFC 8200,
/// section 4.4).
fn leads_on(kind: u8, segments_left: u8) -> bool {
    SOURCE_ROUTES.contains(&kind) || segments_left != 0 && !EXPERIMENTS.contains(&kind)
}

/// Maximum number of extension headers of one IPv6 packet.
pub const MAX_EXTENSION_HEADERS: usize = 8;

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// An offset. No buffer and no IP packet is longer than it can say.
fn offset(len: usize) -> Result<u16, Malformed> {
    u16::try_from(len).map_err(|_| Malformed::BadLength)
}

impl Layers {
    /// The offsets of an Ethernet frame.
    ///
    /// # Errors
    /// The contradiction in the frame. A frame that is not IP parses, with
    /// [`Network::Other`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Layers, Malformed> {
        let mut layers = Layers::default();
        layers.fill(frame)?;
        Ok(layers)
    }

    /// As [`Layers::parse`], in place: a copy of the whole right after many small writes
    /// would stall on them.
    #[inline]
    pub(crate) fn fill(&mut self, frame: &[u8]) -> Result<(), Malformed> {
        let layers = self;
        *layers = Layers { end: offset(frame.len())?, ..Layers::default() };
        let mut at = 12;
        let mut ethertype = be16(frame, at).ok_or(Malformed::Truncated)?;
        while ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ {
            if layers.vlan_tags == 2 {
                return Err(Malformed::TooDeep);
            }
            layers.vlan_tags += 1;
            at += 4;
            ethertype = be16(frame, at).ok_or(Malformed::Truncated)?;
        }
        layers.ethertype = ethertype;
        layers.l3 = (at + 2) as u16;
        layers.l4 = layers.l3;
        match ethertype {
            ETHERTYPE_IPV4 => layers.ipv4(frame)?,
            ETHERTYPE_IPV6 => layers.ipv6(frame)?,
            _ => {}
        }
        Ok(())
    }

    /// The offsets of an IP packet without a frame (quoted by an ICMP error), which may
    /// be cut short after its first 8 bytes of payload.
    ///
    /// # Errors
    /// As [`Layers::parse`], except that a cut payload is no error.
    pub fn parse_quoted(packet: &[u8]) -> Result<Layers, Malformed> {
        let mut layers = Layers { end: offset(packet.len())?, ..Layers::default() };
        match packet.first().ok_or(Malformed::Truncated)? >> 4 {
            4 => {
                layers.ethertype = ETHERTYPE_IPV4;
                layers.ipv4_header(packet, true)?;
            }
            6 => {
                layers.ethertype = ETHERTYPE_IPV6;
                layers.ipv6_header(packet, true)?;
            }
            _ => return Err(Malformed::BadVersion),
        }
        Ok(layers)
    }

    /// Bytes of the IP packet's payload after the transport offset.
    pub fn l4_len(&self) -> usize {
        self.end.saturating_sub(self.l4) as usize
    }

    /// True if the transport header is in this packet: not a fragment, or the first one.
    pub fn has_transport(&self) -> bool {
        self.network != Network::Other && self.fragment_offset == 0
    }

    #[inline]
    fn ipv4(&mut self, frame: &[u8]) -> Result<(), Malformed> {
        self.ipv4_header(frame, false)?;
        self.transport(frame)
    }

    #[inline]
    fn ipv4_header(&mut self, frame: &[u8], quoted: bool) -> Result<(), Malformed> {
        let l3 = self.l3 as usize;
        let header = frame.get(l3..l3 + 20).ok_or(Malformed::Truncated)?;
        if header[0] >> 4 != 4 {
            return Err(Malformed::BadVersion);
        }
        let header_len = (header[0] & 0x0f) as usize * 4;
        let total = u16::from_be_bytes([header[2], header[3]]) as usize;
        if header_len < 20 || total < header_len {
            return Err(Malformed::BadLength);
        }
        if l3 + header_len > frame.len() {
            return Err(Malformed::Truncated);
        }
        if l3 + total > frame.len() {
            if !quoted {
                return Err(Malformed::Truncated);
            }
        } else {
            self.end = (l3 + total) as u16;
        }
        self.network = Network::V4;
        self.protocol = header[9];
        self.l4 = (l3 + header_len) as u16;
        let fragment = u16::from_be_bytes([header[6], header[7]]);
        self.more_fragments = fragment & 0x2000 != 0;
        self.fragment_offset = (fragment & 0x1fff) << 3;
        self.fragment = self.more_fragments || self.fragment_offset != 0;
        if header_len > 20 {
            self.source_route = ipv4_source_route(&frame[l3 + 20..l3 + header_len])?;
        }
        if self.fragment && !quoted {
            self.check_fragment(total - header_len, (fragment & 0x1fff) as usize * 8)?;
        }
        Ok(())
    }

    fn check_fragment(&self, len: usize, offset: usize) -> Result<(), Malformed> {
        let beyond = offset + len > u16::MAX as usize;
        if len == 0 || beyond || (self.more_fragments && !len.is_multiple_of(8)) {
            return Err(Malformed::BadFragment);
        }
        Ok(())
    }

    fn ipv6(&mut self, frame: &[u8]) -> Result<(), Malformed> {
        self.ipv6_header(frame, false)?;
        self.transport(frame)
    }

    fn ipv6_header(&mut self, frame: &[u8], quoted: bool) -> Result<(), Malformed> {
        let l3 = self.l3 as usize;
        let header = frame.get(l3..l3 + 40).ok_or(Malformed::Truncated)?;
        if header[0] >> 4 != 6 {
            return Err(Malformed::BadVersion);
        }
        let payload = u16::from_be_bytes([header[4], header[5]]) as usize;
        if l3 + 40 + payload > frame.len() {
            if !quoted {
                return Err(Malformed::Truncated);
            }
        } else {
            self.end = (l3 + 40 + payload) as u16;
        }
        self.network = Network::V6;
        let limit = self.end as usize;
        let mut next = header[6];
        let mut at = l3 + 40;
        for _ in 0..=MAX_EXTENSION_HEADERS {
            match next {
                proto::HOP_BY_HOP | proto::ROUTING | proto::DESTINATION_OPTIONS => {
                    if at + 8 > limit {
                        return Err(Malformed::Truncated);
                    }
                    if next == proto::ROUTING && leads_on(frame[at + 2], frame[at + 3]) {
                        self.source_route = true;
                    }
                    next = frame[at];
                    at += (frame[at + 1] as usize + 1) * 8;
                    if at > limit {
                        return Err(Malformed::Truncated);
                    }
                }
                proto::FRAGMENT => {
                    if at + 8 > limit {
                        return Err(Malformed::Truncated);
                    }
                    if self.v6_fragment != 0 {
                        return Err(Malformed::BadFragment);
                    }
                    self.v6_fragment = at as u16;
                    let field = u16::from_be_bytes([frame[at + 2], frame[at + 3]]);
                    self.more_fragments = field & 1 != 0;
                    self.fragment_offset = field & 0xfff8;
                    // An atomic fragment (RFC 6946) is a whole packet.
                    self.fragment = self.more_fragments || self.fragment_offset != 0;
                    next = frame[at];
                    at += 8;
                    if self.fragment && !quoted {
                        self.check_fragment(limit - at, self.fragment_offset as usize)?;
                    }
                    if self.fragment_offset != 0 {
                        self.protocol = next;
                        self.l4 = at as u16;
                        return Ok(());
                    }
                }
                _ => {
                    self.protocol = next;
                    self.l4 = at as u16;
                    return Ok(());
                }
            }
        }
        Err(Malformed::TooDeep)
    }

    /// Checks that the transport header of a first (or only) fragment is whole.
    #[inline]
    fn transport(&mut self, frame: &[u8]) -> Result<(), Malformed> {
        if self.fragment_offset != 0 {
            return Ok(());
        }
        let l4 = self.l4 as usize;
        let have = self.l4_len();
        match self.protocol {
            proto::TCP => {
                if have < 20 {
                    return Err(Malformed::Truncated);
                }
                let len = (frame[l4 + 12] >> 4) as usize * 4;
                if len < 20 || len > have {
                    return Err(Malformed::BadTransport);
                }
            }
            proto::UDP => {
                if have < 8 {
                    return Err(Malformed::Truncated);
                }
                let len = u16::from_be_bytes([frame[l4 + 4], frame[l4 + 5]]) as usize;
                if len < 8 || (!self.fragment && len > have) {
                    return Err(Malformed::BadTransport);
                }
            }
            proto::ICMP | proto::ICMPV6 if have < 8 => return Err(Malformed::Truncated),
            _ => {}
        }
        Ok(())
    }
}

/// True if options (RFC 791) hold a loose or strict source route.
fn ipv4_source_route(options: &[u8]) -> Result<bool, Malformed> {
    let mut at = 0;
    let mut found = false;
    while at < options.len() {
        match options[at] {
            0 => break,
            1 => at += 1,
            kind => {
                let len = *options.get(at + 1).ok_or(Malformed::BadLength)? as usize;
                if len < 2 || at + len > options.len() {
                    return Err(Malformed::BadLength);
                }
                found |= kind == 131 || kind == 137;
                at += len;
            }
        }
    }
    Ok(found)
}
