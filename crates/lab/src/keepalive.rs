//! Many open HTTP/1.1 connections that are used now and then, and notice at once when a
//! connection breaks.
//!
//! A single thread holds all of them with non-blocking sockets. Each connection sends a
//! request every interval and must get the expected answer, byte for byte, within a
//! limit. A reset, an end of stream, a wrong byte or silence makes it *broken*, and it
//! stays broken.

use super::namespace::Namespace;
use super::wait::{Interrupt, until};
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the thread looks at its deadlines.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The connections to hold.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server to connect to.
    pub server: SocketAddr,
    /// Path to ask for.
    pub path: String,
    /// The body that must come back.
    pub body: String,
    /// How many connections.
    pub count: usize,
    /// Time between two requests on one connection.
    pub interval: Duration,
    /// An answer later than this breaks the connection.
    pub answer_within: Duration,
}

/// Counts of the connections.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Connections {
    /// Connections opened at the start.
    pub opened: usize,
    /// Connections still whole.
    pub alive: usize,
    /// Connections broken since.
    pub broken: usize,
    /// Right answers.
    pub answers: u64,
    /// The answer that took longest, in microseconds.
    pub slowest_answer_us: u64,
    /// Broken connections by cause.
    pub broken_by: BTreeMap<String, usize>,
}

/// Open connections, held by a thread of their own until this is dropped.
#[derive(Debug)]
pub struct KeepAlive {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    answer_within: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Increased by [`KeepAlive::verify`]: every connection then sends one more request
    /// at once.
    round: AtomicU64,
    view: Mutex<View>,
}

#[derive(Debug, Default, Clone)]
struct View {
    connections: Connections,
    /// The latest round in which every connection has had an answer or is broken.
    round: u64,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    next: Instant,
    /// The time since when an answer is due, and its round.
    asked: Option<(Instant, u64)>,
    answer: Vec<u8>,
    round: u64,
    broken: bool,
}

impl KeepAlive {
    /// Opens the connections inside `namespace`, one after the other; each is used once
    /// before the next is opened.
    pub fn open(namespace: &Namespace, plan: &Plan, interrupt: &Interrupt) -> Result<KeepAlive> {
        let request =
            format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", plan.path, plan.server).into_bytes();
        let streams = namespace.enter(|| {
            (0..plan.count)
                .map(|number| {
                    interrupt.check()?;
                    let within = plan.answer_within;
                    let opened = open_one(plan.server, &request, &plan.body, within);
                    opened.with_context(|| {
                        format!(
                            "opening connection {} of {} to {}",
                            number + 1,
                            plan.count,
                            plan.server
                        )
                    })
                })
                .collect::<Result<Vec<TcpStream>>>()
        })??;
        let start = Instant::now();
        let mut holder = Holder {
            connections: streams
                .into_iter()
                .enumerate()
                .map(|(number, stream)| Connection {
                    stream,
                    // Spread over the interval, so that the load is even and some request
                    // is always under way.
                    next: start + plan.interval * number as u32 / plan.count.max(1) as u32,
                    asked: None,
                    answer: Vec::new(),
                    round: 0,
                    broken: false,
                })
                .collect(),
            plan: plan.clone(),
            request,
            counts: Connections { opened: plan.count, alive: plan.count, ..Connections::default() },
        };
        let shared = Arc::new(Shared::default());
        lock(&shared.view).connections = holder.counts.clone();
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("keep-alive".into())
            .spawn(move || holder.run(&theirs))?;
        Ok(KeepAlive { shared, thread: Some(thread), answer_within: plan.answer_within })
    }

    /// The counts as they are now.
    pub fn connections(&self) -> Connections {
        lock(&self.shared.view).connections.clone()
    }

