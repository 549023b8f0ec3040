//! TCP sockets inside namespaces: opened step by step from a chosen port, and removed
//! silently when their host crashes. Packets can be held before an end's kernel sees
//! them.

use crate::TIMEOUT;
use anyhow::{Context, Result, ensure};
use holdfast_lab::{Interrupt, Namespace, until};
use nix::sys::socket::{setsockopt, sockopt::TcpRepair};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, connect_unspec, socket_with, sockopt,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Sends a SYN, and does not wait for the answer.
///
/// # Errors
/// The port is taken, or there is no route to the other end.
pub fn begin(namespace: &Namespace, from: SocketAddr, to: SocketAddr) -> Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let open = || {
        let socket = socket_with(
            family,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &from)?;
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
            Err(error) => Err(error),
        }
    };
    namespace
        .bind(|| open().map_err(Into::into))
        .with_context(|| format!("connecting from {from} to {to}"))
}

/// Waits until the connection is open.
///
/// # Errors
/// The connection is refused, or there is no answer in time.
pub fn opened(stream: &TcpStream, interrupt: &Interrupt) -> Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    until("a connection opens", TIMEOUT, interrupt, || {
        let is_ready = poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&now))
            .is_ok_and(|ready| ready > 0);
        match stream.take_error()? {
            Some(error) => Err(error).context("opening a connection"),
            None => Ok(is_ready.then_some(())),
        }
    })?;
    patient(stream)
}

fn patient(stream: &TcpStream) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream.set_write_timeout(Some(TIMEOUT))?)
}

/// Listens, without waiting for a connection.
///
/// # Errors
/// The port is taken.
pub fn listen(namespace: &Namespace, at: SocketAddr) -> Result<TcpListener> {
    let listener =
        namespace.bind(|| TcpListener::bind(at)).with_context(|| format!("listening at {at}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The next connection to a listener.
///
/// # Errors
/// No connection comes in time.
pub fn accepted(listener: &TcpListener, interrupt: &Interrupt) -> Result<TcpStream> {
    let stream =
        until("a connection is accepted", TIMEOUT, interrupt, || match listener.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("accepting a connection"),
        })?;
    patient(&stream)?;
    Ok(stream)
}

/// Sends data both ways and checks them.
///
/// # Errors
/// The data do not arrive unchanged.
pub fn exchange(one: &TcpStream, other: &TcpStream) -> Result<()> {
    for (mut from, mut to) in [(one, other), (other, one)] {
        let (sent, mut came) = (*b"whatever happens", [0; 16]);
        from.write_all(&sent).context("sending data")?;
        to.read_exact(&mut came).context("waiting for data")?;
        ensure!(came == sent, "{came:?} came instead of {sent:?}");
    }
    Ok(())
}

/// Waits until the other side resets the connection.
///
/// # Errors
/// The connection is not reset in time.
pub fn is_reset(mut stream: &TcpStream) -> Result<()> {
    match stream.read(&mut [0; 16]) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        other => anyhow::bail!("the connection is not reset: {other:?}"),
    }
}

/// Crashes the host of this socket: its kernel forgets the connection, and sends no
/// segment.
///
/// # Errors
/// The kernel does not allow it.
pub fn crash(stream: TcpStream) -> Result<()> {
    // A socket under repair is disconnected without a FIN or RST, at once, even if it is
    // shared with another process.
    setsockopt(&stream, TcpRepair, &1).context("a socket under repair")?;
    connect_unspec(&stream).context("disconnecting a socket")
}

/// Packets that reach a namespace and are hidden from its kernel.
#[derive(Debug)]
pub struct Held {
    namespace: Namespace,
    table: String,
}

impl Held {
    /// Holds the packets that this matches, in the words of `nft`: `tcp dport 80`. The
    /// words also name the table: no other `Held` matches the same.
    ///
    /// # Errors
    /// `nft` refuses.
    pub fn new(namespace: &Namespace, matches: &str) -> Result<Held> {
        let table = matches.replace(' ', "_");
        let chain = format!("chain inet {table} in");
        let hook = "{ type filter hook prerouting priority -300 ; }";
        namespace.run(&format!("nft add table inet {table} ; add {chain} {hook} ; add rule inet {table} in {matches} drop"))?;
        Ok(Held { namespace: namespace.clone(), table })
    }

    /// Lets the kernel see packets again.
    ///
    /// # Errors
    /// `nft` refuses.
    pub fn release(self) -> Result<()> {
        self.namespace.run(&format!("nft delete table inet {}", self.table)).map(drop)
    }
}
