//! The lock of a control socket's path, for as long as a box runs.
//!
//! A socket can be removed by any tidy user, and does not tell who listened there. A lock
//! on a file beside it ends with its holder, however that one ends, and the file names
//! the holder.

use std::fs::File;
use std::io::{Error, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The reason why the lock was not taken.
pub(super) enum Refusal {
    /// Another box has the lock: its process id, if it is written already.
    Held(Option<u32>),
    /// The kernel's error.
    Failed(Error),
}

/// A held lock. Its file goes with it.
pub(crate) struct Lock {
    path: PathBuf,
    /// The lock's file, until it is dropped.
    file: Option<File>,
    /// True if processes that this one has started hold the lock too.
    is_inherited: bool,
}

/// Timeout for the processes of a killed box to end. After it the operator has to end
/// them.
const ENDING_TIMEOUT: Duration = Duration::from_secs(20);

impl Lock {
    /// Takes the lock of a control socket; `pid` is told to others as its holder.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub(super) fn take(socket: &Path, pid: u32) -> Result<Lock, Refusal> {
        Lock::take_at(beside(socket, ".lock"), pid)
    }

    /// Takes the guard's lock for the whole box. Every process started from now on
    /// inherits the lock and holds it until it ends. If processes of a killed box still
    /// hold it, waits until they have ended. Returns `None` if the other box's guard
    /// lives, in which case this box's manager reports the conflict, or once `is_over`.
    ///
    /// # Errors
    /// The kernel's error; `TimedOut` if the processes of a killed box do not end.
    pub(crate) fn take_for_all(
        socket: &Path,
        is_over: impl Fn() -> bool,
    ) -> std::io::Result<Option<Lock>> {
        let path = beside(socket, ".box");
        let began = Instant::now();
        loop {
            match Lock::take_at(path.clone(), std::process::id()) {
                // The killed box's manager holds the socket's lock besides, and may
                // release it later.
                Ok(lock)
                    if matches!(Lock::take(socket, std::process::id()), Err(Refusal::Held(Some(guard))) if !holdfast_io::process::lives(guard))
                        && !is_over()
                        && began.elapsed() < ENDING_TIMEOUT =>
                {
                    drop(lock);
                    std::thread::sleep(Duration::from_millis(10));
                }
                Ok(mut lock) => {
                    lock.file.iter().try_for_each(|file| {
                        rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty())
                    })?;
                    lock.is_inherited = true;
                    return Ok(Some(lock));
                }
                Err(Refusal::Failed(error)) => return Err(error),
                Err(Refusal::Held(Some(guard))) if holdfast_io::process::lives(guard) => {
                    return Ok(None);
                }
                Err(Refusal::Held(_)) if is_over() => return Ok(None),
                Err(Refusal::Held(_)) if began.elapsed() < ENDING_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(10))
                }
                Err(Refusal::Held(guard)) => {
                    let guard = guard
                        .map_or_else(String::new, |pid| format!(" (its guard was process {pid})"));
                    let path = path.display();
                    let text = format!(
                        "processes of a box that was killed{guard} have not ended after {} s: as root, `fuser {path}` shows them, and `fuser -k -KILL {path}` ends them",
                        ENDING_TIMEOUT.as_secs()
                    );
                    return Err(Error::new(std::io::ErrorKind::TimedOut, text));
                }
            }
        }
    }

    fn take_at(path: PathBuf, pid: u32) -> Result<Lock, Refusal> {
        loop {
            let mut options = File::options();
            // Symbolic links are not followed: another user could make us write to any
            // file.
            let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(flags);
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
            // The previous holder may have removed the file between our opening and our
            // locking it.
            if !is_at(&file, &path) {
                continue;
            }
            file.set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| writeln!(file, "{pid}"))
                .map_err(Refusal::Failed)?;
            return Ok(Lock { path, file: Some(file), is_inherited: false });
        }
    }

    /// False if its file was removed: another box could have the same lock.
    pub(super) fn is_held(&self) -> bool {
        self.file.as_ref().is_some_and(|file| is_at(file, &self.path))
    }

    /// Waits until no other process holds an inherited lock. These processes are ending:
    /// a killed one holds the lock until the kernel has taken it down. If they do not
    /// end, or another box begins, the file stays.
    fn wait_for_others(&mut self) {
        self.file = None;
        let began = Instant::now();
        while let Err(Refusal::Held(holder)) = Lock::take_at(self.path.clone(), std::process::id())
        {
            if holder.is_some_and(|holder| holder != std::process::id())
                || began.elapsed() >= ENDING_TIMEOUT
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The file is removed before the lock ends with its descriptor: afterwards it may
        // be another box's.
        if self.is_held() && !self.is_inherited {
            let _ = std::fs::remove_file(&self.path);
        } else if self.is_held() {
            self.wait_for_others();
        }
    }
}

fn beside(socket: &Path, end: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(end);
    path.into()
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A box ends while a process of it is still being taken down: until that process has
    /// ended the lock's file stays, and no other box begins.
    #[test]
    fn the_lock_of_a_box_stays_until_its_last_process_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("box.sock");
        let lock = Lock::take_for_all(&socket, || false).unwrap().unwrap();
        let path = lock.path.clone();
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take();
        let ending = std::thread::spawn(move || drop(lock));
        let has_ended = |refusal: &Result<Option<Lock>, Error>| matches!(refusal, Ok(Some(_)));
        for _ in 0..3 {
            assert!(
                !has_ended(&Lock::take_for_all(&socket, || false)),
                "it began beside a living process"
            );
            assert!(path.exists() && !ending.is_finished());
        }
        drop(input);
        child.wait().unwrap();
        ending.join().unwrap();
        assert!(!path.exists(), "it goes with the last process");
    }

    /// The guard is dead, but a process that it started lives: the next box begins when
    /// that process has ended.
    #[test]
    fn nobody_begins_beside_what_a_killed_box_has_left() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("box.sock");
        let lock = Lock::take_for_all(&socket, || false).unwrap().unwrap();
        assert!(Lock::take_for_all(&socket, || false).unwrap().is_none(), "a guard lives");
        // `cat` ends when its standard input is closed.
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take();
        // Imitates a killed guard: the lock's file names a process that does not exist,
        // this process's descriptor is closed, and the file stays.
        std::fs::write(&lock.path, format!("{}\n", i32::MAX)).unwrap();
        let (path, away) = (lock.path.clone(), directory.path().join("away"));
        std::fs::rename(&path, &away).unwrap();
        drop(lock);
        std::fs::rename(&away, &path).unwrap();
        let looks = Arc::new(AtomicU32::new(0));
        let look = looks.clone();
        let next = std::thread::spawn(move || {
            let lock =
                Lock::take_for_all(&socket, || look.fetch_add(1, Ordering::SeqCst) == u32::MAX)
                    .unwrap();
            lock.is_some_and(|lock| lock.is_held())
        });
        while looks.load(Ordering::SeqCst) < 3 {
            assert!(!next.is_finished(), "it began beside a living process");
            std::thread::yield_now();
        }
        drop(input);
        child.wait().unwrap();
        assert!(next.join().unwrap());
        assert!(!path.exists(), "it goes with the lock");
    }
}
