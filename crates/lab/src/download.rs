//! Downloads by curl, whose bytes are hashed as they arrive.

use super::namespace::Namespace;
use super::nginx::Sum;
use super::wait::{Interrupt, until};
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The signal that ends a download early.
const STOP: Signal = Signal::TERM;

/// The parameters of a download.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The URL to fetch, without a query.
    pub url: String,
    /// Pace of the server and curl's `--limit-rate`, in bytes per second; `None` for full
    /// speed.
    ///
    /// curl alone reads up to a hundred buffers before it looks at its limit, and bytes
    /// that a fast server has sent already wait in the client's socket. The server's pace
    /// keeps the bytes on the way.
    pub bytes_per_second: Option<u64>,
    /// Give up after this long without a byte.
    pub stalled_after: Duration,
}

/// A running curl. Dropping it kills it.
#[derive(Debug)]
pub struct Download {
    child: Child,
    received: Arc<AtomicU64>,
    started: Instant,
    body: Option<JoinHandle<std::io::Result<(Sum, Instant)>>>,
    errors: Option<JoinHandle<String>>,
}

/// How a download ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Bytes of the body that arrived.
    pub bytes: u64,
    /// SHA-256 sum of those bytes.
    pub sum: Sum,
    /// From the start to the last byte.
    pub seconds: f64,
    /// The error that curl printed; `None` if it ended well.
    pub error: Option<String>,
}

impl Download {
    /// Starts the download inside `namespace`.
    pub fn start(namespace: &Namespace, plan: &Plan) -> Result<Download> {
        let mut command = namespace.command("curl");
        let stalled = plan.stalled_after.as_secs().max(1).to_string();
        command.args([
            "--silent",
            "--show-error",
            "--fail",
            "--no-buffer",
            "--connect-timeout",
            &stalled,
            "--max-time",
            "300",
        ]);
        command.args(["--speed-limit", "1", "--speed-time", &stalled, "--noproxy", "*"]);
        match plan.bytes_per_second {
            Some(rate) => command
                .args(["--limit-rate", &rate.to_string()])
                .arg(format!("{}?rate={rate}", plan.url)),
            None => command.arg(&plan.url),
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn().context("starting curl")?;
        let received = Arc::new(AtomicU64::new(0));
        let (mut output, counter) =
            (child.stdout.take().context("curl's output")?, Arc::clone(&received));
        let body = std::thread::spawn(move || {
            let (mut hasher, mut block) = (Sha256::new(), vec![0_u8; 1 << 16]);
            let mut last = Instant::now();
            loop {
                let read = output.read(&mut block)?;
                if read == 0 {
                    return Ok((hasher.finalize().into(), last));
                }
                last = Instant::now();
                hasher.update(&block[..read]);
                counter.fetch_add(read as u64, Ordering::Relaxed);
            }
        });
        let mut complaints = child.stderr.take().context("curl's errors")?;
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = complaints.read_to_end(&mut text);
            String::from_utf8_lossy(&text).trim().to_owned()
        });
        Ok(Download { child, received, started, body: Some(body), errors: Some(errors) })
    }

    /// Bytes of the body so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// True if curl has ended.
    pub fn is_over(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("watching curl")?.is_some())
    }

    /// Ends the download early. Bytes that curl had not passed on yet are missing; bytes
    /// that have arrived are counted.
    pub fn stop(self, limit: Duration, interrupt: &Interrupt) -> Result<Outcome> {
        self.signal(STOP);
        self.finish(limit, interrupt)
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            // The process may have ended already.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Waits for the end of the download.
    pub fn finish(mut self, limit: Duration, interrupt: &Interrupt) -> Result<Outcome> {
        let status = until("a download ends", limit, interrupt, || {
            self.child.try_wait().context("watching curl")
        })?;
        let body = self.body.take().map(|thread| thread.join().expect("the reader does not panic"));
        let (sum, last) = body.expect("joined once").context("reading curl's output")?;
        let errors = self
            .errors
            .take()
            .map(|thread| thread.join().expect("the reader does not panic"))
            .unwrap_or_default();
        let error = if status.success() || status.signal() == Some(STOP.as_raw()) {
            None
        } else if errors.is_empty() {
            Some(format!("curl: {status}"))
        } else {
            Some(errors)
        };
        Ok(Outcome {
            bytes: self.received(),
            sum,
            seconds: last.saturating_duration_since(self.started).as_secs_f64(),
            error,
        })
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}
