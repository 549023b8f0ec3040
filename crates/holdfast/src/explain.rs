//! `holdfast explain`: the meaning of a word in the output, and the remedy.

use holdfast_control::exit::{self, Failure};
use holdfast_wire::DropReason;

/// A word and its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// The word, as in the output.
    pub word: &'static str,
    /// The kind of word: a drop reason, a state, …
    pub kind: &'static str,
    /// The meaning and the remedy.
    pub meaning: &'static str,
}

const DROP: &str = "drop reason";
const EXIT: &str = "exit code";
const PROTECTED: &str = "answer of `status` to `protected`";
const STATE: &str = "state of a process";
const ROLE: &str = "role of a process";
const CAUSE: &str = "cause of a failover";
const FIELD: &str = "field of `status` or `flows`";
const LOSS: &str = "counter of frames lost outside a port";
const PROTECTION: &str = "protection";
const REFUSAL: &str = "reason of the control API to refuse";

macro_rules! words {
    ($($kind:ident $word:literal $meaning:literal;)+) => {
        const WORDS: &[Word] = &[$(Word { word: $word, kind: $kind, meaning: $meaning },)+];
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
    ROLE "guard" "The process that was started. It is the parent of all others, keeps what the manager's next life needs, and begins that.";
    ROLE "manager" "Owns the host's ports, forwards frames between them and the local processes, has those started and watches them.";
    ROLE "switch" "Picks the runtime of a new flow, keeps the route, changes it when the flow has a new owner.";
    ROLE "coordinator" "Knows who is there, starts recovery, has what died started again. Traffic flows without it.";
    ROLE "state-server" "Assigns what flows share one by one, where a chain's `shared` state is a `state-server`'s. A worker and a standby, of which one may end; without both flows go on; new ones have what runtimes have at hand. Under `rescue` it has every flow too, and packets that wait for a write-back wait until it is back. Of several (`state_server.servers`) each has some of the flows, and the first, which is listed first, does the rest.";
    ROLE "runtime" "A process of its own that owns flows and runs the chain on their packets.";
    CAUSE "no heartbeat" "The process was there but did not turn for detection.hang_ms: it was stopped, slept, or did something else with the processor's time. One that only waits for a processor is not given up. Until it ends it is fenced.";
    CAUSE "killed by signal" "The process was killed: 9 by somebody, or by the kernel for want of memory (see `dmesg`); 6 or 11 by a fault of its own; 31 for a system call that is not of its work: standard error says which. A library or a tool may need it (`seccomp: false`); otherwise somebody may have taken the process over.";
    CAUSE "exited with code" "The process ended by itself; what it said on standard error is the reason.";
    FIELD "protected" "Would every flow survive if one process failed now? `yes`, `no` or `re-synchronising`.";
    FIELD "may_forget" "Of a flow that survives a failure, the latest packets whose effects on its state may be undone. 0: none.";
    FIELD "copies_differed" "Replicas found to be other than their flows at the owner, since the runtimes' start. Each was thrown away and sent anew; until it was, the answer to `protected` was not `yes`.";
    FIELD "retry" "A process that keeps ending: its short lives in succession (`failures`), in how many milliseconds it is started again (`next_ms`; not there when it has been), and how it ended last (`cause`). The first starts after a failure come at once; then each pause is twice as long as the one before, up to 30 s, of a runtime up to 12.8 s.";
    FIELD "absent_flows" "Flows whose state is at the state server alone, because `resident_flows` leaves no room for it in memory: it is fetched when a packet comes. They survive any runtime's end, and that of one of the state server's two processes, but not both of these at once.";
    FIELD "fetched_states" "States of flows that runtimes have fetched from the state server since their start. If it grows as quickly as packets come, `resident_flows` is too small for the flows that are active.";
    FIELD "flow_tables" "How full tables of flows are. Half open are flows that nobody has answered, and those of TCP whose initiator has not gone on after the answer. Three quarters full, flows live shorter that are over, half open, or unanswered; from nine tenths on, flows end early that stand for least (`forgotten`): those that are over, half-open ones whose handshake has not gone on for a second, of the others half open or unanswered those that have been idle for longest, and behind them answered ones without a handshake that have been idle for a sixteenth of their time. No established TCP connection makes room for another. A flood fills a table, and so does a box that has outgrown `limits.flows`: look at `half_open`, and at who has most (`holdfast flows`).";
    FIELD "consumed" "Of the frames that a port received, those for the box itself that it has used: ARP, neighbour discovery, ping, and BFD of its routers. All others were forwarded, by whichever port, or are in `drops`, or wait inside.";
    FIELD "forwarded" "Packets that went out by a port to a neighbour: those of chains, and of the box's own errors about these, and BFD (`originated`); a packet in fragments once. What else the port transmitted are answers to who had sent something, and questions for neighbours.";
    FIELD "originated" "Packets of the box itself that are in `forwarded`, or in `drops`, like those of others: errors about packets of chains, BFD, and answers that could not be sent. So `received` and `originated` of all ports are `consumed` and `forwarded` of all ports and `drops`, less those of the ports themselves.";
    FIELD "incarnation" "Which start of a process this is: a number that no start before it has had. Runtimes have theirs from one counter for the whole box, which a box with a state directory goes on with, so that of a runtime it does not say how often that one was started. What an older one still sends is refused.";
    FIELD "epoch" "Grows with every change of a flow's owner; what carries an older one is refused.";
    FIELD "owner" "The runtime that processes the flow's packets.";
    FIELD "replica" "The runtime that would take the flow over; `-` if there is none.";
    FIELD "detection_us" "Microseconds from the failure, or the last sign of life, to its detection.";
    FIELD "recovered_us" "Microseconds from the detection until every flow that survives was served again.";
    LOSS "packet_socket_full" "Frames for which an AF_PACKET port's socket had no room, because the box did not fetch them in time: more comes than it can take.";
    LOSS "xdp_dropped" "Frames that the kernel could not put into an AF_XDP port's memory: the box did not fetch the earlier ones in time, or a frame was too long.";
    LOSS "xdp_ring_full" "Frames for which an AF_XDP port's ring had no room, because the box did not fetch them in time: more comes than it can take.";
    LOSS "xdp_invalid" "Frames that an AF_XDP port gave to the kernel, or was given, with a description that the kernel refused: please report it.";
    LOSS "device_rx_dropped" "Frames that came in by the port's device and that the kernel dropped before anybody had them, as `ip -s link` counts them, without those that an AF_XDP port's socket had no room for, which have counters of their own: most often its queue for them was full, because the processors did not keep up. `sysctl net.core.netdev_max_backlog` is how long that is.";
    LOSS "device_rx_missed" "Frames that the port's device had no room for, because the kernel did not fetch them in time: `ethtool -G` makes its rings longer. Of a DPDK port: because the box did not fetch them in time, so that more comes than it can take.";
    LOSS "device_rx_errors" "Damaged frames, as the port's device counts them: a bad cable, or an end that sends longer frames than the device takes.";
    LOSS "device_tx_dropped" "Frames that the port's device did not take or send, tries counted that were repeated, as `ip -s link` counts them: what is behind it does not keep up.";
    LOSS "device_tx_errors" "Frames that the port's device could not send, as it counts them.";
    PROTECTION "none" "State lives in one runtime's memory and dies with it. Packets leave at once.";
    PROTECTION "nfactor" "Packets leave at once; every `snapshot_every` packets a flow's state goes to another runtime as a snapshot. A restarted runtime fetches its snapshots: a failure may undo the latest packets' effects.";
    PROTECTION "nfvactor" "After every packet the flow's state goes to a replica on another runtime; the packet leaves once that has saved it. With `release: at-once` it leaves before, but so that a failure undoes no more than `unsaved_packets` of a flow (`may_forget`).";
    PROTECTION "reinforce" "A packet leaves once a standby runtime knows that it was processed, or, if it could come out differently, has its flow's state. The other states follow every `checkpoint_ms`; what a failure leaves out is processed again from the switch's log.";
    PROTECTION "rescue" "A flow's home is the state server. A packet leaves once that has what it reveals (`release: write-back`), or at once, and then a failure may undo its flow's latest packets (`may_forget`). What a dead runtime had the server deals out to the others.";
    FIELD "control" "The control API of the host that answers: where it listens, connections, calls, and what it refused, by reason.";
    REFUSAL "not_tls" "What came was no TLS: a client without `https`, or a program that tries every port.";
    REFUSAL "no_certificate" "The client showed no certificate: `holdfast certify` makes one for a host, an operator or a viewer.";
    REFUSAL "certificate_refused" "The client's certificate is not signed by the authority in `control.tls`, or is not good for clients.";
    REFUSAL "certificate_not_now" "The client's certificate has expired or is not good yet, by this host's clock.";
    REFUSAL "refused_by_client" "The client does not trust this host's certificate, or asked at an address that it is not for.";
    REFUSAL "handshake_failed" "Client and host do not agree on how to speak TLS.";
    REFUSAL "handshake_ended" "The client went away during the handshake.";
    REFUSAL "handshake_too_slow" "The client did not end its handshake in time.";
    REFUSAL "too_many_connections" "There was no place for another connection, or for another handshake from that address.";
    REFUSAL "idle" "A client did not even answer pings; its connection was closed.";
    REFUSAL "busy" "Too many calls at a time; the client may try again.";
    REFUSAL "denied" "The client's certificate does not allow what it asked: a viewer only looks, an operator changes things, a host joins under its own name.";
    EXIT "0" "Well, or yes.";
    EXIT "1" "A negative answer: the command did what was asked, and the answer is no.";
    EXIT "2" "The command line is wrong; --help says how it goes.";
    EXIT "69" "Something that is needed is not there: a device, a running box, a program.";
    EXIT "70" "A fault of this program: please report it. Of `holdfast run`: the manager ended as soon as it started, again and again, before the box served.";
    EXIT "75" "It took too long.";
    EXIT "77" "A privilege is missing: run as root, or give the binary CAP_NET_RAW, CAP_NET_ADMIN and for AF_XDP CAP_BPF (setcap cap_net_raw,cap_net_admin,cap_bpf+ep). Of a control API: a certificate is refused, or does not allow this.";
    EXIT "78" "The configuration is wrong; the message names the line.";
}

/// All words: drop reasons first, then the rest.
pub fn all() -> Vec<Word> {
    let reasons = DropReason::ALL.iter().map(|reason| Word { word: reason.name(), kind: DROP, meaning: reason.explain() });
    reasons.chain(WORDS.iter().copied()).collect()
}

/// The meanings of a word: several if several things have it.
///
/// # Errors
/// If the word is unknown; with a suggestion.
pub fn explain(word: &str) -> Result<Vec<Word>, Failure> {
    let folded = word.trim().to_lowercase();
    // Other spellings: `exit-78`, `exit code 78`, and a cause with its number.
    let code = folded.strip_prefix("exit").map(|rest| rest.trim_start_matches(" code").trim_start_matches(['-', ' ', '_']));
    let wanted = code.unwrap_or(&folded);
    let normal = |text: &str| text.replace(['-', ' '], "_");
    let is_it = |known: &Word| {
        normal(known.word) == normal(wanted) || (known.kind == CAUSE && wanted.starts_with(known.word) && code.is_none())
    };
    let found: Vec<Word> = all().into_iter().filter(is_it).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let near = all()
        .into_iter()
        .map(|known| (strsim::damerau_levenshtein(&normal(wanted), &normal(known.word)), known.word))
        .filter(|(distance, _)| word.len() <= 64 && *distance <= 2 + word.len() / 4)
        .min();
    let hint =
        near.map_or("; `holdfast explain` lists what there is".to_owned(), |(_, known)| format!("; did you mean `{known}`?"));
    Err(Failure::new(exit::NEGATIVE, format!("there is nothing to explain about `{}`{hint}", word.escape_debug())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every preset is explained as a protection, and nothing else is.
    #[test]
    fn every_preset_is_explained() {
        let explained: Vec<&str> = WORDS.iter().filter(|word| word.kind == PROTECTION).map(|word| word.word).collect();
        assert_eq!(explained, holdfast_protection::Plan::presets().collect::<Vec<_>>());
    }

    #[test]
    fn every_drop_reason_and_every_exit_code_is_explained() {
        for reason in DropReason::ALL {
            let found = explain(reason.name()).unwrap();
            assert!(found.iter().any(|word| word.kind == DROP && word.meaning == reason.explain()), "{reason}");
        }
        for code in
            [exit::NEGATIVE, exit::USAGE, exit::UNAVAILABLE, exit::SOFTWARE, exit::TIMEOUT, exit::PERMISSION, exit::CONFIGURATION]
        {
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
