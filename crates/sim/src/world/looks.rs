//! What is looked at while a world runs.

use super::{BEGIN, World};
use crate::frames;
use crate::plan::Exit;
use holdfast_node::runtime::Runtime;
use holdfast_node::switch::Route;
use holdfast_protection::Peer;
use holdfast_protection::flows::role;
use holdfast_wire::FlowKey;
use std::collections::BTreeMap;

impl World {
    /// A runtime has been given up.
    pub(super) fn given_up(&mut self, dead: Peer) {
        let Some(loss) = &mut self.loss else { return };
        let routes: Vec<Route> = self.hub.switch.routes().filter(|route| route.owner == dead).copied().collect();
        let living = self.processes.iter().filter(|(peer, _)| **peer != dead).map(|(_, process)| &process.runtime);
        loss.given_up(dead, &routes, &living.collect::<Vec<_>>(), &self.clients, &mut self.checkers);
    }

    /// A packet leaves.
    pub(super) fn check_released(&mut self, frame: &[u8]) {
        self.keep_released(frame);
        let is_settled = self.coordinator.is_protected() && self.all_run();
        let processes = self.processes.values().map(|process| &process.runtime);
        self.checkers.check_released(frame, &self.clients, processes, is_settled, self.loss.as_ref());
        if let Some(loss) = &mut self.loss {
            loss.released(frame, &self.clients, self.now);
        }
    }

    pub(super) fn check_owners(&mut self) {
        let fence = self.hub.fence();
        let serving: Vec<&Runtime> = self
            .processes
            .iter()
            .filter(|(peer, process)| fence.is_open_for_check(**peer) && !process.paused)
            .map(|(_, process)| &process.runtime)
            .collect();
        self.checkers.check_owners(&serving);
        let is_whole = self.all_run() && !self.cuts.any(self.now) && !self.hubs.is_away && self.hub.switch.is_whole();
        let routes = self.hub.switch.routes().map(|route| route.key).collect();
        self.checkers.check_over(self.now, &self.clients, &serving, &routes, is_whole);
        if let Some(loss) = &self.loss {
            loss.check_floors(&serving, &mut self.checkers);
        }
        self.check_numbers();
    }

    /// Of every flow that is served, whether the number behind its outside port could be leased to another now.
    fn check_numbers(&mut self) {
        let (mut held, mut leasable) = (Vec::new(), BTreeMap::new());
        let fence = self.hub.fence();
        for (peer, process) in &mut self.processes {
            if !fence.is_open_for_check(*peer) || process.paused {
                continue;
            }
            for chain in 0..self.chains {
                let Some(flows) = process.runtime.flows(chain.into()) else { continue };
                let owned = flows.iter().filter(|(_, header)| header.role == role::OWNER);
                let outside = |reply: &FlowKey| {
                    let [.., a, b, c, d] = reply.destination;
                    ([a, b, c, d], reply.destination_port)
                };
                held.extend(owned.map(|(_, header)| (header.key, chain, self.scenario.number(chain, outside(&header.reply)))));
            }
            process.runtime.visit_pools(|id, pool| {
                let free = (0..pool.size()).filter(|&number| pool.backend().is_free(number));
                leasable.extend(free.map(|number| ((id.chain, number), peer.node)));
            });
        }
        let ledgers = self.coordinator.ledgers();
        for (key, chain, number) in held {
            let in_ledger = ledgers.iter().any(|ledger| ledger.id.chain == chain && ledger.is_free(number));
            self.checkers.check_number(&key, number, leasable.get(&(chain, number)).copied(), in_ledger);
        }
    }

    fn keep_released(&mut self, frame: &[u8]) {
        if self.fate.is_some() {
            return;
        }
        if let Some(seen) = frames::read(frame) {
            let ends = [seen.source, seen.destination];
            self.released.push(Exit { at: self.now - BEGIN, ends, protocol: seen.protocol, frame: frame.to_vec() });
        }
    }

    /// What the hub let out of a frame that came from `peer`: nothing, if that one has been given up.
    pub(super) fn check_fenced(&mut self, peer: Peer, let_out: usize) {
        if let_out > 0 && self.coordinator.has_given_up(peer) {
            self.checkers.violate(
                "one owner",
                format!("runtime {}.{} released a packet after it had been given up", peer.node, peer.incarnation),
            );
        }
    }
}
