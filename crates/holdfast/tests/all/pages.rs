//! Pages for people hold what they show: every configuration on them is right, and the reference of the configuration is the schema's.
//!
//! A YAML block that begins with `cluster:` is a whole configuration. Any other is a fragment, completed by a frame: the last whole configuration above it
//! on its page, else the first one of the page that `<!-- frame: PAGE -->` names, else the README's. A fragment's keys replace the frame's, map by map; a
//! list, or a map of `functions` alone, stands for the functions of the frame's first chain.

use holdfast::config;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// All pages below `folder`, by their paths from the root.
fn below(folder: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(root().join(folder)).expect("a folder") {
        let entry = entry.expect("an entry");
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            below(&path, found);
        } else if path.ends_with(".md") {
            found.push(path);
        }
    }
}

fn pages() -> Vec<String> {
    let mut found =
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "bench/README.md", "tests/README.md"].map(String::from).to_vec();
    below("docs", &mut found);
    found.sort();
    found
}

/// The blocks of YAML on a page: the line in which each begins, and its text.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut is_inside = false;
    for (at, line) in text.lines().enumerate() {
        match line.trim_start() {
            "```yaml" => {
                is_inside = true;
                found.push((at + 2, String::new()));
            }
            "```" => is_inside = false,
            _ if is_inside => found.last_mut().expect("a block was begun").1 += &format!("{line}\n"),
            _ => {}
        }
    }
    found
}

fn is_whole(block: &str) -> bool {
    block.lines().any(|line| line.starts_with("cluster:"))
}

fn first_whole(page: &str) -> String {
    let (_, block) =
        blocks(&read(page)).into_iter().find(|(_, block)| is_whole(block)).unwrap_or_else(|| panic!("{page} has no frame"));
    block
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
        let first = whole["chains"].as_object().and_then(|chains| chains.keys().next()).expect("a chain").clone();
        fragment = json!({ "chains": { first: { "functions": functions } } });
    }
    merge(&mut whole, fragment);
    Ok(whole.to_string())
}

/// What `holdfast check --no-host` says against it.
fn mistake(name: &str, text: &str) -> Option<String> {
    let checked = config::read(name, text);
    let chains = checked.and_then(|checked| config::chains(name, text, &checked.config).map(drop));
    chains.err().map(|mistake| mistake.to_string())
}

#[test]
fn every_configuration_on_a_page_is_right() {
    let (mut whole, mut fragments, mut wrong) = (0, 0, Vec::new());
    for page in pages() {
        let text = read(&page);
        let named = text.split("<!-- frame: ").nth(1).and_then(|rest| rest.split(" -->").next());
        let mut frame = first_whole(named.unwrap_or("README.md"));
        for (line, block) in blocks(&text) {
            let name = format!("{page}:{line}");
            let said = if is_whole(&block) {
                whole += 1;
                frame.clone_from(&block);
                mistake(&name, &block)
            } else {
                fragments += 1;
                completed(&block, &frame).map_or_else(Some, |text| mistake(&name, &text))
            };
            wrong.extend(said.map(|said| format!("{name}\n{said}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(whole >= 3 && fragments >= 15, "only {whole} configurations and {fragments} fragments were found");
}

/// A mistake in a block, whole or not, is found; so the test above can fail.
#[test]
fn a_mistake_on_a_page_is_found() {
    let frame = first_whole("README.md");
    assert_eq!(mistake("frame", &frame), None);
    assert!(mistake("frame", &frame.replace("nfvactor", "nfvactro")).is_some());
    for fragment in
        ["limits: { flow: 5 }", "- nat: { pool: [ 198.51.100.4/31 ], publish: [ nonsense ] }", "functions: [ fireball ]"]
    {
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
