//! What flows share of which people and the state server know: pools of numbers, and what is counted and measured. In order of chain, function and field.

use holdfast_nf::{Configured, SharedField};
use holdfast_node::message::PoolId;
use holdfast_state::Kind;
use std::sync::Arc;

/// A pool, as people know it.
pub struct NamedPool {
    /// Which one.
    pub id: PoolId,
    /// Of this chain,
    pub chain: String,
    /// this function,
    pub function: &'static str,
    /// this field of what its flows share.
    pub field: &'static str,
    /// Its numbers, from 0.
    pub size: u32,
    /// If a state server assigns them: so long one rests that a flow had, ns.
    pub rest: Option<u64>,
}

/// A statistic, as people know it.
pub struct NamedStatistic {
    /// Which one.
    pub id: PoolId,
    /// Of this chain,
    pub chain: String,
    /// this function,
    pub function: &'static str,
    /// this field of what its flows share.
    pub field: &'static str,
    /// Counters have names, the items of a gauge numbers.
    pub names: Option<Vec<String>>,
    /// How many numbers it has.
    pub size: u32,
    /// A state server adds them up.
    pub is_served: bool,
}

impl NamedStatistic {
    /// What it is to a state server.
    pub fn kind(&self) -> Kind {
        if self.names.is_some() { Kind::Counters(self.size) } else { Kind::Gauge(self.size) }
    }

    /// What one of its numbers is called.
    pub fn name(&self, index: usize) -> String {
        match &self.names {
            Some(names) => names.get(index).cloned().unwrap_or_default(),
            None => index.to_string(),
        }
    }
}

/// What flows of these functions share.
pub(super) struct Named {
    pub(super) pools: Vec<NamedPool>,
    pub(super) statistics: Vec<NamedStatistic>,
}

impl Named {
    /// Of the functions of this chain, before it is known whether a state server has it.
    pub(super) fn of(number: u16, chain: &str, functions: &[Arc<dyn Configured>]) -> Named {
        let mut named = Named { pools: Vec::new(), statistics: Vec::new() };
        for (at, configured) in (0u8..).zip(functions) {
            let (name, chain) = (configured.name(), || chain.to_owned());
            let mut id = PoolId { chain: number, function: at, field: 0 };
            configured.bind().shared().visit(&mut |field, mut shared| {
                let names = if let SharedField::Counters(counters) = &shared { Some(counters.names().to_vec()) } else { None };
                if let SharedField::Pool(pool) = &shared {
                    named.pools.push(NamedPool { id, chain: chain(), function: name, field, size: pool.size(), rest: None });
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

    /// True if there is nothing that a state server could assign or add up.
    pub(super) fn is_empty(&self) -> bool {
        self.pools.is_empty() && self.statistics.is_empty()
    }

    /// A state server has it, where there is one: then numbers rest for so long.
    pub(super) fn at_server(mut self, rest: Option<u64>) -> Named {
        self.pools.iter_mut().for_each(|pool| pool.rest = rest);
        self.statistics.iter_mut().for_each(|statistic| statistic.is_served = rest.is_some());
        self
    }
}
