//! Preparations of a standby, so that its takeover waits for nothing.
//!
//! All memory is mapped into the process. A forked process has its parent's private
//! memory read-only, and shared memory not at all: its first turn would fault on every
//! page of code, state, rings and packets. Only existing pages of shared memory are
//! mapped, so that memory does not grow; private pages are copied.
//!
//! The process is scheduled as soon as it wakes up. Without an idle processor it would
//! otherwise wait for other processes' time slices, some milliseconds. After its first
//! turns it is a worker like any other.

use super::heap::{self, PAGE};
use std::ops::Range;

/// Maps all memory. Refused pages are mapped when they are touched.
pub(super) fn populate() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for Mapping { mut pages, is_writable, is_shared } in maps.lines().filter_map(Mapping::parse) {
        if heap::contains(pages.start) {
            pages.end = pages.end.min(heap::base() + heap::used().next_multiple_of(PAGE));
        }
        let advice = if is_writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        let mut advise = |pages: Range<usize>| {
            // SAFETY: advice that changes no content, about pages that this process,
            // which has one thread, has mapped.
            unsafe { libc::madvise(pages.start as *mut libc::c_void, pages.len(), advice) };
        };
        if is_shared { resident(pages).into_iter().for_each(&mut advise) } else { advise(pages) }
    }
}

/// Makes the kernel run this process at once when it wakes up: before all unprivileged
/// ones, or without the privilege, as a process that needs only little time.
pub(super) fn go_first() {
    if !schedule(libc::SCHED_FIFO, 1, 0) {
        schedule(libc::SCHED_OTHER, 0, SHORT);
    }
}

/// Returns to ordinary scheduling.
pub(super) fn stand_back() {
    schedule(libc::SCHED_OTHER, 0, 0);
}

/// The requested time slice, ns: the least that the kernel knows.
const SHORT: u64 = 100_000;

/// Sets the scheduling policy. False if refused.
fn schedule(policy: i32, priority: u32, slice: u64) -> bool {
    // SAFETY: a number is returned, no memory is touched.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy as u32,
        // Threads that this process makes have ordinary scheduling.
        sched_flags: libc::SCHED_FLAG_RESET_ON_FORK as u64,
        sched_nice: nice,
        sched_priority: priority,
        sched_runtime: slice,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads as many bytes as the structure says that it has. No other
    // memory is touched.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

struct Mapping {
    pages: Range<usize>,
    is_writable: bool,
    is_shared: bool,
}

impl Mapping {
    /// Reads a line of the kernel's list, if the memory is readable.
    fn parse(line: &str) -> Option<Mapping> {
        let mut words = line.split(' ');
        let (start, end) = words.next()?.split_once('-')?;
        let address = |digits| usize::from_str_radix(digits, 16).ok();
        let [b'r', write, _, share] = *words.next()?.as_bytes() else { return None };
        Some(Mapping {
            pages: address(start)?..address(end)?,
            is_writable: write == b'w',
            is_shared: share == b's',
        })
    }
}

/// The existing pages among these pages of a shared mapping, in runs.
fn resident(pages: Range<usize>) -> Vec<Range<usize>> {
    let mut exist = vec![0u8; pages.len() / PAGE];
    // SAFETY: the kernel writes one byte per page, and there are as many.
    let answer = unsafe {
        libc::mincore(pages.start as *mut libc::c_void, exist.len() * PAGE, exist.as_mut_ptr())
    };
    if answer != 0 {
        return Vec::new();
    }
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in exist.iter().enumerate().filter(|(_, exists)| **exists & 1 != 0) {
        let start = pages.start + at * PAGE;
        match runs.last_mut() {
            Some(run) if run.end == start => run.end += PAGE,
            _ => runs.push(start..start + PAGE),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_memory::SharedMemory;
    use std::sync::atomic::Ordering;

    #[test]
    fn lines_of_the_kernels_list_are_understood() {
        let parsed = |line| {
            Mapping::parse(line)
                .map(|mapping| (mapping.pages, mapping.is_writable, mapping.is_shared))
        };
        let code = "56545f400000-56545f816000 r-xp 00300000 fe:00 1234                       /usr/bin/holdfast";
        assert_eq!(parsed(code), Some((0x5654_5f40_0000..0x5654_5f81_6000, false, false)));
        let shared =
            "7f95cf346000-7f95d1e88000 rw-s 00000000 00:01 77 /memfd:holdfast-arena (deleted)";
        assert_eq!(parsed(shared), Some((0x7f95_cf34_6000..0x7f95_d1e8_8000, true, true)));
        assert_eq!(parsed("7f95d0000000-7f95d4000000 ---p 00000000 00:00 0 "), None);
        assert_eq!(parsed(""), None);
    }

    /// Only written pages of a sparsely written memory are found.
    #[test]
    fn pages_that_were_never_written_are_left_out() {
        let memory = SharedMemory::create("holdfast-test", 64 * PAGE).unwrap();
        for page in [0, 3, 4, 63] {
            memory.word32(page * PAGE + 8).store(1, Ordering::Relaxed);
        }
        let base = memory.address();
        let found: Vec<_> = resident(base..base + 64 * PAGE)
            .iter()
            .map(|run| (run.start - base) / PAGE..(run.end - base) / PAGE)
            .collect();
        assert_eq!(found, [0..1, 3..5, 63..64]);
    }
}
