//! The rooms of lock-core: the folders of its sources, and the imports that are allowed between them.
//!
//! The check reads the sources: `use` with its groups and re-exports, and paths in the code. An arrow leads from the file that
//! imports to the file that defines the imported item. Three rules carry the architecture: the engine names no I/O, the transport
//! names no lock, and the waist names nothing of a runtime.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::Path,
};

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::{
    Attribute, Ident, Item, ItemMacro, ItemMod, ItemUse, Macro, Meta, Token, UseTree,
    VisRestricted, Visibility,
    ext::IdentExt,
    punctuated::Punctuated,
    spanned::Spanned,
    visit::{self, Visit},
};

/// What speaks to Redis about locks: the rooms that it may use.
const PROTOCOL: &[&str] = &[
    "backend",
    "backend/redis/topology",
    "backend/redis/transport",
    "engine/reply.rs",
    "runtime",
    "telemetry",
];

/// What users call, and the rooms that it may use.
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

/// The rooms, and for each the rooms and files that it may use beside the vocabulary and itself. The name of a room is the path of its
/// folder. A folder inside a room that is not listed belongs to that room.
const ROOMS: &[(&str, &[&str])] = &[
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

/// Arrows that the rooms do not allow: from a file or a folder, to one, and the reason.
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
        "what the attribute's output calls for a response",
    ),
    (
        "once/attribute.rs",
        "private",
        "what the output of `run_once` calls",
    ),
    (
        "once",
        "integrations",
        "what is kept of a response, and the response for a request without a key",
    ),
];

/// The modules of the vocabulary that the engine uses. It names no I/O.
const WORDS_OF_THE_ENGINE: &[&str] = &[
    "error.rs",
    "failure.rs",
    "fencing.rs",
    "key.rs",
    "mode.rs",
    "moment.rs",
    "options.rs",
];

/// Names of types, functions and fields that only a lock has. The transport has none of them.
const WORDS_OF_LOCKS: &[&str] = &["fencing", "grant", "lease", "owner", "permit"];

/// Rooms that the waist between driver and backends must not name.
const NOT_IN_THE_WAIST: &[&str] = &["runtime", "driver"];

/// A file of the sources, by its path below `src`.
type File = String;

/// The path of a module or of an item, from the root of the crate.
type Names = Vec<String>;

/// A path in the code that leads to a file or out of the crate.
#[derive(Clone)]
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

/// One path as it is written in a module.
struct Mention {
    file: File,
    module: Names,
    line: usize,
    path: Names,
    is_exported: bool,
    /// Whether it is in a `use`, and not in the code.
    is_import: bool,
}

/// What was read of all modules.
#[derive(Default)]
struct Sources {
    /// The file of each module.
    files: BTreeMap<Names, File>,
    /// The names that modules import, each with the module and the path that is written there.
    imports: BTreeMap<Names, (Names, Names)>,
    mentions: Vec<Mention>,
}

impl Sources {
    fn read() -> Self {
        let mut all = Self::default();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock-core/src");
        all.read_file(&source, Vec::new());
        all
    }

    fn read_file(&mut self, source: &Path, module: Names) {
        let path = module.join("/");
        let files = [
            "lib.rs".to_owned(),
            format!("{path}/mod.rs"),
            format!("{path}.rs"),
        ];
        let mut files = files.into_iter().skip(usize::from(!module.is_empty()));
        let file = files.find(|file| source.join(file).is_file());
        let file = file.unwrap_or_else(|| panic!("no file of {path}"));
        let text = fs::read_to_string(source.join(&file)).expect("a source");
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.files.insert(module.clone(), file.clone());
        let mut reader = Reader {
            source,
            file,
            module,
            all: self,
        };
        reader.visit_file(&parsed);
    }

    /// The file that defines what a path means in a module; `None` for what another crate defines.
    fn file(&self, module: &[String], path: &[String]) -> Option<&File> {
        let mut whole = self.absolute(module, path)?;
        // An import may lead to another one, but not for ever.
        for _ in 0..16 {
            let mut lengths = (0..=whole.len()).rev();
            let length = lengths.find(|length| self.files.contains_key(&whole[..*length]))?;
            let name = whole.get(..=length);
            let Some((module, path)) = name.and_then(|name| self.imports.get(name)) else {
                return self.files.get(&whole[..length]);
            };
            let rest = whole.split_off(length + 1);
            whole = self.absolute(module, path)?;
            whole.extend(rest);
        }
        None
    }

    /// A path of a module, from the root of the crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        let mut at = module.to_vec();
        match &**first {
            "crate" | "$crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
                if rest.first().is_some_and(|next| next == "super") {
                    return self.absolute(&at, rest);
                }
            }
            _ => {
                let name = [module, std::slice::from_ref(first)].concat();
                // An import may have the name of a crate, as `redis` has: then its path means the crate, and not the import itself.
                let means_itself = |(_, path): &(Names, Names)| path.first() == Some(first);
                let is_module = self.files.contains_key(&name);
                let is_import = self
                    .imports
                    .get(&name)
                    .is_some_and(|import| !means_itself(import));
                return (is_module || is_import).then(|| [module, path].concat());
            }
        }
        at.extend_from_slice(rest);
        Some(at)
    }
}

