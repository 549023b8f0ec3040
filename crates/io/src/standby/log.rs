//! What there was before: the log by which a turn that was not finished is undone, and how it is noticed what a turn changes.
//!
//! Theory of operation. The heap's pages are read-only until something is written to one: the fault's handler copies the page into the log and makes it writable. At the
//! turn's end, [`commit`], the log is emptied by one store, which is what makes the turn's changes valid, and the pages are made read-only again. Pages that are written again and again
//! are not: they are copied when a turn begins. Large tables that are written here and there are [`exempt`], and whoever writes them says so first ([`before`]), which costs a
//! fraction of a fault. So is [`scratch`], of which nobody says anything: it means nothing between two turns, so whatever lies there when a turn is undone is as good as what lay there
//! before. What is exempt stays what it is: such a block is never used for anything else ([`keeps`]). If the process dies in a turn, whoever takes over copies what the log has back, the last entry first, and has the state as it was at the
//! last turn's end. A copy is in the log before the change that it is for, so that holds at every instruction; and copying back may be done again from the start.
//!
//! The log lies in a mapping of its own, which both processes have. A turn that changes more than it has room for cannot be undone: while it goes on, the log says so.

use super::heap::{self, PAGE};
use crate::shared_memory::SharedMemory;
use rustix::mm::{MprotectFlags, mprotect};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

/// Bytes of entries.
const ROOM: usize = 32 << 20;
/// Where the entries begin, behind the words below.
const ENTRIES: usize = PAGE;
const AT_USED: usize = 0;
const AT_VALID: usize = 8;
const AT_CRASHED: usize = 12;
const AT_TURN: usize = 16;
const AT_HOT_COUNT: usize = 1024;
const AT_HOT: usize = AT_HOT_COUNT + 8;
/// What others keep beside the log.
pub(super) const AT_OTHERS: usize = 256;

/// Pages that one turn may touch and still be undone page by page.
const TOUCHED: usize = 4096;
/// Pages that are copied when a turn begins, instead of waiting for the fault.
const HOT: usize = 48;
/// A page is hot that was touched in so many of the last turns that touched any.
const HOT_AFTER: u8 = 3;
/// Turns after which hot pages must prove it again.
const COOL_EVERY: u64 = 4096;
/// Ranges that are announced before they are written.
const EXEMPT: usize = 256;

struct Log {
    memory: SharedMemory,
    used: &'static AtomicU64,
    valid: &'static AtomicU32,
    crashed: &'static AtomicU32,
    /// Turns that have begun, whoever took them.
    turn: &'static AtomicU32,
    /// Pages that are copied when a turn begins. Whoever takes over knows them from the beginning.
    hot_count: &'static AtomicU32,
    hot: &'static [AtomicU64],
    entries: usize,
}

impl Log {
    fn hot(&self) -> &[AtomicU64] {
        self.hot.get(..self.hot_count.load(Ordering::Acquire) as usize).unwrap_or_default()
    }
}

static LOG: OnceLock<Log> = OnceLock::new();
/// This process notices what it changes.
static IS_TRACKING: AtomicBool = AtomicBool::new(false);
/// This process does not yet, but has made its heap read-only and knows which pages are not: see [`prepare`].
static IS_PREPARED: AtomicBool = AtomicBool::new(false);
static TURN: AtomicU64 = AtomicU64::new(1);
/// Pages that this turn made writable, or, before the first one, what came before it.
static TOUCHED_COUNT: AtomicUsize = AtomicUsize::new(0);
static TOUCHED_PAGES: [AtomicUsize; TOUCHED] = [const { AtomicUsize::new(0) }; TOUCHED];
/// How often pages were touched lately, by hash of the page: page number and count.
static HEAT: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
static EXEMPT_COUNT: AtomicUsize = AtomicUsize::new(0);
static EXEMPT_RANGES: [(AtomicUsize, AtomicUsize); EXEMPT] = [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; EXEMPT];

