//! Certificates for hosts and operators, and the authority that signs them, as `holdfast
//! certify` writes them.
//!
//! In: a directory and the subjects. Out: files, with keys that only their owner can
//! read. Never: an overwritten file.
//!
//! ```text
//! DIR/ca.pem  DIR/ca.key                                    the authority; its key is needed here only
//! DIR/NAME/ca.pem  certificate.pem  key.pem                 what NAME needs, to be taken there
//! ```

use crate::exit::{self, Failure};
use crate::secret::read_secret;
use crate::tls::{CA_FILE, CERTIFICATE_FILE, KEY_FILE, MAKER, Role};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

/// The authority's key.
const CA_KEY_FILE: &str = "ca.key";
/// Validity of an authority, days.
const CA_DAYS: u32 = 3650;
/// Certificates are valid from this long ago, because clocks differ.
const SINCE: Duration = Duration::hours(1);
/// Longest name.
const MAX_NAME: usize = 48;

/// The subject of a certificate: a host as `NAME`, or `NAME=ADDRESS,…` with the addresses
/// and names of its control API; `operator:NAME`; `viewer:NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The holder's role.
    pub role: Role,
    /// The holder's name; a host's is in the configuration.
    pub name: String,
    /// A host's addresses and names, besides its own name.
    pub places: Vec<String>,
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Subject, String> {
        let named = text.split_once(':').and_then(|(word, rest)| {
            Some((Role::ALL.into_iter().find(|role| role.name() == word)?, rest))
        });
        let (role, rest) = named.unwrap_or((Role::Host, text));
        let (name, places) =
            rest.split_once('=').map_or((rest, None), |(name, places)| (name, Some(places)));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty()
            || name.len() > MAX_NAME
            || name.starts_with('.')
            || !name.chars().all(is_plain)
        {
            return Err(format!(
                "a name is 1 to {MAX_NAME} letters, digits, `-`, `_` or `.`, and does not begin with `.`: NAME, NAME=ADDRESS, operator:NAME or viewer:NAME"
            ));
        }
        if places.is_some() && role != Role::Host {
            return Err(format!(
                "`{name}` is no host: nobody asks at an address of a {}",
                role.name()
            ));
        }
        let places: Vec<String> =
            places.into_iter().flat_map(|places| places.split(',')).map(str::to_owned).collect();
        for place in &places {
            if place.parse::<IpAddr>().is_err() && !is_dns_name(place) {
                return Err(format!(
                    "`{place}` is neither an address nor a name: NAME=ADDRESS,ADDRESS, without ports"
                ));
            }
        }
        Ok(Subject { role, name: name.to_owned(), places })
    }
}

fn is_dns_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(is_plain)
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// The result of `certify`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certified {
    /// True if the authority is new.
    pub has_new_authority: bool,
    /// Each subject's directory, in order.
    pub directories: Vec<PathBuf>,
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(exit::of_system(error), format!("{}: {error}", path.display()))
}

fn broken(error: &rcgen::Error) -> Failure {
    Failure::new(exit::SOFTWARE, format!("making a certificate: {error}"))
}

/// Writes a new file, for its owner only if it is secret.
fn write(path: &Path, text: &str, is_secret: bool) -> Result<(), Failure> {
    let mode = if is_secret { 0o600 } else { 0o644 };
    let created = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written =
        created.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.map_err(|error| failed(path, &error))
}

fn serial() -> Result<SerialNumber, Failure> {
    let mut bytes = [0u8; 16];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(16) => {
            // The number is positive, and as long as it looks (RFC 5280, 4.1.2.2).
            bytes[0] = bytes[0] & 0x7f | 0x40;
            Ok(SerialNumber::from_slice(&bytes))
        }
        _ => Err(Failure::new(exit::UNAVAILABLE, "the system gives no random numbers")),
    }
}

fn params(
    name: String,
    unit: Option<&str>,
    from: OffsetDateTime,
    days: u32,
) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::default();
    params.serial_number = Some(serial()?);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Holdfast");
    if let Some(unit) = unit {
        params.distinguished_name.push(DnType::OrganizationalUnitName, unit);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = from - SINCE;
    params.not_after = from + Duration::days(days.into());
    Ok(params)
}

struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// The directory's authority, and true if it is new.
fn authority(directory: &Path, now: OffsetDateTime) -> Result<(Authority, bool), Failure> {
    let (certificate_path, key_path) = (directory.join(CA_FILE), directory.join(CA_KEY_FILE));
    match (certificate_path.exists(), key_path.exists()) {
        (true, true) => {
            let certificate = std::fs::read_to_string(&certificate_path)
                .map_err(|error| failed(&certificate_path, &error))?;
            let wrong = |text: String| Failure::new(exit::CONFIGURATION, text);
            let key = read_secret(&key_path, MAKER, MAKER).map_err(wrong)?;
            let unreadable = |path: &Path, error: &dyn std::fmt::Display| {
                wrong(format!("`{}`: {error}", path.display()))
            };
            let text = std::str::from_utf8(&key).map_err(|error| unreadable(&key_path, &error))?;
            let key = KeyPair::from_pem(text).map_err(|error| unreadable(&key_path, &error))?;
            let issuer = Issuer::from_ca_cert_pem(&certificate, key)
                .map_err(|error| unreadable(&certificate_path, &error))?;
            Ok((Authority { certificate, issuer }, false))
        }
        (false, false) => {
            // Two authorities must not have one name: a peer that trusts both would check
            // the signature with the wrong one.
            let mut own = [0u8; 4];
            let _ = getrandom(&mut own, GetRandomFlags::empty());
            let name = format!("Holdfast CA {:08x}", u32::from_ne_bytes(own));
            let mut params = params(name, None, now, CA_DAYS)?;
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            let key = KeyPair::generate().map_err(|error| broken(&error))?;
            let certificate = params.self_signed(&key).map_err(|error| broken(&error))?.pem();
            // The key is written first: with the key alone the command can say what is
            // missing, and no peer trusts a certificate whose key is lost.
            write(&key_path, &Zeroizing::new(key.serialize_pem()), true)?;
            write(&certificate_path, &certificate, false)?;
            Ok((Authority { certificate, issuer: Issuer::new(params, key) }, true))
        }
        (has_certificate, _) => {
            let missing = if has_certificate { &key_path } else { &certificate_path };
            let text = format!(
                "the authority's `{}` is not there, and without it nobody can be added: bring it back, or begin in another directory, with new certificates for all",
                missing.display()
            );
            Err(Failure::new(exit::NEGATIVE, text))
        }
    }
}

/// Makes certificates, valid for `days` from `now`, and the authority if there is none.
///
/// # Errors
/// If a certificate exists already (exit code 1, and nothing is written), or files cannot
/// be read or written.
pub fn certify(
    directory: &Path,
    subjects: &[Subject],
    days: u32,
    now: OffsetDateTime,
) -> Result<Certified, Failure> {
    for (at, subject) in subjects.iter().enumerate() {
        let path = directory.join(&subject.name);
        if path.exists() {
            let text = format!(
                "`{}` is there already, and who has its certificate goes on using it: move it away to make another one",
                path.display()
            );
            return Err(Failure::new(exit::NEGATIVE, text));
        }
        if subjects[..at].iter().any(|other| other.name == subject.name)
            || [CA_FILE, CA_KEY_FILE].contains(&subject.name.as_str())
        {
            return Err(Failure::new(
                exit::USAGE,
                format!("`{}`: each name is one directory, and comes once", subject.name),
            ));
        }
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| failed(directory, &error))?;
    let (authority, has_new_authority) = authority(directory, now)?;
    let mut directories = Vec::new();
    for subject in subjects {
        directories.push(issue(directory, &authority, subject, days, now)?);
    }
    Ok(Certified { has_new_authority, directories })
}

