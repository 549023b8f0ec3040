//! The tables of docs/correctness*.md are true as far as a program can tell. Everything
//! that they name exists: functions and files in `code`, tests in `test`, faults in
//! `planted violation`. Every requirement is shown or has a reason why not, and the tests
//! notice the violations beside them.

use crate::planted::noticed_by;
use holdfast_wire::fault::Fault;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The meaning of a table's column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    /// Whether the requirement is met.
    Here,
    Code,
    Test,
    Fault,
    Other,
}

/// A requirement: a line of a table that has code in one of its columns.
struct Row {
    place: String,
    cells: Vec<(Column, String)>,
}

impl Row {
    fn cell(&self, column: Column) -> Option<&str> {
        self.cells.iter().find(|(of, _)| *of == column).map(|(_, cell)| cell.as_str())
    }

    /// The words in backticks.
    fn words(&self, column: Column) -> impl Iterator<Item = &str> {
        self.cell(column).unwrap_or_default().split('`').skip(1).step_by(2)
    }

    /// The reason why the requirement is not met, if it is not.
    fn unmet(&self) -> Option<&str> {
        let state = [Column::Here, Column::Code].into_iter().filter_map(|column| self.cell(column));
        state.flat_map(|cell| UNMET.iter().filter_map(move |word| cell.strip_prefix(word))).next()
    }
}

/// Beginnings of the state of a requirement that no code has to obey.
const UNMET: [&str; 3] = ["not met", "does not apply", "may be, and is not"];

/// Source files by their paths, and the files that define each name.
struct Sources {
    files: Vec<PathBuf>,
    definitions: BTreeMap<String, BTreeSet<usize>>,
}

const KINDS: [&str; 8] = ["fn", "impl", "struct", "enum", "mod", "const", "trait", "type"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
    {
        if entry.is_dir() {
            collect(&entry, files);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            files.push(entry);
        }
    }
}

fn is_part_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

impl Sources {
    fn read() -> Sources {
        let mut files = Vec::new();
        for directory in ["crates", "tests"] {
            collect(&root().join(directory), &mut files);
        }
        let mut definitions: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for (at, file) in files.iter().enumerate() {
            let text = std::fs::read_to_string(file).expect("a source file");
            let mut define =
                |name: &str| definitions.entry(name.to_owned()).or_default().insert(at);
            for line in text.lines() {
                let words: Vec<&str> = line
                    .split(|letter| !is_part_of_name(letter))
                    .filter(|word| !word.is_empty())
                    .collect();
                for pair in words.windows(2).filter(|pair| KINDS.contains(&pair[0])) {
                    define(pair[1]);
                }
                if let Some((name, _)) =
                    line.trim_start().trim_start_matches("pub ").split_once(": ")
                    && name.chars().all(is_part_of_name)
                {
                    // A field.
                    define(name);
                }
            }
        }
        Sources { files, definitions }
    }

    /// True if the file has this path, or this directory in its path. Crates' `src` may
    /// be omitted.
    fn is_at(&self, file: usize, path: &str) -> bool {
        let at = self.files[file].display().to_string().replace("/src/", "/");
        let path = path.replace("/src/", "/");
        at.ends_with(&format!("/{path}"))
            || at.ends_with(&format!("/{path}.rs"))
            || at.contains(&format!("/{path}/"))
    }

    /// True if some file has all parts of the name: in its path, or defined in it.
    fn has(&self, name: &str) -> bool {
        let defines = |file: usize, part: &str| {
            self.definitions.get(part).is_some_and(|files| files.contains(&file))
        };
        let has = |file: usize| {
            name.split("::").all(|part| self.is_at(file, part) || defines(file, part))
        };
        (0..self.files.len()).any(has)
    }
}

