//! The coordinator of a world: a process of its own, which may die at any time and begins
//! again from its log.

use super::hosts::WITNESS;
use super::streams::{Lane, Of};
use super::{Event, MICROSECOND, MILLISECOND, World};
use holdfast_node::coordinator::{Coordinator, CoordinatorConfig, Ledger, describe};
use holdfast_node::message::{Cause, Drain, Failover, Member, MemberState, Order, Protected};
use holdfast_node::rules::{Rule, RuleSet, version_after};
use holdfast_protection::Peer;
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropCounters, NodeId};

/// The coordinator's incarnations, one after the other.
pub(super) struct Incarnations {
    config: CoordinatorConfig,
    /// The present incarnation, unless it is away.
    now: Option<Coordinator>,
    /// Records on the disk.
    log: Vec<Vec<u8>>,
    turn_at: u64,
    /// The coordinator dies as soon as it has something to write; only some of that is
    /// written.
    dies_writing: bool,
    /// Planted fault: since when the coordinator only pretends to write.
    pretends_since: Option<u64>,
    pub(super) faults_left: u64,
    /// End of a slow coordinator's pause: no turn before.
    busy_until: u64,
    /// When the coordinator died, every flow would have survived a failure.
    was_safe: bool,
    /// The state servers' incarnations that the last one knew.
    servers: Vec<Option<Peer>>,
    drops: DropCounters,
}

impl Incarnations {
    pub(super) fn new(config: CoordinatorConfig, begins: u64) -> Incarnations {
        Incarnations {
            now: Some(Coordinator::new(config.clone(), begins)),
            config,
            log: Vec::new(),
            turn_at: u64::MAX,
            dies_writing: false,
            pretends_since: None,
            faults_left: 0,
            busy_until: 0,
            was_safe: false,
            servers: Vec::new(),
            drops: DropCounters::default(),
        }
    }

    /// True if the coordinator runs, and nothing more is going to be done to it.
    pub(super) fn is_spared(&self) -> bool {
        self.faults_left == 0 && !self.dies_writing && self.now.is_some()
    }

    /// The coordinator's node and incarnation, if it runs.
    pub(super) fn peer(&self) -> Option<Peer> {
        self.now.is_some().then_some(self.config.me)
    }

    pub(super) fn is_away(&self) -> bool {
        self.now.is_none()
    }

    pub(super) fn is_dying(&self) -> bool {
        self.dies_writing
    }

    pub(super) fn was_safe(&self) -> bool {
        self.was_safe
    }

    pub(super) fn is_ready(&self) -> bool {
        self.now.as_ref().is_some_and(Coordinator::is_ready)
    }

    pub(super) fn is_protected(&self) -> bool {
        self.now.as_ref().is_some_and(|coordinator| coordinator.protected() == Protected::Yes)
    }

    /// True if the coordinator says, or said last, that every flow would survive a
    /// failure.
    pub(super) fn says_safe(&self) -> bool {
        if self.now.is_some() { self.is_protected() } else { self.was_safe }
    }

    /// The state servers' incarnations that the coordinator knows, or knew last.
    pub(super) fn state_servers(&self) -> Vec<Option<Peer>> {
        self.now.as_ref().map_or_else(
            || self.servers.clone(),
            |coordinator| coordinator.state_servers().collect(),
        )
    }

    /// True if the coordinator says that the death of any host would be survived.
    pub(super) fn survives_host(&self) -> bool {
        self.now.as_ref().is_some_and(Coordinator::survives_host)
    }

    pub(super) fn has_given_up(&self, peer: Peer) -> bool {
        self.now.as_ref().is_some_and(|coordinator| {
            coordinator.failovers().any(|failover| failover.dead == peer)
        })
    }

    /// True if every drained runtime has ended: until then it cannot come back. `None`
    /// without a coordinator.
    pub(super) fn has_nobody_leaving(&self) -> Option<bool> {
        self.now.is_some().then(|| self.drained().all(|member| member.state == MemberState::Failed))
    }

    /// The number of drained runtimes that have ended, and have not been brought back.
    pub(super) fn out_of_service(&self) -> usize {
        self.drained().filter(|member| member.state == MemberState::Failed).count()
    }

