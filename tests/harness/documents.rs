//! The documentation: its examples, which are compiled and run as they are printed, and the parts of it that tests read.

#[cfg(doctest)]
mod examples {
    #[doc = include_str!("../../README.md")]
    mod readme {}

    #[doc = include_str!("../../docs/reliability.md")]
    mod reliability {}

    #[doc = include_str!("../../docs/web.md")]
    mod web {}

    #[doc = include_str!("../../docs/operations.md")]
    mod operations {}

    #[doc = include_str!("../../docs/migrating.md")]
    mod migrating {}

    #[doc = include_str!("../../docs/recipes.md")]
    mod recipes {}

    #[doc = include_str!("../../docs/leader.md")]
    mod leader {}

    #[doc = include_str!("../../lock-macros/docs/distributed_lock.md")]
    mod distributed_lock {}

    #[doc = include_str!("../../lock-macros/docs/run_once.md")]
    mod run_once {}

    #[doc = include_str!("../../lock-macros/docs/key.md")]
    mod key {}
}

/// Returns the key prefix that `docs/migrating.md` gives for a library: the second column of its row begins with it, in quotes.
pub fn key_prefix_in_docs(library: &str) -> &'static str {
    let page = include_str!("../../docs/migrating.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
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

/// Returns the rights of a user in the line of `docs/operations.md` that creates the user.
pub fn rights_in_docs(user: &str) -> Vec<String> {
    let start = format!("ACL SETUSER {user} on >password resetchannels ");
    let mut lines = include_str!("../../docs/operations.md").lines();
    let line = lines.find_map(|line| line.strip_prefix(&start));
    let rights = line.unwrap_or_else(|| panic!("docs/operations.md has no line for {user}"));
    rights.split(' ').map(str::to_owned).collect()
}
