//! Connections: through the Unix socket from permitted users, and by TLS before and after
//! the handshake.

use super::{Limits, MAX_CONNECTIONS};
use crate::control::calls::Seats;
use holdfast_control::TIMEOUT;
use holdfast_control::status::ControlApi;
use holdfast_control::tls::{Holder, Identity, holder};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{AlertDescription, CertificateError, ServerConfig};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc::Sender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;

/// The pause after a failed accept, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

holdfast_wire::events! {
    /// Why a remote caller was refused.
    pub enum Refused, "reason of the control API to refuse", "connections and calls" {
        NotTls "not_tls" "What came was no TLS: a client without `https`, or a program that tries every port.";
        NoCertificate "no_certificate" "The client showed no certificate: `holdfast certify` makes one for a host, an operator or a viewer.";
        CertificateRefused "certificate_refused" "The client's certificate is not signed by the authority in `control.tls`, or is not good for clients.";
        CertificateNotNow "certificate_not_now" "The client's certificate has expired or is not good yet, by this host's clock.";
        RefusedByClient "refused_by_client" "The client does not trust this host's certificate, or asked at an address that it is not for.";
        HandshakeFailed "handshake_failed" "Client and host do not agree on how to speak TLS.";
        HandshakeEnded "handshake_ended" "The client went away during the handshake.";
        HandshakeTooSlow "handshake_too_slow" "The client did not end its handshake in time.";
        TooManyConnections "too_many_connections" "There was no place for another connection, or for another handshake from that address.";
        Idle "idle" "A client did not even answer pings; its connection was closed.";
        Busy "busy" "Too many calls at a time; the client may try again.";
        Denied "denied" "The client's certificate does not allow what it asked: a viewer only looks, an operator changes things, a host joins under its own name.";
    }
}

/// Counts for `status`.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    connections: u32,
    calls: u64,
    refused: BTreeMap<Refused, u64>,
}

impl Counts {
    fn lock(&self) -> MutexGuard<'_, Counted> {
        // No update is left half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn refuse(&self, reason: Refused) {
        *self.lock().refused.entry(reason).or_default() += 1;
    }

    pub(super) fn call(&self) {
        self.lock().calls += 1;
    }

    pub(super) fn report(&self, listen: SocketAddr) -> ControlApi {
        let counted = self.lock();
        ControlApi {
            listen: listen.to_string(),
            connections: counted.connections,
            calls: counted.calls,
            refused: counted
                .refused
                .iter()
                .map(|(reason, count)| (reason.name().to_owned(), *count))
                .collect(),
        }
    }
}

/// The authorities trusted now.
pub(super) struct Trust(Mutex<Trusted>);

#[derive(Clone)]
struct Trusted {
    config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Trust {
    /// Trusts the identity's authorities.
    pub(super) fn new(identity: &Identity) -> Result<Trust, String> {
        let (config, verifier) = identity.server()?;
        Ok(Trust(Mutex::new(Trusted { config, verifier })))
    }

    /// Trusts other authorities from now on, also for open connections.
    pub(super) fn change(&self, identity: &Identity) -> Result<(), String> {
        let (config, verifier) = identity.server()?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Trusted { config, verifier };
        Ok(())
    }

    fn now(&self) -> Trusted {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks a caller's certificates again: they may have expired, or their authority
    /// may no longer be trusted.
    ///
    /// # Errors
    /// The reason for refusing the caller from now on, as [`reason`] gives it.
    pub(super) fn check(&self, certificates: &[CertificateDer<'static>]) -> Result<(), Refused> {
        let Some((own, issuers)) = certificates.split_first() else {
            return Err(Refused::NoCertificate);
        };
        let verified = self.now().verifier.verify_client_cert(own, issuers, UnixTime::now());
        verified.map(drop).map_err(|error| reason(&error))
    }
}

/// The reason why a handshake failed.
fn why_not(error: &io::Error) -> Refused {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    inner.map_or(Refused::HandshakeEnded, reason)
}

/// The refusal for an error of TLS.
fn reason(error: &rustls::Error) -> Refused {
    match error {
        rustls::Error::NoCertificatesPresented => Refused::NoCertificate,
        rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => Refused::CertificateNotNow,
        rustls::Error::InvalidCertificate(_) => Refused::CertificateRefused,
        rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. } => {
            Refused::NotTls
        }
        rustls::Error::AlertReceived(AlertDescription::CloseNotify) => Refused::HandshakeEnded,
        rustls::Error::AlertReceived(_) => Refused::RefusedByClient,
        _ => Refused::HandshakeFailed,
    }
}

/// Handshakes under way per address; for IPv6 per /64, because a station may use any
/// address of its /64 (RFC 4862).
#[derive(Debug, Default)]
struct Handshakes(Mutex<HashMap<IpAddr, usize>>);

/// A handshake under way, counted until it is dropped.
struct Handshake {
    all: Arc<Handshakes>,
    from: IpAddr,
}

/// The address that a station is counted under.
fn station(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

impl Handshakes {
    fn begin(self: &Arc<Handshakes>, from: IpAddr, limits: &Limits) -> Option<Handshake> {
        let from = station(from);
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if under_way.values().sum::<usize>() >= limits.handshakes
            || under_way.get(&from).is_some_and(|count| *count >= limits.handshakes_per_address)
        {
            return None;
        }
        *under_way.entry(from).or_default() += 1;
        Some(Handshake { all: self.clone(), from })
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut under_way = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = under_way.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.from);
            }
        }
    }
}

