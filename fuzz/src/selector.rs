//! Any text as a selector, of flows and of packets. A selector that is understood is
//! printed in words that mean the same.

use core::fmt::{Debug, Display};
use holdfast_wire::selector::{PacketSelector, Selector, SelectorError};
use holdfast_wire::zone::Zones;

pub(crate) fn run(data: &[u8]) {
    let valid = std::str::from_utf8(data).map_or_else(|error| error.valid_up_to(), str::len);
    let text = std::str::from_utf8(&data[..valid]).expect("so far it is valid");
    check(text, |text| text.parse::<Selector>());
    check(text, |text| PacketSelector::read(text, &Zones::numbered()));
}

fn check<S: Display + Debug + PartialEq>(
    text: &str,
    read: impl Fn(&str) -> Result<S, SelectorError>,
) {
    match read(text) {
        Ok(selector) => {
            let words = selector.to_string();
            let again = read(&words)
                .unwrap_or_else(|error| panic!("{text:?} was said as {words:?}: {error}"));
            assert_eq!(again, selector, "{text:?} was said as {words:?}");
        }
        Err(error) => assert!(error.offset <= text.len(), "{text:?}: {error} at {}", error.offset),
    }
}
