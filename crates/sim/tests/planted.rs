//! The testers are tested: each fault that can be planted is planted and has to be found,
//! `planted/<fault>`.
//!
//! Most of the faults were once real. A row of the table says who finds a fault, and in
//! how many worlds. The number is at least four times as many as it took when the row was
//! written, so that the row stays true when seeds stand for other worlds. Rows that take
//! long lie apart from one another.

use holdfast_sim::{Fault, Outcome, Preset, Scenario, Script, World};
use holdfast_sim::{LIMITED_FROM as LIMITED, PUBLISHED_FROM as PUBLISHED};
use libtest_mimic::{Arguments, Failed, Trial};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// The finder of a fault.
#[derive(Clone, Copy)]
enum Finder {
    /// A world among several: the scenario of a seed, the first seed, and the number of
    /// seeds.
    Worlds(fn(u64) -> Scenario, u64, u64),
    /// A file of `tests/scenarios`, in which something is not as expected.
    File(&'static str),
}
use Finder::{File, Worlds};

/// A fault, its finders, each of which finds it alone, and a part of what they say of it.
type Row = (Fault, &'static [Finder], &'static str);

fn drawn(seed: u64) -> Scenario {
    Scenario::of_seed(seed)
}

/// A world under a weak protection.
fn weak(seed: u64) -> Scenario {
    Scenario { preset: Preset::NFACTOR, ..Scenario::of_seed(seed) }
}

fn quiet(seed: u64) -> Scenario {
    Scenario { quiet: true, ..Scenario::of_seed(seed) }
}

/// First seeds of worlds with `reinforce`, of those with a state server, and of those
/// whose flows have their home at one.
const REINFORCE: u64 = 1_000_000;
const SERVED: u64 = 10_000_000;
const PAGED: u64 = 20_000_000;

#[rustfmt::skip]
const TABLE: &[Row] = &[
    (Fault::ReleasesBeforeCommit, &[Worlds(drawn, 0, 20), Worlds(drawn, REINFORCE, 20)], "output commit"),
    (Fault::AwaitsWhatComesNoMore, &[File("what-was-to-come-is-anothers-by-now")], "did not finish"),
    (Fault::IgnoresEpochs, &[Worlds(drawn, 0, 100)], "one owner"),
    (Fault::FreesBlocksAtDeath, &[Worlds(drawn, 0, 500)], "leases"),
    (Fault::ForgetsEchoes, &[File("two-managers-next-incarnations-that-have-heard-nobody")], "output commit"),
    (Fault::DamagesCopies, &[Worlds(quiet, 0, 20)], "were found to differ"),
    (Fault::OpensBeforeRecoveries, &[Worlds(drawn, 0, 200)], "output commit"),
    (Fault::EndsDrainEarly, &[File("a-drain-behind-a-move-that-takes-its-time")], "expectation"),
    (Fault::ReplaysBackwards, &[Worlds(drawn, REINFORCE, 20)], ""),
    (Fault::ServerForgets, &[Worlds(drawn, SERVED, 20)], "leases"),
    (Fault::IgnoresInterval, &[Worlds(weak, 0, 20)], "bounded loss"),
    (Fault::BelievesLastHeard, &[Worlds(drawn, 0, 500)], ""),
    (Fault::TakesStarvedForDead, &[File("a-busy-machine")], "starved is not dead"),
    (Fault::TellsNoLeaver, &[File("a-drained-holder-and-a-flow-that-ended")], "ended flows"),
    (Fault::EvictsUnsaved, &[Worlds(drawn, PAGED, 20)], "output commit"),
    (Fault::FencesWhenAskedOnly, &[File("a-host-that-serves-a-moment-longer-than-its-runtime")], "one owner"),
    (Fault::BelievesDamaged, &[Worlds(drawn, 0, 500)], ""),
    (Fault::ReportsEarly, &[Worlds(weak, 0, 20)], "bounded loss"),
    (Fault::MissesNondeterminism, &[Worlds(drawn, REINFORCE, 500)], "output commit"),
    (Fault::GivesUpNeededCopies, &[File("a-copy-that-is-needed-where-the-flow-goes")], "output commit"),
    (Fault::LeasesWhatCameBack, &[Worlds(drawn, 0, 20)], "leases"),
    (Fault::ForgetsHeardManagers, &[File("a-manager-whose-first-word-is-late")], "output commit"),
    (Fault::ReusesLivePort, &[Worlds(drawn, 0, 20)], "leases"),
    (Fault::HearsThePast, &[Worlds(drawn, 0, 2000)], ""),
    (Fault::TakesZeroForTime, &[File("a-next-incarnation-that-does-not-know-the-time")], "expectation"),
    (Fault::KeepsOldWindows, &[Worlds(weak, 0, 20)], "liveness"),
    (Fault::RefusesOlderClaims, &[File("flows-that-cross-within-a-host-that-dies")], "output commit"),
    (Fault::ExpiresUnasked, &[Worlds(drawn, SERVED, 20)], "leases"),
    (Fault::SafeBehindLostLog, &[File("a-checkpoint-under-way-when-its-log-is-lost")], "output commit"),
    (Fault::OpensTwice, &[Worlds(drawn, 0, 80)], "only hosts are heard"),
    (Fault::RepliesChangeEpochs, &[File("a-reply-key-that-was-not-learned")], "did not finish"),
    (Fault::KeepsPartsOfTheDead, &[Worlds(drawn, SERVED, 40), File("numbers-of-the-dead-while-a-runtime-leaves-for-good")], "statistics"),
    (Fault::ReleasesAfterStandstill, &[File("a-host-that-stood-still")], "one owner"),
    (Fault::Reclassifies, &[Worlds(drawn, 0, 20)], "one chain"),
    (Fault::AsksForAllAgain, &[File("a-replay-that-no-ring-has-room-for")], "did not finish"),
    (Fault::SpeaksBeforeWriting, &[Worlds(drawn, 0, 200)], "log"),
    (Fault::TakesFromTheDead, &[File("a-wish-to-move-behind-its-senders-death")], "bounded loss"),
    (Fault::TellsTimeTooSoon, &[File("a-clock-of-which-only-copies-know"), File("a-host-whose-clock-is-ahead")], ""),
    (Fault::ForgetsEpochsOfTheDead, &[File("epochs-that-nobody-alive-knows")], "did not finish"),
    // Faults of reply keys, fragments and published mappings.
    (Fault::GivesAwayReplyKeys, &[Worlds(drawn, PUBLISHED, 200)], "reply keys"),
    (Fault::LetsOutUntold, &[File("a-switch-dies-that-knew-whose-a-reply-key-is")], "reply keys"),
    (Fault::FollowsFrames, &[Worlds(drawn, PUBLISHED, 20)], "liveness"),
    (Fault::LetsFragmentsPass, &[Worlds(drawn, PUBLISHED, 100)], "reply keys"),
    (Fault::LeasesWhatIsPublished, &[Worlds(drawn, PUBLISHED, 20)], "leases"),
    (Fault::TellsOneEnd, &[Worlds(drawn, LIMITED, 20)], "resets"),
];

/// Faults that other tests find:
/// - of state servers: servers and clients alone (`state/tests/lists.rs`,
///   `node/tests/state_server.rs`);
/// - of channels: two endpoints (`node/src/channel/tests/incarnations.rs`);
/// - of full tables and limits: a runtime or a switch alone
///   (`node/tests/all/pressure.rs`, `node/tests/all/switch/sources.rs`), and every
///   protection (conformance, `flood`);
/// - of heirs that die themselves, and of the dead that nobody had watched: failures
///   together (conformance, `counted_together`);
/// - of functions: the functions' scenarios (`functions/tests/scenarios/planted.rs`).
const ELSEWHERE: &[Fault] = &[
    Fault::TakesMovedForOver,
    Fault::FreesAtDeath,
    Fault::FreesAtFirstClaim,
    Fault::HeedsLateAnswers,
    Fault::SpeaksBeforeStandby,
    Fault::BelievesAnyWords,
    Fault::BelievesAnyIncarnation,
    Fault::ForgetsEstablished,
    Fault::ForgetsNothing,
    Fault::IgnoresHalfOpen,
    Fault::CopiesUnfinished,
    Fault::IgnoresLastWords,
    Fault::IgnoresHostLimits,
];

/// Everything that is wrong with a world.
fn wrongs(outcome: &Outcome) -> Vec<String> {
    outcome
        .report
        .violations
        .iter()
        .map(|violation| format!("{}: {}", violation.invariant, violation.text))
        .collect()
}

/// The finder of a fault, and everything that it says.
type Found = (String, Vec<String>);

fn in_worlds(
    fault: Fault,
    world: fn(u64) -> Scenario,
    from: u64,
    within: u64,
) -> Result<Found, Failed> {
    let mut played = (from..from + within).map(|seed| {
        (seed, wrongs(&World::new(Scenario { planted: fault.into(), ..world(seed) }, false).play()))
    });
    let found = played.find(|(_, wrong)| !wrong.is_empty());
    let (seed, wrong) = found.ok_or_else(|| {
        format!("{fault:?} was not noticed in {within} worlds from seed {from} on")
    })?;
    // The fault has to be what is noticed: without it the same world is as it should be.
    let alone = wrongs(&World::new(world(seed), false).play());
    if !alone.is_empty() {
        return Err(
            format!("seed {seed} breaks without {fault:?}, too: {}", alone.join("; ")).into()
        );
    }
    Ok((format!("seed {seed}, world {} of {within}", seed - from + 1), wrong))
}

fn in_file(fault: Fault, name: &str) -> Result<Found, Failed> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/scenarios")
        .join(name)
        .with_extension("txt");
    let mut played =
        Script::read(&std::fs::read_to_string(file)?)?.into_iter().map(|mut script| {
            script.scenario.planted = fault.into();
            let (outcome, wrong) = script.play(false);
            (name.to_owned(), wrongs(&outcome).into_iter().chain(wrong).collect::<Vec<_>>())
        });
    let found = played.find(|(_, wrong)| !wrong.is_empty());
    found.ok_or_else(|| format!("{fault:?} was not noticed in {name}").into())
}

