//! `holdfast bench controls`: the cost of a control message of four bytes on each
//! transport between a runtime and a state server.
//!
//! Two threads run on two cores, each with its side of the transport, and neither sleeps.
//! First a message goes there and back, again and again; then messages go one way at full
//! speed. Every case begins with numbered messages both ways, and checks that each
//! arrives once and in order; messages during the timed part are checked too. On the
//! fabric the endpoints' frames go from thread to thread directly: in a box the manager
//! carries them, which takes two more steps.

use holdfast_io::control_transport::libfabric::{self, LibfabricTransport};
use holdfast_io::control_transport::shared_memory::{SharedMemoryTransport, Side};
use holdfast_io::control_transport::{Address, ControlTransport, Driver};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use serde::Serialize;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

const SERVER: Peer = Peer { node: NodeId::new(7), incarnation: 1 };
const RUNTIME: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
/// The providers of libfabric that every machine has.
const PROVIDERS: [&str; 2] = ["tcp;ofi_rxm", "net"];
/// Words that are sent at once.
const BURST: usize = 200;
const KIND: u8 = 40;
/// Capacity of the channel of frames between the threads.
const FRAMES: usize = 1024;
/// Time limit of every wait.
const TIMEOUT: Duration = Duration::from_secs(60);
/// After this many looks in vain the thread yields the processor.
const SPINS: u32 = 200;

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Number of round trips.
    pub round_trips: usize,
    /// Messages one way.
    pub messages: usize,
}

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `fabric`, `shared-memory`, or `libfabric` with the provider.
    pub transport: String,
    /// Median of the round-trip times, µs.
    pub round_trip_us_p50: f64,
    /// 99th percentile of the round-trip times, µs.
    pub round_trip_us_p99: f64,
    /// Messages per second, one way.
    pub messages_per_second: f64,
}

/// A side of a transport.
trait End: Send {
    /// Sends as many words as there is room for, and returns their number.
    fn send(&mut self, words: &[u32]) -> Result<usize, String>;
    /// Takes the words that have arrived.
    fn receive(&mut self, into: &mut Vec<u32>) -> Result<(), String>;
}

/// The server's side and the runtime's.
type Pair = (Box<dyn End>, Box<dyn End>);

struct ByWords<T> {
    driver: T,
    other: NodeId,
}

impl<T: Driver + Send> End for ByWords<T> {
    fn send(&mut self, words: &[u32]) -> Result<usize, String> {
        let count = self.driver.room(self.other).min(words.len());
        self.driver.send(self.other, &words[..count]);
        self.driver.publish();
        Ok(count)
    }

    fn receive(&mut self, into: &mut Vec<u32>) -> Result<(), String> {
        let mut some = [0; BURST];
        let count =
            self.driver.receive(self.other, &mut some).map_err(|_| "the way is lost".to_owned())?;
        into.extend_from_slice(&some[..count]);
        self.driver.publish();
        Ok(())
    }
}

struct ByFabric {
    fabric: Fabric,
    other: Peer,
    frames: (SyncSender<Vec<u8>>, Receiver<Vec<u8>>),
    began: Instant,
}

impl ByFabric {
    fn pair() -> (ByFabric, ByFabric) {
        let ((to_server, at_server), (to_runtime, at_runtime)) =
            (sync_channel(FRAMES), sync_channel(FRAMES));
        let end = |me, other, frames| {
            let mut fabric = Fabric::new(me, FabricConfig::default());
            fabric.set_peer(other);
            ByFabric { fabric, other, frames, began: Instant::now() }
        };
        (
            end(SERVER, RUNTIME, (to_runtime, at_server)),
            end(RUNTIME, SERVER, (to_server, at_runtime)),
        )
    }

    fn carry(&mut self) {
        let (frames, now) = (&self.frames.0, self.began.elapsed().as_nanos() as u64 + 1);
        self.fabric.poll_transmit(now, |frame| frames.try_send(frame.to_vec()).is_ok());
    }
}

impl End for ByFabric {
    fn send(&mut self, words: &[u32]) -> Result<usize, String> {
        let mut body = [0; 4 * BURST];
        let words = &words[..words.len().min(BURST)];
        for (place, word) in body.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        let body = &body[..4 * words.len()];
        let is_sent = self.fabric.room(self.other) >= body.len()
            && self.fabric.send(self.other.node, KIND, body).is_ok();
        self.carry();
        Ok(if is_sent { words.len() } else { 0 })
    }

