//! The language of comments and pages: short sentences, and no words for persons where a machine is meant.
//!
//! A check cannot tell whether a sentence is understood at the first reading. It finds what most often prevents that.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A longer sentence has more than one idea.
const LONGEST: usize = 25;

/// A process, a client or a waiter has a noun of its own, and so has an operator.
const PERSONS: [&str; 9] = [
    "who",
    "whom",
    "whoever",
    "nobody",
    "somebody",
    "someone",
    "anybody",
    "everybody",
    "everyone",
];

/// A piece of prose: a paragraph of a page or of a comment, a point of a list, or a cell of a table.
struct Passage {
    line: usize,
    text: String,
}

/// The prose of a file, line by line.
#[derive(Default)]
struct Passages {
    found: Vec<Passage>,
    open: Option<Passage>,
    /// Inside a block between lines of three backticks.
    is_code: bool,
}

impl Passages {
    fn of(path: &Path) -> Vec<Passage> {
        let text =
            fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut passages = Self::default();
        for (index, line) in text.lines().enumerate() {
            match prose(path, line.trim()) {
                Some(prose) => passages.add(index + 1, prose.trim()),
                None => passages.close(),
            }
        }
        passages.close();
        passages.found
    }

    fn add(&mut self, line: usize, prose: &str) {
        if prose.starts_with("```") {
            self.is_code = !self.is_code;
            self.close();
            return;
        }
        if self.is_code {
            return;
        }
        if prose.is_empty() || prose.starts_with('#') {
            self.close();
        } else if let Some(row) = prose.strip_prefix('|') {
            self.close();
            for cell in row.split(" | ") {
                let text = cell.trim_end_matches('|').to_owned();
                self.found.push(Passage { line, text });
            }
        } else {
            let point = point(prose);
            if point.is_some() {
                self.close();
            }
            let text = point.unwrap_or(prose);
            let open = self.open.get_or_insert_with(|| Passage {
                line,
                text: String::new(),
            });
            open.text.extend([" ", text]);
        }
    }

    fn close(&mut self) {
        self.found.extend(self.open.take());
    }
}

/// The prose of a line: all of a page, the comment of a source. `None`: code.
fn prose<'a>(path: &Path, line: &'a str) -> Option<&'a str> {
    let marks: &[&str] = match path.extension().and_then(|extension| extension.to_str()) {
        Some("md") => return Some(line),
        Some("lua") => &["--"],
        Some("toml") => &["#"],
        _ => &["///", "//!", "//"],
    };
    marks.iter().find_map(|mark| line.strip_prefix(mark))
}

/// The text of a point in a list.
fn point(line: &str) -> Option<&str> {
    let bullet = ["- ", "* "].iter().find_map(|mark| line.strip_prefix(mark));
    bullet.or_else(|| {
        let (number, rest) = line.split_once(". ")?;
        number.parse::<u32>().ok()?;
        Some(rest)
    })
}

/// Splits prose into sentences. Code between backticks is one word, and the address of a link is none.
fn sentences(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut is_end = false;
    for word in plain(text).split_whitespace() {
        let starts = word.trim_start_matches(['(', '"', '*', '[', '_']);
        if is_end && !starts.starts_with(|first: char| first.is_lowercase()) {
            found.push(String::new());
        }
        let sentence = found.last_mut().expect("one at least");
        sentence.extend([" ", word]);
        let bare = word.trim_end_matches([')', '"', '*', ']', '_']);
        is_end = bare.ends_with(['.', '!', '?']) || bare.ends_with(':');
    }
    found
}

fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (index, part) in text.split('`').enumerate() {
        plain += if index % 2 == 0 { part } else { "Code" };
    }
    while let Some(start) = plain.find("](") {
        let length = plain[start..].find(')').unwrap_or(plain.len() - start - 1);
        plain.replace_range(start..=start + length, "]");
    }
    plain
}

fn words(sentence: &str) -> impl Iterator<Item = &str> {
    let words =
        sentence.split(|letter: char| !letter.is_alphanumeric() && !"'’-_".contains(letter));
    words.filter(|word| word.chars().any(char::is_alphanumeric))
}

pub(crate) fn faults(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for sentence in sentences(text) {
        let count = words(&sentence).count();
        if count > LONGEST {
            found.push(format!("{count} words:{sentence}"));
        }
        let person = |word: &&str| PERSONS.contains(&word.to_lowercase().as_str());
        found.extend(
            words(&sentence)
                .find(person)
                .map(|word| format!("`{word}`:{sentence}")),
        );
    }
    found
}

fn files(path: PathBuf) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path];
    }
    let entries = fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let inside = entries.map(|entry| entry.expect("an entry").path());
    let is_read = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        path.is_dir() || matches!(extension, Some("rs" | "md" | "lua" | "toml"))
    };
    // The comments of these cases are compared with what the compiler says.
    inside
        .filter(|path| is_read(path) && !path.ends_with("tests/ui"))
        .flat_map(files)
        .collect()
}

#[test]
fn comments_and_pages_have_short_sentences_and_no_words_for_persons() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = [
        "lock-core/src",
        "lock-core/Cargo.toml",
        "lock-macros/src",
        "lock-macros/docs",
        "lock-macros/Cargo.toml",
        "examples",
        "tests",
        "docs",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        ".github",
    ];
    let mut found = Vec::new();
    for path in read.into_iter().flat_map(|path| files(root.join(path))) {
        for Passage { line, text } in Passages::of(&path) {
            let path = path.strip_prefix(&root).expect("below it").display();
            found.extend(
                faults(&text)
                    .into_iter()
                    .map(|fault| format!("{path}:{line}: {fault}")),
            );
        }
    }
    assert!(
        found.is_empty(),
        "{} faults:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn a_long_sentence_and_a_word_for_a_person_are_found() {
    let long = vec!["word"; LONGEST + 1].join(" ");
    assert_eq!(faults(&format!("Short. {long}. Short.")).len(), 1);
    assert_eq!(faults(&vec!["word"; LONGEST].join(" ")).len(), 0);
    assert_eq!(
        faults("Nobody waits. The `who` command, and [what](who.md)."),
        ["`Nobody`: Nobody waits."]
    );
}
