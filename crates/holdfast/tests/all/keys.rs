//! Keys of the fabric as an operator meets them: made, named, refused, changed under way.

use serde_json::Value;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
/// Longer than a runtime may be silent, several times: `detection` is 200 ms here.
const SEVERAL_DETECTIONS: Duration = Duration::from_millis(1500);

/// A box in a folder of its own, without devices.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().expect("a folder"));
        let configuration = format!(
            "cluster: keys\nports:\n  inside:  {{ device: \"pcap:{0}/none.pcap\", address: 10.0.0.1/24 }}\n  \
             outside: {{ device: \"pcap:,{0}/out.pcap\", address: 198.51.100.1/24 }}\n\
             chains: {{ c: {{ functions: [forward], protection: nfvactor }} }}\nrules: [{{ chain: c }}]\nruntimes: 2\n\
             detection: {{ heartbeat_ms: 10, hang_ms: 200 }}\nlimits: {{ flows: 1024 }}\nfabric: {{ key: cluster.key }}\n",
            folder.0.path().display()
        );
        fs::write(folder.path("box.yaml"), configuration).expect("a file");
        // A capture without packets: its header only.
        let header =
            [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
        fs::write(folder.path("none.pcap"), header).expect("a file");
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn key(&self) -> PathBuf {
        self.path("cluster.key")
    }

    fn keygen(&self, options: &[&str]) -> (Option<i32>, String) {
        said(&[&["keygen"], options, &[self.key().to_str().expect("a plain path")]].concat())
    }

    fn check(&self, options: &[&str]) -> (Option<i32>, String) {
        said(
            &[&["check"], options, &[self.path("box.yaml").to_str().expect("a plain path")]]
                .concat(),
        )
    }
}

