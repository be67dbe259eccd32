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

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Ident, Item, ItemMod, ItemUse, Macro, Meta, Token, UseTree, VisRestricted,
    Visibility,
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

/// One name that a module knows.
enum Name {
    Module(Vec<String>),
    /// Defined in this module.
    Item,
    /// Imported, by this path.
    Import(Vec<String>),
}

struct Module {
    file: File,
    names: BTreeMap<String, Vec<Name>>,
    /// Modules from which all names are imported.
    globs: Vec<Vec<String>>,
}

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

/// All modules of the crate, by their paths.
#[derive(Default)]
struct Modules(BTreeMap<Vec<String>, Module>);

impl Modules {
    /// Reads a file, and those of the modules that it declares.
    fn read(&mut self, source: &Path, file: &str, path: Vec<String>, files: &mut Vec<Parsed>) {
        let text = fs::read_to_string(source.join(file)).expect("a source");
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.note(source, file, &path, &parsed.items, files);
        files.push(Parsed {
            file: file.to_owned(),
            path,
            items: parsed.items,
        });
    }

    fn note(
        &mut self,
        source: &Path,
        file: &str,
        path: &[String],
        items: &[Item],
        files: &mut Vec<Parsed>,
    ) {
        let module = Module {
            file: file.to_owned(),
            names: BTreeMap::new(),
            globs: Vec::new(),
        };
        self.0.insert(path.to_vec(), module);
        for item in items {
            match item {
                Item::Mod(item) if is_for_tests(&item.attrs) => {}
                Item::Mod(item) => {
                    let child = [path, &[item.ident.to_string()]].concat();
                    self.add(path, &item.ident, Name::Module(child.clone()));
                    match &item.content {
                        Some((_, items)) => self.note(source, file, &child, items, files),
                        None => self.read(source, &file_of(source, &child), child, files),
                    }
                }
                Item::Macro(item) => {
                    if let Some(name) = &item.ident {
                        self.add(path, name, Name::Item);
                        let root = Name::Import([path, &[name.to_string()]].concat());
                        let exported =
                            |attribute: &Attribute| attribute.path().is_ident("macro_export");
                        if item.attrs.iter().any(exported) {
                            self.add(&[], name, root);
                        }
                    }
                }
                item => {
                    if let Some(name) = name_of(item) {
                        self.add(path, name, Name::Item);
                    }
                }
            }
        }
    }

    fn add(&mut self, module: &[String], name: &Ident, what: Name) {
        let module = self.0.get_mut(module).expect("a module that was read");
        module
            .names
            .entry(name.unraw().to_string())
            .or_default()
            .push(what);
    }

    /// The file that defines what a path means in a module; `None` for what another crate defines.
    fn file(&self, module: &[String], path: &[String]) -> Option<&File> {
        self.defined(module, path, 0)
    }

    fn defined(&self, module: &[String], path: &[String], depth: usize) -> Option<&File> {
        let (first, rest) = path.split_first()?;
        let mut at = module.to_vec();
        match &**first {
            "crate" | "$crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            _ => return self.member(module, path, depth),
        }
        if rest.is_empty() {
            return Some(&self.0.get(&at)?.file);
        }
        if rest[0] == "super" {
            return self.defined(&at, rest, depth);
        }
        self.member(&at, rest, depth)
    }

    /// The same for a path that begins with a name of the module.
    fn member(&self, module: &[String], path: &[String], depth: usize) -> Option<&File> {
        // This deep, the path is in a circle of glob imports.
        if depth > 16 {
            return None;
        }
        let known = self.0.get(module)?;
        let (first, rest) = path.split_first()?;
        for name in known.names.get(first).into_iter().flatten() {
            let found = match name {
                Name::Item => Some(&known.file),
                Name::Module(child) if rest.is_empty() => Some(&self.0.get(child)?.file),
                Name::Module(child) => self.member(child, rest, depth + 1),
                Name::Import(path) if path.first() == Some(first) && path.len() == 1 => None,
                Name::Import(import) => {
                    let whole = [&import[..], rest].concat();
                    self.defined_elsewhere(module, first, &whole, depth + 1)
                }
            };
            if found.is_some() {
                return found;
            }
        }
        let globs = known.globs.iter();
        let mut found = globs.filter_map(|glob| {
            let whole = [&glob[..], path].concat();
            self.defined(module, &whole, depth + 1)
        });
        found.next()
    }

    /// The file that defines what a module imports by this name.
    fn imported(&self, module: &[String], name: &str) -> Option<&File> {
        let names = self.0.get(module)?.names.get(name)?;
        let is_import = |name: &Name| matches!(name, Name::Import(_));
        let is_imported = names.iter().any(is_import);
        is_imported.then(|| self.file(module, &[name.to_owned()]))?
    }

    /// An import may have the name of a crate, as `redis` has: then its path means the crate, and not the import itself.
    fn defined_elsewhere(
        &self,
        module: &[String],
        name: &str,
        path: &[String],
        depth: usize,
    ) -> Option<&File> {
        let means_itself = path.first().is_some_and(|first| first == name);
        let is_module = |name: &Name| matches!(name, Name::Module(_));
        let names = self.0.get(module)?.names.get(name)?;
        if means_itself && !names.iter().any(is_module) {
            return None;
        }
        self.defined(module, path, depth)
    }
}

