//! `apply` as the box does it, on the client's thread: the packet loop only changes its rules.

use super::Request;
use super::service::{Problem, ProblemKind, Service};
use crate::config::{self, Difference, Mistake};
use crate::files;
use holdfast_control::VERSION;
use holdfast_control::exit;
use holdfast_node::rules::{Rule, RuleSet, version_after};
use serde_json::{Value, json};

/// What the box answers to a configuration that it does not go by. What is not a mistake but a difference has a row of the table.
fn refusal<'m>(text: &str, mistakes: impl Iterator<Item = (&'m Mistake, Option<&'m Difference>)>) -> Value {
    let places = mistakes.map(|(mistake, difference)| {
        let row = difference.map(|difference| difference.row);
        json!({ "line": mistake.line, "column": mistake.column, "width": mistake.width, "message": mistake.message,
            "path": difference.map_or("", |difference| difference.path.as_str()),
            "kind": row.map_or("", |row| row.kind.word()), "flows": row.map_or("", |row| row.flows) })
    });
    json!({ "version": VERSION, "error": text, "code": exit::CONFIGURATION, "refused": places.collect::<Vec<_>>() })
}

/// Reads, compares and applies. All of it or nothing: the only change is that of the rules, and that is one step.
pub(super) fn apply(service: &Service, file: String, text: String, dry_run: bool) -> Result<Value, Problem> {
    let Ok(_alone) = service.applying.try_lock() else {
        return Err(Problem::new(ProblemKind::Busy, "another configuration is being applied: try again when it has been"));
    };
    let new = match config::read(&file, &text) {
        Ok(new) => new,
        Err(mistake) => return Ok(refusal(&mistake.to_string(), [(&mistake, None)].into_iter())),
    };
    let (old, running) = service.running()?;
    let differences = config::differences(&old, &new);
    if !differences.is_empty() {
        let mut text = format!("{file}: a running box cannot be changed like this, and nothing was changed");
        for difference in &differences {
            text += &format!("\n{}", difference.mistake);
        }
        let differences = differences.iter().map(|difference| (&difference.mistake, Some(difference)));
        return Ok(refusal(&text, differences));
    }
    let changes = config::rule_changes(&old.rules, &new.rules);
    let based_on = running["rules"].as_u64().unwrap_or(0);
    let list = |is_new: bool| -> Vec<Value> {
        let chosen = changes.iter().filter(|change| change.is_new == is_new);
        // Zones are the same in both.
        let words = |rule: &Rule| rule.selector.display(new.zones_of(rule.chain)).to_string();
        chosen.map(|change| json!({ "selector": words(&change.rule), "chain": new.chain_name(change.rule.chain) })).collect()
    };
    let (added, removed) = (list(true), list(false));
    let mut version = based_on;
    if !changes.is_empty() && !dry_run {
        let failed = |error: std::io::Error| Problem::new(ProblemKind::NotNow, format!("a copy of the configuration: {error}"));
        let memory = files::memory(text.as_bytes()).map_err(failed)?;
        let limit = running["record"].as_u64().expect("the packet loop says how long a record may be");
        let rules = RuleSet::new(version_after(based_on), new.rules.clone()).records(limit as usize);
        let answer = service.ask(Request::Apply { based_on, text: text.into(), memory, rules })?;
        version = answer["rules"].as_u64().unwrap_or(based_on);
    }
    Ok(json!({ "version": VERSION, "dry_run": dry_run, "changed": !changes.is_empty(),
        "rules": { "before": based_on, "now": version, "added": added, "removed": removed, "flows": config::RULES.flows } }))
}
