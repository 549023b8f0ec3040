//! The client of a box, whatever the connection.

use crate::api::control_client::ControlClient;
use crate::api::*;
use crate::connection::{ANSWER, Door, Target};
use crate::endpoint::Endpoint;
use crate::exit::{self, Failure};
use crate::tls::TlsPaths;
use crate::{BUSY, FLOWS_PER_ANSWER, MAX_ANSWER, MAX_FILE};
use std::fmt;
use std::future::Future;
use std::path::{Component, Path};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tonic::Streaming;
use tonic::transport::Channel;

/// Maximum number of bytes of the answer to a host that joins: a configuration and some
/// files.
const MAX_JOIN: usize = 2 * MAX_FILE;
/// Time between two questions about a drain's progress.
const LOOK: Duration = Duration::from_millis(50);

/// A client of one box.
#[derive(Clone)]
pub struct Client(Arc<Asking>);

struct Asking {
    door: Door,
    runtime: Runtime,
    /// The kept connection, over TLS only. A socket is opened anew for each call, so that
    /// an idle client takes no place, and reaches the box's next manager too.
    api: OnceLock<ControlClient<Channel>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.0.door).finish()
    }
}

/// Work that a box has begun.
pub struct Work {
    client: Client,
    stream: Streaming<Progress>,
}

impl Work {
    /// The next change of its progress.
    ///
    /// # Errors
    /// If the box does not answer any more, or refuses.
    pub fn progress(&mut self) -> Result<Progress, Failure> {
        let client = &self.client.0;
        // An order has no time-out; the connection's pings tell if the box is alive.
        let told = client
            .runtime
            .block_on(self.stream.message())
            .map_err(|status| client.door.refusal(&status))?;
        told.ok_or_else(|| {
            Failure::new(
                exit::UNAVAILABLE,
                "the box stopped telling how far it is: `holdfast status` shows it",
            )
        })
    }

    /// Waits until the work is done; `each` gets every progress on the way.
    ///
    /// # Errors
    /// As [`Work::progress`].
    pub fn watch(mut self, mut each: impl FnMut(&Progress)) -> Result<Progress, Failure> {
        loop {
            let progress = self.progress()?;
            each(&progress);
            if progress.done {
                return Ok(progress);
            }
        }
    }
}

impl Client {
    /// A client of the box that listens at `path`; if `None`, of the only one on this
    /// machine.
    ///
    /// # Errors
    /// If there is no box, or more than one.
    pub fn new(path: Option<&Path>) -> Result<Client, Failure> {
        Client::at(Door::socket(path)?)
    }

    /// A client of the target's box.
    ///
    /// # Errors
    /// If the target is no box.
    pub fn to(target: &Target) -> Result<Client, Failure> {
        Client::at(target.door()?)
    }

