//! Sets of the box's ports, and their names.
//!
//! An operator names ports and zones, which are groups of ports; a
//! [`Selector`](crate::selector::Selector) has the set. Processes exchange it in numbers,
//! `#0-2,5`: those of one switch's ports, as in
//! [`Meta::ingress`](crate::packet::Meta::ingress).

use crate::selector::SelectorError;
use core::fmt;

/// Maximum number of ports of a box.
pub const MAX_PORTS: u8 = 64;

/// A set of a switch's ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone(u64);

impl Default for Zone {
    fn default() -> Zone {
        Zone::any()
    }
}

impl Zone {
    /// All ports.
    pub fn any() -> Zone {
        Zone(u64::MAX)
    }

    /// These ports. Numbers from [`MAX_PORTS`] on are no ports.
    pub fn of(ports: impl IntoIterator<Item = u8>) -> Zone {
        Zone(
            ports
                .into_iter()
                .filter(|port| *port < MAX_PORTS)
                .fold(0, |bits, port| bits | 1 << port),
        )
    }

    /// True if the port is in the set.
    #[inline]
    pub fn contains(self, port: u8) -> bool {
        self.is_any() || (port < MAX_PORTS && self.0 >> port & 1 == 1)
    }

    /// True for all ports.
    #[inline]
    pub fn is_any(self) -> bool {
        self.0 == u64::MAX
    }

    /// True for the empty set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of ports.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// The ports in both sets.
    pub fn and(self, other: Zone) -> Zone {
        Zone(self.0 | other.0)
    }

    /// True if some port is in both sets.
    pub fn overlaps(self, other: Zone) -> bool {
        self.0 & other.0 != 0
    }

    /// True if every port of the other set is in this one.
    pub fn covers(self, other: Zone) -> bool {
        other.0 & !self.0 == 0
    }
}

/// As ranges of numbers, `#0-2,5`.
impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("#")?;
        let (mut left, mut comma) = (self.0, "");
        while left != 0 {
            let first = left.trailing_zeros();
            let last = first + (left >> first).trailing_ones() - 1;
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            left = if last == 63 { 0 } else { left >> (last + 1) << (last + 1) };
            comma = ",";
        }
        Ok(())
    }
}

/// Names of ports and zones, for reading selectors.
#[derive(Debug, Clone, Default)]
pub struct Zones {
    /// Ports and zones by name.
    names: Vec<(String, Zone)>,
    /// True if ports are read as numbers.
    is_numbered: bool,
}

impl Zones {
    /// Zones with these names of ports and zones. An empty zone has ports of other
    /// switches only.
    pub fn new(names: impl IntoIterator<Item = (String, Zone)>) -> Zones {
        Zones { names: names.into_iter().collect(), is_numbered: false }
    }

    /// Ports by numbers, between processes.
    pub fn numbered() -> Zones {
        Zones { names: Vec::new(), is_numbered: true }
    }

    /// The name of exactly these ports, or the names of each.
    pub fn name(&self, zone: Zone) -> String {
        let exact =
            self.names.iter().find(|(_, known)| *known == zone).map(|(name, _)| name.clone());
        let each = || {
            let ports = (0..MAX_PORTS).filter(|port| zone.contains(*port));
            let names = ports.map(|port| {
                self.names
                    .iter()
                    .find(|(_, known)| *known == Zone::of([port]))
                    .map(|(name, _)| name.as_str())
            });
            names
                .collect::<Option<Vec<_>>>()
                .filter(|names| !names.is_empty())
                .map(|names| names.join(","))
        };
        exact.or_else(each).unwrap_or_else(|| zone.to_string())
    }

    /// The ports named in a list with commas.
    ///
    /// # Errors
    /// If a word is not a known name, the error has its offset.
    pub fn read(&self, text: &str) -> Result<Zone, SelectorError> {
        if self.is_numbered
            && let Some(numbers) = text.strip_prefix('#')
        {
            return numbers_of(numbers).ok_or_else(|| {
                wrong(0, format!("`{text}` is not a list of ports' numbers: like #0-2,5"))
            });
        }
        let (mut zone, mut offset) = (Zone(0), 0);
        for name in text.split(',') {
            zone = zone.and(self.one(name).map_err(|message| wrong(offset, message))?);
            offset += name.len() + 1;
        }
        Ok(zone)
    }

