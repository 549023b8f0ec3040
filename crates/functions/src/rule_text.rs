//! A rule as it is written: a word that says what is done, and what it is done to.
//!
//! In: a rule's text and its place. Out: its parts, and mistakes with their places.
//! Never: what a word means.

use holdfast_nf::ConfigError;
use holdfast_wire::selector::SelectorError;

/// Words with their offsets.
pub(crate) fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split_whitespace().map(|word| (word.as_ptr() as usize - text.as_ptr() as usize, word))
}

/// A rule's text; see the module.
pub(crate) struct RuleText<'t> {
    at: usize,
    text: &'t str,
    /// The first word; empty if there is none.
    pub(crate) word: &'t str,
    /// The text behind it.
    pub(crate) rest: &'t str,
}

impl<'t> RuleText<'t> {
    /// The rule with this index in the key `rules`.
    pub(crate) fn new(at: usize, text: &'t str) -> RuleText<'t> {
        let trimmed = text.trim_start();
        let (word, rest) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, ""));
        RuleText { at, text, word, rest }
    }

    /// A mistake at this byte of the rule.
    pub(crate) fn error(&self, offset: usize, message: impl Into<String>) -> ConfigError {
        let path = format!("rules[{}]", self.at);
        ConfigError { path, message: message.into(), offset: Some(offset) }
    }

    /// A mistake in the first word.
    pub(crate) fn wrong_word(&self, message: impl Into<String>) -> ConfigError {
        self.error(self.text.len() - self.text.trim_start().len(), message)
    }

    /// A mistake in the selector with which the rule ends.
    pub(crate) fn wrong_selector(&self, selector: &str, wrong: SelectorError) -> ConfigError {
        self.error(self.text.len() - selector.len() + wrong.offset, wrong.message)
    }
}
