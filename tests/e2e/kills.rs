//! Any process of a box but its guard is killed, or stopped for longer than any time-out:
//! one at a time, each when the box reports itself safe, and then at random. A seed draws
//! the processes and is printed; `HOLDFAST_SEED` repeats it.
//!
//! *One at a time* is the promise: nothing breaks, hangs or is remapped. *At random* a
//! flow may be hit twice before it has a copy again. Such flows may be lost, and only
//! they; the status counts them, and the box goes on.

use anyhow::{Context, Result, bail, ensure};
use holdfast_control::flows::{Flow, Flows};
use holdfast_control::status::{Failover, Protected, Status};
use holdfast_io::process::lives;
use holdfast_lab::keepalive::KeepAlive;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until, until_every};
use holdfast_tests::kills::{Cast, Draws, Part, Role, Target, seed_or};
use holdfast_tests::network::{Chain, Network, Options, VIRTUAL};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::standby::{BOTH, LOCAL};
use holdfast_tests::traffic::{Open, Plan, Traffic};
use holdfast_tests::verdict::ensure_unbroken;
use holdfast_tests::{TIMEOUT, soak};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A protection, and its promise if several strikes come before the box is safe again.
struct Row {
    protection: &'static str,
    /// True if these strikes together may cost flows.
    may_lose: fn(&[Target]) -> bool,
}

const NFVACTOR: Row = Row { protection: "nfvactor", may_lose: |struck| runtimes(struck, 1) > 1 };
/// State that only the log has is lost with the switch.
const REINFORCE: Row = Row {
    protection: "reinforce",
    may_lose: |struck| runtimes(struck, 1) + usize::from(has_manager(struck)) > 1,
};
/// Worker, standby and the keeper that would replace either.
const WITH_LOCAL: Row = Row { protection: LOCAL, may_lose: |struck| runtimes(struck, 2) > 0 };
const WITH_BOTH: Row = Row {
    protection: BOTH,
    may_lose: |struck| {
        runtimes(struck, 2) > 0 && runtimes(struck, 1) + usize::from(has_manager(struck)) > 1
    },
};
/// The server outlives any number of runtimes, and they the server.
const RESCUE: Row =
    Row { protection: "rescue", may_lose: |struck| runtimes(struck, 1) > 0 && servers(struck) > 1 };

/// The number of runtimes that were struck at least `often` times.
fn runtimes(struck: &[Target], often: usize) -> usize {
    let mut count = BTreeMap::<u32, usize>::new();
    for target in struck {
        if let Role::Runtime(node) = target.role {
            *count.entry(node).or_default() += 1;
        }
    }
    count.values().filter(|times| **times >= often).count()
}

fn servers(struck: &[Target]) -> usize {
    struck.iter().filter(|target| matches!(target.role, Role::Server(_))).count()
}

fn has_manager(struck: &[Target]) -> bool {
    struck.iter().any(|target| target.role == Role::Manager)
}

/// The reason why strikes at random run in the soak only.
const RANDOM: &str = "a few strikes at random seldom meet what several failures together may break; conformance plays these one by one";

