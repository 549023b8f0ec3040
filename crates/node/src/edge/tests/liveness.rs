//! Routers that speak BFD: which packets the edge takes for it, its answers, and the
//! routes meanwhile.

use super::*;
use crate::bfd::{Key, KeyKind, Memory, Peer, Session, Settings};
use crate::edge::liveness::write;
use holdfast_wire::bfd::{Control, MAX_LEN, PORT, State};

const MS: u64 = 1_000_000;
const ROUTER_MAC: Mac = [2, 0, 0, 0, 1, 254];
/// Routers at port 1, and the box's addresses towards them.
const FOUR: (&str, &str) = ("203.0.113.254", "203.0.113.1");
const SIX: (&str, &str) = ("2001:db8:b::fe", "2001:db8:b::1");
const LINK_LOCAL: (&str, &str) = ("fe80::fe", "fe80::ff:fe00:b1");
/// Stations that answer when asked for their MAC addresses, whether the router is cut off
/// or not.
const ANSWERS: [(&str, &str); 4] = [
    ("arp who-has 203.0.113.254", "arp 203.0.113.254 is-at 02:00:00:00:01:fe to=box1"),
    ("arp who-has 203.0.113.253", "arp 203.0.113.253 is-at 02:00:00:00:01:fd to=box1"),
    ("ns 2001:db8:b::fe", "na 2001:db8:b::fe"),
    ("ns fe80::fe", "na fe80::fe dst=fe80::ff:fe00:b1"),
];
/// A packet that is routed through the first router.
const OUT: &str = "udp 198.51.100.4:1 > 192.0.2.7:2";

fn bytes(address: &str) -> [u8; 16] {
    ip_bytes(address.parse().expect("a test's address"))
}

fn settings(key: Option<Key>) -> Settings {
    Settings { min_transmit: 50_000, min_receive: 50_000, multiplier: 3, key }
}

/// The box with a session, and the router at its other end.
struct Rig {
    bench: Bench,
    router: Session,
    ends: (&'static str, &'static str),
    /// Set if the router hears nothing and says nothing.
    is_cut: bool,
    events: Vec<(u8, State)>,
    /// BFD frames of the box.
    heard: Vec<Vec<u8>>,
    noted: Option<Memory>,
}

impl Rig {
    fn new(ends: (&'static str, &'static str), key: Option<&Key>, routes: &[(&str, &str)]) -> Rig {
        let config = Rig::config(ends, key, routes, 5);
        let mut bench = Bench::new();
        bench.edge = Edge::new(config);
        bench.edge.set_serving(true, bench.now);
        bench.port(1, "arp who-has 203.0.113.1 tell 203.0.113.254");
        bench.port(1, "arp who-has 203.0.113.1 tell 203.0.113.253");
        bench.port(1, "ns 2001:db8:b::1 from 2001:db8:b::fe");
        let router = Session::new(settings(key.cloned()), 77, 1, bench.now);
        Rig {
            bench,
            router,
            ends,
            is_cut: false,
            events: Vec::new(),
            heard: Vec::new(),
            noted: None,
        }
    }

    fn config(
        ends: (&'static str, &'static str),
        key: Option<&Key>,
        routes: &[(&str, &str)],
        seed: u64,
    ) -> EdgeConfig {
        let mut config = config();
        config.bfd =
            vec![Peer { port: 1, address: bytes(ends.0), settings: settings(key.cloned()) }];
        config.seed = seed;
        if ends == LINK_LOCAL {
            config.routes[2].gateway = ends.0.parse().ok();
        }
        let route = |(to, via): &(&str, &str)| EdgeRoute {
            prefix: to.parse().expect("a test's prefix"),
            port: 1,
            gateway: Some(via.parse().expect("a test's address")),
        };
        config.routes.extend(routes.iter().map(route));
        config
    }

