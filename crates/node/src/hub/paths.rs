//! The choice between two networks that join the hosts.
//!
//! Theory of operation. Hosts may be joined by two networks, which each host numbers as
//! it likes. By each of them a host sends every other one *probes*, several times per
//! time-out. A probe names its sender's network, and those of the receiver's networks by
//! which the sender has heard the receiver lately. This tells a host which network leads
//! to another one: that by which the other hears it. A network stays in use as long as it
//! leads there; otherwise the other one is used. The first is used again when it has led
//! there for a while. If neither leads to a host, and at the beginning, every frame goes
//! by both, so that whatever works is used. A frame that arrives twice is recognised by
//! its number, which is why there must be a key.
//!
//! A failed network is noticed well before the host behind it would be missed
//! ([`quorum`](crate::quorum)): no host is given up while the other network leads there.
//! Packets may overtake each other at such a moment.
//!
//! In: probes, the time. Out: probes, and the network to send by. Never: a decision about
//! hosts.

use holdfast_wire::NodeId;

/// The number of networks.
pub const PATHS: u8 = 2;

/// A probe to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Probe {
    /// The receiving host.
    pub(super) host: u16,
    /// The network to send by.
    pub(super) path: u8,
    /// The sender's networks by which that host has been heard lately, a bit each.
    pub(super) heard: u8,
}

/// The networks' state toward another host.
#[derive(Debug, Clone, Copy, Default)]
struct HostPath {
    /// By network, the time at which the host was last heard.
    heard_at: [Option<u64>; PATHS as usize],
    /// The last probe's time by its clock and by ours, and the networks by which it hears
    /// this host.
    said: Option<(u64, u64, u8)>,
    /// By network, the time since which it has led there without a break.
    since: [Option<u64>; PATHS as usize],
    used: Option<u8>,
}

/// See the module. Hosts are counted from 0.
#[derive(Debug)]
pub(super) struct Paths {
    me: u16,
    timeout: u64,
    ways: Vec<HostPath>,
    /// By node, its host, as the hosts say.
    places: Vec<Option<u16>>,
    next: u64,
    has_changed: bool,
}

impl Paths {
    /// The networks of this host among so many. `timeout`: the time-out after which a
    /// host is missed, ns.
    pub(super) fn new(me: u16, hosts: u16, timeout: u64) -> Paths {
        let ways = vec![HostPath::default(); usize::from(hosts)];
        Paths { me, timeout, ways, places: Vec::new(), next: 0, has_changed: false }
    }

    /// Interval between probes.
    fn interval(&self) -> u64 {
        (self.timeout / 16).max(1)
    }

    /// A probe older than this does not count as heard.
    fn lately(&self) -> u64 {
        self.timeout / 4
    }

    /// The first network is used again when it has led to a host for so long.
    fn calm(&self) -> u64 {
        self.timeout * 4
    }

    /// Takes a probe from this host, sent by this one of its networks, at `sent` by that
    /// host's clock.
    pub(super) fn hear(&mut self, host: u16, path: u8, sent: u64, heard: u8, now: u64) {
        let lately = self.lately();
        let Some(way) = self.ways.get_mut(usize::from(host)).filter(|_| host != self.me) else {
            return;
        };
        let Some(heard_at) = way.heard_at.get_mut(usize::from(path)) else { return };
        *heard_at = Some(now);
        // A late probe by the slower network has no news. A host whose clock begins anew
        // has been silent for longer than that.
        if way.said.is_none_or(|(last, at, _)| sent >= last || now.saturating_sub(at) > lately) {
            way.said = Some((sent, now, heard));
        }
        self.choose(host, now);
    }

    fn choose(&mut self, host: u16, now: u64) {
        let (lately, calm) = (self.lately(), self.calm());
        let way = &mut self.ways[usize::from(host)];
        let heard = way
            .said
            .filter(|(_, at, _)| now.saturating_sub(*at) <= lately)
            .map_or(0, |(_, _, heard)| heard);
        for (path, since) in way.since.iter_mut().enumerate() {
            *since = if heard >> path & 1 != 0 { since.or(Some(now)) } else { None };
        }
        let leads = |path: u8| way.since[usize::from(path)];
        let used = match way.used.filter(|used| leads(*used).is_some()) {
            Some(used) if used > 0 && leads(0).is_some_and(|since| since + calm <= now) => Some(0),
            None => (0..PATHS).find(|path| leads(*path).is_some()),
            used => used,
        };
        self.has_changed |= used != way.used;
        way.used = used;
    }

