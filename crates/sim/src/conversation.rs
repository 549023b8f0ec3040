//! Conversations: the messages of a world's nodes in words, for the pages that show
//! protocols.
//!
//! In: every frame as it is delivered, in order. Out: a line per message, with the names
//! of flows and packets instead of keys, hashes and stamps. Heartbeats, acknowledgements
//! and messages for people only are noise and left out. Never: a look into a node's
//! state.

use crate::frames::{self, End};
use crate::script::record_name;
use holdfast_node::channel::Overheard;
use holdfast_node::message::{
    Claim, ClaimFlag, Control, Ended, Grant, MemberState, Replay, RouteInfo, kind as message,
    numbered,
};
use holdfast_protection::flows::ActorHeader;
use holdfast_protection::{Epoch, Peer, kind};
use holdfast_wire::header::ETHERTYPE_NSH;
use holdfast_wire::nsh::{ENCAPSULATION_LEN, Flags, index};
use holdfast_wire::{DropReason, FlowKey, NodeId};
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// A message that was delivered, or a thing that was done to the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// Time since the world's beginning, ns.
    pub at: u64,
    /// Sender and receiver; `None` if it was done to the world.
    pub ends: Option<(String, String)>,
    /// The message's kind: `packet`, `mark`, or a record's or message's name.
    pub topic: String,
    /// The message in words.
    pub text: String,
}

/// A flow, by its connection's number.
type Number = usize;

/// A conversation, see the module.
pub(crate) struct Conversation {
    flows: Vec<(FlowKey, Number)>,
    /// Flows by their epochs, for messages that name nothing else.
    epochs: BTreeMap<u32, Number>,
    /// Packets by their stamps: flow and number in the flow.
    packets: BTreeMap<u64, (Number, u32)>,
    counts: BTreeMap<Number, u32>,
    /// The incarnation in which each node was last heard: packets do not carry it whole.
    incarnations: BTreeMap<NodeId, u32>,
    /// Flows of claims and moves, by sender, kind and number: the answers name no flows.
    asked: BTreeMap<(NodeId, u8, u32), Vec<Number>>,
    pub(crate) heard: Vec<Heard>,
}

/// A runtime and its incarnation.
fn runtime((node, incarnation): (NodeId, u32)) -> String {
    format!("{node}.{incarnation}")
}

fn name(node: NodeId) -> String {
    if node == NodeId::COORDINATOR {
        return "coordinator".to_owned();
    }
    match (node.host(), node.switch_number(), node.state_server_number()) {
        (Some(0), ..) => "manager".to_owned(),
        (Some(host), ..) => format!("manager {host}"),
        (_, Some(0), _) => "switch".to_owned(),
        (_, Some(number), _) => format!("switch {number}"),
        (.., Some(0)) => "server".to_owned(),
        (.., Some(number)) => format!("server-{number}"),
        _ => format!("runtime {node}"),
    }
}

/// The name of one incarnation of a node. Runtimes share one count of incarnations, so a
/// runtime's first one is named, too.
fn name_of(peer: Peer) -> String {
    match peer.incarnation {
        0 => name(peer.node),
        1 if !peer.node.is_runtime() => name(peer.node),
        incarnation => format!("{}.{incarnation}", name(peer.node)),
    }
}

fn many(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The unread rest of a record.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    fn peer(&mut self) -> Option<String> {
        Some(runtime((NodeId::new(self.u16()?), self.u32()?)))
    }

    fn all<T: FromBytes>(&self) -> Vec<T> {
        self.0
            .chunks_exact(size_of::<T>())
            .filter_map(|bytes| T::read_from_bytes(bytes).ok())
            .collect()
    }
}

/// The flows, of 32, that are meant.
fn bits(bits: u32) -> String {
    let meant: Vec<String> =
        (0..32).filter(|bit| bits & 1 << bit != 0).map(|bit| (bit + 1).to_string()).collect();
    if meant.is_empty() { "none".to_owned() } else { meant.join(", ") }
}

