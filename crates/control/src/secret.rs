//! Files that hold secrets.

use rustix::fs::{Mode, OFlags};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zeroize::Zeroizing;

/// Longest file with a secret or a certificate, bytes: some keys with many comments.
const LONGEST: u64 = 64 << 10;

/// Opens a regular file without blocking: a pipe of that name would stop the box.
/// `missing` is the command that makes the file, `remedy` the advice for a file of
/// another kind.
fn open(
    path: &Path,
    missing: &str,
    remedy: &str,
) -> Result<(std::fs::File, std::fs::Metadata), String> {
    let name = path.display();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        rustix::io::Errno::NOENT => format!("there is no file `{name}`: `{missing}` makes one"),
        error => format!("`{name}`: {}", std::io::Error::from(error)),
    })?;
    let file = std::fs::File::from(opened);
    let metadata = file.metadata().map_err(|error| format!("`{name}`: {error}"))?;
    if !metadata.is_file() {
        return Err(format!("`{name}` is no regular file: {remedy}"));
    }
    if metadata.len() > LONGEST {
        return Err(format!(
            "`{name}` is longer than {} KiB: this is no file of keys or certificates",
            LONGEST >> 10
        ));
    }
    Ok((file, metadata))
}

fn read(file: std::fs::File, path: &Path, len: u64) -> Result<Zeroizing<Vec<u8>>, String> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(len as usize + 1));
    file.take(LONGEST)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("`{}`: {error}", path.display()))?;
    Ok(bytes)
}

/// Reads a file that any user may read, such as a certificate.
///
/// # Errors
/// The text names the fault and the remedy.
pub fn read_public(path: &Path, maker: &str) -> Result<Vec<u8>, String> {
    let (file, metadata) = open(path, maker, &format!("`{maker}` makes one"))?;
    read(file, path, metadata.len()).map(|bytes| bytes.to_vec())
}

/// Reads a file that only its owner may read. `missing` is the command that makes this
/// file, `maker` the one that makes any.
///
/// # Errors
/// The text names the fault and the remedy.
pub fn read_secret(path: &Path, missing: &str, maker: &str) -> Result<Zeroizing<Vec<u8>>, String> {
    let (file, metadata) = open(path, missing, &format!("`{maker}` makes one with a key"))?;
    let (name, mode) = (path.display(), metadata.mode() & 0o7777);
    if mode & 0o077 != 0 {
        return Err(format!(
            "`{name}` has mode {mode:04o}, and others than its owner must not have the key: `chmod 600 {name}`"
        ));
    }
    read(file, path, metadata.len())
}
