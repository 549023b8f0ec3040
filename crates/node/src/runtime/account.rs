//! Accounts of the runtime and the coordinator, which may die at any time: each keeps
//! what the other may not have heard. See [`Ordered`](crate::message::Ordered).

use super::Runtime;
use crate::message::Control;
use holdfast_protection::Peer;
use holdfast_wire::NodeId;

/// Block numbers in one message: so many fit a record however large they are.
const BLOCKS_PER_MESSAGE: usize = 200;

impl Runtime {
    /// Handles an order of the coordinator, which its next incarnation may repeat.
    pub(super) fn handle_order(&mut self, from: Peer, number: u64, message: Control) {
        self.owes_word = true;
        if number > self.handled {
            self.handled = number;
            self.handle_control(from, message);
        }
    }

    /// Tells the coordinator that the runtime is there, and may be given flows.
    pub(super) fn announce(&mut self) {
        self.is_announced = true;
        let layouts = self.lanes.iter().map(|lane| lane.flows.layout()).collect();
        self.fabric.send_control(NodeId::COORDINATOR, &Control::Hello { layouts });
    }

    /// Answers a new incarnation of the coordinator: sends what is here, and again what
    /// it may not have heard.
    pub(super) fn account(&mut self, handled: u64) {
        if !self.requests.resume(handled) {
            self.visit_pools(|_, pool| {
                if !pool.backend().asks_server() {
                    pool.backend().announce();
                }
            });
        }
        if self.is_announced {
            self.announce();
        }
        let mut held = Vec::new();
        self.visit_pools(|id, pool| held.push((id, pool.backend().blocks())));
        for (pool, blocks) in held {
            for blocks in blocks.chunks(BLOCKS_PER_MESSAGE) {
                self.fabric.send_control(
                    NodeId::COORDINATOR,
                    &Control::Holds { pool, blocks: blocks.to_vec() },
                );
            }
        }
        self.fabric
            .send_control(NodeId::COORDINATOR, &Control::Accounted { handled: self.handled });
        self.next_report = 0;
    }
}
