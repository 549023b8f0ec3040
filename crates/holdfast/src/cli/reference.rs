//! Commands that need no box: `explain`, `nf`, `completions`, `man`.

use crate::explain::{self, Word};
use holdfast_control::exit::{self, Failure};
use holdfast_control::table::print;
use holdfast_control::table::{Style, Table};
use holdfast_functions::catalog;
use serde_json::json;
use std::path::Path;

const VERSION: u32 = 1;

pub(super) fn explain(word: &str, json: bool) -> Result<(), Failure> {
    let words = if word.is_empty() { explain::all() } else { explain::explain(word)? };
    if json {
        let object = |word: &Word| json!({ "word": word.word, "kind": word.kind, "unit": word.unit, "meaning": word.meaning });
        let list: Vec<_> = words.iter().map(object).collect();
        return print(&format!("{}\n", json!({ "version": VERSION, "words": list })));
    }
    if word.is_empty() {
        let row =
            |word: &Word| vec![word.word.to_owned(), word.kind.to_owned(), word.meaning.to_owned()];
        return print(
            &Table::of(&["word", "kind", "meaning"], words.iter().map(row))
                .text(Style::of_stdout()),
        );
    }
    let line = |word: &Word| format!("{} ({}): {}\n", word.word, word.kind, word.meaning);
    print(&words.iter().map(line).collect::<String>())
}

pub(super) fn functions(name: Option<&str>, json: bool) -> Result<(), Failure> {
    let Some(name) = name else {
        let names = catalog::names();
        if json {
            return print(&format!("{}\n", json!({ "version": VERSION, "functions": names })));
        }
        return print(&names.iter().map(|name| format!("{name}\n")).collect::<String>());
    };
    match catalog::schema(name).and_then(|schema| serde_json::to_value(schema).ok()) {
        Some(schema) => print(&format!("{schema:#}\n")),
        None => {
            let known = catalog::names().join(", ");
            Err(Failure::new(
                exit::NEGATIVE,
                format!("there is no function `{}`: {known}", name.escape_debug()),
            ))
        }
    }
}

pub(super) fn completions(
    mut command: clap::Command,
    shell: clap_complete::Shell,
) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "holdfast", &mut script);
    print(&String::from_utf8_lossy(&script))
}

pub(super) fn manual(command: clap::Command, directory: Option<&Path>) -> Result<(), Failure> {
    match directory {
        Some(directory) => clap_mangen::generate_to(command, directory).map_err(|error| {
            Failure::new(exit::UNAVAILABLE, format!("{}: {error}", directory.display()))
        }),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page).map_err(|error| {
                Failure::new(exit::UNAVAILABLE, format!("the manual page: {error}"))
            })?;
            print(&String::from_utf8_lossy(&page))
        }
    }
}