/// Reads one file, and those of the modules that it declares.
struct Reader<'a> {
    source: &'a Path,
    file: File,
    module: Names,
    all: &'a mut Sources,
}

impl Reader<'_> {
    fn take(&mut self, tree: &UseTree, before: &[String], is_exported: bool) {
        let (name, shown) = match tree {
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.take(tree, before, is_exported);
                }
                return;
            }
            UseTree::Path(path) => {
                let path_so_far = [before, &[path.ident.unraw().to_string()]].concat();
                return self.take(&path.tree, &path_so_far, is_exported);
            }
            UseTree::Glob(_) => return self.push(before.to_vec(), tree.span(), is_exported, true),
            UseTree::Name(name) => (&name.ident, &name.ident),
            UseTree::Rename(name) => (&name.ident, &name.rename),
        };
        let mut path = before.to_vec();
        let mut shown = shown.unraw().to_string();
        if name == "self" {
            shown = before.last().cloned().unwrap_or(shown);
        } else {
            path.push(name.unraw().to_string());
        }
        let whole = [&self.module[..], &[shown]].concat();
        let import = (self.module.clone(), path.clone());
        self.all.imports.insert(whole, import);
        self.push(path, tree.span(), is_exported, true);
    }

    fn push(&mut self, path: Names, at: Span, is_exported: bool, is_import: bool) {
        self.all.mentions.push(Mention {
            file: self.file.clone(),
            module: self.module.clone(),
            line: at.start().line,
            path,
            is_exported,
            is_import,
        });
    }

    /// Paths among the tokens of a macro: names with two colons between them.
    fn take_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<Ident> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.take_path(&std::mem::take(&mut path));
                    }
                    path.push(ident);
                    colons = 0;
                }
                other => {
                    self.take_path(&std::mem::take(&mut path));
                    if let TokenTree::Group(group) = other {
                        self.take_tokens(group.stream());
                    }
                }
            }
        }
        self.take_path(&path);
    }

    fn take_path(&mut self, path: &[Ident]) {
        if let [first, _, ..] = path {
            let words = path.iter().map(|word| word.unraw().to_string());
            self.push(words.collect(), first.span(), false, false);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !attributes_of(item).is_some_and(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.unraw().to_string());
        if item.content.is_some() {
            let file = self.file.clone();
            self.all.files.insert(self.module.clone(), file);
            visit::visit_item_mod(self, item);
        } else {
            self.all.read_file(self.source, self.module.clone());
        }
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_exported = !matches!(item.vis, Visibility::Inherited);
        self.take(&item.tree, &[], is_exported);
    }

    /// An exported macro is found at the root.
    fn visit_item_macro(&mut self, item: &'ast ItemMacro) {
        let is_exported = |attribute: &Attribute| attribute.path().is_ident("macro_export");
        if let Some(name) = &item.ident
            && item.attrs.iter().any(is_exported)
        {
            let path = vec!["self".to_owned(), name.to_string()];
            let import = (self.module.clone(), path);
            self.all.imports.insert(vec![name.to_string()], import);
        }
        visit::visit_item_macro(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words = path.segments.iter().map(|segment| segment.ident.clone());
        self.take_path(&words.collect::<Vec<_>>());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.visit_path(&called.path);
        self.take_tokens(called.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<Meta>()
                .is_ok_and(|condition| needs_test(&condition))
    })
}

/// Whether a condition is `test`, or `all(…)` with it.
fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|all| all.iter().any(needs_test)),
        _ => false,
    }
}

/// The attributes of the items that a test module may have beside it.
fn attributes_of(item: &Item) -> Option<&[Attribute]> {
    Some(match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return None,
    })
}

/// All arrows between two files, and those out of the crate that name a crate `redis`.
fn arrows() -> (Vec<Arrow>, Vec<Arrow>) {
    let sources = Sources::read();
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    // Without the table of contents.
    let mentions = sources
        .mentions
        .iter()
        .filter(|mention| mention.file != "lib.rs");
    for mention in mentions {
        let Mention {
            file, module, path, ..
        } = mention;
        let arrow = |to: &str| Arrow {
            from: file.clone(),
            line: mention.line,
            path: path.join("::"),
            to: to.to_owned(),
        };
        let first = [&module[..], &path[..1]].concat();
        // The arrow is then the import of the first word.
        let is_imported = |to| {
            !mention.is_import
                && sources.imports.contains_key(&first)
                && sources.file(module, &path[..1]) == Some(to)
        };
        match sources.file(module, path) {
            Some(to) if to == file || (mention.is_exported && is_below(to, file)) => {}
            Some(to) if is_imported(to) => {}
            Some(to) => inside.push(arrow(to)),
            None if path[0] == "redis" => outside.push(arrow("")),
            None => {}
        }
    }
    (inside, outside)
}

