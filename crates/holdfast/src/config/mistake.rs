//! A mistake in a configuration file, as shown to the operator.

use std::fmt::{self, Write};

/// Columns shown around a mistake: a JSON file may be one line of many thousands.
const SHOWN: usize = 120;

/// A mistake in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The file.
    pub file: String,
    /// Line, from 1; 0 if unknown.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Characters that are wrong, at least 1.
    pub width: usize,
    /// The line's text.
    pub text: String,
    /// The text says what is wrong, and what would be right.
    pub message: String,
}

impl Mistake {
    /// A mistake about the whole file.
    pub(super) fn of_file(file: &str, message: impl Into<String>) -> Mistake {
        Mistake {
            file: file.to_owned(),
            line: 0,
            column: 0,
            width: 1,
            text: String::new(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return write!(f, "{}: {}", self.file, self.message);
        }
        writeln!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        let before = self.column.saturating_sub(1);
        let skipped =
            if before + self.width > SHOWN { before.saturating_sub(SHOWN / 2) } else { 0 };
        // Control characters must not reach the terminal: those that move the cursor are
        // replaced, tabs are one column.
        let visible = |character: char| match character {
            '\t' => ' ',
            character if character.is_control() => '\u{fffd}',
            character => character,
        };
        let line: String = self.text.chars().skip(skipped).take(SHOWN).map(visible).collect();
        let number = self.line.to_string();
        writeln!(f, "{number} | {}", line.trim_end())?;
        write!(
            f,
            "{:gutter$} | {:indent$}",
            "",
            "",
            gutter = number.len(),
            indent = before - skipped
        )?;
        let width = self.width.clamp(1, SHOWN.saturating_sub(before - skipped).max(1));
        (0..width).try_for_each(|_| f.write_char('^'))
    }
}

impl std::error::Error for Mistake {}

/// `; did you mean …?` if a candidate is similar enough, else empty.
pub(super) fn suggestion<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    // Longer than any name here; the distance of two texts takes time proportional to the
    // product of their lengths.
    if word.len() > 64 {
        return String::new();
    }
    let folded = word.to_lowercase().replace('-', "_");
    let distance = |candidate: &str| {
        strsim::damerau_levenshtein(&folded, &candidate.to_lowercase().replace('-', "_"))
    };
    let near = candidates.into_iter().map(|candidate| (distance(candidate), candidate)).min();
    match near {
        Some((distance, candidate)) if distance <= 1 + word.len() / 4 && candidate != word => {
            format!("; did you mean `{candidate}`?")
        }
        _ => String::new(),
    }
}

/// Names in backticks with commas between them.
pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Adds "did you mean" to a parser's message of the form "unknown … `x`, expected one of
/// `a`, `b`".
pub(crate) fn with_suggestion(message: &str) -> String {
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match words.split_first() {
        Some((wrong, known)) if message.contains("unknown ") => {
            format!("{message}{}", suggestion(wrong, known.iter().copied()))
        }
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(column: usize, width: usize, text: &str) -> Mistake {
        Mistake { file: "f".into(), line: 7, column, width, text: text.into(), message: "m".into() }
    }

    #[test]
    fn the_caret_stands_below_the_word() {
        assert_eq!(mistake(5, 3, "\tab\tcde").to_string(), "f:7:5: m\n7 |  ab cde\n  |     ^^^");
        assert_eq!(mistake(2, 1, "\u{1b}[2Jx").to_string(), "f:7:2: m\n7 | \u{fffd}[2Jx\n  |  ^");
    }

    #[test]
    fn of_a_very_long_line_the_part_around_the_mistake_is_shown() {
        let text = format!("{}WRONG{}", "a".repeat(5000), "b".repeat(5000));
        let shown = mistake(5001, 5, &text).to_string();
        let lines: Vec<&str> = shown.lines().collect();
        let caret = lines[2].find('^').unwrap();
        assert_eq!(&lines[1][caret..caret + 5], "WRONG");
        assert!(lines[1].len() < 150 && lines[2].len() < 150);
    }

    #[test]
    fn what_is_near_is_suggested_and_what_is_far_is_not() {
        assert_eq!(suggestion("nta", ["nat", "firewall"]), "; did you mean `nat`?");
        assert_eq!(
            suggestion("load-balancer", ["load_balancer"]),
            "; did you mean `load_balancer`?"
        );
        assert_eq!(suggestion("NAT", ["nat"]), "; did you mean `nat`?");
        assert_eq!(suggestion("elephant", ["nat", "firewall"]), "");
        assert_eq!(suggestion(&"x".repeat(1 << 20), ["nat"]), "");
    }
}