/// Exit code, and the output of both streams.
fn said(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_holdfast"))
        .args(arguments)
        .output()
        .expect("the program starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("it writes UTF-8"))
}

/// A key is made, and a second one behind it. Only the owner can read them, and a file
/// that is there is not overwritten.
#[test]
fn keygen_makes_keys_that_only_their_owner_can_read() {
    let folder = Folder::new();
    assert_eq!(folder.keygen(&[]).0, Some(0));
    let first = fs::read_to_string(folder.key()).unwrap();
    assert_eq!(fs::metadata(folder.key()).unwrap().permissions().mode() & 0o7777, 0o600);
    assert!(first.starts_with("1:") && first.len() == 2 + 64 + 1, "{} bytes", first.len());
    let (code, text) = folder.keygen(&[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("--add"), "{text}");
    assert_eq!(fs::read_to_string(folder.key()).unwrap(), first);
    assert_eq!(folder.keygen(&["--add"]).0, Some(0));
    let both = fs::read_to_string(folder.key()).unwrap();
    assert!(
        both.starts_with(&first) && both.lines().nth(1).is_some_and(|line| line.starts_with("2:"))
    );
    assert_ne!(
        both.lines().next().unwrap()[2..],
        both.lines().nth(1).unwrap()[2..],
        "keys are random"
    );
    assert_eq!(fs::metadata(folder.key()).unwrap().permissions().mode() & 0o7777, 0o600);
    for _ in 2..8 {
        assert_eq!(folder.keygen(&["--add"]).0, Some(0));
    }
    assert_eq!(folder.keygen(&["--add"]).0, Some(1), "a ring has eight keys");
}

/// A mistake in the file of keys is shown at the place that names the file, with the
/// remedy, and without a word of the file.
#[test]
fn a_wrong_file_of_keys_is_shown_where_it_is_named() {
    let folder = Folder::new();
    let key = folder.key().display().to_string();
    let expect = |message: String| {
        let (_, text) = folder.check(&[]);
        let place = format!(
            "{}:10:16: {message}\n10 | fabric: {{ key: cluster.key }}\n   |                ^^^^^^^^^^^\n",
            folder.path("box.yaml").display()
        );
        assert!(text.contains(&place), "{text}\n{place}");
        // A box does not start with the file either, and the configuration by itself is
        // right.
        let control = folder.path("box.sock");
        let configuration = folder.path("box.yaml");
        let (code, text) =
            said(&["run", configuration.to_str().unwrap(), "--control", control.to_str().unwrap()]);
        assert_eq!(code, Some(78), "{text}");
        assert!(text.contains(&place), "{text}");
        assert_eq!(folder.check(&["--no-host"]).0, Some(0));
    };
    expect(format!("there is no file `{key}`: `holdfast keygen {key}` makes one"));
    folder.keygen(&[]);
    for mode in [0o644, 0o640, 0o604] {
        fs::set_permissions(folder.key(), Permissions::from_mode(mode)).unwrap();
        expect(format!(
            "`{key}` has mode {mode:04o}, and others than its owner must not have the key: `chmod 600 {key}`"
        ));
    }
    fs::set_permissions(folder.key(), Permissions::from_mode(0o600)).unwrap();
    fs::write(folder.key(), "1:secretsecret\n").unwrap();
    expect(format!(
        "`{key}`: line 1: a key is 32 bytes, as 64 hexadecimal digits or 44 characters of base64"
    ));
    fs::remove_file(folder.key()).unwrap();
    fs::create_dir(folder.key()).unwrap();
    expect(format!("`{key}` is no regular file: `holdfast keygen FILE` makes one with a key"));
}

/// The box, which ends with the test.
struct Running {
    child: Child,
    words: BufReader<std::process::ChildStderr>,
    control: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(folder: &Folder) -> Running {
        let control = folder.path("box.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.arg("run").arg(folder.path("box.yaml")).arg("--control").arg(&control);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let words = BufReader::new(child.stderr.take().unwrap());
        assert!(line.starts_with("ready"), "{line}");
        Running { child, words, control }
    }

    fn status(&self) -> Value {
        let (_, text) = said(&["status", "--json", "--control", self.control.to_str().unwrap()]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(started.elapsed() < LIMIT, "not {what}: {status}");
        }
    }

    /// SIGHUP, and the line that answers it.
    fn hang_up(&mut self) -> String {
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::HUP,
        )
        .unwrap();
        loop {
            let mut line = String::new();
            assert!(self.words.read_line(&mut line).unwrap() > 0, "the box ended");
            if line.contains("SIGHUP") {
                return line;
            }
        }
    }
}

fn runtimes(status: &Value) -> Vec<(u64, u64)> {
    let all = status["processes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|process| process["role"] == "runtime");
    all.map(|process| {
        (process["incarnation"].as_u64().unwrap_or(0), process["pid"].as_u64().unwrap_or(0))
    })
    .collect()
}

fn swap_lines(file: &Path) {
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = text.lines().rev().collect();
    fs::write(file, format!("{}\n", lines.join("\n"))).unwrap();
}

/// A box with a key changes it while it runs: the next key is added, becomes the current
/// one, and the old one goes. The same processes go on, none is taken for dead, and a
/// runtime that is killed afterwards comes back with the new key. No process shows a key.
#[test]
fn a_box_changes_its_key_while_it_runs() {
    let folder = Folder::new();
    folder.keygen(&[]);
    let mut running = Running::start(&folder);
    let is_safe = |status: &Value| status["protected"] == "yes" && runtimes(status).len() == 2;
    let before = running.until("protected", is_safe);
    let secret = fs::read_to_string(folder.key()).unwrap()[2..66].to_owned();
    for (_, pid) in runtimes(&before) {
        for file in ["cmdline", "environ"] {
            let shown = fs::read(format!("/proc/{pid}/{file}")).unwrap();
            assert!(
                !shown.windows(16).any(|window| window == &secret.as_bytes()[..16]),
                "{file} of {pid}"
            );
        }
    }
    assert!(running.hang_up().contains("the keys are the same"));
    folder.keygen(&["--add"]);
    assert!(running.hang_up().contains("key 1 is the current one of 2"));
    swap_lines(&folder.key());
    assert!(running.hang_up().contains("key 2 is the current one of 2"));
    let new = fs::read_to_string(folder.key()).unwrap().lines().next().unwrap().to_owned();
    fs::write(folder.key(), format!("{new}\n")).unwrap();
    assert!(running.hang_up().contains("key 2 is the current one of 1"));
    // A process without the new key would be silent now.
    let changed = Instant::now();
    while changed.elapsed() < SEVERAL_DETECTIONS {
        assert_eq!(runtimes(&running.status()), runtimes(&before), "the same processes serve");
    }
    let after = running.until("protected", is_safe);
    assert_eq!(after["failovers"].as_array().map(Vec::len), Some(0), "{after}");
    // A file that is not right changes nothing.
    fs::write(folder.key(), "nonsense\n").unwrap();
    assert!(running.hang_up().contains("the keys stay as they are"));
    let killed = runtimes(&after)[0].1;
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(killed as i32).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let reborn = running.until("whole again", |status| {
        is_safe(status) && runtimes(status).iter().all(|(_, pid)| *pid != killed && *pid != 0)
    });
    assert!(runtimes(&reborn).iter().any(|(incarnation, _)| *incarnation > 1), "{reborn}");
}
