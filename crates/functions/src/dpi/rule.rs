//! Rules: an action, and the protocols or categories that it is for.

use crate::firewall::Action as Judgement;
use crate::qos_marker::{DscpConfig, Mark};
use crate::rule_text::{RuleText, words};
use holdfast_ndpi::Library;
use holdfast_nf::ConfigError;

/// The action of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Judge(Judgement),
    Mark(Mark),
    /// Later rules decide.
    Count,
}

impl Action {
    /// True if the flow ends with it.
    pub(super) fn is_refusal(self) -> bool {
        matches!(self, Action::Judge(Judgement::Deny | Judgement::Reject))
    }
}

/// A rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) action: Action,
    pub(super) text: String,
    protocols: Vec<u16>,
    categories: Vec<u16>,
}

impl Rule {
    /// Reads the rule with this index.
    pub(super) fn read(at: usize, text: &str, library: &Library) -> Result<Rule, ConfigError> {
        let written = RuleText::new(at, text);
        let mut words = words(text).skip(1);
        let mut next = |what: &str| {
            words.next().ok_or_else(|| written.error(text.trim_end().len(), what.to_owned()))
        };
        let action = match written.word {
            "count" => Action::Count,
            "mark" => {
                let (offset, dscp) = next("`mark` needs a DSCP behind it, such as `ef`")?;
                let config = match dscp.parse() {
                    Ok(number) => DscpConfig::Number(number),
                    Err(_) => DscpConfig::Name(dscp.to_owned()),
                };
                let dscp = config.read().map_err(|message| written.error(offset, message))?;
                Action::Mark(Mark { dscp: Some(dscp), pcp: None })
            }
            word => Action::Judge(Judgement::read(&written).map_err(|_| {
                written.wrong_word(format!(
                    "`{word}` is not an action: a rule begins with `allow`, `deny`, \
                     `reject`, `mark` or `count`"
                ))
            })?),
        };
        let mut rule = Rule {
            action,
            text: text.trim().to_owned(),
            protocols: Vec::new(),
            categories: Vec::new(),
        };
        let (offset, kind) = next("expected `protocol` or `category`")?;
        let is_protocol = match kind {
            "protocol" => true,
            "category" => false,
            _ => {
                let message = format!("unknown word `{kind}`, expected `protocol` or `category`");
                return Err(written.error(offset, message));
            }
        };
        let (offset, names) = next(&format!("`{kind}` needs a name behind it"))?;
        let mut at = offset;
        for name in names.split('|') {
            let number = if is_protocol { library.protocol(name) } else { library.category(name) };
            let number = number.ok_or_else(|| {
                let known = if is_protocol { library.protocols() } else { library.categories() };
                written.error(at, unknown(kind, name, known))
            })?;
            let numbers = if is_protocol { &mut rule.protocols } else { &mut rule.categories };
            numbers.push(number);
            at += name.len() + 1;
        }
        if let Some((offset, more)) = words.next() {
            let message = format!("`{more}` is too much: several names are written `A|B`");
            return Err(written.error(offset, message));
        }
        Ok(rule)
    }

    pub(super) fn is_for_protocol(&self, protocol: u16) -> bool {
        self.protocols.contains(&protocol)
    }

    pub(super) fn is_for_category(&self, category: u16) -> bool {
        self.categories.contains(&category)
    }
}

/// The text names up to eight names that contain the written one or are part of it.
fn unknown(kind: &str, name: &str, known: &[String]) -> String {
    let lower = name.to_lowercase();
    let alike = known.iter().filter(|known| {
        let known = known.to_lowercase();
        !known.is_empty() && (lower.contains(&known) || known.contains(&lower))
    });
    let alike: Vec<String> = alike.map(|name| format!("`{name}`")).take(8).collect();
    let hint = match (alike.is_empty(), kind) {
        (false, _) => format!("; similar are {}", alike.join(", ")),
        (true, "protocol") => "; `ndpiReader -a 0` lists them".to_owned(),
        (true, _) => "; `ndpiReader -a 1` lists them".to_owned(),
    };
    format!("nDPI knows no {kind} `{name}`{hint}")
}
