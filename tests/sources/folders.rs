//! The folders of lock-core's sources, and the imports that are allowed between them.
//!
//! The check reads the tokens of the sources: each path in a `use` or in the code is an arrow from its file to the file of the module
//! that it names. Re-exports are not followed, since `use` names the module that defines an item. Three rules carry the architecture:
//! the engine names no I/O, the transport names no lock, and the waist names nothing of a runtime.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    iter::Peekable,
    path::PathBuf,
};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::files::{below, read_at, root};

/// The folders that the protocol of locks on Redis may use.
const PROTOCOL: &[&str] = &[
    "backend",
    "backend/redis/topology",
    "backend/redis/transport",
    "engine/reply.rs",
    "runtime",
    "telemetry",
];

/// The folders that public calls may use.
const MANAGER: &[&str] = &[
    "backend",
    "backend/memory",
    "backend/redis",
    "backend/redis/protocol/redis_store.rs",
    "backend/redis/topology/mod.rs",
    "backend/redis/transport/address",
    "driver",
    "engine",
    "manager",
    "once",
    "runtime",
    "telemetry",
];

/// Each folder with the folders and files that it may use besides the vocabulary and itself. Folders are named by their paths. One that is
/// not listed belongs to its parent.
const FOLDERS: &[(&str, &[&str])] = &[
    ("", &["backend", "driver", "engine", "manager"]),
    ("runtime", &[]),
    ("telemetry", &["runtime"]),
    ("engine", &[]),
    ("backend", &["engine/reply.rs", "runtime"]),
    ("backend/memory", &["backend", "engine/reply.rs", "runtime"]),
    (
        "backend/redis/transport",
        &["backend", "runtime", "telemetry"],
    ),
    (
        "backend/redis/topology",
        &["backend", "backend/redis/transport", "runtime"],
    ),
    (
        "backend/redis/without_scripts",
        &[
            "backend",
            "backend/redis/protocol",
            "backend/redis/topology",
            "backend/redis/transport",
            "engine/reply.rs",
        ],
    ),
    ("backend/redis/protocol", PROTOCOL),
    (
        "backend/redis",
        &[
            "backend",
            "backend/redis/protocol",
            "backend/redis/topology",
            "backend/redis/transport",
            "engine/reply.rs",
        ],
    ),
    (
        "backend/redlock",
        &[
            "backend",
            "backend/redis/protocol",
            "backend/redis/transport/address",
            "engine/reply.rs",
            "runtime",
        ],
    ),
    ("driver", &["backend", "engine", "runtime", "telemetry"]),
    ("manager", MANAGER),
    ("once", MANAGER),
    ("private", MANAGER),
    ("integrations", MANAGER),
    ("testing", MANAGER),
];

/// Exceptions: arrows from one file or folder to another that the folders would not allow, each with its reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    (
        "manager/builder",
        "testing",
        "the in-memory double is built by the builder",
    ),
    (
        "manager/builder",
        "backend/redlock",
        "the builder makes each backend; nothing else names this one",
    ),
    (
        "private",
        "integrations",
        "the attribute's output makes a response through it",
    ),
    (
        "once/attribute.rs",
        "private",
        "the output of `run_once` calls it",
    ),
    (
        "once",
        "integrations",
        "a response is stored in parts, and a request without a key gets one",
    ),
];

/// The modules of the vocabulary that the engine may use, none of which names I/O.
const WORDS_OF_THE_ENGINE: &[&str] = &[
    "error.rs",
    "failure.rs",
    "fencing.rs",
    "key.rs",
    "mode.rs",
    "moment.rs",
    "options.rs",
];

/// Words in the names of types, functions and fields that are about locks. The transport has none of them.
const WORDS_OF_LOCKS: &[&str] = &["fencing", "grant", "lease", "owner", "permit"];

/// Rooms that the waist between driver and backends must not name.
const NOT_IN_THE_WAIST: &[&str] = &["runtime", "driver"];

/// A file of the sources, by its path below `src`.
type File = String;

/// The path of a module or of an item, from the root of the crate.
type Names = Vec<String>;

/// A path in the code that leads to another file, or to the `redis` crate.
struct Arrow {
    from: File,
    line: usize,
    path: String,
    to: File,
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            from, line, path, ..
        } = self;
        write!(f, "{from}:{line} imports {path}")
    }
}

