//! The hosts' network over UDP, if they have no Ethernet of their own: each frame in a
//! datagram between the hosts' configured addresses.
//!
//! A frame for a node on a known host goes there; all others go to every host, as on an
//! Ethernet. Places of nodes come from the hosts' authenticated messages. The port learns
//! nothing from datagrams, because an address is easily forged. A datagram from an
//! address of no host is dropped; the receiver that opens its content decides whether one
//! from a host's address is genuine. Datagrams are not fragmented: one too long for the
//! path is dropped and counted.

use super::{Port, PortError, device};
use holdfast_protection::Released;
use holdfast_wire::header::Mac;
use holdfast_wire::{DropCounters, DropReason, HEADROOM, NodeId, Packet, PacketPool};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::io::{self, ErrorKind};
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Datagrams per system call.
const BATCH: usize = 32;
const ETHERNET_LEN: usize = 14;
const UDP_LEN: usize = 8;

/// A socket address in the kernel's form.
#[derive(Clone, Copy)]
#[repr(C)]
union Name {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    const EMPTY: Name = Name {
        // SAFETY: all zero is a valid value of this plain structure, and it is the
        // largest of the union: every byte is set.
        v6: unsafe { zeroed() },
    };

    fn of(address: SocketAddr) -> (Name, u32) {
        let mut name = Name::EMPTY;
        match address {
            SocketAddr::V4(address) => {
                name.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (name, size_of::<libc::sockaddr_in>() as u32)
            }
            SocketAddr::V6(address) => {
                name.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                (name, size_of::<libc::sockaddr_in6>() as u32)
            }
        }
    }

    /// Address and port, if the kernel has written one.
    fn read(&self) -> Option<(std::net::IpAddr, u16)> {
        // SAFETY: every byte of a `Name` is set from its beginning on, and every value is
        // valid for these plain numbers, for either structure that the kernel may write.
        unsafe {
            match libc::c_int::from(self.family) {
                libc::AF_INET => {
                    let ip = Ipv4Addr::from(self.v4.sin_addr.s_addr.to_ne_bytes());
                    Some((ip.into(), u16::from_be(self.v4.sin_port)))
                }
                libc::AF_INET6 => {
                    let ip = Ipv6Addr::from(self.v6.sin6_addr.s6_addr);
                    Some((ip.into(), u16::from_be(self.v6.sin6_port)))
                }
                _ => None,
            }
        }
    }
}

/// A UDP port; see the module.
pub struct Udp {
    name: String,
    socket: UdpSocket,
    mtu: u16,
    up: bool,
    /// The other hosts, by their numbers; `None` for this one.
    hosts: Vec<Option<SocketAddr>>,
    /// The number of each node's host.
    places: Vec<Option<u16>>,
    drops: DropCounters,
    spare: Vec<Packet>,
    received: Vec<Packet>,
}

