//! Binds nDPI, the C library that recognises the protocols of flows.
//!
//! Theory of operation. nDPI is behind a shim of our own (`shim/shim.h`): a shared object
//! inside this program's file, loaded together with the library by the first
//! [`Library::open`]. A box without a function that asks for it neither needs nor loads
//! nDPI. The library keeps an object of its own for each flow, until it knows the flow's
//! protocol. The objects are in a [`Table`] of bounded size: they are a cache, and no
//! part of a flow's state. An object belongs to a flow only if it has seen each of the
//! packets that the flow's state has counted; if not, [`Table::inspect`] says that it is
//! missing.
//!
//! In: whole IP packets, a flow's number, the number of its packets before. Out:
//! verdicts, names. Never: a structure of nDPI's, a packet that is shorter than its
//! headers, memory beyond the table's limits.

use holdfast_shim::Image;
use libloading::os::unix::{Library as Object, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;
use std::sync::OnceLock;

// IMAGE: the shim, if nDPI was present at build time; ABSENT: else the reason.
include!(concat!(env!("OUT_DIR"), "/ndpi_shim.rs"));

/// HF_ABI and HF_MISSING in shim/shim.h.
const ABI: u32 = 1;
const MISSING: c_int = 1;

/// `struct hf_table`, opaque here.
enum Objects {}

/// `struct hf_packet`.
#[repr(C)]
struct RawPacket {
    ip: *const u8,
    ahead: *const u8,
    flow: u64,
    ms: u64,
    step: u32,
    len: u16,
    ahead_len: u16,
    is_last: u16,
}

/// `struct hf_verdict`.
#[repr(C)]
#[derive(Default)]
struct RawVerdict {
    app: u16,
    master: u16,
    category: u16,
    is_final: u16,
}

type AbiFn = unsafe extern "C" fn() -> u32;
type StartFn = unsafe extern "C" fn() -> c_int;
type NameFn = unsafe extern "C" fn(u16) -> *const c_char;
type NewFn = unsafe extern "C" fn(u32, u64) -> *mut Objects;
type DeleteFn = unsafe extern "C" fn(*mut Objects);
type InspectFn = unsafe extern "C" fn(*mut Objects, *const RawPacket, *mut RawVerdict) -> c_int;
type ForgetFn = unsafe extern "C" fn(*mut Objects, u64);
type CountFn = unsafe extern "C" fn(*const Objects, *mut u32, *mut u64);

/// The library, loaded and started.
pub struct Library {
    new: NewFn,
    delete: DeleteFn,
    inspect: InspectFn,
    forget: ForgetFn,
    count: CountFn,
    protocols: Vec<String>,
    categories: Vec<String>,
}

static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();

/// The names up to the first number without one.
///
/// # Safety
/// `name` is `hf_protocol` or `hf_category` of a shim that is started.
unsafe fn names(name: NameFn) -> Vec<String> {
    let of = |id| {
        // SAFETY: the caller's promise; the shim refuses numbers that are too high.
        let text = unsafe { name(id) };
        // SAFETY: a text of the library's, which ends with a zero byte and never changes.
        let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
        text.map(|text| text.to_string_lossy().into_owned())
    };
    (0..u16::MAX).map_while(of).collect()
}

fn load() -> Result<Library, String> {
    let image = IMAGE.ok_or(ABSENT)?;
    let failed =
        |what: &str, error: &dyn core::fmt::Display| format!("loading nDPI: {what}: {error}");
    let image =
        Image::lay_out("holdfast-ndpi", image).map_err(|error| failed("its memory", &error))?;
    // SAFETY: the image is the shim that was built with this program. It does nothing
    // when it is loaded; the libraries that it needs (nDPI, the C library, libgcrypt) set
    // up what is their own.
    let object = unsafe { Object::open(Some(&image.into_path()), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        format!("nDPI, which this program was built with, cannot be loaded: {error}: install that version of it, `libndpi4.2` on Debian 12")
    })?;
    let missing = |error: libloading::Error| failed("the shim", &error);
    // SAFETY: the function is that of shim/shim.h, from which the image was built; it has
    // no arguments and touches nothing.
    let found = unsafe { object.get::<AbiFn>(b"hf_abi\0").map_err(missing)?() };
    if found != ABI {
        return Err(format!("the nDPI shim's ABI is {found}, not {ABI}: build again"));
    }
    // SAFETY: as above; the shim takes its own lock. This is called once, under
    // LIBRARY's.
    if unsafe { object.get::<StartFn>(b"hf_start\0").map_err(missing)?() } != 0 {
        return Err("nDPI does not start: it gets no memory".to_owned());
    }
    // SAFETY: each type is the function's in shim/shim.h, from which the image was built;
    // the shim is started.
    let library = unsafe {
        Library {
            new: *object.get::<NewFn>(b"hf_new\0").map_err(missing)?,
            delete: *object.get::<DeleteFn>(b"hf_delete\0").map_err(missing)?,
            inspect: *object.get::<InspectFn>(b"hf_inspect\0").map_err(missing)?,
            forget: *object.get::<ForgetFn>(b"hf_forget\0").map_err(missing)?,
            count: *object.get::<CountFn>(b"hf_count\0").map_err(missing)?,
            protocols: names(*object.get::<NameFn>(b"hf_protocol\0").map_err(missing)?),
            categories: names(*object.get::<NameFn>(b"hf_category\0").map_err(missing)?),
        }
    };
    // The functions stay good for the life of the process: the library is never unloaded.
    core::mem::forget(object);
    Ok(library)
}

fn find(names: &[String], name: &str) -> Option<u16> {
    let found = names.iter().position(|known| known.eq_ignore_ascii_case(name));
    found.and_then(|at| u16::try_from(at).ok())
}

impl Library {
    /// Loads the library, if no one has done so in this process.
    ///
    /// # Errors
    /// The text says what is missing, and the remedy.
    pub fn open() -> Result<&'static Library, &'static str> {
        LIBRARY.get_or_init(load).as_ref().map_err(String::as_str)
    }

    /// The names of all protocols, by number. Number 0 is the unknown one.
    pub fn protocols(&self) -> &[String] {
        &self.protocols
    }

    /// The names of all categories, by number; some numbers have an empty one.
    pub fn categories(&self) -> &[String] {
        &self.categories
    }

    /// The number of the protocol with this name, in any case of letters.
    pub fn protocol(&self, name: &str) -> Option<u16> {
        find(&self.protocols, name)
    }

    /// The number of the category with this name, in any case of letters.
    pub fn category(&self, name: &str) -> Option<u16> {
        find(&self.categories, name).filter(|_| !name.is_empty())
    }

    /// A table for the objects of `flows` flows that take up to `bytes` of memory
    /// together.
    ///
    /// # Panics
    /// Without memory.
    pub fn table(&'static self, flows: u32, bytes: u64) -> Table {
        // SAFETY: plain numbers; the shim is started.
        let objects = unsafe { (self.new)(flows, bytes) };
        Table { library: self, objects: NonNull::new(objects).expect("memory for nDPI's flows") }
    }
}

/// A packet of a flow.
#[derive(Debug, Clone, Copy)]
pub struct Inspected<'p> {
    /// The flow's number: no other flow has it, and its bits are random.
    pub flow: u64,
    /// The flow's packets that have been inspected before.
    pub step: u32,
    /// The packet's stamp, ms.
    pub ms: u64,
    /// A whole IP packet, not a fragment.
    pub ip: &'p [u8],
    /// An IP packet that the library gets ahead of the flow's first one.
    pub ahead: Option<&'p [u8]>,
    /// The flow's last packet that is inspected: the library decides.
    pub is_last: bool,
}

