//! A function from outside of this repository: `holdfast nf new` makes its crate, which
//! builds by itself, tests its function, and is a box whose flows survive.

use anyhow::{Context, Result, ensure};
use holdfast_lab::requirements::NGINX;
use holdfast_lab::{Interrupt, Lab};
use holdfast_tests::network::{Chain, Network, Options, SERVER};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::verdict::ensure_unbroken;
use holdfast_tests::{TIMEOUT, binary, said};
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

/// Holdfast's crates on which the function's depends.
const OWN: [&str; 10] = [
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

/// The workspace's manifest.
const MANIFEST: &str = include_str!("../../Cargo.toml");

/// Crates that the workspace does not optimise.
fn not_optimised() -> impl Iterator<Item = &'static str> {
    MANIFEST.lines().filter_map(|line| Some(line.split_once(" = { opt-level = 0")?.0))
}

/// Cargo's configuration: no network, one core, as other tests have the other one, and
/// what the workspace has built. Holdfast's own crates are built once more, because they
/// are another workspace's, and are not optimised; all others are there already, if they
/// are optimised as there.
fn cargo_configuration() -> Result<String> {
    let target = target()?;
    let mut text = format!(
        "net.offline = true\nbuild = {{ target-dir = {target:?}, jobs = 1, incremental = false }}\n"
    );
    let others = not_optimised().filter(|name| !OWN.contains(name));
    OWN.into_iter()
        .chain(others)
        .for_each(|name| text += &format!("profile.dev.package.{name}.opt-level = 0\n"));
    Ok(text)
}

/// The directory with what the workspace has built: this program is in `debug/deps`.
fn target() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(3).context("a program in a target directory")?;
    Ok(target.to_owned())
}

fn a_function_of_another_crate_is_made_tested_and_survives(interrupt: &Interrupt) -> Result<()> {
    let lab = Lab::new(interrupt.clone())?;
    let made = said(Command::new(binary()?).args(["nf", "new", NAME]).current_dir(lab.scratch()))?;
    ensure!(made.contains("cargo test"), "{made}");
    let directory = lab.scratch().join(NAME);
    std::fs::create_dir(directory.join(".cargo"))?;
    std::fs::write(directory.join(".cargo/config.toml"), cargo_configuration()?)?;
    let run = |program: &Path, arguments: &[&str]| {
        interrupt.check()?;
        said(Command::new(program).args(arguments).current_dir(&directory))
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    run(Path::new(&cargo), &["build"])?;
    run(Path::new(&cargo), &["test", "--lib"])?;

    let program = target()?.join("debug").join(NAME);
    let listed = run(&program, &["nf"])?;
    ensure!(listed.lines().any(|line| line == NAME), "{listed}");
    run(&program, &["check", "--no-host", "box.yaml"])?;
    let few = "nf test --packets 200 --every 4001 --skip state_server \
               --skip rescue --skip _at_ --skip auto";
    let tested = run(&program, &few.split(' ').collect::<Vec<_>>())?;
    for check in ["determinism", "state", "leaks", "kill/reinforce", "migrate/nfactor"] {
        ensure!(tested.contains(&format!("{NAME}/{check}")), "{tested}");
    }
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
        let packets =
            counts.and_then(|counts| counts.values.iter().find(|one| one.name == "packets"));
        pool.is_some_and(|pool| pool.held >= CONNECTIONS)
            && packets.is_some_and(|one| one.value > 0)
    })?;
    drop(held);
    network.stop()
}
