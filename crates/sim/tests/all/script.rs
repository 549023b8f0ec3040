//! Worlds as texts: a text that was written is read again, and a text that cannot be read
//! gives an error with its line.

use holdfast_sim::{
    Fault, Habits, PUBLISHED_FROM as PUBLISHED, Plan, Scenario, Script, World, shrink,
};

/// Seeds from here on stand for worlds with several state servers.
const DIVIDED: u64 = 30_000_000;

fn error(text: &str) -> String {
    Script::read(text).expect_err(text).to_string()
}

/// A line has a typing error: the message names the line, what would have been right
/// there, and what was found instead.
#[test]
fn a_line_that_cannot_be_read_says_what_was_expected() {
    assert_eq!(
        error("seed 1\nat soon kill owner"),
        "line 2: expected a time such as 20ms, found `soon`"
    );
    assert_eq!(error("at 20 kill owner"), "line 1: expected a time such as 20ms, found `20`");
    assert_eq!(error("at 1.5ns kill owner"), "line 1: expected a time such as 20ms, found `1.5ns`");
    assert_eq!(
        error("\n# nothing\nstop owner"),
        "line 3: expected `seed`, `protection`, `planted`, `few`, `served`, `servers`, `published`, `inspected`, `network`, `inside`, `outside`, `hosts`, `switches`, `packets`, `networks`, `runtimes`, `flows`, `ring`, `clock`, `restart`, `lasts`, `each`, `at`, `once`, `after`, `when` or `expect`, found `stop`"
    );
    assert_eq!(error("at 20ms stop owner"), "line 1: expected `for`, and the line ends");
    assert_eq!(
        error("at 20ms kill runtime 3"),
        "line 1: expected a runtime's number, from 16, found `3`"
    );
    assert_eq!(error("servers 9"), "line 1: expected 1 to 8, found `9`");
    assert!(
        error("at 20ms kill server-8")
            .ends_with("or `manager` or `host` and its number, found `server-8`")
    );
    assert_eq!(error("at 20ms kill owner twice"), "line 1: expected the line's end, found `twice`");
    assert_eq!(
        error("at 20ms cut hub <-> owner for 3ms"),
        "line 1: expected `->`, or `<->` after a node, found `<->`"
    );
    assert_eq!(
        error("at 20ms kill owner\nat 10ms kill owner"),
        "line 2: a step is not earlier than the one before it"
    );
    assert_eq!(
        error("at 20ms open tcp 10.0.0.2 -> 1.2.3.4:5"),
        "line 1: expected how many packets, found `10.0.0.2`"
    );
    assert_eq!(
        error("expect connection 1 unfinished"),
        "line 1: there is no connection 1 before this line"
    );
    assert_eq!(
        error("expect drops everything"),
        "line 1: expected a reason as `holdfast explain` lists them, found `everything`"
    );
    assert_eq!(
        error("protection best"),
        "line 1: expected a protection (none, nfvactor_at_replica, nfvactor_at_source, nfvactor_auto, nfactor, reinforce, rescue, rescue_at_once, rescue_paged, nfvactor_at_once), found `best`"
    );
}

