//! `holdfast bench tenants`: the effect of one tenant's load on another one on the same
//! processor.
//!
//! Two runtimes of different virtual clusters share one processor with all their
//! processes; this process, the manager and switch of both, has another. The first
//! tenant's packets come at a modest steady rate. The second one's load is none, the
//! same, four times as much, and as much as it can take. In a last case the second tenant
//! has the first one's load while its worker is killed again and again, if it has a local
//! standby. No time counts if a packet of either is lost, doubled or late.

use super::PlaysOnce;
use super::bench_box::MakeChain;
use super::served::{Functions, Served, processors};
use super::traffic::{self, FRAME_LEN, percentile};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Flows of each tenant.
    pub flows: usize,
    /// Packets per second of the first tenant.
    pub packets_per_second: u64,
    /// Duration of each case.
    pub time: Duration,
}

/// A row of the result: the first tenant, and the second one's load.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// Both tenants' protection: `none` or `local`.
    pub protection: &'static str,
    /// The second tenant's packets: none, `1x` or `4x` as many as the first one's, as
    /// many as it can take (`flood`), or `1x` while its worker is killed (`killed`).
    pub other: &'static str,
    /// Packets per second of the first tenant, thousands.
    pub kpps: f64,
    /// Time from when a packet was due until it was back: median, µs.
    pub latency_p50_us: f64,
    /// See `latency_p50_us`.
    pub latency_p99_us: f64,
    /// See `latency_p50_us`.
    pub latency_max_us: f64,
    /// Packets per second of the second tenant, thousands.
    pub other_kpps: f64,
    /// Kills of the second tenant's worker.
    pub kills: usize,
}

/// The second tenant's load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Times(u64),
    Flood,
    Killed,
}

const LOADS: [(&str, Load); 5] = [
    ("none", Load::Times(0)),
    ("1x", Load::Times(1)),
    ("4x", Load::Times(4)),
    ("flood", Load::Flood),
    ("killed", Load::Killed),
];
/// Offsets of a packet's number and of its due time.
const NUMBER_AT: usize = 42;
const DUE_AT: usize = 50;
/// Limit of a tenant's packets under way in a flood.
const UNDER_WAY: u64 = 2_000;
/// Time between two kills, ns.
const KILL_EVERY: u64 = 30_000_000;

struct Tenant {
    served: Served,
    frames: Vec<[u8; FRAME_LEN]>,
    replies: Vec<[u8; FRAME_LEN]>,
    opened: Vec<[u8; FRAME_LEN]>,
    /// Time between two packets, ns; infinite for none.
    interval: f64,
    is_flood: bool,
    began: u64,
    sent: u64,
    /// The number of each flow's next packet.
    next: Vec<u64>,
    returned: u64,
    wrong: u64,
    latencies: Vec<u64>,
}

impl Tenant {
    fn start(
        plan: &Plan,
        protection: &Value,
        functions: &Functions,
        make: MakeChain<'_>,
        place: [usize; 2],
    ) -> Result<Tenant, String> {
        let mut served = Served::start(functions, protection, plan.flows, make)?;
        served.part(place)?;
        served.wait_until_it_turns()?;
        let frames: Vec<_> = (0..plan.flows)
            .map(|flow| traffic::udp(traffic::client(flow), traffic::VIRTUAL))
            .collect();
        let opened = served.open(&frames)?;
        let replies: Vec<_> = opened.iter().map(traffic::reply_to).collect();
        served.check(&frames, &replies, &opened)?;
        Ok(Tenant {
            served,
            frames,
            replies,
            opened,
            interval: f64::INFINITY,
            is_flood: false,
            began: 0,
            sent: 0,
            next: Vec::new(),
            returned: 0,
            wrong: 0,
            latencies: Vec::new(),
        })
    }

    fn begin(&mut self, interval: f64, is_flood: bool) {
        (self.interval, self.is_flood, self.began) = (interval, is_flood, self.served.now());
        (self.sent, self.returned, self.wrong) = (0, 0, 0);
        self.next = (0..self.frames.len() as u64).collect();
        self.latencies.clear();
    }

    fn end(&mut self) {
        (self.interval, self.is_flood) = (f64::INFINITY, false);
    }

