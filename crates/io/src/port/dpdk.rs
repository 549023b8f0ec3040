//! DPDK: a network card taken away from the kernel, or a virtual device of DPDK
//! (`net_pcap0,…`, `net_af_packet0,…`).
//!
//! In: frames that the device has received. Out: frames to send. DPDK is behind a shim of
//! our own (`dpdk/shim.h`): a shared object inside this program's file, loaded together
//! with DPDK when the first port is opened. A box without DPDK ports neither needs nor
//! starts DPDK. Each burst takes one call; frames are copied between DPDK's buffers and
//! the arena's. A device has no descriptor to wait for: it is polled every
//! [`POLL_INTERVAL`].

use super::losses::lose;
use super::{Loss, Losses, Port, PortError};
use holdfast_protection::Released;
use holdfast_shim::Image;
use holdfast_wire::header::Mac;
use holdfast_wire::{BUFFER_LEN, DropCounters, DropReason, HEADROOM, Packet, PacketPool};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::fd::BorrowedFd;
use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

// IMAGE: the shim, if DPDK was present at build time; ABSENT: else the reason.
include!(concat!(env!("OUT_DIR"), "/dpdk_shim.rs"));

/// HF_ABI and HF_BURST in dpdk/shim.h.
const ABI: u32 = 2;
const BATCH: usize = 64;
/// The pause between two looks at an idle device, ns. The kernel adds as much again (its
/// timers' slack); after that, at 15 million frames a second, a quarter of the device's
/// descriptors is still free.
const POLL_INTERVAL: u64 = 50_000;
/// Receive calls between two looks at the device's own counters, which are slow on some
/// devices.
const STATS_INTERVAL: u32 = 4096;

/// `struct hf_frame`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Frame {
    data: *mut u8,
    room: u32,
    len: u32,
}

const NO_FRAME: Frame = Frame { data: core::ptr::null_mut(), room: 0, len: 0 };

/// `struct hf_info`.
#[repr(C)]
#[derive(Default)]
struct Info {
    mac: Mac,
    mtu: u16,
}

/// `struct hf_stats`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Stats {
    missed: u64,
    no_buffer: u64,
    receive_errors: u64,
    transmit_errors: u64,
}

/// `struct hf_port`, opaque here.
enum Device {}

type AbiFn = unsafe extern "C" fn() -> u32;
type StartFn = unsafe extern "C" fn(c_int, *mut c_char, usize) -> c_int;
type OpenFn = unsafe extern "C" fn(
    *const c_char,
    u32,
    *mut Info,
    *mut c_int,
    *mut c_char,
    usize,
) -> *mut Device;
type CloseFn = unsafe extern "C" fn(*mut Device);
type LinkFn = unsafe extern "C" fn(*const Device) -> c_int;
type ReceiveFn = unsafe extern "C" fn(*mut Device, *mut Frame, u32) -> u32;
type TransmitFn = unsafe extern "C" fn(*mut Device, *const Frame, u32) -> u32;
type StatsFn = unsafe extern "C" fn(*const Device, *mut Stats) -> c_int;

/// The shim's functions; DPDK's environment is started.
struct Shim {
    open: OpenFn,
    close: CloseFn,
    link: LinkFn,
    receive: ReceiveFn,
    transmit: TransmitFn,
    stats: StatsFn,
}

/// DPDK's environment starts once per process, and cannot be started again.
static SHIM: OnceLock<Result<Shim, String>> = OnceLock::new();
/// Devices are opened and closed one after the other.
static CONTROL: Mutex<()> = Mutex::new(());

/// Texts that DPDK adds to every error of a device.
const ECHOES: [&str; 2] = ["EAL: Failed to attach device", "EAL: Driver cannot attach the device"];

/// Room for DPDK's error text.
struct Why([u8; 512]);

impl Why {
    fn new() -> Why {
        Why([0; 512])
    }

    fn parts(&mut self) -> (*mut c_char, usize) {
        (self.0.as_mut_ptr().cast(), self.0.len())
    }

