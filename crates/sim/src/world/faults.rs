//! What is done to the processes of a world, by chance or by plan, and what is looked at meanwhile.

use super::{BEGIN, Event, MICROSECOND, MILLISECOND, RUNTIMES, World};
use crate::frames;
use crate::plan::{Exit, Failure, How, When, Whom};
use crate::scenario::Preset;
use holdfast_node::address::{FIRST_RUNTIME, NodeId};
use holdfast_node::message::Order;
use holdfast_node::runtime::Runtime;
use holdfast_node::switch::Route;
use holdfast_protection::Peer;
use holdfast_protection::flows::role;
use holdfast_wire::FlowKey;
use std::collections::BTreeMap;

impl World {
    /// As the system says: another failure would be survived.
    pub(super) fn is_safe(&self) -> bool {
        self.coordinator.is_ready() && (self.scenario.preset == Preset::None || self.coordinator.is_protected())
    }

    pub(super) fn all_run(&self) -> bool {
        self.processes.len() == RUNTIMES as usize && self.processes.values().all(|process| !process.paused)
    }

    /// Kills or stops a runtime, if the system is safe: the contract is one failure at a time.
    pub(super) fn fault(&mut self) {
        if self.faults_left > 0 {
            if !self.is_safe() || !self.all_run() {
                self.at(self.now + 500 * MICROSECOND, Event::Fault);
                return;
            }
            self.strike();
        }
        // The contract is one failure at a time with re-protection between; how soon after it is the seed's business.
        let pause = self.random.range(0, 900) * self.random.range(0, 2) * MILLISECOND;
        self.at(self.now + pause, if self.faults_left > 0 { Event::Fault } else { Event::Heal });
    }

    /// One of those there are is killed or stopped.
    pub(super) fn strike(&mut self) {
        let number = self.random.range(0, self.processes.len() as u64) as usize;
        let Some(peer) = self.processes.keys().nth(number).copied() else { return };
        if self.random.chance(650) {
            self.kill(peer);
        } else {
            let pause = self.random.range(100, 1500) * MILLISECOND;
            self.stop(peer, pause);
        }
        self.faults_left -= 1;
    }

    /// Somebody wants flows elsewhere; now, or in the middle of what goes on.
    pub(super) fn order_move(&mut self) {
        if self.moves_left == 0 {
            return;
        }
        self.moves_left -= 1;
        let from = FIRST_RUNTIME + self.random.range(0, u64::from(RUNTIMES)) as u16;
        let to = FIRST_RUNTIME + self.random.range(0, u64::from(RUNTIMES)) as u16;
        let to = (!self.random.chance(300)).then_some(to);
        let limit = self.random.range(1, 64);
        if self.order(&Order::Move { from, to, limit, selector: "any".to_owned() }) {
            self.faults.moves += 1;
            self.say(format_args!("move {limit} flows from runtime {from} to {to:?}"));
        }
        let pause = self.random.range(1, 40) * self.random.range(1, 10) * MILLISECOND;
        self.at(self.now + pause, Event::Move);
    }

    /// A runtime is taken out of service, and comes back after a while.
    pub(super) fn order_drain(&mut self) {
        let node = FIRST_RUNTIME + self.random.range(0, u64::from(RUNTIMES)) as u16;
        if !self.coordinator.is_ready() || !self.order(&Order::Drain(node)) {
            self.at(self.now + 10 * MILLISECOND, Event::Drain);
            return;
        }
        self.faults.drains += 1;
        self.say(format_args!("drain runtime {node}"));
        let pause = self.random.range(100, 4000) * MILLISECOND;
        self.at(self.now + pause, Event::Restore(node));
    }

    pub(super) fn restore(&mut self, node: NodeId) {
        // Without a coordinator nobody knows.
        let is_over = self.coordinator.is_undrained().unwrap_or(false);
        if !is_over || !self.order(&Order::Restore(node)) {
            // It failed before it was done, and was started again; or it is not done yet.
            if !is_over {
                self.at(self.now + 50 * MILLISECOND, Event::Restore(node));
            }
            return;
        }
        self.say(format_args!("runtime {node} comes back into service"));
    }

