//! A branch office, with the box between its LAN and its provider. Addresses, devices and
//! rules differ from the demo's.

use crate::binary;
use crate::standby::{group, nth_state_server};
use anyhow::{Context, Result, ensure};
use holdfast_control::api::Progress;
use holdfast_control::status::{self, Failover, Process, Protected, Status};
use holdfast_lab::link::Offloads;
use holdfast_lab::nginx::{Nginx, Site};
use holdfast_lab::running::{RunningBox, Victim};
use holdfast_lab::topology::{Addresses, Topology};
use holdfast_lab::{Interrupt, Lab, Namespace, keepalive, udp};
use rustix::process::{Pid, Signal};
use std::net::SocketAddr;
use std::time::Duration;

/// Address of the client.
pub const CLIENT: &str = "172.20.5.10";
/// Address of the box on the LAN.
pub const INSIDE: &str = "172.20.5.1";
/// Address of the provider's host with all servers.
pub const SERVER: &str = "192.0.2.1";
/// A second address of the server.
pub const SERVER_2: &str = "192.0.2.80";
/// The load balancer's address.
pub const VIRTUAL: &str = "100.64.0.80:80";
/// The NAT pool.
pub const POOL: &str = "192.0.2.32/29";
/// IPv6: client, box, box, server.
pub const SIX: [&str; 4] = ["2001:db8:5::10", "2001:db8:5::1", "2001:db8:2::2", "2001:db8:2::1"];
/// The body that keep-alive connections ask for.
pub const HELD_BODY: &str = "a connection of the branch office\n";
/// An answer or a datagram later than this is lost.
pub const GIVE_UP: Duration = Duration::from_secs(10);
/// Time limit for a failover on a machine of two busy cores with other tests on it.
pub const RECOVERY_LIMIT: Duration = Duration::from_secs(30);

/// The chains that the tests use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    /// Firewall and NAT.
    Edge,
    /// Firewall, NAT, load balancer.
    Balanced,
    /// The guide's function, 100 packets per flow, by itself.
    Limited,
    /// The QoS marker, whose flows have 100 packets in a class above all others, and NAT.
    Marked,
    /// Only forwarding, IPv4 and IPv6, no address translated.
    Plain,
    /// A function that ends its process on some packets, and NAT: for a program that has
    /// it.
    Mortal,
}

/// Time-outs for tests in which stalled processes must not be given up.
pub const PATIENT: &str = "detection: { hang_ms: 25000 }\n";
/// The default time-outs of a test's box, twice the box's own. A machine with other tests
/// may give a process no core for a while, and the box must not declare that a failure. A
/// process that dies is noticed at once. Numbers that a state server does not know rest
/// for twice as long, and connections wait longer for a host that is missed.
pub(crate) const UNHURRIED: &str = "detection: { hang_ms: 1000, host_ms: 800 }\n";

/// The parameters of the office and its box.
#[derive(Debug, Clone)]
pub struct Options {
    /// The chain in the box.
    pub chain: Chain,
    /// Its protection.
    pub protection: &'static str,
    /// Whether the links behave like wires.
    pub offloads: Offloads,
    /// More top-level lines of the configuration; without `detection:` the box's
    /// time-outs are longer than by default.
    pub more: &'static str,
    /// NAT pool.
    pub pool: &'static str,
    /// The NAT's ports; empty for the NAT's own choice.
    pub ports: &'static str,
    /// The program; empty for the one under test.
    pub program: &'static str,
    /// Prefix of each device: `afpacket:`, or empty for the box's own choice. With an
    /// `@`, the device's name takes its places.
    pub driver: &'static str,
}

impl Options {
    /// This chain under `nfvactor`.
    pub fn protected(chain: Chain) -> Options {
        Options {
            chain,
            protection: "nfvactor",
            offloads: Offloads::Off,
            more: "",
            pool: POOL,
            ports: "",
            program: "",
            driver: "",
        }
    }

