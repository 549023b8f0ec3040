//! Faults that can be planted, so that the testers are tested: a checker that finds none of them checks nothing.
//!
//! Theory of operation. Code that once was wrong, or easily could be, asks [`is_planted`] where a
//! line or two bring the wrong behaviour back. A test [plants](plant) a fault for its own thread and
//! demands that its worlds notice. Without debug assertions the answer is a constant, and of the
//! wrong behaviour nothing is compiled: what is shipped has no switch that somebody could find.

use core::fmt;
use core::marker::PhantomData;
use std::cell::Cell;

/// This build has faults to plant.
pub const CAN_BE_PLANTED: bool = cfg!(debug_assertions);

thread_local! {
    static PLANTED: Cell<Planted> = const { Cell::new(Planted(0)) };
}

macro_rules! faults {
    ($($(#[$doc:meta])+ $of_function:ident = $function_name:literal,)+; $($(#[$other_doc:meta])+ $other:ident = $name:literal,)+) => {
        /// What is wrong, and how it shows.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[$doc])+ $of_function,)+
            $($(#[$other_doc])+ $other,)+
        }

        impl Fault {
            /// Every fault there is.
            pub const ALL: &[Fault] = &[$(Fault::$of_function,)+ $(Fault::$other,)+];

            /// Faults of functions, which the functions' own scenarios find.
            pub const OF_FUNCTIONS: &[Fault] = &[$(Fault::$of_function,)+];

            /// Its name in scenarios and tests.
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
    /// Any segment opens a flow, as a lone reset or an acknowledgement.
    AnySegmentOpens = "any-segment-opens",
    /// A SYN that crosses another is refused: nobody opens at the same time.
    RefusesCrossingSyns = "refuses-crossing-syns",
    /// A connection is established by its SYN-ACK, without the initiator's acknowledgement.
    AnswersEstablish = "answers-establish",
    /// Another SYN on a flow that has one is refused: who crashed or gave up waits for the time-out.
    RefusesSecondSyns = "refuses-second-syns",
    /// A SYN on an established flow opens anew at once: a stranger ends the connection by it.
    BelievesAnySyn = "believes-any-syn",
    /// An acknowledgement of something else is no answer to a SYN: half-open connections stay so.
    RefusesChallenges = "refuses-challenges",
    /// A server that keeps no state answers a SYN once only.
    RefusesSecondAnswers = "refuses-second-answers",
    /// A reset anywhere inside the window ends the connection.
    InexactResetsEnd = "inexact-resets-end",
    /// A SYN on a connection that is over is refused: its port rests until the time-out.
    RefusesReuse = "refuses-reuse",
    /// A reset passes wherever its number lies.
    ResetsFitAnywhere = "resets-fit-anywhere",
    /// What was reset is so for good: nobody looks at the data that follow.
    ResetsAreFinal = "resets-are-final",
    /// Segments pass wherever their numbers lie.
    IgnoresWindows = "ignores-windows",

    // Lifetimes.
    /// A closing time-out counts only once the longer one before it is over.
    ClosesLate = "closes-late",
    /// A reset keeps a mapping alive, also one that is an answer to a stranger's segments.
    ResetsKeepMappings = "resets-keep-mappings",
    /// Once a mapping is answered, nothing from inside keeps it.
    InsideKeepsNothing = "inside-keeps-nothing",
    /// A NAT forgets datagrams after the least time that there may be.
    ForgetsUdpEarly = "forgets-udp-early",
    /// A NAT's time-outs may be as short as anybody's.
    AllowsShortTimeouts = "allows-short-time-outs",

    // ICMP.
    /// ICMP messages are known by their identifier alone: a request passes as a reply.
    RequestsPassAsReplies = "requests-pass-as-replies",
    /// An error goes to whoever it is addressed to, not to the sender of what it quotes.
    ErrorsGoAnywhere = "errors-go-anywhere",
    /// Redirects and source quenches are errors as the others are.
    RedirectsPass = "redirects-pass",
    /// An error may ask for packets that are shorter than any link's.
    AllowsTinyMtus = "allows-tiny-mtus",
    /// An error may quote any sequence number.
    ErrorsQuoteAnything = "errors-quote-anything",
    /// Damaged errors are translated, and their quotes with them.
    TranslatesDamagedErrors = "translates-damaged-errors",
    /// Of an error only the header is translated: its receiver does not know what it quotes.
    LeavesQuotesAlone = "leaves-quotes-alone",
    /// The transport header of a quoted packet is looked for where it would be without options.
    ReadsNoQuotedOptions = "reads-no-quoted-options",
    /// Errors are translated if the peer has sent them, and no router on the way.
    BelievesPeersOnly = "believes-peers-only",
    /// Errors pass that quote a source route, with addresses of the other side.
    PassesQuotedRoutes = "passes-quoted-routes",
    /// A router inside that complains is seen outside.
    ShowsInsideRouters = "shows-inside-routers",
    /// An error keeps a mapping as a packet does.
    ErrorsKeepMappings = "errors-keep-mappings",
    /// An error ends the mapping whose packet it quotes.
    ErrorsEndMappings = "errors-end-mappings",

    // Translation.
    /// Whoever sends something opens a mapping, from outside too.
    OutsidersOpenMappings = "outsiders-open-mappings",
    /// A later fragment opens a mapping, of ports that are data.
    LaterFragmentsOpen = "later-fragments-open",
    /// Ports that are published are leased like the others.
    LeasesWhatIsPublished = "leases-what-is-published",
    /// A flow that holds no lease gives one back.
    GivesBackUnleased = "gives-back-unleased",
    /// A server inside sees an inside client as it is, and answers it past the box.
    HairpinsWithInsideSource = "hairpins-with-inside-source",
    /// Ports are dealt in order whatever the operator says.
    DealsPortsInOrder = "deals-ports-in-order",
    /// A port that was given back is dealt again at once.
    RestsNoPorts = "rests-no-ports",
    /// A flow for which no port is free gets one all the same.
    EmptyPoolsLend = "empty-pools-lend",
    /// Only the first address of a pool is used.
    UsesOneAddress = "uses-one-address",
    /// A host gets any address of the pool for each of its flows.
    PairsNoAddresses = "pairs-no-addresses",
    /// A UDP checksum that comes out as 0 is sent as 0: the datagram has none any more.
    LosesUdpChecksums = "loses-udp-checksums",
    /// A backend that asks its own service is sent to itself.
    BalancesToTheClient = "balances-to-the-client",
    ;

    // When packets leave.
    /// Packets leave before their state is saved, or their inputs are: a failure forgets what was seen.
    ReleasesBeforeCommit = "release-before-commit",
    /// Neither fence nor switch nor replica looks at incarnations and epochs: two serve one flow.
    IgnoresEpochs = "no-epoch-check",
    /// A connection is refused in its middle, and only the refused segment's sender is reset.
    TellsOneEnd = "tells-one-end",
    /// A host fences only whom it is asked to: one that a view gives up speaks for a moment longer.
    FencesWhenAskedOnly = "fences-when-asked-only",
    /// A host that stood still lets out what it held, before it has heard whether it still serves.
    ReleasesAfterStandstill = "releases-after-standstill",

    // Copies, snapshots and pages.
    /// Copies of flows are damaged now and then, where no packet looks.
    DamagesCopies = "corrupts-copies",
    /// A flow that another runtime has recovered is awaited still, and claimed for ever.
    AwaitsWhatComesNoMore = "awaits-what-comes-no-more",
    /// A leaving holder does not hear that a flow has ended: its copy is served one day.
    TellsNoLeaver = "tells-no-leaver",
    /// After its first snapshot a flow has no other: too much is forgotten.
    IgnoresInterval = "ignore-interval",
    /// A recovery is called over before the snapshots have been fetched: too much is forgotten.
    ReportsEarly = "report-early",
    /// A next incarnation that does not know the time takes it for zero: nothing is waited for.
    TakesZeroForTime = "takes-zero-for-time",
    /// Functions do not hear that a flow was set back: connections hang behind their firewall.
    KeepsOldWindows = "keeps-old-windows",
    /// States of flows go from memory that the state server has not got.
    EvictsUnsaved = "evicts-unsaved",

    // What is processed again.
    /// What could come out differently is treated as if it could not: its state is not sent.
    MissesNondeterminism = "misses-nondeterminism",
    /// Packets are processed again in the wrong order.
    ReplaysBackwards = "replays-backwards",
    /// `reinforce`: who has taken a flow over gives a copy away before it is what it was. If the heir dies then, the copy counts.
    CopiesUnfinished = "copies-unfinished",
    /// Last words of dead runtimes are not read.
    IgnoresLastWords = "ignores-last-words",
    /// Flows are called safe before a state is saved on which a lost log counts.
    SafeBehindLostLog = "safe-behind-lost-log",
    /// For one missing packet all are sent again: a short ring loses the same ones every time.
    AsksForAllAgain = "asks-for-all-again",

    // Flows that move.
    /// A copy makes room for its flow that is about to come, though it may be the last one.
    GivesUpNeededCopies = "gives-up-needed-copies",
    /// A runtime takes in flows of one of whose death it has heard: copies are thrown away.
    TakesFromTheDead = "takes-from-the-dead",
    /// A drain is over while a flow is under way that somebody else had asked for.
    EndsDrainEarly = "ends-drain-early",

    // Full tables, and limits.
    /// For new flows those that are established make room.
    ForgetsEstablished = "forgets-established",
    /// No flow makes room for a new one: flows that open first keep a full table full.
    ForgetsNothing = "forgets-nothing",
    /// A source may open as many flows as it wants, whatever is half open.
    IgnoresHalfOpen = "ignores-half-open",
    /// Hosts have as many flows as they want, whatever their limit.
    IgnoresHostLimits = "ignores-host-limits",

    // Routes and epochs.
    /// A reply that the switch took for a flow's first packet changes the flow's epoch.
    RepliesChangeEpochs = "replies-change-epochs",
    /// A switch gives epochs again that somebody had of whom nobody is left.
    ForgetsEpochsOfTheDead = "forgets-epochs-of-the-dead",
    /// A claim of a flow as it was earlier is refused, though who had it later may be dead.
    RefusesOlderClaims = "refuses-older-claims",
    /// A new life of a switch stamps by its own clock before it knows the old one's.
    TellsTimeTooSoon = "tells-time-too-soon",
    /// A new life of a switch takes flows for new ones before those of the dead are claimed.
    OpensBeforeRecoveries = "opens-before-recoveries",

    // Who is there: runtimes, hosts, their coordinator.
    /// New rules are for flows that are there, too: they change their chain.
    Reclassifies = "reclassify",
    /// The coordinator's messages leave before what they depend on is written down.
    SpeaksBeforeWriting = "speaks-before-writing",
    /// Of those who fall silent together the one that was heard last is a witness against the others.
    BelievesLastHeard = "believes-last-heard",
    /// A runtime that is silent is given up, though it only waits for a processor.
    TakesStarvedForDead = "takes-starved-for-dead",
    /// A manager's new life that was heard counts as gone until its first words have arrived.
    ForgetsHeardManagers = "forgets-heard-managers",
    /// What the earlier life of a manager had echoed counts for nothing: who serves stops.
    ForgetsEchoes = "forgets-echoes",
    /// A single frame says that another life of its sender has begun.
    BelievesAnyLife = "believes-any-life",
    /// Frames of an earlier life are heard when a later one is known.
    HearsThePast = "hears-the-past",
    /// What arrives from another host with a wrong checksum is believed.
    BelievesDamaged = "believes-damaged",
    /// A sealed packet is opened again when somebody sends it again.
    OpensTwice = "opens-twice",

    // What flows share.
    /// The NAT gives a port that a live flow has.
    ReusesLivePort = "reuse-live-port",
    /// A number that comes to its block's owner with its flow is leased again.
    LeasesWhatCameBack = "leases-what-came-back",
    /// Blocks are free at their owner's death, before all is known of what its flows hold.
    FreesBlocksAtDeath = "frees-blocks-at-death",
    /// A state server that begins again takes every number for free.
    ServerForgets = "server-forgets",
    /// A state server gives away what it has not heard of for long, without asking.
    ExpiresUnasked = "server-expires-live",
    /// What the dead had of gauges is theirs for ever.
    KeepsPartsOfTheDead = "server-keeps-the-dead",
    /// A number that nobody is known to hold is free, though its flow may be on its way.
    TakesMovedForOver = "moved-is-over",
    /// What the dead held is free as soon as they are known to be dead.
    FreesAtDeath = "frees-at-death",
    /// What the dead held is free when the first of their heirs has claimed its part.
    FreesAtFirstClaim = "frees-at-first-claim",
    /// An answer counts for whatever is asked, even if the number has been heard of since.
    HeedsLateAnswers = "heeds-late-answers",
    /// A state server speaks before its standby has what led to it.
    SpeaksBeforeStandby = "speaks-before-standby",
    /// Words at a state server are believed to be of the session under way, and whole.
    BelievesAnyWords = "believes-any-words",

    // Reply keys, fragments, published mappings.
    /// Whoever claims a flow gets its reply key, though another flow has had replies under it.
    GivesAwayReplyKeys = "gives-away-reply-keys",
    /// A new life of a switch lets packets out before it knows whose their replies will be.
    LetsOutUntold = "lets-out-untold",
    /// Later fragments carry no note of their flow: the frame's address is read as ports.
    FollowsFrames = "follows-frames",
    /// Later fragments of a flow whose replies would be another's get out: only the first are stopped.
    LetsFragmentsPass = "lets-fragments-pass",
}

const _: () = assert!(Fault::ALL.len() <= 128, "a set has a bit for each");

/// Some of the faults.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Planted(u128);

impl Planted {
    /// These and this one.
    #[must_use]
    pub fn with(self, fault: Fault) -> Planted {
        Planted(self.0 | 1 << fault as u32)
    }

    /// This one is among them.
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

/// This fault is planted in this thread.
#[inline(always)]
pub fn is_planted(fault: Fault) -> bool {
    CAN_BE_PLANTED && PLANTED.get().has(fault)
}

/// Faults are planted as long as this lives.
#[must_use = "they are taken away at once"]
pub struct Planting {
    before: Planted,
    /// They are this thread's.
    _thread: PhantomData<*const ()>,
}

/// Plants these faults in this thread, and no others. For tests.
///
/// # Panics
/// If there are any, and this build has none to plant: it is one without debug assertions.
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
                assert_eq!(there.collect::<Vec<_>>(), [&Fault::IgnoresEpochs, &Fault::ReportsEarly]);
                assert!(std::thread::spawn(|| !is_planted(Fault::IgnoresEpochs)).join().is_ok_and(|is_so| is_so));
            }
            assert!(is_planted(Fault::Reclassifies) && !is_planted(Fault::IgnoresEpochs));
        }
        assert!(!is_any());
    }

    #[test]
    fn every_fault_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<&str> = Fault::ALL.iter().map(|fault| fault.name()).collect();
        assert_eq!(names.len(), Fault::ALL.len());
    }
}