/// Hundreds of worlds are written down as they happened. The texts are read again and
/// give the same worlds.
#[test]
fn what_a_seed_did_is_written_down_and_read_again() {
    let mut steps = 0;
    for seed in (0..120).chain(DIVIDED..DIVIDED + 30).chain(PUBLISHED..PUBLISHED + 30) {
        let scenario = Scenario::of_seed(seed);
        let outcome = World::new(scenario, false).play();
        let script = Script {
            name: String::new(),
            scenario: Scenario { quiet: true, ..scenario },
            plan: outcome.plan,
            expects: Vec::new(),
        };
        let text = script.to_string();
        let mut read =
            Script::read(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        assert_eq!(read.len(), 1);
        read[0].plan.live = script.plan.live;
        assert_eq!(read[0].to_string(), text, "seed {seed}");
        assert_eq!(read[0].plan, script.plan, "seed {seed}: {text}");
        steps += script.plan.steps.len();
    }
    assert!(steps > 500, "only {steps} steps were taken");
}

/// A network may be lossy for fragments alone, while its links do what those of a calm
/// one do: then it is not calm.
#[test]
fn calm_links_are_no_calm_network() {
    for (calm, habits) in [(true, None), (false, None), (false, Some([Habits::CALM; 2]))] {
        let plan = Plan { calm, habits, ..Plan::default() };
        let script = Script {
            name: String::new(),
            scenario: Scenario { quiet: true, ..Scenario::of_seed(1) },
            plan,
            expects: Vec::new(),
        };
        assert_eq!(Script::read(&script.to_string()).unwrap()[0].plan, script.plan);
    }
}

/// A drawn world is done again by its plan: the same frames are lost, and the same
/// connections finish.
#[test]
fn what_a_seed_did_is_done_again_by_plan() {
    let mut released = 0;
    for seed in (0..60).chain(DIVIDED..DIVIDED + 20).chain(PUBLISHED..PUBLISHED + 20) {
        let scenario = Scenario::of_seed(seed);
        let drawn = World::new(scenario, false).play();
        let planned = World::planned(scenario, drawn.plan.clone(), false).play();
        let differs = (0..drawn.plan.steps.len())
            .find(|at| planned.plan.steps.get(*at) != drawn.plan.steps.get(*at));
        assert_eq!(
            differs,
            None,
            "seed {seed}: {:?}",
            &drawn.plan.steps[differs.unwrap_or(0).saturating_sub(1)..]
        );
        assert_eq!(planned.report.faults.lost, drawn.report.faults.lost, "seed {seed}");
        assert_eq!(planned.finished, drawn.finished, "seed {seed}");
        released += planned.released.len();
    }
    assert!(released > 1000, "only {released} packets left");
}

/// A name stands for several words, and the text for as many worlds.
#[test]
fn each_makes_a_world_per_word() {
    let scripts = Script::read("each who in owner | hub\nat 20ms kill $who").unwrap();
    assert_eq!(scripts.len(), 2);
    assert_eq!(
        scripts.iter().map(|script| script.name.as_str()).collect::<Vec<_>>(),
        ["owner", "hub"]
    );
    assert!(scripts[1].to_string().contains("at 20ms kill hub\n"), "{}", scripts[1]);
}

/// A bug is planted, and the first world that finds it is made small: a handful of lines
/// remains, which still finds it.
fn shrinks(fault: Fault, most_steps: usize) {
    let scenarios =
        (0..1000).map(|seed| Scenario { planted: fault.into(), ..Scenario::of_seed(seed) });
    let mut broken =
        scenarios.filter(|scenario| !World::new(*scenario, false).run().violations.is_empty());
    let script = broken.find_map(shrink).unwrap_or_else(|| panic!("{fault:?} was not noticed"));
    let text = script.to_string();
    let (_, wrong) = script.play(false);
    assert!(wrong.is_empty(), "{wrong:?}\n{text}");
    let steps = script.plan.steps.len() - 1;
    assert!(steps <= most_steps && script.plan.connections.len() <= 4, "{steps} steps:\n{text}");
    let read = Script::read(&text).unwrap();
    assert!(read[0].play(false).1.is_empty(), "as it is read again it breaks nothing:\n{text}");
}

#[test]
fn a_release_before_the_commit_shrinks() {
    shrinks(Fault::ReleasesBeforeCommit, 2);
}

#[test]
fn missing_epoch_checks_shrink() {
    shrinks(Fault::IgnoresEpochs, 3);
}

#[test]
fn a_port_given_twice_shrinks() {
    shrinks(Fault::ReusesLivePort, 0);
}

#[test]
fn a_changed_chain_shrinks() {
    shrinks(Fault::Reclassifies, 1);
}
