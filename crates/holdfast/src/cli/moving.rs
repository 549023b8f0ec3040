//! Commands that move flows: `migrate`, `drain`, `restore`.
//!
//! The commands begin the work and watch it: on a terminal with a line that shows the
//! progress, elsewhere with a new line every few seconds. If interrupted, they print the
//! progress, and the box goes on.

use holdfast_control::api::{MigrateRequest, Progress};
use holdfast_control::exit::{self, Failure};
use holdfast_control::status::{STATE_DRAINED, STATE_RUNNING, STATE_STARTING};
use holdfast_control::table::print;
use holdfast_control::{Client, Target, VERSION, object};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The pause between two lines of progress, without a terminal.
const TELL_INTERVAL: Duration = Duration::from_secs(5);
/// Added to a signal's number: the exit code of a command that a signal has ended.
const BY_SIGNAL: i32 = 128;

pub(super) fn migrate(
    target: &Target,
    from: u16,
    to: Option<u16>,
    limit: u64,
    selector: &str,
    json: bool,
) -> Result<(), Failure> {
    let client = Client::to(target)?;
    let watched = Watched::new(&format!(
        "the flows of runtime {from} move on without this command: `holdfast status` shows where flows are"
    ))?;
    let request = MigrateRequest {
        from: from.into(),
        to: to.map(u32::from),
        limit: Some(limit),
        filter: selector.to_owned(),
    };
    let progress = watched.watch(|each| client.migrate(request)?.watch(each))?;
    tell(&progress, "moved", json)?;
    match progress {
        Progress { failed: true, .. } => Err(Failure::new(
            exit::NEGATIVE,
            format!(
                "runtime {from} failed meanwhile: its flows were recovered, see `holdfast status`"
            ),
        )),
        Progress { refused, .. } if refused > 0 => Err(Failure::new(
            exit::NEGATIVE,
            format!("{refused} flows stayed at runtime {from}: the others have no room for them"),
        )),
        _ => Ok(()),
    }
}

pub(super) fn drain(target: &Target, what: &str, force: bool, json: bool) -> Result<(), Failure> {
    let client = Client::to(target)?;
    let (runtimes, host) =
        meant(&client, what, |state| [STATE_RUNNING, STATE_STARTING].contains(&state))?;
    let watched = Watched::new(&format!(
        "the box goes on draining {what} without this command: `holdfast status` says when it is drained, and then `holdfast restore {what}` brings it back"
    ))?;
    // All of them leave before the first flow moves: none of them is another's target.
    for runtime in &runtimes {
        client.drain(*runtime, force)?.progress()?;
    }
    let mut done = Vec::new();
    for runtime in runtimes {
        let progress = watched.watch(|each| client.watch_drain(runtime, each))?;
        if !json || host.is_none() {
            tell(&progress, "drained: moved", json)?;
        }
        done.push(progress);
    }
    if let Some(host) = host.filter(|_| json) {
        print(&format!(
            "{}\n",
            serde_json::json!({ "version": VERSION, "host": host, "runtimes": done.iter().map(object).collect::<Vec<_>>() })
        ))?;
    }
    match done.iter().find(|progress| progress.failed) {
        Some(Progress { runtime, .. }) => Err(Failure::new(
            exit::NEGATIVE,
            format!(
                "runtime {runtime} failed before it was empty: its flows were recovered, see `holdfast status`"
            ),
        )),
        None => Ok(()),
    }
}

pub(super) fn restore(target: &Target, what: &str, json: bool) -> Result<(), Failure> {
    let client = Client::to(target)?;
    let (runtimes, _) = meant(&client, what, |state| state == STATE_DRAINED)?;
    for runtime in runtimes {
        client.restore(runtime)?;
        match json {
            true => print(&format!(
                "{}\n",
                serde_json::json!({ "version": VERSION, "runtime": runtime })
            ))?,
            false => print(&format!("runtime {runtime} is being started\n"))?,
        }
    }
    Ok(())
}

