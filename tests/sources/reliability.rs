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
    let page = read("docs/leader.md");
    let rows = rows(&page);
    assert!(rows.len() > 8, "{}", rows.len());
    for row in rows.iter().skip(1) {
        let [failure, _, _, shown] = &row[..] else {
            panic!("not four cells: {row:?}");
        };
        let tests = named(shown);
        assert!(!tests.is_empty(), "{failure}: no test");
        for (file, test) in tests {
            let is_there = read(&file_of(file)).contains(&format!("fn {test}("));
            assert!(is_there, "{failure}: no test {file}::{test}");
        }
    }
}

#[test]
fn every_claim_is_shown_by_what_exists() {
    let page = read("docs/reliability.md");
    let (_, shown) = page.split_once("## What shows it").expect("a section");
    let (shown, _) = shown.split_once("\n## ").expect("not the last one");
    let rows = rows(shown);
    assert!(rows.len() > 15, "{}", rows.len());
    for row in rows.iter().skip(1) {
        let [claim, shown] = &row[..] else {
            panic!("not two cells: {row:?}");
        };
        for (file, test) in named(shown) {
            let is_there = read(&file_of(file)).contains(&format!("fn {test}("));
            assert!(is_there, "{claim}: no test {file}::{test}");
        }
        let quoted = shown.split('`').skip(1).step_by(2);
        let paths: Vec<_> = quoted.filter(|name| name.starts_with("tests/")).collect();
        for path in &paths {
            let path = root().join(path);
            assert!(path.exists(), "{claim}: no {}", path.display());
        }
        let is_bench = shown.contains("cargo bench");
        assert!(
            is_bench || !paths.is_empty() || !named(shown).is_empty(),
            "{claim}: by nothing"
        );
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

#[test]
fn a_name_is_found_where_it_stands() {
    assert_eq!(
        named("`a::b`, `core/c/d::e` and `f`"),
        [("a", "b"), ("core/c/d", "e")]
    );
    assert_eq!(file_of("core/c/d"), "lock-core/src/c/d.rs");
    assert_eq!(file_of("examples/x"), "examples/tests/x.rs");
    assert_eq!(file_of("faults"), "tests/one_server/faults.rs");
    let page = "| situation | b | c |\n| --- | --- | --- |\n| x | y | `a::b` |\n";
    assert_eq!(rows(page), [["x", "y", "`a::b`"]]);
    let list = "text\n- **x.** y\n  (`a::b`).\n- z\n\ntext";
    assert_eq!(items(list), ["- **x.** y (`a::b`).", "- z"]);
}
