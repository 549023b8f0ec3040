//! Commands that move flows: `migrate`, `drain`, `restore`.
//!
//! They begin the work and watch it: on a terminal with a line that tells how far it is. The box goes on if they are interrupted.

use super::print;
use crate::control::{Call, Client, VERSION};
use crate::exit::{self, Failure};
use crate::moves::Progress;
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

pub(super) fn drain(control: Option<&Path>, runtime: u16, json: bool) -> Result<(), Failure> {
    let client = Client::new(control)?;
    client.ask(Call::Drain { runtime })?;
    let progress = watch(&client, &Call::Draining { runtime })?;
    tell(&progress, "drained: moved", json)?;
    if progress.failed {
        return Err(Failure::new(
            exit::NEGATIVE,
            format!("runtime {runtime} failed before it was empty: its flows were recovered, see `holdfast status`"),
        ));
    }
    Ok(())
}

pub(super) fn restore(control: Option<&Path>, runtime: u16, json: bool) -> Result<(), Failure> {
    Client::new(control)?.ask(Call::Restore { runtime })?;
    match json {
        true => print(&format!("{}\n", serde_json::json!({ "version": VERSION, "runtime": runtime }))),
        false => print(&format!("runtime {runtime} is being started\n")),
    }
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
