//! The function trait, and the form in which a chain holds any function.

use crate::{Context, Direction, Expected, FlowState, SharedState};
use holdfast_wire::selector::Prefix;
use holdfast_wire::zone::Zones;
use holdfast_wire::{DropReason, FlowKey, Packet};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use zerocopy::FromBytes;

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// On to the next function, or out.
    Forward,
    /// Not further, for this reason.
    Drop(DropReason),
    /// As `Drop`, and whoever sent the packet is told, as far as that is allowed: by a TCP reset, or by ICMP
    /// "administratively prohibited". The answer quotes the packet with the addresses and ports that it came
    /// in with, and leaves as a packet of the flow would. There are so many answers per second and no more.
    /// The other end of a TCP connection that this ends is told, too: by a reset in place of the segment.
    Reject(DropReason),
    /// Not now: shared state that it needs is on its way. The packet is parked and this function is called with it again.
    Wait,
}

/// What becomes of a flow's first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open<F> {
    /// The flow exists from now on, with this state; the packet is then processed.
    Accept(F),
    /// There is no such flow; the packet is dropped for this reason.
    Drop(DropReason),
    /// As `Drop`, and whoever sent the packet is told: as [`Verdict::Reject`].
    Reject(DropReason),
    /// As [`Verdict::Wait`].
    Wait,
}

/// A configuration that a function does not accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    /// Where in the function's configuration, as in `rules[2]`; empty for the whole.
    pub path: String,
    /// What is wrong and what would be right.
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

/// How many flows one source address may have at a time, where a function limits that.
/// The switch enforces the limit, because it sees every opening; a runtime sees its own
/// flows only.
#[derive(Clone)]
pub struct SourceLimit {
    /// Flows per source address.
    pub flows: u32,
    /// A flow with this key, as its first packet comes in, is one of them. The same for the same key, always.
    pub counts: Arc<dyn Fn(&FlowKey) -> bool + Send + Sync>,
}

/// A network function: configuration, and what it does with packets.
///
/// `&self` is all that it keeps; there is nowhere to hide state, so there is nothing to forget when it fails.
pub trait NetworkFunction: Send + Sync + Sized + 'static {
    /// The name in configuration files.
    const NAME: &'static str;
    /// What the operator writes below the name.
    type Config: DeserializeOwned + JsonSchema;
    /// What is remembered of one flow, for both directions.
    type Flow: FlowState;
    /// What flows share.
    type Shared: SharedState;

    /// Checks the configuration and makes the function and its shared state.
    ///
    /// # Errors
    /// What is wrong, where, and what would be right.
    fn new(config: Self::Config) -> Result<(Self, Self::Shared), ConfigError>;

    /// As [`new`](Self::new), where the ports of the box have names: for a function whose configuration has selectors, which may name them.
    ///
    /// # Errors
    /// As `new`.
    fn with_zones(config: Self::Config, _zones: &Zones) -> Result<(Self, Self::Shared), ConfigError> {
        Self::new(config)
    }

    /// The first packet of a flow, always in forward direction, as the functions before this one left it.
    fn open(&self, packet: &Packet, shared: &mut Self::Shared, cx: &mut Context) -> Open<Self::Flow>;

    /// Every packet of a flow, the first included; `cx.direction()` says which way it goes.
    fn process(&self, packet: &mut Packet, flow: &mut Self::Flow, shared: &mut Self::Shared, cx: &mut Context) -> Verdict;

    /// The flow has ended: give back what it holds of the shared state.
    fn expire(&self, _flow: &mut Self::Flow, _shared: &mut Self::Shared) {}

    /// The flow leaves for another runtime, alive: what it holds of the shared state goes with it.
    fn migrate_out(&self, _flow: &mut Self::Flow, _shared: &mut Self::Shared) {}

    /// The flow has come from another runtime, alive.
    fn migrate_in(&self, flow: &mut Self::Flow, shared: &mut Self::Shared) {
        self.recover(flow, shared);
    }

    /// The flow has come here because its runtime failed: adopt what it holds of the shared state.
    fn recover(&self, _flow: &mut Self::Flow, _shared: &mut Self::Shared) {}

    /// What is known of the flow may lack its latest `packets`, of both directions together: a weak protection brought it back. Called after
    /// [`recover`](Self::recover). Only a function that refuses what does not follow from what it has seen needs to do anything.
    fn outdated(&self, _flow: &mut Self::Flow, _packets: u32) {}

    /// The sequence numbers that the receiver of this direction may expect next, of a TCP
    /// connection that the function follows.
    fn expected(&self, _flow: &Self::Flow, _direction: Direction) -> Option<Expected> {
        None
    }

    /// One word for the flow's state, shown by `holdfast flows`.
    fn describe(&self, _flow: &Self::Flow) -> &'static str {
        ""
    }

    /// Explains, for people, the decision about a traced packet: without `flow`, about
    /// letting a flow begin with it; otherwise about this packet of the flow.
    fn explain(&self, _packet: &Packet, _flow: Option<&Self::Flow>) -> String {
        String::new()
    }

    /// Addresses that the box must answer for because of this function (a NAT pool, a virtual address).
    fn owned_addresses(&self) -> Vec<Prefix> {
        Vec::new()
    }

    /// How many flows a source may have; without it, as many as it opens.
    fn source_limit(&self) -> Option<SourceLimit> {
        None
    }

    /// Bytes by which the function may lengthen a frame, a tag or a header say: what carries frames between hosts must have room for them.
    fn added_bytes(&self) -> usize {
        0
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
}

