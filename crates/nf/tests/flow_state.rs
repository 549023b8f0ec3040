//! State that cannot be replicated does not compile, nor does code that gives a lease
//! away, copies it, or takes one that belongs to no flow.
//!
//! Every case is a program in a package of its own, which cargo checks. Releases of the
//! compiler word the details of an error differently, so the first comment of a case of
//! `refused` names only one error that it must have.

use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program, and the error that it must have, if any.
struct Case {
    name: String,
    path: PathBuf,
    error: Option<String>,
}

/// A compiler's error, and the program that has it.
type Refusal = (String, String);

#[test]
fn flow_state_is_plain_data() {
    let cases = cases();
    let refusals = check(&cases);
    for Case { name, error, .. } in cases {
        let errors: Vec<_> = refusals
            .iter()
            .filter(|(program, _)| *program == name)
            .map(|(_, error)| error)
            .collect();
        match error {
            None => assert!(errors.is_empty(), "{name} is plain data, but: {errors:#?}"),
            Some(error) => {
                assert!(errors.contains(&&error), "{name}: not `{error}`, but: {errors:#?}")
            }
        }
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for directory in ["accepted", "refused"] {
        let files =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(directory).read_dir().unwrap();
        for path in files.map(|file| file.unwrap().path()) {
            let text = std::fs::read_to_string(&path).unwrap();
            let head: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("// ")).collect();
            let error = (!head.is_empty()).then(|| head.join(" "));
            assert_eq!(error.is_some(), directory == "refused", "{}", path.display());
            cases.push(Case {
                name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
                path,
                error,
            });
        }
    }
    cases
}

fn check(cases: &[Case]) -> Vec<Refusal> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("flow_state");
    // The macro's derives name zerocopy, so an author depends on it too. The lock file
    // gives the version.
    let mut manifest = format!(
        "[package]\nname = \"cases\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nholdfast-nf = {{ path = {own:?} }}\nzerocopy = \"*\"\n"
    );
    for Case { name, path, .. } in cases {
        write!(manifest, "\n[[bin]]\nname = {name:?}\npath = {path:?}\n").unwrap();
    }
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(home.join("Cargo.toml"), manifest).unwrap();
    std::fs::copy(own.join("../../Cargo.lock"), home.join("Cargo.lock")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args([
            "check",
            "--offline",
            "--keep-going",
            "--message-format",
            "json",
            "--target-dir",
            "target",
        ])
        .current_dir(&home)
        .output()
        .unwrap();
    let messages = String::from_utf8(output.stdout).unwrap();
    let messages: Vec<Value> =
        messages.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    messages
        .iter()
        .filter(|message| message["message"]["level"] == "error")
        .map(|message| (text(&message["target"]["name"]), text(&message["message"]["message"])))
        .collect()
}
