//! The hosts of a world. Each has a hub with its switches and a manager, which die
//! together; their next incarnation finds the processes as they are. In a world of
//! several hosts one at a time serves the ports of a switch. Any host may die with
//! everything on it, be stopped, or be cut off from the others.

use super::served::Servers;
use super::streams::{Lane, Of};
use super::{Event, MICROSECOND, MILLISECOND, SECOND, World};
use super::{fragments, stranger};
use crate::frames;
use crate::peers;
use crate::scenario::Scenario;
use holdfast_node::channel::FabricConfig;
use holdfast_node::coordinator::{HostConfig, HostsConfig, SwitchPlace};
use holdfast_node::edge::fragment::Fragments;
use holdfast_node::hub::{Hub, HubOut};
use holdfast_node::manager::{ENDS_KEPT, HostOrder, Manager};
use holdfast_node::reset::reset;
use holdfast_node::switch::{Switch, SwitchConfig, SwitchLimits};
use holdfast_protection::Peer;
use holdfast_wire::nsh::Flags;
use holdfast_wire::{FlowKey, MemoryPool, NodeId, PacketPool};
use std::collections::VecDeque;

/// A host's number.
pub(super) type Site = usize;
/// The coordinator's host. In a world of several hosts it has neither ports nor runtimes.
pub(super) const WITNESS: Site = 0;

/// Frames that fit into a host's rings.
const UNREAD_LIMIT: usize = 4096;
/// Time-out after which a host is given up that is not heard, or hears nobody.
pub(super) const TIMEOUT: u64 = 300 * MILLISECOND;
const BUFFERS: usize = 1024;

pub(super) struct Host {
    pub(super) hub: Hub,
    pub(super) pool: MemoryPool,
    out: HubOut,
    turn_at: u64,
    incarnation: u32,
    /// The hub has died, or the host with everything on it.
    pub(super) is_away: bool,
    /// Time at which the next incarnation begins.
    back_at: u64,
    /// Everything on the host died with the hub.
    pub(super) is_dead: bool,
    /// Time at which the links of the host's ports come up again.
    unplugged_until: u64,
    /// Set while the host is stopped, with everything on it: the time at which it goes
    /// on.
    pub(super) stopped_until: Option<u64>,
    /// Frames not read yet: from the host's processes, or from other hosts.
    unread: VecDeque<(Option<Peer>, Vec<u8>)>,
    /// Fragment tables of its switches' edges; none in worlds without fragments.
    pub(super) fragments: Vec<Fragments>,
}

impl Host {
    pub(super) fn runs(&self) -> bool {
        !self.is_away && self.stopped_until.is_none()
    }

    /// While nothing can be started on this host: when to look again.
    pub(super) fn not_there_until(&self, now: u64) -> Option<u64> {
        self.stopped_until.or(self.is_dead.then_some(now + MILLISECOND))
    }

    fn keep(&mut self, from: Option<Peer>, frame: Vec<u8>) {
        if self.unread.len() < UNREAD_LIMIT {
            self.unread.push_back((from, frame));
        }
    }
}

/// The hosts, see the module.
pub(super) struct Hosts {
    all: Vec<Host>,
    flows: usize,
    seed: u64,
    logs: Vec<usize>,
    /// Hosts have the cluster's keys.
    are_sealed: bool,
    /// Number of networks that join the hosts.
    networks: u8,
    /// Some connections are in fragments.
    has_fragments: bool,
    /// Per switch, the host at which packets from outside arrive: the last one that has
    /// said that the addresses are there.
    ports: Vec<Site>,
    pub(super) faults_left: u64,
}

impl core::ops::Index<Site> for Hosts {
    type Output = Host;

    fn index(&self, at: Site) -> &Host {
        &self.all[at]
    }
}

impl core::ops::IndexMut<Site> for Hosts {
    fn index_mut(&mut self, at: Site) -> &mut Host {
        &mut self.all[at]
    }
}

