//! The plan of a protection: answers to three questions, and the numbers that go with
//! them.
//!
//! The questions are where state lives and how copies of it are made; when a packet may
//! leave; and how lost state is rebuilt. A [`Plan`] is one small value, and presets are
//! constants of it. Its methods say what the protection promises and needs. The table
//! `ROWS` says which answers do not go together, why, and what to answer instead.
//! Configuration, runtime, switch, coordinator, status and simulator read the same value,
//! so none of them builds a protection to learn its abilities.
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

    /// The answer's word in the configuration.
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
        /// In its runtime's memory, and in a replica at another runtime. Changes go there
        /// at the end of each batch.
        Replica "replica",
        /// In its runtime's memory, and in a snapshot at another runtime, sent after
        /// every so many packets.
        Snapshot "snapshot",
        /// In its runtime's memory, and on a standby runtime, which knows which packets
        /// were processed since its checkpoint.
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
        /// At a state server, which assigns numbers one by one and adds up statistics.
        StateServer "state-server",
    } later &["checkpoint", "dal"]
}

question! {
    /// When a packet may leave.
    Release "release" {
        /// Once the chain is done with it. With a replica, only a limited number of a
        /// flow's packets may leave before the replica knows of them.
        AtOnce "at-once",
        /// From the replica, once that has saved the state. The packet crosses the
        /// network, one way.
        Replica "replica",
        /// From its runtime, once the replica has acknowledged the state. Only the state
        /// crosses the network, there and back.
        Source "source",
        /// By the cheaper of these two ways, link by link: `nfvactor/release_mode.rs`.
        Auto "auto",
        /// Once the standby knows that the packet was processed.
        Standby "standby",
        /// When the state server has the state that the packet reveals.
        WriteBack "write-back",
    } later &["stable"]
}

question! {
    /// The source of lost state.
    Rebuild "rebuild" {
        /// No source.
        Nothing "nothing",
        /// The replica becomes the flow's actor.
        Replica "replica",
        /// The restarted runtime fetches its snapshots.
        Snapshots "snapshots",
        /// The standby's checkpoint, and the packets that the switch has logged since.
        Replay "replay",
        /// The pages at the state server.
        Pages "pages",
    } later &["dal"]
}

/// See the module. Numbers that do not go with the answers are as in [`Plan::NONE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The place of a flow's state, and how copies of it are made.
    pub flow: Flow,
    /// The place of state that flows share.
    pub shared: Shared,
    /// When a packet may leave.
    pub release: Release,
    /// How lost state is rebuilt.
    pub rebuild: Rebuild,
    /// A process beside each runtime shares its memory, and goes on when the runtime is
    /// killed.
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
    /// Flows whose state fits into a runtime's memory; `None`: all flows.
    pub resident_flows: Option<u32>,
    /// Time between two rounds of checkpoints, ns. Rounds are more frequent if the log
    /// would fill up before.
    pub checkpoint_every: u64,
    /// Bytes of the switch's log for one chain of one runtime.
    pub log_bytes: usize,
    /// Time for which a flow's former number rests at the state server, ns (RFC 6888,
    /// section 4, REQ-8).
    pub rest: u64,
    /// For tests of `release: auto`: time after which each link changes its release mode,
    /// ns.
    #[doc(hidden)]
    pub fickle_every: Option<u64>,
}

