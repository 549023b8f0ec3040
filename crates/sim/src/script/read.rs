//! Reads worlds from a text.

use super::write::{FACTS, RECORDS};
use super::{Expect, Script};
use crate::plan::ANYBODY;
use crate::plan::{Clock, Connection, End, Habits, How, Plan, Step, Way, When, Whom};
use crate::scenario::{Scenario, presets};
use core::fmt;
use holdfast_protection::Plan as Preset;
use holdfast_wire::fault::{CAN_BE_PLANTED, Fault, Planted};
use holdfast_wire::{DropReason, NodeId};

/// A line that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptError {
    /// The line's number, from 1.
    pub line: usize,
    /// The text that was expected, and the text that was found.
    pub text: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl core::error::Error for ScriptError {}

type Read<T> = Result<T, ScriptError>;

/// The number of the state server with this name: `server` is the first, then comes
/// `server-1`.
fn server(word: &str) -> Option<u16> {
    let number = match word.strip_prefix("server")? {
        "" => 0,
        rest => rest.strip_prefix('-')?.parse().ok()?,
    };
    (number < NodeId::MAX_STATE_SERVERS).then_some(number)
}

/// The words of a line, one after the other.
struct Words<'a> {
    line: usize,
    rest: Vec<&'a str>,
}

impl<'a> Words<'a> {
    fn new(line: usize, text: &'a str) -> Words<'a> {
        let text = text.split('#').next().unwrap_or_default();
        let mut rest: Vec<&str> =
            text.split_whitespace().map(|word| word.trim_end_matches(',')).collect();
        rest.reverse();
        Words { line, rest }
    }

    fn error<T>(&self, text: String) -> Read<T> {
        Err(ScriptError { line: self.line, text })
    }

    fn expected<T>(&self, what: &str, found: Option<&str>) -> Read<T> {
        match found {
            Some(word) => self.error(format!("expected {what}, found `{word}`")),
            None => self.error(format!("expected {what}, and the line ends")),
        }
    }

    fn next(&mut self, what: &str) -> Read<&'a str> {
        match self.rest.pop() {
            Some(word) => Ok(word),
            None => self.expected(what, None),
        }
    }

