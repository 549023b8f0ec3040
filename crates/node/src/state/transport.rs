//! Control transports: carry a session's messages beside the fabric, as words of four
//! bytes.
//!
//! Theory of operation (RESCue, section IV: a control message is the immediate data of a
//! remote write that carries nothing else). Hello, welcome and the end of a session stay
//! on the fabric, which is the connection manager. These messages carry the addresses of
//! two *ends*, which are made for one session and closed with it, so words of an earlier
//! session have nowhere to arrive. Between the ends go words, in order and without
//! frames; `stream` makes a session of them.
//!
//! A driver implements [`ControlTransport`]: shared memory and remote writes in `io`, a
//! network with losses in the simulator. The driver is called, and never calls. Delivery
//! is not promised: of the words of one [`ControlTransport::send`] a driver may lose all
//! from some word on, and everything behind them until a later call. A connection that
//! breaks and is made anew does that.

use core::fmt;
use holdfast_wire::NodeId;

/// A transport's number in greetings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Transport {
    /// Rings in memory that both sides map.
    SharedMemory = 1,
    /// Remote writes that carry nothing but their immediate data.
    RemoteWrite = 2,
}

impl Transport {
    pub(super) fn from_number(number: u8) -> Option<Transport> {
        [Transport::SharedMemory, Transport::RemoteWrite]
            .into_iter()
            .find(|transport| *transport as u8 == number)
    }
}

/// The address of an end, in its driver's own format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address {
    len: u8,
    bytes: [u8; Address::LONGEST],
}

impl Address {
    /// Bytes at most.
    pub const LONGEST: usize = 160;

    /// An address of these bytes. `None` if they are too many.
    pub fn new(of: &[u8]) -> Option<Address> {
        let mut bytes = [0; Address::LONGEST];
        bytes.get_mut(..of.len())?.copy_from_slice(of);
        Some(Address { len: of.len() as u8, bytes })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({:02x?})", self.bytes())
    }
}

/// The end is gone, or the other side's bytes make no sense: the session has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost;

/// A driver of a control transport, with at most one end for each node. See the module.
pub trait ControlTransport {
    /// The transport: both sides of a session need the same.
    fn transport(&self) -> Transport;

    /// Makes an end for a new session with this node, in place of an earlier one.
    ///
    /// # Errors
    /// [`Lost`] if that is impossible now. The driver tells the operator why.
    fn open(&mut self, node: NodeId) -> Result<Address, Lost>;

    /// Ties the end to the other side's address. Either side may be first.
    ///
    /// # Errors
    /// [`Lost`] if the address is bad, or its end is gone.
    fn connect(&mut self, node: NodeId, address: &Address) -> Result<(), Lost>;

    /// Closes the end, if there is one.
    fn close(&mut self, node: NodeId);

    /// Takes words that have arrived, and returns their number.
    ///
    /// # Errors
    /// [`Lost`] if no more will come. Earlier words may be lost too.
    fn receive(&mut self, node: NodeId, into: &mut [u32]) -> Result<usize, Lost>;

    /// The number of words that can be sent now.
    fn room(&mut self, node: NodeId) -> usize;

    /// Sends words, for which there is room. The driver lets them leave when it is told
    /// that the turn that led to them is committed.
    fn send(&mut self, node: NodeId, words: &[u32]);
}
