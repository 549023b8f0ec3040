//! What owners have processed since they sent the copies that are here: inputs, in their order.

use crate::numbers::{reached, split_u32};
use crate::{Epoch, Peer, Slot};
use holdfast_wire::DropReason;
use std::collections::{BTreeMap, VecDeque};

/// Inputs kept of one owner: far more than an honest one sends without new states.
const LIMIT: usize = 1 << 20;
/// Of so many dead the inputs are kept: what has not been claimed after that is not claimed any more.
const DEAD: usize = 1024;
/// Bytes of an input: the flow's epoch (4), the stamp less the record's (4).
const INPUT_LEN: usize = 8;

/// A record of inputs: its number (4), a stamp (8), and the inputs.
pub(super) struct Record<'a> {
    pub(super) number: u32,
    base: u64,
    inputs: &'a [[u8; INPUT_LEN]],
}

impl<'a> Record<'a> {
    /// Takes it apart.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if it is none.
    pub(super) fn read(body: &'a [u8]) -> Result<Record<'a>, DropReason> {
        let (number, rest) = split_u32(body)?;
        let (base, rest) = rest.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        match rest.as_chunks() {
            (inputs, []) if !inputs.is_empty() => Ok(Record { number, base: u64::from_be_bytes(*base), inputs }),
            _ => Err(DropReason::Malformed),
        }
    }
}

/// Of one owner.
#[derive(Default)]
struct Journal {
    /// Inputs that came before those that are here.
    first: u64,
    inputs: VecDeque<(Epoch, u64)>,
    /// Of each record its number, and where its inputs end.
    records: VecDeque<(u32, u64)>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Journals {
    owners: BTreeMap<Peer, Journal>,
    /// By slot here: how many inputs of its owner had come before its copy.
    covered: Vec<u64>,
    /// Of the dead, by epoch: stamps, each with its place among the owner's inputs.
    dead: VecDeque<BTreeMap<u32, Vec<(u64, u64)>>>,
}

impl Journals {
    /// Keeps what a record says.
    pub(super) fn take(&mut self, from: Peer, record: &Record<'_>) -> Result<(), DropReason> {
        let journal = self.owners.entry(from).or_default();
        if journal.inputs.len() + record.inputs.len() > LIMIT {
            return Err(DropReason::HeldOverflow);
        }
        journal.inputs.extend(record.inputs.iter().map(|&[a, b, c, d, offset @ ..]| {
            let offset = i32::from_be_bytes(offset);
            (Epoch::new(u32::from_be_bytes([a, b, c, d])), record.base.wrapping_add_signed(offset.into()))
        }));
        journal.records.push_back((record.number, journal.first + journal.inputs.len() as u64));
        Ok(())
    }

    /// The copies of this owner have what its records up to this one said.
    pub(super) fn trim(&mut self, from: Peer, number: u32) {
        let Some(journal) = self.owners.get_mut(&from) else { return };
        while let Some((_, end)) = journal.records.pop_front_if(|(known, _)| reached(number, *known)) {
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

    /// This copy is as its owner had it after everything that it has said.
    pub(super) fn cover(&mut self, from: Peer, slot: Slot) {
        let place = self.owners.get(&from).map_or(0, |journal| journal.first + journal.inputs.len() as u64);
        *self.covered_mut(slot) = place;
    }

    /// What the owner of this copy says of it comes behind it.
    pub(super) fn uncover(&mut self, slot: Slot) {
        *self.covered_mut(slot) = 0;
    }

    /// The owner has failed, with all its earlier lives.
    pub(super) fn close(&mut self, dead: Peer) {
        let is_dead = |peer: &Peer| peer.node == dead.node && reached(dead.incarnation, peer.incarnation);
        for (_, journal) in self.owners.extract_if(.., |peer, _| is_dead(peer)) {
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

    /// The stamps of what was processed of a flow since its copy, in order. They are not given out again.
    pub(super) fn of_flow(&mut self, epoch: Epoch, slot: Slot) -> Vec<u64> {
        let covered = self.covered.get(slot as usize).copied().unwrap_or(0);
        let inputs = self.dead.iter_mut().rev().find_map(|by_epoch| by_epoch.remove(&epoch.get())).unwrap_or_default();
        inputs.into_iter().filter(|(place, _)| *place >= covered).map(|(_, stamp)| stamp).collect()
    }

    /// This owner has said that it processed this.
    pub(super) fn has(&self, from: Peer, epoch: Epoch, stamp: u64) -> bool {
        self.owners.get(&from).is_some_and(|journal| journal.inputs.contains(&(epoch, stamp)))
    }
}
