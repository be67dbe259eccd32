//! Checks the programs that run on a server: their length, that of their functions, and that none makes the name of a key.

use std::{fs, path::PathBuf};

use lock_tests::scripts::ALL;

use crate::files::{below, has_extension, root};

/// The most lines of a function, and of a file outside of its functions.
const LINES: usize = 60;

/// The most bytes of each program, comments included. It is sent once to each server, and is compiled there.
const BYTES: [(&str, usize); 10] = [
    ("acquire", 42_000),
    ("release", 33_000),
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
    let mut all = below(&root().join("lock-core/src/backend/redis/protocol/scripts"));
    all.retain(|path| has_extension(path, "lua"));
    assert!(all.len() > 15, "{all:?}");
    all
}

fn is_code(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with("--")
}

#[test]
#[expect(clippy::print_stdout, reason = "a length is of interest by itself")]
fn a_program_has_so_many_bytes() {
    for ((name, text), (bounded, most)) in ALL.into_iter().zip(BYTES) {
        assert_eq!(name, bounded);
        println!("{name}: {} bytes", text.len());
        assert!(text.len() <= most, "{name} has {} bytes", text.len());
    }
}

/// Functions stand at the margin of a file, and so do their ends.
#[test]
fn no_function_is_longer_than_a_page() {
    for path in files() {
        let text = fs::read_to_string(&path).expect("a text");
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

/// Some servers refuse a key that the call does not declare.
#[test]
fn no_program_makes_the_name_of_a_key() {
    let names = "lock clock queue beats holders permits result asked KEYS[1] KEYS[2] KEYS[3] KEYS[4] KEYS[5] KEYS[6] KEYS[7] KEYS[8]";
    let pieces = "waiters beats holders seats result asked clock";
    for path in files() {
        let text = fs::read_to_string(&path).expect("a text");
        for line in text.lines().filter(|line| is_code(line)) {
            let is_joined = |name: &str| {
                let with = |operator: &str| line.contains(operator);
                with(&format!("{name} .. ")) || with(&format!(" .. {name}"))
            };
            let is_cut = line.contains("sub(KEYS") || line.contains("sub(queue");
            let is_piece = |piece: &str| line.contains(&format!("'{piece}:"));
            let makes_one =
                is_cut || names.split(' ').any(is_joined) || pieces.split(' ').any(is_piece);
            assert!(!makes_one, "{}: {line}", path.display());
        }
    }
}