    /// Sends one more request on every connection and waits until each has answered it or
    /// is broken.
    pub fn verify(&self, interrupt: &Interrupt) -> Result<Connections> {
        let round = self.shared.round.fetch_add(1, Ordering::Relaxed) + 1;
        // A request may be under way and take its full time, before the round's request
        // is sent.
        until("every connection answers or breaks", self.answer_within * 3, interrupt, || {
            let view = lock(&self.shared.view).clone();
            Ok((view.round >= round).then_some(view.connections))
        })
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(view: &Mutex<View>) -> std::sync::MutexGuard<'_, View> {
    view.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn open_one(server: SocketAddr, request: &[u8], body: &str, within: Duration) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&server, within)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(within))?;
    stream.write_all(request)?;
    let (mut answer, mut block) = (Vec::new(), [0_u8; 4096]);
    loop {
        let read = stream.read(&mut block).context("waiting for the first answer")?;
        anyhow::ensure!(read > 0, "closed before the first answer");
        answer.extend_from_slice(&block[..read]);
        match judge(&answer, body) {
            Judgement::Incomplete => {}
            Judgement::Right => break,
            Judgement::Wrong => {
                anyhow::bail!("the first answer is wrong: {:?}", String::from_utf8_lossy(&answer))
            }
        }
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    Incomplete,
    Right,
    Wrong,
}

/// Compares the bytes so far with a response 200 that has this body and gives its length.
fn judge(answer: &[u8], body: &str) -> Judgement {
    let Some(head_end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return if answer.len() > 16_384 { Judgement::Wrong } else { Judgement::Incomplete };
    };
    let head = String::from_utf8_lossy(&answer[..head_end]).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .and_then(|text| text.trim().parse().ok());
    if !head.starts_with("http/1.1 200 ") || length != Some(body.len()) {
        return Judgement::Wrong;
    }
    let received = &answer[head_end + 4..];
    if !body.as_bytes().starts_with(received) {
        return Judgement::Wrong;
    }
    if received.len() == body.len() { Judgement::Right } else { Judgement::Incomplete }
}

struct Holder {
    connections: Vec<Connection>,
    plan: Plan,
    request: Vec<u8>,
    counts: Connections,
}

impl Holder {
    fn run(&mut self, shared: &Shared) {
        while !shared.stop.load(Ordering::Relaxed) {
            let round = shared.round.load(Ordering::Relaxed);
            let now = Instant::now();
            for number in 0..self.connections.len() {
                self.ask_or_give_up(number, now, round);
            }
            self.wait_and_read();
            let whole = self
                .connections
                .iter()
                .all(|connection| connection.broken || connection.round >= round);
            let mut view = lock(&shared.view);
            view.connections = self.counts.clone();
            view.round = if whole { round } else { view.round };
        }
    }

    fn ask_or_give_up(&mut self, number: usize, now: Instant, round: u64) {
        let connection = &mut self.connections[number];
        if connection.broken {
            return;
        }
        match connection.asked {
            Some((since, _)) if now.duration_since(since) > self.plan.answer_within => {
                self.break_it(number, "no answer")
            }
            Some(_) => {}
            None if connection.next <= now || connection.round < round => {
                connection.asked = Some((now, round));
                connection.next = now + self.plan.interval;
                connection.answer.clear();
                // A request is far smaller than a send buffer that the previous answer
                // has emptied: a partial write is a broken connection.
                match connection.stream.write(&self.request) {
                    Ok(written) if written == self.request.len() => {}
                    Ok(_) => self.break_it(number, "send buffer full"),
                    Err(error) => self.break_it(number, &cause(error.kind())),
                }
            }
            None => {}
        }
    }

    fn wait_and_read(&mut self) {
        let watched: Vec<usize> = (0..self.connections.len())
            .filter(|&number| !self.connections[number].broken)
            .collect();
        let ready: Vec<usize> = {
            let mut descriptors: Vec<PollFd<'_>> = watched
                .iter()
                .map(|&number| {
                    PollFd::from_borrowed_fd(self.connections[number].stream.as_fd(), PollFlags::IN)
                })
                .collect();
            // An interrupted poll has no result; the next poll follows at once.
            let _ = poll(&mut descriptors, Some(&TICK));
            watched
                .iter()
                .zip(&descriptors)
                .filter(|(_, fd)| !fd.revents().is_empty())
                .map(|(&number, _)| number)
                .collect()
        };
        for number in ready {
            self.read(number);
        }
    }

