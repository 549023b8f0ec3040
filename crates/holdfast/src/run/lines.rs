//! Lines for the operator, on standard error.
//!
//! The reader of these lines may stop: a terminal that is held, a pipe into a program
//! that hangs. Packet forwarding must not wait for it. In: lines. Out: the same lines,
//! written by a thread, and the number of lost ones. Never: a wait, or more than
//! [`WAITING`] lines in memory.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// Maximum number of lines that wait for their reader.
const WAITING: usize = 1024;
/// Timeout for writing the queued lines when the process ends.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The queue of this process. Unset until [`begin`], when the process has no packets yet
/// and may write directly.
static OWN: OnceLock<Lines> = OnceLock::new();

enum Line {
    Text(String),
    /// Acknowledged when the lines before it have been written.
    Mark(Sender<()>),
}

/// A queue of lines, and the thread that writes them.
pub(super) struct Lines {
    sender: SyncSender<Line>,
    lost: AtomicU64,
}

impl Lines {
    /// Starts the thread that writes lines to `out`.
    pub(super) fn to(mut out: impl Write + Send + 'static) -> io::Result<Lines> {
        let (sender, lines) = sync_channel(WAITING);
        let write = move || {
            for line in lines {
                match line {
                    // A reader that has gone is no failure.
                    Line::Text(text) => drop(out.write_all(text.as_bytes())),
                    Line::Mark(done) => drop(done.send(())),
                }
            }
        };
        std::thread::Builder::new().name("lines".to_owned()).spawn(write)?;
        Ok(Lines { sender, lost: AtomicU64::new(0) })
    }

    fn say(&self, text: &str) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let before = if lost > 0 {
            format!("holdfast: {lost} lines are missing here: nobody read them\n")
        } else {
            String::new()
        };
        if self.sender.try_send(Line::Text(format!("{before}holdfast: {text}\n"))).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }

    /// Queues a line. Returns the number of lines before it that were lost, if they have
    /// not been reported yet.
    pub(super) fn write(&self, line: String) -> u64 {
        if self.sender.try_send(Line::Text(line)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return 0;
        }
        self.lost.swap(0, Ordering::Relaxed)
    }

    /// Waits until what is queued has been written, if that is soon.
    pub(super) fn finish(&self) {
        self.finish_within(TIMEOUT);
    }

    fn finish_within(&self, within: Duration) {
        let (done, is_done) = channel();
        if self.sender.try_send(Line::Mark(done)).is_ok() {
            let _ = is_done.recv_timeout(within);
        }
    }
}

/// Starts a thread that writes this process's lines.
pub(super) fn begin() -> io::Result<()> {
    let _ = OWN.set(Lines::to(io::stderr())?);
    Ok(())
}

/// Writes the queued lines at the end of the process, if they are read in time.
pub(super) fn finish() {
    if let Some(lines) = OWN.get() {
        lines.finish();
    }
}

/// A line for the operator.
pub(super) fn say(text: &str) {
    match OWN.get() {
        Some(lines) => lines.say(text),
        // A reader that has gone is no failure.
        None => drop(writeln!(io::stderr(), "holdfast: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Receiver;

    /// A pipe that shows what is written to it, and takes it when it is told to.
    struct Pipe {
        out: Sender<String>,
        may: Receiver<()>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.out.send(String::from_utf8_lossy(bytes).into_owned());
            self.may.recv().map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// While the reader is stuck, the process says ten times as many lines as the queue
    /// holds. The writer never blocks. Once the queue has room, the number of lost lines
    /// is reported.
    #[test]
    fn a_reader_that_stops_holds_nobody_up() {
        let (let_go, may) = channel();
        let (out, read) = channel();
        let lines = Lines::to(Pipe { out, may }).unwrap();
        lines.say("0");
        assert_eq!(read.recv().unwrap(), "holdfast: 0\n");
        (1..=10 * WAITING).for_each(|number| lines.say(&number.to_string()));
        lines.finish_within(Duration::ZERO);
        for number in 1..=WAITING {
            let_go.send(()).unwrap();
            assert_eq!(read.recv().unwrap(), format!("holdfast: {number}\n"));
        }
        lines.say("there");
        let_go.send(()).unwrap();
        let lost = 9 * WAITING;
        assert_eq!(
            read.recv().unwrap(),
            format!("holdfast: {lost} lines are missing here: nobody read them\nholdfast: there\n")
        );
        let_go.send(()).unwrap();
        lines.finish();
    }
}
