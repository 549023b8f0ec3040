//! Copies of flows that other runtimes own: what is taken, and when they go.

use crate::delta;
use crate::flows::{ActorHeader, flag, role};
use crate::numbers::{reached, split_epoch, split_u32};
use crate::{Epoch, Flows, Outbox, Peer, Slot};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey};
use zerocopy::FromBytes;

/// Epoch, then version. Equal is as good.
pub(crate) fn is_newer(theirs: &ActorHeader, ours: &ActorHeader) -> bool {
    match theirs.epoch == ours.epoch {
        true => reached(theirs.version, ours.version),
        false => theirs.epoch.has_reached(ours.epoch),
    }
}

/// A flow that was owned here, or is on its way to its new owner, has become a copy.
pub(crate) struct Demoted {
    pub(crate) slot: Slot,
    pub(crate) key: FlowKey,
    /// Who held the copy of what was here.
    pub(crate) holder: Peer,
    /// That copy is of this epoch or an earlier one.
    pub(crate) epoch: Epoch,
}

/// Keeps a flow as its owner `from` sent it. One that was owned here under an older epoch, or has just left, becomes a copy: that is written to `demoted`,
/// also if the flow is not kept then.
///
/// # Errors
/// Why it is not kept. There is no older copy here then either, to be found later in its place.
pub(crate) fn save(
    flows: &mut Flows,
    from: Peer,
    block: &[u8],
    demoted: &mut Option<Demoted>,
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
            if !acceptable && !is_planted(Fault::IgnoresEpochs) {
                return Err(DropReason::StaleEpoch);
            }
            let role = ours.role;
            let holder = Peer { node: ours.peer, incarnation: ours.peer_incarnation };
            if is_ours || role == role::DEPARTED || role == role::CLAIMING && holder != from {
                *demoted = Some(Demoted { slot: found.slot, key: theirs.key, holder, epoch: theirs.epoch.before() });
            }
            if is_ours {
                out.demoted.push(found.slot);
            }
            // Who was to bring it here has it under the epoch that he announced. Another one who has it under a newer one has recovered it: it does not come any more.
            let comes_no_more = role == role::ARRIVING && theirs.epoch != ours.epoch && holder != from;
            let comes_no_more = comes_no_more && !is_planted(Fault::AwaitsWhatComesNoMore);
            if comes_no_more || !matches!(role, role::REPLICA | role::ARRIVING) {
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

/// Writes what has changed in a flow of `from` over the copy of it.
///
/// # Errors
/// Why that is not possible. A copy that would be older than its owner believes is not kept, to be found later.
pub(crate) fn patch(flows: &mut Flows, from: Peer, record: &delta::Record<'_>) -> Result<Slot, DropReason> {
    let slot = find(flows, from, record.hash, record.epoch)?;
    let header = flows.header_mut(slot);
    if header.version != record.version {
        forget(flows, slot);
        return Err(DropReason::ReplicaDiffers);
    }
    header.version = record.version.wrapping_add(1);
    record.change.apply(flows.block_mut(slot));
    Ok(slot)
}

/// Compares the copy of a flow of `from` with what it says of it.
///
/// # Errors
/// Why there is no copy any more that could be meant.
pub(crate) fn check(flows: &mut Flows, from: Peer, check: &delta::Check) -> Result<(), DropReason> {
    let slot = find(flows, from, check.hash, check.epoch)?;
    if flows.header(slot).version != check.version || flows.digest(slot) != check.digest {
        forget(flows, slot);
        return Err(DropReason::ReplicaDiffers);
    }
    Ok(())
}

/// The copy of a flow of `from` that has this epoch.
fn find(flows: &Flows, from: Peer, hash: u64, epoch: Epoch) -> Result<Slot, DropReason> {
    let slot = flows.find_hash(hash, |header| header.epoch == epoch).ok_or(DropReason::StaleEpoch)?;
    let header = flows.header(slot);
    let is_its = (header.peer, header.peer_incarnation) == (from.node, from.incarnation);
    let is_copy = matches!(header.role, role::REPLICA | role::ARRIVING) && header.flags & flag::EMPTY == 0;
    if is_its && is_copy { Ok(slot) } else { Err(DropReason::StaleEpoch) }
}

/// A copy that is not to be found any more. If the flow itself is on its way here, its place stays.
fn forget(flows: &mut Flows, slot: Slot) {
    match flows.header(slot).role {
        role::ARRIVING => flows.header_mut(slot).flags |= flag::EMPTY,
        _ => flows.remove(slot),
    }
}

/// The number, the epoch and the key of a flow that has ended.
pub(crate) fn split_end(body: &[u8]) -> Result<(u32, Epoch, FlowKey), DropReason> {
    let (number, rest) = split_u32(body)?;
    let (epoch, rest) = split_epoch(rest)?;
    Ok((number, epoch, FlowKey::read_from_bytes(rest).map_err(|_| DropReason::Malformed)?))
}

/// The owner has no use for this copy any more, as it was under this epoch or an earlier one. Where it was, if there is one.
pub(crate) fn end(flows: &mut Flows, epoch: Epoch, key: &FlowKey) -> Option<Slot> {
    let found = flows.find(key, flows.hash(key)).filter(|found| !found.is_reply)?;
    let header = flows.header(found.slot);
    let is_meant = header.role == role::REPLICA && epoch.has_reached(header.epoch);
    is_meant.then(|| {
        flows.remove(found.slot);
        found.slot
    })
}
