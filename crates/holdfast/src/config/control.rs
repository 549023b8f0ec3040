//! Where the control API listens, and with which certificate.

use super::file::{Config, HostSettings};
use super::mistake::Mistake;
use super::source::{Source, Spot};
use holdfast_control::control_address;
use holdfast_control::tls::{Identity, TlsPaths};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor, value::MapAccessDeserializer};
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

/// The control API: the box can be asked, and told what to do, from elsewhere, by whoever has a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControlConfig {
    /// Address of this machine, like 10.9.0.1:7443, on a network that is none of the box's own; port 7443 without one. Of several hosts, where one has no `control` of its own.
    #[serde(default)]
    pub listen: Option<String>,
    /// The certificate of this host, its key, and the authority of all hosts and operators: `holdfast certify` makes them. SIGHUP reads them again.
    pub tls: TlsConfig,
}

/// Files for mutual TLS: the directory in which they have the names that `holdfast certify` gives them, or each by its path. From the configuration's directory.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum TlsConfig {
    /// The directory with `ca.pem`, `certificate.pem` and `key.pem`.
    Directory(String),
    /// Each file.
    Files(TlsFiles),
}

/// Files for mutual TLS (PEM).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificates of the authorities that everybody's own are signed by.
    pub ca: String,
    /// This host's certificate, and what leads to its authority.
    pub certificate: String,
    /// The certificate's key; only its owner may read it.
    pub key: String,
}

impl<'de> Deserialize<'de> for TlsConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TlsConfig, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = TlsConfig;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a directory, or a map with `ca`, `certificate` and `key`")
            }
            fn visit_str<E: Error>(self, directory: &str) -> Result<TlsConfig, E> {
                Ok(TlsConfig::Directory(directory.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TlsConfig, A::Error> {
                TlsFiles::deserialize(MapAccessDeserializer::new(map)).map(TlsConfig::Files)
            }
        }
        deserializer.deserialize_any(Form)
    }
}

impl TlsConfig {
    /// In words, for comparisons.
    pub(super) fn words(&self) -> String {
        match self {
            TlsConfig::Directory(directory) => directory.clone(),
            TlsConfig::Files(TlsFiles { ca, certificate, key }) => format!("{ca}, {certificate}, {key}"),
        }
    }
}

/// The section, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Where a host listens that says nothing else.
    listen: Option<SocketAddr>,
    tls: TlsPaths,
}

/// The control API of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlEntry {
    /// Where it listens.
    pub listen: SocketAddr,
    /// With which certificate.
    pub tls: TlsPaths,
}

impl Control {
    /// The files.
    pub fn tls(&self) -> &TlsPaths {
        &self.tls
    }

    /// That of a host; `own` is the address that it has for itself.
    pub(super) fn of(&self, own: Option<SocketAddr>) -> Option<ControlEntry> {
        own.or(self.listen).map(|listen| ControlEntry { listen, tls: self.tls.clone() })
    }
}

/// What a host says of its own address. Whether there is a section for it too is seen by [`read`].
pub(super) fn own_address(host: &HostSettings, spot: Spot<'_>) -> Result<Option<SocketAddr>, Mistake> {
    let read = |text: &String| control_address(text).map_err(|message| spot.key("control").mistake(message));
    host.control.as_ref().map(read).transpose()
}

/// The section; `file` is the configuration's name.
///
/// # Errors
/// The first mistake.
pub(super) fn read(file: &str, config: &Config, root: Spot<'_>) -> Result<Option<Control>, Mistake> {
    let with_own = config.hosts.iter().find(|(_, host)| host.control.is_some());
    let Some(control) = &config.control else {
        return match with_own {
            Some((name, _)) => Err(root.key("hosts").key(name).name("control").mistake(
                "a host's `control` needs the section `control: { tls: … }` too, at the file's top: the certificate with which it is served",
            )),
            None => Ok(None),
        };
    };
    let section = root.key("control");
    let listen =
        control.listen.as_ref().map(|text| control_address(text).map_err(|message| section.key("listen").mistake(message)));
    let listen = listen.transpose()?;
    if listen.is_none() && with_own.is_none() {
        let message = match config.hosts.is_empty() {
            true => "`control` has no `listen`: the address at which the box can be asked, like 10.9.0.1:7443",
            false => {
                "`control` has no `listen`, and no host an address of its own: `control: 10.9.0.1:7443` under each in `hosts`, for example"
            }
        };
        return Err(root.name("control").mistake(message));
    }
    let beside = |path: &str| Path::new(file).parent().unwrap_or(Path::new("")).join(path);
    let tls = match &control.tls {
        TlsConfig::Directory(directory) if directory.is_empty() => {
            return Err(section.key("tls").mistake("`tls` is the path of a directory: `holdfast certify DIR NAME` makes one"));
        }
        TlsConfig::Directory(directory) => TlsPaths::in_directory(&beside(directory)),
        TlsConfig::Files(files) => {
            for (key, path) in [("ca", &files.ca), ("certificate", &files.certificate), ("key", &files.key)] {
                if path.is_empty() {
                    return Err(section.key("tls").key(key).mistake(format!("`{key}` is a file's path")));
                }
            }
            TlsPaths { ca: beside(&files.ca), certificate: beside(&files.certificate), key: beside(&files.key) }
        }
    };
    Ok(Some(Control { listen, tls }))
}

/// The certificate and key that a configuration names. `file` and `text` are the configuration's.
///
/// # Errors
/// The mistake, at the place in the configuration that names the files.
pub fn identity(file: &str, text: &str, control: &Control) -> Result<Identity, Mistake> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    Identity::load(&control.tls).map_err(|message| Source::new(file, text).root().key("control").key("tls").mistake(message))
}
