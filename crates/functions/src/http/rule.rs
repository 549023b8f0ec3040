//! Rules about requests, and their text form.

use super::head::{Head, PATH, normalize, part};
use super::is_token;
use super::message::mark;
use crate::firewall::Action;
use crate::rule_text::{RuleText, words};
use holdfast_nf::ConfigError;

/// A pattern. A `*` at its beginning, its end or both stands for anything.
#[derive(Debug)]
struct Pattern {
    is_open_before: bool,
    is_open_behind: bool,
    text: Vec<u8>,
}

impl Pattern {
    fn read(word: &str) -> Result<Pattern, String> {
        let (before, text) = (word.starts_with('*'), word.trim_start_matches('*'));
        let (behind, text) = (text.ends_with('*'), text.trim_end_matches('*'));
        if text.contains('*') {
            return Err(format!("`{word}` has a `*` in its middle: it may begin or end with one"));
        }
        Ok(Pattern {
            is_open_before: before,
            is_open_behind: behind,
            text: text.as_bytes().to_vec(),
        })
    }

    fn matches(&self, text: &[u8]) -> bool {
        let own = self.text.as_slice();
        match (self.is_open_before, self.is_open_behind) {
            (false, false) => text == own,
            (true, false) => text.ends_with(own),
            (false, true) => text.starts_with(own),
            (true, true) => own.is_empty() || text.windows(own.len()).any(|window| window == own),
        }
    }
}

/// A rule: an action, and the conditions that a request must meet.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) action: Action,
    /// The rule as written.
    pub(super) text: String,
    methods: Option<Vec<Vec<u8>>>,
    host: Option<Pattern>,
    path: Option<Pattern>,
    upgrades: bool,
}

/// Checks a host that a rule or counter names, and returns it in lower case.
pub(super) fn host(word: &str) -> Result<String, String> {
    let lower = word.trim_end_matches('.').to_ascii_lowercase();
    let mut bytes = lower.bytes().filter(|byte| *byte != b'*');
    let end = bytes.try_fold(part::START, |at, byte| {
        part::after(at, byte).filter(|(_, is_host)| *is_host).map(|(next, _)| next)
    });
    let is_whole = end != Some(part::LITERAL) || lower.contains('*');
    if lower.is_empty() || end.is_none() || !is_whole {
        return Err(format!("`{word}` cannot be a host: a name or an address, without a port"));
    }
    Ok(lower)
}

impl Rule {
    /// Reads the rule with this index.
    pub(super) fn read(at: usize, text: &str) -> Result<Rule, ConfigError> {
        let written = RuleText::new(at, text);
        let error = |offset: usize, message: String| written.error(offset, message);
        let action = Action::read(&written)?;
        let mut words = words(text).skip(1);
        let text = text.trim().to_owned();
        let mut rule =
            Rule { action, text, methods: None, host: None, path: None, upgrades: false };
        while let Some((offset, key)) = words.next() {
            let is_second = match key {
                "method" => rule.methods.is_some(),
                "host" => rule.host.is_some(),
                "path" => rule.path.is_some(),
                "upgrade" => rule.upgrades,
                _ => {
                    let known = "expected one of `host`, `method`, `path`, `upgrade`";
                    let message = format!("unknown condition `{key}`, {known}");
                    return Err(error(offset, message));
                }
            };
            if is_second {
                return Err(error(offset, format!("a second `{key}`: a rule has one at most")));
            }
            if key == "upgrade" {
                rule.upgrades = true;
                continue;
            }
            let Some((offset, value)) = words.next() else {
                return Err(error(offset, format!("`{key}` needs a value behind it")));
            };
            rule.set(key, value).map_err(|message| error(offset, message))?;
        }
        Ok(rule)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "method" => {
                let methods: Vec<Vec<u8>> =
                    value.split('|').map(|method| method.as_bytes().to_vec()).collect();
                let is_method = |method: &Vec<u8>| {
                    !method.is_empty() && method.iter().all(|byte| is_token(*byte))
                };
                if !methods.iter().all(is_method) {
                    return Err(format!("`{value}` is no method, nor several like `GET|HEAD`"));
                }
                self.methods = Some(methods);
            }
            "host" => self.host = Some(Pattern::read(&host(value)?)?),
            _ => {
                if !value.starts_with(['/', '*']) || value.contains(['?', '#']) {
                    return Err(format!(
                        "`{value}` is no path: it begins with `/` or `*`, and has no query"
                    ));
                }
                self.path = Some(Pattern::read(value)?);
            }
        }
        Ok(())
    }

    /// Marks of requests that the rule cannot judge, because it compares a part that is
    /// too long.
    pub(super) fn undecidable(&self) -> u16 {
        let mark = |has: bool, mark: u16| if has { mark } else { 0 };
        mark(self.methods.is_some(), mark::LONG_METHOD)
            | mark(self.host.is_some(), mark::LONG_HOST)
            | mark(self.path.is_some(), mark::LONG_PATH)
    }

    /// True if the rule has a condition for paths.
    pub(super) fn has_path(&self) -> bool {
        self.path.is_some()
    }

    fn matches(&self, head: &Head, path: &[u8], marks: u16) -> bool {
        let is_method = |methods: &Vec<Vec<u8>>| methods.iter().any(|one| one == head.method());
        self.methods.as_ref().is_none_or(is_method)
            && self.host.as_ref().is_none_or(|host| host.matches(head.name()))
            && self.path.as_ref().is_none_or(|pattern| pattern.matches(path))
            && (!self.upgrades || marks & mark::UPGRADE != 0)
    }
}

/// The index of the first rule that matches the request.
pub(super) fn first(rules: &[Rule], head: &Head, marks: u16) -> Option<usize> {
    let mut normal = [0; PATH];
    let len =
        if rules.iter().any(Rule::has_path) { normalize(head.path(), &mut normal) } else { 0 };
    rules.iter().position(|rule| rule.matches(head, &normal[..len], marks))
}
