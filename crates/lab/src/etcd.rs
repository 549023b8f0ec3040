//! A real etcd of one member, with a directory of its own.

use super::Namespace;
use super::process::Process;
use super::wait::{Interrupt, until};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Files for TLS: the authority's certificate, and the member's own with its key. Clients
/// must show a certificate of the same authority.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The member's certificate.
    pub certificate: PathBuf,
    /// The member's key.
    pub key: PathBuf,
}

/// A running etcd. Dropping it kills it; its directory remains for the caller to remove.
#[derive(Debug)]
pub struct Etcd {
    process: Option<Process>,
    home: PathBuf,
    namespace: Option<Namespace>,
    address: SocketAddr,
    peer: SocketAddr,
    certificates: Option<Certificates>,
}

/// Ports to try, one after the other. The ports lie below the ephemeral ports, because a
/// client could take an ephemeral port that was free a moment ago.
static NEXT_PORT: AtomicU16 = AtomicU16::new(0);
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A free port of this address.
fn free_address(address: Ipv4Addr) -> Result<SocketAddr> {
    for _ in PORTS {
        // Processes at the same time begin at different places.
        let at = (std::process::id() as usize * 97
            + usize::from(NEXT_PORT.fetch_add(1, Ordering::Relaxed)))
            % PORTS.len();
        let address = SocketAddr::from((address, PORTS.start + at as u16));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no port of {address} is free")
}

impl Etcd {
    /// Starts an etcd on the loopback, with its files in this directory; returns when it
    /// listens.
    pub fn start(
        home: &Path,
        namespace: Option<&Namespace>,
        certificates: Option<Certificates>,
        interrupt: &Interrupt,
    ) -> Result<Etcd> {
        Etcd::start_at(Ipv4Addr::LOCALHOST, home, namespace, certificates, interrupt)
    }

    /// Like `Etcd::start`, at another address of its namespace.
    pub fn start_at(
        address: Ipv4Addr,
        home: &Path,
        namespace: Option<&Namespace>,
        certificates: Option<Certificates>,
        interrupt: &Interrupt,
    ) -> Result<Etcd> {
        let any = || free_address(address);
        let free = || namespace.map_or_else(any, |namespace| namespace.enter(any)?);
        let mut etcd = Etcd {
            process: None,
            home: home.to_owned(),
            namespace: namespace.cloned(),
            address: free()?,
            peer: free()?,
            certificates,
        };
        etcd.start_again(interrupt)?;
        Ok(etcd)
    }

    /// Its address for clients.
    pub fn endpoint(&self) -> String {
        format!("{}://{}", if self.certificates.is_some() { "https" } else { "http" }, self.address)
    }

    /// Starts etcd on the data that it has kept; returns when it listens.
    pub fn start_again(&mut self, interrupt: &Interrupt) -> Result<()> {
        self.process = None;
        let mut command = match &self.namespace {
            Some(namespace) => namespace.command("etcd"),
            None => {
                let mut command = Command::new("etcd");
                command.process_group(0);
                command
            }
        };
        let (client, peer) = (self.endpoint(), format!("http://{}", self.peer));
        command
            .args(["--name", "one", "--log-level", "error", "--data-dir"])
            .arg(self.home.join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("one={peer}")]);
        if let Some(Certificates { ca, certificate, key }) = &self.certificates {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(ca);
            command.arg("--cert-file").arg(certificate).arg("--key-file").arg(key);
        }
        let mut process = Process::start(command, "etcd", &self.home)
            .context("`make setup` installs etcd (Debian's etcd-server)")?;
        let address = self.address;
        let listens = || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
        process.wait_while_running("etcd listens", TIMEOUT, interrupt, |_| {
            let listens = self
                .namespace
                .as_ref()
                .map_or_else(|| Ok(listens()), |namespace| namespace.enter(listens))?;
            Ok(listens.then_some(()))
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Sends etcd a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("etcd does not run")?.signal(signal)
    }

    /// Kills etcd with SIGKILL, like a power cut.
    pub fn kill(&mut self, interrupt: &Interrupt) -> Result<()> {
        self.signal(Signal::KILL)?;
        let Some(mut process) = self.process.take() else { return Ok(()) };
        until("etcd ends", TIMEOUT, interrupt, || process.try_wait()).map(drop)
    }
}
