//! The state of a TCP connection, as seen from the middle.
//!
//! Theory of operation (van Rooij: Real Stateful TCP Packet Filtering in IP Filter,
//! section 4). Each direction keeps three numbers: the highest sequence number sent, the
//! highest that the other side allows, and the largest window ever announced. A segment
//! fits if it begins no later than allowed, ends no earlier than one window before the
//! highest number sent, and acknowledges data that was sent, and not too long ago. Bounds
//! err on the side of letting pass: a middle sees segments that the ends have not seen,
//! and the other way round.
//!
//! An end may know less than the middle, because it crashed or its last segments were
//! lost. Such an end opens anew from the same port, and only the other end can tell
//! whether this is right (RFC 9293, section 3.5.1; RFC 5961, section 4). A SYN of the
//! initiator that does not belong to the connection therefore passes and changes nothing:
//! it is *offered*. The SYN-ACK that acknowledges it makes it the connection. A challenge
//! ACK passes as any acknowledgement does; the initiator answers with a reset from
//! exactly where the other side expects its next byte. A second SYN-ACK of a server that
//! keeps no state (SYN cookies, RFC 4987, section 3.6) is offered in the same way, and
//! taken when the initiator acknowledges it.
//!
//! A reset ends the connection only from exactly there (RFC 5961, section 3.2), or from
//! behind the last byte sent. Elsewhere inside the window it passes, for the receiver to
//! challenge, and changes nothing. New data from the side that has reset prove that a
//! stranger sent the reset.
//!
//! The firewall refuses segments that do not fit. Functions that only derive a flow's
//! lifetime from the connection ([`Tracked`](crate::tracked::Tracked)) let them pass.
//!
//! A connection may be set back: its latest n segments were seen and are forgotten. Every
//! byte acknowledged since passed in one of them, and a packet has at most 65,535 bytes.
//! Therefore at most n times as many bytes were acknowledged, and at most one window more
//! was sent. Segments farther away are refused. The window is the largest that the side
//! can announce with its scale. If the answer to the SYN was forgotten, its scale is
//! unknown, and this may be nearly 1 GiB. The other side's next segment gives the actual
//! limit, and its acknowledgements tell how far this side has sent.

use holdfast_nf::{Expected, Open};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::tcp_flags::{ACK, FIN, RST, SYN};
use holdfast_wire::selector::Prefix;
use holdfast_wire::{DropReason, Packet};

/// Values of [`Connection::state`].
pub(crate) mod state {
    /// No segment yet.
    pub(crate) const NONE: u8 = 0;
    /// A SYN was sent, or one from each side.
    pub(crate) const OPENING: u8 = 1;
    /// The SYN was answered.
    pub(crate) const ANSWERED: u8 = 2;
    /// Both sides are synchronised.
    pub(crate) const ESTABLISHED: u8 = 3;
    /// A side has finished.
    pub(crate) const HALF_CLOSED: u8 = 4;
    /// Both sides have finished.
    pub(crate) const CLOSED: u8 = 5;
    /// Reset.
    pub(crate) const RESET: u8 = 6;
}

holdfast_nf::flow_state! {
    /// A direction of the connection.
    #[derive(Clone, Copy)]
    pub struct Half {
        /// The number behind the highest sequence number sent.
        pub end: u32,
        /// The number behind the highest sequence number that the other side allows.
        pub limit: u32,
        /// Largest window announced, scaled.
        pub window: u32,
        /// The number behind the highest that the other side has acknowledged: its next
        /// expected byte. Before the first acknowledgement, the SYN's own number.
        pub acknowledged: u32,
        /// Bytes after `end` that may have been sent and forgotten.
        pub forgotten: u32,
        /// The side's window scale; [`NO_SCALE`] without the option.
        pub scale: u8,
        /// The state of the side's SYN: 0, [`SEEN`] or [`ACKNOWLEDGED`].
        pub synchronised: u8,
        /// 1 once the side's FIN was seen.
        pub finished: u8,
        /// 1 if `limit` is the farthest possible value, until the other side announces
        /// it.
        pub is_unsure: u8,
    }
}

