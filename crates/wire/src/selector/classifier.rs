//! The first of many selectors that matches a key.
//!
//! Theory of operation. Tuple space search (Srinivasan, Suri and Varghese, "Packet
//! Classification Using Tuple Space Search", SIGCOMM 1999, section 4). Selectors that fix
//! the same bits of a key form a tuple. One look-up in the tuple's table finds those that
//! fix them as the key has them, and only these are compared with the packet. Tuples are
//! searched in the order of their first selectors, until none that is left has an earlier
//! one than was found. A short list of ports is several exact entries; ranges of ports
//! and other conditions fix no bits.
//!
//! Few selectors, and those that nearly all differ in what they fix, are compared one by
//! one: that is faster then.
//!
//! In: selectors, in the order in which they decide. Out: the first that matches. Never:
//! an allocation by a look-up.

use super::{Ports, Prefix, Protocol, Selector};
use crate::key::FlowKey;
use std::collections::HashMap;

/// Up to so many selectors are compared one by one.
const FEW: usize = 16;
/// A tuple must have at least so many selectors on average.
const WORTH: usize = 8;
/// Entries that one selector may have.
const LISTED: usize = 16;

/// A key's bits, or the bits of it that a tuple fixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Bits {
    source: u128,
    destination: u128,
    ports: [u16; 2],
    protocol: u16,
}

impl Bits {
    fn of(key: &FlowKey) -> Bits {
        Bits {
            source: u128::from_be_bytes(key.source),
            destination: u128::from_be_bytes(key.destination),
            ports: [key.source_port, key.destination_port],
            protocol: key.protocol,
        }
    }

    fn masked(&self, mask: &Bits) -> Bits {
        Bits {
            source: self.source & mask.source,
            destination: self.destination & mask.destination,
            ports: [0, 1].map(|at| self.ports[at] & mask.ports[at]),
            protocol: self.protocol & mask.protocol,
        }
    }
}

/// Selectors that fix the same bits.
#[derive(Debug, Clone)]
struct Tuple {
    mask: Bits,
    /// The first selector.
    first: usize,
    /// By fixed bits, the selectors in order.
    found: HashMap<Bits, Vec<usize>>,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Classifier {
    count: usize,
    /// In the order of their first selectors; none if selectors are compared one by one.
    tuples: Vec<Tuple>,
}

impl Classifier {
    /// A classifier of these selectors, of which the first that matches decides.
    pub fn new<'s>(selectors: impl IntoIterator<Item = &'s Selector>) -> Classifier {
        let mut tuples = Vec::<Tuple>::new();
        let mut by_mask = HashMap::new();
        let mut count = 0;
        for (at, selector) in selectors.into_iter().enumerate() {
            count = at + 1;
            let (mask, entries) = entries(selector);
            let tuple = *by_mask.entry(mask).or_insert_with(|| {
                tuples.push(Tuple { mask, first: at, found: HashMap::new() });
                tuples.len() - 1
            });
            for entry in entries {
                let found = tuples[tuple].found.entry(entry).or_default();
                // A list may have a port twice.
                if found.last() != Some(&at) {
                    found.push(at);
                }
            }
        }
        if count <= FEW || count < tuples.len() * WORTH {
            tuples.clear();
        }
        Classifier { count, tuples }
    }

    /// The number, counted from 0, of the first selector that matches. `is_match`
    /// compares one with the packet that has this key.
    #[inline]
    pub fn first(&self, key: &FlowKey, mut is_match: impl FnMut(usize) -> bool) -> Option<usize> {
        if self.tuples.is_empty() {
            return (0..self.count).find(|at| is_match(*at));
        }
        let bits = Bits::of(key);
        let mut best = self.count;
        for tuple in &self.tuples {
            if tuple.first >= best {
                break;
            }
            let found = tuple.found.get(&bits.masked(&tuple.mask)).map_or(&[][..], Vec::as_slice);
            let earlier = found.iter().take_while(|at| **at < best);
            if let Some(at) = earlier.copied().find(|at| is_match(*at)) {
                best = at;
            }
        }
        (best < self.count).then_some(best)
    }
}

/// The bits that a selector fixes, and its entries: their values. It matches no key
/// without one of these values.
fn entries(selector: &Selector) -> (Bits, Vec<Bits>) {
    let prefix = |prefix: &Option<Prefix>| prefix.map_or((0, 0), |prefix| prefix.bits());
    let ((source, source_mask), (destination, destination_mask)) =
        (prefix(&selector.from), prefix(&selector.to));
    let (protocol, protocol_mask) = match selector.protocol {
        Protocol::Number(number) => (u16::from(number), u16::MAX),
        // Two numbers, or all.
        Protocol::Icmp | Protocol::Any => (0, 0),
    };
    let (from, from_mask) = listed(&selector.from_ports);
    let (mut to, mut to_mask) = listed(&selector.to_ports);
    if from.len() * to.len() > LISTED {
        (to, to_mask) = (vec![0], 0);
    }
    let mask = Bits {
        source: source_mask,
        destination: destination_mask,
        ports: [from_mask, to_mask],
        protocol: protocol_mask,
    };
    let ports = from.iter().flat_map(|from| to.iter().map(move |to| [*from, *to]));
    let entries = ports.map(|ports| Bits { source, destination, ports, protocol }).collect();
    (mask, entries)
}

