//! From the operator's words for a protection to the protection.

use super::file::{ProtectionConfig, ProtectionOptions};
use super::mistake::{Mistake, listed, suggestion};
use super::source::Spot;
use holdfast_protection::nfactor::SNAPSHOT_EVERY;
use holdfast_protection::reinforce::Settings;
use holdfast_protection::rescue::{Release, WRITE_BACK_EVERY, WRITE_BACK_PACKETS};
use holdfast_protection::{NfActor, NfvActor, Protection, Reinforce, ReleaseAt, Rescue, Unprotected};

/// A protection of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preset {
    None,
    NfvActor(ReleaseAt),
    /// With a snapshot every so many packets.
    NfActor(u32),
    Reinforce(Settings),
    /// With the state of so many flows in memory.
    Rescue(Release, Option<u32>),
}

const PRESETS: &[&str] = &["none", "nfactor", "nfvactor", "reinforce", "rescue"];
const STATE_SERVER: &str = "state-server";
const PARTITIONED: &str = "partitioned";
const LOCAL: &str = "local";
const BOTH: &str = "local+remote";
const LEVELS: &[&str] = &[LOCAL, "remote", BOTH];
const LATER: &[&str] = &["dal", "pico", "ftmb", "stateless"];
const AT_ONCE: Release = Release::AtOnce { packets: WRITE_BACK_PACKETS, every: WRITE_BACK_EVERY };

impl Preset {
    pub(super) fn build(self) -> Box<dyn Protection> {
        match self {
            Preset::None => Box::new(Unprotected),
            Preset::NfvActor(release) => Box::new(NfvActor::new(release)),
            Preset::NfActor(every) => Box::new(NfActor::new(every)),
            Preset::Reinforce(settings) => Box::new(Reinforce::new(settings)),
            Preset::Rescue(release, None) => Box::new(Rescue::new(release)),
            Preset::Rescue(release, Some(resident)) => Box::new(Rescue::new(release).with_room_for(resident as usize)),
        }
    }

    /// Runtimes without which it cannot keep its promise.
    pub(super) fn least_runtimes(self) -> u16 {
        match self {
            Preset::None => 1,
            Preset::NfvActor(_) | Preset::NfActor(_) | Preset::Reinforce(_) | Preset::Rescue(..) => 2,
        }
    }
}

/// One question: its key, the answers of this version, and answers that other protections give.
struct Question {
    key: &'static str,
    now: &'static [&'static str],
    later: &'static [&'static str],
}

const FLOW: Question = Question { key: "flow", now: &["memory", "replica", "snapshot", "standby", "paged"], later: &["dal"] };
const SHARED: Question = Question { key: "shared", now: &["memory", PARTITIONED, STATE_SERVER], later: &["checkpoint", "dal"] };
const RELEASE: Question =
    Question { key: "release", now: &["at-once", "replica", "source", "auto", "standby", "write-back"], later: &["stable"] };
const REBUILD: Question =
    Question { key: "rebuild", now: &["nothing", "replica", "snapshots", "replay", "pages"], later: &["dal"] };

impl Question {
    fn answer<'a>(&self, given: Option<&'a str>, spot: Spot<'_>) -> Result<Option<&'a str>, Mistake> {
        let Some(word) = given else { return Ok(None) };
        if self.now.contains(&word) {
            return Ok(Some(word));
        }
        let known = listed(self.now.iter().copied());
        let message = if self.later.contains(&word) {
            format!("`{}: {word}` is not available in this version: {known}", self.key)
        } else {
            let near = suggestion(word, self.now.iter().copied());
            format!("`{word}` is no answer to `{}`: {known}{near}", self.key)
        };
        Err(spot.key(self.key).mistake(message))
    }
}

