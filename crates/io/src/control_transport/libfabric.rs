//! Control messages as remote writes that carry only their immediate data (RESCue,
//! section IV), by any provider of libfabric: `tcp;ofi_rxm`, `shm`, `verbs;ofi_rxm` and
//! others.
//!
//! Theory of operation. libfabric is behind a shim of our own (`libfabric/shim.h`): a
//! shared object inside this program's file, loaded together with libfabric when a
//! configuration asks for it. Loading takes a tenth of a second and is done once, before
//! any fork ([`prepare`]); a process opens its own objects in a millisecond. An end is an
//! endpoint with its own address, queue and memory key, made for one session: providers
//! need not tell words' senders, and late writes of an earlier session reach no end. A
//! word is the lower half of the data. The upper half, if there is one, has a number that
//! the end's address named, because addresses are used again. A provider without room for
//! a word ([`WORD_BYTES`]) is refused.
//!
//! A provider with descriptors is waited for; others are polled every [`POLL_INTERVAL`].
//! A provider that remakes a broken connection does so between two calls of ours: a
//! call's words are lost from some word on, as sessions expect. Endpoints are never
//! inherited: the process that works opens them.

use super::{Address, ControlTransport, Driver, Lost, Transport};
use crate::standby::outside;
use holdfast_shim::Image;
use holdfast_wire::NodeId;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::NonNull;
use std::sync::OnceLock;

// IMAGE: the shim, if libfabric was present at build time; ABSENT: else the reason.
include!(concat!(env!("OUT_DIR"), "/libfabric_shim.rs"));

/// HF_WORDS_ABI and HF_WORDS_ADDRESS in libfabric/shim.h.
const ABI: u32 = 1;
const _: () = assert!(Address::LONGEST == 160);
/// Bytes of immediate data that a remote write must carry. With more, it also tells its
/// session.
const WORD_BYTES: u32 = 4;
const TAGGED_BYTES: u32 = 8;
/// Maximum number of words of an end that wait for the provider.
const STAGED: usize = 1024;
/// Words taken from the provider at a time.
const BURST: usize = 256;
/// The pause between two looks at an end without a descriptor, or whose provider has not
/// taken everything, ns.
const POLL_INTERVAL: u64 = 50_000;

/// Environment variables for libraries, unless the operator has set them. Some cards'
/// libraries would otherwise write about a process's end to its output, and `ofi_rxm`
/// would fill thirty megabytes with buffers for every end, which takes longer than a
/// worker may stand still.
const SETTINGS: [(&str, &str); 5] = [
    ("HFI_NO_BACKTRACE", "1"),
    ("IPATH_NO_BACKTRACE", "1"),
    ("FI_OFI_RXM_BUFFER_SIZE", "512"),
    ("FI_OFI_RXM_MSG_TX_SIZE", "128"),
    ("FI_OFI_RXM_MSG_RX_SIZE", "128"),
];

/// `struct hf_words_info`.
#[repr(C)]
struct Info {
    data_size: u32,
    has_descriptor: u32,
    name: [c_char; 128],
}

/// `struct hf_words`, `struct hf_end`, opaque here.
enum RawProvider {}
enum RawEnd {}

type AbiFn = unsafe extern "C" fn() -> u32;
type StartFn = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *mut Info,
    *mut c_char,
    usize,
) -> *mut RawProvider;
type StopFn = unsafe extern "C" fn(*mut RawProvider);
type OpenFn =
    unsafe extern "C" fn(*mut RawProvider, *mut u8, *mut usize, *mut c_int) -> *mut RawEnd;
type ConnectFn = unsafe extern "C" fn(*mut RawEnd, *const u8, usize) -> c_int;
type CloseFn = unsafe extern "C" fn(*mut RawEnd);
type DescriptorFn = unsafe extern "C" fn(*const RawEnd) -> c_int;
type MayWaitFn = unsafe extern "C" fn(*mut RawEnd) -> c_int;
type SendFn = unsafe extern "C" fn(*mut RawEnd, *const u64, u32) -> c_int;
type ReceiveFn = unsafe extern "C" fn(*mut RawEnd, *mut u64, u32) -> c_int;