/// [`Half::synchronised`]: the SYN was seen.
const SEEN: u8 = 1;
/// [`Half::synchronised`]: the SYN was seen and acknowledged.
const ACKNOWLEDGED: u8 = 2;

impl Half {
    /// The side that sent this SYN.
    fn opened(Syn { end, window, scale, early, .. }: Syn) -> Half {
        let acknowledged = end.wrapping_sub(u32::from(early)).wrapping_sub(1);
        Half {
            end,
            limit: end,
            window: u32::from(window).max(1),
            acknowledged,
            scale,
            synchronised: SEEN,
            ..Half::default()
        }
    }

    /// Notes that the other side expects this number next.
    fn acknowledge(&mut self, acknowledgement: u32) {
        if self.synchronised != ACKNOWLEDGED || after(acknowledgement, self.acknowledged) {
            self.acknowledged = acknowledgement;
            self.synchronised = ACKNOWLEDGED;
        }
    }

    /// Notes that the side has sent up to this number.
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

/// The farthest that a connection can have gone on unseen, bytes. A number farther ahead
/// could not be told from one behind.
const FARTHEST: u32 = 1 << 30;

/// The most bytes of a packet.
const MAX_PACKET: u32 = 65_535;

holdfast_nf::flow_state! {
    /// A connection: both directions; 0 is the initiator's.
    #[derive(Clone, Copy)]
    pub struct Connection {
        /// Forward and reverse.
        pub halves: [Half; 2],
        /// The number behind the initiator's SYN without its data.
        pub initial: u32,
        /// Bytes of data in each side's SYN (RFC 7413), which the other side need not
        /// accept.
        pub early: [u16; 2],
        /// The latest offered SYN, if any: its `end`, as in [`Half`].
        pub offered_end: u32,
        /// The offered SYN's window, not scaled.
        pub offered_window: u16,
        /// Bytes of data in the offered SYN.
        pub offered_early: u16,
        /// The offered SYN's window scale, as [`Half::scale`].
        pub offered_scale: u8,
        /// The side whose SYN is offered: 0 for none, 1 forward, 2 reverse.
        pub offered_by: u8,
        /// See [`state`].
        pub state: u8,
        /// The side whose reset ended the connection: 0 for none, 1 forward, 2 reverse.
        pub reset_by: u8,
    }
}

const _: () = assert!(size_of::<Connection>() == 68);

/// A SYN, with or without an acknowledgement.
#[derive(Debug, Clone, Copy)]
struct Syn {
    sequence: u32,
    end: u32,
    window: u16,
    scale: u8,
    early: u16,
}

/// The least window for judging old acknowledgements, bytes: an end may have sent them
/// before its window grew.
const MIN_ACK_WINDOW: u32 = 66_000;

/// True if sequence number `a` is behind `b`.
pub(crate) fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

/// The verdict on a segment that belongs to no known connection and opens none. The
/// connection may have been lost. A host inside therefore gets a reset, "sent in response
/// to any incoming segment except another reset" (RFC 9293, section 3.5.2), and tries
/// again at once. A host outside gets no answer.
pub(crate) fn unknown<F>(packet: &Packet, is_inside: bool) -> Open<F> {
    let is_reset = packet.tcp().is_none_or(|tcp| tcp.flags & RST != 0);
    match is_inside && !is_reset {
        true => Open::Reject(DropReason::StateInvalid),
        false => Open::Drop(DropReason::StateInvalid),
    }
}

/// True for an address that is valid within one site only.
pub(crate) fn is_private(address: &[u8; 16]) -> bool {
    Prefix::private().iter().any(|prefix| prefix.contains(address))
}

/// True for a segment that opens a connection: a SYN alone. No other segment begins a
/// flow.
pub(crate) fn opens(packet: &Packet) -> bool {
    packet.tcp().is_some_and(|header| {
        header.flags & (SYN | ACK | RST | FIN) == SYN || is_planted(Fault::AnySegmentOpens)
    })
}

/// True for a segment with the RST flag.
pub(crate) fn is_reset(packet: &Packet) -> bool {
    packet.tcp().is_some_and(|header| header.flags & RST != 0)
}

/// The `N` bytes of the option of this kind, among a segment's options (RFC 9293, section
/// 3.1).
pub(crate) fn option<const N: usize>(options: &[u8], kind: u8) -> Option<[u8; N]> {
    let mut at = 0;
    while let Some(&here) = options.get(at) {
        match here {
            0 => break,
            1 => at += 1,
            _ => {
                let len = usize::from(*options.get(at + 1)?);
                if here == kind && len == N + 2 {
                    return options.get(at + 2..at + len)?.try_into().ok();
                }
                if len < 2 {
                    break;
                }
                at += len;
            }
        }
    }
    None
}

/// The window scale option of a SYN (RFC 7323, section 2.2).
fn scale_option(options: &[u8]) -> u8 {
    option::<1>(options, 3).map_or(NO_SCALE, |[scale]| scale.min(MAX_SCALE))
}

impl Connection {
    /// Applies a segment. Returns false, and changes nothing, if it does not fit the
    /// connection.
    #[inline]
    pub(crate) fn track(&mut self, packet: &Packet, is_reverse: bool) -> bool {
        let Some((header, data)) = packet.tcp_segment() else { return false };
        let (flags, payload) = (header.flags, data.len() as u32);
        let sequence = header.sequence.get();
        let acknowledgement = header.acknowledgement.get();
        let end = sequence
            .wrapping_add(payload)
            .wrapping_add(u32::from(flags & SYN != 0))
            .wrapping_add(u32::from(flags & FIN != 0));
        let window = u32::from(header.window.get());
        if flags & (SYN | FIN) == SYN | FIN
            || flags & (SYN | RST) == SYN | RST
            || flags & (SYN | ACK | RST | FIN) == 0
        {
            return false;
        }
        let (us, them) = (usize::from(is_reverse), usize::from(!is_reverse));
        if flags & SYN != 0 {
            let l4 = packet.l4();
            let scale = scale_option(l4.get(20..l4.len() - data.len()).unwrap_or(&[]));
            let syn =
                Syn { sequence, end, window: header.window.get(), scale, early: payload as u16 };
            return match (flags & ACK != 0, us) {
                (true, _) => self.answer(us, them, syn, acknowledgement),
                (false, 0) => self.open(syn),
                (false, _) => self.synchronise(us, them, syn),
            };
        }
        if flags & RST != 0 {
            return self.reset(us, them, flags, sequence, acknowledgement);
        }
        if flags & ACK == 0 {
            return false;
        }
        if self.state == state::OPENING && self.was_set_back() {
            let inferred = self.inferred(us, sequence, acknowledgement);
            if inferred.fits(us, them, sequence, end, acknowledgement) {
                *self = inferred;
            }
        }
        if self.halves[us].synchronised == 0 && payload == 0 && flags & FIN == 0 {
            return self.challenge(them, acknowledgement);
        }
        if self.halves[them].synchronised == 0 || self.halves[us].synchronised == 0 {
            return false;
        }
        if us == 0 && self.state == state::ANSWERED {
            // The initiator's acknowledgement decides between several SYNs and their
            // answers.
            let is_other = self.offered_by == offered_by(us) && sequence == self.offered_end;
            if is_other
                || self.offered_by == offered_by(them) && acknowledgement != self.halves[them].end
            {
                let taken = self.with_answer(is_other, acknowledgement);
                if taken.fits(us, them, sequence, end, acknowledgement) {
                    *self = taken;
                }
            }
        }
        if !self.fits(us, them, sequence, end, acknowledgement) {
            return false;
        }
        if self.offered_by == offered_by(us) && payload > 0 && after(end, self.halves[us].end) {
            // The sender goes on with the existing connection.
            self.offered_by = 0;
        }
        let both_scale = self.halves[0].scale != NO_SCALE && self.halves[1].scale != NO_SCALE;
        let window = if both_scale { window << self.halves[us].scale } else { window };
        let sender = &mut self.halves[us];
        if self.reset_by == offered_by(us)
            && payload > 0
            && after(end, sender.end)
            && !is_planted(Fault::ResetsAreFinal)
        {
            // New data from the side that has reset: a stranger sent the reset.
            (self.state, self.reset_by) = (state::ANSWERED, 0);
        }
        sender.window = sender.window.max(window);
        // The rest of the segment follows in fragments without a header, and may be as
        // long as the other side allows. If that limit is unsure, the forgotten bytes
        // have room for a packet.
        let is_cut = packet.layers.more_fragments && sender.is_unsure == 0;
        sender.reach(if is_cut && after(sender.limit, end) { sender.limit } else { end });
        sender.finished |= u8::from(flags & FIN != 0);
        let receiver = &mut self.halves[them];
        // More can be acknowledged than was seen only after a set-back.
        receiver.reach(acknowledgement);
        receiver.acknowledge(acknowledgement);
        let allowed = acknowledgement.wrapping_add(window.max(1));
        if receiver.is_unsure != 0 || after(allowed, receiver.limit) {
            receiver.limit = allowed;
            receiver.is_unsure = 0;
        }
        // Each side's SYN must be acknowledged before the connection is established.
        let is_complete = self.halves.iter().all(|half| half.synchronised == ACKNOWLEDGED)
            || is_planted(Fault::AnswersEstablish);
        self.state = match (self.halves[0].finished + self.halves[1].finished, self.state) {
            (_, state::RESET) => state::RESET,
            (_, state::OPENING) => state::OPENING,
            (_, unfinished) if !is_complete => unfinished,
            (2, _) => state::CLOSED,
            (1, _) => state::HALF_CLOSED,
            _ => state::ESTABLISHED,
        };
        true
    }