    /// The probes that are due. [`Paths::poll_timeout`] tells when the next are.
    pub(super) fn poll(&mut self, now: u64) -> Vec<Probe> {
        if now < self.next {
            return Vec::new();
        }
        self.next = now + self.interval();
        let (lately, me) = (self.lately(), self.me);
        let mut probes = Vec::new();
        for host in (0..self.ways.len() as u16).filter(|host| *host != me) {
            self.choose(host, now);
            let heard_at = self.ways[usize::from(host)].heard_at;
            let is_heard = |path: &u8| {
                heard_at[usize::from(*path)].is_some_and(|at| now.saturating_sub(at) <= lately)
            };
            let heard = (0..PATHS).filter(is_heard).fold(0, |heard, path| heard | 1 << path);
            probes.extend((0..PATHS).map(|path| Probe { host, path, heard }));
        }
        probes
    }

    /// The time at which probes are due.
    pub(super) fn poll_timeout(&self) -> u64 {
        self.next
    }

    /// Notes that a node is on this host, or that its host is unknown.
    pub(super) fn place(&mut self, node: NodeId, host: Option<u16>) {
        let at = usize::from(node);
        if self.places.len() <= at {
            self.places.resize(at + 1, None);
        }
        self.places[at] = host;
    }

    /// The network by which to send to this node; `None`: both.
    #[inline]
    pub(super) fn to(&self, node: NodeId) -> Option<u8> {
        match node.host().or_else(|| self.places.get(usize::from(node)).copied().flatten()) {
            Some(host) => self.used(host),
            // An unknown host: the network to all others, if that is one.
            None => {
                let mut others = (0..self.ways.len() as u16)
                    .filter(|host| *host != self.me)
                    .map(|host| self.used(host));
                let first = others.next().flatten();
                first.filter(|_| others.all(|used| used == first))
            }
        }
    }

    /// The network by which to send to this host; `None`: neither is known to lead there.
    pub(super) fn used(&self, host: u16) -> Option<u8> {
        self.ways.get(usize::from(host)).and_then(|way| way.used)
    }

    /// The networks that lead to this host, a bit each.
    pub(super) fn leading(&self, host: u16) -> u8 {
        let since =
            self.ways.get(usize::from(host)).map_or([None; PATHS as usize], |way| way.since);
        (0..PATHS)
            .filter(|path| since[usize::from(*path)].is_some())
            .fold(0, |leading, path| leading | 1 << path)
    }

    /// True if a network in use has changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        core::mem::take(&mut self.has_changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MILLISECOND: u64 = 1_000_000;
    const TIMEOUT: u64 = 160 * MILLISECOND;
    const HOSTS: u16 = 3;

    /// Three hosts and two networks. Cuts are `(network, from, to)`.
    struct World {
        hosts: Vec<Paths>,
        cuts: Vec<(u8, u16, u16)>,
        now: u64,
        /// The delay of the second network.
        delay: u64,
        late: Vec<(u64, u16, Probe, u64)>,
    }

    impl World {
        fn new() -> World {
            let hosts = (0..HOSTS).map(|me| Paths::new(me, HOSTS, TIMEOUT)).collect();
            World { hosts, cuts: Vec::new(), now: 0, delay: 0, late: Vec::new() }
        }

        /// Clocks of hosts differ.
        fn clock(&self, host: u16) -> u64 {
            self.now + u64::from(host) * 1_000_000 * MILLISECOND
        }

        fn run(&mut self, time: u64) {
            let end = self.now + time;
            while self.now < end {
                self.now += MILLISECOND;
                for from in 0..HOSTS {
                    let now = self.clock(from);
                    for probe in self.hosts[usize::from(from)].poll(now) {
                        if !self.cuts.contains(&(probe.path, from, probe.host)) {
                            self.late.push((
                                self.now + self.delay * u64::from(probe.path),
                                from,
                                probe,
                                now,
                            ));
                        }
                    }
                }
                let due: Vec<_> = self.late.extract_if(.., |(at, ..)| *at <= self.now).collect();
                for (_, from, Probe { host, path, heard }, sent) in due {
                    let now = self.clock(host);
                    self.hosts[usize::from(host)].hear(from, path, sent, heard, now);
                }
            }
        }

