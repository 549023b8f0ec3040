//! HTTP/1.1 to one member of etcd, as much of it as etcd's JSON gateway speaks.
//!
//! In: a request and until when. Out: the whole answer, or what is wrong. Never: a wait beyond that time, or more memory than an answer may have.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{Endpoint, Etcd};

/// Longest head of an answer, bytes.
const MAX_HEAD: usize = 16 << 10;
/// Longest answer, bytes: a page of the log is shorter.
const MAX_BODY: usize = 64 << 20;

/// Certificates and keys for the connections, from the files that the configuration names. None for connections in clear.
///
/// # Errors
/// Which file is wrong, and why.
pub(super) fn tls(config: &Etcd) -> Result<Option<Arc<ClientConfig>>, String> {
    let Some(ca) = &config.ca else { return Ok(None) };
    let wrong = |path: &std::path::Path, error: &dyn std::fmt::Display| format!("`{}`: {error}", path.display());
    let certificates = |path: &std::path::Path| -> Result<Vec<CertificateDer<'static>>, String> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        let read = read.map_err(|error| wrong(path, &error))?;
        if read.is_empty() { Err(wrong(path, &"there is no certificate in it (PEM)")) } else { Ok(read) }
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| wrong(ca, &error))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let mut tls = match &config.certificate {
        Some((path, key_path)) => {
            let key = PrivateKeyDer::from_pem_file(key_path).map_err(|error| wrong(key_path, &error))?;
            builder.with_client_auth_cert(certificates(path)?, key).map_err(|error| wrong(path, &error))?
        }
        None => builder.with_no_client_auth(),
    };
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(Arc::new(tls)))
}

/// A socket whose reads and writes end in time.
struct Timed {
    socket: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }
}

/// A socket's timeout shows as what it is.
fn timed<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error })
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        timed(self.socket.read(into))
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        timed(self.socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

enum Stream {
    Plain(Timed),
    Secure(Box<StreamOwned<ClientConnection, Timed>>),
}

impl Stream {
    fn set_until(&mut self, until: Instant) {
        match self {
            Stream::Plain(timed) => timed.until = until,
            Stream::Secure(secure) => secure.sock.until = until,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(timed) => timed.read(into),
            Stream::Secure(secure) => secure.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(timed) => timed.write(bytes),
            Stream::Secure(secure) => secure.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(timed) => timed.flush(),
            Stream::Secure(secure) => secure.flush(),
        }
    }
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    /// Another request may follow on the same connection.
    is_reusable: bool,
}

/// A connection to a member.
pub(super) struct Connection {
    stream: Stream,
    host: String,
    /// Requests were answered on it.
    is_used: bool,
}

impl Connection {
    /// Connects.
    pub(super) fn open(endpoint: &Endpoint, tls: Option<&Arc<ClientConfig>>, until: Instant) -> io::Result<Connection> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in (endpoint.host.as_str(), endpoint.port).to_socket_addrs()? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let socket = match TcpStream::connect_timeout(&address, left) {
                Ok(socket) => socket,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            socket.set_nodelay(true)?;
            let timed = Timed { socket, until };
            let stream = match tls {
                None => Stream::Plain(timed),
                Some(tls) => {
                    let name = ServerName::try_from(endpoint.host.clone()).map_err(io::Error::other)?;
                    let session = ClientConnection::new(tls.clone(), name).map_err(io::Error::other)?;
                    Stream::Secure(Box::new(StreamOwned::new(session, timed)))
                }
            };
            let host = if endpoint.host.contains(':') { format!("[{}]", endpoint.host) } else { endpoint.host.clone() };
            return Ok(Connection { stream, host: format!("{host}:{}", endpoint.port), is_used: false });
        }
        Err(last)
    }

    /// It has answered before: if it is closed now, that says nothing about the member.
    pub(super) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Sends a request and waits for its answer. After an error, and after an answer that says so, the connection is of no more use.
    pub(super) fn post(mut self, path: &str, body: &[u8], until: Instant) -> io::Result<(Answer, Option<Connection>)> {
        self.stream.set_until(until);
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.host,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.write_all(&request)?;
        self.stream.flush()?;
        let answer = answer(&mut self.stream)?;
        self.is_used = true;
        let rest = answer.is_reusable.then_some(self);
        Ok((answer, rest))
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("this is no answer of etcd: {what}"))
}

/// What has come and is not yet used.
struct Incoming<'a, R> {
    from: &'a mut R,
    bytes: Vec<u8>,
    at: usize,
}