impl Conversation {
    /// A conversation of connections with these ends and protocols, in order.
    pub(crate) fn new(connections: impl Iterator<Item = (End, End, u8)>) -> Conversation {
        let keyed = |(at, (local, remote, protocol)): (usize, (End, End, u8))| {
            (frames::key(local, remote, protocol), at + 1)
        };
        Conversation {
            flows: connections.enumerate().map(keyed).collect(),
            epochs: BTreeMap::new(),
            packets: BTreeMap::new(),
            counts: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            asked: BTreeMap::new(),
            heard: Vec::new(),
        }
    }

    /// Adds a thing that is done to the world.
    pub(crate) fn note(&mut self, at: u64, text: String) {
        self.heard.push(Heard { at, ends: None, topic: "done".to_owned(), text });
    }

    /// Adds the messages of a frame that is delivered.
    pub(crate) fn hear(&mut self, at: u64, frame: &[u8]) {
        if frame.get(12..14) == Some(&ETHERTYPE_NSH.to_be_bytes()) {
            let (Some(from), Some(to)) = (frames::source(frame), frames::destination(frame)) else {
                return;
            };
            if let Some((topic, text)) = self.packet(frame) {
                let [from, to] = [from, to].map(|node| self.latest(node));
                self.heard.push(Heard {
                    at,
                    ends: Some((from, to)),
                    topic: topic.to_owned(),
                    text,
                });
            }
            return;
        }
        let Some(overheard) = Overheard::read(frame) else { return };
        let (from, to) = (overheard.source, overheard.destination);
        for peer in [from, to] {
            let known = self.incarnations.entry(peer.node).or_insert(0);
            *known = peer.incarnation.max(*known);
        }
        for (kind, body) in overheard.records() {
            if let Some((topic, text)) = self.record(from.node, to.node, kind, body) {
                self.heard.push(Heard {
                    at,
                    ends: Some((name_of(from), name_of(to))),
                    topic,
                    text,
                });
            }
        }
    }

    fn latest(&self, node: NodeId) -> String {
        name_of(Peer { node, incarnation: self.incarnations.get(&node).copied().unwrap_or(0) })
    }

    fn known(&self, key: &FlowKey) -> Option<Number> {
        self.flows.iter().find(|(of, _)| of == key).map(|(_, flow)| *flow)
    }

    fn flow(&self, key: &FlowKey) -> Number {
        self.known(key).unwrap_or(0)
    }

    fn flow_of_epoch(&self, epoch: u32) -> Number {
        self.epochs.get(&epoch).copied().unwrap_or(0)
    }

    fn packet(&mut self, frame: &[u8]) -> Option<(&'static str, String)> {
        let head = frame.get(..ENCAPSULATION_LEN)?;
        let (flags, at) = (head[18], head[21]);
        let stamp = u64::from_be_bytes(head[22..30].try_into().ok()?);
        let commit = u32::from_be_bytes(head[34..38].try_into().ok()?);
        let (number, of) = match at {
            index::MARK => return Some(("mark", format!("mark of batch {commit}"))),
            index::FENCED => return Some(("fenced", format!("incarnation {commit} is fenced"))),
            index::TO_RUNTIME => {
                let inner = frames::look(&frame[ENCAPSULATION_LEN..])?;
                let known =
                    self.known(&frames::key(inner.source, inner.destination, inner.protocol));
                let flow = known.unwrap_or_else(|| self.flow_of_epoch(commit));
                self.epochs.insert(commit, flow);
                let counts = &mut self.counts;
                let counted = || {
                    let count = counts.entry(flow).or_insert(0);
                    *count += 1;
                    (flow, *count)
                };
                *self.packets.entry(stamp).or_insert_with(counted)
            }
            _ => *self.packets.get(&stamp)?,
        };
        let packet = format!("packet {of} of flow {number}");
        let text = match at {
            index::TO_RUNTIME if flags & Flags::REPLAY != 0 => {
                format!("{packet} again, epoch {commit}")
            }
            index::TO_RUNTIME if flags & Flags::NEW != 0 => {
                format!("{packet}, which it opens, epoch {commit}")
            }
            index::TO_RUNTIME => format!("{packet}, epoch {commit}"),
            index::TO_REPLICA => format!("{packet}: release it when commit {commit} is saved"),
            index::RELEASED => format!("{packet} leaves"),
            _ => return None,
        };
        Some(("packet", text))
    }

