//! Exit codes, and the errors that lead to them.

use std::io::Write;
use std::process::ExitCode;
use std::{fmt, io};

/// The end of a program's help.
pub const HELP: &str = "Exit codes: 0 well, 1 a negative answer, 2 wrong usage, 69 something needed is not there, 70 a fault of this \
                        program, 75 it took too long, 77 a privilege is missing, 78 the configuration is wrong. `holdfast explain CODE` says more.";

/// A negative answer.
pub const NEGATIVE: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// A needed part is missing.
pub const UNAVAILABLE: u8 = 69;
/// A fault of this program.
pub const SOFTWARE: u8 = 70;
/// The time-out has passed.
pub const TIMEOUT: u8 = 75;
/// A privilege is missing.
pub const PERMISSION: u8 = 77;
/// The configuration is wrong.
pub const CONFIGURATION: u8 = 78;

/// The code for a system error: a privilege or a needed part is missing.
pub fn of_system(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::PermissionDenied { PERMISSION } else { UNAVAILABLE }
}

/// The error that ends a command: the message for the user, and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// The message, remedy included.
    pub message: String,
}

impl Failure {
    /// A failure with this code.
    pub fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    /// A failure that another process of the box has reported to the user.
    pub fn said(code: u8) -> Failure {
        Failure { code, message: String::new() }
    }
}

/// The exit code of this program's command with this result; an error is printed on
/// standard error.
pub fn end(program: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                let _ = writeln!(io::stderr(), "{program}: {failure}");
            }
            ExitCode::from(failure.code)
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
