//! `holdfast explain`: what a word in the output means and what to do about it.

use crate::exit::{self, Failure};
use holdfast_wire::DropReason;

const WORDS: &[(&str, &str)] = &[
    (
        "protected",
        "yes: every flow whose chain promises it would survive the failure of one runtime now. re-synchronising: some flow has no replica yet, wait before you stop anything. no: there is nowhere to put replicas, or no chain promises anything.",
    ),
    ("exit-1", "A negative answer: the command did what was asked, and the answer is no."),
    ("exit-2", "The command line is wrong."),
    ("exit-69", "Something that is needed is not there: a device, a running box, a program."),
    ("exit-75", "It took too long."),
    ("exit-77", "A privilege is missing: run as root, or give the binary CAP_NET_RAW and CAP_NET_ADMIN."),
    ("exit-78", "The configuration is wrong; the message names the line."),
];

/// The explanation of a word.
///
/// # Errors
/// If there is none; with a suggestion.
pub fn explain(word: &str) -> Result<String, Failure> {
    if let Some(reason) = DropReason::from_name(word) {
        return Ok(format!("{word} (a reason to drop a packet): {}", reason.explain()));
    }
    if let Some((_, text)) = WORDS.iter().find(|(known, _)| *known == word) {
        return Ok(format!("{word}: {text}"));
    }
    let near = all().into_iter().min_by_key(|(known, _)| strsim::damerau_levenshtein(word, known));
    let hint = near.map_or(String::new(), |(known, _)| format!("; did you mean `{known}`?"));
    Err(Failure::new(exit::NEGATIVE, format!("there is nothing to explain about `{word}`{hint}")))
}

/// All words with their explanations.
pub fn all() -> Vec<(&'static str, &'static str)> {
    let reasons = DropReason::ALL.iter().map(|reason| (reason.name(), reason.explain()));
    reasons.chain(WORDS.iter().copied()).collect()
}
