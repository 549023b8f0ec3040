//! The hub of a world: switch and manager, which die together, and whose next life finds the processes as they are.

use super::streams::{Lane, Of};
use super::{Event, MICROSECOND, MILLISECOND, SECOND, World};
use crate::frames;
use crate::scenario::Scenario;
use holdfast_node::address::{COORDINATOR, MANAGER, SWITCH};
use holdfast_node::channel::FabricConfig;
use holdfast_node::hub::Hub;
use holdfast_node::manager::{Manager, Wish};
use holdfast_node::switch::{Switch, SwitchConfig};
use holdfast_protection::Peer;
use holdfast_wire::{FlowKey, PacketPool};

/// Its lives, one after the other.
pub(super) struct HubLives {
    life: u32,
    flows: usize,
    pub(super) is_away: bool,
    pub(super) faults_left: u64,
    /// What lies in the processes' rings.
    unread: Vec<(Peer, Vec<u8>)>,
}

/// Frames that fit into the rings.
const UNREAD_LIMIT: usize = 4096;

impl HubLives {
    pub(super) fn new(flows: usize) -> HubLives {
        HubLives { life: 1, flows, is_away: false, faults_left: 0, unread: Vec::new() }
    }

    /// Nobody is there who could read it.
    pub(super) fn keep(&mut self, from: Peer, frame: Vec<u8>) {
        if self.unread.len() < UNREAD_LIMIT {
            self.unread.push((from, frame));
        }
    }

    /// It is there, and nothing more is going to be done to it.
    pub(super) fn is_spared(&self) -> bool {
        self.faults_left == 0 && !self.is_away
    }
}

/// One of them.
pub(super) fn life(scenario: &Scenario, incarnation: u32, flows: usize, fabric: FabricConfig) -> Hub {
    let switch = Switch::new(SwitchConfig {
        me: Peer { node: SWITCH, incarnation },
        number: incarnation as u8,
        flows,
        seed: scenario.seed,
        tick_interval: 50 * MILLISECOND,
        patience: 3 * SECOND,
        fabric,
        succeeds: incarnation > 1,
    });
    let mut hub = Hub::new(switch, Manager::new(Peer { node: MANAGER, incarnation }, fabric));
    hub.switch.planted.no_epoch_check = scenario.planted.no_epoch_check;
    hub.switch.planted.reclassify = scenario.planted.reclassify;
    hub.fence().planted_open = scenario.planted.no_epoch_check;
    hub
}

impl World {
    /// It is away for so long, or for as long as the seed says. What it had in hand is lost.
    pub(super) fn kill_hub(&mut self, away: u64) {
        self.faults.hub_kills += 1;
        self.say(format_args!("kill hub {}", self.hubs.life));
        self.hubs.is_away = true;
        self.count_moved();
        self.hub.abandon(&mut self.hub_pool);
        self.check_hub_buffers();
        for drops in [self.hub.drops(), self.hub.switch.drops(), self.hub.manager.drops()] {
            self.drops.add(drops);
        }
        let me = Peer { node: SWITCH, incarnation: self.hubs.life };
        let drawn = self.streams.of(Of::Away, me).range(1, 60) * MILLISECOND;
        let away = if away == 0 { drawn } else { away };
        self.at(self.now + away, Event::HubStarts);
    }

    pub(super) fn start_hub(&mut self) {
        self.hubs.life += 1;
        self.hubs.is_away = false;
        self.say(format_args!("hub {} begins", self.hubs.life));
        let fabric = self.hub_fabric();
        self.hub = life(&self.scenario, self.hubs.life, self.hubs.flows, fabric);
        if let Some(coordinator) = self.coordinator.peer() {
            self.hub.handle_coordinator(coordinator);
        }
        let found: Vec<Peer> = self.processes.keys().copied().collect();
        self.hub.succeed(&found);
        self.hub_turn_at = u64::MAX;
        self.turn_hub();
    }

    /// Flows that moved, as this life of the hub knows.
    pub(super) fn count_moved(&mut self) {
        self.faults.moved += self.hub.manager.moves().iter().map(|order| order.moved).sum::<u64>();
    }

