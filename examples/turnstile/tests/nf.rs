//! `nf test`: the function on a bench, and in worlds where runtimes die.

use holdfast_sim::nf_test::Suite;
use serde_json::json;
use std::process::ExitCode;

fn main() -> ExitCode {
    let config = json!({ "places": 4096, "per_client": 64 });
    Suite::default().function::<turnstile::Turnstile>(config).main()
}
