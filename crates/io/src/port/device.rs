//! What the drivers of Linux interfaces have in common: finding the device, its addresses, its refusals.

use super::{Losses, PortError, lose};
use holdfast_wire::header::Mac;
use holdfast_wire::{DropCounters, DropReason};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ffi::CStr;
use std::io;
use std::mem::zeroed;
use std::net::IpAddr;
use zerocopy::FromBytes;

/// A Linux interface.
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) mac: Mac,
    pub(super) mtu: u16,
}

/// What may change about an interface while it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    /// Another one: another device of the same name.
    pub(super) index: u32,
    pub(super) mtu: u16,
    pub(super) is_up: bool,
}

/// Looks for an interface by its name.
///
/// # Errors
/// There is none, or it cannot be found out.
pub(super) fn find(name: &str) -> Result<Device, PortError> {
    let missing = || PortError::Unavailable(format!("there is no device `{name}`: `ip link` lists those that are there"));
    let State { index, mtu, .. } = state(name)
        .map_err(|error| PortError::Unavailable(format!("looking for device `{name}`: {error}")))?
        .ok_or_else(missing)?;
    let mac = match read_sys(name, "address") {
        Ok(Some(text)) => parse_mac(&text),
        Ok(None) => return Err(missing()),
        Err(error) => return Err(PortError::Unavailable(format!("looking for the address of device `{name}`: {error}"))),
    };
    let mac = mac.ok_or_else(|| PortError::Unavailable(format!("device `{name}` has no Ethernet address")))?;
    Ok(Device { index, mac, mtu })
}

/// An interface as it is now; `None` if there is none of this name.
///
/// # Errors
/// It cannot be found out.
pub(super) fn state(name: &str) -> io::Result<Option<State>> {
    if name.is_empty() || name.contains('/') {
        return Ok(None);
    }
    let (Some(index), Some(mtu), Some(operational)) =
        (read_sys(name, "ifindex")?, read_sys(name, "mtu")?, read_sys(name, "operstate")?)
    else {
        return Ok(None);
    };
    let Ok(index) = index.parse() else { return Ok(None) };
    let mtu = mtu.parse::<u32>().unwrap_or(1500).min(u32::from(u16::MAX)) as u16;
    // `unknown` is what a driver says that does not report its carrier.
    let is_up = !matches!(operational.as_str(), "down" | "lowerlayerdown" | "notpresent");
    Ok(Some(State { index, mtu, is_up }))
}

/// Device counters of frames that nobody else counts (Linux:
/// Documentation/networking/statistics.rst), as sysfs and as `status` name them. The
/// dropped ones include frames for which an interface's queue in the kernel had no room.
const COUNTERS: [(&str, &str); 5] = [
    ("rx_dropped", "device_rx_dropped"),
    ("rx_missed_errors", "device_rx_missed"),
    ("rx_errors", "device_rx_errors"),
    ("tx_dropped", "device_tx_dropped"),
    ("tx_errors", "device_tx_errors"),
];

/// A device's counters when they were looked at last. A counter that went back is that of a device that begins anew.
pub(super) struct Counters([u64; COUNTERS.len()]);

impl Counters {
    pub(super) fn of(name: &str) -> Counters {
        let read = |file: &str| read_sys(name, &format!("statistics/{file}")).ok().flatten()?.parse().ok();
        Counters(COUNTERS.map(|(file, _)| read(file).unwrap_or(0)))
    }

    /// Adds what has been counted since.
    pub(super) fn take_losses(&mut self, name: &str, into: &mut Losses) {
        let Counters(before) = core::mem::replace(self, Counters::of(name));
        for (((_, name), now), before) in COUNTERS.iter().zip(self.0).zip(before) {
            lose(into, name, now.saturating_sub(before));
        }
    }
}

