//! The papers' chains. Firewall, NAT and balancer are in every world; the other functions
//! of a paper's chain join them.

use crate::verdicts::marks;
use crate::{
    MILLISECOND, Mix, check_basics, check_finished, few_connections, harms, require, scenario,
    sweep,
};
use holdfast_sim::{How, Inserted, Outcome, Plan, Preset, Scenario, play};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// DSCPs: `ef` and `le`.
const NEW: u8 = 46;
const HEAVY: u8 = 1;
/// Packets of a flow after which it is heavy.
const FEW: u64 = 6;

fn inserted<const N: usize>(functions: [(&str, Value); N]) -> Vec<Inserted> {
    functions.map(|(name, config)| Inserted { name: name.to_owned(), config }).into()
}

/// REINFORCE, Table I: QoS, MON, and with LB and two SF. The marker demotes a flow by its
/// count of packets.
static REINFORCE: LazyLock<Vec<Inserted>> = LazyLock::new(|| {
    let classes = json!({
        "new": { "dscp": "ef", "demote": { "to": "heavy", "after_packets": FEW } },
        "heavy": { "dscp": "le" },
    });
    inserted([
        ("qos_marker", json!({ "classes": classes, "default": "new" })),
        ("monitor", json!({})),
        ("forward", json!({})),
        ("forward", json!({})),
    ])
});
/// NFVactor, section VI-A: firewall, NAT and IPS. A pattern is found across segments.
static NFVACTOR: LazyLock<Vec<Inserted>> = LazyLock::new(|| {
    let rule = "alert ip any any -> any any (content:\"|1f|\"; content:\"|3e|\"; distance:0; within:9; sid:1;)";
    inserted([("ips", json!({ "rules": [rule], "uninspected": "drop" }))])
});
/// NFActor's test chain: monitor, firewall and HTTP parser. The worlds' connections carry
/// no HTTP.
static NFACTOR: LazyLock<Vec<Inserted>> = LazyLock::new(|| {
    inserted([("monitor", json!({})), ("http", json!({ "ports": [80], "malformed": "allow" }))])
});

/// True if a direction of a flow was demoted, and later was new again.
fn forgets(outcome: &Outcome) -> bool {
    marks(outcome).iter().any(|(_, marks)| {
        let demoted = marks.iter().position(|mark| *mark == HEAVY).unwrap_or(marks.len());
        marks[demoted..].contains(&NEW)
    })
}

/// A runtime that serves a paper's chain is killed between any two events: the chain's
/// functions break nothing that the worlds' own keep, every connection finishes, and a
/// demoted flow stays demoted. The same sweep must see an unprotected flow that is new
/// again. IPS and HTTP parser decide nothing here; the end-to-end tests of their verdicts
/// kill runtimes, too.
pub(crate) fn papers_chains(mix: Mix) -> Result<(), String> {
    let plan = Plan {
        connections: few_connections(),
        calm: true,
        strict: mix.preset.is_strict(),
        lasts: 8_000 * MILLISECOND,
        ..Plan::default()
    };
    let chains: [(&'static [Inserted], u64); 3] =
        [(&REINFORCE, 41), (&NFVACTOR, 53), (&NFACTOR, 59)];
    for (inserted, step) in chains {
        let of_paper = Scenario { inserted, ..scenario(65, mix) };
        sweep(of_paper, &plan, How::Kill, step, |plan, outcome| {
            check_basics(mix, plan, &outcome)?;
            require!(
                !mix.preset.is_strict() || !forgets(&outcome),
                "{:?}: a demoted flow was new again: {:?}",
                plan.steps,
                marks(&outcome)
            );
            if mix.preset.promises() { check_finished(mix, plan, &outcome) } else { Ok(()) }
        })?;
    }
    let marked = Scenario { inserted: &REINFORCE, ..scenario(65, mix) };
    let demoted = marks(&play(marked, plan.clone()));
    let demoted = demoted.iter().filter(|(_, marks)| marks.contains(&HEAVY)).count();
    require!(demoted > 7, "only {demoted} directions were demoted");
    let none = Mix { preset: Preset::NONE, ..mix };
    let unprotected = Scenario { inserted: &REINFORCE, ..scenario(65, none) };
    let plan = Plan { strict: false, ..plan };
    let forgotten = harms(unprotected, &plan, How::Kill, 7, 0, |_, outcome| Ok(forgets(&outcome)))?;
    require!(forgotten > 0, "unprotected flows forgot nothing either");
    Ok(())
}