impl<R: Read> Incoming<'_, R> {
    /// More bytes; false at the end.
    fn more(&mut self) -> io::Result<bool> {
        let mut piece = [0; 16 << 10];
        let count = loop {
            match self.from.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Members that end a connection without a word, after an answer without a length.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break 0,
                result => break result?,
            }
        };
        self.bytes.drain(..core::mem::take(&mut self.at));
        self.bytes.extend_from_slice(&piece[..count]);
        Ok(count > 0)
    }

    /// A line without its end.
    fn line(&mut self) -> io::Result<String> {
        loop {
            let rest = &self.bytes[self.at..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = &rest[..end];
                let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
                self.at += end + 1;
                return Ok(line);
            }
            if rest.len() > MAX_HEAD {
                return Err(bad("a line without an end"));
            }
            if !self.more()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// So many bytes.
    fn take(&mut self, mut count: usize, into: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let rest = &self.bytes[self.at..];
            let part = count.min(rest.len());
            into.extend_from_slice(&rest[..part]);
            self.at += part;
            count -= part;
            if count == 0 {
                return Ok(());
            }
            if !self.more()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Reads an answer. Bytes in, no panic out.
fn answer(from: &mut impl Read) -> io::Result<Answer> {
    let mut incoming = Incoming { from, bytes: Vec::new(), at: 0 };
    let first = incoming.line()?;
    let mut words = first.split(' ');
    let version = words.next().filter(|version| version.starts_with("HTTP/1.")).ok_or_else(|| bad("it is not HTTP/1"))?;
    let status = words.next().and_then(|status| status.parse::<u16>().ok()).ok_or_else(|| bad("it has no status"))?;
    let mut is_reusable = version == "HTTP/1.1";
    let (mut length, mut is_chunked, mut head) = (None, false, 0);
    loop {
        let line = incoming.line()?;
        if line.is_empty() {
            break;
        }
        head += line.len();
        if head > MAX_HEAD {
            return Err(bad("its head is too long"));
        }
        let (name, value) = line.split_once(':').ok_or_else(|| bad("a line of its head has no colon"))?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let count = value.parse::<usize>().ok().filter(|count| *count <= MAX_BODY);
                length = Some(count.ok_or_else(|| bad("its length is none"))?);
            }
            "transfer-encoding" => is_chunked = value.eq_ignore_ascii_case("chunked"),
            "connection" if value.eq_ignore_ascii_case("close") => is_reusable = false,
            _ => {}
        }
    }
    let mut body = Vec::new();
    match length {
        _ if is_chunked => loop {
            let line = incoming.line()?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16).ok().filter(|size| body.len().saturating_add(*size) <= MAX_BODY);
            let size = size.ok_or_else(|| bad("a chunk has no size"))?;
            if size == 0 {
                // What follows the last chunk is more of the head.
                while !incoming.line()?.is_empty() {}
                break;
            }
            incoming.take(size, &mut body)?;
            if !incoming.line()?.is_empty() {
                return Err(bad("a chunk is longer than it says"));
            }
        },
        Some(length) => incoming.take(length, &mut body)?,
        None => {
            is_reusable = false;
            while incoming.more()? {
                if incoming.bytes.len() > MAX_BODY {
                    return Err(bad("it is too long"));
                }
            }
            body = incoming.bytes.split_off(incoming.at.min(incoming.bytes.len()));
        }
    }
    Ok(Answer { status, body, is_reusable })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Gives bytes in pieces, as a network does.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(into.len());
            into[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn read(text: &str, piece: usize) -> io::Result<Answer> {
        answer(&mut Pieces(text.as_bytes(), piece))
    }

    /// Answers with a length, in chunks, and up to the end of the connection, in pieces of any size.
    #[test]
    fn an_answer_comes_in_three_ways() {
        for piece in [1, 2, 3, 7, 4096] {
            let of = |text: &str| read(text, piece).unwrap();
            let expected = |is_reusable| Answer { status: 200, body: b"{\"a\":1}".to_vec(), is_reusable };
            assert_eq!(of("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}"), expected(true));
            let chunked =
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n4;x=y\r\n\":1}\r\n0\r\nTrailer: 1\r\n\r\n";
            assert_eq!(of(chunked), expected(true));
            assert_eq!(of("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 7\r\n\r\n{\"a\":1}"), expected(false));
            assert_eq!(of("HTTP/1.0 200 OK\r\n\r\n{\"a\":1}"), expected(false));
            assert_eq!(of("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n").status, 503);
        }
    }

    /// What is cut off or is something else is an error, and so is a length that nobody could have room for.
    #[test]
    fn what_is_no_answer_is_an_error() {
        for text in [
            "",
            "HTTP/1.1 200",
            "SSH-2.0-OpenSSH_9.2\r\n",
            "HTTP/1.1 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"a\":1}",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        ] {
            assert!(read(text, 5).is_err(), "{text:?}");
        }
    }

    proptest! {
        /// Any bytes are an answer or an error.
        #[test]
        fn any_bytes_are_an_answer_or_an_error(bytes in any::<Vec<u8>>(), piece in 1usize..50, kind in 0usize..3) {
            let head: &[u8] = [&b""[..], b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"][kind];
            let all = [head, &bytes].concat();
            let _ = answer(&mut Pieces(&all, piece));
        }
    }
}
