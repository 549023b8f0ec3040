//! Routes: longest prefix match, IPv4 and IPv6 apart. The first usable of several routes
//! for one prefix is taken.
//!
//! The table is built once, sorted per prefix length, longest first. A look-up is one
//! binary search per length that occurs: a handful in any configuration written by hand.

use super::EdgeRoute;
use holdfast_wire::unmap_v4;
use holdfast_wire::{ip_bytes, selector::Prefix};

struct Level {
    /// Prefix length in bits, of 128.
    len: u8,
    /// The first `len` bits, and the route. Sorted.
    routes: Vec<(u128, EdgeRoute)>,
}

/// See the module.
pub(super) struct Routes {
    v4: Vec<Level>,
    v6: Vec<Level>,
}

/// The first `len` bits of an address.
fn head(address: &[u8; 16], len: u8) -> u128 {
    u128::from_be_bytes(*address).checked_shr(128 - u32::from(len)).unwrap_or(0)
}

fn levels(routes: impl Iterator<Item = EdgeRoute>) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    for route in routes {
        let len = route.prefix.specificity();
        let entry = (head(&ip_bytes(route.prefix.first()), len), route);
        match levels.iter_mut().find(|level| level.len == len) {
            Some(level) => level.routes.push(entry),
            None => levels.push(Level { len, routes: vec![entry] }),
        }
    }
    levels.sort_by_key(|level| core::cmp::Reverse(level.len));
    for level in &mut levels {
        // The sort is stable: routes for one prefix stay in the order in which they were
        // given.
        level.routes.sort_by_key(|(head, _)| *head);
    }
    levels
}

impl Routes {
    /// Builds a table of these routes.
    pub(super) fn new(routes: &[EdgeRoute]) -> Routes {
        let is_v4 = |prefix: &Prefix| prefix.is_ipv4();
        Routes {
            v4: levels(routes.iter().copied().filter(|route| is_v4(&route.prefix))),
            v6: levels(routes.iter().copied().filter(|route| !is_v4(&route.prefix))),
        }
    }

    /// The route of a destination.
    #[inline]
    pub(super) fn find(&self, destination: &[u8; 16]) -> Option<&EdgeRoute> {
        self.find_where(destination, |_| true)
    }

    /// The route of a destination, among usable routes only.
    #[inline]
    pub(super) fn find_where(
        &self,
        destination: &[u8; 16],
        may_use: impl Fn(&EdgeRoute) -> bool,
    ) -> Option<&EdgeRoute> {
        let levels = if unmap_v4(destination).is_some() { &self.v4 } else { &self.v6 };
        levels.iter().find_map(|level| {
            let wanted = head(destination, level.len);
            let at = level.routes.partition_point(|(head, _)| *head < wanted);
            let same = level.routes[at..].iter().take_while(|(head, _)| *head == wanted);
            same.map(|(_, route)| route).find(|route| may_use(route))
        })
    }

