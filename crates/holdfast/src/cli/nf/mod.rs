//! `nf`: the network functions of this program, and those to be.
//!
//! `nf test` needs the simulator, which is no part of a daemon: `holdfast` hands over to
//! the laboratory, and a program of an author's own to a test of its crate.

mod new;

use super::laboratory::{self, Handed};
use super::{Options, reference};
use clap::Subcommand;
use holdfast_control::exit::{self, Failure};
use new::Source;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Nf {
    #[command(subcommand)]
    command: Option<Asked>,
    /// The function whose configuration to show; without it, all are listed
    name: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Asked {
    /// Make a crate with a function of your own, and a program that has it
    ///
    /// The directory NAME gets a small function, its tests, and a program that is a
    /// Holdfast with this function in its catalog. It builds by itself.
    New {
        /// The function, the crate and the directory: lower-case letters, digits and `_`
        name: String,
        /// The directory of Holdfast's source; without it, the one that this program was
        /// built from
        #[arg(long, value_name = "DIRECTORY", conflicts_with = "git")]
        path: Option<PathBuf>,
        /// A git repository of Holdfast's source
        #[arg(long, value_name = "URL", requires = "tag")]
        git: Option<String>,
        /// The tag in that repository
        #[arg(long, value_name = "TAG", requires = "git")]
        tag: Option<String>,
    },
    /// Test functions: determinism, state, leaks, and every protection in the simulator
    #[command(disable_help_flag = true)]
    Test(Handed),
}

impl Nf {
    /// Runs the command; `crate_directory` is that of the crate whose tests `nf test`
    /// runs, if it is not the laboratory's.
    ///
    /// # Errors
    /// The message for the user, and the exit code.
    pub fn run(self, options: &Options, crate_directory: Option<&Path>) -> Result<(), Failure> {
        match self.command {
            None => reference::functions(self.name.as_deref(), options.json),
            Some(Asked::New { name, path, git, tag }) => {
                let source = match git.zip(tag) {
                    Some((url, tag)) => Source::Git { url, tag },
                    None => Source::at(path)?,
                };
                new::make(Path::new(""), &name, &source, options.json)
            }
            Some(Asked::Test(mut handed)) => {
                if options.json {
                    handed.arguments.splice(0..0, ["--format".into(), "json".into()]);
                }
                Err(match crate_directory {
                    Some(directory) => test_crate(directory, &handed),
                    None => laboratory::hand_over(&["nf", "test"], false, &handed),
                })
            }
        }
    }
}

/// Runs the test `nf` of the crate in this process's place, built from the sources as
/// they are now. Returns only if that fails.
fn test_crate(directory: &Path, handed: &Handed) -> Failure {
    let manifest = directory.join("Cargo.toml");
    if !manifest.is_file() {
        return Failure::new(
            exit::UNAVAILABLE,
            format!(
                "`nf test` is a test of the crate that this program was built from, and {} is \
                 not there: run `cargo test` where the crate is now",
                manifest.display()
            ),
        );
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let error = Command::new(&cargo)
        .args(["test", "--test", "nf", "--manifest-path"])
        .arg(&manifest)
        .arg("--")
        .args(&handed.arguments)
        .exec();
    let message = match error.kind() {
        ErrorKind::NotFound => format!(
            "`nf test` builds a test of {}: install cargo, or put it into PATH",
            directory.display()
        ),
        _ => format!("{}: {error}", cargo.display()),
    };
    Failure::new(exit::of_system(&error), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that has left its crate behind says so, and what to do.
    #[test]
    fn a_crate_that_is_elsewhere_is_named() {
        let empty = tempfile::tempdir().expect("a directory");
        let said = test_crate(empty.path(), &Handed { arguments: Vec::new() }).to_string();
        assert!(said.contains("Cargo.toml is not there") && said.contains("cargo test"), "{said}");
    }
}
