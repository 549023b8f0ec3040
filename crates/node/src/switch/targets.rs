//! The runtimes to which routes lead, and which of them is to have the next flow.
//!
//! Found by node at once. The one with the fewest routes of a virtual cluster is found by a knockout among its runtimes, of which a change replays only the
//! games of one: a cluster may have a thousand, and a flow begins, or ends, with every few packets.

use crate::channel::format::after;
use crate::message::{Member, MemberState};
use holdfast_protection::{NodeIndex, Peer};
use std::collections::BTreeMap;

pub(super) struct Target {
    pub(super) peer: Peer,
    pub(super) state: MemberState,
    pub(super) cluster: u16,
    host: u16,
    routes: usize,
    /// Routes among these of which nothing is known to have been released.
    opening: usize,
    full: Full,
    /// Its place in its cluster's knockout.
    place: usize,
}

/// How long a runtime that had no room for a new flow gets none if another has some, ns: with the fewest flows it would get all of them, and turn them
/// away.
const FULL_FOR: u64 = 1_000_000_000;
/// The same at most, if it has none whenever it is tried: four times as long every time. Who tries to connect waits twice as long every time, and must
/// get through to another before long.
const FULL_FOR_AT_MOST: u64 = 16_000_000_000;

/// A runtime has no room, or had none.
#[derive(Clone, Copy, Default)]
struct Full {
    /// It ranks behind those that have some.
    is_meant: bool,
    since: u64,
    /// For how long it is not tried; 0 if it was never full.
    pause: u64,
}

impl Full {
    fn until(&self) -> u64 {
        self.since + self.pause
    }

    /// It had no room at this time.
    fn note(&mut self, now: u64) {
        if self.is_meant && now < self.until() {
            // That was on its way there before.
            return;
        }
        let is_again = self.pause > 0 && now.saturating_sub(self.until()) <= FULL_FOR_AT_MOST;
        let pause = if is_again { (4 * self.pause).min(FULL_FOR_AT_MOST) } else { FULL_FOR };
        *self = Full { is_meant: true, since: now, pause };
    }
}

impl Target {
    /// It has flows, and gets packets of them.
    pub(super) fn serves(&self) -> bool {
        self.state.serves()
    }

    /// Who has the lowest gets the next flow; who has none gets none at all.
    fn rank(&self, hosts_away: u16) -> Option<u64> {
        let is_last = u64::from(is_away(hosts_away, self.host)) << 63 | u64::from(self.full.is_meant) << 62;
        (self.state == MemberState::Running).then_some(is_last | self.routes as u64)
    }
}

fn is_away(hosts: u16, host: u16) -> bool {
    hosts.checked_shr(host.into()).is_some_and(|bits| bits & 1 != 0)
}

/// Players by rank, and the winners of each pair, of each pair of those, and so on: `games[1]` has the winner of all.
#[derive(Default)]
struct Knockout {
    /// Per place: where the target lies, and its rank.
    players: Vec<(usize, Option<u64>)>,
    /// Winners' places; as many as there could be players.
    games: Vec<usize>,
}

impl Knockout {
    fn new(players: Vec<(usize, Option<u64>)>) -> Knockout {
        let count = players.len();
        let mut knockout = Knockout { players, games: vec![0; count.next_power_of_two()] };
        (1..knockout.games.len()).rev().for_each(|game| knockout.play(game));
        knockout
    }

    /// The winner of a game, or who stands where none is played.
    fn winner(&self, game: usize) -> usize {
        if game < self.games.len() { self.games[game] } else { game - self.games.len() }
    }

