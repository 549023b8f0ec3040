//! The plan of a protection: answers to three questions, and the numbers that go with them.
//!
//! Where does state live, and how are copies of it made? When may a packet leave? How is
//! lost state rebuilt? A [`Plan`] is one small value, and presets are constants of it. Its
//! methods say what the protection promises and needs. The table `ROWS` says which answers
//! do not go together, why, and what to answer instead. Configuration, runtime,
//! switch, coordinator, status and simulator read the same value; nobody builds a
//! protection to learn what it can do.
//!
//! A new protection is a row of the table, the words of its answers, and the module that
//! [`Plan::build`] chooses.

use crate::{NfvActor, Protection, Reinforce, Rescue, Unprotected};
use core::ops::RangeInclusive;

/// The answers to one question.
pub trait Answer: Copy + PartialEq + 'static {
    /// The question.
    const KEY: &'static str;
    /// The answers that this version has.
    const ALL: &'static [Self];
    /// Answers of protections that this version does not have.
    const LATER: &'static [&'static str];

    /// As an operator says it.
    fn word(self) -> &'static str;
}

macro_rules! question {
    ($(#[$about:meta])* $name:ident $key:literal { $($(#[$doc:meta])* $answer:ident $word:literal,)* } later $later:expr) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $answer,)*
        }

        impl Answer for $name {
            const KEY: &'static str = $key;
            const ALL: &'static [$name] = &[$($name::$answer),*];
            const LATER: &'static [&'static str] = $later;

            fn word(self) -> &'static str {
                match self {
                    $($name::$answer => $word,)*
                }
            }
        }
    };
}

question! {
    /// The place of a flow's state, and how copies of it are made.
    Flow "flow" {
        /// In the memory of its runtime.
        Memory "memory",
        /// And in a replica at another runtime: changes go there at each batch's end.
        Replica "replica",
        /// And in a snapshot at another runtime, sent after every so many packets.
        Snapshot "snapshot",
        /// And on a standby runtime, which knows what was processed since its checkpoint.
        Standby "standby",
        /// At a state server, and in memory while it is used.
        Paged "paged",
    } later &["dal"]
}

question! {
    /// The place of state that flows share.
    Shared "shared" {
        /// In the memory of each runtime.
        Memory "memory",
        /// Divided among the runtimes: the coordinator grants each its part.
        Partitioned "partitioned",
        /// At a state server, which assigns numbers one by one and adds up what is counted.
        StateServer "state-server",
    } later &["checkpoint", "dal"]
}

question! {
    /// When a packet may leave.
    Release "release" {
        /// Once the chain is done with it. With a replica, only so many of a flow ahead of that.
        AtOnce "at-once",
        /// From the replica, once that has saved the state: one way, but the packet travels.
        Replica "replica",
        /// From its runtime, once the replica has acknowledged the state: there and back,
        /// but only the state travels.
        Source "source",
        /// By whichever of these two ways costs less, link by link: `nfvactor/way.rs`.
        Auto "auto",
        /// Once the standby knows that it was processed.
        Standby "standby",
        /// When the state server has what it reveals.
        WriteBack "write-back",
    } later &["stable"]
}

question! {
    /// The source of lost state.
    Rebuild "rebuild" {
        /// Nowhere.
        Nothing "nothing",
        /// The replica becomes the flow's actor.
        Replica "replica",
        /// The restarted runtime fetches its snapshots.
        Snapshots "snapshots",
        /// The standby's checkpoint, and what the switch has logged since.
        Replay "replay",
        /// The pages at the state server.
        Pages "pages",
    } later &["dal"]
}