/// Flows with room for their state, in presets where room is short.
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
    pub const NFVACTOR: Plan =
        Plan::of(Flow::Replica, Shared::Partitioned, Release::Replica, Rebuild::Replica);
    /// `nfvactor`, released at the source.
    pub const NFVACTOR_AT_SOURCE: Plan = Plan { release: Release::Source, ..Plan::NFVACTOR };
    /// `nfvactor`, released by the one or the other.
    pub const NFVACTOR_AUTO: Plan = Plan { release: Release::Auto, ..Plan::NFVACTOR };
    /// `nfvactor`, released at once.
    pub const NFVACTOR_AT_ONCE: Plan = Plan { release: Release::AtOnce, ..Plan::NFVACTOR };
    /// `nfactor`.
    pub const NFACTOR: Plan =
        Plan::of(Flow::Snapshot, Shared::Partitioned, Release::AtOnce, Rebuild::Snapshots);
    /// `reinforce`, with a remote standby.
    pub const REINFORCE: Plan =
        Plan::of(Flow::Standby, Shared::Partitioned, Release::Standby, Rebuild::Replay);
    /// `rescue`, released when flows are written back.
    pub const RESCUE: Plan =
        Plan::of(Flow::Paged, Shared::StateServer, Release::WriteBack, Rebuild::Pages);
    /// `rescue`, released at once.
    pub const RESCUE_AT_ONCE: Plan = Plan { release: Release::AtOnce, ..Plan::RESCUE };
    /// `rescue`, released when flows are written back, with room for few flows' state.
    pub const RESCUE_PAGED: Plan = Plan { resident_flows: Some(FEW), ..Plan::RESCUE };

    /// All of these: a name for each of [`Plan::combinations`], independent of the place
    /// of shared state. Later additions stand at the end.
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

    /// Every combination of answers that go together. Plans whose flow state may be
    /// absent and is written back without delay come a second time, with room for few
    /// flows.
    pub fn combinations() -> impl Iterator<Item = Plan> {
        let flows = Flow::ALL
            .iter()
            .flat_map(|&flow| Shared::ALL.iter().map(move |&shared| (flow, shared)));
        let released = flows.flat_map(|(flow, shared)| {
            Release::ALL.iter().map(move |&release| Plan { flow, shared, release, ..Plan::NONE })
        });
        let rebuilt = released
            .flat_map(|plan| Rebuild::ALL.iter().map(move |&rebuild| Plan { rebuild, ..plan }));
        let roomy = rebuilt.filter(|plan| plan.check(false).is_ok());
        roomy
            .flat_map(|plan| {
                [None, Some(FEW)].map(|resident_flows| Plan { resident_flows, ..plan })
            })
            .filter(|plan| plan.release == Release::WriteBack || !plan.has_absent_flows())
    }

    const fn of(flow: Flow, shared: Shared, release: Release, rebuild: Rebuild) -> Plan {
        Plan { flow, shared, release, rebuild, ..Plan::NONE }
    }

    /// The plan's name among [`Plan::ALL`], independent of its numbers and of the place
    /// of shared state.
    pub fn name(&self) -> &'static str {
        let what = |plan: &Plan| (plan.flow, plan.release, plan.resident_flows.is_some());
        let named = Plan::ALL.iter().find(|(_, plan)| what(plan) == what(self));
        named.map_or(self.row().preset, |(name, _)| *name)
    }
}

/// Promises and needs that follow from the answers.
impl Plan {
    /// True if flows survive the failure of a runtime.
    pub const fn promises(&self) -> bool {
        !matches!(self.rebuild, Rebuild::Nothing)
    }

    /// The number of a flow's latest packets whose effect on its state a failure may
    /// undo. 0: no effect of a released packet is lost.
    pub const fn may_forget(&self) -> u32 {
        match (self.flow, self.release) {
            (Flow::Replica, Release::AtOnce) => self.unsaved_packets,
            (Flow::Snapshot, _) => self.snapshot_every,
            (Flow::Paged, Release::AtOnce) => self.write_back_packets,
            _ => 0,
        }
    }

    /// True if [`Plan::may_forget`] includes the packets whose state is on its way to the
    /// copy: further packets wait rather than exceed it. If false, packets under way come
    /// on top of it.
    pub const fn forgets_by_count(&self) -> bool {
        matches!((self.flow, self.release), (Flow::Replica, Release::AtOnce))
    }

    /// Packets of a flow after which it is copied, if each comes in a batch of its own.
    pub const fn copied_after(&self) -> u32 {
        match (self.flow, self.release) {
            (Flow::Snapshot, _) => self.snapshot_every,
            (Flow::Paged, Release::AtOnce) => self.write_back_packets,
            _ => 1,
        }
    }

    /// True if flows survive, and no effect of a released packet is forgotten.
    pub const fn is_strict(&self) -> bool {
        self.promises() && self.may_forget() == 0
    }

    /// True if flows have their home at a state server. [`Protection::set_peers`] then
    /// names state servers, and otherwise runtimes.
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

    /// True if there has to be a state server.
    pub const fn needs_state_server(&self) -> bool {
        self.is_paged() || self.server_rest().is_some()
    }

    /// Flows whose state fits into memory.
    pub const fn present_flows(&self) -> usize {
        match self.resident_flows {
            Some(flows) => flows as usize,
            None => usize::MAX,
        }
    }

    /// True if the state server has the only copy of some flows' state. If its worker and
    /// standby die together, these flows are lost.
    pub const fn has_absent_flows(&self) -> bool {
        self.resident_flows.is_some()
    }

    /// True if the switch has to log the packets that it sends.
    pub const fn has_log(&self) -> bool {
        matches!(self.rebuild, Rebuild::Replay)
    }

    /// Bytes of the switch's log for one chain of one runtime; 0 if it keeps none.
    pub const fn log_size(&self) -> usize {
        if self.has_log() { self.log_bytes } else { 0 }
    }

