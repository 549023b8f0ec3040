//! `nf test`: what a box does to a network function, done to it here.
//!
//! Theory of operation. A function is put on a bench ([`holdfast_nf::bench`]) and into
//! the simulator's worlds; each check is a test of a Rust test program, named
//! `FUNCTION/CHECK`:
//! - `determinism`: three instances get the same packets, and do the same.
//! - `state`: each packet of a flow is processed again by an instance that has nothing
//!   but the flow's state, as after a migration or a failure, and comes out the same.
//! - `leaks`: what flows hold of pools and gauges is held as long as they live, wherever
//!   they are, and not longer; tables are empty when all flows have ended.
//! - `kill/PROTECTION`, `migrate/PROTECTION`: a runtime is killed, or its flows move, at
//!   one event after the other of a world whose chain has the function. The flows' states
//!   go through what the protection sends and keeps: deltas, snapshots, logs, pages.
//!   `+state_server` says that a server assigns numbers and adds up counts.
//!
//! In: functions of the catalog, with configurations, and the arguments of a test
//! program. Out: its report. Never: a function that knows that it is tested.

mod determinism;
mod difference;
mod leaks;
mod state;
mod traffic;
mod worlds;

use crate::scenario::Inserted;
use clap::Parser;
use holdfast_functions::catalog;
use holdfast_nf::{ConfigError, Configured, NetworkFunction};
use holdfast_protection::Plan as Preset;
use holdfast_protection::plan::Shared;
use holdfast_wire::zone::Zones;
use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use worlds::Disturbance;

/// The extent of the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
struct Effort {
    /// Packets on the bench
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    packets: u32,
    /// A failure after every N-th event of a world; 1 tries all of them
    #[arg(long, value_name = "N", default_value_t = 499, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// The seed of packets and worlds
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Test network functions: determinism, state, leaks, and every protection in the
/// simulator
#[derive(Debug, Parser)]
#[command(name = "nf test", disable_version_flag = true)]
struct TestArguments {
    /// Test this function instead, with this configuration in JSON
    /// (turnstile='{"places":512}')
    #[arg(long = "function", value_name = "NAME[=CONFIG]", value_parser = function)]
    functions: Vec<Inserted>,
    #[command(flatten)]
    effort: Effort,
    #[command(flatten)]
    tests: libtest_mimic::Arguments,
}

/// Reads a function with its configuration.
fn function(text: &str) -> Result<Inserted, String> {
    let (name, config) = text.split_once('=').unwrap_or((text, "null"));
    let config = serde_json::from_str(config)
        .map_err(|error| format!("the configuration of `{name}` is no JSON: {error}"))?;
    Ok(Inserted { name: name.to_owned(), config })
}

/// Functions to be tested. A program of tests is made of it.
#[derive(Debug, Clone, Default)]
pub struct Suite {
    functions: Vec<Inserted>,
}

impl Suite {
    /// Adds a function of the author's, which joins the catalog, with a configuration in
    /// which it lets ordinary traffic pass: TCP, UDP and echo from 10.0.0.0/8 to
    /// anywhere, also fragmented, and UDP over IPv6.
    #[must_use]
    pub fn function<N: NetworkFunction>(mut self, config: Value) -> Suite {
        catalog::add::<N>();
        self.functions.push(Inserted { name: N::NAME.to_owned(), config });
        self
    }

    /// The whole of a test program: takes the process's arguments, runs the tests and
    /// reports. The exit code is that of any Rust test program.
    pub fn main(self) -> ExitCode {
        self.run(std::env::args_os())
    }

    /// As [`Suite::main`], with these arguments, the program's name first.
    pub fn run(self, arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
        let TestArguments { functions, effort, tests } = TestArguments::parse_from(arguments);
        let functions = if functions.is_empty() { self.functions } else { functions };
        if functions.is_empty() {
            eprintln!(
                "nf test: no function is named: `--function NAME=CONFIG`, with one of {}",
                catalog::names().join(", ")
            );
            return ExitCode::from(2);
        }
        let trials = functions.into_iter().flat_map(|function| trials(function, effort)).collect();
        let filter = tests.filter.clone();
        let done = libtest_mimic::run(&tests, trials);
        let ran = done.num_passed + done.num_failed + done.num_ignored + done.num_measured;
        if ran == 0 && !tests.list {
            eprintln!("nf test: no check is called `{}`", filter.unwrap_or_default());
            return ExitCode::from(2);
        }
        done.exit_code()
    }
}

type Check = Box<dyn Fn(&'static Inserted) -> Result<(), String> + Send>;

/// All checks of a function, by name.
fn checks(effort: Effort) -> Vec<(String, Check)> {
    let mut checks: Vec<(String, Check)> = vec![
        ("determinism".to_owned(), Box::new(move |of| determinism::check(of, effort))),
        ("state".to_owned(), Box::new(move |of| state::check(of, effort))),
        ("leaks".to_owned(), Box::new(move |of| leaks::check(of, effort))),
    ];
    for disturbance in [Disturbance::Kill, Disturbance::Migrate] {
        for (name, preset) in Preset::ALL {
            for (shared, suffix) in
                [(Shared::Partitioned, ""), (Shared::StateServer, "+state_server")]
            {
                let name = format!("{}/{name}{suffix}", disturbance.name());
                let preset = Preset { shared, ..preset };
                let check = move |of| worlds::check(of, preset, disturbance, effort);
                checks.push((name, Box::new(check)));
            }
        }
    }
    checks
}

/// The tests of a function. Its description lasts as long as the program: scenarios are
/// values without an end.
fn trials(function: Inserted, effort: Effort) -> Vec<Trial> {
    let function: &'static Inserted = Box::leak(Box::new(function));
    let trial = |(name, check): (String, Check)| {
        Trial::test(format!("{}/{name}", function.name), move || {
            build(function)?;
            check(function).map_err(Failed::from)
        })
    };
    checks(effort).into_iter().map(trial).collect()
}

/// Makes the function once more from its configuration.
fn build(function: &Inserted) -> Result<Arc<dyn Configured>, String> {
    catalog::configured(&function.name, &function.config, &Zones::default()).map_err(
        |ConfigError { path, message, .. }| {
            let place = if path.is_empty() { String::new() } else { format!(" at `{path}`") };
            format!("configuration of `{}`{place}: {message}", function.name)
        },
    )
}

/// Makes one check of a function.
///
/// # Errors
/// The check's finding, or the check's absence.
#[cfg(test)]
fn one(function: Inserted, check: &str, effort: Effort) -> Result<(), String> {
    let function: &'static Inserted = Box::leak(Box::new(function));
    build(function)?;
    let found = checks(effort).into_iter().find(|(name, _)| name == check);
    found.ok_or_else(|| format!("there is no check `{check}`"))?.1(function)
}

#[cfg(test)]
mod tests;
