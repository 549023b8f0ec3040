//! Addresses of a control API, as people write them.

use rustls::pki_types::ServerName;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The control API's default port.
pub const CONTROL_PORT: u16 = 7443;

/// Reads an address, with or without a port.
///
/// # Errors
/// The text says what the address should be.
pub fn control_address(text: &str) -> Result<SocketAddr, String> {
    let alone = |text: &str| {
        text.trim_matches(['[', ']'])
            .parse::<IpAddr>()
            .ok()
            .map(|ip| SocketAddr::new(ip, CONTROL_PORT))
    };
    let address = text.parse().ok().or_else(|| alone(text));
    address.filter(|address| address.port() != 0).ok_or_else(|| {
        format!(
            "`{}` is no address with a port: ADDRESS:PORT, like 10.9.0.1:{CONTROL_PORT} or [fd00::1]:{CONTROL_PORT}",
            text.escape_debug()
        )
    })
}

/// A listening address of a box: a name or an address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    /// Reads `ADDRESS` or `NAME`, either with `:PORT`.
    fn from_str(text: &str) -> Result<Endpoint, String> {
        if let Ok(address) = control_address(text) {
            return Ok(Endpoint { host: address.ip().to_string(), port: address.port() });
        }
        let wrong = || {
            format!(
                "`{}` is no place of a control API: ADDRESS:PORT or NAME:PORT, like 10.9.0.1:7443",
                text.escape_debug()
            )
        };
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => {
                (host, port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?)
            }
            None => (text, CONTROL_PORT),
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if host.is_empty() || !host.chars().all(is_plain) || ServerName::try_from(host).is_err() {
            return Err(wrong());
        }
        Ok(Endpoint { host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_or_a_name_with_a_port_or_without() {
        let read = |text: &str| {
            text.parse::<Endpoint>().map(|endpoint| endpoint.to_string()).map_err(|_| ())
        };
        for (text, expected) in [
            ("10.9.0.1:99", Ok("10.9.0.1:99")),
            ("10.9.0.1", Ok("10.9.0.1:7443")),
            ("[fd00::1]:99", Ok("[fd00::1]:99")),
            ("[fd00::1]", Ok("[fd00::1]:7443")),
            ("left.example:99", Ok("left.example:99")),
            ("left", Ok("left:7443")),
            ("", Err(())),
            ("left:0", Err(())),
            ("left:x", Err(())),
            ("le ft:9", Err(())),
            ("user@left:9", Err(())),
            ("left/path", Err(())),
        ] {
            assert_eq!(read(text), expected.map(str::to_owned), "{text}");
        }
    }
}
