//! Any text as a configuration: it is read, or refused with a message.

pub(crate) fn run(data: &[u8]) {
    holdfast::config::fuzz(data);
}
