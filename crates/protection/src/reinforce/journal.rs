//! Journals: the inputs that owners have processed since they sent the copies that are
//! here, in order.

use crate::numbers::split_commit;
use crate::{Commit, Epoch, Peer, Slot};
use holdfast_wire::DropReason;
use std::collections::{BTreeMap, VecDeque};

/// Inputs kept of one owner: far more than an honest one sends without new states.
const LIMIT: usize = 1 << 20;
/// Dead owners whose inputs are kept. Flows that have not been claimed by then are not
/// claimed any more.
const DEAD: usize = 1024;
/// Bytes of an input: the flow's epoch (4), the stamp less the record's (4).
const INPUT_LEN: usize = 8;

/// A record of inputs: its number (4), a stamp (8), and the inputs.
pub(super) struct InputRecord<'a> {
    pub(super) number: Commit,
    base: u64,
    inputs: &'a [[u8; INPUT_LEN]],
}

impl<'a> InputRecord<'a> {
    /// Parses a record.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if the body is not one.
    pub(super) fn read(body: &'a [u8]) -> Result<InputRecord<'a>, DropReason> {
        let (number, rest) = split_commit(body)?;
        let (base, rest) = rest.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        match rest.as_chunks() {
            (inputs, []) if !inputs.is_empty() => {
                Ok(InputRecord { number, base: u64::from_be_bytes(*base), inputs })
            }
            _ => Err(DropReason::Malformed),
        }
    }
}

/// The inputs of one owner.
#[derive(Default)]
struct Journal {
    /// Inputs that came before those in the list.
    first: u64,
    inputs: VecDeque<(Epoch, u64)>,
    /// For each record its number, and the position behind its last input.
    records: VecDeque<(Commit, u64)>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Journals {
    owners: BTreeMap<Peer, Journal>,
    /// By slot here: how many inputs of the owner had come before the copy.
    covered: Vec<u64>,
    /// Dead owners' inputs, by epoch: stamps, each with its position among the owner's
    /// inputs.
    dead: VecDeque<BTreeMap<u32, Vec<(u64, u64)>>>,
}

impl Journals {
    /// Keeps the inputs of a record.
    pub(super) fn take(&mut self, from: Peer, record: &InputRecord<'_>) -> Result<(), DropReason> {
        let journal = self.owners.entry(from).or_default();
        if journal.inputs.len() + record.inputs.len() > LIMIT {
            return Err(DropReason::HeldOverflow);
        }
        journal.inputs.extend(record.inputs.iter().map(|&[a, b, c, d, offset @ ..]| {
            let offset = i32::from_be_bytes(offset);
            (
                Epoch::new(u32::from_be_bytes([a, b, c, d])),
                record.base.wrapping_add_signed(offset.into()),
            )
        }));
        journal.records.push_back((record.number, journal.first + journal.inputs.len() as u64));
        Ok(())
    }

    /// Forgets the inputs of an owner's records up to this one, because its copies
    /// contain them.
    pub(super) fn trim(&mut self, from: Peer, number: Commit) {
        let Some(journal) = self.owners.get_mut(&from) else { return };
        while let Some((_, end)) =
            journal.records.pop_front_if(|(known, _)| number.has_reached(*known))
        {
            journal.inputs.drain(..(end - journal.first) as usize);
            journal.first = end;
        }
    }

    fn covered_mut(&mut self, slot: Slot) -> &mut u64 {
        let at = slot as usize;
        if at >= self.covered.len() {
            self.covered.resize(at + 1, 0);
        }
        &mut self.covered[at]
    }

    /// Marks this copy as up to date with all inputs that its owner has sent.
    pub(super) fn cover(&mut self, from: Peer, slot: Slot) {
        let place =
            self.owners.get(&from).map_or(0, |journal| journal.first + journal.inputs.len() as u64);
        *self.covered_mut(slot) = place;
    }

    /// Marks this copy as behind every input that its owner sends.
    pub(super) fn uncover(&mut self, slot: Slot) {
        *self.covered_mut(slot) = 0;
    }

    /// Closes the journals of a failed owner and of all its earlier incarnations.
    pub(super) fn close(&mut self, dead: Peer) {
        for (_, journal) in self.owners.extract_if(.., |peer, _| dead.has_reached(*peer)) {
            let mut by_epoch: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
            for ((epoch, stamp), place) in journal.inputs.into_iter().zip(journal.first..) {
                by_epoch.entry(epoch.get()).or_default().push((place, stamp));
            }
            if self.dead.len() == DEAD {
                self.dead.pop_front();
            }
            self.dead.push_back(by_epoch);
        }
    }

    /// The stamps of a flow's packets that were processed since its copy, in order. The
    /// stamps are not given out again.
    pub(super) fn of_flow(&mut self, epoch: Epoch, slot: Slot) -> Vec<u64> {
        let covered = self.covered.get(slot as usize).copied().unwrap_or(0);
        let inputs = self
            .dead
            .iter_mut()
            .rev()
            .find_map(|by_epoch| by_epoch.remove(&epoch.get()))
            .unwrap_or_default();
        inputs.into_iter().filter(|(place, _)| *place >= covered).map(|(_, stamp)| stamp).collect()
    }

    /// True if this owner has reported the packet with this stamp as processed.
    pub(super) fn has(&self, from: Peer, epoch: Epoch, stamp: u64) -> bool {
        self.owners.get(&from).is_some_and(|journal| journal.inputs.contains(&(epoch, stamp)))
    }
}
