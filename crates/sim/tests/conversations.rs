//! Every file in `docs/protocols/conversations` is a test: a world as a text, and the
//! messages between its nodes, one by one.
//!
//! Above the line `----` stands a scenario as in `tests/scenarios`, and which part of it
//! is shown: `show from TIME for TIME`, and `hide TOPIC...`. The conversation stands
//! below. `HOLDFAST_REWRITE=1` writes it anew.

#[path = "../../../tests/src/seconds.rs"]
mod seconds;

use holdfast_sim::{Heard, Script};
use libtest_mimic::{Arguments, Failed};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const LINE: &str = "----\n";

/// The part of a conversation that is shown.
struct Shown {
    /// Time since the world's beginning, ns.
    from: u64,
    until: u64,
    hidden: Vec<String>,
}

fn time(word: &str) -> Result<u64, Failed> {
    let (digits, unit) = match word.strip_suffix("ms") {
        Some(digits) => (digits, 1_000_000),
        None => (word.strip_suffix('s').ok_or("a time such as 20ms or 1s")?, 1_000_000_000),
    };
    Ok(digits.parse::<u64>()? * unit)
}

/// The scenario without the lines of this test, and the part that these lines show.
fn read(head: &str) -> Result<(Script, Shown), Failed> {
    let mut shown = Shown { from: 0, until: u64::MAX, hidden: Vec::new() };
    let mut scenario = String::new();
    for line in head.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["show", "from", from, "for", length] => {
                shown.from = time(from)?;
                shown.until = shown.from + time(length)?;
            }
            ["hide", topics @ ..] => shown
                .hidden
                .extend(topics.iter().map(|topic| topic.trim_end_matches(',').to_owned())),
            _ => scenario += line,
        }
        scenario.push('\n');
    }
    let mut scripts = Script::read(&scenario)?;
    let script =
        scripts.pop().filter(|_| scripts.is_empty()).ok_or("a conversation is of one world")?;
    Ok((script, shown))
}

fn line(heard: &Heard) -> String {
    match &heard.ends {
        None => format!("** {}\n", heard.text),
        Some((from, to)) => format!("{from:<12} > {to:<12}  {}\n", heard.text),
    }
}

fn play(file: &Path) -> Result<(), Failed> {
    let text = std::fs::read_to_string(file)?;
    let (head, golden) = text.split_once(LINE).unwrap_or((&text, ""));
    let (script, shown) = read(head)?;
    let (outcome, wrong) = script.converse();
    if !wrong.is_empty() {
        return Err(Failed::from(wrong.join("; ")));
    }
    let is_shown = |heard: &&Heard| {
        (shown.from..shown.until).contains(&heard.at) && !shown.hidden.contains(&heard.topic)
    };
    let made: String = outcome.conversation.iter().filter(is_shown).map(line).collect();
    if made.lines().count() < 3 {
        return Err("nobody says anything".into());
    }
    if std::env::var_os("HOLDFAST_REWRITE").is_some() {
        std::fs::write(file, format!("{head}{LINE}{made}"))?;
        return Ok(());
    }
    if made != golden {
        let at =
            made.lines().zip(golden.lines()).take_while(|(made, golden)| made == golden).count();
        let of = |text: &str| text.lines().nth(at).unwrap_or("(the end)").to_owned();
        let place = head.lines().count() + 2 + at;
        let text = format!(
            "{}:{place}: another conversation, from here on\n  written: {}\n  now:     {}\nHOLDFAST_REWRITE=1 writes it anew",
            file.display(),
            of(golden),
            of(&made)
        );
        return Err(Failed::from(text));
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocols/conversations");
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    assert!(!files.is_empty(), "no conversation in {}", folder.display());
    let trial = |file: PathBuf| {
        let name =
            file.file_stem().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        seconds::trial(name, move || play(&file))
    };
    libtest_mimic::run(&arguments, files.into_iter().map(trial).collect()).exit_code()
}
