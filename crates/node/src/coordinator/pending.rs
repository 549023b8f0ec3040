//! Messages that wait until the log is kept, and then for room in their channels.
//!
//! A view is not stored when it is sent: the queue only notes that the receiver is to
//! have the newest one. If much happens in a turn, as when a thousand runtimes join, each
//! receiver therefore gets a single view. The view keeps the place of the first note: a
//! message behind it (a sweep, say) comes behind a view that says at least as much. The
//! list of the dead for a switch's new incarnation is as new as its first view; otherwise
//! a runtime that died in between would be in neither.

use super::ledger::{Ledger, newer};
use super::memory::Memory;
use crate::channel::Fabric;
use crate::message::{Control, Member, Standing, kind};
use holdfast_wire::NodeId;

/// Messages that wait for room in one channel, views not counted. A living receiver
/// leaves its channel full for less time than that; further messages are dropped.
const LIMIT: usize = 4096;

enum Say {
    Message(Control),
    View,
    /// For a new incarnation of a switch: the dead that are being recovered, and the
    /// newest view.
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

    /// Queues a message for a node.
    pub(super) fn push(&mut self, (node, message): (NodeId, Control)) {
        self.list.push((node, Say::Message(message)));
    }

    /// Queues the state of the box for a manager, in place of an earlier one.
    pub(super) fn push_standing(&mut self, node: NodeId, standing: Standing) {
        self.list
            .retain(|(to, say)| *to != node || !matches!(say, Say::Message(Control::Standing(_))));
        self.push((node, Control::Standing(standing)));
    }

    /// Queues messages for nodes.
    pub(super) fn extend(&mut self, messages: impl IntoIterator<Item = (NodeId, Control)>) {
        messages.into_iter().for_each(|message| self.push(message));
    }

    /// Notes that a node is to have the newest view, once.
    pub(super) fn push_view(&mut self, node: NodeId) {
        let at = usize::from(node);
        if at >= self.views.len() {
            self.views.resize(at + 1, false);
        }
        if !core::mem::replace(&mut self.views[at], true) {
            self.list.push((node, Say::View));
        }
    }

    /// Notes that a new incarnation of a switch is to get the list of the dead, and the
    /// view behind it.
    pub(super) fn push_beginning(&mut self, switch: NodeId) {
        self.list.push((switch, Say::Beginning));
    }

    /// Drops all messages for this node.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.list.retain(|(to, _)| *to != node);
        if let Some(waits) = self.views.get_mut(usize::from(node)) {
            *waits = false;
        }
    }

    /// Moves messages to the channels as far as they have room. Returns the full
    /// channels, and how many messages were dropped.
    pub(super) fn send(&mut self, memory: &Memory, fabric: &mut Fabric) -> (Full, u64) {
        let mut full = Full::default();
        let mut too_many = 0;
        let mut encoded = Views::default();
        let Pending { list, views } = self;
        list.retain(|(node, say)| {
            let is_sent = !full.contains(*node)
                && match say {
                    Say::Message(message) => fabric.send_control(*node, message),
                    Say::View => {
                        fabric.send(*node, kind::CONTROL, encoded.of(*node, memory)).is_ok()
                    }
                    // Both messages, or both again later.
                    Say::Beginning => {
                        fabric.send_control(*node, &recovering(*node, memory))
                            && fabric.send(*node, kind::CONTROL, encoded.of(*node, memory)).is_ok()
                    }
                };
            if is_sent {
                if matches!(say, Say::View) {
                    views[usize::from(*node)] = false;
                }
                return false;
            }
            // Views and beginnings are bounded: one per node.
            let is_message = matches!(say, Say::Message(_));
            let is_cut = full.add(*node, is_message) > LIMIT && is_message;
            too_many += u64::from(is_cut);
            !is_cut
        });
        (full, too_many)
    }
}

/// Nodes whose channels are full.
#[derive(Default)]
pub(super) struct Full {
    /// By node, messages that wait there.
    waiting: Vec<Option<usize>>,
}

impl Full {
    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.waiting.get(usize::from(node)).is_some_and(Option::is_some)
    }

    /// Counts a message that waits for the node. Returns how many do.
    fn add(&mut self, node: NodeId, is_message: bool) -> usize {
        let at = usize::from(node);
        if at >= self.waiting.len() {
            self.waiting.resize(at + 1, None);
        }
        let waiting = self.waiting[at].get_or_insert(0);
        *waiting += usize::from(is_message);
        *waiting
    }
}

/// The dead that are being recovered, and the newest epoch of the switch's that is known
/// to have been given.
fn recovering(switch: NodeId, memory: &Memory) -> Control {
    let dead = memory
        .recoveries
        .iter()
        .filter(|recovery| recovery.is_open())
        .map(|recovery| recovery.failover.dead);
    let its = memory
        .ledgers
        .iter()
        .filter(|ledger| switch.switch_number() == Some(memory.switch_of(ledger.id.chain)));
    let epoch = its.filter_map(Ledger::newest_epoch).reduce(newer).unwrap_or(0);
    Control::Recovering { dead: dead.collect(), epoch }
}

