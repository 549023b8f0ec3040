//! Commands that move flows: `migrate`, `drain`, `restore`.
//!
//! They begin the work and watch it: on a terminal with a line that tells how far it is. The box goes on if they are interrupted.

use holdfast_control::exit::{self, Failure};
use holdfast_control::moves::Progress;
use holdfast_control::status::{STATE_DRAINED, STATE_RUNNING, STATE_STARTING, Status};
use holdfast_control::table::print;
use holdfast_control::{Call, Client, Target, VERSION, Work};
use std::io::{IsTerminal, Write};

pub(super) fn migrate(
    target: &Target,
    from: u16,
    to: Option<u16>,
    limit: u64,
    selector: &str,
    json: bool,
) -> Result<(), Failure> {
    let client = Client::to(target)?;
    let progress = watch(client.begin(Call::Move { from, to, limit, filter: selector.to_owned() })?)?;
    tell(&progress, "moved", json)?;
    match progress {
        Progress { failed: true, .. } => Err(Failure::new(
            exit::NEGATIVE,
            format!("runtime {from} failed meanwhile: its flows were recovered, see `holdfast status`"),
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
    let (runtimes, host) = meant(&client, what, |state| [STATE_RUNNING, STATE_STARTING].contains(&state))?;
    // All of them leave before the first flow moves: none of them is another's target.
    let begun =
        runtimes.into_iter().map(|runtime| client.begin(Call::Drain { runtime, force })).collect::<Result<Vec<_>, _>>()?;
    let mut done = Vec::new();
    for work in begun {
        let progress = watch(work)?;
        if !json || host.is_none() {
            tell(&progress, "drained: moved", json)?;
        }
        done.push(progress);
    }
    if let Some(host) = host.filter(|_| json) {
        print(&format!("{}\n", serde_json::json!({ "version": VERSION, "host": host, "runtimes": done })))?;
    }
    match done.iter().find(|progress| progress.failed) {
        Some(Progress { runtime, .. }) => Err(Failure::new(
            exit::NEGATIVE,
            format!("runtime {runtime} failed before it was empty: its flows were recovered, see `holdfast status`"),
        )),
        None => Ok(()),
    }
}

pub(super) fn restore(target: &Target, what: &str, json: bool) -> Result<(), Failure> {
    let client = Client::to(target)?;
    let (runtimes, _) = meant(&client, what, |state| state == STATE_DRAINED)?;
    for runtime in runtimes {
        client.ask(Call::Restore { runtime })?;
        match json {
            true => print(&format!("{}\n", serde_json::json!({ "version": VERSION, "runtime": runtime })))?,
            false => print(&format!("runtime {runtime} is being started\n"))?,
        }
    }
    Ok(())
}

/// A runtime by its number, or those of a host that are in the wanted state, with the host's name.
fn meant(client: &Client, what: &str, wanted: impl Fn(&str) -> bool) -> Result<(Vec<u16>, Option<String>), Failure> {
    if let Ok(runtime) = what.parse() {
        return Ok((vec![runtime], None));
    }
    let status: Status = serde_json::from_value(client.ask(Call::Status)?)
        .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("the box's answer is of another version: {error}")))?;
    if !status.hosts.iter().any(|host| host.name == what) {
        let hosts: Vec<&str> = status.hosts.iter().map(|host| host.name.as_str()).collect();
        let known = if hosts.is_empty() { "the box is on one host".to_owned() } else { format!("hosts: {}", hosts.join(", ")) };
        return Err(Failure::new(exit::NEGATIVE, format!("`{what}` is neither a runtime's number nor a host; {known}")));
    }
    let of_host = status.runtimes().filter(|runtime| runtime.host == what && wanted(&runtime.state));
    let runtimes: Vec<u16> = of_host.map(|runtime| runtime.id).collect();
    if runtimes.is_empty() {
        return Err(Failure::new(exit::NEGATIVE, format!("no runtime of {what} is meant: `holdfast status` says what they are")));
    }
    Ok((runtimes, Some(what.to_owned())))
}

/// Waits until it is over.
fn watch(work: Work) -> Result<Progress, Failure> {
    let is_terminal = std::io::stderr().is_terminal();
    work.watch(|progress| {
        if is_terminal {
            let of = progress.had.map_or(String::new(), |had| format!(" of {had}"));
            let end = if progress.done { "\r\x1b[K" } else { "" };
            let _ = write!(std::io::stderr(), "\rruntime {}: {}{of} flows moved{end}", progress.runtime, progress.moved);
        }
    })
}

fn tell(progress: &Progress, what: &str, json: bool) -> Result<(), Failure> {
    if json {
        return print(&format!("{}\n", serde_json::to_value(progress).unwrap_or_default()));
    }
    let Progress { runtime, moved, took_us, .. } = progress;
    print(&format!("runtime {runtime} {what} {moved} flows in {}.{:03} ms\n", took_us / 1000, took_us % 1000))
}
