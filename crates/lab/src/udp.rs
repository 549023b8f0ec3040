//! Numbered datagrams: a client counts exactly how many were lost, doubled, reordered or
//! changed on the way to an echo server and back.

use super::namespace::Namespace;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a datagram: magic, flow, sequence number, then a pattern derived from both.
const DATAGRAM_BYTES: usize = 200;
const MAGIC: u32 = 0x4846_5544;
/// The pace of the sender: the datagrams that are due are sent once per tick.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Enlarges the socket's receive buffer, so that a burst that the box held back finds
/// room: the box is measured, not the socket. Only root gets the full size.
///
/// # Errors
/// The kernel refuses.
pub fn make_room(socket: &UdpSocket) -> std::io::Result<()> {
    const ROOM: usize = 32 << 20;
    Ok(rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, ROOM)
        .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(socket, ROOM))?)
}

/// Pins the calling thread to its present processor. The kernel queues sent packets by
/// processor, so packets of a thread that moves may overtake one another.
pub fn stay_here() {
    let mut here = rustix::thread::CpuSet::new();
    here.set(rustix::thread::sched_getcpu());
    // A refusal is harmless: the thread then moves as usual.
    let _ = rustix::thread::sched_setaffinity(None, &here);
}

/// An echo server: sends every datagram back to its sender, until dropped.
#[derive(Debug)]
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Binds `address` inside `namespace`.
    pub fn start(namespace: &Namespace, address: SocketAddr) -> Result<Echo> {
        let socket = namespace
            .bind(|| UdpSocket::bind(address))
            .with_context(|| format!("binding {address}"))?;
        make_room(&socket)?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("udp-echo".into()).spawn(move || {
            stay_here();
            let mut block = [0_u8; 2048];
            while !theirs.load(Ordering::Relaxed) {
                // Errors are time-outs and the ICMP errors of clients that have ended.
                if let Ok((length, from)) = socket.recv_from(&mut block) {
                    let _ = socket.send_to(&block[..length], from);
                }
            }
        })?;
        Ok(Echo { stop, thread: Some(thread) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The datagrams to send.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Address of the echo server.
    pub server: SocketAddr,
    /// Flows (source ports) to spread the datagrams over.
    pub flows: usize,
    /// Datagrams per second, all flows together.
    pub per_second: u64,
}

/// Counts of the datagrams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Datagrams {
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams echoed, each counted once.
    pub returned: u64,
    /// Datagrams sent and not (yet) returned.
    pub lost: u64,
    /// Datagrams returned more than once.
    pub doubled: u64,
    /// Datagrams returned after a later one of the same flow.
    pub reordered: u64,
    /// Datagrams returned with other bytes.
    pub changed: u64,
    /// The longest time for which a flow, sending at its pace, got no datagram back, µs.
    pub longest_silence_us: u64,
    /// Flows that got a datagram back at the end.
    pub flows_alive: usize,
}

/// A running sender; ends when dropped.
#[derive(Debug)]
pub struct Stream {
    stop: Arc<AtomicBool>,
    counts: Arc<Mutex<Datagrams>>,
    thread: Option<JoinHandle<Datagrams>>,
}

/// A socket on a port that no earlier socket of this process had, as long as unused ports
/// remain. A port that the kernel chooses may be that of an earlier stream, and a box in
/// between would see one flow.
fn bind_fresh() -> std::io::Result<UdpSocket> {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    // Below the ports that the kernel chooses.
    const PORTS: std::ops::Range<u16> = 10_000..32_000;
    let mut last = std::io::Error::from(ErrorKind::AddrInUse);
    for _ in PORTS {
        let port = PORTS.start + GIVEN.fetch_add(1, Ordering::Relaxed) % PORTS.len() as u16;
        match UdpSocket::bind(("0.0.0.0", port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => last = error,
            result => return result,
        }
    }
    Err(last)
}

impl Stream {
    /// Starts sending from inside `namespace`.
    pub fn start(namespace: &Namespace, plan: Plan) -> Result<Stream> {
        let sockets = namespace.enter(|| {
            let open = || {
                let socket = bind_fresh()?;
                make_room(&socket)?;
                socket.connect(plan.server)?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            };
            (0..plan.flows).map(|_| open()).collect::<std::io::Result<Vec<UdpSocket>>>()
        })?;
        let sockets = sockets.context("opening the flows")?;
        let (stop, counts) =
            (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Datagrams::default())));
        let mut sender = Sender::new(sockets, plan.per_second);
        let (their_stop, their_counts) = (Arc::clone(&stop), Arc::clone(&counts));
        let thread = std::thread::Builder::new().name("udp-stream".into()).spawn(move || {
            stay_here();
            sender.run(&their_stop, &their_counts)
        })?;
        Ok(Stream { stop, counts, thread: Some(thread) })
    }

    /// The counts so far; a datagram on its way counts as lost until it returns.
    pub fn datagrams(&self) -> Datagrams {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops sending, waits for late datagrams, and counts.
    pub fn finish(mut self) -> Datagrams {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .take()
            .map(|thread| thread.join().expect("the sender does not panic"))
            .unwrap_or_default()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Sender {
    flows: Vec<Flow>,
    per_second: u64,
    counts: Datagrams,
}

struct Flow {
    socket: UdpSocket,
    next: u64,
    highest: Option<u64>,
    /// Which datagrams have returned, by sequence number.
    returned: Vec<bool>,
    /// Time of the first send that no return has followed.
    waiting_since: Option<Instant>,
    alive: bool,
}

impl Sender {
    fn new(sockets: Vec<UdpSocket>, per_second: u64) -> Sender {
        let flow = |socket| Flow {
            socket,
            next: 0,
            highest: None,
            returned: Vec::new(),
            waiting_since: None,
            alive: false,
        };
        Sender {
            flows: sockets.into_iter().map(flow).collect(),
            per_second,
            counts: Datagrams::default(),
        }
    }

    fn run(&mut self, stop: &AtomicBool, counts: &Mutex<Datagrams>) -> Datagrams {
        let start = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let due = start.elapsed().as_micros() as u64 * self.per_second / 1_000_000;
            // After a stall of this thread the backlog is not sent in one burst: a burst
            // would only measure queues.
            for _ in 0..due.saturating_sub(self.counts.sent).min(64) {
                self.send_next();
            }
            self.receive();
            *counts.lock().unwrap_or_else(PoisonError::into_inner) = self.counted();
        }
        self.flows.iter_mut().for_each(|flow| flow.alive = false);
        // A last datagram per flow tells which flows are alive; late datagrams return
        // meanwhile.
        for _ in 0..self.flows.len() {
            self.send_next();
        }
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.counts.returned < self.counts.sent && Instant::now() < deadline {
            self.receive();
        }
        self.counted()
    }

    fn counted(&self) -> Datagrams {
        let mut counts = self.counts;
        counts.lost = counts.sent - counts.returned;
        counts.flows_alive = self.flows.iter().filter(|flow| flow.alive).count();
        let waiting = self
            .flows
            .iter()
            .filter_map(|flow| flow.waiting_since)
            .map(|since| since.elapsed().as_micros() as u64)
            .max();
        counts.longest_silence_us = counts.longest_silence_us.max(waiting.unwrap_or(0));
        counts
    }

    fn send_next(&mut self) {
        let number = (self.counts.sent % self.flows.len() as u64) as usize;
        let flow = &mut self.flows[number];
        let datagram = datagram(number as u32, flow.next);
        // A datagram that the socket refuses (buffer full, an ICMP error to report)
        // counts as sent and lost.
        let _ = flow.socket.send(&datagram);
        flow.waiting_since.get_or_insert_with(Instant::now);
        flow.next += 1;
        flow.returned.push(false);
        self.counts.sent += 1;
    }

    fn receive(&mut self) {
        let ready: Vec<usize> = {
            let mut descriptors: Vec<PollFd<'_>> = self
                .flows
                .iter()
                .map(|flow| PollFd::from_borrowed_fd(flow.socket.as_fd(), PollFlags::IN))
                .collect();
            let _ = poll(&mut descriptors, Some(&TICK));
            let ready = descriptors.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty());
            ready.map(|(number, _)| number).collect()
        };
        let mut block = [0_u8; 2048];
        for number in ready {
            loop {
                match self.flows[number].socket.recv(&mut block) {
                    Ok(length) => self.returned(number, &block[..length]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // An ICMP error on the socket; reading has cleared it.
                    Err(_) => continue,
                }
            }
        }
    }

    fn returned(&mut self, number: usize, bytes: &[u8]) {
        let flow = &mut self.flows[number];
        let sequence = bytes
            .get(8..16)
            .map(|field| u64::from_be_bytes(field.try_into().expect("eight bytes")));
        let Some(sequence) = sequence
            .filter(|&sequence| sequence < flow.next && bytes == datagram(number as u32, sequence))
        else {
            self.counts.changed += 1;
            return;
        };
        if std::mem::replace(&mut flow.returned[sequence as usize], true) {
            self.counts.doubled += 1;
            return;
        }
        flow.alive = true;
        self.counts.returned += 1;
        if flow.highest.is_some_and(|highest| sequence < highest) {
            self.counts.reordered += 1;
        }
        flow.highest = flow.highest.max(Some(sequence));
        if let Some(since) = flow.waiting_since.take() {
            self.counts.longest_silence_us =
                self.counts.longest_silence_us.max(since.elapsed().as_micros() as u64);
        }
    }
}

fn datagram(flow: u32, sequence: u64) -> [u8; DATAGRAM_BYTES] {
    let mut bytes = [0_u8; DATAGRAM_BYTES];
    bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&flow.to_be_bytes());
    bytes[8..16].copy_from_slice(&sequence.to_be_bytes());
    for (index, byte) in bytes[16..].iter_mut().enumerate() {
        *byte = (index as u64 + sequence.wrapping_mul(31) + u64::from(flow)) as u8;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender with two flows whose peer is this test, which sends any answer it wants.
    #[test]
    fn loss_doubling_reordering_and_change_are_told_apart() {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sockets = (0..2).map(|_| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(peer.local_addr().unwrap()).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        });
        let mut sender = Sender::new(sockets.collect(), 1000);
        for _ in 0..6 {
            sender.send_next();
        }
        let sent = |flow, sequence| datagram(flow, sequence).to_vec();
        // Flow 0 gets 1, 0 (late), 0 (again); flow 1 gets a changed 0, and a number never
        // sent.
        sender.returned(0, &sent(0, 1));
        sender.returned(0, &sent(0, 0));
        sender.returned(0, &sent(0, 0));
        let mut changed = sent(1, 0);
        changed[100] ^= 1;
        sender.returned(1, &changed);
        sender.returned(1, &sent(1, 99));
        sender.returned(1, &sent(0, 2));
        sender.returned(1, b"short");
        let counts = sender.counted();
        assert_eq!((counts.sent, counts.returned, counts.lost), (6, 2, 4));
        assert_eq!((counts.doubled, counts.reordered, counts.changed), (1, 1, 4));
        assert_eq!(counts.flows_alive, 1);
        assert!(counts.longest_silence_us > 0);
    }
}