    /// DPDK's error text, each line once, or else the error's number in words: drivers
    /// say more than their numbers, which are often just -1.
    fn explain(&self, errno: c_int) -> String {
        let said =
            String::from_utf8_lossy(self.0.split(|byte| *byte == 0).next().unwrap_or_default())
                .into_owned();
        let mut lines: Vec<&str> = Vec::new();
        for line in said.lines().map(str::trim) {
            if !line.is_empty()
                && !ECHOES.iter().any(|echo| line.starts_with(echo))
                && !lines.contains(&line)
            {
                lines.push(line);
            }
        }
        match errno {
            _ if !lines.is_empty() => lines.join("; "),
            libc::EPERM => "the driver refuses it".to_owned(),
            _ => io::Error::from_raw_os_error(errno).to_string(),
        }
    }
}

/// Descriptors of this process.
fn descriptors() -> BTreeSet<c_int> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Runs `open`, and sets close-on-exec for the descriptors that it opened: a process that
/// is started later and outlives this one would otherwise keep its devices.
fn without_inheritance<T>(open: impl FnOnce() -> T) -> T {
    let before = descriptors();
    let result = open();
    for fd in descriptors().difference(&before) {
        // SAFETY: no pointers; a number that is not open any more is refused.
        unsafe {
            let flags = libc::fcntl(*fd, libc::F_GETFD);
            if flags >= 0 {
                libc::fcntl(*fd, libc::F_SETFD, flags | libc::FD_CLOEXEC);
            }
        }
    }
    result
}

/// Free bytes of huge pages.
pub fn free_huge_pages() -> u64 {
    let sizes = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let free = |directory: std::fs::DirEntry| -> Option<u64> {
        let name = directory.file_name();
        let kib: u64 =
            name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count: u64 = std::fs::read_to_string(directory.path().join("free_hugepages"))
            .ok()?
            .trim()
            .parse()
            .ok()?;
        Some(kib * 1024 * count)
    };
    sizes.filter_map(free).sum()
}

fn load() -> Result<Shim, String> {
    let image = IMAGE.ok_or(ABSENT)?;
    let failed =
        |what: &str, error: &dyn core::fmt::Display| format!("loading DPDK: {what}: {error}");
    let image =
        Image::lay_out("holdfast-dpdk", image).map_err(|error| failed("its memory", &error))?;
    // SAFETY: the image is the shim that was built with this program; its only
    // initialisation, and its libraries', is DPDK's, which registers drivers. No other
    // part of this process is touched.
    let library = unsafe { Library::open(Some(&image.into_path()), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        format!("DPDK's libraries, which this program was built with, cannot be loaded: {error}: `apt-get install libdpdk-dev`")
    })?;
    let missing = |error: libloading::Error| failed("the shim", &error);
    // SAFETY: each type is the function's in dpdk/shim.h, from which the image was built.
    let (abi, start, shim) = unsafe {
        let shim = Shim {
            open: *library.get::<OpenFn>(b"hf_open\0").map_err(missing)?,
            close: *library.get::<CloseFn>(b"hf_close\0").map_err(missing)?,
            link: *library.get::<LinkFn>(b"hf_link\0").map_err(missing)?,
            receive: *library.get::<ReceiveFn>(b"hf_receive\0").map_err(missing)?,
            transmit: *library.get::<TransmitFn>(b"hf_transmit\0").map_err(missing)?,
            stats: *library.get::<StatsFn>(b"hf_stats\0").map_err(missing)?,
        };
        let abi = *library.get::<AbiFn>(b"hf_abi\0").map_err(missing)?;
        (abi, *library.get::<StartFn>(b"hf_start\0").map_err(missing)?, shim)
    };
    // The functions stay good for the life of the process: the library is never unloaded.
    core::mem::forget(library);
    // SAFETY: the function has no arguments and touches nothing.
    let found = unsafe { abi() };
    if found != ABI {
        return Err(format!("the DPDK shim's ABI is {found}, not {ABI}: build again"));
    }
    let mut why = Why::new();
    let (text, len) = why.parts();
    let use_huge = free_huge_pages() >= Dpdk::ENOUGH_HUGE;
    // SAFETY: `text` is `len` bytes to write to; this is called once, under SHIM's lock.
    let result = unsafe { start(c_int::from(use_huge), text, len) };
    if result < 0 {
        return Err(format!("DPDK does not start: {}", why.explain(-result)));
    }
    Ok(shim)
}

