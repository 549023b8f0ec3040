//! The places of all values in the file: the text is parsed a second time, for positions
//! only.
//!
//! serde reads values and drops their positions. A mistake that shows only when two
//! values are compared, or that a function finds in its own configuration, still needs a
//! place. The parser's events, on which serde-saphyr itself is built, are therefore kept
//! as a tree, and a [`Spot`] walks it by the keys and indexes that lead to the value.

use super::mistake::Mistake;
use granit_parser::{Event, Parser, ScalarStyle, Span};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, Default)]
struct Range {
    line: usize,
    /// Column from 1, in characters.
    column: usize,
    /// Width in characters; 1 for a value of several lines.
    width: usize,
}

impl From<Span> for Range {
    fn from(span: Span) -> Range {
        let one_line = span.start.line() == span.end.line();
        let width =
            if one_line { span.end.col().saturating_sub(span.start.col()).max(1) } else { 1 };
        Range { line: span.start.line(), column: span.start.col() + 1, width }
    }
}

#[derive(Debug)]
enum Kind {
    Scalar { text: String, is_plain: bool },
    List(Vec<usize>),
    Map(Vec<(usize, usize)>),
}

#[derive(Debug)]
struct Node {
    range: Range,
    kind: Kind,
}

/// Contents of files that came with the text, by their paths as written.
pub(super) type Attached = BTreeMap<String, String>;

/// A file's name and text, and the places of its values.
pub(super) struct Source {
    file: String,
    text: String,
    /// Contents of files that came with the text.
    attached: Attached,
    /// The first node is the root, if there is any.
    nodes: Vec<Node>,
}

impl Source {
    /// Reads `text` for its places. A syntax error ends the tree early: mistakes are then
    /// shown at the nearest known place.
    pub(super) fn new(file: &str, text: &str, attached: Attached) -> Source {
        let mut nodes: Vec<Node> = Vec::new();
        let mut anchors: HashMap<usize, usize> = HashMap::new();
        // Open collections, and for maps the key that waits for its value.
        let mut open: Vec<(usize, Option<usize>)> = Vec::new();
        for event in Parser::new_from_str(text) {
            let Ok((event, span)) = event else { break };
            let anchor = event.anchor_id();
            let mut target = None;
            let kind = match event {
                Event::Scalar(text, style, _, _) => Some(Kind::Scalar {
                    text: text.into_owned(),
                    is_plain: style == ScalarStyle::Plain,
                }),
                Event::SequenceStart(..) => Some(Kind::List(Vec::new())),
                Event::MappingStart(..) => Some(Kind::Map(Vec::new())),
                Event::SequenceEnd | Event::MappingEnd => {
                    open.pop();
                    continue;
                }
                // An alias has the value of its anchor.
                Event::Alias(anchor) => {
                    target = anchors.get(&anchor).copied();
                    None
                }
                Event::DocumentEnd => break,
                _ => continue,
            };
            let is_collection = matches!(kind, Some(Kind::List(_) | Kind::Map(_)));
            if let Some(kind) = kind {
                nodes.push(Node { range: span.into(), kind });
                target = Some(nodes.len() - 1);
            }
            let Some(number) = target else { continue };
            if let Some(anchor) = anchor {
                anchors.insert(anchor, number);
            }
            if let Some((parent, key)) = open.last_mut() {
                match &mut nodes[*parent].kind {
                    Kind::List(items) => items.push(number),
                    Kind::Map(entries) => match key.take() {
                        Some(key) => entries.push((key, number)),
                        None => *key = Some(number),
                    },
                    Kind::Scalar { .. } => {}
                }
            }
            if is_collection {
                open.push((number, None));
            }
        }
        Source { file: file.to_owned(), text: text.to_owned(), attached, nodes }
    }

    /// The file's name.
    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// The whole text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Contents of files that came with the text.
    pub(super) fn attached(&self) -> &Attached {
        &self.attached
    }

