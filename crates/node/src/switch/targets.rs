//! The runtimes to which routes lead, and the choice of one for the next flow.
//!
//! Targets are found by node in one step. The runtime with the fewest routes in a virtual
//! cluster is found by a knockout among the cluster's runtimes. A change replays only the
//! games of one runtime: a cluster may have a thousand, and with every few packets a flow
//! begins or ends.

use crate::channel::format::after;
use crate::message::{Member, MemberState};
use holdfast_protection::{NodeIndex, Peer};
use holdfast_wire::NodeId;
use std::collections::BTreeMap;

pub(super) struct Target {
    pub(super) peer: Peer,
    pub(super) state: MemberState,
    pub(super) cluster: u16,
    host: u16,
    routes: usize,
    /// Routes among these over which no packet is known to have been released.
    opening: usize,
    full: Full,
    /// The target's place in its cluster's knockout.
    place: usize,
}

/// A runtime that had no room for a new flow gets none for so long, ns, if another one
/// has room. Without the pause the runtime with the fewest flows would get all new ones,
/// and turn them away.
const FULL_FOR: u64 = 1_000_000_000;
/// The most that this pause may grow to, ns. The pause gets four times as long every time
/// that the runtime is tried and full. A client that retries waits twice as long every
/// time, and must reach another runtime before long.
const FULL_FOR_AT_MOST: u64 = 16_000_000_000;

/// Whether a runtime has room for new flows.
#[derive(Clone, Copy, Default)]
struct Full {
    /// The runtime ranks behind those that have room.
    is_meant: bool,
    since: u64,
    /// The time for which the runtime is not tried, ns; 0 if it was never full.
    pause: u64,
}

impl Full {
    fn until(&self) -> u64 {
        self.since + self.pause
    }

    /// Notes that the runtime had no room at this time.
    fn note(&mut self, now: u64) {
        if self.is_meant && now < self.until() {
            // The flow was on its way before the pause began.
            return;
        }
        let is_again = self.pause > 0 && now.saturating_sub(self.until()) <= FULL_FOR_AT_MOST;
        let pause = if is_again { (4 * self.pause).min(FULL_FOR_AT_MOST) } else { FULL_FOR };
        *self = Full { is_meant: true, since: now, pause };
    }
}

impl Target {
    /// True if the runtime has flows, and gets their packets.
    pub(super) fn serves(&self) -> bool {
        self.state.serves()
    }

    /// The runtime's rank: the lowest gets the next flow, and one without a rank gets
    /// none.
    fn rank(&self, hosts_away: u16) -> Option<u64> {
        let is_last =
            u64::from(is_away(hosts_away, self.host)) << 63 | u64::from(self.full.is_meant) << 62;
        (self.state == MemberState::Running).then_some(is_last | self.routes as u64)
    }
}

fn is_away(hosts: u16, host: u16) -> bool {
    hosts.checked_shr(host.into()).is_some_and(|bits| bits & 1 != 0)
}

/// Players by rank, the winner of each pair, of each pair of winners, and so on:
/// `games[1]` has the winner of all.
#[derive(Default)]
struct Knockout {
    /// By place: the position of the target, and its rank.
    players: Vec<(usize, Option<u64>)>,
    /// Winners' places; the length is the number of players, rounded up to a power of
    /// two.
    games: Vec<usize>,
}

impl Knockout {
    fn new(players: Vec<(usize, Option<u64>)>) -> Knockout {
        let count = players.len();
        let mut knockout = Knockout { players, games: vec![0; count.next_power_of_two()] };
        (1..knockout.games.len()).rev().for_each(|game| knockout.play(game));
        knockout
    }

    /// The winner of a game. Below the last games these are the players themselves.
    fn winner(&self, game: usize) -> usize {
        if game < self.games.len() { self.games[game] } else { game - self.games.len() }
    }

    fn play(&mut self, game: usize) {
        let (a, b) = (self.winner(game * 2), self.winner(game * 2 + 1));
        let rank =
            |place: usize| self.players.get(place).and_then(|(_, rank)| *rank).unwrap_or(u64::MAX);
        // The first wins among equals.
        self.games[game] = if rank(b) < rank(a) { b } else { a };
    }

    fn set(&mut self, place: usize, rank: Option<u64>) {
        self.players[place].1 = rank;
        let mut game = (self.games.len() + place) / 2;
        while game > 0 {
            self.play(game);
            game /= 2;
        }
    }

