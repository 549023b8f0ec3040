//! Rules in the language that Suricata and Snort share, as far as a single pass over the
//! bytes can obey them.
//!
//! In: text. Out: rules, whose contents are chains: a chain begins with a content at an
//! absolute place, or with an expression that may be anywhere; each further step is
//! relative to the end of the match before. Never: a rule that is understood in part.

use super::header::{Header, Variables};
use super::regex::{self, Expression, Pattern};
use super::text::{Piece, Reader, Written, Wrong, unsupported, wrong};

/// The action of a rule that matches, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    Alert,
    Reject,
    Drop,
    /// The flow passes and is no longer inspected.
    Pass,
}

/// Bytes to find, and their place: the match begins at least `least` bytes behind the
/// base, and ends at most `least + most` behind it. The base is the stream's start, or
/// the end of the match before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) is_nocase: bool,
    pub(super) least: i32,
    pub(super) most: Option<i32>,
}

impl Content {
    /// The content's length, bytes; at most `MOST_BYTES` ([`content_bytes`]).
    pub(super) fn len(&self) -> i32 {
        self.bytes.len() as i32
    }

    /// The largest distance of the match's end from the base.
    pub(super) fn reach(&self) -> Option<i32> {
        self.most.map(|most| self.least + most)
    }
}

/// A step of a chain.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Content(Content),
    /// An expression with `R`, behind a content.
    Expression(Expression),
    /// An expression without `R`, which begins its chain.
    Standing(Pattern),
}

/// The option `flow`: the direction of the rule's packets, and whether both sides have
/// spoken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FlowOption {
    /// True for packets from the side that opened the flow.
    pub(super) to_server: Option<bool>,
    pub(super) is_established: Option<bool>,
}

/// A rule.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) action: Action,
    pub(super) header: Header,
    pub(super) flow: FlowOption,
    /// The chains; all must match.
    pub(super) chains: Vec<Vec<Step>>,
    pub(super) sid: u32,
    /// Offset of the sid in the whole text, bytes.
    pub(super) sid_at: usize,
    pub(super) gid: u32,
    pub(super) rev: u32,
    pub(super) message: String,
    pub(super) class: String,
    /// True if matches are counted and not logged.
    pub(super) is_silent: bool,
}

impl Rule {
    /// The expressions without `R`, and the number of the chain that each begins.
    pub(super) fn standing(&self) -> impl Iterator<Item = (u8, &Pattern)> {
        (0u8..).zip(&self.chains).filter_map(|(chain, steps)| match steps.first() {
            Some(Step::Standing(pattern)) => Some((chain, pattern)),
            _ => None,
        })
    }

    /// The rule's name in counters and the log: `2001 "ssh scan"`.
    pub(super) fn name(&self) -> String {
        let Rule { sid, rev, message, class, .. } = self;
        let rev = if *rev == 0 { String::new() } else { format!(" rev {rev}") };
        let message = if message.is_empty() { String::new() } else { format!(" \"{message}\"") };
        let class = if class.is_empty() { String::new() } else { format!(" ({class})") };
        format!("{sid}{rev}{message}{class}")
    }
}

/// Maximum length of a content, bytes.
const MOST_BYTES: usize = 255;
/// Maximum number of contents and expressions of a rule.
const MOST_STEPS: usize = 32;
/// Largest number in an offset or a depth, and in a distance or a within, as in Suricata.
const MOST_FAR: i32 = 65_535;
const MOST_BEHIND: i32 = 1 << 20;

/// A content or an expression, while the options are read.
struct Part<'t> {
    value: Piece<'t>,
    kind: Kind,
}

enum Kind {
    Content { bytes: Vec<u8>, is_nocase: bool, places: [Option<(i32, usize)>; 4] },
    Expression(Step),
}

/// Indexes of [`Kind::Content`]'s places, with their offsets in the text.
const OFFSET: usize = 0;
const DEPTH: usize = 1;
const DISTANCE: usize = 2;
const WITHIN: usize = 3;

