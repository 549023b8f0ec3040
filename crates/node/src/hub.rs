//! The hub: switches, manager and fence of one host, joined by the fabric.
//!
//! Theory of operation. The hub forwards frames for its host's manager. A frame from a
//! runtime or the coordinator passes the fence first, and then goes to its destination
//! address: another process, a switch, the manager, or, if it is a released packet, out.
//! A runtime is fenced here before any other node is told that it is gone.
//!
//! Several hosts make one box, each with a hub. A frame for a node that is not here goes
//! to the other hosts by the fabric's port; a frame that comes from there is for a node
//! here, or is ignored. A single host serves the ports of a switch at a time
//! ([`quorum`](crate::quorum)). The switch runs there, and there all packets of its
//! chains pass the fence, also those that runtimes of other hosts release. When service
//! moves, a new incarnation of the switch begins as after its death. Several switches
//! divide the ports among them; a host serves some of them, or none. A runtime releases
//! to the switch of the packet's chain, so each switch has a fence in front of it. With
//! the cluster's keys packets between hosts are [sealed](crate::seal); messages always
//! are. With keys two networks may join the hosts, of which [`paths`] uses the one that
//! leads to the receiver.
//!
//! In: packets with their keys from the edge, frames from processes and from other hosts,
//! starts and ends of processes, the time. Out: a [`HubOut`]. Never: I/O.

pub mod paths;
mod sealing;

use crate::fcs;
use crate::manager::{HostOrder, Manager};
use crate::message::kind;
use crate::seal::is_sealed;
use crate::switch::Switch;
use holdfast_protection::{Fence, Peer, Released};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::{ETHERTYPE_FABRIC, ETHERTYPE_NSH, Mac};
use holdfast_wire::nsh::{self, Flags, Outer, index};
use holdfast_wire::{DropCounters, DropReason, FlowKey, NodeId, Packet, PacketPool};
use sealing::Sealed;

/// The hub's output.
#[derive(Debug, Default)]
pub struct HubOut {
    /// Frames for processes: runtimes, and the coordinator.
    pub to_runtime: Vec<(Peer, Packet)>,
    /// Frames for other hosts. Each goes by the network that [`Hub::path_of`] names, if
    /// there are two.
    pub to_fabric: Vec<Packet>,
    /// Frames for other hosts by one of two networks, counted from 0.
    pub to_path: Vec<(u8, Packet)>,
    /// Packets for the edge, parsed, each with the number of the switch on whose ports it
    /// leaves.
    pub released: Vec<(u16, Released<Packet>)>,
    /// Processes to start and to fence.
    pub orders: Vec<HostOrder>,
}

/// The receiver of a frame from another host.
enum Receiver {
    Switch(usize),
    Manager,
    Process(Peer),
}

/// Sends a frame to another host. A packet is sealed if there are keys; a message is
/// sealed by its sender already. An unsealed frame gets its check sequence.
fn send_between(
    mut packet: Packet,
    is_message: bool,
    sealed: &mut Option<Box<Sealed>>,
    to_fabric: &mut Vec<Packet>,
    drops: &mut DropCounters,
    pool: &mut dyn PacketPool,
) {
    let fits = match sealed {
        Some(_) if is_message => true,
        Some(sealed) => sealed.seal(&mut packet),
        None => fcs::append(&mut packet),
    };
    if fits {
        to_fabric.push(packet);
    } else {
        drops.count(DropReason::FrameTooLarge);
        pool.put(packet);
    }
}

/// A switch's slot on a host.
struct SwitchSlot {
    switch: Switch,
    /// The switch runs here.
    is_serving: bool,
    /// The view whose failed members are fenced.
    fenced_view: u64,
}

impl SwitchSlot {
    fn serving(switch: Switch) -> SwitchSlot {
        SwitchSlot { switch, is_serving: true, fenced_view: 0 }
    }
}

/// See the module.
pub struct Hub {
    slots: Vec<SwitchSlot>,
    /// The manager's part of the protocol with the coordinator.
    pub manager: Manager,
    fence: Fence,
    /// A new incarnation of the hub does not know yet which of the processes that it
    /// found may speak.
    is_undecided: bool,
    /// With several hosts: processes that were started here.
    local: Option<Vec<Peer>>,
    /// With several hosts and keys: seals and opens packets between them.
    sealed: Option<Box<Sealed>>,
    drops: DropCounters,
    forwarded: u64,
}

