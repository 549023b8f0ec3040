//! A single program serves every target, because linking takes long.
//! `HOLDFAST_FUZZ_TARGET` names the target to run.
#![no_main]

use holdfast_fuzz::{TARGETS, Target};
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("HOLDFAST_FUZZ_TARGET").unwrap_or_default();
    let named = TARGETS.iter().find(|target| target.name == name);
    named.unwrap_or_else(|| panic!("HOLDFAST_FUZZ_TARGET={name}: there is no such target"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.run)(data));