/// The control API at an address: its trust, limits and seats.
pub(super) struct Api {
    pub(super) trust: Trust,
    pub(super) counts: Counts,
    pub(super) limits: Limits,
    /// Seats for its calls.
    pub(super) seats: Seats,
}

/// Accepts connections until `ready` is closed, and hands over those whose handshake is
/// complete.
pub(super) async fn accept(listener: TcpListener, api: Arc<Api>, ready: Ready) {
    let places = Arc::new(Semaphore::new(api.limits.connections));
    let handshakes = Arc::new(Handshakes::default());
    while !ready.is_closed() {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(handshake) = handshakes.begin(from.ip(), &api.limits) else {
            api.counts.refuse(Refused::TooManyConnections);
            continue;
        };
        let (api, ready, places) = (api.clone(), ready.clone(), places.clone());
        tokio::spawn(async move {
            let connection = shake_hands(stream, &api, places).await;
            drop(handshake);
            match connection {
                Ok(connection) => {
                    let _ = ready.send(Ok(connection)).await;
                }
                Err(reason) => api.counts.refuse(reason),
            }
        });
    }
}

/// True if a process of this user may ask a box of user `own` through its socket.
fn may_ask(user: u32, own: u32) -> bool {
    user == own || user == 0
}

/// Accepts from the Unix socket: the box's user, and root.
pub(super) async fn accept_local(listener: UnixListener, ready: Ready) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let own = rustix::process::geteuid().as_raw();
    while !ready.is_closed() {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if !stream.peer_cred().is_ok_and(|peer| may_ask(peer.uid(), own)) {
            continue;
        }
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let connection = Connection::new(
            Box::pin(stream),
            Caller::Local,
            TIMEOUT,
            Limits::default().idle,
            place,
        );
        let _ = ready.send(Ok(connection)).await;
    }
}

async fn shake_hands(
    stream: TcpStream,
    api: &Arc<Api>,
    places: Arc<Semaphore>,
) -> Result<Connection, Refused> {
    let _ = stream.set_nodelay(true);
    let acceptor = TlsAcceptor::from(api.trust.now().config);
    let stream = match timeout(api.limits.handshake, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(why_not(&error)),
        Err(_) => return Err(Refused::HandshakeTooSlow),
    };
    // The place is taken only now, so that a client without a certificate takes none.
    let place = places.try_acquire_owned().map_err(|_| Refused::TooManyConnections)?;
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = shown.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let holder = Arc::new(shown.first().map(holder).ok_or(Refused::NoCertificate)?);
    api.counts.lock().connections += 1;
    let caller = Caller::Remote { holder, certificates, api: api.clone() };
    let idle = api.limits.idle;
    Ok(Connection::new(Box::pin(stream), caller, idle, idle, place))
}

/// The caller.
#[derive(Clone)]
pub(super) enum Caller {
    /// The user who started the box, or root, through the Unix socket.
    Local,
    /// The holder of the certificates, the caller's own first.
    Remote { holder: Arc<Holder>, certificates: Arc<[CertificateDer<'static>]>, api: Arc<Api> },
}

impl Caller {
    /// Counts a refusal of this caller, if its connections have such counters.
    pub(super) fn refuse(&self, reason: Refused) {
        if let Caller::Remote { api, .. } = self {
            api.counts.refuse(reason);
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Stream for T {}

/// The channel for accepted connections.
pub(super) type Ready = Sender<io::Result<Connection>>;

/// An accepted connection.
pub(super) struct Connection {
    stream: Pin<Box<dyn Stream>>,
    caller: Caller,
    /// Time-out of silence.
    limit: Duration,
    /// Ends after silence of `limit`.
    idle: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// A connection that may be silent for `first` at first, and later for `limit`.
    fn new(
        stream: Pin<Box<dyn Stream>>,
        caller: Caller,
        first: Duration,
        limit: Duration,
        place: OwnedSemaphorePermit,
    ) -> Connection {
        Connection { stream, caller, limit, idle: Box::pin(sleep(first)), _place: place }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Caller::Remote { api, .. } = &self.caller {
            api.counts.lock().connections -= 1;
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let read = this.stream.as_mut().poll_read(context, into);
        match read {
            Poll::Ready(_) => this.idle.as_mut().reset(Instant::now() + this.limit),
            Poll::Pending => {
                if this.idle.as_mut().poll(context).is_ready() {
                    this.caller.refuse(Refused::Idle);
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The user decides, whatever the socket's mode.
    #[test]
    fn the_user_who_started_the_box_may_ask_and_root() {
        for (user, own, may) in [
            (1000, 1000, true),
            (0, 1000, true),
            (0, 0, true),
            (1001, 1000, false),
            (1000, 0, false),
        ] {
            assert_eq!(may_ask(user, own), may, "{user} of {own}'s");
        }
    }

    #[test]
    fn a_station_is_an_address_or_a_network_of_64_bits() {
        let of = |text: &str| station(text.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("2001:db8:1:2:ffff::1"), of("2001:db8:1:2:3:4:5:6"));
        assert_ne!(of("2001:db8:1:3::1"), of("2001:db8:1:2::1"));
    }
}