    fn receive(&mut self, into: &mut Vec<u32>) -> Result<(), String> {
        let now = self.began.elapsed().as_nanos() as u64 + 1;
        while let Ok(frame) = self.frames.1.try_recv() {
            self.fabric
                .handle_frame(&frame, now)
                .map_err(|reason| format!("a frame was refused: {reason}"))?;
        }
        for (_, body) in self.fabric.inbox.records() {
            into.extend(
                body.chunks_exact(4)
                    .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]])),
            );
        }
        self.fabric.inbox.clear();
        self.carry();
        Ok(())
    }
}

/// Looks again and again until `count` words are there.
fn wait(end: &mut dyn End, got: &mut Vec<u32>, count: usize) -> Result<(), String> {
    let (mut looks, begin) = (0u32, Instant::now());
    while got.len() < count {
        end.receive(got)?;
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(SPINS) {
            std::thread::yield_now();
            if begin.elapsed() > TIMEOUT {
                return Err(format!("{} of {count} messages have come", got.len()));
            }
        } else {
            std::hint::spin_loop();
        }
    }
    Ok(())
}

/// A message's number as a word that uses all bits.
fn word(number: usize) -> u32 {
    (number as u32).wrapping_mul(0x9e37_79b9)
}

fn send_all(end: &mut dyn End, words: &[u32]) -> Result<(), String> {
    let (mut done, begin) = (0, Instant::now());
    while done < words.len() {
        done += end.send(&words[done..])?;
        if begin.elapsed() > TIMEOUT {
            return Err(format!("{done} of {} messages were taken", words.len()));
        }
    }
    Ok(())
}

/// Takes `count` messages and checks that they arrive in order.
fn take_all(end: &mut dyn End, count: usize) -> Result<(), String> {
    let (mut got, mut next) = (Vec::with_capacity(2 * BURST), 0);
    while next < count {
        wait(end, &mut got, 1)?;
        for one in got.drain(..) {
            if one != word(next) {
                return Err(format!("message {next} is not what was sent"));
            }
            next += 1;
        }
    }
    if next == count {
        Ok(())
    } else {
        Err(format!("{next} messages have come, and {count} were sent"))
    }
}

fn send_numbers(end: &mut dyn End, count: usize) -> Result<(), String> {
    let (mut next, mut nothing) = (0, Vec::new());
    while next < count {
        let burst: [u32; BURST] = core::array::from_fn(|at| word(next + at));
        let left = (count - next).min(BURST);
        send_all_looking(end, &burst[..left], &mut nothing)?;
        next += left;
    }
    Ok(())
}

/// Sends all words, and looks for received ones meanwhile: acknowledgements of the
/// transport itself come back.
fn send_all_looking(end: &mut dyn End, words: &[u32], got: &mut Vec<u32>) -> Result<(), String> {
    let (mut done, begin) = (0, Instant::now());
    while done < words.len() {
        done += end.send(&words[done..])?;
        end.receive(got)?;
        if !got.is_empty() {
            return Err("something came that nobody has sent".to_owned());
        }
        if begin.elapsed() > TIMEOUT {
            return Err(format!("{done} of {} messages were taken", words.len()));
        }
    }
    Ok(())
}

/// The server's thread: takes and sends numbered messages, echoes the round trips, then
/// takes the one-way messages. A last message says that all have arrived.
fn serve(mut end: Box<dyn End>, plan: &Plan) -> Result<(), String> {
    let checked = plan.messages.min(100_000);
    take_all(&mut *end, checked)?;
    send_numbers(&mut *end, checked)?;
    let mut got = Vec::with_capacity(2 * BURST);
    for _ in 0..plan.round_trips {
        wait(&mut *end, &mut got, 1)?;
        send_all(&mut *end, &got)?;
        got.clear();
    }
    take_all(&mut *end, plan.messages)?;
    send_all(&mut *end, &[word(0)])?;
    // Sent messages may wait until this side looks again.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(50) && end.receive(&mut got).is_ok() {}
    Ok(())
}