/// The coordinator's view of so many hosts and switches, with `of_each` chains for each
/// switch.
pub(super) fn config(hosts: u16, switches: u16, of_each: u16) -> HostsConfig {
    let place = |switch: u16| SwitchPlace {
        chains: (switch * of_each..(switch + 1) * of_each).collect(),
        host: (hosts > 1 && switches > 1).then(|| 1 + switch % (hosts - 1)),
    };
    let switches = (0..switches).map(place).collect();
    match hosts {
        0 | 1 => HostsConfig { switches, ..HostsConfig::one() },
        count => {
            let host = |at: u16| HostConfig { has_ports: at > 0, has_runtimes: at > 0 };
            HostsConfig { hosts: (0..count).map(host).collect(), switches, timeout: TIMEOUT }
        }
    }
}

/// The name under which is drawn what happens at the ports of a switch.
pub(super) fn outside(switch: u16) -> Peer {
    Peer { node: NodeId::new(switch), incarnation: 0 }
}

/// Configuration of the channels inside the box.
pub(super) fn fabric() -> FabricConfig {
    FabricConfig {
        cluster: 7,
        min_timeout: 5 * MILLISECOND,
        max_timeout: 200 * MILLISECOND,
        ..FabricConfig::default()
    }
}

impl Hosts {
    /// Room for `count` hosts with `switches` switches, each switch with room for `flows`
    /// flows. Hosts have the cluster's keys if `are_sealed`.
    pub(super) fn new(
        scenario: &Scenario,
        (count, switches): (u16, u16),
        (are_sealed, networks): (bool, u8),
        flows: usize,
        logs: Vec<usize>,
    ) -> Hosts {
        let (seed, ports, are_sealed) =
            (scenario.seed, vec![0; switches.into()], are_sealed && count > 1);
        let (all, has_fragments) = (Vec::with_capacity(count.into()), false);
        Hosts { all, flows, seed, logs, are_sealed, networks, has_fragments, ports, faults_left: 0 }
    }

    /// Hosts that are added from now on have fragment tables.
    pub(super) fn expect_fragments(&mut self) {
        self.has_fragments = true;
    }

    /// Adds the next host, of `count`.
    pub(super) fn add(&mut self, count: u16, now: u64) {
        let hub = self.hub(self.all.len(), 1, count, now);
        self.all.push(Host {
            hub,
            pool: MemoryPool::new(BUFFERS),
            out: HubOut::default(),
            turn_at: u64::MAX,
            incarnation: 1,
            is_away: false,
            back_at: 0,
            is_dead: false,
            unplugged_until: 0,
            stopped_until: None,
            unread: VecDeque::new(),
            fragments: fragments::edges(if self.has_fragments { self.ports.len() } else { 0 }),
        });
    }

