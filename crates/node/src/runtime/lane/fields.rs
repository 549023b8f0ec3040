//! What the chain's functions share, field by field: pools and statistics.
//!
//! In: which function's, which field, each counted from 0. Out: the field, to act on; what pools ask for.

use super::Lane;
use crate::message::Logged;
use holdfast_nf::SharedField;
use holdfast_nf::shared::{Note, Numbers, Part, PoolEffect};
use holdfast_protection::Epoch;

/// What a pool asks of the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) function: u8,
    pub(crate) field: u8,
    pub(crate) effect: PoolEffect,
    /// Of the flow because of which it is asked, if it has just come here.
    pub(crate) epoch: Option<Epoch>,
}

impl Lane {
    /// Keeps what pools ask for because a flow came here under `epoch`, behind what they have asked for until now.
    pub(crate) fn gather_wishes(&mut self, epoch: Option<Epoch>) {
        let mut wishes = core::mem::take(&mut self.wishes);
        self.visit_pools(|function, field, pool| {
            // What is a server's its session fetches.
            if pool.backend().asks_server() {
                return;
            }
            wishes.extend(core::iter::from_fn(|| pool.backend().poll_effect()).map(|effect| Wish {
                function,
                field,
                effect,
                epoch,
            }));
        });
        self.wishes = wishes;
    }

    /// What pools have asked for, in order.
    pub(crate) fn take_wishes(&mut self) -> impl Iterator<Item = Wish> + '_ {
        self.gather_wishes(None);
        self.wishes.drain(..)
    }

    /// Has `act` look at the pool in this field of this function. False if there is none.
    pub(crate) fn with_pool(&mut self, function: u8, field: u8, act: impl FnOnce(&mut Numbers)) -> bool {
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

    /// The same for a statistic.
    pub(crate) fn with_part(&mut self, function: u8, field: u8, act: &mut dyn FnMut(&mut Part)) -> bool {
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
        let Some(holder) = self.chain.functions_mut().get_mut(usize::from(function)) else { return };
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

    /// Visits what this runtime has of every statistic of the chain's functions.
    pub(crate) fn visit_parts(&mut self, mut visit: impl FnMut(u8, u8, &mut Part)) {
        self.visit_fields(|function, field, mut shared| {
            if let Some(part) = shared.part() {
                visit(function, field, part);
            }
        });
    }

    /// Takes what the chain's functions have noted for the operator.
    pub(crate) fn take_notes(&mut self, notes: &mut Vec<Logged>) {
        let chain = self.index;
        self.visit_fields(|function, _, shared| {
            if let SharedField::Log(log) = shared {
                let logged = |Note { about, ingress, key, missed }| Logged { chain, function, about, ingress, key, missed };
                notes.extend(log.take().map(logged));
            }
        });
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