    fn peek(&self) -> Option<&'a str> {
        self.rest.last().copied()
    }

    /// Takes the word, if it comes next.
    fn take(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        if is_next {
            self.rest.pop();
        }
        is_next
    }

    fn word(&mut self, word: &str) -> Read<()> {
        let found = self.next(&format!("`{word}`"))?;
        if found == word { Ok(()) } else { self.expected(&format!("`{word}`"), Some(found)) }
    }

    fn end(&mut self) -> Read<()> {
        match self.rest.pop() {
            Some(word) => self.expected("the line's end", Some(word)),
            None => Ok(()),
        }
    }

    fn number<T: core::str::FromStr>(&mut self, what: &str) -> Read<T> {
        let word = self.next(what)?;
        word.parse().or_else(|_| self.expected(what, Some(word)))
    }

    /// Reads one of several names.
    fn one<T>(&mut self, what: &str, names: impl Iterator<Item = (T, &'static str)>) -> Read<T> {
        let names: Vec<(T, &str)> = names.collect();
        let list = names.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
        let word = self.next(&format!("{what} ({list})"))?;
        match names.into_iter().find(|(_, name)| *name == word) {
            Some((value, _)) => Ok(value),
            None => self.expected(&format!("{what} ({list})"), Some(word)),
        }
    }

    /// Reads a time with its unit, exactly.
    fn time(&mut self) -> Read<u64> {
        let what = "a time such as 20ms";
        let word = self.next(what)?;
        let digits = word.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit: u64 = match &word[digits.len()..] {
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" => 1_000,
            "ns" => 1,
            _ => return self.expected(what, Some(word)),
        };
        let (whole, rest) = digits.split_once('.').unwrap_or((digits, ""));
        let scale =
            10u64.checked_pow(rest.len() as u32).filter(|scale| unit.is_multiple_of(*scale));
        let parts = (
            whole.parse::<u64>().ok(),
            if rest.is_empty() { Some(0) } else { rest.parse::<u64>().ok() },
        );
        let time = match (parts, scale) {
            ((Some(whole), Some(rest)), Some(scale)) => {
                whole.checked_mul(unit).and_then(|time| time.checked_add(rest * (unit / scale)))
            }
            _ => None,
        };
        time.map_or_else(|| self.expected(what, Some(word)), Ok)
    }

    fn node(&mut self) -> Read<NodeId> {
        let what =
            "`runtime` and its number, `coordinator`, `server`, `server-1` to `server-7`, or `hub`";
        match self.next(what)? {
            "runtime" => {
                let node = NodeId::new(self.number("a runtime's number, from 16")?);
                if node >= NodeId::FIRST_RUNTIME {
                    Ok(node)
                } else {
                    self.expected("a runtime's number, from 16", Some(&node.to_string()))
                }
            }
            "manager" => Ok(NodeId::manager(self.host()?)),
            "switch" => {
                let number = self.number("a switch's number, from 0")?;
                if number < NodeId::MAX_SWITCHES {
                    Ok(NodeId::switch(number))
                } else {
                    self.expected("a switch's number, from 0", Some(&number.to_string()))
                }
            }
            "coordinator" => Ok(NodeId::COORDINATOR),
            "hub" => Ok(NodeId::SWITCH),
            word => match server(word) {
                Some(number) => Ok(NodeId::state_server(number)),
                None => self.expected(what, Some(word)),
            },
        }
    }

    fn host(&mut self) -> Read<u16> {
        let what = "a host's number, from 0";
        let number = self.number(what)?;
        if number < NodeId::MAX_HOSTS {
            Ok(number)
        } else {
            self.expected(what, Some(&number.to_string()))
        }
    }

    fn whom(&mut self) -> Read<Whom> {
        let what = "`owner`, `runtime` and its number, `any` and a number, `coordinator`, `server`, `server-1` to `server-7`, `hub`, or `manager` or `host` and its number";
        match self.peek() {
            Some("owner") => self.next(what).map(|_| Whom::Owner),
            Some("any") => {
                self.next(what)?;
                Ok(Whom::Number(self.number("a number")?))
            }
            Some("host") => {
                self.next(what)?;
                Ok(Whom::Host(self.host()?))
            }
            Some("manager") => {
                self.next(what)?;
                Ok(Whom::Manager(self.host()?))
            }
            Some(word)
                if matches!(word, "runtime" | "coordinator" | "hub") || server(word).is_some() =>
            {
                Ok(match self.node()? {
                    NodeId::COORDINATOR => Whom::Coordinator,
                    NodeId::SWITCH => Whom::Hub,
                    node => node.state_server_number().map_or(Whom::Node(node), Whom::StateServer),
                })
            }
            found => self.expected(what, found),
        }
    }

    fn runtime(&mut self) -> Read<Whom> {
        match self.whom()? {
            Whom::Coordinator
            | Whom::StateServer(_)
            | Whom::Hub
            | Whom::Manager(_)
            | Whom::Host(_) => self.error("expected a runtime".to_owned()),
            whom => Ok(whom),
        }
    }

    fn endpoint(&mut self) -> Read<End> {
        let what = "an address and port such as 10.0.0.2:4000";
        let word = self.next(what)?;
        match word.parse::<std::net::SocketAddrV4>() {
            Ok(end) => Ok((end.ip().octets(), end.port())),
            Err(_) => self.expected(what, Some(word)),
        }
    }

    fn record(&mut self) -> Read<u8> {
        self.one("a message", RECORDS.iter().copied())
    }

    fn for_time(&mut self) -> Read<u64> {
        self.word("for")?;
        self.time()
    }

    /// Reads `takes 1us to 90us, loses 3, doubles 2, strays 5, repeats 1`.
    fn habits(&mut self) -> Read<Habits> {
        self.word("takes")?;
        let low = self.time()?;
        self.word("to")?;
        let mut habits = Habits { delay: (low, self.time()?), ..Habits::CALM };
        while let Some(verb) = self.rest.pop() {
            let chance = match verb {
                "loses" => &mut habits.lose,
                "doubles" => &mut habits.double,
                "strays" => &mut habits.stray,
                "repeats" => &mut habits.stale,
                _ => return self.expected("`loses`, `doubles`, `strays` or `repeats`", Some(verb)),
            };
            *chance = self.number("how many of a thousand")?;
        }
        Ok(habits)
    }

    /// Reads `tcp 10.0.0.2:4000 -> 203.0.113.10:80, 12 packets, one every 25ms`; for
    /// `udp` and `ping` also `12 large packets`.
    fn connection(&mut self, start: u64) -> Read<Connection> {
        let (tcp, ping) = self.one(
            "a protocol",
            [((true, false), "tcp"), ((false, false), "udp"), ((false, true), "ping")].into_iter(),
        )?;
        let ends = match self.peek().is_some_and(|word| word.contains(':')) {
            true => {
                let local = self.endpoint()?;
                self.word("->")?;
                Some((local, self.endpoint()?))
            }
            false => None,
        };
        let packets = self.number("how many packets")?;
        let large = !tcp && self.take("large");
        self.word("packets")?;
        self.word("one")?;
        self.word("every")?;
        Ok(Connection { tcp, ping, large, packets, start, pause: self.time()?, ends })
    }

    /// Reads a step's action and its target.
    fn deed(&mut self) -> Read<(Whom, How)> {
        const VERBS: &str = "`open`, `rules`, `kill`, `stop`, `cut`, `unplug`, `slow`, `move`, `drain`, `restore`, `heal` or `expect`";
        match self.next(VERBS)? {
            "kill" => {
                let whom = self.whom()?;
                let may_return = matches!(
                    whom,
                    Whom::Coordinator | Whom::StateServer(_) | Whom::Hub | Whom::Manager(_)
                );
                let how = match self.peek() {
                    Some("for") if matches!(whom, Whom::Host(_)) => How::Away(self.for_time()?),
                    Some("for") if may_return => How::Pause(self.for_time()?),
                    Some("writing") if whom == Whom::Coordinator => {
                        self.word("writing")?;
                        How::KillWriting
                    }
                    _ => How::Kill,
                };
                Ok((whom, how))
            }
            "stop" => match self.whom()? {
                Whom::Coordinator | Whom::StateServer(_) | Whom::Hub | Whom::Manager(_) => {
                    self.error("expected a runtime or a host".to_owned())
                }
                whom => Ok((whom, How::Pause(self.for_time()?))),
            },
            "unplug" => match self.whom()? {
                whom @ Whom::Host(_) => Ok((whom, How::Unplug(self.for_time()?))),
                _ => self.error("expected a host".to_owned()),
            },
            "cut" => {
                let is_from_rest = self.take("hub") || self.take("others");
                let (from, way) =
                    if is_from_rest { (None, Way::In) } else { (Some(self.whom()?), Way::Out) };
                let arrow = self.next("`->` or `<->`")?;
                let way = match (arrow, way) {
                    ("->", way) => way,
                    ("<->", Way::Out) => Way::Both,
                    _ => return self.expected("`->`, or `<->` after a node", Some(arrow)),
                };
                let whom = match from {
                    Some(whom) => {
                        self.word(if matches!(whom, Whom::Host(_)) { "others" } else { "hub" })?;
                        whom
                    }
                    None => self.whom()?,
                };
                if matches!(whom, Whom::Hub | Whom::Manager(_)) {
                    return self.error("the hub has no link to itself".to_owned());
                }
                Ok((whom, How::Cut(way, self.for_time()?)))
            }
            "slow" => {
                let whom = if self.take("all") { Whom::World } else { self.whom()? };
                let factor = self.number("how many times")?;
                self.word("times")?;
                Ok((whom, How::Slow(factor, self.for_time()?)))
            }
            "move" => {
                let limit = self.number("how many flows")?;
                self.word("flows")?;
                self.word("from")?;
                let whom = self.runtime()?;
                let to = if self.take("to") { Some(self.node()?) } else { None };
                Ok((whom, How::Move(to, limit)))
            }
            "drain" => Ok((self.runtime()?, How::Drain)),
            "restore" => Ok((self.runtime()?, How::Restore)),
            "heal" => Ok((Whom::World, How::Heal)),
            "expect" => {
                let is_of_somebody = !matches!(self.peek(), Some("safe" | "unsafe"));
                let whom = match self.peek() {
                    Some("host") => self.whom()?,
                    _ if is_of_somebody => self.runtime()?,
                    _ => Whom::World,
                };
                let mut text = self.next("what is to be so")?.to_owned();
                while let Some(word) = self.rest.pop() {
                    text = format!("{text} {word}");
                }
                let meant = FACTS.iter().find(|(_, name)| *name == text);
                let list = FACTS.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
                meant.map_or_else(
                    || self.expected(&format!("one of {list}"), Some(&text)),
                    |(fact, _)| Ok((whom, How::Expect(*fact))),
                )
            }
            word => self.expected(VERBS, Some(word)),
        }
    }
}

