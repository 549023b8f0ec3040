//! Names of the box, of clusters, hosts, switches and zones.

use super::mistake::Mistake;
use super::source::Spot;

/// Refuses a name that could not be part of a path. `whose` names its owner, as in "a
/// host's".
pub(super) fn check(name: &str, whose: &str, spot: Spot<'_>) -> Result<(), Mistake> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 48 || name.starts_with('.') || !name.chars().all(is_plain) {
        return Err(spot.mistake(format!(
            "{whose} name is 1 to 48 letters, digits, `-`, `_` or `.`, and does not begin with `.`"
        )));
    }
    Ok(())
}
