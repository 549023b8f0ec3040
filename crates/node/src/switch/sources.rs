//! Counts of each source's flows, and of those that are half open.
//!
//! Theory of operation. The switch sees every opening, so the counts here are exact,
//! whichever runtimes have the flows. Each of several switches counts for itself. A flow
//! is *half open* until it has been answered; a TCP flow, until its initiator has gone on
//! after that. The switch looks at no flow state, so an acknowledgement that does not fit
//! counts too. A forger of acknowledgements gets past the limit here, but not past the
//! runtimes' tables: there the flow is still half open, and is evicted first.
//!
//! A source is an IPv4 address, or an IPv6 /64: within that a host takes any address. A
//! flow is counted while it has a route, from where the route is made to where it is
//! removed (`Routes`). A new incarnation of the switch therefore has the right counts as
//! soon as runtimes have told it their flows.
//!
//! In: routes as they come, go and are answered. Out: whether a source may have another
//! one. Never: growth. The table has no more entries than routes to count, and without
//! the seed it cannot be told which of them collide.

use super::limits::SwitchLimits;
use super::routes::Opening;
use holdfast_protection::flows::{Found, FreeSlots, KeyTable};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey, source_of};

/// The flows of a source that one count covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    HalfOpen,
    All,
    Chain(u16),
}

