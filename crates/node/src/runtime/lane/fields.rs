//! Shared state of the chain's functions, field by field: pools and statistics.
//!
//! In: numbers of function and field, each counted from 0. Out: the field, to act on; the
//! pools' requests.

use super::Lane;
use crate::message::Logged;
use holdfast_nf::SharedField;
use holdfast_nf::shared::{Note, Numbers, Part, PoolEffect};
use holdfast_protection::Epoch;

/// A pool's request to the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolRequest {
    pub(crate) function: u8,
    pub(crate) field: u8,
    pub(crate) effect: PoolEffect,
    /// The epoch of the flow that caused the request, if the flow has just come here.
    pub(crate) epoch: Option<Epoch>,
}

impl Lane {
    /// Collects the pools' requests that a flow caused by coming here under `epoch`,
    /// behind all earlier ones.
    pub(crate) fn gather_pool_requests(&mut self, epoch: Option<Epoch>) {
        let mut requests = core::mem::take(&mut self.pool_requests);
        self.visit_pools(|function, field, pool| {
            // Requests to a state server are fetched by its session.
            if pool.backend().asks_server() {
                return;
            }
            requests.extend(
                core::iter::from_fn(|| pool.backend().poll_effect()).map(|effect| PoolRequest {
                    function,
                    field,
                    effect,
                    epoch,
                }),
            );
        });
        self.pool_requests = requests;
    }

    /// Takes the pools' requests, in order.
    pub(crate) fn take_pool_requests(&mut self) -> impl Iterator<Item = PoolRequest> + '_ {
        self.gather_pool_requests(None);
        self.pool_requests.drain(..)
    }

    /// Calls `act` with the pool in this field of this function. False if there is none.
    pub(crate) fn with_pool(
        &mut self,
        function: u8,
        field: u8,
        act: impl FnOnce(&mut Numbers),
    ) -> bool {
        let mut act = Some(act);
        self.with_field(function, field, |shared| {
            if let SharedField::Pool(pool) = shared
                && let Some(act) = act.take()
            {
                act(pool);
            }
        });
        act.is_none()
    }

    /// Calls `act` with the part in this field of this function. False if there is none.
    pub(crate) fn with_part(
        &mut self,
        function: u8,
        field: u8,
        act: &mut dyn FnMut(&mut Part),
    ) -> bool {
        let mut is_there = false;
        self.with_field(function, field, |mut shared| {
            if let Some(part) = shared.part() {
                act(part);
                is_there = true;
            }
        });
        is_there
    }

    fn with_field(&mut self, function: u8, field: u8, mut act: impl FnMut(SharedField<'_>)) {
        let Some(holder) = self.chain.functions_mut().get_mut(usize::from(function)) else {
            return;
        };
        let mut at = 0;
        holder.shared().visit(&mut |_, shared| {
            if at == field {
                act(shared);
            }
            at += 1;
        });
    }

    /// Visits every pool of the chain's functions.
    pub(crate) fn visit_pools(&mut self, mut visit: impl FnMut(u8, u8, &mut Numbers)) {
        self.visit_fields(|function, field, shared| {
            if let SharedField::Pool(pool) = shared {
                visit(function, field, pool);
            }
        });
    }

    /// Visits this runtime's part of every statistic of the chain's functions.
    pub(crate) fn visit_parts(&mut self, mut visit: impl FnMut(u8, u8, &mut Part)) {
        self.visit_fields(|function, field, mut shared| {
            if let Some(part) = shared.part() {
                visit(function, field, part);
            }
        });
    }

    /// Takes the notes of the chain's functions for the operator.
    pub(crate) fn take_notes(&mut self, notes: &mut Vec<Logged>) {
        let chain = self.index;
        self.visit_fields(|function, _, shared| {
            if let SharedField::Log(log) = shared {
                let logged = |Note { about, text, ingress, key, id, missed }| Logged {
                    chain,
                    function,
                    about,
                    text,
                    ingress,
                    key,
                    id,
                    missed,
                };
                notes.extend(log.take().into_iter().map(logged));
            }
        });
    }

    /// True if notes of the chain's functions leave in the turn in which they were made.
    pub(crate) fn has_prompt_log(&mut self) -> bool {
        let mut is_prompt = false;
        self.visit_fields(|_, _, shared| {
            if let SharedField::Log(log) = shared {
                is_prompt |= log.is_prompt();
            }
        });
        is_prompt
    }

    fn visit_fields(&mut self, mut visit: impl FnMut(u8, u8, SharedField<'_>)) {
        for (function, holder) in (0..).zip(self.chain.functions_mut()) {
            let mut field = 0;
            holder.shared().visit(&mut |_, shared| {
                visit(function, field, shared);
                field += 1;
            });
        }
    }
}
