//! Invariants of every world, checked from outside the code that has to keep them.

use crate::frames;
use crate::loss::Loss;
use crate::peers::{self, Client};
use crate::published;
use crate::refuser::Begun;
use crate::scenario::{REFUSER, Scenario};
use crate::stamper::{self, Revealed, Stamps};
use holdfast_nf::{ChainLayout, zerocopy::FromBytes};
use holdfast_node::runtime::Runtime;
use holdfast_protection::flows::{Life, flag};
use holdfast_protection::{Commit, Flows, Slot};
use holdfast_wire::header::proto;
use holdfast_wire::header::tcp_flags::RST;
use holdfast_wire::{FlowKey, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The invariant's name.
    pub invariant: &'static str,
    /// How it was broken.
    pub text: String,
}

/// Finds a chain's flow among the states that were written back to state servers.
pub(crate) type Pages<'a> = dyn Fn(usize, &FlowKey) -> Option<(&'a Flows, Slot)> + 'a;

/// Stamps of a connection's refused segments: those whose senders were told, and those
/// whose receivers were.
#[derive(Default)]
struct Told {
    senders: BTreeSet<u64>,
    receivers: BTreeSet<u64>,
}

/// Longest time that a recovery takes while every process is there, ns.
const LONGEST_RECOVERY: u64 = 2_500_000_000;

/// The checkers, see the module.
pub(crate) struct Checkers {
    pub(crate) violations: Vec<Violation>,
    layout: ChainLayout,
    /// The protection promises that flows survive.
    promises: bool,
    /// No released packet's effect is ever forgotten.
    strict: bool,
    /// Per flow and direction, by count: the datagram that revealed the count, and its
    /// trace.
    revealed: BTreeMap<(u32, usize), BTreeMap<u64, (u32, u32)>>,
    /// Connection seen behind each translated source; then the reverse.
    mappings: BTreeMap<frames::End, u32>,
    mapped: BTreeMap<u32, frames::End>,
    scenario: Scenario,
    /// Connections whose replies have the same key, each by the other.
    pub(crate) rivals: BTreeMap<u32, u32>,
    /// Per pair, by the lower id: the connection that holds the reply key, and the number
    /// of replies released to it.
    first: BTreeMap<u32, (u32, u32)>,
    /// Per connection: the chain that its packets take, and whether any packet was
    /// released to its client.
    chains: BTreeMap<u32, (u16, bool)>,
    /// Connections whose flow was served; then, for these: since when a flow has had
    /// neither owner nor route, and which flows have ended so and sent nothing since.
    served: BTreeSet<u32>,
    absent: BTreeMap<u32, u64>,
    over: BTreeSet<u32>,
    /// Connections with a limit that were refused, with the refused segments.
    told: BTreeMap<u32, Told>,
    /// Most by which a packet's stamp may exceed that of a packet processed after it, ns.
    pub(crate) overtaking: u64,
}

impl Checkers {
    pub(crate) fn new(
        layout: ChainLayout,
        scenario: Scenario,
        promises: bool,
        strict: bool,
    ) -> Checkers {
        Checkers {
            violations: Vec::new(),
            layout,
            promises,
            strict,
            revealed: BTreeMap::new(),
            mappings: BTreeMap::new(),
            mapped: BTreeMap::new(),
            scenario,
            rivals: BTreeMap::new(),
            first: BTreeMap::new(),
            chains: BTreeMap::new(),
            served: BTreeSet::new(),
            absent: BTreeMap::new(),
            over: BTreeSet::new(),
            told: BTreeMap::new(),
            overtaking: 0,
        }
    }