/// A path as it is written in a module.
struct Mention {
    file: File,
    module: Names,
    line: usize,
    path: Names,
    /// `true` in a `use` that exports the path.
    is_exported: bool,
}

/// All modules that are compiled outside of tests, and the paths in them.
#[derive(Default)]
struct Sources {
    /// The file of each module.
    files: BTreeMap<Names, File>,
    mentions: Vec<Mention>,
}

impl Sources {
    fn read() -> Self {
        let mut sources = Self::default();
        let mut modules = vec![Vec::new()];
        while let Some(module) = modules.pop() {
            modules.extend(sources.read_module(&module));
        }
        sources
    }

    /// Reads the file of a module, and returns the modules that it declares.
    fn read_module(&mut self, module: &Names) -> Vec<Names> {
        let path = module.join("/");
        let files = if module.is_empty() {
            vec!["lib.rs".to_owned()]
        } else {
            vec![format!("{path}/mod.rs"), format!("{path}.rs")]
        };
        let mut files = files.into_iter();
        let file = files.find(|file| source().join(file).is_file());
        let file = file.unwrap_or_else(|| panic!("no file of {path}"));
        let text = read_at(&source().join(&file));
        self.files.insert(module.clone(), file.clone());
        let mut reader = Reader {
            file,
            sources: self,
            declared: Vec::new(),
        };
        reader.read(text.parse().expect("Rust"), module, &[], false);
        reader.declared
    }

    /// Returns the file of the innermost module in a path; `None` if the path leads out of the crate.
    fn file(&self, module: &[String], path: &[String]) -> Option<&File> {
        let whole = self.absolute(module, path)?;
        let mut lengths = (0..=whole.len()).rev();
        lengths.find_map(|length| self.files.get(&whole[..length]))
    }

    /// Returns a path of a module as a path from the root of the crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        match &**first {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" => {
                let (_, parent) = module.split_last()?;
                if rest.first().is_some_and(|next| next == "super") {
                    self.absolute(parent, rest)
                } else {
                    Some([parent, rest].concat())
                }
            }
            _ => {
                let whole = [module, path].concat();
                let child = &whole[..=module.len()];
                self.files.contains_key(child).then_some(whole)
            }
        }
    }
}

fn source() -> PathBuf {
    root().join("lock-core/src")
}

/// Reads the paths in one file.
struct Reader<'a> {
    file: File,
    sources: &'a mut Sources,
    /// The modules in files of their own.
    declared: Vec<Names>,
}

impl Reader<'_> {
    /// Reads the tokens of a module, or of a group in it. Two colons join the next word to the path, and braces after them continue the
    /// path, as in a `use`: then `before` is the path in front of them. Any other token ends the path.
    fn read(&mut self, tokens: TokenStream, module: &Names, before: &[String], is_use: bool) {
        let joined = |path: &[String]| if path.is_empty() { 0 } else { 2 };
        let (mut path, mut line, mut colons) = (before.to_vec(), 0, joined(before));
        let (mut is_public, mut is_exported) = (false, is_use);
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Ident(word) if colons == 2 => {
                    line = word.span().start().line;
                    path.push(word.to_string());
                    colons = 0;
                }
                TokenTree::Group(group) if colons == 2 && is_in_braces(&group) => {
                    self.read(
                        group.stream(),
                        module,
                        &std::mem::take(&mut path),
                        is_exported,
                    );
                    colons = 0;
                }
                other => {
                    if path.len() > before.len() {
                        self.mention(module, line, std::mem::take(&mut path), is_exported);
                    }
                    colons = 0;
                    match other {
                        TokenTree::Group(group) => self.read(group.stream(), module, &[], false),
                        TokenTree::Punct(mark) => match mark.as_char() {
                            ',' => (path, colons) = (before.to_vec(), joined(before)),
                            ';' => is_exported = false,
                            '#' => skip_attribute(&mut tokens),
                            _ => {}
                        },
                        TokenTree::Ident(word) if word == "mod" => {
                            self.read_declared(&mut tokens, module);
                        }
                        TokenTree::Ident(word) if word == "pub" => {
                            is_public = true;
                            // The path of `pub(in path)` imports nothing.
                            tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
                        }
                        TokenTree::Ident(word) => {
                            is_exported |= word == "use" && is_public;
                            is_public = false;
                            line = word.span().start().line;
                            path = vec![word.to_string()];
                        }
                        TokenTree::Literal(_) => {}
                    }
                }
            }
        }
        if path.len() > before.len() {
            self.mention(module, line, path, is_exported);
        }
    }

    /// Reads a module, from the token after the word `mod` on.
    fn read_declared(&mut self, tokens: &mut impl Iterator<Item = TokenTree>, module: &Names) {
        let Some(TokenTree::Ident(name)) = tokens.next() else {
            return;
        };
        let inner = [&module[..], &[name.to_string()]].concat();
        match tokens.next() {
            Some(TokenTree::Group(group)) => {
                self.sources.files.insert(inner.clone(), self.file.clone());
                self.read(group.stream(), &inner, &[], false);
            }
            _ => self.declared.push(inner),
        }
    }

    fn mention(&mut self, module: &Names, line: usize, path: Names, is_exported: bool) {
        if path.len() > 1 {
            self.sources.mentions.push(Mention {
                file: self.file.clone(),
                module: module.clone(),
                line,
                path,
                is_exported,
            });
        }
    }
}

