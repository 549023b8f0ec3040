//! `holdfast bench recovery`: how long a dead runtime's flows are without an owner.
//!
//! A runtime opens the flows, another has their replicas. The first is killed, and the
//! coordinator announces it. The time runs from the announcement until the last flow's
//! route was claimed and the flow is served. The plan is that of NFVactor's table on
//! recovery. The time counts only if every flow is owned at its end and leaves with the
//! same addresses as before; of some flows, packets in both directions must come through
//! with their counters right.

use super::bench_box::{BenchBox, FIRST, MakeChain, SECOND, first_packet};
use super::traffic::{self, FRAME_LEN};
use super::{between, median};
use holdfast_node::message::{Control, MemberState};
use holdfast_protection::Plan as Preset;
use holdfast_wire::NodeId;
use serde::Serialize;
use std::time::{Duration, Instant};

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Flows of the runtime that is killed.
    pub flows: usize,
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
    /// Flows recovered.
    pub flows: usize,
    /// Time from the coordinator's announcement until the last flow was served, ms:
    /// median over the rounds.
    pub milliseconds: f64,
    /// The same in the fastest round, and in the slowest.
    pub least_milliseconds: f64,
    /// See `least_milliseconds`.
    pub most_milliseconds: f64,
    /// The median per flow, ns.
    pub ns_per_flow: f64,
    /// Time until half of the flows were served, ms.
    pub half_milliseconds: f64,
    /// Time until the coordinator had the account, with every number that the flows hold,
    /// ms.
    pub accounted_milliseconds: f64,
    /// The longest time for which the runtime did nothing but recover, ms.
    pub longest_turn_milliseconds: f64,
    /// Flows of which packets were sent afterwards in both directions, and came out
    /// right.
    pub checked: usize,
}

/// Flows of which packets are sent afterwards, if there are as many.
const SAMPLE: usize = 1000;

/// Runs the plan.
///
/// # Errors
/// The result is wrong; no time counts then.
pub fn run(plan: &Plan, make: MakeChain<'_>) -> Result<Row, String> {
    if plan.flows == 0 || plan.rounds == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    let rounds = (0..plan.rounds)
        .map(|_| Round::measure(plan.flows, make))
        .collect::<Result<Vec<Round>, String>>()?;
    let of = |what: fn(&Round) -> Duration| {
        rounds.iter().map(|round| what(round).as_secs_f64() * 1e3).collect::<Vec<f64>>()
    };
    let owned = of(|round| round.owned);
    Ok(Row {
        version: 1,
        case: "nfvactor",
        flows: plan.flows,
        milliseconds: median(&owned),
        least_milliseconds: owned.iter().copied().fold(f64::INFINITY, f64::min),
        most_milliseconds: owned.iter().copied().fold(0.0, f64::max),
        ns_per_flow: median(&owned) * 1e6 / plan.flows as f64,
        half_milliseconds: median(&of(|round| round.half)),
        accounted_milliseconds: median(&of(|round| round.accounted)),
        longest_turn_milliseconds: median(&of(|round| round.longest_turn)),
        checked: rounds[0].checked,
    })
}

struct Round {
    half: Duration,
    owned: Duration,
    accounted: Duration,
    longest_turn: Duration,
    checked: usize,
}

/// The addresses and ports with which a flow leaves.
type Leaves = [u8; 12];

impl Round {
    fn measure(flows: usize, make: MakeChain<'_>) -> Result<Round, String> {
        let mut world = BenchBox::new(flows, make, &|| Preset::NFVACTOR.build())?;
        let mut leaves: Vec<Leaves> = Vec::with_capacity(flows);
        world.open(flows, first_packet, |frame| leaves.push(ends(frame)))?;
        if world.copies(1) != flows {
            return Err(format!("of {flows} flows {} have a replica", world.copies(1)));
        }
        world.kill_first();
        world.longest_turn = Duration::ZERO;
        world.heard.clear();
        let began = Instant::now();
        world.show(&[NodeId::SWITCH, SECOND.node], [MemberState::Failed, MemberState::Running], 2);
        world.coordinator.send_control(
            SECOND.node,
            &Control::Recover { node: FIRST.node, incarnation: FIRST.incarnation },
        );
        let (mut half, mut owned) = (None, None);
        let accounted = loop {
            world.turn(&mut |_, _| {});
            let now = world.owned(1);
            if half.is_none() && now >= flows.div_ceil(2) {
                half = Some(began.elapsed());
            }
            if owned.is_none() && now == flows {
                owned = Some(began.elapsed());
            }
            if let Some(flows) = recovered(&world.heard) {
                break (flows, began.elapsed());
            }
            if began.elapsed() > Duration::from_secs(60) {
                return Err(format!("after a minute {now} of {flows} flows have an owner"));
            }
        };
        let (Some(half), Some(owned)) = (half, owned) else {
            return Err(format!(
                "the account says {} flows, and {} of {flows} have an owner",
                accounted.0,
                world.owned(1)
            ));
        };
        if accounted.0 != flows as u64 || world.hub.switch().routes_to(SECOND) != flows {
            let routes = world.hub.switch().routes_to(SECOND);
            return Err(format!(
                "of {flows} flows the account says {}, and {routes} routes lead to their new owner",
                accounted.0
            ));
        }
        let longest_turn = world.longest_turn;
        let checked = check(&mut world, &leaves)?;
        Ok(Round { half, owned, accounted: accounted.1, longest_turn, checked })
    }
}

