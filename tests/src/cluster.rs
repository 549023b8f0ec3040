//! The branch office with three hosts for the box: two that serve and run, and a witness with the coordinator; or three equal ones, which elect it.

use crate::network::{self, Chain, HELD_BODY, Options, RECOVERY_LIMIT, SERVER, SERVER_2, socket};
use crate::{PATIENCE, binary};
use anyhow::{Context, Result, ensure};
use holdfast::lab::etcd::Etcd;
use holdfast::lab::hosts::{self, Hosts};
use holdfast::lab::nginx::{self, Nginx, Site};
use holdfast::lab::process::{Process, signal_pid};
use holdfast::lab::running::RunningBox;
use holdfast::lab::{Interrupt, Lab, keepalive, udp, until};
use holdfast::status::{self, Leader, Protected, Status};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The hosts that serve the ports, and run runtimes.
pub const SERVING: [&str; 2] = ["alpha", "beta"];
/// The host of the coordinator, which has no ports and no runtimes.
pub const WITNESS: &str = "witness";
/// Hosts that serve the ports, and run runtimes, and one of which has the coordinator that leads.
pub const EQUALS: [&str; 3] = ["alpha", "beta", "gamma"];

/// The port of hosts that UDP joins.
pub const UDP_PORT: u16 = 7000;

/// What joins the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joined {
    Ethernet,
    Udp,
}

/// Fields are dropped in this order: boxes, etcd, servers, network.
#[derive(Debug)]
pub struct Cluster {
    /// What runs on each host; `None` on one that is dead.
    boxes: Vec<(&'static str, Option<RunningBox>)>,
    /// Through which they elect their coordinator, if they do.
    pub etcd: Option<Etcd>,
    configuration: String,
    _servers: Vec<Nginx>,
    /// What the web servers serve.
    pub site: Site,
    /// The namespaces.
    pub hosts: Hosts,
    /// Their owner.
    pub lab: Lab,
}

impl Cluster {
    /// Builds it, with web servers and a key for its messages, and waits until the box is ready and safe. The coordinator is the witness's.
    pub fn start(interrupt: &Interrupt) -> Result<Cluster> {
        Cluster::build([SERVING[0], SERVING[1], WITNESS], false, Joined::Ethernet, interrupt)
    }

    /// The same with hosts that have addresses, and no Ethernet of their own.
    pub fn start_over_udp(interrupt: &Interrupt) -> Result<Cluster> {
        Cluster::build([SERVING[0], SERVING[1], WITNESS], false, Joined::Udp, interrupt)
    }

    /// The same with three equal hosts and an etcd.
    pub fn start_equals(interrupt: &Interrupt) -> Result<Cluster> {
        Cluster::build(EQUALS, true, Joined::Ethernet, interrupt)
    }

