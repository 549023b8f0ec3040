//! VLAN tags of ports that share a device (IEEE 802.1Q-2018, clauses 6.9 and 9).
//!
//! Theory of operation. A port's frames have no tag, a customer tag (EtherType 0x8100),
//! or a service tag (0x88a8) around a customer tag (QinQ). The driver of the device reads
//! the tags of a frame that came in, finds the port, and takes the tags off. What is left
//! is a frame as an untagged port has it: without a tag, or with a priority tag (VLAN 0)
//! that keeps priority and drop eligibility. Such a frame gets the port's tags on its way
//! out. So nothing behind the driver knows a port's VLAN.
//!
//! In: frames. Out: frames. Never: a tag of another EtherType (0x9100 is none); a third
//! tag.

use crate::header::{ETHERTYPE_QINQ, ETHERTYPE_VLAN};
use crate::{DropReason, Packet};
use core::fmt;

/// The bits of a tag's control information with the VLAN identifier (clause 9.6). The
/// others are the priority (PCP, three bits) and drop eligibility (DEI).
pub const ID: u16 = 0x0fff;

/// The largest VLAN identifier; 0 is a priority tag's, and 4095 is reserved (clause 9.6,
/// table 9-2).
pub const MAX_ID: u16 = 4094;

/// The tags of a port's frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tags {
    /// The service tag's VLAN; 0 without one.
    outer: u16,
    /// The customer tag's VLAN; 0 for untagged frames.
    inner: u16,
}

impl Tags {
    /// Frames without a tag, and those with a priority tag.
    pub const NONE: Tags = Tags { outer: 0, inner: 0 };

    /// The tags with these VLAN identifiers, the outer one first: none, one or two, each
    /// from 1 to [`MAX_ID`].
    pub fn new(ids: &[u16]) -> Option<Tags> {
        if !ids.iter().all(|id| (1..=MAX_ID).contains(id)) {
            return None;
        }
        match *ids {
            [] => Some(Tags::NONE),
            [inner] => Some(Tags { outer: 0, inner }),
            [outer, inner] => Some(Tags { outer, inner }),
            _ => None,
        }
    }

    /// The VLAN identifiers, the outer one first.
    pub fn ids(self) -> impl Iterator<Item = u16> {
        [self.outer, self.inner].into_iter().filter(|id| *id != 0)
    }

    /// The same tags with another VLAN in the innermost.
    #[must_use]
    pub fn with_inner(self, inner: u16) -> Tags {
        Tags { inner, ..self }
    }

    /// The tags of a frame as it came in. What is behind a priority tag is not looked at.
    ///
    /// # Errors
    /// The frame ends before its tags do, or has tags that no port can have.
    #[inline]
    pub fn read(frame: &[u8]) -> Result<Tags, DropReason> {
        let word = |at: usize| match frame.get(at..at + 2) {
            Some(&[high, low]) => Ok(u16::from_be_bytes([high, low])),
            _ => Err(DropReason::Truncated),
        };
        let is_tag = |ethertype| matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ);
        match word(12)? {
            ETHERTYPE_VLAN => {
                let inner = word(14)? & ID;
                if inner == 0 {
                    return Ok(Tags::NONE);
                }
                if is_tag(word(16)?) {
                    return Err(DropReason::UnknownVlan);
                }
                Ok(Tags { outer: 0, inner })
            }
            ETHERTYPE_QINQ => {
                let outer = word(14)? & ID;
                if outer == 0 || word(16)? != ETHERTYPE_VLAN {
                    return Err(DropReason::UnknownVlan);
                }
                let inner = word(18)? & ID;
                if inner == 0 || is_tag(word(20)?) {
                    return Err(DropReason::UnknownVlan);
                }
                Ok(Tags { outer, inner })
            }
            _ => Ok(Tags::NONE),
        }
    }

    /// Takes these tags off a frame that [`Tags::read`] found them in. The outer one's
    /// priority stays, in a priority tag.
    #[inline]
    pub fn take_off(self, packet: &mut Packet) {
        if self == Tags::NONE {
            return;
        }
        let priority = packet.bytes()[14] & !((ID >> 8) as u8);
        if self.outer != 0 {
            // The frame has two tags.
            let _ = packet.pull_tag();
        }
        packet.headers_mut()[14..16].copy_from_slice(&[priority, 0]);
    }

    /// Puts these tags on a frame that has no tag, or one customer tag with the priority
    /// for all. A VLAN in that tag stays, in place of the port's own. The layers keep
    /// their old offsets. Returns false, with the frame spoiled, if there is no room.
    #[inline]
    #[must_use]
    pub fn put_on(self, packet: &mut Packet) -> bool {
        if self == Tags::NONE {
            return true;
        }
        let is_tagged = packet.bytes().get(12..14) == Some(&ETHERTYPE_VLAN.to_be_bytes());
        if !is_tagged && !packet.push_tag(ETHERTYPE_VLAN, 0) {
            return false;
        }
        let Some(control) = packet.headers_mut().get_mut(14..16) else { return false };
        let mut value = u16::from_be_bytes([control[0], control[1]]);
        if value & ID == 0 {
            value |= self.inner;
            control.copy_from_slice(&value.to_be_bytes());
        }
        self.outer == 0 || packet.push_tag(ETHERTYPE_QINQ, value & !ID | self.outer)
    }
}

