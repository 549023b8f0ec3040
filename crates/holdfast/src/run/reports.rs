//! The status of a running box.

use super::restarts::LONG_INCARNATION_OF_MANAGER;
use super::{MILLISECOND, ManagerProcess};
use crate::config::{self, NamedPool, NamedStatistic, Plan, SwitchEntry};
use holdfast_control::api::TraceStep;
use holdfast_control::flows::{Flow, FlowValue, protocol_name};
use holdfast_control::status::{self, Bfd, Failover, Port, Process, Status, Talker, Talkers};
use holdfast_node::bfd::Session;
use holdfast_node::coordinator::RuntimeStatus;
use holdfast_node::message::{self, FlowInfo, MemberState};
use holdfast_node::ranks::{Ranked, Ranks};
use holdfast_node::rules::Rule;
use holdfast_node::switch::Switch;
use holdfast_wire::{DropCounters, DropReason, NodeId, ip_addr};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;

fn named(drops: &DropCounters) -> BTreeMap<String, u64> {
    drops.iter().map(|(reason, count)| (reason.name().to_owned(), count)).collect()
}

/// A watched router: its address, its session, and true if it is known to be dead.
fn bfd((peer, session, dead): (&[u8; 16], &Session, bool), now: u64) -> Bfd {
    let timers = session.timers();
    let (remote_state, remote_diagnostic) = session.remote();
    let (downs, last_down) = session.downs();
    Bfd {
        peer: holdfast_wire::ip_addr(peer).to_string(),
        state: session.state().name().to_owned(),
        diagnostic: session.diagnostic().name().to_owned(),
        remote_state: remote_state.name().to_owned(),
        remote_diagnostic: remote_diagnostic.name().to_owned(),
        dead,
        transmit_us: timers.transmit,
        receive_us: timers.receive,
        detection_us: timers.detection,
        since_ms: now.saturating_sub(session.since()) / 1_000_000,
        downs,
        last_down: (downs > 0).then(|| last_down.name().to_owned()),
    }
}

/// The cause of a failover, as text.
fn cause_of(failover: &message::Failover) -> String {
    match (failover.notice.cause.as_str(), failover.cause) {
        ("", message::Cause::Hung) => "no heartbeat".to_owned(),
        ("", message::Cause::NeverStarted) => "never started".to_owned(),
        ("", _) => "ended".to_owned(),
        (cause, _) => cause.to_owned(),
    }
}

/// The end of a process, as text.
pub(super) fn cause(status: std::process::ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal_hook::consts::SIGSYS), _) => {
            "killed by signal 31: it made a system call that it may not make".to_owned()
        }
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(code)) => format!("exited with code {code}"),
        (None, None) => "exited".to_owned(),
    }
}

/// Tells systemd the state, if it listens (sd_notify(3)).
pub(super) fn notify_systemd(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Ok(socket) = std::os::unix::net::UnixDatagram::unbound() {
        // A missing listener is no failure.
        let _ = socket.send_to(state.as_bytes(), path);
    }
}

/// The flows' statistics by index, before names are attached.
pub(super) struct Counted {
    plan: Arc<Plan>,
    values: Vec<Vec<i64>>,
}

impl Counted {
    /// Attaches names; not on the packet loop's thread.
    pub(super) fn named(self) -> Vec<status::Statistic> {
        let statistic = |(statistic, values): (&NamedStatistic, Vec<i64>)| {
            let value = |(index, value): (usize, &i64)| status::StatisticValue {
                name: statistic.name(index),
                value: *value,
            };
            status::Statistic {
                chain: statistic.chain.clone(),
                function: statistic.function.to_owned(),
                name: statistic.field.to_owned(),
                kind: if statistic.names.is_some() {
                    status::KIND_COUNTERS
                } else {
                    status::KIND_GAUGE
                }
                .to_owned(),
                shared: if statistic.is_served {
                    status::SHARED_STATE_SERVER
                } else {
                    status::SHARED_PARTITIONED
                }
                .to_owned(),
                size: statistic.size,
                values: values.iter().enumerate().map(value).collect(),
            }
        };
        self.plan.statistics.iter().zip(self.values).map(statistic).collect()
    }
}

