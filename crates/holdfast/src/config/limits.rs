//! Limits and failure detection: numbers within their ranges.

use super::mistake::Mistake;
use super::raw::Config;
use super::source::Spot;

/// Least number of heartbeats within the time-out of a hung runtime.
const LEAST_HEARTBEATS: u64 = 4;

/// The section, with defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of flows with a route at a switch, and of flows that one runtime
    /// may own per chain.
    pub flows: usize,
    /// Maximum number of half-open flows of one source.
    pub half_open_per_source: u32,
    /// Maximum number of flows of one source, if limited.
    pub flows_per_source: Option<u32>,
    /// Packet buffers of a host.
    pub buffers: u32,
}

/// Reads `limits` and `detection`.
pub(super) fn read(config: &Config, root: Spot<'_>) -> Result<Limits, Mistake> {
    let between = |section: &str, key: &str, value: u64, least: u64, most: u64| {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(root
            .key(section)
            .key(key)
            .mistake(format!("`{key}` is between {least} and {most}, not {value}")))
    };
    let limits = &config.limits;
    between("limits", "flows", limits.flows as u64, 1, 16_000_000)?;
    for (key, limit) in [
        ("half_open_per_source", limits.half_open_per_source),
        ("flows_per_source", limits.flows_per_source),
    ] {
        if let Some(limit) = limit {
            between("limits", key, limit.into(), 1, limits.flows as u64)?;
        }
    }
    between("limits", "buffers", limits.buffers.into(), 8192, 1 << 20)?;
    let detection = &config.detection;
    between("detection", "heartbeat_ms", detection.heartbeat_ms, 1, 60_000)?;
    between("detection", "hang_ms", detection.hang_ms, LEAST_HEARTBEATS, 600_000)?;
    between("detection", "host_ms", detection.host_ms, 10, 600_000)?;
    let least = LEAST_HEARTBEATS * detection.heartbeat_ms;
    if detection.hang_ms < least {
        return Err(root.key("detection").key("hang_ms").mistake(format!(
            "a runtime must have {LEAST_HEARTBEATS} heartbeats' time to be heard: `hang_ms` is at least {least} with `heartbeat_ms` {}, not {}",
            detection.heartbeat_ms, detection.hang_ms
        )));
    }
    let half_open_per_source =
        limits.half_open_per_source.unwrap_or((limits.flows / 10).max(1) as u32);
    let (flows, flows_per_source, buffers) =
        (limits.flows, limits.flows_per_source, limits.buffers);
    Ok(Limits { flows, half_open_per_source, flows_per_source, buffers })
}
