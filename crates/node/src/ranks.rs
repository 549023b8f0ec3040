//! The flows, hosts and ports with the most bytes.
//!
//! Theory of operation. Runtimes add their flows up one by one, and a reader merges what
//! several have added up. It keeps the first [`SHOWN`] flows, which is exact, and a
//! bounded number of hosts and ports: once there are too many, the bytes of the first
//! that would be left out are taken from all, and those with none left go (Misra and
//! Gries: Finding Repeated Elements, 1982; with weights, Anderson et al.: A
//! High-Performance Algorithm for Identifying Frequent Items in Data Streams, IMC 2017).
//! An entry then has at least the bytes that it shows, and at most [`Summary::slack`]
//! more. Summaries keep this when they are merged (Agarwal et al.: Mergeable Summaries,
//! PODS 2012).
//!
//! In: keys, packets and bytes of flows. Out: the first of them. Never: a packet, a table
//! that grows with the flows.

use holdfast_wire::FlowKey;
use holdfast_wire::header::proto;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::hash::Hash;

/// Flows, hosts and ports that an operator is shown.
pub const SHOWN: usize = 10;
/// Entries of a summary that a runtime sends; it has room for twice as many.
const KEPT: usize = 1024;
/// Flows from which only the first are kept.
const FLOWS_HELD: usize = 8 * SHOWN;

/// A flow, host or port with its traffic, both directions together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranked<K> {
    /// The flow, host or port.
    pub of: K,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Hosts or ports; see the module.
#[derive(Debug, Clone)]
struct Summary<K> {
    entries: HashMap<K, (u64, u64)>,
    /// The most by which an entry may show too few bytes.
    slack: u64,
}

impl<K> Default for Summary<K> {
    fn default() -> Summary<K> {
        Summary { entries: HashMap::new(), slack: 0 }
    }
}

impl<K: Copy + Eq + Hash + Ord> Summary<K> {
    fn add(&mut self, of: K, packets: u64, bytes: u64) {
        let entry = self.entries.entry(of).or_default();
        *entry = (entry.0.saturating_add(packets), entry.1.saturating_add(bytes));
        if self.entries.len() == 2 * KEPT {
            self.trim();
        }
    }

    /// Leaves at most [`KEPT`] entries.
    fn trim(&mut self) {
        if self.entries.len() <= KEPT {
            return;
        }
        let mut bytes: Vec<u64> = self.entries.values().map(|(_, bytes)| *bytes).collect();
        let (_, cut, _) = bytes.select_nth_unstable_by(KEPT, |a, b| b.cmp(a));
        let cut = *cut;
        self.entries.retain(|_, (_, bytes)| {
            *bytes -= cut.min(*bytes);
            *bytes > 0
        });
        self.slack = self.slack.saturating_add(cut);
    }

    /// All entries, by their bytes.
    fn ranked(&self) -> Vec<Ranked<K>> {
        let entry = |(&of, &(packets, bytes)): (&K, &(u64, u64))| Ranked { of, packets, bytes };
        let mut all: Vec<Ranked<K>> = self.entries.iter().map(entry).collect();
        sort(&mut all);
        all
    }
}

/// The most bytes first; the order of equals is always the same.
fn sort<K: Ord>(all: &mut [Ranked<K>]) {
    all.sort_unstable_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.of.cmp(&b.of)));
}

/// The traffic of one runtime, or of several; see the module.
#[derive(Debug, Clone, Default)]
pub struct Ranking {
    flows: Vec<Ranked<FlowKey>>,
    hosts: Summary<[u8; 16]>,
    ports: Summary<(u16, u16)>,
}

/// The result of a [`Ranking`], as it is sent and shown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ranks {
    /// Flows by the key of their first packet as it came in.
    pub flows: Vec<Ranked<FlowKey>>,
    /// Addresses at either end of flows.
    pub hosts: Vec<Ranked<[u8; 16]>>,
    /// The most bytes that a host may have beyond those that are shown.
    pub hosts_slack: u64,
    /// Ports that flows were opened to: protocol and port.
    pub ports: Vec<Ranked<(u16, u16)>>,
    /// The most bytes that a port may have beyond those that are shown.
    pub ports_slack: u64,
}

impl Ranking {
    /// Adds a flow's packets and bytes, each forward and reverse.
    pub fn add(&mut self, key: &FlowKey, packets: [u64; 2], bytes: [u64; 2]) {
        let [packets, bytes] = [packets, bytes].map(|[forward, back]| forward.saturating_add(back));
        self.add_flow(Ranked { of: *key, packets, bytes });
        self.hosts.add(key.source, packets, bytes);
        if key.destination != key.source {
            self.hosts.add(key.destination, packets, bytes);
        }
        if [proto::TCP, proto::UDP].map(u16::from).contains(&key.protocol) {
            self.ports.add((key.protocol, key.destination_port), packets, bytes);
        }
    }

