//! `holdfast bench takeover`: how long no packet leaves when the worker of a runtime with
//! a local standby is killed.
//!
//! The runtime's processes are those of a box: keeper, worker, standby. This process is
//! manager and switch: it sends numbered packets at a steady rate and kills the worker
//! again and again. A ledger over all kills finds packets that were lost, came twice, or
//! left behind a later one of their flow; times count only if there are none.

use super::PlaysOnce;
use super::bench_box::MakeChain;
use super::served::{self, Functions, Served};
use super::traffic::{self, FRAME_LEN, percentile};
use holdfast_sim::Random;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::json;
use std::sync::atomic::Ordering;

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Kills of each case.
    pub kills: usize,
    /// Flows.
    pub flows: usize,
    /// Packets per second.
    pub packets_per_second: u64,
}

/// A row of the result. Times in µs.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `apart`: manager and switch have one processor, and the runtime's processes
    /// another; `any`: the kernel decides.
    pub processors: &'static str,
    /// The time of this row. From the kill until a packet leaves, or until the standby
    /// has the state; from the beginning of the dead worker's last turn until a packet
    /// leaves; between two packets that leave; the longest time of a packet under way
    /// until there is a standby again.
    pub case: &'static str,
    /// Kills.
    pub kills: usize,
    /// Flows.
    pub flows: usize,
    /// Packets per second.
    pub packets_per_second: u64,
    /// Packets in total.
    pub packets: u64,
    /// Median, µs.
    pub p50_us: f64,
    /// 90th percentile over the kills, µs.
    pub p90_us: f64,
    /// 99th percentile, µs.
    pub p99_us: f64,
    /// Maximum, µs.
    pub max_us: f64,
    /// Packets that did not come out.
    pub lost: u64,
    /// Packets that came out twice, or behind a later one of their flow.
    pub doubled_or_late: u64,
}

/// Time limit for steps that usually take microseconds, ns.
const LIMIT: u64 = 10_000_000_000;
/// Offset of a packet's number.
const NUMBER_AT: usize = 42;
/// A kill comes at a random time within this interval, ns.
const SPREAD: u64 = 2_000_000;

/// The next expected packet of each flow.
struct Ledger {
    next: Vec<u64>,
    lost: u64,
    doubled_or_late: u64,
}

impl Ledger {
    fn new(flows: usize) -> Ledger {
        Ledger { next: (0..flows as u64).collect(), lost: 0, doubled_or_late: 0 }
    }

    /// Returns the packet's number.
    fn take(&mut self, frame: &[u8]) -> u64 {
        let number = frame
            .get(NUMBER_AT..NUMBER_AT + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(u64::MAX, u64::from_be_bytes);
        let flows = self.next.len() as u64;
        let next = &mut self.next[(number % flows) as usize];
        if number < *next {
            self.doubled_or_late += 1;
            return number;
        }
        self.lost += (number - *next) / flows;
        *next = number.saturating_add(flows);
        number
    }

    /// Closes the ledger after `sent` packets: counts missing ones that no later packet
    /// of their flow has shown.
    fn close(&mut self, sent: u64) {
        let flows = self.next.len() as u64;
        self.lost +=
            self.next.iter().map(|next| sent.saturating_sub(*next).div_ceil(flows)).sum::<u64>();
    }
}

/// The times of one kill, ns.
#[derive(Clone, Copy, Default)]
struct Times {
    last_turn: u64,
    last_out: u64,
    killed: u64,
    taken_over: u64,
    first_out: u64,
    /// The longest time of a packet under way, from when it was due, until there was a
    /// standby again.
    longest: u64,
}

struct Bench {
    served: Served,
    frames: Vec<[u8; FRAME_LEN]>,
    ledger: Ledger,
    interval: f64,
    sends: bool,
    began: u64,
    sent: u64,
    turns: u64,
    turned_at: u64,
    out_at: u64,
    longest: u64,
}

impl Bench {
    /// Looks at everything once. Returns the time.
    #[inline]
    fn step(&mut self) -> u64 {
        let now = self.served.now();
        let turns = self.served.turns();
        if turns != self.turns {
            (self.turns, self.turned_at) = (turns, now);
        }
        let due = ((now - self.began) as f64 / self.interval) as u64;
        let before = self.sent;
        while self.sends && self.sent < due {
            let number = self.sent;
            let frame = &self.frames[number as usize % self.frames.len()];
            if !self.served.send_with(frame, 0, |frame| {
                traffic::write(frame, NUMBER_AT, &number.to_be_bytes())
            }) {
                break;
            }
            self.sent += 1;
        }
        if self.sent > before {
            self.served.flush();
        }
        let released = self.served.released;
        let mut oldest = u64::MAX;
        let Bench { served, ledger, .. } = self;
        served.receive(|frame| oldest = oldest.min(ledger.take(frame)));
        served.speak(now);
        if self.served.released > released {
            self.out_at = self.served.now();
            let due = self.began + (oldest as f64 * self.interval) as u64;
            self.longest = self.longest.max(self.out_at.saturating_sub(due));
        }
        now
    }