    /// True if the number acknowledges this side's SYN, with all, a part or none of its
    /// data.
    fn answers(&self, side: usize, acknowledgement: u32) -> bool {
        self.halves[side].end.wrapping_sub(acknowledgement) <= u32::from(self.early[side])
    }

    fn fits(&self, us: usize, them: usize, sequence: u32, end: u32, acknowledgement: u32) -> bool {
        let (sender, receiver) = (&self.halves[us], &self.halves[them]);
        let begins_in_time = !after(sequence, sender.limit);
        let is_not_old = !after(sender.end.wrapping_sub(receiver.window.max(1)), end);
        begins_in_time && is_not_old && self.is_acknowledged(us, them, acknowledgement)
            || is_planted(Fault::IgnoresWindows)
    }

    /// True if this side may acknowledge this number now: the other side has sent it, and
    /// lately (RFC 5961, section 5).
    fn is_acknowledged(&self, us: usize, them: usize, acknowledgement: u32) -> bool {
        let (sender, receiver) = (&self.halves[us], &self.halves[them]);
        let was_sent = !after(acknowledgement, receiver.end.wrapping_add(receiver.forgotten));
        let old_acknowledgement = receiver.end.wrapping_sub(sender.window.max(MIN_ACK_WINDOW));
        let is_recent = match receiver.synchronised {
            ACKNOWLEDGED => !after(old_acknowledgement, acknowledgement),
            // The first acknowledgement covers the SYN.
            _ => after(acknowledgement, receiver.acknowledged),
        };
        was_sent && is_recent
    }

