//! Pages for people hold what they show: every configuration on them is right, and the
//! reference of the configuration is the schema's.
//!
//! A YAML block that begins with `cluster:` is a whole configuration. Any other is a
//! fragment, completed by a frame: the last whole configuration above it on its page, or
//! the first one of the page that `<!-- frame: PAGE -->` names above it, else the
//! README's. A fragment's keys replace the frame's, map by map; a list, or a map of
//! `functions` alone, stands for the functions of the frame's first chain.

use holdfast::config;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// All files below `folder` whose names end with `end`, by their paths from the root.
fn below(folder: &str, end: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(root().join(folder)).expect("a folder") {
        let entry = entry.expect("an entry");
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            below(&path, end, found);
        } else if path.ends_with(end) {
            found.push(path);
        }
    }
}

fn pages() -> Vec<String> {
    let mut found =
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "bench/README.md", "tests/README.md"]
            .map(String::from)
            .to_vec();
    below("docs", ".md", &mut found);
    found.sort();
    found
}

/// Comments and doc comments of code have lines of at most 90 columns, where that can be:
/// not in a table, in a block of code, or in a line of one word. rustfmt keeps the code
/// itself to 100.
#[test]
fn comments_are_narrow() {
    let mut files = Vec::new();
    for folder in ["crates", "examples", "tests", "fuzz"] {
        below(folder, ".rs", &mut files);
    }
    // Made of the .proto files, with their comments.
    files.retain(|path| !path.ends_with("/api.rs") && !path.ends_with("/fields.rs"));
    let mut wide = Vec::new();
    for path in files {
        let mut is_code = false;
        for (at, line) in read(&path).lines().enumerate() {
            let Some(text) = line.trim_start().strip_prefix("//") else {
                is_code = false;
                continue;
            };
            let text = text.trim_start_matches(['/', '!']).trim_start();
            is_code ^= text.starts_with("```");
            let may_be_wide = is_code || text.starts_with('|') || !text.contains(' ');
            if line.chars().count() > 90 && !may_be_wide {
                wide.push(format!("{path}:{}", at + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{wide:#?}");
}

/// A block of YAML on a page.
struct Block {
    /// The line in which it begins.
    line: usize,
    text: String,
    /// The page that the last frame comment above the block names.
    frame: Option<String>,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let (mut is_inside, mut frame) = (false, None);
    for (at, line) in text.lines().enumerate() {
        match line.trim_start() {
            "```yaml" => {
                is_inside = true;
                found.push(Block { line: at + 2, text: String::new(), frame: frame.take() });
            }
            "```" => is_inside = false,
            _ if is_inside => {
                found.last_mut().expect("a block was begun").text += &format!("{line}\n")
            }
            other => {
                let named =
                    other.strip_prefix("<!-- frame: ").and_then(|rest| rest.strip_suffix(" -->"));
                frame = named.map(String::from).or(frame);
            }
        }
    }
    found
}

fn is_whole(block: &str) -> bool {
    block.lines().any(|line| line.starts_with("cluster:"))
}

fn first_whole(page: &str) -> String {
    let found = blocks(&read(page)).into_iter().find(|block| is_whole(&block.text));
    found.unwrap_or_else(|| panic!("{page} has no frame")).text
}

/// Puts the fragment's keys into the frame.
fn merge(frame: &mut Value, fragment: Value) {
    match (frame, fragment) {
        (Value::Object(frame), Value::Object(fragment)) => {
            for (key, value) in fragment {
                merge(frame.entry(key).or_insert(Value::Null), value);
            }
        }
        (frame, value) => *frame = value,
    }
}

/// The fragment in its frame, as a configuration (JSON is YAML).
fn completed(fragment: &str, frame: &str) -> Result<String, String> {
    let parse = |text| serde_saphyr::from_str::<Value>(text).map_err(|error| error.to_string());
    let (mut whole, mut fragment) = (parse(frame)?, parse(fragment)?);
    let functions = match &fragment {
        Value::Array(_) => Some(fragment.clone()),
        Value::Object(map) if map.len() == 1 => map.get("functions").cloned(),
        _ => None,
    };
    if let Some(functions) = functions {
        let first = whole["chains"]
            .as_object()
            .and_then(|chains| chains.keys().next())
            .expect("a chain")
            .clone();
        fragment = json!({ "chains": { first: { "functions": functions } } });
    }
    merge(&mut whole, fragment);
    Ok(whole.to_string())
}

/// The mistake that `holdfast check --no-host` finds in a configuration.
fn mistake(name: &str, text: &str) -> Option<String> {
    // Files that it names are beside the page.
    let file = root().join(name).display().to_string();
    let read = config::attach(&file, text).and_then(|text| config::read(&file, &text));
    read.err().map(|mistake| mistake.to_string())
}

#[test]
fn every_configuration_on_a_page_is_right() {
    let (mut whole, mut fragments, mut wrong) = (0, 0, Vec::new());
    for page in pages() {
        let text = read(&page);
        let mut frame = first_whole("README.md");
        for block in blocks(&text) {
            let name = format!("{page}:{}", block.line);
            if let Some(named) = &block.frame {
                frame = first_whole(named);
            }
            let said = if is_whole(&block.text) {
                whole += 1;
                frame.clone_from(&block.text);
                mistake(&name, &block.text)
            } else {
                fragments += 1;
                completed(&block.text, &frame).map_or_else(Some, |text| mistake(&name, &text))
            };
            wrong.extend(said.map(|said| format!("{name}\n{said}")));
        }
    }
    let mut files = Vec::new();
    below("docs", ".yaml", &mut files);
    whole += files.len();
    wrong.extend(files.iter().filter_map(|file| mistake(file, &read(file))));
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(
        whole >= 9 && fragments >= 15,
        "only {whole} configurations and {fragments} fragments were found"
    );
}

/// A mistake in a block, whole or not, is found, so the test above can fail.
#[test]
fn a_mistake_on_a_page_is_found() {
    let frame = first_whole("README.md");
    assert_eq!(mistake("frame", &frame), None);
    assert!(mistake("frame", &frame.replace("nfvactor", "nfvactro")).is_some());
    for fragment in [
        "limits: { flow: 5 }",
        "- nat: { pool: [ 198.51.100.4/31 ], publish: [ nonsense ] }",
        "functions: [ fireball ]",
    ] {
        let text = completed(fragment, &frame).expect("it can be read");
        assert!(mistake("fragment", &text).is_some(), "{fragment}");
    }
}

/// Links between pages lead somewhere.
#[test]
fn links_lead_to_files() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = read(&page);
        let folder = root().join(&page);
        let folder = folder.parent().expect("a folder");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            let is_ours = !file.is_empty() && !file.contains("://") && !file.contains(' ');
            if is_ours && !folder.join(file).exists() {
                wrong.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