    fn read(&mut self, number: usize) {
        let mut block = [0_u8; 4096];
        loop {
            let connection = &mut self.connections[number];
            match connection.stream.read(&mut block) {
                Ok(0) => return self.break_it(number, "closed by the server"),
                Ok(read) => connection.answer.extend_from_slice(&block[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return self.break_it(number, &cause(error.kind())),
            }
            let Some((since, round)) = connection.asked else {
                return self.break_it(number, "bytes nobody asked for");
            };
            match judge(&connection.answer, &self.plan.body) {
                Judgement::Incomplete => {}
                Judgement::Wrong => return self.break_it(number, "wrong answer"),
                Judgement::Right => {
                    connection.asked = None;
                    connection.round = round;
                    self.counts.answers += 1;
                    self.counts.slowest_answer_us =
                        self.counts.slowest_answer_us.max(since.elapsed().as_micros() as u64);
                }
            }
        }
    }

    fn break_it(&mut self, number: usize, cause: &str) {
        self.connections[number].broken = true;
        self.counts.alive -= 1;
        self.counts.broken += 1;
        *self.counts.broken_by.entry(cause.to_owned()).or_default() += 1;
    }
}

fn cause(kind: ErrorKind) -> String {
    kind.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn an_answer_is_right_only_to_the_last_byte() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
        for end in 0..whole.len() {
            assert_eq!(judge(&whole[..end], "body"), Judgement::Incomplete, "first {end} bytes");
        }
        assert_eq!(judge(whole, "body"), Judgement::Right);
        assert_eq!(
            judge(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbodY", "body"),
            Judgement::Wrong
        );
        assert_eq!(
            judge(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody!", "body"),
            Judgement::Wrong
        );
        assert_eq!(
            judge(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\n", "body"),
            Judgement::Wrong
        );
        assert_eq!(judge(b"HTTP/1.1 200 OK\r\n\r\nbody", "body"), Judgement::Wrong);
    }

    /// A holder of two connections to a test server that answers on the first and resets
    /// the second.
    #[test]
    fn counts_a_connection_that_breaks_and_one_that_lives() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let (answer, request) = (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".as_slice(),
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        );
        let clients: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(server).unwrap()).collect();
        let mut accepted: Vec<TcpStream> = (0..2).map(|_| listener.accept().unwrap().0).collect();
        let now = Instant::now();
        let mut holder = Holder {
            connections: clients
                .into_iter()
                .map(|stream| {
                    stream.set_nonblocking(true).unwrap();
                    Connection {
                        stream,
                        next: now,
                        asked: None,
                        answer: Vec::new(),
                        round: 0,
                        broken: false,
                    }
                })
                .collect(),
            plan: Plan {
                server,
                path: "/".into(),
                body: "ok".into(),
                count: 2,
                interval: Duration::from_secs(60),
                answer_within: Duration::from_secs(10),
            },
            request,
            counts: Connections { opened: 2, alive: 2, ..Connections::default() },
        };
        for number in 0..2 {
            holder.ask_or_give_up(number, now, 1);
        }
        let mut block = [0_u8; 100];
        assert!(accepted[0].read(&mut block).unwrap() > 0);
        accepted[0].write_all(answer).unwrap();
        drop(accepted.pop());
        while holder.counts.answers + (holder.counts.broken as u64) < 2 {
            holder.wait_and_read();
        }
        assert_eq!((holder.counts.alive, holder.counts.broken, holder.counts.answers), (1, 1, 1));
        assert_eq!(holder.connections[0].round, 1);

        // The next question stays unanswered beyond the limit.
        holder.ask_or_give_up(0, now + Duration::from_secs(61), 1);
        holder.ask_or_give_up(0, now + Duration::from_secs(80), 1);
        assert_eq!(holder.counts.broken_by.get("no answer"), Some(&1));
    }
}
