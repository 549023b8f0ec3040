//! A state server with a standby: messages reveal only what the standby knows too.
//!
//! Theory of operation. A server's state follows from its [inputs](Input), so the standby
//! is another server that gets the same inputs. A message leaves, and an arrived message
//! is acknowledged, when the standby has all inputs that led to it. State that no
//! instance has seen may be lost. When the standby takes the dead server's place,
//! sessions begin anew, and each side sends what the other has not received.
//!
//! In: inputs, and how many of them the standby has. Out: inputs for the standby,
//! messages for instances.

use crate::control::Message;
use crate::server::{Input, Refused, Server};
use holdfast_wire::Peer;
use holdfast_wire::fault::{Fault, is_planted};
use std::collections::VecDeque;

/// Inputs that may wait for the standby. Beyond that, instances' messages are refused.
const LOG: usize = 1 << 20;

/// The limits of an instance's link once the standby has so many inputs.
#[derive(Debug, Clone)]
struct Mark {
    number: u64,
    peer: Peer,
    sent: u64,
    received: u64,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Primary {
    server: Server,
    /// Inputs that the standby is not known to have. `first` is the first one's number,
    /// counted from 0.
    log: VecDeque<Input>,
    first: u64,
    marks: VecDeque<Mark>,
    has_standby: bool,
    /// The standby is complete once it has all inputs before this number.
    attached: u64,
    /// Counts the standbys that were attached.
    attachment: u32,
    /// How far the server's time is ahead of the clock that it is given.
    ahead: Option<u64>,
}

impl Primary {
    /// Continues this server without a standby. Its sessions begin anew. Before they do,
    /// it is to be told which instances live, and which are dead and not recovered: it
    /// may have missed that.
    pub fn new(server: Server) -> Primary {
        let (log, marks) = (VecDeque::new(), VecDeque::new());
        let mut primary = Primary {
            server,
            log,
            first: 0,
            marks,
            has_standby: false,
            attached: 0,
            attachment: 0,
            ahead: None,
        };
        let peers: Vec<Peer> = primary.server.instances().collect();
        peers.into_iter().for_each(|peer| _ = primary.server.apply(Input::Over(peer)));
        primary.stand_alone();
        primary
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Attaches a standby: it begins with the returned server, and takes inputs from the
    /// returned number on. The third value names the attachment in [`Primary::saved`]. An
    /// earlier standby must not take this server's place any more.
    pub fn attach(&mut self) -> (Server, u64, u32) {
        let next = self.first + self.log.len() as u64;
        (self.attached, self.has_standby) = (u64::MAX, true);
        self.skip();
        self.attachment += 1;
        (self.server.clone(), next, self.attachment)
    }

    /// Detaches the standby: nothing waits for it any more.
    pub fn stand_alone(&mut self) {
        self.has_standby = false;
        self.skip();
    }

    /// Drops the inputs so far, which no standby needs.
    fn skip(&mut self) {
        self.first += self.log.len() as u64;
        self.log.clear();
        self.marks.clear();
        let peers: Vec<Peer> = self.server.instances().collect();
        peers.into_iter().for_each(|peer| self.allow(peer, None));
    }

    /// True if a standby could take over: there is one, and it has said that it is
    /// complete.
    pub fn is_safe(&self) -> bool {
        self.has_standby && self.first >= self.attached
    }

    /// Sets the limits of a link: to the mark, or without one to all that has been sent
    /// and received until now. Without a standby there is no limit.
    fn allow(&mut self, peer: Peer, mark: Option<(u64, u64)>) {
        let has_standby = self.has_standby && !is_planted(Fault::SpeaksBeforeStandby);
        if let Some(link) = self.server.link(peer) {
            let now =
                if has_standby { (link.sent(), link.received()) } else { (u64::MAX, u64::MAX) };
            let (sent, received) = mark.filter(|_| has_standby).unwrap_or(now);
            link.allow(sent, received);
        }
    }

    /// Applies an input.
    ///
    /// # Errors
    /// As [`Server::apply`]. A refused message ends its session. [`Refused::Full`] also
    /// if the standby falls too far behind.
    pub fn apply(&mut self, mut input: Input) -> Result<(), Refused> {
        if let Input::Time(now) = &mut input {
            // The previous server's clock may have been ahead.
            let server = self.server.now();
            *now = now.saturating_add(*self.ahead.get_or_insert(server.saturating_sub(*now)));
        }
        if let Input::Joined(peer) = input
            && self.server.link(peer).is_some()
        {
            return Ok(());
        }
        let new = if let Input::Joined(peer) = input { Some(peer) } else { None };
        if self.log.len() >= LOG && !matches!(input, Input::Said { .. }) {
            // A standby that falls so far behind is useless.
            self.stand_alone();
        }
        let outcome = match input {
            Input::Said { .. } if self.log.len() >= LOG => Err(Refused::Full),
            _ => self.server.apply(input),
        };
        if let (Err(Refused::Full | Refused::OutOfStep), Input::Said { from, .. }) =
            (outcome, input)
        {
            let _ = self.apply(Input::Over(from));
        }
        outcome?;
        let touched = self.server.take_touched();
        if !self.has_standby {
            return Ok(());
        }
        self.log.push_back(input);
        let number = self.first + self.log.len() as u64;
        for peer in touched {
            let Some(link) = self.server.link(peer) else { continue };
            let (sent, received) = (link.sent(), link.received());
            if new == Some(peer) && !is_planted(Fault::SpeaksBeforeStandby) {
                link.allow(0, 0);
            }
            self.marks.push_back(Mark { number, peer, sent, received });
        }
        Ok(())
    }

    /// Inputs from this number on, for the standby. `None` if they are not kept any more.
    pub fn inputs(&self, from: u64) -> Option<impl Iterator<Item = Input> + '_> {
        let skipped =
            from.checked_sub(self.first).filter(|skipped| *skipped <= self.log.len() as u64)?;
        Some(self.log.iter().skip(skipped as usize).copied())
    }

    /// The standby of this attachment has all inputs with smaller numbers.
    pub fn saved(&mut self, attachment: u32, number: u64) {
        if attachment != self.attachment || !self.has_standby {
            return;
        }
        if number >= self.first {
            self.attached = self.attached.min(self.first);
        }
        let count = number.saturating_sub(self.first).min(self.log.len() as u64);
        self.log.drain(..count as usize);
        self.first += count;
        while let Some(mark) = self.marks.pop_front_if(|mark| mark.number <= self.first) {
            self.allow(mark.peer, Some((mark.sent, mark.received)));
        }
    }

    /// How many messages of this instance have arrived, for the beginning of a session.
    /// `None` while the standby does not have them all: then the session has to wait.
    pub fn received(&mut self, peer: Peer) -> Option<u64> {
        self.server.link(peer).filter(|link| link.is_allowed()).map(|link| link.received())
    }

    /// The next message for this instance.
    pub fn poll(&mut self, peer: Peer) -> Option<Message> {
        self.server.link(peer)?.poll()
    }

    /// An acknowledgement for this instance, if it has had no other message for a while.
    pub fn acknowledge(&mut self, peer: Peer) -> Option<Message> {
        self.server.link(peer)?.acknowledge()
    }
}
