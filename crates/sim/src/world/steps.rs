//! Steps that are done to a world: by a plan, or by [schedule](super::fault_schedule),
//! which records what it did as one.

use super::hosts::{Site, WITNESS};
use super::served::Servers;
use super::{BEGIN, Event, MICROSECOND, World};
use crate::frames;
use crate::plan::{ANYBODY, Fact, How, Step, When, Whom};
use crate::world::streams::{Lane, Of};
use holdfast_node::message::Order;
use holdfast_node::runtime::Runtime;
use holdfast_protection::Peer;
use holdfast_wire::NodeId;

impl World {
    /// Takes the plan's next step between two events, if it is due.
    pub(super) fn follow_plan(&mut self) {
        if self.schedule.is_some() {
            return;
        }
        let next = self.plan.steps.get(self.done.len()).copied();
        // The system's word counts only once it knows of every earlier failure.
        let noticed = self.coordinator.failovers() >= self.runtime_failures;
        let is_settled = noticed && self.coordinator.is_protected();
        self.settled += u64::from(is_settled);
        let Some(step) = next else { return };
        let is_time = match step.when {
            When::Event(number) => self.count >= number,
            When::Time(time) => self.now >= BEGIN + time,
            When::Settled(number) => is_settled && self.settled_since >= number,
            When::Safe(time) => {
                let is_host =
                    matches!(step.whom, Whom::Host(_)) && !matches!(step.how, How::Expect(_));
                self.now >= BEGIN + time
                    && if is_host { self.may_lose_host() } else { self.may_fail_now() }
            }
            When::Sent(..) | When::Reached(..) => self.was_seen,
        };
        self.settled_since += u64::from(is_settled);
        if is_time && self.carry_out(step) {
            // The world waits for what follows from the step.
            self.settled_since = 0;
            (self.quiet_since, self.quiet_from) = (None, None);
        }
    }

    /// Looks at a frame that the next step may be waiting for.
    pub(super) fn watch(&mut self, is_sent: bool, lane: Lane, frame: &[u8]) {
        let Some(step) = self.plan.steps.get(self.done.len()) else { return };
        let is_outwards =
            matches!(lane, Lane::ToHub | Lane::FromCoordinator | Lane::FromStateServer);
        // Frames between two processes pass the hub: only their first sender and their
        // last receiver count.
        let (who, kind, of) = match step.when {
            When::Sent(of, kind) if is_sent => (frames::source(frame), kind, of),
            When::Reached(of, kind) if !is_sent => (frames::destination(frame), kind, of),
            _ => return,
        };
        let is_at_hub = |who: NodeId| {
            !who.is_runtime() && who != NodeId::COORDINATOR && who.state_server_number().is_none()
        };
        let is_first = is_sent && (is_outwards || who.is_some_and(is_at_hub));
        let is_last = !is_sent && (!is_outwards || who.is_some_and(is_at_hub));
        let there = (is_first || is_last) && (of == ANYBODY || who == Some(of));
        self.was_seen |= there && frames::records(frame).any(|record| record == kind);
    }

    /// True if the system says, or said last before its coordinator died, that it would
    /// survive another failure.
    fn may_fail_now(&self) -> bool {
        self.may_fail() || self.coordinator.is_away() && self.may_fail_meanwhile() && self.all_run()
    }

    /// For use while the coordinator is away: true if nothing was wrong when it died, and
    /// no log and no flow's home has been lost since.
    pub(super) fn may_fail_meanwhile(&self) -> bool {
        self.coordinator.was_safe() && self.has_logs() && self.has_home()
    }

    /// True if every switch is there, or none of their logs is needed. The coordinator
    /// may not have heard yet that a switch is missing.
    fn has_logs(&self) -> bool {
        let are_all_whole = || {
            self.hosts.served().filter(|switch| switch.is_whole()).count()
                == usize::from(self.plan.switches)
        };
        !self.scenario.preset.has_log() || self.hosts.all_run() && are_all_whole()
    }

    /// True if nothing is wrong, as the system says and as the world sees.
    pub(super) fn may_fail(&self) -> bool {
        self.is_safe()
            && self.all_run()
            && !self.cuts.any(self.now)
            && self.has_logs()
            && self.has_home()
    }

