//! Runs the tests of one file one after the other, in the output format of every other Rust test.

use holdfast_lab::Interrupt;
use holdfast_lab::requirements::{self, Program};
use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

/// A test: its name, the programs it needs besides `ip` and `ethtool`, and what it does.
pub struct Test {
    name: &'static str,
    programs: &'static [Program],
    body: fn(&Interrupt) -> anyhow::Result<()>,
}

/// Declares a test.
pub const fn test(name: &'static str, programs: &'static [Program], body: fn(&Interrupt) -> anyhow::Result<()>) -> Test {
    Test { name, programs, body }
}

/// Runs them. A test that the machine cannot run is counted as ignored, and says why.
pub fn main(tests: Vec<Test>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let interrupt = match Interrupt::on_signals() {
        Ok(interrupt) => interrupt,
        Err(error) => {
            eprintln!("cannot watch for signals: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let trials = tests.into_iter().map(|test| trial(test, interrupt.clone())).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(test: Test, interrupt: Interrupt) -> Trial {
    let basics = [requirements::IP, requirements::ETHTOOL];
    let missing = requirements::require(&basics).and_then(|()| requirements::require(test.programs)).err();
    if let Some(missing) = &missing {
        eprintln!("SKIPPED {}: {missing}", test.name);
    }
    let body = test.body;
    let run = move || {
        interrupt.check()?;
        let _alone = holdfast_lab::exclusive().map_err(|error| format!("{error:#}"))?;
        body(&interrupt).map_err(|error| format!("{error:#}").into())
    };
    let kind = if missing.is_some() { "SKIPPED" } else { "" };
    Trial::test(test.name, run).with_kind(kind).with_ignored_flag(missing.is_some())
}