impl Hub {
    /// A hub of these parts. The switches of a box are the same on all of its hosts, in
    /// the order of their numbers.
    pub fn new(switches: Vec<Switch>, manager: Manager) -> Hub {
        let (fence, drops) = (Fence::new(), DropCounters::default());
        let slots: Vec<SwitchSlot> = switches.into_iter().map(SwitchSlot::serving).collect();
        assert!(
            slots
                .iter()
                .zip(0..)
                .all(|(slot, number)| slot.switch.node().switch_number() == Some(number))
        );
        Hub {
            slots,
            manager,
            fence,
            is_undecided: false,
            local: None,
            sealed: None,
            drops,
            forwarded: 0,
        }
    }

    /// Makes the hub one of several, which serves no ports before it is told to.
    pub fn join(&mut self, hosts: u16, timeout: u64, now: u64) {
        self.manager.join(hosts, self.slots.len() as u16, timeout, now);
        self.local = Some(Vec::new());
        self.slots.iter_mut().for_each(|slot| slot.is_serving = false);
    }

    /// Begins a switch's next incarnation here, as [`HostOrder::Serve`] says.
    pub fn begin(&mut self, mut switch: Switch) {
        let number = switch.node().switch_number().map(usize::from);
        if let Some(slot) = number.and_then(|number| self.slots.get_mut(number)) {
            switch.keep_log_of(&mut slot.switch);
            *slot = SwitchSlot::serving(switch);
        }
        self.note_news();
    }

    /// Another host serves this switch's ports, or none: the switch's packets go back to
    /// the pool.
    pub fn retire(&mut self, switch: u16, pool: &mut dyn PacketPool) {
        if let Some(slot) = self.slots.get_mut(usize::from(switch)) {
            slot.is_serving = false;
            slot.switch.abandon(pool);
        }
        if !self.is_serving() {
            self.admit(&[]);
        }
        self.note_news();
    }

    /// True if the ports of this switch are served here.
    pub fn serves(&self, switch: u16) -> bool {
        self.slots.get(usize::from(switch)).is_some_and(|slot| slot.is_serving)
    }

    /// True if ports are served here.
    pub fn is_serving(&self) -> bool {
        self.slots.iter().any(|slot| slot.is_serving)
    }

    /// The first switch, the only one of most boxes, even if another host serves it.
    pub fn switch(&self) -> &Switch {
        &self.slots[0].switch
    }

    /// See [`Hub::switch`].
    pub fn switch_mut(&mut self) -> &mut Switch {
        &mut self.slots[0].switch
    }

    /// All switches, by number, whether they run here or not.
    pub fn switches(&self) -> impl ExactSizeIterator<Item = &Switch> + Clone {
        self.slots.iter().map(|slot| &slot.switch)
    }

    /// The switches that run here.
    pub fn serving(&self) -> impl Iterator<Item = &Switch> {
        self.slots.iter().filter(|slot| slot.is_serving).map(|slot| &slot.switch)
    }

    /// See [`Hub::serving`].
    pub fn serving_mut(&mut self) -> impl Iterator<Item = &mut Switch> {
        self.slots.iter_mut().filter(|slot| slot.is_serving).map(|slot| &mut slot.switch)
    }

    /// The index of the switch with this node, if it runs here.
    #[inline]
    fn slot_of(&self, node: NodeId) -> Option<usize> {
        let at = node.switch_number().map(usize::from)?;
        self.slots.get(at).filter(|slot| slot.is_serving).map(|_| at)
    }

    fn is_local(&self, peer: Peer) -> bool {
        self.local.as_ref().is_none_or(|local| local.contains(&peer))
    }

    fn note_local(&mut self, peer: Peer) {
        if let Some(local) = &mut self.local {
            local.retain(|other| *other != peer);
            local.push(peer);
        }
        self.note_news();
    }

