//! Writes a world as a text.

use super::{Expect, Script};
use crate::plan::{
    ANYBODY, Clock, Connection, End, Fact, Habits, How, Plan, Step, Way, When, Whom,
};
use core::fmt::{self, Display, Formatter};
use holdfast_node::message::kind as message;
use holdfast_protection::kind;
use holdfast_wire::NodeId;
use holdfast_wire::fault::Fault;

/// Records by name.
pub(super) const RECORDS: &[(u8, &str)] = &[
    (kind::STATE, "state"),
    (kind::SAVED, "saved"),
    (kind::END, "end"),
    (kind::REFUSED, "refused"),
    (kind::PASSED, "passed"),
    (kind::DELTA, "delta"),
    (kind::CHECK, "check"),
    (kind::FETCH, "fetch"),
    (kind::RESTORED, "restored"),
    (kind::FETCHED, "fetched"),
    (kind::INPUTS, "inputs"),
    (kind::COVERED, "covered"),
    (kind::PASS, "pass"),
    (kind::RECALL, "recall"),
    (kind::DEAL, "deal"),
    (kind::DEALT, "dealt"),
    (kind::RECALLED, "recalled"),
    (kind::DISPLACED, "displaced"),
    (kind::PAGE, "page"),
    (kind::PAGE_IN, "page-in"),
    (kind::NO_PAGE, "no-page"),
    (message::CONTROL, "control"),
    (message::CLAIM, "claim"),
    (message::CLAIMED, "claimed"),
    (message::ENDED, "ended"),
    (message::MOVE, "move"),
    (message::MOVED, "moved"),
    (message::MARK, "mark"),
    (message::SETTLED, "settled"),
    (message::PREPARE, "prepare"),
    (message::PREPARED, "prepared"),
    (message::FLOW, "flow"),
    (message::ARRIVED, "arrived"),
    (message::CANCEL, "cancel"),
    (message::NUMBERED, "order"),
    (message::TELL, "tell"),
    (message::ROUTES, "routes"),
    (message::FULL, "full"),
    (message::CLEAR, "clear"),
    (message::REPLAY, "replay"),
    (message::UNLOGGED, "unlogged"),
    (message::SUSPECT, "suspect"),
    (message::STATE_HELLO, "state-hello"),
    (message::STATE_WELCOME, "state-welcome"),
    (message::STATE, "state-messages"),
    (message::STATE_OVER, "state-over"),
];

/// A record's name, or its number if it has none.
pub(crate) fn record_name(kind: u8) -> String {
    RECORDS
        .iter()
        .find(|(of, _)| *of == kind)
        .map_or_else(|| kind.to_string(), |(_, name)| (*name).to_owned())
}

/// A time, written as shortly as is exact.
struct Time(u64);

impl Display for Time {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0 => return f.write_str("0ms"),
            time if time.is_multiple_of(1_000_000_000) => (1_000_000_000, "s"),
            time if time >= 1_000_000 => (1_000_000, "ms"),
            time if time >= 1_000 => (1_000, "us"),
            _ => (1, "ns"),
        };
        let digits = match unit {
            1_000_000_000 => 9,
            1_000_000 => 6,
            1_000 => 3,
            _ => 0,
        };
        let rest = format!("{:0digits$}", self.0 % unit);
        let rest = rest.trim_end_matches('0');
        let point = if rest.is_empty() { "" } else { "." };
        write!(f, "{}{point}{rest}{name}", self.0 / unit)
    }
}

fn node(node: NodeId) -> String {
    match node {
        NodeId::COORDINATOR => "coordinator".to_owned(),
        NodeId::SWITCH => "hub".to_owned(),
        node if let Some(number) = node.state_server_number() => server(number),
        node => match (node.host(), node.switch_number()) {
            (Some(host), _) => format!("manager {host}"),
            (None, Some(number)) => format!("switch {number}"),
            (None, None) => format!("runtime {node}"),
        },
    }
}

fn server(number: u16) -> String {
    if number == 0 { "server".to_owned() } else { format!("server-{number}") }
}

