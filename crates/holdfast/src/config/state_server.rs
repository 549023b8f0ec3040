//! The state servers: their number, standby, and transport of control messages.

use super::mistake::{Mistake, suggestion};
use super::raw::{Config, ServerStandby, ServerTransport, StateServerSettings};
use super::source::Spot;
use holdfast_wire::NodeId;
use std::fmt;

/// libfabric's default provider, which runs everywhere.
const DEFAULT_PROVIDER: &str = "tcp;ofi_rxm";
/// Usable providers; the last ones need a card.
const PROVIDERS: [&str; 5] = [DEFAULT_PROVIDER, "net", "shm", "verbs;ofi_rxm", "efa"];

impl fmt::Display for ServerStandby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerStandby::Local => "local",
            ServerStandby::None => "none",
        })
    }
}

impl fmt::Display for ServerTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerTransport::Fabric => "fabric",
            ServerTransport::SharedMemory => "shared-memory",
            ServerTransport::Libfabric => "libfabric",
        })
    }
}

/// The section, with defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateServers {
    /// Processes that divide flows with their home there among them; 0 without such
    /// flows.
    pub count: u16,
    /// The standby of each process.
    pub standby: ServerStandby,
    /// The transport of control messages.
    pub transport: ServerTransport,
    /// libfabric's provider, if the transport uses it.
    pub provider: Option<String>,
}

/// Reads the section, with defaults filled in.
pub(super) fn read(config: &Config, root: Spot<'_>) -> Result<StateServers, Mistake> {
    let settings = config.state_server.clone().unwrap_or_default();
    check(&settings, root.key("state_server"))?;
    let StateServerSettings { servers, standby, transport, provider } = settings;
    let is_libfabric = transport == ServerTransport::Libfabric;
    let provider = is_libfabric.then(|| provider.unwrap_or_else(|| DEFAULT_PROVIDER.to_owned()));
    Ok(StateServers { count: servers, standby, transport, provider })
}

fn check(settings: &StateServerSettings, spot: Spot<'_>) -> Result<(), Mistake> {
    if !(1..=NodeId::MAX_STATE_SERVERS).contains(&settings.servers) {
        let text = format!(
            "there can be 1 to {} state servers, not {}",
            NodeId::MAX_STATE_SERVERS,
            settings.servers
        );
        return Err(spot.key("servers").mistake(text));
    }
    let Some(provider) = &settings.provider else { return Ok(()) };
    if settings.transport != ServerTransport::Libfabric {
        let text = "only `transport: libfabric` has a provider: leave `provider` out";
        return Err(spot.name("provider").mistake(text));
    }
    let known = || PROVIDERS.map(|name| format!("`{name}`")).join(", ");
    let text = match provider.as_str() {
        known if PROVIDERS.contains(&known) => return Ok(()),
        "sockets" => {
            "libfabric's `sockets` crashes whoever is left when the other side ends: `tcp;ofi_rxm` does the same without that"
                .to_owned()
        }
        other => format!("there is no provider `{other}` for control messages: {}{}", known(), suggestion(other, PROVIDERS)),
    };
    Err(spot.key("provider").mistake(text))
}
