//! Network namespaces: made and removed by `ip netns`, entered by threads and programs.

use super::wait::{Interrupt, until};
use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The directory in which `ip netns` keeps its names.
const DIRECTORY: &str = "/run/netns";
/// How long a socket waits for its port.
const PORT_LIMIT: Duration = Duration::from_secs(30);

/// A handle to a namespace by name. Clones name the same namespace; its maker removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace, with its loopback up, IPv6 duplicate address detection off and
    /// ICMP errors unlimited.
    pub(super) fn create(name: &str) -> Result<Namespace> {
        run(Command::new("ip").args(["netns", "add", name]))?;
        let namespace = Namespace { name: name.to_owned() };
        let prepared = namespace.ip("link set lo up").and_then(|()| {
            for device in ["all", "default"] {
                namespace.sysctl(&format!("net/ipv6/conf/{device}/accept_dad"), "0")?;
            }
            // With one ICMP error a second for each peer, a second traceroute would see
            // no hop.
            namespace.sysctl("net/ipv4/icmp_ratelimit", "0")?;
            namespace.sysctl("net/ipv6/icmp/ratelimit", "0")
        });
        if let Err(error) = prepared {
            let _ = remove(name);
            return Err(error);
        }
        Ok(namespace)
    }

    /// The namespace's name, as in `ip netns exec NAME`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run inside, in a process group of its own, so that a Ctrl-C
    /// for the laboratory does not reach it first.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program).process_group(0);
        command
    }

    /// Runs a command line inside to its end and returns its standard output. Words are
    /// split at white space.
    pub fn run(&self, line: &str) -> Result<String> {
        let mut words = line.split_whitespace();
        let program = words.next().ok_or_else(|| anyhow!("an empty command line"))?;
        run(self.command(program).args(words))
    }

    /// Runs `ip` on this namespace. Words are split at white space.
    pub fn ip(&self, line: &str) -> Result<()> {
        run(Command::new("ip").args(["-n", &self.name]).args(line.split_whitespace())).map(drop)
    }

    /// Sets a value under `/proc/sys` in this namespace; `key` with slashes.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key);
        self.enter(|| fs::write(&path, value))?
            .with_context(|| format!("setting {} in {}", path.display(), self.name))
    }

    /// Opens a socket inside the namespace, and tries again while the kernel still holds
    /// the port. The last segment of the previous socket may be on its way, or a program
    /// that is being started has inherited that socket.
    ///
    /// # Errors
    /// The port stays taken, or `open` fails.
    pub fn bind<T: Send>(&self, open: impl Fn() -> std::io::Result<T> + Sync) -> Result<T> {
        until("a port is free", PORT_LIMIT, &Interrupt::default(), || match self.enter(&open)? {
            Err(error)
                if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) =>
            {
                Ok(None)
            }
            other => Ok(Some(other?)),
        })
    }

    /// Runs `body` on a new thread inside this namespace and returns its result. Sockets
    /// made there stay there.
    pub fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T> {
        let door = self.open()?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(door.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok::<T, rustix::io::Errno>(body())
            });
            match thread.join() {
                Ok(result) => result.with_context(|| format!("entering namespace {}", self.name)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// True if a TCP socket listens on this port inside.
    pub fn listens_tcp(&self, port: u16) -> Result<bool> {
        // Column 1 is the local address with the port in hexadecimal, column 3 the state;
        // 0A is LISTEN.
        self.socket_table("tcp", move |address, state| {
            state == "0A" && ends_with_port(address, port)
        })
    }

    /// True if a UDP socket is bound to this port inside.
    pub fn listens_udp(&self, port: u16) -> Result<bool> {
        self.socket_table("udp", move |address, _| ends_with_port(address, port))
    }

    fn socket_table(&self, protocol: &str, matches: impl Fn(&str, &str) -> bool) -> Result<bool> {
        // A server that listens for both families is in the second table only.
        for path in [
            format!("/proc/thread-self/net/{protocol}"),
            format!("/proc/thread-self/net/{protocol}6"),
        ] {
            let table = self
                .enter(|| fs::read_to_string(&path))?
                .with_context(|| format!("reading {path}"))?;
            let found = table.lines().skip(1).any(|line| {
                let columns: Vec<&str> = line.split_whitespace().collect();
                columns.len() > 3 && matches(columns[1], columns[3])
            });
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The devices inside, loopback included.
    pub fn devices(&self) -> Result<Vec<String>> {
        let text = run(Command::new("ip").args(["-n", &self.name, "-j", "link", "show"]))?;
        let links: Vec<serde_json::Value> =
            serde_json::from_str(&text).context("reading the output of ip -j link")?;
        Ok(links.iter().filter_map(|link| link["ifname"].as_str().map(str::to_owned)).collect())
    }

    /// The processes inside.
    pub fn pids(&self) -> Result<Vec<u32>> {
        pids(&self.name)
    }

    fn open(&self) -> Result<File> {
        let path = Path::new(DIRECTORY).join(&self.name);
        File::open(&path).with_context(|| format!("opening {}", path.display()))
    }
}

fn ends_with_port(address: &str, port: u16) -> bool {
    address.rsplit_once(':').is_some_and(|(_, text)| u16::from_str_radix(text, 16) == Ok(port))
}

/// The names of all namespaces on this machine.
pub(super) fn list() -> Result<Vec<String>> {
    match fs::read_dir(DIRECTORY) {
        Ok(entries) => {
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).context(format!("reading {DIRECTORY}")),
    }
}

/// Ends the processes in a namespace, and then the namespace with its devices.
pub(super) fn remove(name: &str) -> Result<()> {
    let own = std::process::id();
    // Not interruptible: an interrupt asks for this removal.
    until(
        &format!("the processes in {name} end"),
        Duration::from_secs(10),
        &Interrupt::default(),
        || {
            let left: Vec<u32> = pids(name)?.into_iter().filter(|&pid| pid != own).collect();
            for pid in &left {
                if let Some(pid) = Pid::from_raw(*pid as i32) {
                    // The process may have ended between the listing and now.
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            Ok(left.is_empty().then_some(()))
        },
    )?;
    run(Command::new("ip").args(["netns", "delete", name])).map(drop)
}

fn pids(name: &str) -> Result<Vec<u32>> {
    let text = run(Command::new("ip").args(["netns", "pids", name]))?;
    text.split_whitespace()
        .map(|word| word.parse().with_context(|| format!("reading a pid: {word:?}")))
        .collect()
}

/// Runs a command to its end. Returns its standard output, or an error with its standard
/// error.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", words(command)))?;
    if !output.status.success() {
        let (stderr, stdout) =
            (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        bail!("{}: {}\n{}{}", words(command), output.status, stderr.trim_end(), stdout.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_table_entry_is_matched_by_its_port() {
        assert!(ends_with_port("0B3364C6:0050", 80));
        assert!(!ends_with_port("0B3364C6:0051", 80));
        assert!(!ends_with_port("garbage", 80));
    }

    #[test]
    fn a_failing_command_says_what_and_why() {
        let error = run(Command::new("sh").args(["-c", "echo reason >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("sh -c") && error.contains("reason") && error.contains('3'),
            "{error}"
        );
    }
}
