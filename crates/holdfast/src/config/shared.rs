//! Shared state known to operators and the state server: pools of numbers and statistics,
//! in order of chain, function and field.

use holdfast_nf::{Configured, SharedField};
use holdfast_node::message::PoolId;
use holdfast_state::Kind;
use std::sync::Arc;

/// A pool, as shown to operators.
pub struct NamedPool {
    /// The pool's id.
    pub id: PoolId,
    /// The chain's name.
    pub chain: String,
    /// The function's name.
    pub function: &'static str,
    /// The field of the function's shared state.
    pub field: &'static str,
    /// The number of its numbers, from 0.
    pub size: u32,
    /// How long a number rests that a flow had, ns, if a state server assigns them.
    pub rest: Option<u64>,
}

/// A statistic, as shown to operators.
pub struct NamedStatistic {
    /// The statistic's id.
    pub id: PoolId,
    /// The chain's name.
    pub chain: String,
    /// The function's name.
    pub function: &'static str,
    /// The field of the function's shared state.
    pub field: &'static str,
    /// The names of counters; none for a gauge, whose items have numbers.
    pub names: Option<Vec<String>>,
    /// The number of its numbers.
    pub size: u32,
    /// True if a state server adds up its parts.
    pub is_served: bool,
}

impl NamedStatistic {
    /// The kind, for a state server.
    pub fn kind(&self) -> Kind {
        if self.names.is_some() { Kind::Counters(self.size) } else { Kind::Gauge(self.size) }
    }

    /// The name of one of its numbers.
    pub fn name(&self, index: usize) -> String {
        match &self.names {
            Some(names) => names.get(index).cloned().unwrap_or_default(),
            None => index.to_string(),
        }
    }
}

/// The pools and statistics of functions.
pub(super) struct Named {
    pub(super) pools: Vec<NamedPool>,
    pub(super) statistics: Vec<NamedStatistic>,
}

impl Named {
    /// Lists those of this chain's functions, as if without a state server.
    pub(super) fn of(number: u16, chain: &str, functions: &[Arc<dyn Configured>]) -> Named {
        let mut named = Named { pools: Vec::new(), statistics: Vec::new() };
        for (at, configured) in (0u8..).zip(functions) {
            let (name, chain) = (configured.name(), || chain.to_owned());
            let mut id = PoolId { chain: number, function: at, field: 0 };
            configured.bind().shared().visit(&mut |field, mut shared| {
                let names = if let SharedField::Counters(counters) = &shared {
                    Some(counters.names().to_vec())
                } else {
                    None
                };
                if let SharedField::Pool(pool) = &shared {
                    named.pools.push(NamedPool {
                        id,
                        chain: chain(),
                        function: name,
                        field,
                        size: pool.size(),
                        rest: None,
                    });
                } else if let Some(part) = shared.part() {
                    let size = part.own().len() as u32;
                    named.statistics.push(NamedStatistic {
                        id,
                        chain: chain(),
                        function: name,
                        field,
                        names,
                        size,
                        is_served: false,
                    });
                }
                id.field += 1;
            });
        }
        named
    }

    /// True if there is nothing for a state server to assign or add up.
    pub(super) fn is_empty(&self) -> bool {
        self.pools.is_empty() && self.statistics.is_empty()
    }

    /// Moves all to a state server, if there is one: numbers then rest for `rest` ns.
    pub(super) fn at_server(mut self, rest: Option<u64>) -> Named {
        self.pools.iter_mut().for_each(|pool| pool.rest = rest);
        self.statistics.iter_mut().for_each(|statistic| statistic.is_served = rest.is_some());
        self
    }
}