/// A runtime by its number, or a host's runtimes in the wanted state, with the host's
/// name.
fn meant(
    client: &Client,
    what: &str,
    wanted: impl Fn(&str) -> bool,
) -> Result<(Vec<u32>, Option<String>), Failure> {
    if let Ok(runtime) = what.parse::<u16>() {
        return Ok((vec![runtime.into()], None));
    }
    let status = client.status()?;
    if !status.hosts.iter().any(|host| host.name == what) {
        let hosts: Vec<&str> = status.hosts.iter().map(|host| host.name.as_str()).collect();
        let known = if hosts.is_empty() {
            "the box is on one host".to_owned()
        } else {
            format!("hosts: {}", hosts.join(", "))
        };
        return Err(Failure::new(
            exit::NEGATIVE,
            format!("`{what}` is neither a runtime's number nor a host; {known}"),
        ));
    }
    let of_host =
        status.runtimes().filter(|runtime| runtime.host == what && wanted(&runtime.state));
    let runtimes: Vec<u32> = of_host.map(|runtime| runtime.id).collect();
    if runtimes.is_empty() {
        return Err(Failure::new(
            exit::NEGATIVE,
            format!("no runtime of {what} is meant: `holdfast status` says what they are"),
        ));
    }
    Ok((runtimes, Some(what.to_owned())))
}

/// Work of the box that goes on if the command is interrupted.
struct Watched {
    /// The latest reported progress.
    latest: Arc<Mutex<Option<Progress>>>,
}

impl Watched {
    /// Makes a signal end the command with the progress, and `state`, which says how the
    /// work continues.
    fn new(state: &str) -> Result<Watched, Failure> {
        let latest = Arc::new(Mutex::new(None));
        let failed = |error: std::io::Error| {
            Failure::new(exit::of_system(&error), format!("waiting for signals: {error}"))
        };
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let (seen, state) = (latest.clone(), state.to_owned());
        let wait = move || {
            let Some(signal) = signals.forever().next() else { return };
            let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            let text = match &*seen {
                Some(progress) => format!("{}; {state}", so_far(progress)),
                None => {
                    "the box has not said that it has begun: `holdfast status` shows whether it has"
                        .to_owned()
                }
            };
            let _ = writeln!(std::io::stderr(), "{}{text}", if is_terminal() { CLEAR } else { "" });
            std::process::exit(BY_SIGNAL + signal);
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(failed)?;
        Ok(Watched { latest })
    }

    /// Waits until it is over, as `wait` does.
    fn watch(
        &self,
        wait: impl FnOnce(&mut dyn FnMut(&Progress)) -> Result<Progress, Failure>,
    ) -> Result<Progress, Failure> {
        let is_terminal = is_terminal();
        let mut told_at = Instant::now();
        wait(&mut |progress| {
            *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(*progress);
            if is_terminal {
                let end = if progress.done { CLEAR } else { "" };
                let _ = write!(std::io::stderr(), "\r{}{end}", so_far(progress));
            } else if !progress.done && told_at.elapsed() > TELL_INTERVAL {
                told_at = Instant::now();
                let _ = writeln!(std::io::stderr(), "{}", so_far(progress));
            }
        })
    }
}

/// Clears a terminal's line.
const CLEAR: &str = "\r\x1b[K";

fn is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

fn so_far(progress: &Progress) -> String {
    let of = progress.had.map_or(String::new(), |had| format!(" of {had}"));
    format!("runtime {}: {}{of} flows moved", progress.runtime, progress.moved)
}

fn tell(progress: &Progress, what: &str, json: bool) -> Result<(), Failure> {
    if json {
        return print(&format!("{}\n", object(progress)));
    }
    let Progress { runtime, moved, took_us, .. } = progress;
    print(&format!(
        "runtime {runtime} {what} {moved} flows in {}.{:03} ms\n",
        took_us / 1000,
        took_us % 1000
    ))
}
