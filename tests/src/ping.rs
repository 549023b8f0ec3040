//! ICMP echo requests of many identifiers from one raw socket: flows that end after a
//! minute of silence.

use anyhow::{Context, Result};
use etherparse::{IcmpEchoHeader, Icmpv4Header, Icmpv4Slice, Icmpv4Type, Ipv4Slice};
use holdfast_lab::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, ipproto, recv, sendto,
    socket_with,
};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const PAYLOAD: &[u8] = b"holdfast";

/// A sender of echo requests to one host.
#[derive(Debug)]
pub struct Ping {
    socket: OwnedFd,
    to: Ipv4Addr,
    sequence: u16,
}

impl Ping {
    /// A sender in this namespace to this host.
    ///
    /// # Errors
    /// A raw socket cannot be opened.
    pub fn new(namespace: &Namespace, to: Ipv4Addr) -> Result<Ping> {
        Ping::from(namespace, Ipv4Addr::UNSPECIFIED, to)
    }

    /// Like `new`, from this address.
    ///
    /// # Errors
    /// A raw socket cannot be opened, or the address does not exist.
    pub fn from(namespace: &Namespace, own: Ipv4Addr, to: Ipv4Addr) -> Result<Ping> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let open = || {
            let socket =
                socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP))?;
            bind(&socket, &SocketAddr::from((own, 0))).map(|()| socket)
        };
        Ok(Ping { socket: namespace.enter(open)?.context("a raw socket")?, to, sequence: 0 })
    }

    /// Sends a request with each of these identifiers. Returns the identifiers that were
    /// answered in this time.
    ///
    /// # Errors
    /// The socket has failed.
    pub fn ask(
        &mut self,
        identifiers: impl IntoIterator<Item = u16>,
        within: Duration,
    ) -> Result<BTreeSet<u16>> {
        self.sequence += 1;
        let mut awaited = BTreeSet::new();
        for id in identifiers {
            let kind = Icmpv4Type::EchoRequest(IcmpEchoHeader { id, seq: self.sequence });
            let packet =
                [&Icmpv4Header::with_checksum(kind, PAYLOAD).to_bytes()[..], PAYLOAD].concat();
            match sendto(&self.socket, &packet, SendFlags::empty(), &SocketAddr::from((self.to, 0)))
            {
                // The kernel waits for the gateway's address and has no room meanwhile:
                // such a request counts as not answered.
                Ok(_) | Err(Errno::NOBUFS | Errno::AGAIN) => {}
                Err(error) => return Err(error).context("sending an echo request"),
            }
            awaited.insert(id);
        }
        let until = Instant::now() + within;
        let mut answered = BTreeSet::new();
        let mut buffer = [0; 1500];
        while answered.len() < awaited.len() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let left = Timespec {
                tv_sec: left.as_secs().try_into()?,
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for echo replies"),
            }
            match recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((_, length)) => answered.extend(
                    self.answer(&buffer[..length.min(1500)]).filter(|id| awaited.contains(id)),
                ),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error).context("receiving echo replies"),
            }
        }
        Ok(answered)
    }

    /// The identifier, if this is a reply of the latest round.
    fn answer(&self, packet: &[u8]) -> Option<u16> {
        let ip = Ipv4Slice::from_slice(packet).ok()?;
        let icmp = Icmpv4Slice::from_slice(ip.payload().payload).ok()?;
        match icmp.icmp_type() {
            Icmpv4Type::EchoReply(echo)
                if echo.seq == self.sequence && ip.header().source_addr() == self.to =>
            {
                Some(echo.id)
            }
            _ => None,
        }
    }
}
