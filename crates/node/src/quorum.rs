//! The quorum: two hosts never serve the ports of a switch at a time, whatever is cut,
//! late or stopped.
//!
//! Theory of operation. The managers of a cluster send each other beats, several times
//! per time-out. A beat says when it was sent, by its sender's clock, and for every other
//! host, when the last beat of that host was sent that the sender has: an *echo*. An echo
//! of a time `t` says that its sender was there after `t`. A host is *connected* to those
//! whose echo of it is no older than the time-out, by its own clock alone. The following
//! holds for the ports of each switch by itself; the beats are the same.
//! - The coordinator gives service in *terms*. A host that hears of a later term passes
//!   it on, and stops serving.
//! - A serving host stops by itself as soon as it is not connected to more than half of
//!   the votes, its own included.
//! - The next host begins when more than half have said that they know its term, and the
//!   earlier host has stopped. More than half had to be connected to the earlier host, so
//!   one of those is among them. The echo that this one sent before it knew the term is
//!   out of date a time-out after it had heard the earlier host last. Each beat says how
//!   long ago that was (an *age*). When all of them say that it was more than a time-out
//!   ago, no host has been connected to the earlier one since, and it has stopped. The
//!   ages say so as soon as a host is found to be dead. If they do not, the next host
//!   begins a time-out after more than half have said that they know the term. If every
//!   host has said that it does not serve, there is nothing to wait for.
//! - A manager's next incarnation has heard no host yet, and echoes nothing. Its earlier
//!   incarnation's echoes count until they are out of date: they are no less true for
//!   that one's end. The next one's ages begin when it does, so no host waits too short.
//!   If they did not, two managers that ended at once would end service at the third
//!   host.
//! - A vote that has forgotten a term could keep an earlier one served, so a manager's
//!   terms outlive it ([`Quorum::remember`]).
//!
//! Each host has a vote. The first host has two if their number is even: of two hosts the
//! first goes on alone, and the second never does.
//!
//! In: beats, the coordinator's terms, the time. Out: beats, and when to begin and to
//! stop. Never: a decision about which host is to serve.

use crate::message::{Beat, Service};
use holdfast_wire::fault::{Fault, is_planted};

/// No host misses so many terms: a later one has not been given yet.
const MOST_TERMS: u32 = 1 << 16;

/// A change of service at this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Serve the ports of this switch, in this term.
    Begin(u16, u32),
    /// Stop to serve them.
    Retire(u16),
}

#[derive(Debug, Clone)]
struct Heard {
    /// The send time of the last beat, by the other's clock.
    sent: u64,
    /// The send time of the last beat from here that the other had.
    echo: u64,
    /// By host, the time until which the other may have heard it, by this host's clock.
    had: Vec<u64>,
    /// By switch.
    services: Vec<Service>,
}

impl Heard {
    /// The other's service of this switch.
    fn service(&self, switch: usize) -> Service {
        self.services.get(switch).copied().unwrap_or_default()
    }
}

/// This host's service of one switch.
#[derive(Debug, Clone, Copy, Default)]
struct Own {
    term: u32,
    /// This host is to serve in the latest term.
    is_meant: bool,
    /// The time since which more than half have known the term.
    known_since: Option<u64>,
    serves: bool,
    /// The last term in which this host has served. A term is served once, because each
    /// is one incarnation of the switch.
    served: u32,
    /// Ports of the switch whose links are up at this host.
    links: u8,
}

/// See the module. Hosts are counted from 0.
#[derive(Debug)]
pub struct Quorum {
    me: u16,
    timeout: u64,
    began_at: u64,
    others: Vec<Option<Heard>>,
    /// By host, the time at which it was last heard. An earlier incarnation of this
    /// manager may have heard it until this one began.
    heard_at: Vec<u64>,
    /// By switch.
    services: Vec<Own>,
    has_news: bool,
    is_leaving: bool,
    next_beat: u64,
}

/// True if these hosts, a bit each, are more than half of so many.
pub fn is_majority(part: u16, hosts: u16) -> bool {
    let extra = u32::from(hosts.is_multiple_of(2));
    2 * (part.count_ones() + extra * u32::from(part & 1)) > u32::from(hosts) + extra
}

