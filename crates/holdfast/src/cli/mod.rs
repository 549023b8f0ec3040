//! The commands of a box. A program combines them, with others of its own.
//!
//! Out: answers on standard output, as tables or, with `--json`, as JSON with a
//! `version`; errors on standard error; one of the exit codes of
//! [`exit`](holdfast_control::exit). Never: anything else on standard output.

mod apply;
mod asking;
mod certify;
mod check;
mod flows;
mod keygen;
pub mod laboratory;
mod moving;
pub mod nf;
mod reference;

use crate::run;
use clap::Subcommand;
use holdfast_control::certify::Subject;
use holdfast_control::exit::Failure;
use holdfast_control::table::print;
use holdfast_control::tls::TlsPaths;
use holdfast_control::{Endpoint, Target};
use std::path::PathBuf;
use std::time::Duration;

/// Options of every command.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Print JSON, with a `version`
    #[arg(long, global = true)]
    pub json: bool,
    /// The box: the path of its control socket, or `https://ADDRESS:PORT`; without it,
    /// the only one on this machine
    #[arg(long, global = true, value_name = "PATH|URL")]
    pub control: Option<String>,
    /// Your certificate for a control API: the directory that `holdfast certify` made, or
    /// three files
    #[arg(long, global = true, value_name = "DIR|CA,CERTIFICATE,KEY")]
    pub tls: Option<TlsPaths>,
}

impl Options {
    fn target(&self) -> Target {
        Target { control: self.control.clone(), tls: self.tls.clone() }
    }
}

/// Commands that run, query and control a box.
#[derive(Debug, Subcommand)]
pub enum Operate {
    /// Check this machine, and a configuration file
    Check {
        /// The file; `-` for standard input
        file: Option<PathBuf>,
        /// Print the JSON Schema of configuration files
        #[arg(long)]
        schema: bool,
        /// Check the file only, for another machine
        #[arg(long, requires = "file")]
        no_host: bool,
        /// Check a running box instead: its pools are whole, and no mapping has two flows
        #[arg(long, conflicts_with_all = ["file", "schema", "no_host"])]
        live: bool,
        /// Seconds for which the running box is checked
        #[arg(long = "for", value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600), requires = "live")]
        seconds: u64,
    },
    /// Run a box until SIGTERM
    Run {
        /// The configuration file
        #[arg(required_unless_present = "join", conflicts_with = "join")]
        file: Option<PathBuf>,
        /// The directory that outlives the box; overrides the configuration's `state`
        #[arg(long, value_name = "DIRECTORY")]
        state_dir: Option<PathBuf>,
        /// The name of this host among the configuration's `hosts`
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
        /// Fetch the configuration, and the keys that it names, from the control API of a
        /// running host
        #[arg(long, value_name = "ADDRESS", requires_all = ["host", "tls"])]
        join: Option<Endpoint>,
    },
    /// Apply another configuration to a running box, all of it or nothing
    ///
    /// Applies the file's service-chain rules to the running box: new flows take the
    /// chain of the new rules, existing flows keep theirs. Everything else in the file
    /// must be as in the running box; otherwise the differences are listed with their
    /// places, and nothing is changed (exit code 78).
    Apply {
        /// The configuration file; `-` for standard input
        file: PathBuf,
        /// Only show what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Show processes, drops, failovers, and whether the box is safe now
    ///
    /// Exit code 0: every flow would survive if something failed now. Exit code 1: not,
    /// or not yet.
    Status {
        /// Wait until the box is safe
        #[arg(long)]
        wait_safe: bool,
        /// Seconds to wait at most; exit code 75 if the box was not safe by then
        #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "wait_safe")]
        timeout: u64,
    },
    /// List flows
    Flows {
        /// Flows to list, like `tcp from 10.0.0.0/24 to any port 80`, before or after
        /// NAT; all without it
        selector: Vec<String>,
        /// Maximum number of flows to list
        #[arg(long, default_value_t = 1000)]
        limit: u32,
    },
    /// Follow packets through the box
    Trace {
        /// Packets to follow, like `tcp from 10.0.0.0/24 to any port 80`; all without it
        selector: Vec<String>,
        /// Number of packets
        #[arg(long, default_value_t = 10)]
        count: u32,
        /// Seconds to wait for them
        #[arg(long, default_value_t = 10)]
        wait: u64,
    },
    /// Move flows from one runtime to another; no packet is lost or reordered
    Migrate {
        /// The runtime that has the flows: a node id as in `holdfast status`
        #[arg(long, value_name = "RUNTIME")]
        from: u16,
        /// The runtime to move them to; without it, all others by turns
        #[arg(long, value_name = "RUNTIME")]
        to: Option<u16>,
        /// Maximum number of flows to move
        #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
        flows: u64,
        /// Flows to move, like `tcp from 10.0.0.0/24 to any port 80`, before or after
        /// NAT; all without it
        selector: Vec<String>,
    },
    /// Take a runtime, or all of a host, out of service: its flows move, replicas are
    /// made elsewhere, and it ends
    Drain {
        /// A node id as in `holdfast status`, or a host's name
        what: String,
        /// Drain even if flows would not survive a failure afterwards, because only one
        /// runtime would be left
        #[arg(long)]
        force: bool,
    },
    /// Bring a drained runtime, or those of a host, back into service
    Restore {
        /// A node id as in `holdfast status`, or a host's name
        what: String,
    },
    /// Explain a drop reason, a state, an exit code
    Explain {
        /// The word; all without it
        word: Vec<String>,
    },
}

/// Commands that make keys and certificates.
#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Write a new key for `fabric: { key: FILE }` into a file that only its owner can
    /// read
    Keygen {
        /// The file, which must not exist yet
        file: PathBuf,
        /// Add the key to an existing file: accepted at once, and current once it is the
        /// first line everywhere
        #[arg(long)]
        add: bool,
    },
    /// Make certificates for the control API, and the authority that signs them
    ///
    /// Each name gets a directory with its certificate, its key and the authority's
    /// certificate, to be copied to its host. The first call also makes the authority.
    /// Existing files stay: names added later are certified by the same authority.
    Certify {
        /// The directory of the authority
        directory: PathBuf,
        /// A host of the configuration, with the addresses of its control API
        /// (left=10.9.0.1,left.example); or operator:NAME; or viewer:NAME, who may only
        /// query
        #[arg(required = true, value_name = "NAME[=ADDRESS,…]")]
        subjects: Vec<Subject>,
        /// Days for which the certificates are valid
        #[arg(long, default_value_t = 825, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: u32,
    },
}

