//! Ports: where packets come in and go out.

mod afpacket;
mod afxdp;
mod device;
mod dpdk;
mod linux;
mod losses;
mod memory;
mod pcap;
mod segments;
mod udp;

pub use afpacket::AfPacket;
pub use afxdp::AfXdp;
pub use dpdk::{Dpdk, free_huge_pages};
pub use losses::{Loss, Losses};
pub use memory::{MemoryLink, MemoryPort};
pub use pcap::Pcap;
pub use udp::Udp;

use holdfast_node::address::NodeId;
use holdfast_protection::Released;
use holdfast_wire::header::Mac;
use holdfast_wire::{DropCounters, Packet, PacketPool};
use linux::{Linux, Wanted};
use rustix::fd::BorrowedFd;

/// Why a port cannot be opened, with the remedy.
#[derive(Debug)]
pub enum PortError {
    /// There is no such device, or it is not usable.
    Unavailable(String),
    /// Another program has it.
    Busy(String),
    /// The process lacks a privilege.
    Permission(String),
}

impl core::fmt::Display for PortError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            PortError::Unavailable(text) | PortError::Busy(text) | PortError::Permission(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for PortError {}

/// What a look at a port's device has found.
#[derive(Debug)]
pub enum Look {
    /// It is there, or gone, as before.
    Same,
    /// It is gone. The port drops what it is given until the device is there again.
    Gone,
    /// It is there again, or another one of its name is in its place; the port uses it.
    Back,
    /// It is there again and cannot be used for this reason, which is said once. Every further look tries again.
    Refused(PortError),
}

/// A port. It transmits only what was released.
pub trait Port: Send {
    /// The name, for people.
    fn name(&self) -> &str;
    /// How it reaches the device: `afxdp`, `afpacket`, …
    fn driver(&self) -> &'static str;
    /// Its MAC address.
    fn mac(&self) -> Mac;
    /// Largest IP packet, bytes.
    fn mtu(&self) -> u16;
    /// False once the device is down or gone.
    fn is_up(&self) -> bool;
    /// Looks at its device: [`Port::mtu`] and [`Port::is_up`] are as of now; a device that went and came back is opened again. Cheap, but not for
    /// every packet. A port without a device has nothing to look at.
    fn look(&mut self) -> Look {
        Look::Same
    }
    /// Takes up to `max` frames that have come.
    fn receive(&mut self, max: usize, pool: &mut dyn PacketPool, into: &mut Vec<Packet>);
    /// Sends frames; all buffers return to the pool, those that could not be sent are counted.
    fn transmit(&mut self, frames: &mut Vec<Released<Packet>>, pool: &mut dyn PacketPool);
    /// Readable when a frame has come.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;
    /// How long one may sleep, at most, before looking for frames again, ns: for a port that has nothing to wait for.
    fn poll_interval(&self) -> Option<u64> {
        None
    }
    /// A node of the fabric is on this host, counted from 0, or nobody knows where. Only for a port that must know: an Ethernet finds its own ways.
    fn place(&mut self, node: NodeId, host: Option<u16>) {
        let _ = (node, host);
    }
    /// Drops by reason.
    fn drops(&self) -> &DropCounters;
    /// Adds what the kernel and the device have lost since it was asked last: frames that came and that the port never had, and frames that it gave away. Cheap, but
    /// not for every packet.
    fn take_losses(&mut self, into: &mut Losses) {
        let _ = into;
    }
}

/// What a `device` may begin with, for messages.
pub const DRIVERS: &str = "`afxdp:NAME`, `afpacket:NAME`, `dpdk:DEVICE`, `pcap:IN,OUT`, or a Linux interface's name alone";

/// Opens the port that a configuration's `device` names.
///
/// A name alone is a Linux interface: AF_XDP if its driver can, otherwise AF_PACKET. With a driver in front (`afxdp:eth0`, `afpacket:eth0`) there
/// is no other way.
///
/// # Errors
/// See [`PortError`].
pub fn open(device: &str) -> Result<Box<dyn Port>, PortError> {
    let Some((driver, name)) = device.split_once(':') else {
        return Ok(Box::new(Linux::open(Wanted::Any, device)?));
    };
    match driver {
        "afxdp" => Ok(Box::new(Linux::open(Wanted::Xdp, name)?)),
        "afpacket" => Ok(Box::new(Linux::open(Wanted::Packet, name)?)),
        "dpdk" => Ok(Box::new(Dpdk::open(name)?)),
        "pcap" => Ok(Box::new(Pcap::open(name)?)),
        _ => Err(PortError::Unavailable(format!("there is no port driver `{driver}`: {DRIVERS}"))),
    }
}