/// A port of DPDK; see the module.
pub struct Dpdk {
    name: String,
    shim: &'static Shim,
    device: NonNull<Device>,
    mac: Mac,
    mtu: u16,
    drops: DropCounters,
    counted: Stats,
    losses: Losses,
    until_stats: u32,
    spare: Vec<Packet>,
}

// SAFETY: the shim's functions for one port may be called by any thread, one at a time,
// which `&mut self` is; `hf_link` only asks.
unsafe impl Send for Dpdk {}

impl Dpdk {
    /// The least free huge pages with which they are used, bytes.
    pub const ENOUGH_HUGE: u64 = 64 << 20;

    /// The reason why this program has no DPDK, and the remedy; `None` if it has.
    pub fn absent() -> Option<&'static str> {
        IMAGE.is_none().then_some(ABSENT)
    }

    /// Opens a PCI device, or a virtual device with its arguments: `0000:01:00.0`,
    /// `net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn open(device: &str) -> Result<Dpdk, PortError> {
        let unavailable = |text: String| Err(PortError::Unavailable(text));
        let arguments = match CString::new(device) {
            Ok(arguments) if !device.is_empty() => arguments,
            _ => {
                return unavailable(
                    "`dpdk:DEVICE` names a network card's address or a virtual device".to_owned(),
                );
            }
        };
        let _one_at_a_time = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
        let shim = match SHIM.get_or_init(|| without_inheritance(load)) {
            Ok(shim) => shim,
            Err(text) => return unavailable(format!("opening `dpdk:{device}`: {text}")),
        };
        let (mut info, mut errno, mut why) = (Info::default(), 0, Why::new());
        let (text, len) = why.parts();
        let found = without_inheritance(|| {
            // SAFETY: `arguments` ends with a zero byte; the shim writes to `info`,
            // `errno` and the `len` bytes of `text`, which outlive the call; CONTROL is
            // held.
            unsafe {
                (shim.open)(
                    arguments.as_ptr(),
                    BUFFER_LEN as u32,
                    &raw mut info,
                    &raw mut errno,
                    text,
                    len,
                )
            }
        });
        let Some(found) = NonNull::new(found) else { return Err(refused(device, errno, &why)) };
        Ok(Dpdk {
            name: format!("dpdk:{device}"),
            shim,
            device: found,
            mac: if info.mac == [0; 6] { made_up_mac(device) } else { info.mac },
            mtu: info.mtu,
            drops: DropCounters::default(),
            counted: Stats::default(),
            losses: Losses::new(),
            until_stats: STATS_INTERVAL,
            spare: Vec::with_capacity(BATCH),
        })
    }

    /// Counts the device's losses since the last look.
    fn look_at_stats(&mut self) {
        self.until_stats = STATS_INTERVAL;
        let mut stats = Stats::default();
        // SAFETY: the device is open, and `stats` outlives the call.
        if unsafe { (self.shim.stats)(self.device.as_ptr(), &raw mut stats) } == 0 {
            let losses = [
                (Loss::DeviceRxMissed, stats.missed, self.counted.missed),
                (Loss::DeviceRxMissed, stats.no_buffer, self.counted.no_buffer),
                (Loss::DeviceRxErrors, stats.receive_errors, self.counted.receive_errors),
                (Loss::DeviceTxErrors, stats.transmit_errors, self.counted.transmit_errors),
            ];
            losses.into_iter().for_each(|(loss, now, before)| {
                lose(&mut self.losses, loss, now.saturating_sub(before))
            });
            self.counted = stats;
        }
    }
}

fn refused(device: &str, errno: c_int, why: &Why) -> PortError {
    let is_pci = is_pci(device);
    let remedy = match errno {
        libc::EPERM | libc::EACCES if !rustix::process::geteuid().is_root() => {
            return PortError::Permission(format!("opening `dpdk:{device}`: {}: run as root", why.explain(errno)));
        }
        libc::EEXIST => "another port has this device".to_owned(),
        libc::ENOMEM => "DPDK has no memory left for it: reserve more huge pages, `sysctl vm.nr_hugepages=512`".to_owned(),
        libc::ENODEV if is_pci => "there is no such network card: `dpdk-devbind.py --status` lists them".to_owned(),
        _ if is_pci => format!("give the card to DPDK: `dpdk-devbind.py --bind=vfio-pci {device}`"),
        libc::EFAULT | libc::ENODEV => {
            "DPDK has no such device: name the address of a network card or one of DPDK's virtual devices, like \
                                        `dpdk:net_af_packet0,iface=eth1`"
                .to_owned()
        }
        _ => "DPDK's guide to its drivers has the arguments of each".to_owned(),
    };
    PortError::Unavailable(format!("opening `dpdk:{device}`: {}: {remedy}", why.explain(errno)))
}