    pub(super) fn sites(&self) -> core::ops::Range<Site> {
        0..self.all.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Host> {
        self.all.iter()
    }

    /// True for several hosts.
    pub(super) fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    /// The numbers of the switches.
    pub(super) fn switches(&self) -> core::ops::Range<u16> {
        0..self.ports.len() as u16
    }

    /// The host that serves the ports of a switch, if one does. A stopped host serves no
    /// ports.
    pub(super) fn serving(&self, switch: u16) -> Option<Site> {
        self.all.iter().position(|host| host.runs() && host.hub.serves(switch))
    }

    /// The switches whose ports are served, at the hosts that serve them.
    pub(super) fn served(&self) -> impl Iterator<Item = &Switch> {
        let place = |switch: u16| {
            self.serving(switch).and_then(|at| self.all[at].hub.switches().nth(switch.into()))
        };
        self.switches().filter_map(place)
    }

    /// True if another host than this one serves the ports of this switch.
    fn another_serves(&self, at: Site, switch: u16) -> bool {
        self.sites().any(|other| {
            other != at && self.all[other].runs() && self.all[other].hub.serves(switch)
        })
    }

    /// True if every host runs.
    pub(super) fn all_run(&self) -> bool {
        self.all.iter().all(Host::runs)
    }

    /// True if all hosts run, and nothing more is going to be done to them.
    pub(super) fn are_spared(&self) -> bool {
        self.faults_left == 0 && self.all_run()
    }

    fn switch(&self, number: u16, incarnation: u32, succeeds: bool) -> Switch {
        Switch::new(SwitchConfig {
            me: Peer { node: NodeId::switch(number), incarnation },
            number: incarnation as u8,
            flows: self.flows,
            limits: SwitchLimits::default(),
            seed: self.seed,
            tick_interval: 50 * MILLISECOND,
            timeout: 3 * SECOND,
            fabric: fabric(),
            logs: self.logs.clone(),
            succeeds,
        })
    }

    /// An incarnation of a host's hub. In a world of several hosts its switches have no
    /// incarnation yet: the coordinator decides which host serves.
    fn hub(&self, at: Site, incarnation: u32, count: u16, now: u64) -> Hub {
        let joins = count > 1;
        let (of_switches, succeeds) =
            if joins { (0, false) } else { (incarnation, incarnation > 1) };
        let switches =
            self.switches().map(|number| self.switch(number, of_switches, succeeds)).collect();
        let mut hub = Hub::new(
            switches,
            Manager::new(Peer { node: NodeId::manager(at as u16), incarnation }, fabric()),
        );
        if joins {
            hub.join(count, TIMEOUT, now);
            self.switches().for_each(|switch| hub.manager.set_links(switch, 1));
        }
        if self.are_sealed {
            hub.authenticate(
                stranger::config(self.seed, at as u16, count, incarnation),
                &stranger::ring(),
            );
            if self.networks > 1 {
                hub.use_two_paths();
            }
        }
        hub
    }
}

impl World {
    pub(super) fn turn_hub_at(&mut self, at: Site, time: u64) {
        if time < self.hosts[at].turn_at {
            self.hosts[at].turn_at = time;
            self.at(time, Event::TurnHub(at));
        }
    }

    fn processes_of(&self, at: Site) -> Vec<Peer> {
        self.processes
            .iter()
            .filter(|(_, process)| process.host == at)
            .map(|(peer, _)| *peer)
            .collect()
    }

    /// Hub and processes of a host die together. The host comes back, empty, after `away`
    /// ns, or when the seed says if that is 0.
    pub(super) fn kill_host(&mut self, at: Site, away: u64) {
        self.faults.host_kills += 1;
        self.say(format_args!("kill host {at}"));
        for peer in self.processes_of(at) {
            self.note_failure(peer);
            self.end_process(peer);
        }
        self.last_words.retain(|_, (host, _)| *host != at);
        let away = match away {
            0 => {
                self.streams
                    .of(
                        Of::HostAway,
                        Peer {
                            node: NodeId::new(at as u16),
                            incarnation: self.hosts[at].incarnation,
                        },
                    )
                    .range(1, 2_000)
                    * MILLISECOND
            }
            away => away,
        };
        if at == WITNESS && !self.coordinator.is_away() {
            self.kill_coordinator(away);
        }
        if at == WITNESS {
            self.kill_servers(away);
        }
        self.end_hub(at, away);
        self.hosts[at].unread.clear();
        self.hosts[at].is_dead = true;
    }

    /// Stops everything on a host for so long, after which everything goes on where it
    /// was.
    pub(super) fn stop_host(&mut self, at: Site, time: u64) {
        self.faults.host_stops += 1;
        self.say(format_args!("stop host {at}"));
        let until = self.now + time;
        self.hosts[at].stopped_until = Some(until);
        for peer in self.processes_of(at) {
            self.note_failure(peer);
            if let Some(process) = self.processes.get_mut(&peer).filter(|process| !process.paused) {
                process.paused = true;
                self.at(until, Event::Resume(peer));
            }
        }
        if at == WITNESS {
            self.stop_coordinator(until);
            self.stop_servers(until);
        }
        self.at(until, Event::HostResumes(at));
    }

    /// Takes the links of a host's ports down for so long.
    pub(super) fn unplug_host(&mut self, at: Site, time: u64) {
        self.faults.cuts += 1;
        self.say(format_args!("unplug host {at}"));
        let until = self.now + time;
        self.hosts[at].unplugged_until = until;
        self.tell_links(at);
        self.at(until, Event::Plugged(at));
    }

