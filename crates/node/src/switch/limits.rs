//! Limits of flows and rates that a switch keeps to, by source and by chain.

use core::fmt;
use holdfast_nf::{RateLimit, SourceLimit};

/// Limits of a switch. A limit of flows that is not set is the whole table.
#[derive(Clone, Default)]
pub struct SwitchLimits {
    /// Half-open flows of one source.
    pub half_open: Option<u32>,
    /// All flows of one source.
    pub flows: Option<u32>,
    /// By chain: the limit of flows that a function of it sets. Chains behind the list
    /// have none.
    pub chains: Vec<Option<SourceLimit>>,
    /// By chain: the rates that its functions set, in their order. Chains behind the list
    /// have none.
    pub rates: Vec<Vec<RateLimit>>,
}

impl SwitchLimits {
    /// The most counts of [`Sources`](super::sources::Sources) that a flow is part of.
    pub(super) fn kinds(&self) -> usize {
        let has_chains = self.chains.iter().any(Option::is_some);
        [self.half_open.is_some(), self.flows.is_some(), has_chains]
            .into_iter()
            .filter(|is_there| *is_there)
            .count()
    }
}

impl fmt::Debug for SwitchLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chains: Vec<_> =
            self.chains.iter().map(|limit| limit.as_ref().map(|limit| limit.flows)).collect();
        let rates: Vec<Vec<_>> = self
            .rates
            .iter()
            .map(|limits| limits.iter().map(|limit| (limit.budget, limit.rate)).collect())
            .collect();
        f.debug_struct("SwitchLimits")
            .field("half_open", &self.half_open)
            .field("flows", &self.flows)
            .field("chains", &chains)
            .field("rates", &rates)
            .finish()
    }
}
