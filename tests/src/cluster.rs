//! The branch office with three hosts for the box: two that serve and run, and a witness
//! with the coordinator; or three equal hosts, which elect the coordinator.

use crate::network::{
    self, Chain, HELD_BODY, Options, RECOVERY_LIMIT, SERVER, SERVER_2, UNHURRIED, socket,
};
use crate::{TIMEOUT, binary};
use anyhow::{Context, Result, ensure};
use holdfast_control::status::{self, Leader, Protected, Status};
use holdfast_lab::etcd::Etcd;
use holdfast_lab::hosts::{self, Hosts};
use holdfast_lab::nginx::{self, Nginx, Site};
use holdfast_lab::process::{Process, signal_pid};
use holdfast_lab::running::RunningBox;
use holdfast_lab::topology::Addresses;
use holdfast_lab::{Interrupt, Lab, keepalive, udp, until};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The hosts that serve the ports, and run runtimes.
pub const SERVING: [&str; 2] = ["alpha", "beta"];
/// The host of the coordinator, which has no ports and no runtimes.
pub const WITNESS: &str = "witness";
/// Hosts that serve the ports and run runtimes, and that elect the leading coordinator
/// among them.
pub const EQUALS: [&str; 3] = ["alpha", "beta", "gamma"];

/// The UDP port of hosts that UDP joins.
pub const UDP_PORT: u16 = 7000;

/// An address on the management network at which no process listens.
pub const NOBODY: &str = "10.99.0.254:7443";

/// How the hosts are joined, and their additional parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The witness has the coordinator.
    Witness,
    /// As `Witness`; the hosts have addresses on the fabric instead of an Ethernet of
    /// their own.
    Udp,
    /// As `Witness`; a second network joins the hosts, with addresses or without.
    Twice(Second),
    /// The hosts elect the coordinator through etcd.
    Equals,
    /// As `Witness`; each other host serves a switch, and the second host's switch has a
    /// depot's ports.
    Switches,
    /// As `Witness`; every host has a control API, and the second host has no
    /// configuration of its own.
    Joining,
    /// As `Witness`, without a fabric key.
    Open,
}

/// The kind of a second network between hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Second {
    /// An Ethernet of their own, like the first.
    Ethernet,
    /// A network on which the hosts have addresses.
    Udp,
}

/// The additional parts of [`Cluster::start_joining`].
#[derive(Debug)]
pub struct Managed {
    /// The namespace for commands that ask the hosts from elsewhere.
    pub manager: holdfast_lab::Namespace,
    /// The directory of the certificates: the hosts', the operator `alice`'s and the
    /// viewer `wall`'s.
    pub tls: std::path::PathBuf,
}

/// The depot's web server.
pub const DEPOT: &str = "203.0.113.1:80";
/// The depot's ports, chain and rule, and the assignment of switches to hosts.
const DEPOT_PORTS: &str = "  lan2: { device: lan1, address: 172.20.6.1/24 }\n  wan2: { device: wan1, address: 203.0.113.2/24, gateway: 203.0.113.1 }\n";
const DEPOT_CHAIN: &str = "    switch: east\n  depot:\n    functions:\n      - firewall: { rules: [\"allow any from 172.20.6.0/24\"], default: deny }\n\
                           \x20     - nat: { pool: [203.0.113.32/29], inside: [172.20.6.0/24] }\n    protection: nfvactor\n    switch: west\n";
const SWITCHES: &str = "switches:\n  east: { ports: [lan, wan], host: alpha }\n  west: { ports: [lan2, wan2], host: beta }\n";

/// A second client and a second server, at the ports of another switch.
#[derive(Debug)]
struct Depot {
    _web: Nginx,
    client: holdfast_lab::Namespace,
}

/// Address of a host's control API.
pub fn control_of(name: &str) -> String {
    let number =
        SERVING.into_iter().chain([WITNESS]).position(|other| other == name).map_or(0, |at| at + 1);
    format!("10.99.0.{number}:7443")
}