impl Udp {
    /// Opens a socket at this host's address, among the hosts with these addresses; this
    /// host's number is `own`. `path` is the largest packet of the path to the others,
    /// bytes, IP header included, if that is less than the MTU of this host's device.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn open(addresses: &[SocketAddr], own: u16, path: Option<u16>) -> Result<Udp, PortError> {
        let Some(&local) = addresses.get(usize::from(own)) else {
            return Err(PortError::Unavailable(format!("there is no host {own}")));
        };
        let refused = |error: io::Error| match error.kind() {
            ErrorKind::AddrNotAvailable => PortError::Unavailable(format!(
                "no device of this host has the address {}: `ip address` lists those that are there",
                local.ip()
            )),
            ErrorKind::AddrInUse => PortError::Busy(format!(
                "another program has UDP port {}: `ss -lunp` names it",
                local.port()
            )),
            _ => PortError::Unavailable(format!("UDP at {local}: {error}")),
        };
        let hosts: Vec<_> =
            addresses.iter().map(|address| (*address != local).then_some(*address)).collect();
        let socket = UdpSocket::bind(local).map_err(refused)?;
        socket.set_nonblocking(true).map_err(refused)?;
        let (level, discover) = match local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        };
        // The path's MTU is not discovered: routers' messages are unauthenticated.
        device::option(socket.as_fd(), level, discover, &libc::IP_PMTUDISC_PROBE)
            .map_err(refused)?;
        // Larger buffers if allowed; the default works too, with more loss in bursts.
        let _ = device::option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &(8 << 20));
        let _ = device::option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &(8 << 20));
        let ways: Vec<io::Result<()>> =
            hosts.iter().flatten().map(|peer| find_way(local, *peer)).collect();
        if ways.is_empty() {
            return Err(PortError::Unavailable("there is no other host".to_owned()));
        }
        if let Some(error) = ways
            .iter()
            .all(Result::is_err)
            .then(|| ways.into_iter().find_map(Result::err))
            .flatten()
        {
            let text = format!(
                "no way leads from {local} to any other host ({error}): `ip route get ADDRESS` shows the ways"
            );
            return Err(PortError::Unavailable(text));
        }
        let device = device::mtu_at(local.ip()).map_err(refused)?;
        let header = if local.is_ipv4() { 20 } else { 40 };
        let mtu = device
            .min(path.unwrap_or(u16::MAX).into())
            .saturating_sub(header + UDP_LEN + ETHERNET_LEN) as u16;
        Ok(Udp {
            name: format!("udp:{local}"),
            socket,
            mtu,
            up: true,
            hosts,
            places: Vec::new(),
            drops: DropCounters::default(),
            spare: Vec::with_capacity(BATCH),
            received: Vec::with_capacity(BATCH),
        })
    }

    /// The host of a frame's destination node, if known.
    #[inline]
    fn place_of(&self, frame: &[u8]) -> Option<u16> {
        let node = NodeId::of_mac(frame.first_chunk::<6>()?)?;
        self.places.get(usize::from(node)).copied().flatten()
    }
}

fn is_down(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENETUNREACH | libc::EHOSTUNREACH))
}

/// Checks that the kernel has a route from one address to another.
fn find_way(from: SocketAddr, to: SocketAddr) -> io::Result<()> {
    UdpSocket::bind(SocketAddr::new(from.ip(), 0))?.connect(to)
}

impl Port for Udp {
    fn name(&self) -> &str {
        &self.name
    }

