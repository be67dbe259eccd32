//! Reads from the sources what lock-core exports: the names at its root and in its public modules.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{
    Attribute, Ident, Item, ItemImpl, ItemMod, Meta, UseTree, Visibility,
    ext::IdentExt as _,
    parse_quote,
    visit_mut::{self, VisitMut},
};

use crate::files::{below, has_extension, root};

/// The items of the crate that have an exported name, and the `impl` blocks between such items, or between one and other crates.
/// In no particular order.
pub(crate) fn items() -> Vec<Item> {
    let names = names();
    let mut found = Vec::new();
    for path in rust_sources() {
        collect_items(&names, parse(&path).items, &mut found);
    }
    found
}

fn collect_items(names: &BTreeMap<String, String>, items: Vec<Item>, found: &mut Vec<Item>) {
    let known = Known::of(names, &items);
    for mut item in items {
        let is_exported = match &mut item {
            Item::Mod(ItemMod {
                attrs,
                content: Some((_, items)),
                ..
            }) => {
                if !is_for_tests(attrs) {
                    collect_items(names, std::mem::take(items), found);
                }
                false
            }
            Item::Macro(item) => {
                let mut attributes = item.attrs.iter();
                attributes.any(|attribute| attribute.path().is_ident("macro_export"))
            }
            Item::Impl(item) => known.completes(item),
            other => public_name(other).is_some_and(|name| known.exports(&name)),
        };
        if is_exported {
            found.push(item);
        }
    }
}

/// What the names in a module mean.
struct Known<'a> {
    exported: &'a BTreeMap<String, String>,
    defined: BTreeSet<String>,
    /// The whole path of each name that is imported.
    imported: BTreeMap<String, Vec<String>>,
}

impl<'a> Known<'a> {
    fn of(exported: &'a BTreeMap<String, String>, items: &[Item]) -> Self {
        let mut imported = BTreeMap::new();
        for item in items {
            if let Item::Use(item) = item {
                collect(&item.tree, &[], &mut |name, path| {
                    imported.insert(name, path);
                });
            }
        }
        Self {
            exported,
            defined: items.iter().filter_map(name_of).collect(),
            imported,
        }
    }

    fn exports(&self, name: &str) -> bool {
        self.exported.get(name).is_some_and(|from| from != MACROS)
    }

    /// Writes the type and the trait of an `impl` by their whole paths, and those of this crate by their names. Returns whether
    /// users see the `impl`: one of the names is exported, and none is private to the crate.
    fn completes(&self, item: &mut ItemImpl) -> bool {
        let mut paths = WholePaths {
            known: self,
            ours: Vec::new(),
        };
        paths.visit_type_mut(&mut item.self_ty);
        if let Some((implemented, _)) = &mut item.trait_ {
            paths.visit_path_mut(implemented);
        }
        !paths.ours.is_empty() && paths.ours.iter().all(|name| self.exports(name))
    }

    /// The whole path to which the first name of a path leads, and whether it leads into this crate.
    fn path_of(&self, first: &str) -> (Vec<String>, bool) {
        let path = match self.imported.get(first) {
            Some(path) => path.clone(),
            None => vec![first.to_owned()],
        };
        let is_ours =
            ["crate", "self", "super"].contains(&&*path[0]) || self.defined.contains(&path[0]);
        (path, is_ours)
    }
}

/// Replaces paths by whole ones.
struct WholePaths<'a> {
    known: &'a Known<'a>,
    /// The names of this crate's own items that were met.
    ours: Vec<String>,
}

impl VisitMut for WholePaths<'_> {
    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        visit_mut::visit_path_mut(self, path);
        let first = path.segments[0].ident.unraw().to_string();
        let (whole, is_ours) = self.known.path_of(&first);
        if is_ours {
            let mut last = path.segments.pop().expect("a path has a name");
            // Of an import the path has only the name that it has here, which may be another one.
            if path.segments.is_empty() {
                let own = whole.last().expect("a path has a name");
                last.ident = Ident::new(own, last.ident.span());
            }
            self.ours.push(last.ident.to_string());
            *path = last.into();
        } else if whole.len() > 1 {
            let words = whole
                .iter()
                .map(|word| Ident::new(word, path.segments[0].ident.span()));
            let arguments = path.segments[0].arguments.clone();
            let rest = path.segments.iter().skip(1);
            let mut replaced: syn::Path = parse_quote!(#(#words)::*);
            if let Some(last) = replaced.segments.last_mut() {
                last.arguments = arguments;
            }
            replaced.segments.extend(rest.cloned());
            *path = replaced;
        }
    }
}

