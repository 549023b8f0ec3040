//! Output commit as a type: what a port may transmit.

/// Something that may leave the system: every state change that it reveals survives a failure, as far
/// as its protection promises, or it reveals none.
///
/// Ports transmit only `Released<Packet>`. A chain's packet becomes one in two places and nowhere else: where a
/// protection commits it, and at the fence of the manager, which accepts what a runtime that may
/// still speak has released.
#[derive(Debug)]
#[must_use = "a released packet is for a port"]
pub struct Released<T>(T);

impl<T> Released<T> {
    /// For protections: the commit rule holds for `inner`.
    pub(crate) fn by_commit(inner: T) -> Released<T> {
        Released(inner)
    }

    /// For what no flow's state stands behind: the box's own ARP, neighbour discovery and ICMP. Never for a chain's packet.
    pub fn stateless(inner: T) -> Released<T> {
        Released(inner)
    }

    /// A look at it.
    pub fn get(&self) -> &T {
        &self.0
    }

    /// Takes it out, for the port that transmits it or the pool that its buffer returns to.
    pub fn into_inner(self) -> T {
        self.0
    }
}
