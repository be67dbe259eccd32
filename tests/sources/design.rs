//! The names in `docs/design.md`: each file exists, and each function is in a file that the same entry names.

use std::{collections::BTreeMap, fs, path::Path};

use crate::names::files;

/// The parts of the page that lead a reader through the sources.
const FIRST: &str = "## Where things are";
const BEHIND: &str = "## Decisions";

/// Words in code that name something else: folders, the kind of an entry, a number, an attribute.
const OTHER_WORDS: &[&str] = &["manager", "lock", "store", "runtime", "o", "n", "run_once"];

/// The texts of the sources, by their paths.
fn sources(root: &Path) -> BTreeMap<String, String> {
    let folders = ["lock-core/src", "lock-macros", "tests"];
    let paths = folders.iter().flat_map(|folder| files(&root.join(folder)));
    let texts = paths.filter_map(|path| Some((fs::read_to_string(&path).ok()?, path)));
    texts.map(|(text, path)| (path, text)).collect()
}

/// The entries of a part: the rows of its tables without the first cell, its list items and its paragraphs.
fn entries(part: &str) -> Vec<String> {
    let mut entries: Vec<String> = Vec::new();
    for line in part.lines() {
        let is_item = line
            .split_once(". ")
            .is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        if let Some(row) = line.strip_prefix("| ") {
            entries.push(
                row.split_once('|')
                    .map_or("", |(_, cells)| cells)
                    .to_owned(),
            );
        } else if line.trim().is_empty() || is_item || line.starts_with('#') {
            entries.push(line.to_owned());
        } else if let Some(last) = entries.last_mut() {
            *last += " ";
            *last += line;
        }
    }
    entries
}

/// The words in code of an entry.
fn in_code(entry: &str) -> impl Iterator<Item = &str> {
    entry.split('`').skip(1).step_by(2)
}

fn is_file(word: &str) -> bool {
    [".rs", ".lua", "/"].iter().any(|end| word.ends_with(end))
}

fn is_name(word: &str) -> bool {
    word.chars()
        .all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        && word.chars().any(|letter| letter.is_ascii_lowercase())
}

/// Whether a text defines the name: as a function, a type, a field, a module, or the trait of an `impl`. A message is a text in a
/// script.
fn defines(text: &str, name: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
    let before = [
        "fn ",
        "function ",
        "struct ",
        "enum ",
        "trait ",
        "mod ",
        "impl ",
        "type ",
        "'",
    ];
    let is_defined = before
        .iter()
        .any(|kind| text.split(&format!("{kind}{name}")).skip(1).any(ends));
    is_defined || text.contains(&format!(" {name}: "))
}

/// The files that a word means: the whole path, or its end.
fn meant<'a>(
    sources: &'a BTreeMap<String, String>,
    word: &'a str,
) -> impl Iterator<Item = (&'a String, &'a String)> {
    sources.iter().filter(move |(path, _)| {
        let path = format!("/{path}");
        if word.ends_with('/') {
            path.contains(&format!("/{word}"))
        } else {
            path.ends_with(&format!("/{word}"))
        }
    })
}

/// What is wrong with an entry.
fn mistakes(sources: &BTreeMap<String, String>, entry: &str) -> Vec<String> {
    let files: Vec<_> = in_code(entry).filter(|word| is_file(word)).collect();
    let mut wrong: Vec<String> = Vec::new();
    for file in &files {
        if meant(sources, file).next().is_none() {
            wrong.push(format!("no file is called {file}"));
        }
    }
    for name in in_code(entry).filter(|word| is_name(word) && !OTHER_WORDS.contains(word)) {
        let mut texts = files.iter().flat_map(|file| meant(sources, file));
        if !texts.any(|(_, text)| defines(text, name)) {
            wrong.push(format!("{name} is in none of {files:?}"));
        }
    }
    wrong
}

#[test]
fn each_file_and_function_that_the_page_leads_to_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sources = sources(&root);
    let page = fs::read_to_string(root.join("docs/design.md")).expect("the page");
    let (_, part) = page.split_once(FIRST).expect("the first part");
    let (part, _) = part.split_once(BEHIND).expect("the part behind");
    let entries = entries(part);
    let names = entries.iter().flat_map(|entry| in_code(entry));
    assert!(names.filter(|word| is_name(word)).count() > 50);
    let wrong: Vec<_> = entries
        .iter()
        .flat_map(|entry| mistakes(&sources, entry))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_name_that_is_not_in_its_file_is_found() {
    let sources = BTreeMap::from([(
        "lock-core/src/lock/key.rs".to_owned(),
        "fn waits() {}\nstruct Key;\nfn wait_for() {}".to_owned(),
    )]);
    let wrong = |entry| mistakes(&sources, entry).len();
    assert_eq!(wrong("`key.rs`, `waits`, and `Key` in `lock/key.rs`"), 0);
    assert_eq!(wrong("`key.rs`, `wait`"), 1, "a part of a name");
    assert_eq!(wrong("`lock/keys.rs`"), 1, "no such file");
    assert_eq!(
        entries("| a | `b` |\n1. c\n   d\n\ne"),
        [" `b` |", "1. c    d", " e"]
    );
}
