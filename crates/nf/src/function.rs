//! The function trait, and the type-erased form in which a chain holds any function.

use crate::{
    Context, Direction, Expected, FlowEvent, FlowState, Holds, Opening, RateLimit, SharedState,
    StateField,
};
use holdfast_wire::selector::Prefix;
use holdfast_wire::zone::Zones;
use holdfast_wire::{DropReason, FlowKey, Packet};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use zerocopy::FromBytes;

/// The verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Passes to the next function, or out.
    Forward,
    /// Dropped for this reason.
    Drop(DropReason),
    /// As `Drop`, and the sender is told, as far as that is allowed: by a TCP reset, or
    /// by ICMP "administratively prohibited". The answer quotes the packet with the
    /// addresses and ports that it came in with, and leaves as a packet of the flow
    /// would. The answers per second are limited. The other end of a TCP connection is
    /// told too, by a reset in place of the segment.
    Reject(DropReason),
    /// Shared state that the function needs is on its way. The packet is parked, and the
    /// function is called with it again.
    Wait,
}

/// The verdict on a flow's first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open<F> {
    /// The flow exists from now on, with this state. The packet is then processed.
    Accept(F),
    /// No flow is opened; the packet is dropped for this reason.
    Drop(DropReason),
    /// As `Drop`, and the sender is told as with [`Verdict::Reject`].
    Reject(DropReason),
    /// As [`Verdict::Wait`].
    Wait,
}

/// A configuration that a function does not accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    /// The place in the function's configuration, such as `rules[2]`; empty for the
    /// whole.
    pub path: String,
    /// The text says what is wrong and what would be right.
    pub message: String,
    /// Byte offset inside the value at `path`, if that is text.
    pub offset: Option<usize>,
}

impl ConfigError {
    /// An error about the value at `path`.
    pub fn at(path: impl Into<String>, message: impl Into<String>) -> ConfigError {
        ConfigError { path: path.into(), message: message.into(), offset: None }
    }
}

/// A text file that a configuration names ([`NetworkFunction::FILES`]), with its content.
/// All processes and hosts of a box have the same one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextFile {
    /// The path as written in the configuration.
    pub path: String,
    /// The content.
    pub text: String,
}

/// An alert in the words of intrusion detection systems, for the operator's file of
/// alerts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// True if the packet was refused.
    pub is_blocked: bool,
    /// The generator's number.
    pub gid: u32,
    /// The rule's number.
    pub sid: u32,
    /// The rule's revision.
    pub rev: u32,
    /// The rule's text for people.
    pub signature: String,
    /// The rule's class.
    pub category: String,
    /// The file for its alerts.
    pub file: PathBuf,
}

/// A limit of the flows that one source address may have at a time. The switch enforces
/// it, because it sees every opening; a runtime sees its own flows only.
#[derive(Clone)]
pub struct SourceLimit {
    /// Flows per source address.
    pub flows: u32,
    /// True if a flow with this key, as its first packet comes in, counts. Must give the
    /// same for the same key, always.
    pub counts: Arc<dyn Fn(&FlowKey) -> bool + Send + Sync>,
}

