//! `apply` as the box does it, on the client's thread: the packet loop only changes its rules.

use super::Request;
use super::service::Service;
use crate::config::{self, Mistake};
use crate::files;
use holdfast_control::api::{self, Applied, Refused, RuleChanges, apply_reply};
use holdfast_node::rules::{Rule, RuleSet, version_after};
use tonic::Status as Refusal;

/// What the box answers to a configuration that it does not go by.
fn refused(error: String, mistakes: &[Mistake]) -> apply_reply::Result {
    let place = |mistake: &Mistake| api::Mistake {
        line: mistake.line as u32,
        column: mistake.column as u32,
        width: mistake.width as u32,
        message: mistake.message.clone(),
    };
    apply_reply::Result::Refused(Refused { error, refused: mistakes.iter().map(place).collect() })
}

/// Reads, compares and applies. All of it or nothing: the only change is that of the rules, and that is one step.
pub(super) fn apply(service: &Service, file: &str, text: String, dry_run: bool) -> Result<apply_reply::Result, Refusal> {
    let Ok(_alone) = service.applying.try_lock() else {
        return Err(Refusal::resource_exhausted("another configuration is being applied: try again when it has been"));
    };
    let new = match config::read(file, &text) {
        Ok(new) => new,
        Err(mistake) => return Ok(refused(mistake.to_string(), &[mistake])),
    };
    let (running, old) = service.running()?;
    let differences = config::differences(file, &text, &old.config, &new.config);
    if !differences.is_empty() {
        let mut text = format!("{file}: a running box cannot be changed like this, and nothing was changed");
        for difference in &differences {
            text += &format!("\n{difference}");
        }
        return Ok(refused(text, &differences));
    }
    let changes = config::rule_changes(&old.rules, &new.rules);
    let before = running.rules;
    let chain = |number: u16| new.config.chains.keys().nth(usize::from(number)).cloned().unwrap_or_default();
    let list = |is_new: bool| -> Vec<api::Rule> {
        let chosen = changes.iter().filter(|change| change.is_new == is_new);
        // Zones are the same in both.
        let words = |rule: &Rule| rule.selector.display(&new.zones_of(rule.chain)).to_string();
        chosen.map(|change| api::Rule { selector: words(&change.rule), chain: chain(change.rule.chain) }).collect()
    };
    let (added, removed, changed) = (list(true), list(false), !changes.is_empty());
    let mut now = before;
    if changed && !dry_run {
        let failed = |error: std::io::Error| Refusal::failed_precondition(format!("a copy of the configuration: {error}"));
        let memory = files::memory(text.as_bytes()).map_err(failed)?;
        let rules = RuleSet::new(version_after(before), new.rules).records(running.record);
        let text = text.into();
        now = service.ask(|answer| Request::Apply { based_on: before, text, memory, rules, answer })?;
    }
    let rules = Some(RuleChanges { before, now, added, removed });
    Ok(apply_reply::Result::Applied(Applied { dry_run, changed, rules }))
}
