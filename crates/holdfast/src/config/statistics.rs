//! What flows count and measure, as people and the state server know it: in order of chain, function and field.

use super::BuiltChain;
use holdfast_nf::SharedField;
use holdfast_node::message::PoolId;
use holdfast_state::Kind;

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

/// All of them.
pub fn named_statistics(chains: &mut [BuiltChain]) -> Vec<NamedStatistic> {
    let mut statistics = Vec::new();
    for (built, chain) in chains.iter_mut().zip(0..) {
        for (holder, function) in built.chain.functions_mut().iter_mut().zip(0..) {
            let name = holder.name();
            let mut field = 0;
            holder.shared().visit(&mut |field_name, mut shared| {
                let names = if let SharedField::Counters(counters) = &shared { Some(counters.names().to_vec()) } else { None };
                if let Some(part) = shared.part() {
                    statistics.push(NamedStatistic {
                        id: PoolId { chain, function, field },
                        chain: built.name.clone(),
                        function: name,
                        field: field_name,
                        names,
                        size: part.own().len() as u32,
                        is_served: part.is_shared(),
                    });
                }
                field += 1;
            });
        }
    }
    statistics
}
