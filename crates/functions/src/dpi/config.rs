//! The configuration.

use holdfast_nf::ConfigError;
use schemars::JsonSchema;
use serde::Deserialize;

/// The configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DpiConfig {
    /// Rules, of which the first that matches a flow decides. Each is an action (`allow`,
    /// `deny`, `reject`, or `mark` with a DSCP), then protocols or categories: `deny
    /// protocol SSH|Telnet`, `mark le category Streaming`. A rule that begins with
    /// `count` counts flows, and later rules decide. Without a rule a flow passes.
    #[serde(default)]
    pub rules: Vec<String>,
    /// Packets with data of a TCP connection that the library gets at most; 80 by
    /// default. After these the flow's protocol is unknown.
    #[serde(default = "tcp_packets")]
    #[schemars(range(min = 1))]
    pub tcp_packets: u32,
    /// Packets of any other flow that the library gets at most; 24 by default.
    #[serde(default = "other_packets")]
    #[schemars(range(min = 1))]
    pub other_packets: u32,
    /// Flows of a runtime whose protocol may be undecided at a time; 16384 by default.
    /// With more, another one is decided by what is known of it.
    #[serde(default = "undecided_flows")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub undecided_flows: u32,
    /// Memory of the library for these flows in a runtime, MiB; 64 by default.
    #[serde(default = "memory_mib")]
    #[schemars(range(min = 1, max = 65_536))]
    pub memory_mib: u32,
}

/// As ndpiReader.
fn tcp_packets() -> u32 {
    80
}

/// As ndpiReader.
fn other_packets() -> u32 {
    24
}

fn undecided_flows() -> u32 {
    16_384
}

fn memory_mib() -> u32 {
    64
}

impl DpiConfig {
    /// Checks the numbers.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        for (key, number, most) in [
            ("tcp_packets", self.tcp_packets, u32::MAX),
            ("other_packets", self.other_packets, u32::MAX),
            ("undecided_flows", self.undecided_flows, 1 << 20),
            ("memory_mib", self.memory_mib, 1 << 16),
        ] {
            if !(1..=most).contains(&number) {
                let message = format!("{number} is not a number from 1 to {most}");
                return Err(ConfigError::at(key, message));
            }
        }
        Ok(())
    }
}
