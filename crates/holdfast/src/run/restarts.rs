//! Incarnations of a process that must always run: when one hangs, and when the next
//! begins.
//!
//! The first incarnations after a failure begin at once. If they keep ending early, each
//! pause is twice the one before, up to [`LONGEST_PAUSE`]; a long incarnation resets the
//! count.
//!
//! In: ends of incarnations, and the time. Out: the time of the next one. Never: the end
//! of the box because the process is away.

use super::MILLISECOND;
use super::workers::Worker;
use holdfast_control::status::Retry;

/// Time-out of a loop that does not turn, ns. The next incarnation has all of this one's
/// knowledge, so little is lost if the process was only slow.
const TIMEOUT: u64 = 2_000 * MILLISECOND;
/// Number of times [`TIMEOUT`] after which the process is killed even if it only waits
/// for a processor.
const HOPELESS: u64 = 10;
/// An incarnation that lasted this long was no failed start, ns.
const LONG_LIFE: u64 = 10_000 * MILLISECOND;
/// As [`LONG_LIFE`], for a manager, ns. Without a manager there is no traffic. On average
/// it has at most one incarnation per second, because their numbers must not overtake the
/// clock ([`base`](super::guard)).
pub(super) const LONG_LIFE_OF_MANAGER: u64 = 6_000 * MILLISECOND;
/// Short incarnations in succession before a pause.
const TRIES: u32 = 3;
const SHORTEST_PAUSE: u64 = 100 * MILLISECOND;
const LONGEST_PAUSE: u64 = 30_000 * MILLISECOND;

/// Incarnations of a process; see the module.
pub(super) struct Restarts {
    /// An incarnation that lasted this long was no failed start, ns.
    long_life: u64,
    started_at: u64,
    /// The time of the next incarnation, once one has ended.
    due: Option<u64>,
    short_lives: u32,
    last_look: u64,
}

impl Default for Restarts {
    fn default() -> Restarts {
        Restarts::new(LONG_LIFE)
    }
}

impl Restarts {
    /// An incarnation that lasted longer than `long_life`, ns, is no failed start.
    pub(super) fn new(long_life: u64) -> Restarts {
        Restarts { long_life, started_at: 0, due: None, short_lives: 0, last_look: 0 }
    }

    /// True if an incarnation is to begin now. Ends one that hangs.
    pub(super) fn look_after(&mut self, present: Option<&mut Worker>, now: u64) -> bool {
        // A process that stood still itself could not hear any other.
        let stood_still =
            now.saturating_sub(core::mem::replace(&mut self.last_look, now)) > TIMEOUT / 4;
        if let Some(worker) = present {
            if stood_still || worker.process.is_none() {
                worker.alive_at = now;
            }
            // A process that only waits for a processor does not hang: it gets a much
            // longer timeout.
            let still = now.saturating_sub(worker.alive_at);
            if still > TIMEOUT && (!worker.is_alive(TIMEOUT, now) || still > HOPELESS * TIMEOUT) {
                worker.kill();
            }
            return false;
        }
        self.pause(now) == 0
    }

    /// The time until the next incarnation is to begin, ns.
    pub(super) fn pause(&self, now: u64) -> u64 {
        // An orphan of an earlier manager may not have been adopted: its end was not
        // reported.
        self.due.map_or(0, |due| due.saturating_sub(now))
    }

    /// Notes that an incarnation begins, or takes up its role.
    pub(super) fn begun(&mut self, now: u64) {
        self.started_at = now;
        self.due = None;
    }

    /// Notes that an incarnation has ended; returns in words when the next one begins.
    pub(super) fn ended(&mut self, now: u64) -> String {
        self.short_lives = if now.saturating_sub(self.started_at) > self.long_life {
            0
        } else {
            self.short_lives + 1
        };
        let doublings = self.short_lives.checked_sub(TRIES);
        let pause = doublings
            .map_or(0, |doublings| (SHORTEST_PAUSE << doublings.min(20)).min(LONGEST_PAUSE));
        self.due = Some(now + pause);
        if pause == 0 { "at once".to_owned() } else { format!("in {} ms", pause / MILLISECOND) }
    }

    /// Short incarnations in succession.
    pub(super) fn failures(&self) -> u32 {
        self.short_lives
    }