    /// Slots of a flow in all runtimes together: its owner's, and a copy's if another
    /// runtime has one. A runtime has this many slots for each flow that it may own.
    pub const fn slots_per_flow(&self) -> usize {
        if self.promises() && !self.is_paged() { 2 } else { 1 }
    }

    /// The least number of runtimes with which the plan keeps its promise.
    pub const fn least_runtimes(&self) -> u16 {
        if self.promises() { 2 } else { 1 }
    }

    /// Builds the protection of this plan, for one chain in one runtime.
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
    /// For other answers: why not, and the place of flow state that they go with. The
    /// first entry for the answer, or for all answers (`None`), counts.
    others: &'static [(Option<A>, &'static str, Option<Flow>)],
}

/// A protection: the plan that its name means, and the answers that it goes with.
struct Row {
    preset: &'static str,
    plan: Plan,
    shared: Fits<Shared>,
    release: Fits<Release>,
    rebuild: Fits<Rebuild>,
}

const OTHERS_TAKE_OVER: Fits<Shared> = Fits {
    these: &[Shared::Partitioned, Shared::StateServer],
    others: &[(
        None,
        "others take these flows over, and what is left in a dead runtime's memory may be given twice",
        None,
    )],
};

/// Which answers go together.
const ROWS: [Row; 5] = [
    Row {
        preset: "none",
        plan: Plan::NONE,
        shared: Fits { these: Shared::ALL, others: &[] },
        release: Fits {
            these: &[Release::AtOnce],
            others: &[(
                None,
                "without a copy nobody says that the state is saved",
                Some(Flow::Replica),
            )],
        },
        rebuild: Fits {
            these: &[Rebuild::Nothing],
            others: &[(None, "there is no copy to rebuild from", Some(Flow::Replica))],
        },
    },
    Row {
        preset: "nfactor",
        plan: Plan::NFACTOR,
        shared: OTHERS_TAKE_OVER,
        release: Fits {
            these: &[Release::AtOnce],
            others: &[(
                None,
                "a snapshot is older than what it would have to hold back",
                Some(Flow::Replica),
            )],
        },
        rebuild: Fits {
            these: &[Rebuild::Snapshots],
            others: &[(None, "what is lost comes back from the snapshots", None)],
        },
    },
    Row {
        preset: "nfvactor",
        plan: Plan::NFVACTOR,
        shared: OTHERS_TAKE_OVER,
        release: Fits {
            these: &[Release::Replica, Release::Source, Release::Auto, Release::AtOnce],
            others: &[
                (Some(Release::Standby), "a replica is no standby", Some(Flow::Standby)),
                (
                    Some(Release::WriteBack),
                    "nothing is written back to a replica",
                    Some(Flow::Paged),
                ),
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
            others: &[(
                None,
                "a packet leaves at once, or when its flow is written back",
                Some(Flow::Replica),
            )],
        },
        rebuild: Fits {
            these: &[Rebuild::Pages],
            others: &[(None, "what is lost comes back from the pages at the state server", None)],
        },
    },
];

/// An answer or number that does not go with the rest of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The key of the answer or number.
    pub key: &'static str,
    /// True if the key has no place in this plan. False if it needs another value.
    pub is_key: bool,
    /// The reason, and the remedy.
    pub message: String,
}

