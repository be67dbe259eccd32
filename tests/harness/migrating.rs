//! The table of key prefixes in docs/migrating.md.

const PAGE: &str = include_str!("../../docs/migrating.md");

/// Returns the key prefix in the row of a library: the second column begins with it, in quotes.
pub fn key_prefix_in_docs(library: &str) -> &'static str {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| "));
    let mut columns = rows.filter_map(|row| row.split_once(" | "));
    let found = columns.find(|(first, _)| *first == library);
    let (_, rest) = found.unwrap_or_else(|| panic!("docs/migrating.md has no row for {library}"));
    let prefix = rest
        .strip_prefix("`\"")
        .and_then(|rest| rest.split_once('"'));
    let (prefix, _) =
        prefix.unwrap_or_else(|| panic!("no prefix in the row for {library}: {rest}"));
    prefix
}
