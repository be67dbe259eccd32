//! Checks that the page on reliability names tests that exist, and that each failure and claim has a test or a reason. Also
//! checks that each mutant can still be applied.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::files::{below, has_extension, root};

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The cells of each row of a table, without the heads.
fn rows(page: &str) -> Vec<Vec<String>> {
    page.lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| ---"))
        .map(|line| {
            let cells = line.trim_matches('|').split(" | ");
            cells.map(|cell| cell.trim().to_owned()).collect()
        })
        .filter(|cells: &Vec<String>| cells.first().is_none_or(|cell| cell != "situation"))
        .collect()
}

/// The tests that a cell names: `file::test`.
fn named(cell: &str) -> Vec<(&str, &str)> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.filter_map(|name| name.rsplit_once("::")).collect()
}

fn file_of(name: &str) -> String {
    match name.split_once('/') {
        Some(("examples", file)) => format!("examples/tests/{file}.rs"),
        Some(("core", file)) => format!("lock-core/src/{file}.rs"),
        _ => format!("tests/{}/{name}.rs", room_of(name)),
    }
}

/// The folder of the manifest's tests that has this file. The simulation is one test, and its files are parts of it.
fn room_of(file: &str) -> String {
    let manifest = read("tests/Cargo.toml");
    let tests = manifest.split("[[test]]").skip(1);
    let paths = tests.filter_map(|test| test.split("path = \"").nth(1)?.split('/').next());
    let folders: BTreeSet<_> = paths.collect();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let has_it = |folder: &&str| tests.join(folder).join(file).with_extension("rs").exists();
    let rooms = folders.into_iter().filter(|room| *room != "simulation");
    let rooms: Vec<_> = rooms.filter(has_it).collect();
    let [room] = rooms[..] else {
        panic!("{file} is to be in one room, and is in {rooms:?}");
    };
    room.to_owned()
}

/// Checks that each test in the last column of a table exists. Returns the rows, without the heads.
fn checked(part: &str, columns: usize, at_least: usize) -> Vec<Vec<String>> {
    let rows = rows(part);
    assert!(rows.len() > at_least, "{}", rows.len());
    for row in &rows {
        assert_eq!(row.len(), columns, "{row:?}");
        for (file, test) in named(&row[columns - 1]) {
            let is_there = read(&file_of(file)).contains(&format!("fn {test}("));
            assert!(is_there, "{}: no test {file}::{test}", row[0]);
        }
    }
    rows
}

/// The part of a page between two texts.
fn part<'a>(page: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = page.split_once(from).expect("a section");
    rest.split_once(to).expect("not the last one").0
}

/// The paragraphs of a list, each in one line.
fn items(section: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    for line in section.lines() {
        if line.starts_with("- ") {
            items.push(line.to_owned());
        } else if let (Some(text), Some(item)) = (line.strip_prefix("  "), items.last_mut()) {
            item.push(' ');
            item.push_str(text);
        }
    }
    items
}

#[test]
fn every_failure_names_a_test_that_exists_or_a_reason() {
    let page = read("docs/reliability.md");
    let (_, failures) = page
        .split_once("## What happens in a failure")
        .expect("a section");
    let (failures, _) = failures.split_once("\n## ").expect("not the last one");
    let failures = items(failures);
    assert!(failures.len() > 50, "{}", failures.len());
    for failure in failures {
        let tests = named(&failure);
        let has_a_reason = failure.contains("(not tested: ");
        assert!(has_a_reason || !tests.is_empty(), "no test: {failure}");
        for (file, test) in tests {
            let is_there = read(&file_of(file)).contains(&format!("fn {test}("));
            assert!(is_there, "no test {file}::{test}: {failure}");
        }
    }
}

#[test]
fn every_failure_of_a_leader_is_shown_by_a_test_that_exists() {
    for row in checked(&read("docs/leader.md"), 4, 8).iter().skip(1) {
        assert!(!named(&row[3]).is_empty(), "{}: no test", row[0]);
    }
}

#[test]
fn every_claim_is_shown_by_what_exists() {
    let page = read("docs/reliability.md");
    let rows = checked(part(&page, "## What shows it", "\n## "), 2, 15);
    for row in rows.iter().skip(1) {
        let (claim, shown) = (&row[0], &row[1]);
        let quoted = shown.split('`').skip(1).step_by(2);
        let paths: Vec<_> = quoted.filter(|name| name.starts_with("tests/")).collect();
        for path in &paths {
            assert!(root().join(path).exists(), "{claim}: no {path}");
        }
        let is_shown =
            shown.contains("cargo bench") || !paths.is_empty() || !named(shown).is_empty();
        assert!(is_shown, "{claim}: by nothing");
    }
}

/// Whether a test that is named as for `cargo test` exists. The tests of lock-core itself are not known here.
fn is_there(test: &str) -> bool {
    let Some(test) = test.strip_prefix("-p lock-tests --test ") else {
        return true;
    };
    let Some((room, name)) = test.split_once(' ') else {
        return true;
    };
    let name = name.split("::").filter(|part| !part.is_empty()).last();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(room);
    name.is_some_and(|name| is_named_in(&folder, name))
}

/// Whether a name is in a file of a folder, or of one below it.
fn is_named_in(folder: &Path, name: &str) -> bool {
    let contains = |path: &PathBuf| fs::read_to_string(path).expect("text").contains(name);
    below(folder).iter().any(contains)
}

/// To check that a test notices each mutant takes an hour (`tests/mutants/run`). To check that each mutant can still be
/// applied where it was made takes a moment.
#[test]
fn every_mutant_can_be_applied_and_names_what_catches_it() {
    let mut count = 0;
    let mut patches = below(&root().join("tests/mutants"));
    patches.retain(|path| has_extension(path, "patch"));
    for path in patches {
        count += 1;
        let text = fs::read_to_string(&path).expect("text");
        let header = text.lines().skip(1);
        let caught = header.map_while(|line| line.strip_prefix("# caught by: "));
        let caught: Vec<_> = caught.collect();
        assert!(!caught.is_empty(), "{}", path.display());
        for test in caught {
            assert!(test.starts_with("-p lock-"), "{}", path.display());
            assert!(is_there(test), "{}: no {test}", path.display());
        }
        let mut program = Command::new("patch");
        program.args(["--dry-run", "--strip=1", "--fuzz=0", "--quiet", "--input"]);
        let output = program
            .arg(&path)
            .current_dir(root())
            .output()
            .expect("patch starts");
        assert!(output.status.success(), "{}: {output:?}", path.display());
    }
    assert!(count > 30, "{count}");
}
