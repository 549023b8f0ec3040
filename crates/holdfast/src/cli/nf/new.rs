//! `nf new`: a crate for a network function, made of the sources of the example
//! `turnstile`.
//!
//! In: a name, and where Holdfast's source is. Out: a directory that builds by itself.
//! Never: a change of something that is there.

use holdfast_control::exit::{self, Failure};
use holdfast_control::table::print;
use holdfast_functions::catalog;
use serde_json::json;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Version of the object that `--json` prints.
const VERSION: u32 = 1;
/// Files of a crate, with the example's text. The name in it is the example's.
const FILES: [(&str, &str); 5] = [
    ("README.md", include_str!("../../../../../examples/turnstile/README.md")),
    ("box.yaml", include_str!("../../../../../examples/turnstile/box.yaml")),
    ("src/lib.rs", include_str!("../../../../../examples/turnstile/src/lib.rs")),
    ("src/main.rs", include_str!("../../../../../examples/turnstile/src/main.rs")),
    ("tests/nf.rs", include_str!("../../../../../examples/turnstile/tests/nf.rs")),
];
/// The example's name, and that of its type.
const EXAMPLE: [&str; 2] = ["turnstile", "Turnstile"];

/// Longest name: those in `status` are not longer.
const LONGEST: usize = 32;
/// Names that stand for something else: commands beside functions, crates that are used,
/// and Rust's own.
const TAKEN: [&str; 25] = [
    "new",
    "test",
    "nf",
    "lib",
    "main",
    "serde",
    "serde_json",
    "schemars",
    "zerocopy",
    "std",
    "core",
    "alloc",
    "proc_macro",
    // Programs that cargo has no room for.
    "build",
    "deps",
    "examples",
    "incremental",
    // Their types would hide those that every file of Rust has.
    "err",
    "none",
    "ok",
    "option",
    "result",
    "some",
    "string",
    "vec",
];
/// Keywords of Rust, of all editions.
const KEYWORDS: &str = "abstract as async await become box break const continue crate do dyn else enum extern \
    false final fn for gen if impl in let loop macro match mod move mut override priv pub ref return self static \
    struct super trait true try type typeof union unsafe unsized use virtual where while yield";

/// The place of Holdfast's crates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// A directory, absolute.
    Directory(PathBuf),
    /// A git repository.
    Git { url: String, tag: String },
}

impl Source {
    /// Holdfast's source in this directory, or the one that this program was built from.
    pub(super) fn at(directory: Option<PathBuf>) -> Result<Source, Failure> {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (place, remedy) = match &directory {
            Some(directory) => (directory, "give the directory that has crates/holdfast in it"),
            None => (
                &built,
                "this program was built there: say where Holdfast's source is (`--path \
                 DIRECTORY`, or `--git URL --tag TAG`)",
            ),
        };
        let found = place.canonicalize().ok();
        let found = found.filter(|found| found.join("crates/holdfast/Cargo.toml").is_file());
        found.map(Source::Directory).ok_or_else(|| {
            let place = place.display();
            Failure::new(exit::USAGE, format!("no source of Holdfast in {place}: {remedy}"))
        })
    }

    /// The dependency on one of Holdfast's crates, which is in this directory of the
    /// source.
    fn dependency(&self, directory: &str) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        match self {
            Source::Directory(source) => {
                let path = source.join("crates").join(directory);
                format!("{{ path = {} }}", quoted(&path.to_string_lossy()))
            }
            Source::Git { url, tag } => {
                format!("{{ git = {}, tag = {} }}", quoted(url), quoted(tag))
            }
        }
    }
}

