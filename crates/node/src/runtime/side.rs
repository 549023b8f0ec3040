//! What there is between a runtime and one of the switches.
//!
//! A chain's flows come from one switch, and go back to it. Stamps, epochs and lives are a switch's own: nothing of one is ever compared with another's, because the hosts'
//! clocks have nothing to do with each other. What is to be told is told to each for itself, so that nobody waits for a switch that nobody serves.

use super::telling::Telling;
use crate::address::NodeId;
use crate::channel::Fabric;
use crate::message::kind;
use holdfast_wire::{DropReason, Epoch, FlowKey, Packet};

/// Packets on which functions panicked that a switch is told of in one turn; a flood of them is no news.
const SUSPECTS: usize = 32;

/// See the module.
pub(crate) struct Side {
    pub(crate) switch: NodeId,
    /// The latest of its stamps, ns.
    pub(crate) now: u64,
    /// Its number in packets' metadata: an earlier one opens no flows here.
    pub(super) life: Option<u8>,
    /// The latest of its lives of which anything has come, by the same number.
    pub(super) heard: Option<u8>,
    /// How full its table of routes is, in 1/1000, as its latest tick says; and how many have come.
    pub(super) fill: usize,
    pub(super) ticks: u32,
    /// Keys of flows that ended or never were, with their epochs.
    pub(crate) ended: Vec<(FlowKey, Epoch)>,
    /// A new flow had to be turned away for want of room.
    pub(crate) is_full: bool,
    /// Stamps of packets on which functions panicked.
    suspects: Vec<u64>,
    /// The newest epoch of a route that came with a flow.
    pub(super) newest_epoch: Option<Epoch>,
    /// While a new life of the switch is told which flows are here.
    pub(super) telling: Option<Telling>,
    /// The host that serves it, 0 if there is only one.
    pub(super) host: u16,
}

impl Side {
    pub(super) fn new(switch: NodeId) -> Side {
        Side {
            switch,
            now: 0,
            life: None,
            heard: None,
            fill: 0,
            ticks: 0,
            ended: Vec::with_capacity(256),
            is_full: false,
            suspects: Vec::with_capacity(SUSPECTS),
            newest_epoch: None,
            telling: None,
            host: 0,
        }
    }

    /// Something has come from this life of the switch. True if it is the first from a later one.
    #[inline]
    pub(super) fn hear(&mut self, number: u8) -> bool {
        if self.heard == Some(number) {
            return false;
        }
        let is_later = self.heard.is_some_and(|heard| number.wrapping_sub(heard) as i8 > 0);
        if is_later || self.heard.is_none() {
            self.heard = Some(number);
        }
        is_later
    }

    /// A tick has come.
    pub(super) fn tick(&mut self, stamp: u64, fill: u32) {
        self.now = self.now.max(stamp);
        self.fill = fill as usize;
        self.ticks = self.ticks.wrapping_add(1);
    }

    /// A flow that is no more, or was not let in, is in no header; its epoch must not be given again all the same.
    pub(crate) fn note_epoch(&mut self, epoch: Epoch) {
        self.newest_epoch = Epoch::later(self.newest_epoch, Some(epoch));
    }

    /// The functions panicked on the packet with this stamp.
    pub(super) fn note_suspect(&mut self, stamp: u64) {
        if self.suspects.len() < SUSPECTS {
            self.suspects.push(stamp);
        }
    }

    /// The key of a packet: its own, or for a later fragment its datagram's, as the switch has noted it.
    #[inline]
    pub(crate) fn identify(packet: &mut Packet) -> Result<FlowKey, DropReason> {
        packet.parse().map_err(DropReason::from)?;
        FlowKey::noted(packet).ok_or(DropReason::UnknownEthertype)
    }

    /// Tells the switch which flows are no more.
    pub(super) fn report(&mut self, fabric: &mut Fabric) {
        if core::mem::take(&mut self.is_full) {
            let _ = fabric.send(self.switch, kind::FULL, &[]);
        }
        if !self.suspects.is_empty() {
            let stamps: Vec<u8> = self.suspects.drain(..).flat_map(u64::to_be_bytes).collect();
            // If the channel is full it is not counted: a panic harms nobody but its packet.
            let _ = fabric.send(self.switch, kind::SUSPECT, &stamps);
        }
        if self.ended.is_empty() {
            return;
        }
        // If the channel is full the switch keeps a route that leads to `no_flow`, which is then reported again.
        fabric.send_ended(self.switch, kind::ENDED, &self.ended);
        self.ended.clear();
    }
}
