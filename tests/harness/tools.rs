//! The servers and libraries that the distribution does not have, fetched by tests/run.

use std::path::Path;

/// Returns the path of something below `.tools`; `what` is its name for people.
#[track_caller]
pub fn tool(path: &str, what: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../.tools")
        .join(path);
    assert!(
        path.exists(),
        "{what} is missing: run tests/run, which fetches it"
    );
    path.to_str().expect("a path that is text").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "Redis 99 is missing: run tests/run, which fetches it")]
    fn a_missing_tool_is_one_line_that_says_what_to_do() {
        tool("redis-99/redis-server", "Redis 99");
    }
}