/// Reads a rule at `offset` of the whole text.
pub(super) fn read(offset: usize, text: &str, variables: &Variables) -> Result<Rule, Wrong> {
    let mut reader = Reader::new(offset, text);
    let word = reader.word("an action")?;
    let action = match word.text {
        "alert" => Action::Alert,
        "drop" => Action::Drop,
        "reject" => Action::Reject,
        "pass" => Action::Pass,
        other => {
            return Err(unsupported(
                word.at,
                format!("action `{other}` is not supported: `alert`, `drop`, `reject` or `pass`"),
            ));
        }
    };
    let header = Header::read(&mut reader, variables)?;
    reader.open()?;
    let mut rule = Rule {
        action,
        header,
        flow: FlowOption::default(),
        chains: Vec::new(),
        sid: 0,
        sid_at: offset,
        gid: 1,
        rev: 0,
        message: String::new(),
        class: String::new(),
        is_silent: false,
    };
    let mut parts: Vec<Part<'_>> = Vec::new();
    while let Some(option) = reader.option()? {
        apply(&mut rule, &mut parts, option)?;
    }
    if rule.sid == 0 {
        return Err(wrong(offset, "`sid` is missing: each rule has a number of its own"));
    }
    if parts.len() > MOST_STEPS {
        return Err(unsupported(
            parts[MOST_STEPS].value.at,
            format!("more than {MOST_STEPS} contents in a rule are not supported"),
        ));
    }
    for (at, part) in parts.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| &parts[at].kind);
        chain(&mut rule.chains, part, before)?;
    }
    if rule.chains.is_empty() {
        return Err(unsupported(
            offset,
            "a rule without a `content` or a `pcre` is not supported: what the header alone decides is for the `firewall`",
        ));
    }
    Ok(rule)
}

fn value<'t>(option: Written<'t>) -> Result<Piece<'t>, Wrong> {
    option.value.filter(|value| !value.text.is_empty()).ok_or_else(|| {
        wrong(option.name.at, format!("`{}` needs a value behind a colon", option.name.text))
    })
}

fn number(option: Written<'_>, least: i64, most: i64) -> Result<i64, Wrong> {
    let value = value(option)?;
    let name = option.name.text;
    let number = value.text.parse::<i64>().map_err(|_| {
        unsupported(value.at, format!("`{name}` is a number here; `{}` is none", value.text))
    })?;
    if !(least..=most).contains(&number) {
        return Err(wrong(value.at, format!("`{name}` is between {least} and {most}")));
    }
    Ok(number)
}

/// The text without its quotes and escapes.
fn plain(value: Piece<'_>) -> String {
    let inner =
        value.text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value.text);
    let mut text = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        text.push(match character {
            '\\' => characters.next().unwrap_or('\\'),
            other => other,
        });
    }
    text
}

/// The part between quotes. A negation in front is not supported.
pub(super) fn quoted<'t>(value: Piece<'t>, name: &str) -> Result<Piece<'t>, Wrong> {
    if value.text.starts_with('!') {
        return Err(unsupported(
            value.at,
            format!(
                "a negated `{name}` is not supported: bytes that are still to come could hold it"
            ),
        ));
    }
    let len = value.text.len();
    if len < 2 || !value.text.starts_with('"') || !value.text.ends_with('"') {
        return Err(wrong(value.at, format!("the value of `{name}` stands in quotes")));
    }
    Ok(value.part(1, len - 1))
}