    fn record(
        &mut self,
        from: NodeId,
        to: NodeId,
        kind: u8,
        body: &[u8],
    ) -> Option<(String, String)> {
        if kind == message::CONTROL || kind == message::NUMBERED {
            let (number, said) = match kind {
                message::CONTROL => (None, Control::decode(body).ok()?),
                _ => numbered(body).ok().map(|(number, said)| (Some(number), said))?,
            };
            let text = control(&said)?;
            let topic = text.split([' ', ':', ',']).next().unwrap_or_default().to_owned();
            return Some((
                topic,
                number.map_or_else(|| text.clone(), |number| format!("{text} (order {number})")),
            ));
        }
        let text = if kind <= holdfast_protection::kind::LAST {
            self.protection(kind, &mut Fields(body.get(2..)?))?
        } else {
            self.routing(from, to, kind, &mut Fields(body))?
        };
        Some((record_name(kind), text))
    }

    /// The actor's block at the front of the fields, in words.
    fn actor(&mut self, fields: &Fields<'_>) -> Option<String> {
        let (header, _) = ActorHeader::read_from_prefix(fields.0).ok()?;
        let flow = self.flow(&header.key);
        self.epochs.insert(header.epoch.get(), flow);
        Some(format!("flow {flow}, epoch {}, version {}", header.epoch, header.version))
    }

    /// A protection's record in words.
    fn protection(&mut self, kind: u8, fields: &mut Fields<'_>) -> Option<String> {
        Some(match kind {
            kind::STATE => {
                let (commit, _layout) = (fields.u32()?, fields.u64()?);
                format!("state of {}: commit {commit}", self.actor(fields)?)
            }
            kind::DELTA => {
                let (commit, _hash, epoch, version) =
                    (fields.u32()?, fields.u64()?, fields.u32()?, fields.u32()?);
                let flow = self.flow_of_epoch(epoch);
                format!(
                    "changes of flow {flow}, epoch {epoch}, since version {version}: commit {commit}"
                )
            }
            kind::SAVED => format!("saved up to commit {}", fields.u32()?),
            kind::REFUSED => {
                let (commit, reason) = (fields.u32()?, *fields.0.first()?);
                let reason = DropReason::from_index(reason.into())
                    .map_or_else(String::new, |reason| reason.to_string());
                format!("commit {commit} refused: {reason}")
            }
            kind::END => {
                let (commit, epoch) = (fields.u32()?, fields.u32()?);
                format!(
                    "end of the copy of flow {}, epoch {epoch}: commit {commit}",
                    self.flow_of_epoch(epoch)
                )
            }
            kind::FETCH => {
                let (_, incarnation) = (fields.u32()?, fields.u32()?);
                format!("fetch what there is of incarnations up to {incarnation}")
            }
            kind::RESTORED => {
                let (_, _) = (fields.u32()?, fields.u64()?);
                format!("snapshot of {}", self.actor(fields)?)
            }
            kind::FETCHED => "that was all".to_owned(),
            kind::INPUTS => {
                let (commit, base) = (fields.u32()?, fields.u64()?);
                let mut inputs = Vec::new();
                while let (Some(epoch), Some(offset)) = (fields.u32(), fields.u32()) {
                    let stamp = base.wrapping_add_signed(i64::from(offset as i32));
                    let packet = self
                        .packets
                        .get(&stamp)
                        .map_or_else(|| "?".to_owned(), |(_, of)| of.to_string());
                    inputs.push(format!("packet {packet} of flow {}", self.flow_of_epoch(epoch)));
                }
                format!("processed {}: commit {commit}", inputs.join(", "))
            }
            kind::COVERED => {
                let (commit, covered) = (fields.u32()?, fields.u32()?);
                format!("copies have everything up to commit {covered}: commit {commit}")
            }
            kind::PASS => {
                let (commit, epoch, whose, next) =
                    (fields.u32()?, fields.u32()?, fields.peer()?, fields.u32()?);
                format!(
                    "flow {} goes to {whose} under epoch {next}: commit {commit}",
                    self.flow_of_epoch(epoch)
                )
            }
            kind::RECALL => format!("recall the flows of {}", fields.peer()?),
            kind::DEAL => {
                let (number, whose, _layout) = (fields.u32()?, fields.peer()?, fields.u64()?);
                format!("deal {number}: {}, of {whose}", self.actor(fields)?)
            }
            kind::DEALT => {
                let (number, outcome) = (fields.u32()?, *fields.0.first()?);
                format!("deal {number} {}", if outcome == 0 { "is taken" } else { "is not taken" })
            }
            kind::RECALLED => format!("of {} there is no more", fields.peer()?),
            kind::PAGE => {
                let (key, _) = FlowKey::read_from_prefix(fields.0).ok()?;
                format!("state of flow {}, please", self.flow(&key))
            }
            kind::PAGE_IN => {
                fields.u64()?;
                format!("state of {}", self.actor(fields)?)
            }
            kind::NO_PAGE => {
                let (key, _) = FlowKey::read_from_prefix(fields.0).ok()?;
                format!("there is no flow {}", self.flow(&key))
            }
            _ => return None,
        })
    }