/// See the module. Numbers that do not go with its answers are as in [`Plan::NONE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The place of a flow's state, and how copies of it are made.
    pub flow: Flow,
    /// The place of state that flows share.
    pub shared: Shared,
    /// When a packet may leave.
    pub release: Release,
    /// How what was lost is rebuilt.
    pub rebuild: Rebuild,
    /// A process beside each runtime shares its memory, and goes on when that is killed.
    pub has_local_standby: bool,
    /// Packets between two snapshots of a flow.
    pub snapshot_every: u32,
    /// Packets of a flow after which it is written back, if packets leave at once.
    pub write_back_packets: u32,
    /// Time between two write-backs of a flow, ns, if packets leave at once.
    pub write_back_every: u64,
    /// Packets of a flow that may have left before its replica knows of them, if packets
    /// leave at once.
    pub unsaved_packets: u32,
    /// Flows of whose state there is room in a runtime's memory; of all without it.
    pub resident_flows: Option<u32>,
    /// Time between two rounds of checkpoints, ns. Rounds are more frequent if the log
    /// would fill up before.
    pub checkpoint_every: u64,
    /// Bytes of the switch's log for one chain of one runtime.
    pub log_bytes: usize,
    /// Time for which a number that a flow had rests at the state server, ns (RFC 6888,
    /// section 4, REQ-8).
    pub rest: u64,
    /// For tests of `release: auto`: links change their way after so many ns each time.
    #[doc(hidden)]
    pub fickle_every: Option<u64>,
}

/// Flows of whose state there is room where that is little.
const FEW: u32 = 16;

/// Presets, by name.
impl Plan {
    /// `none`.
    pub const NONE: Plan = Plan {
        flow: Flow::Memory,
        shared: Shared::Memory,
        release: Release::AtOnce,
        rebuild: Rebuild::Nothing,
        has_local_standby: false,
        snapshot_every: 10,
        write_back_packets: 32,
        write_back_every: 100_000_000,
        unsaved_packets: 128,
        resident_flows: None,
        checkpoint_every: 10_000_000,
        log_bytes: 64 << 20,
        rest: 120_000_000_000,
        fickle_every: None,
    };
    /// `nfvactor`, released by the replica.
    pub const NFVACTOR: Plan = Plan::of(Flow::Replica, Shared::Partitioned, Release::Replica, Rebuild::Replica);
    /// `nfvactor`, released at the source.
    pub const NFVACTOR_AT_SOURCE: Plan = Plan { release: Release::Source, ..Plan::NFVACTOR };
    /// `nfvactor`, released by the one or the other.
    pub const NFVACTOR_AUTO: Plan = Plan { release: Release::Auto, ..Plan::NFVACTOR };
    /// `nfvactor`, released at once.
    pub const NFVACTOR_AT_ONCE: Plan = Plan { release: Release::AtOnce, ..Plan::NFVACTOR };
    /// `nfactor`.
    pub const NFACTOR: Plan = Plan::of(Flow::Snapshot, Shared::Partitioned, Release::AtOnce, Rebuild::Snapshots);
    /// `reinforce`, with a remote standby.
    pub const REINFORCE: Plan = Plan::of(Flow::Standby, Shared::Partitioned, Release::Standby, Rebuild::Replay);
    /// `rescue`, released when flows are written back.
    pub const RESCUE: Plan = Plan::of(Flow::Paged, Shared::StateServer, Release::WriteBack, Rebuild::Pages);
    /// `rescue`, released at once.
    pub const RESCUE_AT_ONCE: Plan = Plan { release: Release::AtOnce, ..Plan::RESCUE };
    /// `rescue`, released when flows are written back, with room for few flows' state.
    pub const RESCUE_PAGED: Plan = Plan { resident_flows: Some(FEW), ..Plan::RESCUE };

    /// All of these: a name for each of [`Plan::combinations`], wherever shared state lives. Those
    /// that were added last stand last.
    pub const ALL: [(&str, Plan); 10] = [
        ("none", Plan::NONE),
        ("nfvactor_at_replica", Plan::NFVACTOR),
        ("nfvactor_at_source", Plan::NFVACTOR_AT_SOURCE),
        ("nfvactor_auto", Plan::NFVACTOR_AUTO),
        ("nfactor", Plan::NFACTOR),
        ("reinforce", Plan::REINFORCE),
        ("rescue", Plan::RESCUE),
        ("rescue_at_once", Plan::RESCUE_AT_ONCE),
        ("rescue_paged", Plan::RESCUE_PAGED),
        ("nfvactor_at_once", Plan::NFVACTOR_AT_ONCE),
    ];

