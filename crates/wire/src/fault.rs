//! Planted faults, which test the testers: a checker that finds none of them checks
//! nothing.
//!
//! Theory of operation. Code that once was wrong, or easily could be, asks [`is_planted`]
//! before a line or two that bring the wrong behaviour back. A test [plants](plant) a
//! fault for its own thread and demands that its worlds notice. Without debug assertions
//! the answer is constant and the wrong behaviour is not compiled: a release build has no
//! switch for it.

use core::fmt;
use core::marker::PhantomData;
use std::cell::Cell;

/// True if this build has faults to plant.
pub const CAN_BE_PLANTED: bool = cfg!(debug_assertions);

thread_local! {
    static PLANTED: Cell<Planted> = const { Cell::new(Planted(0)) };
}

macro_rules! faults {
    ($($(#[$doc:meta])+ $of_function:ident = $function_name:literal,)+; $($(#[$other_doc:meta])+ $other:ident = $name:literal,)+) => {
        /// A fault; each says what is wrong and how it shows.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[$doc])+ $of_function,)+
            $($(#[$other_doc])+ $other,)+
        }

        impl Fault {
            /// Every fault.
            pub const ALL: &[Fault] = &[$(Fault::$of_function,)+ $(Fault::$other,)+];

            /// Faults of functions, which the functions' own scenarios find.
            pub const OF_FUNCTIONS: &[Fault] = &[$(Fault::$of_function,)+];

            /// The fault's name in scenarios and tests.
            pub fn name(self) -> &'static str {
                match self {
                    $(Fault::$of_function => $function_name,)+
                    $(Fault::$other => $name,)+
                }
            }
        }
    };
}

faults! {
    // Faults of functions.

    // TCP.
    /// Any segment opens a flow, also a lone reset or an acknowledgement.
    AnySegmentOpens = "any-segment-opens",
    /// A SYN that crosses another is refused: simultaneous open fails.
    RefusesCrossingSyns = "refuses-crossing-syns",
    /// A connection is established by its SYN-ACK, without the initiator's
    /// acknowledgement.
    AnswersEstablish = "answers-establish",
    /// Another SYN on a flow that has one is refused: an initiator that crashed or gave
    /// up waits for the time-out.
    RefusesSecondSyns = "refuses-second-syns",
    /// A SYN on an established flow opens anew at once: a stranger can end the
    /// connection.
    BelievesAnySyn = "believes-any-syn",
    /// An acknowledgement of another number is no answer to a SYN: half-open connections
    /// stay so.
    RefusesChallenges = "refuses-challenges",
    /// A server that keeps no state answers a SYN once only.
    RefusesSecondAnswers = "refuses-second-answers",
    /// A reset anywhere inside the window ends the connection.
    InexactResetsEnd = "inexact-resets-end",
    /// A SYN on a connection that is over is refused: its port rests until the time-out.
    RefusesReuse = "refuses-reuse",
    /// A reset passes wherever its number lies.
    ResetsFitAnywhere = "resets-fit-anywhere",
    /// A reset is final: later data do not undo it.
    ResetsAreFinal = "resets-are-final",
    /// Segments pass wherever their numbers lie.
    IgnoresWindows = "ignores-windows",

    // Lifetimes.
    /// A closing time-out counts only once the longer one before it is over.
    ClosesLate = "closes-late",
    /// A reset keeps a mapping alive, also one that answers a stranger's segments.
    ResetsKeepMappings = "resets-keep-mappings",
    /// Once a mapping is answered, packets from inside do not keep it.
    InsideKeepsNothing = "inside-keeps-nothing",
    /// A NAT forgets datagrams after the least allowed time-out.
    ForgetsUdpEarly = "forgets-udp-early",
    /// A NAT's time-outs may be as short as any function's.
    AllowsShortTimeouts = "allows-short-time-outs",

    // ICMP.
    /// ICMP messages are matched by their identifier alone: a request passes as a reply.
    RequestsPassAsReplies = "requests-pass-as-replies",
    /// An error goes to any destination, not only to the sender of the quoted packet.
    ErrorsGoAnywhere = "errors-go-anywhere",
    /// Redirects and source quenches pass as other errors do.
    RedirectsPass = "redirects-pass",
    /// An error may ask for packets shorter than any link's minimum.
    AllowsTinyMtus = "allows-tiny-mtus",
    /// An error may quote any sequence number.
    ErrorsQuoteAnything = "errors-quote-anything",
    /// Damaged errors are translated, and their quotes with them.
    TranslatesDamagedErrors = "translates-damaged-errors",
    /// Only the header of an error is translated: its receiver does not recognise the
    /// quote.
    LeavesQuotesAlone = "leaves-quotes-alone",
    /// The transport header of a quoted packet is looked for where it would be without
    /// options.
    ReadsNoQuotedOptions = "reads-no-quoted-options",
    /// Errors are translated only if the peer has sent them, not a router on the way.
    BelievesPeersOnly = "believes-peers-only",
    /// Errors pass whose quote has a source route, with addresses of the other side.
    PassesQuotedRoutes = "passes-quoted-routes",
    /// Errors of inside routers keep their inside address.
    ShowsInsideRouters = "shows-inside-routers",
    /// An error keeps a mapping as a packet does.
    ErrorsKeepMappings = "errors-keep-mappings",
    /// An error ends the mapping whose packet it quotes.
    ErrorsEndMappings = "errors-end-mappings",

    // Translation.
    /// Any packet opens a mapping, also from outside.
    OutsidersOpenMappings = "outsiders-open-mappings",
    /// A later fragment opens a mapping, with data read as ports.
    LaterFragmentsOpen = "later-fragments-open",
    /// Published ports are leased too.
    LeasesWhatIsPublished = "leases-what-is-published",
    /// A flow that holds no lease gives one back.
    GivesBackUnleased = "gives-back-unleased",
    /// An inside server sees an inside client's own address, and answers it past the box.
    HairpinsWithInsideSource = "hairpins-with-inside-source",
    /// Ports are leased in order whatever is configured.
    DealsPortsInOrder = "deals-ports-in-order",
    /// A returned port is leased again at once.
    RestsNoPorts = "rests-no-ports",
    /// A flow gets a port although none is free.
    EmptyPoolsLend = "empty-pools-lend",
    /// Only the first address of a pool is used.
    UsesOneAddress = "uses-one-address",
    /// A host gets any address of the pool for each of its flows.
    PairsNoAddresses = "pairs-no-addresses",
    /// A UDP checksum that comes out as 0 is sent as 0: the datagram has none any more.
    LosesUdpChecksums = "loses-udp-checksums",
    /// A backend that connects to its own service is balanced to itself.
    BalancesToTheClient = "balances-to-the-client",

    // HTTP.
    /// Bytes of a segment that came before are read again: requests count twice, and
    /// later bytes are taken for others.
    ReadsTwice = "reads-twice",
    /// A segment with a gap before it passes unread: a request is hidden by reordering.
    PassesGaps = "passes-gaps",
    /// A client's SYN decides where requests begin: one that the server ignores hides all
    /// that follows.
    BelievesClientSyns = "believes-client-syns",
    /// A request may have two lengths: others take its body for the next request.
    AllowsTwoLengths = "allows-two-lengths",
    /// A request of HTTP/1.1 needs no Host: it evades the rules about hosts.
    NeedsNoHost = "needs-no-host",
    /// Rules see paths as they are spelled: another spelling evades them.
    ComparesRawPaths = "compares-raw-paths",
    /// Only the segment in which a request was refused is dropped: sent again, it passes.
    ForgetsRefusals = "forgets-refusals",
    /// A response to HEAD has the body of which its fields tell: later responses are
    /// taken for it.
    ExpectsHeadBodies = "expects-head-bodies",
    /// Bytes behind an upgrade or CONNECT are read as HTTP.
    ReadsTunnels = "reads-tunnels",

    // Patterns in streams.
    /// Every segment is inspected by itself: a pattern across a border is missed.
    InspectsSegmentsAlone = "inspects-segments-alone",
    /// A segment behind a gap passes: a pattern whose middle comes late is missed.
    PassesBehindGaps = "passes-behind-gaps",
    /// Bytes that come again pass without a look: the receiver may have others than those
    /// that were inspected.
    TrustsRetransmissions = "trusts-retransmissions",
    /// Bytes that come again as others pass if there is no pattern in them: they may be
    /// the first half of one.
    TrustsOtherBytes = "trusts-other-bytes",
    /// A SYN that the other end refuses begins a stream: a pattern around it is missed.
    BelievesAnyBeginning = "believes-any-beginning",
    /// A flow keeps its automata's states under other rules, where they mean something
    /// else.
    KeepsStatesOfOtherRules = "keeps-states-of-other-rules",
    ;

    // Release.
    /// Packets leave before their state or their inputs are saved: a failure loses state
    /// that peers have seen.
    ReleasesBeforeCommit = "release-before-commit",
    /// Fence, switch and replica ignore incarnations and epochs: two runtimes serve one
    /// flow.
    IgnoresEpochs = "no-epoch-check",
    /// A connection is refused in its middle, and only the refused segment's sender gets
    /// a reset.
    TellsOneEnd = "tells-one-end",
    /// A host fences runtimes only when asked: a runtime given up in a view can still
    /// send for a moment.
    FencesWhenAskedOnly = "fences-when-asked-only",
    /// A host that stood still releases held packets before it knows whether it still
    /// serves.
    ReleasesAfterStandstill = "releases-after-standstill",

    // Copies, snapshots and pages.
    /// Copies of flows are damaged now and then, in bytes that no packet reads.
    DamagesCopies = "corrupts-copies",
    /// A flow that another runtime has recovered is still awaited, and claimed for ever.
    AwaitsWhatComesNoMore = "awaits-what-comes-no-more",
    /// A leaving holder does not learn that a flow has ended: its copy is served one day.
    TellsNoLeaver = "tells-no-leaver",
    /// A flow gets no snapshot after its first: a failure loses too much.
    IgnoresInterval = "ignore-interval",
    /// A recovery is reported complete before the snapshots have been fetched: too much
    /// is lost.
    ReportsEarly = "report-early",
    /// A next incarnation that does not know the time takes it for zero: it does not
    /// wait.
    TakesZeroForTime = "takes-zero-for-time",
    /// Functions are not told that a flow was set back: connections hang behind their
    /// firewall.
    KeepsOldWindows = "keeps-old-windows",
    /// Flow states are evicted from memory before the state server has them.
    EvictsUnsaved = "evicts-unsaved",

    // Replay.
    /// Non-deterministic packets are treated as deterministic: their state is not sent.
    MissesNondeterminism = "misses-nondeterminism",
    /// Packets are replayed in the wrong order.
    ReplaysBackwards = "replays-backwards",
    /// `reinforce`: an heir gives a copy away before its replay is complete. If the heir
    /// dies then, the copy counts.
    CopiesUnfinished = "copies-unfinished",
    /// Reports that dead runtimes left are not read.
    IgnoresLastWords = "ignores-last-words",
    /// Flows are called safe before the state is saved that a lost log needs.
    SafeBehindLostLog = "safe-behind-lost-log",
    /// A missing packet makes all be sent again: a short ring loses the same ones every
    /// time.
    AsksForAllAgain = "asks-for-all-again",

    // Flows that move.
    /// A copy makes room for its arriving flow although it may be the last copy.
    GivesUpNeededCopies = "gives-up-needed-copies",
    /// A runtime accepts flows from a runtime that it knows is dead: copies are thrown
    /// away.
    TakesFromTheDead = "takes-from-the-dead",
    /// A drain ends while a flow is in transit that another process had asked for.
    EndsDrainEarly = "ends-drain-early",

    // Full tables, and limits.
    /// Established flows are evicted for new ones.
    ForgetsEstablished = "forgets-established",
    /// No flow is evicted for a new one: flows that open first keep a full table full.
    ForgetsNothing = "forgets-nothing",
    /// A source may have any number of half-open flows.
    IgnoresHalfOpen = "ignores-half-open",
    /// Hosts may have any number of flows, whatever their limit.
    IgnoresHostLimits = "ignores-host-limits",

    // Routes and epochs.
    /// A reply that the switch took for a flow's first packet changes the flow's epoch.
    RepliesChangeEpochs = "replies-change-epochs",
    /// A switch gives epochs again that runtimes had which are all dead.
    ForgetsEpochsOfTheDead = "forgets-epochs-of-the-dead",
    /// A claim with an earlier epoch is refused, although the later owner may be dead.
    RefusesOlderClaims = "refuses-older-claims",
    /// A new incarnation of a switch stamps by its own clock before it knows the old
    /// one's.
    TellsTimeTooSoon = "tells-time-too-soon",
    /// A new incarnation of a switch opens flows before those of the dead are claimed.
    OpensBeforeRecoveries = "opens-before-recoveries",

    // Membership: runtimes, hosts, their coordinator.
    /// New rules apply to existing flows too: they change their chain.
    Reclassifies = "reclassify",
    /// The coordinator's messages leave before the decisions behind them are logged.
    SpeaksBeforeWriting = "speaks-before-writing",
    /// Among runtimes that fall silent together, the one heard last counts as evidence
    /// against the others.
    BelievesLastHeard = "believes-last-heard",
    /// A silent runtime is given up although it only waits for a processor.
    TakesStarvedForDead = "takes-starved-for-dead",
    /// A manager's new incarnation counts as gone until its first message has arrived,
    /// although it was heard.
    ForgetsHeardManagers = "forgets-heard-managers",
    /// Echoes of a manager's earlier incarnation count for nothing: the serving host
    /// stops.
    ForgetsEchoes = "forgets-echoes",
    /// A single frame proves that a new incarnation of its sender has begun.
    BelievesAnyIncarnation = "believes-any-incarnation",
    /// Frames of an earlier incarnation are accepted although a later one is known.
    HearsThePast = "hears-the-past",
    /// Frames from another host with a wrong checksum are accepted.
    BelievesDamaged = "believes-damaged",
    /// A sealed packet that is sent again is opened again.
    OpensTwice = "opens-twice",

    // Shared state.
    /// The NAT leases a port that a live flow has.
    ReusesLivePort = "reuse-live-port",
    /// A number that comes back to its block's owner with its flow is leased again.
    LeasesWhatCameBack = "leases-what-came-back",
    /// Blocks are free at their owner's death, before all its flows' numbers are known.
    FreesBlocksAtDeath = "frees-blocks-at-death",
    /// A restarted state server takes every number for free.
    ServerForgets = "server-forgets",
    /// A state server frees numbers not heard of for long, without asking.
    ExpiresUnasked = "server-expires-live",
    /// A dead runtime's parts of gauges are never removed.
    KeepsPartsOfTheDead = "server-keeps-the-dead",
    /// A number without a known holder is free, although its flow may be in transit.
    TakesMovedForOver = "moved-is-over",
    /// A dead runtime's numbers are free as soon as it is known to be dead.
    FreesAtDeath = "frees-at-death",
    /// A dead runtime's numbers are free when the first of its heirs has claimed its
    /// part.
    FreesAtFirstClaim = "frees-at-first-claim",
    /// A late answer counts, although the number has been heard of since.
    HeedsLateAnswers = "heeds-late-answers",
    /// A state server answers before its standby has the state behind the answer.
    SpeaksBeforeStandby = "speaks-before-standby",
    /// Control messages at a state server count as whole and of the present session.
    BelievesAnyWords = "believes-any-words",

    // Reply keys, fragments, published mappings.
    /// A claimed flow gets its reply key, although another flow has had replies under it.
    GivesAwayReplyKeys = "gives-away-reply-keys",
    /// A new incarnation of a switch releases packets before it knows whose their replies
    /// will be.
    LetsOutUntold = "lets-out-untold",
    /// Later fragments carry no note of their flow: the frame's address is read as ports.
    FollowsFrames = "follows-frames",
    /// Later fragments of a flow with a taken reply key get out: only the first are
    /// stopped.
    LetsFragmentsPass = "lets-fragments-pass",
}

const _: () = assert!(Fault::ALL.len() <= 128, "a set has a bit for each");

/// A set of faults.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Planted(u128);

impl Planted {
    /// This set with one more fault.
    #[must_use]
    pub fn with(self, fault: Fault) -> Planted {
        Planted(self.0 | 1 << fault as u32)
    }

    /// True if the fault is in the set.
    pub fn has(self, fault: Fault) -> bool {
        CAN_BE_PLANTED && self.0 & 1 << fault as u32 != 0
    }
}

impl From<Fault> for Planted {
    fn from(fault: Fault) -> Planted {
        Planted::default().with(fault)
    }
}

impl fmt::Debug for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Fault::ALL.iter().filter(|fault| self.has(**fault))).finish()
    }
}

