//! The demo's result: one object, and its text for people.

use super::hosts::HostStep;
use super::scaling::ScaleStep;
use super::steps::Step;
use super::takeovers::Takeovers;
use super::{details, table};
use crate::download::Outcome;
use crate::keepalive::Connections;
use crate::nginx::{Sum, hex};
use crate::running::{Recovery, Victim};
use crate::udp::Datagrams;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Version of the JSON object.
pub(super) const VERSION: u32 = 1;

/// The whole result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Version of this object; 1.
    pub version: u32,
    /// True if the demo showed what it promises.
    pub ok: bool,
    /// The reasons if it did not.
    pub failures: Vec<String>,
    /// Protected first, then the contrast.
    pub phases: [Phase; 2],
    /// The result of killing runtimes that have local standbys.
    pub takeovers: Takeovers,
    /// The result of load that comes and goes.
    pub scaling: Vec<ScaleStep>,
    /// The actions on the box on three hosts.
    pub hosts: Vec<HostStep>,
}

/// Half of the demo.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Phase {
    /// Name of the protection.
    pub protection: String,
    /// True if the protection promises that every connection lives.
    pub promised: bool,
    /// Duration of this half, s.
    pub seconds: f64,
    /// The runtimes that were killed.
    pub kills: Vec<Kill>,
    /// The actions on the box after the kills; empty in the contrast.
    pub steps: Vec<Step>,
    /// The keep-alive connections at the end.
    pub connections: Connections,
    /// SHA-256 of the file that was downloaded.
    pub original: String,
    /// Every download.
    pub downloads: Vec<Transferred>,
    /// The numbered datagrams that ran beside.
    pub datagrams: Datagrams,
    /// The longest silence of a datagram flow until the next action after the kills, µs.
    pub kills_silence_us: u64,
    /// Packets that were inside a runtime when it was killed, as counted when both
    /// runtimes were back.
    pub lost_in_failure: u64,
    /// The box's drops by reason. After a kill of the manager, its own drops are those of
    /// its last incarnation.
    pub drops: BTreeMap<String, u64>,
    /// Names of what the box left behind when it was stopped.
    pub left_behind: Vec<String>,
}

/// A killed runtime.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kill {
    /// Node number.
    pub runtime: u32,
    /// The runtime's incarnation.
    pub incarnation: u64,
    /// Process id.
    pub pid: u32,
    /// Flows that the runtime owned.
    pub flows: u64,
    /// Downloads that were under way.
    pub downloads_under_way: usize,
    /// The cause that the box recorded.
    pub cause: Option<String>,
    /// Time until the box detected the failure, µs.
    pub detection_us: Option<u64>,
    /// Time from detection until every surviving flow was served, µs.
    pub recovered_us: Option<u64>,
    /// Time until a successor served, ms, polled from outside.
    pub back_ms: u64,
    /// Time until the box was protected again, ms, polled from outside.
    pub protected_ms: Option<u64>,
}

/// A download.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Transferred {
    /// Bytes received.
    pub bytes: u64,
    /// SHA-256 of those bytes.
    pub sha256: String,
    /// True if the SHA-256 is the original's and curl ended well.
    pub intact: bool,
    /// Duration, s.
    pub seconds: f64,
    /// The error that curl printed.
    pub error: Option<String>,
}

impl Transferred {
    pub(super) fn new(outcome: &Outcome, original: &Sum) -> Transferred {
        Transferred {
            bytes: outcome.bytes,
            sha256: hex(&outcome.sum),
            intact: outcome.error.is_none() && outcome.sum == *original,
            seconds: outcome.seconds,
            error: outcome.error.clone(),
        }
    }

    /// The reason if the download is not intact.
    pub(super) fn cause(&self) -> &str {
        self.error.as_deref().unwrap_or("other bytes than the original's")
    }
}

impl Kill {
    pub(super) fn new(victim: &Victim, downloads_under_way: usize, recovery: &Recovery) -> Kill {
        let milliseconds = |time: Duration| time.as_millis() as u64;
        let failover = recovery.failover.as_ref();
        Kill {
            runtime: victim.id,
            incarnation: victim.incarnation,
            pid: victim.pid,
            flows: victim.flows,
            downloads_under_way,
            cause: failover.map(|failover| failover.cause.clone()),
            detection_us: recovery.detected.map(|time| time.as_micros() as u64),
            recovered_us: failover.and_then(|failover| failover.recovered_us),
            back_ms: milliseconds(recovery.back),
            protected_ms: recovery.protected.map(milliseconds),
        }
    }