    /// Brings the links of all hosts' ports up.
    pub(super) fn plug_hosts(&mut self) {
        for at in self
            .hosts
            .sites()
            .filter(|at| self.now < self.hosts[*at].unplugged_until)
            .collect::<Vec<_>>()
        {
            self.hosts[at].unplugged_until = 0;
            self.tell_links(at);
        }
    }

    /// Tells the host's manager whether the links of its ports are up.
    pub(super) fn tell_links(&mut self, at: Site) {
        let links = u8::from(self.now >= self.hosts[at].unplugged_until);
        for switch in self.hosts.switches() {
            self.hosts[at].hub.manager.set_links(switch, links);
        }
        self.turn_hub_at(at, self.now);
    }

    /// A stopped host goes on. Frames that have come meanwhile are read first, as far as
    /// a turn reads them.
    pub(super) fn resume_host(&mut self, at: Site) {
        self.say(format_args!("host {at} goes on"));
        self.hosts[at].stopped_until = None;
        self.hosts[at].turn_at = u64::MAX;
        if self.hosts[at].is_away {
            return;
        }
        // Other hosts' frames come first, as on a machine.
        let (others, own): (Vec<_>, Vec<_>) = core::mem::take(&mut self.hosts[at].unread)
            .into_iter()
            .partition(|(from, _)| from.is_none());
        for (from, frame) in others.into_iter().chain(own) {
            self.hub_reads(at, from, frame);
            self.after_hub(at);
        }
        self.turn_hub(at);
    }

    /// Kills a host's hub for `away` ns, or for as long as the seed says if that is 0.
    /// Packets that the hub has in hand are lost.
    pub(super) fn kill_hub(&mut self, at: Site, away: u64) {
        self.faults.hub_kills += 1;
        self.say(format_args!("kill hub {} of host {at}", self.hosts[at].incarnation));
        let node = NodeId::new(NodeId::SWITCH.get() + (at as u16) * 1000);
        let me = Peer { node, incarnation: self.hosts[at].incarnation };
        let drawn = self.streams.of(Of::Away, me).range(1, 60) * MILLISECOND;
        self.end_hub(at, if away == 0 { drawn } else { away });
    }

    fn end_hub(&mut self, at: Site, away: u64) {
        let back_at = self.now + away;
        self.hosts[at].back_at = back_at;
        self.at(back_at, Event::HubStarts(at));
        if self.hosts[at].is_away {
            return;
        }
        self.count_moved(at);
        let host = &mut self.hosts[at];
        host.is_away = true;
        self.drops.add(&host.abandon());
        let switches = host.hub.switches().map(Switch::drops);
        for drops in [host.hub.drops(), host.hub.manager.drops()].into_iter().chain(switches) {
            self.drops.add(drops);
        }
        self.check_hub_buffers(at);
    }

    pub(super) fn start_hub(&mut self, at: Site) {
        if !self.hosts[at].is_away || self.now < self.hosts[at].back_at {
            return;
        }
        let (incarnation, count, now) =
            (self.hosts[at].incarnation + 1, self.hosts.sites().len() as u16, self.host_time(at));
        self.say(format_args!("hub {incarnation} of host {at} begins"));
        self.given_up_unheard();
        let hub = self.hosts.hub(at, incarnation, count, now);
        let found = self.processes_of(at);
        let host = &mut self.hosts[at];
        (host.incarnation, host.is_away, host.hub, host.turn_at) =
            (incarnation, false, hub, u64::MAX);
        if self.now < self.hosts[at].unplugged_until {
            self.tell_links(at);
        }
        let host = &mut self.hosts[at];
        if at == WITNESS
            && let Some(coordinator) = self.coordinator.peer()
        {
            host.hub.handle_coordinator(coordinator);
        }
        if at == WITNESS {
            let servers = self.servers.iter().flat_map(Servers::peers).flatten();
            servers.for_each(|server| host.hub.handle_state_server(server));
        }
        for (peer, (_, word)) in self.last_words.iter().filter(|(peer, _)| found.contains(peer)) {
            host.hub.manager.hear_last_word(*peer, *word);
        }
        if !core::mem::take(&mut host.is_dead) {
            let ended = self
                .last_words
                .iter()
                .filter(|(peer, (host, _))| *host == at && !found.contains(peer));
            let mut ended: Vec<_> = ended.map(|(peer, (_, word))| (*peer, word.heard())).collect();
            ended.sort_by_key(|(peer, _)| peer.incarnation);
            let first = ended.len().saturating_sub(ENDS_KEPT);
            host.hub.succeed(&found, &ended[first..]);
        }
        self.turn_hub(at);
    }

