//! The format of a fabric message frame.

use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use holdfast_wire::header::ETHERTYPE_FABRIC;
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header after the Ethernet header. In a sealed frame all of it but the tag is
/// associated data, and the records after it are encrypted.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    pub(super) magic: U16,
    pub(super) version: u8,
    pub(super) flags: u8,
    pub(super) cluster: U32,
    pub(super) source: U16,
    pub(super) destination: U16,
    pub(super) source_incarnation: U32,
    /// The receiver's incarnation. 0: the sender does not know it and asks for it.
    pub(super) destination_incarnation: U32,
    /// The frame's number, from 1, and after 2^32 of them from 0. In a frame that [only
    /// acknowledges](ONLY_ACKNOWLEDGES): the low half of the counter of a frame that
    /// [asked](ASKS) for it, or 0.
    pub(super) sequence: U32,
    /// The next number that the sender expects from its peer.
    pub(super) acknowledgement: U32,
    /// Bit n: the frame `acknowledgement + 1 + n` has arrived.
    pub(super) selective: U64,
    /// Frames from `acknowledgement` on that the sender has room for.
    pub(super) credit: U16,
    /// Bytes of records after this header.
    pub(super) length: U16,
    /// Number of the cluster key under which the frame is sealed.
    pub(super) key: u8,
    pub(super) reserved: [u8; 3],
    /// Frames that the sender has sent to any node, including this one. A repeated frame
    /// has a new counter. The counter orders acknowledgements and credits, and is the
    /// nonce of a sealed frame.
    pub(super) counter: U64,
    /// The sender's life number; 0 without keys.
    pub(super) source_life: U64,
    /// The receiver's life number; 0 if the sender does not know it, and without keys.
    pub(super) destination_life: U64,
    /// The AEAD's tag; 0 without keys.
    pub(super) tag: [u8; TAG_LEN],
}

pub(crate) const MAGIC: u16 = 0x4846;
pub(super) const VERSION: u8 = 7;
/// Flag: the frame has no number and no records. A flag is needed because every number is
/// some frame's.
pub(super) const ONLY_ACKNOWLEDGES: u8 = 1;
/// Flag: the receiver repeats this frame's counter. Only frames that only acknowledge
/// carry it.
pub(super) const ASKS: u8 = 4;
/// Flag: the frame is sealed.
pub(super) const SEALED: u8 = 2;
pub(super) const ETHERNET_LEN: usize = 14;
pub(crate) const TAG_LEN: usize = 16;
pub(super) const HEADER_LEN: usize = size_of::<Header>();
/// Bytes of the header that the tag authenticates.
pub(super) const ASSOCIATED_LEN: usize = HEADER_LEN - TAG_LEN;
/// Bytes of a record's kind and length.
pub(super) const RECORD_HEADER_LEN: usize = 3;
/// The kind of a record that is a part of a longer one. The record's own kind (1 byte)
/// follows, its place (1), and the part's bytes.
pub(super) const PART: u8 = u8::MAX;
/// Flags of a part's place: the first, the last. A part in the middle has neither.
pub(super) const FIRST_PART: u8 = 2;
pub(super) const LAST_PART: u8 = 1;
/// Bytes before a part's content.
pub(super) const PART_HEADER_LEN: usize = 2;

/// The receiver of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Destination {
    pub(super) node: NodeId,
    /// 0 if unknown.
    pub(super) incarnation: u32,
    /// The life number. 0 if unknown, and without keys.
    pub(super) life: u64,
}

/// Acknowledgement and credit that a frame tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) acknowledgement: u32,
    pub(super) selective: u64,
    pub(super) credit: u16,
}

/// Writes a frame, without a number if it only acknowledges. [`refresh`] completes it.
pub(super) fn write(
    bytes: &mut Vec<u8>,
    me: Peer,
    to: NodeId,
    cluster: u32,
    sequence: Option<u32>,
    records: &[u8],
) {
    bytes.clear();
    bytes.reserve(ETHERNET_LEN + HEADER_LEN + records.len());
    bytes.extend_from_slice(&to.mac());
    bytes.extend_from_slice(&me.node.mac());
    bytes.extend_from_slice(&ETHERTYPE_FABRIC.to_be_bytes());
    let header = Header {
        magic: MAGIC.into(),
        version: VERSION,
        flags: if sequence.is_none() { ONLY_ACKNOWLEDGES } else { 0 },
        cluster: cluster.into(),
        source: me.node.get().into(),
        destination: to.get().into(),
        source_incarnation: me.incarnation.into(),
        destination_incarnation: 0.into(),
        sequence: sequence.unwrap_or(0).into(),
        acknowledgement: 0.into(),
        selective: 0.into(),
        credit: 0.into(),
        length: (records.len() as u16).into(),
        key: 0,
        reserved: [0; 3],
        counter: 0.into(),
        source_life: 0.into(),
        destination_life: 0.into(),
        tag: [0; TAG_LEN],
    };
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(records);
}