    /// The kill in a sentence, for the progress.
    pub(super) fn sentence(&self) -> String {
        let mut text = format!("runtime {} is back after {} ms", self.runtime, self.back_ms);
        if let Some(detection) = self.detection_us {
            let _ = write!(text, "; failure detected in {}", micros(detection));
        }
        if let Some(recovered) = self.recovered_us {
            let _ = write!(text, ", flows served again {} later", micros(recovered));
        }
        if let Some(protected) = self.protected_ms {
            let _ = write!(text, "; protected again after {protected} ms");
        }
        text
    }
}

impl Phase {
    pub(super) fn intact(&self) -> usize {
        self.downloads.iter().filter(|download| download.intact).count()
    }

    fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let mut fail = |text: String| failures.push(format!("{}: {text}", self.protection));
        if !self.left_behind.is_empty() {
            fail(format!("the box left behind {}", self.left_behind.join(", ")));
        }
        if self.kills.iter().any(|kill| kill.flows == 0 || kill.downloads_under_way == 0) {
            fail("a runtime was killed when nothing was under way, which shows nothing".into());
        }
        self.steps.iter().flat_map(Step::failures).for_each(&mut fail);
        let broken = self.connections.broken + (self.downloads.len() - self.intact());
        if self.promised {
            if self.connections.broken > 0 {
                fail(format!("{} keep-alive connections broke", self.connections.broken));
            }
            if self.intact() < self.downloads.len() {
                fail(format!("{} downloads are not intact", self.downloads.len() - self.intact()));
            }
            if self.datagrams.changed > 0 {
                fail(format!("{} datagrams came back changed", self.datagrams.changed));
            }
        } else if broken == 0 {
            fail(
                "NOTHING BROKE without protection, so the demo proves nothing about protection"
                    .into(),
            );
        }
        failures
    }
}

impl Report {
    pub(super) fn new(
        protected: Phase,
        takeovers: Takeovers,
        scaling: Vec<ScaleStep>,
        hosts: Vec<HostStep>,
        unprotected: Phase,
    ) -> Report {
        let phases = [protected, unprotected];
        let mut failures: Vec<String> = phases.iter().flat_map(Phase::failures).collect();
        failures.extend(takeovers.failures());
        failures.extend(scaling.iter().flat_map(ScaleStep::failures));
        failures.extend(hosts.iter().flat_map(HostStep::failures));
        Report {
            version: VERSION,
            ok: failures.is_empty(),
            failures,
            phases,
            takeovers,
            scaling,
            hosts,
        }
    }

    /// The report for people: details (all of them if `is_verbose`), one table, the
    /// verdict. Coloured if `colour`.
    pub fn text(&self, colour: bool, is_verbose: bool) -> String {
        let mut out = details::text(self, is_verbose) + "\n" + &table::text(self);
        let (green, red, plain) =
            if colour { ("\x1b[1;32m", "\x1b[1;31m", "\x1b[0m") } else { ("", "", "") };
        if self.ok {
            let _ = writeln!(
                out,
                "\n{green}PASS{plain}: every protected connection lived, every checksum matched."
            );
        } else {
            for failure in &self.failures {
                let _ = writeln!(out, "\n{red}FAIL{plain}: {failure}");
            }
        }
        out
    }
}

/// The state of connections, alive and opened, and of the datagrams of a step.
pub(super) fn account((alive, opened): (usize, usize), datagrams: &Datagrams) -> String {
    let Datagrams { sent, lost, reordered, longest_silence_us, .. } = datagrams;
    let silence = micros(*longest_silence_us);
    format!(
        "{alive} of {opened} connections alive; of {sent} datagrams {lost} lost, {reordered} reordered, longest silence {silence}"
    )
}

/// The broken promises among these counts, for people. `flows` is the number of datagram
/// flows that ran; `may_lose` allows lost datagrams.
pub(super) fn breaches(
    (alive, opened): (usize, usize),
    datagrams: &Datagrams,
    flows: usize,
    may_lose: bool,
) -> Vec<String> {
    let Datagrams { lost, reordered, doubled, changed, flows_alive, .. } = *datagrams;
    let breaches = [
        (alive < opened, format!("{alive} of {opened} connections alive")),
        (flows_alive < flows, format!("{flows_alive} of {flows} flows of datagrams alive")),
        (doubled + changed > 0, format!("{doubled} datagrams doubled, {changed} changed")),
        (
            !may_lose && lost + reordered > 0,
            format!("{lost} datagrams lost, {reordered} reordered"),
        ),
    ];
    breaches.into_iter().filter(|(is_broken, _)| *is_broken).map(|(_, text)| text).collect()
}