/// The shim's functions.
struct Shim {
    start: StartFn,
    stop: StopFn,
    open: OpenFn,
    connect: ConnectFn,
    close: CloseFn,
    descriptor: DescriptorFn,
    may_wait: MayWaitFn,
    send: SendFn,
    receive: ReceiveFn,
}

static SHIM: OnceLock<Result<Shim, String>> = OnceLock::new();

fn load() -> Result<Shim, String> {
    let image = IMAGE.ok_or(ABSENT)?;
    let failed =
        |what: &str, error: &dyn core::fmt::Display| format!("loading libfabric: {what}: {error}");
    let image = Image::lay_out("holdfast-libfabric", image)
        .map_err(|error| failed("its memory", &error))?;
    for (variable, value) in
        SETTINGS.into_iter().filter(|(variable, _)| std::env::var_os(variable).is_none())
    {
        // SAFETY: no other code reads or changes the environment through the C library
        // meanwhile: this is done once, before this process has started any of it.
        unsafe { std::env::set_var(variable, value) };
    }
    // SAFETY: the image is the shim that was built with this program; its only
    // initialisation is that of its libraries, libfabric and what that needs, which
    // touches nothing else of this process.
    let library = unsafe { Library::open(Some(&image.into_path()), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        format!("libfabric, which this program was built with, cannot be loaded: {error}: `apt-get install libfabric1`")
    })?;
    let missing = |error: libloading::Error| failed("the shim", &error);
    // SAFETY: each type is the function's in libfabric/shim.h, from which the image was
    // built.
    let (abi, shim) = unsafe {
        let shim = Shim {
            start: *library.get::<StartFn>(b"hf_words_start\0").map_err(missing)?,
            stop: *library.get::<StopFn>(b"hf_words_stop\0").map_err(missing)?,
            open: *library.get::<OpenFn>(b"hf_end_open\0").map_err(missing)?,
            connect: *library.get::<ConnectFn>(b"hf_end_connect\0").map_err(missing)?,
            close: *library.get::<CloseFn>(b"hf_end_close\0").map_err(missing)?,
            descriptor: *library.get::<DescriptorFn>(b"hf_end_descriptor\0").map_err(missing)?,
            may_wait: *library.get::<MayWaitFn>(b"hf_end_may_wait\0").map_err(missing)?,
            send: *library.get::<SendFn>(b"hf_end_send\0").map_err(missing)?,
            receive: *library.get::<ReceiveFn>(b"hf_end_receive\0").map_err(missing)?,
        };
        (*library.get::<AbiFn>(b"hf_words_abi\0").map_err(missing)?, shim)
    };
    // The functions stay good for the life of the process: the library is never unloaded.
    core::mem::forget(library);
    // SAFETY: the function has no arguments and touches nothing.
    let found = unsafe { abi() };
    if found == ABI {
        Ok(shim)
    } else {
        Err(format!("the libfabric shim's ABI is {found}, not {ABI}: build again"))
    }
}

/// The reason why this program has no libfabric, and the remedy; `None` if it has.
pub fn absent() -> Option<&'static str> {
    IMAGE.is_none().then_some(ABSENT)
}

/// An open domain of a provider.
struct Provider {
    shim: &'static Shim,
    domain: NonNull<RawProvider>,
    has_tags: bool,
    has_descriptors: bool,
}

// SAFETY: the provider's owner calls the shim's functions with it, and ownership moves
// from the thread that opened it to the one that uses it: one at a time.
unsafe impl Send for Provider {}

