//! Requests whose responses are still to come, in order: a response's framing depends on
//! its request's method (RFC 9112, section 6.3), and it is counted under that one's host.

/// Requests of one connection without a response that are remembered.
const MOST: usize = 32;
/// Bits of an entry that say the host.
const HOST_BITS: u8 = 6;
/// Hosts that an entry can tell apart, "other" included.
pub(super) const HOSTS: usize = 1 << HOST_BITS;

/// What a response's framing depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any other method.
    Other,
    /// HEAD: no body comes.
    Head,
    /// CONNECT: a tunnel comes, if it succeeds.
    Connect,
}

holdfast_nf::flow_state! {
    /// A ring of requests.
    pub struct Pipeline {
        /// Kind and host of each.
        pub entries: [u8; MOST],
        /// The index of the oldest.
        pub first: u8,
        /// Their number.
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

    /// True if no response is to come.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}