    pub(super) fn check_hub_buffers(&mut self) {
        if self.hub_pool.free() != self.hub_pool.total() {
            let lost = self.hub_pool.total() - self.hub_pool.free();
            self.checkers.violate("no anonymous drop", format!("the hub died with {lost} buffers"));
        }
    }

    pub(super) fn ingress(&mut self, frame: &[u8], port: u8) {
        if self.hubs.is_away {
            return;
        }
        if port == 0 {
            self.checkers.note_sent(frame, &self.clients);
        }
        let Some(mut packet) = self.hub_pool.take() else { return };
        let fits = packet.copy_from(frame);
        packet.meta.ingress = port;
        let key = if fits && packet.parse().is_ok() { FlowKey::of(&packet) } else { None };
        match key {
            Some(key) => self.hub.handle_packet(key, packet),
            None => self.hub_pool.put(packet),
        }
        let now = self.hub_time();
        self.hub.forward(now, &mut self.hub_out, &mut self.hub_pool);
        self.after_hub();
    }

    pub(super) fn hub_receives(&mut self, peer: Peer, frame: &[u8]) {
        let Some(mut packet) = self.hub_pool.take() else { return };
        if packet.copy_from(frame) {
            let mut frames = vec![packet];
            let before = self.hub_out.released.len();
            let now = self.hub_time();
            self.hub.handle_frames(peer, &mut frames, now, &mut self.hub_out, &mut self.hub_pool);
            self.check_fenced(peer, self.hub_out.released.len() - before);
        } else {
            self.hub_pool.put(packet);
        }
        self.turn_hub();
    }

    pub(super) fn turn_hub(&mut self) {
        self.hub_turn_at = u64::MAX;
        let now = self.hub_time();
        self.hub.turn(now, &mut self.hub_out, &mut self.hub_pool);
        self.after_hub();
        let due = self.hub.poll_timeout();
        let due = self.world_time(SWITCH, due).max(self.now + 10 * MICROSECOND);
        self.turn_hub_at(due);
        for (from, frame) in core::mem::take(&mut self.hubs.unread) {
            match self.hub.may_hear(from) {
                true => self.at(self.now, Event::ToHub(from, frame)),
                false => self.hubs.unread.push((from, frame)),
            }
        }
    }

    fn after_hub(&mut self) {
        let mut out = core::mem::take(&mut self.hub_out);
        for (peer, packet) in out.to_runtime.drain(..) {
            let frame = packet.bytes().to_vec();
            let packet = self.check_chain(packet);
            self.hub_pool.put(packet);
            if peer.node == COORDINATOR {
                self.carry(self.inside, Lane::ToCoordinator, peer, frame, |frame| Event::ToCoordinator(peer, frame));
            } else {
                self.carry(self.inside, Lane::ToRuntime, peer, frame, |frame| Event::ToRuntime(peer, frame));
            }
        }
        for released in out.released.drain(..) {
            let packet = released.into_inner();
            let frame = packet.bytes().to_vec();
            self.hub_pool.put(packet);
            self.check_released(&frame);
            let to_client = frames::read(&frame).is_some_and(|seen| seen.destination.0[0] == 10);
            let outside = Peer::default();
            if to_client {
                self.carry(self.outside, Lane::ToClient, outside, frame, Event::ToClient);
            } else {
                self.carry(self.outside, Lane::ToServer, outside, frame, Event::ToServer);
            }
        }
        for wish in out.wishes.drain(..) {
            match wish {
                Wish::Start(peer) => {
                    let drawn = self.streams.of(Of::Start, peer).range(2, 60) * MILLISECOND;
                    let delay = match self.plan.restart {
                        0 => drawn,
                        // The first start is none after a failure.
                        _ if self.done.is_empty() => MILLISECOND,
                        delay => delay,
                    };
                    self.at(self.now + delay, Event::Started(peer));
                }
                Wish::Stop(peer) => {
                    self.end_process(peer);
                    self.at(self.now + MILLISECOND, Event::ExitNoticed(peer));
                }
                Wish::Fence(peer) => self.given_up(peer),
                // Only of several hosts.
                Wish::Serve(_) | Wish::Retire => {}
            }
        }
        self.hub_out = out;
    }
}
