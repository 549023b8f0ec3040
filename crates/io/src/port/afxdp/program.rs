//! The XDP program: sends every frame of a receive queue to the socket bound to this
//! queue.
//!
//! Eight instructions need no compiler. The program is attached by a link in a descriptor
//! of this process: when the process ends, in whatever way, the kernel detaches it and
//! the device is as before.

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// `union bpf_attr`, as far as these commands read it; the rest is zero.
#[repr(C, align(8))]
struct Attributes([u32; 32]);

impl Attributes {
    fn new(words: &[(usize, u32)]) -> Attributes {
        let mut attributes = Attributes([0; 32]);
        for &(at, word) in words {
            attributes.0[at] = word;
        }
        attributes
    }

    fn pointer<T: ?Sized>(mut self, at: usize, to: &T) -> Attributes {
        let address = (&raw const *to).cast::<u8>() as u64;
        self.0[at..at + 2].copy_from_slice(&[address as u32, (address >> 32) as u32]);
        if cfg!(target_endian = "big") {
            self.0.swap(at, at + 1);
        }
        self
    }
}

fn bpf(command: libc::c_long, attributes: &Attributes) -> io::Result<i32> {
    // SAFETY: the kernel reads as many bytes of the attributes as it is told they have;
    // the pointers inside are to values that the callers below borrow until the call has
    // returned.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, &raw const attributes.0, size_of::<Attributes>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn bpf_fd(command: libc::c_long, attributes: &Attributes) -> io::Result<OwnedFd> {
    let raw = bpf(command, attributes)?;
    // SAFETY: these commands give a new descriptor to the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// An instruction (`struct bpf_insn`).
const fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    // The two registers share a byte, the destination in its low half.
    let bytes = [code, destination | source << 4, 0, 0, 0, 0, 0, 0];
    u64::from_le_bytes(bytes) | (offset as u16 as u64) << 16 | (immediate as u32 as u64) << 32
}

/// The program on a device. Dropping it detaches it.
pub(super) struct Program {
    map: OwnedFd,
    _link: OwnedFd,
}

impl Program {
    /// Attaches to a device with as many receive queues, in its driver's own mode.
    ///
    /// # Errors
    /// The kernel's error: the driver cannot (`EOPNOTSUPP`, and others), another program
    /// is attached (`EBUSY`), a privilege is missing (`EPERM`).
    pub(super) fn attach(device: u32, queues: u32) -> io::Result<Program> {
        let map = bpf_fd(
            BPF_MAP_CREATE,
            &Attributes::new(&[(0, BPF_MAP_TYPE_XSKMAP), (1, 4), (2, 4), (3, queues)]),
        )?;
        let code: [u64; 6] = [
            // r2 = context->rx_queue_index
            instruction(0x61, 2, 1, 16, 0),
            // r1 = the map; the pair is one load of 64 bits
            instruction(0x18, 1, 1, 0, map.as_raw_fd()),
            0,
            // r3 = XDP_PASS, for a queue without a socket
            instruction(0xb7, 3, 0, 0, 2),
            // return bpf_redirect_map(r1, r2, r3)
            instruction(0x85, 0, 0, 0, 51),
            instruction(0x95, 0, 0, 0, 0),
        ];
        let attributes =
            Attributes::new(&[(0, BPF_PROG_TYPE_XDP), (1, code.len() as u32), (17, BPF_XDP)]);
        let program =
            bpf_fd(BPF_PROG_LOAD, &attributes.pointer(2, &code).pointer(4, c"Apache-2.0"))?;
        let attributes = Attributes::new(&[
            (0, program.as_raw_fd() as u32),
            (1, device),
            (2, BPF_XDP),
            (3, XDP_FLAGS_DRV_MODE),
        ]);
        let link = bpf_fd(BPF_LINK_CREATE, &attributes)?;
        Ok(Program { map, _link: link })
    }

    /// Sends this queue's frames to this socket from now on.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = socket.as_raw_fd();
        let attributes = Attributes::new(&[(0, self.map.as_raw_fd() as u32)]);
        bpf(BPF_MAP_UPDATE_ELEM, &attributes.pointer(2, &queue).pointer(4, &value)).map(drop)
    }
}