/// The mistake in a name, if it has one.
fn mistake(name: &str) -> Option<String> {
    let is_letter = |letter: char| letter.is_ascii_lowercase();
    let is_plain = name.starts_with(is_letter)
        && name.chars().all(|one| is_letter(one) || one.is_ascii_digit() || one == '_')
        && !name.ends_with('_')
        && !name.contains("__");
    if !is_plain || name.len() > LONGEST {
        return Some(format!(
            "a function's name is a lower-case letter, and then letters, digits and single `_` \
             (at most {LONGEST} in all), like `turnstile`"
        ));
    }
    if catalog::names().contains(&name) {
        return Some("the catalog has a function of this name already: take another".to_owned());
    }
    let is_taken = TAKEN.contains(&name) || name.starts_with("holdfast");
    if is_taken || KEYWORDS.split_whitespace().any(|word| word == name) {
        return Some(
            "the word means something else to Rust, cargo or `nf`: take another".to_owned(),
        );
    }
    // The function's type would be one that the crate uses.
    let upper = type_name(name);
    let mut code = FILES
        .iter()
        .filter(|(file, _)| file.ends_with(".rs"))
        .flat_map(|(_, text)| text.lines().filter(|line| !line.trim_start().starts_with("//")));
    let has_it =
        |line: &str| line.split(|one: char| !one.is_alphanumeric()).any(|word| word == upper);
    if upper != EXAMPLE[1] && code.any(has_it) {
        return Some(format!("the new crate has another `{upper}`: take another name"));
    }
    None
}

/// `rate_meter` as `RateMeter`.
fn type_name(name: &str) -> String {
    let capital = |part: &str| {
        let mut letters = part.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
    };
    name.split('_').map(capital).collect::<Vec<String>>().concat()
}

fn manifest(name: &str, source: &Source) -> String {
    let [holdfast, nf, sim] =
        ["holdfast", "nf", "sim"].map(|crate_name| source.dependency(crate_name));
    format!(
        "[package]\n\
         name = \"{name}\"\n\
         version = \"0.1.0\"\n\
         edition = \"2024\"\n\
         rust-version = \"{rust}\"\n\
         publish = false\n\
         \n\
         # The crate stands by itself, wherever its directory is.\n\
         [workspace]\n\
         \n\
         [dependencies]\n\
         # The program is a Holdfast.\n\
         holdfast = {holdfast}\n\
         # The function itself needs nothing else.\n\
         holdfast-nf = {nf}\n\
         schemars = \"1\"\n\
         serde = {{ version = \"1\", features = [\"derive\"] }}\n\
         zerocopy = {{ version = \"0.8\", features = [\"derive\", \"std\"] }}\n\
         \n\
         [dev-dependencies]\n\
         holdfast-sim = {sim}\n\
         serde_json = \"1\"\n\
         \n\
         # `cargo test` and `nf test` run it.\n\
         [[test]]\n\
         name = \"nf\"\n\
         harness = false\n\
         \n\
         # As Holdfast's own: fast enough for real traffic, and an overflow is a panic.\n\
         [profile.dev]\n\
         opt-level = 1\n\
         debug = \"line-tables-only\"\n\
         \n\
         [profile.dev.package.\"*\"]\n\
         debug = false\n\
         \n\
         [profile.release]\n\
         codegen-units = 1\n",
        rust = env!("CARGO_PKG_RUST_VERSION"),
    )
}

/// Writes the crate's files into its directory.
///
/// # Errors
/// The system refuses to write this file.
fn fill(directory: &Path, name: &str, source: &Source) -> Result<(), (PathBuf, std::io::Error)> {
    let write = |file: &str, text: &str| {
        let place = directory.join(file);
        let above = place.parent().map_or(Ok(()), fs::create_dir_all);
        above.and_then(|()| fs::write(&place, text)).map_err(|error| (place, error))
    };
    let [lower, upper] = EXAMPLE;
    for (file, text) in FILES {
        write(file, &text.replace(upper, &type_name(name)).replace(lower, name))?;
    }
    write("Cargo.toml", &manifest(name, source))?;
    write(".gitignore", "/target\n")?;
    if let Source::Directory(source) = source {
        // The versions with which Holdfast is tested.
        if let Ok(lock) = fs::read_to_string(source.join("Cargo.lock")) {
            write("Cargo.lock", &lock)?;
        }
    }
    Ok(())
}