pub(super) fn create() -> io::Result<()> {
    let memory = SharedMemory::create("holdfast-undo", ENTRIES + ROOM)?;
    let log = Log {
        used: memory.word64(AT_USED),
        valid: memory.word32(AT_VALID),
        crashed: memory.word32(AT_CRASHED),
        turn: memory.word32(AT_TURN),
        hot_count: memory.word32(AT_HOT_COUNT),
        hot: memory.words64(AT_HOT, HOT),
        entries: memory.address() + ENTRIES,
        memory,
    };
    assert!(LOG.set(log).is_ok(), "a process has one log");
    Ok(())
}

pub(super) fn memory() -> Option<&'static SharedMemory> {
    LOG.get().map(|log| &log.memory)
}

/// These bytes of the heap are announced before they are written: no fault tells of them.
pub(super) fn exempt(bytes: &[u8]) {
    scratch(bytes.as_ptr() as usize, bytes.len());
}

/// What lies there in the heap means nothing between two turns.
pub(super) fn scratch(address: usize, len: usize) {
    let start = address.next_multiple_of(PAGE);
    let end = (address + len) / PAGE * PAGE;
    if end <= start || !heap::contains(start) {
        return;
    }
    let at = EXEMPT_COUNT.load(Ordering::Relaxed);
    if at < EXEMPT {
        EXEMPT_RANGES[at].0.store(start, Ordering::Relaxed);
        EXEMPT_RANGES[at].1.store(end, Ordering::Relaxed);
        EXEMPT_COUNT.store(at + 1, Ordering::Relaxed);
    }
}

/// The block is exempt, or a part of it, and must stay what it is.
pub(super) fn keeps(address: usize, len: usize) -> bool {
    let ranges = EXEMPT_RANGES[..EXEMPT_COUNT.load(Ordering::Relaxed)].iter();
    let mut ranges = ranges.map(|(from, to)| (from.load(Ordering::Relaxed), to.load(Ordering::Relaxed)));
    ranges.any(|(from, to)| address < to && from < address + len)
}

/// The number of the turn, for whoever wants to know whether it is still the same: see [`crate::standby::turn`].
pub(super) fn turn() -> Option<&'static AtomicU32> {
    LOG.get().map(|log| log.turn)
}

/// These bytes are about to change.
#[inline]
pub(super) fn before(bytes: &[u8]) {
    if IS_TRACKING.load(Ordering::Relaxed) {
        record(bytes.as_ptr() as usize, bytes.len());
    }
}

