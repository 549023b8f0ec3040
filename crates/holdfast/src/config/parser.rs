//! The parser's errors, in the operator's words and at the operator's place.

use super::mistake::{Mistake, listed, suggestion};
use super::source::Source;
use serde_saphyr::Error;

/// Numbers of the file's types, by the names that the parser gives them.
const RANGES: &[(&str, u64)] =
    &[("u8", 0xff), ("u16", 0xffff), ("u32", 0xffff_ffff), ("u64", u64::MAX), ("usize", u64::MAX)];

pub(super) fn mistake(error: &Error, source: &Source) -> Mistake {
    let error = innermost(error);
    let Some(location) = error.location() else {
        return Mistake::of_file(source.file(), without_location(&error.to_string()));
    };
    let (line, column) = (location.line() as usize, location.column() as usize);
    let here = source.place_at(line, column);
    match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            let first = field.split_whitespace().next().unwrap_or_default();
            let hint = if first != field && expected.contains(&first) {
                format!("; is a `:` missing after `{first}`?")
            } else {
                suggestion(field, expected.iter().copied())
            };
            let known = listed(expected.iter().copied());
            here.mistake(format!("there is no key `{}` here: {known}{hint}", field.escape_debug()))
        }
        Error::SerdeMissingField { field, .. } => match source.owner_of(line, column) {
            Some((name, spot)) => spot.mistake(format!("`{name}` has no `{field}`")),
            None => source.root().mistake(format!("the file has no `{field}`")),
        },
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            here.mistake(format!("the key `{}` comes twice", key.escape_debug()))
        }
        Error::MultipleDocuments { .. } => {
            here.mistake("a second document begins here: a configuration is one")
        }
        Error::Eof { .. } => Mistake::of_file(source.file(), "the file is empty"),
        Error::Unexpected { expected, .. } if expected.starts_with("sequence") => {
            here.mistake("a list is expected here, like `[ … ]`")
        }
        Error::Unexpected { expected, .. } if expected.starts_with("mapping") => {
            here.mistake("keys with values are expected here, like `key: value`")
        }
        Error::NullIntoString { .. } => {
            here.mistake("a text is expected here, and there is nothing")
        }
        Error::InvalidScalar { ty, .. } => match RANGES.iter().find(|(name, _)| name == ty) {
            Some((_, most)) => {
                let word = here.scalar().unwrap_or_default();
                here.mistake(format!(
                    "`{}` is not a whole number from 0 to {most}",
                    word.escape_debug()
                ))
            }
            None => here.mistake(without_location(&error.to_string())),
        },
        Error::SerdeInvalidType { unexpected, expected, .. }
        | Error::SerdeInvalidValue { unexpected, expected, .. } => {
            // A value announced by a map's key has the key's place.
            let value = here.value_of_key();
            let spot = value.as_ref().unwrap_or(&here);
            spot.mistake(format!("{expected} is expected here, not {}", unexpected.escape_debug()))
        }
        _ => here.mistake(without_location(&error.to_string())),
    }
}

/// Unwraps the parser's error: a snippet, and the alias that it came by.
fn innermost(mut error: &Error) -> &Error {
    while let Error::AliasError { error: inner, .. } | Error::WithSnippet { error: inner, .. } =
        error
    {
        error = inner;
    }
    error
}

/// The first line of a message, without the place that is shown anyway.
fn without_location(message: &str) -> String {
    let first = message.lines().next().unwrap_or(message);
    first.split(" at line ").next().unwrap_or(first).trim_end_matches(':').to_owned()
}
