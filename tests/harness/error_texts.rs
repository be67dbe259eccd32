//! The comparison of error texts with expected ones, for tables of texts.

use std::error::Error;

/// Returns an error with its sources, as a program prints it.
pub fn text(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", text(source)),
        None => error.to_string(),
    }
}

/// Returns the [`text`] of a refusal.
pub fn refused<T, E: Error>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => "(no error)".to_owned(),
        Err(error) => text(&error),
    }
}

/// Compares all rows: a situation, the text that it provoked, and the expected text.
#[track_caller]
pub fn compare(rows: &[(&str, String, &str)]) {
    let wrong: Vec<_> = rows
        .iter()
        .filter(|(_, provoked, wanted)| provoked != wanted)
        .map(|(situation, provoked, wanted)| {
            format!("{situation}\n  provoked: {provoked}\n  wanted:   {wanted}")
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
