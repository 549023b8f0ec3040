//! The common part of drivers of Linux interfaces: finding the device, its addresses, its
//! errors.

use super::losses::lose;
use super::{Loss, Losses, PortError};
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

/// Changeable properties of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    /// The index; another index means another device of the same name.
    pub(super) index: u32,
    pub(super) mtu: u16,
    pub(super) is_up: bool,
}

/// Finds an interface by its name.
///
/// # Errors
/// If there is none, or its properties cannot be read.
pub(super) fn find(name: &str) -> Result<Device, PortError> {
    let missing = || {
        PortError::Unavailable(format!(
            "there is no device `{name}`: `ip link` lists those that are there"
        ))
    };
    let State { index, mtu, .. } = state(name)
        .map_err(|error| PortError::Unavailable(format!("looking for device `{name}`: {error}")))?
        .ok_or_else(missing)?;
    let mac = match read_sys(name, "address") {
        Ok(Some(text)) => parse_mac(&text),
        Ok(None) => return Err(missing()),
        Err(error) => {
            return Err(PortError::Unavailable(format!(
                "looking for the address of device `{name}`: {error}"
            )));
        }
    };
    let mac = mac.ok_or_else(|| {
        PortError::Unavailable(format!("device `{name}` has no Ethernet address"))
    })?;
    Ok(Device { index, mac, mtu })
}

/// The interface's present state; `None` if there is none of this name.
///
/// # Errors
/// If its state cannot be read.
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
    // Drivers that do not report their carrier say `unknown`.
    let is_up = !matches!(operational.as_str(), "down" | "lowerlayerdown" | "notpresent");
    Ok(Some(State { index, mtu, is_up }))
}

/// Device counters of frames that no other counter has (Linux:
/// Documentation/networking/statistics.rst), as sysfs and as `status` name them. The
/// dropped ones include frames for which an interface's queue in the kernel had no room.
const COUNTERS: [(&str, Loss); 5] = [
    ("rx_dropped", Loss::DeviceRxDropped),
    ("rx_missed_errors", Loss::DeviceRxMissed),
    ("rx_errors", Loss::DeviceRxErrors),
    ("tx_dropped", Loss::DeviceTxDropped),
    ("tx_errors", Loss::DeviceTxErrors),
];

/// The index of `rx_dropped` in [`COUNTERS`].
const RX_DROPPED: usize = 0;

/// Drivers that count frames for which an XDP socket had no room as dropped (Linux:
/// `rx_drops` in drivers/net/veth.c, `drops` in drivers/net/virtio_net.c, `tun_xdp_act`
/// in drivers/net/tun.c). Others have a separate counter, or none.
const COUNT_SOCKETS: [&str; 3] = ["veth", "virtio_net", "tun"];

/// A device's counters at the last look.
pub(super) struct Counters {
    seen: [u64; COUNTERS.len()],
    /// See [`COUNT_SOCKETS`].
    counts_sockets: bool,
    /// Frames that sockets have counted and the device has not yet.
    ahead: u64,
}

impl Counters {
    pub(super) fn of(name: &str) -> Counters {
        let counts_sockets =
            driver_of(name).is_some_and(|driver| COUNT_SOCKETS.contains(&driver.as_str()));
        Counters { seen: Counters::read(name), counts_sockets, ahead: 0 }
    }

    fn read(name: &str) -> [u64; COUNTERS.len()] {
        let read =
            |file: &str| read_sys(name, &format!("statistics/{file}")).ok().flatten()?.parse().ok();
        COUNTERS.map(|(file, _)| read(file).unwrap_or(0))
    }

    /// Counts since the last look. A counter that went back is a new device's.
    pub(super) fn look(&mut self, name: &str) -> [u64; COUNTERS.len()] {
        let before = core::mem::replace(&mut self.seen, Counters::read(name));
        core::array::from_fn(|at| self.seen[at].saturating_sub(before[at]))
    }

    /// Adds the counts of [`Counters::look`], without those that the port's XDP sockets
    /// count themselves. The sockets are read after the device; `at_sockets` is their
    /// count since the last time.
    pub(super) fn add(
        &mut self,
        mut found: [u64; COUNTERS.len()],
        at_sockets: u64,
        into: &mut Losses,
    ) {
        if self.counts_sockets {
            let of_sockets = self.ahead + at_sockets;
            let counted = found[RX_DROPPED].min(of_sockets);
            found[RX_DROPPED] -= counted;
            self.ahead = of_sockets - counted;
        }
        for ((_, loss), count) in COUNTERS.into_iter().zip(found) {
            lose(into, loss, count);
        }
    }
}

/// The name of a device's driver, as `ethtool -i` prints it.
fn driver_of(name: &str) -> Option<String> {
    const ETHTOOL_GDRVINFO: u32 = 3;
    // `struct ethtool_drvinfo`: the command, 32 bytes of the driver's name, and the rest.
    let info: [u8; 196] = ethtool(name, ETHTOOL_GDRVINFO)?;
    CStr::from_bytes_until_nul(&info[4..36]).ok()?.to_str().ok().map(str::to_owned)
}

