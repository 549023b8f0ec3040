//! A Holdfast that has the function in its catalog.

use std::process::ExitCode;

fn main() -> ExitCode {
    holdfast::program!().with::<turnstile::Turnstile>().main()
}