/// A world, as far as it has been read.
struct Reading {
    scenario: Scenario,
    plan: Plan,
    expects: Vec<Expect>,
    latest: u64,
}

impl Reading {
    fn new() -> Reading {
        let scenario = Scenario {
            seed: 1,
            preset: Preset::NFVACTOR,
            planted: Planted::default(),
            quiet: true,
            tight: false,
            served: false,
            by_key: false,
            servers: 1,
            published: false,
            inspected: false,
            inserted: &[],
        };
        Reading {
            scenario,
            plan: Plan { calm: true, ..Plan::default() },
            expects: Vec::new(),
            latest: 0,
        }
    }

    /// Reads a step. Steps come in the order of their times, because each waits for the
    /// one before.
    fn step(&mut self, words: &mut Words<'_>, when: When) -> Read<()> {
        let (whom, how) = words.deed()?;
        let step = Step { when, whom, how };
        if let Some(time) = step.time().filter(|time| *time > 0) {
            if time < self.latest {
                return words.error("a step is not earlier than the one before it".to_owned());
            }
            self.latest = time;
        }
        self.plan.steps.push(step);
        Ok(())
    }

    fn line(&mut self, words: &mut Words<'_>) -> Read<()> {
        const FIRST: &str = "`seed`, `protection`, `planted`, `few`, `served`, `servers`, `published`, `inspected`, `network`, `inside`, `outside`, `hosts`, `switches`, `packets`, `networks`, `runtimes`, `flows`, `ring`, `clock`, `restart`, `lasts`, `each`, `at`, `once`, `after`, `when` or `expect`";
        let Some(first) = words.rest.pop() else { return Ok(()) };
        match first {
            "seed" => self.scenario.seed = words.number("a number")?,
            "protection" => {
                self.scenario.preset = words.one(
                    "a protection",
                    presets().into_iter().map(|preset| (preset, preset.name())),
                )?;
            }
            "planted" if CAN_BE_PLANTED => {
                let fault =
                    words.one("a fault", Fault::ALL.iter().map(|fault| (*fault, fault.name())))?;
                self.scenario.planted = self.scenario.planted.with(fault);
            }
            "few" => {
                words.word("numbers")?;
                self.scenario.tight = true;
            }
            "servers" => match words.number("how many")? {
                count @ 1..=NodeId::MAX_STATE_SERVERS => self.scenario.servers = count,
                count => {
                    return words.expected(
                        &format!("1 to {}", NodeId::MAX_STATE_SERVERS),
                        Some(&count.to_string()),
                    );
                }
            },
            "served" => {
                words.word("numbers")?;
                self.scenario.served = true;
            }
            "published" => {
                words.word("hosts")?;
                self.scenario.published = true;
            }
            "inspected" => {
                words.word("streams")?;
                self.scenario.inspected = true;
            }
            "network" => {
                self.plan.calm =
                    words.one("what network", [(true, "calm"), (false, "drawn")].into_iter())?
            }
            "inside" | "outside" => {
                let habits = words.habits()?;
                let of = self.plan.habits.get_or_insert([Habits::CALM; 2]);
                of[usize::from(first == "outside")] = habits;
                self.plan.calm = false;
            }
            "hosts" => match words.number("1, or 3 and more")? {
                count @ (1 | 3..=NodeId::MAX_HOSTS) => self.plan.hosts = count,
                count => return words.expected("1, or 3 and more", Some(&count.to_string())),
            },
            "switches" => match words.number("how many")? {
                count @ 1..=NodeId::MAX_SWITCHES => self.plan.switches = count,
                count => return words.expected("1 to 6", Some(&count.to_string())),
            },
            "packets" => {
                words.word("sealed")?;
                self.plan.sealed = true;
            }
            "damaged" => self.plan.damaged = words.number("of a thousand frames between hosts")?,
            "networks" => match words.number("1 or 2")? {
                count @ 1..=2 => self.plan.networks = count,
                count => return words.expected("1 or 2", Some(&count.to_string())),
            },
            "runtimes" => self.plan.runtimes = words.number("how many")?,
            "flows" => self.plan.flows = words.number("how many")?,
            "ring" => self.plan.ring = words.number("how many frames")?,
            "clock" => {
                let node = words.node()?;
                words.word("ahead")?;
                let ahead = words.time()?;
                words.word("drift")?;
                self.plan.clocks.push((node, Clock { ahead, drift: words.number("millionths")? }));
            }
            "restart" => self.plan.restart = words.time()?,
            "lasts" => self.plan.lasts = words.time()?,
            "at" => {
                let time = words.time()?;
                match words.peek() {
                    Some("open") => {
                        words.word("open")?;
                        let connection = words.connection(time)?;
                        self.plan.connections.push(connection);
                    }
                    Some("rules") => {
                        words.word("rules")?;
                        words.word("chain")?;
                        let chain = words.one("a chain", [(0, "0"), (1, "1")].into_iter())?;
                        self.plan.rules.push((time, chain));
                    }
                    Some("once") => {
                        words.word("once")?;
                        words.word("safe")?;
                        self.step(words, When::Safe(time))?;
                    }
                    _ => self.step(words, When::Time(time))?,
                }
            }
            "once" => {
                let when =
                    match words.one("what", [(true, "safe"), (false, "settled")].into_iter())? {
                        true => When::Safe(0),
                        false => When::Settled(words.number("after how many events")?),
                    };
                self.step(words, when)?;
            }
            "after" => {
                words.word("event")?;
                let number = words.number("an event's number")?;
                self.step(words, When::Event(number))?;
            }
            "when" => {
                let is_sender =
                    matches!(words.peek(), Some("runtime" | "coordinator" | "server" | "hub"));
                let when = if is_sender {
                    let node = words.node()?;
                    words.word("sends")?;
                    When::Sent(node, words.record()?)
                } else {
                    let kind = words.record()?;
                    match words.next("`is`, `arrives` or `reaches`")? {
                        "is" => {
                            words.word("sent")?;
                            When::Sent(ANYBODY, kind)
                        }
                        "arrives" => When::Reached(ANYBODY, kind),
                        "reaches" => When::Reached(words.node()?, kind),
                        word => return words.expected("`is`, `arrives` or `reaches`", Some(word)),
                    }
                };
                self.step(words, when)?;
            }
            "expect" => self.expect(words)?,
            word => return words.expected(FIRST, Some(word)),
        }
        words.end()
    }