    /// Counts the flows that moved, as this incarnation of the hub knows.
    pub(super) fn count_moved(&mut self, at: Site) {
        if at == WITNESS {
            self.faults.moved +=
                self.hosts[at].hub.manager.moves().iter().map(|order| order.moved).sum::<u64>();
        }
    }

    pub(super) fn check_hub_buffers(&mut self, at: Site) {
        let pool = &self.hosts[at].pool;
        if pool.free() != pool.total() {
            let lost = pool.total() - pool.free();
            self.checkers.violate(
                "no anonymous drop",
                format!("the hub of host {at} died with {lost} buffers"),
            );
        }
    }

    /// A packet comes to a switch's port: from its clients (0) or from its servers (1).
    pub(super) fn ingress(&mut self, switch: u16, frame: &[u8], port: u8) {
        let at = self.hosts.ports[usize::from(switch)];
        let host = &self.hosts[at];
        if !host.runs() || !host.hub.serves(switch) || self.now < host.unplugged_until {
            return;
        }
        self.checkers.note_sent(frame, &self.clients);
        let now = self.host_time(at);
        let host = &mut self.hosts[at];
        let Some(mut packet) = host.pool.take() else { return };
        let fits = packet.copy_from(frame);
        packet.meta.ingress = port;
        match fits && packet.parse().is_ok() {
            true if packet.layers.fragment => {
                self.drops.add(&host.handle_fragment(switch, packet, now))
            }
            is_understood => match FlowKey::of(&packet).filter(|_| is_understood) {
                Some(key) => host.hub.handle_packet(switch, key, packet),
                None => host.pool.put(packet),
            },
        }
        host.hub.forward(now, &mut host.out, &mut host.pool);
        self.after_hub(at);
    }

    /// A frame comes to a host: from one of its processes, or from another host. The
    /// rings outlive the hub: frames in them wait until its next incarnation runs and
    /// knows whom it may hear.
    pub(super) fn hub_receives(&mut self, at: Site, from: Option<Peer>, frame: Vec<u8>) {
        if self.hub_reads(at, from, frame) {
            self.turn_hub(at);
        }
    }

    /// True if the hub could read the frame now.
    fn hub_reads(&mut self, at: Site, from: Option<Peer>, frame: Vec<u8>) -> bool {
        let is_there = self.hosts[at].runs();
        match from {
            None if self.hosts[at].is_away => return false,
            Some(peer) if is_there && self.hosts[at].hub.may_hear(peer) => {}
            None if is_there => {}
            _ => {
                self.hosts[at].keep(from, frame);
                return false;
            }
        }
        self.listen_at(at, &frame);
        let now = self.host_time(at);
        let host = &mut self.hosts[at];
        let Some(mut packet) = host.pool.take() else { return true };
        if packet.copy_from(&frame) {
            let mut frames = vec![packet];
            let (before, passed_on) = (host.out.released.len(), host.out.to_runtime.len());
            match from {
                Some(peer) => {
                    host.hub.handle_frames(peer, &mut frames, now, &mut host.out, &mut host.pool)
                }
                None => host.hub.handle_fabric(&mut frames, now, &mut host.out, &mut host.pool),
            }
            let let_out = host.out.released.len() - before;
            let was_taken = let_out > 0 || host.out.to_runtime.len() > passed_on;
            match from {
                Some(peer) => self.check_fenced(peer, let_out),
                None if was_taken => self.note_taken(at, &frame),
                None => {}
            }
        } else {
            host.pool.put(packet);
        }
        true
    }

