//! Compares the public interface of lock-core with a list that is checked in, so that the list shows each change.
//!
//! `BLESS=1` rewrites the list. It is read from the sources, without a build, so it has no auto traits, and no items that a macro
//! writes. It has an `impl` if that names a public type or trait and no private one.

use std::{collections::BTreeSet, env, fs};

use quote::{ToTokens, quote};
use syn::{
    Attribute, Fields, Ident, ImplItem, Item, ItemImpl, ItemTrait, Meta, TraitItem, UseTree,
    Visibility,
};

use crate::files::{below, read, read_at, root};

const LIST: &str = "tests/sources/public_interface.txt";

/// The folder of the items that only the output of the attributes calls.
const NOT_FOR_USERS: &str = "lock_core::private";

/// The folder of the support for other crates, many of which have a type `Response`.
const INTEGRATIONS: &str = "lock_core::integrations";

/// The items of lock-core.
#[derive(Default)]
struct Crate {
    /// Each item with the path of its module.
    items: Vec<(String, Item)>,
    /// The paths of public modules.
    modules: BTreeSet<String>,
}

impl Crate {
    fn read() -> Self {
        let source = root().join("lock-core/src");
        let mut found = Self::default();
        found.modules.insert("lock_core".to_owned());
        for path in below(&source, "rs") {
            let file = path.strip_prefix(&source).expect("below it");
            let file = file.to_str().expect("a path in UTF-8");
            let parsed = syn::parse_file(&read_at(&path));
            let parsed = parsed.unwrap_or_else(|error| panic!("{file}: {error}"));
            found.add_all(parsed.items, &module_of(file));
        }
        found
    }

    fn add_all(&mut self, items: Vec<Item>, module: &str) {
        for item in items {
            match item {
                Item::Mod(item) if is_left_out(&item.attrs) => {}
                Item::Mod(item) => {
                    let module = format!("{module}::{}", item.ident);
                    if is_public(&item.vis) {
                        self.modules.insert(module.clone());
                    }
                    self.add_all(item.content.unwrap_or_default().1, &module);
                }
                _ if module.starts_with(NOT_FOR_USERS) => {}
                item => self.items.push((module.to_owned(), item)),
            }
        }
    }
}

/// A line for each item, with its conditions and its derived traits at the end.
#[derive(Default)]
struct Interface {
    lines: BTreeSet<String>,
    /// The names that users can write.
    public: BTreeSet<String>,
    /// The names of the other types, and of the other traits.
    private_types: BTreeSet<String>,
    private_traits: BTreeSet<String>,
}

impl Interface {
    fn read() -> Self {
        let Crate { items, modules } = Crate::read();
        let mut interface = Self::default();
        for (module, item) in &items {
            if modules.contains(module) {
                interface.add_paths(module, item);
            }
        }
        for (_, item) in &items {
            let name = type_in(item).map(|(name, _)| name.to_string());
            let private = match item {
                Item::Trait(_) => &mut interface.private_traits,
                _ => &mut interface.private_types,
            };
            private.extend(name.filter(|name| !interface.public.contains(name)));
        }
        for (module, item) in &items {
            interface.add(module, item);
        }
        interface
    }

    /// Adds the names that an item of a public module has there.
    fn add_paths(&mut self, module: &str, item: &Item) {
        let mut names = Vec::new();
        match item {
            Item::Use(item) if is_public(&item.vis) && !is_left_out(&item.attrs) => {
                collect_leaves(&item.tree, &mut names);
            }
            item => names.extend(
                type_in(item)
                    .filter(|(_, vis)| is_public(vis))
                    .map(|(name, _)| name.clone()),
            ),
        }
        for name in names {
            self.lines.insert(format!("use {module}::{name}"));
            self.public.insert(name.to_string());
        }
    }

    fn add(&mut self, module: &str, item: &Item) {
        let is_public = |name: &Ident, vis: &Visibility| {
            is_public(vis) && self.public.contains(&name.to_string())
        };
        match item {
            Item::Impl(item) => self.add_impl(item, module),
            Item::Fn(item) if is_public(&item.sig.ident, &item.vis) => {
                self.line(&item.attrs, tidy(&item.sig));
            }
            Item::Macro(item)
                if item
                    .attrs
                    .iter()
                    .any(|own| own.path().is_ident("macro_export")) =>
            {
                self.line(&item.attrs, format!("macro {}", tidy(&item.ident)));
            }
            item => {
                if let Some((name, vis)) = type_in(item)
                    && is_public(name, vis)
                {
                    self.add_type(item);
                }
            }
        }
    }

