//! The command `holdfast`: a box's commands. The laboratory's go to a program of their
//! own.
#![forbid(unsafe_code)]

use holdfast::Program;
use std::process::ExitCode;

fn main() -> ExitCode {
    Program::new("holdfast", env!("CARGO_PKG_VERSION")).main()
}
