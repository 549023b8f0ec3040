//! Worlds of instances whose flows hold indexes of a list at a server: flows begin, end and move, instances die and others get their flows, connections are cut, everything is late. Whatever
//! happens, no two flows have one index, and none is lost in the end.

use holdfast_state::list::Planted;
use holdfast_state::{Form, Limits, Link, List, Message, Opcode, Output};
use holdfast_wire::Peer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const LIST: u32 = 3;

/// SplitMix64, as everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// An instance, and what lies between it and the server.
struct Instance {
    link: Link,
    servers: Link,
    to_server: VecDeque<Message>,
    to_instance: VecDeque<Message>,
    credit: VecDeque<u32>,
    asked: u32,
    flows: BTreeSet<u32>,
    is_alive: bool,
}

/// One that died, and what its flows had. They are claimed by others, one after the other.
struct Mourned {
    peer: Peer,
    flows: Vec<u32>,
    is_fenced: bool,
    /// When all have been claimed: how much each link has to carry before the server has heard it.
    marks: Option<Vec<(Peer, u64)>>,
}

macro_rules! note {
    ($world:expr, $($what:tt)+) => {
        if let Some(trace) = &mut $world.trace {
            trace.push(format!($($what)+));
        }
    };
}

struct World {
    random: Random,
    limits: Limits,
    list: List,
    instances: BTreeMap<Peer, Instance>,
    mourned: Vec<Mourned>,
    now: u64,
    incarnation: u32,
    refused: Option<String>,
    /// What has happened, if anybody wants to know.
    trace: Option<Vec<String>>,
}

impl World {
    fn new(seed: u64, planted: Planted, is_traced: bool) -> World {
        let mut random = Random(seed);
        let limits = Limits {
            size: 1 + random.below(12) as u32,
            credit: 1 + random.below(4) as u32,
            lease: if random.one_in(3) { 0 } else { 50 + random.next() % 100 },
            rest: if random.one_in(2) { 0 } else { random.next() % 100 },
            patience: 5 + random.next() % 40,
            step: 1 + random.next() % 5,
        };
        let list = List::new(LIST, limits).plant(planted);
        let mut world = World {
            random,
            limits,
            list,
            instances: BTreeMap::new(),
            mourned: Vec::new(),
            now: 0,
            incarnation: 0,
            refused: None,
            trace: is_traced.then(Vec::new),
        };
        (0..2 + world.random.below(3)).for_each(|node| world.begin(node as u16));
        world
    }

    fn begin(&mut self, node: u16) {
        self.incarnation += 1;
        let peer = Peer { node, incarnation: self.incarnation };
        assert!(self.list.join(peer));
        let link = Link::new(Form::Narrow, 1 << 16);
        let instance = Instance {
            servers: link.clone(),
            link,
            to_server: VecDeque::new(),
            to_instance: VecDeque::new(),
            credit: VecDeque::new(),
            asked: 0,
            flows: BTreeSet::new(),
            is_alive: true,
        };
        self.instances.insert(peer, instance);
        self.join(peer);
    }

    fn living(&self) -> Vec<Peer> {
        self.instances.iter().filter(|(_, instance)| instance.is_alive).map(|(peer, _)| *peer).collect()
    }

    fn anybody(&mut self) -> Peer {
        let living = self.living();
        living[self.random.below(living.len())]
    }

    fn at(&mut self, peer: Peer) -> &mut Instance {
        self.instances.get_mut(&peer).expect("it has not been forgotten")
    }

    fn say(&mut self, peer: Peer, opcode: Opcode, index: u32) {
        note!(self, "{peer:?} says {opcode:?} {index}");
        self.at(peer).link.push(Message::new(opcode, LIST, index));
    }

    fn join(&mut self, peer: Peer) {
        let instance = self.at(peer);
        if !instance.link.is_open() && instance.is_alive {
            let (theirs, ours) = (instance.servers.received(), instance.link.received());
            instance.link.begin(theirs).expect("they know each other");
            instance.servers.begin(ours).expect("they know each other");
        }
    }

    fn cut(&mut self, peer: Peer) {
        let instance = self.at(peer);
        instance.link.end();
        instance.servers.end();
        instance.to_server.clear();
        instance.to_instance.clear();
    }

    fn send(&mut self, out: Vec<Output>) {
        for Output { to, message } in out {
            note!(self, "server to {to:?}: {message}");
            if let Some(instance) = self.instances.get_mut(&to) {
                instance.servers.push(message);
            }
        }
    }

