//! A client of etcd: its gRPC API, one member at a time.
//!
//! In: a request. Out: the whole answer, or the error. Never: a wait beyond the time-out,
//! or more memory than the limit of an answer.

use super::api::compare::{CompareResult, CompareTarget, TargetUnion};
use super::api::kv_client::KvClient;
use super::api::lease_client::LeaseClient;
use super::api::request_op::Request;
use super::api::response_op::Response;
use super::api::*;
use super::{Contact, Trouble};
use crate::config::{Endpoint, Etcd};
use holdfast_control::{channel_over, connect_tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::error::Error;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tonic::Status;
use tonic::transport::Channel;

/// Longest answer, bytes: a page of the log is shorter.
const MAX_ANSWER: usize = 64 << 20;

/// Certificates and keys for the connections, from the files that the configuration
/// names. `None` for connections in clear.
///
/// # Errors
/// A file that cannot be read or holds no PEM; its name and the reason.
pub(super) fn tls(config: &Etcd) -> Result<Option<Arc<ClientConfig>>, String> {
    let Some(ca) = &config.ca else { return Ok(None) };
    let wrong = |path: &Path, error: &dyn Display| format!("`{}`: {error}", path.display());
    let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>, String> {
        let read: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        let read = read.map_err(|error| wrong(path, &error))?;
        if read.is_empty() {
            Err(wrong(path, &"there is no certificate in it (PEM)"))
        } else {
            Ok(read)
        }
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| wrong(ca, &error))?;
    }
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
    let mut tls = match &config.certificate {
        Some((path, key_path)) => {
            let key =
                PrivateKeyDer::from_pem_file(key_path).map_err(|error| wrong(key_path, &error))?;
            builder
                .with_client_auth_cert(certificates(path)?, key)
                .map_err(|error| wrong(path, &error))?
        }
        None => builder.with_no_client_auth(),
    };
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Some(Arc::new(tls)))
}

pub(super) type Failure = Box<dyn Error + Send + Sync>;

async fn connect(endpoint: &Endpoint, tls: Option<&Arc<ClientConfig>>) -> Result<Channel, Failure> {
    let channel = Channel::from_shared(endpoint.text.clone())?;
    if let Some(tls) = tls {
        return Ok(channel_over(
            connect_tls(&endpoint.host, endpoint.port, tls.clone()).await?,
            channel,
        )
        .await?);
    }
    let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
    stream.set_nodelay(true)?;
    Ok(channel_over(stream, channel).await?)
}

/// The innermost cause of a failure, as one line for operators: no control characters,
/// 200 characters at most.
pub(super) fn cause(failure: &Failure) -> String {
    let mut cause: &(dyn Error + 'static) = failure.as_ref();
    while let Some(source) = cause.source() {
        cause = source;
    }
    let is_end = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
    let text = match cause.downcast_ref::<Status>() {
        Some(status) => status.message().to_owned(),
        None if cause.downcast_ref().is_some_and(is_end) => "it closed the connection".to_owned(),
        None => cause.to_string(),
    };
    // A status with a source comes from the connection; one without is etcd's own answer.
    let is_broken =
        failure.downcast_ref::<Status>().is_some_and(|status| status.source().is_some());
    let head = if is_broken { "it does not answer as etcd does: " } else { "" };
    head.chars().chain(text.chars()).filter(|c| !c.is_control()).take(200).collect()
}

fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(MAX_ANSWER)
}

/// A client; each thread has its own.
pub(super) struct Client {
    number: usize,
    pub(super) config: Arc<Etcd>,
    tls: Option<Arc<ClientConfig>>,
    pub(super) contact: Arc<Contact>,
    runtime: Runtime,
    /// The connection to the member that answered last.
    channel: Option<Channel>,
    at: usize,
}