/// `spot` is the value of `protection`.
pub(super) fn read(config: Option<&ProtectionConfig>, spot: Spot<'_>) -> Result<Preset, Mistake> {
    let preset = read_preset(config, spot)?;
    let Some(ProtectionConfig::Options(options)) = config else { return Ok(preset) };
    let preset = match (preset, options.snapshot_every) {
        (preset, None) => preset,
        (Preset::NfActor(_), Some(0)) => {
            return Err(spot.key("snapshot_every").mistake("a snapshot is due after 1 packet or more"));
        }
        (Preset::NfActor(_), Some(every)) => Preset::NfActor(every),
        _ => {
            let message = "only the preset `nfactor` has snapshots: leave `snapshot_every` out";
            return Err(spot.name("snapshot_every").mistake(message));
        }
    };
    let preset = resident(write_back(preset, options, spot)?, options, spot)?;
    let Preset::Reinforce(Settings { mut checkpoint_every, mut log_bytes }) = preset else {
        let given = [
            ("checkpoint_ms", options.checkpoint_ms.is_some()),
            ("log_mib", options.log_mib.is_some()),
            ("level", options.level.is_some()),
        ];
        return match given.into_iter().find(|(_, is_given)| *is_given) {
            Some(("level", _)) => Err(spot.name("level").mistake("only the preset `reinforce` has levels: leave `level` out")),
            Some((key, _)) => {
                Err(spot.name(key).mistake(format!("only the preset `reinforce` has a log and checkpoints: leave `{key}` out")))
            }
            None => Ok(preset),
        };
    };
    if let Some(level) = &options.level
        && !LEVELS.contains(&level.as_str())
    {
        let near = suggestion(level, LEVELS.iter().copied());
        let message = format!("`{level}` is no level: {}{near}", listed(LEVELS.iter().copied()));
        return Err(spot.key("level").mistake(message));
    }
    if options.level.as_deref() == Some(LOCAL) {
        let given = [("checkpoint_ms", options.checkpoint_ms.is_some()), ("log_mib", options.log_mib.is_some())];
        return match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((key, _)) => Err(spot.name(key).mistake(format!(
                "a local standby shares its runtime's memory and needs neither log nor checkpoints: leave `{key}` out"
            ))),
            None => Ok(Preset::None),
        };
    }
    if let Some(given) = options.checkpoint_ms {
        if !CHECKPOINT_MS.contains(&given) {
            return Err(spot.key("checkpoint_ms").mistake("checkpoints are between 1 and 10000 milliseconds apart"));
        }
        checkpoint_every = given * 1_000_000;
    }
    if let Some(given) = options.log_mib {
        if !LOG_MIB.contains(&given) {
            return Err(spot.key("log_mib").mistake("a log has between 1 and 1024 MiB"));
        }
        log_bytes = (given as usize) << 20;
    }
    Ok(Preset::Reinforce(Settings { checkpoint_every, log_bytes }))
}

/// What an operator says of writing back.
fn write_back(preset: Preset, options: &ProtectionOptions, spot: Spot<'_>) -> Result<Preset, Mistake> {
    let given =
        [("write_back_ms", options.write_back_ms.is_some()), ("write_back_packets", options.write_back_packets.is_some())];
    let Some((key, _)) = given.into_iter().find(|(_, is_given)| *is_given) else { return Ok(preset) };
    match preset {
        Preset::Rescue(Release::AtOnce { .. }, _) => {}
        Preset::Rescue(Release::WriteBack, _) => {
            return Err(spot.name(key).mistake(format!(
                "packets wait for the write-back, so it is never put off: leave `{key}` out, or `release: at-once`"
            )));
        }
        _ => return Err(spot.name(key).mistake(format!("only the preset `rescue` writes back: leave `{key}` out"))),
    }
    let every = options.write_back_ms.unwrap_or(WRITE_BACK_EVERY / 1_000_000);
    if !WRITE_BACK_MS.contains(&every) {
        return Err(spot.key("write_back_ms").mistake("flows are written back every 1 to 10000 milliseconds"));
    }
    let packets = options.write_back_packets.unwrap_or(WRITE_BACK_PACKETS);
    if packets == 0 {
        return Err(spot.key("write_back_packets").mistake("a flow is written back after 1 packet or more"));
    }
    Ok(Preset::Rescue(Release::AtOnce { packets, every: every * 1_000_000 }, None))
}

