//! Reads the operator's `protection` into its [`Plan`].
//!
//! [`holdfast_protection::plan`] has the words, the table of valid combinations, and the
//! numbers. This module has the places in the file for mistakes.

use super::mistake::{Mistake, listed, suggestion};
use super::raw::{ProtectionConfig, ProtectionOptions};
use super::source::Spot;
use holdfast_protection::Plan;
use holdfast_protection::plan::{Answer, Flow, Misfit, NUMBERS, Shared};

const LOCAL: &str = "local";
const BOTH: &str = "local+remote";
const LEVELS: [&str; 3] = [LOCAL, "remote", BOTH];

/// Reads `protection`; `spot` is its value.
pub(super) fn read(config: Option<&ProtectionConfig>, spot: Spot<'_>) -> Result<Plan, Mistake> {
    let options = match config {
        None => return Ok(Plan::NONE),
        Some(ProtectionConfig::Preset(name)) => return preset(name, spot),
        Some(ProtectionConfig::Options(options)) => options,
    };
    let misfit = |misfit: Misfit| {
        let spot = if misfit.is_key { spot.name(misfit.key) } else { spot.key(misfit.key) };
        spot.mistake(misfit.message)
    };
    let mut plan = answers(options, spot)?;
    plan.check(options.preset.is_some()).map_err(misfit)?;
    if let Some(level) = &options.level {
        plan = at_level(plan, level, spot)?;
    }
    for number in &NUMBERS {
        if let Some(value) = number_of(options, number.key) {
            plan.set(number, value).map_err(misfit)?;
        }
    }
    Ok(plan)
}

/// A plan in words, the same however it is written. Written numbers are named if they
/// differ from the plan's defaults.
pub(super) fn words(plan: &Plan, written: Option<&ProtectionConfig>) -> String {
    let Plan { flow, shared, release, rebuild, has_local_standby, .. } = *plan;
    let answers = [flow.word(), shared.word(), release.word(), rebuild.word()];
    let [flow_word, shared_word, release_word, rebuild_word] = answers;
    let mut words = format!(
        "flow: {flow_word}, shared: {shared_word}, release: {release_word}, rebuild: {rebuild_word}"
    );
    if has_local_standby {
        words += &format!(", level: {}", if flow == Flow::Standby { BOTH } else { LOCAL });
    }
    let Some(ProtectionConfig::Options(options)) = written else { return words };
    let without = Plan { shared, release, rebuild, has_local_standby, ..Plan::of_flow(flow) };
    for number in &NUMBERS {
        let mut with = without;
        if let Some(value) = number_of(options, number.key)
            && with.set(number, value).is_ok()
            && with != without
        {
            words += &format!(", {}: {value}", number.key);
        }
    }
    words
}

/// The number with this key, if it is given.
fn number_of(options: &ProtectionOptions, key: &str) -> Option<u64> {
    match key {
        "snapshot_every" => options.snapshot_every.map(u64::from),
        "unsaved_packets" => options.unsaved_packets.map(u64::from),
        "hold_s" => options.hold_s,
        "write_back_ms" => options.write_back_ms,
        "write_back_packets" => options.write_back_packets.map(u64::from),
        "resident_flows" => options.resident_flows.map(u64::from),
        "checkpoint_ms" => options.checkpoint_ms,
        "log_mib" => options.log_mib,
        _ => unreachable!("`{key}` is a number of a plan, and nobody can write it"),
    }
}

/// The key that asks for a state server for a chain's pools, if any.
pub(super) fn says_server(config: Option<&ProtectionConfig>) -> Option<&'static str> {
    let Some(ProtectionConfig::Options(options)) = config else { return None };
    let is_said = options.shared.as_deref() == Some(Shared::StateServer.word());
    if is_said { Some("shared") } else { options.hold_s.map(|_| "hold_s") }
}

/// The given parts; others follow from the preset, or from the place of flow state.
fn answers(options: &ProtectionOptions, spot: Spot<'_>) -> Result<Plan, Mistake> {
    let mut plan = match (&options.preset, answer::<Flow>(options.flow.as_deref(), spot)?) {
        (Some(name), flow) => {
            let given = [("flow", flow.is_some()), ("rebuild", options.rebuild.is_some())];
            if let Some((key, _)) = given.iter().find(|(_, is_given)| *is_given) {
                let message =
                    format!("the preset `{name}` answers `{key}` already: leave one of them out");
                return Err(spot.name(key).mistake(message));
            }
            preset(name, spot.key("preset"))?
        }
        (None, Some(flow)) => Plan::of_flow(flow),
        (None, None) => {
            let words = listed(Flow::ALL.iter().map(|flow| flow.word()));
            let message = format!(
                "a protection has a `preset`, or says at least where `flow` state lives: {words}"
            );
            return Err(spot.mistake(message));
        }
    };
    plan.shared = answer(options.shared.as_deref(), spot)?.unwrap_or(plan.shared);
    plan.release = answer(options.release.as_deref(), spot)?.unwrap_or(plan.release);
    plan.rebuild = answer(options.rebuild.as_deref(), spot)?.unwrap_or(plan.rebuild);
    Ok(plan)
}

fn preset(name: &str, spot: Spot<'_>) -> Result<Plan, Mistake> {
    let known = listed(Plan::presets());
    Plan::preset(name).ok_or_else(|| {
        if Plan::LATER.contains(&name) {
            return spot.mistake(format!(
                "the protection `{name}` is not available in this version: {known}"
            ));
        }
        let near = suggestion(name, Plan::presets());
        spot.mistake(format!("there is no protection `{name}`: {known}{near}"))
    })
}

/// Reads one part, if it is given.
fn answer<A: Answer>(given: Option<&str>, spot: Spot<'_>) -> Result<Option<A>, Mistake> {
    let Some(word) = given else { return Ok(None) };
    if let Some(answer) = A::ALL.iter().find(|answer| answer.word() == word) {
        return Ok(Some(*answer));
    }
    let (key, words) = (A::KEY, || A::ALL.iter().map(|answer| answer.word()));
    let known = listed(words());
    let message = match A::LATER.contains(&word) {
        true => format!("`{key}: {word}` is not available in this version: {known}"),
        false => format!("`{word}` is no answer to `{key}`: {known}{}", suggestion(word, words())),
    };
    Err(spot.key(key).mistake(message))
}

/// Puts the standby at another runtime, in a process beside each runtime, or both.
fn at_level(plan: Plan, level: &str, spot: Spot<'_>) -> Result<Plan, Mistake> {
    if plan.flow != Flow::Standby {
        return Err(spot
            .name("level")
            .mistake("only the preset `reinforce` has levels: leave `level` out"));
    }
    if !LEVELS.contains(&level) {
        let message = format!(
            "`{level}` is no level: {}{}",
            listed(LEVELS.into_iter()),
            suggestion(level, LEVELS.into_iter())
        );
        return Err(spot.key("level").mistake(message));
    }
    let has_local_standby = level == LOCAL || level == BOTH;
    Ok(match level == LOCAL {
        true => Plan { has_local_standby, shared: plan.shared, ..Plan::NONE },
        false => Plan { has_local_standby, ..plan },
    })
}
