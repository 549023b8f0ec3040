//! The state server, or several: how many, who goes on where one was, and how control messages go between them and runtimes.

use super::file::Config;
use super::mistake::{Mistake, suggestion};
use super::source::Spot;
use holdfast_node::address::MAX_STATE_SERVERS;
use schemars::JsonSchema;
use serde::Deserialize;
use std::fmt;

/// libfabric's provider, if nothing is said: it is everywhere.
const DEFAULT_PROVIDER: &str = "tcp;ofi_rxm";
/// Those that can be used, and those of them that need a card.
const PROVIDERS: [&str; 5] = [DEFAULT_PROVIDER, "net", "shm", "verbs;ofi_rxm", "efa"];

/// The process that assigns what flows share, and where they have their home, where a chain says so.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StateServerSettings {
    /// How many such processes divide the flows among them, 1 to 8: where one has as much to do as a core can. The first one alone assigns numbers and adds statistics up.
    #[schemars(range(min = 1, max = 8))]
    pub servers: u16,
    /// Who goes on where it was when its process is killed. Each has its own.
    pub standby: ServerStandby,
    /// How control messages go between it and the runtimes: who has which number of a pool. Flows and greetings go on the fabric in any case.
    pub transport: ServerTransport,
    /// With `transport: libfabric`: its provider, `tcp;ofi_rxm` if nothing is said; `verbs;ofi_rxm` where there is a card for remote writes.
    pub provider: Option<String>,
}

impl Default for StateServerSettings {
    fn default() -> StateServerSettings {
        StateServerSettings {
            servers: 1,
            standby: ServerStandby::default(),
            transport: ServerTransport::default(),
            provider: None,
        }
    }
}

/// See [`StateServerSettings`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServerStandby {
    /// A process beside it that has its memory: runtimes notice nothing. The default.
    #[default]
    Local,
    /// Nobody: the next one begins with nothing, and runtimes tell it what they have.
    None,
}

impl fmt::Display for ServerStandby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerStandby::Local => "local",
            ServerStandby::None => "none",
        })
    }
}

/// See [`StateServerSettings`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServerTransport {
    /// As all other messages. The default.
    #[default]
    Fabric,
    /// Rings in memory that the server and each runtime share.
    SharedMemory,
    /// Remote writes by one of libfabric's providers, which carry nothing but their immediate data.
    Libfabric,
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

impl Config {
    /// How many state servers divide the flows among them whose home is there.
    pub fn servers(&self) -> u16 {
        self.state_server.as_ref().map_or(1, |settings| settings.servers)
    }

    /// Who goes on where the state server was when its process is killed.
    pub fn server_standby(&self) -> ServerStandby {
        self.state_server.as_ref().map(|settings| settings.standby).unwrap_or_default()
    }

    /// How its control messages go.
    pub fn server_transport(&self) -> ServerTransport {
        self.state_server.as_ref().map(|settings| settings.transport).unwrap_or_default()
    }

    /// libfabric's provider, if they go by one.
    pub fn server_provider(&self) -> Option<&str> {
        let settings = self.state_server.as_ref()?;
        let is_asked = settings.transport == ServerTransport::Libfabric;
        is_asked.then(|| settings.provider.as_deref().unwrap_or(DEFAULT_PROVIDER))
    }
}

/// Looks whether the settings go together.
pub(super) fn check(config: &Config, root: Spot<'_>) -> Result<(), Mistake> {
    let Some(settings) = &config.state_server else { return Ok(()) };
    let spot = root.key("state_server");
    if !(1..=MAX_STATE_SERVERS).contains(&settings.servers) {
        let text = format!("there can be 1 to {MAX_STATE_SERVERS} state servers, not {}", settings.servers);
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
