//! Any text as a selector: what is understood is said back in words that mean the same.

use holdfast_wire::selector::Selector;

pub(crate) fn run(data: &[u8]) {
    let valid = std::str::from_utf8(data).map_or_else(|error| error.valid_up_to(), str::len);
    let text = std::str::from_utf8(&data[..valid]).expect("so far it is valid");
    match text.parse::<Selector>() {
        Ok(selector) => {
            let words = selector.to_string();
            let again: Selector = words.parse().unwrap_or_else(|error| panic!("{text:?} was said as {words:?}: {error}"));
            assert_eq!(again, selector, "{text:?} was said as {words:?}");
        }
        Err(error) => assert!(error.offset <= text.len(), "{text:?}: {error} at {}", error.offset),
    }
}
