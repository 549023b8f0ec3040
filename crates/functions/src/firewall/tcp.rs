//! The state of a TCP connection as somebody in the middle sees it.
//!
//! Theory of operation (van Rooij: Real Stateful TCP Packet Filtering in IP Filter, section 4). For each direction three numbers are kept: the highest
//! sequence number sent, the highest that the other side allows, the largest window ever announced. A segment fits if it begins no later than
//! what is allowed, ends no earlier than one window before what was sent, acknowledges nothing that was not sent, and nothing too old.
//! Bounds err on the side of letting pass: a middle sees segments that the ends have not, and the other way round. Where the latest segments were
//! seen and forgotten again, the bounds are wider by a window, and what one side acknowledges tells what the other has sent.

use holdfast_wire::Packet;
use holdfast_wire::header::tcp_flags::{ACK, FIN, RST, SYN};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Values of [`Connection::state`].
pub(super) mod state {
    /// No segment yet.
    pub(in super::super) const NONE: u8 = 0;
    /// A SYN was sent, or one from each side.
    pub(in super::super) const OPENING: u8 = 1;
    /// The SYN was answered.
    pub(in super::super) const ANSWERED: u8 = 2;
    /// Both sides are synchronised.
    pub(in super::super) const ESTABLISHED: u8 = 3;
    /// One side has finished.
    pub(in super::super) const HALF_CLOSED: u8 = 4;
    /// Both sides have finished.
    pub(in super::super) const CLOSED: u8 = 5;
    /// Reset.
    pub(in super::super) const RESET: u8 = 6;
}

/// One direction.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Half {
    /// One past the highest sequence number sent.
    pub end: u32,
    /// One past the highest sequence number that the other side allows.
    pub limit: u32,
    /// Largest window announced, scaled.
    pub window: u32,
    /// Its window scale; [`NO_SCALE`] without the option.
    pub scale: u8,
    /// Its SYN was seen.
    pub synchronised: u8,
    /// Its FIN was seen.
    pub finished: u8,
    /// Zero.
    pub spare: u8,
}

/// [`Half::scale`] of a side that offered none (RFC 7323: then neither side scales).
const NO_SCALE: u8 = 0xff;

/// Both directions: 0 is the initiator's.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Connection {
    /// Forward, reverse.
    pub halves: [Half; 2],
    /// See [`state`].
    pub state: u8,
    /// The latest segments may have been forgotten.
    pub is_outdated: u8,
    /// Zero.
    pub spare: [u8; 2],
    /// Bytes of data in each side's SYN (RFC 7413), which the other side need not accept.
    pub early: [u16; 2],
}

/// The least window to reckon with for old acknowledgements: an end may have sent them before its window grew. Also for what was forgotten.
const MIN_ACK_WINDOW: u32 = 66_000;

fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

/// True for the flags of a segment that opens a connection.
pub(super) fn is_opening(flags: u8) -> bool {
    flags & (SYN | ACK | RST | FIN) == SYN
}

/// The window scale option of a SYN (RFC 7323, section 2.2).
fn scale_option(options: &[u8]) -> u8 {
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        match kind {
            0 => break,
            1 => at += 1,
            _ => {
                let Some(&len) = options.get(at + 1) else { break };
                if kind == 3 && len == 3 {
                    return options.get(at + 2).map_or(NO_SCALE, |&scale| scale.min(14));
                }
                if len < 2 {
                    break;
                }
                at += len as usize;
            }
        }
    }
    NO_SCALE
}

