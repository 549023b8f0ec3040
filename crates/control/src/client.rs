//! The commands' half: one client for both doors, and the local socket's side of it.

use crate::exit::{self, Failure};
use crate::flows::{self, Flow, Flows};
use crate::moves::Progress;
use crate::remote::{Endpoint, RemoteClient, Streamed};
use crate::tls::TlsPaths;
use crate::{BUSY, Call, Line, MAX_ANSWER, PATIENCE, VERSION, check_path, find};
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two questions how far something is.
const LOOK: Duration = Duration::from_millis(20);

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

/// Which box is meant, and who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Target {
    /// The control socket's path, or `https://` and the place of a control API. Without it, the only box on this machine.
    pub control: Option<String>,
    /// The certificate with which a control API is asked.
    pub tls: Option<TlsPaths>,
}

impl Target {
    /// The box that listens at a path.
    pub fn local(path: &Path) -> Target {
        Target { control: Some(path.display().to_string()), tls: None }
    }

    /// The path, where nothing else can be meant.
    ///
    /// # Errors
    /// If a control API is meant.
    pub fn path(&self) -> Result<Option<PathBuf>, Failure> {
        match self.control.as_deref() {
            Some(url) if url.contains("://") => {
                Err(Failure::new(exit::USAGE, format!("`--control {url}`: this takes the path of the control socket")))
            }
            control => Ok(control.map(PathBuf::from)),
        }
    }

    fn remote(&self) -> Result<Option<(Endpoint, TlsPaths)>, Failure> {
        let usage = |text: String| Failure::new(exit::USAGE, text);
        let Some((scheme, place)) = self.control.as_deref().and_then(|control| control.split_once("://")) else {
            return match &self.tls {
                Some(_) => Err(usage("`--tls` is for a control API: `--control https://ADDRESS:PORT` says which".to_owned())),
                None => Ok(None),
            };
        };
        if scheme != "https" {
            return Err(usage(format!(
                "`--control {scheme}://…`: the control API is asked with certificates, `https://ADDRESS:PORT`"
            )));
        }
        let endpoint = place.strip_suffix('/').unwrap_or(place).parse().map_err(usage)?;
        let tls = self.tls.clone().ok_or_else(|| {
            usage("`--control https://…` needs `--tls DIR`, your certificate: `holdfast certify` makes one".to_owned())
        })?;
        Ok(Some((endpoint, tls)))
    }
}

/// Asks one box.
#[derive(Debug, Clone)]
pub struct Client(Door);

#[derive(Debug, Clone)]
enum Door {
    Local(Local),
    Remote(Arc<RemoteClient>),
}

/// The box's control socket.
#[derive(Debug, Clone)]
struct Local {
    path: PathBuf,
}

/// What a box has begun and is not done with.
pub struct Work(Way);

enum Way {
    /// The client polls the box for progress. `has_begun` is false while a box that timed
    /// out has not confirmed the start.
    Asked { local: Local, call: Call, has_begun: bool },
    /// The box streams its progress.
    Told(Box<Streamed>),
}

impl Work {
    /// Waits until it is done; `each` is given every state on the way.
    ///
    /// # Errors
    /// If the box answers no more, or refuses.
    pub fn watch(mut self, mut each: impl FnMut(&Progress)) -> Result<Progress, Failure> {
        let mut answered_at = Instant::now();
        loop {
            let answer = match &mut self.0 {
                Way::Asked { local, call, has_begun } => match local.ask(call.clone()).and_then(agreed) {
                    // A failed poll does not stop the move or drain, which most often is
                    // what keeps the box busy. A box that has not begun a drain yet
                    // answers that it knows of none.
                    Err(failure)
                        if answered_at.elapsed() < BUSY
                            && (failure.code == exit::TIMEOUT || failure.code == exit::NEGATIVE && !*has_begun) =>
                    {
                        std::thread::sleep(LOOK);
                        continue;
                    }
                    answer => {
                        (*has_begun, answered_at) = (true, Instant::now());
                        answer?
                    }
                },
                Way::Told(streamed) => streamed.next()?.ok_or_else(|| {
                    Failure::new(exit::UNAVAILABLE, "the box stopped telling how far it is: `holdfast status` shows it")
                })?,
            };
            let progress: Progress = serde_json::from_value(answer)
                .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("the box's answer is of another version: {error}")))?;
            each(&progress);
            if progress.done {
                return Ok(progress);
            }
            if let Way::Asked { .. } = self.0 {
                std::thread::sleep(LOOK);
            }
        }
    }
}

