//! A list of statistics, at the server: numbers of which every instance has a part.
//!
//! Theory of operation (RESCue, sections III and IV). An instance says how its own part
//! of a number has changed
//! ([`Opcode::UpdateStatistics`](crate::Opcode::UpdateStatistics),
//! [`Opcode::LowerStatistics`](crate::Opcode::LowerStatistics)), and its
//! [link](crate::Link) makes sure that each change counts once. Parts are kept by
//! instance, because an instance may die:
//!
//! - *Counters* only grow. The total keeps what a dead instance has counted, for ever.
//! - A *gauge* says how much there is now. A dead instance's part stays until its
//!   recovery is over, like its indexes. By then the instances with its flows have
//!   counted them in their own parts (`Chain::adopt`), and have said so
//!   ahead of their answer to the roll call. Between a death and the end of its recovery
//!   a flow may be counted twice, or be counted and lost already; afterwards the total is
//!   the sum of the living instances' parts.
//! - A moving flow changes two parts, each by its own instance's messages. Meanwhile it
//!   may count twice, or not at all.
//! - A lost session changes nothing: the link sends again what had not arrived, and only
//!   that.
//! - The next incarnation of an instance begins at 0; the earlier one is dead.
//! - A server that remembers nothing begins at 0. Instances that meet it send all of
//!   their parts, so the gauges of the living are known again at once. Counts of dead
//!   instances alone are lost with the server that knew them. The gauge part of a dead
//!   instance whose recovery is not over is lost too; others are about to count it.
//!
//! Changes that an instance had not sent when it died are lost: it sends them every few
//! milliseconds.
//!
//! Functions read gauges. With each time input the server tells each instance the sum of
//! all others' parts of an item that has changed: the latest value only, in at most half
//! of its link. An instance knows its own part better.
//!
//! Numbers have 64 bits, with a sign. Sums wrap around: an instance that sends nonsense
//! spoils its totals and nothing else.
//!
//! In: changes by instances; instances that join, die and are released. Out: totals, and
//! values to be told. The same inputs give the same outputs.

use holdfast_wire::Peer;
use holdfast_wire::fault::{Fault, is_planted};
use std::collections::{BTreeMap, VecDeque};

/// An instance's part of the list, and what it was told of the others.
#[derive(Debug, Clone)]
struct Instance {
    part: Vec<i64>,
    /// The values that it was told. Empty for counters and for the dead, which are told
    /// nothing.
    told: Vec<i64>,
    /// Numbers that may differ from what it was told, each once, in the order in which
    /// they began to.
    untold: VecDeque<u32>,
    is_untold: Vec<bool>,
}