    /// Makes a client, which connects with its first call.
    fn at(door: Door) -> Result<Client, Failure> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime
            .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("a client: {error}")))?;
        Ok(Client(Arc::new(Asking { door, runtime, api: OnceLock::new() })))
    }

    fn api(&self) -> Result<ControlClient<Channel>, Failure> {
        let Asking { door, runtime, api } = &*self.0;
        if let Some(api) = api.get() {
            return Ok(api.clone());
        }
        let channel = runtime.block_on(door.channel())?;
        let new = ControlClient::new(channel).max_decoding_message_size(MAX_ANSWER);
        match door {
            Door::Socket(_) => Ok(new),
            Door::Api { .. } => Ok(api.get_or_init(|| new).clone()),
        }
    }

    /// Waits for an answer within the time-out.
    fn wait<T>(
        &self,
        answer: impl Future<Output = Result<T, tonic::Status>>,
    ) -> Result<T, Failure> {
        self.wait_for(ANSWER, answer)
    }

    fn wait_for<T>(
        &self,
        timeout: Duration,
        answer: impl Future<Output = Result<T, tonic::Status>>,
    ) -> Result<T, Failure> {
        let Asking { door, runtime, .. } = &*self.0;
        let answered = runtime.block_on(async { tokio::time::timeout(timeout, answer).await });
        answered.map_err(|_| door.late())?.map_err(|status| door.refusal(&status))
    }

    fn broken(&self, what: &str) -> Failure {
        self.0.door.broken(what)
    }

    /// Checks that the packet loop is alive.
    ///
    /// # Errors
    /// If no box answers in time, or it refuses.
    pub fn ping(&self) -> Result<PingReply, Failure> {
        let mut api = self.api()?;
        self.wait(api.ping(PingRequest {})).map(tonic::Response::into_inner)
    }

    /// The box's status.
    ///
    /// # Errors
    /// As [`Client::ping`].
    pub fn status(&self) -> Result<Status, Failure> {
        let mut api = self.api()?;
        self.wait(api.get_status(GetStatusRequest {})).map(tonic::Response::into_inner)
    }

    /// Moves flows between runtimes.
    ///
    /// # Errors
    /// As [`Client::ping`].
    pub fn migrate(&self, request: MigrateRequest) -> Result<Work, Failure> {
        let mut api = self.api()?;
        let stream = self.wait(api.migrate(request))?.into_inner();
        Ok(Work { client: self.clone(), stream })
    }

    /// Takes a runtime out of service; with `force` even if flows would not survive a
    /// failure without the runtime.
    ///
    /// # Errors
    /// As [`Client::ping`].
    pub fn drain(&self, runtime: u32, force: bool) -> Result<Work, Failure> {
        let mut api = self.api()?;
        let stream = self.wait(api.drain(DrainRequest { runtime, force }))?.into_inner();
        Ok(Work { client: self.clone(), stream })
    }

    /// The progress of work that was begun before.
    ///
    /// # Errors
    /// As [`Client::ping`].
    pub fn progress_of(&self, what: get_progress_request::What) -> Result<Progress, Failure> {
        let mut api = self.api()?;
        self.wait(api.get_progress(GetProgressRequest { what: Some(what) }))
            .map(tonic::Response::into_inner)
    }

    /// Waits until a drain that was begun before is over; `each` gets every state on the
    /// way. The client asks now and then: however many drains there are, they take one
    /// place at the box.
    ///
    /// # Errors
    /// As [`Client::ping`]; a box that is too busy to answer is asked again for [`BUSY`].
    pub fn watch_drain(
        &self,
        runtime: u32,
        mut each: impl FnMut(&Progress),
    ) -> Result<Progress, Failure> {
        let mut answered_at = Instant::now();
        loop {
            match self.progress_of(get_progress_request::What::Drained(runtime)) {
                Ok(progress) => {
                    each(&progress);
                    if progress.done {
                        return Ok(progress);
                    }
                    answered_at = Instant::now();
                }
                Err(failure) if failure.code != exit::TIMEOUT || answered_at.elapsed() > BUSY => {
                    return Err(failure);
                }
                Err(_) => {}
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Begins to bring a drained runtime back.
    ///
    /// # Errors
    /// As [`Client::ping`].
    pub fn restore(&self, runtime: u32) -> Result<(), Failure> {
        let mut api = self.api()?;
        let begun = self.wait(async {
            let mut stream = api.restore(RestoreRequest { runtime }).await?.into_inner();
            stream.message().await
        });
        begun.map(drop)
    }

    /// Applies another configuration, all of it or nothing; with `dry_run` only shows
    /// what would change.
    ///
    /// # Errors
    /// As [`Client::ping`]. A configuration that cannot be applied is an answer.
    pub fn apply(
        &self,
        file: String,
        text: String,
        dry_run: bool,
    ) -> Result<apply_reply::Result, Failure> {
        let mut api = self.api()?;
        let reply = self.wait(api.apply(ApplyRequest { file, text, dry_run }))?.into_inner();
        reply.result.ok_or_else(|| self.broken("its answer says nothing"))
    }

    /// Ends the box's part on this host. Returns the process that is stopping.
    ///
    /// # Errors
    /// As [`Client::ping`].
    pub fn stop(&self) -> Result<u32, Failure> {
        let mut api = self.api()?;
        self.wait(api.stop(StopRequest {})).map(|reply| reply.into_inner().pid)
    }

    /// Lists up to `limit` flows that match a selector; `take` gets them in batches, and
    /// may be slow. Returns true if there are, or may be, more. [`ListFlowsReply`] says
    /// what a list guarantees.
    ///
    /// # Errors
    /// As [`Client::ping`], and the error of `take`.
    pub fn flows(
        &self,
        filter: &str,
        limit: u32,
        mut take: impl FnMut(Vec<Flow>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let (mut left, mut after) = (limit, Vec::new());
        loop {
            // A piece of the list, in messages. The API cannot ask for zero flows; a
            // caller with limit 0 wants to know if there are any.
            let wanted = left.clamp(1, FLOWS_PER_ANSWER);
            let request = ListFlowsRequest { filter: filter.to_owned(), limit: wanted, after };
            let mut api = self.api()?;
            let (mut flows, mut truncated, mut next) = (Vec::new(), false, Vec::new());
            let mut stream = self.wait(api.list_flows(request))?.into_inner();
            while let Some(reply) = self.wait(stream.message())? {
                (truncated, next) = (reply.truncated, reply.next);
                flows.extend(reply.flows);
            }
            if limit == 0 {
                return Ok(truncated || !flows.is_empty());
            }
            left = left.saturating_sub(flows.len() as u32);
            take(flows)?;
            if left == 0 || next.is_empty() {
                return Ok(truncated);
            }
            after = next;
        }
    }

    /// All flows of [`Client::flows`] in one list.
    ///
    /// # Errors
    /// As [`Client::flows`].
    pub fn list(&self, filter: &str, limit: u32) -> Result<ListFlowsReply, Failure> {
        let mut all = Vec::new();
        let truncated = self.flows(filter, limit, |flows| {
            all.extend(flows);
            Ok(())
        })?;
        Ok(ListFlowsReply { flows: all, truncated, next: Vec::new() })
    }

    /// Traces packets; `step` gets every step as it comes. Returns the number of packets
    /// seen.
    ///
    /// # Errors
    /// As [`Client::ping`], and the error of `step`.
    pub fn trace(
        &self,
        selector: String,
        count: u32,
        wait: Duration,
        mut step: impl FnMut(&TraceStep) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let mut api = self.api()?;
        let wait_ms = wait.as_millis().min(u128::from(u64::MAX)) as u64;
        let mut stream =
            self.wait(api.trace(TraceRequest { selector, count, wait_ms }))?.into_inner();
        loop {
            let reply = self.wait_for(wait.saturating_add(ANSWER), stream.message())?;
            match reply.and_then(|reply| reply.event) {
                Some(trace_reply::Event::Step(seen)) => step(&seen)?,
                Some(trace_reply::Event::Done(TraceDone { packets })) => return Ok(packets),
                None => return Err(self.broken("it stopped in the middle of a trace")),
            }
        }
    }
}

/// The files for a host that joins.
pub struct Fetched {
    /// The cluster's name.
    pub cluster: String,
    /// The configuration.
    pub text: String,
    /// The files that it names: relative path, and contents.
    pub files: Vec<(String, zeroize::Zeroizing<Vec<u8>>)>,
}

/// Fetches the files for the host of this name from a running host.
///
/// # Errors
/// If no host answers at the address, or it refuses.
pub fn fetch(endpoint: Endpoint, tls: TlsPaths, host: &str) -> Result<Fetched, Failure> {
    let from = endpoint.to_string();
    let client = Client::at(Door::Api { endpoint, tls })?;
    let mut api = client.api()?.max_decoding_message_size(MAX_JOIN);
    let JoinReply { cluster, text, files } =
        client.wait(api.join(JoinRequest { host: host.to_owned() }))?.into_inner();
    let mut kept = Vec::with_capacity(files.len());
    for File { path, contents } in files {
        let contents = zeroize::Zeroizing::new(contents);
        if !is_inside(&path) {
            let text = format!("{from} sends a file that would lie outside the state directory");
            return Err(Failure::new(exit::CONFIGURATION, text));
        }
        kept.push((path, contents));
    }
    Ok(Fetched { cluster, text, files: kept })
}

/// True for a path that stays inside its directory: a joining host writes files there.
pub fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::is_inside;

    #[test]
    fn a_path_that_leaves_the_directory_does_not_go_along() {
        for (path, expected) in [
            ("cluster.key", true),
            ("tls/etcd-ca.pem", true),
            ("", false),
            ("/etc/key", false),
            ("../key", false),
            ("a/../../key", false),
            (".", false),
        ] {
            assert_eq!(is_inside(path), expected, "{path}");
        }
    }
}