/// Fields are dropped in this order: boxes, etcd, servers, network.
#[derive(Debug)]
pub struct Cluster {
    /// The box as it runs on each host; `None` if the host is dead.
    boxes: Vec<(&'static str, Option<RunningBox>)>,
    /// The etcd through which the hosts elect their coordinator, if they do.
    pub etcd: Option<Etcd>,
    /// The management network and the certificates, if the hosts are asked over it.
    pub managed: Option<Managed>,
    depot: Option<Depot>,
    configuration: String,
    _servers: Vec<Nginx>,
    /// The files of the web servers.
    pub site: Site,
    /// The namespaces.
    pub hosts: Hosts,
    /// The owner of the namespaces.
    pub lab: Lab,
}

/// The protection of the hosts' chains, unless a test gives another one.
const NFVACTOR: &str = "nfvactor";

impl Cluster {
    /// Builds the cluster, with web servers and a key for its messages, and waits until
    /// the box is ready and safe. The witness has the coordinator.
    pub fn start(interrupt: &Interrupt) -> Result<Cluster> {
        Cluster::build([SERVING[0], SERVING[1], WITNESS], Kind::Witness, NFVACTOR, "", interrupt)
    }

    /// Like `start`, without a key.
    pub fn start_without_key(interrupt: &Interrupt) -> Result<Cluster> {
        Cluster::build([SERVING[0], SERVING[1], WITNESS], Kind::Open, NFVACTOR, "", interrupt)
    }

    /// Like `start`, under another protection.
    pub fn start_under(protection: &'static str, interrupt: &Interrupt) -> Result<Cluster> {
        Cluster::build([SERVING[0], SERVING[1], WITNESS], Kind::Witness, protection, "", interrupt)
    }

    /// Like `start`, with hosts that have addresses, and no Ethernet of their own.
    pub fn start_over_udp(interrupt: &Interrupt) -> Result<Cluster> {
        Cluster::build([SERVING[0], SERVING[1], WITNESS], Kind::Udp, NFVACTOR, "", interrupt)
    }

    /// Like `start`, with three equal hosts and an etcd.
    pub fn start_equals(interrupt: &Interrupt) -> Result<Cluster> {
        Cluster::build(EQUALS, Kind::Equals, NFVACTOR, "", interrupt)
    }

    /// Like [`Cluster::start`], with a control API on every host; the second host has no
    /// configuration, and joins the first.
    pub fn start_joining(interrupt: &Interrupt) -> Result<Cluster> {
        Cluster::build([SERVING[0], SERVING[1], WITNESS], Kind::Joining, NFVACTOR, "", interrupt)
    }

    /// Like [`Cluster::start`], with a switch of its own on each serving host: the first
    /// has the office's ports, the second a depot's.
    pub fn start_switches(interrupt: &Interrupt) -> Result<Cluster> {
        Cluster::build([SERVING[0], SERVING[1], WITNESS], Kind::Switches, NFVACTOR, "", interrupt)
    }

    /// Like [`Cluster::start`], with the ports, chains and rules of this configuration,
    /// which translates no addresses.
    pub fn start_with(configuration: &str, interrupt: &Interrupt) -> Result<Cluster> {
        let (options, names) =
            (Options::protected(Chain::Plain), [SERVING[0], SERVING[1], WITNESS]);
        Cluster::build_of(
            names,
            Kind::Witness,
            &options,
            &format!("{configuration}{UNHURRIED}"),
            interrupt,
        )
    }

    /// Like `start`; a host is missed after `host_ms` milliseconds, and a runtime never
    /// earlier.
    pub fn start_missing_after(host_ms: u64, interrupt: &Interrupt) -> Result<Cluster> {
        let detection =
            format!("detection: {{ host_ms: {host_ms}, hang_ms: {} }}\n", 500.max(10 * host_ms));
        Cluster::build(
            [SERVING[0], SERVING[1], WITNESS],
            Kind::Witness,
            NFVACTOR,
            &detection,
            interrupt,
        )
    }

    /// Like `start`, with a second network between the hosts.
    pub fn start_twice_joined(
        second: Second,
        host_ms: u64,
        interrupt: &Interrupt,
    ) -> Result<Cluster> {
        let detection = format!("detection: {{ host_ms: {host_ms}, hang_ms: {} }}\n", 10 * host_ms);
        Cluster::build(
            [SERVING[0], SERVING[1], WITNESS],
            Kind::Twice(second),
            NFVACTOR,
            &detection,
            interrupt,
        )
    }