fn apply<'t>(rule: &mut Rule, parts: &mut Vec<Part<'t>>, option: Written<'t>) -> Result<(), Wrong> {
    let name = option.name;
    match name.text {
        "msg" => rule.message = plain(value(option)?),
        "classtype" => rule.class = plain(value(option)?),
        "sid" => {
            rule.sid = number(option, 1, u32::MAX.into())? as u32;
            rule.sid_at = value(option)?.at;
        }
        "rev" => rule.rev = number(option, 0, u32::MAX.into())? as u32,
        "gid" => rule.gid = number(option, 0, u32::MAX.into())? as u32,
        "reference" | "metadata" | "priority" => {
            value(option)?;
        }
        "noalert" => rule.is_silent = true,
        "flow" => flow(rule, value(option)?)?,
        "content" => {
            let value = value(option)?;
            let bytes = content_bytes(quoted(value, "content")?)?;
            let kind = Kind::Content { bytes, is_nocase: false, places: [None; 4] };
            parts.push(Part { value, kind });
        }
        "pcre" => {
            let value = value(option)?;
            let kind = Kind::Expression(regex::read(value)?);
            parts.push(Part { value, kind });
        }
        // Hints that only other engines use.
        "fast_pattern" | "rawbytes" => {
            of_content(parts, name)?;
        }
        "nocase" => *of_content(parts, name)?.0 = true,
        "startswith" => {
            let (_, places, len) = of_content(parts, name)?;
            (places[OFFSET], places[DEPTH]) = (Some((0, name.at)), Some((len, name.at)));
        }
        "offset" | "depth" | "distance" | "within" => {
            let (at, least, most) = match name.text {
                "offset" => (OFFSET, 0, MOST_FAR),
                "depth" => (DEPTH, 1, MOST_FAR),
                "distance" => (DISTANCE, -MOST_BEHIND, MOST_BEHIND),
                _ => (WITHIN, 1, MOST_BEHIND),
            };
            let place = (number(option, least.into(), most.into())? as i32, name.at);
            let (_, places, _) = of_content(parts, name)?;
            if places[at].replace(place).is_some() {
                return Err(wrong(name.at, format!("`{}` is said twice", name.text)));
            }
        }
        other => {
            return Err(unsupported(name.at, format!("option `{other}` is not supported")));
        }
    }
    Ok(())
}

type OfContent<'p> = (&'p mut bool, &'p mut [Option<(i32, usize)>; 4], i32);

/// The latest content: options that modify a content belong to the one before them.
fn of_content<'p>(parts: &'p mut [Part<'_>], name: Piece<'_>) -> Result<OfContent<'p>, Wrong> {
    match parts.last_mut().map(|part| &mut part.kind) {
        Some(Kind::Content { bytes, is_nocase, places }) => {
            Ok((is_nocase, places, bytes.len() as i32))
        }
        _ => Err(wrong(name.at, format!("`{}` belongs behind a `content`", name.text))),
    }
}

