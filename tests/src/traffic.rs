//! Clients and servers that fill in a [`Ledger`]: datagrams and connections, in both
//! directions. New flows begin all the time.

use crate::ledger::{
    CONNECTING, End, Ledger, Sum, Transport, Wrong, content, digest_of, heading, stream_byte,
};
use crate::network::{SERVER, socket};
use anyhow::{Context, Result};
use holdfast_lab::Namespace;
use holdfast_lab::udp::make_room;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two bursts; each burst sends the datagrams that are due.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// Interval, in datagrams, between those that are sent twice on purpose.
const TWICE: u64 = 50;
/// Time between two short connections, and their number at a time.
const NEXT_CONNECTION: Duration = Duration::from_millis(200);
const SHORT: usize = 5;
/// Bytes of a short connection, to the server.
const SHORT_BYTES: u64 = 40_000;
/// Bytes of a chunk of a connection, per direction.
const CHUNK: u64 = 400;
/// Time between two checks for the end, in threads that have nothing else to do.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// A connection that the other side does not end within this time is broken.
const GIVE_UP: Duration = Duration::from_secs(30);

/// The traffic to generate.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Address of the datagram server.
    pub datagrams: SocketAddr,
    /// Address of the stream server.
    pub streams: SocketAddr,
    /// Flows of datagrams at the start.
    pub flows: usize,
    /// Time between two new flows of datagrams.
    pub next_flow: Duration,
    /// Datagrams per second, all flows and both directions together.
    pub per_second: u64,
    /// Connections that last to the end. Short ones come besides.
    pub connections: usize,
    /// Time between two chunks of a connection, in each direction.
    pub next_chunk: Duration,
    /// A connection that is not opened within this time is broken.
    pub timeout: Duration,
}

impl Default for Plan {
    /// A hundred flows and more, and some connections, to [`SERVER`].
    fn default() -> Plan {
        Plan {
            datagrams: socket(&format!("{SERVER}:7007")),
            streams: socket(&format!("{SERVER}:5201")),
            flows: 100,
            next_flow: Duration::from_millis(100),
            per_second: 600,
            connections: 6,
            next_chunk: Duration::from_millis(10),
            timeout: GIVE_UP,
        }
    }
}

/// The clients' stop flag; idle threads wait for it.
#[derive(Debug, Default)]
struct Stop {
    is_said: Mutex<bool>,
    said: Condvar,
}

impl Stop {
    fn is_said(&self) -> MutexGuard<'_, bool> {
        self.is_said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self) {
        *self.is_said() = true;
        self.said.notify_all();
    }

    /// True as soon as the flag is set; false after this time.
    fn wait(&self, time: Duration) -> bool {
        let waited = self.said.wait_timeout_while(self.is_said(), time, |is_said| !*is_said);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

#[derive(Debug, Default)]
struct Shared {
    stop: Stop,
    /// Ends the servers, after the clients.
    over: AtomicBool,
    book: Mutex<Ledger>,
    /// Flows of datagrams by their client's port.
    ports: Mutex<Vec<(u16, u32)>>,
    /// Connections that are open, by their client's port.
    open: Mutex<BTreeMap<u16, u32>>,
    /// Connections that are given up.
    lost: Mutex<BTreeSet<u32>>,
    next_flow: AtomicU32,
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Ledger> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u16, u32>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_flow(&self) -> u32 {
        self.next_flow.fetch_add(1, Ordering::Relaxed)
    }
}

/// An open connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// The client's port.
    pub port: u16,
    /// The connection's number in the ledger.
    pub flow: u32,
    /// Bytes that have arrived so far, at the client and at the server.
    pub came: [u64; 2],
}

/// Running traffic. Dropping it ends it without checking the ledger.
#[derive(Debug)]
pub struct Traffic {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
    servers: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Starts servers and clients in their namespaces.
    pub fn start(client: &Namespace, server: &Namespace, plan: Plan) -> Result<Traffic> {
        let shared = Arc::new(Shared::default());
        let datagrams =
            server.bind(|| UdpSocket::bind(plan.datagrams)).context("binding the server's port")?;
        let streams = server
            .bind(|| TcpListener::bind(plan.streams))
            .context("listening at the server's port")?;
        make_room(&datagrams)?;
        datagrams.set_read_timeout(Some(Duration::from_millis(20)))?;
        streams.set_nonblocking(true)?;
        let mut traffic =
            Traffic { shared: shared.clone(), clients: Vec::new(), servers: Vec::new() };
        let (theirs, of_streams) = (shared.clone(), shared.clone());
        traffic.servers.push(std::thread::spawn(move || answer_datagrams(&datagrams, &theirs)));
        traffic
            .servers
            .push(std::thread::spawn(move || accept_streams(&streams, plan, &of_streams)));
        let namespace = client.clone();
        let theirs = shared.clone();
        traffic.clients.push(std::thread::spawn(move || {
            let sent = namespace.enter(|| send_datagrams(plan, &theirs));
            sent.and_then(|sent| Ok(sent?)).expect("datagrams can be sent");
        }));
        for at in 0..plan.connections + SHORT {
            let (namespace, shared, is_short) =
                (client.clone(), shared.clone(), at >= plan.connections);
            traffic.clients.push(std::thread::spawn(move || {
                let opened = namespace.enter(|| open_streams(plan, is_short, at as u32, &shared));
                opened.expect("there is a namespace");
            }));
        }
        Ok(traffic)
    }

