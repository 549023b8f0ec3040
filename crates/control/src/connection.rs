//! Connections to a box: through its Unix socket, or over mutual TLS.
//!
//! A connection is made before the first call, so that every way in which it may fail is
//! told apart. The box accepts the client with its first frame, and the client waits for
//! that.

use crate::endpoint::Endpoint;
use crate::exit::{self, Failure};
use crate::tls::{Identity, TlsPaths};
use crate::{BUSY, TIMEOUT, check_path, find};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Code;
use tonic::transport::Channel;

/// Time-out of the box's answer to a client that may be slow to take it.
pub(crate) const ANSWER: Duration = Duration::from_secs(15);

/// A connection of [`connect_tls`].
pub type TlsConnection = BufReader<TlsStream<TcpStream>>;

/// The box to connect to, and the client's certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Target {
    /// The control socket's path, or `https://` and the address of a control API. `None`:
    /// the only box on this machine.
    pub control: Option<String>,
    /// The client's certificate for a control API.
    pub tls: Option<TlsPaths>,
}

impl Target {
    /// The box that listens at a path.
    pub fn local(path: &Path) -> Target {
        Target { control: Some(path.display().to_string()), tls: None }
    }

    /// The socket's path, if given.
    ///
    /// # Errors
    /// If the target is a control API.
    pub fn path(&self) -> Result<Option<PathBuf>, Failure> {
        match self.control.as_deref() {
            Some(url) if url.contains("://") => Err(Failure::new(
                exit::USAGE,
                format!("`--control {url}`: this takes the path of the control socket"),
            )),
            control => Ok(control.map(PathBuf::from)),
        }
    }

