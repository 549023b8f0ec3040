//! The control API: what the local socket offers, as gRPC over mutual TLS.
//!
//! Theory of operation: the manager listens with one thread of its own, of low priority, on which a small asynchronous runtime serves all connections. A connection
//! has a place when its handshake is over; handshakes have a time, and limits, per address and in all, so that a few who have no certificate cannot keep out who has one.
//! Whom a certificate is of is read once, when the handshake is over; what the caller may do is looked at with each call ([`calls`]). A call becomes a
//! [`Call`](super::Call) for the [`Service`](super::service::Service) that the local socket asks too, on a thread that may wait.
//!
//! In: connections. Out: answers; counts of what was refused, by reason. Never: the packet loop's thread, a place without a limit, an answer to somebody without
//! a certificate.

mod calls;
mod client;
mod connection;
mod convert;
mod server;

pub use client::{Endpoint, fetch};
pub(super) use client::{RemoteClient, Streamed};
pub(super) use server::Server;

use std::time::Duration;

/// The types of the .proto file.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod api {
    tonic::include_proto!("holdfast.control.v1");
}

/// Without its contents: they are secrets.
impl std::fmt::Debug for api::File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("path", &self.path).finish_non_exhaustive()
    }
}

/// How [`api::Protected`] stands in the status object.
mod protected {
    use super::api::Protected;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    const WORDS: [(Protected, &str); 3] =
        [(Protected::Yes, "yes"), (Protected::No, "no"), (Protected::ReSynchronising, "re-synchronising")];

    pub(super) fn serialize<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        let word = WORDS.iter().find(|(known, _)| *known as i32 == *value).map_or("no", |(_, word)| word);
        word.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
        let word = String::deserialize(deserializer)?;
        Ok(WORDS.iter().find(|(_, known)| *known == word).map_or(0, |(known, _)| *known as i32))
    }
}

/// How much is served at a time, and how long somebody may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections whose handshake is over.
    pub connections: usize,
    /// Connections before that.
    pub handshakes: usize,
    /// Of these, from one address.
    pub handshakes_per_address: usize,
    /// Calls, streams included.
    pub calls: usize,
    /// For a handshake.
    pub handshake: Duration,
    /// Without a byte from a client. One that is alive answers a ping before.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 64,
            handshakes: 64,
            handshakes_per_address: 8,
            calls: super::MAX_CLIENTS,
            handshake: super::PATIENCE,
            idle: Duration::from_secs(60),
        }
    }
}

/// Longest message of a client, bytes: a configuration and its name.
const MAX_MESSAGE: usize = crate::config::MAX_FILE + super::MAX_REQUEST;
