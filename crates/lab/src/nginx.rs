//! Web servers: nginx with a configuration and a directory of its own, and files of known
//! content.

use super::Lab;
use super::namespace::Namespace;
use super::process::Process;
use super::wait::Interrupt;
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A SHA-256 sum.
pub type Sum = [u8; 32];

/// The sum in hexadecimal digits, as `sha256sum` prints it.
pub fn hex(sum: &Sum) -> String {
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The sum of the whole content.
pub fn sum_of(mut content: impl Read) -> Result<Sum> {
    let (mut hasher, mut block) = (Sha256::new(), vec![0_u8; 1 << 16]);
    loop {
        match content.read(&mut block)? {
            0 => return Ok(hasher.finalize().into()),
            read => hasher.update(&block[..read]),
        }
    }
}

/// A directory of files to serve.
#[derive(Debug, Clone)]
pub struct Site {
    directory: PathBuf,
}

impl Site {
    /// An empty site in the laboratory's scratch directory.
    pub fn new(lab: &Lab, name: &str) -> Result<Site> {
        let directory = lab.scratch().join(name);
        fs::create_dir(&directory).with_context(|| format!("making {}", directory.display()))?;
        Ok(Site { directory })
    }

    /// Adds a file of `bytes` bytes that look random and are always the same; returns
    /// their sum.
    pub fn add_random(&self, name: &str, bytes: u64) -> Result<Sum> {
        let path = self.directory.join(name);
        let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        let (mut file, mut hasher) = (BufWriter::new(file), Sha256::new());
        let (mut state, mut left) = (0x9e37_79b9_7f4a_7c15_u64 ^ bytes, bytes);
        let mut block = [0_u8; 8192];
        while left > 0 {
            for word in block.chunks_exact_mut(8) {
                // xorshift64: no two blocks are alike, so a lost, doubled or swapped
                // block shows in the sum.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            let now = &block[..left.min(block.len() as u64) as usize];
            file.write_all(now)?;
            hasher.update(now);
            left -= now.len() as u64;
        }
        file.flush()?;
        Ok(hasher.finalize().into())
    }

    /// Adds a file with this content.
    pub fn add(&self, name: &str, content: &str) -> Result<()> {
        fs::write(self.directory.join(name), content).with_context(|| format!("writing {name}"))
    }

    /// The directory of the files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// A running nginx.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    home: PathBuf,
}

impl Nginx {
    /// Serves `site` on `address` inside `namespace`; returns when it listens.
    pub fn start(
        lab: &Lab,
        namespace: &Namespace,
        name: &str,
        address: SocketAddr,
        site: &Site,
    ) -> Result<Nginx> {
        Nginx::start_with(lab, namespace, name, address, site, false)
    }

    /// Like `start`, with an access log.
    pub fn start_logging(
        lab: &Lab,
        namespace: &Namespace,
        name: &str,
        address: SocketAddr,
        site: &Site,
    ) -> Result<Nginx> {
        Nginx::start_with(lab, namespace, name, address, site, true)
    }

    fn start_with(
        lab: &Lab,
        namespace: &Namespace,
        name: &str,
        address: SocketAddr,
        site: &Site,
        is_logging: bool,
    ) -> Result<Nginx> {
        let home = lab.scratch().join(name);
        fs::create_dir(&home).with_context(|| format!("making {}", home.display()))?;
        let configuration = home.join("nginx.conf");
        let text = configuration_text(&home, address, site.directory(), is_logging);
        fs::write(&configuration, text)?;
        let mut command = namespace.command("nginx");
        command
            .arg("-p")
            .arg(&home)
            .arg("-c")
            .arg(&configuration)
            .arg("-e")
            .arg(home.join("error.log"));
        let mut process = Process::start(command, name, lab.scratch())?;
        let probe = connect_probe(namespace, address);
        process.wait_while_running(
            &format!("{name} listens on {address}"),
            Duration::from_secs(10),
            lab.interrupt(),
            |_| probe(),
        )?;
        Ok(Nginx { process, home })
    }

    /// The access log: a line per request with the client's port, the status, and the
    /// request line as it was sent.
    pub fn access_log(&self) -> PathBuf {
        self.home.join(ACCESS_LOG)
    }

    /// The master process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Returns a probe that succeeds when a TCP connection to `address` from inside
/// `namespace` is accepted.
pub(super) fn connect_probe(
    namespace: &Namespace,
    address: SocketAddr,
) -> impl Fn() -> Result<Option<()>> + '_ {
    move || {
        let connected = namespace.enter(|| {
            std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
        })?;
        Ok(connected.then_some(()))
    }
}

/// Name of the access log.
const ACCESS_LOG: &str = "access.log";

fn configuration_text(home: &Path, address: SocketAddr, root: &Path, is_logging: bool) -> String {
    let home = home.display();
    let log = match is_logging {
        true => format!(
            "log_format bytes escape=none '$remote_port $status $request';\n    access_log {home}/{ACCESS_LOG} bytes;"
        ),
        false => "access_log off;".to_owned(),
    };
    let bodies: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("    {kind}_temp_path {home}/{kind};\n"))
        .collect();
    // The server must not end connections that idle for a whole scenario or make many
    // requests: only the box's failures may break them.
    format!(
        "daemon off;\nuser root;\nworker_processes 1;\npid {home}/nginx.pid;\nerror_log {home}/error.log;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n    {log}\n{bodies}    default_type application/octet-stream;\n    sendfile on;\n    tcp_nodelay on;\n\
         \x20   keepalive_timeout 3600s;\n    keepalive_requests 100000000;\n    send_timeout 600s;\n    server_tokens off;\n\
         \x20   limit_rate $arg_rate;\n\
         \x20   server {{ listen {address}; root {root}; }}\n}}\n",
        root = root.display()
    )
}

/// Starts a server on each address, and fails early on an interrupt.
pub fn start_all(
    lab: &Lab,
    namespace: &Namespace,
    addresses: &[SocketAddr],
    site: &Site,
) -> Result<Vec<Nginx>> {
    let interrupt: &Interrupt = lab.interrupt();
    addresses
        .iter()
        .enumerate()
        .map(|(number, address)| {
            interrupt.check()?;
            Nginx::start(lab, namespace, &format!("nginx{}", number + 1), *address, site)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_keeps_everything_in_its_own_directory() {
        let text = configuration_text(
            Path::new("/scratch/n1"),
            "198.51.100.11:80".parse().unwrap(),
            Path::new("/scratch/site"),
            true,
        );
        assert!(text.contains("listen 198.51.100.11:80; root /scratch/site;"), "{text}");
        assert!(text.contains("pid /scratch/n1/nginx.pid;"), "{text}");
        assert!(!text.contains("/var/"), "{text}");
    }
}
