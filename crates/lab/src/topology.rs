//! Three namespaces in a row: client — box — server. The demo and most end-to-end tests
//! have this shape; the caller gives the addresses.

use super::link::{self, Offloads};
use super::{Lab, Namespace};
use anyhow::Result;

/// Addresses of client, box and server. The box's own addresses are configured in the
/// box, not in its kernel: here they are only gateways.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// The client's address on the inside network, with its prefix length.
    pub client: String,
    /// The box's address there: the client's default gateway.
    pub inside_gateway: String,
    /// The server's addresses on the outside network, with their prefix lengths.
    pub servers: Vec<String>,
    /// Networks that the server reaches through the box, and the box's address on the
    /// outside network.
    pub behind_box: Vec<(String, String)>,
    /// The box's devices: inside, outside.
    pub devices: (String, String),
    /// Whether the veth pairs behave like wires.
    pub offloads: Offloads,
}

impl Addresses {
    /// Gives client and server their addresses and routes.
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

/// Client, box and server, joined.
#[derive(Debug, Clone)]
pub struct Topology {
    /// The namespace where clients run.
    pub client: Namespace,
    /// The namespace where `holdfast run` runs. The kernel in it is silent.
    pub router: Namespace,
    /// The namespace where servers run.
    pub server: Namespace,
}

impl Topology {
    /// Makes and joins the namespaces.
    pub fn build(lab: &mut Lab, addresses: &Addresses) -> Result<Topology> {
        let (client, router, server) =
            (lab.namespace("client")?, lab.namespace("box")?, lab.namespace("server")?);
        link::silence(&router)?;
        let (inside, outside) = (addresses.devices.0.as_str(), addresses.devices.1.as_str());
        link::veth((&router, inside), (&client, HOST_DEVICE), addresses.offloads, lab.interrupt())?;
        link::veth(
            (&router, outside),
            (&server, HOST_DEVICE),
            addresses.offloads,
            lab.interrupt(),
        )?;
        addresses.assign(&client, &server)?;
        Ok(Topology { client, router, server })
    }
}
