//! Files that hold secrets.

use rustix::fs::{Mode, OFlags};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zeroize::Zeroizing;

/// Longest file with a secret, bytes: some keys and many words about them.
const MAX_SECRET_FILE: u64 = 64 << 10;

/// Reads a file that nobody but its owner may read. `missing` is the command that makes this one, `maker` the one that makes any.
///
/// # Errors
/// What is wrong with it, and what to do.
pub fn read_secret(path: &Path, missing: &str, maker: &str) -> Result<Zeroizing<Vec<u8>>, String> {
    let name = path.display();
    // Without O_NONBLOCK a pipe of that name would stop the box.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        rustix::io::Errno::NOENT => format!("there is no file `{name}`: `{missing}` makes one"),
        error => format!("`{name}`: {}", std::io::Error::from(error)),
    })?;
    let file = std::fs::File::from(opened);
    let metadata = file.metadata().map_err(|error| format!("`{name}`: {error}"))?;
    if !metadata.is_file() {
        return Err(format!("`{name}` is no regular file: `{maker}` makes one with a key"));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(format!("`{name}` has mode {mode:04o}, and others than its owner must not have the key: `chmod 600 {name}`"));
    }
    if metadata.len() > MAX_SECRET_FILE {
        return Err(format!("`{name}` is longer than {} KiB: this is no file of keys", MAX_SECRET_FILE >> 10));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(metadata.len() as usize + 1));
    file.take(MAX_SECRET_FILE).read_to_end(&mut bytes).map_err(|error| format!("`{name}`: {error}"))?;
    Ok(bytes)
}
