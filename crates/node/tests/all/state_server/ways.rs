//! Ways of the control transport, in one world. Each may be cut at any word, at any time.
//! The words behind that one are lost, a side notices or none does, and the way goes on
//! with the next words.

use crate::random::Random;
use holdfast_node::state::transport::{Address, ControlTransport, Lost, Transport};
use holdfast_wire::NodeId;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// The most words that are on their way.
const ROOM: usize = 64;

/// An end: its owner, and the node at the other side.
type Place = (NodeId, NodeId);

#[derive(Default)]
struct End {
    number: u64,
    other: Option<(Place, u64)>,
    arriving: VecDeque<u32>,
    is_lost: bool,
}

struct Between {
    random: Random,
    ends: BTreeMap<Place, End>,
    made: u64,
    is_calm: bool,
    carried: usize,
}

/// A side's driver, or the world's handle on all of them.
pub(crate) struct Ways {
    me: NodeId,
    between: Rc<RefCell<Between>>,
}

impl Ways {
    /// The server's side.
    pub(crate) fn new(seed: u64) -> Ways {
        let between = Between {
            random: Random(!seed),
            ends: BTreeMap::new(),
            made: 0,
            is_calm: false,
            carried: 0,
        };
        Ways { me: NodeId::STATE_SERVER, between: Rc::new(RefCell::new(between)) }
    }

    /// Another node's side, in a new incarnation of it.
    pub(crate) fn side_of(&self, node: NodeId) -> Ways {
        self.begin(node);
        Ways { me: node, between: self.between.clone() }
    }

    /// Removes the ends of this node, because a new incarnation has none.
    pub(crate) fn begin(&self, node: NodeId) {
        self.between.borrow_mut().ends.retain(|(whose, _), _| *whose != node);
    }

    /// Cuts one of the ways.
    pub(crate) fn cut(&mut self) {
        let between = &mut *self.between.borrow_mut();
        let places: Vec<Place> = between.ends.keys().copied().collect();
        if places.is_empty() || between.is_calm {
            return;
        }
        let place = places[between.random.below(places.len())];
        let is_noticed = between.random.one_in(2);
        if let Some(end) = between.ends.get_mut(&place) {
            let left = between.random.below(end.arriving.len() + 1);
            end.arriving.truncate(left);
            end.is_lost |= is_noticed;
            let other = end.other;
            if let Some((other, _)) = other
                && let Some(other) = between.ends.get_mut(&other)
            {
                other.is_lost |= is_noticed && between.random.one_in(2);
            }
        }
    }

    /// Number of words that have arrived.
    pub(crate) fn carried(&self) -> usize {
        self.between.borrow().carried
    }

    /// Stops all cuts.
    pub(crate) fn heal(&mut self) {
        self.between.borrow_mut().is_calm = true;
    }
}

impl Between {
    /// The end at the other side, if it has not been replaced.
    fn other(&mut self, place: Place) -> Option<&mut End> {
        let (other, number) = self.ends.get(&place)?.other?;
        self.ends.get_mut(&other).filter(|end| end.number == number)
    }
}

impl ControlTransport for Ways {
    fn transport(&self) -> Transport {
        Transport::RemoteWrite
    }

    fn open(&mut self, node: NodeId) -> Result<Address, Lost> {
        let between = &mut *self.between.borrow_mut();
        between.made += 1;
        let end = End { number: between.made, ..End::default() };
        between.ends.insert((self.me, node), end);
        let mut address = [0; 12];
        address[..2].copy_from_slice(&self.me.to_be_bytes());
        address[2..4].copy_from_slice(&node.to_be_bytes());
        address[4..].copy_from_slice(&between.made.to_be_bytes());
        if !between.is_calm && between.random.one_in(20) {
            return Err(Lost);
        }
        Address::new(&address).ok_or(Lost)
    }

    fn connect(&mut self, node: NodeId, address: &Address) -> Result<(), Lost> {
        let between = &mut *self.between.borrow_mut();
        let Some((places, number)) = address.bytes().split_first_chunk::<4>() else {
            return Err(Lost);
        };
        let number = u64::from_be_bytes(number.try_into().map_err(|_| Lost)?);
        let [a, b, c, d] = *places;
        if !between.is_calm && between.random.one_in(20) {
            return Err(Lost);
        }
        let end = between.ends.get_mut(&(self.me, node)).ok_or(Lost)?;
        end.other = Some(((NodeId::from_be_bytes([a, b]), NodeId::from_be_bytes([c, d])), number));
        Ok(())
    }

    fn close(&mut self, node: NodeId) {
        self.between.borrow_mut().ends.remove(&(self.me, node));
    }

    fn receive(&mut self, node: NodeId, into: &mut [u32]) -> Result<usize, Lost> {
        let between = &mut *self.between.borrow_mut();
        let end = between.ends.get_mut(&(self.me, node)).ok_or(Lost)?;
        if end.is_lost && end.arriving.is_empty() {
            return Err(Lost);
        }
        let count = between.random.below(end.arriving.len() + 1).min(into.len());
        let count = if between.is_calm { end.arriving.len().min(into.len()) } else { count };
        for (place, word) in into.iter_mut().zip(end.arriving.drain(..count)) {
            *place = word;
        }
        between.carried += count;
        Ok(count)
    }

    fn room(&mut self, node: NodeId) -> usize {
        let between = &mut *self.between.borrow_mut();
        between.other((self.me, node)).map_or(ROOM, |other| ROOM - other.arriving.len())
    }

    fn send(&mut self, node: NodeId, words: &[u32]) {
        let between = &mut *self.between.borrow_mut();
        // The words are lost from some word on, without notice.
        let is_cut = !between.is_calm && between.random.one_in(40);
        let arrive = if is_cut { between.random.below(words.len()) } else { words.len() };
        if let Some(other) = between.other((self.me, node)) {
            other.arriving.extend(&words[..arrive]);
            assert!(other.arriving.len() <= ROOM, "there was room for what was sent");
        }
    }
}
