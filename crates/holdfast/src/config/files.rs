//! The files that a configuration names. No other part of the configuration opens files,
//! and only these are read again.

use super::bfd::{self, BfdPeer};
use super::keys;
use super::mistake::Mistake;
use super::plan::Plan;
use holdfast_control::tls::Identity;
use holdfast_node::bfd::Key;
use holdfast_node::channel::KeyRing;

impl Plan {
    /// Reads the cluster's keys, if a file is named.
    ///
    /// # Errors
    /// The mistake, at the place that names the file.
    pub fn read_keys(&self) -> Result<Option<KeyRing>, Mistake> {
        let spot = self.source.root().key("fabric").key("key");
        self.key
            .as_ref()
            .map(|path| keys::read(path).map_err(|message| spot.mistake(message)))
            .transpose()
    }

    /// Reads the keys for watched routers, in the order of [`Plan::bfd`].
    ///
    /// # Errors
    /// The mistake, at the place that names the file.
    pub fn read_bfd_keys(&self) -> Result<Vec<Option<Key>>, Mistake> {
        let ports = self.source.root().key("ports");
        let read = |peer: &BfdPeer| {
            let Some((key, port, at)) = &peer.key else { return Ok(None) };
            let spot = ports.key(port).key("bfd").index(*at).key("key").key("file");
            bfd::load(&spot.beside(&key.file), key)
                .map(Some)
                .map_err(|message| spot.mistake(message))
        };
        self.bfd.iter().map(read).collect()
    }

    /// Reads the certificate and key of the control API, if there is one.
    ///
    /// # Errors
    /// The mistake, at the place that names the files.
    pub fn read_identity(&self) -> Result<Option<Identity>, Mistake> {
        let spot = self.source.root().key("control").key("tls");
        let control = self.control.as_ref();
        control
            .map(|control| Identity::load(control.tls()).map_err(|message| spot.mistake(message)))
            .transpose()
    }

    /// Files that another host needs too: the key that names each, and the path as
    /// written.
    pub fn named_files(&self) -> Vec<(&'static str, &str)> {
        let etcd = self.raw.etcd.as_ref();
        let named = [
            ("fabric.key", self.raw.fabric.as_ref().and_then(|fabric| fabric.key.as_ref())),
            ("etcd.ca", etcd.and_then(|etcd| etcd.ca.as_ref())),
            ("etcd.certificate", etcd.and_then(|etcd| etcd.certificate.as_ref())),
            ("etcd.key", etcd.and_then(|etcd| etcd.key.as_ref())),
        ];
        let bfd =
            self.raw.ports.values().flat_map(|port| &port.bfd).filter_map(|bfd| bfd.key.as_ref());
        let named = named.into_iter().chain(bfd.map(|key| ("bfd.key.file", Some(&key.file))));
        named.filter_map(|(key, path)| Some((key, path?.as_str()))).collect()
    }
}