    fn expect(&mut self, words: &mut Words<'_>) -> Read<()> {
        const KINDS: &str = "`violation`, `drops`, `failovers`, `moved` or `connection`";
        let expect = match words.next(KINDS)? {
            "violation" => {
                let mut name = words.next("an invariant's name")?.to_owned();
                while let Some(word) = words.rest.pop() {
                    name = format!("{name} {word}");
                }
                Expect::Violation(name)
            }
            "drops" => {
                let name = words.next("a reason")?;
                match DropReason::from_name(name) {
                    Some(reason) => Expect::Drops(reason),
                    None => {
                        return words
                            .expected("a reason as `holdfast explain` lists them", Some(name));
                    }
                }
            }
            "failovers" => Expect::Failovers(words.number("how many")?),
            "moved" => {
                words.word("flows")?;
                Expect::Moved
            }
            "connection" => {
                let number = words.number("a connection's number, from 1")?;
                words.word("unfinished")?;
                if !(1..=self.plan.connections.len()).contains(&number) {
                    return words
                        .error(format!("there is no connection {number} before this line"));
                }
                Expect::Unfinished(number)
            }
            word => return words.expected(KINDS, Some(word)),
        };
        self.expects.push(expect);
        Ok(())
    }
}

/// A name, and the words that it stands for.
type Each = (String, Vec<String>);