/// The requirements of all pages.
fn requirements() -> Vec<Row> {
    let mut pages: Vec<PathBuf> = std::fs::read_dir(root().join("docs"))
        .expect("docs")
        .map(|page| page.expect("a page").path())
        .collect();
    pages.retain(|page| {
        page.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("correctness"))
    });
    let mut rows = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page");
        let mut columns = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let Some(row) = line.trim().strip_prefix('|').and_then(|row| row.strip_suffix('|'))
            else {
                columns.clear();
                continue;
            };
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let is_rule = cells.iter().all(|cell| cell.chars().all(|letter| letter == '-'));
            if columns.is_empty() {
                let column = |title: &&str| match *title {
                    "here" => Column::Here,
                    "code" => Column::Code,
                    "test" => Column::Test,
                    "planted violation" => Column::Fault,
                    _ => Column::Other,
                };
                columns = cells.iter().map(column).collect();
            } else if !is_rule && columns.contains(&Column::Code) {
                let place = format!(
                    "{}, line {}",
                    page.file_name().unwrap_or_default().display(),
                    number + 1
                );
                assert_eq!(cells.len(), columns.len(), "{place}: cells");
                rows.push(Row {
                    place,
                    cells: columns
                        .iter()
                        .copied()
                        .zip(cells.into_iter().map(str::to_owned))
                        .collect(),
                });
            }
        }
    }
    assert!(rows.len() > 100, "the tables were not read");
    rows
}

/// A page that names something missing is wrong.
#[test]
fn what_the_pages_name_is_there() {
    let sources = Sources::read();
    let is_fault = |word: &str| Fault::ALL.iter().any(|fault| fault.name() == word);
    // A scenario of the simulator counts as a test, too.
    let is_world = |word: &str| root().join(format!("tests/scenarios/{word}.txt")).is_file();
    let is_there = |column: Column, word: &str| match column {
        Column::Fault => is_fault(word),
        Column::Test => sources.has(word) || is_world(word) || is_fault(word),
        _ => sources.has(word),
    };
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for row in requirements() {
        for column in [Column::Code, Column::Test, Column::Fault] {
            // The code cell of an unmet requirement may hold the reason, which names
            // nothing.
            let is_reason =
                column == Column::Code && row.cell(Column::Here).is_none() && row.unmet().is_some();
            for word in row.words(column).filter(|_| !is_reason) {
                seen += 1;
                if !is_there(column, word) {
                    wrong.push(format!("{}: `{word}`", row.place));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "nowhere in crates and tests:\n{}", wrong.join("\n"));
    assert!(seen > 400, "the tables were not read");
}

/// A requirement has code that obeys it and a test that shows it, or a reason why not. A
/// requirement that only scenarios of functions show has a planted violation that they
/// notice, or says that there is no code to remove.
#[test]
fn every_requirement_is_shown_or_says_why_not() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files = Vec::new();
    collect(&directory, &mut files);
    let modules: BTreeSet<&str> =
        files.iter().filter_map(|file| file.file_stem()?.to_str()).collect();
    let is_scenario =
        |test: &str| test.split_once("::").is_some_and(|(module, _)| modules.contains(module));
    let mut wrong = Vec::new();
    for row in requirements() {
        let mut complain = |what: &str| wrong.push(format!("{}: {what}", row.place));
        if let Some(reason) = row.unmet() {
            if reason.trim_start_matches([':', ',', ' ']).len() < 10 {
                complain("not met, and no reason");
            }
            continue;
        }
        for (column, what) in [(Column::Code, "no code"), (Column::Test, "no test")] {
            if row.words(column).next().is_none() {
                complain(what);
            }
        }
        let is_met = row.cell(Column::Here).is_none_or(|here| here.starts_with("met"));
        if is_met && row.words(Column::Test).all(is_scenario) && row.cell(Column::Fault) == Some("")
        {
            complain("no planted violation");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The violation beside a requirement is noticed by a test beside it.
#[test]
fn a_planted_violation_is_noticed_by_a_test_beside_it() {
    let mut wrong = Vec::new();
    for row in requirements() {
        for violation in row.words(Column::Fault) {
            let noticed: Vec<&str> = noticed_by(violation).collect();
            if !row.words(Column::Test).any(|test| noticed.contains(&test)) {
                wrong.push(format!("{}: `{violation}` is noticed by {noticed:?}", row.place));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every fault that can be planted in a function stands beside a requirement.
#[test]
fn every_planted_violation_is_of_a_requirement() {
    let rows = requirements();
    let is_named = |fault: &&Fault| {
        rows.iter().any(|row| row.words(Column::Fault).any(|word| word == fault.name()))
    };
    let missing: Vec<&str> = Fault::OF_FUNCTIONS
        .iter()
        .filter(|fault| !is_named(fault))
        .map(|fault| fault.name())
        .collect();
    assert!(missing.is_empty(), "in no table: {missing:?}");
}
