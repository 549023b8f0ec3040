//! Recalls: dead runtimes whose flows are requested, and servers that have still to deal
//! theirs.

use crate::Peer;

/// Progress of a recall at one server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Not,
    /// Asked, in this incarnation of the server.
    Of(Peer),
    /// The server has no more flows.
    Over,
}

/// The recall of a dead runtime's flows.
struct Recall {
    dead: Peer,
    /// By share. Servers of shares beyond the end have not been asked.
    asked: Vec<Asked>,
}

impl Recall {
    fn of(&self, share: usize) -> Asked {
        self.asked.get(share).copied().unwrap_or(Asked::Not)
    }

    fn note(&mut self, share: usize, asked: Asked) {
        if share >= self.asked.len() {
            self.asked.resize(share + 1, Asked::Not);
        }
        self.asked[share] = asked;
    }

    /// True if this incarnation of the share's server is still to be asked.
    fn is_due(&self, share: usize, server: Peer) -> bool {
        !matches!(self.of(share), Asked::Over) && self.of(share) != Asked::Of(server)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Recalls {
    list: Vec<Recall>,
}

impl Recalls {
    /// Begins a recall: every server is to be asked for the flows of `dead`.
    pub(super) fn begin(&mut self, dead: Peer) {
        if !self.is_open(dead) {
            self.list.push(Recall { dead, asked: Vec::new() });
        }
    }

    /// True while a server has not dealt all flows of `dead`.
    pub(super) fn is_open(&self, dead: Peer) -> bool {
        self.list.iter().any(|recall| recall.dead == dead)
    }

    /// True if this share's server is still to be asked about a dead runtime.
    pub(super) fn is_any_due(&self, share: usize, server: Peer) -> bool {
        self.list.iter().any(|recall| recall.is_due(share, server))
    }

    /// Calls `ask` for each recall that this share's server is still to be asked about,
    /// until it returns false. True if it never did.
    pub(super) fn ask(
        &mut self,
        share: usize,
        server: Peer,
        mut ask: impl FnMut(Peer) -> bool,
    ) -> bool {
        self.list.iter_mut().filter(|recall| recall.is_due(share, server)).all(|recall| {
            let is_asked = ask(recall.dead);
            if is_asked {
                recall.note(share, Asked::Of(server));
            }
            is_asked
        })
    }

    /// Notes that the server of one of so many shares has dealt all its flows of `dead`.
    pub(super) fn dealt(&mut self, dead: Peer, share: usize, shares: usize) {
        self.list
            .iter_mut()
            .filter(|recall| recall.dead == dead)
            .for_each(|recall| recall.note(share, Asked::Over));
        self.list.retain(|recall| {
            recall.dead != dead || (0..shares).any(|share| recall.of(share) != Asked::Over)
        });
    }
}
