//! The state server's side of the fabric.
//!
//! In: frames, words, the time. Out: frames, words. The server believes the coordinator
//! about deaths, and each instance about its own flows only.

use super::stream::Stream;
use super::transport::ControlTransport;
use super::{End, GREETING_AT_MOST, Greeting, carry, of_session, unframed};
use crate::channel::{Fabric, FabricConfig};
use crate::message::{Control, Listing, Member, MemberState, Report, is_later_view, kind};
use crate::prefetch;
use crate::totals::StatisticsReport;
use holdfast_protection::flows::Journal;
use holdfast_protection::rescue::pages::{Pages, PagesConfig};
use holdfast_protection::{Peer, kind as protection_kind};
use holdfast_state::{Account, Input, Kind, Primary, Refused, Server};
use holdfast_wire::{DropCounters, DropReason, NodeId};
use std::collections::BTreeMap;

/// Unchanged counts of the lists are reported again after so long, ns.
const SAID_AGAIN: u64 = 1_000_000_000;

/// A state server's configuration.
#[derive(Debug, Clone)]
pub struct StateServerConfig {
    /// The server's own node and incarnation.
    pub me: Peer,
    /// The fabric endpoint's configuration.
    pub fabric: FabricConfig,
    /// The lists.
    pub kinds: Vec<Kind>,
    /// The chains whose flows have their home here.
    pub pages: Vec<PagesConfig>,
    /// An instance with more unacknowledged messages is not listened to.
    pub waiting: usize,
    /// The number that identifies the server's memory. No earlier server may have had it.
    pub memory: u64,
    /// True if no instance has anything of an earlier server, because there was none.
    pub is_first: bool,
    /// Interval between time inputs, ns.
    pub tick: u64,
    /// The manager that gets the reports on the lists.
    pub listener: NodeId,
    /// Least interval between reports, ns.
    pub report_interval: u64,
    /// Interval between heartbeats to the coordinator, ns. A server sends them if flows
    /// have their home here.
    pub heartbeat: u64,
}

/// See the module.
pub struct StateServer {
    fabric: Fabric,
    primary: Primary,
    pages: Vec<Pages>,
    /// Instances that have said hello and are not welcomed yet.
    callers: BTreeMap<Peer, (Greeting, Option<End>)>,
    /// The numbers of the sessions under way.
    sessions: BTreeMap<Peer, u32>,
    /// Sessions on a control transport.
    streams: BTreeMap<Peer, Stream>,
    /// Nodes whose end belongs to a session that is over.
    closing: Vec<NodeId>,
    /// Refused sessions whose instance has not been told.
    refused: BTreeMap<Peer, u32>,
    /// The latest view, and its members that have not failed: only these are welcomed.
    view: Option<u64>,
    members: BTreeMap<NodeId, Peer>,
    /// Members that may be given flows.
    able: Vec<Peer>,
    /// From [`Control::Recovering`] to the next view: the dead that are being recovered.
    /// All other dead are recovered.
    recovering: Option<Vec<Peer>>,
    /// Living instances that may not know that there is a server: to be called.
    calls: Vec<Peer>,
    tick: u64,
    next_tick: u64,
    listener: NodeId,
    report_interval: u64,
    next_report: u64,
    /// True for the first state server, which has all lists.
    has_lists: bool,
    heartbeat: u64,
    next_heartbeat: u64,
    /// The last report, and its time.
    reported: Vec<Listing>,
    reported_at: u64,
    /// The numbers of the lists of statistics.
    statistics: Vec<u32>,
    report: StatisticsReport,
    drops: DropCounters,
}

