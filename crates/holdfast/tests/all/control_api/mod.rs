//! The control API over the loopback, with real certificates: clients that are allowed
//! in, clients that are not, and peers that speak another protocol. The packet loop is a
//! thread that answers from a script.

mod certificates;
mod limits;
mod roles;
mod scripted;

use crate::control::refusal;
use holdfast::config::{self, ControlEntry};
use holdfast::control::Limits;
use holdfast::control::{self, Answer, Page, Request, Running, Server, Traced, Work};
use holdfast_control::api::apply_reply::Result as Reply;
use holdfast_control::api::{
    FlowTable, Host, MigrateRequest, PingReply, Pool, Process, Progress, Protected, Rules,
    ServerPool, Statistic, StatisticValue, Status, TraceStep,
};
use holdfast_control::certify::{Subject, certify};
use holdfast_control::exit::{self, Failure};
use holdfast_control::tls::{CA_FILE, CERTIFICATE_FILE, KEY_FILE, TlsPaths};
use holdfast_control::{Client, MAX_FILE, Target};
use holdfast_control::{Endpoint, fetch};
use holdfast_lab::Interrupt;
use holdfast_node::message::Order;
use holdfast_wire::NodeId;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use scripted::{BUSY, Box, CONFIGURATION, LIMIT, by_hand, is_closed, progress, until};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use time::OffsetDateTime;
