//! The end of a world: connections, buffers and remembered states are counted.

use super::hosts::WITNESS;
use super::probes::served;
use super::served::Servers;
use super::{BEGIN, Process, World};
use crate::peers::Progress;
use crate::plan::{How, Outcome, Plan, Step, When, Whom};
use crate::world::{Faults, Report};
use holdfast_protection::Peer;
use holdfast_wire::{DropReason, PacketPool};

impl World {
    /// Counts everything, then takes the world apart and counts again.
    pub(super) fn finish(mut self) -> Outcome {
        self.count_moved(WITNESS);
        let finished: Vec<bool> = (0..self.clients.len()).map(|at| self.is_done(at)).collect();
        let Faults { kills, pauses, cuts, slowed, .. } = self.faults;
        let must_finish = self.scenario.preset.promises() || kills + pauses + cuts + slowed == 0;
        if must_finish && self.plan.live {
            self.check_liveness();
        }
        if self.checkers.violations.is_empty() {
            self.check_remembered();
            self.check_sums();
            self.check_parts();
            self.check_buffers();
        }
        // A runtime sends both frames together: only a network that loses frames loses
        // one alone.
        let loses = !self.plan.calm && self.inside.lose > 0;
        let is_heard =
            |at: &usize| self.server.has_heard_of(self.switch_of_client(*at), &self.clients[*at]);
        let heard =
            (0..self.clients.len()).filter(is_heard).map(|at| self.clients[at].id()).collect();
        self.checkers.check_both_told(self.plan.calm, loses, &heard);
        self.check_leaks();
        for (peer, process) in core::mem::take(&mut self.processes) {
            self.take_apart(peer, process);
        }
        for at in self.hosts.sites() {
            let host = &mut self.hosts[at];
            self.drops.add(&host.abandon());
            self.check_hub_buffers(at);
        }
        let mut drops = self.drops;
        for hub in self.hosts.all().map(|host| &host.hub) {
            drops.add(hub.drops());
            hub.switches().for_each(|switch| drops.add(switch.drops()));
            drops.add(hub.manager.drops());
        }
        drops.add(&self.coordinator.drops());
        if let Some(servers) = &self.servers {
            drops.add(&servers.drops());
        }
        if self.schedule.is_some() {
            if !self.healed {
                let when = When::Time(self.now - BEGIN);
                self.done.push(Step { when, whom: Whom::World, how: How::Heal });
            }
            // A drained runtime's return was recorded when the drain began. The world may
            // have ended before it.
            let now = self.now - BEGIN;
            self.done.retain(|step| step.time().is_none_or(|time| time <= now));
            self.done.sort_by_key(Step::time);
        }
        if drops.get(DropReason::ReplicaDiffers) > 0 {
            let text = format!(
                "{} were found to differ from their flows",
                drops.get(DropReason::ReplicaDiffers)
            );
            self.checkers.violate("copies", text);
        }
        if drops.get(DropReason::InputMissing) > 0 {
            let text = format!(
                "{} packets that a flow's state was made of were nowhere",
                drops.get(DropReason::InputMissing)
            );
            self.checkers.violate("output commit", text);
        }
        let lost = self.coordinator.lost(self.plan.switches.into());
        let report = Report {
            seed: self.scenario.seed,
            hash: self.hash,
            events: self.count,
            faults: self.faults,
            violations: self.checkers.violations,
            connections: finished.len(),
            finished: finished.iter().filter(|done| **done).count(),
            undone: self.loss.as_ref().map_or(0, |loss| loss.worst),
        };
        Outcome {
            report,
            finished,
            released: self.released,
            refused: self.refused,
            resets: self.resets,
            drops,
            steps: self.done.len(),
            plan: Plan { steps: self.done, ..self.plan },
            failovers: self.coordinator.failovers(),
            lost,
            quiet_from: self.quiet_from.unwrap_or(self.count),
            settled: self.settled,
            unprotected: self.unprotected,
            conversation: self
                .conversation
                .map_or_else(Vec::new, |conversation| conversation.into_inner().heard),
        }
    }

    fn check_liveness(&mut self) {
        let mut stuck = Vec::new();
        // A connection that began anew may have been cut off in the middle.
        let begun_anew =
            |id: u32| self.loss.as_ref().is_some_and(|loss| loss.begun_anew.contains(&id));
        let clients = self
            .clients
            .iter()
            .enumerate()
            .filter(|(at, client)| !begun_anew(client.id()) && !self.has_lost(*at));
        for (at, client) in clients {
            match client.progress() {
                Progress::Done if self.scenario.preset.is_strict() && self.is_half_reset(at) => {
                    stuck.push(format!("the server of connection {} was never reset", client.id()));
                }
                Progress::Done => {}
                Progress::Running => {
                    stuck.push(format!("connection {} never finished", client.id()))
                }
                Progress::Broken(how) => {
                    stuck.push(format!("connection {} broke: {how}", client.id()))
                }
            }
        }
        for text in stuck {
            self.checkers.violate("liveness", text);
        }
    }

    /// Checks that the runtimes that serve now know everything that was ever revealed.
    fn check_remembered(&mut self) {
        let heard = self.serving();
        let serving = served(&self.processes, &heard, self.chains);
        let pages = Servers::pages(&self.servers);
        self.checkers.check_remembered(&self.clients, &serving, &pages);
        self.checkers.check_copies(&serving);
        if let Some(loss) = &self.loss {
            loss.check_floors(&serving, &mut self.checkers);
        }
    }

    /// Checks that every packet has an end: every buffer is free, or held for a reason.
    fn check_buffers(&mut self) {
        for (peer, process) in &self.processes {
            let accounted = process.pool.free() + process.runtime.held() + process.rx.len();
            if accounted != process.pool.total() {
                let text = format!(
                    "runtime {} lost {} buffers",
                    peer.node,
                    process.pool.total() - accounted
                );
                self.checkers.violate("no anonymous drop", text);
            }
        }
        for host in self.hosts.all() {
            let accounted = host.pool.free() + host.held();
            if accounted != host.pool.total() {
                self.checkers.violate(
                    "no anonymous drop",
                    format!("a hub lost {} buffers", host.pool.total() - accounted),
                );
            }
        }
    }

    pub(super) fn end_process(&mut self, peer: Peer) {
        if let Some(process) = self.processes.remove(&peer) {
            self.take_apart(peer, process);
        }
    }

    /// Frees a dead process's buffers, as a host's manager does.
    fn take_apart(&mut self, peer: Peer, mut process: Process) {
        process.runtime.abandon(&mut process.pool);
        for packet in process.rx.drain(..) {
            process.pool.put(packet);
        }
        if process.pool.free() != process.pool.total() {
            let lost = process.pool.total() - process.pool.free();
            self.checkers.violate(
                "no anonymous drop",
                format!("runtime {} died with {lost} buffers", peer.node),
            );
        }
        self.drops.add(process.runtime.drops());
        self.unprotected += process.runtime.counts().unprotected;
        let counts = process.runtime.counts();
        self.faults.fetched += counts.fetched;
        // States that only a state server had are lost only with it.
        if counts.lost > 0 && self.faults.server_kills == 0 {
            let text = format!(
                "runtime {} lost {} flows whose state the state server had",
                peer.node, counts.lost
            );
            self.checkers.violate("output commit", text);
        }
    }
}
