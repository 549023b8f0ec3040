//! What flows of a chain share of which each has numbers of its own: where these pools are in its functions, and how large.

use crate::message::PoolId;
use holdfast_nf::{Chain, SharedField};

/// The pools of the chain with this number.
pub fn of_chain(chain: u16, functions: &mut Chain) -> Vec<(PoolId, u32)> {
    let mut pools = Vec::new();
    visit(chain, functions, |id, _, _, size| pools.push((id, size)));
    pools
}

/// The same, with the names of function and field.
pub fn visit(chain: u16, functions: &mut Chain, mut visit: impl FnMut(PoolId, &'static str, &'static str, u32)) {
    for (function, holder) in functions.functions_mut().iter_mut().enumerate() {
        let name = holder.name();
        let mut field = 0;
        holder.shared().visit(&mut |field_name, shared| {
            if let SharedField::Pool(pool) = shared {
                visit(PoolId { chain, function: function as u8, field }, name, field_name, pool.size());
            }
            field += 1;
        });
    }
}
