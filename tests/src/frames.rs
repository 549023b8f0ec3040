//! Raw frames: a sender and a listener on a device, good frames to start from, and ways
//! to damage them.

use crate::conversation::flags::{ACK, FIN, RST, SYN};
use anyhow::{Context, Result};
use etherparse::{
    NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TcpOptionElement, TransportSlice,
};
use holdfast_lab::Namespace;
use nix::errno::Errno;
use nix::sys::socket::sockopt::RcvBufForce;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, sendto,
    setsockopt, socket,
};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

/// Puts frames on the wire of a device exactly as they are.
#[derive(Debug)]
pub struct Sender {
    socket: OwnedFd,
    device: LinkAddr,
}

impl Sender {
    /// Opens a sender on `device` inside `namespace`.
    pub fn open(namespace: &Namespace, device: &str) -> Result<Sender> {
        namespace.enter(|| {
            let socket =
                socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
            Ok(Sender { socket, device: link(device)? })
        })?
    }

    /// Sends a frame. The kernel refuses a frame that is shorter than an Ethernet header
    /// or longer than the MTU; this is an error.
    pub fn send(&self, frame: &[u8]) -> nix::Result<()> {
        sendto(self.socket.as_raw_fd(), frame, &self.device, MsgFlags::empty()).map(drop)
    }
}

/// The link address of an interface: it contains the index, which is all that a raw
/// socket uses.
fn link(device: &str) -> Result<LinkAddr> {
    nix::ifaddrs::getifaddrs()?
        .filter(|entry| entry.interface_name == device)
        .find_map(|entry| entry.address.and_then(|address| address.as_link_addr().copied()))
        .with_context(|| format!("{device} has no link address"))
}

