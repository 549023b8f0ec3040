//! Shared objects inside this program's file, laid out for the dynamic linker: the C
//! halves of what is bound to a C library (`holdfast-shim-build` makes them).
//!
//! In: the bytes of a shared object. Out: a path to load it from. Never: the loading
//! itself, which is unsafe.
#![forbid(unsafe_code)]

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use std::io;

/// A shared object in a memory file, which exists as long as this value.
pub struct Image(OwnedFd);

impl Image {
    /// Lays out a shared object. `name` is the kernel's name for the memory.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn lay_out(name: &str, bytes: &[u8]) -> io::Result<Image> {
        let memory = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let done = rustix::io::write(&memory, rest)?;
            rest = &rest[done..];
        }
        Ok(Image(memory))
    }

    /// The path for the linker.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}