impl StateServer {
    /// A server. `None` if there are too many lists, or one is too large.
    pub fn new(config: StateServerConfig) -> Option<StateServer> {
        let begin = if config.is_first { Server::new } else { Server::unknown };
        let mut fabric = Fabric::new(config.me, config.fabric);
        fabric.send_control(NodeId::COORDINATOR, &Control::Hello { layouts: Vec::new() });
        let primary = Primary::new(begin(&config.kinds, config.waiting, config.memory)?);
        let sizes =
            (0..primary.server().lists()).map(|list| (list, primary.server().statistics(list)));
        let (statistics, sizes): (Vec<u32>, Vec<usize>) =
            sizes.filter_map(|(list, known)| Some((list, known?.totals().len()))).unzip();
        Some(StateServer {
            statistics,
            report: StatisticsReport::new(sizes),
            fabric,
            primary,
            pages: config.pages.into_iter().map(Pages::new).collect(),
            callers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            streams: BTreeMap::new(),
            closing: Vec::new(),
            refused: BTreeMap::new(),
            view: None,
            recovering: None,
            members: BTreeMap::new(),
            able: Vec::new(),
            calls: Vec::new(),
            tick: config.tick,
            next_tick: 0,
            listener: config.listener,
            report_interval: config.report_interval,
            next_report: 0,
            has_lists: config.me.node == NodeId::STATE_SERVER,
            heartbeat: config.heartbeat,
            next_heartbeat: 0,
            reported: Vec::new(),
            reported_at: 0,
            drops: DropCounters::default(),
        })
    }

    /// Has the pages announce their changes to this journal from now on: see [`Journal`].
    /// To be called before the first turn.
    pub fn set_journal(&mut self, journal: Journal) {
        self.pages.iter_mut().for_each(|pages| pages.set_journal(journal));
    }

