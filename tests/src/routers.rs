//! Routers that speak BFD to the box: BIRD, and FRR's `bfdd` with the `zebra` that it
//! needs. Each has its files in a directory of its own, and ends when it is dropped.

use anyhow::{Context, Result, bail};
use holdfast_lab::process::Process;
use holdfast_lab::requirements::Program;
use holdfast_lab::{Interrupt, Lab, Namespace, until, until_every};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// BIRD.
pub const BIRD: Program = ("bird", "bird2");
/// FRR's terminal, which comes with its daemons.
pub const FRR: Program = ("vtysh", "frr");
/// Debian's directory of the daemons.
const FRR_DAEMONS: &str = "/usr/lib/frr";
/// The user of the daemons: they insist on giving up root.
const FRR_USER: &str = "frr";

/// Time between two queries of a router that has been started.
const ASK_INTERVAL: Duration = Duration::from_millis(50);

/// A key as it is configured at both sides.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a> {
    /// The method in BIRD's words: `keyed sha1`, `meticulous keyed sha1`, `simple`.
    pub how: &'a str,
    /// The key's number.
    pub id: u8,
    /// The secret.
    pub secret: &'a str,
}

/// The router's program.
#[derive(Debug)]
enum Kind {
    Bird,
    Frr,
}

/// A router that runs, or is stopped at the moment.
#[derive(Debug)]
pub struct Router {
    kind: Kind,
    /// The router's processes, in the order of their start.
    processes: Vec<Process>,
    home: PathBuf,
    namespace: Namespace,
    interrupt: Interrupt,
}

impl Router {
    /// BIRD with a BFD session with each of `peers` (its own address and the other's), at
    /// this interval and with multiplier 5.
    pub fn bird(
        lab: &Lab,
        namespace: &Namespace,
        device: &str,
        peers: &[(&str, &str)],
        interval_ms: u32,
        signed: Option<Signed<'_>>,
    ) -> Result<Router> {
        let home = lab.scratch().join("bird");
        std::fs::create_dir(&home)?;
        let key = signed.map(|Signed { how, id, secret }| {
            format!("    authentication {how};\n    password \"{secret}\" {{ id {id}; }};\n")
        });
        let neighbors: String = peers
            .iter()
            .map(|(own, peer)| format!("  neighbor {peer} dev \"{device}\" local {own};\n"))
            .collect();
        let text = format!(
            "router id 192.0.2.1;\nprotocol device {{ }}\nprotocol bfd {{\n  interface \"{device}\" {{\n    interval {interval_ms} ms;\n    multiplier 5;\n{}  }};\n{neighbors}}}\n",
            key.unwrap_or_default()
        );
        std::fs::write(home.join("bird.conf"), text)?;
        Router::begin(Kind::Bird, home, lab, namespace)
    }

    /// FRR with a BFD session with each of `peers`, at this interval and with multiplier
    /// 5.
    pub fn frr(
        lab: &Lab,
        namespace: &Namespace,
        device: &str,
        peers: &[(&str, &str)],
        interval_ms: u32,
    ) -> Result<Router> {
        let home = lab.scratch().join("frr");
        std::fs::create_dir(&home)?;
        let peers: String = peers
            .iter()
            .map(|(own, peer)| {
                format!(
                    " peer {peer} local-address {own} interface {device}\n  receive-interval {interval_ms}\n  transmit-interval {interval_ms}\n  detect-multiplier 5\n !\n"
                )
            })
            .collect();
        std::fs::write(home.join("zebra.conf"), "")?;
        std::fs::write(home.join("bfdd.conf"), format!("bfd\n{peers}!\n"))?;
        let (user, group) = user(FRR_USER)?;
        for path in [home.clone(), home.join("zebra.conf"), home.join("bfdd.conf")] {
            std::os::unix::fs::chown(path, Some(user), Some(group))?;
        }
        Router::begin(Kind::Frr, home, lab, namespace)
    }

    fn begin(kind: Kind, home: PathBuf, lab: &Lab, namespace: &Namespace) -> Result<Router> {
        let (namespace, interrupt) = (namespace.clone(), lab.interrupt().clone());
        let mut router = Router { kind, processes: Vec::new(), home, namespace, interrupt };
        router.start()?;
        Ok(router)
    }

