//! Where in a file a mistake is.

use holdfast_nf::ConfigError;
use serde_json::Value;
use std::fmt;

/// A mistake in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The file.
    pub file: String,
    /// Line, from 1; 0 if it is not known.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// The line's text.
    pub text: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return write!(f, "{}: {}", self.file, self.message);
        }
        writeln!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        let number = self.line.to_string();
        writeln!(f, "{number} | {}", self.text)?;
        write!(f, "{:width$} | {:>column$}", "", "^", width = number.len(), column = self.column)
    }
}

impl std::error::Error for Mistake {}

/// The file's name and text.
pub(super) struct Place<'a> {
    file: &'a str,
    text: &'a str,
}

impl<'a> Place<'a> {
    pub(super) fn new(file: &'a str, text: &'a str) -> Place<'a> {
        Place { file, text }
    }

    fn at(&self, line: usize, column: usize, message: String) -> Mistake {
        let text = self.text.lines().nth(line.saturating_sub(1)).unwrap_or("").to_owned();
        Mistake { file: self.file.to_owned(), line, column: column.max(1), text, message }
    }

    /// Where a word stands alone for the first time, outside of comments: line and column from 1.
    fn find(&self, word: &str) -> Option<(usize, usize)> {
        let is_part =
            |character: Option<char>| character.is_some_and(|character| character.is_alphanumeric() || character == '_');
        for (number, line) in self.text.lines().enumerate() {
            let code = line.split(" #").next().unwrap_or(line);
            if code.trim_start().starts_with('#') {
                continue;
            }
            for (at, _) in code.match_indices(word) {
                let is_whole = !is_part(code[..at].chars().next_back()) && !is_part(code[at + word.len()..].chars().next());
                if is_whole {
                    return Some((number + 1, code[..at].chars().count() + 1));
                }
            }
        }
        None
    }

    /// A mistake about a word of the file.
    pub(super) fn of_word(&self, word: &str, message: impl Into<String>) -> Mistake {
        match self.find(word) {
            Some((line, column)) => self.at(line, column, message.into()),
            None => self.at(0, 0, message.into()),
        }
    }

    /// What the parser found. A word that it names in quotes is pointed at if it stands on the line that it names.
    pub(super) fn of_parser(&self, error: &serde_saphyr::Error) -> Mistake {
        let plain = error.without_snippet().to_string();
        let first = plain.lines().next().unwrap_or(&plain);
        let message = with_suggestion(first.trim_end_matches(':'));
        let quoted = message.split('`').nth(1).map(str::to_owned);
        let place = error.location().map(|location| (location.line() as usize, location.column() as usize));
        match (place, quoted.as_deref().filter(|_| message.contains("unknown")).and_then(|word| self.find(word))) {
            (_, Some((line, column))) => self.at(line, column, message),
            (Some((line, column)), None) => self.at(line, column, message),
            (None, None) => self.at(0, 0, message),
        }
    }

    /// A mistake in a function's own configuration.
    pub(super) fn of_function(&self, function: &str, config: &Value, error: &ConfigError) -> Mistake {
        let message = with_suggestion(&error.message);
        if let Some(Value::String(text)) = lookup(config, &error.path)
            && let Some((line, column)) = self.find(text)
        {
            return self.at(line, column + error.offset.unwrap_or(0), format!("{function}: {message}"));
        }
        let last = error.path.rsplit('.').next().and_then(|part| part.split('[').next()).filter(|part| !part.is_empty());
        let quoted = message.split('`').nth(1);
        let found = quoted
            .and_then(|word| self.find(word))
            .or_else(|| last.and_then(|word| self.find(word)))
            .or_else(|| self.find(function));
        let (line, column) = found.unwrap_or((0, 0));
        self.at(line, column, format!("{function}: {message}"))
    }
}

/// The value at a path like `rules[2]` or `timeouts.udp`.
fn lookup<'v>(mut value: &'v Value, path: &str) -> Option<&'v Value> {
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let (name, indexes) = part.split_once('[').unwrap_or((part, ""));
        if !name.is_empty() {
            value = value.get(name)?;
        }
        for index in indexes.split('[').filter(|index| !index.is_empty()) {
            value = value.get(index.trim_end_matches(']').parse::<usize>().ok()?)?;
        }
    }
    Some(value)
}

/// Adds "did you mean" to a message of the form "unknown … `x`, expected one of `a`, `b`".
fn with_suggestion(message: &str) -> String {
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match words.split_first() {
        Some((wrong, known)) if message.starts_with("unknown") || message.contains(" unknown ") => {
            format!("{message}{}", super::suggestion(wrong, known.iter().copied()))
        }
        _ => message.to_owned(),
    }
}
