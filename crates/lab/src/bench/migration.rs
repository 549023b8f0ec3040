//! `holdfast bench migration`: the cost of moving flows between two runtimes under load.
//!
//! Each flow carries numbered datagrams at its pace; a ledger by flow shows whether a
//! datagram was lost or reordered. The plan is that of NFVactor's figure on migration.
//! The time counts only if every flow is where it was sent, and the ledger is clean.

use super::bench_box::{BenchBox, FIRST, MakeChain, SECOND, first_packet};
use super::median;
use super::traffic::{self, FRAME_LEN, percentile};
use holdfast_node::message::{Control, MemberState};
use holdfast_protection::Plan as Preset;
use holdfast_wire::NodeId;
use serde::Serialize;
use std::time::{Duration, Instant};

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Numbers of flows to move, with a pair of rows for each.
    pub flows: Vec<usize>,
    /// Rounds; the median counts.
    pub rounds: usize,
}

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// The protection.
    pub case: &'static str,
    /// Flows moved.
    pub flows: usize,
    /// Packets per second of all flows together during the move.
    pub packets_per_second: u64,
    /// Time from the order until the source had forgotten the last flow, ms: median over
    /// the rounds.
    pub milliseconds: f64,
    /// The same per flow, µs.
    pub microseconds_per_flow: f64,
    /// The same per flow without load, µs.
    pub idle_microseconds_per_flow: f64,
    /// The longest time of a packet of the flow in the box during the move, µs: median
    /// over the flows that had a packet.
    pub pause_p50_us: f64,
    /// The same, 99th percentile.
    pub pause_p99_us: f64,
    /// Packets sent during the moves, in all rounds.
    pub packets: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets that left after a later one of their flow.
    pub reordered: u64,
}

/// Packets per second of one flow.
const PACE: u64 = 10;
/// Limit of packets per second that one thread can make, carry and check beside the work.
const MOST: u64 = 200_000;
/// Packets that come in during one turn.
const BURST: u64 = 64;
/// Offset of the flow's number and the packet's in a frame: the payload.
const NUMBER_AT: usize = 42;

/// Moves flows under each protection, and returns the times.
///
/// # Errors
/// The move or the check failed; there is no result then.
pub fn run(plan: &Plan, make: MakeChain<'_>) -> Result<Vec<Row>, String> {
    if plan.flows.contains(&0) || plan.rounds == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    let protections = [("none", Preset::NONE), ("nfvactor", Preset::NFVACTOR)];
    let mut rows = Vec::new();
    for &flows in &plan.flows {
        for (case, preset) in protections {
            let rate = (flows as u64 * PACE).min(MOST);
            let rounds = (0..plan.rounds).map(|_| Bench::new(flows, make, preset)?.measure(rate));
            rows.push(row(case, flows, rate, &rounds.collect::<Result<Vec<Round>, String>>()?));
        }
    }
    Ok(rows)
}

fn row(case: &'static str, flows: usize, packets_per_second: u64, rounds: &[Round]) -> Row {
    let of = |what: fn(&Round) -> Duration| {
        median(&rounds.iter().map(|round| what(round).as_secs_f64()).collect::<Vec<f64>>())
    };
    let (took, idle) = (of(|round| round.took), of(|round| round.idle));
    let pause = |percent| {
        median(&rounds.iter().map(|round| percentile(&round.pauses, percent)).collect::<Vec<f64>>())
            / 1e3
    };
    Row {
        version: 2,
        case,
        flows,
        packets_per_second,
        milliseconds: took * 1e3,
        microseconds_per_flow: took * 1e6 / flows as f64,
        idle_microseconds_per_flow: idle * 1e6 / flows as f64,
        pause_p50_us: pause(50.0),
        pause_p99_us: pause(99.0),
        packets: rounds.iter().map(|round| round.packets).sum(),
        lost: rounds.iter().map(|round| round.lost).sum(),
        reordered: rounds.iter().map(|round| round.reordered).sum(),
    }
}

struct Round {
    took: Duration,
    /// Time without a load.
    idle: Duration,
    /// The longest time under way of each flow that had a packet, ns, in order.
    pauses: Vec<u64>,
    packets: u64,
    lost: u64,
    reordered: u64,
}

/// The record of each flow's packets.
struct Book {
    /// Per flow: the next number to send, and the next that is expected.
    sent: Vec<u32>,
    due: Vec<u32>,
    /// Time when the packet under way went in, ns; one packet at a time, because a flow's
    /// pace is slow.
    since: Vec<u64>,
    /// The longest time that a packet was under way, ns.
    pauses: Vec<u64>,
    reordered: u64,
    released: u64,
}

impl Book {
    fn new(flows: usize) -> Book {
        Book {
            sent: vec![1; flows],
            due: vec![0; flows],
            since: vec![0; flows],
            pauses: vec![0; flows],
            reordered: 0,
            released: 0,
        }
    }

    fn check(&mut self, now: u64, frame: &[u8]) {
        let number = |at: usize| {
            u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
        };
        let (flow, datagram) = (number(NUMBER_AT) as usize, number(NUMBER_AT + 4));
        self.released += 1;
        self.reordered += u64::from(datagram != self.due[flow]);
        self.due[flow] = datagram + 1;
        self.pauses[flow] = self.pauses[flow].max(now.saturating_sub(self.since[flow]));
    }
}

struct Bench {
    world: BenchBox,
    book: Book,
    next: usize,
    /// Number of the latest order.
    request: u32,
}