impl Provider {
    fn start(name: &str) -> Result<Provider, String> {
        let shim = SHIM.get_or_init(load).as_ref().map_err(Clone::clone)?;
        let failed = |why: &str| format!("libfabric's provider `{name}`: {why}");
        let provider = CString::new(name).map_err(|_| failed("a name has no zero byte"))?;
        // Both sides are on this host. Providers over IP use an address that every host
        // has.
        if name.split(';').next() == Some("sockets") {
            return Err(failed("its threads crash when the other side closes: use `tcp;ofi_rxm`"));
        }
        let by_ip =
            ["tcp", "net", "sockets", "udp"].contains(&name.split(';').next().unwrap_or_default());
        let source = if by_ip { c"127.0.0.1".as_ptr() } else { core::ptr::null() };
        let mut info = Info { data_size: 0, has_descriptor: 0, name: [0; 128] };
        let mut why = [0u8; 256];
        // SAFETY: both names end with a zero byte; the shim writes to `info` and to the
        // bytes of `why`, which outlive the call.
        let domain = unsafe {
            (shim.start)(
                provider.as_ptr(),
                source,
                &raw mut info,
                why.as_mut_ptr().cast(),
                why.len(),
            )
        };
        let Some(domain) = NonNull::new(domain) else {
            let why =
                CStr::from_bytes_until_nul(&why).map(CStr::to_string_lossy).unwrap_or_default();
            return Err(failed(&why));
        };
        let has_tags = info.data_size >= TAGGED_BYTES;
        let provider =
            Provider { shim, domain, has_tags, has_descriptors: info.has_descriptor != 0 };
        if info.data_size < WORD_BYTES {
            let size = info.data_size;
            return Err(failed(&format!(
                "a remote write brings {size} bytes along there, and a control message has {WORD_BYTES}: choose another one"
            )));
        }
        Ok(provider)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // SAFETY: the domain is open, and its ends have been closed: they are dropped
        // before it.
        unsafe { (self.shim.stop)(self.domain.as_ptr()) };
    }
}

/// An open end.
struct End {
    shim: &'static Shim,
    end: NonNull<RawEnd>,
    /// The upper half of all data in both directions.
    tag: u32,
    other_tag: u32,
    /// Words that the provider has not taken, and how many of them may leave.
    staged: Vec<u64>,
    shown: usize,
    /// Received words, from `taken` to `got`.
    received: Box<[u64; BURST]>,
    taken: usize,
    got: usize,
    is_lost: bool,
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: the end is open, and no other code has it.
        unsafe { (self.shim.close)(self.end.as_ptr()) };
    }
}

// SAFETY: the driver that has the end is used by one thread at a time, through `&mut`.
unsafe impl Send for End {}

impl End {
    /// Exchanges words with the provider, which also drives its progress.
    fn carry(&mut self, has_tags: bool) {
        let mut given = 0;
        while given < self.shown && !self.is_lost {
            let some = &self.staged[given..self.shown];
            // SAFETY: the end is open; `some` is that many words, which are only read.
            let taken =
                unsafe { (self.shim.send)(self.end.as_ptr(), some.as_ptr(), some.len() as u32) };
            match usize::try_from(taken) {
                Ok(0) => break,
                Ok(taken) => given += taken.min(some.len()),
                Err(_) => self.is_lost = true,
            }
        }
        self.staged.drain(..given);
        self.shown -= given;
        if self.has_more() || self.is_lost {
            return;
        }
        // SAFETY: the end is open; `received` has room for BURST words.
        let got = unsafe {
            (self.shim.receive)(self.end.as_ptr(), self.received.as_mut_ptr(), BURST as u32)
        };
        self.is_lost |= got < 0;
        let got = usize::try_from(got).unwrap_or(0).min(BURST);
        (self.taken, self.got) = (0, 0);
        for at in 0..got {
            let data = self.received[at];
            if !has_tags || (data >> 32) as u32 == self.tag {
                self.received[self.got] = data;
                self.got += 1;
            }
        }
    }