/// A network function: its configuration, and how it treats packets.
///
/// A function has no state but `&self`, which never changes, so a failure loses nothing
/// of it.
pub trait NetworkFunction: Send + Sync + Sized + 'static {
    /// The name in configuration files.
    const NAME: &'static str;
    /// Keys of the configuration that list files. The function gets a [`TextFile`] in
    /// place of each path.
    const FILES: &'static [&'static str] = &[];
    /// Names of a flow's values, in the order of [`values`](Self::values).
    const VALUES: &'static [&'static str] = &[];
    /// True if `status` ranks the flows of a chain with this function by their bytes.
    const RANKS: bool = false;
    /// The configuration below the name.
    type Config: DeserializeOwned + JsonSchema;
    /// State of one flow, for both directions, and its holdings of shared state.
    type Flow: FlowState + Holds<Self::Shared>;
    /// State that all flows share.
    type Shared: SharedState;

    /// Checks the configuration and makes the function.
    ///
    /// # Errors
    /// The error says what is wrong, where, and what would be right.
    fn new(config: Self::Config) -> Result<Self, ConfigError>;

    /// As [`new`](Self::new), with the names of the box's ports, for a function whose
    /// configuration has selectors.
    ///
    /// # Errors
    /// As `new`.
    fn with_zones(config: Self::Config, _zones: &Zones) -> Result<Self, ConfigError> {
        Self::new(config)
    }

    /// The initial shared state: made once for every chain that has the function.
    fn shared(&self) -> Self::Shared;

    /// Decides about the first packet of a flow, always in forward direction, as the
    /// functions before this one left it. [Holdings](crate::Leased) in the accepted state
    /// are the flow's until it ends, wherever it is served; other leases go back.
    fn open(
        &self,
        packet: &Packet,
        shared: &mut Self::Shared,
        cx: &mut Opening<'_>,
    ) -> Open<Self::Flow>;

    /// Processes a packet of a flow, the first included; `cx.direction()` tells its
    /// direction.
    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Self::Flow,
        shared: &mut Self::Shared,
        cx: &mut Context,
    ) -> Verdict;

    /// The flow has ended. Its holdings have gone back already.
    fn expire(&self, _flow: &Self::Flow, _shared: &mut Self::Shared) {}

    /// The flow's state may lack its latest `packets`, of both directions together: a
    /// weak protection recovered it. Only a function that refuses packets because of
    /// earlier ones needs to act.
    fn outdated(&self, _flow: &mut Self::Flow, _packets: u32) {}

    /// The sequence numbers that this direction's receiver may expect next, if the
    /// function follows the TCP connection.
    fn expected(&self, _flow: &Self::Flow, _direction: Direction) -> Option<Expected> {
        None
    }

    /// The flow's state in a word, shown by `holdfast flows`.
    fn describe(&self, _flow: &Self::Flow) -> &'static str {
        ""
    }

    /// Appends the flow's values, one for each of [`VALUES`](Self::VALUES), and `None`
    /// for one that is not known. `holdfast flows` shows them; no packet waits for this.
    fn values(&self, _flow: &Self::Flow, _into: &mut Vec<Option<u64>>) {}

    /// Explains, for people, the decision about a traced packet: without `flow`, about
    /// letting a flow begin with it; otherwise about this packet of the flow.
    fn explain(&self, _packet: &Packet, _flow: Option<&Self::Flow>) -> String {
        String::new()
    }

    /// Addresses for which the box must answer because of this function (a NAT pool, a
    /// virtual address).
    fn owned_addresses(&self) -> Vec<Prefix> {
        Vec::new()
    }

    /// The limit of flows per source, if any.
    fn source_limit(&self) -> Option<SourceLimit> {
        None
    }

    /// Rates that flows share, in the order in which a packet has to conform to them.
    fn rate_limits(&self) -> Vec<RateLimit> {
        Vec::new()
    }

    /// Bytes by which the function may lengthen a frame, with a tag or a header: frames
    /// between hosts must have room for them.
    fn added_bytes(&self) -> usize {
        0
    }

    /// VLANs into which the function may put packets that leave: a port of the chain must
    /// have them among its `flow_vlans`.
    fn vlans(&self) -> BTreeSet<u16> {
        BTreeSet::new()
    }

    /// The alert behind a note with this number in the function's [`Log`](crate::Log), if
    /// alerts are wanted in a file.
    fn alert(&self, _about: u32) -> Option<Alert> {
        None
    }

    /// Warnings about a configuration that is accepted, but doubtful.
    fn warnings(&self) -> Vec<ConfigError> {
        Vec::new()
    }
}

/// Size, alignment and identity of one function's flow state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLayout {
    /// Bytes.
    pub size: usize,
    /// Bytes.
    pub align: usize,
    /// [`FlowState::LAYOUT`].
    pub hash: u64,
    /// [`FlowState::FIELDS`].
    pub fields: &'static [StateField],
}

impl StateLayout {
    fn of<F: FlowState>() -> StateLayout {
        const { assert!(!core::mem::needs_drop::<F>(), "flow state is overwritten, and never dropped") };
        StateLayout {
            size: size_of::<F>(),
            align: align_of::<F>(),
            hash: <F as FlowState>::LAYOUT,
            fields: <F as FlowState>::FIELDS,
        }
    }
}

