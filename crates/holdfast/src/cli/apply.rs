//! `holdfast apply`.

use super::check::{name_of, text_of};
use crate::config;
use holdfast_control::exit::{self, Failure};
use holdfast_control::table::print;
use holdfast_control::{Call, Client, Target, agreed};
use serde_json::Value;
use std::path::Path;

pub(super) fn apply(target: &Target, file: &Path, dry_run: bool, json: bool) -> Result<(), Failure> {
    let (name, text) = (name_of(file), text_of(file)?);
    // A wrong file is wrong whether a box runs or not. The box looks for itself all the same.
    config::read(&name, &text).map_err(|mistake| Failure::new(exit::CONFIGURATION, mistake.to_string()))?;
    let answer = Client::to(target)?.ask_for_either(Call::Apply { file: name, text, dry_run })?;
    if json {
        print(&format!("{answer}\n"))?;
    }
    let answer = agreed(answer)?;
    if json { Ok(()) } else { print(&told(&answer)) }
}

/// The answer for people.
fn told(answer: &Value) -> String {
    let rules = &answer["rules"];
    let lines = |key: &str, sign: char| -> String {
        let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        let line = |rule: &Value| format!("  {sign} {} -> {}\n", word(&rule["selector"]), word(&rule["chain"]));
        rules[key].as_array().map(|rules| rules.iter().map(line).collect()).unwrap_or_default()
    };
    let changes = lines("removed", '-') + &lines("added", '+');
    match (answer["changed"] == true, answer["dry_run"] == true) {
        (false, _) => format!("the box runs this already: rules version {}\n", rules["now"]),
        (true, true) => format!("would change the rules, version {} now:\n{changes}", rules["before"]),
        (true, false) => {
            format!("applied: rules version {}, {}:\n{changes}", rules["now"], rules["flows"].as_str().unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_changes_is_listed_and_a_trial_says_that_it_is_one() {
        let answer = |changed, dry_run| {
            let added = json!([{ "selector": "tcp from any to any", "chain": "web" }]);
            json!({ "version": 1, "dry_run": dry_run, "changed": changed,
                "rules": { "before": 1, "now": 2, "flows": "for new flows", "added": added, "removed": [{ "selector": "any from any to any", "chain": "rest" }] } })
        };
        let changes = "  - any from any to any -> rest\n  + tcp from any to any -> web\n";
        assert_eq!(told(&answer(true, false)), format!("applied: rules version 2, for new flows:\n{changes}"));
        assert_eq!(told(&answer(true, true)), format!("would change the rules, version 1 now:\n{changes}"));
        assert_eq!(told(&answer(false, false)), "the box runs this already: rules version 2\n");
    }
}
