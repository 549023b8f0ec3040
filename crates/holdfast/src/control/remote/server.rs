//! The thread that serves the control API.

use super::Limits;
use super::calls::Calls;
use super::connection::{Accepting, Counts, Trust, accept};
use crate::config::ControlEntry;
use crate::control::service::Service;
use crate::control::stand_back;
use holdfast_control::PATIENCE;
use holdfast_control::exit::{self, Failure};
use holdfast_control::status::ControlApi;
use holdfast_control::tls::{Identity, Role, TlsPaths};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;

/// Streams of one connection at a time.
const STREAMS: u32 = 16;
/// Between two pings of a client that is silent, and how long it may take to answer.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_PATIENCE: Duration = Duration::from_secs(10);

/// The listening control API. When it is dropped nobody listens any more, and what is under way is broken off.
pub(crate) struct Server {
    address: SocketAddr,
    paths: TlsPaths,
    trust: Arc<Trust>,
    counts: Arc<Counts>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

fn load(paths: &TlsPaths) -> Result<Identity, String> {
    let identity = Identity::load(paths)?;
    if identity.holder().role != Some(Role::Host) {
        return Err(format!(
            "`{}` is no host's certificate: `holdfast certify DIR NAME` makes one (its organisational unit is `{}`)",
            paths.certificate.display(),
            Role::Host.name()
        ));
    }
    Ok(identity)
}

impl Server {
    /// Listens, and serves from now on.
    ///
    /// # Errors
    /// If the files cannot be used (exit code 78), or the address cannot be listened at.
    pub(crate) fn start(entry: &ControlEntry, service: Arc<Service>, limits: Limits) -> Result<Server, Failure> {
        let trust = load(&entry.tls)
            .and_then(|identity| Trust::new(&identity))
            .map_err(|message| Failure::new(exit::CONFIGURATION, format!("the control API: {message}")))?;
        let trust = Arc::new(trust);
        let failed = |error: std::io::Error| {
            let remedy = match error.kind() {
                ErrorKind::AddrNotAvailable => "; the address must be one of this machine's own, `ip address` lists them",
                ErrorKind::AddrInUse => "; another program listens there, `ss -ltnp` says which",
                _ => "",
            };
            Failure::new(exit::of_system(&error), format!("the control API cannot listen at {}: {error}{remedy}", entry.listen))
        };
        let listener = TcpListener::bind(entry.listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // Each call waits for the packet loop on a thread of its own.
            .max_blocking_threads(limits.calls)
            .thread_name("control-call")
            .build()
            .map_err(failed)?;
        let counts = Arc::new(Counts::default());
        let accepting = Accepting { trust: trust.clone(), counts: counts.clone(), limits };
        let calls = Calls::new(service, trust.clone(), counts.clone(), limits.calls);
        let (end, ended) = oneshot::channel();
        let serve = move || {
            stand_back();
            runtime.block_on(async move {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                let (ready, connections) = tokio::sync::mpsc::channel(1);
                let accepting = tokio::spawn(accept(listener, accepting, ready));
                let serving = tonic::transport::Server::builder()
                    .timeout(PATIENCE * 3)
                    .max_concurrent_streams(STREAMS)
                    .http2_keepalive_interval(Some(PING_INTERVAL))
                    .http2_keepalive_timeout(Some(PING_PATIENCE))
                    .add_service(calls.service())
                    .serve_with_incoming(ReceiverStream::new(connections));
                tokio::select! {
                    _ = serving => {}
                    _ = ended => {}
                }
                accepting.abort();
            });
            // A call that still waits for the packet loop is not waited for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("control-api".to_owned()).spawn(serve).map_err(failed)?;
        Ok(Server { address, paths: entry.tls.clone(), trust, counts, end: Some(end), thread: Some(thread) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How it is used, whenever that is asked.
    pub(crate) fn report(&self) -> impl Fn() -> ControlApi + Send + Sync + 'static {
        let (counts, address) = (self.counts.clone(), self.address);
        move || counts.report(address)
    }

    /// A function that reads the server's files again and returns a message for the operator. Files that
    /// cannot be used change nothing.
    pub(crate) fn reload(&self) -> impl FnOnce() -> String + Send + use<> {
        let (paths, trust) = (self.paths.clone(), self.trust.clone());
        move || match load(&paths).and_then(|identity| trust.change(&identity)) {
            Ok(()) => "SIGHUP: the control API's certificate has been read again".to_owned(),
            Err(message) => format!("SIGHUP: the control API's certificate stays as it is: {message}"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
