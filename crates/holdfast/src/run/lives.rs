//! The lives of a process that there is always to be one of: when it hangs, and when the next life begins.
//!
//! In: how its lives end, and the time. Out: when the next one is due. Never: the end of the box because it is away.

use super::MILLISECOND;
use super::workers::Worker;

/// One whose loop has not turned for so long is ended, ns: the next life knows what this one knew, so that little is lost if it was only slow.
const PATIENCE: u64 = 2_000 * MILLISECOND;
/// It is ended all the same after so many times as long.
const HOPELESS: u64 = 10;
/// A life this long was no failure to start, ns.
const LONG_LIFE: u64 = 10_000 * MILLISECOND;
/// Short lives in succession before a pause.
const TRIES: u32 = 3;

/// See the module.
#[derive(Default)]
pub(super) struct Lives {
    started_at: u64,
    /// When the next one is due, once one has ended.
    due: Option<u64>,
    short_lives: u32,
    last_look: u64,
}

impl Lives {
    /// True if a life is to begin now. One that hangs is ended.
    pub(super) fn look_after(&mut self, present: Option<&mut Worker>, now: u64) -> bool {
        // If this process stood still itself, nobody could be heard.
        let stood_still = now.saturating_sub(core::mem::replace(&mut self.last_look, now)) > PATIENCE / 4;
        if let Some(worker) = present {
            if stood_still || worker.process.is_none() {
                worker.alive_at = now;
            }
            // One that waits for a processor does not hang.
            let still = now.saturating_sub(worker.alive_at);
            if still > PATIENCE && (!worker.is_alive(PATIENCE, now) || still > HOPELESS * PATIENCE) {
                worker.kill();
            }
            return false;
        }
        // One of an earlier life of the manager may not have been taken over: nobody said how it ended.
        self.due.is_none_or(|due| due <= now)
    }

    /// One begins, or becomes what it was started for.
    pub(super) fn begun(&mut self, now: u64) {
        self.started_at = now;
        self.due = None;
    }

    /// One has ended. When the next one begins, in words.
    pub(super) fn ended(&mut self, now: u64) -> String {
        self.short_lives = if now.saturating_sub(self.started_at) > LONG_LIFE { 0 } else { self.short_lives + 1 };
        let pause = if self.short_lives < TRIES { 0 } else { (100 * MILLISECOND) << (self.short_lives - TRIES).min(7) };
        self.due = Some(now + pause);
        if pause == 0 { "at once".to_owned() } else { format!("in {} ms", pause / MILLISECOND) }
    }

    /// It ends whenever it is started.
    pub(super) fn is_hopeless(&self) -> bool {
        self.short_lives >= TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_come_when_lives_are_short() {
        let mut lives = Lives::default();
        assert!(lives.look_after(None, 5), "nobody is there");
        let mut now = 0;
        let mut said = Vec::new();
        for _ in 0..5 {
            lives.begun(now);
            now += MILLISECOND;
            said.push(lives.ended(now));
        }
        assert_eq!(said, ["at once", "at once", "in 100 ms", "in 200 ms", "in 400 ms"]);
        assert!(lives.is_hopeless() && !lives.look_after(None, now) && lives.look_after(None, now + 400 * MILLISECOND));
        lives.begun(now);
        assert_eq!(lives.ended(now + 2 * LONG_LIFE), "at once");
        assert!(!lives.is_hopeless());
    }
}
