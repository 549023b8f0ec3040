//! Three namespaces in a row: client — box — server. The shape of the demo and of most end-to-end tests; the addresses are the caller's.

use super::link::{self, Offloads};
use super::{Lab, Namespace};
use anyhow::Result;

/// Who has which address. The box's own addresses are configured in the box, not in its kernel: here they are only gateways.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// The client's address on the inside network, with its prefix length.
    pub client: String,
    /// The box's address there: the client's default gateway.
    pub inside_gateway: String,
    /// The server's addresses on the outside network, with their prefix lengths.
    pub servers: Vec<String>,
    /// Networks that the server reaches through the box, and the box's address on the outside network.
    pub behind_box: Vec<(String, String)>,
    /// The box's devices: inside, outside.
    pub devices: (String, String),
    /// Whether the veth pairs behave like wires.
    pub offloads: Offloads,
}

impl Addresses {
    /// Gives client and server what is theirs.
    pub(super) fn assign(&self, client: &Namespace, server: &Namespace) -> Result<()> {
        link::address(client, HOST_DEVICE, &self.client)?;
        link::route(client, "default", &self.inside_gateway)?;
        for address in &self.servers {
            link::address(server, HOST_DEVICE, address)?;
        }
        for (network, gateway) in &self.behind_box {
            link::route(server, network, gateway)?;
        }
        Ok(())
    }
}

/// The name of the client's and the server's device.
pub const HOST_DEVICE: &str = "eth0";

/// The three, joined.
#[derive(Debug, Clone)]
pub struct Topology {
    /// Where clients run.
    pub client: Namespace,
    /// Where `holdfast run` runs. In it the kernel is silent.
    pub router: Namespace,
    /// Where servers run.
    pub server: Namespace,
}

impl Topology {
    /// Makes and joins them.
    pub fn build(lab: &mut Lab, addresses: &Addresses) -> Result<Topology> {
        let (client, router, server) = (lab.namespace("client")?, lab.namespace("box")?, lab.namespace("server")?);
        link::silence(&router)?;
        let (inside, outside) = (addresses.devices.0.as_str(), addresses.devices.1.as_str());
        link::veth((&router, inside), (&client, HOST_DEVICE), addresses.offloads, lab.interrupt())?;
        link::veth((&router, outside), (&server, HOST_DEVICE), addresses.offloads, lab.interrupt())?;
        addresses.assign(&client, &server)?;
        Ok(Topology { client, router, server })
    }
}
