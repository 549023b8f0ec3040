//! `holdfast explain`: the meaning of a word in the output, and the remedy.

use crate::control::Refused;
use holdfast_control::exit::{self, Failure};
use holdfast_control::fields::{FIELDS, Field};
use holdfast_io::port::Loss;
use holdfast_wire::DropReason;
use holdfast_wire::events::Event;

/// A word and its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// The word, as in the output.
    pub word: &'static str,
    /// The kind of word: a drop reason, a state, …
    pub kind: &'static str,
    /// The unit, if the word names a counter of events.
    pub unit: Option<&'static str>,
    /// Its meaning, and what to do about it.
    pub meaning: &'static str,
}

const EXIT: &str = "exit code";
const PROTECTED: &str = "answer of `status` to `protected`";
const STATE: &str = "state of a process";
const ROLE: &str = "role of a process";
const CAUSE: &str = "cause of a failover";
const PROTECTION: &str = "protection";

macro_rules! words {
    ($($kind:ident $word:literal $meaning:literal;)+) => {
        const WORDS: &[Word] = &[$(Word { word: $word, kind: $kind, unit: None, meaning: $meaning },)+];
    };
}

words! {
    PROTECTED "yes" "Every flow whose chain promises it would survive the failure of one process now; where packets leave at once all but its latest packets' effects (`may_forget`), and not a flow whose first copy is still under way.";
    PROTECTED "re-synchronising" "Some flow has no replica yet, most likely after a failure: wait for `yes` before you stop anything.";
    PROTECTED "no" "No chain promises anything (protection `none`), or some flows need replicas and there is no second runtime to hold them.";
    STATE "starting" "The process has been started and has not said that it serves.";
    STATE "running" "It serves.";
    STATE "leaving" "It gives its flows to others and then ends.";
    STATE "drained" "An operator has taken it out of service: nobody is started in this place until `holdfast restore`.";
    STATE "spare" "No failure: a place in which a runtime is started when the load needs one. `runtimes.max` says how many there are, the section `scaling` when.";
    STATE "failed" "It ended, or was silent for longer than detection.hang_ms; its flows belong to their replicas, and a successor is started.";
    STATE "candidate" "The coordinator's process waits to be elected through etcd: another one leads, or etcd does not answer. Traffic goes on.";
    STATE "away" "The coordinator, or a state server, has ended and is going to be started again, at once or after a pause if it keeps ending. Traffic goes on; what fails meanwhile is recovered when it is back.";
    ROLE "guard" "The process that was started. It is the parent of all others, keeps what the manager's next incarnation needs, and begins that.";
    ROLE "manager" "Owns the host's ports, forwards frames between them and the local processes, has those started and watches them.";
    ROLE "switch" "Picks the runtime of a new flow, keeps the route, changes it when the flow has a new owner.";
    ROLE "coordinator" "Knows who is there, starts recovery, has what died started again. Traffic flows without it.";
    ROLE "state-server" "Assigns what flows share one by one, where a chain's `shared` state is a `state-server`'s. A worker and a standby, of which one may end; without both flows go on; new ones have what runtimes have at hand. Under `rescue` it has every flow too, and packets that wait for a write-back wait until it is back. Of several (`state_server.servers`) each has some of the flows, and the first, which is listed first, does the rest.";
    ROLE "runtime" "A process of its own that owns flows and runs the chain on their packets.";
    CAUSE "no heartbeat" "The process was there but did not turn for detection.hang_ms: it was stopped, slept, or did something else with the processor's time. One that only waits for a processor is not given up. Until it ends it is fenced.";
    CAUSE "killed by signal" "The process was killed: 9 by somebody, or by the kernel for want of memory (see `dmesg`); 6 or 11 by a fault of its own; 31 for a system call that is not of its work: standard error says which. A library or a tool may need it (`seccomp: false`); otherwise somebody may have taken the process over.";
    CAUSE "exited with code" "The process ended by itself; what it said on standard error is the reason.";
    PROTECTION "none" "State lives in one runtime's memory and dies with it. Packets leave at once.";
    PROTECTION "nfactor" "Packets leave at once; every `snapshot_every` packets a flow's state goes to another runtime as a snapshot. A restarted runtime fetches its snapshots: a failure may undo the latest packets' effects.";
    PROTECTION "nfvactor" "After every packet the flow's state goes to a replica on another runtime; the packet leaves once that has saved it. With `release: at-once` it leaves before, but so that a failure undoes no more than `unsaved_packets` of a flow (`may_forget`).";
    PROTECTION "reinforce" "A packet leaves once a standby runtime knows that it was processed, or, if it could come out differently, has its flow's state. The other states follow every `checkpoint_ms`; what a failure leaves out is processed again from the switch's log.";
    PROTECTION "rescue" "A flow's home is the state server. A packet leaves once that has what it reveals (`release: write-back`), or at once, and then a failure may undo its flow's latest packets (`may_forget`). What a dead runtime had the server deals out to the others.";
    EXIT "0" "Well, or yes.";
    EXIT "1" "A negative answer: the command did what was asked, and the answer is no.";
    EXIT "2" "The command line is wrong; --help says how it goes.";
    EXIT "69" "Something that is needed is not there: a device, a running box, a program.";
    EXIT "70" "A fault of this program: please report it. Of `holdfast run`: the manager ended as soon as it started, again and again, before the box served.";
    EXIT "75" "It took too long.";
    EXIT "77" "A privilege is missing: run as root, or give the binary CAP_NET_RAW, CAP_NET_ADMIN and for AF_XDP CAP_BPF (setcap cap_net_raw,cap_net_admin,cap_bpf+ep). Of a control API: a certificate is refused, or does not allow this.";
    EXIT "78" "The configuration is wrong; the message names the line.";
}