/// A flow's datagram of this number.
fn datagram(flow: usize, number: u32) -> [u8; FRAME_LEN] {
    let mut frame = first_packet(flow);
    traffic::write(&mut frame, NUMBER_AT, &(flow as u32).to_be_bytes());
    traffic::write(&mut frame, NUMBER_AT + 4, &number.to_be_bytes());
    frame
}

impl Bench {
    fn new(flows: usize, make: MakeChain<'_>, preset: Preset) -> Result<Bench, String> {
        let mut world = BenchBox::new(flows, make, &|| preset.build())?;
        let mut book = Book::new(flows);
        world.open(flows, |flow| datagram(flow, 0), |frame| book.check(0, frame))?;
        world.show(&[NodeId::SWITCH], [MemberState::Running; 2], 2);
        world.settle(Duration::from_millis(20), |_, _| {});
        (book.released, book.pauses) = (0, vec![0; flows]);
        Ok(Bench { world, book, next: 0, request: 0 })
    }

    /// Sends the next flow's next datagram.
    fn send_next(&mut self) {
        let flow = self.next;
        self.next = (self.next + 1) % self.book.sent.len();
        let number = self.book.sent[flow];
        self.book.since[flow] = self.world.now();
        if self.world.send(&datagram(flow, number)) {
            self.book.sent[flow] += 1;
        }
    }

    /// Moves all flows to the other runtime under this load, and returns the time.
    fn migrate(&mut self, packets_per_second: u64) -> Result<Duration, String> {
        let flows = self.book.sent.len();
        let (from, to) = if self.world.owned(0) == flows { (0, 1) } else { (1, 0) };
        let (source, target) = ([FIRST, SECOND][from], [FIRST, SECOND][to]);
        self.request += 1;
        let targets = vec![(target.node, target.incarnation)];
        let order = Control::Migrate {
            request: self.request,
            targets,
            limit: u64::MAX,
            selector: "any".to_owned(),
        };
        self.world.heard.clear();
        self.world.coordinator.send_control(source.node, &order);
        let started = Instant::now();
        let mut made = 0;
        let moved = loop {
            if let Some(moved) = self.moved() {
                break moved;
            }
            self.world.heard.clear();
            let elapsed = started.elapsed();
            if elapsed > Duration::from_secs(60) {
                return Err(format!(
                    "after a minute {} of {flows} flows were at the target",
                    self.world.owned(to)
                ));
            }
            let wanted = elapsed.as_micros() as u64 * packets_per_second / 1_000_000;
            for _ in 0..wanted.saturating_sub(made).min(BURST) {
                self.send_next();
                made += 1;
            }
            self.turn();
        };
        let took = started.elapsed();
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {
            self.turn();
        }
        if moved != flows as u64 || self.world.owned(from) != 0 || self.world.owned(to) != flows {
            let (source, target) = (self.world.owned(from), self.world.owned(to));
            return Err(format!("{source} flows are at the source and {target} at the target"));
        }
        Ok(took)
    }

    fn turn(&mut self) {
        let Bench { world, book, .. } = self;
        world.turn(&mut |now, frame| book.check(now, frame));
    }

    /// Flows moved, as the source tells when the order is carried out.
    fn moved(&self) -> Option<u64> {
        self.world.heard.iter().find_map(|message| match message {
            Control::Migrated { request, moved, refused: 0, last: true }
                if *request == self.request =>
            {
                Some(*moved)
            }
            _ => None,
        })
    }

    /// Moves the flows there and back once, so that everything needed for a move has been
    /// allocated. The timed moves go there without a load, and, after a move back, there
    /// with the load.
    fn measure(mut self, packets_per_second: u64) -> Result<Round, String> {
        self.migrate(0)?;
        self.migrate(0)?;
        let idle = self.migrate(0)?;
        self.migrate(0)?;
        let took = self.migrate(packets_per_second)?;
        let book = &mut self.book;
        let packets = book.sent.iter().map(|&sent| u64::from(sent) - 1).sum::<u64>();
        let lost = packets - book.released;
        if lost + book.reordered > 0 {
            return Err(format!("{lost} packets were lost and {} reordered", book.reordered));
        }
        let mut pauses: Vec<u64> = book.pauses.iter().copied().filter(|&pause| pause > 0).collect();
        pauses.sort_unstable();
        Ok(Round { took, idle, pauses, packets, lost, reordered: book.reordered })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 300 flows move, with and without protection, and nothing is lost.
    #[test]
    fn flows_move_and_nothing_is_lost() {
        let chain = || crate::bench::chains::chain(300);
        let rows = run(&Plan { flows: vec![300], rounds: 1 }, &chain).unwrap();
        assert_eq!(rows.iter().map(|row| row.case).collect::<Vec<_>>(), ["none", "nfvactor"]);
        for row in rows {
            assert_eq!(
                (row.flows, row.packets_per_second, row.lost, row.reordered),
                (300, 3000, 0, 0)
            );
            assert!(row.microseconds_per_flow > 0.0 && row.idle_microseconds_per_flow > 0.0);
        }
    }

    /// A packet that leaves behind a later one of its flow is found.
    #[test]
    fn a_reordered_packet_is_found() {
        let mut book = Book::new(2);
        for (flow, number) in [(0, 0), (1, 0), (0, 2), (0, 1)] {
            book.check(1, &datagram(flow, number));
        }
        assert_eq!((book.released, book.reordered), (4, 2));
    }
}
