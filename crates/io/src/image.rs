//! Shared objects that are part of this program's file, laid out where the dynamic linker finds them.

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use std::io;

/// A shared object in memory of its own, which is there as long as this value.
pub(crate) struct Image(OwnedFd);

impl Image {
    /// Lays it out. `name` is what the kernel calls the memory.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn lay_out(name: &str, bytes: &[u8]) -> io::Result<Image> {
        let memory = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let done = rustix::io::write(&memory, rest)?;
            rest = &rest[done..];
        }
        Ok(Image(memory))
    }

    /// Where the linker finds it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}