    fn has_more(&self) -> bool {
        self.taken < self.got
    }
}

/// Restores signal handlers after `act`: providers replace some when loaded, and a worker
/// with a standby needs its own.
fn keeping_signals<T>(act: impl FnOnce() -> T) -> T {
    const SIGNALS: usize = 32;
    // SAFETY: all zero is a valid action, which is overwritten.
    let mut before = [unsafe { core::mem::zeroed::<libc::sigaction>() }; SIGNALS];
    let mut is_known = [false; SIGNALS];
    for signal in 1..SIGNALS {
        // SAFETY: the action is only asked for, and goes to memory of its type.
        is_known[signal] =
            unsafe { libc::sigaction(signal as c_int, core::ptr::null(), &mut before[signal]) }
                == 0;
    }
    let result = act();
    for signal in (1..SIGNALS).filter(|signal| is_known[*signal]) {
        // SAFETY: the action is one that was there before.
        unsafe { libc::sigaction(signal as c_int, &before[signal], core::ptr::null_mut()) };
    }
    result
}

/// Loads libfabric and its providers, and checks that this one can be used. Call it once,
/// before this process forks; its number of threads is the same afterwards.
///
/// # Errors
/// The reason why it cannot be used, and the remedy.
pub fn prepare(provider: &str) -> Result<(), String> {
    keeping_signals(|| Provider::start(provider).map(drop))
}

/// The driver; see the module.
pub struct LibfabricTransport {
    // Dropped first, before their provider.
    ends: BTreeMap<NodeId, End>,
    provider: Provider,
    epoll: OwnedFd,
    complain: fn(&str),
}

impl LibfabricTransport {
    /// A driver of a process by this provider, which has been [prepared](prepare). Later
    /// errors go to `complain`.
    ///
    /// # Errors
    /// The reason why the provider cannot be opened.
    pub fn new(provider: &str, complain: fn(&str)) -> Result<LibfabricTransport, String> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| error.to_string())?;
        let provider = keeping_signals(|| Provider::start(provider))?;
        Ok(LibfabricTransport { ends: BTreeMap::new(), provider, epoll, complain })
    }

    fn open_end(&self) -> Result<(End, Address), String> {
        let provider = &self.provider;
        let (mut bytes, mut error) = ([0; Address::LONGEST], 0);
        let mut tag = [0; 4];
        let is_filled = rustix::rand::getrandom(&mut tag, rustix::rand::GetRandomFlags::empty());
        is_filled.map_err(|error| error.to_string())?;
        bytes[..4].copy_from_slice(&tag);
        let mut len = bytes.len() - 4;
        // SAFETY: the domain is open; the shim writes at most `len` bytes behind the tag,
        // and to `len` and `error`, which outlive the call.
        let end = unsafe {
            (provider.shim.open)(
                provider.domain.as_ptr(),
                bytes[4..].as_mut_ptr(),
                &raw mut len,
                &raw mut error,
            )
        };
        let refused = || std::io::Error::from_raw_os_error(error).to_string();
        let end = NonNull::new(end).ok_or_else(refused)?;
        let end = End {
            shim: provider.shim,
            end,
            tag: u32::from_be_bytes(tag),
            other_tag: 0,
            staged: Vec::with_capacity(STAGED),
            shown: 0,
            received: Box::new([0; BURST]),
            taken: 0,
            got: 0,
            is_lost: false,
        };
        let address =
            bytes.get(..4 + len).and_then(Address::new).ok_or("its address is too long")?;
        // SAFETY: the end is open.
        let descriptor = unsafe { (provider.shim.descriptor)(end.end.as_ptr()) };
        if descriptor >= 0 {
            // SAFETY: the descriptor is the end's, and stays open until that is closed,
            // which takes it out of the set.
            let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
            let data = epoll::EventData::new_u64(0);
            epoll::add(&self.epoll, descriptor, data, epoll::EventFlags::IN)
                .map_err(|error| error.to_string())?;
        }
        Ok((end, address))
    }
}

