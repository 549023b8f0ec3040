//! Files that a configuration names and that are part of it: rule files of `ips`.

use super::edited;
use holdfast::config::{self, Plan};
use holdfast_control::MAX_FILE;
use std::fs::{create_dir, remove_file, write};
use std::path::Path;
use tempfile::TempDir;

const RULE: &str = "alert tcp any any -> any 80 (content:\"a\"; sid:1;)\n";

/// The example with an IPS that has these keys.
fn with(keys: &str) -> String {
    edited("functions: [ forward ]", &format!("functions: [ ips: {{ {keys} }} ]"))
}

/// A directory with a file `local.rules` of this text, and the name of a configuration
/// there.
fn beside(rules: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path().join("local.rules"), rules).expect("a file");
    let name = directory.path().join("edge.yaml").display().to_string();
    (directory, name)
}

fn plan(name: &str, text: &str) -> Plan {
    config::read(name, text).unwrap_or_else(|mistake| panic!("{mistake}"))
}

/// The names of the IPS's counters.
fn counters(plan: &Plan) -> Vec<String> {
    let its = plan.statistics.iter().find(|counters| counters.function == "ips");
    its.and_then(|counters| counters.names.clone()).expect("it counts")
}

/// The operator's messages about this configuration, with `DIR` for its directory.
fn said(directory: &Path, name: &str, text: &str) -> String {
    let read = config::attach(name, text).and_then(|text| config::read(name, &text));
    let mistake = read.map(drop).expect_err("a mistake").to_string();
    mistake.replace(&directory.display().to_string(), "DIR")
}

/// The text with the files' contents is all that a process, another host or a later
/// incarnation needs: the files are not read again.
#[test]
fn a_rule_file_is_read_once() {
    let (directory, name) = beside(RULE);
    let text = with("rule_files: [ local.rules ]");
    let whole = config::attach(&name, &text).unwrap_or_else(|mistake| panic!("{mistake}"));
    assert!(whole.starts_with(&text), "the operator's text stays as it is");
    write(directory.path().join("local.rules"), "nonsense").expect("a file");
    assert_eq!(config::attach(&name, &whole).as_deref(), Ok(&*whole));
    remove_file(directory.path().join("local.rules")).expect("it is there");
    assert_eq!(config::attach(&name, &whole).as_deref(), Ok(&*whole));
    assert_eq!(counters(&plan("elsewhere.yaml", &whole))[0], "1");
    // A configuration in JSON is one line, and may end without a line's end.
    let json = as_json(&text);
    write(directory.path().join("local.rules"), RULE).expect("a file");
    let whole = config::attach(&name, &json).unwrap_or_else(|mistake| panic!("{mistake}"));
    assert_eq!(counters(&plan(&name, &whole))[0], "1");
    // A comment of the operator's is none of ours.
    let own = format!("{}#holdfast-files: mine\n", with("rules: [ ]"));
    assert_eq!(config::attach(&name, &own).as_deref(), Ok(&*own));
}

/// The same configuration as JSON.
fn as_json(text: &str) -> String {
    serde_saphyr::from_str::<serde_json::Value>(text).expect("it is YAML").to_string()
}

/// A configuration that comes without the content of a file that it names is refused.
#[test]
fn a_content_that_is_missing_is_named() {
    let mistake = config::read("edge.yaml", &with("rule_files: [ local.rules ]")).expect_err("no");
    assert_eq!(
        mistake.to_string(),
        "edge.yaml:11:45: the content of local.rules did not come with this configuration: `holdfast apply` sends it along\n\
         11 |   rest: { functions: [ ips: { rule_files: [ local.rules ] } ], protection: none }\n   |                                             ^^^^^^^^^^^"
    );
}

/// A mistake in a rule has the place in its own file, and so has the warning about a rule
/// that is left out.
#[test]
fn a_mistake_is_shown_in_its_file() {
    let rules = format!(
        "# \\\n{RULE}\nalert tcp any any -> any 80 \\  \n  (content:\"é\"; dsize:>5; \\\n  sid:2;)\n"
    );
    let (directory, name) = beside(&rules);
    assert_eq!(
        said(directory.path(), &name, &with("rule_files: [ local.rules ]")),
        "DIR/local.rules:5:17: ips: option `dsize` is not supported\n\
         5 |   (content:\"é\"; dsize:>5; \\\n  |                 ^^^^^^^^^"
    );
    let text = with("rule_files: [ local.rules ], unsupported: skip");
    let whole = config::attach(&name, &text).unwrap_or_else(|mistake| panic!("{mistake}"));
    let warnings = plan(&name, &whole).warnings();
    let warning = warnings.iter().find(|warning| warning.message.contains("left out"));
    let warning = warning.expect("a rule is left out");
    assert_eq!((warning.line, warning.file.ends_with("/local.rules")), (5, true));
    let twice = with(
        "rules: [ 'alert tcp any any -> any any (content:\"b\"; sid:1;)' ], rule_files: [ local.rules ], unsupported: skip",
    );
    assert!(
        said(directory.path(), &name, &twice)
            .starts_with("DIR/local.rules:2:47: ips: sid 1 is that of rules[0], line 1, too\n"),
        "{}",
        said(directory.path(), &name, &twice)
    );
}

