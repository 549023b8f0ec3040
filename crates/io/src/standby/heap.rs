//! The heap that two processes share: the whole state of a worker, at the same addresses
//! in both.
//!
//! Theory of operation. A single mapping, made before the fork, is at the same place in
//! both processes, so that a pointer means the same in both. Blocks have sizes of few
//! classes. A freed block goes to its class's list; new blocks are cut off the end. The
//! lists' heads and the end are in the mapping too, so undoing the state undoes its heap
//! as well.
//!
//! A thread allocates here inside [`enter`], and from the system otherwise. A block's
//! address tells where it goes back to. Only one thread of one process at a time is ever
//! in `enter`: the worker's.

use rustix::mm::{MapFlags, ProtFlags};
use std::alloc::Layout;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Addresses reserved for the heap, bytes. Memory is taken page by page, at the first
/// write.
const SPAN: usize = 64 << 30;
pub(super) const PAGE: usize = 4096;
/// The smallest block is 1 << this.
const SMALLEST: u32 = 4;
/// Blocks up to this size are powers of two.
const SMALL: usize = PAGE;
/// Classes: one per power of two, and four between two powers beyond [`SMALL`].
const CLASSES: usize = 160;

static BASE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The beginning of the mapping.
#[repr(C)]
struct Head {
    /// The end of the blocks cut off so far.
    end: usize,
    /// First free block of each class, 0 for none; its first word is the next one.
    free: [usize; CLASSES],
}

const _: () = assert!(size_of::<Head>() <= PAGE);

/// Makes the heap of this process; once, while it has one thread.
pub(super) fn create() -> io::Result<()> {
    assert_eq!(base(), 0, "a process has one such heap");
    let fd = rustix::fs::memfd_create("holdfast-heap", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, SPAN as u64)?;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing. No
    // other process has the file, so its size stays.
    let start = unsafe {
        rustix::mm::mmap(
            core::ptr::null_mut(),
            SPAN,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
            &fd,
            0,
        )?
    } as usize;
    let head = start as *mut Head;
    // SAFETY: the mapping begins with a page of zeroes, which is a valid `Head`, aligned
    // to a page; no other code knows of it yet.
    unsafe { (*head).end = start + PAGE };
    BASE.store(start, Ordering::Relaxed);
    Ok(())
}

#[inline]
pub(super) fn base() -> usize {
    BASE.load(Ordering::Relaxed)
}

/// True if the address is within the heap's reserved range.
#[inline]
pub(super) fn contains(address: usize) -> bool {
    let base = base();
    base != 0 && address.wrapping_sub(base) < SPAN
}

/// The reserved range.
pub(super) fn span() -> (usize, usize) {
    (base(), SPAN)
}

/// Bytes from the start that were ever in use.
pub(super) fn used() -> usize {
    let base = base();
    if base == 0 {
        return 0;
    }
    // SAFETY: the head is in the mapping. The one word that another process may be
    // writing is only read, and any value of it was once the end.
    let end = unsafe { core::ptr::read_volatile(&raw const (*(base as *const Head)).end) };
    end - base
}

/// Makes allocations of `act` in the shared heap, if there is one.
pub fn enter<R>(act: impl FnOnce() -> R) -> R {
    allocating(base() != 0, act)
}

/// Makes allocations of `act` outside the shared heap, also inside [`enter`]: only this
/// process uses them.
pub(crate) fn outside<R>(act: impl FnOnce() -> R) -> R {
    allocating(false, act)
}

fn allocating<R>(inside: bool, act: impl FnOnce() -> R) -> R {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _leave = Leave(INSIDE.replace(inside));
    act()
}

/// True while this thread allocates in the shared heap.
#[inline]
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

/// True if the block is of this heap.
#[inline]
pub(crate) fn owns(pointer: *mut u8) -> bool {
    contains(pointer as usize)
}

/// The class of blocks for this size, and their size.
fn class(size: usize) -> (usize, usize) {
    let size = size.max(1 << SMALLEST);
    if size <= SMALL {
        let bits = size.next_power_of_two().trailing_zeros();
        return ((bits - SMALLEST) as usize, 1 << bits);
    }
    // Classes are quarters of the power of two below.
    let bits = (size - 1).ilog2();
    let quarter = 1usize << (bits - 2);
    let quarters = size.div_ceil(quarter);
    let class = (SMALL.trailing_zeros() - SMALLEST) as usize
        + 4 * (bits - SMALL.trailing_zeros()) as usize
        + (quarters - 4);
    (class, quarters * quarter)
}

/// Allocates a block. Small ones are aligned to their size, others to a page.
///
/// # Safety
/// The calling thread is in [`enter`].
pub(crate) unsafe fn allocate(layout: Layout) -> *mut u8 {
    let (class, size) =
        class(layout.size().max(if layout.align() <= SMALL { layout.align() } else { 0 }));
    if class >= CLASSES {
        return core::ptr::null_mut();
    }
    let head = base() as *mut Head;
    // SAFETY: the head is in the mapping, and the caller promises that no other thread
    // uses it now. A list's blocks are free blocks of this heap, of at least 16 bytes,
    // whose first word is the list's.
    unsafe {
        let first = (*head).free[class];
        if first != 0 && first.is_multiple_of(layout.align()) {
            (*head).free[class] = *(first as *const usize);
            return first as *mut u8;
        }
        let start = (*head).end.next_multiple_of(size.min(SMALL).max(layout.align()));
        if start + size > base() + SPAN {
            return core::ptr::null_mut();
        }
        (*head).end = start + size;
        start as *mut u8
    }
}

/// As [`allocate`], all zero.
///
/// # Safety
/// As for [`allocate`].
pub(crate) unsafe fn allocate_zeroed(layout: Layout) -> *mut u8 {
    let end = used() + base();
    // SAFETY: the caller's promise is passed on.
    let pointer = unsafe { allocate(layout) };
    // A block just cut off is zero as the kernel gave it, also after an undo.
    if !pointer.is_null() && (pointer as usize) < end {
        // SAFETY: the block has at least so many bytes, and is the caller's.
        unsafe { core::ptr::write_bytes(pointer, 0, layout.size()) };
    }
    pointer
}

/// Frees a block.
///
/// # Safety
/// The block was made by [`allocate`] with this layout and is not used any more, and the
/// calling thread is the only one that uses this heap now.
pub(crate) unsafe fn free(pointer: *mut u8, layout: Layout) {
    let (class, size) =
        class(layout.size().max(if layout.align() <= SMALL { layout.align() } else { 0 }));
    if size >= PAGE && super::log::keeps(pointer as usize, size) {
        return;
    }
    let head = base() as *mut Head;
    // SAFETY: the block is of this class and unused; the head is in the mapping, and only
    // this thread uses it now.
    unsafe {
        *(pointer as *mut usize) = (*head).free[class];
        (*head).free[class] = pointer as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_promise_and_are_told_apart() {
        let (mut last, mut last_size) = (0, 16);
        for size in (1..20_000).chain((1..1000).map(|n| n * 70_001)) {
            let (number, room) = class(size);
            assert!(room >= size && number < CLASSES, "{size}: {room}");
            assert!(room <= (size * 2).max(16));
            if number == last {
                assert_eq!(room, last_size);
            } else {
                assert!(
                    number > last && room > last_size,
                    "{size}: class {number} of {room} behind {last} of {last_size}"
                );
            }
            (last, last_size) = (number, room);
        }
    }
}