    /// Notes that up to `packets` of the latest segments may have been forgotten; see the
    /// module.
    pub(crate) fn set_back(&mut self, packets: u32) {
        for side in 0..2 {
            if self.halves[side].synchronised != 0 {
                let bytes =
                    self.halves[side].forgotten.saturating_add(packets.saturating_mul(MAX_PACKET));
                self.halves[side].forgotten = bytes.min(FARTHEST);
                self.widen(side);
            }
        }
    }

    fn was_set_back(&self) -> bool {
        self.halves.iter().any(|half| half.forgotten != 0)
    }

    /// Widens the bounds: the side may have announced any window, and been allowed as far
    /// as any window of the other side goes.
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

    /// The largest window that the side can announce, bytes.
    fn widest(&self, side: usize) -> u32 {
        let scale = |half: &Half| if half.synchronised == 0 { MAX_SCALE } else { half.scale };
        let (own, other) = (scale(&self.halves[side]), scale(&self.halves[1 - side]));
        if own == NO_SCALE || other == NO_SCALE { 65_535 } else { 65_535 << own }
    }

    /// The connection if the answer to the SYN was forgotten: a segment tells the other
    /// side's position, but not its scale.
    fn inferred(&self, us: usize, sequence: u32, acknowledgement: u32) -> Connection {
        let mut inferred = Connection { state: state::ANSWERED, ..*self };
        let Some(side) = self.halves.iter().position(|half| half.synchronised == 0) else {
            return inferred;
        };
        let end = if side == us { sequence } else { acknowledgement };
        let forgotten = self.halves[1 - side].forgotten;
        inferred.halves[side] = Half {
            end,
            limit: end,
            acknowledged: end,
            scale: MAX_SCALE,
            synchronised: ACKNOWLEDGED,
            forgotten,
            ..Half::default()
        };
        inferred.halves[1 - side].synchronised = ACKNOWLEDGED;
        inferred.widen(side);
        inferred
    }