/// All words: events first, then the fields of what is printed, then the rest.
pub fn all() -> Vec<Word> {
    let events = [DropReason::EVENTS, Loss::EVENTS, Refused::EVENTS].concat();
    let event = |event: Event| Word {
        word: event.name,
        kind: event.kind,
        unit: Some(event.unit),
        meaning: event.meaning,
    };
    let field = |field: &Field| Word {
        word: field.name,
        kind: field.kind,
        unit: None,
        meaning: field.meaning,
    };
    events
        .into_iter()
        .map(event)
        .chain(FIELDS.iter().map(field))
        .chain(WORDS.iter().copied())
        .collect()
}

/// The meanings of a word: several if several things have it.
///
/// # Errors
/// If the word is unknown; with a suggestion.
pub fn explain(word: &str) -> Result<Vec<Word>, Failure> {
    let folded = word.trim().to_lowercase();
    // Other spellings: `exit-78`, `exit code 78`, and a cause with its number.
    let code = folded
        .strip_prefix("exit")
        .map(|rest| rest.trim_start_matches(" code").trim_start_matches(['-', ' ', '_']));
    let wanted = code.unwrap_or(&folded);
    let normal = |text: &str| text.replace(['-', ' '], "_");
    let is_it = |known: &Word| {
        normal(known.word) == normal(wanted)
            || (known.kind == CAUSE && wanted.starts_with(known.word) && code.is_none())
    };
    let found: Vec<Word> = all().into_iter().filter(is_it).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let near = all()
        .into_iter()
        .map(|known| {
            (strsim::damerau_levenshtein(&normal(wanted), &normal(known.word)), known.word)
        })
        .filter(|(distance, _)| word.len() <= 64 && *distance <= 2 + word.len() / 4)
        .min();
    let hint = near.map_or("; `holdfast explain` lists what there is".to_owned(), |(_, known)| {
        format!("; did you mean `{known}`?")
    });
    Err(Failure::new(
        exit::NEGATIVE,
        format!("there is nothing to explain about `{}`{hint}", word.escape_debug()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every preset is explained as a protection, and no other word is.
    #[test]
    fn every_preset_is_explained() {
        let explained: Vec<&str> =
            WORDS.iter().filter(|word| word.kind == PROTECTION).map(|word| word.word).collect();
        assert_eq!(explained, holdfast_protection::Plan::presets().collect::<Vec<_>>());
    }

    /// Every declared counter is found under its name, and has a meaning.
    #[test]
    fn every_event_every_field_and_every_exit_code_is_explained() {
        let events = [DropReason::EVENTS, Loss::EVENTS, Refused::EVENTS].concat();
        assert!(events.len() > DropReason::ALL.len());
        for event in &events {
            let found = explain(event.name).unwrap();
            let is_it = |word: &Word| {
                (word.kind, word.unit, word.meaning)
                    == (event.kind, Some(event.unit), event.meaning)
            };
            assert!(
                found.iter().any(is_it)
                    && !event.unit.is_empty()
                    && event.meaning.ends_with(['.', ')']),
                "{event:?}"
            );
        }
        for field in FIELDS {
            assert!(field.meaning.ends_with(['.', '?']), "{field:?}");
        }
        for name in [
            "protected",
            "retry",
            "flow_tables",
            "consumed",
            "replica",
            "recovered_us",
            "absent_flows",
        ] {
            assert!(
                explain(name).unwrap().iter().any(|word| word.kind.starts_with("field")),
                "{name}"
            );
        }
        for code in [
            exit::NEGATIVE,
            exit::USAGE,
            exit::UNAVAILABLE,
            exit::SOFTWARE,
            exit::TIMEOUT,
            exit::PERMISSION,
            exit::CONFIGURATION,
        ] {
            for word in [code.to_string(), format!("exit-{code}"), format!("exit code {code}")] {
                assert_eq!(explain(&word).unwrap()[0].kind, EXIT, "{word}");
            }
        }
    }

    #[test]
    fn no_word_is_there_twice_for_the_same_thing() {
        let words: Vec<(&str, &str)> = all().iter().map(|word| (word.kind, word.word)).collect();
        let distinct: std::collections::BTreeSet<_> = words.iter().collect();
        assert_eq!(distinct.len(), words.len());
    }

    #[test]
    fn what_is_written_a_little_otherwise_is_found_or_suggested() {
        assert_eq!(explain("No-Route").unwrap()[0].word, "no_route");
        assert_eq!(explain("killed by signal 9").unwrap()[0].word, "killed by signal");
        assert_eq!(explain("re_synchronising").unwrap()[0].kind, PROTECTED);
        let hint = |word: &str| explain(word).unwrap_err().message;
        assert!(hint("no_roote").contains("did you mean `no_route`"), "{}", hint("no_roote"));
        assert!(hint("elephants and more").contains("lists what there is"));
        assert!(hint(&"x".repeat(100_000)).contains("lists what there is"));
    }
}