    /// The ledger's sums so far.
    pub fn sum(&self) -> Sum {
        self.shared.book().sum()
    }

    /// The errors found so far, in words.
    pub fn wrong(&self) -> Vec<String> {
        self.shared.book().wrong().iter().map(ToString::to_string).collect()
    }

    /// Flows of datagrams by their client's port, each with the number of datagrams that
    /// have arrived.
    pub fn came(&self) -> Vec<(u16, u32, [u64; 2])> {
        let ports = self.shared.ports.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let book = self.shared.book();
        ports.into_iter().map(|(port, flow)| (port, flow, book.came(flow))).collect()
    }

    /// See [`Ledger::compare`].
    pub fn compare(&self, flow: u32, seen: [u64; 2], counted: [u64; 2], mapping: SocketAddr) {
        self.shared.book().compare(flow, seen, counted, mapping);
    }

    /// The open connections.
    pub fn open(&self) -> Vec<Open> {
        let open = self.shared.open().clone();
        let book = self.shared.book();
        open.into_iter()
            .map(|(port, flow)| Open { port, flow, came: book.stream_came(flow) })
            .collect()
    }

    /// See [`Ledger::compare_mapping`].
    pub fn compare_mapping(&self, flow: u32, mapping: SocketAddr) {
        self.shared.book().compare_mapping(flow, mapping);
    }

    /// Gives up a connection that the box has lost: it counts as broken, and no thread
    /// waits for it.
    pub fn give_up(&self, flow: u32) {
        self.shared.lost().insert(flow);
    }

    /// Ends all connections, stops, and returns the flows that the box has lost according
    /// to the ledger, each with the error that shows it.
    ///
    /// # Errors
    /// An error that the loss of flows does not explain.
    pub fn finish_with_losses(mut self) -> Result<BTreeMap<u32, Wrong>> {
        self.end();
        std::mem::take(&mut *self.shared.book()).close_with_losses()
    }

    /// Ends all connections, stops, and closes the ledger.
    ///
    /// # Errors
    /// The ledger does not balance.
    pub fn finish(mut self) -> Result<Sum> {
        self.end();
        std::mem::take(&mut *self.shared.book()).close()
    }