    /// True if the state servers that the coordinator knows are there, or no flow has its
    /// home there.
    pub(super) fn has_home(&self) -> bool {
        let there: Vec<Option<Peer>> = self.servers.iter().flat_map(Servers::peers).collect();
        !self.scenario.preset.is_paged()
            || there.iter().all(Option::is_some) && there == self.coordinator.state_servers()
    }

    /// True if nothing is wrong, and the system says that it would survive the death of a
    /// host.
    pub(super) fn may_lose_host(&self) -> bool {
        self.may_fail() && self.coordinator.survives_host()
    }

    /// True if the system says that it would survive another failure. Without a promise
    /// it only has to be ready.
    pub(super) fn is_safe(&self) -> bool {
        let promises = self.scenario.preset.promises();
        self.coordinator.is_ready() && (!promises || self.coordinator.is_protected())
    }

    /// True if every runtime and every host runs.
    pub(super) fn all_run(&self) -> bool {
        self.all_run_but(0)
    }

    /// The same but for drained runtimes that have ended: they do not come back by
    /// themselves.
    pub(super) fn all_serve(&self) -> bool {
        self.all_run_but(self.coordinator.out_of_service())
    }

    fn all_run_but(&self, away: usize) -> bool {
        let are_hosts_there = !self.hosts.are_several() || self.hosts.all_run();
        let are_all = self.processes.len() + away == usize::from(self.plan.runtimes);
        are_hosts_there && are_all && self.processes.values().all(|process| !process.paused)
    }

    /// The runtime that a step means.
    fn runtime(&self, whom: Whom) -> Option<Peer> {
        let there: Vec<(Peer, usize)> = self
            .processes
            .iter()
            .filter(|(_, process)| !process.paused)
            .map(|(peer, process)| (*peer, self.owned(&process.runtime)))
            .collect();
        match whom {
            Whom::Owner => there.iter().max_by_key(|(_, owned)| *owned).map(|(peer, _)| *peer),
            Whom::Number(number) => there.get(number % there.len().max(1)).map(|(peer, _)| *peer),
            Whom::Node(node) => self.processes.keys().find(|peer| peer.node == node).copied(),
            Whom::Coordinator
            | Whom::StateServer(_)
            | Whom::Hub
            | Whom::Manager(_)
            | Whom::Host(_)
            | Whom::World => None,
        }
    }

    fn owned(&self, runtime: &Runtime) -> usize {
        (0..self.chains)
            .filter_map(|chain| runtime.flows(chain.into()))
            .map(|flows| flows.owned())
            .sum()
    }

    /// Takes a step and records it. False if it cannot be taken now.
    pub(super) fn carry_out(&mut self, step: Step) -> bool {
        let node = match step.whom {
            Whom::Node(node) => Some(node),
            Whom::Coordinator => Some(NodeId::COORDINATOR),
            Whom::StateServer(number) => Some(NodeId::state_server(number)),
            Whom::Host(number) => Some(NodeId::manager(number)),
            whom => self.runtime(whom).map(|peer| peer.node),
        };
        let is_taken = match (step.whom, step.how) {
            (_, How::Heal) => {
                self.heal();
                true
            }
            (Whom::World, How::Slow(factor, time)) => {
                self.starve(factor, time);
                true
            }
            (whom, How::Expect(fact)) => {
                self.expect(whom, fact);
                true
            }
            (Whom::Coordinator, How::Kill | How::Pause(_)) if self.coordinator.is_away() => false,
            (Whom::Coordinator, how @ (How::Kill | How::Pause(_))) => {
                self.kill_coordinator(if let How::Pause(away) = how { away } else { 0 });
                true
            }
            (Whom::StateServer(number), How::Kill) => self.kill_server(number, 0),
            (Whom::StateServer(number), How::Pause(away)) => self.kill_server(number, away),
            (Whom::Coordinator, How::KillWriting) => self.kill_coordinator_writing(),
            (Whom::Hub | Whom::Manager(_), how @ (How::Kill | How::Pause(_))) => {
                let number = if let Whom::Manager(number) = step.whom {
                    Some(number.into())
                } else {
                    self.hosts.serving(0)
                };
                let site = number
                    .filter(|site| self.hosts.sites().contains(site) && self.hosts[*site].runs());
                site.is_some_and(|site| {
                    self.kill_hub(site, if let How::Pause(away) = how { away } else { 0 });
                    true
                })
            }
            (
                Whom::Host(number),
                how @ (How::Kill | How::Away(_) | How::Pause(_) | How::Unplug(_)),
            ) => self.strike_host(number.into(), how),
            (whom, how @ (How::Kill | How::Pause(_))) => match self.runtime(whom) {
                Some(peer) => {
                    self.runtime_failures += 1;
                    match how {
                        How::Pause(pause) => self.stop(peer, pause),
                        _ => self.kill(peer),
                    }
                    true
                }
                None => false,
            },
            (_, how) => node.is_some_and(|node| self.do_to(node, how)),
        };
        if is_taken {
            self.done.push(step);
            self.was_seen = false;
        }
        is_taken
    }

