//! Files whose contents are part of a configuration: those that functions name
//! (`rule_files` of `ips`).
//!
//! Theory of operation. Such a file may change while a box runs, and differ between
//! hosts, but every process of a box must see the same content. [`attach`] reads each
//! file once, where the configuration itself is read for the operator (`run`, `check`,
//! `apply`), and appends all contents to the configuration's text, as a comment in its
//! last line. This text is what processes, a joining host and `apply` are given;
//! [`resolve`] puts the contents in place of the paths. Contents that came with the text
//! are never read again.

use super::mistake::Mistake;
use super::raw::Config;
use super::source::{Attached, Source, Spot};
use crate::files;
use holdfast_control::MAX_FILE;
use holdfast_functions::catalog;
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;

/// The beginning of the last line of a text with contents; the rest is JSON.
const MARK: &str = "#holdfast-files: ";

/// The text without contents, and the contents.
pub(super) fn split(text: &str) -> (&str, Attached) {
    let begin = text.trim_end_matches('\n').rfind('\n').map_or(0, |at| at + 1);
    let contents = text[begin..].strip_prefix(MARK);
    // Any other comment is the operator's own.
    match contents.and_then(|contents| serde_json::from_str(contents).ok()) {
        Some(attached) => (&text[..begin], attached),
        None => (text, Attached::new()),
    }
}

/// The text with the contents of all files that it names.
///
/// # Errors
/// The first file that cannot be read, at the place that names it, or a mistake for which
/// the text itself cannot be read.
pub fn attach(file: &str, text: &str) -> Result<String, Mistake> {
    let (source, mut raw) = super::parse(file, text)?;
    let mut attached = source.attached().clone();
    // The line of contents takes no more room than each content in a line of its own.
    let mut size = text.len() + MARK.len() + 2;
    each(&mut raw, source.root(), |value, spot| {
        let Some(path) = value.as_str() else { return Ok(()) };
        if !attached.contains_key(path) {
            let content = content(&spot.beside(path))
                .map_err(|message| spot.mistake(format!("{path}: {message}")))?;
            size += json!({ path: content }).to_string().len();
            attached.insert(path.to_owned(), content);
        }
        if size > MAX_FILE {
            return Err(spot.mistake(format!(
                "{path}: the configuration and the files up to this one are longer than {} MiB together",
                MAX_FILE >> 20
            )));
        }
        Ok(())
    })?;
    if attached.is_empty() {
        return Ok(text.to_owned());
    }
    let written = source.text();
    let end = if written.ends_with('\n') { "" } else { "\n" };
    Ok(format!("{written}{end}{MARK}{}", json!(attached)))
}

/// The text of a file.
fn content(path: &Path) -> Result<String, String> {
    let file = files::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > MAX_FILE {
        return Err(format!("longer than {} MiB", MAX_FILE >> 20));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("line {line} is not UTF-8")
    })?;
    Ok(text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned))
}

/// Puts the contents in place of the paths.
///
/// # Errors
/// A content that did not come with the text.
pub(super) fn resolve(raw: &mut Config, source: &Source) -> Result<(), Mistake> {
    each(raw, source.root(), |value, spot| {
        let Some(path) = value.as_str() else { return Ok(()) };
        let Some(text) = source.attached().get(path) else {
            return Err(spot.mistake(format!(
                "the content of {path} did not come with this configuration: `holdfast apply` sends it along"
            )));
        };
        *value = json!({ "path": path, "text": text });
        Ok(())
    })
}

/// Visits every path of a file that is to be attached.
fn each(
    raw: &mut Config,
    root: Spot<'_>,
    mut visit: impl FnMut(&mut Value, Spot<'_>) -> Result<(), Mistake>,
) -> Result<(), Mistake> {
    for (name, chain) in &mut raw.chains {
        let spot = root.key("chains").key(name).key("functions");
        for (at, function) in chain.functions.iter_mut().enumerate() {
            for (name, value) in &mut function.entries {
                for key in catalog::files(name) {
                    let spot = spot.index(at).key(name).key(key);
                    let paths = value.get_mut(*key).and_then(Value::as_array_mut);
                    for (at, path) in paths.into_iter().flatten().enumerate() {
                        visit(path, spot.index(at))?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// The list of a [resolved](resolve) key in words: paths, each with a digest of its
/// content.
pub(super) fn words(value: &Value) -> String {
    let word = |file: &Value| {
        let part = |key: &str| file.get(key).and_then(Value::as_str);
        match (part("path"), part("text")) {
            (Some(path), Some(text)) => {
                format!("{path} ({:016x})", holdfast_wire::fnv1a(text.as_bytes()))
            }
            _ => file.to_string(),
        }
    };
    value.as_array().into_iter().flatten().map(word).collect::<Vec<_>>().join(", ")
}
