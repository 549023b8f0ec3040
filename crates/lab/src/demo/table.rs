//! The table at the demo's end: the actions on the box, and the clients' view of them.
//! A row per action, at most 80 columns; actions on the same box stand together.

use super::hosts::{HostAction, HostStep};
use super::report::{Phase, Report};
use super::scaling::{ScaleAction, ScaleStep};
use super::steps::{Action, Step};
use super::takeovers::Takeovers;
use crate::udp::Datagrams;

/// The clients' view of one action.
struct Impact {
    connections_alive: usize,
    connections_opened: usize,
    contents: Contents,
    longest_silence_us: u64,
}

/// Whether the clients got the right bytes.
enum Contents {
    /// The number of downloads with the original's SHA-256, and of all downloads.
    Downloads { intact: usize, all: usize },
    /// No download begins and ends within a single step; datagrams must come back
    /// unchanged, and once.
    Datagrams { is_right: bool },
}

/// A row of the table: an action, and its impact with and without protection.
struct Row {
    action: String,
    protected: Impact,
    unprotected: Option<Impact>,
}

/// The actions on one box.
struct Group {
    head: String,
    rows: Vec<Row>,
}

pub(super) fn text(report: &Report) -> String {
    let title = |text: &str| format!("{:─^26}", format!(" {text} "));
    let header = |words: [&str; 3]| [cells(words), cells(words)];
    let mut lines = vec![
        line("", &[title("protected"), title("unprotected")]),
        line("kill: kill -9", &header(["connections", "contents", "longest"])),
        line("silence: of UDP flows", &header(["alive", "right", "silence"])),
    ];
    for Group { head, rows } in groups(report) {
        lines.push(head);
        lines.extend(rows.iter().map(Row::line));
    }
    lines.join("\n") + "\n"
}

fn line(action: &str, [protected, unprotected]: &[String; 2]) -> String {
    format!("{action:22}{protected:>28}  {unprotected:>28}")
}

fn cells([connections, contents, silence]: [&str; 3]) -> String {
    format!("{connections:>11}{contents:>9}{silence:>8}")
}

fn groups(report: &Report) -> Vec<Group> {
    let [protected, unprotected] = &report.phases;
    let name = &protected.protection;
    let runtimes = Row {
        action: format!("{} × kill a runtime", protected.kills.len()),
        protected: Impact::of_half(protected),
        unprotected: Some(Impact::of_half(unprotected)),
    };
    let rows = std::iter::once(runtimes).chain(protected.steps.iter().map(Row::of_step)).collect();
    let groups = vec![
        Group { head: format!("three runtimes ({name})"), rows },
        Group {
            head: "two runtimes with a local standby each (reinforce)".into(),
            rows: vec![Row::of_takeovers(&report.takeovers)],
        },
        Group {
            head: format!("two runtimes, load comes and goes ({name})"),
            rows: report.scaling.iter().map(Row::of_scale_step).collect(),
        },
        Group {
            head: "three hosts (reinforce)".into(),
            rows: report.hosts.iter().map(Row::of_host_step).collect(),
        },
    ];
    groups.into_iter().filter(|group| !group.rows.is_empty()).collect()
}

impl Row {
    fn of_step(step: &Step) -> Row {
        let action = match step.action {
            Action::KillManager => "kill manager, switch",
            Action::KillCoordinator => "kill the coordinator",
            Action::Drain => "drain a runtime",
            Action::Restore => "restore the runtime",
        };
        Row::protected(
            action.into(),
            (step.connections_alive, step.connections_opened),
            &step.datagrams,
        )
    }

    fn of_takeovers(done: &Takeovers) -> Row {
        let connections = (done.connections_alive, done.connections_opened);
        Row::protected(format!("{} × kill a runtime", done.kills), connections, &done.datagrams)
    }

    fn of_scale_step(step: &ScaleStep) -> Row {
        let action = match step.action {
            ScaleAction::Grow => "scale out",
            ScaleAction::Shrink => "scale in",
        };
        let connections = (step.connections_alive, step.connections_opened);
        Row::protected(
            format!("{action}, {} to {}", step.before, step.after),
            connections,
            &step.datagrams,
        )
    }

    fn of_host_step(step: &HostStep) -> Row {
        let action = match step.action {
            HostAction::Drain => "drain a host",
            HostAction::Restore => "restore the host",
            HostAction::Kill => "kill the active host",
        };
        Row::protected(
            action.into(),
            (step.connections_alive, step.connections_opened),
            &step.datagrams,
        )
    }

    /// An action without a counterpart in the unprotected half.
    fn protected(action: String, (alive, opened): (usize, usize), datagrams: &Datagrams) -> Row {
        let protected = Impact {
            connections_alive: alive,
            connections_opened: opened,
            contents: Contents::Datagrams { is_right: datagrams.changed + datagrams.doubled == 0 },
            longest_silence_us: datagrams.longest_silence_us,
        };
        Row { action, protected, unprotected: None }
    }

    fn line(&self) -> String {
        let unprotected = self.unprotected.as_ref().map_or_else(|| cells(["–"; 3]), Impact::cells);
        line(&format!("  {}", self.action), &[self.protected.cells(), unprotected])
    }
}

impl Impact {
    /// Downloads and connections of a half are judged when it ends, after its further
    /// steps.
    fn of_half(phase: &Phase) -> Impact {
        Impact {
            connections_alive: phase.connections.alive,
            connections_opened: phase.connections.opened,
            contents: Contents::Downloads { intact: phase.intact(), all: phase.downloads.len() },
            longest_silence_us: phase.kills_silence_us,
        }
    }

    fn cells(&self) -> String {
        let contents = match self.contents {
            Contents::Downloads { intact, all } => format!("{intact} of {all}"),
            Contents::Datagrams { is_right: true } => "right".into(),
            Contents::Datagrams { is_right: false } => "WRONG".into(),
        };
        let Impact { connections_alive, connections_opened, longest_silence_us, .. } = *self;
        // UDP flows may go on while connections broke; broken connections are silent for
        // good.
        let silence = if connections_alive < connections_opened {
            "forever".into()
        } else {
            silence(longest_silence_us)
        };
        cells([&format!("{connections_alive} of {connections_opened}"), &contents, &silence])
    }
}

/// A duration in at most seven columns, with no more digits than a glance reads.
fn silence(us: u64) -> String {
    match us.div_ceil(1_000) {
        ms @ 0..1_000 => format!("{ms} ms"),
        ms => format!("{:.1} s", ms as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_rounded_up_to_three_digits_or_tenths_of_a_second() {
        let silences = [0, 1, 9_000, 9_001, 999_000, 999_001, 20_340_000].map(silence);
        assert_eq!(silences, ["0 ms", "1 ms", "9 ms", "10 ms", "999 ms", "1.0 s", "20.3 s"]);
    }
}
