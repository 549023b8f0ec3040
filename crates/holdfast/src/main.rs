//! The command `holdfast`: a box's commands. The laboratory's go to a program of their
//! own.
#![forbid(unsafe_code)]

use clap::{CommandFactory, Parser, Subcommand};
use holdfast::cli::{self, laboratory};
use holdfast_control::exit;
use std::process::ExitCode;

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
    #[command(flatten)]
    Reference(cli::Reference),
    #[command(flatten)]
    Role(cli::Role),
}

/// Runs the command; its exit code is the process's.
fn main() -> ExitCode {
    let Arguments { options, command } = Arguments::parse();
    let hand_over = |command, handed| Err(laboratory::hand_over(command, options.json, handed));
    exit::end(
        "holdfast",
        match command {
            Command::Demo(handed) => hand_over("demo", &handed),
            Command::Operate(command) => command.run(&options),
            Command::Sim(handed) => hand_over("sim", &handed),
            Command::Keys(command) => command.run(&options),
            Command::Bench(handed) => hand_over("bench", &handed),
            Command::Reference(command) => command.run(&options, Arguments::command()),
            Command::Role(role) => role.run(),
        },
    )
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
