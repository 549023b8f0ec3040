//! The frame check sequence of what hosts without a key send each other: CRC32C (RFC 3720, appendix B.4) over the frame, behind it.
//!
//! Ethernet has one of its own, which ends at the next device: what is damaged in a switch's or a host's memory arrives with a good one. One bit of a sender's incarnation or of a flow's epoch would
//! be believed here. It is against damage and not against forgery, which takes a key ([`seal`](crate::seal)).

use holdfast_wire::Packet;

/// By so many bytes a frame gets longer.
pub const FCS_LEN: usize = 4;

/// Appends it. False, and nothing changed, if there is no room.
#[must_use]
pub(crate) fn append(packet: &mut Packet) -> bool {
    let sum = crc32c::crc32c(packet.bytes());
    match packet.extend_back(FCS_LEN) {
        Some(room) => {
            room.copy_from_slice(&sum.to_be_bytes());
            true
        }
        None => false,
    }
}

/// Takes it off. False if the frame is not as it was sent.
#[must_use]
pub(crate) fn strip(packet: &mut Packet) -> bool {
    let Some((frame, sum)) = packet.bytes().split_last_chunk::<FCS_LEN>() else { return false };
    let (len, is_whole) = (frame.len(), crc32c::crc32c(frame) == u32::from_be_bytes(*sum));
    packet.truncate(len);
    is_whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::{MemoryPool, PacketPool};

    /// RFC 3720, appendix B.4: of 32 zeros, and of an iSCSI read command.
    #[test]
    fn it_is_crc32c() {
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c::crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut pool = MemoryPool::new(1);
        let mut packet = pool.take().unwrap();
        let frame: Vec<u8> = (0..90).collect();
        for bit in 0..(frame.len() + FCS_LEN) * 8 {
            assert!(packet.copy_from(&frame) && append(&mut packet));
            assert_eq!(packet.len(), frame.len() + FCS_LEN);
            packet.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
            assert!(!strip(&mut packet), "bit {bit}");
        }
        assert!(packet.copy_from(&frame) && append(&mut packet) && strip(&mut packet));
        assert_eq!(packet.bytes(), frame);
        packet.truncate(3);
        assert!(!strip(&mut packet), "too short");
    }
}
