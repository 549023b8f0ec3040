//! Any text as a selector: what is understood is said back in words that mean the same.

#![no_main]

use holdfast_wire::selector::Selector;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| match text.parse::<Selector>() {
    Ok(selector) => {
        let words = selector.to_string();
        let again: Selector = words.parse().unwrap_or_else(|error| panic!("{text:?} was said as {words:?}: {error}"));
        assert_eq!(again, selector, "{text:?} was said as {words:?}");
    }
    Err(error) => assert!(error.offset <= text.len(), "{text:?}: {error} at {}", error.offset),
});
