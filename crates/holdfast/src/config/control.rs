//! The control API: its listening addresses and certificate.

use super::mistake::Mistake;
use super::raw::{Config, HostSettings, TlsConfig};
use super::source::Spot;
use holdfast_control::control_address;
use holdfast_control::tls::TlsPaths;
use std::net::SocketAddr;

/// The section, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// The listening address of hosts without one of their own.
    listen: Option<SocketAddr>,
    tls: TlsPaths,
}

/// The control API of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlEntry {
    /// The listening address.
    pub listen: SocketAddr,
    /// The certificate's files.
    pub tls: TlsPaths,
}

impl Control {
    /// The files.
    pub fn tls(&self) -> &TlsPaths {
        &self.tls
    }

    /// The control API of a host; `own` is the host's own address.
    pub(super) fn of(&self, own: Option<SocketAddr>) -> Option<ControlEntry> {
        own.or(self.listen).map(|listen| ControlEntry { listen, tls: self.tls.clone() })
    }
}

/// A host's own listening address. [`read`] checks that the section exists too.
pub(super) fn own_address(
    host: &HostSettings,
    spot: Spot<'_>,
) -> Result<Option<SocketAddr>, Mistake> {
    let read = |text: &String| {
        control_address(text).map_err(|message| spot.key("control").mistake(message))
    };
    host.control.as_ref().map(read).transpose()
}

/// Reads the section.
///
/// # Errors
/// The first mistake.
pub(super) fn read(config: &Config, root: Spot<'_>) -> Result<Option<Control>, Mistake> {
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
    let listen = control.listen.as_ref().map(|text| {
        control_address(text).map_err(|message| section.key("listen").mistake(message))
    });
    let listen = listen.transpose()?;
    if listen.is_none() && with_own.is_none() {
        let message = match config.hosts.is_empty() {
            true => {
                "`control` has no `listen`: the address at which the box can be asked, like 10.9.0.1:7443"
            }
            false => {
                "`control` has no `listen`, and no host an address of its own: `control: 10.9.0.1:7443` under each in `hosts`, for example"
            }
        };
        return Err(root.name("control").mistake(message));
    }
    let tls = match &control.tls {
        TlsConfig::Directory(directory) if directory.is_empty() => {
            return Err(section.key("tls").mistake(
                "`tls` is the path of a directory: `holdfast certify DIR NAME` makes one",
            ));
        }
        TlsConfig::Directory(directory) => TlsPaths::in_directory(&root.beside(directory)),
        TlsConfig::Files(files) => {
            for (key, path) in
                [("ca", &files.ca), ("certificate", &files.certificate), ("key", &files.key)]
            {
                if path.is_empty() {
                    return Err(section
                        .key("tls")
                        .key(key)
                        .mistake(format!("`{key}` is a file's path")));
                }
            }
            TlsPaths {
                ca: root.beside(&files.ca),
                certificate: root.beside(&files.certificate),
                key: root.beside(&files.key),
            }
        }
    };
    Ok(Some(Control { listen, tls }))
}
