//! Ports, by which packets come in and go out.

mod afpacket;
mod afxdp;
mod device;
mod dpdk;
mod linux;
mod logical;
mod losses;
mod memory;
mod pcap;
mod segments;
mod udp;

pub use afpacket::AfPacket;
pub use afxdp::AfXdp;
pub use dpdk::{Dpdk, free_huge_pages};
pub use logical::{Place, Ports};
pub use losses::{Loss, Losses};
pub use memory::{MemoryLink, MemoryPort};
pub use pcap::Pcap;
pub use udp::Udp;

use holdfast_protection::Released;
use holdfast_wire::header::Mac;
use holdfast_wire::{DropCounters, NodeId, Packet, PacketPool};
use linux::{Linux, Wanted};
use rustix::fd::BorrowedFd;

/// The reason why a port cannot be opened, with the remedy.
#[derive(Debug)]
pub enum PortError {
    /// The device does not exist, or is not usable.
    Unavailable(String),
    /// Another program has the device.
    Busy(String),
    /// The process lacks a privilege.
    Permission(String),
}

impl core::fmt::Display for PortError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            PortError::Unavailable(text) | PortError::Busy(text) | PortError::Permission(text) => {
                f.write_str(text)
            }
        }
    }
}

impl std::error::Error for PortError {}

/// The result of a look at a port's device.
#[derive(Debug)]
pub enum Look {
    /// The device is there, or gone, as before.
    Same,
    /// The device has gone. The port drops frames until it is back.
    Gone,
    /// The device is back, or another one of its name is in its place; the port uses it.
    Back,
    /// The device is back and cannot be used for this reason, which is reported once.
    /// Every further look tries again.
    Refused(PortError),
}

/// A port, which transmits only released packets.
pub trait Port: Send {
    /// The name, for operators.
    fn name(&self) -> &str;
    /// The driver: `afxdp`, `afpacket`, …
    fn driver(&self) -> &'static str;
    /// The MAC address.
    fn mac(&self) -> Mac;
    /// Largest IP packet, bytes.
    fn mtu(&self) -> u16;
    /// False once the device is down or gone.
    fn is_up(&self) -> bool;
    /// Looks at the device: updates [`Port::mtu`] and [`Port::is_up`], and opens a device
    /// again that went and came back. Cheap, but not for every packet. A port without a
    /// device has nothing to look at.
    fn look(&mut self) -> Look {
        Look::Same
    }
    /// Takes up to `max` received frames.
    fn receive(&mut self, max: usize, pool: &mut dyn PacketPool, into: &mut Vec<Packet>);
    /// Sends frames; all buffers return to the pool, and unsent frames are counted.
    fn transmit(&mut self, frames: &mut Vec<Released<Packet>>, pool: &mut dyn PacketPool);
    /// Readable when a frame has come; none for a port that must be polled.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;
    /// The longest sleep between two looks for frames, ns, for a port without a
    /// descriptor.
    fn poll_interval(&self) -> Option<u64> {
        None
    }
    /// Notes the host of a node of the fabric, counted from 0, or that it is unknown.
    /// Only for a port that must know: an Ethernet needs no places.
    fn place(&mut self, node: NodeId, host: Option<u16>) {
        let _ = (node, host);
    }
    /// Drops by reason.
    fn drops(&self) -> &DropCounters;
    /// Adds the losses of kernel and device since the last call: frames that never
    /// reached the port, and frames lost after it sent them. Cheap, but not for every
    /// packet.
    fn take_losses(&mut self, into: &mut Losses) {
        let _ = into;
    }
}

/// Beginnings that a `device` may have, for messages.
pub const DRIVERS: &str = "`afxdp:NAME`, `afpacket:NAME`, `dpdk:DEVICE`, `pcap:IN,OUT`, or a Linux interface's name alone";

/// Opens the port that a configuration's `device` names.
///
/// A name alone is a Linux interface: AF_XDP if its driver supports it, otherwise
/// AF_PACKET. A driver in front (`afxdp:eth0`, `afpacket:eth0`) is used or the opening
/// fails.
///
/// # Errors
/// See [`PortError`].
pub fn open(device: &str) -> Result<Box<dyn Port>, PortError> {
    open_for(device, false)
}

/// As [`open`]. With `has_vlans` the port gives received frames with all of their tags:
/// AF_XDP needs a device that leaves them on.
///
/// # Errors
/// See [`PortError`].
pub fn open_for(device: &str, has_vlans: bool) -> Result<Box<dyn Port>, PortError> {
    let Some((driver, name)) = device.split_once(':') else {
        return Ok(Box::new(Linux::open(Wanted::Any, has_vlans, device)?));
    };
    match driver {
        "afxdp" => Ok(Box::new(Linux::open(Wanted::Xdp, has_vlans, name)?)),
        "afpacket" => Ok(Box::new(Linux::open(Wanted::Packet, has_vlans, name)?)),
        "dpdk" => Ok(Box::new(Dpdk::open(name)?)),
        "pcap" => Ok(Box::new(Pcap::open(name)?)),
        _ => Err(PortError::Unavailable(format!("there is no port driver `{driver}`: {DRIVERS}"))),
    }
}
