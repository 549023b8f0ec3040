//! Static mappings of the NAT, and two services on one backend, for worlds with published
//! hosts.
//!
//! Checkers take the mappings from this table, not from the NAT, so that they can find
//! its errors.

use crate::frames::End;
use holdfast_wire::header::proto;

/// The address of the first chain's pool under which ports of an inside host are
/// published.
const POOLED: [u8; 4] = [198, 51, 100, 4];
/// The address under which every port of another inside host is published.
const WHOLE: [u8; 4] = [198, 51, 100, 200];
/// The inside hosts behind [`POOLED`] and [`WHOLE`].
const HOST: [u8; 4] = [10, 0, 0, 40];
const WHOLE_HOST: [u8; 4] = [10, 0, 0, 41];

/// Published ports: protocol, first and last outside, first inside.
const PORTS: [(u8, u16, u16, u16); 2] =
    [(proto::TCP, 1030, 1030, 22), (proto::UDP, 1040, 1103, 5000)];
/// Published ports of [`POOLED`], which the NAT must not lease.
pub(crate) const COUNT: u16 = 65;

/// Two services of each protocol. Their one backend, at another port, gives replies to
/// both the same source.
const SERVICES: [(u8, [End; 2]); 2] = [
    (proto::TCP, [([203, 0, 113, 20], 7), ([203, 0, 113, 21], 7)]),
    (proto::UDP, [([203, 0, 113, 22], 7), ([203, 0, 113, 23], 7)]),
];
pub(crate) const BACKEND: End = ([198, 51, 100, 13], 9);

/// The static mappings, as an operator writes them.
pub(crate) fn mappings() -> Vec<String> {
    let [pooled, whole, host, whole_host] =
        [POOLED, WHOLE, HOST, WHOLE_HOST].map(std::net::Ipv4Addr::from);
    let ports = PORTS.iter().map(|(protocol, first, last, inside)| {
        let (name, inside_last) =
            (if *protocol == proto::TCP { "tcp" } else { "udp" }, inside + (last - first));
        format!("{name} {pooled}:{first}-{last} -> {host}:{inside}-{inside_last}")
    });
    ports.chain([format!("{whole} -> {whole_host}")]).collect()
}

/// Firewall rules that let in connections to published addresses.
pub(crate) fn allowed() -> [String; 2] {
    [POOLED, WHOLE].map(|address| format!("allow any to {}", std::net::Ipv4Addr::from(address)))
}

/// The configurations of the services' balancers.
pub(crate) fn configurations() -> impl Iterator<Item = serde_json::Value> {
    let (address, port) = BACKEND;
    let backend = format!("{}:{port}", std::net::Ipv4Addr::from(address));
    let of_protocol = move |(protocol, services): (u8, [End; 2])| {
        let backend = backend.clone();
        services.into_iter().map(move |(address, port)| {
            let (address, name) = (std::net::Ipv4Addr::from(address), if protocol == proto::TCP { "tcp" } else { "udp" });
            serde_json::json!({ "virtual": format!("{address}:{port}"), "protocol": name, "backends": [backend] })
        })
    };
    SERVICES.into_iter().flat_map(of_protocol)
}

/// The two services of this protocol.
pub(crate) fn services(protocol: u8) -> [End; 2] {
    SERVICES[usize::from(protocol != proto::TCP)].1
}

/// Whether a service has this end.
pub(crate) fn is_service(end: End) -> bool {
    SERVICES.iter().any(|(_, services)| services.contains(&end))
}

/// The inside end that is published under an outside one.
pub(crate) fn inside_of(protocol: u8, (address, port): End) -> Option<End> {
    if address == WHOLE {
        return Some((WHOLE_HOST, port));
    }
    let is_it = |&&(of, first, last, _): &&(u8, u16, u16, u16)| {
        of == protocol && first <= port && port <= last
    };
    let (_, first, _, inside) = PORTS.iter().find(is_it).filter(|_| address == POOLED)?;
    Some((HOST, inside + (port - first)))
}

/// The outside end under which an inside one is published.
pub(crate) fn outside_of(protocol: u8, (address, port): End) -> Option<End> {
    if address == WHOLE_HOST {
        return Some((WHOLE, port));
    }
    let is_it = |&&(of, first, last, inside): &&(u8, u16, u16, u16)| {
        of == protocol && inside <= port && port - inside <= last - first
    };
    let (_, first, _, inside) = PORTS.iter().find(is_it).filter(|_| address == HOST)?;
    Some((POOLED, first + (port - inside)))
}

/// Number of published ports of this address below `port`, and whether `port` itself is
/// published; of any protocol.
pub(crate) fn taken(address: [u8; 4], port: u16) -> (u16, bool) {
    let ranges = PORTS.iter().filter(|_| address == POOLED);
    ranges.fold((0, false), |(below, is_taken), (_, first, last, _)| match port {
        port if port > *last => (below + (last - first + 1), is_taken),
        port => (below, is_taken || port >= *first),
    })
}

/// Published ends, for clients that connect to them from outside or inside.
pub(crate) fn tcp_end() -> End {
    (POOLED, PORTS[0].1)
}

pub(crate) fn udp_end(number: u16) -> End {
    (POOLED, PORTS[1].1 + number % (PORTS[1].2 - PORTS[1].1 + 1))
}

pub(crate) fn whole_end(port: u16) -> End {
    (WHOLE, port)
}

/// Inside ends of published hosts, for flows that these hosts open.
pub(crate) fn udp_host(number: u16) -> End {
    (HOST, PORTS[1].3 + number % (PORTS[1].2 - PORTS[1].1 + 1))
}

pub(crate) fn whole_host(port: u16) -> End {
    (WHOLE_HOST, port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_lead_there_and_back() {
        for (protocol, outside, inside) in [
            (proto::TCP, tcp_end(), (HOST, 22)),
            (proto::UDP, udp_end(3), udp_host(3)),
            (proto::ICMP, whole_end(9), whole_host(9)),
        ] {
            assert_eq!(inside_of(protocol, outside), Some(inside));
            assert_eq!(outside_of(protocol, inside), Some(outside));
        }
        assert_eq!(inside_of(proto::UDP, tcp_end()), None);
        assert_eq!(
            [1029, 1030, 1039, 1040, 1103, 1104].map(|port| taken(POOLED, port)),
            [(0, false), (0, true), (1, false), (1, true), (1, true), (COUNT, false)]
        );
    }
}
