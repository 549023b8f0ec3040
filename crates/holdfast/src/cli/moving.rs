//! Commands that move flows: `migrate`, `drain`, `restore`.
//!
//! They begin the work and watch it: on a terminal with a line that tells how far it is. The box goes on if they are interrupted.

use super::print;
use crate::control::{Call, Client, VERSION};
use crate::exit::{self, Failure};
use crate::moves::Progress;
use crate::status::{STATE_DRAINED, STATE_RUNNING, STATE_STARTING, Status};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

pub(super) fn migrate(
    control: Option<&Path>,
    from: u16,
    to: Option<u16>,
    limit: u64,
    selector: &str,
    json: bool,
) -> Result<(), Failure> {
    let client = Client::new(control)?;
    let answer = client.ask(Call::Move { from, to, limit, filter: selector.to_owned() })?;
    let order = answer["order"].as_u64().and_then(|order| u32::try_from(order).ok());
    let order = order.ok_or_else(|| Failure::new(exit::UNAVAILABLE, "the box's answer is of another version"))?;
    let progress = watch(&client, &Call::Moving { order })?;
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

pub(super) fn drain(control: Option<&Path>, what: &str, json: bool) -> Result<(), Failure> {
    let client = Client::new(control)?;
    let (runtimes, host) = meant(&client, what, |state| [STATE_RUNNING, STATE_STARTING].contains(&state))?;
    // All of them leave before the first flow moves: none of them is another's target.
    for runtime in &runtimes {
        client.ask(Call::Drain { runtime: *runtime })?;
    }
    let mut done = Vec::new();
    for runtime in runtimes {
        let progress = watch(&client, &Call::Draining { runtime })?;
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

pub(super) fn restore(control: Option<&Path>, what: &str, json: bool) -> Result<(), Failure> {
    let client = Client::new(control)?;
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

/// Looks until it is over.
fn watch(client: &Client, call: &Call) -> Result<Progress, Failure> {
    let is_terminal = std::io::stderr().is_terminal();
    loop {
        let progress: Progress = serde_json::from_value(client.ask(call.clone())?)
            .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("the box's answer is of another version: {error}")))?;
        if is_terminal {
            let of = progress.had.map_or(String::new(), |had| format!(" of {had}"));
            let end = if progress.done { "\r\x1b[K" } else { "" };
            let _ = write!(std::io::stderr(), "\rruntime {}: {}{of} flows moved{end}", progress.runtime, progress.moved);
        }
        if progress.done {
            return Ok(progress);
        }
        std::thread::sleep(LOOK);
    }
}

fn tell(progress: &Progress, what: &str, json: bool) -> Result<(), Failure> {
    if json {
        return print(&format!("{}\n", serde_json::to_value(progress).unwrap_or_default()));
    }
    let Progress { runtime, moved, took_us, .. } = progress;
    print(&format!("runtime {runtime} {what} {moved} flows in {}.{:03} ms\n", took_us / 1000, took_us % 1000))
}