fn whom(whom: Whom) -> String {
    match whom {
        Whom::Owner => "owner".to_owned(),
        Whom::Number(number) => format!("any {number}"),
        Whom::Node(of) => node(of),
        Whom::Coordinator => "coordinator".to_owned(),
        Whom::StateServer(number) => server(number),
        Whom::Hub => "hub".to_owned(),
        Whom::Manager(number) => format!("manager {number}"),
        Whom::Host(number) => format!("host {number}"),
        Whom::World => String::new(),
    }
}

fn when(when: When) -> String {
    match when {
        When::Event(number) => format!("after event {number}"),
        When::Time(time) => format!("at {}", Time(time)),
        When::Settled(number) => format!("once settled {number}"),
        When::Safe(0) => "once safe".to_owned(),
        When::Safe(time) => format!("at {} once safe", Time(time)),
        When::Sent(ANYBODY, kind) => format!("when {} is sent", record_name(kind)),
        When::Reached(ANYBODY, kind) => format!("when {} arrives", record_name(kind)),
        When::Sent(of, kind) => format!("when {} sends {}", node(of), record_name(kind)),
        When::Reached(of, kind) => format!("when {} reaches {}", record_name(kind), node(of)),
    }
}

pub(super) const FACTS: &[(Fact, &str)] = &[
    (Fact::Safe, "safe"),
    (Fact::Unsafe, "unsafe"),
    (Fact::There, "there"),
    (Fact::Gone, "gone"),
    (Fact::Owns, "owns flows"),
    (Fact::OwnsNothing, "owns nothing"),
    (Fact::Serves, "serves"),
];

/// A step as a line.
pub(super) fn step(step: &Step) -> String {
    let who = whom(step.whom);
    let rest = if matches!(step.whom, Whom::Host(_)) { "others" } else { "hub" };
    let what = match step.how {
        How::Kill => format!("kill {who}"),
        How::Pause(time)
            if matches!(
                step.whom,
                Whom::Coordinator | Whom::StateServer(_) | Whom::Hub | Whom::Manager(_)
            ) =>
        {
            format!("kill {who} for {}", Time(time))
        }
        How::Away(time) => format!("kill {who} for {}", Time(time)),
        How::Pause(time) => format!("stop {who} for {}", Time(time)),
        How::Unplug(time) => format!("unplug {who} for {}", Time(time)),
        How::KillWriting => format!("kill {who} writing"),
        How::Cut(Way::Out, time) => format!("cut {who} -> {rest} for {}", Time(time)),
        How::Cut(Way::In, time) => format!("cut {rest} -> {who} for {}", Time(time)),
        How::Cut(Way::Both, time) => format!("cut {who} <-> {rest} for {}", Time(time)),
        How::Slow(factor, time) => {
            let who = if who.is_empty() { "all" } else { &who };
            format!("slow {who} {factor} times for {}", Time(time))
        }
        How::Move(None, limit) => format!("move {limit} flows from {who}"),
        How::Move(Some(to), limit) => format!("move {limit} flows from {who} to {}", node(to)),
        How::Drain => format!("drain {who}"),
        How::Restore => format!("restore {who}"),
        How::Heal => "heal".to_owned(),
        How::Expect(fact) => {
            let fact = FACTS.iter().find(|(of, _)| *of == fact).map_or("", |(_, name)| name);
            format!("expect {who}{}{fact}", if who.is_empty() { "" } else { " " })
        }
    };
    format!("{} {what}", when(step.when))
}

/// An expectation as a line.
pub(super) fn expect(expect: &Expect) -> String {
    match expect {
        Expect::Violation(name) => format!("expect violation {name}"),
        Expect::Drops(reason) => format!("expect drops {reason}"),
        Expect::Failovers(count) => format!("expect failovers {count}"),
        Expect::Moved => "expect moved flows".to_owned(),
        Expect::Unfinished(number) => format!("expect connection {number} unfinished"),
    }
}

fn end((address, port): End) -> String {
    let [a, b, c, d] = address;
    format!("{a}.{b}.{c}.{d}:{port}")
}