/// What an operator says of memory for flows.
fn resident(preset: Preset, options: &ProtectionOptions, spot: Spot<'_>) -> Result<Preset, Mistake> {
    let Some(resident) = options.resident_flows else { return Ok(preset) };
    let Preset::Rescue(release, _) = preset else {
        let message = "only the preset `rescue` has flows whose state is not in memory: leave `resident_flows` out";
        return Err(spot.name("resident_flows").mistake(message));
    };
    if resident < LEAST_RESIDENT {
        let message = format!("a runtime has the state of at least {LEAST_RESIDENT} flows in memory");
        return Err(spot.key("resident_flows").mistake(message));
    }
    Ok(Preset::Rescue(release, Some(resident)))
}

/// True if the chain's runtimes have a standby beside them.
pub(super) fn has_local_standby(config: Option<&ProtectionConfig>) -> bool {
    let Some(ProtectionConfig::Options(options)) = config else { return false };
    options.level.as_deref().is_some_and(|level| level == LOCAL || level == BOTH)
}

/// A state server assigns the numbers of a chain's pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hold {
    /// So long each rests that a flow had, ns.
    pub(super) ns: u64,
    /// The key by which that was said, if it was.
    pub(super) said_by: Option<&'static str>,
}

/// Whether a state server assigns the numbers of the chain's pools.
pub(super) fn server_hold(config: Option<&ProtectionConfig>, has_hosts: bool, spot: Spot<'_>) -> Result<Option<Hold>, Mistake> {
    let preset = read(config, spot)?;
    let is_paged = matches!(preset, Preset::Rescue(..));
    let (shared, hold) = match config {
        Some(ProtectionConfig::Options(options)) => (options.shared.as_deref(), options.hold_s),
        _ => (None, None),
    };
    let is_said = shared == Some(STATE_SERVER);
    let is_served = is_said || is_paged && shared.is_none();
    match hold {
        _ if has_hosts && is_said => Err(spot
            .key("shared")
            .mistake("a state server beside `hosts` is not available in this version: `shared: partitioned`")),
        _ if has_hosts && is_paged => Err(spot.mistake(
            "flows whose home is a state server are not available beside `hosts` in this version: `nfvactor` or `reinforce`",
        )),
        Some(given) if is_served && !HOLD_S.contains(&given) => {
            Err(spot.key("hold_s").mistake("a number rests for between 0 and 3600 seconds"))
        }
        given if is_served => {
            let key = if is_said { Some("shared") } else { given.map(|_| "hold_s") };
            Ok(Some(Hold { ns: given.unwrap_or(DEFAULT_HOLD_S) * 1_000_000_000, said_by: key }))
        }
        Some(_) => Err(spot.name("hold_s").mistake("only with `shared: state-server` do numbers rest: leave `hold_s` out")),
        None => Ok(None),
    }
}

/// Seconds for which a number rests (RFC 6888, section 4, REQ-8).
const DEFAULT_HOLD_S: u64 = 120;
const HOLD_S: core::ops::RangeInclusive<u64> = 0..=3600;

/// What an operator may choose for `reinforce`.
const CHECKPOINT_MS: core::ops::RangeInclusive<u64> = 1..=10_000;
const LOG_MIB: core::ops::RangeInclusive<u64> = 1..=1024;
/// And for `rescue`.
const LEAST_RESIDENT: u32 = 16;
const WRITE_BACK_MS: core::ops::RangeInclusive<u64> = 1..=10_000;