/// Any configured function, without its shared state: it never changes, and the chains of
/// all runtimes are made of it. [`Built`] is its only implementation.
pub trait Configured: Send + Sync {
    /// [`NetworkFunction::NAME`].
    fn name(&self) -> &'static str;
    /// The layout of its flow state.
    fn layout(&self) -> StateLayout;
    /// [`NetworkFunction::owned_addresses`].
    fn owned_addresses(&self) -> Vec<Prefix>;
    /// [`NetworkFunction::source_limit`].
    fn source_limit(&self) -> Option<SourceLimit>;
    /// [`NetworkFunction::rate_limits`].
    fn rate_limits(&self) -> Vec<RateLimit>;
    /// [`NetworkFunction::added_bytes`].
    fn added_bytes(&self) -> usize;
    /// [`NetworkFunction::vlans`].
    fn vlans(&self) -> BTreeSet<u16>;
    /// [`NetworkFunction::alert`].
    fn alert(&self, about: u32) -> Option<Alert>;
    /// [`NetworkFunction::warnings`].
    fn warnings(&self) -> Vec<ConfigError>;
    /// [`NetworkFunction::VALUES`].
    fn values(&self) -> &'static [&'static str];
    /// [`NetworkFunction::RANKS`].
    fn ranks(&self) -> bool;
    /// Makes the function with shared state of its own.
    fn bind(&self) -> Box<dyn Function>;
}

/// A function made from its configuration.
pub struct Built<N>(Arc<N>);

impl<N: NetworkFunction> Built<N> {
    /// See [`NetworkFunction::with_zones`].
    ///
    /// # Errors
    /// As [`NetworkFunction::with_zones`].
    pub fn new(config: N::Config, zones: &Zones) -> Result<Built<N>, ConfigError> {
        N::with_zones(config, zones).map(|function| Built(Arc::new(function)))
    }
}

impl<N: NetworkFunction> Configured for Built<N> {
    fn name(&self) -> &'static str {
        N::NAME
    }

    fn layout(&self) -> StateLayout {
        StateLayout::of::<N::Flow>()
    }

    fn owned_addresses(&self) -> Vec<Prefix> {
        self.0.owned_addresses()
    }

    fn source_limit(&self) -> Option<SourceLimit> {
        self.0.source_limit()
    }

    fn rate_limits(&self) -> Vec<RateLimit> {
        self.0.rate_limits()
    }

    fn added_bytes(&self) -> usize {
        self.0.added_bytes()
    }

    fn vlans(&self) -> BTreeSet<u16> {
        self.0.vlans()
    }

    fn alert(&self, about: u32) -> Option<Alert> {
        self.0.alert(about)
    }

    fn warnings(&self) -> Vec<ConfigError> {
        self.0.warnings()
    }

    fn values(&self) -> &'static [&'static str] {
        N::VALUES
    }

    fn ranks(&self) -> bool {
        N::RANKS
    }

    fn bind(&self) -> Box<dyn Function> {
        Box::new(Bound { shared: self.0.shared(), function: self.0.clone() })
    }
}

/// Any function together with its shared state, as a [`Chain`](crate::Chain) holds it.
/// [`Bound`] is its only implementation.
///
/// The `flow` arguments are exactly `layout().size` bytes, aligned to `layout().align`.
pub trait Function: Send {
    /// [`NetworkFunction::NAME`].
    fn name(&self) -> &'static str;
    /// The layout of its flow state.
    fn layout(&self) -> StateLayout;
    /// [`NetworkFunction::open`]; writes the state on `Accept`.
    fn open(&mut self, packet: &Packet, flow: &mut [u8], cx: &mut Context) -> Open<()>;
    /// [`NetworkFunction::process`].
    fn process(&mut self, packet: &mut Packet, flow: &mut [u8], cx: &mut Context) -> Verdict;
    /// Ends the flow: gives back its holdings, and tells the function
    /// ([`NetworkFunction::expire`]).
    fn expire(&mut self, flow: &mut [u8]);
    /// Takes in a flow that has come here, with its holdings.
    fn adopt(&mut self, flow: &mut [u8]);
    /// Lets a flow go that has left, with its holdings.
    fn forget(&mut self, flow: &mut [u8]);
    /// [`NetworkFunction::outdated`].
    fn outdated(&mut self, flow: &mut [u8], packets: u32);
    /// [`NetworkFunction::expected`].
    fn expected(&self, flow: &[u8], direction: Direction) -> Option<Expected>;
    /// [`NetworkFunction::describe`].
    fn describe(&self, flow: &[u8]) -> &'static str;
    /// [`NetworkFunction::values`].
    fn values(&self, flow: &[u8], into: &mut Vec<Option<u64>>);
    /// [`NetworkFunction::RANKS`].
    fn ranks(&self) -> bool;
    /// [`NetworkFunction::explain`].
    fn explain(&self, packet: &Packet, flow: Option<&[u8]>) -> String;
    /// The shared state, which the runtime connects to its backends.
    fn shared(&mut self) -> &mut dyn SharedState;
}