    /// The coordinator's new incarnation: it may speak, and no earlier one.
    pub fn handle_coordinator(&mut self, peer: Peer) {
        self.fence.open(peer);
        self.note_local(peer);
        self.manager.fabric().set_peer(peer);
        self.slots.iter_mut().for_each(|slot| slot.switch.fabric().set_peer(peer));
    }

    /// The coordinator's incarnation has ended.
    pub fn handle_coordinator_ended(&mut self, peer: Peer) {
        self.manager.handle_coordinator_ended(peer);
        self.fence.close(peer);
        self.handle_buried(peer);
    }

    /// A state server's new incarnation on this host: it may speak, and no earlier one.
    pub fn handle_state_server(&mut self, peer: Peer) {
        self.fence.open(peer);
        self.note_local(peer);
    }

    /// A state server's incarnation has ended.
    pub fn handle_state_server_ended(&mut self, peer: Peer) {
        self.fence.close(peer);
        self.handle_buried(peer);
    }

    /// The state servers on this host.
    pub fn state_servers(&self) -> impl Iterator<Item = Peer> + '_ {
        (0..NodeId::MAX_STATE_SERVERS)
            .filter_map(|number| self.fence.peer(NodeId::state_server(number)))
    }

    /// A process has ended, and gets no more frames.
    pub fn handle_buried(&mut self, peer: Peer) {
        if let Some(local) = &mut self.local {
            local.retain(|other| *other != peer);
        }
        self.note_news();
    }

    /// True while there is a coordinator here, or one of another host is heard.
    pub fn has_coordinator(&self) -> bool {
        self.fence.peer(NodeId::COORDINATOR).is_some()
            || self.local.is_some() && self.manager.is_coordinator_heard()
    }

    /// A runtime's process was started.
    pub fn handle_started(&mut self, peer: Peer) {
        self.manager.handle_started(peer);
    }

    /// A runtime's process has ended, or could not be started.
    pub fn handle_ended(&mut self, peer: Peer) {
        self.fence.close(peer);
        let flows = self.serving().map(|switch| switch.flows_of(peer)).sum::<Option<u64>>();
        self.manager.handle_ended(peer, flows);
        self.slots.iter_mut().for_each(|slot| slot.switch.handle_gone(peer));
    }

    /// A runtime has ended, or is given up, while it had this packet of a switch in hand.
    /// To be called before [`Hub::handle_ended`]. The flow's heir asks that switch for it
    /// later than this notice arrives: from the same host at once, and from another by
    /// one message where a recovery takes several.
    pub fn handle_suspect(&mut self, switch: NodeId, stamp: u64, now: u64) {
        match self.slot_of(switch) {
            Some(slot) => self.slots[slot].switch.handle_suspect(stamp, true, now),
            None if switch.switch_number().is_some() && self.local.is_some() => {
                let _ = self.manager.fabric().send(switch, kind::SUSPECT, &stamp.to_be_bytes());
            }
            None => self.drops.count(DropReason::UnknownNode),
        }
    }

    /// Begins the next incarnation of a hub that has died. These runtimes' processes were
    /// found, and these have ended, with their last words. The coordinator says which of
    /// the found ones may speak. The driver leaves their frames where they are before
    /// that: see [`Hub::may_hear`].
    pub fn succeed(&mut self, found: &[Peer], ended: &[(Peer, Option<u64>)]) {
        self.is_undecided = true;
        found.iter().for_each(|peer| self.note_local(*peer));
        self.manager.succeed(found, ended);
    }

    /// False while it is not known whether a process may speak.
    pub fn may_hear(&self, peer: Peer) -> bool {
        !self.is_undecided || !peer.node.is_runtime()
    }

    /// The coordinator has named the processes that it knows: of the found ones, only
    /// these may speak.
    fn decide(&mut self, out: &mut HubOut) {
        let Some(strangers) = self.manager.sort_found(|peer| self.fence.open(peer)) else { return };
        self.is_undecided = false;
        for peer in strangers {
            self.handle_ended(peer);
            out.orders.push(HostOrder::Fence(peer));
        }
    }

    /// The fence.
    pub fn fence(&mut self) -> &mut Fence {
        &mut self.fence
    }

    /// Drops by the hub itself; switch and manager have their own.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    fn drop(&mut self, packet: Packet, reason: DropReason, pool: &mut dyn PacketPool) {
        self.drops.count(reason);
        pool.put(packet);
    }

    /// Takes a packet, with its key, for a chain of this switch, which runs here. The
    /// next [`Hub::turn`] or [`Hub::forward`] sends it on.
    #[inline]
    pub fn handle_packet(&mut self, switch: u16, key: FlowKey, packet: Packet) {
        self.slots[usize::from(switch)].switch.handle_packet(key, packet);
    }

    /// Sends on the packets taken since the last call.
    pub fn forward(&mut self, now: u64, out: &mut HubOut, pool: &mut dyn PacketPool) {
        for SwitchSlot { switch, is_serving, .. } in &mut self.slots {
            match is_serving {
                true => switch.forward(now, &mut out.to_runtime, pool),
                // Packets may have come although the switch does not serve.
                false => switch.abandon(pool),
            }
        }
        self.part(out, pool);
    }

    /// Sends frames for runtimes of other hosts there.
    fn part(&mut self, out: &mut HubOut, pool: &mut dyn PacketPool) {
        let Hub { local: Some(local), sealed, drops, .. } = self else { return };
        for (_, packet) in out.to_runtime.extract_if(.., |(peer, _)| !local.contains(peer)) {
            send_between(packet, false, sealed, &mut out.to_fabric, drops, pool);
        }
    }

    /// A frame for a runtime did not fit into its ring, and is to be dropped.
    pub fn handle_undelivered(&mut self, frame: &mut Packet) {
        // The switch that sent it is told, by the address in it.
        let source = frame.bytes().get(6..12).and_then(|bytes| bytes.try_into().ok());
        let at =
            source.and_then(|source: Mac| NodeId::of_mac(&source)).and_then(NodeId::switch_number);
        if let Some(slot) = at.and_then(|at| self.slots.get_mut(usize::from(at))) {
            slot.switch.handle_undelivered(frame);
        }
    }

    /// Takes frames that the process `from` has sent: the caller knows by which virtual
    /// port they came.
    pub fn handle_frames(
        &mut self,
        from: Peer,
        frames: &mut Vec<Packet>,
        now: u64,
        out: &mut HubOut,
        pool: &mut dyn PacketPool,
    ) {
        let may_release = self.manager.may_serve_at(now);
        for packet in frames.drain(..) {
            self.handle_frame(from, packet, may_release, now, out, pool);
        }
    }

    fn handle_frame(
        &mut self,
        from: Peer,
        mut packet: Packet,
        may_release: bool,
        now: u64,
        out: &mut HubOut,
        pool: &mut dyn PacketPool,
    ) {
        if !self.fence.is_open(from) {
            return match self.may_hear(from) {
                true => self.refuse(from, packet, out, pool),
                false => self.drop(packet, DropReason::LostInFailure, pool),
            };
        }
        let Some(header) = packet.bytes().get(..14) else {
            return self.drop(packet, DropReason::Malformed, pool);
        };
        let destination: Option<Mac> = header[..6].try_into().ok();
        let ethertype = u16::from_be_bytes([header[12], header[13]]);
        // A sender's address must be its own.
        let own = if ethertype == ETHERTYPE_NSH { from.mac() } else { from.node.mac() };
        if header[6..12] != own {
            return self.drop(packet, DropReason::Malformed, pool);
        }
        let Some(node) = destination.as_ref().and_then(NodeId::of_mac) else {
            return self.drop(packet, DropReason::UnknownNode, pool);
        };
        match (node, ethertype) {
            (node, ETHERTYPE_NSH)
                if from.node.is_runtime()
                    && let Some(slot) = self.slot_of(node) =>
            {
                // The packet may be older than a standstill of this host, and another
                // host may serve by now.
                match may_release {
                    true => self.release(from, slot, packet, out, pool),
                    false => self.drop(packet, DropReason::Fenced, pool),
                }
            }
            (node, ETHERTYPE_FABRIC) if let Some(slot) = self.slot_of(node) => {
                if let Err(reason) =
                    self.slots[slot].switch.fabric().handle_frame(packet.bytes(), now)
                {
                    self.drops.count(reason);
                }
                pool.put(packet);
            }
            (node, ETHERTYPE_FABRIC) if node == self.manager.node() => {
                if let Err(reason) = self.manager.fabric().handle_frame(packet.bytes(), now) {
                    self.drops.count(reason);
                }
                pool.put(packet);
            }
            (node, ETHERTYPE_NSH | ETHERTYPE_FABRIC) => match self.present(node) {
                Some(peer) => {
                    self.forwarded += 1;
                    packet.layers = Default::default();
                    out.to_runtime.push((peer, packet));
                }
                None if self.local.is_some() => {
                    packet.layers = Default::default();
                    let is_message = ethertype == ETHERTYPE_FABRIC;
                    send_between(
                        packet,
                        is_message,
                        &mut self.sealed,
                        &mut out.to_fabric,
                        &mut self.drops,
                        pool,
                    );
                }
                None => self.drop(packet, DropReason::UnknownNode, pool),
            },
            _ => self.drop(packet, DropReason::Malformed, pool),
        }
    }

    /// Takes frames from other hosts, by either of two networks.
    pub fn handle_fabric(
        &mut self,
        frames: &mut Vec<Packet>,
        now: u64,
        out: &mut HubOut,
        pool: &mut dyn PacketPool,
    ) {
        let may_release = self.manager.may_serve_at(now);
        for packet in frames.drain(..) {
            self.handle_fabric_frame(packet, may_release, now, out, pool);
        }
    }

    fn handle_fabric_frame(
        &mut self,
        mut packet: Packet,
        may_release: bool,
        now: u64,
        out: &mut HubOut,
        pool: &mut dyn PacketPool,
    ) {
        let Some(header) = packet.bytes().first_chunk::<14>() else {
            return self.drop(packet, DropReason::Malformed, pool);
        };
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
        let (source, mut ethertype) = ([s0, s1, s2, s3, s4, s5], u16::from_be_bytes([t0, t1]));
        let (Some(node), Some(from)) =
            (NodeId::of_mac(&[d0, d1, d2, d3, d4, d5]), NodeId::of_mac(&source))
        else {
            return self.drop(packet, DropReason::ForeignFrame, pool);
        };
        // The network may show a frame to every host. A frame that another host has to
        // open costs nothing here.
        let receiver = match self.slot_of(node) {
            Some(slot) => Receiver::Switch(slot),
            None if node == self.manager.node() => Receiver::Manager,
            None => match self.present(node) {
                Some(peer) => Receiver::Process(peer),
                None => return pool.put(packet),
            },
        };
        if is_sealed(packet.bytes()) {
            let opened = self
                .sealed
                .as_mut()
                .map_or(Err(DropReason::Unauthenticated), |sealed| sealed.open(&mut packet));
            if let Err(reason) = opened {
                return self.drop(packet, reason, pool);
            }
            ethertype = ETHERTYPE_NSH;
        } else if self.sealed.is_some() && ethertype == ETHERTYPE_NSH {
            return self.drop(packet, DropReason::Unsealed, pool);
        } else if self.sealed.is_none() && !fcs::strip(&mut packet) {
            return self.drop(packet, DropReason::Damaged, pool);
        }
        let fabric = match (receiver, ethertype) {
            (Receiver::Switch(slot), ETHERTYPE_NSH) => {
                return match may_release {
                    true => self.release_remote(from, source, slot, packet, out, pool),
                    false => self.drop(packet, DropReason::Fenced, pool),
                };
            }
            (Receiver::Process(peer), ETHERTYPE_NSH | ETHERTYPE_FABRIC) => {
                self.forwarded += 1;
                packet.layers = Default::default();
                return out.to_runtime.push((peer, packet));
            }
            (Receiver::Process(_), _) => return pool.put(packet),
            (Receiver::Manager, ETHERTYPE_NSH) => return self.hear_probe(from, packet, now, pool),
            (Receiver::Switch(slot), _) => self.slots[slot].switch.fabric(),
            (Receiver::Manager, _) => self.manager.fabric(),
        };
        let result = if ethertype == ETHERTYPE_FABRIC {
            fabric.handle_frame(packet.bytes(), now)
        } else {
            Err(DropReason::Malformed)
        };
        if let Err(reason) = result {
            self.drops.count(reason);
        }
        pool.put(packet);
    }

    /// A runtime of another host has released a packet.
    fn release_remote(
        &mut self,
        from: NodeId,
        source: Mac,
        slot: usize,
        packet: Packet,
        out: &mut HubOut,
        pool: &mut dyn PacketPool,
    ) {
        // An earlier incarnation that does not know of its end has another address.
        let speaker = self
            .fence
            .peer(from)
            .filter(|peer| from.is_runtime() && peer.mac() == source && !self.is_local(*peer));
        match speaker {
            Some(peer) => self.release(peer, slot, packet, out, pool),
            None => self.drop(packet, DropReason::Fenced, pool),
        }
    }

    /// Refuses a frame of a sender whose role has moved while it was asleep: the buffer
    /// goes back as a notice.
    fn refuse(
        &mut self,
        from: Peer,
        mut packet: Packet,
        out: &mut HubOut,
        pool: &mut dyn PacketPool,
    ) {
        self.drops.count(DropReason::Fenced);
        packet.clear();
        packet.meta.flags = Flags::OAM;
        packet.meta.commit = from.incarnation;
        let outer = Outer {
            destination: from.node.mac(),
            source: self.manager.node().mac(),
            index: index::FENCED,
        };
        // A notice now and then is enough; it may get lost like any frame.
        if self.drops.get(DropReason::Fenced) % 16 == 1 && nsh::encapsulate(&mut packet, outer) {
            out.to_runtime.push((from, packet));
        } else {
            pool.put(packet);
        }
    }

    /// The incarnation of a process of this host that may speak.
    fn present(&self, node: NodeId) -> Option<Peer> {
        self.fence.peer(node).filter(|peer| self.is_local(*peer))
    }

    /// Lets the runtimes of other hosts speak that the coordinator names.
    fn admit(&mut self, peers: &[Peer]) {
        let Hub { slots, fence, manager, local: Some(local), .. } = self else { return };
        let gone =
            |peer: &Peer| peer.node.is_runtime() && !local.contains(peer) && !peers.contains(peer);
        for peer in fence.peers().filter(gone).collect::<Vec<_>>() {
            fence.close(peer);
        }
        let ours = |node| local.iter().any(|peer| peer.node == node);
        // A fenced runtime stays fenced: the coordinator had not heard of that yet.
        let has_failed = |peer: Peer| {
            manager.has_ended(peer) || slots.iter().any(|slot| slot.switch.has_failed(peer))
        };
        let may_speak = |peer: &&Peer| !ours(peer.node) && !has_failed(**peer);
        peers.iter().filter(may_speak).for_each(|peer| fence.open(*peer));
    }

    /// Fences the runtimes that a switch's view gives up, whether this host was asked to
    /// or not: it may have lost the service of that switch, and not be asked any more,
    /// before it knows. Claims because of a death follow that view.
    fn fence_failed(&mut self) {
        if is_planted(Fault::FencesWhenAskedOnly) {
            return;
        }
        let Hub { slots, fence, .. } = self;
        for slot in slots
            .iter_mut()
            .filter(|slot| slot.is_serving && slot.fenced_view != slot.switch.view())
        {
            slot.fenced_view = slot.switch.view();
            for peer in
                fence.peers().filter(|peer| slot.switch.has_failed(*peer)).collect::<Vec<_>>()
            {
                fence.close(peer);
            }
        }
    }

    fn release(
        &mut self,
        from: Peer,
        slot: usize,
        mut packet: Packet,
        out: &mut HubOut,
        pool: &mut dyn PacketPool,
    ) {
        match nsh::decapsulate(&mut packet) {
            Some(outer) if outer.index == index::RELEASED => {}
            _ => return self.drop(packet, DropReason::Malformed, pool),
        }
        if let Err(malformed) = packet.parse() {
            return self.drop(packet, malformed.into(), pool);
        }
        match self.slots[slot].switch.must_wait(&packet) {
            true => self.slots[slot].switch.wait_until_told(from, packet, pool),
            false => self.let_out(from, slot, packet, out, pool),
        }
    }

    fn let_out(
        &mut self,
        from: Peer,
        slot: usize,
        packet: Packet,
        out: &mut HubOut,
        pool: &mut dyn PacketPool,
    ) {
        match self.fence.admit(from, packet) {
            Ok(released) if self.slots[slot].switch.handle_released(released.get()) => {
                out.released.push((slot as u16, released))
            }
            // The packet's replies would be taken for another flow's.
            Ok(released) => pool.put(released.into_inner()),
            Err(packet) => self.drop(packet, DropReason::Fenced, pool),
        }
    }

    /// Handles messages and timeouts.
    pub fn turn(&mut self, now: u64, out: &mut HubOut, pool: &mut dyn PacketPool) {
        self.manager.handle_records(now);
        self.keep_sealing(now);
        self.probe(now, out, pool);
        if self.is_undecided {
            self.decide(out);
        }
        let orders: Vec<HostOrder> = self.manager.poll_orders().collect();
        for order in orders {
            match order {
                HostOrder::Start(peer) => {
                    self.fence.open(peer);
                    self.note_local(peer);
                }
                // Recovery of its flows begins after this.
                HostOrder::Fence(peer) => self.handle_ended(peer),
                HostOrder::Stop(_) | HostOrder::Serve(..) => {}
                HostOrder::Retire(switch) => self.retire(switch, pool),
            }
            out.orders.push(order);
        }
        if let Some(peers) = self.manager.take_admitted() {
            self.admit(&peers);
        }
        let (ended, away) = (self.manager.take_ended_elsewhere(), self.manager.hosts_away(now));
        for SwitchSlot { switch, .. } in self.slots.iter_mut().filter(|slot| slot.is_serving) {
            switch.avoid(&ended, away);
            switch.handle_records(now, &mut out.to_runtime, pool);
            switch.handle_timeout(now, &mut out.to_runtime, pool);
        }
        self.fence_failed();
        for slot in 0..self.slots.len() {
            for (from, packet) in self.slots[slot].switch.take_told() {
                self.let_out(from, slot, packet, out, pool);
            }
        }
        self.forward(now, out, pool);
        self.carry(now, out, pool);
    }

    /// Carries the frames of switches and manager.
    fn carry(&mut self, now: u64, out: &mut HubOut, pool: &mut dyn PacketPool) {
        let Hub { slots, manager, fence, local, sealed, drops, .. } = self;
        let switches =
            slots.iter_mut().filter(|slot| slot.is_serving).map(|slot| slot.switch.fabric());
        for fabric in switches.chain([manager.fabric()]) {
            fabric.poll_transmit(now, |frame| {
                let node = frame[..6].try_into().ok().and_then(|mac: Mac| NodeId::of_mac(&mac));
                let peer = node
                    .and_then(|node| fence.peer(node))
                    .filter(|peer| local.as_ref().is_none_or(|local| local.contains(peer)));
                if peer.is_none() && local.is_none() {
                    return true;
                }
                let Some(mut packet) = pool.take() else { return false };
                if packet.copy_from(frame) {
                    match peer {
                        Some(peer) => out.to_runtime.push((peer, packet)),
                        None => send_between(packet, true, sealed, &mut out.to_fabric, drops, pool),
                    }
                } else {
                    drops.count(DropReason::FrameTooLarge);
                    pool.put(packet);
                }
                true
            });
        }
    }

    /// Gives every held packet back to the pool, as at the end of the process.
    pub fn abandon(&mut self, pool: &mut dyn PacketPool) {
        self.slots.iter_mut().for_each(|slot| slot.switch.abandon(pool));
    }

    /// The time at which [`Hub::turn`] is due without input.
    pub fn poll_timeout(&mut self) -> u64 {
        let fabric = |timeout: Option<u64>| timeout.unwrap_or(u64::MAX);
        let manager = fabric(self.manager.fabric().poll_timeout()).min(self.manager.poll_timeout());
        let serving = self.serving_mut();
        let switches =
            serving.map(|switch| fabric(switch.fabric().poll_timeout()).min(switch.poll_timeout()));
        let due = switches.min().unwrap_or(u64::MAX).min(manager);
        due.min(self.next_probe())
    }
}