    /// Applies a SYN of the initiator. A SYN that does not belong to the connection is
    /// offered to the other side.
    fn open(&mut self, syn: Syn) -> bool {
        let is_repeated =
            self.state >= state::ESTABLISHED && syn.sequence.wrapping_add(1) == self.initial;
        // In TIME-WAIT a SYN may be above the numbers sent (RFC 9293, section 3.6.1) or,
        // with a newer time stamp, below (RFC 6191). The other side's answer decides.
        let is_over = self.state == state::RESET || self.state == state::CLOSED && !is_repeated;
        let is_over = is_over && !is_planted(Fault::RefusesReuse);
        if self.state == state::NONE || is_over || is_planted(Fault::BelievesAnySyn) {
            *self = Connection::opened(syn);
            return true;
        }
        if self.state < state::ESTABLISHED {
            if self.is_same(0, syn) {
                return true;
            }
            // No sender repeats a SYN with more data.
            if syn.sequence.wrapping_add(1) == self.initial {
                return false;
            }
        } else if is_repeated {
            // The handshake's own SYN, sent again.
            return true;
        }
        self.offer(0, syn);
        !is_planted(Fault::RefusesSecondSyns)
    }

    /// Applies a SYN of the other side that crosses the initiator's (RFC 9293, figure 7).
    fn synchronise(&mut self, us: usize, them: usize, syn: Syn) -> bool {
        match self.state {
            // The latest SYN counts: an earlier one may have been a stranger's.
            state::OPENING if !self.is_same(us, syn) && !is_planted(Fault::RefusesCrossingSyns) => {
                // SYNs that cross acknowledge nothing, but their windows count.
                self.meet(us, them, syn, self.halves[them].end);
                true
            }
            state::OPENING | state::ANSWERED => self.is_same(us, syn),
            state::ESTABLISHED | state::HALF_CLOSED => self.is_repeated(us, syn),
            _ => false,
        }
    }

    /// Applies a SYN-ACK.
    fn answer(&mut self, us: usize, them: usize, syn: Syn, acknowledgement: u32) -> bool {
        if us == 1 && self.offered_by == offered_by(them) && self.answers_offer(acknowledgement) {
            // The answer moves both ends to the offered SYN. Before the connection is
            // established, the earlier SYN may still be answered too.
            let before = (self.state < state::ESTABLISHED).then(|| self.opening_syn());
            *self = Connection::opened(self.offered());
            if let Some(before) = before {
                self.offer(them, before);
            }
        }
        let is_known = self.halves[us].synchronised != 0;
        match self.state {
            state::OPENING | state::ANSWERED if is_known && self.is_same(us, syn) => {
                if !self.answers(them, acknowledgement) {
                    return false;
                }
                self.halves[them].acknowledge(acknowledgement);
                self.state = state::ANSWERED;
                true
            }
            // A SYN-ACK counts also after a crossing SYN, which may have been a
            // stranger's, and after the refusal of a SYN that was sent twice.
            state::OPENING | state::RESET
                if us == 1
                    && (self.state == state::OPENING || !is_known)
                    && self.answers(them, acknowledgement) =>
            {
                self.reset_by = 0;
                self.meet(us, them, syn, acknowledgement);
                self.halves[them].acknowledged = acknowledgement;
                self.halves[them].synchronised = ACKNOWLEDGED;
                self.state = state::ANSWERED;
                true
            }
            // A second answer, from a server that keeps no state, to a SYN that was sent
            // again.
            state::ANSWERED
                if us == 1
                    && syn.end != self.halves[us].end
                    && self.answers(them, acknowledgement) =>
            {
                self.offer(us, syn);
                !is_planted(Fault::RefusesSecondAnswers)
            }
            state::NONE | state::OPENING | state::ANSWERED => false,
            _ => is_known && self.is_repeated(us, syn),
        }
    }