/// A function with its shared state.
pub struct Bound<N: NetworkFunction> {
    function: Arc<N>,
    shared: N::Shared,
}

impl<N: NetworkFunction> Bound<N> {
    /// Makes the function from its configuration.
    ///
    /// # Errors
    /// As [`NetworkFunction::new`].
    pub fn new(config: N::Config) -> Result<Bound<N>, ConfigError> {
        let function = N::new(config)?;
        Ok(Bound { shared: function.shared(), function: Arc::new(function) })
    }
}

/// A view of flow state. The chain hands out exactly the bytes of the layout, aligned, so
/// this cannot fail.
#[inline]
fn view<F: FlowState>(bytes: &mut [u8]) -> &mut F {
    match F::mut_from_bytes(bytes) {
        Ok(flow) => flow,
        Err(_) => panic!("the chain lays flow states out by their own size and alignment"),
    }
}

/// Gives back, however `open` ends (by a panic too), leases that the flow does not have.
struct Settling<'a, S: SharedState>(&'a mut S);

impl<S: SharedState> Drop for Settling<'_, S> {
    #[inline]
    fn drop(&mut self) {
        self.0.settle();
    }
}

impl<N: NetworkFunction> Function for Bound<N> {
    fn name(&self) -> &'static str {
        N::NAME
    }

    fn layout(&self) -> StateLayout {
        StateLayout::of::<N::Flow>()
    }

    #[inline]
    fn open(&mut self, packet: &Packet, flow: &mut [u8], cx: &mut Context) -> Open<()> {
        let opening = Settling(&mut self.shared);
        match self.function.open(packet, opening.0, &mut Opening::new(cx)) {
            Open::Accept(state) => {
                state.follow(opening.0, FlowEvent::Accepted);
                *view(flow) = state;
                Open::Accept(())
            }
            Open::Drop(reason) => Open::Drop(reason),
            Open::Reject(reason) => Open::Reject(reason),
            Open::Wait => Open::Wait,
        }
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet, flow: &mut [u8], cx: &mut Context) -> Verdict {
        self.function.process(packet, view(flow), &mut self.shared, cx)
    }

    fn expire(&mut self, flow: &mut [u8]) {
        let flow = view::<N::Flow>(flow);
        // Before `expire`, because the function may panic.
        flow.follow(&mut self.shared, FlowEvent::Ended);
        self.function.expire(flow, &mut self.shared);
    }

    fn adopt(&mut self, flow: &mut [u8]) {
        view::<N::Flow>(flow).follow(&mut self.shared, FlowEvent::Arrived);
    }

    fn forget(&mut self, flow: &mut [u8]) {
        view::<N::Flow>(flow).follow(&mut self.shared, FlowEvent::Departed);
    }

    fn outdated(&mut self, flow: &mut [u8], packets: u32) {
        self.function.outdated(view(flow), packets);
    }

    fn expected(&self, flow: &[u8], direction: Direction) -> Option<Expected> {
        let flow = N::Flow::ref_from_bytes(flow).ok()?;
        self.function.expected(flow, direction)
    }

    fn describe(&self, flow: &[u8]) -> &'static str {
        match N::Flow::ref_from_bytes(flow) {
            Ok(flow) => self.function.describe(flow),
            Err(_) => "",
        }
    }

    fn values(&self, flow: &[u8], into: &mut Vec<Option<u64>>) {
        let all = into.len() + N::VALUES.len();
        if let Ok(flow) = N::Flow::ref_from_bytes(flow) {
            self.function.values(flow, into);
        }
        into.resize(all, None);
    }

    fn ranks(&self) -> bool {
        N::RANKS
    }

    fn explain(&self, packet: &Packet, flow: Option<&[u8]>) -> String {
        self.function.explain(packet, flow.and_then(|flow| N::Flow::ref_from_bytes(flow).ok()))
    }

    fn shared(&mut self) -> &mut dyn SharedState {
        &mut self.shared
    }
}
