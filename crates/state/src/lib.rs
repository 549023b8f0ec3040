//! Shared state at a server: lists of numbers, and statistics.
//!
//! Theory of operation (RESCue, sections III and IV). State that flows share is kept in
//! *lists* at a state server. A list has a fixed number of *indexes* (a NAT's ports, a
//! balancer's connections), each of which is at most one flow's. Runtimes are
//! *instances*: they request indexes, report their use and return them, all in
//! [messages](control) of four bytes. The server assigns indexes, remembers their
//! holders, asks about indexes that have been silent for long, and lets each rest before
//! it is assigned again. Counters and gauges are lists too: in a list of *statistics*
//! every instance has a part of each number.
//!
//! Everything here is a state machine: messages, the beginning and end of sessions, and
//! time go in; messages come out. The same inputs in the same order give the same server,
//! which is how its standby is made. Never: a clock, a thread, a socket.

#![forbid(unsafe_code)]

pub mod client;
pub mod control;
pub mod link;
pub mod number_list;
pub mod primary;
pub mod server;
pub mod statistics;
pub mod wheel;

pub use client::{Client, Heard};
pub use control::{Form, Message, Opcode};
pub use link::Link;
pub use number_list::{Account, Limits, List, Output, SERVER_CREDIT};
pub use primary::Primary;
pub use server::{Input, Kind, Refused, Server};
pub use statistics::Statistics;