    /// The endpoint, for the driver that carries its frames.
    pub fn fabric(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// The lists, to look at.
    pub fn server(&self) -> &Server {
        self.primary.server()
    }

    /// The flows of this chain as they were written back, to look at.
    pub fn flows(&self, chain: usize) -> Option<&holdfast_protection::Flows> {
        self.pages.iter().find(|pages| usize::from(pages.chain()) == chain).map(Pages::flows)
    }

    /// Drops by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// Takes a frame in.
    pub fn handle_frame(&mut self, frame: &[u8], now: u64) {
        if let Err(reason) = self.fabric.handle_frame(frame, now) {
            self.drops.count(reason);
        }
    }

    /// The time of the next turn without input, ns.
    pub fn poll_timeout(&self) -> u64 {
        let pages = self.pages.iter().map(Pages::poll_timeout).min().unwrap_or(u64::MAX);
        let heartbeat = if self.pages.is_empty() || self.view.is_none() {
            u64::MAX
        } else {
            self.next_heartbeat
        };
        let is_waiting = |peer: &Peer| self.primary.server().waiting(*peer) > 0;
        let words = self
            .streams
            .iter()
            .map(|(peer, stream)| stream.poll_timeout(is_waiting(peer)))
            .min()
            .unwrap_or(u64::MAX);
        self.fabric
            .poll_timeout()
            .unwrap_or(u64::MAX)
            .min(self.next_tick)
            .min(pages)
            .min(heartbeat)
            .min(words)
    }

    /// A turn: takes in what has arrived, does what is due, sends.
    pub fn turn(&mut self, now: u64) {
        self.turn_with(None, now);
    }

    /// As [`StateServer::turn`], where sessions may use the control transport `words`.
    /// True if words came or went.
    pub fn turn_with(
        &mut self,
        mut words: Option<&mut (dyn ControlTransport + '_)>,
        now: u64,
    ) -> bool {
        let inbox = core::mem::take(&mut self.fabric.inbox);
        for peer in &inbox.restarted {
            self.end_others(*peer);
        }
        self.begin_pages(now);
        for (at, (record, body)) in inbox.records().enumerate() {
            if at % prefetch::AHEAD == 0 {
                let of = |pages: &[Pages], chain: u16| {
                    pages.iter().position(|pages| pages.chain() == chain)
                };
                prefetch::look(&mut self.pages, of, inbox.records_from(at));
            }
            let result = match record.kind {
                1..=protection_kind::LAST => self.write(record.from, record.kind, body),
                kind::STATE_HELLO => self.take_hello(record.from, body),
                kind::STATE => self.hear(record.from, body),
                kind::CONTROL if record.from.node == NodeId::COORDINATOR => {
                    Control::decode(body).map(|message| self.obey(message))
                }
                _ => Err(DropReason::Malformed),
            };
            if let Err(reason) = result {
                self.drops.count(reason);
            }
        }
        self.fabric.inbox = inbox;
        self.fabric.inbox.clear();
        let mut had_words = match &mut words {
            Some(words) => self.hear_words(*words, now),
            None => false,
        };
        self.call();
        if now >= self.next_tick {
            self.next_tick = now.saturating_add(self.tick);
            self.apply(Input::Time(now));
        }
        match &mut words {
            Some(words) => self.welcome(Some(&mut **words), now),
            None => self.welcome(None, now),
        }
        had_words |= self.speak(words, now);
        self.flush_pages(now);
        self.report(now);
        self.beat(now);
        had_words
    }

    fn hear_words(&mut self, words: &mut dyn ControlTransport, now: u64) -> bool {
        let mut is_any = false;
        let peers: Vec<Peer> = self.streams.keys().copied().collect();
        for peer in peers {
            let StateServer { streams, primary, .. } = self;
            let Some(stream) = streams.get_mut(&peer) else { continue };
            let hear =
                |message| primary.apply(Input::Said { from: peer, message }).map_err(reason_of);
            match stream.receive(words, peer.node, now, hear) {
                Ok(is_some) => is_any |= is_some,
                Err(reason) => {
                    self.drops.count(reason);
                    self.refuse(peer);
                    is_any = true;
                }
            }
        }
        for node in self.closing.drain(..) {
            words.close(node);
        }
        is_any
    }

    /// Sends the coordinator a heartbeat.
    fn beat(&mut self, now: u64) {
        let Some(view) = self.view.filter(|_| !self.pages.is_empty() && now >= self.next_heartbeat)
        else {
            return;
        };
        self.next_heartbeat = now.saturating_add(self.heartbeat);
        if self.fabric.backlog(NodeId::COORDINATOR) == 0 {
            self.fabric.send_control(
                NodeId::COORDINATOR,
                &Control::Report(Report { view, ..Report::default() }),
            );
        }
    }

    /// Takes in a runtime's record about its flows.
    fn write(&mut self, from: Peer, record: u8, body: &[u8]) -> Result<(), DropReason> {
        let (chain, body) = body.split_first_chunk::<2>().ok_or(DropReason::Malformed)?;
        let chain = u16::from_be_bytes(*chain);
        let pages = self
            .pages
            .iter_mut()
            .find(|pages| pages.chain() == chain)
            .ok_or(DropReason::Malformed)?;
        pages.handle_record(from, record, body)
    }

    fn begin_pages(&mut self, now: u64) {
        let StateServer { pages, fabric, members, able, .. } = self;
        for pages in pages {
            pages.begin(now, members.values().map(|peer| (*peer, fabric.room(*peer))), able);
        }
    }

    fn flush_pages(&mut self, now: u64) {
        // Pages name a dead runtime that is no member of the view. Its death was heard of
        // before, or by an earlier incarnation of this server.
        let is_gone =
            |members: &BTreeMap<NodeId, Peer>, peer: &Peer| members.get(&peer.node) != Some(peer);
        let is_told = self.view.is_some();
        let StateServer { pages, fabric, members, able, drops, .. } = self;
        for pages in pages {
            let gone: Vec<Peer> =
                pages.unknown().filter(|peer| is_told && is_gone(members, peer)).collect();
            gone.into_iter().for_each(|peer| pages.bury(peer));
            // Another chain's records may have taken the room.
            pages.begin(now, members.values().map(|peer| (*peer, fabric.room(*peer))), able);
            pages.flush();
            for (record, body) in pages.records() {
                // The room was checked. A record that is lost all the same ends the
                // runtime's session.
                let _ = fabric.send(record.to.node, record.kind, body);
            }
            pages.clear_records();
            (0..pages.take_lost()).for_each(|_| drops.count(DropReason::FlowTableFull));
        }
    }

    /// Reports on the lists, if a report is due and something has changed.
    fn report(&mut self, now: u64) {
        // Only the first server has lists. While an earlier report waits for the manager,
        // no new one goes.
        if !self.has_lists || now < self.next_report || self.fabric.backlog(self.listener) > 0 {
            return;
        }
        self.next_report = now.saturating_add(self.report_interval);
        let server = self.primary.server();
        let listing = |account: Account| Listing {
            free: account.free,
            at_hand: account.credit,
            held: account.held,
            resting: account.resting,
        };
        let lists: Vec<Listing> =
            (0..server.lists()).filter_map(|list| server.account(list)).map(listing).collect();
        // A new incarnation of the manager knows nothing, and may not have spoken yet.
        if lists != self.reported || now >= self.reported_at.saturating_add(SAID_AGAIN) {
            self.fabric.send_control(self.listener, &Control::Lists(lists.clone()));
            (self.reported, self.reported_at) = (lists, now);
        }
        let StateServer { report, statistics, primary, fabric, listener, .. } = self;
        let look = |statistic: usize, look: &mut dyn FnMut(&[i64])| {
            primary
                .server()
                .statistics(statistics[statistic])
                .into_iter()
                .for_each(|known| look(known.totals()));
        };
        report.tell(now, look, |message| fabric.send_control(*listener, message));
    }

    /// Applies an input. False if it was refused, which is counted.
    fn apply(&mut self, input: Input) -> bool {
        let outcome = self.primary.apply(input);
        if let Err(why) = outcome {
            self.drops.count(reason_of(why));
        }
        outcome.is_ok()
    }

    /// Ends the sessions of this node's other incarnations.
    fn end_others(&mut self, peer: Peer) {
        let others: Vec<Peer> =
            incarnations_of(peer.node, &self.sessions).filter(|other| *other != peer).collect();
        others.into_iter().for_each(|peer| self.end(peer));
    }

    fn end(&mut self, peer: Peer) {
        self.end_stream(peer);
        if self.sessions.remove(&peer).is_some() {
            // An error means that the instance is dead, and its session over.
            let _ = self.primary.apply(Input::Over(peer));
        }
    }

    fn end_stream(&mut self, peer: Peer) {
        if self.streams.remove(&peer).is_some() {
            self.closing.push(peer.node);
        }
    }

    /// Ends a session from here. The instance begins another one.
    fn refuse(&mut self, peer: Peer) {
        if let Some(session) = self.sessions.get(&peer).copied() {
            self.end(peer);
            self.refused.insert(peer, session);
        }
    }

    fn take_hello(&mut self, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let (greeting, _, end) = Greeting::read(body)?;
        // A node has one caller: its latest incarnation speaks last.
        let others: Vec<Peer> = incarnations_of(from.node, &self.callers).collect();
        others.iter().for_each(|other| _ = self.callers.remove(other));
        self.callers.insert(from, (greeting, end));
        Ok(())
    }

    fn hear(&mut self, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let (session, messages) = of_session(body)?;
        if self.sessions.get(&from) != Some(&session) || self.streams.contains_key(&from) {
            // The session is over here, and the instance does not know it yet.
            return Ok(());
        }
        let form = self.primary.server().form();
        let outcome = form.read(messages).try_for_each(|message| {
            let message = unframed(message)?;
            self.primary.apply(Input::Said { from, message }).map_err(reason_of)
        });
        if outcome.is_err() {
            self.refuse(from);
        }
        outcome
    }

    fn obey(&mut self, message: Control) {
        match message {
            Control::View { version, members } if self.is_news(version) => {
                let is_first = self.view.replace(version).is_none();
                self.learn(&members);
                if let Some(recovering) = self.recovering.take() {
                    let unrecovered: Vec<Peer> = self.primary.server().unrecovered().collect();
                    let are_over =
                        unrecovered.into_iter().filter(|peer| !recovering.contains(peer));
                    are_over.for_each(|peer| self.recovered(peer));
                }
                if is_first {
                    self.apply(Input::Complete);
                }
            }
            Control::Recovering { dead, .. } => {
                dead.iter().for_each(|peer| self.bury(*peer));
                self.recovering = Some(dead);
            }
            Control::Recover { node, incarnation } => self.bury(Peer { node, incarnation }),
            Control::Sweep { node, incarnation, is_over: true } => {
                self.recovered(Peer { node, incarnation })
            }
            _ => {}
        }
    }

    /// True if a view has news: it is later than the last one, or follows a list of the
    /// dead that are being recovered. The first view must follow such a list, because
    /// otherwise it is not known whose flows are about to move.
    fn is_news(&self, version: u64) -> bool {
        let is_behind_the_dead = self.recovering.is_some();
        self.view.map_or(is_behind_the_dead, |view| {
            is_later_view(view, version) || version == view && is_behind_the_dead
        })
    }

    fn recovered(&mut self, peer: Peer) {
        self.apply(Input::Recovered(peer));
        self.pages.iter_mut().for_each(|pages| pages.recovered(peer));
    }

    fn bury(&mut self, peer: Peer) {
        self.pages.iter_mut().for_each(|pages| pages.bury(peer));
        self.callers.remove(&peer);
        self.sessions.remove(&peer);
        self.end_stream(peer);
        self.apply(Input::Dead(peer));
    }

    /// Learns members and deaths from a view. The dead that are being recovered are named
    /// ahead of the first view ([`Control::Recovering`] or [`Control::Recover`]);
    /// failures of known instances are in views.
    fn learn(&mut self, members: &[Member]) {
        let living =
            members.iter().filter(|member| member.state != MemberState::Failed).map(Member::peer);
        self.members = living.map(|peer| (peer.node, peer)).collect();
        self.able = members
            .iter()
            .filter(|member| member.state == MemberState::Running)
            .map(Member::peer)
            .collect();
        for member in members {
            let (peer, is_failed) = (member.peer(), member.state == MemberState::Failed);
            let first = Peer { node: peer.node, incarnation: 0 };
            let known: Vec<Peer> = self
                .primary
                .server()
                .instances_from(first)
                .take_while(|known| known.node == peer.node)
                .collect();
            let is_dead = |known: &&Peer| {
                known.incarnation < peer.incarnation || **known == peer && is_failed
            };
            known.iter().filter(is_dead).for_each(|dead| self.bury(*dead));
            if !is_failed && !known.contains(&peer) {
                self.apply(Input::Joined(peer));
            }
        }
        let is_silent =
            |peer: &&Peer| !self.sessions.contains_key(peer) && !self.callers.contains_key(peer);
        self.calls = self.members.values().filter(is_silent).copied().collect();
    }

    /// Lets living instances know that there is a server, by its first frame: an instance
    /// without messages would not know it.
    fn call(&mut self) {
        for peer in core::mem::take(&mut self.calls) {
            self.fabric.set_peer(peer);
            // A session number that was never used.
            self.refused.entry(peer).or_insert(0);
        }
    }

    /// Begins the sessions that can begin.
    fn welcome(&mut self, mut words: Option<&mut (dyn ControlTransport + '_)>, now: u64) {
        let is_meant = |(peer, caller): (&Peer, &(Greeting, Option<End>))| {
            (self.members.get(&peer.node) == Some(peer)).then_some((*peer, *caller))
        };
        let callers: Vec<(Peer, (Greeting, Option<End>))> =
            self.callers.iter().filter_map(is_meant).collect();
        for (peer, (greeting, end)) in callers {
            let Some(received) = self.primary.received(peer) else { continue };
            let (memory, form) = (self.primary.server().memory(), self.primary.server().form());
            let (size, session) = (form.size() as u8, greeting.session);
            let welcome = Greeting {
                is_known: 1,
                size,
                session,
                memory: memory.into(),
                received: received.into(),
            };
            let is_known = greeting.is_known == 1 && greeting.memory.get() == memory;
            let arrived = if is_known { greeting.received.get() } else { 0 };
            if self.fabric.room(peer) < GREETING_AT_MOST {
                continue;
            }
            incarnations_of(peer.node, &self.sessions)
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|other| self.end(other));
            self.callers.remove(&peer);
            // A transport that is missing here, or fails now, is declined: the session
            // uses the fabric.
            let end = end.and_then(|(transport, theirs)| {
                let words = words.as_mut().filter(|words| words.transport() == transport)?;
                self.closing.retain(|node| *node != peer.node);
                let mine = words.open(peer.node).ok()?;
                let is_tied = words.connect(peer.node, &theirs).is_ok();
                if !is_tied {
                    words.close(peer.node);
                }
                is_tied.then_some((transport, mine))
            });
            let is_welcome = self.apply(Input::Begun { with: peer, arrived }) && {
                let send =
                    |body: &[u8]| self.fabric.send(peer.node, kind::STATE_WELCOME, body).is_ok();
                welcome.write(end.as_ref(), send)
            };
            self.sessions.insert(peer, session.get());
            if end.is_some() {
                let stream = Stream::new(form, session.get(), false, now);
                self.streams.insert(peer, stream);
            }
            if !is_welcome {
                // The instance says hello again.
                self.refuse(peer);
            }
        }
    }

    fn speak(&mut self, mut words: Option<&mut (dyn ControlTransport + '_)>, now: u64) -> bool {
        let StateServer { refused, fabric, .. } = self;
        refused.retain(|peer, session| {
            fabric.peer(peer.node) == Some(*peer)
                && fabric.send(peer.node, kind::STATE_OVER, &session.to_be_bytes()).is_err()
        });
        let form = self.primary.server().form();
        let mut is_any = false;
        let sessions: Vec<(Peer, u32)> =
            self.sessions.iter().map(|(peer, session)| (*peer, *session)).collect();
        for (peer, session) in sessions {
            let StateServer { primary, fabric, streams, .. } = self;
            let is_waiting = primary.server().waiting(peer) > 0;
            let mut next = || primary.poll(peer).or_else(|| primary.acknowledge(peer));
            let is_sent = match streams.get_mut(&peer) {
                None => {
                    let room = fabric.room(peer);
                    let send = |record: &[u8]| fabric.send(peer.node, kind::STATE, record).is_ok();
                    carry(form, session, room, next, send)
                }
                Some(stream) => {
                    let sent = words.as_mut().and_then(|words| {
                        stream.send(&mut **words, peer.node, now, is_waiting, &mut next).ok()
                    });
                    is_any |= sent == Some(true);
                    sent.is_some()
                }
            };
            if !is_sent {
                self.refuse(peer);
            }
        }
        is_any
    }
}

/// The entries of this node.
fn incarnations_of<T>(node: NodeId, of: &BTreeMap<Peer, T>) -> impl Iterator<Item = Peer> + '_ {
    let all = Peer { node, incarnation: 0 }..=Peer { node, incarnation: u32::MAX };
    of.range(all).map(|(peer, _)| *peer)
}

fn reason_of(why: Refused) -> DropReason {
    match why {
        Refused::Unknown => DropReason::Fenced,
        Refused::OutOfStep => DropReason::Malformed,
        Refused::Full | Refused::Crowded => DropReason::QueueFull,
    }
}
