//! Errors that point at the user's own words, and say what to write instead.

use proc_macro2::Span;
use syn::{Error, Result};

pub(crate) fn refuse<T>(at: Span, reason: impl std::fmt::Display) -> Result<T> {
    Err(Error::new(at, reason))
}

/// Returns all values, or one error with all mistakes.
pub(crate) fn all<T>(results: impl Iterator<Item = Result<T>>) -> Result<Vec<T>> {
    let (mut values, mut mistakes) = (Vec::new(), None::<Error>);
    for result in results {
        match (result, &mut mistakes) {
            (Ok(value), _) => values.push(value),
            (Err(error), Some(mistakes)) => mistakes.combine(error),
            (Err(error), None) => mistakes = Some(error),
        }
    }
    mistakes.map_or(Ok(values), Err)
}

/// Returns the candidate that is closest to a word, if any is close at all.
pub(crate) fn nearest<'a>(word: &str, candidates: &'a [String]) -> Option<&'a str> {
    let close = |edits| {
        let mut candidates = candidates.iter().map(String::as_str);
        candidates.find(|one| within(edits, word.as_bytes(), one.as_bytes()))
    };
    (0..=word.len().max(3) / 3).find_map(close)
}

/// Returns `true` if at most this many edits turn one word into the other. A swap of two neighbouring letters is one edit.
fn within(edits: usize, one: &[u8], other: &[u8]) -> bool {
    let Some(less) = edits.checked_sub(1) else {
        return one == other;
    };
    match (one, other) {
        ([x, one @ ..], [y, other @ ..]) if x == y => within(edits, one, other),
        ([x, y, one @ ..], [v, w, other @ ..]) if (x, y) == (w, v) => within(less, one, other),
        // A letter was replaced, lost or added.
        ([_, tail @ ..], [_, end @ ..]) => {
            within(less, tail, end) || within(less, tail, other) || within(less, one, end)
        }
        _ => one.len().max(other.len()) <= edits,
    }
}
