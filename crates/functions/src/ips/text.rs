//! Text of rules: continued lines, comments, words, and options with quotes.
//!
//! Every piece keeps its byte offset in the text that the operator wrote.

/// A rule that is not accepted, with its place and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Offset in the whole text, bytes.
    pub(super) offset: usize,
    /// The text for the operator: the mistake and its remedy.
    pub(super) message: String,
    /// True if the rule may be right for Suricata or Snort, and is not supported here.
    pub(super) is_unsupported: bool,
}

/// The error about a mistake in a rule.
pub(super) fn wrong(offset: usize, message: impl Into<String>) -> Wrong {
    Wrong { offset, message: message.into(), is_unsupported: false }
}

/// The error about a feature that other engines have and this one does not.
pub(super) fn unsupported(offset: usize, message: impl Into<String>) -> Wrong {
    Wrong { offset, message: message.into(), is_unsupported: true }
}

/// True for a line that is a comment, as in Suricata. A comment does not go on in the
/// next line.
fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

/// The text with continued lines joined: `\` with the spaces behind it and the line's end
/// become spaces, which keeps every offset.
pub(super) fn joined(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    let mut is_continued = false;
    for line in text.split_inclusive('\n') {
        let rule = line.trim_end().strip_suffix('\\');
        let rule = rule.filter(|_| is_continued || !is_comment(line));
        let kept = rule.unwrap_or(line);
        joined.push_str(kept);
        joined.extend(std::iter::repeat_n(' ', line.len() - kept.len()));
        is_continued = rule.is_some();
    }
    joined
}

/// The rules of a joined text, each with its offset, without comments and empty lines.
pub(super) fn lines(joined: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    joined.split_inclusive('\n').filter_map(move |line| {
        let begin = at;
        at += line.len();
        let rule = line.trim();
        let offset = begin + (line.len() - line.trim_start().len());
        (!rule.is_empty() && !is_comment(rule)).then_some((offset, rule))
    })
}

/// A piece of text and its offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece<'t> {
    pub(super) at: usize,
    pub(super) text: &'t str,
}

impl<'t> Piece<'t> {
    /// The part from byte `from` to byte `to`.
    pub(super) fn part(self, from: usize, to: usize) -> Piece<'t> {
        Piece { at: self.at + from, text: self.text.get(from..to).unwrap_or_default() }
    }

    /// The piece without spaces around it.
    pub(super) fn trimmed(self) -> Piece<'t> {
        let at = self.at + (self.text.len() - self.text.trim_start().len());
        Piece { at, text: self.text.trim() }
    }

    /// The pieces between commas outside of brackets, each trimmed.
    pub(super) fn items(self) -> Vec<Piece<'t>> {
        let (mut items, mut depth, mut begin) = (Vec::new(), 0usize, 0);
        for (at, character) in self.text.char_indices() {
            match character {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    items.push(self.part(begin, at).trimmed());
                    begin = at + 1;
                }
                _ => {}
            }
        }
        items.push(self.part(begin, self.text.len()).trimmed());
        items
    }
}

/// An option: its name, and the value behind the colon.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written<'t> {
    pub(super) name: Piece<'t>,
    pub(super) value: Option<Piece<'t>>,
}

/// A reader of one rule.
pub(super) struct Reader<'t> {
    left: Piece<'t>,
}

impl<'t> Reader<'t> {
    pub(super) fn new(offset: usize, rule: &'t str) -> Reader<'t> {
        Reader { left: Piece { at: offset, text: rule } }
    }

    /// The offset of the text that is not read yet.
    pub(super) fn at(&self) -> usize {
        self.left.at
    }

    fn skip(&mut self, bytes: usize) {
        self.left = self.left.part(bytes, self.left.text.len());
    }

    fn skip_spaces(&mut self) {
        self.skip(self.left.text.len() - self.left.text.trim_start().len());
    }

    /// The next word of the header. A list in brackets is one word, and may have spaces.
    /// `what` names the word in the error.
    ///
    /// # Errors
    /// The header ends here.
    pub(super) fn word(&mut self, what: &str) -> Result<Piece<'t>, Wrong> {
        self.skip_spaces();
        let mut depth = 0usize;
        let ends = |character: char| {
            match character {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && character.is_whitespace() || character == '('
        };
        let len = self.left.text.find(ends).unwrap_or(self.left.text.len());
        if len == 0 {
            return Err(wrong(
                self.at(),
                format!(
                    "{what} is missing: a rule is `alert tcp any any -> any 80 (content:\"…\"; sid:1;)`"
                ),
            ));
        }
        let word = self.left.part(0, len);
        self.skip(len);
        Ok(word)
    }

    /// Takes the bracket in front of the options.
    ///
    /// # Errors
    /// The bracket is missing.
    pub(super) fn open(&mut self) -> Result<(), Wrong> {
        self.skip_spaces();
        if !self.left.text.starts_with('(') {
            return Err(wrong(self.at(), "`(` with the rule's options is missing"));
        }
        self.skip(1);
        Ok(())
    }

    /// The next option; none behind the last one.
    ///
    /// # Errors
    /// An option has no `;`, a quote does not end, or words stand behind the rule.
    pub(super) fn option(&mut self) -> Result<Option<Written<'t>>, Wrong> {
        self.skip_spaces();
        if self.left.text.starts_with(')') {
            self.skip(1);
            self.skip_spaces();
            return match self.left.text {
                "" => Ok(None),
                _ => Err(wrong(self.at(), "a rule ends with its bracket, and each has a line")),
            };
        }
        let name_ends = |character: char| matches!(character, ':' | ';' | ')');
        let Some(len) = self.left.text.find(name_ends) else {
            return Err(wrong(self.at(), "the rule ends inside its options: `;)` is missing"));
        };
        let name = self.left.part(0, len).trimmed();
        if name.text.is_empty() {
            return Err(wrong(name.at, "an option's name is missing"));
        }
        let mark = self.left.text[len..].chars().next();
        self.skip(len);
        match mark {
            Some(';') => {
                self.skip(1);
                return Ok(Some(Written { name, value: None }));
            }
            Some(':') => self.skip(1),
            _ => return Err(wrong(self.at(), format!("`;` is missing behind `{}`", name.text))),
        }
        let (mut is_quoted, mut is_escaped, mut quote) = (false, false, self.at());
        for (at, character) in self.left.text.char_indices() {
            match character {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                '"' => {
                    is_quoted = !is_quoted;
                    quote = self.at() + at;
                }
                ';' if !is_quoted => {
                    let value = self.left.part(0, at).trimmed();
                    self.skip(at + 1);
                    return Ok(Some(Written { name, value: Some(value) }));
                }
                _ => {}
            }
        }
        Err(match is_quoted {
            true => wrong(quote, "the quote that begins here does not end"),
            false => wrong(name.at, format!("`;` is missing behind `{}`", name.text)),
        })
    }
}