    /// The configuration of the box.
    pub fn configuration(&self) -> String {
        let firewall = "      - firewall:\n          rules:\n            - \"allow tcp from 172.20.5.0/24 to any port 80,5201\"\n\
                        \x20           - \"allow udp from 172.20.5.0/24 to any\"\n            - \"allow icmp from any to any\"\n\
                        \x20         default: deny\n";
        let ports = if self.ports.is_empty() {
            String::new()
        } else {
            format!(", ports: \"{}\"", self.ports)
        };
        let nat =
            format!("      - nat: {{ pool: [{}], inside: [172.20.5.0/24]{ports} }}\n", self.pool);
        let balancer = format!(
            "      - load_balancer: {{ virtual: \"{VIRTUAL}\", protocol: tcp, backends: [\"{SERVER}:80\", \"{SERVER_2}:80\"], policy: least_load }}\n"
        );
        let functions = match self.chain {
            Chain::Edge => format!("    functions:\n{firewall}{nat}"),
            Chain::Balanced => format!("    functions:\n{firewall}{nat}{balancer}"),
            Chain::Limited => {
                format!("    functions:\n      - packet_limit: {{ packets: 100 }}\n{nat}")
            }
            Chain::Marked => format!(
                "    functions:\n      - qos_marker:\n          classes:\n            new: {{ dscp: ef, pcp: 5, demote: {{ to: heavy, after_packets: 100 }} }}\n\
                 \x20           heavy: {{ dscp: le, pcp: 1 }}\n          default: new\n{nat}"
            ),
            Chain::Plain => "    functions: [forward]\n".to_owned(),
            Chain::Mortal => format!("    functions:\n      - mortal\n{nat}"),
        };
        let (inside, outside) = match self.chain {
            Chain::Plain => (
                format!("[{INSIDE}/24, \"{}/64\"]", SIX[1]),
                format!("[192.0.2.2/24, \"{}/64\"]", SIX[2]),
            ),
            _ => (format!("{INSIDE}/24"), "192.0.2.2/24".to_owned()),
        };
        let device = |name: &str| match self.driver {
            with_place if with_place.contains('@') => with_place.replace('@', name),
            driver => format!("{driver}{name}"),
        };
        let (lan, wan) = (device("lan0"), device("wan0"));
        let detection = if self.more.contains("detection:") { "" } else { UNHURRIED };
        format!(
            "cluster: branch\nports:\n  lan: {{ device: \"{lan}\", address: {inside} }}\n  wan: {{ device: \"{wan}\", address: {outside}, gateway: {SERVER} }}\n\
             chains:\n  office:\n{functions}    protection: {}\nrules:\n  - {{ chain: office }}\nruntimes: {{ min: 3, max: 3 }}\n{}{detection}",
            self.protection, self.more
        )
    }
}

/// The office, with the box running. Fields are dropped in this order: box, servers,
/// network.
#[derive(Debug)]
pub struct Network {
    /// `holdfast run`.
    pub running: RunningBox,
    /// True if its protection keeps every flow.
    pub promised: bool,
    servers: Vec<Nginx>,
    /// The files of the web servers.
    pub site: Site,
    /// The namespaces.
    pub topology: Topology,
    /// The owner of the namespaces.
    pub lab: Lab,
}

impl Network {
    /// Builds the office and waits until the box is ready.
    pub fn start(options: &Options, interrupt: &Interrupt) -> Result<Network> {
        Network::start_with(options, &options.configuration(), interrupt)
    }

    /// Like `start`, with a configuration of the test's own.
    pub fn start_with(
        options: &Options,
        configuration: &str,
        interrupt: &Interrupt,
    ) -> Result<Network> {
        Network::start_after(options, interrupt, |_, _| Ok(configuration.to_owned()))
    }

    /// Like `start`, after `prepare` has made what the box needs and returned its
    /// configuration.
    pub fn start_after(
        options: &Options,
        interrupt: &Interrupt,
        prepare: impl FnOnce(&Lab, &Topology) -> Result<String>,
    ) -> Result<Network> {
        let binary = if options.program.is_empty() { binary()? } else { options.program.into() };
        let (lab, topology) = cables(options, interrupt)?;
        let configuration = prepare(&lab, &topology)?;
        let site = Site::new(&lab, "site")?;
        site.add("held", HELD_BODY)?;
        let running = RunningBox::start(&lab, &topology.router, &binary, &configuration)?;
        let promised = options.protection != "none";
        Ok(Network { running, promised, servers: Vec::new(), site, topology, lab })
    }

    /// Starts both web servers.
    pub fn serve_web(&mut self) -> Result<()> {
        let addresses: Vec<SocketAddr> =
            vec![socket(&format!("{SERVER}:80")), socket(&format!("{SERVER_2}:80"))];
        self.servers = holdfast_lab::nginx::start_all(
            &self.lab,
            &self.topology.server,
            &addresses,
            &self.site,
        )?;
        Ok(())
    }

    /// Starts one more web server.
    pub fn serve_web_on(&mut self, address: SocketAddr) -> Result<()> {
        let name = format!("nginx{}", self.servers.len() + 1);
        self.servers.push(Nginx::start(
            &self.lab,
            &self.topology.server,
            &name,
            address,
            &self.site,
        )?);
        Ok(())
    }

