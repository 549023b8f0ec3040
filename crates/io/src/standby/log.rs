//! The undo log: restores the state before an unfinished turn, and detects a turn's
//! changes.
//!
//! Theory of operation. The heap's pages are read-only until one is written: the fault's
//! handler copies the page into the log and makes it writable. At the turn's end,
//! [`commit`] empties the log by one store, which makes the turn's changes valid, and
//! makes the pages read-only again. Pages that are written again and again stay writable:
//! they are copied when a turn begins. Large tables with scattered writes are [`exempt`]:
//! their writers announce writes ([`before`]), at a fraction of a fault's cost.
//! [`scratch`] memory is exempt without announcements: its content between two turns is
//! meaningless, so any content will do after an undo. Exempt blocks stay exempt: such a
//! block is never used for anything else ([`keeps`]). If the process dies in a turn, its
//! successor copies the log back, the last entry first, and has the state at the last
//! turn's end. A copy is in the log before the change that it is for, so this holds at
//! every instruction; and copying back may be repeated from the start.
//!
//! The log is in a mapping of its own, which both processes have. A turn that changes
//! more than the log can hold cannot be undone: the log says so until the turn's end.

use super::heap::{self, PAGE};
use crate::shared_memory::SharedMemory;
use rustix::mm::{MprotectFlags, mprotect};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

/// Bytes of entries.
const ROOM: usize = 32 << 20;
/// The offset of the entries, behind the words below.
const ENTRIES: usize = PAGE;
const AT_USED: usize = 0;
const AT_VALID: usize = 8;
const AT_CRASHED: usize = 12;
const AT_TURN: usize = 16;
const AT_HOT_COUNT: usize = 1024;
const AT_HOT: usize = AT_HOT_COUNT + 8;
/// The offset of words that other modules keep beside the log.
pub(super) const AT_OTHERS: usize = 256;

/// Maximum number of pages that one turn may touch and still be undone page by page.
const TOUCHED: usize = 4096;
/// Maximum number of pages that are copied when a turn begins, instead of on a fault.
const HOT: usize = 48;
/// Touches of a page, in successive turns that touched any, after which it is hot.
const HOT_AFTER: u8 = 3;
/// Turns after which hot pages must prove themselves again.
const COOL_EVERY: u64 = 4096;
/// Maximum number of exempt ranges.
const EXEMPT: usize = 256;

struct Log {
    memory: SharedMemory,
    used: &'static AtomicU64,
    valid: &'static AtomicU32,
    crashed: &'static AtomicU32,
    /// Turns begun, by any worker.
    turn: &'static AtomicU32,
    /// Pages that are copied when a turn begins. A successor knows them from the start.
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
/// True if this process notes its changes.
static IS_TRACKING: AtomicBool = AtomicBool::new(false);
/// True if this process has made its heap read-only and knows the writable pages, but
/// does not note changes yet: see [`prepare`].
static IS_PREPARED: AtomicBool = AtomicBool::new(false);
static TURN: AtomicU64 = AtomicU64::new(1);
/// Pages that this turn, or the time before the first one, made writable.
static TOUCHED_COUNT: AtomicUsize = AtomicUsize::new(0);
static TOUCHED_PAGES: [AtomicUsize; TOUCHED] = [const { AtomicUsize::new(0) }; TOUCHED];
/// Recent touches by hash of the page: page number and count.
static HEAT: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
static EXEMPT_COUNT: AtomicUsize = AtomicUsize::new(0);
static EXEMPT_RANGES: [(AtomicUsize, AtomicUsize); EXEMPT] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; EXEMPT];

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

/// Exempts these bytes of the heap from faults: writes to them are announced.
pub(super) fn exempt(bytes: &[u8]) {
    scratch(bytes.as_ptr() as usize, bytes.len());
}

/// Exempts heap memory whose content between two turns is meaningless.
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

/// True if the block, or a part of it, is exempt and must stay so.
pub(super) fn keeps(address: usize, len: usize) -> bool {
    let ranges = EXEMPT_RANGES[..EXEMPT_COUNT.load(Ordering::Relaxed)].iter();
    let mut ranges =
        ranges.map(|(from, to)| (from.load(Ordering::Relaxed), to.load(Ordering::Relaxed)));
    ranges.any(|(from, to)| address < to && from < address + len)
}

/// The number of the turn: see [`crate::standby::turn`].
pub(super) fn turn() -> Option<&'static AtomicU32> {
    LOG.get().map(|log| log.turn)
}

/// Announces that these bytes are about to change.
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

