//! The function's configuration.

use super::pipeline::HOSTS;
use super::{DEFAULT, rule};
use crate::firewall::Action;
use holdfast_nf::ConfigError;
use schemars::JsonSchema;
use serde::Deserialize;

/// The function's configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpConfig {
    /// TCP ports of servers whose connections are read; 80 by default. All other flows
    /// pass unread.
    #[serde(default = "port_80")]
    pub ports: Vec<u16>,
    /// The rules; the first one that matches a request decides. A rule is an action
    /// (`allow`, `deny` or `reject`), then any of `host NAME`, `method NAME|NAME`, `path
    /// PATH` and `upgrade`, such as `deny host *.example.com path /admin*`. A `*` at the
    /// beginning or the end of a host or a path stands for anything. Hosts are compared
    /// without their port and without regard to case. Paths are compared without their
    /// query, decoded and without dot segments. The condition `upgrade` matches requests
    /// with an Upgrade field.
    #[serde(default)]
    pub rules: Vec<String>,
    /// The action for requests that no rule matches; `allow` by default.
    #[serde(default = "allow")]
    pub default: Action,
    /// The action for messages whose header section is longer than `header_bytes`, and
    /// for requests with a method of more than 24 bytes, a host of more than 128 or a
    /// path of more than 384, if a rule compares that part; `deny` by default. Allowed
    /// requests are not judged by rules.
    #[serde(default)]
    pub oversized: Action,
    /// The action for messages that are not HTTP/1.0 or HTTP/1.1, or are ambiguous;
    /// `deny` by default. An allowed response ends the reading of responses, an allowed
    /// request the reading of both directions.
    #[serde(default)]
    pub malformed: Action,
    /// Maximum number of bytes of a header section; 32768 by default.
    #[serde(default = "header_bytes")]
    #[schemars(range(min = 64))]
    pub header_bytes: u32,
    /// `requests`: each request and each response is a line in the daemon's log, at most
    /// 2000 lines per second and runtime. Nothing is logged by default.
    #[serde(default)]
    pub log: Option<HttpLog>,
    /// Hosts, at most 63, with counters of their own. Requests and responses of all other
    /// hosts are counted together.
    #[serde(default)]
    pub hosts: Vec<String>,
}

/// The messages that are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HttpLog {
    /// Requests and their responses.
    Requests,
}

fn port_80() -> Vec<u16> {
    vec![80]
}

fn allow() -> Action {
    Action::Allow
}

fn header_bytes() -> u32 {
    32_768
}

/// Minimum of `header_bytes`.
const MIN_HEADER: u32 = 64;

impl HttpConfig {
    /// Checks the ports, `header_bytes`, and the numbers of rules and hosts.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.ports.is_empty() {
            return Err(ConfigError::at("ports", "there must be at least one port, like [80]"));
        }
        if self.header_bytes < MIN_HEADER {
            let message = format!("{} bytes hold no header: at least 64", self.header_bytes);
            return Err(ConfigError::at("header_bytes", message));
        }
        for (key, count, most) in [
            ("rules", self.rules.len(), usize::from(DEFAULT)),
            ("hosts", self.hosts.len(), HOSTS - 1),
        ] {
            if count > most {
                let message = format!("{count} are more than the {most} that there may be");
                return Err(ConfigError::at(key, message));
            }
        }
        Ok(())
    }

    /// The hosts with counters of their own, in lower case.
    pub(super) fn hosts(&self) -> Result<Vec<String>, ConfigError> {
        let mut hosts: Vec<String> = Vec::new();
        for (at, word) in self.hosts.iter().enumerate() {
            let wrong = |message: String| ConfigError::at(format!("hosts[{at}]"), message);
            let host = rule::host(word).map_err(wrong)?;
            if host.contains('*') {
                return Err(wrong(format!("`{word}` is not one host: no `*` can stand here")));
            }
            if hosts.contains(&host) {
                return Err(wrong(format!("`{word}` is there already")));
            }
            hosts.push(host);
        }
        Ok(hosts)
    }
}
