//! The commands' half of the control API.
//!
//! One connection per command. It is made before the first call, and so that every way in which it may fail is known for what it is: the box shows that it takes the
//! client's certificate with its first frame, which is waited for.

use super::api::control_client::ControlClient;
use super::api::*;
use super::convert;
use super::endpoint::Endpoint;
use crate::exit::{self, Failure};
use crate::flows::Flow;
use crate::tls::{Identity, TlsPaths};
use crate::{BUSY, Call, MAX_ANSWER, MAX_FILE, PATIENCE, VERSION};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError};
use serde_json::{Value, json};
use std::fmt;
use std::future::Future;
use std::io::ErrorKind;
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Streaming};

/// Longest answer of the box to a client that may be slow to take it.
const ANSWER: Duration = Duration::from_secs(15);
/// A host's answer to one that joins has at most so many bytes: a configuration and some files.
const MAX_JOIN: usize = 2 * MAX_FILE;

/// See [`connect_tls`].
pub type TlsConnection = BufReader<TlsStream<TcpStream>>;

/// Asks one box from elsewhere.
pub(crate) struct RemoteClient {
    endpoint: Endpoint,
    tls: TlsPaths,
    runtime: Runtime,
    api: OnceLock<ControlClient<Channel>>,
}

impl fmt::Debug for RemoteClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteClient").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// How far an order is, message by message.
pub(crate) struct Streamed {
    client: Arc<RemoteClient>,
    stream: Streaming<Progress>,
    first: Option<Progress>,
}

impl Streamed {
    /// The next message; none when nothing follows.
    pub(crate) fn next(&mut self) -> Result<Option<Value>, Failure> {
        let progress = match self.first.take() {
            Some(first) => Some(first),
            // An order takes as long as it takes; whether the box is alive the connection's pings tell.
            None => self.client.runtime.block_on(self.stream.message()).map_err(|status| self.client.refusal(&status))?,
        };
        Ok(progress.map(|progress| convert::object(&progress)))
    }
}

/// A connection with TLS over which the server has said its first word.
///
/// # Errors
/// The system's error; an error of rustls is inside one of the kind that the system has.
pub async fn connect_tls(host: &str, port: u16, tls: Arc<rustls::ClientConfig>) -> std::io::Result<TlsConnection> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(TlsConnector::from(tls).connect(name, stream).await?);
    // TLS 1.3 ends for the client before the server has looked at its certificate.
    if stream.fill_buf().await?.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(stream)
}

/// A channel over a connection that is there already. Where it is lost the channel makes no other.
///
/// # Errors
/// The handshake of HTTP/2 has failed.
pub async fn channel_over<S>(stream: S, channel: tonic::transport::Endpoint) -> Result<Channel, tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stream = Arc::new(Mutex::new(Some(stream)));
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        let taken = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        std::future::ready(taken.map(TokioIo::new).ok_or_else(|| std::io::Error::other("the connection is lost")))
    });
    channel.connect_with_connector(connector).await
}

