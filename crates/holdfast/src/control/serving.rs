//! The thread that serves clients of all connections.
//!
//! The thread has a low priority, and a small asynchronous runtime for all connections.
//! Each call waits for the packet loop on a thread of its own.

use super::calls::Calls;
use super::connection::Ready;
use super::service::Service;
use super::{MAX_CLIENTS, stand_back};
use holdfast_control::TIMEOUT;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::ReceiverStream;

/// Streams of one connection at a time.
const STREAMS: u32 = 16;
/// The pause between two pings of a silent client, and the time-out of its answer.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The serving thread. Dropping it breaks all calls off.
pub(super) struct Serving {
    handle: Handle,
    ready: Ready,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Accepts connections until it is dropped.
pub(super) struct Accepting(AbortHandle);

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Serving {
    pub(super) fn start(service: Arc<Service>) -> std::io::Result<Serving> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // As many calls as the socket and the API at an address admit.
            .max_blocking_threads(2 * MAX_CLIENTS)
            .thread_name("control-call")
            .build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let (ready, connections) = mpsc::channel(1);
        let serve = move || {
            stand_back();
            runtime.block_on(async move {
                let serving = tonic::transport::Server::builder()
                    .timeout(TIMEOUT * 3)
                    .max_concurrent_streams(STREAMS)
                    .http2_keepalive_interval(Some(PING_INTERVAL))
                    .http2_keepalive_timeout(Some(PING_TIMEOUT))
                    .add_service(Calls::new(service).service())
                    .serve_with_incoming(ReceiverStream::new(connections));
                tokio::select! {
                    _ = serving => {}
                    _ = ended => {}
                }
            });
            // A call that waits for the packet loop is abandoned.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(serve)?;
        Ok(Serving { handle, ready, end: Some(end), thread: Some(thread) })
    }

    /// Runs an accept loop, and serves the connections that it hands over.
    pub(super) fn accept<F>(&self, accepting: impl FnOnce(Ready) -> F) -> Accepting
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Accepting(self.handle.spawn(accepting(self.ready.clone())).abort_handle())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
