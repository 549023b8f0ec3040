//! Copies of flows that other runtimes own: which states are taken, and when copies go.

use crate::delta;
use crate::flows::{ActorHeader, Event, Life, flag};
use crate::numbers::{split_commit, split_epoch};
use crate::{Commit, Epoch, Flows, Outbox, Peer, Slot};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey};
use zerocopy::FromBytes;

/// Compares epochs, then versions, which wrap. Equal counts as newer.
pub(crate) fn is_newer(theirs: &ActorHeader, ours: &ActorHeader) -> bool {
    match theirs.epoch == ours.epoch {
        true => theirs.version.wrapping_sub(ours.version) as i32 >= 0,
        false => theirs.epoch.has_reached(ours.epoch),
    }
}

/// A flow that was owned here, or is on its way to its new owner, has become a copy.
pub(crate) struct Demoted {
    pub(crate) slot: Slot,
    pub(crate) key: FlowKey,
    /// The holder of this runtime's own copy of the flow.
    pub(crate) holder: Peer,
    /// The holder's copy has this epoch or an earlier one.
    pub(crate) epoch: Epoch,
}

/// Keeps a flow's state as its owner `from` sent it. A flow that was owned here under an
/// older epoch, or has just left, becomes a copy. `demoted` reports that, even if the
/// state is not kept.
///
/// # Errors
/// Why the state is not kept. No older copy stays here either, so none is found later in
/// its place.
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
        None => {
            flows.insert(theirs.key, hash, Event::Copy).map_err(|_| DropReason::FlowTableFull)?
        }
        Some(found) if found.is_reply => return Err(DropReason::FlowTableFull),
        Some(found) => {
            let ours = flows.header(found.slot);
            let is_ours = ours.life().is_own();
            let acceptable = is_newer(&theirs, ours) && !(is_ours && theirs.epoch == ours.epoch);
            if !acceptable && !is_planted(Fault::IgnoresEpochs) {
                return Err(DropReason::StaleEpoch);
            }
            let life = ours.life();
            let holder = ours.holder();
            if is_ours || life == Life::Departed || life == Life::Claiming && holder != from {
                *demoted = Some(Demoted {
                    slot: found.slot,
                    key: theirs.key,
                    holder,
                    epoch: theirs.epoch.before(),
                });
            }
            if is_ours {
                out.demoted.push(found.slot);
            }
            // The announced owner would bring the flow under the announced epoch. If
            // another runtime has a newer epoch, it has recovered the flow, and the flow
            // does not come here any more.
            let comes_no_more =
                life == Life::Arriving && theirs.epoch != ours.epoch && holder != from;
            let comes_no_more = comes_no_more && !is_planted(Fault::AwaitsWhatComesNoMore);
            if comes_no_more || !life.may_be_copy() {
                // A claim also ends here: a runtime that sends newer state has the route.
                flows.step(found.slot, Event::Copy);
            }
            found.slot
        }
    };
    if flows.overwrite(slot, block).is_err() {
        // A refused flow must not be found here later, older than its owner has revealed.
        match out.demoted.contains(&slot) {
            true => flows.header_mut(slot).set_holder(Peer::default()),
            false => flows.remove(slot),
        }
        return Err(DropReason::FlowTableFull);
    }
    let header = flows.header_mut(slot);
    header.set_holder(from);
    header.commit = Commit::NONE;
    Ok(())
}

/// Applies a delta of a flow of `from` to its copy.
///
/// # Errors
/// Why the delta does not apply. A copy that would be older than its owner believes is
/// removed, so that nobody finds it later.
pub(crate) fn patch(
    flows: &mut Flows,
    from: Peer,
    record: &delta::DeltaRecord<'_>,
) -> Result<Slot, DropReason> {
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

/// Compares the copy of a flow of `from` with the owner's digest.
///
/// # Errors
/// Why no copy matches. A copy that differs is removed.
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
    let slot =
        flows.find_hash(hash, |header| header.epoch == epoch).ok_or(DropReason::StaleEpoch)?;
    let header = flows.header(slot);
    let is_its = header.holder() == from;
    let is_copy = header.life().may_be_copy() && header.flags & flag::EMPTY == 0;
    if is_its && is_copy { Ok(slot) } else { Err(DropReason::StaleEpoch) }
}

/// Removes a copy. If the flow itself is on its way here, its slot stays.
fn forget(flows: &mut Flows, slot: Slot) {
    match flows.header(slot).life() {
        Life::Arriving => flows.header_mut(slot).flags |= flag::EMPTY,
        _ => flows.remove(slot),
    }
}

/// Parses the end of a flow: number, epoch and key.
pub(crate) fn split_end(body: &[u8]) -> Result<(Commit, Epoch, FlowKey), DropReason> {
    let (number, rest) = split_commit(body)?;
    let (epoch, rest) = split_epoch(rest)?;
    Ok((number, epoch, FlowKey::read_from_bytes(rest).map_err(|_| DropReason::Malformed)?))
}

/// Removes the copy of this flow if it has this epoch or an earlier one: its owner has no
/// use for it. Returns the slot that the copy had.
pub(crate) fn end(flows: &mut Flows, epoch: Epoch, key: &FlowKey) -> Option<Slot> {
    let found = flows.find(key, flows.hash(key)).filter(|found| !found.is_reply)?;
    let header = flows.header(found.slot);
    let is_meant = header.life() == Life::Copy && epoch.has_reached(header.epoch);
    is_meant.then(|| {
        flows.remove(found.slot);
        found.slot
    })
}
