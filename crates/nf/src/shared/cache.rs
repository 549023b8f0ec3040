//! Objects that something else than the system keeps for flows: those of a library.
//!
//! Theory of operation. An object cannot be copied, and is no state: a flow that comes
//! from another runtime brings none along. The flow's state has a [`Cached`] field
//! instead, which names the object and counts its steps. The store must refuse a flow
//! whose object is missing or has taken another number of steps. The function then goes
//! on without it, from what the flow's state says. The chain ends the objects of flows
//! that end or leave; what else is left over (of a flow whose packet was undone, say)
//! makes room for others.
//!
//! Each step marks its packet non-deterministic: a replay elsewhere would not have the
//! object. Protections therefore save the resulting state, and never repeat the step.

use super::{Shareable, SharedField};
use crate::{Cached, Context};

/// A place for objects, with a limit of its own.
#[expect(clippy::len_without_is_empty, reason = "nobody asks whether it is empty")]
pub trait Store: Send + 'static {
    /// Ends the object of this flow, if there is one.
    fn forget(&mut self, flow: u64);
    /// The number of objects.
    fn len(&self) -> usize;
}

/// The step of a flow's object that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheStep {
    /// The flow's number: no other flow has it, and its bits are random.
    pub flow: u64,
    /// Steps before this one. An object is made for the first one; later, an object that
    /// has taken another number of steps is none of this flow.
    pub before: u32,
}

/// Objects of this runtime's flows in a [`Store`]; see the module.
#[derive(Debug)]
pub struct Cache<S>(S);

impl<S: Store> Cache<S> {
    /// A cache of this store.
    pub fn new(store: S) -> Cache<S> {
        Cache(store)
    }

    /// Counts a step in the flow's state, and returns the store for it.
    pub fn step(&mut self, flow: &mut Cached<S>, cx: &mut Context) -> (&mut S, CacheStep) {
        cx.mark_nondeterministic();
        (&mut self.0, flow.step(cx))
    }

    /// Ends a flow's object, if there is one. The flow takes no further step.
    pub fn forget(&mut self, flow: &mut Cached<S>) {
        self.end(flow);
        flow.clear();
    }

    /// Ends the object of a flow that is no more.
    pub(crate) fn end(&mut self, flow: &Cached<S>) {
        if let Some(flow) = flow.number() {
            self.0.forget(flow);
        }
    }
}

impl<S: Store> Shareable for Cache<S> {
    fn field(&mut self) -> SharedField<'_> {
        SharedField::Table(self.0.len())
    }
}
