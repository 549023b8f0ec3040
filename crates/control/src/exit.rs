//! How the command ends: exit codes and the errors that lead to them.

use std::{fmt, io};

/// A negative answer.
pub const NEGATIVE: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// Something that is needed is not there.
pub const UNAVAILABLE: u8 = 69;
/// A fault of this program.
pub const SOFTWARE: u8 = 70;
/// It took too long.
pub const TIMEOUT: u8 = 75;
/// A privilege is missing.
pub const PERMISSION: u8 = 77;
/// The configuration is wrong.
pub const CONFIGURATION: u8 = 78;

/// The code for something that the system refused: a privilege is missing, or something is not there.
pub fn of_system(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::PermissionDenied { PERMISSION } else { UNAVAILABLE }
}

/// Why a command ends otherwise than well: what to tell the user, and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What to say, remedy included.
    pub message: String,
}

impl Failure {
    /// A failure with this code.
    pub fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    /// A failure that another process of the box has told the user of.
    pub fn said(code: u8) -> Failure {
        Failure { code, message: String::new() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
