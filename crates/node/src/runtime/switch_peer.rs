//! The switch peer: a runtime's state for one of the switches.
//!
//! A chain's flows come from one switch, and go back to it. Stamps, epochs and
//! incarnations are never compared between switches, because the hosts' clocks are
//! independent. Messages go to each switch separately, so no switch waits for another
//! that no host serves.

use super::resync::Resync;
use crate::channel::Fabric;
use crate::message::kind;
use holdfast_wire::{DropReason, Epoch, FlowKey, NodeId, Packet};

/// Packets on which functions panicked that are reported to a switch in one turn; a flood
/// of them is no news.
const SUSPECTS: usize = 32;

/// See the module.
pub(crate) struct SwitchPeer {
    pub(crate) switch: NodeId,
    /// The latest of the switch's stamps, ns.
    pub(crate) now: u64,
    /// The switch's incarnation, by its number in packets' metadata: packets of an
    /// earlier one open no flows here.
    pub(super) incarnation: Option<u8>,
    /// The latest incarnation of the switch that was heard, by the same number.
    pub(super) heard: Option<u8>,
    /// Fill of the switch's route table, in 1/1000, by its latest tick; and the number of
    /// ticks.
    pub(super) fill: usize,
    pub(super) ticks: u32,
    /// Keys of flows that ended or never were, with their epochs.
    pub(crate) ended: Vec<(FlowKey, Epoch)>,
    /// True if a new flow was turned away for want of room.
    pub(crate) is_full: bool,
    /// Stamps of packets on which functions panicked.
    suspects: Vec<u64>,
    /// The newest epoch of a route that came with a flow.
    pub(super) newest_epoch: Option<Epoch>,
    /// Set while a new incarnation of the switch is told which flows are here.
    pub(super) resync: Option<Resync>,
    /// The host that serves the switch, 0 if there is only one.
    pub(super) host: u16,
}

impl SwitchPeer {
    pub(super) fn new(switch: NodeId) -> SwitchPeer {
        SwitchPeer {
            switch,
            now: 0,
            incarnation: None,
            heard: None,
            fill: 0,
            ticks: 0,
            ended: Vec::with_capacity(256),
            is_full: false,
            suspects: Vec::with_capacity(SUSPECTS),
            newest_epoch: None,
            resync: None,
            host: 0,
        }
    }

    /// Notes the incarnation of a frame. True if it is the first frame of a later
    /// incarnation.
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

    /// Notes the epoch of a flow that has ended or was not let in: no header has it, and
    /// it must not be given again.
    pub(crate) fn note_epoch(&mut self, epoch: Epoch) {
        self.newest_epoch = Epoch::later(self.newest_epoch, Some(epoch));
    }

    /// Notes that the functions panicked on the packet with this stamp.
    pub(super) fn note_suspect(&mut self, stamp: u64) {
        if self.suspects.len() < SUSPECTS {
            self.suspects.push(stamp);
        }
    }

    /// The key of a packet: its own, or for a later fragment the datagram's, as the
    /// switch has noted it.
    #[inline]
    pub(crate) fn identify(packet: &mut Packet) -> Result<FlowKey, DropReason> {
        packet.parse().map_err(DropReason::from)?;
        FlowKey::noted(packet).ok_or(DropReason::UnknownEthertype)
    }

    /// Sends the switch the flows that have ended, the suspects, and whether a flow was
    /// turned away.
    pub(super) fn report(&mut self, fabric: &mut Fabric) {
        if core::mem::take(&mut self.is_full) {
            let _ = fabric.send(self.switch, kind::FULL, &[]);
        }
        if !self.suspects.is_empty() {
            let stamps: Vec<u8> = self.suspects.drain(..).flat_map(u64::to_be_bytes).collect();
            // If the channel is full, the panics are not counted: a panic harms only its
            // own packet.
            let _ = fabric.send(self.switch, kind::SUSPECT, &stamps);
        }
        if self.ended.is_empty() {
            return;
        }
        // If the channel is full, the switch keeps a route that leads to `no_flow`, which
        // is then reported again.
        fabric.send_ended(self.switch, kind::ENDED, &self.ended);
        self.ended.clear();
    }
}