    /// A forged frame comes to a host, which must not take it in.
    pub(super) fn hub_refuses(&mut self, at: Site, frame: Vec<u8>) {
        if !self.hosts[at].runs() {
            return;
        }
        let now = self.host_time(at);
        let host = &mut self.hosts[at];
        let Some(mut packet) = host.pool.take() else { return };
        if !packet.copy_from(&frame) {
            return host.pool.put(packet);
        }
        let taken = |host: &Host| (host.out.released.len(), host.out.to_runtime.len());
        let before = taken(host);
        host.hub.handle_fabric(&mut vec![packet], now, &mut host.out, &mut host.pool);
        if taken(host) != before {
            self.checkers.violate(
                "only hosts are heard",
                format!("host {at} took in what no host had sent, or had sent once"),
            );
        }
    }

    pub(super) fn hub_turns(&mut self, at: Site) {
        if self.now >= self.hosts[at].turn_at && self.hosts[at].runs() {
            self.turn_hub(at);
        }
    }

    pub(super) fn turn_hub(&mut self, at: Site) {
        let now = self.host_time(at);
        let alive: Vec<Peer> =
            self.processes.keys().copied().filter(|peer| self.is_alive(at, *peer)).collect();
        let host = &mut self.hosts[at];
        host.turn_at = u64::MAX;
        host.fragments.iter_mut().for_each(|fragments| fragments.handle_timeout(now));
        host.drop_fragments(&mut self.drops);
        host.hub.manager.set_alive(alive.into_iter());
        host.hub.turn(now, &mut host.out, &mut host.pool);
        self.after_hub(at);
        for switch in self.hosts.switches() {
            if self.hosts[at].hub.serves(switch) && self.hosts.another_serves(at, switch) {
                self.checkers
                    .violate("one owner", format!("two hosts serve the ports of switch {switch}"));
            }
        }
        let due = self.hosts[at].hub.poll_timeout();
        let due = self.host_world_time(at, due).max(self.now + 10 * MICROSECOND);
        self.turn_hub_at(at, due);
        for (from, frame) in core::mem::take(&mut self.hosts[at].unread) {
            match from {
                Some(peer) if self.hosts[at].hub.may_hear(peer) => {
                    self.at(self.now, Event::ToHub(at, peer, frame))
                }
                from => self.hosts[at].unread.push_back((from, frame)),
            }
        }
    }

