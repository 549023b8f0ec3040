//! Configurations that are applied to a running box, and those that are refused.

use super::*;

/// The effect of new rules on flows, as the table has it.
const NEW: &str = "for flows that begin from now on";

/// Another set of rules is tried first, then applied, then applied again. The loop is
/// told once, and every answer says what it means.
#[test]
fn rules_are_applied_once_and_a_trial_applies_nothing() {
    let running = Box::start(0);
    let text =
        CONFIGURATION.replace("[{ chain: c }]", "[{ chain: c }, { from: 10.0.0.0/8, chain: d }]");
    let apply = |dry_run| match running
        .client()
        .apply("new.yaml".to_owned(), text.clone(), dry_run)
        .unwrap()
    {
        Reply::Applied(applied) => applied,
        Reply::Refused(refused) => panic!("{refused:?}"),
    };
    let added =
        vec![Rule { selector: "any from 10.0.0.0/8 to any".to_owned(), chain: "d".to_owned() }];
    let applied = |dry_run, now| {
        let rules = Some(RuleChanges {
            before: 1,
            now,
            added: added.clone(),
            removed: Vec::new(),
            flows: NEW.to_owned(),
        });
        Applied { dry_run, changed: true, rules }
    };
    assert_eq!(apply(true), applied(true, 1));
    assert!(running.applied.try_recv().is_err(), "nothing was applied");
    assert_eq!(apply(false), applied(false, 2));
    let (rules, from) = running.applied.try_recv().expect("it was applied");
    // The most specific first.
    assert_eq!(
        (rules, from),
        (
            vec!["any from 10.0.0.0/8 to any".to_owned(), "any from any to any".to_owned()],
            text.clone()
        )
    );
    let again = apply(false);
    assert_eq!((again.changed, again.rules.map(|rules| rules.now)), (false, Some(2)));
    assert!(running.applied.try_recv().is_err(), "there was nothing to apply");
}

/// Rules that are right come together with a port that is not the box's. All differences
/// are named, and the rules stay as they are. A file that is wrong in itself changes
/// nothing either.
#[test]
fn what_cannot_be_applied_is_refused_as_a_whole() {
    let running = Box::start(0);
    let apply = |text: String, dry_run| match running
        .client()
        .apply("new.yaml".to_owned(), text, dry_run)
        .unwrap()
    {
        Reply::Refused(refused) => refused,
        Reply::Applied(applied) => panic!("{applied:?}"),
    };
    let text = CONFIGURATION
        .replace("chain: c }]", "chain: d }]")
        .replace("device: d", "device: e")
        .replace("cluster: a", "cluster: b");
    let refused = apply(text.clone(), false);
    assert!(
        refused
            .error
            .starts_with("new.yaml: a running box cannot be changed like this, and nothing was changed\nnew.yaml:1:10: "),
        "{refused:?}"
    );
    let expected = "new.yaml:2:23: `ports.x.device` is `d` in the running box and `e` here";
    assert!(refused.error.contains(expected), "{refused:?}");
    let places = apply(text, true).refused;
    assert_eq!(
        places.iter().map(|place| (place.line, place.column)).collect::<Vec<_>>(),
        [(1, 10), (2, 23)]
    );
    let holdfast_control::api::Mistake { path, kind, flows, .. } = &places[1];
    assert_eq!(
        [path, kind, flows],
        ["ports.x.device", "restart", "packets come and go another way"]
    );
    let wrong = apply(CONFIGURATION.replace("forward", "foward"), false);
    assert!(wrong.error.contains("did you mean `forward`?"), "{wrong:?}");
    assert!(running.applied.try_recv().is_err());
}

/// A configuration of some megabytes is one long message. A message longer than any
/// configuration is refused.
#[test]
fn a_long_configuration_is_read() {
    let running = Box::start(0);
    let text = |remarks: usize| {
        format!(
            "{}{}",
            "# a remark\n".repeat(remarks),
            CONFIGURATION.replace("chain: c }]", "chain: d }]")
        )
    };
    let apply = |text: String| running.client().apply("new.yaml".to_owned(), text, false);
    assert!(matches!(apply(text(300_000)), Ok(Reply::Applied(_))));
    assert!(running.applied.try_recv().is_ok());
    let refused = refusal(apply(text(400_000)));
    assert!(refused.code == exit::NEGATIVE && refused.message.contains("too large"), "{refused}");
}