#[inline]
fn round(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// Copies what lies there into the log. An entry is its bytes, then its address and length, so that it can be read from behind.
#[inline]
fn record(address: usize, len: usize) {
    let Some(log) = LOG.get() else { return };
    let used = log.used.load(Ordering::Relaxed) as usize;
    let next = used + round(len) + 16;
    if next > ROOM {
        // From here on there is no way back, until the turn has ended.
        log.valid.store(0, Ordering::SeqCst);
        return;
    }
    // SAFETY: the entry lies inside the log's mapping, which nobody else writes while this process is the worker; what is copied is memory of this process that
    // the caller has borrowed, or a page of the heap that is mapped, readable, and used by no other thread.
    unsafe {
        let entry = (log.entries + used) as *mut u8;
        core::ptr::copy_nonoverlapping(address as *const u8, entry, len);
        let tail = entry.add(round(len)).cast::<usize>();
        *tail = address;
        *tail.add(1) = len;
    }
    // The entry before the word, and the word before whatever the caller changes.
    log.used.store(next as u64, Ordering::Release);
    compiler_fence(Ordering::SeqCst);
}

/// A turn begins. Nothing of the state may have changed since the last one ended.
pub(super) fn begin() {
    let Some(log) = LOG.get() else { return };
    log.turn.store(log.turn.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    if !IS_TRACKING.load(Ordering::Relaxed) {
        return;
    }
    for page in log.hot() {
        record(page.load(Ordering::Relaxed) as usize, PAGE);
    }
}

/// The turn has ended: what it changed holds.
pub(super) fn commit() {
    if !IS_TRACKING.load(Ordering::Relaxed) {
        return;
    }
    let Some(log) = LOG.get() else { return };
    compiler_fence(Ordering::SeqCst);
    log.used.store(0, Ordering::Release);
    if log.valid.load(Ordering::Relaxed) == 0 {
        log.valid.store(1, Ordering::Release);
    }
    compiler_fence(Ordering::SeqCst);
    let turn = TURN.fetch_add(1, Ordering::Relaxed);
    let touched = TOUCHED_COUNT.swap(0, Ordering::Relaxed);
    if touched > TOUCHED {
        protect_all();
        log.hot_count.store(0, Ordering::Release);
        return;
    }
    for page in &TOUCHED_PAGES[..touched] {
        let page = page.load(Ordering::Relaxed);
        if !warm(log, page) {
            set_writable(page, PAGE, false);
        }
    }
    if turn.is_multiple_of(COOL_EVERY) {
        for page in log.hot() {
            set_writable(page.load(Ordering::Relaxed) as usize, PAGE, false);
        }
        log.hot_count.store(0, Ordering::Release);
        HEAT.iter().for_each(|heat| heat.store(0, Ordering::Relaxed));
    }
}

/// Counts that a page was touched. True if it is hot from now on.
fn warm(log: &Log, page: usize) -> bool {
    let number = (page / PAGE) as u64;
    let heat = &HEAT[number as usize % HEAT.len()];
    let known = heat.load(Ordering::Relaxed);
    let count = if known >> 8 == number { known as u8 } else { 0 } + 1;
    heat.store(number << 8 | u64::from(count), Ordering::Relaxed);
    let at = log.hot().len();
    if count < HOT_AFTER || at == HOT {
        // Too many to copy each turn: it goes on to fault.
        heat.store(number << 8 | u64::from(count.min(HOT_AFTER)), Ordering::Relaxed);
        return false;
    }
    log.hot[at].store(page as u64, Ordering::Relaxed);
    log.hot_count.store(at as u32 + 1, Ordering::Release);
    true
}

/// In a process that may take over: makes its heap read-only while there is time, so that [`track`] need not. What is written before that is written to pages that
/// are known.
pub(super) fn prepare() {
    let Some(log) = LOG.get() else { return };
    let (start, len) = heap::span();
    if !ranges(start, len).all(|(start, len)| protect(start, len, MprotectFlags::READ)) {
        return;
    }
    TOUCHED_COUNT.store(0, Ordering::Relaxed);
    IS_PREPARED.store(true, Ordering::SeqCst);
    // Those that will be hot, as far as is known yet.
    for page in log.hot() {
        handle_fault(page.load(Ordering::Relaxed) as usize);
    }
}

/// From now on what changes is noticed. Between two turns.
pub(super) fn track() {
    let Some(log) = LOG.get() else { return };
    log.used.store(0, Ordering::Relaxed);
    IS_TRACKING.store(true, Ordering::SeqCst);
    // Those of the worker before are this one's, too.
    let hot = log.hot();
    let is_hot = |page: usize| hot.iter().any(|hot| hot.load(Ordering::Relaxed) as usize == page);
    let is_prepared = IS_PREPARED.swap(false, Ordering::Relaxed);
    match TOUCHED_PAGES.get(..TOUCHED_COUNT.swap(0, Ordering::Relaxed)) {
        Some(written) if is_prepared => {
            let written = written.iter().map(|page| page.load(Ordering::Relaxed));
            written.filter(|page| !is_hot(*page)).for_each(|page| set_writable(page, PAGE, false));
        }
        _ => protect_all(),
    }
    hot.iter().for_each(|page| set_writable(page.load(Ordering::Relaxed) as usize, PAGE, true));
    // Unless a page could not be made read-only: see [`give_up`].
    log.valid.store(u32::from(is_tracking()), Ordering::SeqCst);
}

pub(super) fn is_tracking() -> bool {
    IS_TRACKING.load(Ordering::Relaxed)
}

/// The pages from `start` on, `len` bytes, without those that are exempt: beginnings and lengths.
pub(super) fn ranges(start: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut exempt = [(usize::MAX, usize::MAX); EXEMPT];
    let count = EXEMPT_COUNT.load(Ordering::Relaxed);
    for (range, (from, to)) in exempt.iter_mut().zip(&EXEMPT_RANGES[..count]) {
        *range = (from.load(Ordering::Relaxed), to.load(Ordering::Relaxed));
    }
    exempt[..count].sort_unstable();
    let (mut at, end) = (start, start + len.next_multiple_of(PAGE));
    (0..=count).filter_map(move |index| {
        let (from, to) = exempt.get(index).copied().unwrap_or((usize::MAX, usize::MAX));
        let range = (at, from.min(end).saturating_sub(at));
        at = at.max(to.min(end));
        (range.1 > 0).then_some(range)
    })
}

/// Makes all of the heap read-only but what is exempt.
fn protect_all() {
    let (start, len) = heap::span();
    for (start, len) in ranges(start, len) {
        set_writable(start, len, false);
    }
}

/// False if the kernel refuses.
fn protect(start: usize, len: usize, flags: MprotectFlags) -> bool {
    // SAFETY: pages of the heap's mapping, whole ones; they stay readable, and one that is written although it is read-only is made writable by the fault's handler.
    unsafe { mprotect(start as *mut core::ffi::c_void, len, flags) }.is_ok()
}

fn set_writable(start: usize, len: usize, is_writable: bool) {
    let flags = if is_writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
    if !protect(start, len, flags) && !is_writable {
        // A page that stays writable would change unnoticed: nobody may rely on the log any more.
        give_up();
    }
}

/// What changes cannot be noticed any more: no way back from here on.
fn give_up() {
    if let Some(log) = LOG.get() {
        IS_TRACKING.store(false, Ordering::SeqCst);
        log.valid.store(0, Ordering::SeqCst);
    }
}

/// A write to a read-only page. False if it is none of the heap.
///
/// It is called by a signal's handler, in the middle of anything: it only reads and writes words and the log, and makes one system call.
pub(super) fn handle_fault(address: usize) -> bool {
    if !heap::contains(address) {
        return false;
    }
    let page = address / PAGE * PAGE;
    let is_tracking = IS_TRACKING.load(Ordering::Relaxed);
    if is_tracking {
        record(page, PAGE);
    }
    if is_tracking || IS_PREPARED.load(Ordering::Relaxed) {
        let at = TOUCHED_COUNT.load(Ordering::Relaxed);
        if let Some(place) = TOUCHED_PAGES.get(at) {
            place.store(page, Ordering::Relaxed);
        }
        TOUCHED_COUNT.store(at + 1, Ordering::Relaxed);
    }
    protect(page, PAGE, MprotectFlags::READ | MprotectFlags::WRITE)
}

/// The worker ends by what it did itself.
pub(crate) fn note_crash() {
    if let Some(log) = LOG.get() {
        log.crashed.store(1, Ordering::SeqCst);
    }
}

/// Whether the worker that is no more ended by what it did itself; told once.
pub(super) fn take_crash() -> bool {
    LOG.get().is_some_and(|log| log.crashed.swap(0, Ordering::SeqCst) != 0)
}

/// Restores the state at the end of the dead worker's last turn. Returns `None` if that
/// is not possible, and true if a turn was undone. Changes that this process makes before
/// [`track`] cannot be undone.
pub(super) fn undo() -> Option<bool> {
    let log = LOG.get()?;
    if log.valid.load(Ordering::SeqCst) == 0 {
        return None;
    }
    let mut used = log.used.load(Ordering::SeqCst) as usize;
    if used > ROOM {
        return None;
    }
    let was_in_turn = used > 0;
    while used > 0 {
        // SAFETY: entries lie one behind the other from the log's beginning to `used`, each ending with its address and length; the worker that wrote them is dead,
        // and this process is the only one that uses log and heap now. An address is of the heap, or of a packet's buffer that the worker had.
        unsafe {
            let tail = (log.entries + used) as *const usize;
            let (address, len) = (*tail.sub(2), *tail.sub(1));
            let start = used.checked_sub(round(len) + 16)?;
            core::ptr::copy_nonoverlapping((log.entries + start) as *const u8, address as *mut u8, len);
            used = start;
        }
    }
    log.used.store(0, Ordering::SeqCst);
    Some(was_in_turn)
}
