//! Pools whose numbers a state server assigns, and statistics that it adds up.
//!
//! Theory of operation (RESCue, section III). What such a pool wants stays in it until the session with the server fetches it, in order, at the end of a turn. What the server says
//! is acted upon as it comes, and flows that waited for a number are tried again in the same turn. The runtime tells the coordinator that it is there when the server knows it: no flow
//! comes before that. A flow that moves away is answered for here until it is where it went. What flows have counted and measured is said every few milliseconds.

use super::{Lane, Runtime};
use crate::message::{PoolId, Report};
use crate::state::{Pools, StateSession, Words};
use core::ops::Range;
use holdfast_nf::shared::{Part, PoolBackend};
use holdfast_protection::{Home, Peer};
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
    pub(super) session: StateSession,
    /// There are chains whose flows have their home there.
    has_pages: bool,
    /// The life of it that flows of chains are written back to whose home is there.
    pub(super) home: Option<Peer>,
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
        let has_pages = lanes.iter().any(|lane| lane.protection.home() == Home::StateServer);
        let is_any = has_pages || !lists.is_empty() || !statistics.is_empty();
        let session = StateSession::new(WAITING);
        is_any.then_some(Served { session, has_pages, home: None, lists, statistics, next_statistics: 0 })
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

impl Runtime {
    /// What this runtime's flows have counted and measured, where no state server adds it up.
    pub(super) fn own_statistics(&mut self) -> Vec<(PoolId, Vec<i64>)> {
        let (mut own, mut room) = (Vec::new(), Report::MOST_NUMBERS);
        self.visit_parts(|id, part| {
            let count = part.own().len();
            if !part.is_shared() && count <= room {
                room -= count;
                own.push((id, part.own().to_vec()));
            }
        });
        own
    }

    /// Calls `visit` with what this runtime has of every statistic, to look at.
    pub fn visit_parts(&mut self, mut visit: impl FnMut(PoolId, &mut Part)) {
        for lane in &mut self.lanes {
            let chain = lane.index;
            lane.visit_parts(|function, field, part| visit(PoolId { chain, function, field }, part));
        }
    }

    pub(super) fn hear_server(&mut self, from: Peer, kind: u8, body: &[u8]) -> Result<(), DropReason> {
        let Runtime { served: Some(Served { session, lists, statistics, .. }), lanes, .. } = self else {
            return Err(DropReason::Malformed);
        };
        let outcome = session.handle_record(from, kind, body, &mut Lists { lists, statistics, lanes });
        for lane in lanes {
            lane.retry |= lane.parking.len() > 0;
        }
        // A session may end and begin with the same life: what that has stays.
        if let Some(served) = &mut self.served
            && served.has_pages
            && served.session.server().is_some_and(|server| served.home != Some(server))
        {
            served.home = served.session.server();
            self.tell_homes();
        }
        outcome
    }

    /// Tells the protections of flows that live at the state server who that is.
    pub(super) fn tell_homes(&mut self) {
        let Some(home) = self.served.as_ref().and_then(|served| served.home) else { return };
        for lane in self.lanes.iter_mut().filter(|lane| lane.protection.home() == Home::StateServer) {
            lane.outbox.set_peers([(home, self.fabric.room(home))].into_iter());
            lane.protection.set_peers(&mut lane.flows, &[home], &[], &mut lane.outbox);
            lane.retry |= !lane.outbox.lost.is_empty();
        }
    }

    /// Takes in what the server has said as words. True if it had said anything.
    pub(super) fn hear_words(&mut self, words: &mut dyn Words) -> bool {
        let clock = self.clock;
        let Runtime { served: Some(Served { session, lists, statistics, .. }), lanes, .. } = self else { return false };
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
        let Served { session, lists, statistics, next_statistics, .. } = served;
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
        if session.has_joined() && !self.is_announced {
            self.announce();
        }
        has_spoken
    }
}