    fn build(
        names: [&'static str; 3],
        kind: Kind,
        protection: &'static str,
        detection: &str,
        interrupt: &Interrupt,
    ) -> Result<Cluster> {
        let options = Options { protection, ..Options::protected(Chain::Balanced) };
        let usual = options.configuration();
        let chains = if detection.is_empty() { usual } else { usual.replace(UNHURRIED, detection) };
        Cluster::build_of(names, kind, &options, &chains, interrupt)
    }

    fn build_of(
        names: [&'static str; 3],
        kind: Kind,
        options: &Options,
        chains: &str,
        interrupt: &Interrupt,
    ) -> Result<Cluster> {
        let mut lab = Lab::new(interrupt.clone())?;
        let hosts = Hosts::build(&mut lab, &names, &network::addresses(options))?;
        let key = lab.scratch().join("key");
        let made = std::process::Command::new(binary()?).arg("keygen").arg(&key).output()?;
        ensure!(made.status.success(), "keygen: {}", String::from_utf8_lossy(&made.stderr));
        let managed = match kind {
            Kind::Joining => {
                let (manager, tls) = (hosts.manage(&mut lab, &names)?, lab.scratch().join("tls"));
                let mut certify = std::process::Command::new(binary()?);
                certify.arg("certify").arg(&tls).args(["operator:alice", "viewer:wall"]);
                certify.args(
                    names
                        .iter()
                        .map(|name| format!("{name}={}", control_of(name).replace(":7443", ""))),
                );
                let made = certify.output()?;
                ensure!(
                    made.status.success(),
                    "certify: {}",
                    String::from_utf8_lossy(&made.stderr)
                );
                Some(Managed { manager, tls })
            }
            Kind::Witness
            | Kind::Equals
            | Kind::Udp
            | Kind::Twice(_)
            | Kind::Switches
            | Kind::Open => None,
        };
        let etcd = match kind == Kind::Equals {
            true => {
                let manager = hosts.manage(&mut lab, &names)?;
                let home = lab.scratch().join("etcd");
                std::fs::create_dir(&home)?;
                Some(Etcd::start_at(hosts::MANAGER, &home, Some(&manager), None, interrupt)?)
            }
            false => None,
        };
        let (third, runtimes, section) = match &etcd {
            Some(etcd) => (
                "",
                "{ min: 6, max: 6 }",
                format!("etcd: {{ endpoints: [\"{}\"] }}\n", etcd.endpoint()),
            ),
            None => {
                let control = if managed.is_some() { "control: { tls: tls }\n" } else { "" };
                (
                    ", serves: false, runtimes: false, coordinator: true",
                    "{ min: 4, max: 4 }",
                    control.to_owned(),
                )
            }
        };
        let control = |name: &str| {
            managed
                .as_ref()
                .map_or(String::new(), |_| format!(", control: \"{}\"", control_of(name)))
        };
        // In a configuration that travels, the key's path is relative to the
        // configuration's directory.
        let key = if managed.is_some() { "key".to_owned() } else { key.display().to_string() };
        let key =
            if kind == Kind::Open { String::new() } else { format!("fabric: {{ key: {key} }}\n") };
        let udp = |address| format!("{{ udp: \"{address}:{UDP_PORT}\" }}");
        let fabrics: Vec<String> = match kind {
            Kind::Udp => hosts.address_fabric()?.into_iter().map(udp).collect(),
            Kind::Twice(second) => {
                hosts.add_fabric(&mut lab, &names)?;
                let seconds = match second {
                    Second::Ethernet => vec!["fab1".to_owned(); names.len()],
                    Second::Udp => hosts.address_spare()?.into_iter().map(udp).collect(),
                };
                seconds.iter().map(|second| format!("[ fab0, {second} ]")).collect()
            }
            Kind::Witness | Kind::Equals | Kind::Switches | Kind::Joining | Kind::Open => {
                vec!["fab0".to_owned(); names.len()]
            }
        };
        let more = format!(
            "state: {state}\n{key}hosts:\n  {}: {{ fabric: {}{} }}\n  {}: {{ fabric: {}{} }}\n  {}: {{ fabric: {}{third}{} }}\n{section}",
            names[0],
            fabrics[0],
            control(names[0]),
            names[1],
            fabrics[1],
            control(names[1]),
            names[2],
            fabrics[2],
            control(names[2]),
            state = lab.scratch().join("state").display(),
        );
        let mut configuration = chains.replace("{ min: 3, max: 3 }", runtimes) + &more;
        let site = Site::new(&lab, "site")?;
        site.add("held", HELD_BODY)?;
        let depot = match kind {
            Kind::Switches => {
                let protected = "    protection: nfvactor\n";
                configuration = configuration
                    .replace("chains:\n", &format!("{DEPOT_PORTS}chains:\n"))
                    .replacen(protected, &format!("{protected}{DEPOT_CHAIN}"), 1)
                    .replace("rules:\n  - {", "rules:\n  - { chain: depot }\n  - {")
                    + SWITCHES;
                let addresses = Addresses {
                    client: "172.20.6.10/24".into(),
                    inside_gateway: "172.20.6.1".into(),
                    servers: vec!["203.0.113.1/24".into()],
                    behind_box: Vec::new(),
                    devices: ("lan1".into(), "wan1".into()),
                    offloads: options.offloads,
                };
                let (client, server) = hosts.add_second(&mut lab, &names, &addresses)?;
                Some(Depot {
                    _web: Nginx::start(&lab, &server, "nginx-depot", socket(DEPOT), &site)?,
                    client,
                })
            }
            _ => None,
        };
        let servers: Vec<SocketAddr> =
            vec![socket(&format!("{SERVER}:80")), socket(&format!("{SERVER_2}:80"))];
        let servers = nginx::start_all(&lab, &hosts.server, &servers, &site)?;
        let boxes = names.into_iter().map(|name| (name, None)).collect();
        let mut cluster = Cluster {
            boxes,
            etcd,
            managed,
            depot,
            configuration,
            _servers: servers,
            site,
            hosts,
            lab,
        };
        for name in names {
            cluster.begin(name)?;
        }
        for (_, running) in &mut cluster.boxes {
            running.as_mut().context("it was started")?.wait_ready(interrupt)?;
        }
        cluster.wait_safe()?;
        Ok(cluster)
    }

    /// The namespace of a host.
    pub fn namespace(&self, name: &str) -> Result<&holdfast_lab::Namespace> {
        let at = self
            .boxes
            .iter()
            .position(|(other, _)| *other == name)
            .context("a host of the cluster")?;
        Ok(&self.hosts.hosts[at])
    }

    /// Starts a host's part of the box; returns when the part answers.
    pub fn begin(&mut self, name: &str) -> Result<()> {
        let (lab, namespace, binary) = (&self.lab, self.namespace(name)?, binary()?);
        let own = self.managed.as_ref().map(|managed| managed.tls.join(name).display().to_string());
        let running = match own {
            None => RunningBox::launch_host(lab, namespace, &binary, &self.configuration, name)?,
            Some(tls) if name != SERVING[1] => RunningBox::launch_host_with(
                lab,
                namespace,
                &binary,
                Some(&self.configuration),
                name,
                &["--tls", &tls],
            )?,
            Some(tls) => self.join(&control_of(SERVING[0]), name, &tls)?,
        };
        let can_be_asked = || Ok(running.control().exists().then_some(()));
        until(&format!("{name} can be asked"), TIMEOUT, self.lab.interrupt(), can_be_asked)?;
        let place = self
            .boxes
            .iter_mut()
            .find(|(other, _)| *other == name)
            .context("a host of the cluster")?;
        place.1 = Some(running);
        Ok(())
    }

    /// Starts the second host's part of the box under this name, with a configuration
    /// fetched from `from`; does not wait.
    pub fn join(&self, from: &str, name: &str, tls: &str) -> Result<RunningBox> {
        let state = self.lab.scratch().join("state").display().to_string();
        let arguments = ["--join", from, "--tls", tls, "--state-dir", &state];
        RunningBox::launch_host_with(
            &self.lab,
            self.namespace(SERVING[1])?,
            &binary()?,
            None,
            name,
            &arguments,
        )
    }

    /// Sends a command to a host's control API, with the certificate of `who`.
    pub fn ask_from_elsewhere(
        &self,
        who: &str,
        host: &str,
        command: &str,
    ) -> Result<std::process::Output> {
        let managed = self.managed.as_ref().context("the hosts have control APIs")?;
        let mut asking = managed.manager.command(binary()?);
        asking.args(command.split(' ')).args([
            "--json",
            "--control",
            &format!("https://{}", control_of(host)),
            "--tls",
        ]);
        Ok(asking.arg(managed.tls.join(who)).output()?)
    }

    /// The box as it runs on a host.
    pub fn on(&self, name: &str) -> Result<&RunningBox> {
        let place = self.boxes.iter().find(|(other, _)| *other == name);
        place.and_then(|(_, running)| running.as_ref()).with_context(|| format!("{name} is dead"))
    }

    /// The box as it runs on every living host.
    pub fn living(&self) -> impl Iterator<Item = &RunningBox> {
        self.boxes.iter().filter_map(|(_, running)| running.as_ref())
    }

    /// The file with the keys of all hosts.
    pub fn key_file(&self) -> PathBuf {
        self.lab.scratch().join("key")
    }

    /// Makes a host read its keys again; returns when it has.
    pub fn reload_keys(&mut self, name: &str) -> Result<()> {
        let interrupt = self.lab.interrupt().clone();
        let place = self
            .boxes
            .iter_mut()
            .find(|(other, _)| *other == name)
            .context("a host of the cluster")?;
        let process = place.1.as_mut().with_context(|| format!("{name} is dead"))?.process();
        let answers = |process: &Process| process.stderr().matches("SIGHUP: key ").count();
        let before = answers(process);
        process.signal(Signal::HUP)?;
        let has_read = |process: &Process| Ok((answers(process) > before).then_some(()));
        process.wait_while_running("the keys are read", TIMEOUT, &interrupt, has_read)
    }

    /// Kills every process of a host at once, like a power cut. Waits until the
    /// coordinator has noticed, unless the coordinator is dead too: before that it cannot
    /// know that another failure would be the second.
    pub fn kill(&mut self, name: &str) -> Result<()> {
        for pid in self.namespace(name)?.pids()? {
            // The process may have followed another one already.
            let _ = signal_pid(pid, Signal::KILL);
        }
        let namespace = self.namespace(name)?.clone();
        until("the host is dead", TIMEOUT, self.lab.interrupt(), || {
            Ok(namespace.pids()?.is_empty().then_some(()))
        })?;
        let place = self
            .boxes
            .iter_mut()
            .find(|(other, _)| *other == name)
            .context("a host of the cluster")?;
        place.1 = None;
        // A machine that restarts has no socket left from before.
        let _ = std::fs::remove_file(self.lab.scratch().join(format!("{name}.sock")));
        if name == WITNESS { Ok(()) } else { self.wait_away(self.observer(), name) }
    }

    /// Stops a host's part of the box with SIGTERM, and checks its exit status.
    pub fn end(&mut self, name: &str) -> Result<()> {
        let place = self
            .boxes
            .iter_mut()
            .find(|(other, _)| *other == name)
            .context("a host of the cluster")?;
        let mut running = place.1.take().with_context(|| format!("{name} is dead"))?;
        let status = running.stop(TIMEOUT, self.lab.interrupt())?;
        ensure!(status.success(), "SIGTERM ended {name} with {status}");
        Ok(())
    }

    /// Waits until a host is given up, as seen by another host.
    pub fn wait_away(&self, on: &str, name: &str) -> Result<()> {
        let is_away = |status: &Status| {
            status.hosts.iter().any(|host| host.name == name && host.state == status::STATE_AWAY)
        };
        self.wait_for(on, &format!("{name} is given up"), is_away).map(drop)
    }

    /// Sends a signal to every process of a host.
    pub fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        self.namespace(name)?.pids()?.into_iter().try_for_each(|pid| signal_pid(pid, signal))
    }

    /// The last living host.
    fn observer(&self) -> &'static str {
        let living = self.boxes.iter().rev().find(|(_, running)| running.is_some());
        living.map_or(self.boxes[0].0, |(name, _)| *name)
    }

