//! Any text as a configuration: read, or refused with words.

pub(crate) fn run(data: &[u8]) {
    holdfast::config::fuzz(data);
}
