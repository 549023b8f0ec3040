//! Segments of a TCP connection as a stream of bytes, without holding any.
//!
//! Theory of operation. Bytes are inspected in order. A segment behind a gap is dropped:
//! its sender retransmits it, behind the missing bytes. The receiver ignores
//! retransmitted bytes that it has acknowledged: they are not inspected. All other
//! retransmitted bytes are inspected again, from the states at which their segment first
//! began, because the receiver may not have had the first copy. At their end, the states
//! must be those of the first time, and no further rule may have matched in part.
//! Otherwise the two readings differ, and the bytes that follow, which were inspected
//! behind the first reading, could complete a pattern behind the second.
//!
//! A border is the beginning of a segment, and few borders are remembered. The border to
//! forget is one in the automata's start states, as long as there is one. The start
//! states are therefore taken for the states of a border that is not remembered. Pieces
//! that begin and end in the start states can be put together in any order. A piece that
//! does not end in them, or leaves a rule matched in part, could be the first half of a
//! pattern: it is uncertain. A piece that begins before the latest border that was
//! forgotten in other states is uncertain, too. A piece that begins inside of a segment
//! is taken for one that begins in the start states, which is the hole that is left.

use super::inspect::{Engine, Scan};
use super::state::{Armed, Side, distance};
use holdfast_wire::fault::{Fault, is_planted};

/// The outcome of a segment's inspection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Inspection {
    /// True if the segment lies behind a gap: none of its bytes were inspected.
    pub(super) is_behind_gap: bool,
    /// True if the segment is the first one seen of a stream whose beginning was not
    /// seen.
    pub(super) is_midstream: bool,
    /// True if bytes were retransmitted and inspected again.
    pub(super) is_again: bool,
    /// True if retransmitted bytes were not inspected together with all bytes around
    /// them.
    pub(super) has_no_border: bool,
    /// True if a pattern across the borders of retransmitted bytes could be missed.
    pub(super) is_uncertain: bool,
    /// True if retransmitted bytes lead to other states than the first ones did.
    pub(super) has_other_bytes: bool,
}

/// Inspects a segment whose first byte has the sequence number `start`. A segment that is
/// refused because of retransmitted bytes changes nothing, and its new bytes are not
/// inspected.
pub(super) fn segment(
    engine: &Engine,
    side: &mut Side,
    start: u32,
    bytes: &[u8],
    scan: &mut Scan<'_>,
    is_refused: impl Fn(&Inspection) -> bool,
) -> Inspection {
    let mut inspection = Inspection::default();
    if bytes.is_empty() {
        return inspection;
    }
    if side.is_started == 0 {
        let position = side.position;
        side.begin(start);
        (side.position, side.is_midstream) = (position, 1);
        inspection.is_midstream = true;
    }
    let ahead = distance(side.expected, start);
    if ahead > 0 {
        inspection.is_behind_gap = !is_planted(Fault::PassesBehindGaps);
        return inspection;
    }
    let behind = ahead.unsigned_abs();
    if bytes.len() == 1
        && side.is_midstream == 0
        && u64::from(behind) == side.position.saturating_add(1)
    {
        // A keep-alive probe has the sequence number of the SYN.
        return inspection;
    }
    let (old, new) = bytes.split_at(bytes.len().min(behind as usize));
    let is_known = side.is_acknowledged(start.wrapping_add(old.len() as u32), behind);
    if new.is_empty() && (is_known || is_planted(Fault::TrustsRetransmissions)) {
        return inspection;
    }
    engine.tidy(side);
    if !old.is_empty() && !is_known {
        let before = *side;
        again(engine, side, start, old, scan, &mut inspection);
        if is_refused(&inspection) {
            *side = before;
            return inspection;
        }
    }
    if !new.is_empty() {
        if is_planted(Fault::InspectsSegmentsAlone) {
            side.states = [0; 3];
        }
        side.remember(|states| engine.is_rest(states));
        side.states = engine.run(side, side.position, side.states, new, scan);
        side.go_on(new.len());
    }
    inspection
}

/// Inspects retransmitted bytes.
fn again(
    engine: &Engine,
    side: &mut Side,
    start: u32,
    old: &[u8],
    scan: &mut Scan<'_>,
    inspection: &mut Inspection,
) {
    inspection.is_again = true;
    let end = start.wrapping_add(old.len() as u32);
    let is_before = side.is_before_beginning(side.expected.wrapping_sub(start));
    // Bytes before an acknowledged border need not be read.
    let start = side.border_to_begin_at(start).unwrap_or(start);
    let old = &old[old.len().saturating_sub(end.wrapping_sub(start) as usize)..];
    let position = side.position.saturating_sub(side.expected.wrapping_sub(start).into());
    let (before, behind) = (side.states_at(start), side.states_at(end));
    let is_at_end = end == side.expected;
    let partials = side.partials;
    // Expressions under way are beyond these bytes; their states back there are not
    // known.
    let under_way = core::mem::take(&mut side.armed);
    let states = engine.run(side, position, before.unwrap_or_default(), old, scan);
    let armed = core::mem::replace(&mut side.armed, under_way);
    let has_armed = is_armed_anew(side, &armed, is_at_end, scan);
    let has_expressions = has_armed || side.is_armed();
    let is_changed = !is_at_end && side.partials != partials;
    // A rule in part that looks new may have been there the first time, and have been
    // forgotten.
    let is_new = is_changed && side.has_forgotten == 0;
    let end_position = position.saturating_add(old.len() as u64);
    let is_other = engine.resume(behind.unwrap_or_default(), end_position) != states || is_new;
    inspection.is_uncertain = has_armed || is_before;
    if before.is_some() && behind.is_some() {
        inspection.has_other_bytes = is_other && !is_planted(Fault::TrustsOtherBytes);
        inspection.has_no_border = has_expressions || is_changed && !is_new;
    } else {
        inspection.has_no_border = true;
        inspection.is_uncertain |= is_other || before.is_none() && side.has_lost(start);
    }
    inspection.has_no_border |= inspection.is_uncertain;
}

/// True if retransmitted bytes have begun expressions beside those under way that will
/// not see the bytes that follow. At the stream's end they will: they are added to
/// `side`.
fn is_armed_anew(side: &mut Side, armed: &[Armed], is_at_end: bool, scan: &mut Scan<'_>) -> bool {
    let mut is_anew = false;
    for armed in armed.iter().filter(|armed| armed.rule != 0) {
        let is_same = |other: &Armed| {
            (armed.rule, armed.chain, armed.step) == (other.rule, other.chain, other.step)
                && (!is_at_end || armed.state == other.state)
        };
        if side.armed.iter().any(is_same) {
            continue;
        }
        match side.armed.iter_mut().find(|free| is_at_end && free.rule == 0) {
            Some(free) => *free = *armed,
            None if is_at_end => scan.is_overfull = true,
            None => is_anew = true,
        }
    }
    is_anew
}