    /// Starts the box's next incarnation, after a pause.
    fn next_incarnation(&mut self, pause: u64) {
        self.bench.now += pause;
        self.bench.edge.abandon(&mut self.bench.pool);
        self.bench.edge = Edge::new(Rig::config(self.ends, None, &[], 6));
        self.bench.edge.remember(vec![self.noted]);
        self.bench.edge.set_serving(true, self.bench.now);
    }

    fn up(ends: (&'static str, &'static str), routes: &[(&str, &str)]) -> Rig {
        let mut rig = Rig::new(ends, None, routes);
        rig.run(5 * SECOND);
        assert_eq!((rig.router.state(), rig.events.last()), (State::Up, Some(&(1, State::Up))));
        rig.events.clear();
        rig
    }

    /// A datagram of the router's, with these addresses.
    fn frame(&mut self, from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
        let mut packet = self.bench.pool.take().expect("the pool holds more than a test uses");
        packet.clear();
        write(&mut packet, (&bytes(from), &bytes(to)), 50_000, payload).expect("it fits");
        packet.bytes_mut()[..6].copy_from_slice(&BOX[1]);
        packet.bytes_mut()[6..12].copy_from_slice(&ROUTER_MAC);
        let frame = packet.bytes().to_vec();
        self.bench.pool.put(packet);
        frame
    }

    /// Effects of the edge, apart from BFD, in words.
    fn take(&mut self) -> Vec<String> {
        self.events.extend(
            self.bench.out.liveness.drain(..).map(|liveness| (liveness.port, liveness.change.to)),
        );
        self.noted =
            self.bench.out.notes.drain(..).next_back().map(|(_, memory)| memory).or(self.noted);
        let is_bfd =
            |packet: &Packet| packet.udp().is_some_and(|udp| udp.destination.get() == PORT);
        for at in (0..self.bench.out.transmit.len()).rev() {
            if is_bfd(self.bench.out.transmit[at].1.get()) {
                let (port, released) = self.bench.out.transmit.remove(at);
                assert_eq!(port, 1);
                let packet = released.into_inner();
                self.heard.push(packet.bytes().to_vec());
                self.bench.pool.put(packet);
            }
        }
        self.bench.effects(Vec::new())
    }

    /// Runs for so many ns, in steps of one millisecond.
    fn run(&mut self, ns: u64) -> Vec<String> {
        let mut effects = Vec::new();
        let end = self.bench.now + ns;
        let mut draw = 1u64;
        let mut random = || {
            draw = draw
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            draw
        };
        while self.bench.now < end {
            self.bench.now += MS;
            let now = self.bench.now;
            self.router.handle_timeout(now);
            let mut into = [0; MAX_LEN];
            while let Some(len) = self.router.poll_transmit(now, &mut random, &mut into) {
                if !self.is_cut {
                    let frame = self.frame(self.ends.0, self.ends.1, &into[..len]);
                    let packet = self.bench.packet(&frame);
                    let forwarded = self.bench.edge.handle_ingress(
                        1,
                        packet,
                        now,
                        &mut self.bench.out,
                        &mut self.bench.pool,
                    );
                    assert!(forwarded.is_none());
                }
            }
            if self.bench.edge.poll_timeout() <= now {
                self.bench.edge.handle_timeout(now, &mut self.bench.out, &mut self.bench.pool);
            }
            let said = self.take();
            for (question, answer) in ANSWERS {
                if said.iter().any(|word| word.contains(question)) {
                    // A packet that waited for the answer leaves with it, and may be BFD.
                    let packet = self.bench.packet(&frame(1, answer));
                    let forwarded = self.bench.edge.handle_ingress(
                        1,
                        packet,
                        now,
                        &mut self.bench.out,
                        &mut self.bench.pool,
                    );
                    assert!(forwarded.is_none());
                    effects.extend(self.take());
                }
            }
            effects.extend(said);
            for frame in core::mem::take(&mut self.heard) {
                let mut packet = self.bench.packet(&frame);
                packet.parse().expect("the box sends whole packets");
                assert_eq!(
                    (packet.ttl(), packet.udp().map(|udp| udp.source.get() >= 49_152)),
                    (Some(255), Some(true))
                );
                let payload = packet.l4()[8..].to_vec();
                self.bench.pool.put(packet);
                let control = Control::parse(&payload).expect("the box sends control packets");
                if !self.is_cut {
                    let _ = self.router.handle(&control, &payload, now);
                }
            }
        }
        effects
    }

