//! Tests that print their duration: a line `seconds  12.34  NAME` each, which
//! `tests/all.sh` collects. Every runner of this project includes this file.

use libtest_mimic::{Failed, Trial};
use std::time::Instant;

/// A test that prints its seconds.
pub(crate) fn trial(
    name: String,
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let label = name.clone();
    Trial::test(name, move || {
        let begin = Instant::now();
        let result = run();
        eprintln!("seconds {:8.2}  {label}", begin.elapsed().as_secs_f64());
        result
    })
}
