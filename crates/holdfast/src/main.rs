//! The command `holdfast`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    holdfast::cli::main()
}