impl ControlTransport for LibfabricTransport {
    fn transport(&self) -> Transport {
        Transport::RemoteWrite
    }

    fn open(&mut self, node: NodeId) -> Result<Address, Lost> {
        outside(|| {
            self.ends.remove(&node);
            match self.open_end() {
                Ok((end, address)) => {
                    self.ends.insert(node, end);
                    Ok(address)
                }
                Err(why) => {
                    let text = "libfabric: an endpoint cannot be opened, and control messages go on the fabric";
                    (self.complain)(&format!("{text}: {why}"));
                    Err(Lost)
                }
            }
        })
    }

    fn connect(&mut self, node: NodeId, address: &Address) -> Result<(), Lost> {
        let end = self.ends.get_mut(&node).ok_or(Lost)?;
        let (tag, rest) = address.bytes().split_first_chunk::<4>().ok_or(Lost)?;
        end.other_tag = u32::from_be_bytes(*tag);
        // SAFETY: the end is open; `rest` is that many bytes, which are only read.
        let outcome = unsafe { (end.shim.connect)(end.end.as_ptr(), rest.as_ptr(), rest.len()) };
        if outcome == 0 { Ok(()) } else { Err(Lost) }
    }

    fn close(&mut self, node: NodeId) {
        outside(|| drop(self.ends.remove(&node)));
    }

    fn receive(&mut self, node: NodeId, into: &mut [u32]) -> Result<usize, Lost> {
        let has_tags = self.provider.has_tags;
        let end = self.ends.get_mut(&node).ok_or(Lost)?;
        if !end.has_more() {
            end.carry(has_tags);
        }
        let some = &end.received[end.taken..end.got];
        if some.is_empty() && end.is_lost {
            return Err(Lost);
        }
        let count = some.len().min(into.len());
        for (place, data) in into.iter_mut().zip(some) {
            *place = *data as u32;
        }
        end.taken += count;
        Ok(count)
    }

    fn room(&mut self, node: NodeId) -> usize {
        self.ends.get(&node).map_or(0, |end| STAGED - end.staged.len())
    }

    fn send(&mut self, node: NodeId, words: &[u32]) {
        let has_tags = self.provider.has_tags;
        let Some(end) = self.ends.get_mut(&node) else { return };
        let tag = if has_tags { u64::from(end.other_tag) << 32 } else { 0 };
        end.staged.extend(
            words.iter().take(STAGED - end.staged.len()).map(|word| tag | u64::from(*word)),
        );
    }
}

impl Driver for LibfabricTransport {
    fn publish(&mut self) {
        let has_tags = self.provider.has_tags;
        for end in self.ends.values_mut().filter(|end| !end.staged.is_empty()) {
            end.shown = end.staged.len();
            end.carry(has_tags);
        }
    }

    fn has_input(&mut self) -> bool {
        let has_tags = self.provider.has_tags;
        let mut is_any = false;
        for end in self.ends.values_mut() {
            if !end.has_more() {
                end.carry(has_tags);
            }
            is_any |= end.has_more() || end.is_lost;
        }
        is_any
    }

    fn prepare_sleep(&mut self) -> bool {
        if self.has_input() {
            return false;
        }
        // SAFETY: each end is open.
        !self.provider.has_descriptors
            || self.ends.values().all(|end| unsafe { (end.shim.may_wait)(end.end.as_ptr()) } != 0)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.provider.has_descriptors.then(|| self.epoll.as_fd())
    }

    fn longest_sleep(&self) -> u64 {
        let has_staged = self.ends.values().any(|end| !end.staged.is_empty());
        if self.ends.is_empty() || self.provider.has_descriptors && !has_staged {
            u64::MAX
        } else {
            POLL_INTERVAL
        }
    }

    fn awake(&mut self) {}
}