/// Whether a file belongs to the module that has `parent` as its `mod.rs`.
fn is_below(file: &str, parent: &str) -> bool {
    parent
        .strip_suffix("mod.rs")
        .is_some_and(|folder| file.starts_with(folder))
}

/// The room of a file, and what it may use.
fn room_of(file: &str) -> (&'static str, &'static [&'static str]) {
    let holds = |room: &str| room.is_empty() && !file.contains('/') || is_in(file, room);
    let rooms = ROOMS.iter().filter(|(room, _)| holds(room));
    let room = rooms.max_by_key(|(room, _)| room.len());
    *room
        .unwrap_or_else(|| panic!("{file} is in no room that this test knows: say what it may use"))
}

/// Whether a file is this one, or below this folder.
fn is_in(file: &str, place: &str) -> bool {
    file.strip_prefix(place)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a file may use another one.
fn is_allowed(from: &str, to: &str) -> bool {
    let ((room, allowed), (other, _)) = (room_of(from), room_of(to));
    room == other
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

/// A graph of files or folders, by the imports between them.
#[derive(Default)]
struct Graph<'a>(BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a Arrow>>>);

impl<'a> Graph<'a> {
    fn add(&mut self, from: &'a str, to: &'a str, arrow: &'a Arrow) {
        if from != to {
            let edges = self.0.entry(from).or_default();
            edges.entry(to).or_default().push(arrow);
        }
    }

    fn reached(&self, from: &'a str) -> BTreeSet<&'a str> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(node) = open.pop() {
            for to in self.0.get(node).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(*to) {
                    open.push(to);
                }
            }
        }
        reached
    }

    /// The circles, each with its nodes and the arrows between them.
    fn circles(&self) -> BTreeMap<Vec<&'a str>, Vec<&'a Arrow>> {
        let reached: BTreeMap<_, _> = self
            .0
            .keys()
            .map(|node| (*node, self.reached(node)))
            .collect();
        let is_mutual = |one: &str, other: &str| {
            let leads = |from, to| reached.get(from).is_some_and(|all| all.contains(to));
            leads(one, other) && leads(other, one)
        };
        let mut found = BTreeMap::<_, Vec<_>>::new();
        for (from, edges) in &self.0 {
            for (to, arrows) in edges {
                if is_mutual(from, to) {
                    let nodes = self.0.keys().filter(|node| is_mutual(from, node));
                    found
                        .entry(nodes.copied().collect())
                        .or_default()
                        .extend(arrows);
                }
            }
        }
        found
    }
}

/// Every arrow that breaks a rule, with the rule.
fn offences(inside: &[Arrow], outside: &[Arrow]) -> BTreeSet<String> {
    let mut offences = BTreeSet::new();
    let mut note = |arrow: &Arrow, rule: &str| {
        offences.insert(format!("{arrow} ({rule})"));
    };
    let mut files = BTreeMap::<&str, Graph<'_>>::new();
    let mut rooms = Graph::default();
    for arrow in inside {
        let ((from, _), (to, _)) = (room_of(&arrow.from), room_of(&arrow.to));
        if !is_allowed(&arrow.from, &arrow.to) {
            note(arrow, "an arrow between rooms that is not allowed");
        }
        if from == "engine" && to.is_empty() && !WORDS_OF_THE_ENGINE.contains(&arrow.to.as_str()) {
            note(arrow, "not a word of the engine");
        }
        if arrow.from == "backend/mod.rs" && NOT_IN_THE_WAIST.contains(&to) {
            note(arrow, "the waist names nothing of a runtime");
        }
        // An exception has a reason of its own, and may close a circle.
        if is_exception(&arrow.from, &arrow.to) {
            continue;
        }
        if from == to {
            let graph = files.entry(from).or_default();
            graph.add(&arrow.from, &arrow.to, arrow);
        } else if !from.is_empty() && !to.is_empty() {
            rooms.add(from, to, arrow);
        }
    }
    for graph in files.values() {
        for arrow in graph.circles().into_values().flatten() {
            note(arrow, "files in a circle");
        }
    }
    for arrow in rooms.circles().into_values().flatten() {
        note(arrow, "rooms in a circle");
    }
    for arrow in outside {
        let is_ours =
            is_in(&arrow.from, "backend/redis") || arrow.from == "manager/builder/own_client.rs";
        if !is_ours {
            note(arrow, "the crate `redis` is for `backend/redis`");
        }
    }
    offences
}

#[test]
fn imports_lead_from_room_to_room_one_way() {
    let (inside, outside) = arrows();
    let wrong = offences(&inside, &outside);
    let gone = ALLOWED.iter().filter(|(from, to, _)| {
        let is_it = |arrow: &Arrow| is_in(&arrow.from, from) && is_in(&arrow.to, to);
        !inside.iter().any(is_it)
    });
    let gone = gone.map(|(from, to, _)| format!("{from} does not import from {to} any more"));
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

/// The words of a name, in lower case: those of `OwnerToken` and `owner_token` are "owner" and "token".
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
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock-core/src/backend/redis/transport");
    let mut found = BTreeSet::new();
    for file in crate::files::below(&folder) {
        let text = fs::read_to_string(&file).expect("a source");
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