/// All protections in the soak; otherwise the one that the run's number chooses.
pub(crate) fn tests() -> Vec<Test> {
    let all = [
        [
            light("one_at_a_time_under_nfvactor", 10, &[NGINX], |interrupt| {
                one_at_a_time(&NFVACTOR, interrupt)
            }),
            light("at_random_under_nfvactor", 10, &[], |interrupt| at_random(&NFVACTOR, interrupt))
                .deep(RANDOM),
        ],
        [
            light("one_at_a_time_under_reinforce", 10, &[NGINX], |interrupt| {
                one_at_a_time(&REINFORCE, interrupt)
            }),
            light("at_random_under_reinforce", 10, &[], |interrupt| {
                at_random(&REINFORCE, interrupt)
            })
            .deep(RANDOM),
        ],
        [
            light("one_at_a_time_with_local_standbys", 10, &[NGINX], |interrupt| {
                one_at_a_time(&WITH_LOCAL, interrupt)
            }),
            light("at_random_with_local_standbys", 10, &[], |interrupt| {
                at_random(&WITH_LOCAL, interrupt)
            })
            .deep(RANDOM),
        ],
        [
            light("one_at_a_time_with_both_standbys", 10, &[NGINX], |interrupt| {
                one_at_a_time(&WITH_BOTH, interrupt)
            }),
            light("at_random_with_both_standbys", 10, &[], |interrupt| {
                at_random(&WITH_BOTH, interrupt)
            })
            .deep(RANDOM),
        ],
        [
            light("one_at_a_time_under_rescue", 10, &[NGINX], |interrupt| {
                one_at_a_time(&RESCUE, interrupt)
            }),
            light("at_random_under_rescue", 10, &[], |interrupt| at_random(&RESCUE, interrupt))
                .deep(RANDOM),
        ],
    ];
    let chosen = run() as usize % all.len();
    all.into_iter()
        .enumerate()
        .filter(|(at, _)| soak() || *at == chosen)
        .flat_map(|(_, tests)| tests)
        .collect()
}

/// The run's number.
fn run() -> u64 {
    std::env::var("HOLDFAST_RUN").ok().and_then(|run| run.parse().ok()).unwrap_or(0)
}

/// The seed: a new one in every soak; otherwise the run's number.
fn seed() -> u64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    seed_or(if soak() { now } else { run() })
}

/// Kills and stops of each kind.
fn strikes() -> usize {
    let given = std::env::var("HOLDFAST_STRIKES").ok().and_then(|strikes| strikes.parse().ok());
    given.unwrap_or(if soak() { 200 } else { 4 })
}

/// The share of stops among the strikes is 1 in this number.
const STOPS: u64 = 3;
/// Datagrams that come while an unwatched process is stopped, which no process notices.
const UNWATCHED: u64 = 400;
/// Time limit for a box to be safe again. A process that ends again and again is
/// restarted after pauses of up to half a minute.
const SAFE_AGAIN: Duration = Duration::from_secs(120);

/// A box under a protection, its traffic, and its strikes.
struct Scene {
    row: &'static Row,
    seed: u64,
    cast: Cast,
    traffic: Traffic,
    /// The strikes so far, and all actions in words.
    struck: Vec<Target>,
    story: Vec<String>,
    began_at: Instant,
    /// The number of the ledger's errors that the story has.
    told_wrong: usize,
    /// Every failure that a status has shown. A status keeps only the latest ones.
    failovers: BTreeMap<(u32, u64), Failover>,
    network: Network,
}

impl Scene {
    fn start(row: &'static Row, chain: Chain, plan: Plan, interrupt: &Interrupt) -> Result<Scene> {
        let options =
            Options { protection: row.protection, ports: "random", ..Options::protected(chain) };
        let mut network = Network::start(&options, interrupt)?;
        if chain == Chain::Balanced {
            network.serve_web()?;
        }
        let traffic = Traffic::start(&network.topology.client, &network.topology.server, plan)?;
        let wanted = plan.flows + plan.connections;
        until("flows are there", TIMEOUT, interrupt, || {
            Ok((traffic.sum().flows >= wanted).then_some(()))
        })?;
        let cast = Cast::new(&network.running.status()?)?;
        let seed = seed();
        say(&format!("{}: HOLDFAST_SEED={seed}", row.protection));
        Ok(Scene {
            row,
            seed,
            cast,
            traffic,
            struck: Vec::new(),
            story: Vec::new(),
            began_at: Instant::now(),
            told_wrong: 0,
            failovers: BTreeMap::new(),
            network,
        })
    }

    /// Adds the latest actions to an error.
    fn told<T>(&self, result: Result<T>) -> Result<T> {
        result.with_context(|| {
            let last = self.story.len().saturating_sub(12);
            format!(
                "HOLDFAST_SEED={} under {}; last: {}",
                self.seed,
                self.row.protection,
                self.story[last..].join("; ")
            )
        })
    }

