//! A function from outside of this repository: `holdfast nf new` makes its crate, which
//! builds by itself, tests its function, and is a box whose flows survive.

use anyhow::{Context, Result, ensure};
use holdfast_lab::requirements::NGINX;
use holdfast_lab::{Interrupt, Lab};
use holdfast_tests::network::{Chain, Network, Options, SERVER};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::verdict::ensure_unbroken;
use holdfast_tests::{TIMEOUT, binary};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn tests() -> Vec<Test> {
    vec![light(
        "a_function_of_another_crate_is_made_tested_and_survives",
        60,
        &[NGINX],
        a_function_of_another_crate_is_made_tested_and_survives,
    )]
}

/// The function, its crate, and its program.
const NAME: &str = "doorman";

/// Profiles for a fast build: Holdfast's own crates are not optimised, and all others are
/// built as the workspace builds them, so that they are there already.
fn profiles() -> Vec<String> {
    let own = [
        "holdfast",
        "holdfast-control",
        "holdfast-functions",
        "holdfast-io",
        "holdfast-nf",
        "holdfast-node",
        "holdfast-protection",
        "holdfast-sim",
        "holdfast-state",
        "holdfast-wire",
    ];
    let option = |name| ["--config".to_owned(), format!("profile.dev.package.{name}.opt-level=0")];
    own.into_iter().flat_map(option).collect()
}

/// The directory with what the workspace has built: this program is in `debug/deps`.
fn target() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(3).context("a program in a target directory")?;
    Ok(target.to_owned())
}

/// Runs cargo in the crate, without the network and without what `make` exports.
fn cargo(directory: &Path, arguments: &[&str]) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let (command, rest) = arguments.split_first().context("a command")?;
    said(
        Command::new(cargo)
            .arg(command)
            .args(profiles())
            .args(rest)
            .current_dir(directory)
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_INCREMENTAL", "0")
            // Other tests have the other core.
            .env("CARGO_BUILD_JOBS", "1")
            .env("CARGO_TARGET_DIR", target()?),
    )
}

/// The output of a command that must succeed.
fn said(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("{command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complained) = (text(&out.stdout), text(&out.stderr));
    ensure!(out.status.success(), "{command:?}: {}\n{said}\n{complained}", out.status);
    Ok(said)
}

fn a_function_of_another_crate_is_made_tested_and_survives(interrupt: &Interrupt) -> Result<()> {
    let lab = Lab::new(interrupt.clone())?;
    let made = said(Command::new(binary()?).args(["nf", "new", NAME]).current_dir(lab.scratch()))?;
    ensure!(made.contains("cargo test"), "{made}");
    let directory = lab.scratch().join(NAME);
    cargo(&directory, &["build"])?;
    interrupt.check()?;
    // Its own tests, and of what `nf test` does a little.
    cargo(&directory, &["test", "--lib"])?;
    let few = ["--packets", "200", "--every", "4001"];
    let tested =
        cargo(&directory, &[&["test", "--test", "nf", "--"][..], &few, &["at_replica"]].concat())?;
    ensure!(tested.contains(&format!("{NAME}/kill/nfvactor_at_replica")), "{tested}");
    interrupt.check()?;

    let program = target()?.join("debug").join(NAME);
    let listed = said(Command::new(&program).args(["nf"]))?;
    ensure!(listed.lines().any(|line| line == NAME), "{listed}");
    said(Command::new(&program).args(["check", "--no-host", "box.yaml"]).current_dir(&directory))?;
    serves(&program, interrupt)
}

/// Connections through a box of the program live on while each runtime is killed, and
/// each has its place.
fn serves(program: &Path, interrupt: &Interrupt) -> Result<()> {
    const CONNECTIONS: u32 = 60;
    let program: &'static str = Box::leak(program.to_string_lossy().into_owned().into_boxed_str());
    let options = Options { program, ..Options::protected(Chain::Edge) };
    let usual = options.configuration();
    let first = "    functions:\n";
    let own = format!("{first}      - {NAME}: {{ places: 4096 }}\n");
    let mut network = Network::start_with(&options, &usual.replace(first, &own), interrupt)?;
    network.serve_web()?;
    let held = network.hold(&format!("{SERVER}:80"), CONNECTIONS as usize)?;
    network.kill_each_runtime(|| ensure_unbroken(&held, interrupt))?;
    let what = "every connection has its place";
    network.running.wait_for(what, TIMEOUT, interrupt, |status| {
        let pool = status.pools.iter().find(|pool| pool.function == NAME);
        let counts = status.statistic(NAME, "counts");
        let entered =
            counts.and_then(|counts| counts.values.iter().find(|one| one.name == "entered"));
        pool.is_some_and(|pool| pool.held >= CONNECTIONS) && entered.is_some()
    })?;
    drop(held);
    network.stop()
}
