//! What tests expect of connections, datagrams and processes; if it is not so, the error says what there was instead.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Process, Status};
use holdfast_lab::Interrupt;
use holdfast_lab::keepalive::KeepAlive;
use holdfast_lab::running::RunningBox;
use holdfast_lab::udp::Datagrams;

/// None of these connections has broken, and each answers once more.
///
/// # Errors
/// If one has.
pub fn ensure_unbroken(held: &KeepAlive, interrupt: &Interrupt) -> Result<()> {
    let connections = held.verify(interrupt)?;
    ensure!(connections.broken == 0, "{connections:?}");
    Ok(())
}

/// Of as many flows everyone is served to the end, nothing has come twice or changed, and fewer than `lost` datagrams are missing.
///
/// # Errors
/// If it is not so.
pub fn ensure_served(datagrams: &Datagrams, flows: usize, lost: u64) -> Result<()> {
    ensure!((datagrams.doubled, datagrams.changed) == (0, 0), "{datagrams:?}");
    ensure!(datagrams.flows_alive == flows, "{datagrams:?}");
    ensure!(datagrams.lost < lost, "{datagrams:?}");
    Ok(())
}

/// Of as many flows nothing is missing, nothing has come twice, late or changed.
///
/// # Errors
/// If it is not so; then it tells, too, what these boxes have dropped and whom they gave up.
pub fn ensure_perfect<'a>(datagrams: &Datagrams, flows: usize, boxes: impl Iterator<Item = &'a RunningBox>) -> Result<()> {
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

/// These processes live, and are the same as before.
///
/// # Errors
/// With the first that is not.
pub fn ensure_same<'a>(before: impl Iterator<Item = &'a Process>, after: &Status) -> Result<()> {
    for old in before {
        let new = after.processes.iter().find(|new| (new.role.as_str(), new.id) == (old.role.as_str(), old.id));
        ensure!(new.is_some_and(|new| (new.pid, new.incarnation) == (old.pid, old.incarnation)), "{old:?} became {new:?}");
    }
    Ok(())
}
