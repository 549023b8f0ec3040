//! Names of the box, of chains, clusters, hosts, ports, switches and zones.

use super::mistake::Mistake;
use super::source::Spot;

/// Longest name, bytes.
const MAX_NAME: usize = 48;

/// Refuses a name that is too long for the identity table. `whose` names its owner, as in
/// "a port's".
pub(super) fn check_length(name: &str, whose: &str, spot: Spot<'_>) -> Result<(), Mistake> {
    if name.len() > MAX_NAME {
        return Err(spot.mistake(format!("{whose} name has at most {MAX_NAME} bytes")));
    }
    Ok(())
}

/// Refuses a name that could not be part of a path. `whose` names its owner, as in "a
/// host's".
pub(super) fn check(name: &str, whose: &str, spot: Spot<'_>) -> Result<(), Mistake> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty()
        || name.len() > MAX_NAME
        || name.starts_with('.')
        || !name.chars().all(is_plain)
    {
        return Err(spot.mistake(format!(
            "{whose} name is 1 to {MAX_NAME} letters, digits, `-`, `_` or `.`, and does not begin with `.`"
        )));
    }
    Ok(())
}
