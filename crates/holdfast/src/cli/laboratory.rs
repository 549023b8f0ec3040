//! The commands of the laboratory, which is another program: `holdfast-lab`.
//!
//! In: a command and its arguments, not looked at. Out: that program in this one's place,
//! or the remedy where it is not installed. Never: a line of the laboratory in the
//! daemon.

use holdfast_control::exit::{self, Failure};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The laboratory's program.
const PROGRAM: &str = "holdfast-lab";

/// The arguments of a command of the laboratory.
#[derive(Debug, clap::Args)]
pub struct Handed {
    /// See `holdfast-lab` with the same command and `--help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<OsString>,
}

/// Runs a command of the laboratory in this process's place. Returns only if that fails.
pub fn hand_over(command: &[&str], json: bool, handed: &Handed) -> Failure {
    let program = beside().unwrap_or_else(|| PROGRAM.into());
    let mut hand = Command::new(&program);
    if let Ok(own) = std::env::current_exe() {
        // The laboratory shows and measures this very program, whatever else is built.
        hand.env("HOLDFAST_BIN", own);
    }
    let error = hand.args(json.then_some("--json")).args(command).args(&handed.arguments).exec();
    let message = match error.kind() {
        ErrorKind::NotFound => format!(
            "`{}` belongs to {PROGRAM}, which is neither beside this program nor in PATH: install it there, or build \
             it (`cargo build --release -p {PROGRAM}`)",
            command.join(" ")
        ),
        _ => format!("{}: {error}", program.display()),
    };
    Failure::new(exit::of_system(&error), message)
}

/// The laboratory's program in the directory of this one.
fn beside() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    Some(own.parent()?.join(PROGRAM)).filter(|path| path.is_file())
}