    /// Does something to one of several hosts. False if it is not there.
    fn strike_host(&mut self, at: Site, how: How) -> bool {
        if !self.hosts.are_several() || !self.hosts.sites().contains(&at) || !self.hosts[at].runs()
        {
            return false;
        }
        if let How::Unplug(time) = how {
            self.unplug_host(at, time);
            return true;
        }
        self.runtime_failures +=
            self.processes.values().filter(|process| process.host == at).count();
        match how {
            How::Pause(time) => self.stop_host(at, time),
            How::Away(time) => self.kill_host(at, time),
            _ => self.kill_host(at, 0),
        }
        true
    }

    /// Does to a node what can happen even while it is not there. False if this does not
    /// happen to nodes of its kind.
    fn do_to(&mut self, node: NodeId, how: How) -> bool {
        match how {
            How::Cut(way, time) => {
                self.say(format_args!("cut node {node}, {way:?}, for {} ms", time / 1_000_000));
                self.faults.cuts += 1;
                if let Some(peer) = self.processes.keys().find(|peer| peer.node == node).copied() {
                    self.note_failure(peer);
                }
                self.cuts.cut(node, way, self.now + time);
            }
            How::Slow(factor, time) => {
                self.say(format_args!(
                    "node {node} is {factor} times as slow for {} ms",
                    time / 1_000_000
                ));
                self.faults.slowed += 1;
                self.slow.insert(node, (factor, self.now + time));
            }
            How::Move(to, limit) => self.move_flows(node, to, limit),
            How::Drain => self.at(self.now, Event::Drain(node)),
            How::Restore => self.at(self.now, Event::Restore(node)),
            _ => return false,
        }
        true
    }

    fn move_flows(&mut self, node: NodeId, to: Option<NodeId>, limit: u64) {
        if self.order(&Order::Move { from: node, to, limit, selector: "any".to_owned() }) {
            self.faults.moves += 1;
            let to = to.map_or_else(|| "any".to_owned(), |to| to.to_string());
            self.say(format_args!("move {limit} flows from runtime {node} to runtime {to}"));
        }
    }

    pub(super) fn kill(&mut self, peer: Peer) {
        self.faults.kills += 1;
        self.note_failure(peer);
        self.say(format_args!("kill runtime {}.{}", peer.node, peer.incarnation));
        let host = self.processes.get(&peer).map_or(WITNESS, |process| process.host);
        // The next packet in the ring becomes a suspect, as if the runtime had begun with
        // it. The packet is innocent, so no second runtime is found with it.
        let in_hand = self
            .processes
            .get(&peer)
            .and_then(|process| process.rx.iter().find_map(|frame| frames::in_hand(frame.bytes())));
        self.in_hand.extend(in_hand.map(|packet| (peer, packet)));
        self.end_process(peer);
        let noticed = self.streams.of(Of::Notice, peer).range(20, 5000) * MICROSECOND;
        self.at(self.now + noticed, Event::ExitNoticed(host, peer));
    }

    pub(super) fn note_failure(&mut self, peer: Peer) {
        let was_safe = self.coordinator.says_safe();
        // Packets that were sent since the machine became busy may still be unread.
        let sent_by = if self.is_busy() { self.starved_since } else { self.now };
        if let Some(loss) = &mut self.loss {
            loss.failed(peer, sent_by, was_safe);
        }
    }