/// The number of flows in the new owner's account.
fn recovered(heard: &[Control]) -> Option<u64> {
    heard.iter().find_map(|message| match message {
        Control::Recovered { node, incarnation, flows, .. }
            if (*node, *incarnation) == (FIRST.node, FIRST.incarnation) =>
        {
            Some(*flows)
        }
        _ => None,
    })
}

fn ends(frame: &[u8]) -> Leaves {
    let mut ends = [0; 12];
    ends.copy_from_slice(&frame[26..38]);
    ends
}

/// Sends a packet and a reply of some flows, spread over all of them. Both must come out
/// as before the kill, and counters must continue.
fn check(world: &mut BenchBox, leaves: &[Leaves]) -> Result<usize, String> {
    let step = (leaves.len() / SAMPLE).max(1);
    let sample: Vec<usize> = (0..leaves.len()).step_by(step).collect();
    for flow in &sample {
        let frame = first_packet(*flow);
        let came = one(world, &frame)?;
        if came[26..38] != leaves[*flow] || !traffic::is_sound(&came) {
            return Err(format!("flow {flow} leaves other than before"));
        }
        let back = one(world, &traffic::reply_to(&came))?;
        if back[26..] != traffic::reply_to(&frame)[26..] || !traffic::is_sound(&back) {
            return Err(format!("the reply of flow {flow} came out wrong"));
        }
        let key = between(traffic::client(*flow), traffic::VIRTUAL);
        let flows = world.runtimes[1]
            .as_ref()
            .and_then(|runtime| runtime.flows(0))
            .ok_or("there is no runtime")?;
        let found = flows
            .find(&key, flows.hash(&key))
            .ok_or_else(|| format!("flow {flow} is not there"))?;
        let packets = flows.header(found.slot).packets();
        if packets != [2, 1] {
            return Err(format!("flow {flow} has counted {packets:?} packets"));
        }
    }
    Ok(sample.len())
}

/// Sends one frame, and returns it as it comes out.
fn one(world: &mut BenchBox, frame: &[u8; FRAME_LEN]) -> Result<[u8; FRAME_LEN], String> {
    world.send(frame);
    let mut out = None;
    for _ in 0..16 {
        world.turn(&mut |_, frame| out = <[u8; FRAME_LEN]>::try_from(frame).ok());
        if let Some(out) = out {
            return Ok(out);
        }
    }
    Err("a packet did not come out".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_nf::Chain;

    fn chain() -> Result<Chain, String> {
        crate::bench::chains::chain(300)
    }

    /// 300 flows are recovered, twice: every flow has an owner, and the checked flows are
    /// unchanged.
    #[test]
    fn flows_are_recovered_and_looked_at() {
        let row = run(&Plan { flows: 300, rounds: 2 }, &chain).unwrap();
        assert_eq!((row.flows, row.checked), (300, 300));
        assert!(
            row.half_milliseconds <= row.milliseconds
                && row.milliseconds <= row.accounted_milliseconds
        );
        assert!(row.least_milliseconds > 0.0 && row.least_milliseconds <= row.most_milliseconds);
    }

    /// A flow that leaves with other addresses than before is found.
    #[test]
    fn a_flow_that_changed_is_found() {
        let mut world = BenchBox::new(10, &chain, &|| Preset::NFVACTOR.build()).unwrap();
        let mut leaves = Vec::new();
        world.open(10, first_packet, |frame| leaves.push(ends(frame))).unwrap();
        leaves[5][3] ^= 1;
        assert!(
            check(&mut world, &leaves).unwrap_err().contains("flow 5 leaves other than before")
        );
    }
}