    /// The root.
    pub(super) fn root(&self) -> Spot<'_> {
        Spot { source: self, node: 0 }
    }

    /// A mistake at a given line and column, from 1.
    pub(super) fn mistake(
        &self,
        line: usize,
        column: usize,
        width: usize,
        message: impl Into<String>,
    ) -> Mistake {
        let text = self
            .text
            .lines()
            .nth(line.saturating_sub(1))
            .unwrap_or("")
            .trim_end_matches('\r')
            .to_owned();
        Mistake {
            file: self.file.clone(),
            line,
            column: column.max(1),
            width: width.max(1),
            text,
            message: message.into(),
        }
    }

    /// The innermost value that begins at a line and column (from 1); the whole if the
    /// position is between values.
    pub(super) fn place_at(&self, line: usize, column: usize) -> Place<'_> {
        let begins_here = |node: &Node| node.range.line == line && node.range.column == column;
        let node = self.nodes.iter().rposition(begins_here);
        Place { source: self, node, line, column }
    }

    /// The map that has an entry, or itself begins, at this position: its name in the
    /// file, and the name's place. `None` for the root.
    pub(super) fn owner_of(&self, line: usize, column: usize) -> Option<(String, Spot<'_>)> {
        let begins_here = |node: usize| {
            self.nodes[node].range.line == line && self.nodes[node].range.column == column
        };
        let is_it = |(number, node): &(usize, &Node)| match &node.kind {
            Kind::Map(entries) => {
                entries.iter().any(|(key, value)| begins_here(*key) || begins_here(*value))
                    || begins_here(*number)
            }
            _ => false,
        };
        let (map, _) = self.nodes.iter().enumerate().rfind(is_it).filter(|(map, _)| *map != 0)?;
        let named = |node: &Node| match &node.kind {
            Kind::Map(entries) => {
                entries.iter().find(|(_, value)| *value == map).map(|(key, _)| *key)
            }
            _ => None,
        };
        let key = self.nodes.iter().find_map(named);
        let name = match key.map(|key| &self.nodes[key].kind) {
            Some(Kind::Scalar { text, .. }) => text.clone(),
            _ => "this".to_owned(),
        };
        Some((name, self.root().at(key.unwrap_or(map))))
    }
}

/// A position from the parser: a value if one begins there, else a bare position.
pub(super) struct Place<'s> {
    source: &'s Source,
    node: Option<usize>,
    line: usize,
    column: usize,
}

impl<'s> Place<'s> {
    fn spot(&self) -> Option<Spot<'s>> {
        self.node.map(|node| Spot { source: self.source, node })
    }

    /// The scalar here, if it is neither a list nor a map.
    pub(super) fn scalar(&self) -> Option<&'s str> {
        match &self.source.nodes[self.node?].kind {
            Kind::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The value, if a key is here.
    pub(super) fn value_of_key(&self) -> Option<Place<'s>> {
        let here = self.node?;
        let value = self.source.nodes.iter().find_map(|node| match &node.kind {
            Kind::Map(entries) => {
                entries.iter().find(|(key, _)| *key == here).map(|(_, value)| *value)
            }
            _ => None,
        })?;
        let range = self.source.nodes[value].range;
        Some(Place {
            source: self.source,
            node: Some(value),
            line: range.line,
            column: range.column,
        })
    }

    /// A mistake here.
    pub(super) fn mistake(&self, message: impl Into<String>) -> Mistake {
        match self.spot() {
            Some(spot) => spot.mistake(message),
            None => self.source.mistake(self.line, self.column, 1, message),
        }
    }
}

/// A place in the file. A step to a missing value stays in place: a mistake one level too
/// high is better than none.
#[derive(Clone, Copy)]
pub(super) struct Spot<'s> {
    source: &'s Source,
    node: usize,
}

