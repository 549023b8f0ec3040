//! Several hosts between one client and one server: three bridges in a namespace of their
//! own join them. The inside network has the client and a device of every host, the
//! outside network the server and another device of every host, and the fabric every
//! host's `fab0`. An optional fourth bridge is for management: there the kernels have
//! addresses, at `mgmt0`.

use super::link::{self, Offloads};
use super::topology::{Addresses, HOST_DEVICE};
use super::{Lab, Namespace};
use anyhow::Result;
use std::net::Ipv4Addr;

/// A host's device on the fabric.
const FABRIC_DEVICE: &str = "fab0";
/// The bridges: inside, outside, between the hosts.
const BRIDGES: [&str; 3] = ["inside", "outside", "fabric"];
/// The bridge of a second fabric, and a host's device there.
const SPARE: (&str, &str) = ("spare", "fab1");
/// The bridge for management, and a host's device there.
const MANAGEMENT: (&str, &str) = ("management", "mgmt0");
/// The bridges of a second client and a second server: inside, outside.
const SECOND: [&str; 2] = ["near", "beyond"];
/// The management address of the programs that serve the hosts; the hosts' own addresses
/// begin with 10.99.0.1.
pub const MANAGER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 254);
/// Largest packet between the hosts, bytes.
const FABRIC_MTU: &str = "2600";

/// In which direction a host's link to the others is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Frames from the host are dropped.
    From,
    /// Frames to the host are dropped.
    To,
    /// Frames in both directions are dropped.
    Both,
}

/// Hosts, client and server, joined as the module's head says.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// The namespace where clients run.
    pub client: Namespace,
    /// The namespace where servers run.
    pub server: Namespace,
    /// The namespace with the bridges.
    pub network: Namespace,
    /// The hosts' namespaces. The kernel in them is silent.
    pub hosts: Vec<Namespace>,
}

fn bridge(network: &Namespace, name: &str) -> Result<()> {
    network.ip(&format!("link add {name} type bridge"))?;
    network.ip(&format!("link set {name} up"))
}

/// The name of the bridge port to a namespace.
fn port(bridge: &str, name: &str) -> String {
    format!("{}-{name}", &bridge[..3])
}

/// Joins a namespace's device to a bridge.
fn join(
    lab: &Lab,
    network: &Namespace,
    end: (&Namespace, &str),
    name: &str,
    bridge: &str,
    offloads: Offloads,
) -> Result<()> {
    let port = port(bridge, name);
    link::veth(end, (network, &port), offloads, lab.interrupt())?;
    if bridge == BRIDGES[2] || bridge == SPARE.0 {
        end.0.ip(&format!("link set {} mtu {FABRIC_MTU}", end.1))?;
        network.ip(&format!("link set {port} mtu {FABRIC_MTU}"))?;
    }
    network.ip(&format!("link set {port} master {bridge}"))
}

impl Hosts {
    /// Makes and joins the namespaces; `names` are the hosts'.
    pub fn build(lab: &mut Lab, names: &[&str], addresses: &Addresses) -> Result<Hosts> {
        let (client, server, network) =
            (lab.namespace("client")?, lab.namespace("server")?, lab.namespace("network")?);
        link::silence(&network)?;
        let offloads = addresses.offloads;
        BRIDGES.iter().try_for_each(|name| bridge(&network, name))?;
        join(lab, &network, (&client, HOST_DEVICE), "client", BRIDGES[0], offloads)?;
        join(lab, &network, (&server, HOST_DEVICE), "server", BRIDGES[1], offloads)?;
        let (inside, outside) = &addresses.devices;
        let mut hosts = Vec::new();
        for name in names {
            let host = lab.namespace(name)?;
            link::silence(&host)?;
            for (device, bridge) in
                [inside.as_str(), outside, FABRIC_DEVICE].into_iter().zip(BRIDGES)
            {
                join(lab, &network, (&host, device), name, bridge, offloads)?;
            }
            hosts.push(host);
        }
        addresses.assign(&client, &server)?;
        network.run("nft add table bridge cuts")?;
        network
            .run("nft add chain bridge cuts forward { type filter hook forward priority 0 ; }")?;
        Ok(Hosts { client, server, network, hosts })
    }

    /// Joins the hosts by a management network too. Returns a namespace on it, with the
    /// address [`MANAGER`], for the programs that the hosts need there.
    pub fn manage(&self, lab: &mut Lab, names: &[&str]) -> Result<Namespace> {
        let manager = lab.namespace("manager")?;
        bridge(&self.network, MANAGEMENT.0)?;
        join(
            lab,
            &self.network,
            (&manager, HOST_DEVICE),
            "manager",
            MANAGEMENT.0,
            Offloads::LeftOn,
        )?;
        link::address(&manager, HOST_DEVICE, &format!("{MANAGER}/24"))?;
        for ((host, name), number) in self.hosts.iter().zip(names).zip(1..) {
            join(lab, &self.network, (host, MANAGEMENT.1), name, MANAGEMENT.0, Offloads::LeftOn)?;
            link::address(host, MANAGEMENT.1, &format!("10.99.0.{number}/24"))?;
        }
        Ok(manager)
    }

