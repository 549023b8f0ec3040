//! Bytes per second of functions that read payload, beside the libraries.
//!
//! `ips` searches a TCP stream of mixed payload (words, base64, random bytes) for 100,
//! 1,000 and 10,000 patterns, each of which begins as words of the payload do. Beside it
//! the bare Aho-Corasick automaton of the same kind steps through the same segments, and
//! `find_iter` through the whole stream. `http` reads a connection of requests, pipelined
//! eight at a time, and their responses; beside it httparse parses the same heads in one
//! buffer, and the bodies are skipped. `dpi` sees connections of one request and its
//! response; beside it nDPI gets the same packets until it has decided. The functions
//! also check every segment's TCP checksum and keep a flow's state, which the libraries
//! do not.
//!
//! First every segment must pass, and for some of the patterns a segment that completes
//! the pattern must be dropped; every request must be counted, and every connection's
//! protocol be known.

use crate::bench::median;
use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{AhoCorasick, Anchored, MatchKind, dfa::DFA};
use holdfast_functions::catalog;
use holdfast_ndpi::{Inspected, Library};
use holdfast_nf::bench::frames;
use holdfast_nf::{Chain, Context, Direction, Outcome, Position, SharedField};
use holdfast_sim::Random;
use holdfast_wire::header::tcp_flags::{ACK, PSH, SYN};
use holdfast_wire::{FlowKey, MemoryPool, Packet, PacketPool};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Instant;

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Payload of a stream, bytes.
    pub bytes: usize,
    /// Streams per round and case.
    pub streams: usize,
    /// Rounds; the median counts.
    pub rounds: usize,
}

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// The function.
    pub function: &'static str,
    /// Patterns; 0 for none.
    pub patterns: usize,
    /// Payload per second on one core, Gbit/s: median over the rounds.
    pub gbps: f64,
    /// The same of the library by itself.
    pub bare_gbps: f64,
    /// Median of the ratios of `gbps` to `bare_gbps`, taken round by round.
    pub ratio: f64,
    /// The same payload in one piece by the library's own search, for information; 0 if
    /// there is none.
    pub whole_gbps: f64,
    /// Allocations of the function per segment.
    pub allocations_per_segment: f64,
}

const CLIENT: frames::End = ([10, 0, 0, 2], 1025);
const SERVER: frames::End = ([192, 0, 2, 80], 80);
/// Payload of a full segment, bytes.
const SEGMENT: usize = 1448;
/// Patterns, by case.
const PATTERNS: [usize; 3] = [100, 1_000, 10_000];
/// The greatest number of pattern bytes for which `ips` has a dense automaton.
const MOST_DENSE: usize = 8192;
/// Patterns whose segment must be dropped before times are taken.
const TRIED: usize = 20;
/// Requests in one piece.
const PIPELINE: usize = 8;
const BODY: usize = 512;

/// A TCP connection through a function.
struct Stream {
    chain: Chain,
    cx: Context,
    /// The flow's state, aligned.
    block: Vec<u128>,
    now: u64,
    /// Times that a pass plays the connection.
    times: usize,
    /// Packets from the handshake on, each with its key.
    packets: Vec<(Direction, FlowKey, Packet)>,
    /// The sequence number of each side's next byte.
    next: [u32; 2],
}

impl Stream {
    fn new(name: &str, config: &Value, pool: &mut dyn PacketPool) -> Result<Stream, String> {
        let chain = catalog::chain(&[(name.to_owned(), config.clone())])
            .map_err(|(_, error)| format!("{}: {}", error.path, error.message))?;
        let block = vec![0; chain.layout().size.div_ceil(size_of::<u128>())];
        let (cx, packets) = (Context::new(7), Vec::new());
        let mut stream = Stream { chain, cx, block, now: 1, times: 1, packets, next: [1, 1] };
        stream.add(Direction::Forward, SYN, &[], pool)?;
        stream.add(Direction::Reverse, SYN | ACK, &[], pool)?;
        stream.add(Direction::Forward, ACK, &[], pool)?;
        Ok(stream)
    }