    /// Finds connections whose flow has ended. If every process is there (`is_whole`), a
    /// flow has ended when it has had neither owner nor route for longer than any
    /// recovery takes.
    pub(crate) fn check_over(
        &mut self,
        now: u64,
        clients: &[Client],
        serving: &[Served<'_>],
        routes: &BTreeSet<FlowKey>,
        is_whole: bool,
    ) {
        for client in clients {
            let (local, remote, protocol) = client.ends();
            let (id, key) = (client.id(), frames::key(local, remote, protocol));
            let is_served = serving.iter().any(|served| has(served.flows(), &key, Life::is_owned));
            if is_served {
                self.served.insert(id);
            }
            if is_served || !is_whole || !self.served.contains(&id) || routes.contains(&key) {
                self.absent.remove(&id);
            } else if now - *self.absent.entry(id).or_insert(now) >= LONGEST_RECOVERY {
                self.over.insert(id);
            }
        }
    }

    /// No ended flow is served again, not even for the time until it is ended once more:
    /// that would free numbers that are perhaps another flow's by then.
    pub(crate) fn check_ended<'a>(
        &mut self,
        clients: &[Client],
        runtimes: impl Iterator<Item = &'a Runtime> + Clone,
    ) {
        if self.over.is_empty() {
            return;
        }
        for client in clients {
            let (local, remote, protocol) = client.ends();
            let (id, key) = (client.id(), frames::key(local, remote, protocol));
            if self.over.contains(&id)
                && runtimes.clone().any(|runtime| has(all_flows(runtime), &key, Life::is_owned))
            {
                self.over.remove(&id);
                self.violate(
                    "ended flows",
                    format!("the flow of connection {id} had ended, and is served again"),
                );
            }
        }
    }

    /// A client sends a packet: if its connection's flow has ended, the packet may open
    /// it again.
    pub(crate) fn note_sent(&mut self, frame: &[u8], clients: &[Client]) {
        if self.over.is_empty() && self.absent.is_empty() {
            return;
        }
        let Some(seen) = frames::look(frame) else { return };
        let client = clients
            .iter()
            .find(|client| client.ends() == (seen.source, seen.destination, seen.protocol));
        if let Some(client) = client {
            self.over.remove(&client.id());
            self.served.remove(&client.id());
            self.absent.remove(&client.id());
        }
    }

    /// A packet of a connection is sent to a runtime: its chain is that of the
    /// connection's first packet. A connection may have to begin again if no packet was
    /// released to its client. Its chain is decided anew then.
    pub(crate) fn check_chain(&mut self, id: u32, chain: u16) {
        let (first, is_there) = *self.chains.entry(id).or_insert((chain, false));
        if first != chain && is_there && self.promises {
            self.violate(
                "one chain",
                format!("connection {id} began in chain {first}, and a packet of it was sent to chain {chain}"),
            );
        }
        if !is_there {
            self.chains.insert(id, (chain, false));
        }
    }

    /// This chain has released a packet to a client. The first one decides the
    /// connection's chain, because packets sealed for another host's runtime are not seen
    /// on their way.
    pub(crate) fn note_released(&mut self, frame: &[u8], chain: u16, clients: &[Client]) {
        let Some(seen) = frames::look(frame) else { return };
        let client = clients
            .iter()
            .find(|client| client.ends() == (seen.destination, seen.source, seen.protocol));
        if let Some(known) = client
            .and_then(|client| self.chains.get_mut(&client.id()))
            .filter(|(_, is_there)| !is_there)
        {
            *known = (chain, true);
        }
    }

    /// A copy at the version of its flow equals the flow. State under way has another
    /// version.
    pub(crate) fn check_copies(&mut self, serving: &[Served<'_>]) {
        for owner in serving {
            for (chain, flows) in owner.chains() {
                for (slot, header) in flows
                    .iter()
                    .filter(|(_, header)| header.life().is_owned() && header.commit != Commit::NONE)
                {
                    let is_holder = |served: &&Served<'_>| {
                        served.runtime.me().node == header.holder().node && self.strict
                    };
                    let holder = serving.iter().find(is_holder).map(|holder| holder.runtime);
                    let Some(theirs) = holder.and_then(|holder| holder.flows(chain)) else {
                        continue;
                    };
                    let Some(copy) = theirs.find(&header.key, theirs.hash(&header.key)) else {
                        continue;
                    };
                    let there = theirs.header(copy.slot);
                    let is_same = there.life() == Life::Copy
                        && (there.epoch, there.version) == (header.epoch, header.version);
                    let is_sent =
                        header.flags & (flag::WHOLE | flag::UNPROTECTED | flag::BEHIND) == 0;
                    if is_same && is_sent && theirs.digest(copy.slot) != flows.digest(slot) {
                        let text = format!(
                            "runtime {} has another {} than runtime {}",
                            header.holder().node,
                            header.key,
                            owner.runtime.me().node
                        );
                        self.violate("copies", text);
                    }
                }
            }
        }
    }

