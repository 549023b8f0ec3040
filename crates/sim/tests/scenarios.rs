//! Every file in `tests/scenarios` is a test: a world as a text, played, and as expected.

#[path = "../../../tests/src/seconds.rs"]
mod seconds;

use holdfast_sim::Script;
use libtest_mimic::{Arguments, Failed};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn play(file: &Path) -> Result<(), Failed> {
    let text = std::fs::read_to_string(file)?;
    for script in Script::read(&text)? {
        let (_, wrong) = script.play(false);
        if !wrong.is_empty() {
            return Err(Failed::from(format!(
                "{} {}: {}",
                file.display(),
                script.name,
                wrong.join("; ")
            )));
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    assert!(!files.is_empty(), "no scenario in {}", folder.display());
    let trial = |file: PathBuf| {
        let name =
            file.file_stem().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        seconds::trial(name, move || play(&file))
    };
    libtest_mimic::run(&arguments, files.into_iter().map(trial).collect()).exit_code()
}