pub(super) fn flows(flows: &[FlowInfo], plan: &Plan) -> Vec<Flow> {
    let end = |ip: std::net::IpAddr, port: u16| std::net::SocketAddr::new(ip, port).to_string();
    let flow = |flow: &FlowInfo| {
        let (from, to) = flow.key.ports();
        let (translated_to, translated_from) = flow.reply.ports();
        Flow {
            protocol: flow.key.protocol.into(),
            source: end(flow.key.source_ip(), from),
            destination: end(flow.key.destination_ip(), to),
            translated_source: end(flow.reply.destination_ip(), translated_from),
            translated_destination: end(flow.reply.source_ip(), translated_to),
            chain: plan.chains.get(usize::from(flow.chain)).map(|chain| chain.name.clone()),
            state: flow.state.clone(),
            owner: flow.owner.into(),
            replica: (flow.replica != NodeId::NONE).then_some(flow.replica.into()),
            epoch: flow.epoch,
            age_ms: flow.age / 1_000_000,
            packets: flow.packets.to_vec(),
            bytes: flow.bytes.to_vec(),
            values: values(flow, plan),
        }
    };
    flows.iter().map(flow).collect()
}

/// The known values of a flow, with their names.
fn values(flow: &FlowInfo, plan: &Plan) -> Vec<FlowValue> {
    let functions =
        plan.chains.get(usize::from(flow.chain)).map_or(&[][..], |chain| &chain.functions);
    let names = functions
        .iter()
        .flat_map(|function| function.values().iter().map(|name| (function.name(), *name)));
    let value = |((function, name), value): ((&str, &str), &Option<u64>)| {
        let (function, name) = (function.to_owned(), name.to_owned());
        value.map(|value| FlowValue { function, name, value })
    };
    names.zip(&flow.values).filter_map(value).collect()
}

/// The flows, hosts and ports with the most bytes, by name.
pub(super) fn talkers(ranks: Ranks) -> Talkers {
    fn named<K>(all: Vec<Ranked<K>>, name: impl Fn(&K) -> String) -> Vec<Talker> {
        let talker = |Ranked { of, packets, bytes }| Talker { name: name(&of), packets, bytes };
        all.into_iter().map(talker).collect()
    }
    Talkers {
        flows: named(ranks.flows, ToString::to_string),
        hosts: named(ranks.hosts, |host| ip_addr(host).to_string()),
        ports: named(ranks.ports, |(protocol, port)| {
            format!("{} {port}", protocol_name((*protocol).into()))
        }),
        hosts_slack: ranks.hosts_slack,
        ports_slack: ranks.ports_slack,
    }
}

/// A step of a traced packet, with names in place of numbers, and its position in the
/// packet's path.
pub(super) fn step(step: &message::TraceStep, plan: &Plan) -> (u32, TraceStep) {
    let switch =
        step.node.switch_number().and_then(|number| plan.switches.get(usize::from(number)));
    let place = match switch {
        Some(SwitchEntry { name: Some(name), .. }) => format!("switch {name}"),
        Some(_) => "switch".to_owned(),
        None => format!("runtime {}", step.node),
    };
    let port = switch
        .zip(step.ingress)
        .and_then(|(switch, ingress)| switch.ports.get(usize::from(ingress)));
    let text = match (port, switch.zip(step.rule.as_ref())) {
        (Some(port), _) => format!("in by port {}, {}", plan.port_name(*port), step.text),
        (None, Some((switch, Rule { selector, chain, .. }))) => {
            let rule = selector.display(&switch.zones);
            format!("{}, by the rule `{rule}` in chain {}", step.text, plan.chain_name(*chain))
        }
        (None, None) => step.text.clone(),
    };
    (step.stage.into(), TraceStep { packet: step.stamp, node: step.node.into(), text, place })
}

impl ManagerProcess {
    /// This host's name: the configured one if there are several, otherwise the machine's
    /// own.
    pub(super) fn host_name(&self) -> String {
        let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.plan.hosts.get(usize::from(self.number)).map_or_else(machine, |host| host.name.clone())
    }