    /// The position of the target with the lowest rank.
    fn first(&self) -> Option<usize> {
        let winner = if self.games.len() > 1 { self.games[1] } else { 0 };
        self.players.get(winner).and_then(|(at, rank)| rank.map(|_| *at))
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Targets {
    list: Vec<Target>,
    at: NodeIndex,
    /// Knockouts by virtual cluster.
    knockouts: BTreeMap<u16, Knockout>,
    /// Positions of the targets that had no room for a flow.
    full: Vec<usize>,
    /// Hosts that are not heard, a bit each.
    away: u16,
}

impl Targets {
    /// Replaces the targets by these members, and returns the old ones. A target that
    /// stays keeps its counts.
    pub(super) fn renew(&mut self, members: &[Member]) -> Vec<Target> {
        let old = core::mem::take(&mut self.list);
        let mut of_clusters = BTreeMap::<u16, Vec<(usize, Option<u64>)>>::new();
        let mut full = Vec::new();
        for (at, member) in members.iter().enumerate() {
            let peer = member.peer();
            let known =
                self.at.get(peer.node).map(|at| &old[at]).filter(|target| target.peer == peer);
            let counts = known.map_or((0, 0, Full::default()), |target| {
                (target.routes, target.opening, target.full)
            });
            let (routes, opening, was_full) = counts;
            // The member's host may have told its end before this view was made.
            let has_ended = known.is_some_and(|target| target.state == MemberState::Failed);
            let state = if has_ended { MemberState::Failed } else { member.state };
            let players = of_clusters.entry(member.cluster).or_default();
            let (cluster, host, place) = (member.cluster, member.host, players.len());
            let target =
                Target { peer, state, cluster, host, routes, opening, full: was_full, place };
            players.push((at, target.rank(self.away)));
            if was_full.is_meant {
                full.push(at);
            }
            self.list.push(target);
        }
        self.at.renew(members.iter().map(|member| member.node));
        self.knockouts = of_clusters
            .into_iter()
            .map(|(cluster, players)| (cluster, Knockout::new(players)))
            .collect();
        self.full = full;
        old
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn get(&self, at: usize) -> &Target {
        &self.list[at]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Target> + '_ {
        self.list.iter()
    }

    /// The target at this node, in any incarnation.
    #[inline]
    pub(super) fn of_node(&self, node: NodeId) -> Option<&Target> {
        self.at.get(node).map(|at| &self.list[at])
    }

    #[inline]
    fn position(&self, peer: Peer) -> Option<usize> {
        self.at.get(peer.node).filter(|at| self.list[*at].peer == peer)
    }

    #[inline]
    pub(super) fn find(&self, peer: Peer) -> Option<&Target> {
        self.position(peer).map(|at| &self.list[at])
    }

    /// True if packets of this runtime's flows go there.
    #[inline]
    pub(super) fn serves(&self, peer: Peer) -> bool {
        self.find(peer).is_some_and(Target::serves)
    }

    pub(super) fn is_alive(&self, peer: Peer) -> bool {
        self.find(peer).is_some_and(|target| target.state != MemberState::Failed)
    }

    /// True if the runtime is given up, or is an earlier incarnation of one that is
    /// there.
    pub(super) fn has_failed(&self, peer: Peer) -> bool {
        self.of_node(peer.node).is_some_and(|target| match target.peer == peer {
            true => target.state == MemberState::Failed,
            false => after(target.peer.incarnation, peer.incarnation),
        })
    }

    fn rank(&mut self, at: usize) {
        let target = &self.list[at];
        if let Some(knockout) = self.knockouts.get_mut(&target.cluster) {
            knockout.set(target.place, target.rank(self.away));
        }
    }

    /// Changes the number of routes that lead there.
    pub(super) fn count(&mut self, owner: Peer, change: isize) {
        if let Some(at) = self.position(owner) {
            let target = &mut self.list[at];
            target.routes = target.routes.saturating_add_signed(change);
            self.rank(at);
        }
    }

    /// Changes the number of routes that lead there and have had no packet released.
    pub(super) fn count_opening(&mut self, owner: Peer, change: isize) {
        if let Some(at) = self.position(owner) {
            let target = &mut self.list[at];
            target.opening = target.opening.saturating_add_signed(change);
        }
    }

    /// Number of routes that lead there.
    pub(super) fn routes(&self, peer: Peer) -> usize {
        self.find(peer).map_or(0, |target| target.routes)
    }

    /// Number of routes that lead there and are of real flows: a packet has been
    /// released, or another process knows the flow.
    pub(super) fn flows(&self, peer: Peer) -> usize {
        self.find(peer).map_or(0, |target| target.routes.saturating_sub(target.opening))
    }

    /// Marks the runtime as failed.
    pub(super) fn set_gone(&mut self, peer: Peer) {
        if let Some(at) = self.position(peer) {
            self.list[at].state = MemberState::Failed;
            self.rank(at);
        }
    }

    /// Sets the hosts that are not heard, a bit each. Their runtimes may be dead, and get
    /// a new flow only if no other runtime is left.
    pub(super) fn set_away(&mut self, away: u16) {
        if core::mem::replace(&mut self.away, away) == away {
            return;
        }
        (0..self.list.len()).for_each(|at| self.rank(at));
    }

    /// Notes that the runtime had no room for a flow.
    pub(super) fn set_full(&mut self, peer: Peer, now: u64) {
        if let Some(at) = self.position(peer) {
            self.list[at].full.note(now);
            if !self.full.contains(&at) {
                self.full.push(at);
            }
            self.rank(at);
        }
    }

    /// The runtime that is to have a new flow of this cluster: the one with the fewest
    /// routes that has room, or else the one with the fewest.
    pub(super) fn least(&mut self, cluster: u16, now: u64) -> Option<Peer> {
        if !self.full.is_empty() {
            let over: Vec<usize> =
                self.full.extract_if(.., |at| self.list[*at].full.until() <= now).collect();
            for at in over {
                self.list[at].full.is_meant = false;
                self.rank(at);
            }
        }
        let at = self.knockouts.get(&cluster)?.first()?;
        Some(self.list[at].peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: NodeId, cluster: u16) -> Member {
        Member {
            node,
            incarnation: node.get().into(),
            state: MemberState::Running,
            cluster,
            host: 0,
        }
    }

    fn peer(node: NodeId) -> Peer {
        Peer { node, incarnation: node.get().into() }
    }

    /// Two clusters have seven and six runtimes. Routes come and go, runtimes become
    /// full, fail and come back. Every time the knockout finds the same runtime as a look
    /// at all of them.
    #[test]
    fn the_least_loaded_one_is_found_without_looking_at_all() {
        let mut targets = Targets::default();
        let members: Vec<Member> = (0..13).map(|at| member(NodeId::runtime(at), at % 2)).collect();
        targets.renew(&members);
        let mut random = 1u64;
        for now in (0..20_000u64).map(|step| step * (FULL_FOR / 50)) {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let node = NodeId::runtime((random >> 40) as u16 % 13);
            match random >> 58 {
                0 => targets.set_full(peer(node), now),
                1 if random.is_multiple_of(7) => targets.set_gone(peer(node)),
                2 if random.is_multiple_of(50) => {
                    let fewer: Vec<Member> =
                        members.iter().filter(|member| member.node != node).copied().collect();
                    targets.renew(&fewer);
                    targets.renew(&members);
                }
                3..32 => targets.count(peer(node), 1),
                _ => targets.count(peer(node), -1),
            }
            for cluster in 0..3 {
                let of_cluster = |target: &&Target| {
                    target.cluster == cluster && target.state == MemberState::Running
                };
                let by_hand = targets.list.iter().filter(of_cluster);
                let by_hand = by_hand
                    .min_by_key(|target| {
                        (target.full.is_meant && target.full.until() > now, target.routes)
                    })
                    .map(|target| target.peer);
                assert_eq!(targets.least(cluster, now), by_hand, "at {now}");
            }
        }
    }

    /// The runtime with the fewest flows has no room for long. A client that tries to
    /// connect 1 and 2 seconds apart gets to another one at its third try. When no flow
    /// has been turned away for a while, the pauses are short again.
    #[test]
    fn who_is_full_every_time_is_tried_ever_more_rarely() {
        let mut targets = Targets::default();
        targets.renew(&[member(NodeId::new(16), 0), member(NodeId::new(17), 0)]);
        targets.count(peer(NodeId::new(17)), 5);
        let tries = |targets: &mut Targets, at: u64| {
            let mut try_at = |seconds: u64| {
                let to = targets.least(0, (at + seconds) * FULL_FOR).expect("there are two");
                if to == peer(NodeId::new(16)) {
                    targets.set_full(to, (at + seconds) * FULL_FOR);
                }
                to.node
            };
            [0, 1, 3].map(&mut try_at).map(NodeId::get)
        };
        assert_eq!(tries(&mut targets, 0), [16, 16, 17]);
        assert_eq!(tries(&mut targets, 5), [16, 17, 17]);
        assert_eq!(tries(&mut targets, 60), [16, 16, 17]);
    }

    #[test]
    fn alone_it_is_the_least_loaded() {
        let mut targets = Targets::default();
        assert_eq!(targets.least(0, 1), None);
        targets.renew(&[member(NodeId::new(16), 0)]);
        assert_eq!(targets.least(0, 1), Some(peer(NodeId::new(16))));
        targets.count(peer(NodeId::new(16)), 5);
        targets.set_full(peer(NodeId::new(16)), 1);
        assert_eq!(
            (targets.least(0, 1), targets.routes(peer(NodeId::new(16)))),
            (Some(peer(NodeId::new(16))), 5)
        );
        targets.set_gone(peer(NodeId::new(16)));
        assert_eq!(targets.least(0, 1), None);
        assert!(!targets.is_alive(peer(NodeId::new(16))) && !targets.serves(peer(NodeId::new(16))));
    }
}