/// Reads `each WORD in A | B | C`: the text stands for as many worlds, with each value in
/// the place of `$WORD`. Several such lines stand for every combination.
fn read_eaches(text: &str) -> Read<Vec<Each>> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut words = Words::new(at + 1, line);
        if !words.take("each") {
            continue;
        }
        let name = format!("${}", words.next("a name")?);
        words.word("in")?;
        let mut values = vec![words.next("what it stands for")?.to_owned()];
        while let Some(word) = words.rest.pop() {
            match word {
                "|" => values.push(words.next("what it stands for")?.to_owned()),
                word => {
                    if let Some(value) = values.last_mut() {
                        *value = format!("{value} {word}");
                    }
                }
            }
        }
        found.push((name, values));
    }
    Ok(found)
}

/// Every combination of the words that the names stand for.
fn combinations(eaches: &[Each]) -> Vec<Vec<(&str, &str)>> {
    let mut all: Vec<Vec<(&str, &str)>> = vec![Vec::new()];
    for (name, values) in eaches {
        let mut longer = Vec::new();
        for before in &all {
            longer.extend(
                values
                    .iter()
                    .map(|value| [before.as_slice(), &[(name.as_str(), value.as_str())]].concat()),
            );
        }
        all = longer;
    }
    all
}

/// See [`Script::read`].
pub(super) fn read(text: &str) -> Read<Vec<Script>> {
    let eaches = read_eaches(text)?;
    let mut scripts = Vec::new();
    for words_of in combinations(&eaches) {
        let mut reading = Reading::new();
        for (at, line) in text.lines().enumerate() {
            let line = words_of
                .iter()
                .fold(line.to_owned(), |line, (name, value)| line.replace(name, value));
            let mut words = Words::new(at + 1, &line);
            if words.peek() != Some("each") {
                reading.line(&mut words)?;
            }
        }
        let Reading { scenario, plan, expects, .. } = reading;
        let name = words_of.iter().map(|(_, value)| *value).collect::<Vec<_>>().join(", ");
        scripts.push(Script { name, scenario, plan, expects });
    }
    Ok(scripts)
}