/// Any function together with its shared state: what a [`Chain`](crate::Chain) holds. [`Bound`] is its only implementation.
///
/// The `flow` arguments are exactly `layout().size` bytes, aligned to `layout().align`.
pub trait Function: Send {
    /// [`NetworkFunction::NAME`].
    fn name(&self) -> &'static str;
    /// Of its flow state.
    fn layout(&self) -> StateLayout;
    /// [`NetworkFunction::open`]; writes the state on `Accept`.
    fn open(&mut self, packet: &Packet, flow: &mut [u8], cx: &mut Context) -> Open<()>;
    /// [`NetworkFunction::process`].
    fn process(&mut self, packet: &mut Packet, flow: &mut [u8], cx: &mut Context) -> Verdict;
    /// [`NetworkFunction::expire`].
    fn expire(&mut self, flow: &mut [u8]);
    /// [`NetworkFunction::migrate_out`].
    fn migrate_out(&mut self, flow: &mut [u8]);
    /// [`NetworkFunction::migrate_in`].
    fn migrate_in(&mut self, flow: &mut [u8]);
    /// [`NetworkFunction::recover`].
    fn recover(&mut self, flow: &mut [u8]);
    /// [`NetworkFunction::outdated`].
    fn outdated(&mut self, flow: &mut [u8], packets: u32);
    /// [`NetworkFunction::expected`].
    fn expected(&self, flow: &[u8], direction: Direction) -> Option<Expected>;
    /// [`NetworkFunction::describe`].
    fn describe(&self, flow: &[u8]) -> &'static str;
    /// [`NetworkFunction::explain`].
    fn explain(&self, packet: &Packet, flow: Option<&[u8]>) -> String;
    /// [`NetworkFunction::owned_addresses`].
    fn owned_addresses(&self) -> Vec<Prefix>;
    /// [`NetworkFunction::source_limit`].
    fn source_limit(&self) -> Option<SourceLimit>;
    /// [`NetworkFunction::added_bytes`].
    fn added_bytes(&self) -> usize;
    /// Its shared state, for the runtime, which connects it to where it lives.
    fn shared(&mut self) -> &mut dyn SharedState;
}

/// A function with its shared state.
pub struct Bound<N: NetworkFunction> {
    function: N,
    shared: N::Shared,
}

impl<N: NetworkFunction> Bound<N> {
    /// Makes the function from its configuration.
    ///
    /// # Errors
    /// What [`NetworkFunction::new`] says.
    pub fn new(config: N::Config) -> Result<Bound<N>, ConfigError> {
        let (function, shared) = N::new(config)?;
        Ok(Bound { function, shared })
    }

    /// The same where ports have names.
    ///
    /// # Errors
    /// What [`NetworkFunction::with_zones`] says.
    pub fn with_zones(config: N::Config, zones: &Zones) -> Result<Bound<N>, ConfigError> {
        let (function, shared) = N::with_zones(config, zones)?;
        Ok(Bound { function, shared })
    }
}

/// A view of flow state. The chain hands out exactly the bytes of the layout, aligned, so this cannot fail.
#[inline]
fn view<F: FlowState>(bytes: &mut [u8]) -> &mut F {
    match F::mut_from_bytes(bytes) {
        Ok(flow) => flow,
        Err(_) => panic!("the chain lays flow states out by their own size and alignment"),
    }
}

impl<N: NetworkFunction> Function for Bound<N> {
    fn name(&self) -> &'static str {
        N::NAME
    }

    fn layout(&self) -> StateLayout {
        StateLayout { size: size_of::<N::Flow>(), align: align_of::<N::Flow>(), hash: N::Flow::LAYOUT }
    }

    #[inline]
    fn open(&mut self, packet: &Packet, flow: &mut [u8], cx: &mut Context) -> Open<()> {
        match self.function.open(packet, &mut self.shared, cx) {
            Open::Accept(state) => {
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
        self.function.expire(view(flow), &mut self.shared);
    }

    fn migrate_out(&mut self, flow: &mut [u8]) {
        self.function.migrate_out(view(flow), &mut self.shared);
    }

    fn migrate_in(&mut self, flow: &mut [u8]) {
        self.function.migrate_in(view(flow), &mut self.shared);
    }

    fn recover(&mut self, flow: &mut [u8]) {
        self.function.recover(view(flow), &mut self.shared);
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

    fn explain(&self, packet: &Packet, flow: Option<&[u8]>) -> String {
        self.function.explain(packet, flow.and_then(|flow| N::Flow::ref_from_bytes(flow).ok()))
    }

    fn owned_addresses(&self) -> Vec<Prefix> {
        self.function.owned_addresses()
    }

    fn source_limit(&self) -> Option<SourceLimit> {
        self.function.source_limit()
    }

    fn added_bytes(&self) -> usize {
        self.function.added_bytes()
    }

    fn shared(&mut self) -> &mut dyn SharedState {
        &mut self.shared
    }
}
