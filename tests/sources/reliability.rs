//! Checks that the pages name tests that exist, that each failure on the page on reliability names one or a reason, and that each
//! mutant can still be applied.

use std::{path::Path, process::Command};

use crate::files::{below, read, read_at, root};

/// Returns the words in backticks, without blocks of code.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|quoted| !quoted.contains(char::is_whitespace))
}

/// Returns the tests that a text names, as `file::test`. Paths of types have capital letters.
fn named(text: &str) -> Vec<(&str, &str)> {
    let pairs = quoted(text).filter_map(|name| name.rsplit_once("::"));
    let is_test = |(file, test): &(&str, &str)| {
        let is_type = |part: &str| part.contains(char::is_uppercase);
        *file != "lock_core" && !is_type(file) && !is_type(test)
    };
    pairs.filter(is_test).collect()
}

/// All files with tests: their paths in the workspace, and their texts.
struct Tests(Vec<(String, String)>);

impl Tests {
    fn read() -> Self {
        let folders = ["tests", "examples/tests", "lock-core/src"];
        let files = folders
            .iter()
            .flat_map(|folder| below(&root().join(folder), "rs"));
        let files = files.map(|path| {
            let relative = path.strip_prefix(root()).expect("below it");
            (relative.to_str().expect("text").to_owned(), read_at(&path))
        });
        Self(files.collect())
    }

    /// Returns whether a file contains a test. Its name is the end of its path, in which `core/` stands for the sources of lock-core,
    /// and `examples/` for the tests of the examples.
    fn contain(&self, file: &str, test: &str) -> bool {
        let path = match file.split_once('/') {
            Some(("core", rest)) => format!("lock-core/src/{rest}.rs"),
            Some(("examples", rest)) => format!("examples/tests/{rest}.rs"),
            _ => format!("/{file}.rs"),
        };
        let function = format!("fn {test}(");
        let mut files = self.0.iter();
        files.any(|(other, text)| other.ends_with(&path) && text.contains(&function))
    }
}

#[test]
fn the_pages_name_tests_that_exist() {
    let (tests, mut count) = (Tests::read(), 0);
    for page in ["docs/reliability.md", "docs/leader.md"] {
        let text = read(page);
        for (file, test) in named(&text) {
            count += 1;
            assert!(tests.contain(file, test), "{page}: no test {file}::{test}");
        }
        for path in quoted(&text).filter(|name| name.starts_with("tests/")) {
            assert!(root().join(path).exists(), "{page}: no {path}");
        }
    }
    assert!(count > 100, "{count} tests");
}

#[test]
fn every_failure_has_a_test_or_a_reason_for_having_none() {
    let page = read("docs/reliability.md");
    let (_, failures) = page
        .split_once("## What happens in a failure")
        .expect("a section");
    let (failures, _) = failures.split_once("\n## ").expect("a section after it");
    let failures: Vec<_> = failures.split("\n- ").skip(1).collect();
    assert!(failures.len() > 50, "{} failures", failures.len());
    for failure in failures {
        let has_a_reason = failure.contains("(not tested: ");
        assert!(
            has_a_reason || !named(failure).is_empty(),
            "no test: {failure}"
        );
    }
}

#[test]
fn every_claim_has_evidence() {
    let page = read("docs/reliability.md");
    let (_, claims) = page.split_once("\n## Evidence").expect("a section");
    let claims = claims.split("\n## ").next().expect("a section");
    let claims: Vec<_> = claims
        .lines()
        .filter(|line| line.starts_with("| "))
        .collect();
    assert!(claims.len() > 15, "{} claims", claims.len());
    // The first line has the headings.
    for claim in claims
        .iter()
        .skip(1)
        .filter(|line| !line.starts_with("| ---"))
    {
        let is_measured = claim.contains("cargo bench");
        let has_a_path = quoted(claim).any(|name| name.starts_with("tests/"));
        assert!(
            is_measured || has_a_path || !named(claim).is_empty(),
            "{claim}"
        );
    }
}

/// Returns whether a test exists that is named as for `cargo test`.
fn exists(test: &str) -> bool {
    let (options, name) = test.rsplit_once(' ').expect("a test");
    let folder = match options.rsplit_once("--test ") {
        Some((_, program)) => Path::new(env!("CARGO_MANIFEST_DIR")).join(program),
        None => root().join("lock-core/src"),
    };
    let name = name.split("::").filter(|part| !part.is_empty()).last();
    let mut files = below(&folder, "rs").into_iter();
    name.is_some_and(|name| {
        files.any(|file| file.ends_with(format!("{name}.rs")) || read_at(&file).contains(name))
    })
}

/// Running all mutants takes an hour (`tests/mutants/run`). Checking that each patch fits, and names an existing test, takes a moment.
#[test]
fn every_mutant_can_be_applied_and_names_tests_that_exist() {
    let patches = below(&root().join("tests/mutants"), "patch");
    assert!(patches.len() > 30, "{} patches", patches.len());
    for path in patches {
        let text = read_at(&path);
        let header = text.lines().skip(1);
        let caught = header.map_while(|line| line.strip_prefix("# caught by: "));
        let caught: Vec<_> = caught.collect();
        assert!(!caught.is_empty(), "{} names no test", path.display());
        for test in caught {
            assert!(test.starts_with("-p lock-"), "{}: {test}", path.display());
            assert!(exists(test), "{}: no {test}", path.display());
        }
        let mut program = Command::new("patch");
        program.args(["--dry-run", "--strip=1", "--fuzz=0", "--quiet", "--input"]);
        let output = program.arg(&path).current_dir(root()).output();
        let output = output.expect("patch starts");
        assert!(output.status.success(), "{}: {output:?}", path.display());
    }
}
