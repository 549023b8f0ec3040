//! Pools whose numbers a state server assigns.
//!
//! Theory of operation (RESCue, section III). What such a pool wants stays in it until the session with the server fetches it, in order, at the end of a turn. What the server says
//! is acted upon as it comes, and flows that waited for a number are tried again in the same turn. The runtime tells the coordinator that it is there when the server knows it: no flow
//! comes before that. A flow that moves away is answered for here until it is where it went.

use super::{Lane, Runtime};
use crate::state::{Pools, StateSession};
use holdfast_nf::shared::PoolBackend;
use holdfast_protection::{Home, Peer};
use holdfast_wire::DropReason;

/// While the server has not acknowledged so many messages, what can wait stays in the pools.
const WAITING: usize = 1024;

/// Where one of the pools is.
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
}

impl Served {
    /// The pools that ask a server, in the order of its lists: by chain, function, field. `None` if no chain has to do with one.
    pub(super) fn of(lanes: &mut [Lane]) -> Option<Served> {
        let mut lists = Vec::new();
        for (at, lane) in lanes.iter_mut().enumerate() {
            lane.visit_pools(|function, field, pool| {
                if pool.backend().asks_server() {
                    lists.push(Listed { lane: at, function, field });
                }
            });
        }
        let has_pages = lanes.iter().any(|lane| lane.protection.home() == Home::StateServer);
        (has_pages || !lists.is_empty()).then(|| Served { session: StateSession::new(WAITING), has_pages, home: None, lists })
    }
}

/// The lists, as pools of chains.
struct Lists<'a> {
    lists: &'a [Listed],
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
}

impl Runtime {
    pub(super) fn hear_server(&mut self, from: Peer, kind: u8, body: &[u8]) -> Result<(), DropReason> {
        let Runtime { served: Some(Served { session, lists, .. }), lanes, .. } = self else { return Err(DropReason::Malformed) };
        let outcome = session.handle_record(from, kind, body, &mut Lists { lists, lanes });
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
        }
    }

    /// Says what the pools have to say, and that this runtime is there as soon as the server knows it.
    pub(super) fn speak_with_server(&mut self) {
        let clock = self.clock;
        let Runtime { served: Some(Served { session, lists, .. }), lanes, migrations, recoveries, fabric, .. } = self else {
            return;
        };
        let mut pools = Lists { lists, lanes };
        (0..pools.lists()).for_each(|list| _ = pools.with(list, &mut |pool| pool.advance(clock)));
        // What has come back because of a death is claimed first.
        if !migrations.is_anything_leaving() && recoveries.is_idle() {
            (0..pools.lists()).for_each(|list| _ = pools.with(list, &mut |pool| pool.settle()));
        }
        session.advance(fabric, &mut pools);
        if session.has_joined() && !self.is_announced {
            self.announce();
        }
    }
}
