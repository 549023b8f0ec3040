//! The frames that benchmarks play: both directions, in an order without locality.
//! Lengths are without the frame check sequence.

use holdfast_wire::header::{Ipv4, Udp, proto};
use holdfast_wire::{Packet, PacketPool, checksum};
use zerocopy::IntoBytes;

/// The shortest frame, 64 bytes on the wire.
pub(crate) const FRAME_LEN: usize = 60;

/// The balancer's virtual address.
pub(crate) const VIRTUAL: ([u8; 4], u16) = ([203, 0, 113, 10], 80);

/// A UDP frame.
pub(crate) fn udp<const L: usize>(source: ([u8; 4], u16), destination: ([u8; 4], u16)) -> [u8; L] {
    let mut frame = [0u8; L];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    let mut ip = Ipv4 {
        version_ihl: 0x45,
        tos: 0,
        total_len: ((L - 14) as u16).into(),
        id: 1.into(),
        flags_fragment: 0x4000.into(),
        ttl: 64,
        protocol: proto::UDP,
        checksum: 0.into(),
        source: source.0,
        destination: destination.0,
    };
    ip.checksum = checksum::checksum(ip.as_bytes()).into();
    frame[14..34].copy_from_slice(ip.as_bytes());
    let udp = Udp {
        source: source.1.into(),
        destination: destination.1.into(),
        len: ((L - 34) as u16).into(),
        checksum: 0.into(),
    };
    frame[34..42].copy_from_slice(udp.as_bytes());
    // A computed 0 is sent as 0xffff (RFC 768): 0 would mean no checksum.
    let sum = match checksum::transport(&source.0, &destination.0, proto::UDP, &frame[34..]) {
        0 => 0xffff,
        sum => sum,
    };
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Writes into the payload of a UDP frame, at an even offset, and updates its checksum: a
/// first packet with a wrong checksum opens no flow.
#[inline]
pub(crate) fn write(frame: &mut [u8], at: usize, bytes: &[u8]) {
    let place = &mut frame[at..at + bytes.len()];
    let delta = checksum::Delta::new().bytes(place, bytes);
    place.copy_from_slice(bytes);
    let sum = delta.apply_udp(u16::from_be_bytes([frame[40], frame[41]]));
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
}

/// The client of a flow.
pub(crate) fn client(flow: usize) -> ([u8; 4], u16) {
    let host = (flow / 50_000) as u32;
    let address = (0x0a00_0000u32 + 2 + host).to_be_bytes();
    (address, 10_000 + (flow % 50_000) as u16)
}

/// The UDP frame as the beginning of one of `len` bytes, whose further payload is zeros.
/// A [`Player`] adds them.
pub(crate) fn with_length<const L: usize>(mut frame: [u8; L], len: usize) -> [u8; L] {
    let (total, datagram) = ((len - 14) as u16, (len - 34) as u16);
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[24..26].copy_from_slice(&[0; 2]);
    let sum = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[38..40].copy_from_slice(&datagram.to_be_bytes());
    // The zeros behind the frame add nothing to the sum, but the length counts twice.
    frame[40..42].copy_from_slice(&[0; 2]);
    let pseudo = [frame[26..34].to_vec(), vec![0, proto::UDP], frame[38..40].to_vec()].concat();
    let sum = match checksum::checksum(&[&pseudo, &frame[34..]].concat()) {
        0 => 0xffff,
        sum => sum,
    };
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// The reply to a frame that left: source and destination exchanged.
pub(crate) fn reply_to<const L: usize>(frame: &[u8; L]) -> [u8; L] {
    let end = |address: usize, port: usize| {
        let address = [frame[address], frame[address + 1], frame[address + 2], frame[address + 3]];
        (address, u16::from_be_bytes([frame[port], frame[port + 1]]))
    };
    udp(end(30, 36), end(26, 34))
}

/// True if the frame's IP header and UDP checksum are right.
pub(crate) fn is_sound(frame: &[u8]) -> bool {
    checksum::checksum(&frame[14..34]) == 0
        && checksum::transport(&frame[26..30], &frame[30..34], proto::UDP, &frame[34..]) == 0
}

/// A port that plays frames from memory, one after the other, endlessly. Zeros follow a
/// frame whose header says that it is longer.
pub(crate) struct Player<const L: usize> {
    frames: Vec<[u8; L]>,
    at: usize,
}

impl<const L: usize> Player<L> {
    /// Plays `frames` in a random order that depends only on their number.
    pub(crate) fn new(mut frames: Vec<[u8; L]>) -> Player<L> {
        let mut random = holdfast_sim::Random::new(frames.len() as u64);
        for at in (1..frames.len()).rev() {
            frames.swap(at, random.range(0, at as u64 + 1) as usize);
        }
        Player { frames, at: 0 }
    }

    /// Receives a burst.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        count: usize,
        pool: &mut dyn PacketPool,
        into: &mut Vec<Packet>,
    ) {
        for _ in 0..count {
            let Some(mut packet) = pool.take() else { return };
            let frame = &self.frames[self.at];
            let len = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            let fits = packet.copy_from(frame)
                && packet.extend_back(len.saturating_sub(L)).map(|rest| rest.fill(0)).is_some();
            debug_assert!(fits);
            self.at += 1;
            if self.at == self.frames.len() {
                self.at = 0;
            }
            into.push(packet);
        }
    }
}

/// A percentile of sorted values; 0 without any.
pub(crate) fn percentile(sorted: &[u64], percent: f64) -> f64 {
    let at = (sorted.len() as f64 * percent / 100.0) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).map_or(0.0, |&value| value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::MemoryPool;

    #[test]
    fn a_longer_frame_is_sound() {
        let frame = udp::<FRAME_LEN>(client(3), VIRTUAL);
        assert_eq!(with_length(frame, FRAME_LEN), frame);
        let mut player = Player::new(vec![with_length(frame, 590)]);
        let (mut pool, mut into) = (MemoryPool::new(1), Vec::new());
        player.receive(1, &mut pool, &mut into);
        assert!(into[0].len() == 590 && is_sound(into[0].bytes()));
    }
}