/// The protocol of a flow, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict {
    /// The protocol, 0 if it is not known.
    pub app: u16,
    /// The protocol that carries it (TLS, say), 0 if there is none.
    pub master: u16,
    /// The category.
    pub category: u16,
    /// True if there is no more to learn.
    pub is_final: bool,
}

/// The library's objects of one function's flows; see the crate.
pub struct Table {
    library: &'static Library,
    objects: NonNull<Objects>,
}

// SAFETY: a table is used by its owner alone, and the shim locks what tables share.
unsafe impl Send for Table {}

impl Table {
    /// Inspects a packet of the flow. `None`: the flow's object is not here, or has seen
    /// other packets.
    pub fn inspect(&mut self, packet: Inspected<'_>) -> Option<Verdict> {
        let ahead = packet.ahead.unwrap_or_default();
        let raw = RawPacket {
            ip: packet.ip.as_ptr(),
            ahead: packet.ahead.map_or(core::ptr::null(), <[u8]>::as_ptr),
            flow: packet.flow,
            ms: packet.ms,
            step: packet.step,
            // No packet is longer than a buffer.
            len: packet.ip.len().try_into().ok()?,
            ahead_len: ahead.len().try_into().ok()?,
            is_last: packet.is_last.into(),
        };
        let mut found = RawVerdict::default();
        // SAFETY: the table is one of the shim's, and not deleted before `self` is gone;
        // `raw` points to `len` bytes, and to `ahead_len` bytes or none, which the
        // library only reads; both structures are those of shim/shim.h and outlive the
        // call.
        let result = unsafe {
            (self.library.inspect)(self.objects.as_ptr(), &raw const raw, &raw mut found)
        };
        (result != MISSING).then_some(Verdict {
            app: found.app,
            master: found.master,
            category: found.category,
            is_final: found.is_final != 0,
        })
    }

    /// Frees a flow's object, if there is one.
    pub fn forget(&mut self, flow: u64) {
        // SAFETY: the table is one of the shim's, and not deleted before `self` is gone.
        unsafe { (self.library.forget)(self.objects.as_ptr(), flow) }
    }

    fn counts(&self) -> (u32, u64) {
        let (mut objects, mut evicted) = (0, 0);
        // SAFETY: as above; the shim writes to both numbers.
        unsafe {
            (self.library.count)(self.objects.as_ptr(), &raw mut objects, &raw mut evicted);
        }
        (objects, evicted)
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.counts().0 as usize
    }

    /// True without an object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of objects that were freed because there was no room for others.
    #[cfg(test)]
    fn evicted(&self) -> u64 {
        self.counts().1
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: the table is one of the shim's, and this is the last call with it.
        unsafe { (self.library.delete)(self.objects.as_ptr()) }
    }
}

#[cfg(all(test, holdfast_ndpi))]
mod tests;