impl<A: Answer> Fits<A> {
    fn check(&self, answer: A, is_preset: bool) -> Result<(), Misfit> {
        if self.these.contains(&answer) {
            return Ok(());
        }
        let is_about = |of: &Option<A>| of.is_none_or(|of| of == answer);
        let (why, instead) = self
            .others
            .iter()
            .find(|(of, ..)| is_about(of))
            .map_or(("", None), |(_, why, flow)| (*why, *flow));
        let words: Vec<String> =
            self.these.iter().map(|answer| format!("`{}`", answer.word())).collect();
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

/// Plans from an operator's configuration.
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

    /// Checks that the answers go together. `is_preset`: the operator named a preset, so
    /// the remedy names one, too.
    ///
    /// # Errors
    /// The first answer that does not go with the place of flow state.
    pub fn check(&self, is_preset: bool) -> Result<(), Misfit> {
        let row = self.row();
        row.shared.check(self.shared, is_preset)?;
        row.release.check(self.release, is_preset)?;
        row.rebuild.check(self.rebuild, is_preset)
    }

    /// Sets a number that an operator has chosen.
    ///
    /// # Errors
    /// If this plan has no such number, or the value is out of its range.
    pub fn set(&mut self, number: &Number, value: u64) -> Result<(), Misfit> {
        let Number { key, .. } = *number;
        if let Some((why, instead)) = number.misfits(self) {
            return Err(Misfit {
                key,
                is_key: true,
                message: format!("{why}: leave `{key}` out{instead}"),
            });
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
    /// The key in the configuration.
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
    /// Why the number has no place in a plan, and a remedy besides leaving it out.
    fn misfits(&self, plan: &Plan) -> Option<(&'static str, &'static str)> {
        let why = match (self.of, plan.flow) {
            (Of::Snapshots, Flow::Snapshot)
            | (Of::Memory, Flow::Paged)
            | (Of::Checkpoints, Flow::Standby) => return None,
            (Of::Replicas, Flow::Replica) | (Of::WriteBack, Flow::Paged)
                if plan.release == Release::AtOnce =>
            {
                return None;
            }
            (Of::Rest, _) if plan.shared == Shared::StateServer => return None,
            (Of::WriteBack, Flow::Paged) => {
                return Some((
                    "packets wait for the write-back, so it is never put off",
                    ", or `release: at-once`",
                ));
            }
            (Of::Replicas, Flow::Replica) => {
                return Some((
                    "no packet leaves before the replica knows of it",
                    ", or `release: at-once`",
                ));
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

    /// Every combination of answers is a plan that can be built, or a contradiction with
    /// a reason and a remedy.
    #[test]
    fn answers_go_together_or_it_is_said_why_not() {
        let mut fitting = Vec::new();
        for (&flow, &shared) in
            Flow::ALL.iter().flat_map(|flow| Shared::ALL.iter().map(move |shared| (flow, shared)))
        {
            for (&release, &rebuild) in Release::ALL
                .iter()
                .flat_map(|release| Rebuild::ALL.iter().map(move |one| (release, one)))
            {
                let plan = Plan { flow, shared, release, rebuild, ..Plan::NONE };
                match plan.check(false) {
                    Ok(()) => {
                        assert_eq!(plan.build().plan(), plan);
                        fitting.push(plan);
                    }
                    Err(misfit) => {
                        let (why, instead) = misfit
                            .message
                            .split_once(": ")
                            .expect("a reason, and what to say instead");
                        assert!(
                            !why.is_empty() && instead.starts_with(&format!("`{}: ", misfit.key)),
                            "{plan:?}: {misfit:?}"
                        );
                    }
                }
            }
        }
        assert_eq!(fitting.len(), 3 + 2 + 2 * 4 + 2 + 2 * 2);
        let with_room: Vec<Plan> =
            Plan::combinations().filter(|plan| !plan.has_absent_flows()).collect();
        assert_eq!(with_room, fitting);
        assert_eq!(Plan::combinations().count(), fitting.len() + 2);
        for plan in Plan::combinations() {
            let named = Plan::ALL
                .iter()
                .find(|(name, _)| *name == plan.name())
                .expect("a name of the list")
                .1;
            let what =
                |plan: Plan| (plan.flow, plan.release, plan.rebuild, plan.has_absent_flows());
            assert_eq!(what(named), what(plan), "two combinations have the name {}", plan.name());
        }
    }

    /// Presets agree with their rows, names are unique, and a remedy names an answer or
    /// preset that fits.
    #[test]
    fn presets_are_plans() {
        for row in &ROWS {
            assert_eq!(row.plan.check(true), Ok(()), "{}", row.preset);
            assert_eq!(Plan::preset(row.preset), Some(row.plan));
        }
        for (name, plan) in Plan::ALL {
            assert_eq!((plan.name(), plan.check(true)), (name, Ok(())));
        }
        let message = |is_preset| {
            Plan { release: Release::Standby, ..Plan::NFVACTOR }
                .check(is_preset)
                .unwrap_err()
                .message
        };
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
        let said = |plan: Plan| {
            (
                plan.promises(),
                plan.may_forget(),
                plan.slots_per_flow(),
                plan.least_runtimes(),
                plan.has_log(),
            )
        };
        assert_eq!(said(Plan::NONE), (false, 0, 1, 1, false));
        assert_eq!(said(Plan::NFVACTOR), (true, 0, 2, 2, false));
        assert_eq!(said(Plan::NFVACTOR_AT_ONCE), (true, 128, 2, 2, false));
        assert_eq!(said(Plan::NFACTOR), (true, 10, 2, 2, false));
        assert_eq!(said(Plan::REINFORCE), (true, 0, 2, 2, true));
        assert_eq!(said(Plan::RESCUE), (true, 0, 1, 2, false));
        assert_eq!(said(Plan::RESCUE_AT_ONCE), (true, 32, 1, 2, false));
        let served: Vec<&str> = Plan::ALL
            .iter()
            .filter(|(_, plan)| plan.needs_state_server())
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(served, ["rescue", "rescue_at_once", "rescue_paged"]);
        assert_eq!(
            Plan { shared: Shared::StateServer, ..Plan::NONE }.server_rest(),
            Some(120_000_000_000)
        );
    }
}