fn issue(
    directory: &Path,
    authority: &Authority,
    subject: &Subject,
    days: u32,
    now: OffsetDateTime,
) -> Result<PathBuf, Failure> {
    let mut params = params(subject.name.clone(), Some(subject.role.name()), now, days)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if subject.role == Role::Host {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        let own = Some(&subject.name).filter(|name| is_dns_name(name));
        for place in own.into_iter().chain(&subject.places) {
            params.subject_alt_names.push(match place.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(
                    Ia5String::try_from(place.as_str()).map_err(|error| broken(&error))?,
                ),
            });
        }
    }
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(|error| broken(&error))?;
    let certificate =
        params.signed_by(&key, &authority.issuer).map_err(|error| broken(&error))?.pem();
    // A directory gets its name only when it is complete.
    let (new, path) =
        (directory.join(format!(".{}.new", subject.name)), directory.join(&subject.name));
    let _ = std::fs::remove_dir_all(&new);
    DirBuilder::new().mode(0o700).create(&new).map_err(|error| failed(&new, &error))?;
    let written = write(&new.join(CA_FILE), &authority.certificate, false)
        .and_then(|()| write(&new.join(CERTIFICATE_FILE), &certificate, false))
        .and_then(|()| write(&new.join(KEY_FILE), &Zeroizing::new(key.serialize_pem()), true))
        .and_then(|()| std::fs::rename(&new, &path).map_err(|error| failed(&path, &error)));
    if written.is_err() {
        let _ = std::fs::remove_dir_all(&new);
    }
    written.map(|()| path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{Identity, TlsPaths, holder};
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use std::os::unix::fs::PermissionsExt;

    fn subject(text: &str) -> Subject {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn certify_now(directory: &Path, subjects: &[&str]) -> Result<Certified, Failure> {
        let subjects: Vec<Subject> = subjects.iter().map(|text| subject(text)).collect();
        certify(directory, &subjects, 30, OffsetDateTime::now_utc())
    }

    fn loaded(directory: &Path) -> Result<Identity, String> {
        Identity::load(&TlsPaths::in_directory(directory))
    }

    #[test]
    fn whom_a_certificate_is_for_is_one_word() {
        assert_eq!(
            subject("left"),
            Subject { role: Role::Host, name: "left".into(), places: vec![] }
        );
        assert_eq!(
            subject("left=10.9.0.1,fd00::1,left.example").places,
            ["10.9.0.1", "fd00::1", "left.example"]
        );
        assert_eq!(
            subject("operator:alice"),
            Subject { role: Role::Operator, name: "alice".into(), places: vec![] }
        );
        assert_eq!(subject("host:left"), subject("left"));
        for (wrong, expected) in [
            ("", "a name is"),
            (".hidden", "a name is"),
            ("a/b", "a name is"),
            ("admin:alice", "a name is"),
            ("left=", "neither an address nor a name"),
            ("left=10.9.0.1:7443", "neither an address nor a name"),
            ("viewer:bob=10.0.0.1", "is no host"),
        ] {
            let message = wrong.parse::<Subject>().unwrap_err();
            assert!(message.contains(expected), "{wrong}: {message}");
        }
    }

    /// A single command makes an authority, a host, an operator. The code that uses the
    /// files accepts them, and keys are their owner's.
    #[test]
    fn what_is_made_can_be_used_and_keys_are_kept() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("tls");
        let made =
            certify_now(&directory, &["left=10.9.0.1", "operator:alice", "viewer:wall"]).unwrap();
        assert!(made.has_new_authority);
        let names = ["left", "alice", "wall"];
        assert_eq!(made.directories, names.map(|name| directory.join(name)));
        for (name, role) in names.into_iter().zip([Role::Host, Role::Operator, Role::Viewer]) {
            let identity =
                loaded(&directory.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(
                (identity.holder().name.as_str(), identity.holder().role),
                (name, Some(role))
            );
            identity.client().unwrap();
        }
        let mode = |path: &str| {
            std::fs::metadata(directory.join(path)).unwrap().permissions().mode() & 0o777
        };
        for (path, expected) in [
            ("", 0o700),
            ("ca.key", 0o600),
            ("left", 0o700),
            ("left/key.pem", 0o600),
            ("left/certificate.pem", 0o644),
            ("left/ca.pem", 0o644),
        ] {
            assert_eq!(mode(path), expected, "{path}");
        }
        let mut there: Vec<_> = std::fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        there.sort();
        assert_eq!(
            there,
            ["alice", "ca.key", "ca.pem", "left", "wall"],
            "nothing else is left there"
        );
    }

    /// A later command adds subjects under the same authority; it overwrites none, not
    /// even in part.
    #[test]
    fn a_name_is_added_later_and_none_is_written_over() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path();
        certify_now(directory, &["left"]).unwrap();
        let authority = std::fs::read(directory.join("ca.pem")).unwrap();
        assert!(!certify_now(directory, &["right"]).unwrap().has_new_authority);
        assert_eq!(std::fs::read(directory.join("right/ca.pem")).unwrap(), authority);
        let before = std::fs::read(directory.join("left/key.pem")).unwrap();
        let refused = certify_now(directory, &["third", "left"]).unwrap_err();
        assert_eq!(refused.code, exit::NEGATIVE);
        assert!(refused.message.contains("is there already"), "{refused}");
        assert!(!directory.join("third").exists());
        assert_eq!(std::fs::read(directory.join("left/key.pem")).unwrap(), before);
        assert_eq!(certify_now(directory, &["x", "operator:x"]).unwrap_err().code, exit::USAGE);

        std::fs::remove_file(directory.join("ca.key")).unwrap();
        let refused = certify_now(directory, &["fourth"]).unwrap_err();
        assert!(
            refused.code == exit::NEGATIVE && refused.message.contains("ca.key` is not there"),
            "{refused}"
        );
        assert_eq!(std::fs::read(directory.join("ca.pem")).unwrap(), authority);
    }

    /// Errors name the file and the remedy.
    #[test]
    fn files_that_do_not_fit_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let (one, other) = (scratch.path().join("one"), scratch.path().join("other"));
        certify_now(&one, &["left", "right"]).unwrap();
        certify_now(&other, &["left"]).unwrap();
        let paths = |ca: &str, certificate: &str, key: &str| TlsPaths {
            ca: scratch.path().join(ca),
            certificate: scratch.path().join(certificate),
            key: scratch.path().join(key),
        };
        let said = |paths: &TlsPaths| Identity::load(paths).err().unwrap_or_default();
        let good = ("one/left/ca.pem", "one/left/certificate.pem", "one/left/key.pem");
        assert_eq!(said(&paths(good.0, good.1, good.2)), "");
        assert!(said(&paths("none.pem", good.1, good.2)).contains("none.pem`: `holdfast certify"));
        assert!(said(&paths(good.2, good.1, good.2)).contains("there is no certificate in it"));
        assert!(said(&paths(good.0, good.1, good.1)).contains("has mode 0644"));
        assert!(
            said(&paths(good.0, good.1, "one/right/key.pem"))
                .contains("is not the key of the certificate")
        );
        assert!(
            said(&paths("other/ca.pem", good.1, good.2)).contains("not signed by the authority")
        );
        let key = scratch.path().join(good.2);
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
        let message = said(&paths(good.0, good.1, good.2));
        assert!(message.contains("has mode 0640") && message.contains("chmod 600"), "{message}");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
            .unwrap();
        let message = said(&paths(good.0, good.1, good.2));
        assert!(message.contains("key.pem") && !message.contains("AAAA"), "{message}");
    }

    #[test]
    fn a_certificate_whose_time_is_over_is_not_served_with() {
        let scratch = tempfile::tempdir().unwrap();
        let long_ago = OffsetDateTime::now_utc() - Duration::days(40);
        certify(scratch.path(), &[subject("left")], 30, long_ago).unwrap();
        let message = loaded(&scratch.path().join("left")).err().unwrap_or_default();
        assert!(message.contains("and not now"), "{message}");
    }

    #[test]
    fn who_has_no_role_or_two_has_none() {
        let of = |units: &[&str]| {
            let mut params = params("x".into(), None, OffsetDateTime::now_utc(), 1).unwrap();
            for (at, unit) in units.iter().enumerate() {
                // A certificate keeps only one name of each type, so the second has the
                // type's number written out.
                let kind = if at == 0 {
                    DnType::OrganizationalUnitName
                } else {
                    DnType::CustomDnType(vec![2, 5, 4, 11])
                };
                params.distinguished_name.push(kind, *unit);
            }
            let key = KeyPair::generate().unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            holder(&CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).role
        };
        assert_eq!(of(&["operator"]), Some(Role::Operator));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["root"]), None);
        assert_eq!(of(&["Operator"]), None);
        assert_eq!(of(&["viewer", "operator"]), None);
        assert_eq!(holder(&CertificateDer::from(vec![1, 2, 3])).role, None);
    }
}