    /// Joins the hosts by a second fabric, at `fab1`.
    pub fn add_fabric(&self, lab: &mut Lab, names: &[&str]) -> Result<()> {
        bridge(&self.network, SPARE.0)?;
        let mut hosts = self.hosts.iter().zip(names);
        hosts.try_for_each(|(host, name)| {
            join(lab, &self.network, (host, SPARE.1), name, SPARE.0, Offloads::LeftOn)
        })
    }

    /// Joins a second client and a second server to devices of their own of every host,
    /// with these addresses.
    pub fn add_second(
        &self,
        lab: &mut Lab,
        names: &[&str],
        addresses: &Addresses,
    ) -> Result<(Namespace, Namespace)> {
        let (client, server) = (lab.namespace("client2")?, lab.namespace("server2")?);
        SECOND.iter().try_for_each(|name| bridge(&self.network, name))?;
        let (inside, outside) = &addresses.devices;
        join(lab, &self.network, (&client, HOST_DEVICE), "client2", SECOND[0], addresses.offloads)?;
        join(lab, &self.network, (&server, HOST_DEVICE), "server2", SECOND[1], addresses.offloads)?;
        for (host, name) in self.hosts.iter().zip(names) {
            join(lab, &self.network, (host, inside), name, SECOND[0], addresses.offloads)?;
            join(lab, &self.network, (host, outside), name, SECOND[1], addresses.offloads)?;
        }
        addresses.assign(&client, &server)?;
        Ok((client, server))
    }

    /// Gives the hosts' kernels addresses on the fabric, so frames between the hosts
    /// travel over UDP. Returns the addresses in the order of the hosts.
    pub fn address_fabric(&self) -> Result<Vec<Ipv4Addr>> {
        self.address(FABRIC_DEVICE, 0)
    }

    /// Like `Hosts::address_fabric`, on the second fabric.
    pub fn address_spare(&self) -> Result<Vec<Ipv4Addr>> {
        self.address(SPARE.1, 1)
    }

    fn address(&self, device: &str, network: u8) -> Result<Vec<Ipv4Addr>> {
        let mut addresses = Vec::new();
        for (host, number) in self.hosts.iter().zip(1..) {
            let address = Ipv4Addr::new(10, 9, network, number);
            link::address(host, device, &format!("{address}/24"))?;
            addresses.push(address);
        }
        Ok(addresses)
    }

    /// Cuts a host's link to the fabric.
    pub fn cut(&self, name: &str, cut: Cut) -> Result<()> {
        self.cut_port(&port(BRIDGES[2], name), cut)
    }

    /// Cuts a host's link to the second fabric.
    pub fn cut_spare(&self, name: &str, cut: Cut) -> Result<()> {
        self.cut_port(&port(SPARE.0, name), cut)
    }

    /// Cuts a host's link to the network for management.
    pub fn cut_management(&self, name: &str) -> Result<()> {
        self.cut_port(&port(MANAGEMENT.0, name), Cut::Both)
    }

    fn cut_port(&self, port: &str, cut: Cut) -> Result<()> {
        for (direction, is_cut) in [("iifname", cut != Cut::To), ("oifname", cut != Cut::From)] {
            if is_cut {
                self.network
                    .run(&format!("nft add rule bridge cuts forward {direction} {port} drop"))?;
            }
        }
        Ok(())
    }

    /// Overwrites a byte in one of `one_in` frames between hosts. The Ethernet check
    /// sequence does not show it.
    pub fn damage(&self, one_in: usize) -> Result<()> {
        // Offsets of frame addresses, headers of messages and packets, and payload.
        const PLACES: [usize; 16] =
            [7, 11, 14, 17, 21, 26, 28, 29, 34, 38, 44, 50, 61, 75, 90, 120];
        let of_hosts = format!("iifname {}", port(BRIDGES[2], "*"));
        self.network.run(&format!("nft add rule bridge cuts forward {of_hosts} counter"))?;
        for (at, byte) in PLACES.iter().enumerate() {
            let which = format!("{of_hosts} numgen random mod {} == {at}", one_in * PLACES.len());
            // A frame stays intact if it has this value there already, or ends before.
            self.network.run(&format!(
                "nft add rule bridge cuts forward {which} @ll,{},8 set {:#x} counter",
                byte * 8,
                0x11 * at
            ))?;
        }
        Ok(())
    }

    /// Counts frames between hosts since [`Hosts::damage`], and those in which a byte was
    /// overwritten.
    pub fn damaged(&self) -> Result<(u64, u64)> {
        let rules = self.network.run("nft list chain bridge cuts forward")?;
        let counters = rules.lines().filter_map(|rule| {
            rule.split_once("counter packets ")?.1.split(' ').next()?.parse::<u64>().ok()
        });
        let mut counters = counters.collect::<Vec<u64>>().into_iter();
        Ok((counters.next().unwrap_or(0), counters.sum()))
    }

    /// Makes every link whole again.
    pub fn heal(&self) -> Result<()> {
        self.network.run("nft flush chain bridge cuts forward").map(drop)
    }
}