    fn end(&mut self) {
        self.shared.stop.say();
        let ended: Vec<_> = self.clients.drain(..).map(JoinHandle::join).collect();
        self.shared.over.store(true, Ordering::Relaxed);
        let ended: Vec<_> =
            ended.into_iter().chain(self.servers.drain(..).map(JoinHandle::join)).collect();
        if !std::thread::panicking() {
            ended.into_iter().for_each(|ended| ended.expect("no client and no server panics"));
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.end();
    }
}

fn answer_datagrams(socket: &UdpSocket, shared: &Shared) {
    let mut next = std::collections::HashMap::<u32, u64>::new();
    let mut block = [0; 2048];
    while !shared.over.load(Ordering::Relaxed) {
        // An error is a time-out.
        let Ok((len, source)) = socket.recv_from(&mut block) else { continue };
        let Some((flow, number)) = heading(&block[..len]) else { continue };
        let answer = next.entry(flow).or_default();
        {
            let mut book = shared.book();
            book.see_mapping(flow, Transport::Udp, source);
            book.receive(End::Server, flow, number, digest_of(&block[..len]));
        }
        send(End::Client, flow, *answer, shared, |bytes| drop(socket.send_to(bytes, source)));
        *answer += 1;
    }
}

/// Sends a datagram. A datagram that the socket refuses counts as sent and lost.
fn send(to: End, flow: u32, number: u64, shared: &Shared, mut send: impl FnMut(&[u8])) {
    let bytes = content(flow, to, number);
    for _ in 0..if number % TWICE == TWICE - 1 { 2 } else { 1 } {
        shared.book().send(to, flow, number);
        send(&bytes);
    }
}

struct Sender {
    flow: u32,
    socket: UdpSocket,
    next: u64,
}

fn send_datagrams(plan: Plan, shared: &Shared) -> std::io::Result<()> {
    // All sockets stay open to the end: a reused port would be the same flow for the box,
    // and another one in the ledger.
    let mut senders: Vec<Sender> = Vec::new();
    let start = Instant::now();
    let (mut sent, mut turn) = (0, 0);
    let mut last_call = None;
    loop {
        let elapsed = start.elapsed().as_millis() as u64;
        let is_stopping = *shared.stop.is_said();
        while !is_stopping
            && senders.len() < plan.flows + (elapsed / plan.next_flow.as_millis() as u64) as usize
        {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            make_room(&socket)?;
            socket.connect(plan.datagrams)?;
            socket.set_nonblocking(true)?;
            let flow = shared.new_flow();
            shared
                .ports
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((socket.local_addr()?.port(), flow));
            senders.push(Sender { flow, socket, next: 0 });
        }
        // After a stall the backlog is not sent in one burst.
        let due = (elapsed * plan.per_second / 1000).saturating_sub(sent).min(64);
        for _ in 0..if is_stopping { 0 } else { due } {
            let count = senders.len();
            let Sender { flow, socket, next } = &mut senders[turn % count];
            send(End::Server, *flow, *next, shared, |bytes| drop(socket.send(bytes)));
            *next += 1;
            turn += 1;
        }
        sent += due;
        receive_datagrams(&senders, shared);
        // Datagrams on their way may still arrive.
        if is_stopping
            && last_call.get_or_insert_with(Instant::now).elapsed() > Duration::from_millis(500)
        {
            return Ok(());
        }
    }
}

fn receive_datagrams(senders: &[Sender], shared: &Shared) {
    let mut descriptors: Vec<PollFd<'_>> = senders
        .iter()
        .map(|sender| PollFd::from_borrowed_fd(sender.socket.as_fd(), PollFlags::IN))
        .collect();
    let _ = poll(&mut descriptors, Some(&TICK));
    let mut block = [0; 2048];
    for (sender, _) in senders.iter().zip(&descriptors).filter(|(_, fd)| !fd.revents().is_empty()) {
        loop {
            match sender.socket.recv(&mut block) {
                Ok(len) => {
                    // The ledger detects the datagram of another flow.
                    let number = heading(&block[..len])
                        .filter(|(flow, _)| *flow == sender.flow)
                        .map_or(u64::MAX >> 32, |found| found.1);
                    shared.book().receive(
                        End::Client,
                        sender.flow,
                        number,
                        digest_of(&block[..len]),
                    );
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // An ICMP error; reading it has cleared it.
                Err(_) => {}
            }
        }
    }
}

fn open_streams(plan: Plan, is_short: bool, at: u32, shared: &Shared) {
    loop {
        let flow = shared.new_flow();
        shared.book().open_stream(flow);
        let opened =
            TcpStream::connect_timeout(&plan.streams, plan.timeout).and_then(|mut stream| {
                let port = stream.local_addr()?.port();
                shared.open().insert(port, flow);
                stream.write_all(&flow.to_be_bytes()).map(|()| (stream, port))
            });
        match opened {
            Ok((stream, port)) => {
                let bytes = if is_short { SHORT_BYTES } else { u64::MAX };
                let is_enough = |sent, _| sent >= bytes || *shared.stop.is_said();
                pump(&stream, End::Client, flow, plan, shared, is_enough);
                shared.open().remove(&port);
            }
            Err(error) => {
                shared.book().break_stream(End::Client, flow, &format!("{CONNECTING}{error}"))
            }
        }
        // A long-lived stream is opened anew if it broke.
        if shared.stop.wait(NEXT_CONNECTION + Duration::from_millis(u64::from(at) * 10)) {
            return;
        }
    }
}

fn accept_streams(listener: &TcpListener, plan: Plan, shared: &Arc<Shared>) {
    let mut threads = Vec::new();
    while !shared.over.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, source)) => {
                let shared = shared.clone();
                threads
                    .push(std::thread::spawn(move || serve_stream(stream, source, plan, &shared)));
            }
            Err(_) => await_client(listener),
        }
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no server panics"));
}

/// Returns as soon as a client may have connected, and now and then without one, so that
/// the caller can check for the end.
fn await_client(listener: &TcpListener) {
    let mut ready = [PollFd::new(listener, PollFlags::IN)];
    // An interrupted wait ends early.
    let _ = poll(
        &mut ready,
        Some(&Timespec { tv_sec: 0, tv_nsec: LOOK_INTERVAL.subsec_nanos().into() }),
    );
}

