//! A program that is a Holdfast: all of its commands, with functions of the program's
//! author in its catalog. The program `holdfast` has none of its own.
//!
//! Theory of operation. A box's processes are this same program, started with other
//! arguments, so each of them has the functions. An author's `main` is one line.
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     holdfast::program!().main()
//! }
//! ```

use crate::cli::{self, laboratory};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use holdfast_control::exit;
use holdfast_functions::catalog;
use holdfast_nf::NetworkFunction;
use std::path::Path;
use std::process::ExitCode;

/// A program; see the module. [`program!`](crate::program) makes one of a crate's name,
/// version and directory.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    name: &'static str,
    version: &'static str,
    crate_directory: Option<&'static str>,
}

/// The [`Program`] of the crate in which this stands.
#[macro_export]
macro_rules! program {
    () => {
        $crate::Program::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
            .tested_by(env!("CARGO_MANIFEST_DIR"))
    };
}

impl Program {
    /// A program whose `nf test` is the laboratory's.
    pub const fn new(name: &'static str, version: &'static str) -> Program {
        Program { name, version, crate_directory: None }
    }

    /// The program's `nf test` runs the test `nf` of the crate in this directory.
    #[must_use]
    pub const fn tested_by(self, crate_directory: &'static str) -> Program {
        Program { crate_directory: Some(crate_directory), ..self }
    }

    /// Adds a function to the catalog.
    #[must_use]
    pub fn with<N: NetworkFunction>(self) -> Program {
        catalog::add::<N>();
        self
    }

    /// Runs the command that the process's arguments say. The result is the process's
    /// exit code.
    pub fn main(self) -> ExitCode {
        let mut command = self.command();
        let read = Arguments::from_arg_matches(&command.get_matches_mut());
        let Arguments { options, command: asked } =
            read.unwrap_or_else(|error| error.format(&mut command).exit());
        let hand_over = |name, handed| Err(laboratory::hand_over(&[name], options.json, handed));
        exit::end(
            self.name,
            match asked {
                Command::Demo(handed) => hand_over("demo", &handed),
                Command::Operate(asked) => asked.run(&options),
                Command::Sim(handed) => hand_over("sim", &handed),
                Command::Keys(asked) => asked.run(&options),
                Command::Bench(handed) => hand_over("bench", &handed),
                Command::Nf(asked) => asked.run(&options, self.crate_directory.map(Path::new)),
                Command::Reference(asked) => asked.run(command),
                Command::Role(role) => role.run(),
            },
        )
    }

    fn command(&self) -> clap::Command {
        Arguments::command().name(self.name).version(self.version)
    }
}

/// Chains of stateful network functions whose flows survive.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, arg_required_else_help = true, after_help = exit::HELP)]
struct Arguments {
    #[command(flatten)]
    options: cli::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show connections surviving kill -9 (`holdfast-lab`)
    #[command(disable_help_flag = true)]
    Demo(laboratory::Handed),
    #[command(flatten)]
    Operate(cli::Operate),
    /// Run the deterministic simulator (`holdfast-lab`)
    #[command(disable_help_flag = true)]
    Sim(laboratory::Handed),
    #[command(flatten)]
    Keys(cli::Keys),
    /// Measure (`holdfast-lab`)
    #[command(disable_help_flag = true)]
    Bench(laboratory::Handed),
    /// List network functions, show the configuration of one, make one, or test some
    Nf(cli::nf::Nf),
    #[command(flatten)]
    Reference(cli::Reference),
    #[command(flatten)]
    Role(cli::Role),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn json_and_control_are_understood_before_and_after_the_command() {
        for line in [
            "holdfast --json --control /c status",
            "holdfast status --json --control /c",
            "holdfast --json status --control /c",
        ] {
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            assert!(
                arguments.options.json && arguments.options.control.as_deref() == Some("/c"),
                "{line}"
            );
        }
    }

    /// Arguments of a laboratory command go to the laboratory as they are, `--help` too.
    /// The same is done for `--json` before and after the command.
    #[test]
    fn the_laboratory_gets_its_arguments_as_they_are() {
        for (line, json, expected) in [
            ("holdfast --json demo --quick", true, "--quick"),
            ("holdfast demo --quick --json", false, "--quick --json"),
            ("holdfast bench --help", false, "--help"),
            ("holdfast sim --seed 7 --trace -h", false, "--seed 7 --trace -h"),
            ("holdfast sim", false, ""),
        ] {
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            let (Command::Demo(handed) | Command::Bench(handed) | Command::Sim(handed)) =
                arguments.command
            else {
                panic!("{line}")
            };
            let handed: Vec<&str> =
                handed.arguments.iter().map(|one| one.to_str().unwrap()).collect();
            assert_eq!(
                (arguments.options.json, handed.join(" ").as_str()),
                (json, expected),
                "{line}"
            );
        }
    }

    #[test]
    fn a_host_joins_with_a_name_and_a_certificate_and_without_a_file() {
        let parsed = |line: &str| {
            Arguments::try_parse_from(line.split(' ')).map(|_| ()).map_err(|error| error.kind())
        };
        use clap::error::ErrorKind::*;
        for (line, expected) in [
            ("holdfast run box.yaml", Ok(())),
            ("holdfast run box.yaml --host left --tls tls", Ok(())),
            ("holdfast run --host left --join 10.9.0.1 --tls tls", Ok(())),
            ("holdfast run --host left --join 10.9.0.1:99 --tls a,b,c", Ok(())),
            ("holdfast run", Err(MissingRequiredArgument)),
            ("holdfast run --join 10.9.0.1 --tls tls", Err(MissingRequiredArgument)),
            ("holdfast run --host left --join 10.9.0.1", Err(MissingRequiredArgument)),
            ("holdfast run box.yaml --host left --join 10.9.0.1 --tls tls", Err(ArgumentConflict)),
            ("holdfast run --host left --join 10.9.0.1:x --tls tls", Err(ValueValidation)),
            ("holdfast status --tls a,b", Err(ValueValidation)),
        ] {
            assert_eq!(parsed(line), expected, "{line}");
        }
    }

    #[test]
    fn a_selector_is_written_without_quotes() {
        let arguments =
            Arguments::try_parse_from("holdfast trace tcp from 10.0.0.0/24 --count 3".split(' '))
                .unwrap();
        let Command::Operate(cli::Operate::Trace { selector, count: 3, .. }) = arguments.command
        else {
            panic!("{arguments:?}")
        };
        assert_eq!(selector.join(" "), "tcp from 10.0.0.0/24");
    }
}
