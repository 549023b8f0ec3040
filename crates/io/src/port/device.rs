//! What the drivers of Linux interfaces have in common: finding the device, its addresses, its refusals.

use super::PortError;
use holdfast_wire::header::Mac;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;
use std::mem::zeroed;

/// A Linux interface.
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) mac: Mac,
    pub(super) mtu: u16,
}

/// Looks for an interface by its name.
///
/// # Errors
/// There is none.
pub(super) fn find(name: &str) -> Result<Device, PortError> {
    let missing = || PortError::Unavailable(format!("there is no device `{name}`: `ip link` lists those that are there"));
    if name.is_empty() || name.contains('/') {
        return Err(missing());
    }
    let index: u32 = read_sys(name, "ifindex").and_then(|text| text.parse().ok()).ok_or_else(missing)?;
    let mac = read_sys(name, "address").and_then(|text| parse_mac(&text)).ok_or_else(missing)?;
    let mtu = read_sys(name, "mtu").and_then(|text| text.parse::<u32>().ok()).unwrap_or(1500).min(u32::from(u16::MAX)) as u16;
    Ok(Device { index, mac, mtu })
}

fn read_sys(name: &str, file: &str) -> Option<String> {
    std::fs::read_to_string(format!("/sys/class/net/{name}/{file}")).ok().map(|text| text.trim().to_owned())
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