/// Makes a frame that only acknowledges repeat this counter, unless it is 0, and ask for
/// its own.
pub(super) fn say_back(bytes: &mut [u8], counter: u32, asks: bool) {
    if let Ok((header, _)) = Header::mut_from_prefix(&mut bytes[ETHERNET_LEN..]) {
        header.sequence = counter.into();
        header.flags |= if asks { ASKS } else { 0 };
    }
}

/// Writes the fields that change from one transmission of a frame to the next.
pub(super) fn refresh(bytes: &mut [u8], to: Destination, answer: Answer, counter: u64) {
    if let Ok((header, _)) = Header::mut_from_prefix(&mut bytes[ETHERNET_LEN..]) {
        header.destination_incarnation = to.incarnation.into();
        header.destination_life = to.life.into();
        header.acknowledgement = answer.acknowledgement.into();
        header.selective = answer.selective.into();
        header.credit = answer.credit.into();
        header.counter = counter.into();
    }
}

/// The end of the records that fit into `limit` bytes.
pub(super) fn gather(queue: &[u8], from: usize, limit: usize) -> usize {
    let mut end = from;
    while let Some(header) = queue.get(end..end + RECORD_HEADER_LEN) {
        let next = end + RECORD_HEADER_LEN + u16::from_be_bytes([header[1], header[2]]) as usize;
        if next - from > limit {
            break;
        }
        end = next;
    }
    end
}

/// True if these bytes are whole records and nothing else.
pub(super) fn are_records(bytes: &[u8]) -> bool {
    gather(bytes, 0, bytes.len()) == bytes.len()
}

/// A reader of frames that are not sealed: for traces, and for worlds that fail when a
/// certain message passes.
#[derive(Debug, Clone, Copy)]
pub struct Overheard<'a> {
    /// The sender.
    pub source: Peer,
    /// The receiver. Incarnation 0: the sender does not know it yet.
    pub destination: Peer,
    /// The frame's number.
    pub sequence: u32,
    /// The number that the sender expects next.
    pub acknowledgement: u32,
    records: &'a [u8],
}

impl<'a> Overheard<'a> {
    /// Reads a frame. `None` if it carries no messages, is sealed, or is not whole.
    pub fn read(frame: &'a [u8]) -> Option<Overheard<'a>> {
        let (ethernet, rest) = frame.split_at_checked(ETHERNET_LEN)?;
        let (header, records) = Header::ref_from_prefix(rest).ok()?;
        let is_ours = ethernet[12..] == ETHERTYPE_FABRIC.to_be_bytes()
            && header.magic.get() == MAGIC
            && header.version == VERSION;
        let records = records.get(..usize::from(header.length.get()))?;
        let is_readable = is_ours && header.flags & SEALED == 0 && are_records(records);
        is_readable.then(|| Overheard {
            source: Peer {
                node: NodeId::new(header.source.get()),
                incarnation: header.source_incarnation.get(),
            },
            destination: Peer {
                node: NodeId::new(header.destination.get()),
                incarnation: header.destination_incarnation.get(),
            },
            sequence: header.sequence.get(),
            acknowledgement: header.acknowledgement.get(),
            records,
        })
    }

    /// Kind and body of each record.
    pub fn records(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let mut rest = self.records;
        core::iter::from_fn(move || {
            let (&[kind, high, low], behind) = rest.split_first_chunk::<RECORD_HEADER_LEN>()?;
            let (body, behind) =
                behind.split_at_checked(usize::from(u16::from_be_bytes([high, low])))?;
            rest = behind;
            Some((kind, body))
        })
    }
}

/// True if `a` comes after `b`, for numbers that begin anew after the last.
pub(crate) fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}
