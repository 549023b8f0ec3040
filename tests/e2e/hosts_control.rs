//! A box of three hosts that is operated remotely: over the management network, with
//! certificates on both sides. The second host has no configuration of its own, and joins
//! another.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{STATE_DRAINED, Status};
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::cluster::{Cluster, NOBODY, SERVING, WITNESS, control_of};
use holdfast_tests::network::VIRTUAL;
use holdfast_tests::runner::{Test, cluster};
use holdfast_tests::verdict::{ensure_perfect, ensure_unbroken};
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        cluster(
            "a_host_joins_and_is_drained_from_elsewhere",
            10,
            &[NGINX, NFT],
            a_host_joins_and_is_drained_from_elsewhere,
        ),
        cluster("who_cannot_join_leaves_nothing", 5, &[NGINX, NFT], who_cannot_join_leaves_nothing),
    ]
}

fn status_of(output: &Output) -> Result<Status> {
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("reading the status")
}

/// The command's exit code, and its standard error.
fn refused(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A host fetches its configuration and the cluster's key from another and
/// serves with them. A remote viewer sees every host and may drain none. A remote
/// operator drains the joined host under load and restores it: no datagram is lost. The
/// joined host then dies, and comes back with its stored configuration while no other
/// host can be asked.
fn a_host_joins_and_is_drained_from_elsewhere(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start_joining(interrupt)?;
    let joined = SERVING[1];
    let held = cluster.hold(VIRTUAL, 60)?;
    let (_echo, stream) = cluster.stream(60, 600)?;
    cluster.wait_safe()?;
    for host in [SERVING[0], joined, WITNESS] {
        let status = status_of(&cluster.ask_from_elsewhere("wall", host, "status")?)?;
        let this = status.hosts.iter().find(|one| one.is_this).map(|one| one.name.as_str());
        ensure!(this == Some(host), "{status:?}");
        ensure!(
            status.control.as_ref().is_some_and(|control| control.listen == control_of(host)),
            "{status:?}"
        );
    }
    let flows = cluster.ask_from_elsewhere("wall", SERVING[0], "flows --limit 5")?;
    ensure!(
        flows.status.success() && String::from_utf8_lossy(&flows.stdout).contains("\"flows\":[{"),
        "{flows:?}"
    );
    let (code, said) =
        refused(&cluster.ask_from_elsewhere("wall", SERVING[0], &format!("drain {joined}"))?);
    ensure!(code == Some(77) && said.contains("a viewer's"), "{code:?} {said}");

    let drained = cluster.ask_from_elsewhere("alice", SERVING[0], &format!("drain {joined}"))?;
    ensure!(drained.status.success(), "{}", refused(&drained).1);
    // The witness may hear of it a moment later than the host that was asked.
    let is_drained = |status: &Status| {
        status.runtimes().filter(|one| one.host == joined).all(|one| one.state == STATE_DRAINED)
    };
    cluster.wait_for(WITNESS, "the joined host is drained", is_drained)?;
    ensure_unbroken(&held, interrupt)?;
    let restored = cluster.ask_from_elsewhere("alice", SERVING[0], &format!("restore {joined}"))?;
    ensure!(restored.status.success(), "{}", refused(&restored).1);
    cluster.wait_safe()?;
    ensure_unbroken(&held, interrupt)?;
    ensure_perfect(&stream.finish(), 60, cluster.living())?;

    let kept = cluster.lab.scratch().join("state").join(format!("{joined}.joined"));
    let mode = |name: &str| {
        Ok::<u32, std::io::Error>(std::fs::metadata(kept.join(name))?.permissions().mode() & 0o777)
    };
    ensure!((mode("key")?, mode("")?) == (0o600, 0o700), "the cluster's key is its owner's");
    cluster.kill(joined)?;
    ensure_unbroken(&held, interrupt).context("the joined host is dead")?;
    cluster.hosts.cut_management(joined)?;
    cluster.begin(joined)?;
    cluster.wait_safe()?;
    ensure_unbroken(&held, interrupt).context("the joined host is back")?;
    let said = cluster.on(joined)?.stderr();
    ensure!(said.contains("going by the configuration that was fetched before"), "{said}");
    drop(held);
    cluster.stop()
}

/// A host tries to join under another's name, under an unknown name, with a foreign
/// certificate, or from an address without a listener. Each attempt ends with an error
/// and its exit code, and leaves no box, no socket and no configuration; the running
/// hosts do not notice.
fn who_cannot_join_leaves_nothing(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start_joining(interrupt)?;
    let joined = SERVING[1];
    cluster.kill(joined)?;
    let state = cluster.lab.scratch().join("state");
    std::fs::remove_dir_all(state.join(format!("{joined}.joined")))?;
    let tls = cluster.managed.as_ref().context("there are certificates")?.tls.clone();
    let other = cluster.lab.scratch().join("other");
    let subjects = [joined, "stranger"].map(|name| name.parse().map_err(anyhow::Error::msg));
    let subjects = subjects.into_iter().collect::<Result<Vec<_>>>()?;
    let now = time::OffsetDateTime::now_utc();
    holdfast_control::certify::certify(&other, &subjects, 1, now)?;
    holdfast_control::certify::certify(&tls, &subjects[1..], 1, now)?;
    let at = |directory: &std::path::Path, name: &str| directory.join(name).display().to_string();
    let running = control_of(SERVING[0]);
    for (from, name, certificate, code, expected) in [
        (running.as_str(), "stranger", at(&tls, "stranger"), 1, "there is no host `stranger`"),
        (&running, joined, at(&tls, "stranger"), 77, "it cannot join as"),
        (&running, joined, at(&tls, "alice"), 77, "an operator's"),
        (&running, joined, at(&other, joined), 77, "not signed by the authority"),
        (&running, joined, at(&tls, "nobody"), 78, "there is no file"),
        (NOBODY, joined, at(&tls, joined), 69, "nobody listens"),
    ] {
        let mut running = cluster.join(from, name, &certificate)?;
        let status = running.process().wait(TIMEOUT, interrupt)?;
        let said = running.process().stderr();
        ensure!(
            status.code() == Some(code) && said.contains(expected),
            "{from} {name} {certificate}: {status}: {said}"
        );
        ensure!(!running.control().exists(), "{name} listens");
        let left: Vec<String> = std::fs::read_dir(&state)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<Vec<_>>>()?;
        ensure!(!left.iter().any(|name| name.contains("joined")), "{left:?}");
    }
    let namespace = cluster.namespace(joined)?.clone();
    until("nothing of it runs", TIMEOUT, interrupt, || {
        Ok(namespace.pids()?.is_empty().then_some(()))
    })?;
    cluster.begin(joined)?;
    cluster.wait_safe()?;
    cluster.stop()
}
