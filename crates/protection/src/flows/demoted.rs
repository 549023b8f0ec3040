//! Flows that were owned here, and are another runtime's under a newer epoch.

use super::{ActorHeader, Flows, HEADER_LEN, Line, Slot};
use zerocopy::{FromBytes, IntoBytes};

/// A flow that another runtime owns under a newer epoch, as it was while it was owned
/// here. The arriving state is written over its slot.
pub struct Demoted {
    /// The slot of the flow, now a replica.
    pub slot: Slot,
    lines: Vec<Line>,
    state_len: usize,
    /// Set if the state was not absent, or has been fetched since.
    is_known: bool,
}

impl Demoted {
    /// The header and the chain's state, to end the flow here. The state is `None` if it
    /// was [absent](Flows::is_present).
    pub fn parts_mut(&mut self) -> (&ActorHeader, Option<&mut [u8]>) {
        match ActorHeader::mut_from_prefix(self.lines.as_mut_bytes()) {
            Ok((header, rest)) => (header, self.is_known.then(|| &mut rest[..self.state_len])),
            Err(_) => unreachable!("it is a copy of a slot"),
        }
    }
}

impl Flows {
    #[cold]
    pub(super) fn note_demoted(&mut self, slot: Slot) {
        let mut lines = self.lines[self.range(slot)].to_vec();
        lines.resize(self.stride, Line([0; 64]));
        let is_known = self.is_present(slot);
        self.demoted.push(Demoted { slot, lines, state_len: self.state_len, is_known });
    }

    /// Sets the state of the flow that was demoted last, if its state was absent.
    pub(crate) fn know_demoted(&mut self, slot: Slot, state: &[u8]) {
        if let Some(demoted) =
            self.demoted.last_mut().filter(|demoted| demoted.slot == slot && !demoted.is_known)
        {
            demoted.lines.as_mut_bytes()[HEADER_LEN..HEADER_LEN + self.state_len]
                .copy_from_slice(state);
            demoted.is_known = true;
        }
    }

    /// Flows that were owned here and have become replicas since the last call.
    pub fn take_demoted(&mut self) -> Vec<Demoted> {
        core::mem::take(&mut self.demoted)
    }
}
