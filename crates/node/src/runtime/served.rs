//! Pools whose numbers a state server assigns, and statistics that it adds up.
//!
//! Theory of operation (RESCue, section III). A pool keeps its requests until the session
//! with the server fetches them, in order, at the end of a turn. The server's messages
//! are acted upon as they come, and flows that waited for a number are tried again in the
//! same turn. The runtime announces itself to the coordinator when the servers know it:
//! no flow comes before that, and no state server is unknown by then. Numbers of a flow
//! that moves away are answered for here until the flow has arrived. Counts and
//! measurements of flows are sent every few milliseconds.

use super::{Lane, Runtime};
use crate::message::PoolId;
use crate::state::{ControlTransport, Pools, StateSession};
use core::ops::Range;
use holdfast_nf::shared::{Part, PoolBackend};
use holdfast_protection::Peer;
use holdfast_wire::{DropReason, NodeId};

/// While more messages than this are unacknowledged, messages that can wait stay in the
/// pools.
const WAITING: usize = 1024;

/// Interval at which the server hears how statistics have changed, ns.
const STATISTICS: u64 = 10_000_000;

/// The place of a pool or statistic.
struct Listed {
    lane: usize,
    function: u8,
    field: u8,
}

/// See the module.
pub(super) struct Served {
    /// A session with each state server that this runtime talks to. The first server has
    /// the lists.
    sessions: Vec<StateSession>,
    /// True if there are chains whose flows have their home at a state server.
    has_pages: bool,
    /// The incarnation of each server to which flows of these chains are written back;
    /// [`Peer::default`] for a server that has not been heard.
    homes: Vec<Peer>,
    lists: Vec<Listed>,
    statistics: Vec<Listed>,
    next_statistics: u64,
}

impl Served {
    /// Collects the pools that ask a server, and behind them the statistics that a server
    /// adds up, in the order of the server's lists: by chain, function, field. `None` if
    /// no chain needs a server.
    pub(super) fn of(lanes: &mut [Lane]) -> Option<Served> {
        let (mut lists, mut statistics) = (Vec::new(), Vec::new());
        for (at, lane) in lanes.iter_mut().enumerate() {
            lane.visit_pools(|function, field, pool| {
                if pool.backend().asks_server() {
                    lists.push(Listed { lane: at, function, field });
                }
            });
            lane.visit_parts(|function, field, part| {
                if part.is_shared() {
                    statistics.push(Listed { lane: at, function, field });
                }
            });
        }
        let has_pages = lanes.iter().any(|lane| lane.plan.is_paged());
        let is_any = has_pages || !lists.is_empty() || !statistics.is_empty();
        let mut served = Served {
            sessions: Vec::new(),
            has_pages,
            homes: Vec::new(),
            lists,
            statistics,
            next_statistics: 0,
        };
        served.divide(1);
        is_any.then_some(served)
    }

    /// Divides flows among so many servers. If no flow has its home there, only the first
    /// server is talked to.
    pub(super) fn divide(&mut self, servers: u16) {
        let servers = if self.has_pages { servers } else { 1 };
        self.sessions = (0..servers)
            .map(|number| StateSession::new(NodeId::state_server(number), WAITING))
            .collect();
        self.homes = vec![Peer::default(); servers.into()];
    }

    /// The incarnations of the state servers that are home of flows here, as far as they
    /// are known.
    pub(super) fn homes(&self) -> impl Iterator<Item = Peer> + '_ {
        self.homes.iter().copied().filter(|home| *home != Peer::default())
    }

    /// True if all of them are known.
    pub(super) fn are_homes_known(&self) -> bool {
        self.homes.iter().all(|home| *home != Peer::default())
    }

    /// Handles a peer's new incarnation.
    pub(super) fn handle_restart(&mut self, peer: Peer) {
        self.sessions.iter_mut().for_each(|session| session.handle_restart(peer));
    }

    /// The time at which a turn is due without input, ns.
    pub(super) fn poll_timeout(&self) -> u64 {
        self.sessions.iter().map(StateSession::poll_timeout).min().unwrap_or(u64::MAX)
    }
}

/// The server's lists, as pools and statistics of chains.
struct Lists<'a> {
    lists: &'a [Listed],
    statistics: &'a [Listed],
    lanes: &'a mut [Lane],
}

impl Pools for Lists<'_> {
    fn lists(&self) -> u32 {
        self.lists.len() as u32
    }

    fn with(&mut self, list: u32, act: &mut dyn FnMut(&mut dyn PoolBackend)) -> bool {
        let Some(Listed { lane, function, field }) = self.lists.get(list as usize) else {
            return false;
        };
        self.lanes[*lane].with_pool(*function, *field, |pool| act(pool.backend()))
    }

    fn statistics(&self) -> Range<u32> {
        self.lists()..self.lists() + self.statistics.len() as u32
    }

    fn with_part(&mut self, list: u32, act: &mut dyn FnMut(&mut Part)) -> bool {
        let at = (list as usize).checked_sub(self.lists.len());
        let Some(Listed { lane, function, field }) = at.and_then(|at| self.statistics.get(at))
        else {
            return false;
        };
        self.lanes[*lane].with_part(*function, *field, act)
    }
}