fn measure(mut end: Box<dyn End>, plan: &Plan) -> Result<(Vec<u64>, f64), String> {
    let checked = plan.messages.min(100_000);
    send_numbers(&mut *end, checked)?;
    take_all(&mut *end, checked)?;
    let (mut got, mut times) =
        (Vec::with_capacity(2 * BURST), Vec::with_capacity(plan.round_trips));
    for number in 0..plan.round_trips {
        let begin = Instant::now();
        send_all(&mut *end, &[word(number)])?;
        wait(&mut *end, &mut got, 1)?;
        times.push(begin.elapsed().as_nanos() as u64);
        if got.drain(..).ne([word(number)]) {
            return Err(format!("round trip {number} brought back something else"));
        }
    }
    let begin = Instant::now();
    send_numbers(&mut *end, plan.messages)?;
    take_all(&mut *end, 1)?;
    Ok((times, plan.messages as f64 / begin.elapsed().as_secs_f64()))
}

fn row(transport: String, (server, runtime): Pair, plan: &Plan) -> Result<Row, String> {
    let outcome = std::thread::scope(|scope| {
        let serving = scope.spawn(|| serve(server, plan));
        let measured = measure(runtime, plan);
        let served =
            serving.join().unwrap_or_else(|_| Err("the server's thread has ended".to_owned()));
        // The side that failed first knows more about the cause.
        measured.and_then(|measured| served.map(|()| measured))
    });
    let (mut times, messages_per_second) = outcome.map_err(|why| format!("{transport}: {why}"))?;
    times.sort_unstable();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)] as f64 / 1000.0;
    Ok(Row {
        version: 1,
        transport,
        round_trip_us_p50: at(50),
        round_trip_us_p99: at(99),
        messages_per_second,
    })
}

/// Both sides' ends, tied as hello and welcome tie them.
fn tied<T: Driver + Send + 'static>(mut server: T, mut runtime: T) -> Result<Pair, String> {
    let refused = |_| "the ends cannot be tied".to_owned();
    let hello: Address = ControlTransport::open(&mut runtime, SERVER.node).map_err(refused)?;
    let welcome = ControlTransport::open(&mut server, RUNTIME.node).map_err(refused)?;
    server.connect(RUNTIME.node, &hello).map_err(refused)?;
    runtime.connect(SERVER.node, &welcome).map_err(refused)?;
    Ok((
        Box::new(ByWords { driver: server, other: RUNTIME.node }),
        Box::new(ByWords { driver: runtime, other: SERVER.node }),
    ))
}

/// Runs the plan. `skip` gets the requirements that this machine lacks for a transport.
///
/// # Errors
/// The result is wrong; the error says how.
pub fn run(plan: &Plan, mut skip: impl FnMut(&str)) -> Result<Vec<Row>, String> {
    if plan.messages == 0 || plan.round_trips == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    let (server, runtime) = ByFabric::pair();
    let mut rows = vec![row("fabric".to_owned(), (Box::new(server), Box::new(runtime)), plan)?];
    let memory = |side| SharedMemoryTransport::new(side).map_err(|error| error.to_string());
    rows.push(row(
        "shared-memory".to_owned(),
        tied(memory(Side::Server)?, memory(Side::Runtime)?)?,
        plan,
    )?);
    for provider in PROVIDERS {
        if let Err(why) = libfabric::prepare(provider) {
            skip(&why);
            continue;
        }
        let side = || LibfabricTransport::new(provider, |_| {});
        rows.push(row(format!("libfabric {provider}"), tied(side()?, side()?)?, plan)?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every transport delivers every message, once and in order, and the figures are
    /// plausible.
    #[test]
    fn every_way_is_whole() {
        let rows = run(&Plan { round_trips: 20, messages: 2000 }, |_| {}).unwrap();
        assert!(
            rows.len() >= 2
                && rows[0].transport == "fabric"
                && rows[1].transport == "shared-memory"
        );
        assert!(
            rows.iter().all(|row| row.round_trip_us_p50 > 0.0 && row.messages_per_second > 0.0)
        );
        assert!(run(&Plan { round_trips: 0, messages: 1 }, |_| {}).is_err());
    }

    /// A missing message is found.
    #[test]
    fn what_is_missing_is_found() {
        let (mut server, mut runtime) = ByFabric::pair();
        let serving = std::thread::spawn(move || take_all(&mut server, 3));
        send_all(&mut runtime, &[word(0), word(2), word(3)]).unwrap();
        while !serving.is_finished() {
            runtime.receive(&mut Vec::new()).unwrap();
        }
        assert!(serving.join().unwrap().unwrap_err().contains("message 1"));
    }
}
