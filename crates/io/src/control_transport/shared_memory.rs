//! Control messages through shared memory, for a state server and runtimes of one host.
//!
//! Theory of operation. The server owns a session's memory: two rings ([`crate::ring`]),
//! a word by which each side tells that it sleeps, and one by which it tells that the
//! session is over. A runtime has a socket in the abstract namespace, whose name is in
//! its hello. The server leaves the memory and two bells there before it sends the
//! welcome, so a runtime that gets the welcome finds them. Each side checks that the
//! other one's process is the same user's.
//!
//! Either side may die at any instruction: a word is in the ring or not, and the living
//! side unmaps the memory when the session is over. Wrong data from the other side can
//! only end this session.

use super::{Address, ControlTransport, Driver, Lost, Transport};
use crate::bell;
use crate::doorbell;
use crate::mailbox::Mailbox;
use crate::ring::{Consumer, Descriptor, Memory, Producer};
use crate::shared_memory::{Layout, SharedMemory};
use crate::standby::outside;
use holdfast_wire::NodeId;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// The version changes with the offsets below.
const LAYOUT: Layout =
    Layout { name: "a memory for words", magic: 0x686f_6c64_776f_7264, version: 1 };
/// Words in a ring.
const ENTRIES: usize = 4096;

/// Offsets, by side, of the words for sleeping and for the end.
const AT_SLEEPS: [usize; 2] = [64, 128];
const AT_CLOSED: [usize; 2] = [192, 256];
const HEADER_LEN: usize = 320;
const RING_LEN: usize = SharedMemory::ring_len(ENTRIES);
const LEN: usize = HEADER_LEN + 2 * RING_LEN;

/// Bytes of a random token that tells one session's memory from another's.
const TOKEN: usize = 8;
/// Maximum number of bytes of a runtime's socket name, which the kernel chooses.
const NAME_AT_MOST: usize = 64;
/// Maximum number of servers that wait at a runtime's socket, stale ones of earlier
/// sessions included.
const BACKLOG: i32 = 16;

/// The side of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that gives the memory.
    Server,
    /// The side that has a socket.
    Runtime,
}

/// An end with its memory.
struct Tied {
    memory: Option<SharedMemory>,
    rx: Consumer<'static>,
    tx: Producer<'static>,
    sleeps: &'static AtomicU32,
    other_sleeps: &'static AtomicU32,
    closed: &'static AtomicU32,
    other_closed: &'static AtomicU32,
    wake_other: OwnedFd,
    /// This side's own bell, if it is for this session only.
    bell: Option<OwnedFd>,
    is_corrupt: bool,
}

struct End {
    token: [u8; TOKEN],
    tied: Option<Tied>,
}

/// The driver; see the module.
pub struct SharedMemoryTransport {
    side: Side,
    /// The server's one bell; a runtime's socket with its name.
    bell: Option<OwnedFd>,
    socket: Option<(OwnedFd, Vec<u8>)>,
    ends: BTreeMap<NodeId, End>,
}

fn ring(memory: &SharedMemory, which: usize) -> Memory<'static> {
    memory.ring(HEADER_LEN + which * RING_LEN, ENTRIES)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// True if the other side's process is this user's.
