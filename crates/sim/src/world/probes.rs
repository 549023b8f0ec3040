//! Probes: looks at a world's state while it runs.

use super::served::Servers;
use super::{BEGIN, Process, World};
use crate::checkers::{Served, outside_end};
use crate::frames;
use crate::peers::{self, Client};
use crate::plan::Exit;
use crate::refuser::SHUT;
use crate::scenario::NAT;
use holdfast_functions::Balanced;
use holdfast_node::message::PoolId;
use holdfast_node::switch::Route;
use holdfast_protection::flows::{ActorHeader, Life, flag};
use holdfast_protection::{Peer, Slot};
use holdfast_wire::header::{proto, tcp_flags};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

/// Processes that are heard at some switch, with the chains of which they are heard;
/// `chains` in all.
pub(super) fn served<'a>(
    processes: &'a BTreeMap<Peer, Process>,
    heard: &[Vec<Peer>],
    chains: u16,
) -> Vec<Served<'a>> {
    let of_each = usize::from(chains) / heard.len();
    let of = |peer: &Peer| {
        (0..chains.into()).filter(|chain| heard[chain / of_each].contains(peer)).collect()
    };
    let served =
        processes.iter().map(|(peer, process)| Served { runtime: &process.runtime, of: of(peer) });
    served.filter(|served| !served.of.is_empty()).collect()
}

/// True for the pool of this chain's NAT, whose numbers are seen in outside ports.
pub(super) fn is_nat(id: PoolId, chain: u16) -> bool {
    (id.chain, usize::from(id.function)) == (chain, NAT)
}

impl World {
    /// A runtime has been given up.
    pub(super) fn given_up(&mut self, dead: Peer) {
        self.checkers.given_up();
        let Some(loss) = &mut self.loss else { return };
        let routes = self.hosts.served().flat_map(|switch| switch.routes());
        // Flows that were still to come from the dead runtime are lost with it, too.
        let was_to_come = |route: &Route| {
            let flows = self
                .processes
                .get(&route.owner)
                .and_then(|process| process.runtime.flows(route.chain.into()));
            let header = flows.and_then(|flows| {
                Some(flows.header(flows.find(&route.key, flows.hash(&route.key))?.slot))
            });
            let is_empty = header.is_some_and(|header| {
                header.life() == Life::Arriving && header.flags & flag::EMPTY != 0
            });
            is_empty && route.moved_from.is_some_and(|(from, _)| from == dead)
        };
        let routes: Vec<Route> =
            routes.filter(|route| route.owner == dead || was_to_come(route)).copied().collect();
        // A runtime that was given up before may have been stopped and go on: nobody asks
        // it.
        let counts = |peer: &Peer| *peer != dead && !self.coordinator.has_given_up(*peer);
        let living = self
            .processes
            .iter()
            .filter(|(peer, _)| counts(peer))
            .map(|(_, process)| &process.runtime);
        let pages = Servers::pages(&self.servers);
        loss.given_up(
            dead,
            &routes,
            &living.collect::<Vec<_>>(),
            &pages,
            &self.clients,
            &mut self.checkers,
        );
    }

    /// Runtimes that died without a hub to notice it are known to be dead from now on.
    pub(super) fn given_up_unheard(&mut self) {
        self.checkers.given_up();
        let Some(loss) = &mut self.loss else { return };
        let dead: Vec<Peer> =
            loss.failed_ones().filter(|peer| !self.processes.contains_key(peer)).collect();
        let living: Vec<_> = self.processes.values().map(|process| &process.runtime).collect();
        let pages = Servers::pages(&self.servers);
        dead.into_iter()
            .for_each(|peer| loss.given_up_unheard(peer, &living, &pages, &self.clients));
    }

    /// Checks a packet of this chain that leaves.
    pub(super) fn check_released(&mut self, frame: &[u8], chain: u16, stamp: u64) {
        self.keep_released(frame);
        self.checkers.note_released(frame, chain, &self.clients);
        let is_settled = self.coordinator.is_protected() && self.all_run() && self.has_home();
        let processes = self.processes.values().map(|process| &process.runtime);
        let pages = Servers::pages(&self.servers);
        self.checkers.check_released(
            frame,
            (chain, stamp),
            &self.clients,
            (processes, &pages),
            is_settled,
            self.loss.as_ref(),
        );
        let processes = self.processes.values().map(|process| &process.runtime);
        self.checkers.check_limited(
            frame,
            (chain, stamp),
            &self.clients,
            (processes, &pages),
            is_settled,
        );
        if let Some(loss) = &mut self.loss {
            loss.passed_on(frame, &self.clients, &self.checkers.rivals);
            loss.released(frame, &self.clients, self.now);
        }
    }

