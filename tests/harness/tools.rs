//! Servers and libraries that the distribution lacks, which `tests/run --all` fetches.

use std::path::Path;

/// Returns the path of a file below `.tools`. `what` is its name for people.
#[track_caller]
pub fn tool(path: &str, what: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../.tools")
        .join(path);
    assert!(
        path.exists(),
        "{what} is missing: run `tests/run --all`, which fetches it"
    );
    path.to_str().expect("a path that is text").to_owned()
}