fn flow(rule: &mut Rule, value: Piece<'_>) -> Result<(), Wrong> {
    for word in value.items() {
        let option = &mut rule.flow;
        match word.text {
            "to_server" | "from_client" => option.to_server = Some(true),
            "to_client" | "from_server" => option.to_server = Some(false),
            "established" => option.is_established = Some(true),
            "not_established" => option.is_established = Some(false),
            "stateless" => {}
            other => {
                return Err(unsupported(
                    word.at,
                    format!(
                        "`flow:{other}` is not supported: `to_server`, `to_client`, `established`, `not_established`, `stateless`"
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// The bytes of a content: characters, escapes, and hex between bars.
fn content_bytes(text: Piece<'_>) -> Result<Vec<u8>, Wrong> {
    let mut bytes = Vec::new();
    // Offset of the bar that began hex, and the first half of a byte.
    let (mut bar, mut half): (Option<usize>, Option<u8>) = (None, None);
    let mut is_escaped = false;
    for (at, character) in text.text.char_indices() {
        let at = text.at + at;
        if bar.is_some() {
            match (character, character.to_digit(16), half) {
                ('|', _, None) => bar = None,
                ('|', ..) => return Err(wrong(at, "a byte in hex has two digits")),
                (_, Some(digit), None) => half = Some(digit as u8),
                (_, Some(digit), Some(first)) => {
                    bytes.push(first << 4 | digit as u8);
                    half = None;
                }
                (character, None, None) if character.is_whitespace() => {}
                (_, None, _) => {
                    return Err(wrong(at, format!("`{character}` is no hex digit: |41 42|")));
                }
            }
        } else if is_escaped {
            is_escaped = false;
            if !matches!(character, '\\' | '"' | ';' | ':' | '|') {
                return Err(wrong(
                    at,
                    format!(
                        "`\\{character}` is no escape: `\\\\`, `\\\"`, `\\;`, `\\:`, or hex as |0a|"
                    ),
                ));
            }
            bytes.push(character as u8);
        } else {
            match character {
                '|' => bar = Some(at),
                '\\' => is_escaped = true,
                other => bytes.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
    if let Some(bar) = bar {
        return Err(wrong(bar, "the hex that begins here does not end: `|` is missing"));
    }
    if bytes.is_empty() {
        return Err(wrong(text.at, "a content has at least one byte"));
    }
    if bytes.len() > MOST_BYTES {
        return Err(unsupported(
            text.at,
            format!("a content of {} bytes is not supported: {MOST_BYTES} at most", bytes.len()),
        ));
    }
    Ok(bytes)
}

/// Adds a part to the rule's chains. `before` is the part in front of it.
fn chain(chains: &mut Vec<Vec<Step>>, part: &Part<'_>, before: Option<&Kind>) -> Result<(), Wrong> {
    let (bytes, is_nocase, places) = match &part.kind {
        Kind::Expression(step @ Step::Expression(_)) => {
            let (Some(chain), Some(Kind::Content { .. })) = (chains.last_mut(), before) else {
                return Err(unsupported(
                    part.value.at,
                    "a `pcre` with the flag `R` is supported right behind a `content` only, whose match it follows",
                ));
            };
            chain.push(step.clone());
            return Ok(());
        }
        Kind::Expression(step) => {
            chains.push(vec![step.clone()]);
            return Ok(());
        }
        Kind::Content { bytes, is_nocase, places } => (bytes, *is_nocase, places),
    };
    let len = bytes.len() as i32;
    let [offset, depth, distance, within] = *places;
    let too_short = |most: Option<(i32, usize)>| match most {
        Some((most, at)) if most < len => Err(wrong(
            at,
            format!("{most} bytes have no room for the content's {len}: it could never match"),
        )),
        _ => Ok(()),
    };
    too_short(depth)?;
    too_short(within)?;
    if let (Some((_, at)), Some(_)) = (distance.or(within), offset.or(depth)) {
        return Err(wrong(
            at,
            "a place is either absolute (`offset`, `depth`) or relative (`distance`, `within`)",
        ));
    }
    let is_relative = distance.or(within).is_some();
    let (mut least, mut most) = match is_relative {
        true => (distance, within),
        false => (offset, depth),
    };
    match before {
        // Without a match before, the base is the start.
        None => {
            if let Some((from, _)) = least.as_mut().filter(|(from, _)| *from < 0) {
                if let Some((most, at)) = &mut most {
                    *most += *from;
                    if *most < len {
                        return Err(wrong(*at, "the content would lie before the start"));
                    }
                }
                *from = 0;
            }
        }
        Some(_) if !is_relative => {}
        Some(kind) => {
            if let Some((from, at)) = least.filter(|(from, _)| *from + len <= 0) {
                return Err(unsupported(
                    at,
                    format!(
                        "`distance:{from}` is not supported for a content of {len} bytes: it could lie before the match that it follows, and those bytes have passed"
                    ),
                ));
            }
            if let (Kind::Expression(_), Some((_, at))) = (kind, within) {
                return Err(unsupported(
                    at,
                    "`within` behind a `pcre` is not supported: only the expression's first end is known",
                ));
            }
        }
    }
    let content = Content {
        bytes: bytes.clone(),
        is_nocase,
        least: least.map_or(0, |(least, _)| least),
        most: most.map(|(most, _)| most),
    };
    match chains.last_mut() {
        Some(chain) if is_relative => chain.push(Step::Content(content)),
        _ => chains.push(vec![Step::Content(content)]),
    }
    Ok(())
}