    fn kill(&mut self, peer: Peer) {
        self.faults.kills += 1;
        self.note_failure(peer);
        self.say(format_args!("kill runtime {}.{}", peer.node, peer.incarnation));
        self.end_process(peer);
        let noticed = self.random.range(20, 5000) * MICROSECOND;
        self.at(self.now + noticed, Event::ExitNoticed(peer));
    }

    fn note_failure(&mut self, peer: Peer) {
        let was_safe = self.coordinator.says_safe();
        if let Some(loss) = &mut self.loss {
            loss.failed(peer, self.now, was_safe);
        }
    }

    /// A runtime has been given up.
    pub(super) fn given_up(&mut self, dead: Peer) {
        let Some(loss) = &mut self.loss else { return };
        let routes: Vec<Route> = self.hub.switch.routes().filter(|route| route.owner == dead).copied().collect();
        let living = self.processes.iter().filter(|(peer, _)| **peer != dead).map(|(_, process)| &process.runtime);
        loss.given_up(dead, &routes, &living.collect::<Vec<_>>(), &self.clients, &mut self.checkers);
    }

    fn stop(&mut self, peer: Peer, pause: u64) {
        self.faults.pauses += 1;
        self.note_failure(peer);
        self.say(format_args!("stop runtime {}.{}", peer.node, peer.incarnation));
        if let Some(process) = self.processes.get_mut(&peer) {
            process.paused = true;
        }
        self.at(self.now + pause, Event::Resume(peer));
    }

    /// Between two events: the plan's next failure, if it is time for it.
    pub(super) fn follow_plan(&mut self) {
        let Some(plan) = &self.plan else { return };
        let next = plan.failures.get(self.failures).copied();
        // What was done before is known: only then does the system's word count.
        let noticed = self.coordinator.failovers() >= self.runtime_failures;
        let is_settled = noticed && self.coordinator.is_protected();
        self.settled += u64::from(is_settled);
        let Some(Failure { when, whom, how }) = next else { return };
        let is_time = match when {
            When::Event(number) => self.count >= number,
            When::Time(time) => self.now >= BEGIN + time,
            When::Settled(number) => is_settled && self.settled_since >= number,
        };
        self.settled_since += u64::from(is_settled);
        if !is_time {
            return;
        }
        if whom == Whom::Coordinator {
            if self.coordinator.is_away() {
                return;
            }
            self.kill_coordinator(if let How::Pause(away) = how { away } else { 0 });
            self.failures += 1;
            return self.begin_waiting();
        }
        if whom == Whom::Hub {
            if self.hubs.is_away {
                return;
            }
            self.kill_hub(if let How::Pause(away) = how { away } else { 0 });
            self.failures += 1;
            return self.begin_waiting();
        }
        let there: Vec<(Peer, usize)> = self
            .processes
            .iter()
            .filter(|(_, process)| !process.paused)
            .map(|(peer, process)| (*peer, self.owned(&process.runtime)))
            .collect();
        if there.is_empty() {
            return;
        }
        let peer = match whom {
            Whom::Owner => there.iter().max_by_key(|(_, owned)| *owned).map_or(there[0].0, |(peer, _)| *peer),
            Whom::Number(number) => there[number % there.len()].0,
            Whom::Coordinator | Whom::Hub => return,
        };
        match how {
            How::Kill => self.kill(peer),
            How::Pause(pause) => self.stop(peer, pause),
        }
        self.failures += 1;
        self.runtime_failures += 1;
        self.begin_waiting();
    }

    /// What follows from a failure is waited for.
    fn begin_waiting(&mut self) {
        self.settled_since = 0;
        (self.quiet_since, self.quiet_from) = (None, None);
    }

    fn owned(&self, runtime: &Runtime) -> usize {
        (0..self.chains).filter_map(|chain| runtime.flows(chain.into())).map(|flows| flows.owned()).sum()
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
        if self.plan.is_none() {
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