    /// Some of what is under way arrives.
    fn carry(&mut self, peer: Peer, count: usize) {
        let instance = self.at(peer);
        while let Some(message) = instance.link.poll() {
            instance.to_server.push_back(message);
        }
        while let Some(message) = instance.servers.poll() {
            instance.to_instance.push_back(message);
        }
        for _ in 0..count {
            let instance = self.at(peer);
            if let Some(message) =
                instance.to_server.pop_front().and_then(|message| instance.servers.accept(message).expect("it is right"))
            {
                let mut out = Vec::new();
                note!(self, "server hears of {peer:?}: {message}");
                self.list.handle(peer, message, &mut out);
                self.send(out);
            }
            let instance = self.at(peer);
            if instance.is_alive
                && let Some(message) =
                    instance.to_instance.pop_front().and_then(|message| instance.link.accept(message).expect("it is right"))
            {
                self.hear(peer, message);
            }
        }
    }

    fn hear(&mut self, peer: Peer, message: Message) {
        note!(self, "{peer:?} hears {message}");
        let index = message.index;
        match message.opcode {
            Opcode::IndexAssignment => {
                let instance = self.at(peer);
                instance.asked = instance.asked.saturating_sub(1);
                instance.credit.push_back(index);
            }
            Opcode::Expire => {
                if self.at(peer).flows.contains(&index) {
                    self.say(peer, Opcode::Rejuvenate, index);
                }
                self.say(peer, Opcode::Answered, index);
            }
            Opcode::Spare => {
                while let Some(index) = self.at(peer).credit.pop_front() {
                    self.say(peer, Opcode::Return, index);
                }
            }
            Opcode::NoMoreIndex => {}
            Opcode::UpdateFailure => self.refused = Some(format!("{peer:?} is refused {index}")),
            _ => panic!("no server says {message}"),
        }
    }

    fn open(&mut self, peer: Peer) {
        let instance = self.at(peer);
        match instance.credit.pop_front() {
            Some(index) => {
                instance.flows.insert(index);
                self.say(peer, Opcode::Rejuvenate, index);
            }
            None if instance.asked < 2 => {
                instance.asked += 2;
                self.say(peer, Opcode::IndexRequest, 2);
            }
            None => {}
        }
    }

    fn some_flow(&mut self, peer: Peer) -> Option<u32> {
        let flows: Vec<u32> = self.at(peer).flows.iter().copied().collect();
        (!flows.is_empty()).then(|| flows[self.random.below(flows.len())])
    }

    fn end_flow(&mut self, peer: Peer) {
        if let Some(index) = self.some_flow(peer) {
            self.at(peer).flows.remove(&index);
            self.say(peer, Opcode::Expire, index);
        }
    }

    /// The new owner has the flow before the old one lets it go.
    fn move_flow(&mut self, from: Peer, to: Peer) {
        if let Some(index) = self.some_flow(from).filter(|_| from != to) {
            self.at(to).flows.insert(index);
            self.say(to, Opcode::IndexAssignment, index);
            self.at(from).flows.remove(&index);
            self.say(from, Opcode::Moved, index);
        }
    }

    fn kill(&mut self, peer: Peer) {
        note!(self, "{peer:?} dies");
        // What was sent may still arrive; nothing is sent again.
        let instance = self.at(peer);
        instance.is_alive = false;
        let flows = core::mem::take(&mut instance.flows).into_iter().collect();
        instance.credit.clear();
        self.mourned.push(Mourned { peer, flows, is_fenced: false, marks: None });
        self.begin(peer.node);
    }

    /// One step of getting over somebody's death.
    fn mourn(&mut self, at: usize) {
        let heir = self.anybody();
        let links: Vec<(Peer, u64)> = self.living().into_iter().map(|peer| (peer, self.instances[&peer].link.sent())).collect();
        let dead = &mut self.mourned[at];
        if !dead.is_fenced {
            dead.is_fenced = true;
            let peer = dead.peer;
            note!(self, "{peer:?} is fenced");
            self.cut(peer);
            self.list.fence(peer);
            self.instances.remove(&peer);
        } else if let Some(index) = dead.flows.pop() {
            self.at(heir).flows.insert(index);
            self.say(heir, Opcode::IndexAssignment, index);
        } else if dead.marks.is_none() {
            dead.marks = Some(links);
        } else {
            let has_heard =
                |(peer, mark): &(Peer, u64)| self.instances.get(peer).is_none_or(|instance| instance.servers.received() >= *mark);
            if dead.marks.as_ref().is_some_and(|marks| marks.iter().all(has_heard)) && !self.is_any_heir_dead(at) {
                let dead = self.mourned.remove(at).peer;
                note!(self, "{dead:?} is released");
                let mut out = Vec::new();
                self.list.release(dead, &mut out);
                self.send(out);
            }
        }
    }

    /// An heir of this one died before the server had heard what it had claimed: its flows have to be claimed first.
    fn is_any_heir_dead(&self, at: usize) -> bool {
        self.mourned.iter().enumerate().any(|(other, mourned)| other != at && mourned.marks.is_none())
    }