    fn play(&mut self, game: usize) {
        let (a, b) = (self.winner(game * 2), self.winner(game * 2 + 1));
        let rank = |place: usize| self.players.get(place).and_then(|(_, rank)| *rank).unwrap_or(u64::MAX);
        // Of equal ones the first.
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

    /// Where the one with the lowest rank lies.
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
    /// By virtual cluster.
    knockouts: BTreeMap<u16, Knockout>,
    /// Where those lie that had no room for a flow.
    full: Vec<usize>,
    /// Hosts that are not heard, a bit each.
    away: u16,
}

impl Targets {
    /// These there are now. What is known of those that were there before stays.
    pub(super) fn renew(&mut self, members: &[Member]) -> Vec<Target> {
        let old = core::mem::take(&mut self.list);
        let mut of_clusters = BTreeMap::<u16, Vec<(usize, Option<u64>)>>::new();
        let mut full = Vec::new();
        for (at, member) in members.iter().enumerate() {
            let peer = member.peer();
            let known = self.at.get(peer.node).map(|at| &old[at]).filter(|target| target.peer == peer);
            let counts = known.map_or((0, 0, Full::default()), |target| (target.routes, target.opening, target.full));
            let (routes, opening, was_full) = counts;
            // Its host may have told of its end before this view was made.
            let has_ended = known.is_some_and(|target| target.state == MemberState::Failed);
            let state = if has_ended { MemberState::Failed } else { member.state };
            let players = of_clusters.entry(member.cluster).or_default();
            let (cluster, host, place) = (member.cluster, member.host, players.len());
            let target = Target { peer, state, cluster, host, routes, opening, full: was_full, place };
            players.push((at, target.rank(self.away)));
            if was_full.is_meant {
                full.push(at);
            }
            self.list.push(target);
        }
        self.at.renew(members.iter().map(|member| member.node));
        self.knockouts = of_clusters.into_iter().map(|(cluster, players)| (cluster, Knockout::new(players))).collect();
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

    /// Who lives at this node, or has.
    #[inline]
    pub(super) fn of_node(&self, node: u16) -> Option<&Target> {
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

    /// Packets of its flows go there.
    #[inline]
    pub(super) fn serves(&self, peer: Peer) -> bool {
        self.find(peer).is_some_and(Target::serves)
    }

    pub(super) fn lives(&self, peer: Peer) -> bool {
        self.find(peer).is_some_and(|target| target.state != MemberState::Failed)
    }

    /// It is given up, or an earlier life of one that is there.
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

    /// So many more routes lead there, or fewer.
    pub(super) fn count(&mut self, owner: Peer, change: isize) {
        if let Some(at) = self.position(owner) {
            let target = &mut self.list[at];
            target.routes = target.routes.saturating_add_signed(change);
            self.rank(at);
        }
    }

    /// Routes that lead there and have had nothing released are so many more, or fewer.
    pub(super) fn count_opening(&mut self, owner: Peer, change: isize) {
        if let Some(at) = self.position(owner) {
            let target = &mut self.list[at];
            target.opening = target.opening.saturating_add_signed(change);
        }
    }

    /// Routes that lead there.
    pub(super) fn routes(&self, peer: Peer) -> usize {
        self.find(peer).map_or(0, |target| target.routes)
    }

    /// Routes that lead there, of flows of which something has been released, or is known to others.
    pub(super) fn flows(&self, peer: Peer) -> usize {
        self.find(peer).map_or(0, |target| target.routes.saturating_sub(target.opening))
    }

    /// It is gone.
    pub(super) fn set_gone(&mut self, peer: Peer) {
        if let Some(at) = self.position(peer) {
            self.list[at].state = MemberState::Failed;
            self.rank(at);
        }
    }

    /// These hosts are not heard, a bit each: whoever is there may be dead, and gets a new flow only if there is nobody else.
    pub(super) fn set_away(&mut self, away: u16) {
        if core::mem::replace(&mut self.away, away) == away {
            return;
        }
        (0..self.list.len()).for_each(|at| self.rank(at));
    }

    /// It had no room for a flow.
    pub(super) fn set_full(&mut self, peer: Peer, now: u64) {
        if let Some(at) = self.position(peer) {
            self.list[at].full.note(now);
            if !self.full.contains(&at) {
                self.full.push(at);
            }
            self.rank(at);
        }
    }

    /// Who is to have a new flow of this cluster: the one with the fewest routes that has room, or the one with the fewest.
    pub(super) fn least(&mut self, cluster: u16, now: u64) -> Option<Peer> {
        if !self.full.is_empty() {
            let over: Vec<usize> = self.full.extract_if(.., |at| self.list[*at].full.until() <= now).collect();
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

    fn member(node: u16, cluster: u16) -> Member {
        Member { node, incarnation: u32::from(node), state: MemberState::Running, cluster, host: 0 }
    }

    fn peer(node: u16) -> Peer {
        Peer { node, incarnation: u32::from(node) }
    }

    /// Two clusters of seven and six; routes come and go, runtimes become full, fall away and come anew. Every time it is the one that a look at all
    /// of them finds.
    #[test]
    fn the_least_loaded_one_is_found_without_looking_at_all() {
        let mut targets = Targets::default();
        let members: Vec<Member> = (16..29).map(|node| member(node, node % 2)).collect();
        targets.renew(&members);
        let mut random = 1u64;
        for now in (0..20_000u64).map(|step| step * (FULL_FOR / 50)) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let node = 16 + (random >> 40) as u16 % 13;
            match random >> 58 {
                0 => targets.set_full(peer(node), now),
                1 if random.is_multiple_of(7) => targets.set_gone(peer(node)),
                2 if random.is_multiple_of(50) => {
                    let fewer: Vec<Member> = members.iter().filter(|member| member.node != node).copied().collect();
                    targets.renew(&fewer);
                    targets.renew(&members);
                }
                3..32 => targets.count(peer(node), 1),
                _ => targets.count(peer(node), -1),
            }
            for cluster in 0..3 {
                let of_cluster = |target: &&Target| target.cluster == cluster && target.state == MemberState::Running;
                let by_hand = targets.list.iter().filter(of_cluster);
                let by_hand = by_hand
                    .min_by_key(|target| (target.full.is_meant && target.full.until() > now, target.routes))
                    .map(|target| target.peer);
                assert_eq!(targets.least(cluster, now), by_hand, "at {now}");
            }
        }
    }

    /// A runtime has no room for long, and the fewest flows. A client that tries to connect 1, 2 and 4 seconds apart gets to another at its third try; when
    /// nothing has been turned away for a while, all begins again.
    #[test]
    fn who_is_full_every_time_is_tried_ever_more_rarely() {
        let mut targets = Targets::default();
        targets.renew(&[member(16, 0), member(17, 0)]);
        targets.count(peer(17), 5);
        let tries = |targets: &mut Targets, at: u64| {
            let mut try_at = |seconds: u64| {
                let to = targets.least(0, (at + seconds) * FULL_FOR).expect("there are two");
                if to == peer(16) {
                    targets.set_full(to, (at + seconds) * FULL_FOR);
                }
                to.node
            };
            [0, 1, 3].map(&mut try_at)
        };
        assert_eq!(tries(&mut targets, 0), [16, 16, 17]);
        assert_eq!(tries(&mut targets, 5), [16, 17, 17]);
        assert_eq!(tries(&mut targets, 60), [16, 16, 17]);
    }

    #[test]
    fn alone_it_is_the_least_loaded() {
        let mut targets = Targets::default();
        assert_eq!(targets.least(0, 1), None);
        targets.renew(&[member(16, 0)]);
        assert_eq!(targets.least(0, 1), Some(peer(16)));
        targets.count(peer(16), 5);
        targets.set_full(peer(16), 1);
        assert_eq!((targets.least(0, 1), targets.routes(peer(16))), (Some(peer(16)), 5));
        targets.set_gone(peer(16));
        assert_eq!(targets.least(0, 1), None);
        assert!(!targets.lives(peer(16)) && !targets.serves(peer(16)));
    }
}