    fn send(&mut self, words: &str) -> String {
        self.bench.released(0, words).join("; ")
    }
}

#[test]
fn a_router_that_dies_loses_its_routes_and_gets_them_back() {
    let six = "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2";
    for (ends, words) in [(FOUR, OUT), (SIX, six), (LINK_LOCAL, six)] {
        let mut rig = Rig::up(ends, &[]);
        assert!(rig.send(words).contains("box1>host254"));
        rig.is_cut = true;
        rig.run(100 * MS);
        assert!(rig.send(words).contains("box1>host254"), "it may be alive yet");
        rig.run(100 * MS);
        assert_eq!(rig.events, [(1, State::Down)]);
        let said = rig.send(words);
        assert!(said.contains("drop next_hop_down") && said.contains("again 0>"), "{said}");
        assert!(rig.bench.edge.liveness().all(|(port, _, session, is_dead)| {
            port == 1 && is_dead && session.state() == State::Down && session.downs().0 == 1
        }));
        // A station on the link needs no router.
        assert!(!rig.send("udp 198.51.100.4:1 > 203.0.113.253:2").contains("next_hop_down"));
        rig.is_cut = false;
        rig.run(5 * SECOND);
        assert!(rig.send(words).contains("box1>host254"), "{:?}", rig.events);
    }
}

/// The next best route is taken, of the same prefix or a shorter one, and left again.
#[test]
fn another_route_is_used_meanwhile() {
    for other in ["192.0.0.0/8", "0.0.0.0/0"] {
        let mut rig = Rig::up(FOUR, &[(other, "203.0.113.253")]);
        assert!(rig.send(OUT).contains("box1>host254"), "the first one is used while it can be");
        rig.is_cut = true;
        rig.run(200 * MS);
        assert!(rig.send(OUT).contains("box1>host253"));
        rig.is_cut = false;
        rig.run(5 * SECOND);
        assert!(rig.send(OUT).contains("box1>host254"));
    }
}

/// A router that does not speak BFD, or not yet, keeps its routes. A router that holds
/// its session down on purpose says nothing about the way to it, and keeps them too.
#[test]
fn who_was_never_up_or_is_switched_off_loses_nothing() {
    let mut rig = Rig::new(FOUR, None, &[]);
    rig.is_cut = true;
    rig.run(10 * SECOND);
    assert!(rig.send(OUT).contains("box1>host254") && rig.events.is_empty());

    let mut rig = Rig::up(FOUR, &[]);
    rig.router.set_admin_down(true, rig.bench.now);
    rig.run(SECOND);
    assert_eq!(rig.events, [(1, State::Down)]);
    assert!(rig.send(OUT).contains("box1>host254"));
    // The router keeps its routes when its word is forgotten, too.
    rig.is_cut = true;
    rig.run(10 * SECOND);
    assert!(rig.send(OUT).contains("box1>host254"));
    assert_eq!(rig.events, [(1, State::Down)]);
}

/// A dead router that says that it is switched off is not known to be dead any more.
#[test]
fn a_dead_router_that_is_switched_off_is_used_again() {
    let mut rig = Rig::up(FOUR, &[]);
    rig.is_cut = true;
    rig.run(200 * MS);
    assert!(rig.send(OUT).contains("drop next_hop_down"));
    rig.router.set_admin_down(true, rig.bench.now);
    rig.is_cut = false;
    rig.run(2 * SECOND);
    assert!(rig.send(OUT).contains("box1>host254"));
}