fn is_in_braces(group: &Group) -> bool {
    group.delimiter() == Delimiter::Brace
}

/// Skips an attribute, and also its item if the item is only for tests.
fn skip_attribute(tokens: &mut Peekable<impl Iterator<Item = TokenTree>>) {
    tokens.next_if(|next| matches!(next, TokenTree::Punct(_)));
    let Some(TokenTree::Group(attribute)) = tokens.next() else {
        return;
    };
    let text = attribute.stream().to_string();
    let words: Vec<_> = text
        .split(|letter: char| !letter.is_alphanumeric())
        .collect();
    if words[0] == "cfg" && words.contains(&"test") && !words.contains(&"not") {
        tokens.find(|token| match token {
            TokenTree::Group(group) => is_in_braces(group),
            TokenTree::Punct(mark) => mark.as_char() == ';',
            _ => false,
        });
    }
}

/// All arrows between two files, and those out of the crate that name the `redis` crate.
fn arrows() -> (Vec<Arrow>, Vec<Arrow>) {
    let sources = Sources::read();
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    // Without the table of contents.
    let mentions = sources.mentions.iter();
    for mention in mentions.filter(|mention| mention.file != "lib.rs") {
        let Mention {
            file, module, path, ..
        } = mention;
        let arrow = |to: &str| Arrow {
            from: file.clone(),
            line: mention.line,
            path: path.join("::"),
            to: to.to_owned(),
        };
        match sources.file(module, path) {
            Some(to) if to == file || (mention.is_exported && is_below(to, file)) => {}
            Some(to) => inside.push(arrow(to)),
            None if path[0] == "redis" => outside.push(arrow("")),
            None => {}
        }
    }
    (inside, outside)
}

/// Returns whether a file belongs to the module that has `parent` as its `mod.rs`.
fn is_below(file: &str, parent: &str) -> bool {
    parent
        .strip_suffix("mod.rs")
        .is_some_and(|folder| file.starts_with(folder))
}