    /// Every combination of answers that go together, and, where flows' state may be absent and
    /// is written back without delay, each of these with room for few, too.
    pub fn combinations() -> impl Iterator<Item = Plan> {
        let flows = Flow::ALL.iter().flat_map(|&flow| Shared::ALL.iter().map(move |&shared| (flow, shared)));
        let released = flows
            .flat_map(|(flow, shared)| Release::ALL.iter().map(move |&release| Plan { flow, shared, release, ..Plan::NONE }));
        let rebuilt = released.flat_map(|plan| Rebuild::ALL.iter().map(move |&rebuild| Plan { rebuild, ..plan }));
        let roomy = rebuilt.filter(|plan| plan.check(false).is_ok());
        roomy
            .flat_map(|plan| [None, Some(FEW)].map(|resident_flows| Plan { resident_flows, ..plan }))
            .filter(|plan| plan.release == Release::WriteBack || !plan.has_absent_flows())
    }

    const fn of(flow: Flow, shared: Shared, release: Release, rebuild: Rebuild) -> Plan {
        Plan { flow, shared, release, rebuild, ..Plan::NONE }
    }

    /// Its name among [`Plan::ALL`], whatever its numbers and wherever shared state lives.
    pub fn name(&self) -> &'static str {
        let what = |plan: &Plan| (plan.flow, plan.release, plan.resident_flows.is_some());
        let named = Plan::ALL.iter().find(|(_, plan)| what(plan) == what(self));
        named.map_or(self.row().preset, |(name, _)| *name)
    }
}

/// Promises and needs that follow from the answers.
impl Plan {
    /// Flows survive the failure of a runtime.
    pub const fn promises(&self) -> bool {
        !matches!(self.rebuild, Rebuild::Nothing)
    }

    /// How many of a flow's latest packets a failure may undo in its state. 0: what was
    /// released is never forgotten.
    pub const fn may_forget(&self) -> u32 {
        match (self.flow, self.release) {
            (Flow::Replica, Release::AtOnce) => self.unsaved_packets,
            (Flow::Snapshot, _) => self.snapshot_every,
            (Flow::Paged, Release::AtOnce) => self.write_back_packets,
            _ => 0,
        }
    }

    /// [`Plan::may_forget`] counts what is on its way to the copy, too: packets wait for that
    /// if there were more. Otherwise what is on its way comes on top of it.
    pub const fn forgets_by_count(&self) -> bool {
        matches!((self.flow, self.release), (Flow::Replica, Release::AtOnce))
    }

    /// Packets of a flow after which it is copied, if each comes alone.
    pub const fn copied_after(&self) -> u32 {
        match (self.flow, self.release) {
            (Flow::Snapshot, _) => self.snapshot_every,
            (Flow::Paged, Release::AtOnce) => self.write_back_packets,
            _ => 1,
        }
    }

    /// Flows survive, and no effect of a released packet is forgotten.
    pub const fn is_strict(&self) -> bool {
        self.promises() && self.may_forget() == 0
    }

    /// Flows have their home at a state server. The peers that [`Protection::set_peers`] names
    /// are state servers then, and other runtimes if not.
    pub const fn is_paged(&self) -> bool {
        matches!(self.flow, Flow::Paged)
    }

    /// Time for which numbers rest, ns, if a state server assigns those of the pools.
    pub const fn server_rest(&self) -> Option<u64> {
        match self.shared {
            Shared::StateServer => Some(self.rest),
            Shared::Memory | Shared::Partitioned => None,
        }
    }

    /// There has to be a state server.
    pub const fn needs_state_server(&self) -> bool {
        self.is_paged() || self.server_rest().is_some()
    }

    /// Flows of whose state there is room in memory.
    pub const fn present_flows(&self) -> usize {
        match self.resident_flows {
            Some(flows) => flows as usize,
            None => usize::MAX,
        }
    }

