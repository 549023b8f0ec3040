//! Any text as a configuration: read, or refused with words.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| holdfast::config::fuzz(bytes));
