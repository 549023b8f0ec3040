//! Which flow a later fragment belongs to.
//!
//! The switch sends a datagram's first fragment ahead of the others, so all that is needed here is a short memory of first
//! fragments. It is a cache: what it forgets costs a datagram, never a flow.

use holdfast_wire::{FlowKey, Network, Packet};

const ENTRIES: usize = 1024;
/// RFC 791 leaves the reassembly time to the receiver; fragments of one datagram that are further apart are not waited for.
const LIFETIME: u64 = 5_000_000_000;

/// What the fragments of one datagram have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Datagram {
    source: [u8; 16],
    destination: [u8; 16],
    id: u32,
    protocol: u8,
    ingress: u8,
}

impl Datagram {
    fn of(packet: &Packet) -> Option<Datagram> {
        let layers = &packet.layers;
        let (source, destination, id) = match layers.network {
            Network::V4 => {
                let header = packet.ipv4()?;
                (holdfast_wire::map_v4(header.source), holdfast_wire::map_v4(header.destination), u32::from(header.id.get()))
            }
            Network::V6 => {
                let header = packet.ipv6()?;
                let at = layers.v6_fragment as usize;
                let id = packet.bytes().get(at + 4..at + 8)?;
                (header.source, header.destination, u32::from_be_bytes([id[0], id[1], id[2], id[3]]))
            }
            Network::Other => return None,
        };
        Some(Datagram { source, destination, id, protocol: layers.protocol, ingress: packet.meta.ingress })
    }

    fn place(&self) -> usize {
        let key = FlowKey { source: self.source, destination: self.destination, ..FlowKey::default() };
        key.hash(u64::from(self.id) << 16 | u64::from(self.protocol) << 8 | u64::from(self.ingress)) as usize % ENTRIES
    }
}

/// See the module.
pub(crate) struct FragmentKeys {
    entries: Vec<(Datagram, FlowKey, u64)>,
}

impl FragmentKeys {
    pub(crate) fn new() -> FragmentKeys {
        FragmentKeys { entries: vec![(Datagram::default(), FlowKey::default(), 0); ENTRIES] }
    }

    /// The flow key of a fragment; a first fragment is remembered for those that follow.
    pub(crate) fn identify(&mut self, packet: &Packet, now: u64) -> Option<FlowKey> {
        let datagram = Datagram::of(packet)?;
        let entry = &mut self.entries[datagram.place()];
        if packet.layers.fragment_offset == 0 {
            let key = FlowKey::of(packet)?;
            *entry = (datagram, key, now + LIFETIME);
            return Some(key);
        }
        (entry.0 == datagram && now <= entry.2).then_some(entry.1)
    }
}