    /// The only copy of some flows' state is the state server's: if worker and standby of
    /// that die together, these flows are lost.
    pub const fn has_absent_flows(&self) -> bool {
        self.resident_flows.is_some()
    }

    /// The switch has to log what it sends.
    pub const fn has_log(&self) -> bool {
        matches!(self.rebuild, Rebuild::Replay)
    }

    /// Bytes of the switch's log for one chain of one runtime; 0 if it keeps none.
    pub const fn log_size(&self) -> usize {
        if self.has_log() { self.log_bytes } else { 0 }
    }

    /// Slots of a flow in all runtimes together: its owner's, and that of a copy if another
    /// runtime has one. A runtime has so many slots for each flow that it may own.
    pub const fn slots_per_flow(&self) -> usize {
        if self.promises() && !self.is_paged() { 2 } else { 1 }
    }

    /// Runtimes without which it cannot keep its promise.
    pub const fn least_runtimes(&self) -> u16 {
        if self.promises() { 2 } else { 1 }
    }

    /// A protection by this plan, for one chain in one runtime.
    ///
    /// # Panics
    /// If its answers do not go together.
    pub fn build(self) -> Box<dyn Protection> {
        assert!(self.check(false).is_ok(), "answers do not go together: {self:?}");
        match self.flow {
            Flow::Memory => Box::new(Unprotected::new(self)),
            Flow::Replica | Flow::Snapshot => Box::new(NfvActor::new(self)),
            Flow::Standby => Box::new(Reinforce::new(self)),
            Flow::Paged => Box::new(Rescue::new(self)),
        }
    }
}

/// Answers to one question that go with a place of the flow's state.
struct Fits<A: 'static> {
    these: &'static [A],
    /// For other answers: why not, and where the state lives that they go with. The first
    /// entry for the answer counts, or for all answers (`None`).
    others: &'static [(Option<A>, &'static str, Option<Flow>)],
}

/// One protection: the plan that its name means, and what else it goes with.
struct Row {
    preset: &'static str,
    plan: Plan,
    shared: Fits<Shared>,
    release: Fits<Release>,
    rebuild: Fits<Rebuild>,
}

const OTHERS_TAKE_OVER: Fits<Shared> = Fits {
    these: &[Shared::Partitioned, Shared::StateServer],
    others: &[(None, "others take these flows over, and what is left in a dead runtime's memory may be given twice", None)],
};

/// Which answers go together.
const ROWS: [Row; 5] = [
    Row {
        preset: "none",
        plan: Plan::NONE,
        shared: Fits { these: Shared::ALL, others: &[] },
        release: Fits {
            these: &[Release::AtOnce],
            others: &[(None, "without a copy nobody says that the state is saved", Some(Flow::Replica))],
        },
        rebuild: Fits { these: &[Rebuild::Nothing], others: &[(None, "there is no copy to rebuild from", Some(Flow::Replica))] },
    },
    Row {
        preset: "nfactor",
        plan: Plan::NFACTOR,
        shared: OTHERS_TAKE_OVER,
        release: Fits {
            these: &[Release::AtOnce],
            others: &[(None, "a snapshot is older than what it would have to hold back", Some(Flow::Replica))],
        },
        rebuild: Fits { these: &[Rebuild::Snapshots], others: &[(None, "what is lost comes back from the snapshots", None)] },
    },
    Row {
        preset: "nfvactor",
        plan: Plan::NFVACTOR,
        shared: OTHERS_TAKE_OVER,
        release: Fits {
            these: &[Release::Replica, Release::Source, Release::Auto, Release::AtOnce],
            others: &[
                (Some(Release::Standby), "a replica is no standby", Some(Flow::Standby)),
                (Some(Release::WriteBack), "nothing is written back to a replica", Some(Flow::Paged)),
            ],
        },
        rebuild: Fits {
            these: &[Rebuild::Replica],
            others: &[(None, "a replica from which nothing is rebuilt is of no use", None)],
        },
    },
    Row {
        preset: "reinforce",
        plan: Plan::REINFORCE,
        shared: OTHERS_TAKE_OVER,
        release: Fits {
            these: &[Release::Standby],
            others: &[(None, "a packet leaves once its standby knows of it", Some(Flow::Replica))],
        },
        rebuild: Fits {
            these: &[Rebuild::Replay],
            others: &[(None, "what the standby has not seen comes back from the log", None)],
        },
    },
    Row {
        preset: "rescue",
        plan: Plan::RESCUE,
        shared: OTHERS_TAKE_OVER,
        release: Fits {
            these: &[Release::WriteBack, Release::AtOnce],
            others: &[(None, "a packet leaves at once, or when its flow is written back", Some(Flow::Replica))],
        },
        rebuild: Fits {
            these: &[Rebuild::Pages],
            others: &[(None, "what is lost comes back from the pages at the state server", None)],
        },
    },
];

