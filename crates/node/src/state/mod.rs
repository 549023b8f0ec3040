//! A state server on the fabric, and an instance's session with it.
//!
//! Theory of operation. A channel loses nothing while both incarnations live, so a
//! session belongs to one incarnation of each side. An instance sends a hello to each
//! incarnation of the server that it hears of. The server answers with a welcome as soon
//! as it knows the instance. Hello and welcome say what each side remembers, and the
//! [links](holdfast_state::link) send again what the other side's death has lost. A
//! record carries as many messages as fit. The instance numbers its sessions, and every
//! record names its session: records of a session that is over are ignored.
//!
//! A session's messages may also go over a control transport ([transport]), in shared
//! memory or as remote writes: both sides say so in their greetings. If either cannot,
//! they go over the fabric.
//!
//! An instance joins by its first hello, and tells the coordinator that it is there when
//! it has been welcomed. No flow goes to an instance that the server does not know.

mod server;
mod session;
mod stream;
pub mod transport;

pub use server::{StateServer, StateServerConfig};
pub use session::{Pools, StateSession};
pub use transport::ControlTransport;

use holdfast_state::{Form, Message};
use holdfast_wire::DropReason;
use transport::{Address, Transport};
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of one record at most, and of the session's number at its beginning.
const RECORD: usize = 1024;
const SESSION: usize = 4;

/// The content of hello and welcome.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Greeting {
    /// 1 if `memory` is known; always 1 from the server.
    is_known: u8,
    /// Bytes of a message, 4 or 8: the server decides.
    size: u8,
    /// The session's number.
    session: U32,
    /// The number that identifies the server's memory.
    memory: U64,
    /// Messages of the other side that have arrived here.
    received: U64,
}

/// The offer of a control transport behind a greeting: which transport, and the address
/// of this side's end.
type End = (Transport, Address);

const GREETING: usize = size_of::<Greeting>();
const GREETING_AT_MOST: usize = GREETING + 1 + Address::LONGEST;

impl Greeting {
    fn read(body: &[u8]) -> Result<(Greeting, Form, Option<End>), DropReason> {
        let (greeting, rest) =
            Greeting::read_from_prefix(body).map_err(|_| DropReason::Malformed)?;
        let form = [Form::Narrow, Form::Wide]
            .into_iter()
            .find(|form| form.size() == usize::from(greeting.size));
        let form = form.filter(|_| greeting.is_known < 2).ok_or(DropReason::Malformed)?;
        let end = match rest.split_first() {
            None => None,
            Some((transport, address)) => {
                let transport = Transport::from_number(*transport).ok_or(DropReason::Malformed)?;
                Some((transport, Address::new(address).ok_or(DropReason::Malformed)?))
            }
        };
        Ok((greeting, form, end))
    }

    /// Encodes the greeting and gives the bytes to `send`.
    fn write<T>(&self, end: Option<&End>, send: impl FnOnce(&[u8]) -> T) -> T {
        let mut body = [0; GREETING_AT_MOST];
        body[..GREETING].copy_from_slice(self.as_bytes());
        let Some((transport, address)) = end else { return send(&body[..GREETING]) };
        let (address, at) = (address.bytes(), GREETING + 1);
        body[GREETING] = *transport as u8;
        body[at..at + address.len()].copy_from_slice(address);
        send(&body[..at + address.len()])
    }
}

/// Splits a record into the session's number and its messages.
fn of_session(body: &[u8]) -> Result<(u32, &[u8]), DropReason> {
    let (session, messages) = body.split_first_chunk::<SESSION>().ok_or(DropReason::Malformed)?;
    Ok((u32::from_be_bytes(*session), messages))
}

/// A message from the fabric. Words that delimit a session are refused: records tell
/// sessions apart.
fn unframed(message: Result<Message, DropReason>) -> Result<Message, DropReason> {
    message.and_then(|message| {
        if message.opcode.is_framing() { Err(DropReason::Malformed) } else { Ok(message) }
    })
}

/// Packs messages from `poll` into records for `send`, while there are messages and
/// `room`. False if a record was not sent, or this form cannot name a message's list: the
/// session has lost that message.
fn carry(
    form: Form,
    session: u32,
    room: usize,
    mut poll: impl FnMut() -> Option<Message>,
    mut send: impl FnMut(&[u8]) -> bool,
) -> bool {
    let mut record = [0; RECORD];
    record[..SESSION].copy_from_slice(&session.to_be_bytes());
    let mut left = room;
    loop {
        let limit = RECORD.min(left);
        let mut len = SESSION;
        while len + form.size() <= limit
            && let Some(message) = poll()
        {
            let size = form.put(message, &mut record[len..]);
            if size == 0 {
                return false;
            }
            len += size;
        }
        if len == SESSION {
            return true;
        }
        left -= len;
        if !send(&record[..len]) {
            return false;
        }
    }
}
