//! The branch office with three hosts for the box: two that serve and run, and a witness with the coordinator.

use crate::network::{self, Chain, HELD_BODY, Options, RECOVERY_LIMIT, SERVER, SERVER_2, socket};
use crate::{PATIENCE, binary};
use anyhow::{Context, Result, ensure};
use holdfast::lab::hosts::Hosts;
use holdfast::lab::nginx::{self, Nginx, Site};
use holdfast::lab::process::signal_pid;
use holdfast::lab::running::RunningBox;
use holdfast::lab::{Interrupt, Lab, keepalive, udp, until};
use holdfast::status::{self, Protected, Status};
use rustix::process::Signal;
use std::net::SocketAddr;

/// The hosts that serve the ports, and run runtimes.
pub const SERVING: [&str; 2] = ["alpha", "beta"];
/// The host of the coordinator, which has no ports and no runtimes.
pub const WITNESS: &str = "witness";

/// Fields are dropped in this order: boxes, servers, network.
#[derive(Debug)]
pub struct Cluster {
    /// What runs on each host; `None` on one that is dead.
    boxes: Vec<(&'static str, Option<RunningBox>)>,
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
    /// Builds it, with web servers and a key for its messages, and waits until the box is ready and safe.
    pub fn start(interrupt: &Interrupt) -> Result<Cluster> {
        let mut lab = Lab::new(interrupt.clone())?;
        let options = Options::protected(Chain::Balanced);
        let names = [SERVING[0], SERVING[1], WITNESS];
        let hosts = Hosts::build(&mut lab, &names, &network::addresses(&options))?;
        let key = lab.scratch().join("key");
        let made = std::process::Command::new(binary()?).arg("keygen").arg(&key).output()?;
        ensure!(made.status.success(), "keygen: {}", String::from_utf8_lossy(&made.stderr));
        let more = format!(
            "state: {state}\nfabric: {{ key: {key} }}\nhosts:\n  {}: {{ fabric: fab0 }}\n  {}: {{ fabric: fab0 }}\n  {WITNESS}: {{ fabric: fab0, serves: false, runtimes: false, coordinator: true }}\n",
            names[0],
            names[1],
            state = lab.scratch().join("state").display(),
            key = key.display()
        );
        let configuration = options.configuration().replace("{ min: 3, max: 3 }", "{ min: 4, max: 4 }") + &more;
        let site = Site::new(&lab, "site")?;
        site.add("held", HELD_BODY)?;
        let servers: Vec<SocketAddr> = vec![socket(&format!("{SERVER}:80")), socket(&format!("{SERVER_2}:80"))];
        let servers = nginx::start_all(&lab, &hosts.server, &servers, &site)?;
        let boxes = names.into_iter().map(|name| (name, None)).collect();
        let mut cluster = Cluster { boxes, configuration, _servers: servers, site, hosts, lab };
        for name in names {
            cluster.begin(name)?;
        }
        for (_, running) in &mut cluster.boxes {
            running.as_mut().context("it was started")?.wait_ready(interrupt)?;
        }
        cluster.wait_safe()?;
        Ok(cluster)
    }

    fn namespace(&self, name: &str) -> Result<&holdfast::lab::Namespace> {
        let at = self.boxes.iter().position(|(other, _)| *other == name).context("a host of the cluster")?;
        Ok(&self.hosts.hosts[at])
    }

    /// Starts a host's part of the box.
    pub fn begin(&mut self, name: &str) -> Result<()> {
        let running = RunningBox::launch_host(&self.lab, self.namespace(name)?, &binary()?, &self.configuration, name)?;
        let place = self.boxes.iter_mut().find(|(other, _)| *other == name).context("a host of the cluster")?;
        place.1 = Some(running);
        Ok(())
    }

    /// The box as it runs on a host.
    pub fn on(&self, name: &str) -> Result<&RunningBox> {
        let place = self.boxes.iter().find(|(other, _)| *other == name);
        place.and_then(|(_, running)| running.as_ref()).with_context(|| format!("{name} is dead"))
    }

    /// Kills every process of a host at once, as a power cut would, and waits until the coordinator has noticed, if that is not dead too: before, it cannot know
    /// that another failure would be the second.
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
        if name != WITNESS {
            let is_away = |status: &Status| status.hosts.iter().any(|host| host.name == name && host.state == status::STATE_AWAY);
            self.wait_for(WITNESS, "the death of the host is noticed", is_away)?;
        }
        Ok(())
    }

    /// Waits until a living host's status is as wanted.
    pub fn wait_for(&self, on: &str, what: &str, wanted: impl FnMut(&Status) -> bool) -> Result<Status> {
        self.on(on)?.wait_for(what, RECOVERY_LIMIT, self.lab.interrupt(), wanted)
    }

    /// Waits until one host may die, as the witness sees it.
    pub fn wait_safe(&self) -> Result<Status> {
        let is_safe = |status: &Status| status.protected == Protected::Yes && status.survives == status::UNIT_HOST;
        self.wait_for(WITNESS, "every flow would survive a host", is_safe)
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