/// Something said of a protection that does not go with the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The key of the answer or number.
    pub key: &'static str,
    /// The key itself has no place here. False: the key needs another value.
    pub is_key: bool,
    /// Why not, and what to say instead.
    pub message: String,
}

impl<A: Answer> Fits<A> {
    fn check(&self, answer: A, is_preset: bool) -> Result<(), Misfit> {
        if self.these.contains(&answer) {
            return Ok(());
        }
        let is_about = |of: &Option<A>| of.is_none_or(|of| of == answer);
        let (why, instead) = self.others.iter().find(|(of, ..)| is_about(of)).map_or(("", None), |(_, why, flow)| (*why, *flow));
        let words: Vec<String> = self.these.iter().map(|answer| format!("`{}`", answer.word())).collect();
        let these = match words.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => words.concat(),
        };
        let these = these.replacen('`', &format!("`{}: ", A::KEY), 1);
        let instead = match instead.map(|flow| (flow, Plan::of_flow(flow).row())) {
            Some((_, row)) if is_preset => format!(", or `preset: {}`", row.preset),
            Some((flow, _)) => format!(", or `{}: {}`", Flow::KEY, flow.word()),
            None => String::new(),
        };
        Err(Misfit { key: A::KEY, is_key: false, message: format!("{why}: {these}{instead}") })
    }
}

/// From what an operator says.
impl Plan {
    /// The names of presets.
    pub fn presets() -> impl Iterator<Item = &'static str> + Clone {
        ROWS.iter().map(|row| row.preset)
    }

    /// Protections that this version does not have.
    pub const LATER: &[&str] = &["dal", "pico", "ftmb", "stateless"];

    /// The preset of this name.
    pub fn preset(name: &str) -> Option<Plan> {
        ROWS.iter().find(|row| row.preset == name).map(|row| row.plan)
    }

    /// The plan that is meant if only the place of a flow's state is given.
    pub fn of_flow(flow: Flow) -> Plan {
        Plan { flow, ..Plan::NONE }.row().plan
    }

    fn row(&self) -> &'static Row {
        ROWS.iter().find(|row| row.plan.flow == self.flow).expect("every place of state has a row")
    }

    /// Whether the answers go together. `is_preset`: the operator named a preset, so the
    /// remedy names one, too.
    ///
    /// # Errors
    /// The first answer that does not go with where the flow's state lives.
    pub fn check(&self, is_preset: bool) -> Result<(), Misfit> {
        let row = self.row();
        row.shared.check(self.shared, is_preset)?;
        row.release.check(self.release, is_preset)?;
        row.rebuild.check(self.rebuild, is_preset)
    }

    /// Takes a number that an operator has chosen.
    ///
    /// # Errors
    /// If this plan has no such number, or no such value is possible.
    pub fn set(&mut self, number: &Number, value: u64) -> Result<(), Misfit> {
        let Number { key, .. } = *number;
        if let Some((why, instead)) = number.misfits(self) {
            return Err(Misfit { key, is_key: true, message: format!("{why}: leave `{key}` out{instead}") });
        }
        if !number.range.contains(&value) {
            return Err(Misfit { key, is_key: false, message: number.range_says.to_owned() });
        }
        (number.set)(self, value);
        Ok(())
    }
}

