//! Segments of a TCP connection as a stream of bytes, without holding any.
//!
//! Theory of operation. Bytes are inspected in order. A segment behind a gap is dropped:
//! its sender sends it again, behind what is missing. Bytes that come again are inspected
//! again, from the states where their segment first began: the receiver may not have had
//! the first ones. Where they end, the states must be those of the first time, and
//! nothing may have matched in part that had not before. Otherwise the two readings
//! differ, and what follows, which was inspected behind the first one, could complete
//! something behind the second. If their beginning or end is not remembered, they are
//! inspected as far as that goes, and a pattern that lies across it may be missed. Bytes
//! that the receiver has acknowledged are nothing to it.

use super::inspect::{Engine, Scan};
use super::state::{Side, distance};
use holdfast_wire::fault::{Fault, is_planted};

/// What a segment was like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Met {
    /// It lies behind a gap: nothing of it was inspected.
    pub(super) is_early: bool,
    /// The stream had begun before.
    pub(super) is_midstream: bool,
    /// Bytes came again.
    pub(super) is_again: bool,
    /// They could not be inspected together with what lies around them.
    pub(super) is_alone: bool,
    /// They were others than the first time.
    pub(super) is_other: bool,
}

/// Inspects a segment whose first byte has the number `start`.
pub(super) fn segment(
    engine: &Engine,
    side: &mut Side,
    start: u32,
    bytes: &[u8],
    scan: &mut Scan<'_>,
) -> Met {
    let mut met = Met::default();
    if bytes.is_empty() {
        return met;
    }
    if side.is_started == 0 {
        let position = side.position;
        side.begin(start);
        side.position = position;
        met.is_midstream = true;
    }
    let ahead = distance(side.expected, start);
    if ahead > 0 {
        met.is_early = !is_planted(Fault::PassesBehindGaps);
        return met;
    }
    let behind = ahead.unsigned_abs();
    let (old, new) = bytes.split_at(bytes.len().min(behind as usize));
    let end = start.wrapping_add(old.len() as u32);
    let is_known = distance(side.acknowledged, end) <= 0;
    if new.is_empty() && (is_known || is_planted(Fault::TrustsRetransmissions)) {
        return met;
    }
    engine.tidy(side);
    if !old.is_empty() && !is_known {
        again(engine, side, start, old, scan, &mut met);
    }
    if !new.is_empty() {
        if is_planted(Fault::InspectsSegmentsAlone) {
            side.states = [0; 2];
        }
        side.remember();
        side.states = engine.run(side, side.position, side.states, new, scan);
        side.position = side.position.wrapping_add(new.len() as u64);
        side.expected = side.expected.wrapping_add(new.len() as u32);
    }
    met
}

/// Inspects bytes that came before.
fn again(
    engine: &Engine,
    side: &mut Side,
    start: u32,
    old: &[u8],
    scan: &mut Scan<'_>,
    met: &mut Met,
) {
    met.is_again = true;
    let behind = side.expected.wrapping_sub(start);
    let position = side.position.saturating_sub(behind.into());
    let before = side.states_at(start);
    let end = start.wrapping_add(old.len() as u32);
    let behind = side.states_at(end);
    let partials = side.partials;
    // Expressions under way are beyond these bytes, and where they were is not known.
    let armed = core::mem::take(&mut side.armed);
    let states = engine.run(side, position, before.unwrap_or_default(), old, scan);
    let has_expressions = side.is_armed() || armed.iter().any(|armed| armed.rule != 0);
    side.armed = armed;
    match (before, behind) {
        (Some(_), Some(behind)) => {
            let is_changed = end != side.expected && side.partials != partials;
            // What is there now may have been there then, and have been forgotten.
            let is_new = is_changed && side.has_forgotten == 0;
            met.is_other =
                (engine.resume(behind) != states || is_new) && !is_planted(Fault::TrustsOtherBytes);
            met.is_alone = has_expressions || is_changed && !is_new;
        }
        _ => met.is_alone = true,
    }
}