    fn drained(&self) -> impl Iterator<Item = Member> + '_ {
        let runtimes = self.now.iter().flat_map(Coordinator::status);
        runtimes.filter(|runtime| runtime.is_drained).map(|runtime| runtime.member)
    }

    /// Peers that the coordinator has given up because they were silent.
    pub(super) fn given_up_silent(&self) -> impl Iterator<Item = Peer> + '_ {
        let failovers = self.now.iter().flat_map(Coordinator::failovers);
        failovers.filter(|failover| failover.cause == Cause::Hung).map(|failover| failover.dead)
    }

    pub(super) fn failovers(&self) -> usize {
        self.now.as_ref().map_or(0, |coordinator| coordinator.failovers().count())
    }

    /// Flows that were lost, in a world with so many switches.
    pub(super) fn lost(&self, switches: usize) -> u64 {
        self.now
            .iter()
            .flat_map(Coordinator::failovers)
            .map(|failover| failover.lost(switches))
            .sum()
    }

    /// The coordinator's ledgers. While it is away: those with which its next incarnation
    /// would begin.
    pub(super) fn ledgers(&self) -> Vec<Ledger> {
        match &self.now {
            Some(coordinator) => coordinator.ledgers().to_vec(),
            None => {
                self.restored(0).map_or(Vec::new(), |coordinator| coordinator.ledgers().to_vec())
            }
        }
    }

    pub(super) fn drops(&self) -> DropCounters {
        let mut drops = self.drops.clone();
        if let Some(coordinator) = &self.now {
            drops.add(coordinator.drops());
        }
        drops
    }

    /// The next incarnation, restored from the log. Without any record it begins as if
    /// there had never been one.
    fn restored(&self, now: u64) -> Option<Coordinator> {
        let config = self.config.clone();
        if self.log.is_empty() {
            return Some(Coordinator::new(config, now));
        }
        Coordinator::restore(config, now, self.log.iter().map(Vec::as_slice)).ok()
    }
}

impl World {
    pub(super) fn turn_coordinator_at(&mut self, time: u64) {
        let time = time.max(self.coordinator.busy_until);
        if time < self.coordinator.turn_at {
            self.coordinator.turn_at = time;
            self.at(time, Event::TurnCoordinator);
        }
    }

    pub(super) fn coordinator_receives(&mut self, peer: Peer, frame: &[u8]) {
        let now = self.coordinator_time();
        let Some(coordinator) =
            self.coordinator.now.as_mut().filter(|_| peer == self.coordinator.config.me)
        else {
            return;
        };
        coordinator.handle_frame(frame, now);
        let delay = self.streams.of(Of::Waking, peer).range(1, 20) * MICROSECOND;
        self.turn_coordinator_at(self.now + delay);
    }

    pub(super) fn turn_coordinator(&mut self) {
        if self.now < self.coordinator.turn_at {
            return;
        }
        self.coordinator.turn_at = u64::MAX;
        if self.now < self.coordinator.busy_until {
            return self.turn_coordinator_at(self.now);
        }
        let slowness = self.slowness(NodeId::COORDINATOR);
        self.coordinator.busy_until = self.now + 10 * MICROSECOND * slowness;
        self.note_wait(self.coordinator.busy_until);
        let now = self.coordinator_time();
        let Some(coordinator) = &mut self.coordinator.now else { return };
        coordinator.handle_records(now);
        coordinator.handle_timeout(now);
        let mut records = coordinator.poll_log();
        if let Some(since) = self.coordinator.pretends_since {
            if now >= since + 3 * MILLISECOND {
                return self.kill_coordinator(0);
            }
            records.clear();
        }
        let dies = self.coordinator.dies_writing && !records.is_empty();
        let pretends = is_planted(Fault::SpeaksBeforeWriting);
        if dies {
            self.coordinator.pretends_since = pretends.then_some(now);
            let me = self.coordinator.config.me;
            let written =
                self.streams.of(Of::Written, me).range(0, records.len() as u64 + 1) as usize;
            records.truncate(written);
        }
        for record in records {
            if self.trace {
                self.say(format_args!("the coordinator writes {}", describe(&record.bytes)));
            }
            if record.replaces {
                self.coordinator.log.clear();
            }
            self.coordinator.log.push(record.bytes);
        }
        if dies && !pretends {
            return self.kill_coordinator(0);
        }
        let Some(coordinator) = &mut self.coordinator.now else { return };
        coordinator.logged();
        let mut frames = Vec::new();
        coordinator.fabric().poll_transmit(now, |frame| {
            frames.push(frame.to_vec());
            true
        });
        let due =
            coordinator.poll_timeout().min(coordinator.fabric().poll_timeout().unwrap_or(u64::MAX));
        let me = self.coordinator.config.me;
        for frame in frames {
            self.carry(self.inside, Lane::FromCoordinator, me, frame, |frame| {
                Event::ToHub(WITNESS, me, frame)
            });
        }
        let due = self.world_time(NodeId::COORDINATOR, due);
        self.turn_coordinator_at(due.max(self.now + 10 * MICROSECOND));
    }

    /// Sets new rules. A coordinator that was away is given them again.
    pub(super) fn set_rules(&mut self, rules: Vec<Rule>) {
        // If no host serves, or no whole switch says which rules are in force, the
        // operator is told so.
        let in_force = self
            .hosts
            .served()
            .filter(|switch| switch.is_whole())
            .map(|switch| switch.rules().version())
            .max();
        let (Some(at), Some(in_force)) = (self.hosts.serving(0), in_force) else { return };
        let manager = &mut self.hosts[at].hub.manager;
        let rules = RuleSet::new(version_after(manager.rules_wanted(in_force)), rules);
        let records = rules.records(manager.fabric().max_record());
        manager.set_rules(records);
        self.turn_hub(at);
    }

