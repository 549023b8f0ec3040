//! `holdfast demo`: the main promise, shown on this machine with real programs.
//!
//! Three namespaces, a box of firewall → NAT → load balancer on three runtimes, two web
//! servers. Two runtimes are killed while downloads and open connections are under way,
//! once under `nfvactor` and once, for contrast, under `none`. Under `nfvactor` the
//! manager and the coordinator are killed too, and a runtime is drained and restored.
//!
//! Three other boxes follow. Runtimes with local standbys are killed a hundred times. A
//! box with two runtimes gets a third one while there is load. On a box of three hosts,
//! one host is drained and restored, and the serving host is killed.
//!
//! Progress goes to standard error. The report, which ends with one table, goes to
//! standard output.

mod details;
mod hosts;
mod progress;
mod report;
mod scaling;
pub(crate) mod scenario;
mod steps;
mod table;
mod takeovers;

use crate::requirements::{self, Missing};
use crate::{Interrupt, Interrupted, daemon};
use anyhow::Context;
use holdfast_control::exit::Failure;
use progress::Progress;
use scenario::Scale;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

pub use hosts::{HostAction, HostStep};
pub use report::{Kill, Phase, Report, Transferred};
pub use scaling::{ScaleAction, ScaleStep};
pub use steps::{Action, Step};
pub use takeovers::Takeovers;

/// Connections that ask without a pause while local standbys take over, and the time for
/// which they are counted before and after.
const LOAD: usize = 16;
const LOAD_TIME: std::time::Duration = std::time::Duration::from_secs(2);

/// The first progress line: what the demo does, and its approximate duration, s.
const INTRODUCTION: &str = "kills runtimes, manager, coordinator and a host under load, and at last runtimes without protection";
const SECONDS: u32 = 70;
const QUICK_SECONDS: u32 = 45;

/// Exit code after Ctrl-C, as shells count it.
const EXIT_INTERRUPTED: u8 = 130;

/// Configuration of the box in the first half.
pub const PROTECTED: &str = include_str!("../../../../demo/protected.yaml");
/// Additional configuration of the box that grows and shrinks.
pub const ELASTIC: &str = include_str!("../../../../demo/elastic.yaml");
/// Additional configuration of the box on three hosts.
pub const HOSTS: &str = include_str!("../../../../demo/hosts.yaml");
/// Configuration of the box in the second half.
pub const UNPROTECTED: &str = include_str!("../../../../demo/unprotected.yaml");

/// Show connections surviving `kill -9`: needs root, makes namespaces of its own and
/// removes them.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// Leave the protected half running, to look around in it
    #[arg(long)]
    pub keep: bool,
    /// Fewer and shorter downloads, fewer connections
    #[arg(long)]
    pub quick: bool,
    /// Print the account of every step and the SHA-256 of every download
    #[arg(short, long)]
    pub verbose: bool,
}

/// Runs it. 0 if every protected connection lived and every checksum matched, and the
/// contrast shows; 1 if not; 69 or 77 with the remedy on standard error if a program or
/// the privilege is missing; 130 after Ctrl-C.
pub fn run(args: &DemoArgs, json: bool) -> ExitCode {
    let result = requirements::require(&[
        requirements::IP,
        requirements::ETHTOOL,
        requirements::NFT,
        requirements::NGINX,
        requirements::CURL,
    ])
    .map_err(anyhow::Error::from)
    .and_then(|()| Interrupt::on_signals())
    .and_then(|interrupt| play(args, &daemon::binary()?, &interrupt));
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            let code = exit_code(&error);
            let _ = writeln!(std::io::stderr(), "holdfast demo: {error:#}");
            if json {
                let text = serde_json::json!({ "version": report::VERSION, "ok": false, "error": format!("{error:#}") });
                let _ = writeln!(std::io::stdout(), "{text}");
            }
            return ExitCode::from(code);
        }
    };
    let text = if json {
        serde_json::to_string_pretty(&report).expect("a report is plain data") + "\n"
    } else {
        report.text(
            std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
            args.verbose,
        )
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    ExitCode::from(if report.ok && written.is_ok() { 0 } else { 1 })
}

/// Plays both halves with `binary` as the box, and reports.
pub fn play(args: &DemoArgs, binary: &Path, interrupt: &Interrupt) -> anyhow::Result<Report> {
    let scale = if args.quick { Scale::QUICK } else { Scale::FULL };
    let mut progress = Progress::new();
    let seconds = if args.quick { QUICK_SECONDS } else { SECONDS };
    progress.step(&format!("{INTRODUCTION}: about {seconds} s"));
    let protected = scenario::run(
        &scenario::Script {
            protection: "nfvactor",
            promised: true,
            configuration: PROTECTED,
            binary,
            scale,
            keep: args.keep,
            interrupt,
        },
        &mut progress,
    )
    .context("under protection nfvactor")?;
    let connections = scale.connections / 2;
    let plans = takeovers::Plans {
        kills: if args.quick { 20 } else { 100 },
        connections: LOAD,
        time: LOAD_TIME,
        datagrams: scale.step_datagrams(),
    };
    let takeovers =
        takeovers::run(binary, &plans, interrupt, &mut progress).context("with local standbys")?;
    let scaling =
        scaling::run(binary, connections, scale.step_datagrams(), interrupt, &mut progress)
            .context("with load that comes and goes")?;
    let hosts = hosts::run(binary, connections, scale.step_datagrams(), interrupt, &mut progress)
        .context("on three hosts")?;
    let unprotected = scenario::run(
        &scenario::Script {
            protection: "none",
            promised: false,
            configuration: UNPROTECTED,
            binary,
            scale,
            keep: false,
            interrupt,
        },
        &mut progress,
    )
    .context("under protection none")?;
    Ok(Report::new(protected, takeovers, scaling, hosts, unprotected))
}

pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    let missing =
        error.chain().find_map(|cause| cause.downcast_ref::<Missing>()).map(Missing::exit_code);
    let interrupted = error.chain().any(|cause| cause.is::<Interrupted>());
    let failed =
        error.chain().find_map(|cause| cause.downcast_ref::<Failure>()).map(|failure| failure.code);
    missing.or(failed).unwrap_or(if interrupted { EXIT_INTERRUPTED } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_boxes_differ_in_their_protection_only() {
        let lines = |text: &'static str| {
            text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<&str>>()
        };
        let different: Vec<(&str, &str)> = lines(PROTECTED)
            .into_iter()
            .zip(lines(UNPROTECTED))
            .filter(|(left, right)| left != right)
            .collect();
        assert_eq!(lines(PROTECTED).len(), lines(UNPROTECTED).len());
        assert_eq!(different, vec![("    protection: nfvactor", "    protection: none")]);
    }

    #[test]
    fn exit_codes_survive_the_context_around_them() {
        let wrapped = |error: anyhow::Error| {
            exit_code(&error.context("under protection nfvactor").context("demo"))
        };
        assert_eq!(wrapped(Missing::Privilege.into()), 77);
        assert_eq!(
            wrapped(Missing::Program { program: "nginx", package: "nginx-light" }.into()),
            69
        );
        assert_eq!(wrapped(Failure::new(70, "a fault").into()), 70);
        assert_eq!(wrapped(Interrupted.into()), 130);
        assert_eq!(wrapped(anyhow::anyhow!("anything else")), 1);
    }
}