    /// Checks a refused packet of this chain that comes back to be answered. The packet
    /// has the addresses that its sender knows, and is as safe as any that leaves. True
    /// for a segment of a connection with a limit: its sender has to hear the answer.
    pub(super) fn check_refused(&mut self, frame: &[u8], (chain, stamp): (u16, u64)) -> bool {
        let seen = frames::look(frame);
        let is_limited =
            |client: &&Client| seen.as_ref().is_some_and(|seen| client.is_limited_one(seen));
        if let Some(client) = self.clients.iter().find(is_limited) {
            // A reset has no answer.
            if seen.as_ref().is_some_and(|seen| seen.flags & tcp_flags::RST != 0) {
                return false;
            }
            let is_settled = self.coordinator.is_protected() && self.all_run() && self.has_home();
            let processes = self.processes.values().map(|process| &process.runtime);
            let pages = Servers::pages(&self.servers);
            self.checkers.check_turned(client, (chain, stamp), (processes, &pages), is_settled);
            return true;
        }
        // A segment from inside without a flow is answered with a reset, whether a client
        // or a published host has sent it. There is no flow to check.
        if let Some(seen) = seen.as_ref().filter(|seen| seen.protocol == proto::TCP)
            && (self.clients.iter().any(|client| client.has_sent(seen))
                || peers::is_inside(seen.source)
                    && self.server.has_sent(chain / self.of_each(), seen))
        {
            return false;
        }
        let of = seen.and_then(|seen| {
            let client = self
                .clients
                .iter_mut()
                .find(|client| client.ends() == (seen.source, seen.destination, seen.protocol));
            client
                .zip(seen.payload.get(4..).and_then(|rest| rest.first_chunk()))
                .map(|found| (seen, found))
        });
        let Some((seen, (client, datagram))) = of else {
            self.checkers.violate(
                "answers",
                format!("nobody has sent what was refused: {}", frames::describe(frame)),
            );
            return false;
        };
        let (id, datagram) = (client.id(), u32::from_be_bytes(*datagram));
        client.on_refusal();
        if self.schedule.is_none() {
            self.refused.push((id, datagram));
        }
        // A rejected first packet leaves no flow behind.
        if seen.destination == SHUT {
            return false;
        }
        let is_settled = self.coordinator.is_protected() && self.all_run() && self.has_home();
        let processes = self.processes.values().map(|process| &process.runtime);
        let pages = Servers::pages(&self.servers);
        self.checkers.check_refused(
            frame,
            (chain, stamp),
            &self.clients,
            (processes, &pages),
            is_settled,
        );
        if let Some(loss) = &mut self.loss {
            loss.released(frame, &self.clients, self.now);
        }
        false
    }

    /// A runtime that only waits for a processor must not be given up as hung.
    pub(super) fn check_given_up(&mut self) {
        let dead: Vec<Peer> = self
            .coordinator
            .given_up_silent()
            .filter(|dead| self.fenced_alive.contains(dead))
            .collect();
        self.fenced_alive.retain(|peer| !dead.contains(peer));
        for Peer { node, incarnation } in dead {
            self.checkers.violate(
                "starved is not dead",
                format!("runtime {node}.{incarnation} was given up, and did not stand still"),
            );
        }
    }

    /// Per switch, the runtimes that the host that serves it would hear; empty if no host
    /// serves it.
    pub(super) fn serving(&mut self) -> Vec<Vec<Peer>> {
        self.hosts.switches().map(|switch| self.heard_at(switch)).collect()
    }

    fn heard_at(&mut self, switch: u16) -> Vec<Peer> {
        let Some(at) = self.hosts.serving(switch) else { return Vec::new() };
        let fence = self.hosts[at].hub.fence();
        let there = self
            .processes
            .iter()
            .filter(|(peer, process)| fence.is_open_for_check(**peer) && !process.paused);
        there.map(|(peer, _)| *peer).collect()
    }

    pub(super) fn check_owners(&mut self) {
        let heard = self.serving();
        let serving = served(&self.processes, &heard, self.chains);
        self.checkers.check_owners(&serving);
        let are_whole =
            self.hosts.served().filter(|switch| switch.is_whole()).count() == heard.len();
        let is_whole = self.all_run() && !self.cuts.any(self.now) && are_whole;
        let routes =
            self.hosts.served().flat_map(|switch| switch.routes()).map(|route| route.key).collect();
        self.checkers.check_over(self.now, &self.clients, &serving, &routes, is_whole);
        if let Some(loss) = &self.loss {
            loss.check_floors(&serving, &mut self.checkers);
        }
        self.check_numbers(&heard);
    }