fn serve_stream(mut stream: TcpStream, source: SocketAddr, plan: Plan, shared: &Shared) {
    // The client notes a connection that it has given up.
    let Some(flow) = read_flow(&mut stream, plan, shared) else { return };
    shared.book().see_mapping(flow, Transport::Tcp, source);
    // The client closes first, so that its port is not reused soon.
    pump(&stream, End::Server, flow, plan, shared, |_, is_over| is_over);
}

/// Reads the flow number with which a connection begins; `None` if it does not come.
fn read_flow(stream: &mut TcpStream, plan: Plan, shared: &Shared) -> Option<u32> {
    stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(LOOK_INTERVAL)))
        .ok()?;
    let (mut flow, mut got, since) = ([0; 4], 0, Instant::now());
    while got < flow.len() {
        match stream.read(&mut flow[got..]) {
            Ok(0) => return None,
            Ok(len) => got += len,
            Err(error) if error.kind() != ErrorKind::WouldBlock => return None,
            Err(_) if since.elapsed() > plan.timeout || shared.over.load(Ordering::Relaxed) => {
                return None;
            }
            Err(_) => {}
        }
    }
    Some(u32::from_be_bytes(flow))
}

/// Sends and receives until both directions have ended. `is_enough` gets the bytes sent
/// and whether the other side has ended.
fn pump(
    stream: &TcpStream,
    end: End,
    flow: u32,
    plan: Plan,
    shared: &Shared,
    is_enough: impl Fn(u64, bool) -> bool,
) {
    let pumped = try_pump(stream, end, flow, plan, shared, is_enough);
    if let Err(error) = pumped {
        shared.book().break_stream(end, flow, &error.to_string());
    }
}

fn try_pump(
    mut stream: &TcpStream,
    end: End,
    flow: u32,
    plan: Plan,
    shared: &Shared,
    is_enough: impl Fn(u64, bool) -> bool,
) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let (mut sent, mut made, mut is_over) = (0, 0, false);
    let mut next = Instant::now();
    let mut ended: Option<Instant> = None;
    let mut block = [0; 16384];
    loop {
        if ended.is_none() && sent == made && Instant::now() >= next {
            next = Instant::now() + plan.next_chunk;
            if is_enough(sent, is_over) {
                shared.book().end_stream(end.other(), flow, sent);
                stream.shutdown(Shutdown::Write)?;
                ended = Some(Instant::now());
            } else {
                made += CHUNK;
            }
        }
        if sent < made {
            let bytes: Vec<u8> =
                (sent..made).map(|at| stream_byte(flow, end.other(), at)).collect();
            match stream.write(&bytes) {
                Ok(written) => sent += written as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        while !is_over {
            match stream.read(&mut block) {
                Ok(0) => {
                    is_over = true;
                    shared.book().finish_stream(end, flow);
                }
                Ok(len) if shared.book().receive_stream(end, flow, &block[..len]) => {}
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        // After the end of all clients no data come, and dropped data are not checked.
        let is_alone = shared.over.load(Ordering::Relaxed);
        match ended {
            Some(_) if is_over => return Ok(()),
            _ if is_alone => return Err(ErrorKind::NotConnected.into()),
            _ if shared.lost().contains(&flow) => return Err(ErrorKind::ConnectionAborted.into()),
            Some(since) if since.elapsed() > GIVE_UP => return Err(ErrorKind::TimedOut.into()),
            _ => await_stream(
                stream,
                is_over,
                sent < made,
                if ended.is_none() { next } else { Instant::now() + LOOK_INTERVAL },
            ),
        }
    }
}

/// Returns as soon as the stream has data, unless it has ended, or accepts data, if there
/// is something to send; at `until` at the latest.
fn await_stream(stream: &TcpStream, is_over: bool, has_more: bool, until: Instant) {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, !is_over);
    flags.set(PollFlags::OUT, has_more);
    // A wait for room to send is no longer than the interval of the other checks.
    let until = if has_more { until.max(Instant::now() + LOOK_INTERVAL) } else { until };
    let left = until.saturating_duration_since(Instant::now());
    let timeout =
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    // A stream without an awaited event is not polled: a closed stream would end the wait
    // at once.
    let mut ready = [PollFd::new(stream, flags)];
    let awaited = if flags.is_empty() { &mut [][..] } else { &mut ready[..] };
    let _ = poll(awaited, Some(&timeout));
}