/// The box's next incarnation continues the session, and the router notices nothing. If
/// the pause was so long that it does notice, no route is lost for that. A dead router
/// stays dead.
#[test]
fn the_next_incarnation_knows_its_routers() {
    let mut rig = Rig::up(FOUR, &[]);
    rig.next_incarnation(60 * MS);
    rig.run(5 * SECOND);
    assert_eq!((rig.router.downs().0, &rig.events[..]), (0, &[][..]));
    assert!(rig.send(OUT).contains("box1>host254"));

    rig.next_incarnation(400 * MS);
    assert!(
        rig.bench
            .edge
            .liveness()
            .all(|(.., session, is_dead)| session.state() == State::Down && !is_dead)
    );
    // The route is in use: the router is asked for its MAC address.
    assert_eq!(rig.send(OUT), "1< box1>all arp who-has 203.0.113.254 tell 203.0.113.1");
    rig.bench.port(1, ANSWERS[0].1);
    assert!(rig.send(OUT).contains("box1>host254"));
    rig.run(5 * SECOND);
    assert_eq!((rig.router.downs().0, rig.events.last()), (1, Some(&(1, State::Up))));

    rig.is_cut = true;
    rig.run(SECOND);
    rig.next_incarnation(SECOND);
    assert!(rig.send(OUT).contains("drop next_hop_down"));
    rig.is_cut = false;
    rig.run(5 * SECOND);
    assert!(rig.send(OUT).contains("box1>host254"));
}

/// BFD is only a configured router's packet with a full TTL, to the box's own address.
/// All other packets to that port are treated as without BFD.
#[test]
fn what_is_not_bfd_is_as_before() {
    let mut rig = Rig::up(FOUR, &[]);
    let mut payload = [0; MAX_LEN];
    let mut other = Session::new(settings(None), 9, 0, 0);
    let len = other.poll_transmit(0, &mut || 0, &mut payload).expect("it is due");
    let payload = payload[..len].to_vec();
    let local = |said: Vec<String>| said.iter().any(|word| word == "drop local");

    // The packet has crossed a router.
    let mut far = rig.frame(FOUR.0, FOUR.1, &payload);
    far[22] = 254;
    let sum = checksum::checksum(&[&far[14..24], &[0; 2], &far[26..34]].concat());
    far[24..26].copy_from_slice(&sum.to_be_bytes());
    assert!(local(rig.bench.port_bytes(1, &far)));
    // The source is another station, or the packet comes by another port than the
    // router's.
    let stranger = rig.frame("203.0.113.9", FOUR.1, &payload);
    assert!(local(rig.bench.port_bytes(1, &stranger)));
    let mut elsewhere = rig.frame(FOUR.0, "10.0.0.1", &payload);
    assert!(local(rig.bench.port_bytes(1, &elsewhere)));
    elsewhere = rig.frame(FOUR.0, FOUR.1, &payload);
    elsewhere[..6].copy_from_slice(&BOX[0]);
    assert_eq!(rig.bench.port_bytes(0, &elsewhere), ["drop spoofed_source"]);
    // The address is only a chain's: the packet is for the chain.
    let chain = rig.frame(FOUR.0, "198.51.100.4", &payload);
    assert!(rig.bench.port_bytes(1, &chain)[0].starts_with("forward "));
    // No session has heard any of them.
    assert!(
        rig.events.is_empty()
            && rig.bench.edge.liveness().all(|(.., session, _)| session.state() == State::Up)
    );
    // The address is the box's own and a chain uses it too: the packet is the session's.
    let own = rig.frame(FOUR.0, "203.0.113.2", &payload);
    rig.bench.port_bytes(1, &own);
    rig.run(10 * MS);
    assert_eq!(rig.events.first(), Some(&(1, State::Down)), "the router seems to begin anew");
}

