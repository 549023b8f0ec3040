//! Checks of connections, datagrams and processes; the error describes the actual state.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Process, Status};
use holdfast_lab::Interrupt;
use holdfast_lab::keepalive::KeepAlive;
use holdfast_lab::running::RunningBox;
use holdfast_lab::udp::Datagrams;

/// Checks that these connections are unbroken, and that each answers once more.
///
/// # Errors
/// A connection is broken.
pub fn ensure_unbroken(held: &KeepAlive, interrupt: &Interrupt) -> Result<()> {
    let connections = held.verify(interrupt)?;
    ensure!(connections.broken == 0, "{connections:?}");
    Ok(())
}

/// Checks that all of these `flows` are served to the end, no datagram has come twice or
/// changed, and fewer than `lost` datagrams are missing.
///
/// # Errors
/// The condition does not hold.
pub fn ensure_served(datagrams: &Datagrams, flows: usize, lost: u64) -> Result<()> {
    ensure!((datagrams.doubled, datagrams.changed) == (0, 0), "{datagrams:?}");
    ensure!(datagrams.flows_alive == flows, "{datagrams:?}");
    ensure!(datagrams.lost < lost, "{datagrams:?}");
    Ok(())
}

/// Checks that in these `flows` no datagram is missing, and none has come twice, late or
/// changed.
///
/// # Errors
/// The condition does not hold. The error also has the drops of these boxes, and the
/// failures they saw.
pub fn ensure_perfect<'a>(
    datagrams: &Datagrams,
    flows: usize,
    boxes: impl Iterator<Item = &'a RunningBox>,
) -> Result<()> {
    let is_perfect = || {
        ensure_served(datagrams, flows, 1)?;
        ensure!(datagrams.reordered == 0, "{datagrams:?}");
        Ok(())
    };
    is_perfect().with_context(|| {
        let accounts = boxes.map(|running| match running.status() {
            Ok(status) => format!("dropped {:?}, given up {:?}", status.drops, status.failovers),
            Err(error) => format!("{error:#}"),
        });
        accounts.collect::<Vec<String>>().join("; ")
    })
}

/// Checks that these processes live, and are the same as before.
///
/// # Errors
/// A process has changed; the error names the first.
pub fn ensure_same<'a>(before: impl Iterator<Item = &'a Process>, after: &Status) -> Result<()> {
    for old in before {
        let new = after
            .processes
            .iter()
            .find(|new| (new.role.as_str(), new.id) == (old.role.as_str(), old.id));
        ensure!(
            new.is_some_and(|new| (new.pid, new.incarnation) == (old.pid, old.incarnation)),
            "{old:?} became {new:?}"
        );
    }
    Ok(())
}
