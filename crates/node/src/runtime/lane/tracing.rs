//! The trace of a packet on its way through a chain, for an operator.
//!
//! In: packets that are traced. Out: steps. Never: a difference in the packet's
//! processing.

use crate::runtime::Shared;
use holdfast_nf::{Chain, Function, Outcome, Position};
use holdfast_wire::{DropReason, FlowKey, Packet};

/// Runs the chain with a packet that an operator traces.
#[cold]
pub(super) fn run_traced(
    chain: &mut Chain,
    packet: &mut Packet,
    state: &mut [u8],
    position: Position,
    shared: &mut Shared,
) -> Outcome {
    let mut steps = Vec::new();
    let outcome =
        chain.run_observed(packet, state, position, &mut shared.cx, |function, packet, state| {
            let begins = position.opening.then(|| function.explain(packet, None));
            let why = [begins.unwrap_or_default(), function.explain(packet, Some(state))];
            let why: String =
                why.iter().filter(|why| !why.is_empty()).map(|why| format!(", {why}")).collect();
            let name = function.name();
            steps.push(match FlowKey::of(packet) {
                Some(key) => format!("{name} passes it as {key}{why}"),
                None => format!("{name} passes it{why}"),
            });
        });
    steps.into_iter().for_each(|step| shared.trace(packet, step));
    outcome
}

#[cold]
pub(super) fn trace_drop(
    function: &dyn Function,
    packet: &Packet,
    (what, reason): (&str, DropReason),
    begins: bool,
    shared: &mut Shared,
) {
    let why = if begins { function.explain(packet, None) } else { String::new() };
    let why = if why.is_empty() { why } else { format!(", {why}") };
    shared.trace(packet, format!("{what} by {}: {reason}{why}", function.name()));
}

#[cold]
pub(super) fn trace_exit(chain: &str, packet: &Packet, key: &FlowKey, shared: &mut Shared) {
    let now = FlowKey::of(packet).map_or(String::new(), |key| key.to_string());
    shared.trace(packet, format!("chain {chain}: {key} leaves as {now}"));
}
