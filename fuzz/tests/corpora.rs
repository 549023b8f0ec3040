//! Runs every target over its corpus (`corpus/TARGET`) and over seeded mutations of it,
//! as a test of its own.
//!
//! - `HOLDFAST_FUZZ_MUTATIONS`: the number of mutations of every target. If it is not
//!   set, the target's entry in `TARGETS` has the number.
//! - `HOLDFAST_FUZZ_SEED`: the seed from which the mutations are drawn, 1 if it is not
//!   set.
//! - `HOLDFAST_FUZZ_INPUT`: a file. Only this input is run, by the target whose name the
//!   file's directory has.
//!
//! A failing input is kept in `target/fuzz/artifacts/TARGET`. If the program itself ends
//! (a stack overflow) or hangs, the input is there as `running.PID`. Once the bug is
//! mended, the input belongs to the corpus.

use holdfast_fuzz::{TARGETS, Target, runner};
use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let input = std::env::var_os("HOLDFAST_FUZZ_INPUT").map(|path| repository().join(path));
    let trials = match input {
        Some(path) => vec![replay(path)],
        None => {
            let seed = number("HOLDFAST_FUZZ_SEED").unwrap_or(1);
            let mutations = number("HOLDFAST_FUZZ_MUTATIONS");
            eprintln!("fuzz: seed {seed}");
            let of_target = |target: &'static Target| {
                let mutations = mutations.unwrap_or(target.mutations);
                Trial::test(target.name, move || run(target, seed, mutations))
            };
            let corpora = Trial::test("every_corpus_has_a_target", every_corpus_has_a_target);
            TARGETS.iter().map(of_target).chain([corpora]).collect()
        }
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is a directory of the repository")
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

fn run(target: &Target, seed: u64, mutations: u64) -> Result<(), Failed> {
    let Target { name, .. } = target;
    let corpus = runner::corpus(&repository().join("fuzz/corpus").join(name))?;
    let artifacts = repository().join("target/fuzz/artifacts").join(name);
    let start = Instant::now();
    if let Err(failure) = runner::run(target, &corpus, seed, mutations, &artifacts)? {
        let runner::Failure { what, panic, input } = failure;
        let input = input.strip_prefix(repository()).unwrap_or(&input).display();
        return Err(format!(
            "{name}, {what}: {panic}\nagain: HOLDFAST_FUZZ_INPUT={input} cargo test --locked -p holdfast-fuzz --test corpora"
        )
        .into());
    }
    let (inputs, seconds) = (corpus.len(), start.elapsed().as_secs_f64());
    eprintln!("fuzz: {name:<12} {inputs:>4} inputs {mutations:>6} mutations {seconds:>6.1} s");
    Ok(())
}

fn replay(path: PathBuf) -> Trial {
    let name =
        path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    Trial::test(name.clone(), move || {
        let target = TARGETS.iter().find(|target| target.name == name);
        let target = target
            .ok_or_else(|| format!("{} is in no directory with a target's name", path.display()))?;
        Ok(runner::replay(target, &std::fs::read(path)?)?)
    })
}

fn every_corpus_has_a_target() -> Result<(), Failed> {
    for entry in std::fs::read_dir(repository().join("fuzz/corpus"))? {
        let name = entry?.file_name();
        if !TARGETS.iter().any(|target| name == target.name) {
            return Err(format!("fuzz/corpus/{} is no target's", name.display()).into());
        }
    }
    Ok(())
}
