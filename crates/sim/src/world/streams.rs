//! Random sequences of a world: one per purpose and node, so that draws for one do not
//! change what another gets.

use crate::random::Random;
use holdfast_protection::Peer;
use std::collections::BTreeMap;

/// The purpose of a draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Of {
    /// A frame's travel, by lane.
    Lane(Lane),
    /// When a node gets to look at what has arrived.
    Waking,
    /// How long a process takes to start.
    Start,
    /// When the manager hears of a process's end.
    Notice,
    /// How long coordinator, state server or hub are away.
    Away,
    /// How much of a batch of records was written before the end.
    Written,
    /// A server's first sequence number.
    Sequence,
    /// How long a host is away.
    HostAway,
    /// Use that the stranger makes of a packet for a host.
    Stranger,
    /// Damage to a frame between hosts.
    Damage,
    /// How a datagram is cut into fragments.
    Fragments,
    /// How long a node waits for a processor.
    Starved,
}

/// A direction of a simulated connection, whose frames arrive in order unless they stray.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    ToRuntime,
    ToHub,
    ToClient,
    ToServer,
    FromClient,
    FromServer,
    ToCoordinator,
    FromCoordinator,
    /// From a host to another; named by both managers.
    Between,
    /// The same over the second network.
    Beside,
    ToStateServer,
    FromStateServer,
}

/// The sequences, see the module.
#[derive(Default)]
pub(super) struct Streams {
    seed: u64,
    streams: BTreeMap<(Of, Peer), Random>,
}

impl Streams {
    pub(super) fn new(seed: u64) -> Streams {
        Streams { seed, streams: BTreeMap::new() }
    }

    /// The sequence for this purpose and node.
    pub(super) fn of(&mut self, of: Of, peer: Peer) -> &mut Random {
        let seed = self.seed;
        self.streams.entry((of, peer)).or_insert_with(|| {
            let number = match of {
                Of::Lane(lane) => lane as u64,
                Of::Waking => 16,
                Of::Start => 17,
                Of::Notice => 18,
                Of::Away => 19,
                Of::Written => 20,
                Of::Sequence => 21,
                Of::HostAway => 22,
                Of::Stranger => 23,
                Of::Damage => 24,
                Of::Fragments => 25,
                Of::Starved => 26,
            };
            let name =
                number << 48 | u64::from(peer.node.get()) << 32 | u64::from(peer.incarnation);
            Random::new(Random::new(seed).draw() ^ Random::new(name).draw())
        })
    }
}