    /// The flows of claims, in order, and their text.
    fn claims(&mut self, fields: &Fields<'_>) -> (Vec<Number>, String) {
        let (mut flows, mut texts) = (Vec::new(), Vec::new());
        for claim in fields.all::<Claim>() {
            let flow = self.flow(&claim.key.into());
            self.epochs.insert(claim.epoch().get(), flow);
            flows.push(flow);
            let renounced = if claim.has(ClaimFlag::Renounced) { ", which never came" } else { "" };
            texts.push(format!("flow {flow} (epoch {}{renounced})", claim.epoch()));
        }
        (flows, texts.join(", "))
    }

    /// An epoch that a switch gave in answer to a claim or a move, in words.
    fn given(&mut self, flow: Number, epoch: Epoch) -> String {
        self.epochs.insert(epoch.get(), flow);
        format!("flow {flow}: epoch {epoch}")
    }

    /// A record between runtime and switch, or between runtimes about moving flows, in
    /// words.
    fn routing(
        &mut self,
        from: NodeId,
        to: NodeId,
        kind: u8,
        fields: &mut Fields<'_>,
    ) -> Option<String> {
        Some(match kind {
            message::CLAIM => {
                let number = fields.u32()?;
                let (flows, text) = self.claims(fields);
                self.asked.insert((from, kind, number), flows);
                format!("claim {number}: {text}")
            }
            message::CLAIMED => {
                let number = fields.u32()?;
                let flows =
                    self.asked.get(&(to, message::CLAIM, number)).cloned().unwrap_or_default();
                let mut given = Vec::new();
                for flow in flows {
                    given.push(match Grant::decode(fields.bytes()?).ok()? {
                        Grant::Given { epoch, logged: 0 } => self.given(flow, epoch),
                        Grant::Given { epoch, logged } => {
                            format!(
                                "{}, {} in the log",
                                self.given(flow, epoch),
                                many(logged as usize, "packet")
                            )
                        }
                        Grant::Refused => format!("flow {flow}: no"),
                        Grant::Retry => format!("flow {flow}: ask again"),
                        Grant::AfterSweep => format!("flow {flow}: when others are swept"),
                    });
                }
                format!("claim {number}: {}", given.join("; "))
            }
            message::MOVE => {
                let (number, target) = (fields.u32()?, fields.peer()?);
                let (flows, text) = self.claims(fields);
                self.asked.insert((from, kind, number), flows);
                format!("batch {number}: route {text} to {target}")
            }
            message::MOVED => {
                let number = fields.u32()?;
                let flows =
                    self.asked.get(&(to, message::MOVE, number)).cloned().unwrap_or_default();
                let mut given = Vec::new();
                for flow in flows {
                    given.push(match Epoch::given(fields.u32()?) {
                        None => format!("flow {flow}: no"),
                        Some(epoch) => self.given(flow, epoch),
                    });
                }
                format!("batch {number}: {}", given.join("; "))
            }
            message::MARK => format!("the mark of batch {} has not come", fields.u32()?),
            message::PREPARE => {
                let (number, _layout) = (fields.u32()?, fields.u64()?);
                let (_, text) = self.claims(fields);
                format!("batch {number}: room for {text}?")
            }
            message::PREPARED => {
                format!("batch {}: welcome are {}", fields.u32()?, bits(fields.u32()?))
            }
            message::FLOW => {
                let (number, which) = (fields.u32()?, fields.bytes::<1>()?[0]);
                format!("batch {number}, {}: {}", which + 1, self.actor(fields)?)
            }
            message::ARRIVED => {
                format!("batch {}: served are {}", fields.u32()?, bits(fields.u32()?))
            }
            message::CANCEL => {
                format!("batch {}: not to come are {}", fields.u32()?, bits(fields.u32()?))
            }
            message::ENDED | message::SETTLED => {
                let flows = fields.all::<Ended>();
                let verb = if kind == message::ENDED { "has ended" } else { "has arrived" };
                let text = |ended: &Ended| {
                    format!("flow {} of epoch {} {verb}", self.flow(&ended.key.into()), ended.epoch)
                };
                flows.iter().map(text).collect::<Vec<_>>().join(", ")
            }
            message::TELL => "a new incarnation: which routes are yours?".to_owned(),
            message::ROUTES => {
                let ([_asked_by, last], newest, _stamp) =
                    (fields.bytes()?, fields.u32()?, fields.u64()?);
                let mut routes = Vec::new();
                for route in fields.all::<RouteInfo>() {
                    let flow = self.flow(&route.claim.key.into());
                    self.epochs.insert(route.claim.epoch().get(), flow);
                    let whose = runtime((NodeId::new(route.node.get()), route.incarnation.get()));
                    routes.push(format!(
                        "flow {flow} (epoch {}) leads to {whose}",
                        route.claim.epoch()
                    ));
                }
                let routes = if routes.is_empty() { "none".to_owned() } else { routes.join(", ") };
                let more = if last == 1 { "" } else { "; more follow" };
                format!("routes: {routes}; newest epoch {newest}{more}")
            }
            message::FULL => "no room for a new flow".to_owned(),
            message::REPLAY => {
                let (replay, _) = Replay::read_from_prefix(fields.0).ok()?;
                let flow = self.flow_of_epoch(replay.epoch.get());
                match replay.count.get() {
                    0 => format!("replay of flow {flow} is over"),
                    count => {
                        format!(
                            "replay {} of flow {flow}, from place {} of its log on",
                            many(count as usize, "packet"),
                            replay.first
                        )
                    }
                }
            }
            message::UNLOGGED => {
                format!("flow {} has nothing in the log", self.flow_of_epoch(fields.u32()?))
            }
            _ => return None,
        })
    }
}