    /// Starts the router; returns when its command line answers.
    pub fn start(&mut self) -> Result<()> {
        match self.kind {
            Kind::Bird => {
                let mut command = self.namespace.command("bird");
                command.arg("-f").arg("-c").arg(self.home.join("bird.conf"));
                command
                    .arg("-s")
                    .arg(self.home.join("bird.ctl"))
                    .arg("-P")
                    .arg(self.home.join("bird.pid"));
                self.processes.push(Process::start(command, "bird", &self.home)?);
            }
            Kind::Frr => {
                self.daemon("zebra", &[])?;
                let socket = self.home.join("zserv.api");
                until("zebra listens", crate::TIMEOUT, &self.interrupt, || {
                    Ok(socket.exists().then_some(()))
                })?;
                let control = self.home.join("bfdd.sock");
                self.daemon("bfdd", &["--bfdctl".as_ref(), control.as_path()])?;
            }
        }
        let interrupt = self.interrupt.clone();
        until_every(ASK_INTERVAL, "the router answers", crate::TIMEOUT, &interrupt, || {
            let ended = self
                .processes
                .iter_mut()
                .map(Process::try_wait)
                .find_map(|ended| ended.transpose());
            if let Some(status) = ended.transpose()? {
                let words: Vec<String> = self
                    .processes
                    .iter()
                    .map(|process| process.stdout() + &process.stderr())
                    .collect();
                bail!("the router ended with {status}: {words:?}");
            }
            Ok(self.sessions().ok().map(drop))
        })
    }

    fn daemon(&mut self, name: &str, more: &[&Path]) -> Result<()> {
        let mut command = self.namespace.command(format!("{FRR_DAEMONS}/{name}"));
        for (option, file) in [
            ("-f", format!("{name}.conf")),
            ("-i", format!("{name}.pid")),
            ("-z", "zserv.api".to_owned()),
        ] {
            command.arg(option).arg(self.home.join(file));
        }
        command.arg("--vty_socket").arg(&self.home).args(["-P", "0", "--log", "stdout"]).args(more);
        self.processes.push(Process::start(command, name, &self.home)?);
        Ok(())
    }

    /// The router's list of sessions, as it prints it.
    pub fn sessions(&self) -> Result<String> {
        self.asked("show bfd peers brief")
    }

    /// The router's details of all sessions.
    pub fn details(&self) -> Result<String> {
        self.asked("show bfd peers")
    }

    fn asked(&self, words: &str) -> Result<String> {
        let mut command = match self.kind {
            Kind::Bird => {
                let mut command = self.namespace.command("birdc");
                command.arg("-s").arg(self.home.join("bird.ctl")).args(["show", "bfd", "sessions"]);
                command
            }
            Kind::Frr => {
                let mut command = self.namespace.command("vtysh");
                command.arg("--vty_socket").arg(&self.home).args(["-d", "bfdd", "-c", words]);
                command
            }
        };
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("{text}{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(text)
    }

    /// True if the router lists its session with this peer as up.
    pub fn is_up(&self, peer: &str) -> Result<bool> {
        let text = self.sessions()?;
        let of_peer = text.lines().find(|line| line.split_whitespace().any(|word| word == peer));
        Ok(of_peer.is_some_and(|line| {
            line.split_whitespace().any(|word| word.eq_ignore_ascii_case("up"))
        }))
    }

    /// Makes a running BIRD sign with another key from now on.
    pub fn change_key(&self, old: &str, new: &str) -> Result<()> {
        let file = self.home.join("bird.conf");
        let text = std::fs::read_to_string(&file)?;
        std::fs::write(
            &file,
            text.replace(&format!("password \"{old}\""), &format!("password \"{new}\"")),
        )?;
        let mut command = self.namespace.command("birdc");
        let output = command.arg("-s").arg(self.home.join("bird.ctl")).arg("configure").output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        anyhow::ensure!(output.status.success() && said.contains("Reconfigured"), "{said}");
        Ok(())
    }

    /// Kills the router's processes with SIGKILL, like a power cut.
    pub fn kill(&mut self) -> Result<()> {
        for mut process in self.processes.drain(..) {
            process.signal(Signal::KILL)?;
            until("the router ends", crate::TIMEOUT, &self.interrupt, || process.try_wait())?;
        }
        // Files and sockets that the processes leave behind.
        for name in [
            "bird.ctl",
            "bird.pid",
            "zserv.api",
            "zebra.vty",
            "zebra.pid",
            "bfdd.vty",
            "bfdd.pid",
            "bfdd.sock",
        ] {
            let _ = std::fs::remove_file(self.home.join(name));
        }
        Ok(())
    }
}

/// User and group of this name.
fn user(name: &str) -> Result<(u32, u32)> {
    let all = std::fs::read_to_string("/etc/passwd")?;
    let line = all.lines().find(|line| line.split(':').next() == Some(name));
    let mut fields = line
        .with_context(|| format!("there is no user {name}: `make setup` installs frr"))?
        .split(':')
        .skip(2);
    let mut number = || {
        fields
            .next()
            .and_then(|field| field.parse().ok())
            .context("/etc/passwd is not as it should be")
    };
    Ok((number()?, number()?))
}
