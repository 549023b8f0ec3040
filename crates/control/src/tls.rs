//! Identity and trust between hosts and operators: certificates and keys from files.
//!
//! In: paths. Out: an [`Identity`] for rustls, or an error that names the file and the
//! remedy; the holder of a certificate. Never: a connection, or a part of a key in a
//! message.

use crate::secret::{read_public, read_secret};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The authority's certificates, in a directory.
pub const CA_FILE: &str = "ca.pem";
/// The own certificate, in a directory.
pub const CERTIFICATE_FILE: &str = "certificate.pem";
/// The own certificate's key, in a directory.
pub const KEY_FILE: &str = "key.pem";
/// The command that makes these files.
pub const MAKER: &str = "holdfast certify DIR NAME";
/// The protocol of both sides of the control API.
const HTTP2: &[u8] = b"h2";

/// The files for mutual TLS.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TlsPaths {
    /// The authority's certificates.
    pub ca: PathBuf,
    /// The own certificate.
    pub certificate: PathBuf,
    /// The own certificate's key.
    pub key: PathBuf,
}

impl TlsPaths {
    /// The files with the names that `holdfast certify` gives them.
    pub fn in_directory(directory: &Path) -> TlsPaths {
        TlsPaths {
            ca: directory.join(CA_FILE),
            certificate: directory.join(CERTIFICATE_FILE),
            key: directory.join(KEY_FILE),
        }
    }
}

/// Reads a directory, or the three files with commas between them.
impl std::str::FromStr for TlsPaths {
    type Err = String;

    fn from_str(text: &str) -> Result<TlsPaths, String> {
        match text.split(',').collect::<Vec<_>>()[..] {
            [""] => Err("the path of a directory is expected".to_owned()),
            [directory] => Ok(TlsPaths::in_directory(Path::new(directory))),
            [ca, certificate, key] if ![ca, certificate, key].contains(&"") => {
                Ok(TlsPaths { ca: ca.into(), certificate: certificate.into(), key: key.into() })
            }
            _ => Err("one directory, or three files: CA,CERTIFICATE,KEY".to_owned()),
        }
    }
}

/// The rights of a certificate's holder, from its organisational unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A viewer may query.
    Viewer,
    /// An operator may query, and change things.
    Operator,
    /// A host may query, and join under its own name.
    Host,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 3] = [Role::Viewer, Role::Operator, Role::Host];

    /// The role's name in a certificate.
    pub fn name(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Host => "host",
        }
    }
}

impl Role {
    /// The role with its article, for a sentence.
    pub fn with_article(self) -> &'static str {
        match self {
            Role::Viewer => "a viewer",
            Role::Operator => "an operator",
            Role::Host => "a host",
        }
    }
}

/// The holder of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The common name.
    pub name: String,
    /// The role; `None` if the organisational unit is not one of the roles.
    pub role: Option<Role>,
}

/// Reads the holder of a certificate; empty for an unreadable one.
pub fn holder(certificate: &CertificateDer<'_>) -> Holder {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return Holder { name: String::new(), role: None };
    };
    let subject = certificate.subject();
    let name = subject
        .iter_common_name()
        .next()
        .and_then(|name| name.as_str().ok())
        .unwrap_or_default()
        .to_owned();
    let mut units = subject.iter_organizational_unit();
    // Two units would be ambiguous.
    let unit = units.next().filter(|_| units.next().is_none()).and_then(|unit| unit.as_str().ok());
    Holder { name, role: Role::ALL.into_iter().find(|role| Some(role.name()) == unit) }
}

/// A certificate with its key, and the authorities that sign others' certificates.
pub struct Identity {
    authorities: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    holder: Holder,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let name = path.display();
    let bytes = read_public(path, MAKER)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match read {
        Ok(read) if !read.is_empty() => Ok(read),
        Ok(_) => Err(format!("`{name}`: there is no certificate in it (PEM)")),
        Err(error) => Err(format!("`{name}`: {error}")),
    }
}

impl Identity {
    /// Reads the files.
    ///
    /// # Errors
    /// The text names the file, the reason and the remedy.
    pub fn load(paths: &TlsPaths) -> Result<Identity, String> {
        let authorities_der = certificates(&paths.ca)?;
        let mut authorities = RootCertStore::empty();
        for certificate in &authorities_der {
            authorities
                .add(certificate.clone())
                .map_err(|error| format!("`{}`: {error}", paths.ca.display()))?;
        }
        let chain = certificates(&paths.certificate)?;
        let key = read_secret(&paths.key, MAKER, MAKER)?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| {
            format!("`{}`: there is no key in it (PEM): {error}", paths.key.display())
        })?;
        check(paths, &chain, &authorities_der)?;
        let signing = provider()
            .key_provider
            .load_private_key(key.clone_key())
            .map_err(|error| format!("`{}`: {error}", paths.key.display()))?;
        let pair = rustls::sign::CertifiedKey::new(chain.clone(), signing);
        if let Err(error) = pair.keys_match() {
            let text = match error {
                rustls::Error::InconsistentKeys(_) => {
                    format!(
                        "`{}` is not the key of the certificate in `{}`",
                        paths.key.display(),
                        paths.certificate.display()
                    )
                }
                error => format!("`{}`: {error}", paths.certificate.display()),
            };
            return Err(text);
        }
        let holder = holder(&chain[0]);
        Ok(Identity { authorities, chain, key, holder })
    }

    /// The certificate's holder.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// The server's configuration: every client shows a certificate of the authorities,
    /// which the verifier checks.
    ///
    /// # Errors
    /// The error of rustls.
    pub fn server(&self) -> Result<(Arc<ServerConfig>, Arc<dyn ClientCertVerifier>), String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::new(self.authorities.clone()),
            provider(),
        )
        .build()
        .map_err(|error| failed(&error))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_client_cert_verifier(verifier.clone())
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|error| failed(&error))?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        // Every connection verifies the certificate: no session is resumed.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok((Arc::new(config), verifier))
    }

    /// The client's configuration.
    ///
    /// # Errors
    /// The error of rustls.
    pub fn client(&self) -> Result<Arc<ClientConfig>, String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_root_certificates(self.authorities.clone())
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|error| failed(&error))?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(Arc::new(config))
    }
}

/// Checks the certificate as a peer would, where it can be mended: its time, and its
/// signature.
fn check(
    paths: &TlsPaths,
    chain: &[CertificateDer<'_>],
    authorities: &[CertificateDer<'_>],
) -> Result<(), String> {
    let name = paths.certificate.display();
    let wrong = |error: &dyn std::fmt::Display| format!("`{name}`: {error}");
    let parsed = chain.iter().map(|der| X509Certificate::from_der(der).map(|(_, parsed)| parsed));
    let parsed = parsed.collect::<Result<Vec<_>, _>>().map_err(|error| wrong(&error))?;
    let own = &parsed[0];
    if !own.validity().is_valid() {
        let validity = own.validity();
        return Err(format!(
            "`{name}` is good from {} to {}, and not now: `holdfast certify` makes another one",
            validity.not_before, validity.not_after
        ));
    }
    let authorities = authorities
        .iter()
        .filter_map(|der| X509Certificate::from_der(der).ok().map(|(_, parsed)| parsed));
    let mut issuers = authorities.chain(parsed.iter().skip(1).cloned());
    if !issuers.any(|issuer| {
        issuer.subject() == own.issuer() && own.verify_signature(Some(issuer.public_key())).is_ok()
    }) {
        return Err(format!(
            "`{name}` is not signed by the authority in `{}`: they are of different sets",
            paths.ca.display()
        ));
    }
    Ok(())
}