/// Sends the messages of one batch. A full queue is given a moment; a message that the kernel does not take then, or ever, is dropped and counted. `up`
/// says afterwards whether the device was there, where that is known; `is_down` knows the errors that mean that it is not.
///
/// # Safety
/// Every name and vector of the messages points to something that lives until this returns, and is as long as it says.
pub(super) unsafe fn send_batch(
    fd: BorrowedFd<'_>,
    messages: &mut [libc::mmsghdr],
    up: &mut bool,
    is_down: impl Fn(&io::Error) -> bool,
    drops: &mut DropCounters,
) {
    let (mut sent, mut retries) = (0, 0);
    while sent < messages.len() {
        let rest = &mut messages[sent..];
        // SAFETY: the caller has promised it; the kernel only reads.
        let done = unsafe { libc::sendmmsg(fd.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, libc::MSG_DONTWAIT) };
        if done > 0 {
            sent += done as usize;
            *up = true;
            continue;
        }
        let error = io::Error::last_os_error();
        *up &= !is_down(&error);
        let is_full = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS));
        if is_full && retries < 16 {
            retries += 1;
            std::thread::yield_now();
            continue;
        }
        drops.count(match error.raw_os_error() {
            Some(libc::EMSGSIZE) => DropReason::FrameTooLarge,
            _ if is_full => DropReason::QueueFull,
            _ => DropReason::PortDown,
        });
        sent += 1;
    }
}

/// The MTU of the device that has this address.
///
/// # Errors
/// None has it, or it cannot be found out.
pub(super) fn mtu_at(address: IpAddr) -> io::Result<usize> {
    let name = name_at(address)?;
    let none = || io::Error::from(io::ErrorKind::AddrNotAvailable);
    let mtu = read_sys(&name.ok_or_else(none)?, "mtu")?.ok_or_else(none)?;
    mtu.parse().map_err(|_| none())
}

fn name_at(address: IpAddr) -> io::Result<Option<String>> {
    let mut first: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: the pointer is to a variable of this function.
    if unsafe { libc::getifaddrs(&raw mut first) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut at, mut found) = (first, None);
    while found.is_none() && !at.is_null() {
        // SAFETY: `at` is an entry of the list, which lives until it is freed below.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: an address that is there is at least as long as its family says.
        let is_meant = unsafe {
            match (i32::from((*entry.ifa_addr).sa_family), address) {
                (libc::AF_INET, IpAddr::V4(address)) => {
                    (*entry.ifa_addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr == u32::from(address).to_be()
                }
                (libc::AF_INET6, IpAddr::V6(address)) => {
                    (*entry.ifa_addr.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr == address.octets()
                }
                _ => false,
            }
        };
        if is_meant {
            // SAFETY: the name is a string that ends with 0 and lives as long as the list.
            found = Some(unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned());
        }
    }
    // SAFETY: the list comes from `getifaddrs`, and nothing points into it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// `None` if the device is not there, or goes at this moment.
fn read_sys(name: &str, file: &str) -> io::Result<Option<String>> {
    match std::fs::read_to_string(format!("/sys/class/net/{name}/{file}")) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR)) => Ok(None),
        // What sysfs says of a device that is being deleted.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    Some(mac)
}

/// What a refusal means to a user.
pub(super) fn refused(what: &str, error: &io::Error) -> PortError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => PortError::Permission(format!(
            "{what} needs CAP_NET_RAW, CAP_NET_ADMIN and, for AF_XDP, CAP_BPF: run as root, or give the binary these capabilities"
        )),
        Some(libc::EBUSY) => PortError::Busy(format!(
            "{what}: another program has this device (an XDP program or socket; `ip link show` names the program)"
        )),
        _ => PortError::Unavailable(format!("{what}: {error}")),
    }
}

/// A packet socket. Until it is bound to a protocol it receives nothing.
///
/// # Errors
/// What the kernel says.
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let raw = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Sets a socket option.
///
/// # Errors
/// What the kernel says.
pub(super) fn option<T>(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the pointer is to a value of the length given; the kernel copies it.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast(), size_of::<T>() as u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads a socket option.
///
/// # Errors
/// What the kernel says.
pub(super) fn read_option<T: FromBytes>(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
    let mut value = T::new_zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointers are to a structure, of which any bytes are a value, and its length: the kernel writes no more.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// The device takes every frame (multicast of neighbour discovery, addresses of chains) as long as this socket is in it.
///
/// # Errors
/// What the kernel says.
pub(super) fn join_promiscuous(fd: BorrowedFd<'_>, device: &Device) -> io::Result<()> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut membership: libc::packet_mreq = unsafe { zeroed() };
    membership.mr_ifindex = device.index as i32;
    membership.mr_type = libc::PACKET_MR_PROMISC as u16;
    option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
}

/// Keeps a device promiscuous until the descriptor is closed.
///
/// # Errors
/// What the kernel says.
pub(super) fn promiscuous(device: &Device) -> io::Result<OwnedFd> {
    use rustix::fd::AsFd;
    let socket = packet_socket()?;
    join_promiscuous(socket.as_fd(), device)?;
    Ok(socket)
}
