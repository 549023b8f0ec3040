//! Ways on which sessions' messages go besides the fabric, as words of four bytes.
//!
//! Theory of operation (RESCue, section IV: a control message is the immediate data of a remote write that carries nothing else). Hello, welcome and the end of a session stay on the fabric: that is the
//! connection manager. With them go the addresses of two *ends*, which are made for one session and closed with it, so that what is still under way of an earlier one has nowhere to arrive. Between the ends there are words, in
//! order, and nothing around them; what makes a session of them is in [`stream`](super::stream).
//!
//! A driver is behind [`Words`]: shared memory and remote writes in `io`, a network that loses in the simulator. It is asked, and never calls. What it does not promise: that words arrive. It may lose
//! whatever was given to it in one call of [`Words::send`], from some word on, with all that follows until a later call. That is what a connection does that breaks and is made anew.

use crate::address::NodeId;
use core::fmt;

/// What a way is called in greetings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Transport {
    /// Rings in memory that both sides have.
    SharedMemory = 1,
    /// Remote writes that carry nothing but their immediate data.
    RemoteWrite = 2,
}

impl Transport {
    pub(super) fn from_number(number: u8) -> Option<Transport> {
        [Transport::SharedMemory, Transport::RemoteWrite].into_iter().find(|transport| *transport as u8 == number)
    }
}

/// Where an end is found: what its driver says, and only that driver reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address {
    len: u8,
    bytes: [u8; Address::LONGEST],
}

impl Address {
    /// Bytes, at most.
    pub const LONGEST: usize = 160;

    /// `None` if that is too long.
    pub fn new(of: &[u8]) -> Option<Address> {
        let mut bytes = [0; Address::LONGEST];
        bytes.get_mut(..of.len())?.copy_from_slice(of);
        Some(Address { len: of.len() as u8, bytes })
    }

    /// What it is.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({:02x?})", self.bytes())
    }
}

/// There is no such end any more, or nothing can be made of what the other side says: the session is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost;

/// A driver. It has one end for each node, at most. See the module.
pub trait Words {
    /// Which way it is: both sides of a session need the same.
    fn transport(&self) -> Transport;

    /// Makes an end for a new session with this node, in place of an earlier one.
    ///
    /// # Errors
    /// It cannot be made now. The driver says why where an operator reads it.
    fn open(&mut self, node: NodeId) -> Result<Address, Lost>;

    /// Ties that end to the one that has this address. Either side may be first.
    ///
    /// # Errors
    /// It is no address, or nobody is there.
    fn connect(&mut self, node: NodeId, address: &Address) -> Result<(), Lost>;

    /// Closes the end, if there is one.
    fn close(&mut self, node: NodeId);

    /// Takes words that have come, and says how many.
    ///
    /// # Errors
    /// Nothing comes any more. What came before may be lost too.
    fn receive(&mut self, node: NodeId, into: &mut [u32]) -> Result<usize, Lost>;

    /// So many words can be sent now.
    fn room(&mut self, node: NodeId) -> usize;

    /// Sends words, for which there is room. They leave when the driver is told that what led to them holds.
    fn send(&mut self, node: NodeId, words: &[u32]);
}