/// The ports of a short list, and the mask of their bits.
fn listed(ports: &Ports) -> (Vec<u16>, u16) {
    let is_short = !ports.is_any()
        && ports.ranges().iter().map(|&(low, high)| usize::from(high - low) + 1).sum::<usize>()
            <= LISTED;
    if is_short {
        (ports.ranges().iter().flat_map(|&(low, high)| low..=high).collect(), u16::MAX)
    } else {
        (vec![0], 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of numbers below a bound: the same ones in every run.
    fn draws() -> impl FnMut(usize) -> usize {
        let mut state = 1u64;
        move |bound| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % bound
        }
    }

    fn selector(draw: &mut impl FnMut(usize) -> usize) -> Selector {
        const ADDRESSES: [&str; 8] = [
            "any",
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.2.3",
            "2001:db8::/32",
            "::/0",
            "0.0.0.0/0",
            "10.1.2.0/24",
        ];
        const PORTS: [&str; 7] =
            ["", "", " port 80", " port 80,443,80", " port 1000-60000", " port 0", " port 1-16"];
        let protocol = ["any", "tcp", "udp", "icmp"][draw(4)];
        let mut side = |word: &str| {
            let ports = if protocol == "icmp" { "" } else { PORTS[draw(PORTS.len())] };
            format!("{word} {}{ports}", ADDRESSES[draw(ADDRESSES.len())])
        };
        loop {
            // Addresses of two families are refused.
            if let Ok(selector) = format!("{protocol} {} {}", side("from"), side("to")).parse() {
                return selector;
            }
        }
    }

    fn key(draw: &mut impl FnMut(usize) -> usize) -> FlowKey {
        let text = ["10.1.2.3", "10.1.2.4", "10.9.9.9", "192.0.2.1", "2001:db8::1", "2001::1"];
        let mut address =
            || crate::ip_bytes(text[draw(text.len())].parse().expect("a test's address"));
        let (source, destination) = (address(), address());
        let ports = [0, 1, 16, 17, 80, 443, 1000, 65535];
        FlowKey {
            source,
            destination,
            source_port: ports[draw(ports.len())],
            destination_port: ports[draw(ports.len())],
            protocol: [1, 6, 17, 58, 47][draw(5)],
            ..FlowKey::default()
        }
    }

    /// The classifier finds what comparing one by one finds, in sets of every size.
    #[test]
    fn the_first_that_matches_is_found() {
        let mut draw = draws();
        let mut searched = 0;
        for count in [0, 1, FEW, FEW + 1, 300, 3000] {
            // All of the earlier selectors are compared if a late one decides.
            let rare = count - count.min(40);
            let selectors: Vec<_> = (0..count)
                .map(|at| match at < rare && at % 4 != 0 {
                    true => format!("tcp from 172.16.{}.{} to any", at / 250, at % 250)
                        .parse()
                        .expect("a test's selector"),
                    false => selector(&mut draw),
                })
                .collect();
            let classifier = Classifier::new(&selectors);
            searched += usize::from(!classifier.tuples.is_empty());
            for _ in 0..500 {
                let key = key(&mut draw);
                let expected = selectors.iter().position(|selector| selector.matches_key(&key));
                let found = classifier.first(&key, |at| selectors[at].matches_key(&key));
                assert_eq!(found, expected, "{count} selectors, {key}");
            }
        }
        assert!(searched >= 1, "no set was searched by tuples");
    }

    /// A key is compared with few of many selectors.
    #[test]
    fn few_are_compared() {
        let selectors: Vec<Selector> = (0..10_000)
            .map(|at| {
                let (high, low) = (at / 256, at % 256);
                format!("tcp from 10.{high}.{low}.0/24 to any port 80,443,8000-8005")
            })
            .chain(["udp from any to any port 2000-3000".to_owned(), "any".to_owned()])
            .map(|text| text.parse().expect("a test's selector"))
            .collect();
        let classifier = Classifier::new(&selectors);
        for (key, expected) in
            [("6 10.39.15.9 5 192.0.2.1 8005", 9999), ("17 10.0.0.1 5 192.0.2.1 2500", 10_000)]
        {
            let key = crate::selector::tests::key(key);
            let mut compared = 0;
            let found = classifier.first(&key, |at| {
                compared += 1;
                selectors[at].matches_key(&key)
            });
            assert_eq!((found, compared <= 2), (Some(expected), true), "{compared} compared");
        }
    }
}