/// True if the fault is planted in this thread.
#[inline(always)]
pub fn is_planted(fault: Fault) -> bool {
    CAN_BE_PLANTED && PLANTED.get().has(fault)
}

/// The faults stay planted as long as this lives.
#[must_use = "they are taken away at once"]
pub struct Planting {
    before: Planted,
    /// Faults are planted in one thread.
    _thread: PhantomData<*const ()>,
}

/// Plants these faults in this thread, and no others. For tests.
///
/// # Panics
/// If there are any and this build cannot plant faults: it has no debug assertions.
pub fn plant(planted: Planted) -> Planting {
    assert!(
        CAN_BE_PLANTED || planted == Planted::default(),
        "this build has no faults to plant: it was built without debug assertions"
    );
    Planting { before: PLANTED.replace(planted), _thread: PhantomData }
}

impl Drop for Planting {
    fn drop(&mut self) {
        PLANTED.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault is there where it was planted, as long as it is meant to be.
    #[test]
    fn faults_come_and_go() {
        let is_any = || Fault::ALL.iter().any(|fault| is_planted(*fault));
        assert!(!is_any());
        {
            let _outer = plant(Fault::Reclassifies.into());
            {
                let _inner = plant(Planted::from(Fault::IgnoresEpochs).with(Fault::ReportsEarly));
                let there = Fault::ALL.iter().filter(|fault| is_planted(**fault));
                assert_eq!(
                    there.collect::<Vec<_>>(),
                    [&Fault::IgnoresEpochs, &Fault::ReportsEarly]
                );
                assert!(
                    std::thread::spawn(|| !is_planted(Fault::IgnoresEpochs))
                        .join()
                        .is_ok_and(|is_so| is_so)
                );
            }
            assert!(is_planted(Fault::Reclassifies) && !is_planted(Fault::IgnoresEpochs));
        }
        assert!(!is_any());
    }

    #[test]
    fn every_fault_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<&str> =
            Fault::ALL.iter().map(|fault| fault.name()).collect();
        assert_eq!(names.len(), Fault::ALL.len());
    }
}