/// Returns the folder of a file, and the places that it may use.
fn folder_of(file: &str) -> (&'static str, &'static [&'static str]) {
    let holds = |folder: &str| folder.is_empty() && !file.contains('/') || is_in(file, folder);
    let folders = FOLDERS.iter().filter(|(folder, _)| holds(folder));
    let folder = folders.max_by_key(|(folder, _)| folder.len());
    *folder.unwrap_or_else(|| {
        panic!("{file} is in no folder of this test: add one, with the folders that it may use")
    })
}

/// Returns whether a file is this one, or below this folder.
fn is_in(file: &str, place: &str) -> bool {
    file.strip_prefix(place)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns whether a file may use another one.
fn is_allowed(from: &str, to: &str) -> bool {
    let ((folder, allowed), (other, _)) = (folder_of(from), folder_of(to));
    folder == other
        || other.is_empty()
        || allowed
            .iter()
            .any(|place| *place == other || is_in(to, place) && place.len() > other.len())
        || is_exception(from, to)
}

fn is_exception(from: &str, to: &str) -> bool {
    let mut exceptions = ALLOWED.iter();
    exceptions.any(|(one, another, _)| is_in(from, one) && is_in(to, another))
}

/// Returns whether edges lead from one node to another, or to itself.
fn is_reached<'a>(edges: &BTreeMap<&'a str, Vec<&'a str>>, from: &'a str, to: &str) -> bool {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(node) = open.pop() {
        if reached.insert(node) {
            open.extend(edges.get(node).into_iter().flatten());
        }
    }
    reached.contains(to)
}

/// Returns every arrow that breaks a rule, with the rule.
fn violations(inside: &[Arrow], outside: &[Arrow]) -> BTreeSet<String> {
    let mut violations = BTreeSet::new();
    let mut note = |arrow: &Arrow, rule: &str| {
        violations.insert(format!("{arrow} ({rule})"));
    };
    let (mut edges, mut connected) = (BTreeMap::<&str, Vec<&str>>::new(), Vec::new());
    for arrow in inside {
        let ((from, _), (to, _)) = (folder_of(&arrow.from), folder_of(&arrow.to));
        if !is_allowed(&arrow.from, &arrow.to) {
            note(arrow, "not allowed between these folders");
        }
        if from == "engine" && to.is_empty() && !WORDS_OF_THE_ENGINE.contains(&arrow.to.as_str()) {
            note(arrow, "not part of the vocabulary of the engine");
        }
        if arrow.from == "backend/mod.rs" && NOT_IN_THE_WAIST.contains(&to) {
            note(arrow, "the waist names nothing of a runtime");
        }
        // An exception may close a circle, since it has a reason of its own.
        if is_exception(&arrow.from, &arrow.to) {
            continue;
        }
        // The nodes are the files of one folder, or two folders.
        let (from, to) = if from == to {
            (&*arrow.from, &*arrow.to)
        } else {
            (from, to)
        };
        if !from.is_empty() && !to.is_empty() {
            edges.entry(from).or_default().push(to);
            connected.push((from, to, arrow));
        }
    }
    for (from, to, arrow) in connected {
        if is_reached(&edges, to, from) {
            note(arrow, "part of a circle");
        }
    }
    for arrow in outside {
        let is_ours =
            is_in(&arrow.from, "backend/redis") || arrow.from == "manager/builder/own_client.rs";
        if !is_ours {
            note(arrow, "only `backend/redis` may name the `redis` crate");
        }
    }
    violations
}

#[test]
fn imports_between_folders_point_one_way() {
    let (inside, outside) = arrows();
    let wrong = violations(&inside, &outside);
    let gone = ALLOWED.iter().filter(|(from, to, _)| {
        let is_it = |arrow: &Arrow| is_in(&arrow.from, from) && is_in(&arrow.to, to);
        !inside.iter().any(is_it)
    });
    let gone = gone.map(|(from, to, _)| {
        format!("{from} no longer imports from {to}, so the exception can go")
    });
    let all: Vec<_> = wrong.into_iter().chain(gone).collect();
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

/// Collects the names that a file defines or uses.
#[derive(Default)]
struct Words(BTreeSet<String>);

impl Words {
    fn take(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    self.0.insert(ident.to_string());
                }
                TokenTree::Group(group) => self.take(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

/// Splits a name into its words, in lower case: `OwnerToken` and `owner_token` into "owner" and "token".
fn parts_of(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() {
            parts.push(String::new());
        }
        let last = parts.last_mut().expect("one at least");
        last.extend(letter.to_lowercase().filter(|letter| *letter != '_'));
    }
    parts
}

#[test]
fn the_transport_names_no_lock() {
    let folder = source().join("backend/redis/transport");
    let mut found = BTreeSet::new();
    for file in below(&folder, "rs") {
        let text = read_at(&file);
        let mut words = Words::default();
        words.take(text.parse().expect("Rust"));
        let is_of_a_lock = |name: &String| {
            let is_one = |part: &String| WORDS_OF_LOCKS.contains(&part.trim_end_matches('s'));
            parts_of(name).iter().any(is_one)
        };
        let names = words.0.into_iter().filter(is_of_a_lock);
        found.extend(names.map(|name| format!("{}: {name}", file.display())));
    }
    assert!(found.is_empty(), "{found:#?}");
}
