//! What the server's statistics are, told to its manager: for people.
//!
//! In: the totals, the time. Out: messages with some totals each, of those that have changed since they were told. A new life of the manager may not have spoken yet, and knows nothing: now and then all are told again.

use crate::message::Control;
use holdfast_state::Server;

/// Totals in one message.
const CHUNK: usize = 64;
/// Messages at a time. What they do not say is said the next time.
const MOST: usize = 16;
/// All is told again after so long, ns.
const AGAIN: u64 = 1_000_000_000;

/// One message's totals.
#[derive(Debug)]
struct Chunk {
    /// Which list of the server's, which of its lists of statistics, and where in it the totals begin.
    list: u32,
    statistic: u32,
    first: usize,
    /// As they were told last.
    told: Option<Vec<i64>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Telling {
    chunks: Vec<Chunk>,
    /// Where to go on.
    next: usize,
    again_at: u64,
}

impl Telling {
    pub(super) fn new(server: &Server) -> Telling {
        let lists = (0..server.lists()).filter_map(|list| Some((list, server.statistics(list)?.totals().len())));
        let chunks = (0..).zip(lists).flat_map(|(statistic, (list, len))| {
            (0..len).step_by(CHUNK).map(move |first| Chunk { list, statistic, first, told: None })
        });
        Telling { chunks: chunks.collect(), next: 0, again_at: 0 }
    }

    /// Calls `send` with what there is to be told, if that is anything, until it returns false.
    pub(super) fn tell(&mut self, server: &Server, now: u64, mut send: impl FnMut(Control) -> bool) {
        if now >= self.again_at {
            self.again_at = now.saturating_add(AGAIN);
            self.chunks.iter_mut().for_each(|chunk| chunk.told = None);
        }
        let count = self.chunks.len();
        let mut said = 0;
        for at in (self.next..count).chain(0..self.next) {
            let Chunk { list, statistic, first, told } = &mut self.chunks[at];
            let Some(totals) = server.statistics(*list).and_then(|statistics| statistics.totals().get(*first..)) else {
                continue;
            };
            let totals = &totals[..totals.len().min(CHUNK)];
            if told.as_deref() == Some(totals) {
                continue;
            }
            let mut is_sent = || send(Control::Totals { statistic: *statistic, first: *first as u32, values: totals.to_vec() });
            if said == MOST || !is_sent() {
                self.next = at;
                return;
            }
            said += 1;
            *told = Some(totals.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_protection::Peer;
    use holdfast_state::{Input, Kind, Message, Opcode};

    /// What has changed is told, a bounded part of it at a time; after a second everything is.
    #[test]
    fn what_has_changed_is_told() {
        let sizes = [3, 40 * CHUNK as u32];
        let mut server = Server::new(&[Kind::Counters(sizes[0]), Kind::Gauge(sizes[1])], 0, 1).expect("it is small");
        let from = Peer { node: 16, incarnation: 1 };
        server.apply(Input::Joined(from)).expect("there is room");
        server.apply(Input::Begun { with: from, arrived: 0 }).expect("nothing was said");
        let mut telling = Telling::new(&server);
        let mut told = |server: &Server, now: u64| {
            let mut all = Vec::new();
            telling.tell(server, now, |message| match message {
                Control::Totals { statistic, first, values } => {
                    all.push((statistic, first, values));
                    true
                }
                other => panic!("{other:?}"),
            });
            all
        };
        let first = told(&server, 1);
        assert_eq!((first.len(), &first[0]), (MOST, &(0, 0, vec![0; 3])));
        assert_eq!((0..9).map(|_| told(&server, 2).len()).collect::<Vec<_>>(), [MOST, 9, 0, 0, 0, 0, 0, 0, 0]);
        for index in [2, 2, 70] {
            let message = Message::new(Opcode::UpdateStatistics, 1, index);
            server.apply(Input::Said { from, message }).expect("it is heard");
        }
        let changed = told(&server, 3);
        let of = |at: usize| (changed[at].0, changed[at].1, changed[at].2.iter().sum::<i64>());
        assert_eq!((changed.len(), of(0), of(1)), (2, (1, 0, 2), (1, 64, 1)));
        assert_eq!(told(&server, AGAIN + 1).len(), MOST);
    }
}