    /// True if one of the routes to an address leads by this port. All routes with the
    /// longest prefix count, usable or not: a station there may have reason to send by
    /// any. Routes with a shorter prefix count only while none of the longer ones may be
    /// used: the default route leads to everybody, so all sources would pass at its port.
    pub(super) fn lead_by(
        &self,
        address: &[u8; 16],
        port: u8,
        may_use: impl Fn(&EdgeRoute) -> bool,
    ) -> bool {
        let levels = if unmap_v4(address).is_some() { &self.v4 } else { &self.v6 };
        for level in levels {
            let wanted = head(address, level.len);
            let at = level.routes.partition_point(|(head, _)| *head < wanted);
            let mut is_used = false;
            for (_, route) in level.routes[at..].iter().take_while(|(head, _)| *head == wanted) {
                if route.port == port {
                    return true;
                }
                is_used |= may_use(route);
            }
            if is_used {
                return false;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn route(prefix: &str, port: u8) -> EdgeRoute {
        EdgeRoute { prefix: prefix.parse().expect("a test's prefix"), port, gateway: None }
    }

    fn port(routes: &Routes, address: &str) -> Option<u8> {
        routes.find(&ip_bytes(address.parse().expect("a test's address"))).map(|route| route.port)
    }

    #[test]
    fn the_longest_prefix_wins_and_families_do_not_mix() {
        let routes = Routes::new(&[
            route("::/0", 6),
            route("10.0.0.0/8", 1),
            route("10.1.0.0/16", 2),
            route("10.1.2.0/24", 3),
            route("10.1.2.3/32", 4),
            route("10.1.2.0/24", 9),
            route("2001:db8::/32", 5),
        ]);
        assert_eq!(port(&routes, "10.9.9.9"), Some(1));
        assert_eq!(port(&routes, "10.1.9.9"), Some(2));
        assert_eq!(port(&routes, "10.1.2.9"), Some(3), "the first of two equal routes");
        assert_eq!(port(&routes, "10.1.2.3"), Some(4));
        assert_eq!(port(&routes, "2001:db8::1"), Some(5));
        assert_eq!(port(&routes, "2001:db9::1"), Some(6));
        // An IPv6 default route leads no IPv4 packet anywhere.
        assert_eq!(port(&routes, "11.0.0.1"), None);
        assert_eq!(port(&Routes::new(&[route("0.0.0.0/0", 1)]), "2001:db8::1"), None);
    }

    #[test]
    fn a_source_is_right_where_a_route_to_it_leads() {
        let through = |prefix: &str, port: u8, gateway: [u8; 4]| EdgeRoute {
            gateway: Some(gateway.into()),
            ..route(prefix, port)
        };
        let routes = Routes::new(&[
            through("0.0.0.0/0", 1, [203, 0, 113, 254]),
            route("10.0.0.0/24", 0),
            through("10.9.0.0/16", 0, [10, 0, 0, 254]),
            through("10.9.0.0/16", 2, [10, 2, 0, 254]),
        ]);
        let ports = |address: &str, dead: &[u8]| -> Vec<u8> {
            let address = ip_bytes(address.parse().expect("a test's address"));
            (0..4)
                .filter(|port| routes.lead_by(&address, *port, |route| !dead.contains(&route.port)))
                .collect()
        };
        assert_eq!(ports("192.0.2.7", &[]), [1]);
        assert_eq!(ports("10.0.0.9", &[]), [0], "the default route is none for who is nearer");
        assert_eq!(ports("10.9.1.1", &[]), [0, 2], "both of two equal routes");
        assert_eq!(ports("10.9.1.1", &[0]), [0, 2], "alive or not");
        assert_eq!(
            ports("10.9.1.1", &[0, 2]),
            [0, 1, 2],
            "and the longer way, while it is the only one"
        );
        assert_eq!(ports("2001:db8::1", &[]), [] as [u8; 0]);
    }

    proptest! {
        /// The table answers as a search through all routes does.
        #[test]
        fn as_a_linear_search(
            given in prop::collection::vec((any::<u32>(), 0u8..=32, any::<u8>()), 0..40),
            asked in prop::collection::vec(any::<u32>(), 0..40),
        ) {
            let routes: Vec<EdgeRoute> = given
                .iter()
                .filter_map(|&(address, len, port)| {
                    let prefix = Prefix::network_of(IpAddr::V4((address & 0xc3c3_c3c3).into()), len)?;
                    Some(EdgeRoute { prefix, port, gateway: None })
                })
                .collect();
            let table = Routes::new(&routes);
            for asked in asked {
                let address = ip_bytes(IpAddr::V4((asked & 0xc3c3_c3c3).into()));
                // `max_by_key` keeps the last of equals, so the search goes backwards.
                let expected = routes.iter().rev().filter(|route| route.prefix.contains(&address)).max_by_key(|route| route.prefix.specificity());
                prop_assert_eq!(table.find(&address).map(|route| route.port), expected.map(|route| route.port));
            }
        }
    }
}