/// As the configuration has it: `100`, `200, 100` from the outer to the inner.
impl fmt::Display for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.outer, self.inner) {
            (0, 0) => f.write_str("untagged"),
            (0, inner) => write!(f, "{inner}"),
            (outer, inner) => write!(f, "{outer}, {inner}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryPool, PacketPool};

    const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

    /// A frame with these EtherTypes and control words, and a payload of four bytes.
    fn frame(words: &[u16]) -> Vec<u8> {
        let mut frame = MACS.to_vec();
        frame.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        frame.extend([1, 2, 3, 4]);
        frame
    }

    fn read(words: &[u16]) -> Result<String, DropReason> {
        Tags::read(&frame(words)).map(|tags| tags.to_string())
    }

    #[test]
    fn a_ports_frames_are_known_by_their_tags() {
        let text = |text: &str| Ok(text.to_owned());
        assert_eq!(read(&[0x0800]), text("untagged"));
        assert_eq!(read(&[0x8100, 0xe000, 0x0800]), text("untagged"));
        assert_eq!(read(&[0x8100, 100, 0x0800]), text("100"));
        assert_eq!(read(&[0x8100, 0xf000 | 4094, 0x86dd]), text("4094"));
        assert_eq!(read(&[0x88a8, 0xb000 | 200, 0x8100, 100, 0x0800]), text("200, 100"));
        // The edge says what is wrong behind a priority tag, or with another EtherType.
        assert_eq!(read(&[0x8100, 0, 0x8100, 5, 0x0800]), text("untagged"));
        assert_eq!(read(&[0x9100, 200, 0x8100, 100, 0x0800]), text("untagged"));
    }

    /// Two customer tags, a service tag alone, around a priority tag or around another
    /// one, a service tag of VLAN 0, and three tags.
    #[test]
    fn other_tags_are_those_of_no_port() {
        for words in [
            &[0x8100, 200, 0x8100, 100, 0x0800][..],
            &[0x8100, 200, 0x88a8, 100, 0x0800],
            &[0x88a8, 200, 0x0800],
            &[0x88a8, 200, 0x8100, 0, 0x0800],
            &[0x88a8, 200, 0x88a8, 100, 0x0800],
            &[0x88a8, 0, 0x8100, 100, 0x0800],
            &[0x88a8, 200, 0x9100, 100, 0x0800],
            &[0x88a8, 200, 0x8100, 100, 0x8100, 5, 0x0800],
            &[0x88a8, 200, 0x8100, 100, 0x88a8, 5, 0x0800],
        ] {
            assert_eq!(read(words), Err(DropReason::UnknownVlan), "{words:x?}");
        }
    }

    #[test]
    fn a_frame_that_ends_in_its_tags_is_truncated() {
        for words in [&[0x8100, 100, 0x0800][..], &[0x88a8, 200, 0x8100, 100, 0x0800]] {
            let whole = frame(words);
            let end = 12 + 2 * words.len();
            for len in 0..end {
                let result = Tags::read(&whole[..len]);
                assert_eq!(result, Err(DropReason::Truncated), "{words:x?} {len}");
            }
            assert!(Tags::read(&whole[..end]).is_ok());
        }
    }

    #[test]
    fn identifiers_are_one_to_4094_and_two_at_most() {
        for ids in [&[0][..], &[4095], &[100, 0], &[4095, 5], &[1, 2, 3]] {
            assert_eq!(Tags::new(ids), None, "{ids:?}");
        }
        for ids in [&[][..], &[1], &[4094], &[1, 4094]] {
            let tags = Tags::new(ids).unwrap();
            assert_eq!(tags.ids().collect::<Vec<_>>(), ids);
        }
    }

    /// A frame that came in goes out with the same tags, and in between only the outer
    /// tag's priority is left of them. A VLAN that was set meanwhile stays.
    #[test]
    fn tags_come_off_and_go_on() {
        let mut pool = MemoryPool::new(1);
        for (words, between, out) in [
            (&[0x0800][..], &[0x0800][..], &[0x0800][..]),
            (&[0x8100, 0x6000, 0x0800], &[0x8100, 0x6000, 0x0800], &[0x8100, 0x6000, 0x0800]),
            (&[0x8100, 100, 0x0800], &[0x8100, 0, 0x0800], &[0x8100, 100, 0x0800]),
            (&[0x8100, 0xb064, 0x0800], &[0x8100, 0xb000, 0x0800], &[0x8100, 0xb064, 0x0800]),
            (
                &[0x88a8, 0x50c8, 0x8100, 0xe064, 0x0800],
                &[0x8100, 0x5000, 0x0800],
                &[0x88a8, 0x50c8, 0x8100, 0x5064, 0x0800],
            ),
        ] {
            let mut packet = pool.take().unwrap();
            packet.clear();
            assert!(packet.copy_from(&frame(words)));
            let tags = Tags::read(packet.bytes()).unwrap();
            tags.take_off(&mut packet);
            assert_eq!(packet.bytes(), frame(between), "{words:x?}");
            assert!(tags.put_on(&mut packet));
            assert_eq!(packet.bytes(), frame(out), "{words:x?}");
            pool.put(packet);
        }
        for (ids, tagged, out) in [
            (&[100][..], &[0x0800][..], &[0x8100, 100, 0x0800][..]),
            (&[100], &[0x8100, 0xa12c, 0x0800], &[0x8100, 0xa12c, 0x0800]),
            (&[200, 100], &[0x0800], &[0x88a8, 200, 0x8100, 100, 0x0800]),
            (&[200, 100], &[0x8100, 0x712c, 0x0800], &[0x88a8, 0x70c8, 0x8100, 0x712c, 0x0800]),
        ] {
            let mut packet = pool.take().unwrap();
            packet.clear();
            assert!(packet.copy_from(&frame(tagged)));
            assert!(Tags::new(ids).unwrap().put_on(&mut packet));
            assert_eq!(packet.bytes(), frame(out), "{ids:?} {tagged:x?}");
            pool.put(packet);
        }
        let mut packet = pool.take().unwrap();
        assert!(packet.set_range(2, 14) && !Tags::new(&[100]).unwrap().put_on(&mut packet));
        pool.put(packet);
    }
}