#[test]
fn what_is_wrong_is_counted_by_reason() {
    let key = Key::new(KeyKind::MeticulousKeyedSha1, 1, b"secret").expect("a key");
    let mut rig = Rig::new(FOUR, Some(&key), &[]);
    rig.run(5 * SECOND);
    assert_eq!(rig.router.state(), State::Up);
    let mut into = [0; MAX_LEN];
    let mut plain = Session::new(settings(None), 9, 0, 0);
    let len = plain.poll_transmit(0, &mut || 0, &mut into).expect("it is due");
    let unsigned = rig.frame(FOUR.0, FOUR.1, &into[..len]);
    assert_eq!(rig.bench.port_bytes(1, &unsigned), ["drop bfd_unauthenticated"]);
    let short = rig.frame(FOUR.0, FOUR.1, &into[..10]);
    assert_eq!(rig.bench.port_bytes(1, &short), ["drop bfd_malformed"]);
    let empty = rig.frame(FOUR.0, FOUR.1, &[]);
    assert_eq!(rig.bench.port_bytes(1, &empty), ["drop bfd_malformed"]);
    let mut other = into;
    other[8] = 0x55;
    let other = rig.frame(FOUR.0, FOUR.1, &other[..len]);
    assert_eq!(rig.bench.port_bytes(1, &other), ["drop bfd_no_session"]);
    let mut damaged = rig.frame(FOUR.0, FOUR.1, &into[..len]);
    damaged[50] ^= 1;
    assert_eq!(rig.bench.port_bytes(1, &damaged), ["drop bad_checksum"]);
    // The same packet of the router comes twice.
    rig.router.set_intervals(60_000, 50_000, 3);
    rig.bench.now += 60 * MS;
    let len = rig.router.poll_transmit(rig.bench.now, &mut || 0, &mut into).expect("it is due");
    let signed = rig.frame(FOUR.0, FOUR.1, &into[..len]);
    assert!(!rig.bench.port_bytes(1, &signed).iter().any(|word| word.starts_with("drop")));
    assert_eq!(rig.bench.port_bytes(1, &signed), ["drop bfd_replayed"]);
    assert!(rig.bench.edge.liveness().all(|(.., session, _)| session.state() == State::Up));
}

/// While another host serves the ports, nothing is sent and no route is out of use; with
/// service sessions begin anew.
#[test]
fn only_who_serves_speaks() {
    let mut rig = Rig::up(FOUR, &[]);
    rig.is_cut = true;
    rig.run(200 * MS);
    assert!(rig.send(OUT).contains("drop next_hop_down"));
    rig.bench.edge.set_serving(false, rig.bench.now);
    assert!(rig.send(OUT).contains("box1>host254"));
    assert_eq!((rig.bench.edge.liveness().count(), rig.run(5 * SECOND)), (0, Vec::new()));
    rig.is_cut = false;
    let now = rig.bench.now;
    rig.bench.edge.set_serving(true, now);
    rig.run(5 * SECOND);
    assert_eq!(rig.router.state(), State::Up);
}

/// A router that does not exist. Its address is asked for, packets for it wait a while
/// and are counted, and no error is sent.
#[test]
fn nobody_at_the_address() {
    let mut config = config();
    config.bfd = vec![Peer { port: 1, address: bytes("203.0.113.77"), settings: settings(None) }];
    let mut bench = Bench::new();
    bench.edge = Edge::new(config);
    let now = bench.now;
    bench.edge.set_serving(true, now);
    let effects = bench.wait(4 * SECOND);
    assert!(
        effects.iter().any(|effect| effect.contains("arp who-has 203.0.113.77")),
        "{effects:?}"
    );
    assert!(
        effects.iter().any(|effect| effect.ends_with("drop neighbor_unresolved")),
        "{effects:?}"
    );
    assert!(
        effects
            .iter()
            .all(|effect| effect.contains("arp ") || effect.ends_with("drop neighbor_unresolved")),
        "{effects:?}"
    );
}

/// A packet that a chain sends under the box's own address is its client's: the client is
/// told.
#[test]
fn a_masqueraded_client_is_told_of_a_silent_neighbour() {
    let mut bench = Bench::new();
    bench.released(0, "udp 203.0.113.2:1000 > 203.0.113.88:2 ttl=255");
    let effects = bench.wait(4 * SECOND);
    assert!(effects.iter().any(|effect| effect.contains("again 1>")), "{effects:?}");
}
