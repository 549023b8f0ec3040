//! Watched routers (BFD): a port's `bfd`, and the key files.

use super::mistake::Mistake;
use super::network::Networks;
use super::raw::{BfdConfig, BfdKeyConfig, BfdKeyType, Config, Word};
use super::source::Spot;
use holdfast_control::secret::read_secret;
use holdfast_node::bfd::{Key, KeyKind, MAX_SESSIONS};
use std::net::IpAddr;
use std::path::Path;

/// Microseconds between packets without `interval`.
const INTERVAL: u32 = 50_000;
/// The shortest and the longest of the intervals that are common among routers (RFC 7419,
/// section 3), microseconds.
const INTERVALS: std::ops::RangeInclusive<u32> = 3_300..=10_000_000;
const MULTIPLIER: u8 = 3;

impl BfdKeyType {
    /// The word for the kind of signature.
    pub(super) fn name(self) -> &'static str {
        match self {
            BfdKeyType::KeyedSha1 => "keyed-sha1",
            BfdKeyType::MeticulousKeyedSha1 => "meticulous-keyed-sha1",
            BfdKeyType::Password => "password",
        }
    }
}

/// Writes the defaults out, in one of their spellings.
pub(super) fn say_in_full(config: &mut BfdConfig) {
    let interval = config
        .interval
        .as_ref()
        .and_then(|interval| microseconds(&interval.0).ok())
        .unwrap_or(INTERVAL);
    config.interval = Some(Word(format!("{interval}us")));
    config.multiplier.get_or_insert(MULTIPLIER);
}

/// A watched router.
#[derive(Debug, Clone)]
pub struct BfdPeer {
    /// The port's number.
    pub port: u8,
    /// The router's address.
    pub address: IpAddr,
    /// Time between packets, microseconds.
    pub interval: u32,
    /// See [`BfdConfig::multiplier`].
    pub multiplier: u8,
    /// The key that signs packets, and its place in the configuration: the port's name
    /// and the index in its list.
    pub key: Option<(BfdKeyConfig, String, usize)>,
}

/// Reads a time with its unit, in microseconds.
fn microseconds(text: &str) -> Result<u32, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "us" | "µs" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        _ => 0u64,
    };
    let number: Option<u64> = number.parse().ok().filter(|_| factor != 0);
    let Some(number) = number else {
        return Err(format!(
            "`{}` is no time: write a number and `ms`, `us` or `s`, like 50ms",
            text.escape_debug()
        ));
    };
    let time = number
        .checked_mul(factor)
        .and_then(|time| u32::try_from(time).ok())
        .filter(|time| INTERVALS.contains(time));
    time.ok_or_else(|| format!("`interval` is between 3300us and 10s, not {}", text.escape_debug()))
}

pub(super) fn read(
    config: &Config,
    networks: &mut Networks,
    root: Spot<'_>,
) -> Result<Vec<BfdPeer>, Mistake> {
    let mut peers: Vec<BfdPeer> = Vec::new();
    for (number, (name, port)) in (0u8..).zip(&config.ports) {
        for (at, bfd) in port.bfd.iter().enumerate() {
            let spot = root.key("ports").key(name).key("bfd").index(at);
            let address = networks.watch(&bfd.peer, number, spot.key("peer"))?;
            let interval =
                bfd.interval.as_ref().map_or(Ok(INTERVAL), |interval| microseconds(&interval.0));
            let interval = interval.map_err(|message| spot.key("interval").mistake(message))?;
            let multiplier = bfd.multiplier.unwrap_or(MULTIPLIER);
            if multiplier == 0 {
                return Err(spot
                    .key("multiplier")
                    .mistake("`multiplier` is between 1 and 255, not 0"));
            }
            if bfd.key.as_ref().is_some_and(|key| key.file.is_empty()) {
                return Err(spot.key("key").key("file").mistake("`file` is a file's path"));
            }
            if peers.len() == MAX_SESSIONS {
                return Err(spot.mistake(format!("a box watches {MAX_SESSIONS} routers at most")));
            }
            let key = bfd.key.clone().map(|key| (key, name.clone(), at));
            peers.push(BfdPeer { port: number, address, interval, multiplier, key });
        }
    }
    Ok(peers)
}

/// Reads the key from its file.
///
/// # Errors
/// The text says what is wrong with it.
pub(super) fn load(path: &Path, config: &BfdKeyConfig) -> Result<Key, String> {
    let name = path.display();
    let bytes = read_secret(
        path,
        &format!("install -m 600 /dev/stdin {name}"),
        "install -m 600 /dev/stdin FILE",
    )?;
    // Editors end the last line with a newline.
    let secret = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
    let (kind, most) = match config.kind {
        BfdKeyType::KeyedSha1 => (KeyKind::KeyedSha1, 20),
        BfdKeyType::MeticulousKeyedSha1 => (KeyKind::MeticulousKeyedSha1, 20),
        BfdKeyType::Password => (KeyKind::Password, 16),
    };
    Key::new(kind, config.id, secret).ok_or_else(|| {
        format!("`{name}` holds {} bytes: a `{}` has 1 to {most}", secret.len(), config.kind.name())
    })
}

#[cfg(test)]
mod tests {
    use super::microseconds;

    #[test]
    fn a_time_has_a_unit_and_bounds() {
        assert_eq!(
            (microseconds("50ms"), microseconds("3300us"), microseconds("10 s")),
            (Ok(50_000), Ok(3_300), Ok(10_000_000))
        );
        for (wrong, expected) in [
            ("50", "no time"),
            ("", "no time"),
            ("ms", "no time"),
            ("-5ms", "no time"),
            ("5m", "no time"),
            ("99999999999999999999s", "no time"),
            ("3299us", "between"),
            ("11s", "between"),
            ("18446744073709551615s", "between"),
        ] {
            assert!(
                microseconds(wrong).is_err_and(|message| message.contains(expected)),
                "{wrong}"
            );
        }
    }
}