    /// The status, if the box answers.
    fn look(&mut self) -> Option<Status> {
        let status = self.network.running.status().ok()?;
        self.cast.learn(&status);
        for failover in &status.failovers {
            self.failovers.insert((failover.runtime, failover.incarnation), failover.clone());
        }
        Some(status)
    }

    fn wait_for(
        &mut self,
        what: &str,
        interrupt: &Interrupt,
        mut wanted: impl FnMut(&Status) -> bool,
    ) -> Result<Status> {
        let mut last = None;
        let found = until(what, SAFE_AGAIN, interrupt, || {
            let Some(status) = self.look() else { return Ok(None) };
            let is_so = wanted(&status);
            last = Some(status);
            Ok(if is_so { last.take() } else { None })
        });
        found.with_context(|| format!("the last status was {last:?}"))
    }

    fn wait_safe(&mut self, interrupt: &Interrupt) -> Result<Status> {
        self.wait_for("the box is safe", interrupt, |status| status.protected() == Protected::Yes)
    }

    fn flows(&self, filter: &str) -> Result<Vec<Flow>> {
        let said: Flows = serde_json::from_str(
            &self.network.running.ask(&format!("flows --limit 10000 {filter}"))?,
        )?;
        Ok(said.flows)
    }

    /// Checks that no open connection has another address in the box than at the server.
    /// Returns the connections that the box has.
    fn ensure_not_remapped(&self) -> Result<BTreeSet<u32>> {
        let open = self.traffic.open();
        let mut known = BTreeSet::new();
        for said in self.flows("tcp from any to any port 5201")? {
            if let Some(Open { flow, .. }) =
                open.iter().find(|open| open.port == said.source_port())
            {
                self.traffic.compare_mapping(*flow, said.translated_source.parse()?);
                known.insert(*flow);
            }
        }
        Ok(known)
    }

    /// Checks that no datagram flow has a lower count in the box than was seen. True if
    /// the box has nearly all of them: a lost flow begins anew with its next datagram.
    fn are_remembered(&self) -> Result<bool> {
        let came = self.traffic.came();
        let mut compared = 0;
        for said in self.flows("udp from any to any port 7007")? {
            if let Some((_, flow, seen)) =
                came.iter().find(|(port, ..)| *port == said.source_port())
            {
                let [to_server, to_client] = said.packets[..] else { bail!("{said:?}") };
                self.traffic.compare(
                    *flow,
                    *seen,
                    [to_client, to_server],
                    said.translated_source.parse()?,
                );
                compared += 1;
            }
        }
        Ok(compared * 10 > came.len() * 8)
    }

    fn targets(&self) -> Result<Vec<Target>> {
        self.cast.targets(&self.network)
    }

    fn tell(&mut self, what: String) {
        self.story.push(format!("{:.2} s {what}", self.began_at.elapsed().as_secs_f64()));
    }

    /// Adds the ledger's errors since the last look to the story.
    fn tell_wrong(&mut self) {
        let wrong = self.traffic.wrong();
        if let Some(first) = wrong.get(self.told_wrong) {
            self.tell(format!("{} wrong, first {first}", wrong.len() - self.told_wrong));
            self.told_wrong = wrong.len();
        }
    }

    fn strike(&mut self, number: usize, target: Target, signal: Signal) -> Result<()> {
        let what = if signal == Signal::STOP { "stopped" } else { "killed" };
        self.tell(format!("{number}: {what} {target}"));
        self.struck.push(target);
        target.signal(signal)
    }
}

#[expect(clippy::print_stdout, reason = "it belongs to the tests' results")]
fn say(text: &str) {
    println!("{text}");
}

/// Strikes the next process as soon as the status reports a safe box.
fn one_at_a_time(row: &'static Row, interrupt: &Interrupt) -> Result<()> {
    let plan = Plan {
        flows: 60,
        next_flow: Duration::from_millis(500),
        per_second: 400,
        ..Plan::default()
    };
    let mut scene = Scene::start(row, Chain::Balanced, plan, interrupt)?;
    let held = scene.network.hold(VIRTUAL, 40)?;
    for number in 0..strikes() {
        let struck = strike_one(&mut scene, number, &held, interrupt);
        scene.told(struck)?;
    }
    let Scene { traffic, network, .. } = scene;
    traffic.finish()?;
    drop(held);
    network.stop()
}