impl Client {
    /// Of the box that listens at `path`; without it, of the only one on this machine.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub fn new(path: Option<&Path>) -> Result<Client, Failure> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => find()?,
        };
        check_path(&path)?;
        Ok(Client(Door::Local(Local { path })))
    }

    /// Of the box that is meant.
    ///
    /// # Errors
    /// If that is none.
    pub fn to(target: &Target) -> Result<Client, Failure> {
        match target.remote()? {
            Some((endpoint, tls)) => Ok(Client(Door::Remote(Arc::new(RemoteClient::new(endpoint, tls)?)))),
            None => Client::new(target.control.as_deref().map(Path::new)),
        }
    }

    /// Asks for one answer.
    ///
    /// # Errors
    /// If no box answers in time, or it refuses.
    pub fn ask(&self, call: Call) -> Result<Value, Failure> {
        agreed(self.ask_for_either(call)?)
    }

    /// As [`Client::ask`], but a refusal is an answer too: it has an `error`. See [`agreed`]. A control API answers so only where more is to be said than what is
    /// wrong ([`Call::Apply`]).
    ///
    /// # Errors
    /// If no box answers in time.
    pub fn ask_for_either(&self, call: Call) -> Result<Value, Failure> {
        match &self.0 {
            Door::Local(local) => local.ask(call),
            Door::Remote(remote) => remote.ask(call),
        }
    }

    /// Begins what takes its time: [`Call::Move`], [`Call::Drain`].
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn begin(&self, call: Call) -> Result<Work, Failure> {
        let local = match &self.0 {
            Door::Local(local) => local,
            Door::Remote(remote) => return Ok(Work(Way::Told(Box::new(remote.begin(call)?)))),
        };
        let answer = local.ask(call.clone()).and_then(agreed);
        if let (Call::Drain { runtime, .. }, Err(failure)) = (&call, &answer)
            && failure.code == exit::TIMEOUT
        {
            let call = Call::Draining { runtime: *runtime };
            return Ok(Work(Way::Asked { local: local.clone(), call, has_begun: false }));
        }
        let answer = answer?;
        let watched = match call {
            Call::Drain { runtime, .. } => Call::Draining { runtime },
            _ => {
                let order = answer["order"].as_u64().and_then(|order| u32::try_from(order).ok());
                let order = order.ok_or_else(|| Failure::new(exit::UNAVAILABLE, "the box's answer is of another version"))?;
                Call::Moving { order }
            }
        };
        Ok(Work(Way::Asked { local: local.clone(), call: watched, has_begun: true }))
    }

    /// Lists up to `limit` flows that match a selector; `take` gets them in batches.
    /// Returns true if there are, or may be, more. [`Flows`] says what a list guarantees.
    ///
    /// # Errors
    /// As [`Client::ask`], and what `take` says.
    pub fn flows(
        &self,
        filter: &str,
        limit: u32,
        mut take: impl FnMut(Vec<Flow>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let local = match &self.0 {
            Door::Local(local) => local,
            Door::Remote(remote) => return remote.flows(filter, limit, &mut take),
        };
        let (mut left, mut after) = (limit, None);
        loop {
            let answer = agreed(local.ask(Call::Flows { filter: filter.to_owned(), limit: left, after })?)?;
            let list: Flows = serde_json::from_value(answer).map_err(|error| local.broken(&error.to_string()))?;
            left = left.saturating_sub(list.flows.len() as u32);
            take(list.flows)?;
            if left == 0 || list.next.is_none() {
                return Ok(list.truncated);
            }
            after = list.next;
        }
    }

    /// All that [`Client::flows`] gives.
    ///
    /// # Errors
    /// As there.
    pub fn list(&self, filter: &str, limit: u32) -> Result<Flows, Failure> {
        let mut all = Vec::new();
        let truncated = self.flows(filter, limit, |flows| {
            all.extend(flows);
            Ok(())
        })?;
        Ok(Flows { version: flows::VERSION, flows: all, truncated, next: None })
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
        match &self.0 {
            Door::Local(local) => local.trace(selector, count, wait, &mut step),
            Door::Remote(remote) => remote.trace(selector, count, wait, &mut step),
        }
    }
}

impl Local {
    fn ask(&self, call: Call) -> Result<Value, Failure> {
        let mut reader = self.send(call, PATIENCE * 3)?;
        self.receive(&mut reader)?.ok_or_else(|| self.broken("it closed the connection"))
    }

    fn trace(
        &self,
        selector: String,
        count: u32,
        wait: Duration,
        step: &mut dyn FnMut(&Value) -> Result<(), Failure>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::net::UnixListener;

    /// A box that drains many flows is too busy to confirm the start in time, and later
    /// to report its progress. The client sends the drain once and polls until the box
    /// answers.
    #[test]
    fn who_watches_a_busy_box_waits() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("box.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let late = json!({ "version": VERSION, "error": "the box did not answer in time", "code": exit::TIMEOUT });
        let unknown = json!({ "version": VERSION, "error": "nobody has drained that runtime" });
        let progress = |moved: u64, done: bool| json!({ "version": VERSION, "runtime": 16, "moved": moved, "refused": 0, "had": 600_000, "done": done, "failed": false, "took_us": 1 });
        let answers = [late.clone(), late.clone(), unknown, progress(1, false), late, progress(600_000, true)];
        let answering = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for (answer, stream) in answers.iter().zip(listener.incoming().flatten()) {
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                asked.push(serde_json::from_str::<Line>(&line).unwrap().request);
                writeln!(&mut &stream, "{answer}").unwrap();
            }
            asked
        });
        let client = Client::new(Some(&path)).unwrap();
        let mut seen = Vec::new();
        let done =
            client.begin(Call::Drain { runtime: 16, force: false }).and_then(|work| work.watch(|now| seen.push(now.moved)));
        assert_eq!((done.map(|done| done.moved).ok(), seen), (Some(600_000), vec![1, 600_000]));
        let asked = answering.join().unwrap();
        assert_eq!(asked[0], Call::Drain { runtime: 16, force: false });
        assert!(asked[1..].iter().all(|call| *call == Call::Draining { runtime: 16 }), "it is asked for once");
    }
}