    /// The box's door.
    pub(crate) fn door(&self) -> Result<Door, Failure> {
        let usage = |text: String| Failure::new(exit::USAGE, text);
        let Some((scheme, place)) =
            self.control.as_deref().and_then(|control| control.split_once("://"))
        else {
            return match &self.tls {
                Some(_) => Err(usage(
                    "`--tls` is for a control API: `--control https://ADDRESS:PORT` says which"
                        .to_owned(),
                )),
                None => Door::socket(self.control.as_deref().map(Path::new)),
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
        Ok(Door::Api { endpoint, tls })
    }
}

/// The place where a box takes calls.
#[derive(Debug, Clone)]
pub(crate) enum Door {
    /// The box's Unix socket.
    Socket(PathBuf),
    /// The box's control API, and the certificate for it.
    Api { endpoint: Endpoint, tls: TlsPaths },
}

impl Door {
    /// The socket of the box that listens at `path`; if `None`, of the only one on this
    /// machine.
    pub(crate) fn socket(path: Option<&Path>) -> Result<Door, Failure> {
        let path = path.map_or_else(find, |path| Ok(path.to_owned()))?;
        check_path(&path)?;
        Ok(Door::Socket(path))
    }

    fn name(&self) -> String {
        match self {
            Door::Socket(path) => path.display().to_string(),
            Door::Api { endpoint, .. } => endpoint.to_string(),
        }
    }

    pub(crate) fn late(&self) -> Failure {
        Failure::new(exit::TIMEOUT, format!("{}: the box does not answer", self.name()))
    }

    pub(crate) fn broken(&self, what: &str) -> Failure {
        Failure::new(exit::UNAVAILABLE, format!("the box at {}: {what}", self.name()))
    }

    /// The failure that a box reports, with its exit code. A remote box is named.
    pub(crate) fn refusal(&self, status: &tonic::Status) -> Failure {
        let text = status.message();
        let said = match self {
            Door::Socket(_) => text.to_owned(),
            Door::Api { endpoint, .. } => format!("{endpoint}: {text}"),
        };
        match status.code() {
            Code::PermissionDenied | Code::Unauthenticated => Failure::new(exit::PERMISSION, said),
            Code::DeadlineExceeded => Failure::new(exit::TIMEOUT, said),
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
                Failure::new(exit::NEGATIVE, text.to_owned())
            }
            // The box has no time for this call now.
            Code::ResourceExhausted => match self {
                Door::Socket(_) => Failure::new(exit::NEGATIVE, said),
                Door::Api { .. } => Failure::new(exit::TIMEOUT, said),
            },
            Code::Unimplemented => {
                self.broken("it is of another version, and does not know this call")
            }
            _ => self.broken(text),
        }
    }

    /// Connects.
    pub(crate) async fn channel(&self) -> Result<Channel, Failure> {
        match self {
            Door::Socket(path) => {
                let connecting = async {
                    let mut stream = BufReader::new(UnixStream::connect(path).await?);
                    if stream.fill_buf().await?.is_empty() {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                    Ok(stream)
                };
                // The box is on this host, and may be too busy even to answer pings for
                // this long.
                self.channel_to("http://box".to_owned(), BUSY, ANSWER, connecting).await
            }
            Door::Api { endpoint, tls } => {
                let wrong = |message: String| Failure::new(exit::CONFIGURATION, message);
                let tls =
                    Identity::load(tls).and_then(|identity| identity.client()).map_err(wrong)?;
                let connecting = connect_tls(&endpoint.host, endpoint.port, tls);
                self.channel_to(format!("https://{endpoint}"), TIMEOUT * 2, TIMEOUT, connecting)
                    .await
            }
        }
    }

    async fn channel_to<S>(
        &self,
        uri: String,
        silence: Duration,
        timeout: Duration,
        connecting: impl Future<Output = std::io::Result<S>>,
    ) -> Result<Channel, Failure>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let stream = match tokio::time::timeout(timeout, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(self.failure(&error)),
            Err(_) => return Err(self.late()),
        };
        let broken = |error: tonic::transport::Error| self.broken(&error.to_string());
        let channel = Channel::from_shared(uri).map_err(|error| self.broken(&error.to_string()))?;
        let channel = channel
            .http2_keep_alive_interval(TIMEOUT)
            .keep_alive_timeout(silence)
            .keep_alive_while_idle(true);
        channel_over(stream, channel).await.map_err(broken)
    }

    /// The failure to connect.
    fn failure(&self, error: &std::io::Error) -> Failure {
        if let ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe =
            error.kind()
        {
            return self
                .broken("it closed the connection: it may have too many clients; try again");
        }
        match self {
            Door::Socket(path) => socket_failure(path, error),
            Door::Api { endpoint, tls } => tls_failure(endpoint, tls, error),
        }
    }
}

fn socket_failure(path: &Path, error: &std::io::Error) -> Failure {
    let path = path.display();
    let (code, text) = match error.kind() {
        ErrorKind::PermissionDenied => (
            exit::PERMISSION,
            format!("{path}: only the user who started the box may ask it: use sudo"),
        ),
        ErrorKind::NotFound => {
            (exit::UNAVAILABLE, format!("no box is running with the control socket {path}"))
        }
        ErrorKind::ConnectionRefused => {
            (exit::UNAVAILABLE, format!("{path}: the box that listened here has ended"))
        }
        _ => (exit::UNAVAILABLE, format!("no box answers at {path}: {error}")),
    };
    Failure::new(code, text)
}

fn tls_failure(place: &Endpoint, tls: &TlsPaths, error: &std::io::Error) -> Failure {
    let denied = |text: String| Failure::new(exit::PERMISSION, text);
    let Some(wrong) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())
    else {
        let text = match error.kind() {
            ErrorKind::TimedOut => {
                return Failure::new(exit::TIMEOUT, format!("{place}: the box does not answer"));
            }
            ErrorKind::ConnectionRefused => {
                format!(
                    "nobody listens at {place}: is the box running, with `control:` in its configuration?"
                )
            }
            _ => format!("no box answers at {place}: {error}"),
        };
        return Failure::new(exit::UNAVAILABLE, text);
    };
    match wrong {
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => denied(format!(
            "{place}: the certificate there is not for `{host}`: ask by a name or address that it is for, or make one with `holdfast certify DIR NAME={host}`",
            host = place.host
        )),
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => denied(format!(
            "{place}: the certificate there is not signed by the authority in `{}`: it is another cluster, or somebody in between",
            tls.ca.display()
        )),
        rustls::Error::InvalidCertificate(error) => {
            denied(format!("{place}: the certificate there is refused: {error}"))
        }
        rustls::Error::AlertReceived(alert) => {
            let why = match alert {
                AlertDescription::UnknownCA => {
                    "it is not signed by the authority that the box trusts".to_owned()
                }
                AlertDescription::CertificateExpired => {
                    "it has expired, by the box's clock".to_owned()
                }
                AlertDescription::CertificateRequired => "there is none".to_owned(),
                alert => format!("{alert:?}"),
            };
            denied(format!(
                "{place}: the box refuses the certificate in `{}`: {why}",
                tls.certificate.display()
            ))
        }
        rustls::Error::InvalidMessage(_) => Failure::new(
            exit::UNAVAILABLE,
            format!("{place}: what listens there does not speak TLS"),
        ),
        error => Failure::new(exit::UNAVAILABLE, format!("{place}: {error}")),
    }
}

/// A connection with TLS, after the server's first bytes.
///
/// # Errors
/// The system's error; rustls's errors are inside one of the system's kinds.
pub async fn connect_tls(
    host: &str,
    port: u16,
    tls: Arc<rustls::ClientConfig>,
) -> std::io::Result<TlsConnection> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(TlsConnector::from(tls).connect(name, stream).await?);
    // TLS 1.3 ends for the client before the server has checked its certificate.
    if stream.fill_buf().await?.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(stream)
}

/// A channel over an open connection. The channel makes no other connection if this one
/// is lost.
///
/// # Errors
/// If the handshake of HTTP/2 has failed.
pub async fn channel_over<S>(
    stream: S,
    channel: tonic::transport::Endpoint,
) -> Result<Channel, tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stream = Arc::new(Mutex::new(Some(stream)));
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        let taken = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        std::future::ready(
            taken.map(TokioIo::new).ok_or_else(|| std::io::Error::other("the connection is lost")),
        )
    });
    channel.connect_with_connector(connector).await
}
