//! The command as a whole: what it prints where, and how it ends.

use holdfast::control::{Request, Work, listen_and_stop};
use holdfast_control::api::Progress;
use holdfast_node::message::Order;
use holdfast_wire::NodeId;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

const RIGHT: &str = "cluster: a\nports:\n  x: { device: no-such-dev, address: 10.0.0.1/24 }\nchains: { c: { functions: [forward] } }\nrules: [{ chain: c }]\n";

fn holdfast(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.args(arguments).env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    said(holdfast(arguments).output().expect("the program starts"))
}

fn said(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it writes UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A file of the test's own, gone with it.
struct File(PathBuf);

impl File {
    fn new(text: &[u8]) -> File {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("hf-cli-{}-{number}.yaml", std::process::id()));
        std::fs::write(&path, text).expect("a file can be written");
        File(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn json(text: &str) -> Value {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(value["version"].is_u64(), "{text}");
    value
}

#[test]
fn wrong_usage_is_2_and_help_is_0() {
    for arguments in [
        &["dance"][..],
        &["status", "--dance"],
        &["run"],
        &["trace", "--count", "x"],
        &["check", "--no-host"],
        &[],
    ] {
        let (code, out, err) = run(arguments);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(!err.is_empty(), "{arguments:?}");
    }
    for arguments in [&["--help"][..], &["--version"], &["flows", "--help"]] {
        let (code, out, _) = run(arguments);
        assert!(code == Some(0) && !out.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_right_file_is_0_and_a_wrong_one_78_with_its_line() {
    let file = File::new(RIGHT.as_bytes());
    let (code, out, err) = run(&["check", "--no-host", file.path()]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(
        out,
        format!(
            "{}: right: 1 port, 1 chain, 1 rule, 3 runtimes, messages not authenticated (one machine needs no key)\n",
            file.path()
        )
    );

    let file = File::new(RIGHT.replace("forward", "foward").as_bytes());
    for command in
        [&["check", file.path()][..], &["check", "--no-host", file.path()], &["run", file.path()]]
    {
        let (code, _, err) = run(command);
        assert_eq!(code, Some(78), "{command:?}: {err}");
        assert!(
            err.contains(&format!("{}:4:28: there is no function `foward`", file.path())),
            "{err}"
        );
        assert!(err.contains("did you mean `forward`?") && err.ends_with("^^^^^^\n"), "{err}");
    }
    let (code, out, _) = run(&["check", "--no-host", "--json", file.path()]);
    let answer = json(&out);
    assert_eq!(
        (code, &answer["ok"], &answer["file"]["line"], &answer["file"]["column"]),
        (Some(78), &false.into(), &4.into(), &28.into())
    );
}

#[test]
fn files_that_cannot_be_read_are_78_and_named() {
    let (code, _, err) = run(&["check", "--no-host", "/no/such/file"]);
    assert!(code == Some(78) && err.contains("/no/such/file"), "{code:?} {err}");
    let (code, _, err) = run(&["check", "--no-host", "/dev/zero"]);
    assert!(
        code == Some(78) && err.contains("/dev/zero: this is a device; a regular file is needed"),
        "{code:?} {err}"
    );
    let file = File::new(b"");
    std::fs::File::options()
        .write(true)
        .open(file.path())
        .and_then(|file| file.set_len(1 << 30))
        .expect("it can grow");
    let (code, _, err) = run(&["check", "--no-host", file.path()]);
    assert!(code == Some(78) && err.contains("longer than"), "{code:?} {err}");
    let file = File::new(b"cluster: a\nports: \xff\n");
    let (code, _, err) = run(&["check", "--no-host", file.path()]);
    assert!(code == Some(78) && err.contains(":2: this is not UTF-8"), "{code:?} {err}");
}

#[test]
fn a_file_may_come_by_standard_input() {
    let mut child = holdfast(&["check", "--no-host", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(RIGHT.as_bytes()).unwrap();
    let (code, out, _) = said(child.wait_with_output().unwrap());
    assert_eq!(
        (code, out.as_str()),
        (
            Some(0),
            "standard input: right: 1 port, 1 chain, 1 rule, 3 runtimes, messages not authenticated (one machine needs no key)\n"
        )
    );
}

#[test]
fn a_missing_device_is_69_or_a_missing_privilege_77_with_remedies() {
    let file = File::new(RIGHT.as_bytes());
    let (code, out, err) = run(&["check", "--json", file.path()]);
    let answer = json(&out);
    assert!(matches!(code, Some(69 | 77)), "{code:?} {err}");
    assert!(err.contains("port x (no-such-dev): device"), "{err}");
    let checks = answer["checks"].as_array().expect("a list of checks");
    let device = checks
        .iter()
        .find(|check| check["name"] == "port x (no-such-dev): device")
        .expect("the device is checked");
    assert_eq!((&device["outcome"], device["remedy"].is_string()), (&"fail".into(), true));
    let is_refused = checks.iter().any(|check| {
        check["outcome"] == "fail" && check["name"].as_str().is_some_and(|n| n.starts_with("CAP_"))
    });
    assert_eq!(code, Some(if is_refused { 77 } else { 69 }));
    let (_, out, _) = run(&["check", file.path()]);
    assert!(out.contains("FAIL") && out.contains("`ip link`"), "{out}");
}

#[test]
fn asking_where_no_box_is_is_69() {
    let nowhere = std::env::temp_dir().join("hf-cli-no-such.sock");
    let file = File::new(RIGHT.as_bytes());
    for command in [
        &["status"][..],
        &["flows"],
        &["trace"],
        &["apply", file.path()],
        &["apply", "--dry-run", file.path()],
    ] {
        let (code, out, err) = run(&[command, &["--control", nowhere.to_str().unwrap()]].concat());
        assert_eq!((code, out.as_str()), (Some(69), ""), "{err}");
        assert!(err.contains("hf-cli-no-such.sock"), "{err}");
    }
}

/// A wrong file for a box that is not even there: the command reports the file's mistake.
#[test]
fn apply_reads_the_file_before_it_asks_a_box() {
    let nowhere = std::env::temp_dir().join("hf-cli-no-such.sock");
    let file = File::new(RIGHT.replace("chain: c", "chain: d").as_bytes());
    let (code, out, err) =
        run(&["apply", file.path(), "--json", "--control", nowhere.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (Some(78), ""), "{err}");
    assert!(err.contains(&format!("{}:5:18: there is no chain `d`", file.path())), "{err}");
    assert_eq!(run(&["apply"]).0, Some(2));
    let (code, out, _) = run(&["apply", "--help"]);
    assert!(
        code == Some(0) && out.contains("existing flows keep theirs") && out.contains("--dry-run"),
        "{out}"
    );
}

#[test]
fn explain_knows_its_words_and_says_1_of_others() {
    let (code, out, _) = run(&["explain", "no_route"]);
    assert!(code == Some(0) && out.starts_with("no_route (drop reason): "), "{out}");
    let (code, out, _) = run(&["explain", "exit", "code", "77"]);
    assert!(code == Some(0) && out.contains("privilege"), "{out}");
    let (code, out, err) = run(&["explain", "no_roude"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("did you mean `no_route`?"), "{err}");
    let (code, out, _) = run(&["explain", "--json"]);
    let count = json(&out)["words"].as_array().map_or(0, Vec::len);
    assert!(code == Some(0) && count > holdfast_wire::DropReason::ALL.len());
}

#[test]
fn the_reference_is_made_from_the_same_source() {
    let (code, out, _) = run(&["check", "--schema"]);
    let schema: Value = serde_json::from_str(&out).expect("the schema is JSON");
    assert!(code == Some(0) && schema["properties"]["chains"].is_object());
    let (code, out, _) = run(&["completions", "bash"]);
    assert!(code == Some(0) && out.contains("flows") && out.contains("--control"));
    let (code, out, _) = run(&["man"]);
    assert!(code == Some(0) && out.contains(".TH holdfast") && out.contains("Exit codes"));
    assert!(
        !out.contains("runtime(1)") && !out.contains("holdfast\\-runtime"),
        "what is hidden stays hidden"
    );
    let (code, out, _) = run(&["nf", "--json"]);
    assert!(
        code == Some(0)
            && json(&out)["functions"].as_array().is_some_and(|list| list.contains(&"nat".into()))
    );
    let (code, out, _) = run(&["nf", "nat"]);
    assert!(code == Some(0) && out.contains("\"pool\""));
    assert_eq!(run(&["nf", "nta"]).0, Some(1));
}

/// A command of the laboratory runs the program beside this one, with its arguments as
/// they are, and ends as that does.
#[test]
fn the_laboratory_is_the_program_beside_this_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let own = directory.path().join("holdfast");
    std::fs::copy(env!("CARGO_BIN_EXE_holdfast"), &own).expect("a copy");
    let here = |arguments: &[&str]| {
        said(
            Command::new(&own)
                .args(arguments)
                .env("PATH", directory.path())
                .output()
                .expect("it starts"),
        )
    };
    let (code, out, err) = here(&["bench", "datapath", "--flows", "7"]);
    assert_eq!((code, out.as_str()), (Some(69), ""));
    assert!(err.contains("holdfast-lab") && err.contains("cargo build"), "{err}");
    let lab = directory.path().join("holdfast-lab");
    std::fs::write(&lab, "#!/bin/sh\necho \"$HOLDFAST_BIN: $@\"\nexit 7\n").expect("a script");
    std::fs::set_permissions(&lab, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    for (arguments, expected) in [
        (&["--json", "demo", "--quick"][..], "--json demo --quick\n"),
        (&["sim", "--seed", "7", "--help"], "sim --seed 7 --help\n"),
        (&["bench"], "bench\n"),
        (&["nf", "test", "--packets", "5", "--help"], "nf test --packets 5 --help\n"),
        (&["--json", "nf", "test"], "nf test --format json\n"),
    ] {
        let expected = format!("{}: {expected}", own.display());
        assert_eq!(here(arguments), (Some(7), expected, String::new()));
    }
}

#[test]
fn nothing_is_coloured_in_a_pipe() {
    let (_, out, err) = run(&["check"]);
    assert!(!out.contains('\x1b') && !err.contains('\x1b'));
}

/// `drain` is interrupted while the box moves flows. The command says how far the drain
/// is, and that the box goes on. The box is told nothing more.
#[test]
fn an_interrupted_drain_says_what_it_leaves() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("box.sock");
    let (requests, asked) = channel();
    let _server = listen_and_stop(&socket, requests, Arc::new(|| {}), Arc::new(|| {}))
        .expect("a box that listens");
    let path = socket.to_str().expect("a plain path");
    let draining = holdfast(&["--control", path, "drain", "16"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut draining = draining.expect("the program starts");
    match asked.recv_timeout(LIMIT) {
        Ok(Request::Order(Order::Drain { node: NodeId::FIRST_RUNTIME, force: false }, answer)) => {
            answer.give(0)
        }
        other => panic!("{other:?}"),
    }
    // Every look finds one more flow moved, so that there is always news.
    std::thread::spawn(move || {
        for (moved, asked) in (1..).zip(asked) {
            match asked {
                Request::Progress(Work::Draining(NodeId::FIRST_RUNTIME), answer) => {
                    answer.give(Progress {
                        runtime: 16,
                        moved,
                        had: Some(60_000),
                        took_us: 1,
                        ..Progress::default()
                    });
                }
                other => panic!("{other:?}"),
            }
        }
    });
    let mut errors = BufReader::new(draining.stderr.take().expect("it is a pipe"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("it says how far it is");
    assert!(
        line.starts_with("runtime 16: ") && line.ends_with(" of 60000 flows moved\n"),
        "{line}"
    );
    let pid = Pid::from_raw(draining.id() as i32).expect("a process");
    rustix::process::kill_process(pid, Signal::INT).expect("it is there");
    let mut err = String::new();
    errors.read_to_string(&mut err).expect("it writes UTF-8");
    let (code, out, _) = said(draining.wait_with_output().expect("it ends"));
    assert_eq!((code, out.as_str()), (Some(130), ""));
    // Lines ahead of the last one say how far it was.
    let last = err.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("runtime 16: ")
            && last.contains(" of 60000 flows moved; the box goes on draining 16"),
        "{err}"
    );
    assert!(last.contains("`holdfast restore 16`"), "{err}");
}