    /// Adds payload, in segments. The other side acknowledges every second one.
    fn say(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        pool: &mut dyn PacketPool,
    ) -> Result<(), String> {
        let back = match direction {
            Direction::Forward => Direction::Reverse,
            Direction::Reverse => Direction::Forward,
        };
        for (at, segment) in bytes.chunks(SEGMENT).enumerate() {
            self.add(direction, PSH | ACK, segment, pool)?;
            if at % 2 == 1 {
                self.add(back, ACK, &[], pool)?;
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        direction: Direction,
        flags: u8,
        payload: &[u8],
        pool: &mut dyn PacketPool,
    ) -> Result<(), String> {
        let way = direction as usize;
        let (source, destination) = if way == 0 { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
        let acknowledged = if flags & ACK != 0 { self.next[1 - way] } else { 0 };
        let frame = frames::tcp(source, destination, flags, self.next[way], acknowledged, payload);
        self.next[way] += payload.len() as u32 + u32::from(flags & SYN != 0);
        let mut packet = pool.take().ok_or("no buffer left")?;
        let is_sound = packet.copy_from(&frame) && packet.parse().is_ok();
        let key = FlowKey::of(&packet).filter(|_| is_sound).ok_or("a packet is not sound")?;
        self.packets.push((direction, key, packet));
        Ok(())
    }

    /// Plays the connection from its first packet, and ends the flow. Returns how many
    /// packets passed before one did not.
    fn play(&mut self) -> usize {
        self.block.fill(0);
        let len = self.chain.layout().size;
        let block = &mut zerocopy::IntoBytes::as_mut_bytes(self.block.as_mut_slice())[..len];
        let (mut position, mut passed) = (Position::OPENING, 0);
        for (direction, key, packet) in &mut self.packets {
            self.now += 1;
            self.cx.begin(self.now, *key, *direction);
            if self.chain.run(packet, block, position, &mut self.cx) != Outcome::Forward {
                break;
            }
            (position, passed) = (Position::START, passed + 1);
        }
        self.chain.expire(block);
        passed
    }

    /// Plays the connection as often as it is due; all of it must pass.
    fn pass(&mut self) -> Result<(), String> {
        for _ in 0..self.times {
            let (passed, all) = (self.play(), self.packets.len());
            if passed != all {
                return Err(format!("packet {passed} of {all} did not pass"));
            }
        }
        Ok(())
    }

    /// The sum of the function's counters of this name.
    fn counted(&mut self, wanted: &str) -> u64 {
        let mut counted = 0;
        self.chain.functions_mut()[0].shared().visit(&mut |_, field| {
            if let SharedField::Counters(counters) = field {
                let its = counters.report().filter(|(name, _)| *name == wanted);
                counted += its.map(|(_, count)| count).sum::<u64>();
            }
        });
        counted
    }

    /// Bytes of payload of a pass.
    fn bytes(&self) -> usize {
        self.times * self.packets.iter().map(|(.., packet)| packet.len() - 54).sum::<usize>()
    }
}

/// Words of the mixed payload.
const WORDS: [&str; 16] = [
    "select",
    "account",
    "password",
    "<div class=",
    "function",
    "return",
    "content",
    "admin",
    "GET /index",
    "cookie=",
    "HTTP/1.1",
    "shell",
    "union",
    "javascript",
    "the",
    "of",
];

fn mixed(bytes: usize, random: &mut Random) -> Vec<u8> {
    let mut payload = Vec::with_capacity(bytes + SEGMENT);
    while payload.len() < bytes {
        let kind = random.range(0, 4);
        let end = payload.len() + 512;
        while payload.len() < end {
            match kind {
                0 => payload.push(random.range(0, 256) as u8),
                1 => payload.push(b"ABCDEFGHIJKLMNOPabcdefgh01234+/"[random.range(0, 31) as usize]),
                _ => {
                    payload.extend_from_slice(WORDS[random.range(0, 16) as usize].as_bytes());
                    payload.push(b' ');
                }
            }
        }
    }
    payload.truncate(bytes);
    payload
}

/// Different patterns of a word and a few letters that do not follow it in the payload.
fn patterns(count: usize, random: &mut Random) -> Vec<String> {
    let mut patterns: Vec<String> = Vec::with_capacity(count);
    for at in 0..count {
        let word = WORDS[random.range(0, 14) as usize].trim_start_matches("<div ");
        patterns.push(format!("{word}~{at:x}"));
    }
    patterns
}

/// The library's automaton, of the kind that the function takes.
enum Bare {
    Dense(DFA),
    Compact(NFA),
}

impl Bare {
    fn new(patterns: &[String]) -> Result<Bare, String> {
        let wrong = |error: aho_corasick::BuildError| error.to_string();
        if patterns.iter().map(String::len).sum::<usize>() <= MOST_DENSE {
            let mut builder = DFA::builder();
            builder.match_kind(MatchKind::Standard).prefilter(false);
            builder.build(patterns).map(Bare::Dense).map_err(wrong)
        } else {
            let mut builder = NFA::builder();
            builder.match_kind(MatchKind::Standard).prefilter(false);
            builder.build(patterns).map(Bare::Compact).map_err(wrong)
        }
    }

    /// The number of matches.
    fn step(&self, payload: &[u8]) -> usize {
        match self {
            Bare::Dense(automaton) => step(automaton, payload),
            Bare::Compact(automaton) => step(automaton, payload),
        }
    }
}

fn step(automaton: &impl Automaton, payload: &[u8]) -> usize {
    let Ok(mut state) = automaton.start_state(Anchored::No) else { return 0 };
    let mut matches = 0;
    for segment in payload.chunks(SEGMENT) {
        for &byte in segment {
            state = automaton.next_state(Anchored::No, state, byte);
            if automaton.is_special(state) && automaton.is_match(state) {
                matches += automaton.match_len(state);
            }
        }
    }
    matches
}

struct Case {
    function: &'static str,
    patterns: usize,
    stream: Stream,
    /// Payload of the stream, both directions.
    bytes: usize,
    bare: Box<dyn FnMut() -> usize>,
    whole: Option<Box<dyn FnMut() -> usize>>,
    found: [Vec<f64>; 3],
    allocations: u64,
}

impl Case {
    fn ips(count: usize, bytes: usize, pool: &mut dyn PacketPool) -> Result<Case, String> {
        let mut random = Random::new(count as u64);
        let payload = mixed(bytes, &mut random);
        let patterns = patterns(count, &mut random);
        let rule = |(at, pattern): (usize, &String)| {
            format!("drop tcp any any -> any any (content:\"{pattern}\"; sid:{};)", at + 1)
        };
        let rules: Vec<String> = patterns.iter().enumerate().map(rule).collect();
        let config = json!({ "rules": rules });
        for _ in 0..TRIED {
            let pattern = patterns[random.range(0, count as u64) as usize].as_bytes();
            let mut stream = Stream::new("ips", &config, pool)?;
            let (begin, end) = pattern.split_at(random.range(1, pattern.len() as u64) as usize);
            stream.say(Direction::Forward, begin, pool)?;
            stream.say(Direction::Forward, end, pool)?;
            let passed = stream.play();
            stream.packets.drain(..).for_each(|(.., packet)| pool.put(packet));
            if passed != 4 {
                return Err(format!("{pattern:?}: {passed} packets passed, not 4"));
            }
        }
        let mut stream = Stream::new("ips", &config, pool)?;
        stream.say(Direction::Forward, &payload, pool)?;
        stream.pass()?;
        let (bare, whole) = (
            Bare::new(&patterns)?,
            AhoCorasick::new(&patterns).map_err(|error| error.to_string())?,
        );
        let all: String = patterns.concat();
        if bare.step(&payload) != 0 || bare.step(all.as_bytes()) < count {
            return Err("the bare automaton finds what it should not, or not all".to_owned());
        }
        let again = payload.clone();
        Ok(Case {
            function: "ips",
            patterns: count,
            stream,
            bytes,
            bare: Box::new(move || bare.step(&payload)),
            whole: Some(Box::new(move || whole.find_iter(&again).count())),
            found: Default::default(),
            allocations: 0,
        })
    }

    fn http(bytes: usize, pool: &mut dyn PacketPool) -> Result<Case, String> {
        let mut random = Random::new(80);
        let config = json!({ "rules": ["deny path /admin*"] });
        let mut stream = Stream::new("http", &config, pool)?;
        let (mut requests, mut responses) = (Vec::new(), Vec::new());
        let mut count = 0;
        while requests.len() + responses.len() < bytes {
            let (asked, answered) = (requests.len(), responses.len());
            for _ in 0..PIPELINE {
                requests.extend_from_slice(&request(count, &mut random));
                responses.extend_from_slice(&response(count));
                count += 1;
            }
            stream.say(Direction::Forward, &requests[asked..], pool)?;
            stream.say(Direction::Reverse, &responses[answered..], pool)?;
        }
        stream.pass()?;
        // The counter of requests that no rule matched.
        let counted = stream.counted("default");
        let parse = move || parse(&requests, &responses);
        if counted != count as u64 || parse() != 2 * count {
            return Err(format!("{counted} and {} of {count} requests were read", parse()));
        }
        Ok(Case {
            function: "http",
            patterns: 0,
            bytes: stream.bytes(),
            stream,
            bare: Box::new(parse),
            whole: None,
            found: Default::default(),
            allocations: 0,
        })
    }

    fn dpi(bytes: usize, pool: &mut dyn PacketPool) -> Result<Case, String> {
        const RULE: &str = "count category Web";
        let mut random = Random::new(443);
        let mut stream = Stream::new("dpi", &json!({ "rules": [RULE] }), pool)?;
        stream.say(Direction::Forward, &request(0, &mut random), pool)?;
        stream.say(Direction::Reverse, &response(0), pool)?;
        stream.times = (bytes / stream.bytes()).max(1);
        stream.pass()?;
        let known = stream.counted(RULE);
        if known != stream.times as u64 {
            return Err(format!("{known} of {} connections are of the web", stream.times));
        }
        let ip = |(.., packet): &(Direction, FlowKey, Packet)| packet.bytes()[14..].to_vec();
        let syn = ip(&stream.packets[0]);
        let with_data = stream.packets.iter().filter(|(.., packet)| packet.len() > 54);
        let packets: Vec<Vec<u8>> = with_data.map(ip).collect();
        let mut table = Library::open()?.table(64, 1 << 20);
        let (times, mut flow) = (stream.times, 0u64);
        let mut inspect = move || {
            let mut decided = 0;
            for _ in 0..times {
                flow = flow.wrapping_add(0x9e37_79b9_7f4a_7c15);
                for (seen, packet) in (0..).zip(&packets) {
                    let ahead = (seen == 0).then_some(syn.as_slice());
                    let verdict = table.inspect(Inspected {
                        flow,
                        step: seen,
                        ms: 1,
                        ip: packet,
                        ahead,
                        is_last: false,
                    });
                    if verdict.is_some_and(|verdict| verdict.is_final) {
                        break;
                    }
                }
                decided += 1;
                table.forget(flow);
            }
            decided
        };
        inspect();
        Ok(Case {
            function: "dpi",
            patterns: 0,
            bytes: stream.bytes(),
            stream,
            bare: Box::new(inspect),
            whole: None,
            found: Default::default(),
            allocations: 0,
        })
    }

    fn round(&mut self, streams: usize, allocations: &dyn Fn() -> u64) -> Result<(), String> {
        let bits = (self.bytes * streams * 8) as f64;
        let gbps = |start: Instant| bits / start.elapsed().as_nanos() as f64;
        let (before, start) = (allocations(), Instant::now());
        for _ in 0..streams {
            self.stream.pass()?;
        }
        self.found[0].push(gbps(start));
        self.allocations += allocations() - before;
        let readers = [Some(&mut self.bare), self.whole.as_mut()];
        for (found, read) in self.found[1..].iter_mut().zip(readers) {
            let Some(read) = read else { continue };
            let start = Instant::now();
            for _ in 0..streams {
                core::hint::black_box(read());
            }
            found.push(gbps(start));
        }
        Ok(())
    }

    fn row(&self, plan: &Plan) -> Row {
        let [own, bare, whole] = &self.found;
        let ratios: Vec<f64> = own.iter().zip(bare).map(|(own, bare)| own / bare).collect();
        let segments = self.stream.packets.len() * self.stream.times * plan.streams * plan.rounds;
        Row {
            version: 1,
            function: self.function,
            patterns: self.patterns,
            gbps: median(own),
            bare_gbps: median(bare),
            ratio: median(&ratios),
            whole_gbps: if whole.is_empty() { 0.0 } else { median(whole) },
            allocations_per_segment: self.allocations as f64 / segments.max(1) as f64,
        }
    }
}

fn request(number: usize, random: &mut Random) -> Vec<u8> {
    let session = random.range(1 << 40, 1 << 41);
    format!(
        "GET /catalog/{number}/items?page={} HTTP/1.1\r\nHost: shop.example.com\r\nUser-Agent: \
         Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\nAccept: \
         text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\nAccept-Language: \
         en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate\r\nCookie: session={session:x}\r\n\
         Connection: keep-alive\r\n\r\n",
        number % 7
    )
    .into_bytes()
}

fn response(number: usize) -> Vec<u8> {
    let mut response = format!(
        "HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Type: text/html\r\nETag: \
         \"{number:x}\"\r\nContent-Length: {BODY}\r\nConnection: keep-alive\r\n\r\n"
    )
    .into_bytes();
    response.resize(response.len() + BODY, b'x');
    response
}

/// The number of heads in both directions.
fn parse(mut requests: &[u8], mut responses: &[u8]) -> usize {
    let mut count = 0;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let Ok(httparse::Status::Complete(len)) =
            httparse::Request::new(&mut headers).parse(requests)
        else {
            break;
        };
        requests = &requests[len..];
        count += 1;
    }
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let Ok(httparse::Status::Complete(len)) =
            httparse::Response::new(&mut headers).parse(responses)
        else {
            break;
        };
        responses = &responses[(len + BODY).min(responses.len())..];
        count += 1;
    }
    count
}

/// Runs the plan. `allocations` reads the process's count of allocations.
///
/// # Errors
/// The result is wrong; the error says how.
pub fn run(plan: &Plan, allocations: &dyn Fn() -> u64) -> Result<Vec<Row>, String> {
    if plan.bytes == 0 || plan.streams == 0 || plan.rounds == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    // A buffer for each segment and its acknowledgement, in every case.
    let segments = (plan.bytes / SEGMENT + 64) * 3 + plan.bytes / 256;
    let mut pool = MemoryPool::new((PATTERNS.len() + 1) * segments);
    let mut cases = Vec::new();
    for count in PATTERNS {
        let case = Case::ips(count, plan.bytes, &mut pool);
        cases.push(case.map_err(|error| format!("ips with {count} patterns: {error}"))?);
    }
    cases.push(Case::http(plan.bytes, &mut pool).map_err(|error| format!("http: {error}"))?);
    cases.push(Case::dpi(plan.bytes, &mut pool).map_err(|error| format!("dpi: {error}"))?);
    for _ in 0..plan.rounds {
        for case in &mut cases {
            case.round(plan.streams, allocations)?;
        }
    }
    Ok(cases.iter().map(|case| case.row(plan)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_read_as_the_libraries_read_it() {
        let plan = Plan { bytes: 40_000, streams: 1, rounds: 1 };
        let rows = run(&plan, &|| 0).expect("it is measured");
        let cases: Vec<_> = rows.iter().map(|row| (row.function, row.patterns)).collect();
        let ips = PATTERNS.map(|patterns| ("ips", patterns));
        assert_eq!(cases, [&ips[..], &[("http", 0), ("dpi", 0)]].concat());
        assert!(rows.iter().all(|row| row.gbps > 0.0 && row.bare_gbps > 0.0));
        assert!(run(&Plan { bytes: 0, ..plan }, &|| 0).is_err());
    }
}
