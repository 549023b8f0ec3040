//! Counting allocations: to show that the hot path makes none.

use crate::standby;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counted, or within [`standby::enter`] the heap of a worker that has a standby. Large blocks ask for huge pages: tables and slabs are what they are, and a walk of the page table for
/// every flow costs more than the flow.
pub struct CountingAllocator;

/// From this size on, bytes.
const LARGE: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;

// SAFETY: every call is passed on to the system's allocator, with a layout that is at least as aligned as was asked for and the same at both ends.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        if standby::is_inside() {
            // SAFETY: this thread is inside.
            return unsafe { standby::allocate(layout) };
        }
        // SAFETY: the caller's promises about `layout` hold for the widened one.
        let pointer = unsafe { System.alloc(widen(layout)) };
        advise(pointer, layout);
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        if standby::is_inside() {
            // SAFETY: this thread is inside.
            return unsafe { standby::allocate_zeroed(layout) };
        }
        if layout.size() < LARGE {
            // SAFETY: the caller's promises are passed on.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: as in `alloc`; the advice comes before the first touch.
        unsafe {
            let pointer = System.alloc(widen(layout));
            advise(pointer, layout);
            if !pointer.is_null() {
                core::ptr::write_bytes(pointer, 0, layout.size());
            }
            pointer
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if standby::owns(pointer) {
            // SAFETY: it was made there with this layout, by the one thread that uses that heap: what is in it goes to no other.
            return unsafe { standby::free(pointer, layout) };
        }
        // SAFETY: the block was made with the widened layout.
        unsafe { System.dealloc(pointer, widen(layout)) }
    }
}

fn widen(layout: Layout) -> Layout {
    if layout.size() < LARGE {
        return layout;
    }
    Layout::from_size_align(layout.size(), layout.align().max(HUGE_PAGE)).unwrap_or(layout)
}

fn advise(pointer: *mut u8, layout: Layout) {
    if layout.size() >= LARGE && !pointer.is_null() {
        // SAFETY: advice about whole huge pages inside a block that was just made; it changes no content. Refusal changes nothing.
        unsafe { libc::madvise(pointer.cast(), layout.size() / HUGE_PAGE * HUGE_PAGE, libc::MADV_HUGEPAGE) };
    }
}

/// Allocations of this process so far, if [`CountingAllocator`] is its allocator.
pub fn allocations() -> u64 {
    COUNT.load(Ordering::Relaxed)
}
