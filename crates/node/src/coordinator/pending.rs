//! Messages that wait until the log is kept, and then for room in their channels.
//!
//! A view is not written down before it leaves: what waits is that the receiver is to have the newest one. So of all that happens in a turn, as when a
//! thousand runtimes join, each receiver gets one view. It keeps the place of the first: what is said behind a view (a sweep, say) comes behind one that says
//! at least as much. What a new life of a switch is told of the dead is as new as its first view, or somebody who died in between would be in neither.

use super::ledger::{Ledger, newer};
use super::memory::Memory;
use crate::address::{NodeId, switch_number};
use crate::channel::Fabric;
use crate::message::{Control, Member, kind};

/// Messages that wait for room in a channel. Nobody who is there leaves its channel full for so long.
const LIMIT: usize = 4096;

enum Say {
    Message(Control),
    View,
    /// To a new life of a switch: who is being recovered from, and the newest view.
    Beginning,
}

/// See the module.
#[derive(Default)]
pub(super) struct Pending {
    list: Vec<(NodeId, Say)>,
    /// By node: its view waits.
    views: Vec<bool>,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// A message for a node.
    pub(super) fn push(&mut self, (node, message): (NodeId, Control)) {
        self.list.push((node, Say::Message(message)));
    }

    /// Messages for nodes.
    pub(super) fn extend(&mut self, messages: impl IntoIterator<Item = (NodeId, Control)>) {
        messages.into_iter().for_each(|message| self.push(message));
    }

    /// A node is to have the newest view, once.
    pub(super) fn push_view(&mut self, node: NodeId) {
        let at = usize::from(node);
        if at >= self.views.len() {
            self.views.resize(at + 1, false);
        }
        if !core::mem::replace(&mut self.views[at], true) {
            self.list.push((node, Say::View));
        }
    }

    /// A new life of a switch is to learn who is there now behind who was.
    pub(super) fn push_beginning(&mut self, switch: NodeId) {
        self.list.push((switch, Say::Beginning));
    }

    /// Nothing that waits for this node is to be said.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.list.retain(|(to, _)| *to != node);
        if let Some(waits) = self.views.get_mut(usize::from(node)) {
            *waits = false;
        }
    }

    /// Gives channels what they take. Returns those that are full.
    pub(super) fn send(&mut self, memory: &Memory, fabric: &mut Fabric) -> Vec<NodeId> {
        let mut full: Vec<NodeId> = Vec::new();
        let mut encoded = Views::default();
        let Pending { list, views } = self;
        list.retain(|(node, say)| {
            let is_sent = !full.contains(node)
                && match say {
                    Say::Message(message) => fabric.send_control(*node, message),
                    Say::View => fabric.send(*node, kind::CONTROL, encoded.of(*node, memory)).is_ok(),
                    // Both, or both again.
                    Say::Beginning => {
                        fabric.send_control(*node, &recovering(*node, memory))
                            && fabric.send(*node, kind::CONTROL, encoded.of(*node, memory)).is_ok()
                    }
                };
            if !is_sent {
                full.push(*node);
            } else if matches!(say, Say::View) {
                views[usize::from(*node)] = false;
            }
            !is_sent
        });
        if list.len() > LIMIT {
            list.truncate(LIMIT);
            views.fill(false);
            let left = list.iter().filter(|(_, say)| matches!(say, Say::View));
            left.for_each(|(node, _)| views[usize::from(*node)] = true);
        }
        full
    }
}

/// Whose flows are being recovered, and the newest epoch of the switch's that anybody is known to have had.
fn recovering(switch: NodeId, memory: &Memory) -> Control {
    let dead = memory.recoveries.iter().filter(|recovery| recovery.is_open()).map(|recovery| recovery.failover.dead);
    let its = memory.ledgers.iter().filter(|ledger| switch_number(switch) == Some(memory.switch_of(ledger.id.chain)));
    let epoch = its.filter_map(Ledger::newest_epoch).reduce(newer).unwrap_or(0);
    Control::Recovering { dead: dead.collect(), epoch }
}

/// The newest view as messages: the switches', and each virtual cluster's. A runtime knows those of its own cluster: it puts its replicas, and moves its
/// flows, nowhere else.
#[derive(Default)]
struct Views(Vec<(Option<u16>, Vec<u8>)>);

impl Views {
    fn of(&mut self, node: NodeId, memory: &Memory) -> &[u8] {
        let place = if switch_number(node).is_some() { None } else { memory.at_node(node) };
        let cluster = place.map(|at| memory.places[at].member.cluster);
        let known = self.0.iter().position(|(of, _)| *of == cluster);
        let at = known.unwrap_or_else(|| {
            let is_meant = |member: &Member| cluster.is_none_or(|cluster| member.cluster == cluster);
            let members = memory.places.iter().map(|place| place.member).filter(is_meant).collect();
            let mut body = Vec::new();
            Control::View { version: memory.view, members }.encode(&mut body);
            self.0.push((cluster, body));
            self.0.len() - 1
        });
        &self.0[at].1
    }
}
