//! The control API at an address: gRPC over mutual TLS, for clients with a certificate.
//!
//! A connection takes a place after its handshake. Handshakes have a time-out and limits,
//! per address and in all, so that clients without a certificate cannot keep others out.
//! The certificate's holder is read once, after the handshake; the rights are checked
//! with each call ([`calls`](super::calls)).

use super::Limits;
use super::calls::Seats;
use super::connection::{Api, Counts, Trust, accept};
use super::serving::{Accepting, Serving};
use crate::config::ControlEntry;
use holdfast_control::exit::{self, Failure};
use holdfast_control::status::ControlApi;
use holdfast_control::tls::{Identity, Role, TlsPaths};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// The listening control API. Dropping it stops listening.
pub(super) struct Server {
    address: SocketAddr,
    paths: TlsPaths,
    api: Arc<Api>,
    _accepting: Accepting,
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
    /// Listens, and serves connections from now on.
    ///
    /// # Errors
    /// If the files cannot be used (exit code 78), or the server cannot listen at the
    /// address.
    pub(super) fn start(
        entry: &ControlEntry,
        serving: &Serving,
        limits: Limits,
    ) -> Result<Server, Failure> {
        let trust =
            load(&entry.tls).and_then(|identity| Trust::new(&identity)).map_err(|message| {
                Failure::new(exit::CONFIGURATION, format!("the control API: {message}"))
            })?;
        let failed = |error: std::io::Error| {
            let remedy = match error.kind() {
                ErrorKind::AddrNotAvailable => {
                    "; the address must be one of this machine's own, `ip address` lists them"
                }
                ErrorKind::AddrInUse => "; another program listens there, `ss -ltnp` says which",
                _ => "",
            };
            Failure::new(
                exit::of_system(&error),
                format!("the control API cannot listen at {}: {error}{remedy}", entry.listen),
            )
        };
        let listener = TcpListener::bind(entry.listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let api = Arc::new(Api {
            trust,
            counts: Counts::default(),
            limits,
            seats: Seats::new(limits.calls),
        });
        let accepted = api.clone();
        let accepting = serving.accept(|ready| async move {
            if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
                accept(listener, accepted, ready).await;
            }
        });
        Ok(Server { address, paths: entry.tls.clone(), api, _accepting: accepting })
    }

    /// The listening address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A function that reports the use of the API.
    pub(super) fn report(&self) -> impl Fn() -> ControlApi + Send + Sync + 'static {
        let (api, address) = (self.api.clone(), self.address);
        move || api.counts.report(address)
    }

    /// A function that reads the server's files again and returns a message for the
    /// operator. Files that cannot be used change nothing.
    pub(super) fn reload(&self) -> impl FnOnce() -> String + Send + use<> {
        let (paths, api) = (self.paths.clone(), self.api.clone());
        move || match load(&paths).and_then(|identity| api.trust.change(&identity)) {
            Ok(()) => "SIGHUP: the control API's certificate has been read again".to_owned(),
            Err(message) => {
                format!("SIGHUP: the control API's certificate stays as it is: {message}")
            }
        }
    }
}