    fn go_on(&mut self, what: &str, mut is_so: impl FnMut(&Bench) -> bool) -> Result<(), String> {
        let limit = self.served.now() + LIMIT;
        while !is_so(self) {
            if self.step() > limit {
                return Err(format!("it is not so that {what}"));
            }
        }
        Ok(())
    }

    fn go_on_for(&mut self, time: u64) {
        let until = self.served.now() + time;
        while self.step() < until {}
    }

    /// Kills the worker once it has a standby.
    fn kill(&mut self, after: u64) -> Result<Times, String> {
        let pair = self.served.pair();
        self.go_on("there is a standby", |_| pair.standby.load(Ordering::Acquire) != 0)?;
        let turns = self.served.turns() + 2;
        self.go_on("the worker turns", |bench| bench.turns >= turns)?;
        self.go_on_for(after);
        let (worker, standby) =
            (pair.worker.load(Ordering::Acquire), pair.standby.load(Ordering::Acquire));
        let victim = Pid::from_raw(worker as i32).ok_or("there is no worker")?;
        self.longest = 0;
        let mut times = Times { killed: self.served.now(), ..Times::default() };
        kill_process(victim, Signal::KILL).map_err(|error| error.to_string())?;
        self.go_on("the standby takes over", |_| pair.worker.load(Ordering::Acquire) == standby)?;
        times.taken_over = self.served.now();
        times.last_turn = self.turned_at;
        // Packets that the dead worker had shown.
        self.served.receive(|frame| {
            self.ledger.take(frame);
        });
        times.last_out = self.out_at;
        let released = self.served.released;
        self.go_on("a packet leaves", |bench| bench.served.released > released)?;
        times.first_out = self.out_at;
        self.go_on("there is a standby again", |_| pair.standby.load(Ordering::Acquire) != 0)?;
        times.longest = self.longest;
        Ok(times)
    }
}

/// Runs the plan.
///
/// # Errors
/// The output was wrong; no time counts then.
pub fn run(plan: &Plan, functions: &Functions, make: MakeChain<'_>) -> Result<Vec<Row>, String> {
    if plan.kills == 0 || plan.flows == 0 || plan.packets_per_second == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    let mut rows = measure(plan, "any", functions, make)?;
    rows.splice(0..0, measure(plan, "apart", functions, make)?);
    Ok(rows)
}

fn measure(
    plan: &Plan,
    processors: &'static str,
    functions: &Functions,
    make: MakeChain<'_>,
) -> Result<Vec<Row>, String> {
    let protection = json!({ "preset": "reinforce", "level": "local" });
    let mut served = Served::start(functions, &protection, plan.flows, make)?;
    if processors == "apart" {
        let Some(place) = served::processors()? else { return Ok(Vec::new()) };
        served.part(place)?;
    }
    served.wait_until_it_turns()?;
    let frames: Vec<[u8; FRAME_LEN]> =
        (0..plan.flows).map(|flow| traffic::udp(traffic::client(flow), traffic::VIRTUAL)).collect();
    let opened = served.open(&frames)?;
    let replies: Vec<[u8; FRAME_LEN]> = opened.iter().map(traffic::reply_to).collect();
    served.check(&frames, &replies, &opened)?;

    let began = served.now();
    let interval = 1e9 / plan.packets_per_second as f64;
    let ledger = Ledger::new(plan.flows);
    let mut bench = Bench {
        served,
        frames,
        ledger,
        interval,
        sends: true,
        began,
        sent: 0,
        turns: 0,
        turned_at: 0,
        out_at: 0,
        longest: 0,
    };
    let mut random = Random::new(1);
    let mut kills = Vec::with_capacity(plan.kills);
    for _ in 0..plan.kills {
        let after = random.range(0, SPREAD);
        kills.push(bench.kill(after)?);
    }
    // Packets under way come out.
    bench.sends = false;
    bench.go_on_for(100_000_000);
    bench.ledger.close(bench.sent);
    let Ledger { lost, doubled_or_late, .. } = bench.ledger;
    if lost + doubled_or_late > 0 {
        return Err(format!(
            "of {} packets {lost} were lost, {doubled_or_late} came twice or late",
            bench.sent
        ));
    }
    let takeovers = bench.served.pair().takeovers.load(Ordering::Relaxed) as usize;
    if takeovers != plan.kills {
        return Err(format!("{takeovers} takeovers after {} kills", plan.kills));
    }
    let again = bench.served.play_once(&bench.frames, 0)?;
    if again != opened {
        return Err("a flow came out other than before the kills".to_owned());
    }
    let row = |case, time: fn(&Times) -> u64| {
        let mut values: Vec<u64> = kills.iter().map(time).collect();
        values.sort_unstable();
        Row {
            version: 1,
            processors,
            case,
            kills: plan.kills,
            flows: plan.flows,
            packets_per_second: plan.packets_per_second,
            packets: bench.sent,
            p50_us: percentile(&values, 50.0) / 1e3,
            p90_us: percentile(&values, 90.0) / 1e3,
            p99_us: percentile(&values, 99.0) / 1e3,
            max_us: percentile(&values, 100.0) / 1e3,
            lost,
            doubled_or_late,
        }
    };
    Ok(vec![
        row("kill-to-packet", |times| times.first_out - times.killed),
        row("kill-to-takeover", |times| times.taken_over - times.killed),
        row("last-turn-to-packet", |times| times.first_out - times.last_turn),
        row("nothing-left", |times| times.first_out - times.last_out),
        row("longest-delay", |times| times.longest),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(number: u64) -> [u8; FRAME_LEN] {
        let mut frame = [0; FRAME_LEN];
        frame[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_be_bytes());
        frame
    }

    /// Ten packets of two flows: all; or one missing in the middle, one at the end, one
    /// twice, one behind a later one.
    #[test]
    fn the_ledger_finds_what_is_wrong() {
        let book = |numbers: &[u64]| {
            let mut ledger = Ledger::new(2);
            for number in numbers {
                assert_eq!(ledger.take(&numbered(*number)), *number);
            }
            ledger.close(10);
            (ledger.lost, ledger.doubled_or_late)
        };
        assert_eq!(book(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), (0, 0));
        assert_eq!(
            book(&[1, 0, 2, 4, 3, 5, 6, 8, 7, 9]),
            (0, 0),
            "order between flows means nothing"
        );
        assert_eq!(book(&[0, 1, 2, 3, 5, 6, 7, 8, 9]), (1, 0));
        assert_eq!(book(&[0, 1, 2, 3, 4, 5, 6, 7]), (2, 0));
        assert_eq!(book(&[0, 1, 2, 3, 2, 4, 5, 6, 7, 8, 9]), (0, 1));
        assert_eq!(
            book(&[0, 1, 4, 2, 3, 5, 6, 7, 8, 9]),
            (1, 1),
            "it was missing when the later one came"
        );
    }
}
