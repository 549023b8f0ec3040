//! Where shared state lives that is not in a runtime.
//!
//! Theory of operation (RESCue, sections III and IV). What flows share is kept in *lists* at a state server: a list has so many *indexes* (a NAT's ports, a
//! balancer's seats), and each index is at most one flow's. The runtimes are *instances*: they ask for indexes, say that they are in use, give them back; all
//! of it in [messages](control) of four bytes. The server assigns, remembers who has what, asks about indexes of which nothing has been heard for long, and
//! lets each rest before somebody else gets it. What flows count and measure is kept in lists too, whose *statistics* have a part of each instance's.
//!
//! Everything here is a state machine: messages, sessions that begin and end, and time go in; messages come out. The same inputs in the same order give the same
//! server, which is what a standby of it is made from. Never: a clock, a thread, a socket.

#![forbid(unsafe_code)]

pub mod client;
pub mod control;
pub mod link;
pub mod list;
pub mod primary;
pub mod server;
pub mod statistics;
pub mod wheel;

pub use client::{Client, Heard};
pub use control::{Form, Message, Opcode};
pub use link::Link;
pub use list::{Account, Limits, List, Output, SERVER_CREDIT};
pub use primary::Primary;
pub use server::{Input, Kind, Refused, Server};
pub use statistics::Statistics;
