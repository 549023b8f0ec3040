//! Copies of flows that other runtimes own: what is taken, and when they go.

use crate::flows::{ActorHeader, role};
use crate::numbers::{reached, split_u32};
use crate::{Flows, Outbox, Peer, Slot};
use holdfast_wire::{DropReason, FlowKey};
use zerocopy::FromBytes;

/// Epoch, then version. Equal is as good.
pub(crate) fn is_newer(theirs: &ActorHeader, ours: &ActorHeader) -> bool {
    match theirs.epoch == ours.epoch {
        true => reached(theirs.version, ours.version),
        false => reached(theirs.epoch, ours.epoch),
    }
}

/// A flow that was owned here, or is on its way to its new owner, has become a copy.
pub(crate) struct Demoted {
    pub(crate) slot: Slot,
    pub(crate) key: FlowKey,
    /// Who held the copy of what was here.
    pub(crate) holder: Peer,
    /// That copy is of this epoch or an earlier one.
    pub(crate) epoch: u32,
}

/// Keeps a flow as its owner `from` sent it. One that was owned here under an older epoch, or has just left, becomes a copy: `demote` is told. `accepts_all`, for checkers that must find it: also what is older.
///
/// # Errors
/// Why it is not kept. There is no older copy here then either, to be found later in its place.
pub(crate) fn save(
    flows: &mut Flows,
    from: Peer,
    block: &[u8],
    accepts_all: bool,
    demote: impl FnOnce(Demoted),
    out: &mut Outbox,
) -> Result<(), DropReason> {
    let (theirs, _) = ActorHeader::read_from_prefix(block).map_err(|_| DropReason::Malformed)?;
    let hash = flows.hash(&theirs.key);
    let slot = match flows.find(&theirs.key, hash) {
        None => flows.insert(theirs.key, hash, role::REPLICA).map_err(|_| DropReason::FlowTableFull)?,
        Some(found) if found.is_reply => return Err(DropReason::FlowTableFull),
        Some(found) => {
            let ours = flows.header(found.slot);
            let is_ours = matches!(ours.role, role::OWNER | role::OPENING);
            let acceptable = is_newer(&theirs, ours) && !(is_ours && theirs.epoch == ours.epoch);
            if !acceptable && !accepts_all {
                return Err(DropReason::StaleEpoch);
            }
            let role = ours.role;
            if is_ours || role == role::DEPARTED {
                let holder = Peer { node: ours.peer, incarnation: ours.peer_incarnation };
                demote(Demoted { slot: found.slot, key: theirs.key, holder, epoch: theirs.epoch.wrapping_sub(1) });
            }
            if is_ours {
                out.demoted.push(found.slot);
            }
            if !matches!(role, role::REPLICA | role::ARRIVING) {
                // Also while its route is being asked for: who sends newer state has it.
                flows.set_role(found.slot, role::REPLICA);
            }
            found.slot
        }
    };
    if flows.overwrite(slot, block).is_err() {
        // What is refused must not be found here later, older than what its owner has revealed.
        match out.demoted.contains(&slot) {
            true => flows.header_mut(slot).peer = 0,
            false => flows.remove(slot),
        }
        return Err(DropReason::FlowTableFull);
    }
    let header = flows.header_mut(slot);
    (header.peer, header.peer_incarnation, header.commit) = (from.node, from.incarnation, 0);
    Ok(())
}

/// The number, the epoch and the key of a flow that has ended.
pub(crate) fn split_end(body: &[u8]) -> Result<(u32, u32, FlowKey), DropReason> {
    let (number, rest) = split_u32(body)?;
    let (epoch, rest) = split_u32(rest)?;
    Ok((number, epoch, FlowKey::read_from_bytes(rest).map_err(|_| DropReason::Malformed)?))
}

/// The owner has no use for this copy any more, as it was under this epoch or an earlier one.
pub(crate) fn end(flows: &mut Flows, epoch: u32, key: &FlowKey) {
    if let Some(found) = flows.find(key, flows.hash(key)) {
        let header = flows.header(found.slot);
        if header.role == role::REPLICA && reached(epoch, header.epoch) && !found.is_reply {
            flows.remove(found.slot);
        }
    }
}