/// Makes the crate `name` in `parent`.
///
/// # Errors
/// The name is wrong, something of this name is there, or the system refuses.
pub(super) fn make(parent: &Path, name: &str, source: &Source, json: bool) -> Result<(), Failure> {
    if let Some(mistake) = mistake(name) {
        return Err(Failure::new(exit::USAGE, format!("`{}`: {mistake}", name.escape_debug())));
    }
    let directory = parent.join(name);
    let failed = |place: &Path, error: &std::io::Error| {
        Failure::new(exit::of_system(error), format!("{}: {error}", place.display()))
    };
    fs::create_dir(&directory).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::new(
            exit::USAGE,
            format!("{} is there already: take another name, or remove it", directory.display()),
        ),
        _ => failed(&directory, &error),
    })?;
    fill(&directory, name, source).map_err(|(place, error)| {
        // A part of a crate would only be in the next attempt's way.
        let _ = fs::remove_dir_all(&directory);
        failed(&place, &error)
    })?;
    if json {
        let made = json!({ "version": VERSION, "directory": directory });
        return print(&format!("{made}\n"));
    }
    print(&format!(
        "{0}: a function, and a program that has it\n  cd {0}\n  cargo test\n  cargo run -- check \
         --no-host box.yaml\n",
        directory.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_free() {
        for name in ["turnstile", "a", "rate_meter2"] {
            assert_eq!(mistake(name), None, "{name}");
        }
        for (name, text) in [
            ("", "lower-case"),
            ("Turnstile", "lower-case"),
            ("rate-meter", "lower-case"),
            ("2fast", "lower-case"),
            ("../up", "lower-case"),
            ("a__b", "lower-case"),
            ("a_", "lower-case"),
            ("a_name_that_is_longer_than_anyone_reads", "at most 32"),
            ("nat", "catalog"),
            ("match", "means something else"),
            ("test", "means something else"),
            ("serde", "means something else"),
            ("holdfast_x", "means something else"),
            ("build", "means something else"),
            ("vec", "means something else"),
            ("counters", "another `Counters`"),
            ("drop_reason", "another `DropReason`"),
            ("visit", "another `Visit`"),
        ] {
            assert!(mistake(name).is_some_and(|said| said.contains(text)), "{name}");
        }
        assert_eq!(["a", "rate_meter2"].map(type_name), ["A", "RateMeter2"]);
    }

    /// The crate has the example's text under the new name. What is there is not touched.
    #[test]
    fn a_crate_is_made_once() {
        let parent = tempfile::tempdir().expect("a directory");
        let source = Source::at(None).expect("this source");
        make(parent.path(), "rate_meter", &source, false).expect("it is made");
        let read = |file: &str| fs::read_to_string(parent.path().join("rate_meter").join(file));
        let library = read("src/lib.rs").expect("a library");
        assert!(library.contains("impl NetworkFunction for RateMeter {"));
        assert!(library.contains("const NAME: &'static str = \"rate_meter\";"));
        for (file, _) in FILES {
            let text = read(file).expect(file);
            assert!(!EXAMPLE.iter().any(|name| text.contains(name)), "{file} names the example");
        }
        let refused = make(parent.path(), "rate_meter", &source, false).expect_err("it is there");
        assert!(refused.to_string().contains("is there already"), "{refused}");
        assert_eq!(read("src/lib.rs").ok(), Some(library));
    }

    /// Dependencies are those that the example has, from a directory or a repository.
    #[test]
    fn a_crate_depends_on_what_the_example_does() {
        let example = include_str!("../../../../../examples/turnstile/Cargo.toml");
        let names = |manifest: &str| {
            let mut section = "";
            let mut names = Vec::new();
            for line in manifest.lines() {
                if line.starts_with('[') {
                    section = line;
                } else if section.contains("dependencies")
                    && let Some((name, _)) = line.split_once(" = ")
                {
                    names.push(format!("{section} {name}"));
                }
            }
            names
        };
        let tag = Source::Git { url: "https://example.org/h.git".into(), tag: "v1".into() };
        let made = manifest("rate_meter", &tag);
        assert_eq!(names(&made), names(example));
        let line = "holdfast-nf = { git = \"https://example.org/h.git\", tag = \"v1\" }";
        assert!(made.lines().any(|one| one == line), "{made}");
        let here = manifest("rate_meter", &Source::Directory("/src/hold\"fast".into()));
        let line = r#"holdfast-sim = { path = "/src/hold\"fast/crates/sim" }"#;
        assert!(here.lines().any(|one| one == line), "{here}");
    }

    #[test]
    fn a_source_has_holdfast_in_it() {
        let empty = tempfile::tempdir().expect("a directory");
        let refused = Source::at(Some(empty.path().into())).expect_err("nothing is there");
        assert!(refused.to_string().contains("crates/holdfast"), "{refused}");
    }
}