    /// Takes the SYN of the side that had none yet. The other side may send from `from`
    /// on.
    fn meet(&mut self, us: usize, them: usize, syn: Syn, from: u32) {
        self.halves[us] = Half::opened(syn);
        self.early[us] = syn.early;
        self.halves[them].limit = from.wrapping_add(u32::from(syn.window).max(1));
        // The window of the SYN counts until the other side announces one for data.
        self.halves[us].limit = syn.end.wrapping_add(self.halves[them].window);
    }

    fn opened(syn: Syn) -> Connection {
        Connection {
            halves: [Half::opened(syn), Half::default()],
            initial: syn.sequence.wrapping_add(1),
            early: [syn.early, 0],
            state: state::OPENING,
            ..Connection::default()
        }
    }

    /// True if this is the side's own SYN, sent again, perhaps without its data.
    fn is_same(&self, side: usize, syn: Syn) -> bool {
        let (half, early) = (self.halves[side], self.early[side]);
        half.synchronised != 0
            && syn.early <= early
            && half.end.wrapping_sub(syn.end) == u32::from(early) - u32::from(syn.early)
    }

    /// True if a SYN inside a connection could be the handshake's own, sent again: the
    /// receiver judges it.
    fn is_repeated(&self, side: usize, syn: Syn) -> bool {
        let end = self.halves[side].end;
        !after(syn.end, end) && after(syn.end, end.wrapping_sub(2))
    }

    /// Remembers a SYN that passes and becomes the connection's if it is answered.
    fn offer(&mut self, side: usize, syn: Syn) {
        self.offered_by = offered_by(side);
        (self.offered_end, self.offered_window) = (syn.end, syn.window);
        (self.offered_early, self.offered_scale) = (syn.early, syn.scale);
    }

    /// The initiator's SYN, while it has sent nothing else.
    fn opening_syn(&self) -> Syn {
        let Half { end, window, scale, .. } = self.halves[0];
        let sequence = self.initial.wrapping_sub(1);
        Syn { sequence, end, window: window.min(MAX_PACKET) as u16, scale, early: self.early[0] }
    }

    fn offered(&self) -> Syn {
        let (end, early) = (self.offered_end, self.offered_early);
        Syn {
            sequence: end.wrapping_sub(u32::from(early)).wrapping_sub(1),
            end,
            window: self.offered_window,
            scale: self.offered_scale,
            early,
        }
    }

    fn answers_offer(&self, acknowledgement: u32) -> bool {
        self.offered_end.wrapping_sub(acknowledgement) <= u32::from(self.offered_early)
    }

    /// The connection after the initiator has acknowledged a SYN-ACK other than the one
    /// that counted: an answer to the SYN that counts, or to the one beside it.
    fn with_answer(&self, is_other: bool, acknowledgement: u32) -> Connection {
        let Half { window, scale, .. } = self.halves[1];
        let known = if is_other {
            Syn { sequence: 0, end: 0, window: window.min(MAX_PACKET) as u16, scale, early: 0 }
        } else {
            self.offered()
        };
        let mut taken = if is_other {
            Connection::opened(self.offered())
        } else {
            Connection { offered_by: 0, ..*self }
        };
        let answered = if is_other { taken.halves[0].end } else { taken.halves[0].acknowledged };
        taken.halves[0].acknowledge(answered);
        taken.meet(1, 0, Syn { end: acknowledgement, early: 0, ..known }, answered);
        taken.state = state::ANSWERED;
        taken
    }

