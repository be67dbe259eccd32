//! Bounds the length of the scripts that run on a server, and of their functions.

use std::path::PathBuf;

use lock_tests::scripts::ALL;

use crate::files::{below, read_at, root};

/// The most lines of code in a function, and in a file outside of its functions.
const LINES: usize = 60;

/// The most bytes of each script, comments included. It is sent to each server once, and compiled there.
const BYTES: [(&str, usize); 10] = [
    ("acquire", 42_000),
    ("release", 34_000),
    ("release_uncontended", 900),
    ("force_release", 27_000),
    ("renew", 30_500),
    ("inspect", 18_000),
    ("trial", 1_800),
    ("forget", 40),
    ("propose", 4_000),
    ("mark", 2_500),
];

fn files() -> Vec<PathBuf> {
    let folder = root().join("lock-core/src/backend/redis/protocol/scripts");
    let all = below(&folder, "lua");
    assert!(all.len() > 15, "{all:?}");
    all
}

fn is_code(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with("--")
}

#[test]
#[expect(
    clippy::print_stdout,
    reason = "the lengths are read when a script is changed"
)]
fn no_script_exceeds_its_bound_of_bytes() {
    for ((name, text), (bounded, most)) in ALL.into_iter().zip(BYTES) {
        assert_eq!(name, bounded);
        println!("{name}: {} bytes", text.len());
        assert!(text.len() <= most, "{name} has {} bytes", text.len());
    }
}

/// A function begins and ends at the margin of its file.
#[test]
fn no_function_exceeds_its_bound_of_lines() {
    for path in files() {
        let text = read_at(&path);
        let (mut main, mut function) = (0, None);
        for line in text.lines() {
            if line.starts_with("local function ") {
                function = Some((line, 0));
            }
            let lines = match &mut function {
                Some((_, lines)) => lines,
                None => &mut main,
            };
            *lines += usize::from(is_code(line));
            assert!(*lines <= LINES, "{}: {function:?}", path.display());
            if line == "end" {
                function = None;
            }
        }
    }
}