fn strike_one(
    scene: &mut Scene,
    number: usize,
    held: &KeepAlive,
    interrupt: &Interrupt,
) -> Result<()> {
    scene.wait_safe(interrupt)?;
    let mut draws = Draws::new(scene.seed, number);
    let everybody = scene.targets()?;
    let target = draws.target(&everybody).context("there are processes")?;
    let signal = if draws.below(STOPS) == 0 { Signal::STOP } else { Signal::KILL };
    scene.strike(number, target, signal)?;
    if signal == Signal::STOP && !target.is_watched() {
        let came = scene.traffic.sum().came;
        let goes_on = || Ok((scene.traffic.sum().came >= came + UNWATCHED).then_some(()));
        until("datagrams come without it", TIMEOUT, interrupt, goes_on)?;
        target.signal(Signal::CONT)?;
    } else {
        replaced(scene, target, everybody.len(), interrupt)?;
        // The stopped process may wake up and run on.
        target.signal(Signal::CONT)?;
    }
    scene.wait_safe(interrupt)?;
    goes_on(scene, held, interrupt)
}

/// Waits until another process has its place.
fn replaced(scene: &mut Scene, target: Target, count: usize, interrupt: &Interrupt) -> Result<()> {
    let what = format!("another process has the place of {target}");
    until(&what, SAFE_AGAIN, interrupt, || {
        let Some(status) = scene.look() else { return Ok(None) };
        let is_replaced = match target.is_replaced(&status) {
            Some(is_replaced) => is_replaced,
            // There are as many processes as before, without it.
            None => !lives(target.pid) && scene.targets()?.len() >= count,
        };
        Ok(is_replaced.then_some(()))
    })
}

/// Checks that everything goes on: every kept connection answers, open ones have had more
/// from both sides, new ones begin, and the ledger has no error.
fn goes_on(scene: &mut Scene, held: &KeepAlive, interrupt: &Interrupt) -> Result<()> {
    ensure_unbroken(held, interrupt)?;
    let (before, sum) = (scene.traffic.open(), scene.traffic.sum());
    let what = "connections and datagrams go on, and new ones begin";
    let mut still = Vec::new();
    let begun = until(what, TIMEOUT, interrupt, || {
        let now = scene.traffic.sum();
        let has_begun =
            now.came > sum.came + 100 && now.flows > sum.flows && now.streams > sum.streams;
        let open = scene.traffic.open();
        still = standing_still(&before, &open)
            .filter_map(|flow| open.iter().find(|one| one.flow == flow).copied())
            .collect();
        Ok((has_begun && still.is_empty()).then_some(()))
    });
    begun.with_context(|| {
        let ports: Vec<u16> = still.iter().map(|one| one.port).collect();
        let said: Result<Vec<Flow>> = scene.flows("tcp from any to any port 5201");
        let said = said.map(|all| {
            all.into_iter().filter(|one| ports.contains(&one.source_port())).collect::<Vec<_>>()
        });
        format!(
            "before {sum:?}, now {:?}; standing still: {still:?}, of which the box says {said:?}",
            scene.traffic.sum()
        )
    })?;
    scene.ensure_not_remapped()?;
    ensure!(scene.are_remembered()?, "the box speaks of few flows of datagrams");
    let wrong = scene.traffic.wrong();
    ensure!(wrong.is_empty(), "{wrong:?}");
    // A runtime with a standby of its own does not fail, and no other runtime fails
    // unless it was struck.
    let is_expected = |failover: &&Failover| {
        let is_struck = |target: &Target| target.part == Part::Worker && is_of(failover, target);
        failover.lost == 0
            && ![LOCAL, BOTH].contains(&scene.row.protection)
            && scene.struck.iter().any(is_struck)
    };
    let failovers: Vec<&Failover> =
        scene.failovers.values().filter(|failover| !is_expected(failover)).collect();
    ensure!(failovers.is_empty(), "{failovers:?}");
    Ok(())
}