    /// True if an acknowledgement of another number answers the SYN: the other side has a
    /// connection unknown here (RFC 9293, section 3.5.1, figure 9; RFC 5961, section 4).
    /// The initiator will reset that connection.
    fn challenge(&self, them: usize, acknowledgement: u32) -> bool {
        // An acknowledgement of the SYN itself without a SYN is no answer; if it
        // acknowledges the first of two SYNs, it challenges the second.
        self.state == state::OPENING
            && (!self.answers(them, acknowledgement) || self.offered_by == offered_by(them))
            && !is_planted(Fault::RefusesChallenges)
    }

    /// Applies a reset. Inside the window it passes, unless it acknowledges a number that
    /// was never sent. From exactly the next expected byte it ends the connection (RFC
    /// 5961, section 3.2). A reset in answer to a SYN acknowledges that SYN.
    fn reset(
        &mut self,
        us: usize,
        them: usize,
        flags: u8,
        sequence: u32,
        acknowledgement: u32,
    ) -> bool {
        let refuses_offer = flags & ACK != 0
            && self.offered_by == offered_by(them)
            && self.answers_offer(acknowledgement);
        let sender = &self.halves[us];
        // The initiator may not have heard the answer.
        let is_handshake = self.state < state::ESTABLISHED || self.state == state::RESET;
        let is_over = if us == 1
            && is_handshake
            && flags & ACK != 0
            && self.answers(them, acknowledgement)
        {
            true
        } else if refuses_offer {
            // The sender of both must not be able to end an established connection by
            // them; the next SYN is offered as this one was.
            self.state < state::ESTABLISHED
        } else if sender.synchronised == 0 {
            return false;
        } else if self.state == state::OPENING && us == 0 {
            // While its SYN is unanswered, the initiator resets the other side's old
            // connection, which is unknown here. The SYN stands.
            sequence == sender.end
        } else {
            let is_inside = !after(sequence, sender.limit) && !after(sender.acknowledged, sequence);
            if !is_inside || flags & ACK != 0 && !self.is_acknowledged(us, them, acknowledgement) {
                return is_planted(Fault::ResetsFitAnywhere);
            }
            sequence == sender.acknowledged
                || sequence == sender.end
                || is_planted(Fault::InexactResetsEnd)
        };
        if is_over && self.state != state::RESET {
            (self.state, self.reset_by) = (state::RESET, offered_by(us));
        }
        true
    }

    /// The sequence numbers that this side's receiver may expect next; none before it has
    /// acknowledged the SYN.
    pub(crate) fn expected(&self, is_reverse: bool) -> Option<Expected> {
        let sender = &self.halves[usize::from(is_reverse)];
        (sender.synchronised == ACKNOWLEDGED)
            .then_some(Expected { least: sender.acknowledged, most: sender.end })
    }

    /// True if an ICMP error may quote a segment of this side that begins with this
    /// number: one that was sent and need not have been acknowledged yet (RFC 5927,
    /// section 4.1), or an offered SYN.
    pub(crate) fn quotes(&self, is_reverse: bool, sequence: u32) -> bool {
        let side = usize::from(is_reverse);
        let (sender, receiver) = (&self.halves[side], &self.halves[1 - side]);
        if sender.synchronised == 0 {
            // The side has sent nothing, or its segments are forgotten.
            return self.was_set_back();
        }
        let offered = self.offered_end.wrapping_sub(u32::from(self.offered_early)).wrapping_sub(1);
        let in_flight = receiver.window.max(1).saturating_add(u32::from(self.early[side]));
        self.offered_by == offered_by(side) && sequence == offered
            || !after(sequence, sender.end.wrapping_add(sender.forgotten))
                && !after(sender.end.wrapping_sub(in_flight), sequence)
            || is_planted(Fault::ErrorsQuoteAnything)
    }
}

/// [`Connection::offered_by`] and [`Connection::reset_by`] of a side.
fn offered_by(side: usize) -> u8 {
    side as u8 + 1
}
