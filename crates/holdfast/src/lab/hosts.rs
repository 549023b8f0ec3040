//! Several hosts between one client and one server: three bridges in a namespace of their own join them. The inside network has the client and a device of every
//! host, the outside network the server and another one, and the fabric every host's `fab0`.

use super::link;
use super::topology::{Addresses, HOST_DEVICE};
use super::{Lab, Namespace};
use anyhow::Result;

/// A host's device on the fabric.
const FABRIC_DEVICE: &str = "fab0";
/// The bridges: inside, outside, between the hosts.
const BRIDGES: [&str; 3] = ["inside", "outside", "fabric"];
/// Largest packet between the hosts, bytes.
const FABRIC_MTU: &str = "2600";

/// In which direction a host's link to the others is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Nothing of it arrives.
    From,
    /// Nothing arrives at it.
    To,
    /// Neither.
    Both,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// Where clients run.
    pub client: Namespace,
    /// Where servers run.
    pub server: Namespace,
    /// Where the bridges are.
    pub network: Namespace,
    /// The hosts. In them the kernel is silent.
    pub hosts: Vec<Namespace>,
}

impl Hosts {
    /// Makes and joins them; `names` are the hosts'.
    pub fn build(lab: &mut Lab, names: &[&str], addresses: &Addresses) -> Result<Hosts> {
        let (client, server, network) = (lab.namespace("client")?, lab.namespace("server")?, lab.namespace("network")?);
        link::silence(&network)?;
        for bridge in BRIDGES {
            network.ip(&format!("link add {bridge} type bridge"))?;
            network.ip(&format!("link set {bridge} up"))?;
        }
        let join = |lab: &Lab, namespace: &Namespace, device: &str, name: &str, bridge: &str| -> Result<()> {
            let port = format!("{}-{name}", &bridge[..3]);
            link::veth((namespace, device), (&network, &port), addresses.offloads, lab.interrupt())?;
            if bridge == BRIDGES[2] {
                namespace.ip(&format!("link set {device} mtu {FABRIC_MTU}"))?;
                network.ip(&format!("link set {port} mtu {FABRIC_MTU}"))?;
            }
            network.ip(&format!("link set {port} master {bridge}"))
        };
        join(lab, &client, HOST_DEVICE, "client", BRIDGES[0])?;
        join(lab, &server, HOST_DEVICE, "server", BRIDGES[1])?;
        let (inside, outside) = &addresses.devices;
        let mut hosts = Vec::new();
        for name in names {
            let host = lab.namespace(name)?;
            link::silence(&host)?;
            for (device, bridge) in [inside.as_str(), outside, FABRIC_DEVICE].into_iter().zip(BRIDGES) {
                join(lab, &host, device, name, bridge)?;
            }
            hosts.push(host);
        }
        addresses.assign(&client, &server)?;
        network.run("nft add table bridge cuts")?;
        network.run("nft add chain bridge cuts forward { type filter hook forward priority 0 ; }")?;
        Ok(Hosts { client, server, network, hosts })
    }

    /// Cuts a host's link to the fabric.
    pub fn cut(&self, name: &str, cut: Cut) -> Result<()> {
        for (direction, is_cut) in [("iifname", cut != Cut::To), ("oifname", cut != Cut::From)] {
            if is_cut {
                self.network.run(&format!("nft add rule bridge cuts forward {direction} fab-{name} drop"))?;
            }
        }
        Ok(())
    }

    /// Every link is whole again.
    pub fn heal(&self) -> Result<()> {
        self.network.run("nft flush chain bridge cuts forward").map(drop)
    }
}
