//! Pools whose numbers a state server assigns, and statistics that it adds up.
//!
//! Theory of operation (RESCue, section III). What such a pool wants stays in it until the session with the server fetches it, in order, at the end of a turn. What the server says
//! is acted upon as it comes, and flows that waited for a number are tried again in the same turn. The runtime tells the coordinator that it is there when the server knows it: no flow
//! comes before that, and no state server is unknown. A flow that moves away is answered for here until it is where it went. What flows have counted and measured is said every few milliseconds.

use super::{Lane, Runtime};
use crate::address::{state_server_node, state_server_number};
use crate::message::PoolId;
use crate::state::{Pools, StateSession, Words};
use core::ops::Range;
use holdfast_nf::shared::{Part, PoolBackend};
use holdfast_protection::Peer;
use holdfast_wire::DropReason;

/// While the server has not acknowledged so many messages, what can wait stays in the pools.
const WAITING: usize = 1024;

/// So long, ns, it may take until the server hears how a statistic has changed.
const STATISTICS: u64 = 10_000_000;

/// Where one of the pools or statistics is.
struct Listed {
    lane: usize,
    function: u8,
    field: u8,
}

/// See the module.
pub(super) struct Served {
    /// One with each state server that there is anything to say to. The first one has the lists.
    sessions: Vec<StateSession>,
    /// There are chains whose flows have their home there.
    has_pages: bool,
    /// The lives of them that flows of chains are written back to whose home is there; [`Peer::default`] for one that has not been heard of.
    homes: Vec<Peer>,
    lists: Vec<Listed>,
    statistics: Vec<Listed>,
    next_statistics: u64,
}

impl Served {
    /// The pools that ask a server, and behind them the statistics that one adds up, in the order of its lists: by chain, function, field. `None` if no chain has to do with one.
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
        let mut served = Served { sessions: Vec::new(), has_pages, homes: Vec::new(), lists, statistics, next_statistics: 0 };
        served.divide(1);
        is_any.then_some(served)
    }

    /// Flows are divided among so many servers. Where none has its home there, there is nothing to say to any but the first.
    pub(super) fn divide(&mut self, servers: u16) {
        let servers = if self.has_pages { servers } else { 1 };
        self.sessions = (0..servers).map(|number| StateSession::new(state_server_node(number), WAITING)).collect();
        self.homes = vec![Peer::default(); servers.into()];
    }

    /// The state servers' lives that flows have their home at, as far as they are known.
    pub(super) fn homes(&self) -> impl Iterator<Item = Peer> + '_ {
        self.homes.iter().copied().filter(|home| *home != Peer::default())
    }

    /// All of them are known.
    pub(super) fn are_homes_known(&self) -> bool {
        self.homes.iter().all(|home| *home != Peer::default())
    }

    /// Somebody has begun a new life.
    pub(super) fn handle_restart(&mut self, peer: Peer) {
        self.sessions.iter_mut().for_each(|session| session.handle_restart(peer));
    }

    /// When a turn is due without input, ns.
    pub(super) fn poll_timeout(&self) -> u64 {
        self.sessions.iter().map(StateSession::poll_timeout).min().unwrap_or(u64::MAX)
    }
}

/// The lists, as pools and statistics of chains.
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
        let Some(Listed { lane, function, field }) = self.lists.get(list as usize) else { return false };
        self.lanes[*lane].with_pool(*function, *field, |pool| act(pool.backend()))
    }

    fn statistics(&self) -> Range<u32> {
        self.lists()..self.lists() + self.statistics.len() as u32
    }

    fn with_part(&mut self, list: u32, act: &mut dyn FnMut(&mut Part)) -> bool {
        let at = (list as usize).checked_sub(self.lists.len());
        let Some(Listed { lane, function, field }) = at.and_then(|at| self.statistics.get(at)) else { return false };
        self.lanes[*lane].with_part(*function, *field, act)
    }
}

/// Of a server that has none.
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
    /// Calls `visit` with what this runtime has of every statistic, to look at.
    pub fn visit_parts(&mut self, mut visit: impl FnMut(PoolId, &mut Part)) {
        for lane in &mut self.lanes {
            let chain = lane.index;
            lane.visit_parts(|function, field, part| visit(PoolId { chain, function, field }, part));
        }
    }

    pub(super) fn hear_server(&mut self, from: Peer, kind: u8, body: &[u8]) -> Result<(), DropReason> {
        let Runtime { served: Some(Served { sessions, lists, statistics, .. }), lanes, .. } = self else {
            return Err(DropReason::Malformed);
        };
        let number = state_server_number(from.node).ok_or(DropReason::Malformed)?;
        let session = sessions.get_mut(usize::from(number)).ok_or(DropReason::Malformed)?;
        let outcome = match number {
            0 => session.handle_record(from, kind, body, &mut Lists { lists, statistics, lanes }),
            _ => session.handle_record(from, kind, body, &mut NoLists),
        };
        for lane in lanes {
            lane.retry |= lane.parking.len() > 0;
        }
        // A session may end and begin with the same life: what that has stays.
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

    /// Tells the protections of flows that live at the state server who that is.
    pub(super) fn tell_homes(&mut self) {
        let Some(served) = self.served.as_ref().filter(|served| served.homes().next().is_some()) else { return };
        for lane in self.lanes.iter_mut().filter(|lane| lane.plan.is_paged()) {
            lane.outbox.set_peers(served.homes().map(|home| (home, self.fabric.room(home))));
            lane.protection.set_peers(&mut lane.flows, &served.homes, &[], &mut lane.outbox);
            lane.retry |= !lane.outbox.lost.is_empty();
        }
    }

    /// Takes in what the server has said as words. True if it had said anything.
    pub(super) fn hear_words(&mut self, words: &mut dyn Words) -> bool {
        let clock = self.clock;
        let Runtime { served: Some(Served { sessions, lists, statistics, .. }), lanes, .. } = self else { return false };
        // Only the one that has lists has anything to say so.
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

    /// Says what the pools have to say, and that this runtime is there as soon as the server knows it. True if any of it has gone as words.
    pub(super) fn speak_with_server(&mut self, words: Option<&mut (dyn Words + '_)>) -> bool {
        let clock = self.clock;
        let Runtime { served: Some(served), lanes, migrations, recoveries, fabric, .. } = self else { return false };
        let Served { sessions, lists, statistics, next_statistics, .. } = served;
        let Some((session, others)) = sessions.split_first_mut() else { return false };
        let mut pools = Lists { lists, statistics, lanes };
        if clock >= *next_statistics {
            *next_statistics = clock + STATISTICS;
            session.say_statistics();
        }
        (0..pools.lists()).for_each(|list| _ = pools.with(list, &mut |pool| pool.advance(clock)));
        // What has come back because of a death is claimed first.
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
