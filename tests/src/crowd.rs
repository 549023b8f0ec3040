//! Very many TCP connections from one thread, each of which must get back exactly the
//! bytes that it has sent. The crowd runs in processes of their own if a single process
//! may not have so many sockets.

use anyhow::{Context, Result, anyhow, bail, ensure};
use holdfast_lab::{Interrupt, Namespace};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that a connection sends per round: its number, and the round's.
const LETTER: usize = 8;
/// Longest wait for an event, after which the thread checks whether to end.
const LOOK: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Events that are read from the kernel at a time.
const EVENTS: usize = 512;
/// The index of the listener among the mirror's connections.
const LISTENER: u64 = u64::MAX;

/// Raises this process's limit of open sockets.
fn allow(sockets: u64) -> Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < sockets) {
        let maximum = maximum.map(|maximum| maximum.max(sockets));
        setrlimit(Resource::Nofile, Rlimit { current: Some(sockets), maximum })
            .context("a process may have too few sockets")?;
    }
    Ok(())
}

/// The environment variable with a process's role: `mirror` or `crowd`, and an address.
const ROLE: &str = "HOLDFAST_TESTS_CROWD";

/// Runs this process's role and returns its exit code, if it is a process of [`Apart`].
/// Must be called first of all.
pub fn role() -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    let done = match role.split_once(' ') {
        Some(("mirror", address)) => be_mirror(address),
        Some(("crowd", address)) => be_crowd(address),
        _ => Err(anyhow!("there is no role {role:?}")),
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            answer(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    })
}

/// Reflects until its standard input ends.
fn be_mirror(address: &str) -> Result<()> {
    let listener = listen(address.parse()?)?;
    answer(format_args!("{DONE}"));
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        theirs.store(true, Ordering::Relaxed);
    });
    reflect(&listener, &stop)
}

/// Carries out orders, line by line.
fn be_crowd(address: &str) -> Result<()> {
    let address = address.parse()?;
    let mut crowd = Crowd::new(None)?;
    answer(format_args!("{DONE}"));
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let done = match words[..] {
            ["open", count, at_once] => crowd
                .open(
                    address,
                    count.parse()?,
                    at_once.parse()?,
                    APART_WITHIN,
                    &Interrupt::default(),
                )
                .map(|_| ()),
            ["verify"] => crowd.verify(APART_WITHIN, &Interrupt::default()),
            _ => Err(anyhow!("there is no order {line:?}")),
        };
        match done {
            Ok(()) => answer(format_args!("{DONE}")),
            Err(error) => answer(format_args!("{error:#}")),
        }
    }
    Ok(())
}