/// A number that an operator may choose.
pub struct Number {
    /// By this key.
    pub key: &'static str,
    of: Of,
    range: RangeInclusive<u64>,
    range_says: &'static str,
    set: fn(&mut Plan, u64),
}

/// The part of a plan that a number belongs to.
#[derive(Clone, Copy)]
enum Of {
    Snapshots,
    Replicas,
    WriteBack,
    Memory,
    Checkpoints,
    Rest,
}

impl Number {
    /// Why it does not count in a plan, and what would help besides leaving it out.
    fn misfits(&self, plan: &Plan) -> Option<(&'static str, &'static str)> {
        let why = match (self.of, plan.flow) {
            (Of::Snapshots, Flow::Snapshot) | (Of::Memory, Flow::Paged) | (Of::Checkpoints, Flow::Standby) => return None,
            (Of::Replicas, Flow::Replica) | (Of::WriteBack, Flow::Paged) if plan.release == Release::AtOnce => return None,
            (Of::Rest, _) if plan.shared == Shared::StateServer => return None,
            (Of::WriteBack, Flow::Paged) => {
                return Some(("packets wait for the write-back, so it is never put off", ", or `release: at-once`"));
            }
            (Of::Replicas, Flow::Replica) => {
                return Some(("no packet leaves before the replica knows of it", ", or `release: at-once`"));
            }
            (Of::Checkpoints, _) if plan.has_local_standby => {
                "a local standby shares its runtime's memory and needs neither log nor checkpoints"
            }
            (Of::Snapshots, _) => "only the preset `nfactor` has snapshots",
            (Of::Replicas, _) => "only the preset `nfvactor` has replicas",
            (Of::WriteBack, _) => "only the preset `rescue` writes back",
            (Of::Memory, _) => "only the preset `rescue` has flows whose state is not in memory",
            (Of::Checkpoints, _) => "only the preset `reinforce` has a log and checkpoints",
            (Of::Rest, _) => "only with `shared: state-server` do numbers rest",
        };
        Some((why, ""))
    }
}

const MILLISECOND: u64 = 1_000_000;