    /// Checks for every served flow whether the number behind its outside port could be
    /// leased to another flow now.
    fn check_numbers(&mut self, heard: &[Vec<Peer>]) {
        let mut held = Vec::new();
        for served in served(&self.processes, heard, self.chains) {
            for chain in served.of {
                let Some(flows) = served.runtime.flows(chain) else { continue };
                let (owned, chain) =
                    (flows.iter().filter(|(_, header)| header.life().is_owned()), chain as u16);
                let number =
                    |header: &ActorHeader| self.scenario.number(chain, outside_end(&header.reply));
                held.extend(
                    owned.filter_map(|(_, header)| Some((header.key, chain, number(header)?))),
                );
            }
        }
        if self.servers.is_some() {
            let numbers: Vec<(u16, u32)> =
                held.iter().map(|(_, chain, number)| (*chain, *number)).collect();
            self.check_server(&numbers);
        }
        let mut leasable = vec![None; held.len()];
        let of_each = usize::from(self.chains) / heard.len();
        let peers: BTreeSet<Peer> = heard.iter().flatten().copied().collect();
        for peer in peers {
            let Some(process) = self.processes.get_mut(&peer) else { continue };
            process.runtime.visit_pools(|id, pool| {
                for ((_, chain, number), leasable) in held.iter().zip(&mut leasable) {
                    let is_heard = heard[usize::from(*chain) / of_each].contains(&peer);
                    if is_heard
                        && is_nat(id, *chain)
                        && *number < pool.size()
                        && pool.backend().is_free(*number)
                    {
                        *leasable = Some(peer.node);
                    }
                }
            });
        }
        let ledgers = self.coordinator.ledgers();
        for ((key, chain, number), leasable) in held.into_iter().zip(leasable) {
            let in_ledger =
                ledgers.iter().any(|ledger| is_nat(ledger.id, chain) && ledger.is_free(number));
            self.checkers.check_number(&key, number, leasable, in_ledger);
        }
    }

    /// Checks that a runtime's part of its balancer's gauge is the count of its flows.
    pub(super) fn check_parts(&mut self) {
        // The balancer that every chain has is its last function.
        let chains = self.scenario.chains(1, 1);
        let states = &chains[0].chain.layout().states;
        let (last, at) = (states.len() - 1, states.last().map_or(0, |(start, _)| *start));
        let mut wrong = Vec::new();
        for (peer, process) in
            self.processes.iter_mut().filter(|(peer, _)| !self.coordinator.has_given_up(**peer))
        {
            let mut parts = Vec::new();
            process.runtime.visit_parts(|id, part| {
                if usize::from(id.function) == last {
                    parts.push((id.chain, part.own().to_vec()));
                }
            });
            for (chain, part) in parts {
                let Some(flows) = process.runtime.flows(chain.into()) else { continue };
                // A flow that is moving, or whose state is paged out, cannot be counted.
                let is_seen = |slot: Slot, header: &ActorHeader| {
                    header.life() == Life::Copy
                        || header.life().is_owned() && flows.is_present(slot)
                };
                let is_calm = flows.iter().all(|(slot, header)| is_seen(slot, header));
                let mut counted = vec![0; part.len()];
                for (slot, _) in
                    flows.iter().filter(|(_, header)| is_calm && header.life().is_owned())
                {
                    let balanced = flows
                        .state(slot)
                        .get(at..)
                        .and_then(|state| Balanced::read_from_prefix(state).ok());
                    // A flow that only passes has no backend.
                    let backend = balanced.and_then(|(balanced, _)| balanced.backend.item());
                    backend
                        .and_then(|backend| counted.get_mut(backend))
                        .into_iter()
                        .for_each(|flows| *flows += 1);
                }
                if is_calm && counted != part {
                    wrong.push(format!(
                        "flows of chain {chain} at {peer:?} have backends {counted:?}, and the gauge says {part:?}"
                    ));
                }
            }
        }
        wrong.into_iter().for_each(|text| self.checkers.violate("statistics", text));
    }

    fn keep_released(&mut self, frame: &[u8]) {
        if self.schedule.is_some() {
            return;
        }
        if let Some(seen) = frames::read(frame) {
            let ends = [seen.source, seen.destination];
            self.released.push(Exit {
                at: self.now - BEGIN,
                ends,
                protocol: seen.protocol,
                frame: frame.to_vec(),
            });
        }
    }

    /// Checks what the hub let out of a frame from `peer`: nothing, if that peer has been
    /// given up.
    pub(super) fn check_fenced(&mut self, peer: Peer, let_out: usize) {
        // With several hosts, the host that serves may not have heard of it: then no
        // recovering runtime has the route.
        if let_out > 0 && !self.hosts.are_several() && self.coordinator.has_given_up(peer) {
            self.checkers.violate(
                "one owner",
                format!(
                    "runtime {}.{} released a packet after it had been given up",
                    peer.node, peer.incarnation
                ),
            );
        }
    }
}
