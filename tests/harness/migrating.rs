//! The table of docs/migrating.md, which says what each other library needs.

const PAGE: &str = include_str!("../../docs/migrating.md");

/// Returns the key prefix that the table has in the row of a library, whose first column is `library`.
///
/// # Panics
///
/// If there is no such row, or if its second column does not begin with a prefix in quotes.
#[must_use]
pub fn documented_prefix(library: &str) -> &'static str {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| "));
    let mut columns = rows.filter_map(|row| row.split_once(" | "));
    let found = columns.find(|(first, _)| *first == library);
    let (_, rest) = found.unwrap_or_else(|| panic!("docs/migrating.md has no row of {library}"));
    let prefix = rest
        .strip_prefix("`\"")
        .and_then(|rest| rest.split_once('"'));
    let (prefix, _) = prefix.unwrap_or_else(|| panic!("no prefix of {library}: {rest}"));
    prefix
}