/// Commands that need no box.
#[derive(Debug, Subcommand)]
pub enum Reference {
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man {
        /// Write the manual pages of all commands into this directory
        #[arg(long)]
        directory: Option<PathBuf>,
    },
}

/// Roles of processes that a box starts.
#[derive(Debug, Subcommand)]
pub enum Role {
    /// The role of the manager; `run` starts it
    #[command(hide = true)]
    Manager,
    /// The role of a runtime; `run` starts it
    #[command(hide = true)]
    Runtime,
    /// The role of the coordinator; `run` starts it
    #[command(hide = true)]
    Coordinator,
    /// The role of the state server; `run` starts it
    #[command(hide = true)]
    StateServer,
}

impl Operate {
    /// Runs the command.
    ///
    /// # Errors
    /// The message for the user, and the exit code.
    pub fn run(self, options: &Options) -> Result<(), Failure> {
        let (json, target) = (options.json, &options.target());
        match self {
            Operate::Check { schema: true, .. } => {
                print(&format!("{:#}\n", crate::config::schema()))
            }
            Operate::Check { live: true, seconds, .. } => {
                check::live(target, Duration::from_secs(seconds), json)
            }
            Operate::Check { file, no_host, .. } => check::check(file.as_deref(), !no_host, json),
            Operate::Apply { file, dry_run } => apply::apply(target, &file, dry_run, json),
            Operate::Run { file, state_dir, host, join } => run::main(run::Options {
                file,
                join,
                control: target.path()?,
                tls: target.tls.clone(),
                state: state_dir,
                host,
            }),
            Operate::Status { wait_safe, timeout } => {
                asking::status(target, wait_safe.then(|| Duration::from_secs(timeout)), json)
            }
            Operate::Flows { selector, limit } => {
                flows::flows(target, &selector.join(" "), limit, json)
            }
            Operate::Trace { selector, count, wait } => {
                asking::trace(target, &selector.join(" "), count, Duration::from_secs(wait), json)
            }
            Operate::Migrate { from, to, flows, selector } => {
                moving::migrate(target, from, to, flows, &selector.join(" "), json)
            }
            Operate::Drain { what, force } => moving::drain(target, &what, force, json),
            Operate::Restore { what } => moving::restore(target, &what, json),
            Operate::Explain { word } => reference::explain(&word.join(" "), json),
        }
    }
}

impl Keys {
    /// Runs the command.
    ///
    /// # Errors
    /// As [`Operate::run`].
    pub fn run(self, options: &Options) -> Result<(), Failure> {
        match self {
            Keys::Keygen { file, add } => keygen::keygen(&file, add, options.json),
            Keys::Certify { directory, subjects, days } => {
                certify::certify(&directory, &subjects, days, options.json)
            }
        }
    }
}

impl Reference {
    /// Runs the command; `program` is the whole command line, for completions and manual
    /// pages.
    ///
    /// # Errors
    /// As [`Operate::run`].
    pub fn run(self, program: clap::Command) -> Result<(), Failure> {
        match self {
            Reference::Completions { shell } => reference::completions(program, shell),
            Reference::Man { directory } => reference::manual(program, directory.as_deref()),
        }
    }
}

impl Role {
    /// Runs the role until the box ends it.
    ///
    /// # Errors
    /// As [`Operate::run`].
    pub fn run(self) -> Result<(), Failure> {
        holdfast_io::process::call_itself(c"holdfast");
        match self {
            Role::Manager => run::manager_main(),
            Role::Runtime => run::runtime_main(),
            Role::Coordinator => run::coordinator_main(),
            Role::StateServer => run::state_server_main(),
        }
    }
}