/// `0000:01:00.0` or `01:00.0`, with or without arguments.
fn is_pci(device: &str) -> bool {
    let name = device.split(',').next().unwrap_or_default();
    name.contains(':') && name.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '.'))
}

/// A locally administered address for a virtual device without one: the same each time.
fn made_up_mac(device: &str) -> Mac {
    let hash = holdfast_wire::fnv1a(device.as_bytes());
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}

impl Drop for Dpdk {
    fn drop(&mut self) {
        let _one_at_a_time = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the device is open and not used any more; CONTROL is held.
        unsafe { (self.shim.close)(self.device.as_ptr()) }
    }
}

impl Port for Dpdk {
    fn name(&self) -> &str {
        &self.name
    }

    fn driver(&self) -> &'static str {
        "dpdk"
    }

    fn mac(&self) -> Mac {
        self.mac
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn is_up(&self) -> bool {
        // SAFETY: the device is open.
        unsafe { (self.shim.link)(self.device.as_ptr()) == 1 }
    }

    fn receive(&mut self, max: usize, pool: &mut dyn PacketPool, into: &mut Vec<Packet>) {
        self.until_stats -= 1;
        if self.until_stats == 0 {
            self.look_at_stats();
        }
        let want = max.min(BATCH);
        while self.spare.len() < want {
            let Some(mut packet) = pool.take() else { break };
            packet.clear();
            self.spare.push(packet);
        }
        let want = want.min(self.spare.len());
        if want == 0 {
            return;
        }
        let mut frames = [NO_FRAME; BATCH];
        for (frame, packet) in frames.iter_mut().zip(&mut self.spare[..want]) {
            let room = &mut packet.buffer_mut()[HEADROOM..];
            *frame = Frame { data: room.as_mut_ptr(), room: room.len() as u32, len: 0 };
        }
        // SAFETY: the device is open; each frame is the room of a buffer of its own, to
        // which no other code writes, and `want` is at most BATCH.
        let got =
            unsafe { (self.shim.receive)(self.device.as_ptr(), frames.as_mut_ptr(), want as u32) }
                as usize;
        for (mut packet, frame) in self.spare.drain(..got).zip(&frames) {
            if packet.set_range(HEADROOM, frame.len as usize) {
                into.push(packet);
            } else {
                self.drops.count(DropReason::FrameTooLarge);
                pool.put(packet);
            }
        }
    }

    fn transmit(&mut self, frames: &mut Vec<Released<Packet>>, pool: &mut dyn PacketPool) {
        for batch in frames.chunks(BATCH) {
            let mut list = [NO_FRAME; BATCH];
            let mut count = 0;
            for frame in batch {
                let bytes = frame.get().bytes();
                if bytes.len() > BUFFER_LEN {
                    self.drops.count(DropReason::FrameTooLarge);
                    continue;
                }
                list[count] =
                    Frame { data: bytes.as_ptr().cast_mut(), room: 0, len: bytes.len() as u32 };
                count += 1;
            }
            // SAFETY: the device is open; each frame is the bytes of a packet in `batch`,
            // which outlives the call and is only read; `count` is at most BATCH.
            let sent =
                unsafe { (self.shim.transmit)(self.device.as_ptr(), list.as_ptr(), count as u32) }
                    as usize;
            if sent < count {
                let reason =
                    if self.is_up() { DropReason::QueueFull } else { DropReason::PortDown };
                self.drops.add_count(reason, (count - sent) as u64);
            }
        }
        for frame in frames.drain(..) {
            pool.put(frame.into_inner());
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn poll_interval(&self) -> Option<u64> {
        Some(POLL_INTERVAL)
    }

    fn drops(&self) -> &DropCounters {
        &self.drops
    }

    fn take_losses(&mut self, into: &mut Losses) {
        self.look_at_stats();
        core::mem::take(&mut self.losses)
            .into_iter()
            .for_each(|(loss, count)| lose(into, loss, count));
    }
}