    /// Gives an operator's order. False if it is not carried out.
    pub(super) fn order(&mut self, order: &Order) -> bool {
        let now = self.coordinator_time();
        let is_done = self
            .coordinator
            .now
            .as_mut()
            .is_some_and(|coordinator| coordinator.order(order, now).is_ok());
        self.turn_coordinator_at(self.now);
        is_done
    }

    /// Lets the coordinator die in the middle of writing, as soon as it has something to
    /// write. False if it is away, or is to do so already.
    pub(super) fn kill_coordinator_writing(&mut self) -> bool {
        let is_there = !self.coordinator.is_away() && !self.coordinator.dies_writing;
        self.coordinator.dies_writing |= is_there;
        is_there
    }

    /// Kills the coordinator for `away` ns, or for as long as the seed says if that is 0.
    pub(super) fn kill_coordinator(&mut self, away: u64) {
        (self.coordinator.dies_writing, self.coordinator.pretends_since) = (false, None);
        self.coordinator.was_safe = self.is_safe();
        self.coordinator.servers = self.coordinator.state_servers();
        let Some(coordinator) = self.coordinator.now.take() else { return };
        self.faults.coordinator_kills += 1;
        self.say(format_args!("kill coordinator {}", self.coordinator.config.me.incarnation));
        self.coordinator.drops.add(coordinator.drops());
        if !self.hosts[WITNESS].is_away {
            self.hosts[WITNESS].hub.handle_coordinator_ended(self.coordinator.config.me);
        }
        let me = self.coordinator.config.me;
        let drawn = self.streams.of(Of::Away, me).range(1, 900) * MILLISECOND;
        let away = if away == 0 { drawn } else { away };
        self.at(self.now + away, Event::CoordinatorStarts);
        self.perhaps_meanwhile(away);
    }

    /// Stops the coordinator with its host, until then.
    pub(super) fn stop_coordinator(&mut self, until: u64) {
        self.coordinator.busy_until = self.coordinator.busy_until.max(until);
        self.turn_coordinator_at(until);
    }

    /// Starts the next incarnation, or waits until its host is there.
    pub(super) fn start_coordinator(&mut self) {
        if let Some(time) = self.hosts[WITNESS].not_there_until(self.now) {
            return self.at(time, Event::CoordinatorStarts);
        }
        self.coordinator.config.me.incarnation += 1;
        let Some(coordinator) = self.coordinator.restored(self.coordinator_time()) else {
            self.checkers.violate("log", "the coordinator cannot read its own log".to_owned());
            return;
        };
        self.say(format_args!("coordinator {} begins", self.coordinator.config.me.incarnation));
        self.check_memory(&coordinator);
        self.coordinator.now = Some(coordinator);
        if !self.hosts[WITNESS].is_away {
            self.hosts[WITNESS].hub.handle_coordinator(self.coordinator.config.me);
        }
        self.turn_coordinator_at(self.now);
    }

    /// Checks that the next incarnation knows everything that people and the switch were
    /// told.
    fn check_memory(&mut self, coordinator: &Coordinator) {
        let managers =
            || self.hosts.all().filter(|host| !host.is_away).map(|host| &host.hub.manager);
        let knows_drain = |told: &&Drain| {
            let mut known = coordinator.drains().iter().filter(|known| known.peer == told.peer);
            known.any(|known| known.ended_at.is_some() || told.ended_at.is_none())
        };
        let knows_failover = |told: &&Failover| {
            let mut known = coordinator.failovers().filter(|known| known.dead == told.dead);
            known.any(|known| known.recovered_at.is_some() || told.recovered_at.is_none())
        };
        let mut forgotten: Vec<String> = Vec::new();
        let drain = managers().flat_map(|manager| manager.drains()).find(|told| !knows_drain(told));
        forgotten.extend(drain.map(|told| format!("{told:?}")));
        let failover =
            managers().flat_map(|manager| manager.failovers()).find(|told| !knows_failover(told));
        forgotten.extend(failover.map(|told| format!("{told:?}")));
        let newest = coordinator.rules().version();
        let switches =
            self.hosts.all().filter(|host| !host.is_away).flat_map(|host| host.hub.switches());
        let version = switches.map(|switch| switch.rules().version()).max().unwrap_or(0);
        forgotten.extend((version > newest).then(|| format!("rules {version}, it has {newest}")));
        for what in forgotten {
            self.checkers.violate("log", format!("the coordinator has forgotten {what}"));
        }
    }
}