    /// The retry that `status` shows for a process that keeps ending, for `cause` last.
    pub(super) fn retry(&self, is_there: bool, cause: &str, now: u64) -> Option<Retry> {
        let has_lasted = is_there && now.saturating_sub(self.started_at) > self.long_life;
        let next_ms = (!is_there).then(|| self.pause(now) / MILLISECOND);
        (self.short_lives > 0 && !has_lasted).then(|| Retry {
            failures: self.short_lives,
            next_ms,
            cause: cause.to_owned(),
        })
    }

    /// True if the process ends after every start.
    pub(super) fn is_hopeless(&self) -> bool {
        self.short_lives >= TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_come_when_lives_are_short() {
        let mut lives = Restarts::default();
        assert!(lives.look_after(None, 5), "nobody is there");
        let mut now = 0;
        let mut said = Vec::new();
        for _ in 0..5 {
            lives.begun(now);
            now += MILLISECOND;
            said.push(lives.ended(now));
        }
        assert_eq!(said, ["at once", "at once", "in 100 ms", "in 200 ms", "in 400 ms"]);
        assert!(
            lives.is_hopeless()
                && !lives.look_after(None, now)
                && lives.look_after(None, now + 400 * MILLISECOND)
        );
        lives.begun(now);
        assert_eq!(lives.ended(now + 2 * LONG_LIFE), "at once");
        assert!(!lives.is_hopeless());
    }

    /// A process that keeps ending is shown as retried, with how often, when and why,
    /// until an incarnation has lasted.
    #[test]
    fn what_is_retried_is_said() {
        let mut lives = Restarts::default();
        lives.begun(1);
        assert_eq!(lives.retry(true, "", 2), None, "it begins for the first time");
        assert_eq!(lives.ended(2 + LONG_LIFE), "at once");
        assert_eq!(lives.retry(false, "exited", 3 + LONG_LIFE), None, "it had lasted");
        let retry =
            |failures, next_ms| Some(Retry { failures, next_ms, cause: "exited".to_owned() });
        for failures in 1..=3 {
            lives.begun(5);
            lives.ended(5);
            let pause = if failures < 3 { 0 } else { 100 };
            assert_eq!(lives.retry(false, "exited", 5), retry(failures, Some(pause)));
        }
        assert_eq!(lives.retry(false, "exited", 5 + 40 * MILLISECOND), retry(3, Some(60)));
        lives.begun(200 * MILLISECOND);
        assert_eq!(lives.retry(true, "exited", 200 * MILLISECOND), retry(3, None));
        assert_eq!(lives.retry(true, "exited", 201 * MILLISECOND + LONG_LIFE), None);
    }

    /// However often the process ends, there is a next incarnation, and the pause before
    /// it is bounded.
    #[test]
    fn there_is_always_a_next_life() {
        let mut lives = Restarts::new(LONG_LIFE_OF_MANAGER);
        let mut now = 0;
        for _ in 0..1_000 {
            lives.begun(now);
            lives.ended(now);
            let pause = lives.pause(now);
            assert!(pause <= LONGEST_PAUSE && lives.look_after(None, now + pause), "{pause}");
            now += pause;
        }
        assert_eq!(lives.pause(now - LONGEST_PAUSE), LONGEST_PAUSE);
        lives.begun(now);
        now += LONG_LIFE_OF_MANAGER + 1;
        assert_eq!((lives.ended(now).as_str(), lives.pause(now)), ("at once", 0));
    }

    /// The numbers of a manager's incarnations grow no faster than seconds, except the
    /// first few.
    #[test]
    fn a_manager_s_lives_do_not_overtake_the_clock() {
        for life in [0, 100, 900, 2_900, 5_900, 6_001, 7_000].map(|life| life * MILLISECOND) {
            for every in 1..9 {
                let (mut lives, mut now) = (Restarts::new(LONG_LIFE_OF_MANAGER), 0);
                for count in 1..200u64 {
                    lives.begun(now);
                    now += if count.is_multiple_of(every) { life } else { 0 };
                    lives.ended(now);
                    now += lives.pause(now);
                    assert!(
                        count <= now / (1_000 * MILLISECOND) + 8,
                        "{count} lives of {life} ns in {now} ns"
                    );
                }
            }
        }
    }
}