fn peers(peers: &[Peer]) -> String {
    let names: Vec<String> =
        peers.iter().map(|peer| runtime((peer.node, peer.incarnation))).collect();
    if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
}

fn count(numbers: usize) -> String {
    many(numbers, "number")
}

/// A control message in words. `None` for noise: messages that are repeated often, or
/// meant for people only.
fn control(said: &Control) -> Option<String> {
    Some(match said {
        Control::Hello { .. } => "hello".to_owned(),
        Control::View { version, members } => {
            let state = |state| match state {
                MemberState::Starting => "starts",
                MemberState::Running => "runs",
                MemberState::Leaving => "leaves",
                MemberState::Failed => "has failed",
            };
            let each: Vec<String> = members
                .iter()
                .map(|one| format!("{} {}", runtime((one.node, one.incarnation)), state(one.state)))
                .collect();
            format!("view {version}: {}", each.join(", "))
        }
        Control::Recover { node, incarnation } => {
            format!("recover {}", runtime((*node, *incarnation)))
        }
        Control::Recovered { node, incarnation, flows, broken } => {
            let broken = if *broken > 0 { format!(", {broken} broken") } else { String::new() };
            format!(
                "recovered {}: {}{broken}",
                runtime((*node, *incarnation)),
                many(*flows as usize, "flow")
            )
        }
        Control::Waits { node, incarnation, .. } => {
            format!(
                "waits: what is open of {} waits until others are swept",
                runtime((*node, *incarnation))
            )
        }
        Control::Adopted { numbers, .. } => format!("adopted {} of a pool", count(numbers.len())),
        Control::Sweep { node, incarnation, is_over } => {
            let over = if *is_over { ", the recovery is over" } else { "" };
            format!("sweep the routes of {}{over}", runtime((*node, *incarnation)))
        }
        Control::Unclaimed { node, incarnation, flows } => {
            format!(
                "unclaimed of {}: {}",
                runtime((*node, *incarnation)),
                many(*flows as usize, "flow")
            )
        }
        Control::WantBlock { .. } => "want a block of a pool".to_owned(),
        Control::Grant { blocks, .. } => format!("grant {} of a pool", many(blocks.len(), "block")),
        Control::Deny { .. } => "deny: the pool has no block left".to_owned(),
        Control::Returned { numbers, .. } => format!("returned {} of a pool", count(numbers.len())),
        Control::Taken { numbers, .. } => {
            format!("taken: flows elsewhere hold {}", count(numbers.len()))
        }
        Control::SpareBlocks { .. } => "spare blocks of a pool?".to_owned(),
        Control::Spared { blocks, .. } => format!("spared {}", many(blocks.len(), "block")),
        Control::Migrate { targets, limit, .. } => {
            let targets: Vec<String> = targets.iter().map(|target| runtime(*target)).collect();
            let limit = if *limit == u64::MAX {
                "all flows".to_owned()
            } else {
                format!("up to {}", many(*limit as usize, "flow"))
            };
            format!("migrate {limit} to {}", targets.join(", "))
        }
        Control::Migrated { moved, last, .. } => {
            format!(
                "migrated {}{}",
                many(*moved as usize, "flow"),
                if *last { ", all done" } else { " so far" }
            )
        }
        Control::Serve { switch, host, term, .. } => {
            format!("serve switch {switch} on host {host} in term {term}")
        }
        Control::Admit { peers: who } => format!("admit {}", peers(who)),
        Control::Recovering { dead, epoch } => {
            format!("recovering {}; the newest epoch known is {epoch}", peers(dead))
        }
        Control::Account { .. } => "account, please: a new incarnation".to_owned(),
        Control::Holds { blocks, .. } => format!("holds {} of a pool", many(blocks.len(), "block")),
        Control::Accounted { .. } => "accounted: that is all".to_owned(),
        Control::Present { peers: who } => format!("present are {}", peers(who)),
        Control::Start { node, incarnation } => format!("start {}", runtime((*node, *incarnation))),
        Control::Started { node, incarnation } => {
            format!("started {}", runtime((*node, *incarnation)))
        }
        Control::Fence { node, incarnation } => format!("fence {}", runtime((*node, *incarnation))),
        Control::Ended { node, incarnation, flows, .. } => {
            let flows = flows.map_or_else(String::new, |flows| {
                format!("; the switch had sent it {}", many(flows as usize, "flow"))
            });
            format!("ended is {}{flows}", runtime((*node, *incarnation)))
        }
        Control::Stop { node, incarnation } => format!("stop {}", runtime((*node, *incarnation))),
        Control::Silent { node, incarnation } => {
            format!("silent is {}", runtime((*node, *incarnation)))
        }
        Control::Alive { node, incarnation } => {
            format!("alive is {}", runtime((*node, *incarnation)))
        }
        Control::Order { order, .. } => format!("operator: {order:?}"),
        Control::Answer { .. }
        | Control::Report(_)
        | Control::Lists(_)
        | Control::ListFlows { .. }
        | Control::RankFlows { .. }
        | Control::Managers { .. }
        | Control::Beat(_)
        | Control::Trace(_)
        | Control::Rules { .. }
        | Control::RulesInForce { .. }
        | Control::Settled { .. }
        | Control::Crowded { .. }
        | Control::Draining(_)
        | Control::Standing(_)
        | Control::Failover(_)
        | Control::Sealing(_)
        | Control::Totals { .. }
        | Control::Logged(_) => return None,
    })
}
