//! The laboratory's command as a whole, and the plans that start a runtime of the daemon,
//! on a small scale.

use serde_json::Value;
use std::process::{Command, Output};

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast-lab")).args(arguments).output().expect("it runs")
}

fn rows(arguments: &[&str]) -> Vec<Value> {
    let out = lab(&[&["bench", "--json"], arguments].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("an object per line")).collect()
}

/// A runtime's worker is killed thirty times under load: nothing is lost, doubled or
/// reordered, or there would be no rows.
#[test]
fn a_worker_is_killed_again_and_again() {
    let rows = rows(&["takeover", "--kills", "15", "--flows", "40", "--rate", "20000"]);
    assert!(rows.len() == 5 || rows.len() == 10, "{rows:?}");
    for row in rows {
        assert!(row["kills"] == 15 && row["lost"] == 0 && row["doubled_or_late"] == 0, "{row}");
        assert!(
            row["p50_us"].as_f64() > Some(0.0) && row["max_us"].as_f64() >= row["p99_us"].as_f64(),
            "{row}"
        );
    }
}

/// Both chains, both cases, six lengths: what comes out is the same with a standby.
#[test]
fn a_runtime_with_a_standby_does_what_one_without_does() {
    let rows = rows(&["local", "--flows", "300", "--rounds", "1"]);
    assert_eq!(rows.len(), 24);
    assert!(
        rows.iter().all(|row| row["ns_per_packet"].as_f64() > Some(0.0)
            && row["ratio_to_none"].as_f64() > Some(0.0)),
        "{rows:?}"
    );
}

/// Two tenants at four loads, with standbys and without, and one whose workers are
/// killed: nothing is lost, doubled or late in either, or there would be no rows.
#[test]
fn tenants_share_a_processor() {
    let rows = rows(&["tenants", "--flows", "40", "--rate", "10000"]);
    assert!(rows.is_empty() || rows.len() == 9, "{rows:?}");
    for row in rows {
        assert!(
            row["kpps"].as_f64() > Some(0.0)
                && row["latency_max_us"].as_f64() >= row["latency_p50_us"].as_f64(),
            "{row}"
        );
        assert!((row["other"] == "killed") == (row["kills"].as_u64() > Some(0)), "{row}");
    }
}

#[test]
fn the_simulator_answers_by_its_exit_code() {
    let out = lab(&["sim", "--seeds", "2", "--from", "7", "--json"]);
    let answer: Value = serde_json::from_slice(&out.stdout).expect("an object");
    let expected = (Some(0), &2.into(), &Value::Array(Vec::new()));
    assert_eq!((out.status.code(), &answer["seeds"], &answer["violations"]), expected);
}

/// `nf test` tests functions that ship. Its exit code is that of a test program.
#[test]
fn functions_that_ship_are_tested() {
    let test = |arguments: &[&str]| lab(&[&["nf", "test", "--packets", "300"], arguments].concat());
    let out = test(&["--function", "monitor", "monitor/determinism"]);
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("monitor/determinism"), "{said}");
    let out = test(&["determinism"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(2) && said.contains("packet_limit"), "{said}");
}

/// A laboratory without the daemon says that the daemon is missing.
#[test]
fn a_daemon_that_is_not_there_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast-lab"));
    let out = command
        .env("HOLDFAST_BIN", "/nowhere/holdfast")
        .args(["bench", "takeover", "--kills", "1"])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        !out.status.success()
            && said.contains("no /nowhere/holdfast")
            && said.contains("cargo build"),
        "{said}"
    );
    assert!(out.stdout.is_empty());
}
