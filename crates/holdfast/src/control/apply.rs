//! The box's side of `apply`, on the client's thread: the packet loop only changes its
//! rules.

use super::Request;
use super::service::Service;
use crate::config::{self, Difference, Mistake};
use crate::files;
use holdfast_control::api::{self, Applied, Refused, RuleChanges, apply_reply};
use holdfast_node::rules::{Rule, RuleSet, version_after};
use tonic::Status as Refusal;

/// The box's answer to a refused configuration. A difference, unlike a mistake, has a row
/// of the table. A place in a file that the configuration names is in the message.
fn refused<'m>(
    file: &str,
    error: String,
    mistakes: impl Iterator<Item = (&'m Mistake, Option<&'m Difference>)>,
) -> apply_reply::Result {
    let place = |(mistake, difference): (&Mistake, Option<&Difference>)| api::Mistake {
        line: if mistake.file == file { mistake.line as u32 } else { 0 },
        column: if mistake.file == file { mistake.column as u32 } else { 0 },
        width: mistake.width as u32,
        message: match mistake.file == file {
            true => mistake.message.clone(),
            false => mistake.to_string(),
        },
        path: difference.map_or(String::new(), |difference| difference.path.clone()),
        kind: difference.map_or("", |difference| difference.row.kind.word()).to_owned(),
        flows: difference.map_or("", |difference| difference.row.flows).to_owned(),
    };
    apply_reply::Result::Refused(Refused { error, refused: mistakes.map(place).collect() })
}

/// Reads, compares and applies a configuration. The rules change in one step, so all of
/// it applies or nothing.
pub(super) fn apply(
    service: &Service,
    file: &str,
    text: String,
    dry_run: bool,
) -> Result<apply_reply::Result, Refusal> {
    let Ok(_alone) = service.applying.try_lock() else {
        return Err(Refusal::resource_exhausted(
            "another configuration is being applied: try again when it has been",
        ));
    };
    let new = match config::read(file, &text) {
        Ok(new) => new,
        Err(mistake) => {
            return Ok(refused(file, mistake.to_string(), [(&mistake, None)].into_iter()));
        }
    };
    let running = service.ask(Request::Configuration)?;
    let differences = config::differences(&running.plan, &new);
    if !differences.is_empty() {
        let mut text =
            format!("{file}: a running box cannot be changed like this, and nothing was changed");
        for difference in &differences {
            text += &format!("\n{}", difference.mistake);
        }
        return Ok(refused(
            file,
            text,
            differences.iter().map(|difference| (&difference.mistake, Some(difference))),
        ));
    }
    let changes = config::rule_changes(&running.plan.rules, &new.rules);
    let before = running.rules;
    let list = |is_new: bool| -> Vec<api::Rule> {
        let chosen = changes.iter().filter(|change| change.is_new == is_new);
        // Zones are equal in both configurations.
        let words = |rule: &Rule| rule.selector.display(new.zones_of(rule.chain)).to_string();
        let chain = |rule: &Rule| new.chain_name(rule.chain).to_owned();
        chosen
            .map(|change| api::Rule { selector: words(&change.rule), chain: chain(&change.rule) })
            .collect()
    };
    let (added, removed, changed) = (list(true), list(false), !changes.is_empty());
    let mut now = before;
    if changed && !dry_run {
        let failed = |error: std::io::Error| {
            Refusal::failed_precondition(format!("a copy of the configuration: {error}"))
        };
        let memory = files::memory(text.as_bytes()).map_err(failed)?;
        let rules = RuleSet::new(version_after(before), new.rules.clone()).records(running.record);
        // Mistakes that are found later are shown in the box's file.
        let again = config::read(&running.file, &text);
        let plan =
            again.map_err(|mistake| Refusal::failed_precondition(mistake.to_string()))?.into();
        let text = text.into();
        now = service.ask(|answer| Request::Apply {
            based_on: before,
            text,
            plan,
            memory,
            rules,
            answer,
        })?;
    }
    let rules =
        Some(RuleChanges { before, now, added, removed, flows: config::RULES.flows.to_owned() });
    Ok(apply_reply::Result::Applied(Applied { dry_run, changed, rules }))
}