#[allow(clippy::print_stdout)]
fn find((fault, finders, said): Row) -> Result<(), Failed> {
    for finder in finders {
        let began = Instant::now();
        let (by, wrong) = match *finder {
            Worlds(world, from, within) => in_worlds(fault, world, from, within)?,
            File(name) => in_file(fault, name)?,
        };
        let Some(first) = wrong.iter().find(|wrong| wrong.contains(said)) else {
            return Err(format!("{by}: nobody says `{said}`, but {}", wrong.join("; ")).into());
        };
        println!("planted/{}: {by}, {:.1} s: {first}", fault.name(), began.elapsed().as_secs_f32());
    }
    Ok(())
}

/// Every fault is in the table or is found elsewhere, once. A fault of functions may be
/// in neither: the functions' scenarios find it.
fn has_a_row() -> Result<(), Failed> {
    let rows = |fault: &Fault| {
        TABLE.iter().map(|(row, ..)| row).chain(ELSEWHERE).filter(|row| *row == fault).count()
    };
    let is_right =
        |fault: &Fault| rows(fault) == 1 || rows(fault) == 0 && Fault::OF_FUNCTIONS.contains(fault);
    match Fault::ALL.iter().find(|fault| !is_right(fault)) {
        Some(fault) => Err(Failed::from(format!("{fault:?} is not in one place"))),
        None => Ok(()),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let trials = TABLE
        .iter()
        .map(|row| Trial::test(format!("planted/{}", row.0.name()), move || find(*row)));
    let all = trials.chain([Trial::test("planted/has_a_row", has_a_row)]).collect();
    libtest_mimic::run(&arguments, all).exit_code()
}
