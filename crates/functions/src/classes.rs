//! Flows in classes: rules that name a class and a selector, of which the first that
//! matches a flow's first packet decides.

use crate::rule_text::RuleText;
use holdfast_nf::{ConfigError, FlowKey, Opening, Packet};
use holdfast_wire::selector::{Classifier, Selector};
use holdfast_wire::zone::Zones;

/// The class of a flow that is in none.
pub(crate) const NONE: u8 = u8::MAX;

/// Classes by name, while a configuration is read.
pub(crate) struct Names<'a>(Vec<&'a str>);

impl<'a> Names<'a> {
    /// The classes of a configuration, whose key is `classes`; `example` is what one
    /// could be.
    ///
    /// # Errors
    /// There are none, or too many, or a name is not one.
    pub(crate) fn read(
        names: impl Iterator<Item = &'a String>,
        example: &str,
    ) -> Result<Names<'a>, ConfigError> {
        let names: Vec<&str> = names.map(String::as_str).collect();
        if names.is_empty() {
            let message = format!("there must be at least one class, like {example}");
            return Err(ConfigError::at("classes", message));
        }
        if names.len() > usize::from(NONE) {
            return Err(ConfigError::at(
                "classes",
                format!("{} classes are more than the {NONE} that there may be", names.len()),
            ));
        }
        let is_name =
            |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
        if let Some(name) = names.iter().find(|name| name.is_empty() || !name.chars().all(is_name))
        {
            return Err(ConfigError::at(
                "",
                format!("`{name}` cannot be the name of a class: letters, digits, `-` and `_` can"),
            ));
        }
        Ok(Names(names))
    }

    /// The number of a class.
    ///
    /// # Errors
    /// The text names the classes that there are.
    pub(crate) fn number(&self, name: &str) -> Result<u8, String> {
        let found =
            self.0.iter().zip(0u8..).find(|(other, _)| **other == name).map(|(_, number)| number);
        let known = || self.0.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| format!("unknown class `{name}`, expected one of {}", known()))
    }

    /// The name of a class.
    pub(crate) fn name(&self, number: u8) -> &'a str {
        self.0[usize::from(number)]
    }
}

/// The rules, and the class of flows that none matches.
#[derive(Debug)]
pub(crate) struct Classes {
    rules: Vec<(u8, Selector)>,
    classifier: Classifier,
    default: u8,
}

impl Classes {
    /// Reads `rules` and `default` of a configuration.
    ///
    /// # Errors
    /// A rule is wrong, or nothing puts a flow into a class.
    pub(crate) fn read(
        rules: &[String],
        default: Option<&String>,
        names: &Names<'_>,
        zones: &Zones,
    ) -> Result<Classes, ConfigError> {
        let rules = rules.iter().enumerate().map(|(at, text)| rule(at, text, names, zones));
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        let default = match default {
            None if rules.is_empty() => {
                return Err(ConfigError::at(
                    "",
                    "neither `rules` nor a `default` puts a flow into a class",
                ));
            }
            None => NONE,
            Some(name) => {
                names.number(name).map_err(|message| ConfigError::at("default", message))?
            }
        };
        let classifier = Classifier::new(rules.iter().map(|(_, selector)| selector));
        Ok(Classes { rules, classifier, default })
    }

    /// The class of the flow that begins with this packet, as the functions before this
    /// one left it; [`NONE`] if it is in none.
    pub(crate) fn of(&self, packet: &Packet, cx: &Opening<'_>) -> u8 {
        // A later fragment has no ports of its own: the edge knew them.
        let key = FlowKey::of(packet).unwrap_or(*cx.key());
        let is_meant = |at: usize| self.rules[at].1.matches(&key, packet.meta.ingress);
        self.classifier.first(&key, is_meant).map_or(self.default, |at| self.rules[at].0)
    }
}

fn rule(
    at: usize,
    text: &str,
    names: &Names<'_>,
    zones: &Zones,
) -> Result<(u8, Selector), ConfigError> {
    let written = RuleText::new(at, text);
    let class = names.number(written.word).map_err(|message| written.wrong_word(message))?;
    let selector = Selector::read(written.rest, zones)
        .map_err(|wrong| written.wrong_selector(written.rest, wrong))?;
    Ok((class, selector))
}