/// One file of the sources.
struct Parsed {
    file: File,
    path: Vec<String>,
    items: Vec<Item>,
}

/// One path as it is written in a file.
struct Mention {
    module: Vec<String>,
    line: usize,
    path: Vec<String>,
    is_exported: bool,
    /// The name that it has here, if it is in a `use`; `*` for all names.
    import: Option<String>,
}

/// Collects the paths of a file.
struct Mentions {
    module: Vec<String>,
    found: Vec<Mention>,
}

impl Mentions {
    fn take(&mut self, tree: &UseTree, before: &[String], is_exported: bool) {
        let (name, shown, line) = match tree {
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
            UseTree::Name(name) => (&name.ident, &name.ident, name.span()),
            UseTree::Rename(name) => (&name.ident, &name.rename, name.span()),
            UseTree::Glob(glob) => {
                self.push(
                    before.to_vec(),
                    glob.span(),
                    is_exported,
                    Some("*".to_owned()),
                );
                return;
            }
        };
        let mut path = before.to_vec();
        let mut shown = shown.unraw().to_string();
        if name == "self" {
            shown = before.last().cloned().unwrap_or(shown);
        } else {
            path.push(name.unraw().to_string());
        }
        self.push(path, line, is_exported, Some(shown));
    }

    fn push(
        &mut self,
        path: Vec<String>,
        at: proc_macro2::Span,
        is_exported: bool,
        import: Option<String>,
    ) {
        self.found.push(Mention {
            module: self.module.clone(),
            line: at.start().line,
            path,
            is_exported,
            import,
        });
    }

    /// Paths among the tokens of a macro.
    fn take_tokens(&mut self, tokens: TokenStream) {
        let mut path = Vec::new();
        let mut start = None;
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if colons == 2 && !path.is_empty() => {
                    path.push(ident.unraw().to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                }
                other => {
                    self.end_of_path(&mut path, start);
                    colons = 0;
                    match other {
                        TokenTree::Ident(ident) => {
                            start = Some(ident.span());
                            path.push(ident.unraw().to_string());
                        }
                        TokenTree::Group(group) => self.take_tokens(group.stream()),
                        _ => {}
                    }
                }
            }
        }
        self.end_of_path(&mut path, start);
    }

    fn end_of_path(&mut self, path: &mut Vec<String>, start: Option<proc_macro2::Span>) {
        let path = std::mem::take(path);
        if let Some(start) = start
            && path.len() > 1
        {
            self.push(path, start, false, None);
        }
    }
}

impl<'ast> Visit<'ast> for Mentions {
    fn visit_item(&mut self, item: &'ast Item) {
        if !attributes_of(item).is_some_and(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_exported = !matches!(item.vis, Visibility::Inherited);
        self.take(&item.tree, &[], is_exported);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<_> = path
            .segments
            .iter()
            .map(|segment| segment.ident.unraw().to_string())
            .collect();
        if words.len() > 1 {
            self.push(words, path.span(), false, None);
        }
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

fn name_of(item: &Item) -> Option<&Ident> {
    Some(match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    })
}

fn file_of(source: &Path, module: &[String]) -> File {
    let path = module.join("/");
    let as_folder = format!("{path}/mod.rs");
    if source.join(&as_folder).exists() {
        as_folder
    } else {
        format!("{path}.rs")
    }
}

/// All arrows between two files, and those out of the crate that name a crate `redis`.
fn arrows() -> (Vec<Arrow>, Vec<Arrow>) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock-core/src");
    let (mut modules, mut files) = (Modules::default(), Vec::new());
    modules.read(&source, "lib.rs", Vec::new(), &mut files);
    let mut mentioned = Vec::new();
    for Parsed { file, path, items } in &files {
        let mut mentions = Mentions {
            module: path.clone(),
            found: Vec::new(),
        };
        for item in items {
            mentions.visit_item(item);
        }
        mentioned.extend(mentions.found.into_iter().map(|mention| (file, mention)));
    }
    for (_, mention) in &mentioned {
        let module = modules.0.get_mut(&mention.module).expect("a module");
        match mention.import.as_deref() {
            Some("*") => module.globs.push(mention.path.clone()),
            Some(name) => {
                let import = Name::Import(mention.path.clone());
                module
                    .names
                    .entry(name.to_owned())
                    .or_default()
                    .push(import);
            }
            None => {}
        }
    }
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for (file, mention) in &mentioned {
        // The table of contents.
        if *file == "lib.rs" {
            continue;
        }
        let arrow = |to: &str| Arrow {
            from: (*file).clone(),
            line: mention.line,
            path: mention.path.join("::"),
            to: to.to_owned(),
        };
        match modules.file(&mention.module, &mention.path) {
            Some(to) if to == *file || (mention.is_exported && is_below(to, file)) => {}
            // The first word of the path was imported: the arrow is the import.
            Some(to)
                if mention.import.is_none()
                    && modules.imported(&mention.module, &mention.path[0]) == Some(to) => {}
            Some(to) => inside.push(arrow(to)),
            None if mention.path[0] == "redis" => outside.push(arrow("")),
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