/// The numbers that an operator may choose.
pub static NUMBERS: [Number; 8] = [
    Number {
        key: "snapshot_every",
        of: Of::Snapshots,
        range: 1..=u32::MAX as u64,
        range_says: "a snapshot is due after 1 packet or more",
        set: |plan, packets| plan.snapshot_every = packets as u32,
    },
    Number {
        key: "unsaved_packets",
        of: Of::Replicas,
        range: 1..=u32::MAX as u64,
        range_says: "1 packet or more leaves before the replica knows of it",
        set: |plan, packets| plan.unsaved_packets = packets as u32,
    },
    Number {
        key: "write_back_ms",
        of: Of::WriteBack,
        range: 1..=10_000,
        range_says: "flows are written back every 1 to 10000 milliseconds",
        set: |plan, ms| plan.write_back_every = ms * MILLISECOND,
    },
    Number {
        key: "write_back_packets",
        of: Of::WriteBack,
        range: 1..=u32::MAX as u64,
        range_says: "a flow is written back after 1 packet or more",
        set: |plan, packets| plan.write_back_packets = packets as u32,
    },
    Number {
        key: "resident_flows",
        of: Of::Memory,
        range: 16..=u32::MAX as u64,
        range_says: "a runtime has the state of at least 16 flows in memory",
        set: |plan, flows| plan.resident_flows = Some(flows as u32),
    },
    Number {
        key: "checkpoint_ms",
        of: Of::Checkpoints,
        range: 1..=10_000,
        range_says: "checkpoints are between 1 and 10000 milliseconds apart",
        set: |plan, ms| plan.checkpoint_every = ms * MILLISECOND,
    },
    Number {
        key: "log_mib",
        of: Of::Checkpoints,
        range: 1..=1024,
        range_says: "a log has between 1 and 1024 MiB",
        set: |plan, mib| plan.log_bytes = (mib as usize) << 20,
    },
    Number {
        key: "hold_s",
        of: Of::Rest,
        range: 0..=3600,
        range_says: "a number rests for between 0 and 3600 seconds",
        set: |plan, seconds| plan.rest = seconds * 1000 * MILLISECOND,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of answers is a plan that is built, or a contradiction with a
    /// reason and a remedy.
    #[test]
    fn answers_go_together_or_it_is_said_why_not() {
        let mut fitting = Vec::new();
        for (&flow, &shared) in Flow::ALL.iter().flat_map(|flow| Shared::ALL.iter().map(move |shared| (flow, shared))) {
            for (&release, &rebuild) in Release::ALL.iter().flat_map(|release| Rebuild::ALL.iter().map(move |one| (release, one)))
            {
                let plan = Plan { flow, shared, release, rebuild, ..Plan::NONE };
                match plan.check(false) {
                    Ok(()) => {
                        assert_eq!(plan.build().plan(), plan);
                        fitting.push(plan);
                    }
                    Err(misfit) => {
                        let (why, instead) = misfit.message.split_once(": ").expect("a reason, and what to say instead");
                        assert!(!why.is_empty() && instead.starts_with(&format!("`{}: ", misfit.key)), "{plan:?}: {misfit:?}");
                    }
                }
            }
        }
        assert_eq!(fitting.len(), 3 + 2 + 2 * 4 + 2 + 2 * 2);
        let with_room: Vec<Plan> = Plan::combinations().filter(|plan| !plan.has_absent_flows()).collect();
        assert_eq!(with_room, fitting);
        assert_eq!(Plan::combinations().count(), fitting.len() + 2);
        for plan in Plan::combinations() {
            let named = Plan::ALL.iter().find(|(name, _)| *name == plan.name()).expect("a name of the list").1;
            let what = |plan: Plan| (plan.flow, plan.release, plan.rebuild, plan.has_absent_flows());
            assert_eq!(what(named), what(plan), "two combinations have the name {}", plan.name());
        }
    }

    /// Presets agree with their rows, names are unique, and a remedy names what is right.
    #[test]
    fn presets_are_plans() {
        for row in &ROWS {
            assert_eq!(row.plan.check(true), Ok(()), "{}", row.preset);
            assert_eq!(Plan::preset(row.preset), Some(row.plan));
        }
        for (name, plan) in Plan::ALL {
            assert_eq!((plan.name(), plan.check(true)), (name, Ok(())));
        }
        let message = |is_preset| Plan { release: Release::Standby, ..Plan::NFVACTOR }.check(is_preset).unwrap_err().message;
        assert_eq!(
            message(false),
            "a replica is no standby: `release: replica`, `source`, `auto` or `at-once`, or `flow: standby`"
        );
        assert_eq!(
            message(true),
            "a replica is no standby: `release: replica`, `source`, `auto` or `at-once`, or `preset: reinforce`"
        );
    }

    /// Promises and needs of every protection.
    #[test]
    fn what_a_plan_promises_and_needs() {
        let said =
            |plan: Plan| (plan.promises(), plan.may_forget(), plan.slots_per_flow(), plan.least_runtimes(), plan.has_log());
        assert_eq!(said(Plan::NONE), (false, 0, 1, 1, false));
        assert_eq!(said(Plan::NFVACTOR), (true, 0, 2, 2, false));
        assert_eq!(said(Plan::NFVACTOR_AT_ONCE), (true, 128, 2, 2, false));
        assert_eq!(said(Plan::NFACTOR), (true, 10, 2, 2, false));
        assert_eq!(said(Plan::REINFORCE), (true, 0, 2, 2, true));
        assert_eq!(said(Plan::RESCUE), (true, 0, 1, 2, false));
        assert_eq!(said(Plan::RESCUE_AT_ONCE), (true, 32, 1, 2, false));
        let served: Vec<&str> = Plan::ALL.iter().filter(|(_, plan)| plan.needs_state_server()).map(|(name, _)| *name).collect();
        assert_eq!(served, ["rescue", "rescue_at_once", "rescue_paged"]);
        assert_eq!(Plan { shared: Shared::StateServer, ..Plan::NONE }.server_rest(), Some(120_000_000_000));
    }
}
