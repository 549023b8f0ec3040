//! Pools of a chain, of whose numbers each is at most one flow's: their places in its
//! functions, and their sizes.

use crate::message::PoolId;
use holdfast_nf::{Chain, SharedField};

/// The pools of the chain with this number.
pub fn of_chain(chain: u16, functions: &mut Chain) -> Vec<(PoolId, u32)> {
    let mut pools = Vec::new();
    for (function, holder) in (0u8..).zip(functions.functions_mut()) {
        let mut id = PoolId { chain, function, field: 0 };
        holder.shared().visit(&mut |_, shared| {
            if let SharedField::Pool(pool) = shared {
                pools.push((id, pool.size()));
            }
            id.field += 1;
        });
    }
    pools
}