    /// Opens keep-alive connections to a web server.
    pub fn hold(&self, server: &str, count: usize) -> Result<keepalive::KeepAlive> {
        let opened = hold(&self.topology.client, server, count, self.lab.interrupt());
        opened.with_context(|| format!("the box says {:?}", self.running.status()))
    }

    /// Starts an echo server, and numbered datagrams to it.
    pub fn stream(&self, flows: usize, per_second: u64) -> Result<(udp::Echo, udp::Stream)> {
        stream(
            &self.topology.client,
            &self.topology.server,
            flows,
            per_second,
            self.lab.interrupt(),
        )
    }

    /// Waits until every flow has its replica (at once under a protection that promises
    /// nothing).
    pub fn wait_protected(&self) -> Result<()> {
        if self.promised {
            let what = "everything is protected";
            self.running.wait_for(what, RECOVERY_LIMIT, self.lab.interrupt(), |status| {
                status.protected() == Protected::Yes
            })?;
        }
        Ok(())
    }

    /// Sends a signal to the state server, and its standby if it has one, and waits for
    /// its next incarnation.
    pub fn strike_server(&self, signal: Signal) -> Result<()> {
        self.strike_nth_server(0, signal)
    }

    /// Like `strike_server`, for one of several state servers, from 0.
    pub fn strike_nth_server(&self, number: usize, signal: Signal) -> Result<()> {
        let state_server = |status: &Status| nth_state_server(status, number);
        let is_running =
            |process: &Process| process.state == status::STATE_RUNNING && process.pid != 0;
        let victim = state_server(&self.running.status()?)?;
        ensure!(is_running(&victim), "{victim:?}");
        // The signal goes to the whole group: a surviving standby, keeper or deputy would
        // replace the worker. A state server that has only just started is a keeper about
        // to start the others.
        let group = Pid::from_raw(group(victim.pid)? as i32).context("a group")?;
        rustix::process::kill_process_group(group, signal)?;
        let is_next = |status: &Status| {
            state_server(status)
                .is_ok_and(|next| next.incarnation > victim.incarnation && is_running(&next))
        };
        self.running.wait_for(
            "the state server lives again",
            RECOVERY_LIMIT,
            self.lab.interrupt(),
            is_next,
        )?;
        Ok(())
    }

    /// Waits until the flows of a failed runtime are served elsewhere, and returns the
    /// failover's account.
    pub fn wait_recovered(&self, victim: &Victim) -> Result<Failover> {
        let what = format!("the flows of runtime {} are recovered", victim.id);
        let account = |status: &Status| status.failover(victim.id, victim.incarnation).cloned();
        let is_over = |status: &Status| {
            account(status).is_some_and(|failover| failover.recovered_us.is_some())
        };
        let status = self.running.wait_for(&what, RECOVERY_LIMIT, self.lab.interrupt(), is_over)?;
        account(&status).context("it was there a moment ago")
    }

    /// Kills every runtime, one after the other, each when the previous one is back and
    /// everything is protected again. Every flow's owner has failed at the end. `between`
    /// runs after each kill.
    pub fn kill_each_runtime(&self, mut between: impl FnMut() -> Result<()>) -> Result<()> {
        let runtimes: Vec<u32> =
            self.running.status()?.runtimes().map(|process| process.id).collect();
        ensure!(runtimes.len() == 3, "three runtimes are configured, there are {runtimes:?}");
        for id in runtimes {
            self.wait_protected()?;
            let status = self.running.status()?;
            let process =
                status.runtime(id).with_context(|| format!("runtime {id} is not in {status:?}"))?;
            let victim = holdfast_lab::running::Victim::of(process);
            self.running.kill(&victim, self.promised, RECOVERY_LIMIT, self.lab.interrupt())?;
            between()?;
        }
        Ok(())
    }

    /// Moves every runtime's flows to the next one. `left` runs after each of these
    /// moves, with the runtime that the flows have left. Returns how many moved.
    pub fn go_round(&self, mut left: impl FnMut(u32) -> Result<()>) -> Result<u64> {
        let ids: Vec<u32> = self.running.status()?.runtimes().map(|process| process.id).collect();
        let mut moved = 0;
        for (at, from) in ids.iter().enumerate() {
            let to = ids[(at + 1) % ids.len()];
            let text = self.running.ask(&format!("migrate --from {from} --to {to}"))?;
            let progress: Progress =
                serde_json::from_str(&text).with_context(|| format!("the answer {text}"))?;
            ensure!(progress.done && !progress.failed && progress.refused == 0, "{progress:?}");
            moved += progress.moved;
            left(*from)?;
        }
        Ok(moved)
    }

