//! Limits of flows and rates that a switch enforces, by source and by chain.

use core::fmt;
use holdfast_nf::{RateLimit, SourceLimit};

/// Limits of a switch. A limit of flows that is not set is the size of the flow table.
#[derive(Clone, Default)]
pub struct SwitchLimits {
    /// Maximum number of half-open flows of one source.
    pub half_open: Option<u32>,
    /// Maximum number of flows of one source.
    pub flows: Option<u32>,
    /// Limit of flows that a function of the chain sets, by chain. Chains beyond the list
    /// have none.
    pub chains: Vec<Option<SourceLimit>>,
    /// Rates that the functions of the chain set, in their order, by chain. Chains beyond
    /// the list have none.
    pub rates: Vec<Vec<RateLimit>>,
}

impl SwitchLimits {
    /// Maximum number of counts of [`Sources`](super::sources::Sources) that include one
    /// flow.
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
