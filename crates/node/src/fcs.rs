//! The check sequence of frames between hosts that have no key: the frame's length, and a
//! CRC32C (RFC 3720, section 12.1) over it, behind the frame.
//!
//! Ethernet's own check sequence ends at the next device: a frame that is damaged in a
//! switch's or a host's memory arrives with a good one. A flipped bit in a sender's
//! incarnation or a flow's epoch would be believed here. The check protects against
//! damage, not against forgery: that takes a key ([`seal`](crate::seal)).
//!
//! The length says where a short frame ends. Frames are padded to Ethernet's shortest, so
//! that no device on the way appends anything.

use holdfast_wire::Packet;
use holdfast_wire::fault::{Fault, is_planted};

/// Bytes behind a frame: its length (2), CRC32C (4).
pub const FCS_LEN: usize = 6;
/// The shortest frame that no device pads, bytes (IEEE 802.3, clause 4.2.3.3, without its
/// own check sequence).
const SHORTEST: usize = 60;

/// Appends the check sequence. False, and nothing changed, if there is no room.
#[must_use]
pub(crate) fn append(packet: &mut Packet) -> bool {
    let len = packet.len();
    let padding = (SHORTEST - FCS_LEN).saturating_sub(len);
    let Some(room) = packet.extend_back(padding + FCS_LEN) else { return false };
    room[..padding].fill(0);
    room[padding..padding + 2].copy_from_slice(&(len as u16).to_be_bytes());
    sum(packet.bytes_mut());
    true
}

/// Makes the checksum behind a frame right, whatever the frame's contents. A frame too
/// short for one is left alone.
pub fn sum(frame: &mut [u8]) {
    if let Some((summed, sum)) = frame.split_last_chunk_mut::<4>() {
        *sum = crc32c::crc32c(summed).to_be_bytes();
    }
}

/// Removes the check sequence. False if the frame is damaged.
#[must_use]
pub(crate) fn strip(packet: &mut Packet) -> bool {
    let Some((summed, sum)) = packet.bytes().split_last_chunk::<4>() else { return false };
    let Some((padded, len)) = summed.split_last_chunk::<2>() else { return false };
    let len = usize::from(u16::from_be_bytes(*len));
    let is_whole = crc32c::crc32c(summed) == u32::from_be_bytes(*sum) && len <= padded.len();
    let believed = if is_planted(Fault::BelievesDamaged) { len.min(padded.len()) } else { len };
    packet.truncate(believed);
    is_whole || is_planted(Fault::BelievesDamaged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::{MemoryPool, PacketPool};

    /// RFC 3720, appendix B.4: 32 zeros, and 32 bytes that count up.
    #[test]
    fn it_is_crc32c() {
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c::crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut pool = MemoryPool::new(1);
        let mut packet = pool.take().unwrap();
        for len in [0, 1, 38, 53, 54, 55, 90] {
            let frame: Vec<u8> = (0..len).collect();
            let sent = (frame.len() + FCS_LEN).max(SHORTEST);
            for bit in 0..sent * 8 {
                assert!(packet.copy_from(&frame) && append(&mut packet));
                assert_eq!(packet.len(), sent);
                packet.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
                assert!(!strip(&mut packet), "bit {bit} of {len} bytes");
            }
            assert!(packet.copy_from(&frame) && append(&mut packet) && strip(&mut packet));
            assert_eq!(packet.bytes(), frame, "as it was, however short");
        }
        for len in 0..FCS_LEN {
            assert!(
                packet.copy_from(&vec![0; len]) && !strip(&mut packet),
                "{len} bytes are too short"
            );
        }
    }

    #[test]
    fn a_frame_without_room_is_left_alone() {
        let mut pool = MemoryPool::new(1);
        let mut packet = pool.take().unwrap();
        packet.clear();
        while packet.extend_back(1).is_some() {}
        let len = packet.len();
        assert!(!append(&mut packet) && packet.len() == len);
    }
}