    fn step(&mut self) {
        let now = self.served.now();
        let wanted = if self.is_flood {
            self.returned + UNDER_WAY
        } else {
            ((now - self.began) as f64 / self.interval) as u64
        };
        let before = self.sent;
        while self.sent < wanted {
            let number = self.sent;
            let due = if self.is_flood {
                now
            } else {
                self.began + (number as f64 * self.interval) as u64
            };
            let frame = &self.frames[number as usize % self.frames.len()];
            let is_sent = self.served.send_with(frame, 0, |frame| {
                traffic::write(frame, NUMBER_AT, &number.to_be_bytes());
                traffic::write(frame, DUE_AT, &due.to_be_bytes());
            });
            if !is_sent {
                break;
            }
            self.sent += 1;
        }
        if self.sent > before {
            self.served.flush();
        }
        let Tenant { served, next, wrong, returned, latencies, .. } = self;
        let flows = next.len() as u64;
        served.receive(|frame| {
            let word = |at: usize| {
                frame[at..].first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes))
            };
            let number = word(NUMBER_AT);
            let next = &mut next[(number % flows) as usize];
            // No packet before it may be missing either.
            *wrong += u64::from(number != *next);
            *next = number.saturating_add(flows);
            *returned += 1;
            latencies.push(now.saturating_sub(word(DUE_AT)));
        });
        served.speak(now);
    }

    fn check(&mut self) -> Result<(), String> {
        let Tenant { sent, returned, wrong, .. } = *self;
        if sent != returned || wrong > 0 {
            return Err(format!(
                "of {sent} packets {returned} came back, {wrong} of them out of turn"
            ));
        }
        self.served.check(&self.frames, &self.replies, &self.opened)
    }
}

/// Runs the plan. Returns no rows if there are not two processors.
///
/// # Errors
/// The output was wrong; no time counts then.
pub fn run(plan: &Plan, functions: &Functions, make: MakeChain<'_>) -> Result<Vec<Row>, String> {
    if plan.flows == 0 || plan.packets_per_second == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    let Some(place) = processors()? else { return Ok(Vec::new()) };
    let mut rows = Vec::new();
    for (protection, config) in
        [("none", json!("none")), ("local", json!({ "preset": "reinforce", "level": "local" }))]
    {
        let start = || Tenant::start(plan, &config, functions, make, place);
        let mut tenants = [start()?, start()?];
        for (other, load) in LOADS {
            if load != Load::Killed || protection == "local" {
                rows.push(measure(plan, &mut tenants, protection, other, load)?);
            }
        }
    }
    Ok(rows)
}

fn measure(
    plan: &Plan,
    tenants: &mut [Tenant; 2],
    protection: &'static str,
    other: &'static str,
    load: Load,
) -> Result<Row, String> {
    let interval = 1e9 / plan.packets_per_second as f64;
    let [first, second] = tenants;
    first.begin(interval, false);
    match load {
        Load::Times(times) => second.begin(interval / times as f64, false),
        Load::Flood => second.begin(f64::INFINITY, true),
        Load::Killed => second.begin(interval, false),
    }
    let began = first.served.now();
    let until = began + plan.time.as_nanos() as u64;
    let (mut kills, mut next_kill) = (0, began + KILL_EVERY);
    loop {
        let now = first.served.now();
        if now >= until {
            break;
        }
        first.step();
        second.step();
        let pair = second.served.pair();
        if load == Load::Killed && now >= next_kill && pair.standby.load(Ordering::Acquire) != 0 {
            let victim = Pid::from_raw(pair.worker.load(Ordering::Acquire) as i32)
                .ok_or("there is no worker")?;
            kill_process(victim, Signal::KILL).map_err(|error| error.to_string())?;
            (kills, next_kill) = (kills + 1, now + KILL_EVERY);
        }
    }
    let elapsed = (first.served.now() - began) as f64;
    let counts = [first.returned, second.returned];
    // Packets under way come out.
    first.end();
    second.end();
    let limit = first.served.now() + 5_000_000_000;
    while (first.returned < first.sent || second.returned < second.sent)
        && first.served.now() < limit
    {
        first.step();
        second.step();
    }
    first
        .check()
        .map_err(|error| format!("the first tenant, while the second one did {other}: {error}"))?;
    second.check().map_err(|error| format!("the second tenant, at {other}: {error}"))?;
    first.latencies.sort_unstable();
    let latency = |percent| percentile(&first.latencies, percent) / 1e3;
    Ok(Row {
        version: 1,
        protection,
        other,
        kpps: counts[0] as f64 / elapsed * 1e6,
        latency_p50_us: latency(50.0),
        latency_p99_us: latency(99.0),
        latency_max_us: latency(100.0),
        other_kpps: counts[1] as f64 / elapsed * 1e6,
        kills,
    })
}