fn read_preset(config: Option<&ProtectionConfig>, spot: Spot<'_>) -> Result<Preset, Mistake> {
    match config {
        None => Ok(Preset::None),
        Some(ProtectionConfig::Preset(name)) => preset(name, None, spot, spot),
        Some(ProtectionConfig::Options(options)) => match &options.preset {
            Some(name) => {
                // Whatever becomes of flows, what they share may be a server's; and where flows are a server's, what they share need not be.
                let is_open = |shared: &&str| *shared != STATE_SERVER && (name != "rescue" || *shared != PARTITIONED);
                let shared = options.shared.as_deref().filter(is_open);
                let given = [("flow", options.flow.as_deref()), ("shared", shared), ("rebuild", options.rebuild.as_deref())];
                if let Some((key, _)) = given.iter().find(|(_, answer)| answer.is_some()) {
                    return Err(spot
                        .name(key)
                        .mistake(format!("the preset `{name}` answers `{key}` already: leave one of them out")));
                }
                preset(name, options.release.as_deref(), spot.key("preset"), spot)
            }
            None => answers(options, spot),
        },
    }
}

fn preset(name: &str, release: Option<&str>, spot: Spot<'_>, options: Spot<'_>) -> Result<Preset, Mistake> {
    let release = RELEASE.answer(release, options)?;
    match (name, release) {
        ("none", None | Some("at-once")) => Ok(Preset::None),
        ("none", Some(_)) => Err(options.key("release").mistake("`none` has nothing to wait for: leave `release` out")),
        ("nfactor", None | Some("at-once")) => Ok(Preset::NfActor(SNAPSHOT_EVERY)),
        ("nfactor", Some(_)) => {
            Err(options.key("release").mistake("with `nfactor` packets leave at once: `release` is `at-once`, or use `nfvactor`"))
        }
        ("nfvactor", None | Some("replica")) => Ok(Preset::NfvActor(ReleaseAt::Replica)),
        ("nfvactor", Some("source")) => Ok(Preset::NfvActor(ReleaseAt::Source)),
        ("nfvactor", Some("auto")) => Ok(Preset::NfvActor(ReleaseAt::Auto)),
        ("nfvactor", Some(_)) => Err(options
            .key("release")
            .mistake("`nfvactor` lets a packet leave only once its state is saved: `release` is `replica`, `source` or `auto`")),
        ("reinforce", None | Some("standby")) => Ok(Preset::Reinforce(Settings::default())),
        ("reinforce", Some(_)) => Err(options
            .key("release")
            .mistake("with `reinforce` a packet leaves once its standby knows of it: `release` is `standby`, or use `nfvactor`")),
        ("rescue", None | Some("write-back")) => Ok(Preset::Rescue(Release::WriteBack, None)),
        ("rescue", Some("at-once")) => Ok(Preset::Rescue(AT_ONCE, None)),
        ("rescue", Some(_)) => Err(options.key("release").mistake(
            "with `rescue` a packet leaves at once, or when its flow is written back: `release` is `at-once` or `write-back`",
        )),
        (later, _) if LATER.contains(&later) => Err(spot
            .mistake(format!("the protection `{later}` is not available in this version: {}", listed(PRESETS.iter().copied())))),
        (unknown, _) => {
            let near = suggestion(unknown, PRESETS.iter().copied());
            Err(spot.mistake(format!("there is no protection `{unknown}`: {}{near}", listed(PRESETS.iter().copied()))))
        }
    }
}

