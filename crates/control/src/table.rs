//! The output of commands: tables, and colours.

use crate::exit::{self, Failure};
use std::io::{IsTerminal, Write};

/// The appearance of a word on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// An ordinary word.
    Plain,
    /// A heading.
    Head,
    /// A good state.
    Good,
    /// A state that deserves attention.
    Caution,
    /// A bad state.
    Bad,
}

/// True if words are coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    coloured: bool,
}

impl Style {
    /// No colours.
    pub const PLAIN: Style = Style { coloured: false };

    /// The style for standard output: colours on a terminal that has them, unless
    /// NO_COLOR asks for none (no-color.org).
    pub fn of_stdout() -> Style {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
        Style { coloured: std::io::stdout().is_terminal() && !refused && !is_dumb }
    }

    /// The word, coloured for its tone.
    pub fn paint(self, word: &str, tone: Tone) -> String {
        let code = match tone {
            Tone::Plain => return word.to_owned(),
            Tone::Head => "1",
            Tone::Good => "32",
            Tone::Caution => "33",
            Tone::Bad => "31",
        };
        if self.coloured { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() }
    }
}

/// A table: columns as wide as their widest word, numbers to the right.
#[derive(Debug, Clone)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<(String, Tone)>>,
}

impl Table {
    /// A table without rows.
    pub fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|word| (*word).to_owned()).collect(), rows: Vec::new() }
    }

    /// A table with these rows.
    pub fn of(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
        let mut table = Table::new(head);
        rows.into_iter()
            .for_each(|row| table.row(row.into_iter().map(|word| (word, Tone::Plain)).collect()));
        table
    }

    /// Adds a row.
    pub fn row(&mut self, row: Vec<(String, Tone)>) {
        self.rows.push(row);
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The text, a line per row, the head first.
    pub fn text(&self, style: Style) -> String {
        // Text from outside must not move the cursor.
        let clean = |word: &str| word.replace(|character: char| character.is_control(), "\u{fffd}");
        let head = self.head.iter().map(|word| (clean(word), Tone::Head)).collect::<Vec<_>>();
        let rows = self
            .rows
            .iter()
            .map(|row| row.iter().map(|(word, tone)| (clean(word), *tone)).collect());
        let lines: Vec<Vec<(String, Tone)>> = std::iter::once(head).chain(rows).collect();
        let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
        let is_number = |word: &str| word == "-" || word.parse::<f64>().is_ok();
        let mut text = String::new();
        let width = |column: usize| {
            lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(|(word, _)| word.chars().count())
                .max()
                .unwrap_or(0)
        };
        let shape: Vec<(usize, bool)> = (0..columns)
            .map(|column| {
                let mut words = lines.iter().skip(1).filter_map(|line| line.get(column));
                (width(column), !self.is_empty() && words.all(|(word, _)| is_number(word)))
            })
            .collect();
        for line in &lines {
            let mut padded = String::new();
            for ((word, tone), (width, is_right)) in line.iter().zip(&shape) {
                let gap = " ".repeat(width - word.chars().count());
                let word = style.paint(word, *tone);
                padded +=
                    &if *is_right { format!("{gap}{word}  ") } else { format!("{word}{gap}  ") };
            }
            text += padded.trim_end();
            text.push('\n');
        }
        text
    }
}

/// Prints on standard output.
///
/// # Errors
/// The system's error (exit code 69). A reader that has had enough (`| head`) is no
/// error.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(exit::UNAVAILABLE, format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_word_and_numbers_stand_right() {
        let rows =
            [vec!["a".to_owned(), "7".to_owned()], vec!["\u{1b}bcd".to_owned(), "1234".to_owned()]];
        assert_eq!(
            Table::of(&["name", "flows"], rows).text(Style::PLAIN),
            "name  flows\na         7\n\u{fffd}bcd   1234\n"
        );
        assert_eq!(Table::new(&["name", "flows"]).text(Style::PLAIN), "name  flows\n");
    }

    #[test]
    fn colour_does_not_change_the_width() {
        let mut table = Table::new(&["a", "b"]);
        table.row(vec![("ok".to_owned(), Tone::Good), ("x".to_owned(), Tone::Plain)]);
        assert_eq!(
            table.text(Style { coloured: true }),
            "\x1b[1ma\x1b[0m   \x1b[1mb\x1b[0m\n\x1b[32mok\x1b[0m  x\n"
        );
    }
}
