//! The command `holdfast-lab`: what shows, measures and simulates a box. `holdfast demo`,
//! `bench`, `sim` and `nf test` lead here.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use holdfast_control::exit;
use holdfast_lab::{bench, demo, simulate};
use holdfast_sim::nf_test::Suite;
use std::ffi::OsString;
use std::process::ExitCode;

/// `bench datapath` says how often a packet allocates.
#[global_allocator]
static ALLOCATOR: holdfast_io::CountingAllocator = holdfast_io::CountingAllocator;

/// The laboratory of Holdfast: shows, measures and simulates a box.
#[derive(Debug, Parser)]
#[command(name = "holdfast-lab", version, arg_required_else_help = true, after_help = exit::HELP)]
struct Arguments {
    /// Print JSON, with a `version`
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show connections surviving kill -9
    Demo(demo::DemoArgs),
    /// Run the deterministic simulator
    Sim(simulate::SimArgs),
    /// Test network functions
    Nf {
        #[command(subcommand)]
        command: Nf,
    },
    /// Measure
    Bench {
        #[command(subcommand)]
        plan: bench::Plan,
    },
}

#[derive(Debug, Subcommand)]
enum Nf {
    /// Test functions: determinism, state, leaks, and every protection in the simulator
    #[command(disable_help_flag = true)]
    Test {
        /// Arguments of a test program; see `nf test --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<OsString>,
    },
}

/// Runs the command; its exit code is the process's.
fn main() -> ExitCode {
    let Arguments { json, command } = Arguments::parse();
    match command {
        Command::Demo(args) => demo::run(&args, json),
        Command::Sim(args) => exit::end("holdfast-lab", args.run(json)),
        Command::Nf { command: Nf::Test { arguments } } => {
            Suite::default().run([OsString::from("nf test")].into_iter().chain(arguments))
        }
        Command::Bench { plan } => exit::end("holdfast-lab", plan.run(json)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn json_is_understood_before_and_after_the_command() {
        for line in ["holdfast-lab --json demo --quick", "holdfast-lab demo --quick --json"] {
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            assert!(
                arguments.json && matches!(&arguments.command, Command::Demo(args) if args.quick),
                "{line}"
            );
        }
    }
}