/// A time with a unit that suits it.
pub(super) fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::super::hosts::{HostAction, tests::good as good_host_step};
    use super::super::scaling::{ScaleAction, tests::good as scaling_good};
    use super::super::steps::{Action, tests::good};
    use super::super::takeovers::tests::good as good_takeovers;
    use super::*;

    fn phase(promised: bool, alive: usize, intact: bool) -> Phase {
        Phase {
            protection: if promised { "nfvactor" } else { "none" }.into(),
            promised,
            seconds: 1.0,
            kills: vec![Kill {
                runtime: 16,
                incarnation: 1,
                pid: 7,
                flows: 5,
                downloads_under_way: 1,
                cause: None,
                detection_us: Some(180),
                recovered_us: None,
                back_ms: 30,
                protected_ms: None,
            }],
            steps: if promised { Action::ALL.map(good).to_vec() } else { Vec::new() },
            connections: Connections {
                opened: 3,
                alive,
                broken: 3 - alive,
                ..Connections::default()
            },
            original: "aa".into(),
            downloads: vec![Transferred {
                bytes: 9,
                sha256: "aa".into(),
                intact,
                seconds: 1.5,
                error: None,
            }],
            datagrams: Datagrams::default(),
            kills_silence_us: if promised { 12_300 } else { 4_560_000 },
            lost_in_failure: 4,
            drops: BTreeMap::new(),
            left_behind: Vec::new(),
        }
    }

    fn good_scaling() -> Vec<ScaleStep> {
        [ScaleAction::Grow, ScaleAction::Shrink].map(scaling_good).to_vec()
    }

    #[test]
    fn it_passes_only_when_all_protected_lived_and_something_unprotected_broke() {
        assert!(
            Report::new(
                phase(true, 3, true),
                good_takeovers(),
                Vec::new(),
                Vec::new(),
                phase(false, 1, true)
            )
            .ok
        );
        assert!(
            Report::new(
                phase(true, 3, true),
                good_takeovers(),
                Vec::new(),
                Vec::new(),
                phase(false, 3, false)
            )
            .ok,
            "a broken download is contrast too"
        );
        assert!(
            !Report::new(
                phase(true, 2, true),
                good_takeovers(),
                Vec::new(),
                Vec::new(),
                phase(false, 1, true)
            )
            .ok
        );
        assert!(
            !Report::new(
                phase(true, 3, false),
                good_takeovers(),
                Vec::new(),
                Vec::new(),
                phase(false, 1, true)
            )
            .ok
        );
        let void = Report::new(
            phase(true, 3, true),
            good_takeovers(),
            Vec::new(),
            Vec::new(),
            phase(false, 3, true),
        );
        assert!(!void.ok && void.failures[0].contains("NOTHING BROKE"), "{:?}", void.failures);
        let mut idle = phase(true, 3, true);
        idle.kills[0].downloads_under_way = 0;
        assert!(
            !Report::new(idle, good_takeovers(), Vec::new(), Vec::new(), phase(false, 1, true)).ok,
            "a kill without load shows nothing"
        );
        let mut lossy = phase(true, 3, true);
        lossy.steps[2].datagrams.lost = 1;
        assert!(
            !Report::new(lossy, good_takeovers(), Vec::new(), Vec::new(), phase(false, 1, true)).ok,
            "a drain loses nothing"
        );
        let mut scaled = good_scaling();
        assert!(
            Report::new(
                phase(true, 3, true),
                good_takeovers(),
                scaled.clone(),
                Vec::new(),
                phase(false, 1, true)
            )
            .ok
        );
        scaled[1].connections_alive -= 1;
        assert!(
            !Report::new(
                phase(true, 3, true),
                good_takeovers(),
                scaled,
                Vec::new(),
                phase(false, 1, true)
            )
            .ok,
            "nobody notices"
        );
        let mut untidy = phase(true, 3, true);
        untidy.left_behind.push("process 9".into());
        assert!(
            !Report::new(untidy, good_takeovers(), Vec::new(), Vec::new(), phase(false, 1, true))
                .ok
        );
    }

    fn whole(unprotected: Phase) -> Report {
        let hosts =
            [HostAction::Drain, HostAction::Restore, HostAction::Kill].map(good_host_step).to_vec();
        Report::new(phase(true, 3, true), good_takeovers(), good_scaling(), hosts, unprotected)
    }

    /// The report ends with the actions, the clients' view in each half, and the verdict.
    #[test]
    fn the_report_ends_with_one_table_and_the_verdict() {
        let text = whole(phase(false, 1, false)).text(false, false);
        let expected = "
                        ─────── protected ────────    ────── unprotected ───────
kill: kill -9         connections contents longest  connections contents longest
silence: of UDP flows       alive    right silence        alive    right silence
three runtimes (nfvactor)
  1 × kill a runtime       3 of 3   1 of 1   13 ms       1 of 3   0 of 1 forever
  kill manager, switch     3 of 3    right    9 ms            –        –       –
  kill the coordinator     3 of 3    right    9 ms            –        –       –
  drain a runtime          3 of 3    right    9 ms            –        –       –
  restore the runtime      3 of 3    right    9 ms            –        –       –
two runtimes with a local standby each (reinforce)
  100 × kill a runtime   20 of 20    right    9 ms            –        –       –
two runtimes, load comes and goes (nfvactor)
  scale out, 2 to 3    120 of 120    right    9 ms            –        –       –
  scale in, 3 to 2     120 of 120    right    9 ms            –        –       –
three hosts (reinforce)
  drain a host         100 of 100    right    9 ms            –        –       –
  restore the host     100 of 100    right    9 ms            –        –       –
  kill the active host 100 of 100    right    9 ms            –        –       –

PASS: every protected connection lived, every checksum matched.
";
        assert!(text.ends_with(expected), "{text}");
        assert!(expected.lines().all(|line| line.chars().count() <= 80));
        assert!(!text.contains('\x1b'));
        assert!(
            whole(phase(false, 1, false)).text(true, false).contains("\n\x1b[1;32mPASS\x1b[0m: ")
        );
    }

    #[test]
    fn what_failed_is_in_the_table_and_below_it() {
        let mut report = whole(phase(false, 1, false));
        report.phases[0].downloads[0].intact = false;
        report.scaling[1].datagrams.doubled = 1;
        report.hosts[2].connections_alive = 7;
        let [protected, unprotected] = report.phases;
        let text =
            Report::new(protected, report.takeovers, report.scaling, report.hosts, unprotected)
                .text(false, false);
        let (_, end) = text.split_once("─ protected ─").expect("a table");
        let (table, verdict) = end.split_once("\n\n").expect("a verdict below it");
        for row in [
            "3 of 3   0 of 1",
            "scale in, 3 to 2     120 of 120    WRONG",
            "kill the active host   7 of 100    right forever",
        ] {
            assert!(table.contains(row), "{row:?} is not in\n{table}");
        }
        for failure in
            ["1 downloads are not intact", "1 datagrams doubled", "7 of 100 connections alive"]
        {
            let is_said = |line: &str| line.starts_with("FAIL: ") && line.contains(failure);
            assert!(verdict.lines().any(is_said), "{failure:?} is not in\n{verdict}");
        }
        assert!(!text.contains("PASS"));
    }

    /// Failures are summed by cause. With `-v` they are told one by one, and so are the
    /// successes.
    #[test]
    fn v_adds_every_step_and_every_checksum() {
        let mut unprotected = phase(false, 1, false);
        unprotected.connections.broken_by.insert("no answer".into(), 2);
        unprotected.downloads.push(Transferred {
            intact: true,
            sha256: "bb".into(),
            ..unprotected.downloads[0].clone()
        });
        let report = whole(unprotected);
        let [short, verbose] = [false, true].map(|is_verbose| report.text(false, is_verbose));
        for part in [
            "broken under none\n  1 of 2 downloads: other bytes than the original's\n  2 of 3 connections: no answer\n",
            "-v: every step",
        ] {
            assert!(short.contains(part), "{part:?} is not in\n{short}");
            assert!(!verbose.contains(part), "{part:?} is in\n{verbose}");
        }
        assert!(!short.contains("broken under nfvactor"), "nothing broke:\n{short}");
        for part in [
            "180 µs",
            "drain of a runtime: it has ended after",
            "3 runtimes instead of 2, 40 flows moved to",
            "2 runtimes instead of 3, 40 flows moved from",
            "drain of host left: its runtimes have ended after",
        ] {
            assert!(short.contains(part), "{part:?} is not in\n{short}");
            assert!(verbose.contains(part), "{part:?} is not in\n{verbose}");
        }
        for part in [
            "  1 ok   aa",
            "  2 ok   bb",
            "  1 BAD  after 9 bytes: other bytes than the original's",
            "keep-alive connections broken: 2 by no answer",
            "the original is\n          aa",
            "0, 0 of 400",
            "downloads intact (SHA-256)                              1 of 1              1 of 2",
            "after 900 ms; 120 of 120 connections alive; of 400 datagrams 0 lost",
        ] {
            assert!(!short.contains(part), "{part:?} is in\n{short}");
            assert!(verbose.contains(part), "{part:?} is not in\n{verbose}");
        }
        let table =
            |text: &str| text.split_once("─ protected ─").map(|(_, table)| table.to_owned());
        assert_eq!(table(&short), table(&verbose));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((json["version"].clone(), json["ok"].clone()), (1.into(), true.into()));
        assert_eq!(json["phases"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn times_have_units_that_suit_them() {
        assert_eq!([micros(999), micros(1_500), micros(2_500_000)], ["999 µs", "1.5 ms", "2.50 s"]);
    }
}