    fn add_type(&mut self, item: &Item) {
        match item {
            Item::Type(item) => {
                let (name, generics) = (&item.ident, &item.generics);
                self.line(&item.attrs, tidy(&quote!(type #name #generics)));
            }
            Item::Struct(item) => {
                let (name, generics) = (&item.ident, &item.generics);
                self.line(&item.attrs, tidy(&quote!(struct #name #generics)));
                self.add_fields(&name.to_string(), &item.fields, is_public);
            }
            Item::Enum(item) => {
                let (name, generics) = (&item.ident, &item.generics);
                self.line(&item.attrs, tidy(&quote!(enum #name #generics)));
                for variant in &item.variants {
                    let owner = format!("{name}::{}", variant.ident);
                    self.line(&variant.attrs, owner.clone());
                    self.add_fields(&owner, &variant.fields, |_| true);
                }
            }
            Item::Trait(item) => self.add_trait(item),
            _ => {}
        }
    }

    fn add_fields(&mut self, owner: &str, fields: &Fields, is_shown: impl Fn(&Visibility) -> bool) {
        for (name, field) in fields.members().zip(fields) {
            if is_shown(&field.vis) {
                let field_type = tidy(&field.ty);
                self.line(
                    &field.attrs,
                    format!("{owner}::{}: {field_type}", tidy(&name)),
                );
            }
        }
    }

    fn add_trait(&mut self, item: &ItemTrait) {
        let (name, generics, bounds) = (&item.ident, &item.generics, &item.supertraits);
        let bounds = (!bounds.is_empty()).then(|| quote!(: #bounds));
        self.line(&item.attrs, tidy(&quote!(trait #name #generics #bounds)));
        for member in &item.items {
            match member {
                TraitItem::Fn(member) => {
                    self.line(&member.attrs, format!("{name}: {}", tidy(&member.sig)));
                }
                TraitItem::Type(member) => {
                    self.line(&[], format!("{name}: type {}", tidy(&member.ident)));
                }
                _ => {}
            }
        }
    }

    fn add_impl(&mut self, item: &ItemImpl, module: &str) {
        let (generics, of, bounds) = (&item.generics, &item.self_ty, &item.generics.where_clause);
        let implemented = item.trait_.as_ref().map(|(implemented, _)| implemented);
        let (of_type, of_trait) = (names_in(of), names_in(&implemented));
        let is_ours = |names: &BTreeSet<_>| !names.is_disjoint(&self.public);
        if !(is_ours(&of_type) || is_ours(&of_trait))
            || !of_type.is_disjoint(&self.private_types)
            || !of_trait.is_disjoint(&self.private_traits)
        {
            return;
        }
        if let Some(implemented) = implemented {
            let mut line = tidy(&quote!(impl #generics #implemented for #of #bounds));
            if let Some(integration) = module.strip_prefix(INTEGRATIONS) {
                line += " in ";
                line += integration.trim_start_matches("::");
            }
            return self.line(&item.attrs, line);
        }
        for member in &item.items {
            if let ImplItem::Fn(member) = member
                && is_public(&member.vis)
            {
                self.line(
                    &member.attrs,
                    format!("{}: {}", tidy(of), tidy(&member.sig)),
                );
            }
        }
    }

    fn line(&mut self, attributes: &[Attribute], mut line: String) {
        if is_left_out(attributes) {
            return;
        }
        for attribute in attributes {
            let shown = ["cfg", "derive", "non_exhaustive"];
            if shown.iter().any(|name| attribute.path().is_ident(name)) {
                line += " ";
                line += &tidy(attribute);
            }
        }
        self.lines.insert(line);
    }
}

/// The path of the module that a file holds.
fn module_of(file: &str) -> String {
    let module = file.trim_end_matches(".rs").trim_end_matches("/mod");
    match module {
        "lib" => "lock_core".to_owned(),
        _ => format!("lock_core::{}", module.replace('/', "::")),
    }
}

/// Returns the name and the visibility of a type or trait.
fn type_in(item: &Item) -> Option<(&Ident, &Visibility)> {
    Some(match item {
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        _ => return None,
    })
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Returns whether an item is hidden from users, or part of a test.
fn is_left_out(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("doc") => list.tokens.to_string() == "hidden",
        Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string() == "test",
        _ => false,
    })
}

/// Collects the names that a `use` makes.
fn collect_leaves(tree: &UseTree, names: &mut Vec<Ident>) {
    match tree {
        UseTree::Path(path) => collect_leaves(&path.tree, names),
        UseTree::Group(group) => group
            .items
            .iter()
            .for_each(|tree| collect_leaves(tree, names)),
        UseTree::Name(name) => names.push(name.ident.clone()),
        UseTree::Rename(name) => names.push(name.rename.clone()),
        UseTree::Glob(_) => {}
    }
}

fn names_in(tokens: &impl ToTokens) -> BTreeSet<String> {
    let text = tokens.to_token_stream().to_string();
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.map(str::to_owned).collect()
}

/// Writes tokens without most of the spaces between them.
fn tidy(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for glued in ["::", "<", "(", "[", "#", "&", "'", "!", "?"] {
        text = text.replace(&format!("{glued} "), glued);
    }
    for glued in ["::", "<", ">", "(", ")", "[", "]", ",", ":", "!"] {
        text = text.replace(&format!(" {glued}"), glued);
    }
    for (wrong, right) in [("->(", "-> ("), (" for(", " for (")] {
        text = text.replace(wrong, right);
    }
    text.replace(",)", ")")
        .trim()
        .trim_end_matches(',')
        .to_owned()
}

#[test]
fn the_public_interface_matches_the_list() {
    let now = Interface::read().lines;
    if env::var_os("BLESS").is_some() {
        let lines: Vec<&str> = now.iter().map(String::as_str).collect();
        fs::write(root().join(LIST), lines.join("\n") + "\n").expect("a file");
    }
    let listed = read(LIST);
    let listed: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    let new: Vec<_> = now.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&now).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "new: {new:#?}\ngone: {gone:#?}\nIf the change is intended, BLESS=1 rewrites the list"
    );
}
