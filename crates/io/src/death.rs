//! Points at which a process may be killed, for tests: [`step`] stands before every store
//! that outlives it. In the product it does nothing.

#[cfg(test)]
pub(crate) use planned::{after, step};

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn step() {}

#[cfg(test)]
mod planned {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        static LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
    }

    /// The payload with which a killed thread unwinds.
    struct Killed;

    /// Comes before a store; does not return if this thread is to die here.
    pub(crate) fn step() {
        LEFT.with(|left| match left.get() {
            u32::MAX => {}
            0 => resume_unwind(Box::new(Killed)),
            stores => left.set(stores - 1),
        });
    }

    /// Runs `act` up to `stores` stores, and dies before the next one. `None` if it died.
    pub(crate) fn after<T>(stores: u32, act: impl FnOnce() -> T) -> Option<T> {
        LEFT.with(|left| left.set(stores));
        let result = catch_unwind(AssertUnwindSafe(act));
        LEFT.with(|left| left.set(u32::MAX));
        match result {
            Ok(result) => Some(result),
            Err(payload) if payload.is::<Killed>() => None,
            Err(payload) => resume_unwind(payload),
        }
    }
}