/// Writes a line for the parent process; nobody reads it if the parent has ended.
fn answer(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

const DONE: &str = "done";
/// Time limit for an order to a separate process.
const APART_WITHIN: Duration = Duration::from_secs(120);

/// A mirror or a crowd in a process of its own.
#[derive(Debug)]
pub struct Apart {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Apart {
    /// A mirror at this address.
    pub fn mirror(namespace: &Namespace, address: SocketAddr) -> Result<Apart> {
        Apart::start(namespace, &format!("mirror {address}"))
    }

    /// A crowd without connections yet; its connections will go to this address.
    pub fn crowd(namespace: &Namespace, address: SocketAddr) -> Result<Apart> {
        Apart::start(namespace, &format!("crowd {address}"))
    }

    fn start(namespace: &Namespace, role: &str) -> Result<Apart> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = namespace.enter(|| command.spawn())??;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a process has no pipes")
        };
        let mut apart = Apart { child, orders, answers: BufReader::new(answers) };
        apart.end()?;
        Ok(apart)
    }

    /// Orders `count` more connections; see [`Crowd::open`].
    pub fn begin_open(&mut self, count: usize, at_once: usize) -> Result<()> {
        Ok(writeln!(self.orders, "open {count} {at_once}")?)
    }

    /// Orders one more letter of each connection; see [`Crowd::verify`].
    pub fn begin_verify(&mut self) -> Result<()> {
        Ok(writeln!(self.orders, "verify")?)
    }

    /// Waits until the order has been carried out.
    ///
    /// # Errors
    /// The order failed; the error has the other process's words.
    pub fn end(&mut self) -> Result<()> {
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        ensure!(answer.trim_end() == DONE, "{}", answer.trim_end());
        Ok(())
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).context("listening")?;
    // As many connections may wait to be accepted as the system allows.
    rustix::net::listen(&listener, i32::MAX)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn wait(epoll: &OwnedFd, events: &mut [MaybeUninit<Event>]) -> Result<Vec<Event>> {
    match epoll::wait(epoll, events, Some(&LOOK)) {
        Ok((ready, _)) => Ok(ready.to_vec()),
        Err(Errno::INTR) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// Sends all received bytes back to their sender.
#[derive(Debug)]
pub struct Mirror {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mirror {
    /// Listens at this address.
    pub fn start(namespace: &Namespace, address: SocketAddr) -> Result<Mirror> {
        let listener = namespace.enter(|| listen(address))??;
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = stop.clone();
        let thread = std::thread::spawn(move || {
            reflect(&listener, &theirs).expect("a mirror has what it needs")
        });
        Ok(Mirror { stop, thread: Some(thread) })
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn reflect(listener: &TcpListener, stop: &AtomicBool) -> Result<()> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    let mut events = [MaybeUninit::uninit(); EVENTS];
    let mut block = [0; 64 * LETTER];
    while !stop.load(Ordering::Relaxed) {
        allow(streams.len() as u64 + EVENTS as u64)?;
        for event in wait(&epoll, &mut events)? {
            let at = event.data.u64();
            if at == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    epoll::add(
                        &epoll,
                        &stream,
                        EventData::new_u64(streams.len() as u64),
                        EventFlags::IN,
                    )?;
                    streams.push(Some(stream));
                }
                continue;
            }
            let Some(stream) = &mut streams[at as usize] else { continue };
            // A connection has few bytes under way, so the write always fits.
            let is_over = match stream.read(&mut block) {
                Ok(0) => true,
                Ok(len) => stream.write_all(&block[..len]).is_err(),
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            };
            if is_over {
                streams[at as usize] = None;
            }
        }
    }
    Ok(())
}

/// The connections.
#[derive(Debug)]
pub struct Crowd {
    /// The namespace from which connections are opened; this process's own if `None`.
    namespace: Option<Namespace>,
    epoll: OwnedFd,
    members: Vec<Member>,
    round: u32,
}

#[derive(Debug)]
struct Member {
    stream: TcpStream,
    letter: [u8; LETTER],
    /// The letter of this round has been sent.
    has_sent: bool,
    /// Bytes of the letter that have come back.
    answer: Vec<u8>,
}

impl Crowd {
    /// A crowd without connections yet.
    pub fn new(namespace: Option<&Namespace>) -> Result<Crowd> {
        Ok(Crowd {
            namespace: namespace.cloned(),
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            members: Vec::new(),
            round: 0,
        })
    }

    /// The number of connections.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// True if there are no connections.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Opens `count` more connections, with `at_once` of them under way at a time. Each
    /// sends a letter and must get it back `within` this time. Returns the time it took.
    pub fn open(
        &mut self,
        server: SocketAddr,
        count: usize,
        at_once: usize,
        within: Duration,
        interrupt: &Interrupt,
    ) -> Result<Duration> {
        let begin = Instant::now();
        self.round += 1;
        let target = self.members.len() + count;
        allow(target as u64 + 100)?;
        let (mut open, mut answered) = (0, 0);
        while answered < count {
            while self.members.len() < target && open < answered + at_once {
                let stream = match &self.namespace {
                    Some(namespace) => namespace.enter(|| begin_connection(server))??,
                    None => begin_connection(server)?,
                };
                let at = EventData::new_u64(self.members.len() as u64);
                epoll::add(
                    &self.epoll,
                    &stream,
                    at,
                    EventFlags::IN | EventFlags::OUT | EventFlags::ET,
                )?;
                let letter = letter(self.members.len(), self.round);
                self.members.push(Member { stream, letter, has_sent: false, answer: Vec::new() });
                open += 1;
            }
            answered += self.look()?;
            interrupt.check()?;
            ensure!(
                begin.elapsed() < within,
                "{answered} of {count} connections were opened in {within:?}"
            );
        }
        Ok(begin.elapsed())
    }

    /// Sends one more letter on every connection, and waits until each has come back.
    pub fn verify(&mut self, within: Duration, interrupt: &Interrupt) -> Result<()> {
        let begin = Instant::now();
        self.round += 1;
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            (member.letter, member.has_sent, member.answer) =
                (letter(at, self.round), false, Vec::new());
            self.serve(at)?;
        }
        let count = self.members.len();
        let mut answered =
            self.members.iter().filter(|member| member.answer.len() == LETTER).count();
        while answered < count {
            answered += self.look()?;
            interrupt.check()?;
            ensure!(
                begin.elapsed() < within,
                "{answered} of {count} connections answered in {within:?}"
            );
        }
        Ok(())
    }

    /// Handles events. Returns how many more connections have their letter back.
    fn look(&mut self) -> Result<usize> {
        let mut events = [MaybeUninit::uninit(); EVENTS];
        let mut answered = 0;
        for event in wait(&self.epoll, &mut events)? {
            answered += usize::from(self.serve(event.data.u64() as usize)?);
        }
        Ok(answered)
    }

    /// Sends and receives as much as possible. True if the letter has just come back
    /// completely.
    fn serve(&mut self, at: usize) -> Result<bool> {
        let member = &mut self.members[at];
        let letter = member.letter;
        let mut serve = || -> Result<bool> {
            if let Some(error) = member.stream.take_error()? {
                bail!(error);
            }
            if !member.has_sent {
                match member.stream.write(&letter) {
                    Ok(len) => ensure!(len == LETTER, "a part of a letter was sent"),
                    Err(error)
                        if error.kind() == ErrorKind::WouldBlock
                            || error.kind() == ErrorKind::NotConnected =>
                    {
                        return Ok(false);
                    }
                    Err(error) => return Err(error.into()),
                }
                member.has_sent = true;
            }
            let was_complete = member.answer.len() == LETTER;
            let mut block = [0; 4 * LETTER];
            loop {
                match member.stream.read(&mut block) {
                    Ok(0) => bail!("the other side has ended it"),
                    Ok(len) => member.answer.extend_from_slice(&block[..len]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
            ensure!(
                letter.starts_with(&member.answer),
                "it has sent {letter:?} and got {:?}",
                member.answer
            );
            Ok(!was_complete && member.answer.len() == LETTER)
        };
        serve().with_context(|| format!("connection {at} is broken"))
    }
}

fn letter(number: usize, round: u32) -> [u8; LETTER] {
    (u64::from(number as u32) << 32 | u64::from(round)).to_be_bytes()
}

fn begin_connection(server: SocketAddr) -> Result<TcpStream> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match connect(&socket, &server) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error).context("opening a connection"),
    }
}