    pub(super) fn stop(&mut self, peer: Peer, pause: u64) {
        self.faults.pauses += 1;
        self.note_failure(peer);
        self.say(format_args!("stop runtime {}.{}", peer.node, peer.incarnation));
        if let Some(process) = self.processes.get_mut(&peer) {
            process.paused = true;
        }
        self.at(self.now + pause, Event::Resume(peer));
    }

    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.cuts.heal();
        self.slow.clear();
        self.starved = (0, 0);
        self.plug_hosts();
    }

    /// Makes the machine busy: nodes wait for a processor after each turn.
    fn starve(&mut self, factor: u64, time: u64) {
        self.say(format_args!("the machine is busy for {} ms", time / 1_000_000));
        self.faults.starved += 1;
        if !self.is_busy() {
            self.starved_since = self.now;
        }
        self.starved = (factor, self.now + time);
    }

    /// True if nodes wait for a processor: the machine is busy, or a wait that began
    /// while it was goes on.
    fn is_busy(&self) -> bool {
        self.now < self.starved.1.max(self.waiting_until)
    }

    /// A node has had its turn, and does nothing until `until`.
    pub(super) fn note_wait(&mut self, until: u64) {
        if self.now < self.starved.1 {
            self.waiting_until = self.waiting_until.max(until);
        }
    }

    /// Pause of this node after a turn, in turns.
    pub(super) fn slowness(&mut self, node: NodeId) -> u64 {
        let own = self
            .slow
            .get(&node)
            .filter(|(_, until)| *until > self.now)
            .map_or(0, |(factor, _)| *factor);
        match self.starved {
            (factor, until) if until > self.now => {
                own + self
                    .streams
                    .of(Of::Starved, Peer { node, incarnation: 0 })
                    .range(0, 2 * factor)
            }
            _ => own,
        }
    }

    fn expect(&mut self, whom: Whom, fact: Fact) {
        let owned = |peer: Peer| {
            self.processes.get(&peer).map_or(0, |process| self.owned(&process.runtime))
        };
        let there = self.runtime(whom);
        let is_so = match fact {
            Fact::Safe => self.is_safe(),
            Fact::Unsafe => !self.is_safe(),
            Fact::There => there.is_some(),
            Fact::Gone => there.is_none(),
            Fact::Owns => there.is_some_and(|peer| owned(peer) > 0),
            Fact::OwnsNothing => there.is_none_or(|peer| owned(peer) == 0),
            Fact::Serves => {
                matches!(whom, Whom::Host(number) if self.hosts.switches().any(|switch| self.hosts.serving(switch) == Some(number.into())))
            }
        };
        if !is_so {
            let time = (self.now - BEGIN) as f64 / 1e6;
            let flows: Vec<String> = self
                .processes
                .keys()
                .map(|peer| format!("{}.{} owns {}", peer.node, peer.incarnation, owned(*peer)))
                .collect();
            self.checkers.violate(
                "expectation",
                format!("{time} ms: {whom:?} is not {fact:?}; {}", flows.join(", ")),
            );
        }
    }

    /// Takes a runtime out of service; asks again later if that is refused.
    pub(super) fn order_drain(&mut self, node: NodeId) {
        if !self.coordinator.is_ready() || !self.order(&Order::Drain { node, force: true }) {
            self.at(self.now + 10_000 * MICROSECOND, Event::Drain(node));
            return;
        }
        self.faults.drains += 1;
        self.say(format_args!("drain runtime {node}"));
        self.drained(node);
    }

    pub(super) fn restore(&mut self, node: NodeId) {
        // Without a coordinator it is unknown whether drained runtimes have ended.
        let is_over = self.coordinator.has_nobody_leaving().unwrap_or(false);
        if !is_over || !self.order(&Order::Restore(node)) {
            // If the order is refused, the runtime failed before it was drained, and was
            // started again. If a drained runtime has not ended, ask later.
            if !is_over {
                self.at(self.now + 50_000 * MICROSECOND, Event::Restore(node));
            }
            return;
        }
        self.say(format_args!("runtime {node} comes back into service"));
    }
}
