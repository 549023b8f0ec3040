//! Checks that a failure undoes no more than a weak protection says.
//!
//! Theory of operation. The protection is never asked how old its snapshots are: every
//! packet that leaves the system is written down with its time. When a runtime is given
//! up, the checker looks for its flows at the other runtimes and at the state servers. A
//! copy may be older by `limit` packets than what had left some time before the failure.
//! Packets sent later may have been under way to the copy, unless the protection's limit
//! counts these, too. From then on the runtime that serves the flow knows at least as
//! much as the copy, until another flow has its reply key. A flow without a copy was
//! younger than the time under way: it may begin anew, and only it.

use crate::checkers::{Checkers, Pages, Served, Violation};
use crate::frames;
use crate::peers::{self, Client};
use crate::stamper::{self, Revealed};
use holdfast_node::runtime::Runtime;
use holdfast_node::switch::Route;
use holdfast_protection::flows::{ActorHeader, Life, flag};
use holdfast_protection::{Flows, Peer, Plan as Preset};
use holdfast_wire::{FlowKey, NodeId};
use std::collections::{BTreeMap, BTreeSet};

const INVARIANT: &str = "bounded loss";
/// Most chains of a world: two of each switch.
const CHAINS: usize = 2 * NodeId::MAX_SWITCHES as usize;

struct Failure {
    at: u64,
    /// The system had said that it would survive another failure.
    was_safe: bool,
}

/// The checker, see the module.
pub(crate) struct Loss {
    /// Packets of a flow that a failure may undo.
    limit: u64,
    /// Frames that were sent this long before a failure have arrived, ns.
    on_the_way: u64,
    /// The limit includes packets that were still under way.
    is_counted: bool,
    failures: BTreeMap<Peer, Failure>,
    /// Per connection, each packet that left: when, in which direction, and the count it
    /// revealed.
    left: BTreeMap<u32, Vec<(u64, usize, u64)>>,
    /// Counts that the runtime that serves a flow has to know.
    floors: BTreeMap<FlowKey, [u64; 2]>,
    /// Most packets that a failure undid of a flow that was to survive it.
    pub(crate) worst: u64,
    /// Connections whose flows were too young to survive.
    pub(crate) begun_anew: BTreeSet<u32>,
}

fn key_of(client: &Client) -> FlowKey {
    let (local, remote, protocol) = client.ends();
    frames::key(local, remote, protocol)
}

impl Loss {
    /// A checker for this plan. Packets younger than `on_the_way`, ns, may be under way.
    pub(crate) fn new(plan: Preset, on_the_way: u64) -> Loss {
        Loss {
            limit: u64::from(plan.may_forget()),
            on_the_way,
            is_counted: plan.forgets_by_count(),
            failures: BTreeMap::new(),
            left: BTreeMap::new(),
            floors: BTreeMap::new(),
            worst: 0,
            begun_anew: BTreeSet::new(),
        }
    }

    /// A runtime was killed, stopped or cut off.
    pub(crate) fn failed(&mut self, peer: Peer, at: u64, was_safe: bool) {
        self.failures.insert(peer, Failure { at, was_safe });
    }