impl Connection {
    /// Takes a segment into account. False, and nothing changed, if it does not fit the connection.
    #[inline]
    pub(super) fn track(&mut self, packet: &Packet, is_reverse: bool) -> bool {
        let Some(header) = packet.tcp() else { return false };
        let flags = header.flags;
        let header_len = (header.data_offset >> 4) as usize * 4;
        let payload = packet.l4().len().saturating_sub(header_len) as u32;
        let sequence = header.sequence.get();
        let acknowledgement = header.acknowledgement.get();
        let end =
            sequence.wrapping_add(payload).wrapping_add(u32::from(flags & SYN != 0)).wrapping_add(u32::from(flags & FIN != 0));
        let window = u32::from(header.window.get());
        if flags & (SYN | FIN) == SYN | FIN || flags & (SYN | RST) == SYN | RST || flags & (SYN | ACK | RST | FIN) == 0 {
            return false;
        }
        if flags & SYN != 0 {
            let scale = scale_option(packet.l4().get(20..header_len).unwrap_or(&[]));
            return self.synchronise(is_reverse, flags, sequence, acknowledgement, end, window, scale);
        }
        let (us, them) = (usize::from(is_reverse), usize::from(!is_reverse));
        if flags & RST != 0 {
            return self.reset(us, them, flags, sequence, acknowledgement);
        }
        if self.is_outdated != 0 && flags & ACK != 0 && self.state == state::OPENING {
            self.infer(us, them, sequence, acknowledgement);
        }
        if self.halves[them].synchronised == 0 || self.halves[us].synchronised == 0 || flags & ACK == 0 {
            return false;
        }
        if !self.fits(us, them, sequence, end, acknowledgement) {
            return false;
        }
        let both_scale = self.halves[0].scale != NO_SCALE && self.halves[1].scale != NO_SCALE;
        let window = if both_scale { window << self.halves[us].scale } else { window };
        let sender = &mut self.halves[us];
        sender.window = sender.window.max(window);
        // The rest of a segment follows in fragments without a header: it may be as long as the other side allows.
        let end = if packet.layers.more_fragments && after(sender.limit, end) { sender.limit } else { end };
        if after(end, sender.end) {
            sender.end = end;
        }
        sender.finished |= u8::from(flags & FIN != 0);
        // Only of what was forgotten can more be acknowledged than was seen.
        if after(acknowledgement, self.halves[them].end) {
            self.halves[them].end = acknowledgement;
        }
        let allowed = acknowledgement.wrapping_add(window.max(1));
        if after(allowed, self.halves[them].limit) {
            self.halves[them].limit = allowed;
        }
        self.state = match (self.halves[0].finished + self.halves[1].finished, self.state) {
            (_, state::RESET) => state::RESET,
            (2, _) => state::CLOSED,
            (1, _) => state::HALF_CLOSED,
            (_, state::OPENING) => state::OPENING,
            // The initiator's first acknowledgement ends the handshake; so does either side's after a simultaneous open.
            _ => state::ESTABLISHED,
        };
        true
    }

    /// True if the number acknowledges this side's SYN: with the data in it, a part of that, or none.
    fn answers(&self, side: usize, acknowledgement: u32) -> bool {
        let end = self.halves[side].end;
        !after(acknowledgement, end) && !after(end.wrapping_sub(u32::from(self.early[side])), acknowledgement)
    }

    fn fits(&self, us: usize, them: usize, sequence: u32, end: u32, acknowledgement: u32) -> bool {
        let (sender, receiver) = (&self.halves[us], &self.halves[them]);
        let begins_in_time = !after(sequence, sender.limit.wrapping_add(self.forgotten(them)));
        let is_not_old = !after(sender.end.wrapping_sub(receiver.window.max(1)), end);
        let acknowledges_what_was_sent = !after(acknowledgement, receiver.end.wrapping_add(self.forgotten(us)));
        let old_acknowledgement = receiver.end.wrapping_sub(sender.window.max(MIN_ACK_WINDOW));
        begins_in_time && is_not_old && acknowledges_what_was_sent && !after(old_acknowledgement, acknowledgement)
    }

    /// How much may have been sent to this side, and forgotten.
    fn forgotten(&self, to: usize) -> u32 {
        if self.is_outdated == 0 { 0 } else { self.halves[to].window.max(MIN_ACK_WINDOW) }
    }