    /// Waits until a coordinator that was elected after this incarnation leads, and a
    /// living host hears it.
    pub fn wait_leader(&self, on: &str, last: u64) -> Result<Leader> {
        let leader =
            |status: &Status| status.election.as_ref().and_then(|election| election.leader.clone());
        let is_new = |status: &Status| {
            leader(status).is_some_and(|leader| leader.incarnation > last)
                && status
                    .processes
                    .iter()
                    .any(|one| one.role == "coordinator" && one.state == status::STATE_RUNNING)
        };
        let status = self.wait_for(on, "another coordinator leads", is_new)?;
        leader(&status).context("it was there a moment ago")
    }

    /// Waits until a living host's status satisfies `wanted`.
    pub fn wait_for(
        &self,
        on: &str,
        what: &str,
        wanted: impl FnMut(&Status) -> bool,
    ) -> Result<Status> {
        self.on(on)?.wait_for(what, RECOVERY_LIMIT, self.lab.interrupt(), wanted)
    }

    /// Waits until the box would survive a host, as seen by the last living one.
    pub fn wait_safe(&self) -> Result<Status> {
        let is_safe = |status: &Status| {
            status.protected() == Protected::Yes && status.survives == status::UNIT_HOST
        };
        self.wait_for(self.observer(), "every flow would survive a host", is_safe)
    }

