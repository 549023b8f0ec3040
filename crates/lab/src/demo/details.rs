//! The details above the demo's table: times of detection and recovery, losses, and
//! broken downloads and connections. With `-v` also the clients' view of every step, and
//! every SHA-256.

use super::hosts::HostStep;
use super::report::{Kill, Phase, Report, micros};
use super::scaling::ScaleStep;
use super::steps::{Action, Step};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A row per figure, a column per half of the demo.
struct Halves<'a> {
    phases: &'a [Phase; 2],
    is_verbose: bool,
    out: String,
}

impl Halves<'_> {
    /// Omits a row that neither half has.
    fn row(&mut self, label: &str, cell: impl Fn(&Phase) -> Option<String>) {
        let cells = self.phases.each_ref().map(cell);
        if cells.iter().any(Option::is_some) {
            let [protected, unprotected] = cells.map(|cell| cell.unwrap_or_else(|| "–".into()));
            let _ = writeln!(self.out, "{label:<42}{protected:>20}{unprotected:>20}");
        }
    }

    /// A row that is printed with `-v` only.
    fn detail(&mut self, label: &str, cell: impl Fn(&Phase) -> Option<String>) {
        if self.is_verbose {
            self.row(label, cell);
        }
    }

    fn kill(&mut self, number: usize) {
        let of = |phase: &Phase, cell: &dyn Fn(&Kill) -> Option<String>| {
            phase.kills.get(number).and_then(cell)
        };
        self.row(&format!("kill {}: failure detected within", number + 1), |phase| {
            of(phase, &|kill| kill.detection_us.map(micros))
        });
        self.detail("  flows of the runtime", |phase| {
            of(phase, &|kill| Some(kill.flows.to_string()))
        });
        self.row("  its flows served again, after that", |phase| {
            of(phase, &|kill| kill.recovered_us.map(micros))
        });
        self.row("  a successor runs after", |phase| {
            of(phase, &|kill| Some(format!("{} ms", kill.back_ms)))
        });
        self.row("  everything protected again after", |phase| {
            of(phase, &|kill| kill.protected_ms.map(|ms| format!("{ms} ms")))
        });
    }

    fn step(&mut self, action: Action) {
        let done = match action {
            Action::KillManager => "kill of the manager and switch: back after",
            Action::KillCoordinator => "kill of the coordinator: back after",
            Action::Drain => "drain of a runtime: it has ended after",
            Action::Restore => "restore of the runtime: back after",
        };
        let of = |phase: &Phase, cell: &dyn Fn(&Step) -> Option<String>| {
            phase.steps.iter().find(|step| step.action == action).and_then(cell)
        };
        self.row(done, |phase| of(phase, &|step| Some(format!("{} ms", step.done_ms))));
        self.detail("  flows moved", |phase| {
            of(phase, &|step| step.moved.map(|moved| moved.to_string()))
        });
        self.detail("  everything protected again after", |phase| {
            of(phase, &|step| Some(format!("{} ms", step.protected_ms)))
        });
        self.detail("  connections alive", |phase| {
            of(phase, &|step| {
                Some(format!("{} of {}", step.connections_alive, step.connections_opened))
            })
        });
        self.detail("  UDP datagrams lost, reordered", |phase| {
            of(phase, &|Step { datagrams, .. }| {
                Some(format!("{}, {} of {}", datagrams.lost, datagrams.reordered, datagrams.sent))
            })
        });
    }
}