    /// Every pool as last reported by its runtimes and the state server.
    fn pools_status(&self) -> Vec<status::Pool> {
        let manager = &self.host.hub.manager;
        let runtimes: Vec<_> = manager
            .status()
            .filter(|runtime| runtime.member.state != MemberState::Failed)
            .collect();
        let mut lists = manager.listings().iter();
        let mut pool = |pool: &NamedPool| {
            let shares = runtimes
                .iter()
                .flat_map(|runtime| &runtime.report.pools)
                .filter(|(id, _)| *id == pool.id);
            let (held, at_hand) =
                shares.fold((0, 0), |sum, (_, share)| (sum.0 + share.held, sum.1 + share.at_hand));
            let list = if pool.rest.is_some() { lists.next() } else { None };
            let server = list.map(|list| status::ServerPool {
                free: list.free,
                at_hand: list.at_hand,
                held: list.held,
                resting: list.resting,
            });
            status::Pool {
                chain: pool.chain.clone(),
                function: pool.function.to_owned(),
                name: pool.field.to_owned(),
                shared: if pool.rest.is_some() {
                    status::SHARED_STATE_SERVER
                } else {
                    status::SHARED_PARTITIONED
                }
                .to_owned(),
                size: pool.size,
                held,
                at_hand,
                server,
            }
        };
        self.plan.pools.iter().map(&mut pool).collect()
    }

    /// Statistics as last reported by the state server, or without one, the sum of the
    /// living runtimes' last reports.
    pub(super) fn statistics_now(&self) -> Counted {
        let manager = &self.host.hub.manager;
        let runtimes: Vec<_> = manager
            .status()
            .filter(|runtime| runtime.member.state != MemberState::Failed)
            .collect();
        let (mut lists, mut own) = (0.., 0..);
        let mut statistic = |statistic: &NamedStatistic| {
            let mut totals = vec![0i64; statistic.size as usize];
            let mut add = |values: &[i64]| {
                totals
                    .iter_mut()
                    .zip(values)
                    .for_each(|(total, value)| *total = total.wrapping_add(*value));
                values.len().min(totals.len())
            };
            let known = if statistic.is_served {
                lists.next().map_or(0, |list| add(manager.totals(list)))
            } else {
                let number = own.next().unwrap_or_default();
                runtimes
                    .iter()
                    .map(|runtime| add(manager.counted(runtime.member.peer(), number)))
                    .max()
                    .unwrap_or(0)
            };
            totals.truncate(known);
            totals
        };
        Counted {
            plan: self.plan.clone(),
            values: self.plan.statistics.iter().map(&mut statistic).collect(),
        }
    }

    /// The fill of flow tables: of the switches here, and as last reported by runtimes.
    fn flow_tables(&self) -> Vec<status::FlowTable> {
        let of_switch = |switch: &Switch| {
            let (used, size) = (switch.len() as u64, switch.capacity() as u64);
            status::FlowTable {
                id: switch.node().into(),
                used,
                size,
                fill_permille: (used * 1000 / size.max(1)) as u32,
                half_open: Some(switch.half_open() as u64),
                forgotten: None,
            }
        };
        let size = (self.plan.limits.flows * self.plan.chains.len()) as u64;
        let runtimes =
            self.host.hub.manager.status().filter(|runtime| runtime.member.state.serves());
        let of_runtime = runtimes.map(|RuntimeStatus { member, report, .. }| status::FlowTable {
            id: member.node.into(),
            used: report.flows,
            size,
            fill_permille: report.fill.into(),
            half_open: None,
            forgotten: Some(report.forgotten),
        });
        self.host.hub.serving().map(of_switch).chain(of_runtime).collect()
    }

    /// The state of the election. Each of several hosts may know the leader without
    /// reaching etcd.
    fn election_status(&self, has_coordinator: bool) -> Option<status::Election> {
        let mut election = self.guard.election.as_ref()?.status(self.clock.now());
        let manager = &self.host.hub.manager;
        let heard = manager
            .coordinator()
            .zip(manager.standing())
            .filter(|_| has_coordinator && election.silent_ms.is_some());
        if let Some((coordinator, standing)) = heard
            && let Some(entry) = self.plan.hosts.get(usize::from(standing.coordinator))
        {
            let incarnation = coordinator.incarnation.into();
            let is_known = |leader: &status::Leader| leader.incarnation >= incarnation;
            let leader = election.leader.take().filter(is_known);
            election.leader = leader
                .or_else(|| Some(status::Leader { host: entry.name.clone(), pid: 0, incarnation }));
        }
        Some(election)
    }

    /// The two networks to another host, if there are two.
    fn networks_to(&self, host: u16) -> Vec<status::Network> {
        let Some((leading, used)) = self.host.hub.paths_to(host) else { return Vec::new() };
        let names = self.hosts_network.ports.iter().map(|port| port.name().to_owned());
        let network = |(path, device): (u8, String)| {
            let (leads, used) = (leading >> path & 1 != 0, used == Some(path));
            status::Network { device, leads, used }
        };
        (0..).zip(names).map(network).collect()
    }