impl RemoteClient {
    /// Of the box there, with a certificate.
    ///
    /// # Errors
    /// What the system says. The files and the box are looked at with the first call.
    pub(crate) fn new(endpoint: Endpoint, tls: TlsPaths) -> Result<RemoteClient, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|error| Failure::new(exit::UNAVAILABLE, format!("a client of {endpoint}: {error}")))?;
        Ok(RemoteClient { endpoint, tls, runtime, api: OnceLock::new() })
    }

    fn late(&self) -> Failure {
        Failure::new(exit::TIMEOUT, format!("{}: the box does not answer", self.endpoint))
    }

    fn broken(&self, what: &str) -> Failure {
        Failure::new(exit::UNAVAILABLE, format!("the box at {}: {what}", self.endpoint))
    }

    /// What the box says is wrong, with the exit code that the local socket's answer would have.
    fn refusal(&self, status: &tonic::Status) -> Failure {
        let text = status.message();
        match status.code() {
            Code::PermissionDenied | Code::Unauthenticated => {
                Failure::new(exit::PERMISSION, format!("{}: {text}", self.endpoint))
            }
            Code::DeadlineExceeded => Failure::new(exit::TIMEOUT, format!("{}: {text}", self.endpoint)),
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => Failure::new(exit::NEGATIVE, text.to_owned()),
            // It has no time for this call now.
            Code::ResourceExhausted => Failure::new(exit::TIMEOUT, format!("{}: {text}", self.endpoint)),
            Code::Unimplemented => self.broken("it is of another version, and does not know this call"),
            _ => self.broken(text),
        }
    }

    /// Why there is no connection.
    fn failure(&self, error: &std::io::Error) -> Failure {
        let place = &self.endpoint;
        if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return self.tls_failure(error);
        }
        match error.kind() {
            ErrorKind::TimedOut => self.late(),
            ErrorKind::ConnectionRefused => Failure::new(
                exit::UNAVAILABLE,
                format!("nobody listens at {place}: is the box running, with `control:` in its configuration?"),
            ),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                self.broken("it closed the connection: it may have too many clients; try again")
            }
            _ => Failure::new(exit::UNAVAILABLE, format!("no box answers at {place}: {error}")),
        }
    }

    fn tls_failure(&self, error: &rustls::Error) -> Failure {
        let place = &self.endpoint;
        let denied = |text: String| Failure::new(exit::PERMISSION, text);
        match error {
            rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => denied(format!(
                "{place}: the certificate there is not for `{host}`: ask by a name or address that it is for, or make one with `holdfast certify DIR NAME={host}`",
                host = self.endpoint.host
            )),
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => denied(format!(
                "{place}: the certificate there is not signed by the authority in `{}`: it is another cluster, or somebody in between",
                self.tls.ca.display()
            )),
            rustls::Error::InvalidCertificate(error) => denied(format!("{place}: the certificate there is refused: {error}")),
            rustls::Error::AlertReceived(alert) => {
                let why = match alert {
                    AlertDescription::UnknownCA => "it is not signed by the authority that the box trusts".to_owned(),
                    AlertDescription::CertificateExpired => "it has expired, by the box's clock".to_owned(),
                    AlertDescription::CertificateRequired => "there is none".to_owned(),
                    alert => format!("{alert:?}"),
                };
                denied(format!("{place}: the box refuses the certificate in `{}`: {why}", self.tls.certificate.display()))
            }
            rustls::Error::InvalidMessage(_) => {
                Failure::new(exit::UNAVAILABLE, format!("{place}: what listens there does not speak TLS"))
            }
            error => Failure::new(exit::UNAVAILABLE, format!("{place}: {error}")),
        }
    }

    fn api(&self) -> Result<ControlClient<Channel>, Failure> {
        if let Some(api) = self.api.get() {
            return Ok(api.clone());
        }
        let wrong = |message: String| Failure::new(exit::CONFIGURATION, message);
        let tls = Identity::load(&self.tls).and_then(|identity| identity.client()).map_err(wrong)?;
        let channel = self.runtime.block_on(async {
            let stream = match timeout(PATIENCE, connect_tls(&self.endpoint.host, self.endpoint.port, tls)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return Err(self.failure(&error)),
                Err(_) => return Err(self.late()),
            };
            let broken = |error: tonic::transport::Error| self.broken(&error.to_string());
            let uri = format!("https://{}", self.endpoint);
            let channel = Channel::from_shared(uri).map_err(|error| self.broken(&error.to_string()))?;
            let channel =
                channel.http2_keep_alive_interval(PATIENCE).keep_alive_timeout(PATIENCE * 2).keep_alive_while_idle(true);
            channel_over(stream, channel).await.map_err(broken)
        })?;
        let api = ControlClient::new(channel).max_decoding_message_size(MAX_ANSWER);
        Ok(self.api.get_or_init(|| api).clone())
    }

    /// Waits for an answer as long as a box may take.
    fn wait<T>(&self, answer: impl Future<Output = Result<T, tonic::Status>>) -> Result<T, Failure> {
        self.wait_for(ANSWER, answer)
    }

    fn wait_for<T>(&self, patience: Duration, answer: impl Future<Output = Result<T, tonic::Status>>) -> Result<T, Failure> {
        let answered = self.runtime.block_on(async { timeout(patience, answer).await });
        answered.map_err(|_| self.late())?.map_err(|status| self.refusal(&status))
    }

    /// Asks for one answer: the object that the local socket answers with.
    pub(crate) fn ask(&self, call: Call) -> Result<Value, Failure> {
        let mut api = self.api()?;
        match call {
            Call::Ping => Ok(convert::object(&self.wait(api.ping(PingRequest {}))?.into_inner())),
            Call::Status => Ok(convert::object(&self.wait(api.get_status(GetStatusRequest {}))?.into_inner())),
            Call::Restore { runtime } => {
                let runtime = runtime.into();
                self.wait(async {
                    let mut stream = api.restore(RestoreRequest { runtime }).await?.into_inner();
                    stream.message().await
                })?;
                Ok(json!({ "version": VERSION }))
            }
            Call::Apply { file, text, dry_run } => {
                let reply = self.wait(api.apply(ApplyRequest { file, text, dry_run }))?.into_inner();
                convert::application(reply).ok_or_else(|| self.broken("its answer says nothing"))
            }
            Call::Stop => {
                let StopReply { pid } = self.wait(api.stop(StopRequest {}))?.into_inner();
                Ok(json!({ "version": VERSION, "stopping": true, "pid": pid }))
            }
            Call::Flows { .. }
            | Call::Trace { .. }
            | Call::Move { .. }
            | Call::Moving { .. }
            | Call::Drain { .. }
            | Call::Draining { .. } => Err(self.broken("this is no call with one answer")),
        }
    }

    /// Begins what takes its time: [`Call::Move`] or [`Call::Drain`].
    pub(crate) fn begin(self: &Arc<RemoteClient>, call: Call) -> Result<Streamed, Failure> {
        let mut api = self.api()?;
        // The first message says that the order has begun. A busy box may take as long for it as
        // for any later one.
        let (stream, first) = self.wait_for(BUSY + ANSWER, async {
            let mut stream = match call {
                Call::Move { from, to, limit, filter } => {
                    let (from, to, limit) = (from.into(), to.map(u32::from), Some(limit));
                    api.migrate(MigrateRequest { from, to, limit, filter }).await?.into_inner()
                }
                Call::Drain { runtime, force } => api.drain(DrainRequest { runtime: runtime.into(), force }).await?.into_inner(),
                _ => return Err(tonic::Status::unimplemented("this is no call that takes its time")),
            };
            let first = stream.message().await?;
            Ok((stream, first))
        })?;
        Ok(Streamed { client: self.clone(), stream, first })
    }

    /// Lists flows; see [`Client::flows`](crate::Client::flows).
    pub(crate) fn flows(
        &self,
        filter: &str,
        limit: u32,
        take: &mut dyn FnMut(Vec<Flow>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let mut api = self.api()?;
        // The API has no way to ask for none, and who does wants to know whether there are any.
        let request = ListFlowsRequest { filter: filter.to_owned(), limit: limit.max(1) };
        let mut stream = self.wait(api.list_flows(request))?.into_inner();
        let (mut has_some, mut truncated) = (false, false);
        while let Some(reply) = self.wait(stream.message())? {
            (has_some, truncated) = (has_some || !reply.flows.is_empty(), reply.truncated);
            let flows = convert::listed(reply).map_err(|error| self.broken(&error.to_string()))?;
            if limit > 0 {
                take(flows)?;
            }
        }
        Ok(truncated || limit == 0 && has_some)
    }

    /// Follows packets; see [`Client::trace`](crate::Client::trace).
    pub(crate) fn trace(
        &self,
        selector: String,
        count: u32,
        wait: Duration,
        step: &mut dyn FnMut(&Value) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let mut api = self.api()?;
        let wait_ms = wait.as_millis().min(u128::from(u64::MAX)) as u64;
        let mut stream = self.wait(api.trace(Request::new(TraceRequest { selector, count, wait_ms })))?.into_inner();
        let patience = wait.saturating_add(ANSWER);
        loop {
            let reply = self.runtime.block_on(async { timeout(patience, stream.message()).await });
            let reply = reply.map_err(|_| self.late())?.map_err(|status| self.refusal(&status))?;
            match reply.and_then(|reply| reply.event) {
                Some(trace_reply::Event::Step(seen)) => step(&serde_json::to_value(seen).unwrap_or_default())?,
                Some(trace_reply::Event::Done(TraceDone { packets })) => return Ok(packets),
                None => return Err(self.broken("it stopped in the middle of a trace")),
            }
        }
    }
}

