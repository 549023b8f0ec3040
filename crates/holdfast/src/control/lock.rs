//! The right to a control socket's path, for as long as a box runs.
//!
//! A socket can be removed by anybody who tidies up, and says nothing of who listened there. A lock on a file beside it ends with its holder,
//! however that ends, and the file names the holder.

use std::fs::File;
use std::io::{Error, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Why there is no lock.
pub(super) enum Refusal {
    /// Another box has it: its process id, if it has said so yet.
    Held(Option<u32>),
    /// What the kernel says.
    Failed(Error),
}

/// The lock. Its file goes with it.
pub(super) struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// Takes the lock of a control socket; `pid` is who others are told has it.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub(super) fn take(socket: &Path, pid: u32) -> Result<Lock, Refusal> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        loop {
            let mut options = File::options();
            // Nobody may make us write to a file of his choice.
            let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
            options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
            let mut file = options.open(&path).map_err(Refusal::Failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(std::fs::TryLockError::WouldBlock) => {
                    let mut text = String::new();
                    let _ = (&file).take(32).read_to_string(&mut text);
                    return Err(Refusal::Held(text.trim().parse().ok()));
                }
                Err(std::fs::TryLockError::Error(error)) => return Err(Refusal::Failed(error)),
            }
            // Whoever had it may have removed the file between our opening and our locking it.
            if !is_at(&file, &path) {
                continue;
            }
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{pid}")).map_err(Refusal::Failed)?;
            return Ok(Lock { path, file });
        }
    }

    /// False if its file was removed: another box could have the same lock.
    pub(super) fn is_held(&self) -> bool {
        is_at(&self.file, &self.path)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Before the lock ends with the file's descriptor: after that it may be another box's.
        if self.is_held() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}
