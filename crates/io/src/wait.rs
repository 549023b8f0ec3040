//! Adaptive waiting: spin while there is work, then sleep until there is some. How many
//! turns without work there are, and how long the sleep is at most, is the process's own
//! (`holdfast/run`).

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::BorrowedFd;

/// Counts turns without work, to decide when to sleep.
#[derive(Debug, Clone, Copy)]
pub struct SpinLimit {
    spins: u32,
    idle: u32,
}

impl SpinLimit {
    /// A counter that is over after `spins` turns without work; never for `u32::MAX`.
    pub fn new(spins: u32) -> SpinLimit {
        SpinLimit { spins, idle: 0 }
    }

    /// Counts a turn; true if it is time to sleep.
    #[inline]
    pub fn is_over(&mut self, had_work: bool) -> bool {
        if had_work {
            self.idle = 0;
            return false;
        }
        self.idle = self.idle.saturating_add(1);
        self.idle > self.spins && self.spins != u32::MAX
    }
}

/// Sleeps until one of the descriptors is readable or `nanoseconds` have passed.
pub fn sleep(fds: &[BorrowedFd<'_>], nanoseconds: u64) {
    let mut list: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = Timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    };
    // A signal ends the sleep early, which is as good as any other reason.
    let _ = rustix::event::poll(&mut list, Some(&timeout));
}
