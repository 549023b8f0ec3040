//! Incarnations of a process that must always run: when one hangs, and when the next
//! begins.
//!
//! The first incarnations after a failure begin at once. If they keep ending early, each
//! pause is twice the one before, up to [`LONGEST_PAUSE`]; a long incarnation resets the
//! count.
//!
//! Manager, coordinator and state server are started again by this rule. The coordinator
//! starts runtimes again by a rule of its own (`node/coordinator/memory`, `failed`).
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
const LONG_INCARNATION: u64 = 10_000 * MILLISECOND;
/// As [`LONG_INCARNATION`], for a manager, ns. Without a manager there is no traffic. On
/// average it has at most one incarnation per second, because their numbers must not
/// overtake the clock ([`base`](super::guard)).
pub(super) const LONG_INCARNATION_OF_MANAGER: u64 = 6_000 * MILLISECOND;
/// Short incarnations in succession before a pause.
const TRIES: u32 = 3;
const SHORTEST_PAUSE: u64 = 100 * MILLISECOND;
const LONGEST_PAUSE: u64 = 30_000 * MILLISECOND;

/// Incarnations of a process; see the module.
pub(super) struct Restarts {
    /// An incarnation that lasted this long was no failed start, ns.
    long_incarnation: u64,
    started_at: u64,
    /// The time of the next incarnation, once one has ended.
    due: Option<u64>,
    failures: u32,
    last_look: u64,
}

impl Default for Restarts {
    fn default() -> Restarts {
        Restarts::new(LONG_INCARNATION)
    }
}

impl Restarts {
    /// An incarnation that lasted longer than `long_incarnation`, ns, is no failed start.
    pub(super) fn new(long_incarnation: u64) -> Restarts {
        Restarts { long_incarnation, started_at: 0, due: None, failures: 0, last_look: 0 }
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
        self.failures = if now.saturating_sub(self.started_at) > self.long_incarnation {
            0
        } else {
            self.failures + 1
        };
        let doublings = self.failures.checked_sub(TRIES);
        let pause = doublings
            .map_or(0, |doublings| (SHORTEST_PAUSE << doublings.min(20)).min(LONGEST_PAUSE));
        self.due = Some(now + pause);
        if pause == 0 { "at once".to_owned() } else { format!("in {} ms", pause / MILLISECOND) }
    }

    /// Short incarnations in succession.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// The retry that `status` shows for a process that keeps ending, for `cause` last.
    pub(super) fn retry(&self, is_there: bool, cause: &str, now: u64) -> Option<Retry> {
        let has_lasted = is_there && now.saturating_sub(self.started_at) > self.long_incarnation;
        let next_ms = (!is_there).then(|| self.pause(now) / MILLISECOND);
        (self.failures > 0 && !has_lasted).then(|| Retry {
            failures: self.failures,
            next_ms,
            cause: cause.to_owned(),
        })
    }

    /// True if the process ends after every start.
    pub(super) fn is_hopeless(&self) -> bool {
        self.failures >= TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_come_when_incarnations_are_short() {
        let mut restarts = Restarts::default();
        assert!(restarts.look_after(None, 5), "nobody is there");
        let mut now = 0;
        let mut said = Vec::new();
        for _ in 0..5 {
            restarts.begun(now);
            now += MILLISECOND;
            said.push(restarts.ended(now));
        }
        assert_eq!(said, ["at once", "at once", "in 100 ms", "in 200 ms", "in 400 ms"]);
        assert!(
            restarts.is_hopeless()
                && !restarts.look_after(None, now)
                && restarts.look_after(None, now + 400 * MILLISECOND)
        );
        restarts.begun(now);
        assert_eq!(restarts.ended(now + 2 * LONG_INCARNATION), "at once");
        assert!(!restarts.is_hopeless());
    }

    /// A process that keeps ending is shown as retried, with how often, when and why,
    /// until an incarnation has lasted.
    #[test]
    fn what_is_retried_is_said() {
        let mut restarts = Restarts::default();
        restarts.begun(1);
        assert_eq!(restarts.retry(true, "", 2), None, "it begins for the first time");
        assert_eq!(restarts.ended(2 + LONG_INCARNATION), "at once");
        assert_eq!(restarts.retry(false, "exited", 3 + LONG_INCARNATION), None, "it had lasted");
        let retry =
            |failures, next_ms| Some(Retry { failures, next_ms, cause: "exited".to_owned() });
        for failures in 1..=3 {
            restarts.begun(5);
            restarts.ended(5);
            let pause = if failures < 3 { 0 } else { 100 };
            assert_eq!(restarts.retry(false, "exited", 5), retry(failures, Some(pause)));
        }
        assert_eq!(restarts.retry(false, "exited", 5 + 40 * MILLISECOND), retry(3, Some(60)));
        restarts.begun(200 * MILLISECOND);
        assert_eq!(restarts.retry(true, "exited", 200 * MILLISECOND), retry(3, None));
        assert_eq!(restarts.retry(true, "exited", 201 * MILLISECOND + LONG_INCARNATION), None);
    }

    /// However often the process ends, there is a next incarnation, and the pause before
    /// it is bounded.
    #[test]
    fn there_is_always_a_next_incarnation() {
        let mut restarts = Restarts::new(LONG_INCARNATION_OF_MANAGER);
        let mut now = 0;
        for _ in 0..1_000 {
            restarts.begun(now);
            restarts.ended(now);
            let pause = restarts.pause(now);
            assert!(pause <= LONGEST_PAUSE && restarts.look_after(None, now + pause), "{pause}");
            now += pause;
        }
        assert_eq!(restarts.pause(now - LONGEST_PAUSE), LONGEST_PAUSE);
        restarts.begun(now);
        now += LONG_INCARNATION_OF_MANAGER + 1;
        assert_eq!((restarts.ended(now).as_str(), restarts.pause(now)), ("at once", 0));
    }

    /// The numbers of a manager's incarnations grow no faster than seconds, except the
    /// first few.
    #[test]
    fn a_manager_s_incarnations_do_not_overtake_the_clock() {
        for length in [0, 100, 900, 2_900, 5_900, 6_001, 7_000].map(|length| length * MILLISECOND) {
            for every in 1..9 {
                let (mut restarts, mut now) = (Restarts::new(LONG_INCARNATION_OF_MANAGER), 0);
                for count in 1..200u64 {
                    restarts.begun(now);
                    now += if count.is_multiple_of(every) { length } else { 0 };
                    restarts.ended(now);
                    now += restarts.pause(now);
                    assert!(
                        count <= now / (1_000 * MILLISECOND) + 8,
                        "{count} incarnations of {length} ns in {now} ns"
                    );
                }
            }
        }
    }
}