/// The crate of the macros, some of which are exported, too.
pub(crate) const MACROS: &str = "lock_macros";

/// A name that users can write.
struct Exported {
    name: String,
    /// The public module that has it; `None` of the root.
    module: Option<String>,
    /// The module or crate that it comes from.
    from: String,
}

fn exported() -> Vec<Exported> {
    let mut all = Vec::new();
    for item in parse(&sources().join("lib.rs")).items {
        match item {
            Item::Use(item) if is_public(&item.vis) => {
                collect(&item.tree, &[], &mut |name, path| {
                    let from = path[0].clone();
                    let module = None;
                    all.push(Exported { name, module, from });
                });
            }
            Item::Mod(item)
                if is_public(&item.vis) && !HIDDEN.contains(&&*item.ident.to_string()) =>
            {
                let from = item.ident.to_string();
                all.extend(names_in(&item).into_iter().map(|name| Exported {
                    name,
                    module: Some(from.clone()),
                    from: from.clone(),
                }));
            }
            _ => {}
        }
    }
    all
}

/// The names that users can write, and the module or crate that each comes from.
pub(crate) fn names() -> BTreeMap<String, String> {
    let all = exported().into_iter();
    all.map(|one| (one.name, one.from)).collect()
}

/// The whole paths of these names.
pub(crate) fn paths() -> BTreeSet<String> {
    let all = exported().into_iter();
    all.map(|Exported { name, module, .. }| match module {
        Some(module) => format!("lock_core::{module}::{name}"),
        None => format!("lock_core::{name}"),
    })
    .collect()
}

/// Calls `found` with each name that a `use` makes, and its whole path.
fn collect(tree: &UseTree, before: &[String], found: &mut impl FnMut(String, Vec<String>)) {
    let to = |name: &Ident| [before, &[name.unraw().to_string()]].concat();
    match tree {
        UseTree::Path(path) => collect(&path.tree, &to(&path.ident), found),
        UseTree::Group(group) => {
            for tree in &group.items {
                collect(tree, before, found);
            }
        }
        UseTree::Name(name) if name.ident == "self" => {
            let name = before.last().expect("a module before `self`");
            found(name.clone(), before.to_vec());
        }
        UseTree::Name(name) => found(name.ident.unraw().to_string(), to(&name.ident)),
        UseTree::Rename(name) => found(name.rename.to_string(), to(&name.ident)),
        UseTree::Glob(_) => {}
    }
}

/// The public modules without items of ours that users name.
const HIDDEN: [&str; 3] = ["__private", "__simulation", "redis"];

/// The names in a public module: of its items, or those that it exports from another one.
fn names_in(module: &ItemMod) -> Vec<String> {
    let items = if let Some((_, items)) = &module.content {
        items.clone()
    } else {
        let file = sources().join(module.ident.to_string());
        let files = [file.with_extension("rs"), file.join("mod.rs")];
        let file = files.into_iter().find(|file| file.is_file());
        parse(&file.expect("the file of the module")).items
    };
    let mut names = Vec::new();
    for item in items {
        match item {
            Item::Use(item) if is_public(&item.vis) => {
                collect(&item.tree, &[], &mut |name, _| names.push(name));
            }
            item => names.extend(public_name(&item)),
        }
    }
    names
}

/// The name of an item that another crate could use, if its module is public.
fn public_name(item: &Item) -> Option<String> {
    let visibility = match item {
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        _ => return None,
    };
    is_public(visibility).then(|| name_of(item)).flatten()
}

fn name_of(item: &Item) -> Option<String> {
    Some(match item {
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        _ => return None,
    })
}

pub(crate) fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Whether an item is hidden: not for users, and not promised.
pub(crate) fn is_hidden(attribute: &Attribute) -> bool {
    matches!(&attribute.meta, Meta::List(list)
        if list.path.is_ident("doc") && list.tokens.to_string() == "hidden")
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<Ident>()
                .is_ok_and(|condition| condition == "test")
    })
}

fn sources() -> PathBuf {
    root().join("lock-core/src")
}

fn rust_sources() -> Vec<PathBuf> {
    let mut files = below(&sources());
    files.retain(|path| has_extension(path, "rs"));
    files
}

fn parse(path: &Path) -> syn::File {
    let text = fs::read_to_string(path).expect("a source");
    syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