impl<'s> Spot<'s> {
    fn at(self, node: usize) -> Spot<'s> {
        Spot { node, ..self }
    }

    fn entry(self, key: &str) -> Option<(usize, usize)> {
        let Kind::Map(entries) = &self.source.nodes.get(self.node)?.kind else { return None };
        let is_key = |node: usize| matches!(&self.source.nodes[node].kind, Kind::Scalar { text, .. } if text == key);
        entries.iter().copied().find(|(name, _)| is_key(*name))
    }

    /// Resolves a path relative to the file's own directory: the directory in which `run`
    /// is started does not matter.
    pub(super) fn beside(self, path: &str) -> PathBuf {
        Path::new(&self.source.file).parent().unwrap_or(Path::new("")).join(path)
    }

    /// The value of a key.
    pub(super) fn key(self, key: &str) -> Spot<'s> {
        // A merged value stands where it was written.
        let merged = || self.entry("<<").and_then(|(_, value)| self.at(value).entry(key));
        self.entry(key).or_else(merged).map_or(self, |(_, value)| self.at(value))
    }

    /// The place of a key itself.
    pub(super) fn name(self, key: &str) -> Spot<'s> {
        self.entry(key).map_or(self, |(name, _)| self.at(name))
    }

    /// An item of a list. A single value in place of a list is its own first item.
    pub(super) fn index(self, index: usize) -> Spot<'s> {
        match self.source.nodes.get(self.node).map(|node| &node.kind) {
            Some(Kind::List(items)) => items.get(index).map_or(self, |item| self.at(*item)),
            _ => self,
        }
    }

    /// Follows a path like `rules[2]` or `timeouts.udp`.
    pub(super) fn path(self, path: &str) -> Spot<'s> {
        let mut spot = self;
        for part in path.split('.').filter(|part| !part.is_empty()) {
            let (name, indexes) = part.split_once('[').unwrap_or((part, ""));
            if !name.is_empty() {
                spot = spot.key(name);
            }
            for index in
                indexes.split('[').filter_map(|index| index.trim_end_matches(']').parse().ok())
            {
                spot = spot.index(index);
            }
        }
        spot
    }

    /// The first key or value at or below this place with exactly this text.
    pub(super) fn find(self, word: &str) -> Option<Spot<'s>> {
        let mut seen = HashSet::new();
        let mut todo = vec![self.node];
        while let Some(node) = todo.pop() {
            // An anchor that is used a thousand times is searched once.
            if !seen.insert(node) {
                continue;
            }
            match &self.source.nodes.get(node)?.kind {
                Kind::Scalar { text, .. } if text == word => return Some(self.at(node)),
                Kind::Scalar { .. } => {}
                Kind::List(items) => todo.extend(items.iter().rev()),
                Kind::Map(entries) => {
                    todo.extend(entries.iter().rev().flat_map(|(key, value)| [*value, *key]))
                }
            }
        }
        None
    }

    /// A mistake in the value here.
    pub(super) fn mistake(self, message: impl Into<String>) -> Mistake {
        match self.source.nodes.get(self.node) {
            Some(node) => {
                self.source.mistake(node.range.line, node.range.column, node.range.width, message)
            }
            None => Mistake::of_file(&self.source.file, message),
        }
    }

    /// The line and column of a byte of a text of several lines (`|`), if its line stands
    /// in the file as it is in the text.
    fn place_in_block(self, text: &str, offset: usize) -> Option<(usize, usize)> {
        let before = text.get(..offset)?;
        let number = before.matches('\n').count();
        let line = text.lines().nth(number).unwrap_or_default();
        let begin = before.rfind('\n').map_or(0, |at| at + 1);
        let range = self.source.nodes.get(self.node)?.range;
        // The text begins in the line behind the mark, if that has the place.
        let lines = [range.line + number, range.line + number + 1];
        lines.into_iter().find_map(|at| {
            let written = self.source.text.lines().nth(at.checked_sub(1)?)?.trim_end_matches('\r');
            let indent = written.strip_suffix(line.trim_end_matches('\r'))?;
            let is_indent = !line.is_empty() && indent.chars().all(|character| character == ' ');
            let column = indent.len() + text[begin..offset].chars().count() + 1;
            is_indent.then_some((at, column))
        })
    }

    /// A mistake in the attached file that is named here, from the content's byte
    /// `offset` to the end of that word.
    pub(super) fn mistake_in_file(self, offset: usize, message: impl Into<String>) -> Mistake {
        let path = match self.source.nodes.get(self.node).map(|node| &node.kind) {
            Some(Kind::Scalar { text, .. }) => text.as_str(),
            _ => "",
        };
        let before_and_rest =
            self.source.attached.get(path).and_then(|content| content.split_at_checked(offset));
        let Some((before, rest)) = before_and_rest else { return self.mistake(message) };
        let begin = before.rfind('\n').map_or(0, |at| at + 1);
        let line = rest.find('\n').map_or(rest, |end| &rest[..end]);
        let word = rest.chars().take_while(|character| !character.is_whitespace());
        Mistake {
            file: self.beside(path).display().to_string(),
            line: before.matches('\n').count() + 1,
            column: before[begin..].chars().count() + 1,
            width: word.count().max(1),
            text: format!("{}{line}", &before[begin..]).trim_end_matches('\r').to_owned(),
            message: message.into(),
        }
    }

    /// A mistake in the text here, from its byte `offset` to the end of that word.
    pub(super) fn mistake_at(self, offset: usize, message: impl Into<String>) -> Mistake {
        let mut mistake = self.mistake(message);
        let Some(Node { kind: Kind::Scalar { text, is_plain }, .. }) =
            self.source.nodes.get(self.node)
        else {
            return mistake;
        };
        let Some(rest) = text.get(offset..) else { return mistake };
        if text.contains('\n')
            && let Some((line, column)) = self.place_in_block(text, offset)
        {
            let width = rest.chars().take_while(|character| !character.is_whitespace()).count();
            return self.source.mistake(line, column, width, mistake.message);
        }
        let quote = usize::from(!*is_plain);
        let line = mistake.text.chars().skip(mistake.column - 1 + quote);
        // Escapes and folded lines shift positions: the mistake then marks the whole
        // text.
        if line.take(text.chars().count()).eq(text.chars()) {
            mistake.column += quote + text[..offset].chars().count();
            mistake.width =
                rest.chars().take_while(|character| !character.is_whitespace()).count().max(1);
        }
        mistake
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a:\n  - b: {c: \"x y z\"}\n  - &n [1, 2]\nd: *n\ne.f: { <<: {g: 7} }\n";

    fn place(spot: Spot<'_>) -> (usize, usize, usize) {
        let mistake = spot.mistake("");
        (mistake.line, mistake.column, mistake.width)
    }

    #[test]
    fn keys_indexes_aliases_and_merges_lead_to_where_it_is_written() {
        let source = Source::new("f", TEXT, Attached::new());
        let root = source.root();
        assert_eq!(place(root.key("a").index(0).key("b").key("c")), (2, 12, 7));
        assert_eq!(place(root.path("a[0].b.c")), (2, 12, 7));
        assert_eq!(place(root.path("a[1][1]")), (3, 12, 1));
        assert_eq!(place(root.key("d").index(0)), (3, 9, 1), "an alias is where its anchor is");
        assert_eq!(place(root.name("e.f")), (5, 1, 3));
        assert_eq!(place(root.key("e.f").key("g")), (5, 16, 1));
        assert_eq!(
            place(root.key("a").key("nothing")),
            place(root.key("a")),
            "what is not there is shown one level up"
        );
        assert_eq!(place(root.key("d").find("2").unwrap()), (3, 12, 1));
        assert!(root.find("nothing").is_none());
    }

    #[test]
    fn an_offset_points_into_quoted_text() {
        let source = Source::new("f", TEXT, Attached::new());
        let mistake = source.root().path("a[0].b.c").mistake_at(2, "");
        assert_eq!((mistake.line, mistake.column, mistake.width), (2, 15, 1));
        let source = Source::new("f", "a: \"x\\ty z\"\n", Attached::new());
        let mistake = source.root().key("a").mistake_at(3, "");
        assert_eq!(mistake.column, 4, "escapes move what follows, so the whole is meant");
    }

    #[test]
    fn an_offset_points_into_a_text_of_several_lines() {
        let text = "a:\n  - |\n    first line\n\n      é second line\n    third\nb: 1\n";
        let source = Source::new("f", text, Attached::new());
        let at = |word: &str| {
            let written = "first line\n\n  é second line\nthird\n";
            let offset = written.find(word).expect("a word of the text");
            place(source.root().path("a[0]"), offset)
        };
        assert_eq!(at("line"), (3, 11, 4));
        assert_eq!(at("second"), (5, 9, 6));
        assert_eq!(at("third"), (6, 5, 5));
        fn place(spot: Spot<'_>, offset: usize) -> (usize, usize, usize) {
            let mistake = spot.mistake_at(offset, "");
            (mistake.line, mistake.column, mistake.width)
        }
    }

    #[test]
    fn what_is_no_yaml_has_no_places_and_does_no_harm() {
        for text in
            ["", "[", "a: [b", "&a [*a]", "\u{feff}a: 1", "? [a]\n: b", "{{{", "--- a\n--- b"]
        {
            let source = Source::new("f", text, Attached::new());
            let _ = source.root().path("a[0].b").mistake_at(usize::MAX, "").to_string();
            let _ = source.root().find("zzz").is_some();
        }
    }
}