    /// Runtimes that have failed and have not been given up.
    pub(crate) fn failed_ones(&self) -> impl Iterator<Item = Peer> + '_ {
        self.failures.keys().copied()
    }

    /// A packet left. A datagram carries its count. Other replies carry none and count as
    /// the first packet of their direction.
    pub(crate) fn released(&mut self, frame: &[u8], clients: &[Client], now: u64) {
        let Some(seen) = frames::look(frame) else { return };
        if let Some(Revealed { id, way, count, .. }) = stamper::revealed(&seen, clients) {
            self.left.entry(id).or_default().push((now, way, count));
        } else if let Some(client) =
            clients.iter().find(|one| one.ends() == (seen.destination, seen.source, seen.protocol))
        {
            self.left.entry(client.id()).or_default().push((now, 1, 1));
        }
    }

    /// A packet left that shows which flow has a reply key now. The flow that had the key
    /// before has lost it, with its state: no packet of it leaves, and its next packet
    /// may open it anew. `Checkers::check_rivals` checks whether the key may change
    /// hands.
    pub(crate) fn passed_on(
        &mut self,
        frame: &[u8],
        clients: &[Client],
        rivals: &BTreeMap<u32, u32>,
    ) {
        if rivals.is_empty() {
            return;
        }
        let Some(seen) = frames::look(frame) else { return };
        let Some((client, 0)) = peers::whose(clients, &seen) else { return };
        let Some(rival) = rivals.get(&client.id()) else { return };
        self.left.remove(rival);
        if let Some(rival) = clients.iter().find(|client| client.id() == *rival) {
            self.floors.remove(&key_of(rival));
        }
    }

    /// `dead` was given up. `routes` led there, `living` are the other runtimes, and
    /// `pages` has what was written back to a state server of each chain.
    pub(crate) fn given_up<'a>(
        &mut self,
        dead: Peer,
        routes: &[Route],
        living: &[&Runtime],
        pages: &Pages<'a>,
        clients: &[Client],
        checkers: &mut Checkers,
    ) {
        let Some(Failure { at, was_safe }) = self.failures.remove(&dead) else { return };
        for route in routes.iter().filter(|route| route.is_real) {
            let Some(client) = clients.iter().find(|client| key_of(client) == route.key) else {
                continue;
            };
            let left = self.left.get(&client.id()).map_or(&[][..], Vec::as_slice);
            let left_before = |time: u64| {
                let highest = |way: usize| {
                    let sent = left.iter().filter(|(when, of, _)| *of == way && *when <= time);
                    sent.map(|(_, _, count)| *count).max().unwrap_or(0)
                };
                highest(0) + highest(1)
            };
            let has_arrived = at.saturating_sub(self.on_the_way);
            let found = living.iter().filter_map(|runtime| {
                let flows = runtime.flows(usize::from(route.chain))?;
                let slot = flows.find(&route.key, flows.hash(&route.key))?.slot;
                let header = flows.header(slot);
                let owner = header.holder();
                let is_owner_there = || living.iter().any(|runtime| runtime.me() == owner);
                let is_older = route.epoch.is_later(header.epoch);
                let is_latest = match header.life() {
                    Life::Copy | Life::Claiming if header.epoch == route.epoch => true,
                    // A copy kept when the flow moved within its host counts if nothing
                    // is newer and the runtime that moved it is dead. While that runtime
                    // lives, nobody may claim the copy.
                    Life::Copy | Life::Claiming if is_older && !is_owner_there() => false,
                    Life::Arriving if header.flags & flag::EMPTY == 0 => true,
                    // The flow was about to move to the dead runtime.
                    life if life.is_owned() || life == Life::Departed => true,
                    _ => return None,
                };
                Some((is_latest, checkers.counts(flows, slot)))
            });
            let is_of_dead = |header: &ActorHeader| header.holder() == dead;
            let written_back = pages(usize::from(route.chain), &route.key).map(|(flows, slot)| {
                let header = flows.header(slot);
                (header.epoch == route.epoch && is_of_dead(header), checkers.counts(flows, slot))
            });
            match found
                .chain(written_back)
                .max_by_key(|(is_latest, counts)| (*is_latest, counts[0] + counts[1]))
                .map(|(_, counts)| counts)
            {
                None => {
                    let due = left_before(has_arrived);
                    if due > 0 && was_safe {
                        let text = format!(
                            "connection {}: {due} packets had left, and no runtime has a snapshot",
                            client.id()
                        );
                        checkers.violations.push(Violation { invariant: INVARIANT, text });
                    }
                    self.floors.remove(&route.key);
                    self.left.remove(&client.id());
                    self.begun_anew.insert(client.id());
                }
                Some(counts) => {
                    let due = left_before(if self.is_counted { at } else { has_arrived });
                    let known = counts[0] + counts[1];
                    if was_safe {
                        self.worst = self.worst.max(due.saturating_sub(known));
                    }
                    if known + self.limit < due && was_safe {
                        let text = format!(
                            "connection {}: {due} packets had left, the snapshot knows {known}",
                            client.id()
                        );
                        checkers.violations.push(Violation { invariant: INVARIANT, text });
                    }
                    // A flow of which no packet has left has no state that must survive.
                    if !left.is_empty() || self.floors.contains_key(&route.key) {
                        self.floors.insert(route.key, counts);
                    }
                    // The next failure cannot undo packets that this one undid.
                    if let Some(left) = self.left.get_mut(&client.id()) {
                        left.retain(|(_, way, count)| *count <= counts[*way]);
                    }
                }
            }
        }
    }

    /// `dead` died while there was no switch, and the next switch knows no routes yet. A
    /// flow that is younger than the time under way, and that nobody has any more, may
    /// begin anew.
    pub(crate) fn given_up_unheard<'a>(
        &mut self,
        dead: Peer,
        living: &[&Runtime],
        pages: &Pages<'a>,
        clients: &[Client],
    ) {
        let Some(Failure { at, .. }) = self.failures.remove(&dead) else { return };
        for client in clients {
            let key = key_of(client);
            let left = self.left.get(&client.id()).map_or(&[][..], Vec::as_slice);
            let is_young =
                !left.is_empty() && left.iter().all(|(time, ..)| time + self.on_the_way > at);
            if !is_young {
                continue;
            }
            let has_it = |flows: &Flows| flows.find(&key, flows.hash(&key)).is_some();
            let is_living = living
                .iter()
                .any(|runtime| (0..).map_while(|chain| runtime.flows(chain)).any(has_it));
            if !is_living && !(0..CHAINS).any(|chain| pages(chain, &key).is_some()) {
                self.left.remove(&client.id());
                self.begun_anew.insert(client.id());
            }
        }
    }

    /// The runtime that serves a flow knows what the flow's snapshot knew.
    pub(crate) fn check_floors(&self, serving: &[Served<'_>], checkers: &mut Checkers) {
        for (key, floor) in &self.floors {
            for served in serving {
                let owned = |flows: &&Flows| {
                    flows
                        .find(key, flows.hash(key))
                        .is_some_and(|found| flows.header(found.slot).life().is_owned())
                };
                let Some(flows) = served.flows().find(owned) else { continue };
                let Some(found) = flows.find(key, flows.hash(key)) else { continue };
                let counts = checkers.counts(flows, found.slot);
                if counts[0] < floor[0] || counts[1] < floor[1] {
                    let text = format!(
                        "{key}: the snapshot knew {floor:?}, who serves it now knows {counts:?}"
                    );
                    checkers.violations.push(Violation { invariant: INVARIANT, text });
                }
            }
        }
    }
}
