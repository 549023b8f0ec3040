//! `holdfast run --join`: a host without a configuration fetches it from a running host.
//!
//! In: the address of a host of the box, this host's certificate and name. Out: the
//! configuration as a file in the state directory, beside it the files that it names by
//! relative paths. All of it is checked before it replaces the earlier files. Never: a
//! part of it, or the certificate's key anywhere else.
//!
//! Fetched files are kept for a time when no host answers: hosts that are switched on
//! together would otherwise wait for each other.

use super::devices;
use crate::config;
use holdfast_control::exit::{self, Failure};
use holdfast_control::tls::TlsPaths;
use holdfast_control::{Endpoint, fetch};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The name of the configuration's file.
const FILE: &str = "holdfast.yaml";

/// Directories of fetched files: the kept ones, and during a change the old and the new.
struct Place {
    kept: PathBuf,
    old: PathBuf,
    new: PathBuf,
}

impl Place {
    fn of(state: &Path, host: &str) -> Place {
        let named = |end: &str| state.join(format!("{host}.joined{end}"));
        Place { kept: named(""), old: named(".old"), new: named(".new") }
    }

    /// The kept configuration, if any.
    fn configuration(&self) -> Option<PathBuf> {
        // A host that was switched off during a change has only the old one.
        [&self.kept, &self.old]
            .into_iter()
            .map(|directory| directory.join(FILE))
            .find(|file| file.is_file())
    }

    /// Writes all files to the side, has them checked there, and puts them in place.
    fn keep(
        &self,
        text: &str,
        files: &[(String, zeroize::Zeroizing<Vec<u8>>)],
        check: impl FnOnce(&Path) -> Result<(), Failure>,
    ) -> Result<PathBuf, Failure> {
        let failed = |error: io::Error| {
            Failure::new(
                exit::of_system(&error),
                format!("keeping the configuration in {}: {error}", self.kept.display()),
            )
        };
        remove(&self.new).map_err(failed)?;
        let kept = write_all(&self.new, text, files)
            .map_err(failed)
            .and_then(|()| check(&self.new.join(FILE)))
            .and_then(|()| self.replace().map_err(failed));
        if kept.is_err() {
            let _ = remove(&self.new);
        }
        kept.map(|()| self.kept.join(FILE))
    }

    fn replace(&self) -> io::Result<()> {
        if self.kept.exists() {
            remove(&self.old)?;
            std::fs::rename(&self.kept, &self.old)?;
        }
        std::fs::rename(&self.new, &self.kept)?;
        remove(&self.old)
    }
}

fn remove(directory: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn write_all(
    directory: &Path,
    text: &str,
    files: &[(String, zeroize::Zeroizing<Vec<u8>>)],
) -> io::Result<()> {
    let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
    make(directory)?;
    let write = |path: &Path, bytes: &[u8]| {
        path.parent().map_or(Ok(()), make)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes).and_then(|()| file.sync_all())
    };
    write(&directory.join(FILE), text.as_bytes())?;
    files.iter().try_for_each(|(path, bytes)| write(&directory.join(path), bytes))
}

/// The configuration for this host from now on; `state` is the directory named on the
/// command line.
///
/// # Errors
/// If no host answers and no configuration is kept (exit codes 69, 75), if the host
/// refuses (77), or the configuration is inconsistent or another cluster's (78).
pub(super) fn join(
    endpoint: &Endpoint,
    tls: &TlsPaths,
    host: &str,
    state: Option<&Path>,
) -> Result<PathBuf, Failure> {
    let fetched = match fetch(endpoint.clone(), tls.clone(), host) {
        Ok(fetched) => fetched,
        Err(failure) if [exit::UNAVAILABLE, exit::TIMEOUT].contains(&failure.code) => {
            let Some(file) = state.and_then(|state| Place::of(state, host).configuration()) else {
                return Err(failure);
            };
            devices::say(&format!(
                "{failure}; going by the configuration that was fetched before, {}",
                file.display()
            ));
            return Ok(file);
        }
        Err(failure) => return Err(failure),
    };
    let wrong = |text: String| {
        Failure::new(exit::CONFIGURATION, format!("the configuration of {endpoint}: {text}"))
    };
    let plan = config::read(FILE, &fetched.text).map_err(|mistake| wrong(mistake.to_string()))?;
    plan.host(Some(host)).map_err(wrong)?;
    let state = state.map(Path::to_owned).or_else(|| plan.state.clone());
    let state = state
        .ok_or_else(|| wrong("it names no `state`; `--state-dir DIRECTORY` does".to_owned()))?;
    let place = Place::of(&state, host);
    if let Some(file) = place.configuration() {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let before = config::read(FILE, &text).ok().map(|plan| plan.cluster);
        if let Some(before) = before.filter(|before| *before != plan.cluster) {
            return Err(wrong(format!(
                "it is of the cluster `{}`, and this host was one of `{before}` before: remove {} if that is meant",
                plan.cluster,
                place.kept.display()
            )));
        }
    }
    place.keep(&fetched.text, &fetched.files, |file| {
        // Keys with absolute paths are this host's own, and may not exist.
        let keys = config::read(&file.display().to_string(), &fetched.text)
            .and_then(|plan| plan.read_keys());
        keys.map(drop).map_err(|mistake| Failure::new(exit::CONFIGURATION, mistake.to_string()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Vec<(String, zeroize::Zeroizing<Vec<u8>>)> {
        vec![("keys/cluster.key".to_owned(), zeroize::Zeroizing::new(text.into()))]
    }

    /// A fetched configuration replaces the kept one as a whole, and not at all if it is
    /// inconsistent.
    #[test]
    fn all_of_it_is_kept_or_nothing_changes() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = tempfile::tempdir().unwrap();
        let place = Place::of(&scratch.path().join("state"), "left");
        assert_eq!(place.configuration(), None);
        let file = place.keep("one", &key("1"), |file| {
            assert!(file.ends_with("left.joined.new/holdfast.yaml"));
            Ok(())
        });
        let file = file.unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(place.configuration().as_ref(), Some(&file));
        let beside = file.with_file_name("keys/cluster.key");
        let read =
            || (std::fs::read_to_string(&file).unwrap(), std::fs::read_to_string(&beside).unwrap());
        assert_eq!(read(), ("one".into(), "1".into()));
        assert_eq!(std::fs::metadata(&beside).unwrap().permissions().mode() & 0o777, 0o600);

        let refused =
            place.keep("two", &key("2"), |_| Err(Failure::new(exit::CONFIGURATION, "no")));
        assert_eq!(refused.map_err(|failure| failure.code), Err(exit::CONFIGURATION));
        assert_eq!(read(), ("one".into(), "1".into()));
        // Two files of one name.
        let twice = [key("3"), key("4")].concat();
        assert!(place.keep("three", &twice, |_| Ok(())).is_err());
        assert_eq!(read(), ("one".into(), "1".into()));
        place.keep("four", &key("4"), |_| Ok(())).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(read(), ("four".into(), "4".into()));
        let names: Vec<_> = std::fs::read_dir(scratch.path().join("state"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["left.joined"], "nothing else is left there");
        // The host was switched off between the two steps of a change.
        std::fs::rename(&place.kept, &place.old).unwrap();
        assert!(
            place
                .configuration()
                .is_some_and(|file| file.ends_with("left.joined.old/holdfast.yaml"))
        );
    }
}