    fn driver(&self) -> &'static str {
        "udp"
    }

    fn mac(&self) -> Mac {
        // Frames name nodes; the socket has no MAC address.
        [0x02, 0, 0, 0, 0, 0]
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn is_up(&self) -> bool {
        self.up
    }

    fn place(&mut self, node: NodeId, host: Option<u16>) {
        let at = usize::from(node);
        if self.places.len() <= at {
            self.places.resize(at + 1, None);
        }
        self.places[at] =
            host.filter(|host| self.hosts.get(usize::from(*host)).is_some_and(Option::is_some));
    }

    fn receive(&mut self, max: usize, pool: &mut dyn PacketPool, into: &mut Vec<Packet>) {
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
        let mut names = [Name::EMPTY; BATCH];
        // SAFETY: all zero is a valid value of these plain structures.
        let (mut vectors, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        for (at, packet) in self.spare.iter_mut().take(want).enumerate() {
            let room = &mut packet.buffer_mut()[HEADROOM..];
            vectors[at] = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            messages[at].msg_hdr.msg_name = (&raw mut names[at]).cast();
            messages[at].msg_hdr.msg_namelen = size_of::<Name>() as u32;
            messages[at].msg_hdr.msg_iov = &raw mut vectors[at];
            messages[at].msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: every vector points into a buffer of its own, every name to one of
        // `names`; all of them outlive the call, and the kernel writes no more than their
        // lengths.
        let got = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                want as u32,
                libc::MSG_DONTWAIT,
                core::ptr::null_mut(),
            )
        };
        if got < 0 {
            self.up &= !is_down(&io::Error::last_os_error());
            return;
        }
        self.up = true;
        let mut received = core::mem::take(&mut self.received);
        received.extend(self.spare.drain(..got as usize));
        for ((mut packet, message), name) in received.drain(..).zip(&messages).zip(&names) {
            let is_known = name.read().is_some_and(|(ip, port)| {
                self.hosts.iter().flatten().any(|host| host.ip() == ip && host.port() == port)
            });
            let is_whole = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let reason = match (is_known, is_whole) {
                (false, _) => Some(DropReason::UnknownHost),
                (true, true) if packet.set_range(HEADROOM, message.msg_len as usize) => None,
                (true, _) => Some(DropReason::FrameTooLarge),
            };
            match reason {
                None => into.push(packet),
                Some(reason) => {
                    self.drops.count(reason);
                    pool.put(packet);
                }
            }
        }
        self.received = received;
    }

    fn transmit(&mut self, frames: &mut Vec<Released<Packet>>, pool: &mut dyn PacketPool) {
        let mut names = [Name::EMPTY; BATCH];
        // SAFETY: all zero is a valid value of these plain structures.
        let (mut vectors, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        let mut filled = 0;
        for frame in frames.iter() {
            let bytes = frame.get().bytes();
            let place = self.place_of(bytes);
            for at in 0..self.hosts.len() {
                let Some(host) =
                    self.hosts[at].filter(|_| place.is_none_or(|place| usize::from(place) == at))
                else {
                    continue;
                };
                let (name, len) = Name::of(host);
                names[filled] = name;
                vectors[filled] = libc::iovec {
                    iov_base: bytes.as_ptr().cast_mut().cast(),
                    iov_len: bytes.len(),
                };
                messages[filled].msg_hdr.msg_name = (&raw mut names[filled]).cast();
                messages[filled].msg_hdr.msg_namelen = len;
                messages[filled].msg_hdr.msg_iov = &raw mut vectors[filled];
                messages[filled].msg_hdr.msg_iovlen = 1;
                filled += 1;
                if filled == BATCH {
                    // SAFETY: every name is one of `names`, every vector the bytes of one
                    // of `frames`; both outlive the call.
                    unsafe {
                        device::send_batch(
                            self.socket.as_fd(),
                            &mut messages,
                            &mut self.up,
                            is_down,
                            &mut self.drops,
                        )
                    };
                    filled = 0;
                }
            }
        }
        // SAFETY: as above.
        unsafe {
            device::send_batch(
                self.socket.as_fd(),
                &mut messages[..filled],
                &mut self.up,
                is_down,
                &mut self.drops,
            )
        };
        for frame in frames.drain(..) {
            pool.put(frame.into_inner());
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn drops(&self) -> &DropCounters {
        &self.drops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::{MemoryPool, NodeId};

    /// Addresses of hosts on this machine, each with a free port.
    fn addresses(ip: &str, count: usize) -> Vec<SocketAddr> {
        let sockets: Vec<UdpSocket> =
            (0..count).map(|_| UdpSocket::bind((ip, 0)).unwrap()).collect();
        sockets.iter().map(|socket| socket.local_addr().unwrap()).collect()
    }

    fn ports(ip: &str, count: u16) -> (Vec<SocketAddr>, Vec<Udp>) {
        let addresses = addresses(ip, count.into());
        let ports = (0..count).map(|own| Udp::open(&addresses, own, None).unwrap()).collect();
        (addresses, ports)
    }

    fn send(port: &mut Udp, pool: &mut MemoryPool, frames: &[Vec<u8>]) {
        let packet = |frame: &Vec<u8>| {
            let mut packet = pool.take().unwrap();
            assert!(packet.copy_from(frame));
            Released::inside(packet)
        };
        let mut released: Vec<_> = frames.iter().map(packet).collect();
        port.transmit(&mut released, pool);
        assert!(released.is_empty());
    }

    /// All received frames. Loopback delivers before sending returns.
    fn received(port: &mut Udp, pool: &mut MemoryPool) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        loop {
            let before = packets.len();
            port.receive(BATCH, pool, &mut packets);
            if packets.len() == before {
                break;
            }
        }
        packets
            .into_iter()
            .map(|packet| {
                let bytes = packet.bytes().to_vec();
                pool.put(packet);
                bytes
            })
            .collect()
    }

    fn frame(to: NodeId, number: u8) -> Vec<u8> {
        [&to.mac()[..], &[2, 0, 0, 0, 0, 1, 0x88, 0xb6, number]].concat()
    }

    /// A frame for an unknown node goes to every other host. Once the node is known, the
    /// frame goes there only, and again to all when the node has left.
    #[test]
    fn frames_go_where_their_node_is() {
        for ip in ["127.0.0.1", "::1"] {
            let (_, mut ports) = ports(ip, 3);
            let mut pool = MemoryPool::new(256);
            let expect = |ports: &mut Vec<Udp>, pool: &mut MemoryPool, number: u8, at: &[usize]| {
                send(&mut ports[0], pool, &[frame(NodeId::new(16), number)]);
                for (host, port) in ports.iter_mut().enumerate() {
                    let wanted = if at.contains(&host) {
                        vec![frame(NodeId::new(16), number)]
                    } else {
                        Vec::new()
                    };
                    assert_eq!(received(port, pool), wanted, "host {host}, {number}");
                }
            };
            expect(&mut ports, &mut pool, 0, &[1, 2]);
            ports[0].place(NodeId::new(16), Some(2));
            expect(&mut ports, &mut pool, 1, &[2]);
            ports[0].place(NodeId::new(16), Some(1));
            expect(&mut ports, &mut pool, 2, &[1]);
            for nowhere in [None, Some(0), Some(9)] {
                ports[0].place(NodeId::new(16), nowhere);
                expect(&mut ports, &mut pool, 3, &[1, 2]);
            }
            drop(ports);
        }
    }

    /// More frames at once than a system call takes, in their order; every buffer comes
    /// back.
    #[test]
    fn a_burst_arrives_whole_and_in_order() {
        let (_, mut ports) = ports("127.0.0.1", 3);
        let mut pool = MemoryPool::new(256);
        let frames: Vec<_> = (0..100).map(|number| frame(NodeId::new(17), number)).collect();
        send(&mut ports[0], &mut pool, &frames);
        for port in &mut ports[1..] {
            assert_eq!(received(port, &mut pool), frames);
        }
        for port in ports {
            port.spare.into_iter().for_each(|packet| pool.put(packet));
        }
        assert_eq!(pool.free(), pool.total());
    }

    /// A datagram from an address that no host has, and one from a host's address but
    /// another port, are counted and not taken.
    #[test]
    fn strangers_are_not_heard() {
        let (addresses, mut ports) = ports("127.0.0.1", 2);
        let mut pool = MemoryPool::new(64);
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.send_to(&frame(NodeId::new(16), 1), addresses[1]).unwrap();
        let elsewhere = UdpSocket::bind("127.0.0.2:0").unwrap();
        elsewhere.send_to(&frame(NodeId::new(16), 2), addresses[1]).unwrap();
        send(&mut ports[0], &mut pool, &[frame(NodeId::new(16), 3)]);
        assert_eq!(received(&mut ports[1], &mut pool), [frame(NodeId::new(16), 3)]);
        assert_eq!(ports[1].drops().get(DropReason::UnknownHost), 2);
    }

    /// A datagram that is too long for a buffer, and an empty one.
    #[test]
    fn datagrams_of_any_length_are_taken_or_counted() {
        let addresses = addresses("127.0.0.1", 2);
        let mut pool = MemoryPool::new(64);
        let mut port = Udp::open(&addresses, 1, None).unwrap();
        let peer = UdpSocket::bind(addresses[0]).unwrap();
        peer.send_to(&[0; 60_000], addresses[1]).unwrap();
        peer.send_to(&[], addresses[1]).unwrap();
        assert_eq!(received(&mut port, &mut pool), [Vec::<u8>::new()]);
        assert_eq!(port.drops().get(DropReason::FrameTooLarge), 1);
    }

    /// The other hosts do not exist, and an address or a port is not this host's.
    #[test]
    fn an_address_must_be_there_and_free() {
        let addresses = addresses("127.0.0.1", 2);
        let first = Udp::open(&addresses, 0, None).unwrap();
        assert_eq!(
            (first.name(), first.driver()),
            (format!("udp:{}", addresses[0]).as_str(), "udp")
        );
        assert!(first.mtu() > 1500, "the loopback device's, less the headers");
        assert_eq!(Udp::open(&addresses, 1, Some(1400)).unwrap().mtu(), 1400 - 20 - 8 - 14);
        assert!(matches!(Udp::open(&addresses, 0, None), Err(PortError::Busy(_))));
        let nowhere = ["192.0.2.1:7000".parse().unwrap(), addresses[1]];
        match Udp::open(&nowhere, 0, None) {
            Err(PortError::Unavailable(text)) => assert!(text.contains("192.0.2.1"), "{text}"),
            other => panic!("{:?}", other.err()),
        }
    }
}