    /// The manager's retry, while it follows short incarnations and has not lasted itself
    /// yet.
    fn own_retry(&self) -> Option<status::Retry> {
        let (failures, cause, began) = &self.retried;
        let is_new = self.clock.now().saturating_sub(*began) <= LONG_INCARNATION_OF_MANAGER;
        (*failures > 0 && is_new).then(|| status::Retry {
            failures: *failures,
            next_ms: None,
            cause: cause.clone(),
        })
    }

    /// The retry of a runtime that keeps ending.
    fn retry(&self, retried: &message::Retried) -> status::Retry {
        let manager = &self.host.hub.manager;
        let failover = || {
            manager
                .failovers()
                .iter()
                .rfind(|failover| failover.dead.node == retried.node)
                .map(cause_of)
        };
        // The coordinator's clock is that of its own host.
        let is_here =
            manager.standing().is_some_and(|standing| standing.coordinator == self.number);
        let until = |at: u64| at.saturating_sub(self.clock.now()) / MILLISECOND;
        status::Retry {
            failures: retried.failures,
            next_ms: retried.start_at.filter(|_| is_here).map(until),
            cause: self.causes.get(&retried.node).cloned().or_else(failover).unwrap_or_default(),
        }
    }

    /// Everything that `holdfast status` shows.
    pub(super) fn status(&self) -> Status {
        let manager = &self.host.hub.manager;
        let names: Vec<&str> = self.plan.hosts.iter().map(|host| host.name.as_str()).collect();
        let own_name = self.host_name();
        let name_of = |host: u16| {
            names.get(usize::from(host)).map_or_else(|| own_name.clone(), |name| (*name).to_owned())
        };
        let host = own_name.clone();
        let standing = manager.standing();
        let is_serving = self.host.hub.is_serving();
        let pid = std::process::id();
        let mut own = self.host.edge_drops();
        own.add(self.host.hub.drops());
        own.add(&self.drops);
        (0..self.ports.len()).for_each(|at| own.add(self.ports.drops(at)));
        own.add(&self.hosts_network.drops());
        let role = |role: &str, id: u32, flows: u64, packets: u64, drops: &DropCounters| Process {
            role: role.to_owned(),
            id,
            incarnation: self.incarnation.into(),
            pid,
            host: host.clone(),
            state: status::STATE_RUNNING.to_owned(),
            flows,
            packets,
            drops: named(drops),
            ..Process::default()
        };
        let mut all = self.host.drops();
        all.add(&self.drops);
        (0..self.ports.len()).for_each(|at| all.add(self.ports.drops(at)));
        all.add(&self.hosts_network.drops());
        let mut processes = vec![
            Process {
                incarnation: 1,
                pid: self.parent,
                ..role(status::ROLE_GUARD, 0, 0, 0, &DropCounters::default())
            },
            Process {
                retry: self.own_retry(),
                ..role("manager", manager.node().into(), 0, 0, &own)
            },
        ];
        for ((switch, entry), number) in
            self.host.hub.switches().zip(&self.plan.switches).zip(0u16..)
        {
            let serving =
                standing.and_then(|standing| standing.serving.get(usize::from(number))).copied();
            let named = |process: Process| Process { name: entry.name.clone(), ..process };
            let role = |flows, packets, drops: &DropCounters| {
                role(status::ROLE_SWITCH, NodeId::switch(number).into(), flows, packets, drops)
            };
            processes.push(named(match serving.filter(|_| !self.host.hub.serves(number)) {
                None => role(switch.len() as u64, switch.packets(), switch.drops()),
                // The serving host reports the switch's work.
                Some(serving) => Process {
                    incarnation: 0,
                    pid: 0,
                    host: name_of(serving),
                    ..role(0, 0, &DropCounters::default())
                },
            }));
        }
        let serves_all = self.served().len() == self.plan.switches.len();
        let coordinator =
            self.workers.iter().find(|worker| worker.peer.node == NodeId::COORDINATOR);
        let coordinator_drops = manager.coordinator_drops();
        all.add(&coordinator_drops);
        let has_coordinator = self.host.hub.has_coordinator();
        let election = self.election_status(has_coordinator);
        let is_joined = !names.is_empty();
        // Each of several hosts has a candidate; only one leads.
        let is_elsewhere = is_joined
            && election.is_some()
            && has_coordinator
            && coordinator.is_none_or(|own| own.peer.incarnation == 0);
        let leader = election
            .as_ref()
            .and_then(|election| election.leader.as_ref())
            .filter(|_| is_elsewhere);
        if let Some(leader) = leader {
            // The leader's host reports its work.
            processes.push(Process {
                incarnation: leader.incarnation,
                pid: 0,
                host: leader.host.clone(),
                ..role(
                    status::ROLE_COORDINATOR,
                    NodeId::COORDINATOR.into(),
                    0,
                    0,
                    &coordinator_drops,
                )
            });
        }
        if coordinator.is_some() || leader.is_none() {
            let is_candidate = coordinator.is_some_and(|own| own.peer.incarnation == 0)
                && (is_elsewhere || !has_coordinator);
            processes.push(Process {
                incarnation: match self.number {
                    _ if is_joined && election.is_some() => {
                        coordinator.map_or(0, |own| own.peer.incarnation.into())
                    }
                    0 => self.guard.incarnation().into(),
                    _ => 0,
                },
                pid: coordinator.map_or(0, |worker| worker.pid()),
                host: if election.is_some() { host.clone() } else { name_of(0) },
                state: match has_coordinator {
                    _ if is_candidate => status::STATE_CANDIDATE,
                    true => status::STATE_RUNNING,
                    false => status::STATE_AWAY,
                }
                .to_owned(),
                retry: self.guard.retry(coordinator.is_some(), self.clock.now()),
                ..role(
                    status::ROLE_COORDINATOR,
                    NodeId::COORDINATOR.into(),
                    0,
                    0,
                    &coordinator_drops,
                )
            });
        }
        for (number, node) in (0u16..).zip(self.server_guard.nodes()) {
            let server = self.workers.iter().find(|worker| worker.peer.node == node);
            processes.push(Process {
                incarnation: server.map_or(0, |worker| worker.peer.incarnation.into()),
                pid: server.map_or(0, |worker| worker.pid()),
                state: if server.is_some() { status::STATE_RUNNING } else { status::STATE_AWAY }
                    .to_owned(),
                local_standby: server.and_then(|worker| worker.local_standby()),
                retry: self.server_guard.retry(number, server.is_some(), self.clock.now()),
                ..role(status::ROLE_STATE_SERVER, node.into(), 0, 0, &DropCounters::default())
            });
        }
        for RuntimeStatus { member, report, is_drained, is_spare, retried } in manager.status() {
            let mut drops = DropCounters::default();
            for (number, count) in &report.drops {
                if let Some(reason) = DropReason::from_index(*number as usize) {
                    drops.add_count(reason, *count);
                }
            }
            all.add(&drops);
            let worker = self.workers.iter().find(|worker| worker.peer == member.peer());
            processes.push(Process {
                role: status::ROLE_RUNTIME.to_owned(),
                id: member.node.into(),
                incarnation: member.incarnation.into(),
                pid: worker.map_or(0, |worker| worker.pid()),
                host: name_of(member.host),
                name: None,
                cluster: self
                    .plan
                    .clusters
                    .get(usize::from(member.cluster))
                    .map(|cluster| cluster.name.clone()),
                state: match member.state {
                    MemberState::Starting => "starting",
                    MemberState::Running => status::STATE_RUNNING,
                    MemberState::Leaving => "leaving",
                    MemberState::Failed if is_spare => status::STATE_SPARE,
                    MemberState::Failed if is_drained => "drained",
                    MemberState::Failed => "failed",
                }
                .to_owned(),
                // The switches know now what a runtime reports with its next heartbeat.
                flows: match serves_all {
                    true => self
                        .host
                        .hub
                        .serving()
                        .map(|switch| switch.routes_to(member.peer()) as u64)
                        .sum(),
                    false => report.flows,
                },
                packets: report.packets,
                busy_permille: member.state.serves().then_some(report.busy_permille.into()),
                drops: named(&drops),
                local_standby: worker.and_then(|worker| worker.local_standby()),
                retry: retried.map(|retried| self.retry(&retried)),
            });
        }
        let is_failure = |failover: &&message::Failover| failover.cause != message::Cause::Drained;
        let failovers = manager.failovers().iter().filter(is_failure).map(|failover| {
            // The switches here know a recovery's lost flows shortly before the
            // coordinator reports them.
            let swept = serves_all.then(|| {
                self.host
                    .hub
                    .serving()
                    .map(|switch| switch.lost_of(failover.dead))
                    .sum::<Option<u64>>()
            });
            let lost = match swept.flatten() {
                Some(unclaimed) => failover.lost_with(Some(unclaimed)),
                None => failover.lost(self.plan.switches.len()),
            };
            Failover {
                runtime: failover.dead.node.into(),
                incarnation: failover.dead.incarnation.into(),
                cause: cause_of(failover),
                detected_at_ns: failover.detected_at,
                // The end of a process is noticed at once; only silence takes time to
                // detect.
                detection_us: (failover.cause != message::Cause::Exited)
                    .then_some(failover.notice.silent / 1000),
                recovered_us: failover
                    .recovered_at
                    .filter(|_| failover.had == 0 || failover.flows > 0)
                    .map(|at| at.saturating_sub(failover.detected_at) / 1000),
                flows: failover.had,
                recovered: failover.flows,
                lost: if failover.recovered_at.is_some() { lost } else { 0 },
            }
        });
        let numbered = self
            .traffic
            .iter()
            .zip(&self.losses)
            .zip(&self.plan.ports)
            .zip(0u8..self.ports.len() as u8);
        let ports =
            numbered.map(|(((traffic, losses), config::Port { name, device, .. }), number)| {
                let at = usize::from(number);
                let mac = self.ports.mac(at).map(|byte| format!("{byte:02x}")).join(":");
                let counts = self.host.counts(number);
                Port {
                    name: name.clone(),
                    device: device.clone(),
                    vlan: self.ports.vlan(at).map(u32::from).collect(),
                    driver: self.ports.driver(at).to_owned(),
                    mac,
                    mtu: self.ports.mtu(at).into(),
                    up: self.ports.is_up(at),
                    received: traffic.0,
                    transmitted: traffic.1,
                    consumed: counts.consumed,
                    forwarded: counts.forwarded,
                    originated: counts.originated,
                    drops: named(self.ports.drops(at)),
                    lost: losses
                        .iter()
                        .map(|(loss, count)| (loss.name().to_owned(), *count))
                        .collect(),
                    bfd: self
                        .host
                        .liveness(number)
                        .map(|watched| bfd(watched, self.clock.now()))
                        .collect(),
                }
            });
        Status {
            version: status::VERSION,
            pools: self.pools_status(),
            // The caller's thread adds the statistics with their names, and what is
            // ranked: see [`Counted`].
            statistics: Vec::new(),
            talkers: None,
            survives: match standing.is_some_and(|standing| standing.survives_host) {
                true => status::UNIT_HOST.to_owned(),
                false => status::UNIT_PROCESS.to_owned(),
            },
            hosts: names
                .iter()
                .zip(0u16..)
                .map(|(name, number)| status::Host {
                    name: (*name).to_owned(),
                    state: match standing {
                        Some(standing) if standing.hosts & 1 << number == 0 => status::STATE_AWAY,
                        Some(standing) if standing.serving.contains(&number) => {
                            status::STATE_SERVING
                        }
                        Some(_) => status::STATE_RUNNING,
                        None => status::STATE_AWAY,
                    }
                    .to_owned(),
                    is_this: number == self.number,
                    networks: if number == self.number {
                        Vec::new()
                    } else {
                        self.networks_to(number)
                    },
                })
                .collect(),
            protected: {
                let remotely = manager.protected(
                    self.host.hub.has_coordinator(),
                    &self.host.hub.state_servers().collect::<Vec<_>>(),
                );
                self.levels.protected(remotely, |runtimes| self.protected_locally(runtimes)).into()
            },
            may_forget: self.levels.may_forget(),
            copies_differed: manager.status().map(|status| status.report.differed).sum(),
            absent_flows: manager.status().map(|status| status.report.absent).sum(),
            fetched_states: manager.status().map(|status| status.report.fetched).sum(),
            flow_tables: self.flow_tables(),
            ports: ports.collect(),
            rules: is_serving.then(|| status::Rules {
                version: self.rules_in_force(),
                count: self
                    .host
                    .hub
                    .serving()
                    .map(|switch| switch.rules().rules().len() as u64)
                    .sum(),
                in_force: self.rules_in_force() == self.rules_wanted(),
            }),
            election,
            failovers: failovers.collect(),
            control: None,
            processes,
            drops: named(&all),
        }
    }
}
