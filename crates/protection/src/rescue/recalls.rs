//! Whose flows are asked for, and which servers have still to deal what they have of them.

use crate::Peer;

/// How far one server is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Not,
    /// In this life of it.
    Of(Peer),
    /// It has no more.
    Over,
}

/// What is asked for of one that has died.
struct Recall {
    dead: Peer,
    /// By share. Of those behind its end nobody has been asked.
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

    /// This share's server, in this life of it, is still to be asked.
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
    /// Every server is to be asked for what there is of it.
    pub(super) fn begin(&mut self, dead: Peer) {
        if !self.is_open(dead) {
            self.list.push(Recall { dead, asked: Vec::new() });
        }
    }

    /// Not all servers have dealt everything.
    pub(super) fn is_open(&self, dead: Peer) -> bool {
        self.list.iter().any(|recall| recall.dead == dead)
    }

    /// This share's server has something to be asked.
    pub(super) fn is_any_due(&self, share: usize, server: Peer) -> bool {
        self.list.iter().any(|recall| recall.is_due(share, server))
    }

    /// Has `ask` ask this share's server for what it is still to be asked for, until that returns false. True if it never did.
    pub(super) fn ask(&mut self, share: usize, server: Peer, mut ask: impl FnMut(Peer) -> bool) -> bool {
        self.list.iter_mut().filter(|recall| recall.is_due(share, server)).all(|recall| {
            let is_asked = ask(recall.dead);
            if is_asked {
                recall.note(share, Asked::Of(server));
            }
            is_asked
        })
    }

    /// The server of one of so many shares has dealt all that it has of it.
    pub(super) fn dealt(&mut self, dead: Peer, share: usize, shares: usize) {
        self.list.iter_mut().filter(|recall| recall.dead == dead).for_each(|recall| recall.note(share, Asked::Over));
        self.list.retain(|recall| recall.dead != dead || (0..shares).any(|share| recall.of(share) != Asked::Over));
    }
}