impl Quorum {
    /// The quorum at host `me` of so many, with so many switches. `timeout`: the
    /// time-out, ns.
    pub fn new(me: u16, hosts: u16, switches: u16, timeout: u64, now: u64) -> Quorum {
        let others = vec![None; usize::from(hosts)];
        let services = vec![Own::default(); usize::from(switches)];
        let heard_at = vec![now; usize::from(hosts)];
        Quorum {
            me,
            timeout,
            began_at: now,
            others,
            heard_at,
            services,
            has_news: false,
            is_leaving: false,
            next_beat: now,
        }
    }

    /// An earlier incarnation of this manager knew this term. To be called before
    /// anything is heard.
    pub fn remember(&mut self, switch: u16, term: u32) {
        self.hear_of(switch, term);
    }

    /// By switch, the latest term that is known, if one is new since the last call.
    /// Messages that follow may depend on it, so it has to be kept first.
    pub fn take_news(&mut self) -> Option<impl Iterator<Item = u32> + '_> {
        core::mem::take(&mut self.has_news).then(|| self.services.iter().map(|own| own.term))
    }

    /// The other hosts.
    pub fn others(&self) -> impl Iterator<Item = u16> + use<> {
        let (me, count) = (self.me, self.others.len() as u16);
        (0..count).filter(move |host| *host != me)
    }

    /// The time-out, ns.
    pub fn timeout(&self) -> u64 {
        self.timeout
    }

    /// Sets how many of a switch's ports have links that are up here. The others hear of
    /// a change at once.
    pub fn set_links(&mut self, switch: u16, links: u8) {
        if let Some(own) =
            self.services.get_mut(usize::from(switch)).filter(|own| own.links != links)
        {
            (own.links, self.next_beat) = (links, 0);
        }
    }

    /// Announces that this host is about to end: the others hear of it at once.
    pub fn leave(&mut self) {
        (self.is_leaving, self.next_beat) = (true, 0);
    }

    /// True if this host serves the ports of this switch.
    pub fn serves(&self, switch: u16) -> bool {
        self.services.get(usize::from(switch)).is_some_and(|own| own.serves)
    }

    /// True if this host may still serve its ports: after a standstill another host may
    /// do so by now.
    pub fn may_serve_at(&self, now: u64) -> bool {
        self.is_connected(now) || is_planted(Fault::ReleasesAfterStandstill)
    }

    fn bits(&self, is_meant: impl Fn(&Heard) -> bool) -> u16 {
        let heard = self
            .others
            .iter()
            .enumerate()
            .filter(|(_, heard)| heard.as_ref().is_some_and(&is_meant));
        heard.fold(1 << self.me, |bits, (host, _)| bits | 1 << host)
    }

    fn is_heard_by(&self, heard: &Heard, now: u64) -> bool {
        // An echo of an earlier incarnation's beat does not count.
        heard.echo >= self.began_at && now.saturating_sub(heard.echo) <= self.timeout
    }

    /// The hosts that are connected to this one, itself included, a bit each.
    pub fn connected(&self, now: u64) -> u16 {
        self.bits(|heard| self.is_heard_by(heard, now))
    }

    /// True if this host is connected to more than half.
    pub fn is_connected(&self, now: u64) -> bool {
        self.is_enough(self.connected(now))
    }

    fn is_enough(&self, hosts: u16) -> bool {
        is_majority(hosts, self.others.len() as u16)
    }

    /// The coordinator has given a switch's service to this incarnation of this host's
    /// manager (`is_meant`), or to another.
    pub fn handle_term(&mut self, switch: u16, is_meant: bool, term: u32) -> Option<Change> {
        let change = self.hear_of(switch, term);
        let own = self.services.get_mut(usize::from(switch))?;
        if term == own.term && term != own.served {
            own.is_meant = is_meant;
        }
        change
    }

    fn hear_of(&mut self, switch: u16, term: u32) -> Option<Change> {
        let is_later =
            |own: &&mut Own| term > own.term && (own.term == 0 || term - own.term <= MOST_TERMS);
        let own = self.services.get_mut(usize::from(switch)).filter(is_later)?;
        own.term = term;
        (own.is_meant, own.known_since) = (false, None);
        (self.next_beat, self.has_news) = (0, true);
        core::mem::take(&mut own.serves).then_some(Change::Retire(switch))
    }

    /// Takes another manager's beat. Returns the changes, one for each switch at most.
    pub fn handle_beat(&mut self, host: u16, beat: &Beat, now: u64) -> Vec<Change> {
        let Some(echo) = beat.echoes.get(usize::from(self.me)).copied() else { return Vec::new() };
        let Some(known) = self.others.get_mut(usize::from(host)) else { return Vec::new() };
        if beat.services.len() != self.services.len() || echo > now {
            // A host with another configuration means other switches by the same numbers,
            // so it does not count as connected. A host that echoes a time that has not
            // come does not count either: it would count as connected until then, even
            // when it is dead.
            return Vec::new();
        }
        // An age is a time of the other's clock, so it is capped: beyond two time-outs
        // its length does not matter.
        let had = |host: usize| {
            now.saturating_sub(beat.ages.get(host).map_or(0, |age| *age.min(&(2 * self.timeout))))
        };
        let had = (0..self.heard_at.len()).map(had).collect();
        // Echoes of the manager's earlier incarnation count as long as they would have:
        // this one knows the same terms, and does not say that it heard a host before it
        // began.
        let echo = known
            .as_ref()
            .filter(|_| !is_planted(Fault::ForgetsEchoes))
            .map_or(echo, |known| known.echo.max(echo));
        *known = Some(Heard { sent: beat.sent, echo, had, services: beat.services.clone() });
        self.heard_at[usize::from(host)] = now;
        let heard = (0..).zip(&beat.services);
        heard.filter_map(|(switch, service)| self.hear_of(switch, service.term)).collect()
    }

    /// Advances the time. Returns the changes, one for each switch at most.
    pub fn turn(&mut self, now: u64) -> Vec<Change> {
        (0..self.services.len()).filter_map(|switch| self.turn_service(switch, now)).collect()
    }

    fn turn_service(&mut self, switch: usize, now: u64) -> Option<Change> {
        let own = self.services[switch];
        if own.serves {
            if self.is_connected(now) {
                return None;
            }
            self.services[switch].serves = false;
            self.next_beat = 0;
            return Some(Change::Retire(switch as u16));
        }
        if !own.is_meant {
            return None;
        }
        let knows =
            |heard: &Heard| self.is_heard_by(heard, now) && heard.service(switch).term == own.term;
        if !self.is_enough(self.bits(knows)) {
            self.services[switch].known_since = None;
            return None;
        }
        let since = own.known_since.unwrap_or(now);
        self.services[switch].known_since = Some(since);
        if now.saturating_sub(since) <= self.longer_timeout() && !self.is_alone(switch, now) {
            return None;
        }
        let own = &mut self.services[switch];
        (own.serves, own.is_meant, own.served) = (true, false, own.term);
        self.next_beat = 0;
        Some(Change::Begin(switch as u16, own.term))
    }

    /// The time-out with a margin, because clocks do not run equally fast.
    fn longer_timeout(&self) -> u64 {
        self.timeout + self.timeout / 8
    }

    /// True if no host serves in an earlier term: more than half know the latest term,
    /// and when they last said so none of them had heard any of the others for a
    /// time-out. All are judged as of one time, because one of them, in a new incarnation
    /// that knows no term, could have heard an earlier server since.
    fn is_alone(&self, switch: usize, now: u64) -> bool {
        let is_idle =
            |service: Service| service.term == self.services[switch].term && !service.serves;
        let idle =
            self.bits(|heard| is_idle(heard.service(switch)) && self.is_heard_by(heard, now));
        let are_idle = || {
            self.others
                .iter()
                .enumerate()
                .filter(|(host, _)| idle & 1 << host != 0)
                .filter_map(|(_, heard)| heard.as_ref())
        };
        // An echo of a time was sent later.
        let said_at = are_idle().map(|heard| heard.echo).fold(now, u64::min);
        let is_over = |had: u64| had + self.longer_timeout() < said_at;
        let is_gone = |host: usize| {
            is_over(self.heard_at[host]) && are_idle().all(|heard| is_over(heard.had[host]))
        };
        self.is_enough(idle)
            && (0..self.others.len()).filter(|host| idle & 1 << host == 0).all(is_gone)
    }

    /// The next beat, if it is due.
    pub fn poll_beat(&mut self, now: u64) -> Option<Beat> {
        if now < self.next_beat {
            return None;
        }
        self.next_beat = now + self.timeout / 6;
        let echoes =
            self.others.iter().map(|heard| heard.as_ref().map_or(0, |heard| heard.sent)).collect();
        let ages = self.heard_at.iter().map(|at| now.saturating_sub(*at)).collect();
        let service = |own: &Own| Service { term: own.term, serves: own.serves, links: own.links };
        let services = self.services.iter().map(service).collect();
        Some(Beat {
            sent: now,
            echoes,
            ages,
            connected: self.connected(now),
            services,
            is_leaving: self.is_leaving,
        })
    }

    /// The time of the next turn.
    pub fn poll_timeout(&self) -> u64 {
        self.next_beat
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: u64 = 600;
    const SWITCHES: u16 = 2;

    /// Hosts whose beats arrive at once where the link is not cut. Their clocks begin at
    /// different times.
    struct Hosts {
        quorums: Vec<Quorum>,
        offsets: Vec<u64>,
        cut: Vec<(usize, usize)>,
        stopped: Vec<usize>,
        late: Vec<(usize, usize, Beat)>,
    }

    impl Hosts {
        fn new(count: u16) -> Hosts {
            let offsets: Vec<u64> =
                (0..u64::from(count)).map(|host| 10_000 * (host * 7 % 5 + 1)).collect();
            let quorums = (0..count)
                .map(|host| Quorum::new(host, count, SWITCHES, TIMEOUT, offsets[usize::from(host)]))
                .collect();
            Hosts { quorums, offsets, cut: Vec::new(), stopped: Vec::new(), late: Vec::new() }
        }

        fn give(&mut self, host: u16, term: u32, told: &[usize]) {
            self.give_switch(0, host, term, told);
        }

        fn give_switch(&mut self, switch: u16, host: u16, term: u32, told: &[usize]) {
            for at in told {
                self.quorums[*at].handle_term(switch, host == *at as u16, term);
            }
        }

        /// Runs until a time, and checks that two hosts never serve a switch at a time.
        fn run(&mut self, from: u64, to: u64) {
            for now in (from..to).step_by(10) {
                for at in 0..self.quorums.len() {
                    if self.stopped.contains(&at) {
                        continue;
                    }
                    let own = now + self.offsets[at];
                    self.quorums[at].turn(own);
                    let Some(beat) = self.quorums[at].poll_beat(own) else { continue };
                    for other in (0..self.quorums.len()).filter(|other| *other != at) {
                        if self.cut.contains(&(at, other)) {
                            self.late.push((at, other, beat.clone()));
                        } else if !self.stopped.contains(&other) {
                            let heard_at = now + self.offsets[other];
                            self.quorums[other].handle_beat(at as u16, &beat, heard_at);
                        }
                    }
                }
                for switch in 0..SWITCHES {
                    let serving = self.serving_switch(switch);
                    assert!(serving.len() < 2, "{serving:?} serve switch {switch} at {now}");
                }
            }
        }

        /// The hosts that serve the first switch; a stopped host does nothing.
        fn serving(&self) -> Vec<usize> {
            self.serving_switch(0)
        }

        fn serving_switch(&self, switch: u16) -> Vec<usize> {
            (0..self.quorums.len())
                .filter(|at| self.quorums[*at].serves(switch) && !self.stopped.contains(at))
                .collect()
        }
    }

    /// Three hosts begin together: nothing is to be waited for.
    #[test]
    fn the_first_term_begins_at_once() {
        let mut hosts = Hosts::new(3);
        hosts.give(0, 1, &[0, 1, 2]);
        hosts.run(0, 3 * TIMEOUT / 6);
        assert_eq!(hosts.serving(), [0]);
    }

    /// A damaged message names a term that nobody has given, or echoes a time that has
    /// not come. The host that serves goes on, and stops in time when it is alone.
    #[test]
    fn no_beat_leaps() {
        let mut hosts = Hosts::new(3);
        hosts.give(0, 1, &[0, 1, 2]);
        hosts.run(0, 1000);
        let now = 1000 + hosts.offsets[0];
        for (term, echo) in [(u32::MAX, now), (1 << 20, now), (1, now + 1), (1, u64::MAX)] {
            let services = vec![Service { term, serves: false, links: 0 }; SWITCHES.into()];
            let beat = Beat {
                sent: 1,
                echoes: vec![echo; 3],
                ages: vec![0; 3],
                connected: 7,
                services,
                is_leaving: false,
            };
            assert_eq!(hosts.quorums[0].handle_beat(1, &beat, now), []);
        }
        hosts.run(1000, 1100);
        assert_eq!(hosts.serving(), [0]);
        hosts.stopped = vec![1, 2];
        hosts.run(1100, 1200 + TIMEOUT);
        assert_eq!(hosts.serving(), [0; 0]);
    }

    /// The host that serves stands still for as long as it takes another to begin. When
    /// it goes on it knows at once that it may not, before it has heard anybody.
    #[test]
    fn who_stood_still_knows_it_at_once() {
        let mut hosts = Hosts::new(3);
        hosts.give(0, 1, &[0, 1, 2]);
        hosts.run(0, 1000);
        assert!(hosts.quorums[0].may_serve_at(1000 + hosts.offsets[0]));
        hosts.stopped.push(0);
        hosts.give(1, 2, &[1, 2]);
        hosts.run(1000, 1000 + 3 * TIMEOUT);
        assert_eq!(hosts.serving(), [1]);
        let now = 1000 + 3 * TIMEOUT + hosts.offsets[0];
        assert!(hosts.quorums[0].serves(0) && !hosts.quorums[0].may_serve_at(now));
    }

    /// The host that serves dies. Another begins, and not before the dead one would have
    /// stopped.
    #[test]
    fn another_begins_when_the_first_must_have_stopped() {
        let mut hosts = Hosts::new(3);
        hosts.give(0, 1, &[0, 1, 2]);
        hosts.run(0, 1000);
        hosts.stopped.push(0);
        hosts.give(1, 2, &[1, 2]);
        hosts.run(1000, 1000 + TIMEOUT);
        assert_eq!(hosts.serving(), [0; 0]);
        hosts.run(1000 + TIMEOUT, 1000 + 2 * TIMEOUT);
        assert_eq!(hosts.serving(), [1]);
        // The host comes back from a standstill: it does not serve for a moment, and
        // never again in its old term.
        hosts.stopped.clear();
        hosts.run(1000 + 2 * TIMEOUT, 1000 + 6 * TIMEOUT);
        assert_eq!(hosts.serving(), [1]);
    }

    /// Two hosts serve a switch each. The first one dies, and the other serves both, its
    /// own without a pause; then that one is cut off, and loses both.
    #[test]
    fn each_switch_is_served_by_a_host_of_its_own() {
        let mut hosts = Hosts::new(3);
        hosts.give_switch(0, 1, 1, &[0, 1, 2]);
        hosts.give_switch(1, 2, 1, &[0, 1, 2]);
        hosts.run(0, 1000);
        assert_eq!((hosts.serving_switch(0), hosts.serving_switch(1)), (vec![1], vec![2]));
        hosts.stopped.push(2);
        hosts.give_switch(1, 1, 2, &[0, 1]);
        hosts.run(1000, 1000 + TIMEOUT);
        assert_eq!((hosts.serving_switch(0), hosts.serving_switch(1)), (vec![1], vec![]));
        hosts.run(1000 + TIMEOUT, 1000 + 2 * TIMEOUT);
        assert_eq!((hosts.serving_switch(0), hosts.serving_switch(1)), (vec![1], vec![1]));
        hosts.stopped.clear();
        hosts.run(1000 + 2 * TIMEOUT, 1000 + 4 * TIMEOUT);
        assert_eq!((hosts.serving_switch(0), hosts.serving_switch(1)), (vec![1], vec![1]));
        hosts.cut = vec![(1, 0), (1, 2)];
        hosts.give_switch(0, 2, 2, &[0, 2]);
        hosts.give_switch(1, 0, 3, &[0, 2]);
        hosts.run(1000 + 4 * TIMEOUT, 1000 + 8 * TIMEOUT);
        assert_eq!((hosts.serving_switch(0), hosts.serving_switch(1)), (vec![2], vec![0]));
    }

    /// The serving host is cut off, in one direction or both: it stops by itself, before
    /// another begins. Beats that were under way arrive much later and deceive no host.
    #[test]
    fn who_is_cut_off_stops_in_time() {
        for cut in
            [vec![(0, 1), (0, 2)], vec![(1, 0), (2, 0)], vec![(0, 1), (0, 2), (1, 0), (2, 0)]]
        {
            let mut hosts = Hosts::new(3);
            hosts.give(0, 1, &[0, 1, 2]);
            hosts.run(0, 1000);
            hosts.cut = cut.clone();
            hosts.give(1, 2, &[1, 2]);
            hosts.run(1000, 1000 + 3 * TIMEOUT);
            assert_eq!(hosts.serving(), [1], "{cut:?}");
            for (from, to, beat) in core::mem::take(&mut hosts.late) {
                let now = 1000 + 3 * TIMEOUT + hosts.offsets[to];
                hosts.quorums[to].handle_beat(from as u16, &beat, now);
            }
            hosts.run(1000 + 3 * TIMEOUT, 1000 + 4 * TIMEOUT);
            assert_eq!(hosts.serving(), [1], "{cut:?}");
            hosts.cut.clear();
            hosts.run(1000 + 4 * TIMEOUT, 1000 + 8 * TIMEOUT);
            assert_eq!(hosts.serving(), [1], "{cut:?}");
        }
    }

    /// Two parts overlap in one host, which both hear: it passes the later term on.
    #[test]
    fn a_term_is_passed_on() {
        let mut hosts = Hosts::new(5);
        hosts.give(0, 1, &[0, 1, 2, 3, 4]);
        hosts.run(0, 1000);
        hosts.cut = [0, 3, 4]
            .iter()
            .flat_map(|a| [1, 2].map(|b| [(*a, b), (b, *a)]))
            .flatten()
            .filter(|(a, b)| ![*a, *b].contains(&3))
            .collect();
        hosts.give(1, 2, &[1]);
        hosts.run(1000, 1000 + 4 * TIMEOUT);
        assert_eq!(hosts.serving(), [1]);
    }

    /// With two hosts, the first is enough by itself, and the second is not.
    #[test]
    fn of_two_the_first_is_enough() {
        for (dead, living) in [(0, vec![]), (1, vec![0])] {
            let mut hosts = Hosts::new(2);
            hosts.give(0, 1, &[0, 1]);
            hosts.run(0, 1000);
            assert_eq!(hosts.serving(), [0]);
            hosts.stopped.push(dead);
            hosts.give(1 - dead as u16, 2, &[1 - dead]);
            hosts.run(1000, 1000 + 4 * TIMEOUT);
            assert_eq!(hosts.serving(), living);
        }
    }

    /// A serving host is dead when another is told to follow. The successor does not wait
    /// for another time-out, because no host has heard the dead one for so long.
    #[test]
    fn who_follows_a_dead_host_begins_soon() {
        let mut hosts = Hosts::new(3);
        hosts.give(0, 1, &[0, 1, 2]);
        hosts.run(0, 1000);
        hosts.stopped.push(0);
        hosts.run(1000, 1000 + TIMEOUT);
        hosts.give(1, 2, &[1, 2]);
        hosts.run(1000 + TIMEOUT, 1000 + 3 * TIMEOUT / 2);
        assert_eq!(hosts.serving(), [1]);
    }

    /// The second host is to follow the first, which it cannot hear, and which has missed
    /// that the third knows the term. The third host's manager dies, and its next
    /// incarnation speaks to the first only. The third still knows the term, so its beats
    /// keep no host connected that serves in an earlier one.
    #[test]
    fn a_vote_outlives_its_manager() {
        let mut hosts = Hosts::new(3);
        hosts.give(0, 1, &[0, 1, 2]);
        hosts.run(0, 1000);
        hosts.cut = vec![(0, 1), (1, 0), (2, 0)];
        hosts.give(1, 2, &[1, 2]);
        hosts.run(1000, 1000 + TIMEOUT / 2);
        let now = 1000 + TIMEOUT / 2 + hosts.offsets[2];
        let known: Vec<u32> =
            hosts.quorums[2].take_news().map(Iterator::collect).unwrap_or_default();
        assert_eq!((known, hosts.quorums[2].take_news().is_some()), (vec![2, 0], false));
        hosts.quorums[2] = Quorum::new(2, 3, SWITCHES, TIMEOUT, now);
        hosts.quorums[2].remember(0, 2);
        hosts.cut = vec![(0, 1), (1, 0), (2, 1)];
        hosts.run(1000 + TIMEOUT / 2, 1000 + 3 * TIMEOUT);
        assert!(!hosts.quorums[0].serves(0));
    }

    /// Both other managers die, and the first beats of their next incarnations echo
    /// nothing. The serving host goes on: the earlier incarnations' echoes are not old.
    /// If nothing follows, it does not go on for longer.
    #[test]
    fn next_incarnations_that_have_heard_nobody_stop_nobody() {
        let mut hosts = Hosts::new(3);
        hosts.give(0, 1, &[0, 1, 2]);
        hosts.run(0, 1000);
        for at in [1, 2] {
            let now = 1000 + hosts.offsets[at];
            hosts.quorums[at] = Quorum::new(at as u16, 3, SWITCHES, TIMEOUT, now);
            hosts.quorums[at].remember(0, 1);
            let beat = hosts.quorums[at].poll_beat(now).expect("it begins with a beat");
            assert_eq!(beat.echoes[0], 0);
            hosts.quorums[0].handle_beat(at as u16, &beat, 1000 + hosts.offsets[0]);
        }
        assert_eq!(hosts.quorums[0].turn(1000 + hosts.offsets[0]), []);
        assert!(hosts.quorums[0].serves(0));
        assert_eq!(hosts.quorums[0].turn(1001 + TIMEOUT + hosts.offsets[0]), [Change::Retire(0)]);
    }

    /// SplitMix64: chance from a seed.
    struct Chance(u64);

    impl Chance {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % limit
        }
    }

    /// Links are cut, lose and delay, in each direction by itself; hosts stand still;
    /// clocks run apart by 5 %; terms are given to any host at any time, which some hear
    /// of late. Two hosts never serve at a time, by any clock. When all is whole again
    /// the host of the last term serves.
    #[test]
    fn never_two_whatever_happens() {
        let mut passed = 0;
        for seed in 0..300 {
            let mut chance = Chance(seed);
            let count = 2 + chance.below(4) as usize;
            // Thousandths of its second that a host's clock counts in a true one.
            let rates: Vec<u64> = (0..count).map(|_| 975 + chance.below(51)).collect();
            let own =
                |at: usize, now: u64| 1_000_000 * (at as u64 * 7 % 5 + 1) + now * rates[at] / 1000;
            let mut quorums: Vec<Quorum> = (0..count)
                .map(|at| Quorum::new(at as u16, count as u16, 1, TIMEOUT, own(at, 0)))
                .collect();
            let (mut cut, mut stopped_until) = (vec![vec![false; count]; count], vec![0; count]);
            // Arrival time, sender, receiver.
            let mut flying: Vec<(u64, usize, usize, Beat)> = Vec::new();
            let mut told: Vec<(u64, usize, (usize, u32), u32)> = Vec::new();
            let (mut term, mut last, mut incarnations) = (0, None, vec![0; count]);
            const CALM: u64 = 40 * TIMEOUT;
            // Late beats have arrived by then.
            const GIVEN: u64 = CALM + 5 * TIMEOUT;
            const END: u64 = 60 * TIMEOUT;
            for now in (0..END).step_by(5) {
                let is_calm = now >= CALM;
                if is_calm {
                    cut.iter_mut().flatten().for_each(|cut| *cut = false);
                } else {
                    if chance.below(60) == 0 {
                        let (from, to) = (
                            chance.below(count as u64) as usize,
                            chance.below(count as u64) as usize,
                        );
                        cut[from][to] = !cut[from][to];
                    }
                    if chance.below(150) == 0 {
                        let at = chance.below(count as u64) as usize;
                        stopped_until[at] = now + chance.below(3 * TIMEOUT);
                    }
                    if chance.below(100) == 0 {
                        // The manager dies, and its next incarnation is there in a
                        // moment.
                        let at = chance.below(count as u64) as usize;
                        let pause = chance.below(TIMEOUT / 2);
                        stopped_until[at] = stopped_until[at].max(now + pause);
                        quorums[at] =
                            Quorum::new(at as u16, count as u16, 1, TIMEOUT, own(at, now + pause));
                        incarnations[at] += 1;
                        flying.retain(|(_, _, to, _)| *to != at);
                    }
                }
                if !is_calm && chance.below(80) == 0 || now == GIVEN {
                    term += 1;
                    let to = chance.below(count as u64) as usize;
                    last = Some(to);
                    for at in 0..count {
                        let delay = if chance.below(3) == 0 { 3 * TIMEOUT } else { 20 };
                        if is_calm || chance.below(4) > 0 {
                            told.push((
                                now + chance.below(delay),
                                at,
                                (to, incarnations[to]),
                                term,
                            ));
                        }
                    }
                }
                for at in 0..count {
                    if stopped_until[at] > now {
                        continue;
                    }
                    let own = own(at, now);
                    for (_, _, to, term) in told
                        .extract_if(.., |(due, host, ..)| *host == at && *due <= now)
                        .collect::<Vec<_>>()
                    {
                        quorums[at].handle_term(0, to == (at, incarnations[at]), term);
                    }
                    for (_, from, _, beat) in flying
                        .extract_if(.., |(due, _, to, _)| *to == at && *due <= now)
                        .collect::<Vec<_>>()
                    {
                        quorums[at].handle_beat(from as u16, &beat, own);
                    }
                    let changes = quorums[at].turn(own);
                    passed +=
                        changes.iter().filter(|change| matches!(change, Change::Begin(..))).count();
                    let Some(beat) = quorums[at].poll_beat(own) else { continue };
                    for to in (0..count).filter(|to| *to != at) {
                        let is_lost = cut[at][to] || !is_calm && chance.below(10) == 0;
                        // Beats arrive in order, as in the channel.
                        let behind = flying
                            .iter()
                            .filter(|(_, from, other, _)| (*from, *other) == (at, to))
                            .map(|(due, ..)| *due)
                            .max();
                        let delay =
                            if is_calm || chance.below(8) > 0 { 5 } else { chance.below(TIMEOUT) };
                        if !is_lost {
                            flying.push((
                                (now + delay).max(behind.unwrap_or(0)),
                                at,
                                to,
                                beat.clone(),
                            ));
                        }
                    }
                }
                let serve = |at: &usize| {
                    stopped_until[*at] <= now
                        && quorums[*at].serves(0)
                        && quorums[*at].may_serve_at(own(*at, now))
                };
                let serving: Vec<usize> = (0..count).filter(serve).collect();
                assert!(serving.len() < 2, "seed {seed}: {serving:?} serve at {now}");
                // With two hosts, the second one alone is not enough, but both are here.
                assert!(
                    now + 5 < END || serving == last.map_or(vec![], |last| vec![last]),
                    "seed {seed}: {serving:?} serve, not {last:?}"
                );
            }
        }
        assert!(passed > 300, "service passes: {passed}");
    }

    /// Two parts of one cluster are never both more than half.
    #[test]
    fn two_parts_are_never_both_enough() {
        for hosts in 1..=13u16 {
            let all = ((1u32 << hosts) - 1) as u16;
            assert!(is_majority(all, hosts));
            for part in 0..=all {
                assert!(
                    !(is_majority(part, hosts) && is_majority(all & !part, hosts)),
                    "{hosts} hosts, {part:b}"
                );
            }
        }
    }
}