fn connection(connection: &Connection) -> String {
    let protocol = match (connection.tcp, connection.ping) {
        (true, _) => "tcp",
        (_, true) => "ping",
        _ => "udp",
    };
    let large = if connection.large { "large " } else { "" };
    let ends = connection
        .ends
        .map_or(String::new(), |(local, remote)| format!(" {} -> {},", end(local), end(remote)));
    let Connection { packets, start, pause, .. } = *connection;
    format!(
        "at {} open {protocol}{ends} {packets} {large}packets, one every {}",
        Time(start),
        Time(pause)
    )
}

fn habits(name: &str, habits: &Habits) -> String {
    let Habits { delay, lose, double, stray, stale } = *habits;
    let mut line = format!("{name} takes {} to {}", Time(delay.0), Time(delay.1));
    for (chance, verb) in
        [(lose, "loses"), (double, "doubles"), (stray, "strays"), (stale, "repeats")]
    {
        if chance > 0 {
            line += &format!(", {verb} {chance}");
        }
    }
    line
}

impl Display for Script {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (scenario, plan, plain) = (&self.scenario, &self.plan, Plan::default());
        writeln!(f, "seed {}", scenario.seed)?;
        writeln!(f, "protection {}", scenario.preset.name())?;
        for fault in Fault::ALL.iter().filter(|fault| scenario.planted.has(**fault)) {
            writeln!(f, "planted {}", fault.name())?;
        }
        if scenario.tight {
            writeln!(f, "few numbers")?;
        }
        if scenario.served {
            writeln!(f, "served numbers")?;
        }
        if scenario.servers != 1 {
            writeln!(f, "servers {}", scenario.servers)?;
        }
        if scenario.published {
            writeln!(f, "published hosts")?;
        }
        if scenario.inspected {
            writeln!(f, "inspected streams")?;
        }
        match plan.habits {
            Some([inside, outside]) if !plan.calm || [inside, outside] != [Habits::CALM; 2] => {
                writeln!(f, "{}\n{}", habits("inside", &inside), habits("outside", &outside))?;
            }
            None if !plan.calm => writeln!(f, "network drawn")?,
            _ => writeln!(f, "network calm")?,
        }
        if plan.hosts != plain.hosts {
            writeln!(f, "hosts {}", plan.hosts)?;
        }
        if plan.switches != plain.switches {
            writeln!(f, "switches {}", plan.switches)?;
        }
        if plan.sealed {
            writeln!(f, "packets sealed")?;
        }
        if plan.damaged != plain.damaged {
            writeln!(f, "damaged {}", plan.damaged)?;
        }
        if plan.networks != plain.networks {
            writeln!(f, "networks {}", plan.networks)?;
        }
        if plan.runtimes != plain.runtimes {
            writeln!(f, "runtimes {}", plan.runtimes)?;
        }
        if plan.flows != plain.flows {
            writeln!(f, "flows {}", plan.flows)?;
        }
        if plan.ring != plain.ring {
            writeln!(f, "ring {}", plan.ring)?;
        }
        for (of, Clock { ahead, drift }) in &plan.clocks {
            writeln!(f, "clock {} ahead {} drift {drift}", node(*of), Time(*ahead))?;
        }
        if plan.restart != plain.restart {
            writeln!(f, "restart {}", Time(plan.restart))?;
        }
        if plan.lasts != plain.lasts {
            writeln!(f, "lasts {}", Time(plan.lasts))?;
        }
        // Connections are numbered in this order.
        plan.connections.iter().try_for_each(|one| writeln!(f, "{}", connection(one)))?;
        let mut lines: Vec<(u64, String)> = Vec::new();
        lines.extend(
            plan.rules
                .iter()
                .map(|(time, chain)| (*time, format!("at {} rules chain {chain}", Time(*time)))),
        );
        let mut latest = 0;
        for one in &plan.steps {
            // A step that waits for something comes after the steps before it.
            latest = one.time().unwrap_or(latest).max(latest);
            lines.push((latest, step(one)));
        }
        lines.sort_by_key(|(time, _)| *time);
        lines.iter().try_for_each(|(_, line)| writeln!(f, "{line}"))?;
        self.expects.iter().try_for_each(|one| writeln!(f, "{}", expect(one)))
    }
}
