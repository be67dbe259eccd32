//! One name for each type of lock-core, and for each file of its stores.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::files::{below, root};
use syn::{Ident, Item, ItemMod, visit::Visit};

/// The names of files that say what the file is for its folder.
const ROLES: &[&str] = &["mod.rs", "model.rs", "tests.rs"];

/// Collects the types that a file defines for more than its tests.
#[derive(Default)]
struct Types(BTreeSet<String>);

impl<'ast> Visit<'ast> for Types {
    fn visit_item(&mut self, item: &'ast Item) {
        let name: &Ident = match item {
            Item::Enum(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Mod(item) => return self.visit_item_mod(item),
            _ => return,
        };
        self.0.insert(name.to_string());
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.ident != "tests" && item.ident != "model" {
            syn::visit::visit_item_mod(self, item);
        }
    }
}

/// All files below a folder.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    let paths = below(folder).into_iter();
    let names = paths.map(|path| path.into_os_string().into_string());
    names.map(|name| name.expect("a name of ours")).collect()
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_for_tests(path: &str) -> bool {
    let folders = ["/model/", "/interleavings/"];
    let files = ["model.rs", "tests.rs", "crate_facts.rs"];
    folders.iter().any(|folder| path.contains(folder)) || files.contains(&name(path))
}

/// The names that stand in two places.
fn doubled(places: &BTreeMap<String, Vec<String>>) -> String {
    let doubled = places.iter().filter(|(_, places)| places.len() > 1);
    let lines = doubled.map(|(name, places)| format!("\n{name}: {}", places.join(", ")));
    lines.collect()
}

fn sources() -> Vec<String> {
    let mut files = files(&root().join("lock-core/src"));
    files.retain(|path| !is_for_tests(path));
    files
}

#[test]
fn no_two_types_have_one_name() {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    let is_rust = |path: &str| Path::new(path).extension().is_some_and(|end| end == "rs");
    for path in sources().into_iter().filter(|path| is_rust(path)) {
        let text = fs::read_to_string(&path).expect("a source");
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut types = Types::default();
        types.visit_file(&parsed);
        for name in types.0 {
            places.entry(name).or_default().push(path.clone());
        }
    }
    let doubled = doubled(&places);
    assert!(doubled.is_empty(), "{doubled}");
}

#[test]
fn no_two_files_of_the_stores_have_one_name() {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    let stores = sources().into_iter();
    for path in stores.filter(|path| path.contains("/src/store/")) {
        if !ROLES.contains(&name(&path)) {
            places.entry(name(&path).to_owned()).or_default().push(path);
        }
    }
    let doubled = doubled(&places);
    assert!(doubled.is_empty(), "{doubled}");
}