/// Files that cannot be read are refused at once, at the place that names them: nothing
/// waits for a pipe.
#[test]
fn what_cannot_be_read_is_named() {
    let (directory, name) = beside(RULE);
    let here = |file: &str| directory.path().join(file);
    create_dir(here("directory")).expect("a directory");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, here("pipe"), kind, mode, 0).expect("a pipe");
    write(here("latin"), b"# fine\n# caf\xe9\n").expect("a file");
    let sparse = std::fs::File::create(here("long")).expect("a file");
    sparse.set_len(MAX_FILE as u64 + 1).expect("a size");
    write(here("half"), "#".repeat(MAX_FILE / 2)).expect("a file");
    write(here("other-half"), "#".repeat(MAX_FILE / 2)).expect("a file");
    write(here("quotes"), "#\"".repeat(MAX_FILE * 3 / 8)).expect("a file");
    for (file, expected) in [
        ("nowhere", "nowhere: No such file"),
        ("directory", "directory: this is a directory"),
        ("pipe", "pipe: this is a pipe"),
        ("latin", "latin: line 2 is not UTF-8"),
        ("long", "long: longer than 4 MiB"),
        (
            "half, other-half",
            "other-half: the configuration and the files up to this one are longer than 4 MiB",
        ),
        ("quotes", "quotes: the configuration and the files up to this one are longer than 4 MiB"),
        ("/dev/zero", "/dev/zero: this is a device"),
    ] {
        let said = said(directory.path(), &name, &with(&format!("rule_files: [ {file} ]")));
        let place = said.strip_prefix("DIR/edge.yaml:11:").unwrap_or_else(|| panic!("{said}"));
        assert!(place.contains(expected), "{said}");
    }
    // A file that is named twice takes its room once.
    write(here("most"), "#".repeat(MAX_FILE * 3 / 4)).expect("a file");
    let text = with(
        "rules: [ 'alert ip any any -> any any (content:\"b\"; sid:9;)' ], rule_files: [ most, most ]",
    );
    let whole = config::attach(&name, &text).unwrap_or_else(|mistake| panic!("{mistake}"));
    assert!(whole.len() < MAX_FILE && config::read(&name, &whole).is_ok());
    for keys in ["rule_files: local.rules", "rule_files: [ [ local.rules ] ]", "rule_files: [ 5 ]"]
    {
        let said = said(directory.path(), &name, &with(keys));
        assert!(said.starts_with("DIR/edge.yaml:11:"), "{said}");
    }
}

/// A file with another content is a difference of two configurations, in few words.
#[test]
fn another_content_is_a_difference() {
    let text = with("rule_files: [ local.rules ]");
    let read = |rules: &str| {
        let (_directory, name) = beside(rules);
        let whole = config::attach(&name, &text).unwrap_or_else(|mistake| panic!("{mistake}"));
        plan("edge.yaml", &whole)
    };
    let (one, other) = (read(RULE), read(&RULE.replace(":1;", ":2;")));
    assert!(config::differences(&one, &read(RULE)).is_empty());
    let found = config::differences(&one, &other);
    let [difference] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(difference.path, "chains.rest.functions[0].ips.rule_files");
    assert_eq!(difference.mistake.message.matches("local.rules (").count(), 2, "{difference:?}");
    assert!(!difference.mistake.message.contains("content"), "{difference:?}");
}

/// Thousands of rules from a file are read.
#[test]
fn thousands_of_rules() {
    let rules: String = (1..=5000)
        .map(|sid| {
            format!("drop tcp any any -> any 80 (msg:\"rule {sid}\"; content:\"pattern {sid}\"; nocase; sid:{sid}; rev:1;)\n")
        })
        .collect();
    let (_directory, name) = beside(&rules);
    let text = with("rule_files: [ local.rules ]");
    let whole = config::attach(&name, &text).unwrap_or_else(|mistake| panic!("{mistake}"));
    assert_eq!(counters(&plan(&name, &whole))[4999], "5000 rev 1 \"rule 5000\"");
}
