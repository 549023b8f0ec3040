//! The guide for authors of functions shows code that is compiled and tested: every block
//! of Rust in it stands, word by word, in one of a few files.

use std::path::Path;

/// The example, of which `nf new` makes crates, and a function with the rest.
const SOURCES: [&str; 4] = [
    "examples/turnstile/src/lib.rs",
    "examples/turnstile/src/main.rs",
    "examples/turnstile/tests/nf.rs",
    "crates/nf/tests/guide.rs",
];

fn read(file: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Blocks of Rust on a page, each with the line in which it begins.
fn blocks(page: &str) -> Vec<(usize, Vec<&str>)> {
    let mut found: Vec<(usize, Vec<&str>)> = Vec::new();
    let mut is_inside = false;
    for (number, line) in (1..).zip(page.lines()) {
        match line {
            "```rust" => {
                is_inside = true;
                found.push((number + 1, Vec::new()));
            }
            "```" => is_inside = false,
            _ if is_inside => found.last_mut().expect("a block was begun").1.push(line),
            _ => {}
        }
    }
    found
}

/// True if these lines follow each other in the source, all indented by as much more.
fn stands_in(block: &[&str], source: &str) -> bool {
    let lines: Vec<&str> = source.lines().collect();
    let indented = |line: &str| line.len() - line.trim_start().len();
    let Some(first) = block.first() else { return false };
    lines.windows(block.len()).any(|window| {
        let deeper = indented(window[0]).wrapping_sub(indented(first));
        let equals = |(line, shown): (&&str, &&str)| {
            line == shown && line.is_empty()
                || line.get(deeper..) == Some(shown) && indented(line) >= deeper
        };
        window.iter().zip(block).all(equals)
    })
}

#[test]
fn the_guide_shows_code_that_is_tested() {
    let (page, sources) = (read("docs/write-an-nf.md"), SOURCES.map(read));
    let blocks = blocks(&page);
    let missing: Vec<usize> = blocks
        .iter()
        .filter(|(_, block)| !sources.iter().any(|source| stands_in(block, source)))
        .map(|(line, _)| *line)
        .collect();
    assert!(missing.is_empty(), "blocks in lines {missing:?} are in none of {SOURCES:?}");
    assert!(blocks.len() >= 20, "only {} blocks were found", blocks.len());
}

/// A word that differs, a line that is left out, and one that is too much are found.
#[test]
fn a_block_that_differs_is_found() {
    let source = "fn one() {\n    let two = 2;\n\n    two\n}\n";
    assert!(stands_in(&["let two = 2;", "", "two"], source));
    for other in [&["let two = 3;"][..], &["let two = 2;", "two"], &["two", "}"], &[]] {
        assert!(!stands_in(other, source), "{other:?}");
    }
}
