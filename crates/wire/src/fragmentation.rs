//! Cuts an IPv4 packet into fragments, as a router does (RFC 791, section 3.2; RFC 1812,
//! section 4.2.2.7).
//!
//! In: a parsed packet, an MTU. Out: the fewest possible fragments, each in a buffer of
//! the caller's. The packet's own buffer becomes the first fragment, with all options;
//! later fragments have the options that are for every fragment.

use crate::header::Ipv4;
use crate::{Layers, Packet};
use zerocopy::FromBytes;

const FIXED: usize = 20;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE: u16 = 0x2000;

/// The plan for cutting a packet.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    layers: Layers,
    /// Options of all fragments but the first.
    options: [u8; 40],
    options_len: usize,
    /// Bytes of data: in the packet, in the first fragment, in a middle fragment, and the
    /// most in the last.
    data: usize,
    first: usize,
    between: usize,
    last: usize,
    /// Flags and offset of the packet itself, which may be a fragment.
    field: u16,
}

/// True if the packet is IPv4 and its sender allows fragmentation.
pub fn may_cut(packet: &Packet) -> bool {
    packet.ipv4().is_some_and(|ip| ip.flags_fragment.get() & DONT_FRAGMENT == 0)
}

impl Cut {
    /// Plans to cut a packet that is longer than `mtu`. `None` if this is not allowed or
    /// not possible: malformed options, an MTU without room for 8 bytes of data, a packet
    /// that fits.
    pub fn new(packet: &Packet, mtu: u16) -> Option<Cut> {
        if !may_cut(packet) {
            return None;
        }
        let (layers, mtu) = (packet.layers, usize::from(mtu));
        let field = packet.ipv4()?.flags_fragment.get();
        let header = packet.bytes().get(usize::from(layers.l3)..usize::from(layers.l4))?;
        let (options, options_len) = copied_options(header.get(FIXED..)?)?;
        let data = layers.l4_len();
        let last = mtu.checked_sub(FIXED + options_len)?;
        let (first, between) = (mtu.checked_sub(header.len())? & !7, last & !7);
        (first > 0 && header.len() + data > mtu).then_some(Cut {
            layers,
            options,
            options_len,
            data,
            first,
            between,
            last,
            field,
        })
    }

    /// The number of fragments after the first.
    pub fn later(&self) -> usize {
        let behind = self.data.saturating_sub(self.first);
        1 + behind.saturating_sub(self.last).div_ceil(self.between)
    }

    /// Writes the later fragment `number`, from 0, of a packet that is still whole. False
    /// if it does not fit into its buffer.
    #[must_use]
    pub fn write_later(&self, whole: &Packet, number: usize, fragment: &mut Packet) -> bool {
        fragment.clear();
        self.try_later(whole, number, fragment).is_some()
    }

    fn try_later(&self, whole: &Packet, number: usize, fragment: &mut Packet) -> Option<()> {
        let at = self.first + number.checked_mul(self.between)?;
        let rest = self.data.checked_sub(at)?;
        let is_last = rest <= self.last;
        let len = if is_last { rest } else { self.between };
        let (l3, l4) = (usize::from(self.layers.l3), usize::from(self.layers.l4));
        let header = l3 + FIXED + self.options_len;
        let data = whole.bytes().get(l4 + at..l4 + at + len)?;
        let front = whole.bytes().get(..l3 + FIXED)?;
        let frame = fragment.extend_back(header + len)?;
        frame[..l3 + FIXED].copy_from_slice(front);
        frame[l3 + FIXED..header].copy_from_slice(&self.options[..self.options_len]);
        frame[header..].copy_from_slice(data);
        fragment.meta = whole.meta;
        self.finish(fragment, header, at, len, !is_last)
    }

    /// Makes the packet the first of its fragments.
    pub fn keep_first(&self, whole: &mut Packet) {
        let header = usize::from(self.layers.l4);
        whole.truncate(header + self.first);
        // The packet is as long as when the cut was planned, or longer.
        let _ = self.finish(whole, header, 0, self.first, true);
    }

    /// Sets the header fields of a fragment: `len` bytes behind `header`, from `at` on.
    fn finish(
        &self,
        fragment: &mut Packet,
        header: usize,
        at: usize,
        len: usize,
        more: bool,
    ) -> Option<()> {
        let l3 = usize::from(self.layers.l3);
        let field = (self.field + u16::try_from(at / 8).ok()?) | if more { MORE } else { 0 };
        let bytes = fragment.bytes_mut().get_mut(l3..header)?;
        let (ip, _) = Ipv4::mut_from_prefix(bytes).ok()?;
        ip.version_ihl = 0x40 | ((header - l3) / 4) as u8;
        ip.total_len = u16::try_from(header - l3 + len).ok()?.into();
        ip.flags_fragment = field.into();
        ip.checksum = 0.into();
        let sum = crate::checksum::checksum(bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        fragment.layers = Layers {
            l4: header as u16,
            end: (header + len) as u16,
            fragment: true,
            fragment_offset: self.layers.fragment_offset.saturating_add(at as u16),
            more_fragments: field & MORE != 0,
            ..self.layers
        };
        Some(())
    }
}

/// The options for every fragment, padded to whole words (RFC 791, section 3.1: the flag
/// in their type). `None` if they are malformed.
fn copied_options(mut options: &[u8]) -> Option<([u8; 40], usize)> {
    const COPIED: u8 = 0x80;
    let (mut copied, mut len) = ([0; 40], 0);
    while let Some(&kind) = options.first() {
        let size = match kind {
            0 => break,
            1 => 1,
            _ => usize::from(*options.get(1)?),
        };
        if size == 0 || (kind != 1 && size < 2) {
            return None;
        }
        let option = options.get(..size)?;
        if kind & COPIED != 0 {
            copied.get_mut(len..len + size)?.copy_from_slice(option);
            len += size;
        }
        options = &options[size..];
    }
    Some((copied, len.next_multiple_of(4)))
}