    fn pass(&mut self, time: u64) {
        self.now += time;
        let mut out = Vec::new();
        self.list.advance(self.now, &mut out);
        self.send(out);
    }

    fn step(&mut self) {
        let peer = self.anybody();
        match self.random.below(20) {
            0..4 => self.open(peer),
            4..6 => self.end_flow(peer),
            6..8 => {
                let to = self.anybody();
                self.move_flow(peer, to);
            }
            8 if self.random.one_in(3) && self.mourned.len() < 2 => self.kill(peer),
            9 => self.cut(peer),
            10..12 => self.join(peer),
            12 if !self.mourned.is_empty() => {
                let at = self.random.below(self.mourned.len());
                self.mourn(at);
            }
            13 => {
                let time = self.random.next() % 30;
                self.pass(time);
            }
            14 => {
                let all: Vec<Peer> = self.instances.keys().copied().collect();
                let peer = all[self.random.below(all.len())];
                self.carry(peer, 1);
            }
            _ => {
                let count = 1 + self.random.below(6);
                self.carry(peer, count);
            }
        }
    }

    /// What must hold at any time.
    fn check(&mut self) -> Result<(), String> {
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        let account = self.list.account();
        if account.size() != self.limits.size {
            return Err(format!("{account:?} is not {}", self.limits.size));
        }
        let of_living = self.instances.values().flat_map(|instance| instance.flows.iter().chain(&instance.credit));
        let of_dead = self.mourned.iter().flat_map(|dead| &dead.flows);
        let mut seen = BTreeSet::new();
        match of_living.chain(of_dead).find(|index| !seen.insert(**index)) {
            Some(index) => Err(format!("two have index {index}")),
            None => Ok(()),
        }
    }

    /// Nothing more is done, and everything arrives.
    fn settle(&mut self) {
        for _ in 0..150 {
            for peer in self.living() {
                self.join(peer);
                self.carry(peer, usize::from(u8::MAX));
            }
            if !self.mourned.is_empty() {
                let at = self.random.below(self.mourned.len());
                self.mourn(at);
            }
            let time = self.limits.patience.max(self.limits.step);
            self.pass(time);
        }
    }

    fn live(&mut self) -> Result<u64, String> {
        for _ in 0..50 + self.random.below(300) {
            self.step();
            self.check()?;
        }
        self.settle();
        self.check()?;
        if !self.mourned.is_empty() {
            return Err("somebody is mourned for ever".to_owned());
        }
        let flows: usize = self.instances.values().map(|instance| instance.flows.len()).sum();
        let credit: usize = self.instances.values().map(|instance| instance.credit.len()).sum();
        let account = self.list.account();
        if (account.held, account.credit) != (flows as u32, credit as u32) {
            return Err(format!("{flows} flows and {credit} more are there, and the server has {account:?}"));
        }
        for (peer, instance) in &self.instances {
            if let Some(index) = instance.flows.iter().find(|index| self.list.holders(**index).collect::<Vec<_>>() != [*peer]) {
                return Err(format!(
                    "{index} is {peer:?}'s, and the server says {:?}",
                    self.list.holders(*index).collect::<Vec<_>>()
                ));
            }
        }
        for peer in self.living() {
            while self.some_flow(peer).is_some() {
                self.end_flow(peer);
            }
        }
        self.settle();
        let (account, credit) =
            (self.list.account(), self.instances.values().map(|instance| instance.credit.len() as u32).sum::<u32>());
        if (account.free, account.credit) != (self.limits.size - credit, credit) {
            return Err(format!("all is over, and the server has {account:?}"));
        }
        Ok(flows as u64)
    }
}

fn show(seed: u64, error: &str) -> ! {
    let mut again = World::new(seed, Planted::default(), true);
    let _ = again.live();
    panic!("seed {seed}: {error}\n{}", again.trace.unwrap_or_default().join("\n"));
}

#[test]
fn no_two_flows_have_one_index_and_none_is_lost() {
    let lived = |seed| World::new(seed, Planted::default(), false).live().unwrap_or_else(|error| show(seed, &error));
    let flows: u64 = (0..2000).map(lived).sum();
    assert!(flows > 2000, "{flows} flows lived to the end: these worlds show little");
}

/// Each fault is found.
#[test]
fn planted_faults_are_found() {
    let planted = [
        Planted { no_question: true, ..Planted::default() },
        Planted { moved_is_over: true, ..Planted::default() },
        Planted { release_at_once: true, ..Planted::default() },
        Planted { loud_answers: true, ..Planted::default() },
    ];
    for planted in planted {
        assert!((0..2000).any(|seed| World::new(seed, planted, false).live().is_err()), "nobody noticed {planted:?}");
    }
}