/// Connections that are still open, and have had no more data from one side or the other.
fn standing_still<'a>(before: &'a [Open], now: &'a [Open]) -> impl Iterator<Item = u32> + 'a {
    let before = before
        .iter()
        .filter_map(|open| Some((open, now.iter().find(|now| now.flow == open.flow)?)));
    before
        .filter(|(before, now)| {
            now.came.iter().zip(before.came).any(|(now, before)| *now <= before)
        })
        .map(|(open, _)| open.flow)
}

/// Strikes that come before the box is safe again.
#[derive(Default)]
struct Episode {
    struck: Vec<Target>,
    /// Stopped processes, and the times until which they stay stopped.
    stopped: Vec<(Target, Instant)>,
}

/// Number of random strikes in a round. After a round the box has time to recover.
fn per_round() -> usize {
    strikes().min(25)
}

/// Longest time between two strikes, and of a stop.
const NEXT_STRIKE: Duration = Duration::from_millis(1000);
const STANDS_STILL: Duration = Duration::from_millis(3000);
/// Time between two looks at the box while it is struck.
const LOOK: Duration = Duration::from_millis(20);
/// Time after which every answering process knows of a strike.
const KNOWN: Duration = Duration::from_millis(200);

/// Strikes without waiting for recovery: the drawn process is struck at its time, while
/// others are still away.
fn at_random(row: &'static Row, interrupt: &Interrupt) -> Result<()> {
    let plan = Plan {
        flows: 60,
        next_flow: Duration::from_millis(500),
        per_second: 300,
        connections: 40,
        next_chunk: Duration::from_millis(50),
        timeout: SAFE_AGAIN,
        ..Plan::default()
    };
    let mut scene = Scene::start(row, Chain::Edge, plan, interrupt)?;
    let mut episodes = Vec::new();
    for first in (0..strikes()).step_by(per_round()) {
        let played = play_round(&mut scene, first, &mut episodes, interrupt);
        let settled = played.and_then(|()| settle(&mut scene, interrupt));
        scene.told(settled)?;
    }
    let judged = judge(&scene, &episodes);
    scene.told(judged)?;
    let Scene { traffic, mut network, failovers, story, seed, .. } = scene;
    let lost = traffic
        .finish_with_losses()
        .with_context(|| format!("HOLDFAST_SEED={seed}: {}", story.join("; ")))?;
    let counted: u64 = failovers.values().map(|failover| failover.lost).sum();
    say(&format!(
        "{}: {} flows lost, {counted} counted, in {} failures of runtimes",
        row.protection,
        lost.len(),
        failovers.len()
    ));
    ensure!(
        lost.len() as u64 <= counted,
        "HOLDFAST_SEED={seed}: {} flows lost, {counted} counted: {lost:?}; {failovers:?}; {}",
        lost.len(),
        story.join("; ")
    );
    ensure!(network.running.process().try_wait()?.is_none(), "the guard has ended");
    network.stop()
}