impl Kind {
    /// The kind's bit in a route's `counted`.
    fn bit(self) -> u8 {
        match self {
            Kind::HalfOpen => 1,
            Kind::All => 2,
            Kind::Chain(_) => 4,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Count {
    source: [u8; 16],
    kind: Kind,
    flows: u32,
}

/// See the module.
pub(super) struct Sources {
    limits: SwitchLimits,
    counts: Vec<Count>,
    free: FreeSlots,
    table: KeyTable,
    seed: u64,
}

impl Sources {
    pub(super) fn new(limits: SwitchLimits, routes: usize, seed: u64) -> Sources {
        let most = limits.kinds() * routes;
        Sources {
            limits,
            counts: Vec::with_capacity(most),
            free: FreeSlots::new(most),
            table: KeyTable::new(most),
            seed,
        }
    }

    /// Bytes of memory for so many flows, each half open and of its own source.
    pub(super) fn memory_of(limits: &SwitchLimits, flows: usize) -> usize {
        let counts = limits.kinds() * flows;
        Sources::memory_with(counts, KeyTable::memory_of(counts))
    }

    /// Bytes of memory in use, for as many counts as there ever were at once.
    pub(super) fn memory(&self) -> usize {
        Sources::memory_with(self.counts.len(), self.table.memory())
    }

    fn memory_with(counts: usize, table: usize) -> usize {
        counts * size_of::<Count>() + table + FreeSlots::memory_of(counts)
    }

    /// The counts that a flow is part of, each with its source and its limit.
    fn kinds(
        &self,
        key: &FlowKey,
        chain: u16,
        opening: Opening,
    ) -> [Option<(Kind, [u8; 16], u32)>; 3] {
        let source = source_of(&key.source);
        let half_open = self.limits.half_open.filter(|_| opening != Opening::Over);
        let of_chain = self.limits.chains.get(usize::from(chain)).and_then(Option::as_ref);
        let of_chain = of_chain.filter(|limit| (limit.counts)(key));
        [
            half_open.map(|most| (Kind::HalfOpen, source, most)),
            self.limits.flows.map(|most| (Kind::All, source, most)),
            // A function's limit is for the address, not for its network.
            of_chain.map(|limit| (Kind::Chain(chain), key.source, limit.flows)),
        ]
    }

    fn hash(&self, source: &[u8; 16], kind: Kind) -> u64 {
        let (protocol, source_port) =
            if let Kind::Chain(chain) = kind { (4, chain) } else { (u16::from(kind.bit()), 0) };
        FlowKey { source: *source, source_port, protocol, ..FlowKey::default() }.hash(self.seed)
    }

    fn find(&self, source: &[u8; 16], kind: Kind, hash: u64) -> Option<Found> {
        let is_it = |found: Found| {
            let count = &self.counts[found.slot as usize];
            count.kind == kind && count.source == *source
        };
        self.table.find(hash, is_it)
    }

    /// Checks if another flow of this key may be opened in this chain.
    pub(super) fn admit(&self, key: &FlowKey, chain: u16) -> Result<(), DropReason> {
        for (kind, source, most) in
            self.kinds(key, chain, Opening::Unanswered).into_iter().flatten()
        {
            let found = self.find(&source, kind, self.hash(&source, kind));
            if found.map_or(0, |found| self.counts[found.slot as usize].flows) < most {
                continue;
            }
            match kind {
                Kind::HalfOpen if is_planted(Fault::IgnoresHalfOpen) => {}
                Kind::HalfOpen => return Err(DropReason::HalfOpenLimit),
                _ if is_planted(Fault::IgnoresHostLimits) => {}
                _ => return Err(DropReason::QuotaExceeded),
            }
        }
        Ok(())
    }

    /// Adds a flow. Returns the counts that include it, a bit each.
    pub(super) fn add(&mut self, key: &FlowKey, chain: u16, opening: Opening) -> u8 {
        let mut counted = 0;
        for (kind, source, _) in self.kinds(key, chain, opening).into_iter().flatten() {
            let hash = self.hash(&source, kind);
            if let Some(found) = self.find(&source, kind, hash) {
                self.counts[found.slot as usize].flows += 1;
            } else {
                // Without a place in the table the flow is not counted, which is rarer
                // than one in millions.
                let Some(slot) = self.free.next() else { continue };
                if !self.table.insert(hash, Found { slot, is_reply: false }) {
                    continue;
                }
                self.free.take();
                let count = Count { source, kind, flows: 1 };
                match self.counts.get_mut(slot as usize) {
                    Some(free) => *free = count,
                    None => self.counts.push(count),
                }
            }
            counted |= kind.bit();
        }
        counted
    }

    /// Removes a flow from the counts that include it.
    pub(super) fn remove(&mut self, key: &FlowKey, chain: u16, counted: u8) {
        let source = source_of(&key.source);
        for (kind, source) in
            [(Kind::HalfOpen, source), (Kind::All, source), (Kind::Chain(chain), key.source)]
        {
            if counted & kind.bit() == 0 {
                continue;
            }
            let hash = self.hash(&source, kind);
            let Some(found) = self.find(&source, kind, hash) else { continue };
            let count = &mut self.counts[found.slot as usize];
            count.flows -= 1;
            if count.flows == 0 {
                self.table.remove(hash, found);
                self.free.put(found.slot);
            }
        }
    }

    /// Ends a flow's being half open. Returns the counts that still include it.
    pub(super) fn settle(&mut self, key: &FlowKey, chain: u16, counted: u8) -> u8 {
        self.remove(key, chain, counted & Kind::HalfOpen.bit());
        counted & !Kind::HalfOpen.bit()
    }

    /// Number of counts in use, over all sources.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.free.capacity() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_nf::SourceLimit;
    use holdfast_wire::map_v4;
    use std::sync::Arc;

    fn key(host: u8, port: u16) -> FlowKey {
        FlowKey {
            source: map_v4([10, 0, 0, host]),
            source_port: port,
            protocol: 17,
            ..FlowKey::default()
        }
    }

    /// A host has three half-open flows and may have no fourth. A reply comes for the
    /// first, another ends, and a new one is admitted. Other hosts are not concerned, and
    /// in the end no count is left.
    #[test]
    fn what_is_counted_is_what_there_is() {
        let limits = SwitchLimits { half_open: Some(3), ..SwitchLimits::default() };
        let mut sources = Sources::new(limits, 64, 1);
        let counted = sources.add(&key(1, 1), 0, Opening::Unanswered);
        for port in 2..4 {
            assert_eq!(sources.admit(&key(1, port), 0), Ok(()));
            assert_eq!(sources.add(&key(1, port), 0, Opening::Unanswered), counted);
        }
        assert_eq!(sources.admit(&key(1, 4), 0), Err(DropReason::HalfOpenLimit));
        assert_eq!(sources.admit(&key(2, 4), 0), Ok(()));
        assert_eq!(sources.settle(&key(1, 1), 0, counted), 0, "it is counted as nothing else");
        assert_eq!(sources.admit(&key(1, 4), 0), Ok(()));
        assert_eq!(
            sources.add(&key(1, 5), 0, Opening::Over),
            0,
            "who comes answered is not half open"
        );
        sources.remove(&key(1, 2), 0, counted);
        sources.remove(&key(1, 3), 0, counted);
        sources.remove(&key(1, 1), 0, 0);
        assert_eq!(sources.len(), 0);
    }

    /// An IPv6 network is one source, whatever addresses its hosts take. A function's
    /// limit holds for each address, in its own chain, and for the flows that it means.
    #[test]
    fn who_a_source_is() {
        let counts = Arc::new(|key: &FlowKey| key.source_port != 53);
        let of_chain = Some(SourceLimit { flows: 1, counts });
        let limits = SwitchLimits {
            flows: Some(2),
            chains: vec![None, of_chain],
            ..SwitchLimits::default()
        };
        let mut sources = Sources::new(limits, 64, 1);
        let v6 = |last: u8, port: u16| {
            let source = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, last];
            FlowKey { source, source_port: port, protocol: 17, ..FlowKey::default() }
        };
        sources.add(&v6(1, 1), 0, Opening::Unanswered);
        sources.add(&v6(2, 1), 0, Opening::Unanswered);
        assert_eq!(sources.admit(&v6(3, 1), 0), Err(DropReason::QuotaExceeded));
        let counted = sources.add(&key(1, 7), 1, Opening::Unanswered);
        assert_eq!(
            sources.admit(&key(1, 8), 1),
            Err(DropReason::QuotaExceeded),
            "one in this chain"
        );
        assert_eq!(sources.admit(&key(1, 8), 0), Ok(()), "another chain");
        assert_eq!(sources.admit(&key(1, 53), 1), Ok(()), "not meant");
        sources.remove(&key(1, 7), 1, counted);
        assert_eq!(sources.admit(&key(1, 8), 1), Ok(()));
    }
}