/// True if the device takes VLAN tags off received frames (`ethtool -k`:
/// `rx-vlan-offload`).
pub(super) fn takes_tags_off(name: &str) -> bool {
    const ETHTOOL_GFLAGS: u32 = 0x25;
    const ETH_FLAG_RXVLAN: u32 = 1 << 8;
    // `struct ethtool_value`: the command and the flags.
    let flags = ethtool(name, ETHTOOL_GFLAGS).map(|[_, _, _, _, flags @ ..]: [u8; 8]| flags);
    flags.is_some_and(|flags| u32::from_ne_bytes(flags) & ETH_FLAG_RXVLAN != 0)
}

/// Asks a device's driver by an ethtool command. `N` is the size of the kernel's
/// structure for it, which begins with the command, bytes.
fn ethtool<const N: usize>(name: &str, command: u32) -> Option<[u8; N]> {
    const SIOCETHTOOL: u32 = 0x8946;
    let socket = packet_socket().ok()?;
    let mut info = [0u8; N];
    info[..4].copy_from_slice(&command.to_ne_bytes());
    // SAFETY: all zero is a valid value of this plain structure.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // The last byte stays zero.
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut info).cast();
    // SAFETY: the request names a buffer as long as the kernel's structure, and both
    // outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    (result >= 0).then_some(info)
}

/// Sends the messages of one batch. A full queue gets a moment; a message that the kernel
/// still refuses is dropped and counted. Afterwards `up` tells if the device was there,
/// if known. `is_down` recognises the errors of a missing device.
///
/// # Safety
/// Every name and vector of the messages must point to memory that lives until this
/// returns, of the stated length.
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
        let done = unsafe {
            libc::sendmmsg(fd.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, libc::MSG_DONTWAIT)
        };
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

/// The MTU of the device with this address.
///
/// # Errors
/// If no device has it, or it cannot be read.
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
                    (*entry.ifa_addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr
                        == u32::from(address).to_be()
                }
                (libc::AF_INET6, IpAddr::V6(address)) => {
                    (*entry.ifa_addr.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr
                        == address.octets()
                }
                _ => false,
            }
        };
        if is_meant {
            // SAFETY: the name is a string that ends with 0 and lives as long as the
            // list.
            found = Some(unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned());
        }
    }
    // SAFETY: the list comes from `getifaddrs`, and nothing points into it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Reads a sysfs file; `None` if the device is not there, or goes at this moment.
fn read_sys(name: &str, file: &str) -> io::Result<Option<String>> {
    match std::fs::read_to_string(format!("/sys/class/net/{name}/{file}")) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR)
            ) =>
        {
            Ok(None)
        }
        // sysfs's error for a device that is being deleted.
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

/// The error's meaning for a user.
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

/// A packet socket, which receives nothing until it is bound to a protocol.
///
/// # Errors
/// The kernel's error.
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let raw = unsafe {
        libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Sets a socket option.
///
/// # Errors
/// The kernel's error.
pub(super) fn option<T>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the pointer is to a value of the length given; the kernel copies it.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const *value).cast(),
            size_of::<T>() as u32,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads a socket option.
///
/// # Errors
/// The kernel's error.
pub(super) fn read_option<T: FromBytes>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut value = T::new_zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointers are to a structure, of which any bytes are a value, and its
    // length: the kernel writes no more.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Makes the device take every frame (multicast of neighbour discovery, addresses of
/// chains) while this socket is open.
///
/// # Errors
/// The kernel's error.
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
/// The kernel's error.
pub(super) fn promiscuous(device: &Device) -> io::Result<OwnedFd> {
    use rustix::fd::AsFd;
    let socket = packet_socket()?;
    join_promiscuous(socket.as_fd(), device)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(counts_sockets: bool) -> Counters {
        Counters { seen: [0; COUNTERS.len()], counts_sockets, ahead: 0 }
    }

    /// Counts a device's frames beyond those of the sockets, whichever of the two is the
    /// first to count one.
    #[test]
    fn a_frame_that_a_socket_had_no_room_for_is_counted_once() {
        let mut counters = counters(true);
        let mut told = |dropped: u64, at_sockets: u64| {
            let mut losses = Losses::new();
            counters.add([dropped, 0, 1, 0, 0], at_sockets, &mut losses);
            assert_eq!(losses.get(&Loss::DeviceRxErrors), Some(&1));
            losses.get(&Loss::DeviceRxDropped).copied().unwrap_or(0)
        };
        assert_eq!(told(10, 7), 3);
        assert_eq!(told(0, 5), 0, "the device counts at the end of its burst");
        assert_eq!(told(4, 0), 0);
        assert_eq!(told(3, 1), 1);
        assert_eq!(told(2, 0), 2);
    }

    #[test]
    fn a_driver_that_does_not_count_sockets_counts_other_frames() {
        let (mut counters, mut losses) = (counters(false), Losses::new());
        counters.add([10, 0, 0, 0, 0], 7, &mut losses);
        assert_eq!(losses, Losses::from([(Loss::DeviceRxDropped, 10)]));
    }

    #[test]
    fn a_device_without_a_driver_has_no_name_for_it() {
        assert_eq!(driver_of("there-is-none"), None);
    }
}