    pub(crate) fn violate(&mut self, invariant: &'static str, text: String) {
        self.violations.push(Violation { invariant, text });
    }

    /// A datagram leaves. A runtime or a state server must know the state that it
    /// reveals; once the system is settled, two of them must. No other datagram may ever
    /// reveal it again.
    pub(crate) fn check_released<'a>(
        &mut self,
        frame: &[u8],
        (chain, stamp): (u16, u64),
        clients: &[Client],
        (runtimes, pages): (impl Iterator<Item = &'a Runtime>, &Pages<'_>),
        is_settled: bool,
        loss: Option<&Loss>,
    ) {
        let Some(seen) = frames::look(frame) else {
            self.violate("integrity", "a packet with a wrong checksum was released".to_owned());
            return;
        };
        if let Some((client, way)) = peers::whose(clients, &seen) {
            self.check_ends(client, way, &seen, loss);
            self.check_rivals(client.id(), way, loss);
        }
        let Some(revealed) = stamper::revealed(&seen, clients) else { return };
        self.check_revealed(
            revealed,
            ("left", chain, stamp),
            clients,
            (runtimes, pages),
            is_settled,
        );
    }

    /// A refused datagram goes back, with its sender's addresses again. The state that it
    /// reveals must be known as well as if it left.
    pub(crate) fn check_refused<'a>(
        &mut self,
        frame: &[u8],
        (chain, stamp): (u16, u64),
        clients: &[Client],
        known: (impl Iterator<Item = &'a Runtime>, &Pages<'_>),
        is_settled: bool,
    ) {
        if let Some(revealed) =
            frames::look(frame).and_then(|seen| stamper::revealed(&seen, clients))
        {
            self.check_revealed(
                revealed,
                ("was refused", chain, stamp),
                clients,
                known,
                is_settled,
            );
        }
    }

    /// A refused segment of a connection with a limit comes back, and its sender is told.
    pub(crate) fn check_turned<'a>(
        &mut self,
        client: &Client,
        (chain, stamp): (u16, u64),
        known: (impl Iterator<Item = &'a Runtime>, &Pages<'_>),
        is_settled: bool,
    ) {
        self.told.entry(client.id()).or_default().senders.insert(stamp);
        self.check_reset(client, (chain, stamp), known, is_settled);
    }

    /// A packet leaves. A reset of a connection with a limit tells the receiver of a
    /// refused segment. No other packet of the connection may leave that came after such
    /// a segment.
    pub(crate) fn check_limited<'a>(
        &mut self,
        frame: &[u8],
        (chain, stamp): (u16, u64),
        clients: &[Client],
        known: (impl Iterator<Item = &'a Runtime>, &Pages<'_>),
        is_settled: bool,
    ) {
        let Some(seen) = frames::look(frame) else { return };
        let client = peers::whose(clients, &seen)
            .map(|(client, _)| client)
            .filter(|client| client.limit().is_some());
        let Some(client) = client else { return };
        if seen.flags & RST != 0 {
            self.told.entry(client.id()).or_default().receivers.insert(stamp);
            return self.check_reset(client, (chain, stamp), known, is_settled);
        }
        let told = self.told.get(&client.id());
        let first = told.and_then(|told| told.senders.iter().chain(&told.receivers).min());
        if first.is_some_and(|first| self.strict && stamp > first + self.overtaking) {
            self.violate(
                "output commit",
                format!("connection {} goes on after a reset of it has left", client.id()),
            );
        }
    }

    /// Before an end is reset, a runtime or a state server knows that the connection has
    /// reached its limit; once the system is settled, two of them know.
    fn check_reset<'a>(
        &mut self,
        client: &Client,
        (chain, stamp): (u16, u64),
        (runtimes, pages): (impl Iterator<Item = &'a Runtime>, &Pages<'_>),
        is_settled: bool,
    ) {
        let Some(limit) = client.limit().filter(|_| self.strict) else { return };
        let (local, remote, protocol) = client.ends();
        let key = frames::key(local, remote, protocol);
        let packets = |flows: &Flows, slot: Slot| self.packets(flows, slot);
        let of_chain =
            |at: usize, key: &FlowKey| pages(at, key).filter(|_| at == usize::from(chain));
        let holders = runtimes
            .filter(|one| {
                known_at(one, &key, &of_chain, packets) > limit
                    || one.has_input(chain.into(), &key, stamp)
            })
            .count();
        let is_written_back =
            pages(chain.into(), &key).is_some_and(|(flows, slot)| packets(flows, slot) > limit);
        let holders = holders + usize::from(is_written_back);
        if holders == 0 || is_settled && holders < 2 {
            self.violate(
                "output commit",
                format!("connection {} was reset while {holders} knew why", client.id()),
            );
        }
    }

    /// At the world's end: both ends were told whenever a segment of a connection was
    /// refused. `in_order`: frames neither get lost nor overtake each other. `loses`:
    /// some frames get lost inside. `heard`: connections that their server knows of.
    pub(crate) fn check_both_told(&mut self, in_order: bool, loses: bool, heard: &BTreeSet<u32>) {
        let mut untold = Vec::new();
        for (id, Told { senders, receivers }) in self.told.iter().filter(|_| self.strict) {
            let is_wrong = match in_order {
                // A refused reset has a receiver that is told, but no sender.
                true => !senders.is_subset(receivers),
                // A runtime that is killed may have one of the two frames in hand. A
                // server that has heard nothing of the connection has none to be told
                // about.
                false => !loses && senders.len() > 1 && receivers.is_empty() && heard.contains(id),
            };
            if is_wrong {
                let (back, ahead) = (senders.len(), receivers.len());
                untold.push(format!("connection {id} was refused: senders were told of {back} segments, receivers of {ahead}"));
            }
        }
        untold.into_iter().for_each(|text| self.violate("resets", text));
    }

    /// Number of a flow's packets that the refuser has seen.
    fn packets(&self, flows: &Flows, slot: Slot) -> u64 {
        let Some(&(start, len)) =
            self.layout.states.get(REFUSER).filter(|_| flows.is_present(slot))
        else {
            return 0;
        };
        Begun::read_from_bytes(&flows.state(slot)[start..start + len])
            .map_or(0, |begun| begun.packets)
    }

    fn check_revealed<'a>(
        &mut self,
        Revealed { id, way, datagram, count, trace }: Revealed,
        (how, chain, stamp): (&str, u16, u64),
        clients: &[Client],
        (runtimes, pages): (impl Iterator<Item = &'a Runtime>, &Pages<'_>),
        is_settled: bool,
    ) {
        if !self.strict {
            return;
        }
        let revealed = self.revealed.entry((id, way)).or_default();
        let before = revealed.insert(count, (datagram, trace)).map(|(datagram, _)| datagram);
        let previous = count.checked_sub(1).and_then(|count| revealed.get(&count));
        if previous.is_some_and(|(_, previous)| stamper::follow(*previous, datagram) != trace) {
            self.violate(
                "output commit",
                format!("connection {id}: count {count} was not made of what had been revealed before: state was made otherwise"),
            );
        }
        if before.is_some_and(|before| before != datagram) {
            self.violate("output commit", format!("connection {id}: count {count} was revealed by datagram {before:?} and again by {datagram}, which {how}: state was forgotten"));
        }
        let Some(client) = clients.iter().find(|client| client.id() == id) else { return };
        let (local, remote, protocol) = client.ends();
        let key = frames::key(local, remote, protocol);
        let holders = runtimes.filter(|runtime| {
            // A runtime that knows which packets made a flow's state can make it again.
            self.count_at(runtime, &key, way, &|at, key| {
                pages(at, key).filter(|_| at == usize::from(chain))
            }) >= count
                || runtime.has_input(chain.into(), &key, stamp)
        });
        let is_written_back = pages(chain.into(), &key)
            .is_some_and(|(flows, slot)| self.counts(flows, slot)[way] >= count);
        let holders = holders.count() + usize::from(is_written_back);
        if holders == 0 || is_settled && holders < 2 {
            self.violate(
                "output commit",
                format!("connection {id}: count {count} {how} while {holders} knew it"),
            );
        }
    }

    /// At the world's end: the runtime that serves a flow knows everything that was ever
    /// revealed of it.
    pub(crate) fn check_remembered<'a>(
        &mut self,
        clients: &[Client],
        serving: &[Served<'_>],
        pages: &Pages<'a>,
    ) {
        if !self.strict {
            return;
        }
        let mut forgotten = Vec::new();
        for ((id, way), counts) in &self.revealed {
            if self.over.contains(id) {
                continue;
            }
            let Some(client) = clients.iter().find(|client| client.id() == *id) else { continue };
            let Some((&count, _)) = counts.last_key_value() else { continue };
            let (local, remote, protocol) = client.ends();
            let key = frames::key(local, remote, protocol);
            // A flow that is moving as the world ends is known to the runtime that it has
            // just left.
            let is_owned = serving.iter().any(|served| has(served.flows(), &key, Life::is_owned));
            let is_it = |life: Life| life.is_owned() || !is_owned && life == Life::Departed;
            let known = serving
                .iter()
                .filter(|served| has(served.flows(), &key, is_it))
                .map(|served| self.count_at(served.runtime, &key, *way, pages));
            let known = known.max().unwrap_or(0);
            if known < count {
                forgotten.push(format!(
                    "connection {id}: count {count} left, and in the end its owner knows {known}"
                ));
            }
        }
        for client in clients.iter().filter(|client| self.told.contains_key(&client.id())) {
            let (id, Some(limit)) = (client.id(), client.limit()) else { continue };
            let (local, remote, protocol) = client.ends();
            let key = frames::key(local, remote, protocol);
            let known = serving.iter().map(|served| {
                known_at(served.runtime, &key, pages, |at, slot| self.packets(at, slot))
            });
            let known = known.max().unwrap_or(0);
            if known <= limit && !self.over.contains(&id) {
                forgotten.push(format!("connection {id}: it was reset after {limit} packets, and in the end {known} are known"));
            }
        }
        for text in forgotten {
            self.violate("output commit", text);
        }
    }

    /// Number of packets of this direction in the state that a runtime knows of a flow.
    fn count_at<'a>(&self, runtime: &Runtime, key: &FlowKey, way: usize, pages: &Pages<'a>) -> u64 {
        known_at(runtime, key, pages, |flows, slot| self.counts(flows, slot)[way])
    }

    /// Number of packets that the state of a flow has seen, forward and reverse.
    pub(crate) fn counts(&self, flows: &Flows, slot: Slot) -> [u64; 2] {
        let Some(&(start, len)) = self.layout.states.first().filter(|_| flows.is_present(slot))
        else {
            return [0; 2];
        };
        Stamps::read_from_bytes(&flows.state(slot)[start..start + len])
            .map_or([0; 2], |stamps| stamps.counts)
    }

    /// Checks that a packet has the addresses and ports that its connection's mappings
    /// say. A fragment has the same addresses as its flow.
    fn check_ends(
        &mut self,
        client: &Client,
        way: usize,
        seen: &frames::Seen<'_>,
        loss: Option<&Loss>,
    ) {
        let (id, (local, remote, protocol)) = (client.id(), client.ends());
        let is_at = |end: frames::End, at: frames::End| {
            if seen.is_later { end.0 == at.0 } else { end == at }
        };
        if way == 1 {
            if self.promises && !(is_at(seen.source, remote) && is_at(seen.destination, local)) {
                let text = format!(
                    "a reply for connection {id} left from {:?} to {:?}",
                    seen.source, seen.destination
                );
                self.violate("mappings", text);
            }
            return;
        }
        let is_published = self.scenario.published;
        let of = |mapping: fn(u8, frames::End) -> Option<frames::End>, end| {
            mapping(protocol, end).filter(|_| is_published)
        };
        let is_balanced = protocol == proto::TCP || published::is_service(remote);
        let to = of(published::inside_of, remote).or((!is_balanced).then_some(remote));
        // The NAT's identifier of an echo also decides the destination's port.
        let is_echo = protocol == proto::ICMP;
        let to = to.map(|to| if is_echo { (to.0, frames::echo_port(seen.source.1)) } else { to });
        if let Some(to) = to.filter(|to| !is_at(seen.destination, *to)) {
            self.violate(
                "mappings",
                format!(
                    "connection {id} to {remote:?} was led to {:?} instead of {to:?}",
                    seen.destination
                ),
            );
        }
        let from = of(published::outside_of, local).or((!client.is_inside()).then_some(local));
        if let Some(from) = from {
            if !is_at(seen.source, from) {
                self.violate(
                    "mappings",
                    format!(
                        "connection {id} of {local:?} left as {:?} instead of {from:?}",
                        seen.source
                    ),
                );
            }
        } else if seen.is_later {
            if let Some(known) =
                self.mapped.get(&id).filter(|known| self.strict && known.0 != seen.source.0)
            {
                let text = format!(
                    "a fragment of connection {id} left as {:?}, and its flow's source is {known:?}",
                    seen.source.0
                );
                self.violate("fragments", text);
            }
        } else {
            if of(published::inside_of, seen.source).is_some() {
                self.violate(
                    "mappings",
                    format!("connection {id} leased {:?}, which is published", seen.source),
                );
            }
            if protocol != proto::TCP {
                self.check_mapping(id, seen.source, loss);
            }
        }
    }

    /// A runtime was given up. Without a protection its flows are lost, and with them the
    /// knowledge of who holds a reply key.
    pub(crate) fn given_up(&mut self) {
        if !self.promises {
            self.first.clear();
        }
    }

    /// Checks two connections whose replies have the same key. The connection that has
    /// had a reply holds the key, and no packet of the other may leave. Replies that a
    /// weak protection may forget do not count.
    fn check_rivals(&mut self, id: u32, way: usize, loss: Option<&Loss>) {
        let Some(rival) = self.rivals.get(&id) else { return };
        let pair = id.min(*rival);
        let is_over = |first: &u32| loss.is_some_and(|loss| loss.begun_anew.contains(first));
        let known = self.first.get(&pair).copied().filter(|(first, _)| !is_over(first));
        // A late reply to a lost flow does not tell who holds the key now.
        if known.is_none() && way == 1 {
            return;
        }
        let (first, replies) = known.unwrap_or((id, 0));
        let is_sure = replies > self.scenario.preset.may_forget();
        // Without a protection a late reply to a lost flow goes to the flow that holds
        // the key next.
        if first != id && is_sure && (way == 0 || self.promises) {
            let what = if way == 0 { "a packet" } else { "a reply" };
            let text = format!(
                "{what} of connection {id} left, and connection {first} has had {replies} replies under that key"
            );
            self.violate("reply keys", text);
        }
        let now = match (way, first == id) {
            (0, false) if !is_sure => (id, 0),
            (1, true) => (first, replies + 1),
            _ => (first, replies),
        };
        self.first.insert(pair, now);
    }

    fn check_mapping(&mut self, id: u32, source: frames::End, loss: Option<&Loss>) {
        // A lost flow holds no mapping any more. Its connection is not seen to begin anew
        // before it does.
        let has_ended = |id: u32| loss.is_some_and(|loss| loss.begun_anew.contains(&id));
        // Without a protection a flow may have been lost unseen, and its leased end
        // granted again.
        let may_be_over = (self.scenario.published || self.scenario.is_limited()) && !self.promises;
        let other =
            self.mappings.insert(source, id).filter(|other| *other != id && !has_ended(*other));
        if let Some(other) = other.filter(|_| !may_be_over) {
            self.violate(
                "uniqueness",
                format!("connections {other} and {id} both leave as {source:?}"),
            );
        }
        if let Some(old) = self.mapped.insert(id, source).filter(|old| *old != source)
            && (self.strict || loss.is_some() && !has_ended(id))
        {
            let invariant = if self.strict { "output commit" } else { "bounded loss" };
            self.violate(
                invariant,
                format!("connection {id} left as {old:?} and now leaves as {source:?}"),
            );
        }
    }

    /// A flow has at most one serving owner, and no two flows have the same leased end. A
    /// published end may have many flows.
    pub(crate) fn check_owners(&mut self, serving: &[Served<'_>]) {
        let mut owners: BTreeMap<FlowKey, NodeId> = BTreeMap::new();
        let mut replies: BTreeMap<FlowKey, FlowKey> = BTreeMap::new();
        let mut found = Vec::new();
        for served in serving {
            let runtime = served.runtime;
            let owned = served
                .chains()
                .flat_map(|(chain, flows)| flows.iter().map(move |(_, header)| (chain, header)));
            for (chain, header) in owned.filter(|(_, header)| header.life().is_owned()) {
                // The switch has given the key of a flow without a deadline to another
                // one. No packet of it arrives or leaves until it expires.
                let has_key = header.has_deadline();
                if has_key && let Some(other) = owners.insert(header.key, runtime.me().node) {
                    found.push((
                        "one owner",
                        format!(
                            "{} is served by runtimes {other} and {}",
                            header.key,
                            runtime.me().node
                        ),
                    ));
                }
                let mapping = FlowKey { source: [0; 16], source_port: 0, ..header.reply };
                if self.scenario.published
                    && self.scenario.number(chain as u16, outside_end(&header.reply)).is_none()
                {
                    continue;
                }
                if let Some(other) =
                    replies.insert(mapping, header.key).filter(|other| *other != header.key)
                {
                    found.push((
                        "uniqueness",
                        format!("{other} and {} share the mapping {mapping}", header.key),
                    ));
                }
            }
        }
        for (invariant, text) in found {
            self.violate(invariant, text);
        }
    }

    /// A number that a live flow holds cannot be leased: neither by a runtime that has it
    /// free, nor from a free block of the coordinator's.
    pub(crate) fn check_number(
        &mut self,
        key: &FlowKey,
        number: u32,
        free_at: Option<NodeId>,
        free_in_ledger: bool,
    ) {
        if let Some(node) = free_at {
            self.violate(
                "leases",
                format!("{key} holds number {number}, which runtime {node} would lease"),
            );
        }
        if free_in_ledger {
            self.violate(
                "leases",
                format!("{key} holds number {number}, which the coordinator would grant as free"),
            );
        }
    }
}

