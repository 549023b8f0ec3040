//! A state server on the fabric, and an instance's session with it.
//!
//! Theory of operation. A channel loses nothing while both sides live, so a session is an acquaintance of two lives: an instance says hello to each life of the server that it hears of, and is
//! welcome as soon as the server knows it. Hello and welcome say what each side remembers, so that what a server's end has lost is said again, by the [links](holdfast_state::link). Messages go as many
//! to a record as there are. The instance numbers its sessions, and every record says of which it is: what is still under way of one that is over is nothing.
//!
//! Besides, a session's messages may go as [words] on a way of their own, in shared memory or as remote writes: both sides say so in their greetings. If either cannot, they go on the fabric.
//!
//! An instance joins by its first hello, and tells the coordinator that it is there when it has been welcomed: so no flow goes to anybody whom the server does not know.

mod server;
mod session;
mod stream;
pub mod words;

pub use server::{StateServer, StateServerConfig};
pub use session::{Pools, StateSession};
pub use words::Words;

use holdfast_state::{Form, Message};
use holdfast_wire::DropReason;
use words::{Address, Transport};
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of one record, at most, and of the session's number at its beginning.
const RECORD: usize = 1024;
const SESSION: usize = 4;

/// What both sides say at the beginning of a session.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Greeting {
    /// 1 if `memory` is known: of the server always.
    is_known: u8,
    /// Bytes of a message, 4 or 8: the server's word counts.
    size: u8,
    /// The session's number.
    session: U32,
    /// What the server is known by.
    memory: U64,
    /// So many of the other side's messages have arrived here.
    received: U64,
}

/// What goes behind it if the session's messages are to go as words: which way that is, and where this side's end is.
type Way = (Transport, Address);

const GREETING: usize = size_of::<Greeting>();
const GREETING_AT_MOST: usize = GREETING + 1 + Address::LONGEST;

impl Greeting {
    fn read(body: &[u8]) -> Result<(Greeting, Form, Option<Way>), DropReason> {
        let (greeting, rest) = Greeting::read_from_prefix(body).map_err(|_| DropReason::Malformed)?;
        let form = [Form::Narrow, Form::Wide].into_iter().find(|form| form.size() == usize::from(greeting.size));
        let form = form.filter(|_| greeting.is_known < 2).ok_or(DropReason::Malformed)?;
        let way = match rest.split_first() {
            None => None,
            Some((transport, address)) => {
                let transport = Transport::from_number(*transport).ok_or(DropReason::Malformed)?;
                Some((transport, Address::new(address).ok_or(DropReason::Malformed)?))
            }
        };
        Ok((greeting, form, way))
    }

    /// Has `send` look at it.
    fn write<T>(&self, way: Option<&Way>, send: impl FnOnce(&[u8]) -> T) -> T {
        let mut body = [0; GREETING_AT_MOST];
        body[..GREETING].copy_from_slice(self.as_bytes());
        let Some((transport, address)) = way else { return send(&body[..GREETING]) };
        let (address, at) = (address.bytes(), GREETING + 1);
        body[GREETING] = *transport as u8;
        body[at..at + address.len()].copy_from_slice(address);
        send(&body[..at + address.len()])
    }
}

/// The session's number, and the messages behind it.
fn of_session(body: &[u8]) -> Result<(u32, &[u8]), DropReason> {
    let (session, messages) = body.split_first_chunk::<SESSION>().ok_or(DropReason::Malformed)?;
    Ok((u32::from_be_bytes(*session), messages))
}

/// A message that came by the fabric, where records tell sessions apart.
fn unframed(message: Result<Message, DropReason>) -> Result<Message, DropReason> {
    message.and_then(|message| if message.opcode.is_framing() { Err(DropReason::Malformed) } else { Ok(message) })
}

/// Takes messages from `poll`, while there are some and the way has room, and gives them to `send` by the record. False if one was not sent, or a message is of a list that this form cannot name: that is lost to the session.
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