        fn used(&self, from: u16) -> Vec<Option<u8>> {
            (0..HOSTS)
                .filter(|host| *host != from)
                .map(|host| self.hosts[usize::from(from)].used(host))
                .collect()
        }
    }

    /// Every host uses the first network. A cut in either direction is gone around before
    /// a host is missed, between these two hosts only; a while after it is healed, they
    /// go back.
    #[test]
    fn what_is_cut_is_gone_around() {
        let mut world = World::new();
        assert_eq!(world.hosts[0].to(NodeId::new(77)), None, "nothing is known yet");
        world.run(TIMEOUT);
        for from in 0..HOSTS {
            assert_eq!(world.used(from), [Some(0), Some(0)]);
        }
        assert_eq!(world.hosts[0].to(NodeId::new(77)), Some(0), "wherever that is");
        world.cuts = vec![(0, 0, 1)];
        world.run(TIMEOUT / 2);
        assert_eq!(
            (world.used(0), world.used(1), world.used(2)),
            (vec![Some(1), Some(0)], vec![Some(0); 2], vec![Some(0); 2])
        );
        assert_eq!((world.hosts[0].to(NodeId::new(77)), world.hosts[0].leading(1)), (None, 2));
        world.hosts[0].place(NodeId::new(77), Some(1));
        assert_eq!(world.hosts[0].to(NodeId::new(77)), Some(1));
        world.cuts.clear();
        world.run(TIMEOUT);
        assert_eq!(
            (world.used(0), world.hosts[0].leading(1)),
            (vec![Some(1), Some(0)], 3),
            "not at once"
        );
        world.run(TIMEOUT * 4);
        assert_eq!(world.used(0), [Some(0), Some(0)]);
        assert!(world.hosts[0].take_changed() && !world.hosts[0].take_changed());
    }

    /// Both networks are tried for a host that neither leads to, and the first to work
    /// again is used.
    #[test]
    fn where_nothing_leads_both_are_tried() {
        let mut world = World::new();
        world.run(TIMEOUT);
        world.cuts = vec![(0, 0, 2), (1, 0, 2), (0, 2, 0), (1, 2, 0)];
        world.run(TIMEOUT / 2);
        assert_eq!(
            (world.used(0), world.used(2), world.used(1)),
            (vec![Some(0), None], vec![None, Some(0)], vec![Some(0); 2])
        );
        world.cuts.retain(|(path, ..)| *path == 0);
        world.run(TIMEOUT / 4);
        assert_eq!(
            (world.used(0), world.used(2)),
            (vec![Some(0), Some(1)], vec![Some(1), Some(0)])
        );
    }

    /// The alternative is slow: its late probes do not undo later knowledge.
    #[test]
    fn a_slow_path_says_nothing_new() {
        let mut world = World::new();
        world.delay = TIMEOUT / 6;
        world.run(TIMEOUT);
        for host in &mut world.hosts {
            host.take_changed();
        }
        world.run(TIMEOUT * 4);
        assert!(world.hosts.iter_mut().all(|host| !host.take_changed()));
    }

    proptest! {
        /// After any cuts and their end, each host uses for each other one a network that
        /// leads there, the first if it does, and both if none does.
        #[test]
        fn in_the_end_everybody_uses_what_leads_there(
            steps in prop::collection::vec((prop::collection::vec((0..PATHS, 0..HOSTS, 0..HOSTS), 0..8), 1..400u64), 1..12),
        ) {
            let mut world = World::new();
            for (cuts, time) in steps {
                world.cuts = cuts;
                world.run(time * MILLISECOND);
            }
            world.run(TIMEOUT * 6);
            for from in 0..HOSTS {
                for to in (0..HOSTS).filter(|to| *to != from) {
                    let is_cut = |path: u8, from: u16, to: u16| world.cuts.contains(&(path, from, to));
                    // A host must have a way to tell that it hears.
                    let can_tell = (0..PATHS).any(|path| !is_cut(path, to, from));
                    let expected = (0..PATHS).find(|path| can_tell && !is_cut(*path, from, to));
                    prop_assert_eq!(world.hosts[usize::from(from)].used(to), expected);
                }
            }
        }
    }
}