/// The newest view as messages: the switches', and each virtual cluster's. A runtime
/// knows only its own cluster's members, and puts replicas and moves flows nowhere else.
#[derive(Default)]
struct Views(Vec<(Option<u16>, Vec<u8>)>);

impl Views {
    fn of(&mut self, node: NodeId, memory: &Memory) -> &[u8] {
        let place = if node.switch_number().is_some() { None } else { memory.at_node(node) };
        let cluster = place.map(|at| memory.places[at].member.cluster);
        let known = self.0.iter().position(|(of, _)| *of == cluster);
        let at = known.unwrap_or_else(|| {
            let is_meant =
                |member: &Member| cluster.is_none_or(|cluster| member.cluster == cluster);
            let members = memory.places.iter().map(|place| place.member).filter(is_meant).collect();
            let mut body = Vec::new();
            Control::View { version: memory.view, members }.encode(&mut body);
            self.0.push((cluster, body));
            self.0.len() - 1
        });
        &self.0[at].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::FabricConfig;
    use holdfast_protection::Peer;

    const ME: Peer = Peer { node: NodeId::new(1), incarnation: 1 };

    fn fabric() -> Fabric {
        Fabric::new(ME, FabricConfig::default())
    }

    /// Messages that wait for a node whose channel is full.
    fn waiting(pending: &Pending, node: NodeId) -> (usize, usize) {
        let of_node = || pending.list.iter().filter(|(to, _)| *to == node);
        let views = of_node().filter(|(_, say)| !matches!(say, Say::Message(_))).count();
        (of_node().count() - views, views)
    }

    #[test]
    fn a_receiver_gets_one_view_in_the_place_of_the_first() {
        let mut pending = Pending::default();
        for _ in 0..3 {
            pending.push_view(NodeId::new(16));
            pending.push((NodeId::new(16), Control::Settled { handled: 1 }));
            pending.push_view(NodeId::new(17));
        }
        assert_eq!(
            (waiting(&pending, NodeId::new(16)), waiting(&pending, NodeId::new(17))),
            ((3, 1), (0, 1))
        );
        assert!(matches!(pending.list[0], (NodeId::FIRST_RUNTIME, Say::View)));
        pending.forget(NodeId::new(16));
        pending.push_view(NodeId::new(16));
        assert_eq!(
            waiting(&pending, NodeId::new(16)),
            (0, 1),
            "what was forgotten can be said again"
        );
        let (full, too_many) = pending.send(&Memory::default(), &mut fabric());
        assert!(!full.contains(NodeId::new(16)) && too_many == 0 && pending.is_empty());
        pending.push_view(NodeId::new(16));
        assert_eq!(waiting(&pending, NodeId::new(16)), (0, 1), "and after it was sent");
    }

    /// A receiver is silent for long: views and a switch's beginning stay, of other
    /// messages only so many. Other receivers get theirs.
    #[test]
    fn what_is_too_much_for_one_is_cut_and_counted() {
        let (mut pending, mut fabric) = (Pending::default(), fabric());
        let long = Control::Returned {
            pool: crate::message::PoolId { chain: 0, function: 0, field: 0 },
            numbers: vec![7; 2000],
        };
        while fabric.send_control(NodeId::new(16), &long) {}
        for _ in 0..LIMIT + 5 {
            pending.push((NodeId::new(16), long.clone()));
            pending.push_view(NodeId::new(16));
        }
        pending.push((NodeId::new(17), Control::Settled { handled: 1 }));
        pending.push_beginning(NodeId::new(16));
        let (full, too_many) = pending.send(&Memory::default(), &mut fabric);
        assert_eq!((waiting(&pending, NodeId::new(16)), too_many), ((LIMIT, 2), 5));
        assert!(
            full.contains(NodeId::new(16))
                && !full.contains(NodeId::new(17))
                && waiting(&pending, NodeId::new(17)) == (0, 0)
        );
    }

    #[test]
    fn how_things_stand_is_said_once() {
        let mut pending = Pending::default();
        for view in 1..4 {
            pending.push((NodeId::new(3), Control::Settled { handled: view }));
            pending.push_standing(NodeId::new(3), Standing { view, ..Standing::default() });
            pending.push_standing(NodeId::new(4), Standing { view, ..Standing::default() });
        }
        assert_eq!(
            (waiting(&pending, NodeId::new(3)), waiting(&pending, NodeId::new(4))),
            ((4, 0), (1, 0))
        );
        assert!(
            matches!(&pending.list[4], (node, Say::Message(Control::Standing(standing))) if *node == NodeId::manager(1) && standing.view == 3)
        );
    }
}
