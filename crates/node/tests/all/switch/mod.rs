//! A switch alone, among peers that the test plays: a file for each subject.

mod bench;
mod claims;
mod deciding;
mod new_routes;
mod next_incarnation;
mod quarantine;
mod rates;
mod replies;
mod sources;

use bench::{Bench, SECOND, TIMEOUT, X, Y, Z, datagram, flagged, given};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::ClaimFlag::{self, Keyed};
use holdfast_node::message::{
    Claim, Control, Ended, Grant, Member, MemberState, Replay, RouteInfo, kind,
};
use holdfast_node::rules::{Rule, RuleSet};
use holdfast_node::switch::{Doubt, Route, Switch, SwitchConfig, SwitchLimits};
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::nsh::{self, Flags};
use holdfast_wire::selector::Selector;
use holdfast_wire::{DropReason, FlowKey, MemoryPool, NodeId, Packet, PacketPool};
use zerocopy::IntoBytes;