    fn one(&self, name: &str) -> Result<Zone, String> {
        match self.names.iter().find(|(known, _)| known == name) {
            Some((_, zone)) if zone.is_empty() => {
                Err(format!("`{name}` has no port of this chain's switch, so nothing would match"))
            }
            Some((_, zone)) => Ok(*zone),
            None if self.names.is_empty() => {
                Err(format!("`{name}`: by which port something came in is not known here"))
            }
            None => {
                let known: Vec<String> =
                    self.names.iter().map(|(known, _)| format!("`{known}`")).collect();
                Err(format!("unknown port or zone `{name}`, expected one of {}", known.join(", ")))
            }
        }
    }
}

fn wrong(offset: usize, message: String) -> SelectorError {
    SelectorError { offset, message }
}

fn numbers_of(text: &str) -> Option<Zone> {
    let mut zone = Zone(0);
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse::<u8>().ok().filter(|port| *port < MAX_PORTS);
        zone = zone.and(Zone::of(number(first)?..=number(last)?));
    }
    (!zone.is_empty()).then_some(zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn office() -> Zones {
        let named = [
            ("dmz", vec![1]),
            ("lan", vec![0]),
            ("far", vec![]),
            ("wan", vec![3]),
            ("inside", vec![0, 1]),
        ];
        Zones::new(named.map(|(name, ports)| (name.to_owned(), Zone::of(ports))))
    }

    #[test]
    fn names_mean_ports_and_ports_have_names() {
        let read = |text: &str| office().read(text);
        assert_eq!(read("lan"), Ok(Zone::of([0])));
        assert_eq!(read("inside,wan"), Ok(Zone::of([0, 1, 3])));
        assert_eq!(office().name(Zone::of([0, 1])), "inside");
        assert_eq!(office().name(Zone::of([0, 3])), "lan,wan");
        assert_eq!(office().name(Zone::of([2])), "#2");
        assert!(
            Zone::any().contains(0)
                && Zone::any().contains(u8::MAX)
                && Zone::any().covers(Zone::of([63]))
        );
        assert!(
            !Zone::of([0, 63]).contains(1)
                && Zone::of([0, 63]).contains(63)
                && !Zone::of([64]).contains(64)
        );
    }

    #[test]
    fn what_is_no_name_is_said_with_its_place() {
        let error = |zones: Zones, text: &str| {
            zones.read(text).map_err(|error| (error.offset, error.message)).unwrap_err()
        };
        let unknown =
            "unknown port or zone `wam`, expected one of `dmz`, `lan`, `far`, `wan`, `inside`";
        assert_eq!(error(office(), "lan,wam"), (4, unknown.to_owned()));
        assert_eq!(
            error(office(), "far").1,
            "`far` has no port of this chain's switch, so nothing would match"
        );
        assert_eq!(error(office(), "lan,").0, 4);
        assert_eq!(error(office(), "#0").0, 0, "an operator names ports");
        assert_eq!(
            error(Zones::default(), "wan").1,
            "`wan`: by which port something came in is not known here"
        );
        for text in ["#", "#64", "#1-", "#5-3", "#0,", "#-"] {
            assert_eq!(error(Zones::numbered(), text).0, 0, "{text}");
        }
    }

    #[test]
    fn numbers_read_back() {
        for (ports, text) in [
            (vec![0], "#0"),
            (vec![0, 1, 2, 5], "#0-2,5"),
            (vec![62, 63], "#62-63"),
            (vec![7, 9, 63], "#7,9,63"),
        ] {
            let zone = Zone::of(ports);
            assert_eq!(zone.to_string(), text);
            assert_eq!(Zones::numbered().read(text), Ok(zone));
        }
        assert_eq!(Zones::numbered().read(&Zone::any().to_string()), Ok(Zone::any()));
    }
}
