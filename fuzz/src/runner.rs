//! Runs a target over its corpus and over seeded mutations of it, and keeps the input
//! that fails.

use crate::Target;
use crate::mutation::{self, Random};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// An input and the name of its file.
pub type Input = (String, Vec<u8>);

/// An input that makes a target panic.
#[derive(Debug)]
pub struct Failure {
    /// The input in words: a file of the corpus, or the number of a mutation.
    pub what: String,
    /// The panic's message.
    pub panic: String,
    /// The file that keeps the input.
    pub input: PathBuf,
}

/// The files of a corpus in the order of their names.
pub fn corpus(directory: &Path) -> io::Result<Vec<Input>> {
    let read = |entry: io::Result<fs::DirEntry>| {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, fs::read(path)?))
    };
    let mut inputs = fs::read_dir(directory)?.map(read).collect::<io::Result<Vec<Input>>>()?;
    inputs.sort();
    Ok(inputs)
}

/// Runs every input of the corpus, then `mutations` mutations of them, and stops at the
/// first that fails.
///
/// The current input is always in a file of `artifacts` named after this process. The
/// file is there after a stack overflow, an abort or a hang as well.
pub fn run(
    target: &Target,
    corpus: &[Input],
    seed: u64,
    mutations: u64,
    artifacts: &Path,
) -> io::Result<Result<(), Failure>> {
    fs::create_dir_all(artifacts)?;
    let path = artifacts.join(format!("running.{}", std::process::id()));
    let running = File::create(&path)?;
    let data: Vec<Vec<u8>> = corpus.iter().map(|(_, data)| data.clone()).collect();
    let files =
        corpus.iter().map(|(name, data)| (format!("input {name}"), name.clone(), data.clone()));
    let mutants = (0..mutations).map(|number| {
        let data = mutation::mutate(&data, &mut Random::new(seed, target.name, number));
        (format!("mutation {number} of seed {seed}"), format!("{seed}-{number}"), data)
    });
    for (what, name, data) in files.chain(mutants) {
        running.set_len(data.len() as u64)?;
        running.write_all_at(&data, 0)?;
        if let Err(panic) = replay(target, &data) {
            let input = artifacts.join(name);
            fs::rename(path, &input)?;
            return Ok(Err(Failure { what, panic, input }));
        }
    }
    fs::remove_file(path)?;
    Ok(Ok(()))
}

/// Runs one input. The error is the panic's message.
pub fn replay(target: &Target, data: &[u8]) -> Result<(), String> {
    catch_unwind(|| (target.run)(data)).map_err(|payload| match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload
            .downcast::<&str>()
            .map_or_else(|_| "no text".to_owned(), |text| (*text).to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;

    /// A frame is two bytes of kind, a length and a body. The length is trusted if the
    /// frame is of kind 88b5.
    fn trusts_a_length(data: &[u8]) {
        if let [0x88, 0xb5, len, body @ ..] = data {
            let _ = &body[..usize::from(*len)];
        }
    }

    const TOY: Target = Target { name: "toy", run: trusts_a_length, mutations: 0 };

    fn toy_corpus() -> Vec<Input> {
        // A frame of another kind, and one of kind 88b5 whose length is right.
        [b"\x08\x00\x04data".to_vec(), b"\x88\xb5\x04datadata".to_vec()]
            .map(|data| (format!("{:02x}", data[0]), data))
            .into()
    }

    #[test]
    fn what_fails_is_found_kept_and_fails_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let find = |seed| {
            let found = run(&TOY, &toy_corpus(), seed, 10_000, directory.path())
                .expect("files can be written");
            found.expect_err("a panic within reach is found")
        };
        for seed in 1..=20 {
            let failure = find(seed);
            assert!(failure.what.ends_with(&format!("of seed {seed}")), "{}", failure.what);
            assert!(failure.panic.contains("out of range"), "{}", failure.panic);
            let data = fs::read(&failure.input).expect("the input is kept");
            assert_eq!(replay(&TOY, &data).expect_err("it fails again"), failure.panic);
            let again = find(seed);
            assert_eq!(
                (again.what, again.input),
                (failure.what, failure.input),
                "the same seed finds the same"
            );
        }
        assert_eq!(
            corpus(directory.path()).expect("it can be read").len(),
            20,
            "nothing else stays"
        );
    }

    #[test]
    fn a_corpus_that_fails_does_so_before_its_mutations() {
        let directory = tempfile::tempdir().expect("a directory");
        let inputs =
            [toy_corpus(), vec![("short".to_owned(), b"\x88\xb5\x09data".to_vec())]].concat();
        let failure = run(&TOY, &inputs, 1, 10, directory.path())
            .expect("files can be written")
            .expect_err("it fails");
        assert_eq!(failure.what, "input short");
    }

    #[test]
    fn the_input_is_in_a_file_while_it_runs() {
        static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
        fn looks(data: &[u8]) {
            let directory = DIRECTORY.get().expect("it is set");
            let file = directory.join(format!("running.{}", std::process::id()));
            assert_eq!(fs::read(file).expect("it is there"), data);
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = DIRECTORY.get_or_init(|| directory.path().to_owned());
        let target = Target { name: "looks", run: looks, mutations: 0 };
        run(&target, &toy_corpus(), 1, 100, path)
            .expect("files can be written")
            .expect("the file says what runs");
    }
}