/// The pools of a server that has no lists.
struct NoLists;

impl Pools for NoLists {
    fn lists(&self) -> u32 {
        0
    }

    fn with(&mut self, _list: u32, _act: &mut dyn FnMut(&mut dyn PoolBackend)) -> bool {
        false
    }
}

impl Runtime {
    /// Calls `visit` with this runtime's part of every statistic, for inspection.
    pub fn visit_parts(&mut self, mut visit: impl FnMut(PoolId, &mut Part)) {
        for lane in &mut self.lanes {
            let chain = lane.index;
            lane.visit_parts(|function, field, part| {
                visit(PoolId { chain, function, field }, part)
            });
        }
    }

    pub(super) fn hear_server(
        &mut self,
        from: Peer,
        kind: u8,
        body: &[u8],
    ) -> Result<(), DropReason> {
        let Runtime { served: Some(Served { sessions, lists, statistics, .. }), lanes, .. } = self
        else {
            return Err(DropReason::Malformed);
        };
        let number = from.node.state_server_number().ok_or(DropReason::Malformed)?;
        let session = sessions.get_mut(usize::from(number)).ok_or(DropReason::Malformed)?;
        let outcome = match number {
            0 => session.handle_record(from, kind, body, &mut Lists { lists, statistics, lanes }),
            _ => session.handle_record(from, kind, body, &mut NoLists),
        };
        for lane in lanes {
            lane.retry |= lane.parking.len() > 0;
        }
        // A session may end and begin with the same incarnation, which keeps its pages.
        if let Some(served) = &mut self.served
            && served.has_pages
            && let Some(server) = served.sessions[usize::from(number)].server()
            && served.homes[usize::from(number)] != server
        {
            served.homes[usize::from(number)] = server;
            self.tell_homes();
        }
        outcome
    }

    /// Tells the protections of flows that have their home at a state server which
    /// incarnations serve.
    pub(super) fn tell_homes(&mut self) {
        let Some(served) = self.served.as_ref().filter(|served| served.homes().next().is_some())
        else {
            return;
        };
        for lane in self.lanes.iter_mut().filter(|lane| lane.plan.is_paged()) {
            lane.outbox.set_peers(served.homes().map(|home| (home, self.fabric.room(home))));
            lane.protection.set_peers(&mut lane.flows, &served.homes, &[], &mut lane.outbox);
            lane.retry |= !lane.outbox.lost.is_empty();
        }
    }

    /// Takes in the server's messages on the control transport. True if there were any.
    pub(super) fn hear_words(&mut self, words: &mut dyn ControlTransport) -> bool {
        let clock = self.clock;
        let Runtime { served: Some(Served { sessions, lists, statistics, .. }), lanes, .. } = self
        else {
            return false;
        };
        // Only the server with the lists uses the control transport.
        let Some(session) = sessions.first_mut() else { return false };
        match session.hear_words(words, &mut Lists { lists, statistics, lanes }, clock) {
            Ok(false) => return false,
            Ok(true) => {}
            Err(reason) => self.shared.drops.count(reason),
        }
        for lane in &mut self.lanes {
            lane.retry |= lane.parking.len() > 0;
        }
        true
    }

    /// Sends the pools' messages, and announces this runtime as soon as the servers know
    /// it. True if any message has gone on the control transport.
    pub(super) fn speak_with_server(
        &mut self,
        words: Option<&mut (dyn ControlTransport + '_)>,
    ) -> bool {
        let clock = self.clock;
        let Runtime { served: Some(served), lanes, migrations, recoveries, fabric, .. } = self
        else {
            return false;
        };
        let Served { sessions, lists, statistics, next_statistics, .. } = served;
        let Some((session, others)) = sessions.split_first_mut() else { return false };
        let mut pools = Lists { lists, statistics, lanes };
        if clock >= *next_statistics {
            *next_statistics = clock + STATISTICS;
            session.say_statistics();
        }
        (0..pools.lists()).for_each(|list| _ = pools.with(list, &mut |pool| pool.advance(clock)));
        // Numbers of flows that came back because of a death are claimed first.
        if !migrations.is_anything_leaving() && recoveries.is_idle() {
            (0..pools.lists()).for_each(|list| _ = pools.with(list, &mut |pool| pool.settle()));
        }
        let has_spoken = session.advance_with(fabric, words, &mut pools, clock);
        others.iter_mut().for_each(|session| session.advance(fabric, &mut NoLists));
        if sessions.iter().all(StateSession::has_joined) && !self.is_announced {
            self.announce();
        }
        has_spoken
    }
}