    /// Moves every flow from runtime to runtime, then kills each of them, as
    /// [`Network::kill_each_runtime`] does.
    pub fn move_and_kill(&self, mut between: impl FnMut() -> Result<()>) -> Result<()> {
        self.wait_protected()?;
        let moved = self.go_round(|_| Ok(()))?;
        ensure!(moved > 0, "no flow moved");
        between()?;
        self.kill_each_runtime(between)
    }

    /// Stops the box and checks its exit status.
    pub fn stop(mut self) -> Result<()> {
        let status = self.running.stop(crate::TIMEOUT, self.lab.interrupt())?;
        ensure!(
            status.success(),
            "SIGTERM ended the box with {status}: {}",
            self.running.process().last_words()
        );
        Ok(())
    }
}

/// The addresses of client and server, independent of what stands between them.
pub fn addresses(options: &Options) -> Addresses {
    let is_plain = options.chain == Chain::Plain;
    Addresses {
        client: format!("{CLIENT}/24"),
        inside_gateway: INSIDE.into(),
        servers: vec![format!("{SERVER}/24"), format!("{SERVER_2}/24")],
        behind_box: if is_plain {
            vec![("172.20.5.0/24".into(), "192.0.2.2".into())]
        } else {
            Vec::new()
        },
        devices: ("lan0".into(), "wan0".into()),
        offloads: options.offloads,
    }
}

/// A plan of keep-alive connections to a web server. A connection that was cut off for 7
/// s retransmits after 12.6 s, because TCP's pause doubles every time; this must not
/// count as broken.
pub fn held(server: &str, count: usize) -> keepalive::Plan {
    keepalive::Plan {
        server: socket(server),
        path: "/held".into(),
        body: HELD_BODY.into(),
        count,
        interval: Duration::from_millis(200),
        answer_within: Duration::from_secs(30),
    }
}

/// Opens keep-alive connections from a namespace to a web server.
pub fn hold(
    client: &Namespace,
    server: &str,
    count: usize,
    interrupt: &Interrupt,
) -> Result<keepalive::KeepAlive> {
    keepalive::KeepAlive::open(client, &held(server, count), interrupt)
}

/// A plan of very many keep-alive connections, each used once a second.
pub fn many(count: usize) -> keepalive::Plan {
    keepalive::Plan { interval: Duration::from_secs(1), ..held(VIRTUAL, count) }
}

/// Starts an echo server, and numbered datagrams to it.
pub fn stream(
    client: &Namespace,
    server: &Namespace,
    flows: usize,
    per_second: u64,
    interrupt: &Interrupt,
) -> Result<(udp::Echo, udp::Stream)> {
    let address = socket(&format!("{SERVER}:7007"));
    let echo = udp::Echo::start(server, address)?;
    let stream = udp::Stream::start(client, udp::Plan { server: address, flows, per_second })?;
    holdfast_lab::until("datagrams return", crate::TIMEOUT, interrupt, || {
        Ok((stream.datagrams().returned > 0).then_some(()))
    })?;
    Ok((echo, stream))
}

/// Waits until the runtimes have had `count` more packets.
pub fn wait_for_packets(network: &Network, count: u64) -> Result<()> {
    let packets = |status: &Status| status.runtimes().map(|process| process.packets).sum::<u64>();
    let wanted = packets(&network.running.status()?) + count;
    let what = "packets go on";
    network
        .running
        .wait_for(what, RECOVERY_LIMIT, network.lab.interrupt(), |status| packets(status) >= wanted)
        .map(drop)
}

/// The namespaces and links, without a box.
pub fn cables(options: &Options, interrupt: &Interrupt) -> Result<(Lab, Topology)> {
    let mut lab = Lab::new(interrupt.clone())?;
    let plain = options.chain == Chain::Plain;
    let topology = Topology::build(&mut lab, &addresses(options))?;
    if plain {
        use holdfast_lab::{link, topology::HOST_DEVICE};
        for (namespace, address, network, gateway) in [
            (&topology.client, SIX[0], "2001:db8:2::/64", SIX[1]),
            (&topology.server, SIX[3], "2001:db8:5::/64", SIX[2]),
        ] {
            link::address(namespace, HOST_DEVICE, &format!("{address}/64"))?;
            namespace.ip(&format!("-6 route add {network} via {gateway}"))?;
        }
    }
    Ok((lab, topology))
}

/// Parses an address that a test wrote.
pub fn socket(text: &str) -> SocketAddr {
    text.parse().expect("the test's own address is one")
}

/// Parses an address that a test wrote.
pub fn ip(text: &str) -> std::net::IpAddr {
    text.parse().expect("the test's own address is one")
}