impl Instance {
    fn note(&mut self, index: usize) -> bool {
        let is_new = self
            .is_untold
            .get_mut(index)
            .is_some_and(|is_untold| !core::mem::replace(is_untold, true));
        if is_new {
            self.untold.push_back(index as u32);
        }
        is_new
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Statistics {
    is_gauge: bool,
    totals: Vec<i64>,
    /// Living instances, and dead ones that are not released.
    instances: BTreeMap<Peer, Instance>,
    /// Values that instances may have to be told, over all instances.
    untold: usize,
}

impl Statistics {
    /// A list of `size` numbers, all 0: a gauge, or counters.
    pub fn new(size: u32, is_gauge: bool) -> Statistics {
        let totals = vec![0; size as usize];
        Statistics { is_gauge, totals, instances: BTreeMap::new(), untold: 0 }
    }

    /// True for a gauge, false for counters.
    pub fn is_gauge(&self) -> bool {
        self.is_gauge
    }

    /// The totals over all instances.
    pub fn totals(&self) -> &[i64] {
        &self.totals
    }

    /// Each instance's part, including dead ones that are not released.
    pub fn parts(&self) -> impl Iterator<Item = (Peer, &[i64])> + '_ {
        self.instances.iter().map(|(peer, instance)| (*peer, instance.part.as_slice()))
    }

    /// True if an instance has to be told something.
    pub fn has_untold(&self) -> bool {
        self.untold > 0
    }

    /// Adds an instance, whose part is 0 and which was told nothing.
    pub(crate) fn join(&mut self, peer: Peer) {
        let len = self.totals.len();
        let told = if self.is_gauge { len } else { 0 };
        let instance = Instance {
            part: vec![0; len],
            told: vec![0; told],
            untold: VecDeque::new(),
            is_untold: vec![false; told],
        };
        let instance = self.instances.entry(peer).or_insert(instance);
        for (index, _) in self.totals.iter().enumerate().filter(|(_, total)| **total != 0) {
            self.untold += usize::from(instance.note(index));
        }
    }

    /// Notes that all instances but `except` may have to be told this number.
    fn note_others(&mut self, except: Peer, index: usize) {
        for (_, instance) in self.instances.iter_mut().filter(|(peer, _)| **peer != except) {
            self.untold += usize::from(instance.note(index));
        }
    }

    /// Changes an instance's part of a number. False, without a change, if number or
    /// instance are unknown.
    pub(crate) fn change(&mut self, by: Peer, index: u32, change: i64) -> bool {
        let at = index as usize;
        let part = self.instances.get_mut(&by).and_then(|instance| instance.part.get_mut(at));
        let (Some(part), Some(total)) = (part, self.totals.get_mut(at)) else { return false };
        *part = part.wrapping_add(change);
        *total = total.wrapping_add(change);
        self.note_others(by, at);
        true
    }

    /// The instance is dead: its part stays for now, and it is told nothing any more.
    pub(crate) fn fence(&mut self, peer: Peer) {
        if let Some(instance) = self.instances.get_mut(&peer) {
            self.untold -= instance.untold.len();
            (instance.told, instance.is_untold, instance.untold) =
                (Vec::new(), Vec::new(), VecDeque::new());
        }
    }

    /// Removes instances whose recovery is over. Their parts of a gauge are others' now.
    pub(crate) fn release(&mut self, dead: &[Peer]) {
        for peer in dead {
            self.fence(*peer);
            let Some(instance) = self
                .instances
                .remove(peer)
                .filter(|_| self.is_gauge && !is_planted(Fault::KeepsPartsOfTheDead))
            else {
                continue;
            };
            for (index, part) in
                instance.part.into_iter().enumerate().filter(|(_, part)| *part != 0)
            {
                self.totals[index] = self.totals[index].wrapping_sub(part);
                self.note_others(*peer, index);
            }
        }
    }

    /// The value that this instance is told: a counter's total; of a gauge, the sum of
    /// all others' parts.
    pub(crate) fn told_to(&self, peer: Peer, index: u32) -> Option<i64> {
        let total = self.totals.get(index as usize)?;
        let part = self
            .instances
            .get(&peer)
            .and_then(|instance| instance.part.get(index as usize))
            .filter(|_| self.is_gauge);
        Some(total.wrapping_sub(part.copied().unwrap_or(0)))
    }

    /// The next number that this instance is to be told: its value differs from the last
    /// one told.
    pub(crate) fn poll_untold(&mut self, peer: Peer) -> Option<(u32, i64)> {
        let Statistics { totals, instances, untold, .. } = self;
        let instance = instances.get_mut(&peer)?;
        while let Some(index) = instance.untold.pop_front() {
            *untold -= 1;
            let at = index as usize;
            instance.is_untold[at] = false;
            let others = totals[at].wrapping_sub(instance.part[at]);
            if core::mem::replace(&mut instance.told[at], others) != others {
                return Some((index, others));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::NodeId;
    use proptest::prelude::*;

    const A: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
    const B: Peer = Peer { node: NodeId::new(17), incarnation: 1 };
    const C: Peer = Peer { node: NodeId::new(18), incarnation: 1 };

    fn list(is_gauge: bool) -> Statistics {
        let mut list = Statistics::new(2, is_gauge);
        [A, B, C].into_iter().for_each(|peer| list.join(peer));
        list
    }

    fn untold(list: &mut Statistics, peer: Peer) -> Vec<(u32, i64)> {
        core::iter::from_fn(|| list.poll_untold(peer)).collect()
    }

    /// Each is told what the others have, once, and only the latest.
    #[test]
    fn everybody_hears_of_the_others() {
        let mut list = list(true);
        for (peer, index, change) in [(A, 0, 3), (A, 0, 2), (B, 0, 1), (B, 1, -4)] {
            assert!(list.change(peer, index, change));
        }
        assert!(!list.change(A, 2, 1) && !list.change(Peer { incarnation: 2, ..A }, 0, 1));
        assert_eq!(list.totals(), [6, -4]);
        assert_eq!(
            [A, B, C].map(|peer| untold(&mut list, peer)),
            [vec![(0, 1), (1, -4)], vec![(0, 5)], vec![(0, 6), (1, -4)]]
        );
        assert!(!list.has_untold());
        list.change(A, 1, 5);
        list.change(A, 1, -5);
        assert!(list.has_untold());
        assert_eq!(untold(&mut list, C), [], "it is as it was");
        let late = Peer { node: NodeId::new(19), incarnation: 1 };
        list.join(late);
        assert_eq!(untold(&mut list, late), [(0, 6), (1, -4)]);
        assert_eq!((list.told_to(B, 1), list.told_to(B, 2)), (Some(0), None));
    }

    /// A dead instance's part of a gauge stays until it is released; its counts stay for
    /// ever.
    #[test]
    fn what_the_dead_had_goes_when_others_have_it() {
        let mut gauge = list(true);
        gauge.change(A, 0, 5);
        gauge.change(B, 0, 2);
        untold(&mut gauge, C);
        gauge.fence(A);
        assert_eq!(untold(&mut gauge, A), []);
        assert_eq!(gauge.totals(), [7, 0]);
        gauge.change(C, 0, 5);
        gauge.release(&[A, Peer { node: NodeId::new(99), incarnation: 1 }]);
        assert_eq!(gauge.totals(), [7, 0]);
        assert_eq!([B, C].map(|peer| untold(&mut gauge, peer)), [vec![(0, 5)], vec![(0, 2)]]);
        assert!(!gauge.has_untold());
        let mut counters = list(false);
        counters.change(A, 1, 5);
        counters.change(B, 1, 1);
        counters.fence(A);
        counters.release(&[A]);
        assert_eq!((counters.totals(), counters.told_to(B, 1)), (&[0, 6][..], Some(6)));
        assert!(
            !counters.has_untold() && untold(&mut counters, B).is_empty(),
            "nobody reads counters"
        );
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Join(u16),
        Change(u16, u32, i64),
        Die(u16),
        GetOver(u16),
        Tell(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        let node = || 0u16..4;
        let change = prop_oneof![8 => -5i64..6, 1 => any::<i64>()];
        prop_oneof![
            2 => node().prop_map(Step::Join),
            8 => (node(), 0u32..3, change).prop_map(|(node, index, change)| Step::Change(node, index, change)),
            1 => node().prop_map(Step::Die),
            1 => node().prop_map(Step::GetOver),
            3 => node().prop_map(Step::Tell),
        ]
    }

    proptest! {
        /// A gauge's total is the sum of the parts after any events, and instances that
        /// have been told everything know the sum of the others' parts.
        #[test]
        fn totals_are_sums(steps in prop::collection::vec(step(), 0..200)) {
            let peer = |node| Peer { node: NodeId::new(node), incarnation: 1 };
            let mut list = Statistics::new(2, true);
            let (mut dead, mut known) = (std::collections::BTreeSet::new(), BTreeMap::<(u16, u32), i64>::new());
            for step in steps {
                match step {
                    Step::Join(node) if !dead.contains(&node) => list.join(peer(node)),
                    Step::Change(node, index, change) if !dead.contains(&node) => _ = list.change(peer(node), index, change),
                    Step::Die(node) => {
                        list.fence(peer(node));
                        dead.insert(node);
                    }
                    Step::GetOver(node) if dead.remove(&node) => {
                        list.release(&[peer(node)]);
                        known.retain(|(other, _), _| *other != node);
                    }
                    Step::Tell(node) => known.extend(untold(&mut list, peer(node)).into_iter().map(|(index, value)| ((node, index), value))),
                    _ => {}
                }
                let sum = |index: usize| list.parts().fold(0i64, |sum, (_, part)| sum.wrapping_add(part[index]));
                prop_assert_eq!(list.totals(), [sum(0), sum(1)]);
            }
            let living: Vec<Peer> = list.parts().map(|(peer, _)| peer).filter(|peer| !dead.contains(&peer.node.get())).collect();
            for peer in living {
                known.extend(untold(&mut list, peer).into_iter().map(|(index, value)| ((peer.node.get(), index), value)));
                for index in 0..2 {
                    let is_known = known.get(&(peer.node.get(), index)).copied().unwrap_or(0);
                    prop_assert_eq!(Some(is_known), list.told_to(peer, index));
                }
            }
            prop_assert!(!list.has_untold());
        }
    }
}