fn play_round(
    scene: &mut Scene,
    first: usize,
    episodes: &mut Vec<Episode>,
    interrupt: &Interrupt,
) -> Result<()> {
    episodes.push(Episode::default());
    let mut known_from = None;
    for number in first..(first + per_round()).min(strikes()) {
        let mut draws = Draws::new(scene.seed, number);
        let (next, signal) = (Instant::now() + draws.time(NEXT_STRIKE), draws.below(STOPS));
        let stands_still = draws.time(STANDS_STILL);
        until_every(LOOK, "the next strike is due", TIMEOUT, interrupt, || {
            if wake(episodes)? {
                known_from = Some(Instant::now() + KNOWN);
            }
            // A status so soon after a strike may predate it. A stopped manager does not
            // answer.
            let is_known = episodes.last().is_none_or(|episode| episode.stopped.is_empty());
            if is_known
                && known_from.is_some_and(|from| Instant::now() >= from)
                && scene.look().is_some_and(|status| status.protected() == Protected::Yes)
            {
                episodes.push(Episode::default());
                known_from = None;
            }
            scene.tell_wrong();
            Ok((Instant::now() >= next).then_some(()))
        })?;
        let standing: Vec<u32> = episodes
            .iter()
            .flat_map(|episode| &episode.stopped)
            .map(|(target, _)| target.pid)
            .collect();
        let targets: Vec<Target> =
            scene.targets()?.into_iter().filter(|target| !standing.contains(&target.pid)).collect();
        let Some(target) = draws.target(&targets) else { continue };
        let signal = if signal == 0 { Signal::STOP } else { Signal::KILL };
        scene.strike(number, target, signal)?;
        known_from = Some(Instant::now() + KNOWN);
        if let Some(episode) = episodes.last_mut() {
            episode.struck.push(target);
            if signal == Signal::STOP {
                episode.stopped.push((target, Instant::now() + stands_still));
            }
        }
    }
    until_every(LOOK, "whoever stands still goes on", STANDS_STILL + TIMEOUT, interrupt, || {
        wake(episodes)?;
        Ok(episodes.iter().all(|episode| episode.stopped.is_empty()).then_some(()))
    })
}

/// Wakes processes that have been stopped for long enough. True if there was one.
fn wake(episodes: &mut [Episode]) -> Result<bool> {
    let now = Instant::now();
    let mut is_any = false;
    for (target, _) in episodes
        .iter_mut()
        .flat_map(|episode| episode.stopped.extract_if(.., |(_, until)| *until <= now))
    {
        target.signal(Signal::CONT)?;
        is_any = true;
    }
    Ok(is_any)
}

/// The strikes are over: the box is safe again, and every connection that it has goes on.
/// Connections that it does not have are lost.
fn settle(scene: &mut Scene, interrupt: &Interrupt) -> Result<()> {
    scene.wait_safe(interrupt)?;
    let before = scene.traffic.open();
    let mut missing = BTreeSet::new();
    let mut hung = BTreeSet::new();
    let what = "every connection that the box has goes on";
    let settled = until_every(KNOWN, what, SAFE_AGAIN, interrupt, || {
        scene.look();
        scene.tell_wrong();
        let known = scene.ensure_not_remapped()?;
        hung = standing_still(&before, &scene.traffic.open()).collect();
        // Missing in two lists: a flow that moves may be missing in one.
        for flow in hung.iter().filter(|flow| !known.contains(flow)) {
            if !missing.insert(*flow) {
                scene.traffic.give_up(*flow);
            }
        }
        Ok(hung.is_empty().then_some(()))
    });
    settled.with_context(|| format!("{hung:?} are hung"))?;
    scene.wait_safe(interrupt)?;
    until("the box speaks of the flows of datagrams", TIMEOUT, interrupt, || {
        Ok(scene.are_remembered()?.then_some(()))
    })
}

/// Checks that flows were lost only with strikes that together may cost flows.
fn judge(scene: &Scene, episodes: &[Episode]) -> Result<()> {
    let may_lose = |failover: &Failover| {
        let mut of_it = episodes
            .iter()
            .filter(|episode| episode.struck.iter().any(|target| is_of(failover, target)));
        of_it.any(|episode| (scene.row.may_lose)(&episode.struck))
    };
    let lost: Vec<&Failover> = scene
        .failovers
        .values()
        .filter(|failover| failover.lost > 0 && !may_lose(failover))
        .collect();
    ensure!(lost.is_empty(), "{lost:?} were hit once");
    Ok(())
}

/// True if the failed runtime was struck. A runtime that had just started may have an
/// unknown node number.
fn is_of(failover: &Failover, target: &Target) -> bool {
    match target.role {
        Role::Runtime(0) => true,
        Role::Runtime(node) => {
            (node, target.incarnation) == (failover.runtime, failover.incarnation)
        }
        _ => false,
    }
}
