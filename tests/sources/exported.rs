//! Reads from the sources what lock-core exports from its root.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use quote::ToTokens as _;
use syn::{Ident, Item, ItemImpl, ItemMod, Type, UseTree, Visibility};

/// The items of the crate that have an exported name, and the `impl` blocks for or of them. In no particular order.
pub(crate) fn items() -> Vec<Item> {
    let names = names();
    let is_exported =
        |name: &Ident| matches!(names.get(&name.to_string()), Some(from) if from != MACROS);
    let items = files(&root())
        .into_iter()
        .flat_map(|path| parse(&path).items);
    let exported = items.filter(|item| match item {
        Item::Fn(item) => is_public(&item.vis) && is_exported(&item.sig.ident),
        Item::Struct(item) => is_public(&item.vis) && is_exported(&item.ident),
        Item::Enum(item) => is_public(&item.vis) && is_exported(&item.ident),
        Item::Trait(item) => is_public(&item.vis) && is_exported(&item.ident),
        Item::Type(item) => is_public(&item.vis) && is_exported(&item.ident),
        Item::Macro(item) => {
            let mut attributes = item.attrs.iter();
            attributes.any(|attribute| attribute.path().is_ident("macro_export"))
        }
        Item::Impl(item) => named_by(item).any(is_exported),
        _ => false,
    });
    exported.collect()
}

/// The crate of the macros, some of which are exported, too.
pub(crate) const MACROS: &str = "lock_macros";

/// The names in the `pub use` of the crate's root, and the module or crate that each comes from.
pub(crate) fn names() -> BTreeMap<String, String> {
    fn collect(tree: &UseTree, from: &str, names: &mut BTreeMap<String, String>) {
        match tree {
            UseTree::Path(path) if from.is_empty() => {
                collect(&path.tree, &path.ident.to_string(), names);
            }
            UseTree::Path(path) => collect(&path.tree, from, names),
            UseTree::Group(group) => {
                let trees = group.items.iter();
                trees.for_each(|tree| collect(tree, from, names));
            }
            UseTree::Name(name) => drop(names.insert(name.ident.to_string(), from.to_owned())),
            UseTree::Rename(_) | UseTree::Glob(_) => panic!("an export without a name of its own"),
        }
    }
    let mut names = BTreeMap::new();
    for item in parse(&root().join("lib.rs")).items {
        match item {
            Item::Use(item) if is_public(&item.vis) => collect(&item.tree, "", &mut names),
            Item::Mod(item)
                if is_public(&item.vis) && !HIDDEN.contains(&&*item.ident.to_string()) =>
            {
                names.extend(names_in(&item).map(|name| (name, item.ident.to_string())));
            }
            _ => {}
        }
    }
    names
}

/// The public modules without items of ours that users name.
const HIDDEN: [&str; 3] = ["__private", "__simulation", "redis"];

/// The names in a public module: of its items, or those that it exports from another one.
fn names_in(module: &ItemMod) -> impl Iterator<Item = String> {
    let items = if let Some((_, items)) = &module.content {
        items.clone()
    } else {
        let file = root().join(module.ident.to_string());
        let files = [file.with_extension("rs"), file.join("mod.rs")];
        let file = files.into_iter().find(|file| file.is_file());
        parse(&file.expect("the file of the module")).items
    };
    items.into_iter().filter_map(|item| match item {
        Item::Struct(item) => is_public(&item.vis).then(|| item.ident.to_string()),
        Item::Enum(item) => is_public(&item.vis).then(|| item.ident.to_string()),
        Item::Trait(item) => is_public(&item.vis).then(|| item.ident.to_string()),
        Item::Use(item) if is_public(&item.vis) => {
            let path = item.tree.to_token_stream().to_string();
            path.rsplit(' ').next().map(str::to_owned)
        }
        _ => None,
    })
}

pub(crate) fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// The names of the type that an `impl` is for, and of its trait.
fn named_by(item: &ItemImpl) -> impl Iterator<Item = &Ident> {
    let of = match &*item.self_ty {
        Type::Path(path) => Some(&path.path),
        _ => None,
    };
    let implemented = item.trait_.as_ref().map(|(path, _)| path);
    let paths = of.into_iter().chain(implemented);
    paths.filter_map(|path| path.segments.last().map(|last| &last.ident))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock-core/src")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn parse(path: &Path) -> syn::File {
    let text = fs::read_to_string(path).expect("a source");
    syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