fn is_ours(socket: &OwnedFd) -> bool {
    sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

impl SharedMemoryTransport {
    /// A process's driver.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(side: Side) -> io::Result<SharedMemoryTransport> {
        let (mut bell, mut listening) = (None, None);
        match side {
            Side::Server => bell = Some(bell::make()?),
            Side::Runtime => {
                let socket = socket()?;
                // Without a name the kernel chooses a unique one.
                rustix::net::bind(&socket, &SocketAddrUnix::new_unnamed())?;
                rustix::net::listen(&socket, BACKLOG)?;
                let name = SocketAddrUnix::try_from(rustix::net::getsockname(&socket)?)?;
                let name = name.abstract_name().filter(|name| name.len() <= NAME_AT_MOST);
                let name = name.ok_or(io::ErrorKind::AddrNotAvailable)?.to_vec();
                listening = Some((socket, name));
            }
        }
        Ok(SharedMemoryTransport { side, bell, socket: listening, ends: BTreeMap::new() })
    }

    /// The server's half of [`ControlTransport::connect`]: makes the memory, and leaves
    /// it at the runtime's socket.
    fn give(&self, mine: [u8; TOKEN], theirs: &[u8]) -> io::Result<Tied> {
        let (token, name) =
            theirs.split_first_chunk::<TOKEN>().ok_or(io::ErrorKind::InvalidData)?;
        let bell = self.bell.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let socket = socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        if !is_ours(&socket) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let memory = SharedMemory::create("holdfast-words", LEN)?;
        LAYOUT.mark(&memory, 0);
        let wake_runtime = bell::make()?;
        let fds = [memory.fd(), bell.as_fd(), wake_runtime.as_fd()];
        Mailbox::of(socket).send(&[*token, mine].concat(), &fds)?;
        Ok(Tied::new(memory, Side::Server, wake_runtime, None))
    }

    /// The runtime's half: takes the memory that the server has left for this session.
    fn take(&self, mine: [u8; TOKEN], theirs: &[u8]) -> io::Result<Tied> {
        let (listening, _) = self.socket.as_ref().ok_or(io::ErrorKind::NotFound)?;
        for _ in 0..=BACKLOG {
            let socket =
                rustix::net::accept_with(listening, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
            if !is_ours(&socket) {
                continue;
            }
            let Ok(Some((text, fds))) = Mailbox::of(socket).receive() else { continue };
            let mut fds = fds.into_iter();
            let (Some(memory), Some(wake_server), Some(bell)) =
                (fds.next(), fds.next(), fds.next())
            else {
                continue;
            };
            // Other memory is of a session that was never used.
            if text.split_at_checked(TOKEN) == Some((&mine, theirs)) {
                return Tied::open(memory, wake_server, bell);
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    fn tied(&mut self, node: NodeId) -> Option<&mut Tied> {
        self.ends.get_mut(&node)?.tied.as_mut()
    }

    fn all_tied(&mut self) -> impl Iterator<Item = &mut Tied> {
        self.ends.values_mut().filter_map(|end| end.tied.as_mut())
    }
}

impl Tied {
    fn new(memory: SharedMemory, side: Side, wake_other: OwnedFd, bell: Option<OwnedFd>) -> Tied {
        let (me, other) = if side == Side::Server { (0, 1) } else { (1, 0) };
        Tied {
            rx: Consumer::new(ring(&memory, other)),
            tx: Producer::new(ring(&memory, me)),
            sleeps: memory.word32(AT_SLEEPS[me]),
            other_sleeps: memory.word32(AT_SLEEPS[other]),
            closed: memory.word32(AT_CLOSED[me]),
            other_closed: memory.word32(AT_CLOSED[other]),
            memory: Some(memory),
            wake_other,
            bell,
            is_corrupt: false,
        }
    }

    fn open(memory: OwnedFd, wake_other: OwnedFd, bell: OwnedFd) -> io::Result<Tied> {
        let memory = SharedMemory::open(memory)?;
        let checked = LAYOUT.check(&memory, 0);
        let checked = checked.and_then(|()| {
            if memory.len() == LEN { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
        });
        if let Err(error) = checked {
            // SAFETY: nothing was handed out of it but words that were read.
            unsafe { memory.unmap() };
            return Err(error);
        }
        Ok(Tied::new(memory, Side::Runtime, wake_other, Some(bell)))
    }

    fn is_over(&self) -> bool {
        self.is_corrupt || self.other_closed.load(Ordering::Relaxed) != 0
    }
}

impl Drop for Tied {
    fn drop(&mut self) {
        self.closed.store(1, Ordering::Release);
        // A sleeping other side must see it.
        bell::ring(&self.wake_other);
        if let Some(memory) = self.memory.take() {
            // SAFETY: rings and words of it are in this value only, none of them is
            // handed out, and none is used after this.
            unsafe { memory.unmap() };
        }
    }
}

impl ControlTransport for SharedMemoryTransport {
    fn transport(&self) -> Transport {
        Transport::SharedMemory
    }

    fn open(&mut self, node: NodeId) -> Result<Address, Lost> {
        let mut token = [0; TOKEN];
        let is_filled = rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty());
        if is_filled != Ok(TOKEN) {
            return Err(Lost);
        }
        outside(|| {
            self.ends.insert(node, End { token, tied: None });
            let name = self.socket.as_ref().map_or(&[][..], |(_, name)| name);
            Address::new(&[&token[..], name].concat()).ok_or(Lost)
        })
    }

    fn connect(&mut self, node: NodeId, address: &Address) -> Result<(), Lost> {
        outside(|| {
            let token = self.ends.get(&node).ok_or(Lost)?.token;
            let tied = match self.side {
                Side::Server => self.give(token, address.bytes()),
                Side::Runtime => self.take(token, address.bytes()),
            };
            let tied = tied.map_err(|_| Lost)?;
            self.ends.insert(node, End { token, tied: Some(tied) });
            Ok(())
        })
    }

    fn close(&mut self, node: NodeId) {
        outside(|| drop(self.ends.remove(&node)));
    }

    fn receive(&mut self, node: NodeId, into: &mut [u32]) -> Result<usize, Lost> {
        let tied = self.tied(node).ok_or(Lost)?;
        let is_over = tied.is_over();
        for (at, place) in into.iter_mut().enumerate() {
            match tied.rx.pop() {
                Ok(Some(Descriptor { buffer, .. })) => *place = buffer,
                Ok(None) if at == 0 && is_over => return Err(Lost),
                Ok(None) => return Ok(at),
                Err(_) => {
                    tied.is_corrupt = true;
                    return Err(Lost);
                }
            }
        }
        Ok(into.len())
    }

    fn room(&mut self, node: NodeId) -> usize {
        let Some(tied) = self.tied(node) else { return 0 };
        // Read from memory: the ring remembers only a lower bound.
        match tied.tx.unread() {
            Ok(_) => tied.tx.room().unwrap_or(0),
            Err(_) => {
                tied.is_corrupt = true;
                0
            }
        }
    }

    fn send(&mut self, node: NodeId, words: &[u32]) {
        let Some(tied) = self.tied(node) else { return };
        let is_taken =
            words.iter().all(|word| tied.tx.push(Descriptor { buffer: *word, offset: 0, len: 0 }));
        tied.is_corrupt |= !is_taken;
    }
}

impl Driver for SharedMemoryTransport {
    fn publish(&mut self) {
        for tied in self.all_tied() {
            if tied.rx.has_taken() {
                tied.rx.release();
            }
            if tied.tx.has_hidden() {
                tied.tx.publish();
                bell::wake(tied.other_sleeps, &tied.wake_other);
            }
        }
    }

    fn has_input(&mut self) -> bool {
        self.all_tied().any(|tied| tied.rx.has_more() || tied.is_over())
    }

    fn prepare_sleep(&mut self) -> bool {
        let is_quiet = self
            .all_tied()
            .all(|tied| doorbell::may_sleep(tied.sleeps, || tied.rx.is_empty() && !tied.is_over()));
        if !is_quiet {
            self.all_tied().for_each(|tied| tied.sleeps.store(0, Ordering::Relaxed));
        }
        is_quiet
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        let of_session = || self.ends.values().find_map(|end| end.tied.as_ref()?.bell.as_ref());
        self.bell.as_ref().or_else(of_session).map(AsFd::as_fd)
    }

    fn longest_sleep(&self) -> u64 {
        u64::MAX
    }

    fn awake(&mut self) {
        self.all_tied().for_each(|tied| tied.sleeps.store(0, Ordering::Relaxed));
        if let Some(bell) = self.wait_fd() {
            bell::drain(bell);
        }
    }
}
