//! The commands' half of the control socket.

use super::{Call, Line, MAX_ANSWER, PATIENCE, VERSION, check_path};
use crate::exit::{self, Failure};
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The answer, if it is no refusal.
///
/// # Errors
/// What the box says is wrong, with its exit code.
pub fn agreed(answer: Value) -> Result<Value, Failure> {
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => {
            let code = answer.get("code").and_then(Value::as_u64).and_then(|code| u8::try_from(code).ok());
            Err(Failure::new(code.unwrap_or(exit::NEGATIVE), error.to_owned()))
        }
        None => Ok(answer),
    }
}

/// Asks one box.
#[derive(Debug, Clone)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// Of the box that listens at `path`; without it, of the only one on this machine.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub fn new(path: Option<&Path>) -> Result<Client, Failure> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => super::find()?,
        };
        check_path(&path)?;
        Ok(Client { path })
    }

    /// Asks for one answer.
    ///
    /// # Errors
    /// If no box answers in time, or it refuses.
    pub fn ask(&self, call: Call) -> Result<Value, Failure> {
        agreed(self.ask_for_either(call)?)
    }

    /// As [`Client::ask`], but a refusal is an answer too: it has an `error`. See [`agreed`].
    ///
    /// # Errors
    /// If no box answers in time.
    pub fn ask_for_either(&self, call: Call) -> Result<Value, Failure> {
        let mut reader = self.send(call, PATIENCE * 3)?;
        self.receive(&mut reader)?.ok_or_else(|| self.broken("it closed the connection"))
    }

    /// Traces packets; `step` is given every step as it comes. How many packets were seen.
    ///
    /// # Errors
    /// As [`Client::ask`], and what `step` says.
    pub fn trace(
        &self,
        selector: String,
        count: u32,
        wait: Duration,
        mut step: impl FnMut(&Value) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let call = Call::Trace { selector, count, wait_ms: wait.as_millis().min(u128::from(u64::MAX)) as u64 };
        let mut reader = self.send(call, wait.saturating_add(PATIENCE * 3))?;
        loop {
            let answer = self.receive(&mut reader)?.ok_or_else(|| self.broken("it stopped in the middle of a trace"))?;
            let answer = agreed(answer)?;
            if answer.get("done").is_some() {
                return Ok(answer["packets"].as_u64().unwrap_or(0));
            }
            step(&answer["step"])?;
        }
    }

    fn send(&self, call: Call, patience: Duration) -> Result<BufReader<UnixStream>, Failure> {
        let mut stream = UnixStream::connect(&self.path).map_err(|error| self.failure(&error))?;
        stream.set_read_timeout(Some(patience)).map_err(|error| self.failure(&error))?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(|error| self.failure(&error))?;
        let line =
            serde_json::to_string(&Line { version: VERSION, request: call }).map_err(|error| self.broken(&error.to_string()))?;
        // A box that has no seat free answers without reading, and closes: what it said is still there to be read.
        match writeln!(stream, "{line}") {
            Err(error) if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                Err(self.failure(&error))
            }
            _ => Ok(BufReader::new(stream)),
        }
    }

    fn receive(&self, reader: &mut BufReader<UnixStream>) -> Result<Option<Value>, Failure> {
        let mut line = Vec::new();
        let count = reader.take(MAX_ANSWER as u64).read_until(b'\n', &mut line).map_err(|error| self.failure(&error))?;
        if count == 0 {
            return Ok(None);
        }
        serde_json::from_slice(&line).map(Some).map_err(|_| self.broken("its answer is no JSON"))
    }

    fn broken(&self, what: &str) -> Failure {
        Failure::new(exit::UNAVAILABLE, format!("the box at {}: {what}", self.path.display()))
    }

    fn failure(&self, error: &std::io::Error) -> Failure {
        let path = self.path.display();
        match error.kind() {
            ErrorKind::PermissionDenied => {
                Failure::new(exit::PERMISSION, format!("{path}: only the user who started the box may ask it: use sudo"))
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                Failure::new(exit::TIMEOUT, format!("{path}: the box does not answer"))
            }
            ErrorKind::NotFound => Failure::new(exit::UNAVAILABLE, format!("no box is running with the control socket {path}")),
            ErrorKind::ConnectionRefused => {
                Failure::new(exit::UNAVAILABLE, format!("{path}: the box that listened here has ended"))
            }
            _ => Failure::new(exit::UNAVAILABLE, format!("no box answers at {path}: {error}")),
        }
    }
}