    /// Waits until this host serves the ports, as seen by another host.
    pub fn wait_serving(&self, on: &str, name: &str) -> Result<Status> {
        self.wait_for(on, &format!("{name} serves the ports"), |status| serves(status, name))
    }

    /// The host that serves the ports, and the other one. On a busy machine the first may
    /// not have been heard in time, and the second serves.
    pub fn serving(&self) -> Result<[&'static str; 2]> {
        let is_served = |status: &Status| SERVING.iter().any(|name| serves(status, name));
        let status = self.wait_for(self.observer(), "a host serves the ports", is_served)?;
        let [first, second] = SERVING;
        Ok(if serves(&status, first) { [first, second] } else { [second, first] })
    }

    /// Opens keep-alive connections.
    pub fn hold(&self, server: &str, count: usize) -> Result<keepalive::KeepAlive> {
        network::hold(&self.hosts.client, server, count, self.lab.interrupt())
    }

    /// Opens keep-alive connections from the depot to its own web server.
    pub fn hold_depot(&self, count: usize) -> Result<keepalive::KeepAlive> {
        let depot = self.depot.as_ref().context("the cluster has a depot")?;
        network::hold(&depot.client, DEPOT, count, self.lab.interrupt())
    }

    /// Waits until these hosts serve these switches, as seen by another host.
    pub fn wait_switches(&self, on: &str, wanted: [(&str, &str); 2]) -> Result<Status> {
        let is_at = |status: &Status, (switch, host): (&str, &str)| {
            let mut switches =
                status.processes.iter().filter(|process| process.role == status::ROLE_SWITCH);
            switches.any(|process| process.name.as_deref() == Some(switch) && process.host == host)
        };
        self.wait_for(on, &format!("{wanted:?} serve"), |status| {
            wanted.into_iter().all(|one| is_at(status, one))
        })
    }

    /// Starts an echo server, and numbered datagrams to it.
    pub fn stream(&self, flows: usize, per_second: u64) -> Result<(udp::Echo, udp::Stream)> {
        network::stream(
            &self.hosts.client,
            &self.hosts.server,
            flows,
            per_second,
            self.lab.interrupt(),
        )
    }

    /// Stops every host's part and checks its exit status.
    pub fn stop(mut self) -> Result<()> {
        for (name, running) in &mut self.boxes {
            if let Some(running) = running {
                let status = running.stop(TIMEOUT, self.lab.interrupt())?;
                ensure!(status.success(), "SIGTERM ended {name} with {status}");
            }
        }
        Ok(())
    }
}

/// True if this host serves the ports.
fn serves(status: &Status, name: &str) -> bool {
    status.hosts.iter().any(|host| host.name == name && host.state == status::STATE_SERVING)
}