    /// The answer to the SYN was forgotten: what follows tells where the sides are. A window may be scaled as far as it can be.
    fn infer(&mut self, us: usize, them: usize, sequence: u32, acknowledgement: u32) {
        for (side, number) in [(us, sequence), (them, acknowledgement)] {
            if self.halves[side].synchronised == 0 {
                let limit = number.wrapping_add(self.halves[1 - side].window);
                let window = MIN_ACK_WINDOW;
                self.halves[side] = Half { end: number, limit, window, scale: 14, synchronised: 1, finished: 0, spare: 0 };
                self.state = state::ANSWERED;
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one segment")]
    fn synchronise(
        &mut self,
        is_reverse: bool,
        flags: u8,
        sequence: u32,
        acknowledgement: u32,
        end: u32,
        window: u32,
        scale: u8,
    ) -> bool {
        let (us, them) = (usize::from(is_reverse), usize::from(!is_reverse));
        let is_over = matches!(self.state, state::CLOSED | state::RESET);
        let opens_anew =
            is_over && !is_reverse && flags & ACK == 0 && (self.state == state::RESET || after(sequence, self.halves[us].end));
        if opens_anew {
            *self = Connection::default();
        }
        let first = Half { end, limit: end, window: window.max(1), scale, synchronised: 1, finished: 0, spare: 0 };
        let early = end.wrapping_sub(sequence).wrapping_sub(1) as u16;
        let sender = self.halves[us];
        match self.state {
            state::NONE if !is_reverse => {
                self.halves[us] = first;
                self.early[us] = early;
                self.state = state::OPENING;
                true
            }
            state::OPENING | state::ANSWERED if sender.synchronised != 0 => {
                // Sent again, perhaps without its data; anything but the same SYN is somebody else's, except that after a simultaneous
                // open it also acknowledges.
                let is_same = sender.end.wrapping_sub(end) == u32::from(self.early[us]).wrapping_sub(u32::from(early));
                if !is_same || early > self.early[us] || flags & ACK != 0 && !self.answers(them, acknowledgement) {
                    return false;
                }
                if flags & ACK != 0 {
                    self.state = state::ANSWERED;
                }
                true
            }
            state::OPENING if flags & ACK != 0 && !self.answers(them, acknowledgement) => false,
            state::OPENING => {
                self.halves[us] = first;
                self.early[us] = early;
                // SYNs that cross acknowledge nothing, but their windows count all the same.
                let from = if flags & ACK != 0 { acknowledgement } else { self.halves[them].end };
                self.halves[them].limit = from.wrapping_add(window.max(1));
                if flags & ACK != 0 {
                    self.state = state::ANSWERED;
                }
                // Until the other side announces its window for data, its SYN's window counts.
                let theirs = self.halves[them].window;
                self.halves[us].limit = end.wrapping_add(theirs);
                true
            }
            // A SYN inside a connection: the receiver's business if it could be the handshake's own, sent again.
            state::ESTABLISHED if end == sender.end || !after(end, sender.end) && after(end, sender.end.wrapping_sub(2)) => true,
            _ => false,
        }
    }

    /// A reset ends the connection if it comes from where the other side expects the next byte (RFC 5961, section 3.2), or, against a SYN,
    /// acknowledges that SYN.
    fn reset(&mut self, us: usize, them: usize, flags: u8, sequence: u32, acknowledgement: u32) -> bool {
        let (sender, receiver) = (&self.halves[us], &self.halves[them]);
        let is_expected = if sender.synchronised == 0 {
            flags & ACK != 0 && self.answers(them, acknowledgement)
        } else {
            let limit = sender.limit.wrapping_add(self.forgotten(them));
            !after(sequence, limit) && !after(sender.end.wrapping_sub(receiver.window.max(1)), sequence)
        };
        if is_expected {
            self.state = state::RESET;
        }
        is_expected
    }
}
