//! What the tables of docs/correctness*.md name is there: functions and files in `code`, tests in `test`, faults in `planted violation`.

use holdfast_wire::fault::Fault;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The columns whose words in backticks are looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Code,
    Test,
    Fault,
    Other,
}

/// A word in backticks in a table.
struct Named {
    place: String,
    column: Column,
    word: String,
}

/// Source files by their paths, and who defines which name.
struct Sources {
    files: Vec<PathBuf>,
    definitions: BTreeMap<String, BTreeSet<usize>>,
}

const KINDS: [&str; 8] = ["fn", "impl", "struct", "enum", "mod", "const", "trait", "type"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()) {
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
            let mut define = |name: &str| definitions.entry(name.to_owned()).or_default().insert(at);
            for line in text.lines() {
                let words: Vec<&str> = line.split(|letter| !is_part_of_name(letter)).filter(|word| !word.is_empty()).collect();
                for pair in words.windows(2).filter(|pair| KINDS.contains(&pair[0])) {
                    define(pair[1]);
                }
                if let Some((name, _)) = line.trim_start().trim_start_matches("pub ").split_once(": ")
                    && name.chars().all(is_part_of_name)
                {
                    // A field.
                    define(name);
                }
            }
        }
        Sources { files, definitions }
    }

    /// True if a file is this one, or has this directory in its path. Crates' `src` goes without saying.
    fn is_at(&self, file: usize, path: &str) -> bool {
        let at = self.files[file].display().to_string().replace("/src/", "/");
        let path = path.replace("/src/", "/");
        at.ends_with(&format!("/{path}")) || at.ends_with(&format!("/{path}.rs")) || at.contains(&format!("/{path}/"))
    }

    /// True if there is a file that has all parts of the name: in its path, or defined in it.
    fn has(&self, name: &str) -> bool {
        let defines = |file: usize, part: &str| self.definitions.get(part).is_some_and(|files| files.contains(&file));
        let has = |file: usize| name.split("::").all(|part| self.is_at(file, part) || defines(file, part));
        (0..self.files.len()).any(has)
    }
}

/// Everything that the tables of the pages name.
fn named() -> Vec<Named> {
    let mut pages: Vec<PathBuf> =
        std::fs::read_dir(root().join("docs")).expect("docs").map(|page| page.expect("a page").path()).collect();
    pages.retain(|page| page.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("correctness")));
    let mut named = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page");
        let mut columns = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let Some(row) = line.trim().strip_prefix('|') else {
                columns.clear();
                continue;
            };
            let cells: Vec<&str> = row.trim_end_matches('|').split('|').map(str::trim).collect();
            if columns.is_empty() {
                let column = |title: &&str| match *title {
                    "code" => Column::Code,
                    "test" => Column::Test,
                    "planted violation" => Column::Fault,
                    _ => Column::Other,
                };
                columns = cells.iter().map(column).collect();
                continue;
            }
            let name = page.file_name().unwrap_or_default().display();
            // The code column of a requirement that is not met says why, and names nothing.
            let is_met = |cell: &&str, column: &Column| *column != Column::Code || !cell.starts_with("not met");
            for (cell, column) in cells.iter().zip(&columns).filter(|(cell, column)| is_met(cell, column)) {
                let words = cell.split('`').skip(1).step_by(2).map(str::to_owned);
                named.extend(words.map(|word| Named { place: format!("{name}, line {}", number + 1), column: *column, word }));
            }
        }
    }
    named
}

/// A page that names what is not there, or not any more, is wrong.
#[test]
fn what_the_pages_name_is_there() {
    let sources = Sources::read();
    let all = named();
    let is_there = |named: &Named| match named.column {
        Column::Fault => Fault::ALL.iter().any(|fault| fault.name() == named.word),
        Column::Code | Column::Test => sources.has(&named.word),
        Column::Other => true,
    };
    let wrong: Vec<String> =
        all.iter().filter(|named| !is_there(named)).map(|named| format!("{}: `{}`", named.place, named.word)).collect();
    assert!(wrong.is_empty(), "nowhere in crates and tests:\n{}", wrong.join("\n"));
    for column in [Column::Code, Column::Test, Column::Fault] {
        assert!(all.iter().filter(|named| named.column == column).count() > 20, "the tables were not read");
    }
}

/// Every fault that can be planted in a function stands beside a requirement.
#[test]
fn every_planted_violation_is_of_a_requirement() {
    let all = named();
    let is_named = |fault: &&Fault| all.iter().any(|named| named.column == Column::Fault && named.word == fault.name());
    let missing: Vec<&str> = Fault::OF_FUNCTIONS.iter().filter(|fault| !is_named(fault)).map(|fault| fault.name()).collect();
    assert!(missing.is_empty(), "in no table: {missing:?}");
}
