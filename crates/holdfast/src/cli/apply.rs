//! `holdfast apply`.

use super::check::{name_of, text_of};
use crate::config;
use holdfast_control::api::{Applied, Rule, RuleChanges, apply_reply};
use holdfast_control::exit::{self, Failure};
use holdfast_control::table::print;
use holdfast_control::{Client, Target, object};
use std::path::Path;

pub(super) fn apply(
    target: &Target,
    file: &Path,
    dry_run: bool,
    json: bool,
) -> Result<(), Failure> {
    let (name, text) = (name_of(file), text_of(file)?);
    // The file is checked first, whether a box runs or not. The box checks it again.
    let wrong = |mistake: config::Mistake| Failure::new(exit::CONFIGURATION, mistake.to_string());
    let text = config::attach(&name, &text).map_err(wrong)?;
    config::read(&name, &text).map_err(wrong)?;
    match Client::to(target)?.apply(name, text, dry_run)? {
        apply_reply::Result::Applied(applied) if json => print(&format!("{}\n", object(&applied))),
        apply_reply::Result::Applied(applied) => print(&told(&applied)),
        apply_reply::Result::Refused(refused) => {
            if json {
                let mut answer = object(&refused);
                answer["code"] = exit::CONFIGURATION.into();
                print(&format!("{answer}\n"))?;
            }
            Err(Failure::new(exit::CONFIGURATION, refused.error))
        }
    }
}

/// The answer as text.
fn told(applied: &Applied) -> String {
    let RuleChanges { before, now, added, removed, flows } =
        applied.rules.clone().unwrap_or_default();
    let lines = |rules: &[Rule], sign: char| -> String {
        rules.iter().map(|rule| format!("  {sign} {} -> {}\n", rule.selector, rule.chain)).collect()
    };
    let changes = lines(&removed, '-') + &lines(&added, '+');
    match (applied.changed, applied.dry_run) {
        (false, _) => format!("the box runs this already: rules version {now}\n"),
        (true, true) => format!("would change the rules, version {before} now:\n{changes}"),
        (true, false) => format!("applied: rules version {now}, {flows}:\n{changes}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_is_listed_and_a_trial_says_that_it_is_one() {
        let rule = |selector: &str, chain: &str| Rule {
            selector: selector.to_owned(),
            chain: chain.to_owned(),
        };
        let answer = |changed, dry_run| {
            let (added, removed) = (
                vec![rule("tcp from any to any", "web")],
                vec![rule("any from any to any", "rest")],
            );
            let rules = RuleChanges {
                before: 1,
                now: 2,
                added,
                removed,
                flows: "for new flows".to_owned(),
            };
            Applied { dry_run, changed, rules: Some(rules) }
        };
        let changes = "  - any from any to any -> rest\n  + tcp from any to any -> web\n";
        assert_eq!(
            told(&answer(true, false)),
            format!("applied: rules version 2, for new flows:\n{changes}")
        );
        assert_eq!(
            told(&answer(true, true)),
            format!("would change the rules, version 1 now:\n{changes}")
        );
        assert_eq!(told(&answer(false, false)), "the box runs this already: rules version 2\n");
    }
}
