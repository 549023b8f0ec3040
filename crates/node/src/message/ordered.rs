//! Messages between runtimes and coordinator that take effect exactly once.

use super::{Control, kind};
use crate::channel::Fabric;
use holdfast_wire::{DropReason, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Messages of one direction that take effect exactly once although the coordinator may
/// die at any instruction. The sender keeps each until it is [settled](Control::Settled),
/// and the receiver knows by the number whether it has had it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ordered {
    last: u64,
    kept: VecDeque<Control>,
    /// The last message that was given to the channel in this incarnation of the other
    /// side.
    #[serde(skip)]
    sent: u64,
}

impl Ordered {
    /// Takes a message, to be sent by [`Ordered::send`].
    pub fn push(&mut self, message: Control) {
        self.last += 1;
        self.kept.push_back(message);
    }

    /// Forgets the messages up to `handled`: their effect is permanent.
    pub fn settle(&mut self, handled: u64) {
        while !self.kept.is_empty() && self.last - (self.kept.len() as u64) < handled {
            self.kept.pop_front();
        }
        self.sent = self.sent.max(handled.min(self.last));
    }

    /// Resumes after a restart of one side, when the other remembers everything up to
    /// `handled`: later messages are sent again. False if some of those are not kept any
    /// more: they were settled, and the other side has forgotten them all the same.
    pub fn resume(&mut self, handled: u64) -> bool {
        self.settle(handled);
        self.sent = self.last - self.kept.len() as u64;
        self.sent <= handled
    }

    /// Gives the channel as many messages as it takes.
    pub fn send(&mut self, to: NodeId, fabric: &mut Fabric) {
        let before = self.last - self.kept.len() as u64;
        self.sent = self.sent.max(before);
        while let Some(message) = self.kept.get((self.sent - before) as usize) {
            let mut body = (self.sent + 1).to_be_bytes().to_vec();
            message.encode(&mut body);
            if fabric.send(to, kind::NUMBERED, &body).is_err() {
                break;
            }
            self.sent += 1;
        }
    }

    /// True if everything was given to the channel.
    pub fn is_sent(&self) -> bool {
        self.sent == self.last
    }
}

/// Reads the body of a [`kind::NUMBERED`] record.
///
/// # Errors
/// [`DropReason::Malformed`] if it is none.
pub fn numbered(body: &[u8]) -> Result<(u64, Control), DropReason> {
    let (number, message) = body.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
    Ok((u64::from_be_bytes(*number), Control::decode(message)?))
}
