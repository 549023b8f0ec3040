//! Requests of a runtime's pools to the coordinator.
//!
//! Requests go in the order in which they arose, and are kept until the coordinator has
//! logged them. If the return of a number came before the adoption by a flow here, the
//! number would stay taken for good. A recovery is over only when all numbers of its
//! flows are known. And the coordinator may die at any time.

use super::Runtime;
use super::lane::PoolRequest;
use crate::channel::Fabric;
use crate::message::{Control, Ordered, PoolId};
use holdfast_nf::shared::PoolEffect;
use holdfast_protection::Epoch;
use holdfast_wire::NodeId;
use std::collections::VecDeque;

/// Numbers in one message: so many fit a record however large they are.
const NUMBERS: usize = 100;

#[derive(Clone, Copy)]
enum CoordinatorRequest {
    WantBlock,
    Return(u32),
    /// A number, with the epoch of the flow that adopted it.
    Adopted(u32, Option<Epoch>),
    Spare(u32),
    SparedAll,
}

impl CoordinatorRequest {
    /// `None` if the effect is for a state server: single numbers, and what becomes of
    /// them.
    fn of(effect: PoolEffect, epoch: Option<Epoch>) -> Option<CoordinatorRequest> {
        match effect {
            PoolEffect::WantBlock => Some(CoordinatorRequest::WantBlock),
            PoolEffect::Return(number) => Some(CoordinatorRequest::Return(number)),
            PoolEffect::Adopted(number) => Some(CoordinatorRequest::Adopted(number, epoch)),
            PoolEffect::Spare(block) => Some(CoordinatorRequest::Spare(block)),
            PoolEffect::SparedAll => Some(CoordinatorRequest::SparedAll),
            PoolEffect::Request
            | PoolEffect::Used(_)
            | PoolEffect::Unused(_)
            | PoolEffect::Left(_) => None,
        }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct CoordinatorRequests {
    queue: VecDeque<(PoolId, CoordinatorRequest)>,
    kept: Ordered,
}

impl CoordinatorRequests {
    /// Queues a request. `epoch` is that of the flow that caused it.
    pub(super) fn push(&mut self, pool: PoolId, effect: PoolEffect, epoch: Option<Epoch>) {
        self.queue.extend(CoordinatorRequest::of(effect, epoch).map(|request| (pool, request)));
    }

    /// Queues a message that concerns no pool, behind all requests of pools until now.
    pub(super) fn push_message(&mut self, message: Control) {
        self.gather();
        self.kept.push(message);
    }

    /// Joins successive requests of one kind into messages.
    fn gather(&mut self) {
        while let Some((message, count)) = self.next() {
            self.kept.push(message);
            self.queue.drain(..count);
        }
    }

    /// Sends as many messages as the channel takes.
    pub(super) fn send(&mut self, fabric: &mut Fabric) {
        self.gather();
        self.kept.send(NodeId::COORDINATOR, fabric);
    }

    /// Drops messages up to `handled`, which the coordinator has logged.
    pub(super) fn settle(&mut self, handled: u64) {
        self.kept.settle(handled);
    }

    /// Continues with a new incarnation of the coordinator, which has logged messages up
    /// to `handled`. False if that is less than its predecessor had acknowledged.
    pub(super) fn resume(&mut self, handled: u64) -> bool {
        self.kept.resume(handled)
    }

    fn next(&self) -> Option<(Control, usize)> {
        let &(pool, first) = self.queue.front()?;
        let same_pool = || {
            self.queue
                .iter()
                .take(NUMBERS)
                .take_while(|(other, _)| *other == pool)
                .map(|(_, request)| *request)
        };
        let alike = |number: fn(CoordinatorRequest) -> Option<u32>| -> Vec<u32> {
            same_pool().map_while(number).collect()
        };
        Some(match first {
            CoordinatorRequest::WantBlock => (Control::WantBlock { pool }, 1),
            CoordinatorRequest::Return(_) => {
                let numbers = alike(|request| {
                    if let CoordinatorRequest::Return(number) = request {
                        Some(number)
                    } else {
                        None
                    }
                });
                let count = numbers.len();
                (Control::Returned { pool, numbers }, count)
            }
            CoordinatorRequest::Adopted(..) => {
                let adopted = |request| match request {
                    CoordinatorRequest::Adopted(number, epoch) => {
                        Some((number, epoch.map_or(0, Epoch::get)))
                    }
                    _ => None,
                };
                let numbers: Vec<(u32, u32)> = same_pool().map_while(adopted).collect();
                let count = numbers.len();
                (Control::Adopted { pool, numbers }, count)
            }
            CoordinatorRequest::Spare(_) | CoordinatorRequest::SparedAll => {
                let blocks = alike(|request| {
                    if let CoordinatorRequest::Spare(block) = request { Some(block) } else { None }
                });
                let count = blocks.len();
                // The last message of an answer says that it is the last.
                let is_last = matches!(self.queue.get(count), Some((other, CoordinatorRequest::SparedAll)) if *other == pool);
                (Control::Spared { pool, blocks, last: is_last }, count + usize::from(is_last))
            }
        })
    }
}

impl Runtime {
    pub(super) fn with_pool(
        &mut self,
        id: PoolId,
        act: impl FnOnce(&mut holdfast_nf::shared::Numbers),
    ) {
        if let Some(lane) = self.lanes.get_mut(id.chain as usize) {
            lane.with_pool(id.function, id.field, act);
            lane.retry = lane.parking.len() > 0;
        }
    }

    /// Collects the requests of pools to the coordinator.
    pub(super) fn serve_pools(&mut self) {
        let requests = &mut self.requests;
        for lane in &mut self.lanes {
            let chain = lane.index;
            for PoolRequest { function, field, effect, epoch } in lane.take_pool_requests() {
                requests.push(PoolId { chain, function, field }, effect, epoch);
            }
        }
    }
}
