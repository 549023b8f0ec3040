//! Shared objects inside this program's file, laid out for the dynamic linker: the C
//! halves of what is bound to a C library (`holdfast-shim-build` makes them).
//!
//! In: the bytes of a shared object. Out: a path to load it from. Never: the loading
//! itself, which is unsafe.
#![forbid(unsafe_code)]

use rustix::fd::{IntoRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use std::io;

/// A shared object in a memory file.
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

    /// The path for the linker, which stays this object's: the linker knows a loaded
    /// object by its path, and would take another object there for the same one.
    pub fn into_path(self) -> String {
        format!("/proc/self/fd/{}", self.0.into_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_objects_have_one_path() {
        let path = |name| Image::lay_out(name, b"an object").map(Image::into_path);
        let [one, other] = ["one", "other"].map(|name| path(name).expect("there is memory"));
        assert_ne!(one, other);
        assert_eq!(std::fs::read(other).expect("it is there"), b"an object");
    }
}
