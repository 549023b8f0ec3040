//! What the pools of a runtime ask of the coordinator.
//!
//! Everything goes in the order in which it happened, and is kept until the coordinator remembers it for good: a number that is returned before
//! the coordinator has heard that a flow here adopted it would stay taken for ever, a recovery is over only when every number
//! that its flows hold is known, and the coordinator may die at any time.

use crate::address::COORDINATOR;
use crate::channel::Fabric;
use crate::message::{Control, Ordered, PoolId};
use holdfast_nf::shared::PoolEffect;
use std::collections::VecDeque;

/// Numbers in one message: it fits a record however large they are.
const NUMBERS: usize = 100;

/// See the module.
#[derive(Default)]
pub(super) struct Errands {
    /// Each with the epoch of the flow because of which it is asked, or 0.
    queue: VecDeque<(PoolId, PoolEffect, u32)>,
    kept: Ordered,
}

impl Errands {
    pub(super) fn push(&mut self, pool: PoolId, effect: PoolEffect, epoch: u32) {
        self.queue.push_back((pool, effect, epoch));
    }

    /// An errand of no pool, after all that pools had until now.
    pub(super) fn push_message(&mut self, message: Control) {
        self.gather();
        self.kept.push(message);
    }

    /// What is alike and in succession goes in one message.
    fn gather(&mut self) {
        while let Some((message, count)) = self.next() {
            self.kept.push(message);
            self.queue.drain(..count);
        }
    }

    /// Sends as much as the channel takes.
    pub(super) fn send(&mut self, fabric: &mut Fabric) {
        self.gather();
        self.kept.send(COORDINATOR, fabric);
    }

    /// The coordinator remembers everything up to `handled`.
    pub(super) fn settle(&mut self, handled: u64) {
        self.kept.settle(handled);
    }

    /// A new life of the coordinator remembers everything up to `handled`. False if that is less than it had promised to.
    pub(super) fn resume(&mut self, handled: u64) -> bool {
        self.kept.resume(handled)
    }

    fn next(&self) -> Option<(Control, usize)> {
        let &(pool, first, _) = self.queue.front()?;
        let same_pool = || self.queue.iter().take(NUMBERS).take_while(|(other, ..)| *other == pool);
        let alike = |number: fn(PoolEffect) -> Option<u32>| -> Vec<u32> {
            same_pool().map_while(|(_, effect, _)| number(*effect)).collect()
        };
        Some(match first {
            PoolEffect::WantBlock | PoolEffect::Request => (Control::WantBlock { pool }, 1),
            PoolEffect::Return(_) => {
                let numbers = alike(|effect| if let PoolEffect::Return(number) = effect { Some(number) } else { None });
                let count = numbers.len();
                (Control::Returned { pool, numbers }, count)
            }
            PoolEffect::Adopted(_) => {
                let adopted = |(_, effect, epoch): &_| {
                    if let PoolEffect::Adopted(number) = effect { Some((*number, *epoch)) } else { None }
                };
                let numbers: Vec<(u32, u32)> = same_pool().map_while(adopted).collect();
                let count = numbers.len();
                (Control::Adopted { pool, numbers }, count)
            }
            PoolEffect::Spare(_) | PoolEffect::SparedAll => {
                let blocks = alike(|effect| if let PoolEffect::Spare(block) = effect { Some(block) } else { None });
                let count = blocks.len();
                // The last message of an answer ends with its end.
                let is_last = matches!(self.queue.get(count), Some((other, PoolEffect::SparedAll, _)) if *other == pool);
                (Control::Spared { pool, blocks, last: is_last }, count + usize::from(is_last))
            }
        })
    }
}