    fn build(names: [&'static str; 3], are_equal: bool, joined: Joined, interrupt: &Interrupt) -> Result<Cluster> {
        let mut lab = Lab::new(interrupt.clone())?;
        let options = Options::protected(Chain::Balanced);
        let hosts = Hosts::build(&mut lab, &names, &network::addresses(&options))?;
        let key = lab.scratch().join("key");
        let made = std::process::Command::new(binary()?).arg("keygen").arg(&key).output()?;
        ensure!(made.status.success(), "keygen: {}", String::from_utf8_lossy(&made.stderr));
        let etcd = match are_equal {
            true => {
                let manager = hosts.manage(&mut lab, &names)?;
                let home = lab.scratch().join("etcd");
                std::fs::create_dir(&home)?;
                Some(Etcd::start_at(hosts::MANAGER, &home, Some(&manager), None, interrupt)?)
            }
            false => None,
        };
        let (third, runtimes, section) = match &etcd {
            Some(etcd) => ("", "{ min: 6, max: 6 }", format!("etcd: {{ endpoints: [\"{}\"] }}\n", etcd.endpoint())),
            None => (", serves: false, runtimes: false, coordinator: true", "{ min: 4, max: 4 }", String::new()),
        };
        let fabrics = match joined {
            Joined::Ethernet => vec!["fab0".to_owned(); names.len()],
            Joined::Udp => {
                let udp = |address| format!("{{ udp: \"{address}:{UDP_PORT}\" }}");
                hosts.address_fabric()?.into_iter().map(udp).collect()
            }
        };
        let more = format!(
            "state: {state}\nfabric: {{ key: {key} }}\nhosts:\n  {}: {{ fabric: {} }}\n  {}: {{ fabric: {} }}\n  {}: {{ fabric: {}{third} }}\n{section}",
            names[0],
            fabrics[0],
            names[1],
            fabrics[1],
            names[2],
            fabrics[2],
            state = lab.scratch().join("state").display(),
            key = key.display()
        );
        let configuration = options.configuration().replace("{ min: 3, max: 3 }", runtimes) + &more;
        let site = Site::new(&lab, "site")?;
        site.add("held", HELD_BODY)?;
        let servers: Vec<SocketAddr> = vec![socket(&format!("{SERVER}:80")), socket(&format!("{SERVER_2}:80"))];
        let servers = nginx::start_all(&lab, &hosts.server, &servers, &site)?;
        let boxes = names.into_iter().map(|name| (name, None)).collect();
        let mut cluster = Cluster { boxes, etcd, configuration, _servers: servers, site, hosts, lab };
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
    pub fn namespace(&self, name: &str) -> Result<&holdfast::lab::Namespace> {
        let at = self.boxes.iter().position(|(other, _)| *other == name).context("a host of the cluster")?;
        Ok(&self.hosts.hosts[at])
    }

    /// Starts a host's part of the box; returns when it can be asked.
    pub fn begin(&mut self, name: &str) -> Result<()> {
        let running = RunningBox::launch_host(&self.lab, self.namespace(name)?, &binary()?, &self.configuration, name)?;
        let can_be_asked = || Ok(running.control().exists().then_some(()));
        until(&format!("{name} can be asked"), PATIENCE, self.lab.interrupt(), can_be_asked)?;
        let place = self.boxes.iter_mut().find(|(other, _)| *other == name).context("a host of the cluster")?;
        place.1 = Some(running);
        Ok(())
    }

    /// The box as it runs on a host.
    pub fn on(&self, name: &str) -> Result<&RunningBox> {
        let place = self.boxes.iter().find(|(other, _)| *other == name);
        place.and_then(|(_, running)| running.as_ref()).with_context(|| format!("{name} is dead"))
    }

    /// The file with the keys of all hosts.
    pub fn key_file(&self) -> PathBuf {
        self.lab.scratch().join("key")
    }

    /// Has a host read its keys again; returns when it has.
    pub fn reload_keys(&mut self, name: &str) -> Result<()> {
        let interrupt = self.lab.interrupt().clone();
        let place = self.boxes.iter_mut().find(|(other, _)| *other == name).context("a host of the cluster")?;
        let process = place.1.as_mut().with_context(|| format!("{name} is dead"))?.process();
        let answers = |process: &Process| process.stderr().matches("SIGHUP: key ").count();
        let before = answers(process);
        process.signal(Signal::HUP)?;
        let has_read = |process: &Process| Ok((answers(process) > before).then_some(()));
        process.wait_while_running("the keys are read", PATIENCE, &interrupt, has_read)
    }

    /// Kills every process of a host at once, as a power cut would, and waits until the coordinator has noticed, if that is not dead for good: before, it cannot
    /// know that another failure would be the second.
    pub fn kill(&mut self, name: &str) -> Result<()> {
        for pid in self.namespace(name)?.pids()? {
            // One may have followed another already.
            let _ = signal_pid(pid, Signal::KILL);
        }
        let namespace = self.namespace(name)?.clone();
        until("the host is dead", PATIENCE, self.lab.interrupt(), || Ok(namespace.pids()?.is_empty().then_some(())))?;
        let place = self.boxes.iter_mut().find(|(other, _)| *other == name).context("a host of the cluster")?;
        place.1 = None;
        // A machine that starts again has no socket of an earlier time.
        let _ = std::fs::remove_file(self.lab.scratch().join(format!("{name}.sock")));
        if name == WITNESS { Ok(()) } else { self.wait_away(self.observer(), name) }
    }

    /// Waits until a host is given up, as another one sees it.
    pub fn wait_away(&self, on: &str, name: &str) -> Result<()> {
        let is_away = |status: &Status| status.hosts.iter().any(|host| host.name == name && host.state == status::STATE_AWAY);
        self.wait_for(on, &format!("{name} is given up"), is_away).map(drop)
    }

    /// Sends a signal to every process of a host.
    pub fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        self.namespace(name)?.pids()?.into_iter().try_for_each(|pid| signal_pid(pid, signal))
    }

    /// A host that lives: the last one.
    fn observer(&self) -> &'static str {
        let living = self.boxes.iter().rev().find(|(_, running)| running.is_some());
        living.map_or(self.boxes[0].0, |(name, _)| *name)
    }

    /// Waits until a coordinator leads that was elected after this incarnation, and a host that lives hears it.
    pub fn wait_leader(&self, on: &str, last: u64) -> Result<Leader> {
        let leader = |status: &Status| status.election.as_ref().and_then(|election| election.leader.clone());
        let is_new = |status: &Status| {
            leader(status).is_some_and(|leader| leader.incarnation > last)
                && status.processes.iter().any(|one| one.role == "coordinator" && one.state == status::STATE_RUNNING)
        };
        let status = self.wait_for(on, "another coordinator leads", is_new)?;
        leader(&status).context("it was there a moment ago")
    }

    /// Waits until a living host's status is as wanted.
    pub fn wait_for(&self, on: &str, what: &str, wanted: impl FnMut(&Status) -> bool) -> Result<Status> {
        self.on(on)?.wait_for(what, RECOVERY_LIMIT, self.lab.interrupt(), wanted)
    }

    /// Waits until one host may die, as the last of those that live sees it.
    pub fn wait_safe(&self) -> Result<Status> {
        let is_safe = |status: &Status| status.protected == Protected::Yes && status.survives == status::UNIT_HOST;
        self.wait_for(self.observer(), "every flow would survive a host", is_safe)
    }

    /// Waits until this host serves the ports, as a host sees it.
    pub fn wait_serving(&self, on: &str, name: &str) -> Result<Status> {
        let serves = |status: &Status| status.hosts.iter().any(|host| host.name == name && host.state == status::STATE_SERVING);
        self.wait_for(on, &format!("{name} serves the ports"), serves)
    }

    /// Opens keep-alive connections.
    pub fn hold(&self, server: &str, count: usize) -> Result<keepalive::KeepAlive> {
        network::hold(&self.hosts.client, server, count, self.lab.interrupt())
    }

    /// Starts an echo at the server and numbered datagrams to it.
    pub fn stream(&self, flows: usize, per_second: u64) -> Result<(udp::Echo, udp::Stream)> {
        network::stream(&self.hosts.client, &self.hosts.server, flows, per_second, self.lab.interrupt())
    }

    /// Stops every host's part and checks that it ends well.
    pub fn stop(mut self) -> Result<()> {
        for (name, running) in &mut self.boxes {
            if let Some(running) = running {
                let status = running.stop(PATIENCE, self.lab.interrupt())?;
                ensure!(status.success(), "SIGTERM ended {name} with {status}");
            }
        }
        Ok(())
    }
}
