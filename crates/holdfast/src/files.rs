//! Files and directories that an operator names: opened without blocking, and used for
//! storage only if no other user may write there. Also files in memory.

use rustix::fd::OwnedFd;
use rustix::fs::MemfdFlags;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Permission bits by which group and others may write.
const OTHERS_WRITE: u32 = 0o022;
const ANYBODY_WRITES: u32 = 0o002;
/// Sticky bit: a user who may write to the directory can remove or rename only his own
/// files.
const STICKY: u32 = 0o1000;

/// A memory file with these bytes, which can be passed on.
pub(crate) fn memory(bytes: &[u8]) -> Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("holdfast-line", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// Opens a regular file for reading, so that neither opening nor reading blocks.
///
/// # Errors
/// The kernel's error; `InvalidInput` if it is not a regular file.
pub(crate) fn open(path: &Path) -> Result<File> {
    regular(OpenOptions::new().read(true), path)
}

/// Opens a regular file to write at its end, or makes one for this user alone.
///
/// # Errors
/// As [`open`].
pub(crate) fn append(path: &Path) -> Result<File> {
    regular(OpenOptions::new().append(true).create(true).mode(0o600), path)
}

fn regular(options: &mut OpenOptions, path: &Path) -> Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    let what = match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => {
            "a pipe, and whoever writes it may never do so; `-` reads standard input where a command takes it"
        }
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(Error::new(ErrorKind::InvalidInput, format!("this is {what}; a regular file is needed")))
}

/// Makes a directory for this user alone, if there is none, and checks that no other user
/// may write to it or to its files.
///
/// # Errors
/// The kernel's error; `PermissionDenied` with the remedy.
pub(crate) fn keep_in(directory: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let directory = directory.canonicalize()?;
    own(&directory, &directory.metadata()?)?;
    reach(&directory)?;
    for entry in std::fs::read_dir(&directory)? {
        let entry = entry?;
        // Symbolic links are not followed: only a user who may write here can change
        // where they lead.
        let metadata = std::fs::symlink_metadata(entry.path())?;
        if metadata.is_file() || metadata.is_dir() {
            own(&entry.path(), &metadata)?;
        }
    }
    Ok(())
}

/// Checks that no user outside the parent directories' groups can replace this directory:
/// a group may be trusted.
///
/// # Errors
/// As [`keep_in`].
pub(crate) fn reach(directory: &Path) -> Result<()> {
    for above in directory.canonicalize()?.ancestors() {
        let mode = above.metadata()?.mode();
        if mode & ANYBODY_WRITES != 0 && mode & STICKY == 0 {
            return Err(refused(
                above,
                &format!(
                    "anybody may write there (mode {:04o}): `chmod o-w {}`",
                    mode & 0o7777,
                    above.display()
                ),
            ));
        }
    }
    Ok(())
}

/// Checks that a path belongs to this user or root, and that no other user may write to
/// it.
fn own(path: &Path, metadata: &Metadata) -> Result<()> {
    let (mode, me) = (metadata.mode() & 0o7777, rustix::process::geteuid().as_raw());
    if ![0, me].contains(&metadata.uid()) {
        return Err(refused(
            path,
            &format!(
                "it is user {}'s, and this is user {me}: `chown {me} {}`",
                metadata.uid(),
                path.display()
            ),
        ));
    }
    if mode & OTHERS_WRITE != 0 {
        return Err(refused(
            path,
            &format!("others may write to it (mode {mode:04o}): `chmod go-w {}`", path.display()),
        ));
    }
    Ok(())
}

fn refused(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::PermissionDenied, format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    /// A pipe that no process writes is refused at once instead of blocking its reader.
    #[test]
    fn only_files_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let error = open(&pipe).unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidInput && error.to_string().contains("a pipe"),
            "{error}"
        );
        assert!(open(directory.path()).unwrap_err().to_string().contains("a directory"));
        assert!(open(Path::new("/dev/null")).unwrap_err().to_string().contains("a device"));
        write(directory.path().join("file"), "text").unwrap();
        assert!(open(&directory.path().join("file")).is_ok());
    }

    #[test]
    fn what_others_may_write_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("a/state");
        keep_in(&state).unwrap();
        assert_eq!(
            state.metadata().unwrap().mode() & 0o777,
            0o700,
            "it was made for its owner alone"
        );
        let file = state.join("here.coordinator");
        write(&file, "log").unwrap();
        set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        keep_in(&state).unwrap();
        let refused = |path: &Path, mode: u32| {
            let before = path.metadata().unwrap().permissions();
            set_permissions(path, Permissions::from_mode(mode)).unwrap();
            let error = keep_in(&state).unwrap_err();
            set_permissions(path, before).unwrap();
            let text = error.to_string();
            assert!(
                error.kind() == ErrorKind::PermissionDenied
                    && text.contains(&*path.to_string_lossy()),
                "{text}"
            );
            assert!(text.contains("chmod"), "{text}");
        };
        for mode in [0o602, 0o620, 0o666] {
            refused(&file, mode);
        }
        for mode in [0o702, 0o720, 0o777, 0o1777] {
            refused(&state, mode);
        }
        // Above the directory, a group may be trusted, and a directory for everybody is
        // allowed if its sticky bit is set.
        let above = directory.path().join("a");
        refused(&above, 0o707);
        for mode in [0o770, 0o1777] {
            set_permissions(&above, Permissions::from_mode(mode)).unwrap();
            keep_in(&state).unwrap();
        }
    }
}
