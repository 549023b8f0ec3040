//! The control API: what the local socket offers, as gRPC over mutual TLS.
//!
//! Theory of operation: the manager listens with one thread of its own, of low priority, on which a small asynchronous runtime serves all connections. A connection
//! has a place when its handshake is over; handshakes have a time, and limits, per address and in all, so that a few who have no certificate cannot keep out who has one.
//! Whom a certificate is of is read once, when the handshake is over; what the caller may do is looked at with each call ([`calls`]). A call becomes a
//! [`Call`](holdfast_control::Call) for the [`Service`](super::service::Service) that the local socket asks too, on a thread that may wait.
//!
//! In: connections. Out: answers; counts of what was refused, by reason. Never: the packet loop's thread, a place without a limit, an answer to somebody without
//! a certificate.

mod calls;
mod connection;
mod server;

pub(super) use server::Server;

use holdfast_control::{MAX_FILE, MAX_REQUEST, PATIENCE};
use std::time::Duration;

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
            handshake: PATIENCE,
            idle: Duration::from_secs(60),
        }
    }
}

/// Longest message of a client, bytes: a configuration and its name.
const MAX_MESSAGE: usize = MAX_FILE + MAX_REQUEST;