/// Copies bytes into the log. An entry is the bytes, then their address and length, so
/// that it can be read backwards.
#[inline]
fn record(address: usize, len: usize) {
    let Some(log) = LOG.get() else { return };
    let used = log.used.load(Ordering::Relaxed) as usize;
    let next = used + round(len) + 16;
    if next > ROOM {
        // This turn cannot be undone from here on.
        log.valid.store(0, Ordering::SeqCst);
        return;
    }
    // SAFETY: the entry lies inside the log's mapping, which no other process writes
    // while this one is the worker. The source is memory of this process that the caller
    // has borrowed, or a page of the heap that is mapped, readable, and used by no other
    // thread.
    unsafe {
        let entry = (log.entries + used) as *mut u8;
        core::ptr::copy_nonoverlapping(address as *const u8, entry, len);
        let tail = entry.add(round(len)).cast::<usize>();
        *tail = address;
        *tail.add(1) = len;
    }
    // The entry is stored before the word, and the word before the caller's change.
    log.used.store(next as u64, Ordering::Release);
    compiler_fence(Ordering::SeqCst);
}

/// Begins a turn. The state must not have changed since the last one ended.
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

/// Ends the turn: its changes are valid.
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

/// Counts a touch of a page. True if it is hot from now on.
fn warm(log: &Log, page: usize) -> bool {
    let number = (page / PAGE) as u64;
    let heat = &HEAT[number as usize % HEAT.len()];
    let known = heat.load(Ordering::Relaxed);
    let count = if known >> 8 == number { known as u8 } else { 0 } + 1;
    heat.store(number << 8 | u64::from(count), Ordering::Relaxed);
    let at = log.hot().len();
    if count < HOT_AFTER || at == HOT {
        // Too many hot pages to copy each turn: this one goes on to fault.
        heat.store(number << 8 | u64::from(count.min(HOT_AFTER)), Ordering::Relaxed);
        return false;
    }
    log.hot[at].store(page as u64, Ordering::Relaxed);
    log.hot_count.store(at as u32 + 1, Ordering::Release);
    true
}

/// Prepares a process that may take over: makes its heap read-only while there is time,
/// so that [`track`] need not. Pages written before that are known.
pub(super) fn prepare() {
    let Some(log) = LOG.get() else { return };
    let (start, len) = heap::span();
    if !ranges(start, len).all(|(start, len)| protect(start, len, MprotectFlags::READ)) {
        return;
    }
    TOUCHED_COUNT.store(0, Ordering::Relaxed);
    IS_PREPARED.store(true, Ordering::SeqCst);
    // The pages that will be hot, as far as known yet.
    for page in log.hot() {
        handle_fault(page.load(Ordering::Relaxed) as usize);
    }
}

/// Begins to note changes. Call it between two turns.
pub(super) fn track() {
    let Some(log) = LOG.get() else { return };
    log.used.store(0, Ordering::Relaxed);
    IS_TRACKING.store(true, Ordering::SeqCst);
    // The former worker's hot pages are this one's too.
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
    // The log stays invalid if a page could not be made read-only: see [`give_up`].
    log.valid.store(u32::from(is_tracking()), Ordering::SeqCst);
}

pub(super) fn is_tracking() -> bool {
    IS_TRACKING.load(Ordering::Relaxed)
}

/// The pages from `start` on, `len` bytes, without exempt ones: starts and lengths.
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

/// Makes the heap read-only, except exempt ranges.
fn protect_all() {
    let (start, len) = heap::span();
    for (start, len) in ranges(start, len) {
        set_writable(start, len, false);
    }
}

/// Changes the protection of pages. False if the kernel refuses.
fn protect(start: usize, len: usize, flags: MprotectFlags) -> bool {
    // SAFETY: pages of the heap's mapping, whole ones; they stay readable, and one that
    // is written although it is read-only is made writable by the fault's handler.
    unsafe { mprotect(start as *mut core::ffi::c_void, len, flags) }.is_ok()
}

fn set_writable(start: usize, len: usize, is_writable: bool) {
    let flags =
        if is_writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
    if !protect(start, len, flags) && !is_writable {
        // A page that stays writable would change unnoticed: the log is not reliable any
        // more.
        give_up();
    }
}

/// Marks the log as unusable, because changes cannot be noted any more.
fn give_up() {
    if let Some(log) = LOG.get() {
        IS_TRACKING.store(false, Ordering::SeqCst);
        log.valid.store(0, Ordering::SeqCst);
    }
}

/// Handles a write to a read-only page. False if the page is not the heap's.
///
/// Called by a signal handler, at any point: it only reads and writes words and the log,
/// and makes one system call.
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

/// Notes that the worker crashed by its own doing.
pub(crate) fn note_crash() {
    if let Some(log) = LOG.get() {
        log.crashed.store(1, Ordering::SeqCst);
    }
}

/// True if the dead worker crashed by its own doing; returned once.
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
        // SAFETY: entries lie one behind the other from the log's start to `used`, each
        // ending with its address and length. The worker that wrote them is dead, and
        // only this process uses log and heap now. An address is of the heap, or of a
        // packet's buffer that the worker had.
        unsafe {
            let tail = (log.entries + used) as *const usize;
            let (address, len) = (*tail.sub(2), *tail.sub(1));
            let start = used.checked_sub(round(len) + 16)?;
            core::ptr::copy_nonoverlapping(
                (log.entries + start) as *const u8,
                address as *mut u8,
                len,
            );
            used = start;
        }
    }
    log.used.store(0, Ordering::SeqCst);
    Some(was_in_turn)
}
