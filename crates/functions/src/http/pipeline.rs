//! Outstanding requests of a connection, in order. A response's framing depends on the
//! method of its request (RFC 9112, section 6.3), and the response is counted under the
//! host of that request.

/// Maximum number of outstanding requests of one connection.
const MOST: usize = 32;
/// Bits of an entry that hold the host.
const HOST_BITS: u8 = 6;
/// Number of hosts that an entry can tell apart, "other" included.
pub(super) const HOSTS: usize = 1 << HOST_BITS;

/// Kinds of request methods, as far as a response's framing depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any other method.
    Other,
    /// HEAD: the response has no body.
    Head,
    /// CONNECT: a tunnel follows a successful response.
    Connect,
}

holdfast_nf::flow_state! {
    /// A ring of outstanding requests.
    pub struct Pipeline {
        /// Kind and host of each request.
        pub entries: [u8; MOST],
        /// The index of the oldest request.
        pub first: u8,
        /// The number of requests.
        pub len: u8,
    }
}

impl Pipeline {
    /// Adds a request; false if there is no room.
    pub(super) fn push(&mut self, kind: Kind, host: usize) -> bool {
        let at = (usize::from(self.first) + usize::from(self.len)) % MOST;
        let has_room = usize::from(self.len) < MOST;
        if has_room {
            self.entries[at] = (kind as u8) << HOST_BITS | host as u8;
            self.len += 1;
        }
        has_room
    }

    /// The oldest request's kind and host, if there is one.
    pub(super) fn oldest(&self) -> Option<(Kind, usize)> {
        let entry = *self.entries.get(usize::from(self.first)).filter(|_| self.len > 0)?;
        let kind = match entry >> HOST_BITS {
            1 => Kind::Head,
            2 => Kind::Connect,
            _ => Kind::Other,
        };
        Some((kind, usize::from(entry) % HOSTS))
    }

    /// Removes the oldest request.
    pub(super) fn pop(&mut self) {
        self.len = self.len.saturating_sub(1);
        self.first = self.first.wrapping_add(1) % MOST as u8;
    }

    /// True if no request is outstanding.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}
