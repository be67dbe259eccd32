//! The language of comments, pages and names: short sentences, no words for persons where a machine is meant, one word a thing.
//!
//! A check cannot tell whether a sentence is understood at the first reading. It finds what most often prevents that.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::files::{below, has_extension, root};
use proc_macro2::{TokenStream, TokenTree};

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

/// No part of a name, and what to write instead.
const NO_PART: [(&str, &str); 18] = [
    ("who", "the noun: waiter, holder, process"),
    ("whom", "the noun"),
    ("whoever", "the noun"),
    ("nobody", "no waiter, no holder, no process"),
    ("somebody", "the noun"),
    ("someone", "the noun"),
    ("anybody", "the noun"),
    ("anyone", "the noun"),
    ("everybody", "the noun"),
    ("everyone", "the noun"),
    ("told", "notified, logged, printed, or what is known"),
    ("untold", "the same"),
    ("hear", "receive, count, apply"),
    ("hears", "the same"),
    ("heard", "received"),
    ("deaf", "without a subscription"),
    ("seat", "permit"),
    ("seats", "permits"),
];

/// No name by itself, and what to write instead.
const NO_NAME: [(&str, &str); 7] = [
    ("whose", "owner_of, holder_of"),
    ("never_mind", "give_up"),
    ("tell", "send, notify"),
    ("tells", "sends, notifies"),
    ("answer", "reply; the response of a web service"),
    ("answers", "replies; the responses of a web service"),
    ("Answer", "Reply; the Response of a web service"),
];

/// In these folders `Answer` is the return type of a handler, such as `impl IntoResponse`.
const RETURN_TYPES: [&str; 2] = ["lock-macros/src", "lock-core/src/private"];

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
        Some("toml" | "yml") => &["#"],
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

/// The names in a source, each with its line. Comments and texts have none.
fn names(path: &Path) -> Vec<(usize, String)> {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut found = Vec::new();
    if path.extension().is_some_and(|extension| extension == "rs") {
        let tokens = text.parse().expect("a source");
        rust_names(tokens, &mut found);
        return found;
    }
    for (index, line) in text.lines().enumerate() {
        let code = line.split("--").next().unwrap_or_default();
        // Texts are every second piece.
        for code in code.split('\'').step_by(2) {
            let words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            found.extend(words.map(|word| (index + 1, word.to_owned())));
        }
    }
    found
}

fn rust_names(tokens: TokenStream, found: &mut Vec<(usize, String)>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => found.push((name.span().start().line, name.to_string())),
            TokenTree::Group(group) => rust_names(group.stream(), found),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// The parts of `a_name`, `AName` and `A_NAME`, in lower case.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() && was_lower {
            parts.push(String::new());
        }
        was_lower = letter.is_lowercase();
        if letter != '_' {
            let part = parts.last_mut().expect("one at least");
            part.extend(letter.to_lowercase());
        }
    }
    parts
}

/// What to write instead of a name, if it may not stay.
fn better(path: &Path, name: &str) -> Option<&'static str> {
    let instead = |list: &[(&str, &'static str)], word: &str| {
        let found = list.iter().find(|(refused, _)| *refused == word);
        found.map(|(_, instead)| *instead)
    };
    let parts = parts(name);
    if let Some(instead) = parts.iter().find_map(|part| instead(&NO_PART, part)) {
        return Some(instead);
    }
    let is_return_type = RETURN_TYPES.iter().any(|folder| path.starts_with(folder));
    instead(&NO_NAME, name).filter(|_| !is_return_type)
}

fn files(path: PathBuf) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path];
    }
    let read = ["rs", "md", "lua", "toml", "yml"];
    let mut inside = below(&path);
    inside.retain(|path| read.iter().any(|extension| has_extension(path, extension)));
    // The comments of these cases are compared with what the compiler says.
    inside.retain(|path| !path.starts_with(root().join("tests/ui")));
    inside
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
fn names_have_no_words_for_persons_and_one_word_a_thing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = ["lock-core/src", "lock-macros/src", "examples", "tests"];
    let files = read.into_iter().flat_map(|path| files(root.join(path)));
    let mut found = Vec::new();
    for file in files.filter(|file| {
        file.extension()
            .is_some_and(|end| end == "rs" || end == "lua")
    }) {
        let path = file.strip_prefix(&root).expect("below it");
        for (line, name) in names(&file) {
            if let Some(instead) = better(path, &name) {
                found.push(format!("{}:{line}: `{name}`: {instead}", path.display()));
            }
        }
    }
    assert!(
        found.is_empty(),
        "{} names:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn a_name_is_split_into_its_parts_and_refused_for_one_of_them() {
    assert_eq!(parts("NoAnswer"), ["no", "answer"]);
    assert_eq!(parts("TOLD_at"), ["told", "at"]);
    let here = Path::new("tests/x.rs");
    assert!(better(here, &["for", "nobody"].join("_")).is_some());
    assert!(better(here, &["An", "swer"].concat()).is_some());
    assert_eq!(better(Path::new("lock-macros/src/x.rs"), "Answer"), None);
    assert_eq!(better(here, "a_key_whose_lease_has_ended"), None);
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
