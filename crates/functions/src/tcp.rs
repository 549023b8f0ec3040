//! The state of a TCP connection as somebody in the middle sees it.
//!
//! Theory of operation (van Rooij: Real Stateful TCP Packet Filtering in IP Filter, section 4). For each direction three numbers are kept: the highest
//! sequence number sent, the highest that the other side allows, the largest window ever announced. A segment fits if it begins no later than
//! what is allowed, ends no earlier than one window before what was sent, acknowledges nothing that was not sent, and nothing too old.
//! Bounds err on the side of letting pass: a middle sees segments that the ends have not, and the other way round.
//!
//! A connection may be set back: its latest n segments were seen and are forgotten again. Every byte that was acknowledged since then passed in
//! one of them, and no packet has more than 65,535: so at most n times as many were acknowledged, and sent at most one window more. Whatever
//! is farther is refused. The window is the largest that the side can announce with its scale; only when the answer to the SYN was
//! forgotten is its scale not known, and then that may be nearly 1 GiB. The next segment of the other side says what is really allowed;
//! what one side acknowledges tells what the other has sent.

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
    /// `limit` is the farthest that it can be, until the other side says where it is.
    pub is_unsure: u8,
    /// Bytes after `end` that may have been sent, and forgotten.
    pub forgotten: u32,
}

impl Half {
    /// So far it has sent.
    fn reach(&mut self, end: u32) {
        if after(end, self.end) {
            self.forgotten = self.forgotten.saturating_sub(end.wrapping_sub(self.end));
            self.end = end;
        }
    }
}

/// [`Half::scale`] of a side that offered none (RFC 7323: then neither side scales).
const NO_SCALE: u8 = 0xff;

/// The largest scale (RFC 7323, section 2.3).
const MAX_SCALE: u8 = 14;

/// The farthest that a connection can have gone on unseen. What is farther could not be told from what lies behind.
const FARTHEST: u32 = 1 << 30;

/// No packet has more bytes.
const MAX_PACKET: u32 = 65_535;

/// Both directions: 0 is the initiator's.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Connection {
    /// Forward, reverse.
    pub halves: [Half; 2],
    /// See [`state`].
    pub state: u8,
    /// Zero.
    pub spare: [u8; 3],
    /// Bytes of data in each side's SYN (RFC 7413), which the other side need not accept.
    pub early: [u16; 2],
}

/// The least window to reckon with for old acknowledgements: an end may have sent them before its window grew.
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
                    return options.get(at + 2).map_or(NO_SCALE, |&scale| scale.min(MAX_SCALE));
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
        if self.state == state::OPENING && flags & ACK != 0 && self.was_set_back() {
            let inferred = self.inferred(us, sequence, acknowledgement);
            if !inferred.fits(us, them, sequence, end, acknowledgement) {
                return false;
            }
            *self = inferred;
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
        // The rest of a segment follows in fragments without a header: it may be as long as the other side allows. Where that is not known
        // there is room for a packet in what may have been forgotten.
        let is_cut = packet.layers.more_fragments && sender.is_unsure == 0;
        sender.reach(if is_cut && after(sender.limit, end) { sender.limit } else { end });
        sender.finished |= u8::from(flags & FIN != 0);
        let receiver = &mut self.halves[them];
        // Only of what was forgotten can more be acknowledged than was seen.
        receiver.reach(acknowledgement);
        let allowed = acknowledgement.wrapping_add(window.max(1));
        if receiver.is_unsure != 0 || after(allowed, receiver.limit) {
            receiver.limit = allowed;
            receiver.is_unsure = 0;
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
        let begins_in_time = !after(sequence, sender.limit);
        let is_not_old = !after(sender.end.wrapping_sub(receiver.window.max(1)), end);
        let acknowledges_what_was_sent = !after(acknowledgement, receiver.end.wrapping_add(receiver.forgotten));
        let old_acknowledgement = receiver.end.wrapping_sub(sender.window.max(MIN_ACK_WINDOW));
        begins_in_time && is_not_old && acknowledges_what_was_sent && !after(old_acknowledgement, acknowledgement)
    }

    /// The latest segments may have been forgotten, at most so many; see the module.
    pub(super) fn set_back(&mut self, packets: u32) {
        for side in 0..2 {
            if self.halves[side].synchronised != 0 {
                let bytes = self.halves[side].forgotten.saturating_add(packets.saturating_mul(MAX_PACKET));
                self.halves[side].forgotten = bytes.min(FARTHEST);
                self.widen(side);
            }
        }
    }

    fn was_set_back(&self) -> bool {
        self.halves.iter().any(|half| half.forgotten != 0)
    }

    /// The side may have announced any window, and been allowed as far as any window of the other goes.
    fn widen(&mut self, side: usize) {
        let (own, other) = (self.widest(side), self.widest(1 - side));
        let half = &mut self.halves[side];
        half.window = half.window.max(own);
        let limit = half.end.wrapping_add(half.forgotten.saturating_add(other).min(FARTHEST));
        if after(limit, half.limit) {
            half.limit = limit;
        }
        half.is_unsure = 1;
    }

    /// The largest window that the side can announce.
    fn widest(&self, side: usize) -> u32 {
        let scale = |half: &Half| if half.synchronised == 0 { MAX_SCALE } else { half.scale };
        let (own, other) = (scale(&self.halves[side]), scale(&self.halves[1 - side]));
        if own == NO_SCALE || other == NO_SCALE { 65_535 } else { 65_535 << own }
    }

    /// The answer to the SYN was forgotten: a segment tells where the other side is, but not how it scales.
    fn inferred(&self, us: usize, sequence: u32, acknowledgement: u32) -> Connection {
        let mut inferred = Connection { state: state::ANSWERED, ..*self };
        let Some(side) = self.halves.iter().position(|half| half.synchronised == 0) else { return inferred };
        let end = if side == us { sequence } else { acknowledgement };
        let forgotten = self.halves[1 - side].forgotten;
        inferred.halves[side] = Half { end, limit: end, scale: MAX_SCALE, synchronised: 1, forgotten, ..Half::default() };
        inferred.widen(side);
        inferred
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
        let first = Half { end, limit: end, window: window.max(1), scale, synchronised: 1, ..Half::default() };
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
            !after(sequence, sender.limit) && !after(sender.end.wrapping_sub(receiver.window.max(1)), sequence)
        };
        if is_expected {
            self.state = state::RESET;
        }
        is_expected
    }
}