pub(super) fn text(report: &Report, is_verbose: bool) -> String {
    let hint = if is_verbose { "" } else { " (-v: every step, every SHA-256)" };
    let out = format!("\nkill -9 under a firewall, NAT and load balancer{hint}\n\n");
    let mut halves = Halves { phases: &report.phases, is_verbose, out };
    halves.row("protection", |phase| Some(phase.protection.clone()));
    halves.detail("keep-alive connections alive", |Phase { connections, .. }| {
        Some(format!("{} of {}", connections.alive, connections.opened))
    });
    halves.detail("downloads intact (SHA-256)", |phase| {
        Some(format!("{} of {}", phase.intact(), phase.downloads.len()))
    });
    let kills = report.phases.iter().map(|phase| phase.kills.len()).max().unwrap_or(0);
    (0..kills).for_each(|number| halves.kill(number));
    Action::ALL.into_iter().for_each(|action| halves.step(action));
    halves.row("packets lost inside the killed runtimes", |phase| {
        Some(phase.lost_in_failure.to_string())
    });
    halves.row("UDP datagrams lost on the way and back", |Phase { datagrams, .. }| {
        Some(format!("{} of {}", datagrams.lost, datagrams.sent))
    });
    halves.detail("longest silence of a UDP flow", |phase| {
        Some(micros(phase.datagrams.longest_silence_us))
    });
    halves.row("slowest answer, keep-alive", |phase| {
        Some(micros(phase.connections.slowest_answer_us))
    });
    let mut out = halves.out;
    boxes_text(report, is_verbose, &mut out);
    let phase_text = if is_verbose { downloads_text } else { broken_text };
    report.phases.iter().for_each(|phase| phase_text(phase, &mut out));
    out
}

/// The actions on the other boxes; with `-v` also their effect on the clients.
fn boxes_text(report: &Report, is_verbose: bool, out: &mut String) {
    let Report { takeovers, scaling, hosts, .. } = report;
    for (head, steps) in [
        ("runtimes with local standbys", vec![takeovers.sentences()]),
        ("load comes and goes", scaling.iter().map(ScaleStep::sentences).collect()),
        ("the box on three hosts", hosts.iter().map(HostStep::sentences).collect()),
    ] {
        let told = if is_verbose { 2 } else { 1 };
        let lines: Vec<String> =
            steps.iter().map(|sentences| sentences[..told].join("; ")).collect();
        if !lines.is_empty() {
            let _ = writeln!(out, "\n{head}\n  {}", lines.join("\n  "));
        }
    }
}

/// Counts of broken downloads and connections, by cause.
fn broken_text(phase: &Phase, out: &mut String) {
    let Phase { protection, downloads, connections, .. } = phase;
    let mut causes: BTreeMap<&str, usize> = BTreeMap::new();
    for download in downloads.iter().filter(|download| !download.intact) {
        *causes.entry(download.cause()).or_default() += 1;
    }
    let mut lines = vec![format!("\nbroken under {protection}")];
    lines.extend(
        causes
            .iter()
            .map(|(cause, count)| format!("  {count} of {} downloads: {cause}", downloads.len())),
    );
    let broken_by = connections.broken_by.iter();
    lines.extend(
        broken_by.map(|(cause, count)| {
            format!("  {count} of {} connections: {cause}", connections.opened)
        }),
    );
    if lines.len() > 1 {
        let _ = writeln!(out, "{}", lines.join("\n"));
    }
}

/// Every download, and the causes of broken connections.
fn downloads_text(phase: &Phase, out: &mut String) {
    let Phase { protection, original, downloads, connections, .. } = phase;
    let _ = writeln!(
        out,
        "\nSHA-256 of the downloads under {protection}; the original is\n          {original}"
    );
    for (number, download) in downloads.iter().enumerate() {
        if download.intact {
            let _ = writeln!(
                out,
                "  {:>3} ok   {}  {:.1} s",
                number + 1,
                download.sha256,
                download.seconds
            );
        } else {
            let _ = writeln!(
                out,
                "  {:>3} BAD  after {} bytes: {}",
                number + 1,
                download.bytes,
                download.cause()
            );
        }
    }
    if !connections.broken_by.is_empty() {
        let causes =
            connections.broken_by.iter().map(|(cause, count)| format!("{count} by {cause}"));
        let _ = writeln!(
            out,
            "  keep-alive connections broken: {}",
            causes.collect::<Vec<String>>().join(", ")
        );
    }
}
