//! Compares the public interface of lock-core with a list that is checked in, so that each change shows in the list.
//!
//! `BLESS=1` writes the list anew. It is read from the sources. So it has no auto traits, no items that a macro writes, and no
//! feature that a whole module needs. It has each `impl` by its whole type and trait, and none that names a private item.

use std::{collections::BTreeSet, env, fs, path::Path};

use quote::{ToTokens, quote};
use syn::{Attribute, Fields, Generics, Ident, ImplItem, Item, ItemImpl, ItemTrait, TraitItem};

use crate::exported;

const LIST: &str = "sources/public_interface.txt";

/// A line for each item, with its condition and its derived traits at the end.
#[derive(Default)]
struct Interface(BTreeSet<String>);

impl Interface {
    fn read() -> Self {
        let mut interface = Self::default();
        for item in exported::items() {
            interface.add(item);
        }
        for path in exported::paths() {
            interface.line(&[], format!("use {path}"));
        }
        for (name, from) in exported::names() {
            if from == exported::MACROS {
                interface.line(&[], format!("macro {name}"));
            }
        }
        interface
    }

    fn add(&mut self, item: Item) {
        match item {
            Item::Fn(item) => self.line(&item.attrs, tidy(&item.sig)),
            Item::Macro(item) => self.line(&item.attrs, format!("macro {}", tidy(&item.ident))),
            Item::Type(item) => self.kind(&item.attrs, "type", &item.ident, &item.generics),
            Item::Struct(item) => {
                self.kind(&item.attrs, "struct", &item.ident, &item.generics);
                self.fields(&item.ident, &item.fields);
            }
            Item::Enum(item) => {
                self.kind(&item.attrs, "enum", &item.ident, &item.generics);
                for variant in &item.variants {
                    self.line(&variant.attrs, format!("{}::{}", item.ident, variant.ident));
                    self.fields_of_variant(&item.ident, &variant.ident, &variant.fields);
                }
            }
            Item::Trait(item) => self.of_trait(&item),
            Item::Impl(item) => self.of_impl(&item),
            _ => {}
        }
    }

    fn kind(&mut self, attributes: &[Attribute], kind: &str, name: &Ident, generics: &Generics) {
        self.line(
            attributes,
            format!("{kind} {}", tidy(&quote!(#name #generics))),
        );
    }

    fn fields(&mut self, owner: &Ident, fields: &Fields) {
        for (name, field) in fields.members().zip(fields) {
            if exported::is_public(&field.vis) {
                let field_type = tidy(&field.ty);
                self.line(
                    &field.attrs,
                    format!("{owner}::{}: {field_type}", tidy(&name)),
                );
            }
        }
    }

    fn fields_of_variant(&mut self, owner: &Ident, variant: &Ident, fields: &Fields) {
        for (name, field) in fields.members().zip(fields) {
            let (name, field_type) = (tidy(&name), tidy(&field.ty));
            self.line(
                &field.attrs,
                format!("{owner}::{variant}::{name}: {field_type}"),
            );
        }
    }

    fn of_trait(&mut self, item: &ItemTrait) {
        let (name, bounds) = (&item.ident, &item.supertraits);
        self.kind(&item.attrs, "trait", name, &item.generics);
        for bound in bounds {
            self.line(&[], format!("trait {name}: {}", tidy(bound)));
        }
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

    fn of_impl(&mut self, item: &ItemImpl) {
        let (generics, of) = (&item.generics, &item.self_ty);
        let bounds = &generics.where_clause;
        if let Some((implemented, _)) = &item.trait_ {
            let head = quote!(impl #generics #implemented for #of #bounds);
            return self.line(&item.attrs, tidy(&head));
        }
        for member in &item.items {
            if let ImplItem::Fn(member) = member
                && exported::is_public(&member.vis)
            {
                self.line(
                    &member.attrs,
                    format!("{}: {}", tidy(of), tidy(&member.sig)),
                );
            }
        }
    }

    fn line(&mut self, attributes: &[Attribute], mut line: String) {
        if attributes.iter().any(exported::is_hidden) {
            return;
        }
        for attribute in attributes {
            let shown = ["cfg", "derive", "non_exhaustive"];
            if shown.iter().any(|name| attribute.path().is_ident(name)) {
                line += " ";
                line += &tidy(attribute);
            }
        }
        self.0.insert(line);
    }
}

/// Tokens without most of the spaces between them.
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
fn the_public_interface_is_the_one_that_is_written_down() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(LIST);
    let now = Interface::read().0;
    if env::var_os("BLESS").is_some() {
        let lines: Vec<&str> = now.iter().map(String::as_str).collect();
        fs::write(&path, lines.join("\n") + "\n").expect("a file");
    }
    let written = fs::read_to_string(&path).expect("a list");
    let written: BTreeSet<String> = written.lines().map(str::to_owned).collect();
    let new: Vec<_> = now.difference(&written).collect();
    let gone: Vec<_> = written.difference(&now).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "new: {new:#?}\ngone: {gone:#?}\nIf that is meant, write it down: BLESS=1"
    );
}
