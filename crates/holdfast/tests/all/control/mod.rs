//! The control socket against clients that behave and clients that do not. The packet
//! loop is a thread that answers from a script.

mod answers;
mod applying;
mod clients;
mod scripted;
mod socket;

use holdfast::config;
use holdfast::control::{
    self, MAX_CLIENTS, MAX_CONNECTIONS, Page, Request, Running, Server, Traced, Work,
};
use holdfast_control::api::apply_reply::Result as Reply;
use holdfast_control::api::control_client::ControlClient;
use holdfast_control::api::{
    Applied, Flow, ListFlowsRequest, MigrateRequest, PingReply, Progress, Rule, RuleChanges,
    TraceRequest, TraceStep,
};
use holdfast_control::exit;
use holdfast_control::status::{Protected, Status};
use holdfast_control::{Client, channel_over};
use holdfast_node::message::{Control, ListCursor, Order};
use holdfast_protection::Peer;
use holdfast_wire::selector::Selector;
use holdfast_wire::{FlowKey, NodeId, ip_bytes};
use scripted::{Box, ByHand, CONFIGURATION, LIMIT, Scratch, progress, until};
pub(crate) use scripted::{flow, refusal};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
