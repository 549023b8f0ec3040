//! Progress on standard error: one line per step; on a terminal the current line is
//! rewritten as the step advances.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between two rewrites of a line.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// A writer of progress lines.
#[derive(Debug)]
pub(super) struct Progress {
    rich: bool,
    started: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    /// Rewrites lines on a terminal, prints plain lines elsewhere.
    pub(super) fn new() -> Progress {
        Progress { rich: std::io::stderr().is_terminal(), started: Instant::now(), drawn: None }
    }

    /// Reports a new step.
    pub(super) fn step(&mut self, text: &str) {
        let clear = if self.rich && self.drawn.take().is_some() { "\r\x1b[K" } else { "" };
        let _ = writeln!(
            std::io::stderr(),
            "{clear}{:>6.1} s  {text}",
            self.started.elapsed().as_secs_f64()
        );
    }

    /// Shows how the current step advances: on a terminal only, and not too often.
    pub(super) fn advance(&mut self, text: impl FnOnce() -> String) {
        let due = self.drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW_INTERVAL);
        if self.rich && due {
            self.drawn = Some(Instant::now());
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[K{:>6.1} s  {}",
                self.started.elapsed().as_secs_f64(),
                text()
            );
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.rich && self.drawn.is_some() {
            let _ = writeln!(std::io::stderr());
        }
    }
}