impl Client {
    pub(super) fn new(
        number: usize,
        config: Arc<Etcd>,
        tls: Option<Arc<ClientConfig>>,
        contact: Arc<Contact>,
    ) -> io::Result<Client> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        Ok(Client { number, config, tls, contact, runtime, channel: None, at: 0 })
    }

    /// Time-out of one member: two rounds over all members fit into a lease.
    fn timeout(&self) -> Duration {
        let members = self.config.endpoints.len().max(1) as u64;
        Duration::from_millis((self.config.lease_ms / (2 * members)).clamp(100, 2000))
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.config.prefix)
    }

    /// Calls a member; after an error the next call goes to the next member. A call must
    /// be harmless if repeated: an answer may be lost, and a connection that was closed
    /// meanwhile is opened again.
    fn ask<T>(&mut self, call: impl AsyncFn(Channel) -> Result<T, Status>) -> Result<T, Trouble> {
        let result = self.ask_member(call);
        match &result {
            Ok(_) => self.contact.answered(self.number),
            Err(trouble) => {
                self.at = (self.at + 1) % self.config.endpoints.len().max(1);
                self.contact.trouble(self.number, trouble);
            }
        }
        result
    }

    fn ask_member<T>(
        &mut self,
        call: impl AsyncFn(Channel) -> Result<T, Status>,
    ) -> Result<T, Trouble> {
        let Some(endpoint) = self.config.endpoints.get(self.at) else {
            return Err(Trouble("etcd has no endpoints".to_owned()));
        };
        let wrong = |what: String| Trouble(format!("{}: {what}", endpoint.text));
        let timeout = self.timeout();
        let (kept, tls) = (self.channel.take(), self.tls.as_ref());
        let answer = async {
            if let Some(channel) = kept {
                match call(channel.clone()).await {
                    // A kept connection was closed meanwhile; the member may be well.
                    Err(status) if status.source().is_some() => {}
                    result => return Ok((result?, channel)),
                }
            }
            let channel = connect(endpoint, tls).await?;
            Ok::<_, Failure>((call(channel.clone()).await?, channel))
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(timeout, answer).await });
        let late = || wrong(format!("no answer within {} ms", timeout.as_millis()));
        let (answer, channel) =
            answer.map_err(|_| late())?.map_err(|failure| wrong(cause(&failure)))?;
        self.channel = Some(channel);
        Ok(answer)
    }

    pub(super) fn range(
        &mut self,
        key: &str,
        end: Option<&str>,
        limit: usize,
        revision: i64,
    ) -> Result<RangeResponse, Trouble> {
        let range_end = end.unwrap_or_default().into();
        let request = RangeRequest { key: key.into(), range_end, limit: limit as i64, revision };
        self.ask(async |channel| Ok(kv(channel).range(request.clone()).await?.into_inner()))
    }

    pub(super) fn transaction(
        &mut self,
        compare: Vec<Compare>,
        success: Vec<RequestOp>,
        failure: Vec<RequestOp>,
    ) -> Result<TxnResponse, Trouble> {
        let request = TxnRequest { compare, success, failure };
        self.ask(async |channel| Ok(kv(channel).txn(request.clone()).await?.into_inner()))
    }

    pub(super) fn grant(&mut self, seconds: u64) -> Result<LeaseGrantResponse, Trouble> {
        let request = LeaseGrantRequest { ttl: seconds as i64 };
        let granted = self.ask(async |channel| {
            Ok(LeaseClient::new(channel).lease_grant(request).await?.into_inner())
        })?;
        if granted.id == 0 || granted.ttl <= 0 {
            Err(Trouble("etcd has granted no lease".to_owned()))
        } else {
            Ok(granted)
        }
    }

    /// Renews a lease: its remaining time, seconds; 0 if it does not exist any more.
    pub(super) fn renew(&mut self, lease: i64) -> Result<i64, Trouble> {
        let request = LeaseKeepAliveRequest { id: lease };
        self.ask(async |channel| {
            let answers =
                LeaseClient::new(channel).lease_keep_alive(tokio_stream::once(request)).await?;
            let answer = answers.into_inner().message().await?;
            Ok(answer.ok_or_else(|| Status::unavailable("it has not renewed the lease"))?.ttl)
        })
    }

    pub(super) fn revoke(&mut self, lease: i64) -> Result<(), Trouble> {
        let request = LeaseRevokeRequest { id: lease };
        self.ask(async |channel| LeaseClient::new(channel).lease_revoke(request).await.map(drop))
    }
}

pub(super) fn put(key: &str, value: &[u8], lease: i64) -> RequestOp {
    RequestOp {
        request: Some(Request::RequestPut(PutRequest {
            key: key.into(),
            value: value.into(),
            lease,
        })),
    }
}

pub(super) fn get(key: &str) -> RequestOp {
    RequestOp {
        request: Some(Request::RequestRange(RangeRequest {
            key: key.into(),
            ..RangeRequest::default()
        })),
    }
}

pub(super) fn delete(key: &str, end: &str) -> RequestOp {
    let request = DeleteRangeRequest { key: key.into(), range_end: end.into() };
    RequestOp { request: Some(Request::RequestDeleteRange(request)) }
}

fn compare(key: &str, target: CompareTarget, value: TargetUnion) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: key.into(),
        target_union: Some(value),
    }
}

/// Compares the revision that made a key (0: there is no such key), or changed it last.
pub(super) fn made_by(key: &str, revision: i64) -> Compare {
    compare(key, CompareTarget::Create, TargetUnion::CreateRevision(revision))
}

pub(super) fn changed_by(key: &str, revision: i64) -> Compare {
    compare(key, CompareTarget::Mod, TargetUnion::ModRevision(revision))
}

pub(super) fn is_value(key: &str, value: &str) -> Compare {
    compare(key, CompareTarget::Value, TargetUnion::Value(value.into()))
}

impl TxnResponse {
    /// The key that the request with this index has found.
    pub(super) fn found(&self, at: usize) -> Option<&KeyValue> {
        let Response::ResponseRange(range) = self.responses.get(at)?.response.as_ref()?;
        range.kvs.first()
    }
}