/// Sees the frames that come in and go out by a device, if it is read often enough; at
/// first also some frames of other devices.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Opens a listener on `device` inside `namespace`.
    pub fn open(namespace: &Namespace, device: &str) -> Result<Listener> {
        namespace.enter(|| {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
            setsockopt(&socket, RcvBufForce, &(16 << 20))?;
            bind(socket.as_raw_fd(), &link(device)?)?;
            Ok(Listener(socket))
        })?
    }

    /// The next received frame.
    pub fn receive(&self) -> nix::Result<Option<Vec<u8>>> {
        let mut frame = vec![0; 1 << 16];
        match recv(self.0.as_raw_fd(), &mut frame, MsgFlags::empty()) {
            Ok(len) => {
                frame.truncate(len);
                Ok(Some(frame))
            }
            Err(Errno::EAGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Sender and receiver of a frame.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    /// Source MAC address.
    pub from_mac: [u8; 6],
    /// Destination MAC address.
    pub to_mac: [u8; 6],
    /// Source address and port.
    pub from: (Ipv4Addr, u16),
    /// Destination address and port.
    pub to: (Ipv4Addr, u16),
}

impl Ends {
    /// A UDP datagram with good checksums.
    pub fn udp(&self, payload: &[u8]) -> Vec<u8> {
        let builder = etherparse::PacketBuilder::ethernet2(self.from_mac, self.to_mac)
            .ipv4(self.from.0.octets(), self.to.0.octets(), 64)
            .udp(self.from.1, self.to.1);
        let mut frame = Vec::with_capacity(builder.size(payload.len()));
        builder.write(&mut frame, payload).expect("a small datagram has lengths that fit");
        frame
    }

    /// A TCP segment with good checksums.
    pub fn segment(&self, segment: &Segment, payload: &[u8]) -> Vec<u8> {
        let mut header = TcpHeader::new(self.from.1, self.to.1, segment.sequence, 64_000);
        header.acknowledgment_number = segment.acknowledgement;
        let has = |flag: u8| segment.flags & flag != 0;
        (header.fin, header.syn, header.rst, header.ack) = (has(FIN), has(SYN), has(RST), has(ACK));
        if let Some(time) = segment.time {
            let options = [
                TcpOptionElement::Noop,
                TcpOptionElement::Noop,
                TcpOptionElement::Timestamp(time, 0),
            ];
            header.set_options(&options).expect("twelve bytes of options");
        }
        let builder = PacketBuilder::ethernet2(self.from_mac, self.to_mac)
            .ipv4(self.from.0.octets(), self.to.0.octets(), 64)
            .tcp_header(header);
        let mut frame = Vec::with_capacity(builder.size(payload.len()));
        builder.write(&mut frame, payload).expect("a small segment has lengths that fit");
        frame
    }

    /// A TCP SYN with good checksums.
    pub fn syn(&self) -> Vec<u8> {
        let builder = etherparse::PacketBuilder::ethernet2(self.from_mac, self.to_mac)
            .ipv4(self.from.0.octets(), self.to.0.octets(), 64)
            .tcp(self.from.1, self.to.1, 1, 64_000)
            .syn();
        let mut frame = Vec::with_capacity(builder.size(0));
        builder.write(&mut frame, &[]).expect("a segment without payload has lengths that fit");
        frame
    }
}

/// The fields of a TCP segment that tests use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Segment {
    /// Flags, as in [`flags`](crate::conversation::flags).
    pub flags: u8,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// The sender's time stamp, if there is one.
    pub time: Option<u32>,
    /// Bytes of data.
    pub len: u32,
}

/// An address and a port.
pub type End = (Ipv4Addr, u16);

/// Source, destination and the rest of a TCP segment over IPv4.
pub fn segment(frame: &[u8]) -> Option<(End, End, Segment)> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) = (packet.net, packet.transport)
    else {
        return None;
    };
    let flags = [(FIN, tcp.fin()), (SYN, tcp.syn()), (RST, tcp.rst()), (ACK, tcp.ack())];
    let segment = Segment {
        flags: flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag).sum(),
        sequence: tcp.sequence_number(),
        acknowledgement: tcp.acknowledgment_number(),
        time: tcp.options_iterator().find_map(|option| match option {
            Ok(TcpOptionElement::Timestamp(time, _)) => Some(time),
            _ => None,
        }),
        len: tcp.payload().len() as u32,
    };
    let header = ip.header();
    Some((
        (header.source_addr(), tcp.source_port()),
        (header.destination_addr(), tcp.destination_port()),
        segment,
    ))
}

/// Damaged frames: each good frame cut at every byte, with every byte of its headers
/// changed, and noise. The same input gives the same frames.
pub fn garbage(good: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut random = 0x5eed_5eed_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut frames = Vec::new();
    for frame in good {
        frames.extend((14..frame.len()).map(|length| frame[..length].to_vec()));
        for index in 12..frame.len().min(64) {
            for change in [0x01, 0x80, 0xff] {
                let mut changed = frame.clone();
                changed[index] ^= change;
                frames.push(changed);
            }
        }
        for _ in 0..500 {
            // A real Ethernet header, followed by noise: the parsers begin behind it.
            let mut noise = frame[..14].to_vec();
            let length = next() % 1400;
            noise.extend((0..length).map(|_| next() as u8));
            frames.push(noise);
        }
        // An IPv4 header with every combination of version and header length.
        for first in 0..=255_u8 {
            let mut changed = frame.clone();
            changed[14] = first;
            frames.push(changed);
        }
    }
    for ether_type in
        [0x0800_u16, 0x86dd, 0x0806, 0x8100, 0x88a8, 0x894f, 0x88b6, 0x88cc, 0x0000, 0x05dc, 0xffff]
    {
        for length in [0, 1, 7, 19, 39, 64, 1000] {
            let mut frame = good[0][..12].to_vec();
            frame.extend(ether_type.to_be_bytes());
            frame.extend((0..length).map(|_| next() as u8));
            frames.push(frame);
        }
    }
    frames
}
