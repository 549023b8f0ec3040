//! The takeover: a standby waits, undoes the dead worker's unfinished turn, and is the
//! worker.

use super::keeper::{NO_WAY_BACK, parent};
use super::{Shared, Turns, log, preparation};
use crate::process;
use std::sync::atomic::Ordering;

/// Maximum number of workers that may end in succession without finishing a turn.
const MAX_STRIKES: u32 = 8;
/// Packets that are processed one by one after a worker has crashed.
const CAREFUL: u32 = 128;

/// Runs a process that the keeper `keeper` has forked: as a worker, or as a standby that
/// becomes one when the worker has ended. Returns the exit code.
pub(super) fn stand_by_and_work(
    shared: &Shared,
    keeper: u32,
    work: &mut impl FnMut(Turns) -> i32,
) -> i32 {
    let me = std::process::id();
    let pair = shared.pair;
    let mut hasty = 0;
    if pair.worker.load(Ordering::Acquire) != 0 {
        preparation::populate();
        log::prepare();
        // Reads the clock once: the kernel's clock pages are mapped at the first access,
        // which would delay the takeover.
        process::Clock::new();
        preparation::go_first();
        hasty = 2;
        pair.standby.store(me, Ordering::SeqCst);
        if parent() != keeper {
            // The next keeper may not have seen this standby, and will start another one.
            let _ = pair.standby.compare_exchange(me, 0, Ordering::SeqCst, Ordering::Relaxed);
            return NO_WAY_BACK;
        }
    }
    let Ok(takes_over) = shared.wait() else { return NO_WAY_BACK };
    let mut turns = Turns { takes_over, hasty, ..Turns::default() };
    if takes_over {
        let has_crashed = log::take_crash();
        if shared.finished.load(Ordering::SeqCst) != 0 {
            return 0;
        }
        // Counted before anything can fail: heirs that end while they take over must not
        // follow each other for ever.
        if shared.strikes.fetch_add(1, Ordering::SeqCst) >= MAX_STRIKES {
            return NO_WAY_BACK;
        }
        let Some(was_in_turn) = log::undo() else { return NO_WAY_BACK };
        if has_crashed && was_in_turn {
            turns.is_poisoned = shared.suspect.load(Ordering::SeqCst) != 0;
            turns.careful = CAREFUL;
        }
        shared.suspect.store(0, Ordering::SeqCst);
        pair.takeovers.fetch_add(1, Ordering::SeqCst);
    }
    // Work before the first turn is undone like a turn: it may take long (a library to
    // load, connections to make), and the worker may be killed during it.
    log::track();
    log::begin();
    let is_first = pair.worker.load(Ordering::Relaxed) == 0;
    pair.worker.store(me, Ordering::SeqCst);
    // Before the first worker there is no deputy: if the keeper is dead, no process knows
    // of this one. The worker's word names it until it has ended.
    if is_first && parent() != keeper {
        return NO_WAY_BACK;
    }
    let _ = pair.standby.compare_exchange(me, 0, Ordering::SeqCst, Ordering::Relaxed);
    let code = work(turns);
    shared.finished.store((code as u32).wrapping_add(1), Ordering::SeqCst);
    code
}