    fn after_hub(&mut self, at: Site) {
        let mut out = core::mem::take(&mut self.hosts[at].out);
        for (peer, packet) in out.to_runtime.drain(..) {
            let frame = packet.bytes().to_vec();
            let packet = self.check_chain(at, packet);
            self.hosts[at].pool.put(packet);
            match peer.node {
                NodeId::COORDINATOR => {
                    self.carry(self.inside, Lane::ToCoordinator, peer, frame, |frame| {
                        Event::ToCoordinator(peer, frame)
                    })
                }
                node if node.state_server_number().is_some() => {
                    self.carry(self.inside, Lane::ToStateServer, peer, frame, |frame| {
                        Event::ToStateServer(peer, frame)
                    })
                }
                _ => self.carry(self.inside, Lane::ToRuntime, peer, frame, |frame| {
                    Event::ToRuntime(peer, frame)
                }),
            }
        }
        let by_path = out.to_path.drain(..).map(|(path, packet)| (Some(path), packet));
        let hub = &self.hosts[at].hub;
        let is_joined_twice = self.hosts.networks > 1;
        let to_fabric = out.to_fabric.drain(..).map(|packet| match is_joined_twice {
            true => (hub.path_of(&packet), packet),
            false => (Some(0), packet),
        });
        for (path, packet) in to_fabric.chain(by_path).collect::<Vec<_>>() {
            let frame = packet.bytes().to_vec();
            let packet = self.check_chain(at, packet);
            self.hosts[at].pool.put(packet);
            // A network shows every frame to every host.
            for to in self.hosts.sites().filter(|to| *to != at) {
                for path in path.map_or(0..2, |path| path..path + 1) {
                    self.carry_between(path, at, to, frame.clone());
                }
            }
        }
        for (switch, released) in out.released.drain(..) {
            if self.hosts.another_serves(at, switch) {
                self.checkers.violate(
                    "one owner",
                    format!("host {at} let packets out while another served switch {switch}"),
                );
            }
            let mut packet = released.into_inner();
            let (chain, stamp) = (packet.meta.chain, packet.meta.stamp);
            if packet.meta.chain / self.of_each() != switch {
                let text =
                    format!("a packet of chain {} left at switch {switch}", packet.meta.chain);
                self.checkers.violate("one switch", text);
            }
            let is_refused = packet.meta.flags & Flags::TURNED != 0;
            let frame = packet.bytes().to_vec();
            // The edge answers a refused packet.
            let answer = (is_refused && packet.parse().is_ok() && reset(&mut packet))
                .then(|| packet.bytes().to_vec());
            self.hosts[at].pool.put(packet);
            let frame = if is_refused {
                let is_answered = self.check_refused(&frame, (chain, stamp));
                let Some(answer) = answer.filter(|_| is_answered) else { continue };
                answer
            } else {
                self.check_released(&frame, chain, stamp);
                frame
            };
            if self.now < self.hosts[at].unplugged_until {
                continue;
            }
            let to_client =
                frames::look(&frame).is_some_and(|seen| peers::is_inside(seen.destination));
            let outside = outside(switch);
            if to_client {
                self.carry(self.outside, Lane::ToClient, outside, frame, |frame| {
                    Event::ToClient(switch, frame)
                });
            } else {
                self.carry(self.outside, Lane::ToServer, outside, frame, |frame| {
                    Event::ToServer(switch, frame)
                });
            }
        }
        for order in out.orders.drain(..) {
            self.fulfil(at, order);
        }
        self.hosts[at].out = out;
    }

    /// Whether a process of this host runs, or only waits for a processor, and its link
    /// is not cut.
    fn is_alive(&self, at: Site, peer: Peer) -> bool {
        let process =
            self.processes.get(&peer).filter(|process| process.host == at && !process.paused);
        process.is_some() && !self.cuts.are_felt(peer.node, self.now)
    }

    /// Does what a host's manager asks for.
    fn fulfil(&mut self, at: Site, order: HostOrder) {
        match order {
            HostOrder::Start(peer) => {
                let drawn = self.streams.of(Of::Start, peer).range(2, 60) * MILLISECOND;
                let delay = match self.plan.restart {
                    0 => drawn,
                    // The first start does not follow a failure.
                    _ if self.done.is_empty() => MILLISECOND,
                    delay => delay,
                };
                self.at(self.now + delay, Event::Started(at, peer));
            }
            HostOrder::Stop(peer) => {
                if self.processes.get(&peer).is_some_and(|process| process.host == at) {
                    self.end_process(peer);
                }
                self.at(self.now + MILLISECOND, Event::ExitNoticed(at, peer));
            }
            HostOrder::Fence(peer) => {
                // A hub's next incarnation also fences peers that were given up before:
                // these do not count.
                let is_first = !self.coordinator.is_away() && !self.coordinator.has_given_up(peer);
                if is_first && self.is_alive(at, peer) && !self.hosts.are_several() {
                    self.fenced_alive.push(peer);
                }
                self.given_up(peer);
            }
            HostOrder::Serve(number, term) => {
                self.say(format_args!("host {at} serves switch {number} in term {term}"));
                self.faults.terms += 1;
                let switch = self.hosts.switch(number, term, true);
                self.hosts[at].hub.begin(switch);
                self.hosts.ports[usize::from(number)] = at;
                self.turn_hub_at(at, self.now);
            }
            HostOrder::Retire(number) => {
                self.say(format_args!("host {at} serves switch {number} no more"))
            }
        }
    }
}