/// The outside end to which replies with this key are addressed.
pub(crate) fn outside_end(reply: &FlowKey) -> frames::End {
    let [.., a, b, c, d] = reply.destination;
    ([a, b, c, d], reply.destination_port)
}

/// A number that `of` reads from a flow's state at a runtime, or from the flow's page if
/// the state is paged out.
fn known_at<'a>(
    runtime: &Runtime,
    key: &FlowKey,
    pages: &Pages<'a>,
    of: impl Fn(&Flows, Slot) -> u64,
) -> u64 {
    let known = |(chain, flows): (usize, &Flows)| {
        let slot = flows.find(key, flows.hash(key))?.slot;
        if flows.is_present(slot) {
            return Some(of(flows, slot));
        }
        let (pages, slot) = pages(chain, key)?;
        Some(of(pages, slot))
    };
    all_flows(runtime).enumerate().filter_map(known).max().unwrap_or(0)
}

fn has<'a>(
    mut flows: impl Iterator<Item = &'a Flows>,
    key: &FlowKey,
    is_it: impl Fn(Life) -> bool,
) -> bool {
    flows.any(|flows| {
        flows.find(key, flows.hash(key)).is_some_and(|found| is_it(flows.header(found.slot).life()))
    })
}

/// A runtime, and the chains whose packets it can release: those whose switch is served
/// by a host that hears it.
pub(crate) struct Served<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) of: Vec<usize>,
}

impl<'a> Served<'a> {
    /// Flow actors of these chains.
    pub(crate) fn flows(&self) -> impl Iterator<Item = &'a Flows> {
        self.chains().map(|(_, flows)| flows)
    }

    fn chains(&self) -> impl Iterator<Item = (usize, &'a Flows)> {
        let runtime = self.runtime;
        self.of.iter().filter_map(move |chain| Some((*chain, runtime.flows(*chain)?)))
    }
}

/// The flow actors of every chain.
pub(crate) fn all_flows(runtime: &Runtime) -> impl Iterator<Item = &Flows> {
    (0..).map_while(|chain| runtime.flows(chain))
}
