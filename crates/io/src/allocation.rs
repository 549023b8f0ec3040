//! An allocator that counts: to show that the hot path does not allocate.

use crate::standby;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator with a counter, or within [`standby::enter`] the heap of a
/// worker that has a standby. A large block is a mapping of its own, whose pages exist
/// only once written: a table costs memory for what it holds, not for its capacity. Large
/// blocks ask for huge pages: most of them are tables and slabs, and a page-table walk
/// for every flow costs more than the flow.
pub struct CountingAllocator;

/// The size from which a block is large, bytes.
const LARGE: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;
const PAGE: usize = 4096;

// SAFETY: a block comes from the heap of a worker, from the system's allocator or from
// the kernel, with the requested layout, and goes back there: its address identifies a
// worker's heap, its size the other two.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        if standby::is_inside() {
            // SAFETY: this thread is inside `enter`.
            return unsafe { standby::allocate(layout) };
        }
        if layout.size() >= LARGE {
            return map(layout);
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        if standby::is_inside() {
            // SAFETY: this thread is inside `enter`.
            return unsafe { standby::allocate_zeroed(layout) };
        }
        if layout.size() >= LARGE {
            return map(layout);
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if standby::owns(pointer) {
            // SAFETY: the block was made there with this layout, by the one thread that
            // uses that heap; its blocks go to no other thread.
            return unsafe { standby::free(pointer, layout) };
        }
        if layout.size() >= LARGE {
            // SAFETY: a block of this size outside workers' heaps is a mapping of this
            // length, and the caller promises that it is unused.
            let _ = unsafe { munmap(pointer.cast(), pages(layout)) };
            return;
        }
        // SAFETY: the block was made there with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes of the pages that a block takes.
fn pages(layout: Layout) -> usize {
    layout.size().next_multiple_of(PAGE)
}

/// New pages, all zero, aligned to a huge one. Null if the kernel gives none.
fn map(layout: Layout) -> *mut u8 {
    let (len, align) = (pages(layout), layout.align().max(HUGE_PAGE));
    let room = len + align;
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
    let mapped = unsafe {
        mmap_anonymous(ptr::null_mut(), room, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let Ok(start) = mapped else { return ptr::null_mut() };
    let skipped = start.cast::<u8>().align_offset(align);
    let block = start.cast::<u8>().wrapping_add(skipped);
    // SAFETY: the parts of the mapping before and behind the block are known to no other
    // code. The advice is about whole huge pages inside the block, and changes no
    // content; a refusal changes nothing.
    unsafe {
        if skipped > 0 {
            let _ = munmap(start, skipped);
        }
        let _ = munmap(block.wrapping_add(len).cast(), align - skipped);
        let _ = madvise(block.cast(), len / HUGE_PAGE * HUGE_PAGE, Advice::LinuxHugepage);
    }
    block
}

/// Allocations of this process so far, if [`CountingAllocator`] is its allocator.
pub fn allocations() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the block that are in memory.
    fn resident(block: *mut u8, len: usize) -> usize {
        let mut exist = vec![0u8; len / PAGE];
        // SAFETY: the kernel writes one byte per page, and there are as many.
        assert_eq!(unsafe { libc::mincore(block.cast(), len, exist.as_mut_ptr()) }, 0);
        exist.iter().filter(|exists| **exists & 1 != 0).count() * PAGE
    }

    /// A table with much more room than contents: only the written part is in memory,
    /// whether zeros were asked for or not.
    #[test]
    fn a_large_block_takes_memory_where_it_is_written() {
        let layout = Layout::from_size_align((256 << 20) + 5000, 64).unwrap();
        // SAFETY: the layout is not empty; the block is written inside, and given back
        // once with the same layout.
        unsafe {
            for block in [CountingAllocator.alloc(layout), CountingAllocator.alloc_zeroed(layout)] {
                assert!(!block.is_null() && (block as usize).is_multiple_of(HUGE_PAGE));
                assert_eq!(resident(block, pages(layout)), 0);
                let at = [0, 100 << 20, layout.size() - 1];
                at.iter().for_each(|at| assert_eq!(*block.add(*at), 0));
                at.iter().for_each(|at| *block.add(*at) = 7);
                assert!((3 * PAGE..=3 * HUGE_PAGE).contains(&resident(block, pages(layout))));
                CountingAllocator.dealloc(block, layout);
            }
        }
    }

    /// A block keeps its content when it grows into a mapping of its own, or shrinks out
    /// of one.
    #[test]
    fn a_block_that_grows_or_shrinks_keeps_its_content() {
        let small = Layout::from_size_align(LARGE / 2, 8).unwrap();
        let large = Layout::from_size_align(LARGE * 3, 8).unwrap();
        // SAFETY: the layouts are not empty; each block is given back, or grown or
        // shrunk, once with the layout that it has.
        unsafe {
            let block = CountingAllocator.alloc(small);
            ptr::write_bytes(block, 7, small.size());
            let block = CountingAllocator.realloc(block, small, large.size());
            assert!((0..small.size()).all(|at| *block.add(at) == 7));
            let block = CountingAllocator.realloc(block, large, small.size());
            assert!((0..small.size()).all(|at| *block.add(at) == 7));
            CountingAllocator.dealloc(block, small);
        }
    }
}
