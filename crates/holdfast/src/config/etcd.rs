//! The etcd for the coordinators' election and log.

use super::mistake::Mistake;
use super::raw::Config;
use super::source::Spot;
use std::path::PathBuf;

const MAX_ENDPOINTS: usize = 16;
const MAX_PREFIX: usize = 256;
/// etcd's own port, if none is named.
const DEFAULT_PORT: u16 = 2379;

/// A member of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The text as written.
    pub text: String,
    /// The name or address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// The section, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Etcd {
    /// The members.
    pub endpoints: Vec<Endpoint>,
    /// The prefix of all keys, without a slash at its end.
    pub prefix: String,
    /// The file of authorities, if the members speak TLS.
    pub ca: Option<PathBuf>,
    /// The files with this box's certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// See [`EtcdConfig::lease_ms`](super::raw::EtcdConfig::lease_ms).
    pub lease_ms: u64,
}

impl Etcd {
    /// The members and the prefix, in words.
    pub fn place(&self) -> String {
        let endpoints: Vec<&str> =
            self.endpoints.iter().map(|endpoint| endpoint.text.as_str()).collect();
        format!("at {} in etcd ({})", self.prefix, endpoints.join(", "))
    }
}

/// Reads an endpoint: true if it speaks TLS, and its address.
fn endpoint(text: &str) -> Result<(bool, Endpoint), String> {
    let wrong = || {
        format!("`{text}` is no address of etcd: `https://HOST:PORT`, like https://10.0.0.1:2379")
    };
    let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
    let is_secure = match scheme {
        "https" => true,
        "http" => false,
        _ => return Err(wrong()),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match rest.strip_prefix('[') {
        Some(six) => {
            let (host, port) = six.split_once(']').ok_or_else(wrong)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            (
                host,
                if port.is_empty() {
                    None
                } else {
                    Some(port.strip_prefix(':').ok_or_else(wrong)?)
                },
            )
        }
        None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if host.is_empty() || host.len() > 253 || !rest.starts_with('[') && !host.chars().all(is_plain)
    {
        return Err(wrong());
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => port.parse().ok().filter(|number| *number > 0).ok_or_else(wrong)?,
    };
    Ok((is_secure, Endpoint { text: text.to_owned(), host: host.to_owned(), port }))
}

fn prefix(text: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if text.len() > MAX_PREFIX
        || !text.starts_with('/')
        || text.ends_with('/')
        || text.contains("//")
        || !text.chars().all(is_plain)
    {
        return Err(format!(
            "`{}` is no prefix: it is like /holdfast/edge, of letters, digits, `-`, `_`, `.`, and `/` before each part, {MAX_PREFIX} at most",
            text.chars().take(MAX_PREFIX).collect::<String>()
        ));
    }
    Ok(())
}

/// Reads the section, with defaults filled in.
///
/// # Errors
/// The first mistake.
pub(super) fn read(config: &Config, root: Spot<'_>) -> Result<Option<Etcd>, Mistake> {
    let Some(etcd) = &config.etcd else { return Ok(None) };
    let section = root.key("etcd");
    if etcd.endpoints.is_empty() || etcd.endpoints.len() > MAX_ENDPOINTS {
        let found = etcd.endpoints.len();
        return Err(section
            .key("endpoints")
            .mistake(format!("etcd has 1 to {MAX_ENDPOINTS} endpoints here, not {found}")));
    }
    let mut endpoints = Vec::new();
    let mut scheme = None;
    for (at, text) in etcd.endpoints.iter().enumerate() {
        let spot = section.key("endpoints").index(at);
        let (is_secure, endpoint) = endpoint(text).map_err(|message| spot.mistake(message))?;
        if *scheme.get_or_insert(is_secure) != is_secure {
            return Err(spot.mistake("the endpoints are all `https`, or all `http`"));
        }
        endpoints.push(endpoint);
    }
    let is_secure = scheme == Some(true);
    for (key, path) in [("ca", &etcd.ca), ("certificate", &etcd.certificate), ("key", &etcd.key)] {
        if path.as_ref().is_some_and(String::is_empty) {
            return Err(section.key(key).mistake(format!("`{key}` is a file's path")));
        }
        if path.is_some() && !is_secure {
            return Err(section
                .name(key)
                .mistake(format!("`{key}` is for endpoints with `https`, and these have `http`")));
        }
    }
    if is_secure && etcd.ca.is_none() {
        return Err(root
            .name("etcd")
            .mistake("`https` needs `ca`, the file with the certificate of the authority that etcd's own is signed by"));
    }
    let certificate = match (&etcd.certificate, &etcd.key) {
        (Some(certificate), Some(key)) => Some((root.beside(certificate), root.beside(key))),
        (None, None) => None,
        (Some(_), None) => {
            return Err(section
                .name("certificate")
                .mistake("`certificate` needs `key`, the file with its key"));
        }
        (None, Some(_)) => {
            return Err(section
                .name("key")
                .mistake("`key` needs `certificate`, the file with what it is the key of"));
        }
    };
    if let Some(text) = &etcd.prefix {
        prefix(text).map_err(|message| section.key("prefix").mistake(message))?;
    }
    if !(1000..=60_000).contains(&etcd.lease_ms) {
        let text = format!("`lease_ms` is between 1000 and 60000, not {}", etcd.lease_ms);
        return Err(section.key("lease_ms").mistake(text));
    }
    Ok(Some(Etcd {
        endpoints,
        prefix: etcd.prefix.clone().unwrap_or_else(|| format!("/holdfast/{}", config.cluster)),
        ca: etcd.ca.as_ref().map(|ca| root.beside(ca)),
        certificate,
        lease_ms: etcd.lease_ms,
    }))
}
