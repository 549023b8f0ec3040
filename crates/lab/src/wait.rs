//! Waiting for events: polls until a condition holds, a limit passes, or the user
//! interrupts.

use anyhow::{Result, bail};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time between two looks. Short against anything waited for, long against the cost of a
/// look.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A flag that ends waits early. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// The error of a wait that [`Interrupt`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Interrupt {
    /// A flag that SIGINT, SIGTERM and SIGHUP set instead of ending the process, so that
    /// the laboratory can remove everything it made.
    pub fn on_signals() -> Result<Interrupt> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt.0))?;
        }
        Ok(interrupt)
    }

    /// Sets the flag: ends the waits.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True if the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails with [`Interrupted`] if the flag is set.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.is_set() { Err(Interrupted) } else { Ok(()) }
    }
}

/// Asks `probe` until it has an answer, again after [`POLL_INTERVAL`]. Fails with the
/// error of `probe`, with [`Interrupted`], or after `limit` with an error that names
/// `what` was waited for.
pub fn until<T>(
    what: &str,
    limit: Duration,
    interrupt: &Interrupt,
    probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    until_every(POLL_INTERVAL, what, limit, interrupt, probe)
}

/// Like `until`, for a look so costly that it is taken less often.
pub fn until_every<T>(
    interval: Duration,
    what: &str,
    limit: Duration,
    interrupt: &Interrupt,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        interrupt.check()?;
        if let Some(answer) = probe()? {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            bail!("waited {} s in vain: {what}", limit.as_secs_f32());
        }
        std::thread::sleep(interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_with_the_answer_the_limit_the_error_or_the_interrupt() {
        let interrupt = Interrupt::default();
        let mut asked = 0;
        let answer = until("third time", Duration::from_secs(5), &interrupt, || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        });
        assert_eq!(answer.unwrap(), 3);

        let late = until::<()>("the moon", Duration::ZERO, &interrupt, || Ok(None)).unwrap_err();
        assert!(late.to_string().contains("the moon"), "{late}");

        let failed =
            until::<()>("", Duration::from_secs(5), &interrupt, || bail!("broken")).unwrap_err();
        assert_eq!(failed.to_string(), "broken");

        interrupt.set();
        let interrupted =
            until("", Duration::from_secs(5), &interrupt, || Ok(Some(()))).unwrap_err();
        assert!(interrupted.is::<Interrupted>());
    }
}