/// What a host gets that joins.
pub struct Fetched {
    /// The cluster's name.
    pub cluster: String,
    /// The configuration.
    pub text: String,
    /// What it names: path from its directory, and contents.
    pub files: Vec<(String, zeroize::Zeroizing<Vec<u8>>)>,
}

/// Fetches what the host of this name needs to run its part of the box, from one that runs.
///
/// # Errors
/// If nobody answers there, or refuses.
pub fn fetch(endpoint: Endpoint, tls: TlsPaths, host: &str) -> Result<Fetched, Failure> {
    let client = RemoteClient::new(endpoint, tls)?;
    let mut api = client.api()?.max_decoding_message_size(MAX_JOIN);
    let JoinReply { cluster, text, files } = client.wait(api.join(JoinRequest { host: host.to_owned() }))?.into_inner();
    let mut kept = Vec::with_capacity(files.len());
    for File { path, contents } in files {
        let contents = zeroize::Zeroizing::new(contents);
        if !is_inside(&path) {
            let text = format!("{} sends a file that would lie outside the state directory", client.endpoint);
            return Err(Failure::new(exit::CONFIGURATION, text));
        }
        kept.push((path, contents));
    }
    Ok(Fetched { cluster, text, files: kept })
}

/// True of a path that stays where it begins: files that go along to a host that joins are written there.
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