/// An answer to each question; what is not answered follows from where flow state lives.
fn answers(options: &ProtectionOptions, spot: Spot<'_>) -> Result<Preset, Mistake> {
    let flow = FLOW.answer(options.flow.as_deref(), spot)?;
    let shared = SHARED.answer(options.shared.as_deref(), spot)?;
    let release = RELEASE.answer(options.release.as_deref(), spot)?;
    let rebuild = REBUILD.answer(options.rebuild.as_deref(), spot)?;
    let contradiction = |key: &str, message: &str| Err(spot.key(key).mistake(message));
    match flow {
        None => Err(spot.mistake(
            "a protection has a `preset`, or says at least where `flow` state lives: `memory`, `replica`, `snapshot`, `standby` or `paged`",
        )),
        Some("memory") => match (release, rebuild) {
            (Some("replica" | "source" | "auto" | "standby" | "write-back"), _) => contradiction(
                "release",
                "without a replica nobody says that the state is saved: `flow: replica`, or `release: at-once`",
            ),
            (_, Some("replica" | "snapshots" | "replay" | "pages")) => {
                contradiction("rebuild", "there is no replica to rebuild from: `flow: replica`, or `rebuild: nothing`")
            }
            _ => Ok(Preset::None),
        },
        Some("snapshot") => match (shared, release, rebuild) {
            (Some("memory"), _, _) => contradiction(
                "shared",
                "flows that come back need `shared: partitioned`: what is left in a dead runtime's memory may be given twice",
            ),
            (_, Some("replica" | "source" | "auto" | "standby" | "write-back"), _) => contradiction(
                "release",
                "a snapshot is older than what it would have to hold back: `release: at-once`, or `flow: replica`",
            ),
            (_, _, Some("nothing" | "replica" | "replay" | "pages")) => {
                contradiction("rebuild", "what is lost comes back from the snapshots: `rebuild: snapshots`")
            }
            _ => Ok(Preset::NfActor(SNAPSHOT_EVERY)),
        },
        Some("standby") => match (shared, release, rebuild) {
            (Some("memory"), _, _) => contradiction(
                "shared",
                "flows that their standby takes over need `shared: partitioned`: what is left in a dead runtime's memory may be given twice",
            ),
            (_, Some("at-once" | "replica" | "source" | "auto" | "write-back"), _) => contradiction(
                "release",
                "a packet leaves once its standby knows of it: `release: standby`, or `flow: replica`",
            ),
            (_, _, Some("nothing" | "replica" | "snapshots" | "pages")) => {
                contradiction("rebuild", "what the standby has not seen comes back from the log: `rebuild: replay`")
            }
            _ => Ok(Preset::Reinforce(Settings::default())),
        },
        Some("paged") => match (shared, release, rebuild) {
            (Some("memory"), _, _) => contradiction(
                "shared",
                "flows that others get need `shared: state-server` or `partitioned`: what is left in a dead runtime's memory may be given twice",
            ),
            (_, Some("replica" | "source" | "auto" | "standby"), _) => contradiction(
                "release",
                "a packet leaves at once, or when its flow is written back: `release: write-back`, or `at-once`",
            ),
            (_, _, Some("nothing" | "replica" | "snapshots" | "replay")) => {
                contradiction("rebuild", "what is lost comes back from the pages at the state server: `rebuild: pages`")
            }
            (_, Some("at-once"), _) => Ok(Preset::Rescue(AT_ONCE, None)),
            _ => Ok(Preset::Rescue(Release::WriteBack, None)),
        },
        Some(_) => match (shared, release, rebuild) {
            (Some("memory"), _, _) => contradiction(
                "shared",
                "flows that move to their replicas need `shared: partitioned`: what is left in a dead runtime's memory may be given twice",
            ),
            (_, Some("standby"), _) => contradiction("release", "a replica is no standby: `release: replica`, or `flow: standby`"),
            (_, Some("write-back"), _) => {
                contradiction("release", "nothing is written back to a replica: `release: replica`, or `flow: paged`")
            }
            (_, Some("at-once"), _) => contradiction(
                "release",
                "a replica with `release: at-once` is not available in this version: `replica`, `source`, `auto`",
            ),
            (_, _, Some("nothing" | "snapshots" | "replay" | "pages")) => {
                contradiction("rebuild", "a replica from which nothing is rebuilt is of no use: `rebuild: replica`")
            }
            (_, Some("source"), _) => Ok(Preset::NfvActor(ReleaseAt::Source)),
            (_, Some("auto"), _) => Ok(Preset::NfvActor(ReleaseAt::Auto)),
            _ => Ok(Preset::NfvActor(ReleaseAt::Replica)),
        },
    }
}
