//! The control API at an address: gRPC over mutual TLS, for who has a certificate.
//!
//! A connection has a place when its handshake is over; handshakes have a time, and limits, per address and in all, so that a few who have no certificate cannot keep out who
//! has one. Whom a certificate is of is read once, when the handshake is over; what the caller may do is looked at with each call
//! ([`calls`](super::calls)).

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

/// The listening control API. When it is dropped nobody can connect any more.
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
    /// Listens, and has connections served from now on.
    ///
    /// # Errors
    /// If the files cannot be used (exit code 78), or the address cannot be listened at.
    pub(super) fn start(entry: &ControlEntry, serving: &Serving, limits: Limits) -> Result<Server, Failure> {
        let trust = load(&entry.tls)
            .and_then(|identity| Trust::new(&identity))
            .map_err(|message| Failure::new(exit::CONFIGURATION, format!("the control API: {message}")))?;
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
        let api = Arc::new(Api { trust, counts: Counts::default(), limits, seats: Seats::new(limits.calls) });
        let accepted = api.clone();
        let accepting = serving.accept(|ready| async move {
            if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
                accept(listener, accepted, ready).await;
            }
        });
        Ok(Server { address, paths: entry.tls.clone(), api, _accepting: accepting })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How it is used, whenever that is asked.
    pub(super) fn report(&self) -> impl Fn() -> ControlApi + Send + Sync + 'static {
        let (api, address) = (self.api.clone(), self.address);
        move || api.counts.report(address)
    }

    /// A function that reads the server's files again and returns a message for the operator. Files that
    /// cannot be used change nothing.
    pub(super) fn reload(&self) -> impl FnOnce() -> String + Send + use<> {
        let (paths, api) = (self.paths.clone(), self.api.clone());
        move || match load(&paths).and_then(|identity| api.trust.change(&identity)) {
            Ok(()) => "SIGHUP: the control API's certificate has been read again".to_owned(),
            Err(message) => format!("SIGHUP: the control API's certificate stays as it is: {message}"),
        }
    }
}