    fn add_flow(&mut self, flow: Ranked<FlowKey>) {
        self.flows.push(flow);
        if self.flows.len() == FLOWS_HELD {
            self.keep_flows();
        }
    }

    fn keep_flows(&mut self) {
        sort(&mut self.flows);
        self.flows.truncate(SHOWN);
    }

    /// Adds what another runtime has found.
    pub fn merge(&mut self, other: Ranks) {
        other.flows.into_iter().for_each(|flow| self.add_flow(flow));
        for Ranked { of, packets, bytes } in other.hosts {
            self.hosts.add(of, packets, bytes);
        }
        for Ranked { of, packets, bytes } in other.ports {
            self.ports.add(of, packets, bytes);
        }
        self.hosts.slack = self.hosts.slack.saturating_add(other.hosts_slack);
        self.ports.slack = self.ports.slack.saturating_add(other.ports_slack);
    }

    /// The result, to send.
    pub fn ranks(mut self) -> Ranks {
        self.keep_flows();
        self.hosts.trim();
        self.ports.trim();
        Ranks {
            hosts: self.hosts.ranked(),
            hosts_slack: self.hosts.slack,
            ports: self.ports.ranked(),
            ports_slack: self.ports.slack,
            flows: self.flows,
        }
    }

    /// The first [`SHOWN`] of the result.
    pub fn shown(self) -> Ranks {
        let mut ranks = self.ranks();
        ranks.hosts.truncate(SHOWN);
        ranks.ports.truncate(SHOWN);
        ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::map_v4;
    use std::collections::BTreeMap;

    fn key(client: u32, port: u16) -> FlowKey {
        FlowKey {
            source: map_v4((0x0a00_0000 + client).to_be_bytes()),
            destination: map_v4([203, 0, 113, 10]),
            source_port: client as u16,
            destination_port: port,
            protocol: proto::TCP.into(),
            scope: 0,
        }
    }

    /// With fewer hosts than a summary keeps, everything is exact, over several runtimes
    /// too.
    #[test]
    fn few_are_exact() {
        let mut all = Ranking::default();
        for runtime in 0..3 {
            let mut ranking = Ranking::default();
            for client in 0..200 {
                let bytes = u64::from(client) * 10 + runtime;
                ranking.add(&key(client, 80 + (client % 2) as u16), [1, 2], [bytes, 5]);
            }
            all.merge(ranking.ranks());
        }
        let ranks = all.shown();
        assert_eq!((ranks.hosts_slack, ranks.ports_slack), (0, 0));
        assert_eq!([ranks.flows.len(), ranks.hosts.len(), ranks.ports.len()], [10, 10, 2]);
        let most = Ranked { of: key(199, 81), packets: 3, bytes: 1997 };
        assert_eq!(ranks.flows[0], most);
        let sum: u64 = (0..3).flat_map(|more| (0..200).map(move |at| at * 10 + more + 5)).sum();
        let server = Ranked { of: key(0, 0).destination, packets: 1800, bytes: sum };
        assert_eq!(ranks.hosts[0], server);
        let client = Ranked { of: key(199, 0).source, packets: 9, bytes: 3 * 1995 + 3 };
        assert_eq!(ranks.hosts[1], client);
        assert_eq!(ranks.ports[0].of, (proto::TCP.into(), 81));
    }

    /// With many hosts each of the first ones is named, with at least the bytes that it
    /// shows and at most the slack more. The summary does not grow with the hosts.
    #[test]
    fn many_are_bounded_and_the_first_are_named() {
        let (mut truth, mut all) = (BTreeMap::new(), Ranking::default());
        for runtime in 0..2 {
            let mut ranking = Ranking::default();
            for client in 0..20_000_u32 {
                // Every thousandth has much.
                let bytes = if client % 1000 == 7 { 900_000 + u64::from(client) } else { 40 };
                ranking.add(&key(client, 80), [1, 0], [bytes, 0]);
                *truth.entry(key(client, 0).source).or_insert(0) += bytes;
                assert!(ranking.hosts.entries.len() < 2 * KEPT, "runtime {runtime}");
            }
            let ranks = ranking.ranks();
            assert!(ranks.hosts.len() <= KEPT && ranks.hosts_slack > 0);
            all.merge(ranks);
        }
        let ranks = all.shown();
        let expected: Vec<_> =
            (10..20).rev().map(|at| key(at * 1000 + 7, 0).source).take(9).collect();
        let named: Vec<_> = ranks.hosts[1..].iter().map(|host| host.of).collect();
        assert_eq!(named, expected);
        for host in &ranks.hosts[1..] {
            let bytes = truth[&host.of];
            assert!(
                (host.bytes..=host.bytes + ranks.hosts_slack).contains(&bytes),
                "{host:?}: {bytes}, slack {}",
                ranks.hosts_slack
            );
        }
        let total: u64 = truth.values().sum();
        assert!(ranks.hosts_slack <= 2 * total / KEPT as u64, "{}", ranks.hosts_slack);
    }
}
