//! What a box does to the function, done to it in the simulator.

use holdfast_sim::nf_test::Suite;
use serde_json::json;
use std::process::ExitCode;

fn main() -> ExitCode {
    let config = json!({ "places": 4096, "per_client": 64 });
    Suite::default().function::<turnstile::Turnstile>(config).main()
}
