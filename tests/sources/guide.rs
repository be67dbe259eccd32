//! The guide of lock-core and its packaged README, which are made from the pages of the project. Their links must work in the package
//! alone.
//!
//! `BLESS=1` rewrites the packaged README and the drawn picture.

use std::{collections::BTreeMap, env, fs, process::Command};

use syn::{Expr, Item, ItemMod, LitStr, Meta};

use crate::{
    files::{below, read, read_at, root},
    manifests::packaged,
};
use markdown::{Link, with_links};

/// Shared with the macro that turns the pages into documentation.
#[path = "../../lock-macros/src/guide/links.rs"]
mod markdown;

/// The page on the code itself, which the package does not contain.
const NOT_FOR_USERS: &str = "design";

/// Compares a file with its expected text. With `BLESS=1`, writes it first.
fn assert_is(file: &str, expected: &str) {
    if env::var_os("BLESS").is_some() {
        fs::write(root().join(file), expected).expect("a folder that can be written");
    }
    assert!(
        read(file) == expected,
        "{file} is out of date: BLESS=1 rewrites it"
    );
}

/// Returns the part of the version that all compatible versions share, as docs.rs resolves it.
fn version() -> String {
    let numbers: Vec<_> = env!("CARGO_PKG_VERSION").split('.').collect();
    match numbers[..] {
        ["0", minor, _] => format!("0.{minor}"),
        [major, ..] => major.to_owned(),
        [] => panic!("no version"),
    }
}

/// Returns the beginning of the addresses of the guide's modules.
fn guide_address() -> String {
    format!("https://docs.rs/lock-core/{}/lock_core/guide/", version())
}

/// Returns the beginning of the addresses of the package's files.
fn file_address() -> String {
    format!("https://docs.rs/crate/lock-core/{}/source/", version())
}

/// Returns the modules of the guide, each with the file in the package that it shows.
fn modules() -> BTreeMap<String, String> {
    fn shown(module: &ItemMod) -> Option<String> {
        module.attrs.iter().find_map(|attribute| {
            let Meta::NameValue(pair) = &attribute.meta else {
                return None;
            };
            let Expr::Macro(expression) = &pair.value else {
                return None;
            };
            let file = expression.mac.parse_body::<LitStr>();
            file.ok().map(|file| file.value())
        })
    }
    let source = syn::parse_file(&read("lock-core/src/guide.rs")).expect("a source");
    let modules = source.items.into_iter().map(|item| {
        let Item::Mod(module) = item else {
            panic!("an item of the guide is not a module");
        };
        let file = shown(&module).expect("a page");
        (module.ident.to_string(), file)
    });
    modules.collect()
}

/// Returns a link of the README as the package has it. If the package lacks the file, only the text of the link is left.
fn packaged_link(link: &Link<'_>, modules: &BTreeMap<String, String>, files: &[String]) -> String {
    let (file, anchor) = link
        .target
        .find('#')
        .map_or((link.target, ""), |at| link.target.split_at(at));
    if file.is_empty() || file.contains("://") {
        link.to(link.target)
    } else if let Some((module, _)) = modules.iter().find(|(_, shown)| *shown == file) {
        link.to(&format!("{}{module}/index.html{anchor}", guide_address()))
    } else if link.is_picture && file == "docs/life.svg" {
        // The first page of the guide shows it. A registry shows pictures of a repository, but not those of a package.
        format!("[{}]({}index.html)", link.text, guide_address())
    } else if !link.is_picture && files.iter().any(|other| other == file) {
        link.to(&format!("{}{file}", file_address()))
    } else {
        link.text.to_owned()
    }
}

#[test]
fn the_packaged_readme_is_made_from_the_readme() {
    let (modules, files) = (modules(), packaged("lock-core"));
    let made = with_links(&read("README.md"), |link| {
        packaged_link(link, &modules, &files)
    });
    assert_is("lock-core/README.md", &made);
}

/// Returns the names of the pages in `docs/`.
fn pages() -> Vec<String> {
    let entries = fs::read_dir(root().join("docs")).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("a name in UTF-8"));
    names
        .filter(|name| matches!(name.split_once('.'), Some((page, "md")) if page != NOT_FOR_USERS))
        .collect()
}

#[test]
fn the_guide_has_each_page_for_users_and_the_front_page_names_it() {
    let (modules, files) = (modules(), packaged("lock-core"));
    let front = read("lock-core/src/lib.rs");
    let mut expected: Vec<_> = pages().iter().map(|name| format!("docs/{name}")).collect();
    expected.push("README.md".to_owned());
    expected.sort();
    let mut shown: Vec<_> = modules.values().cloned().collect();
    shown.sort();
    assert_eq!(shown, expected);
    for (module, file) in &modules {
        assert!(files.contains(file), "the package lacks {file}");
        let is_named = front.contains(&format!("](guide::{module})"));
        assert!(is_named, "the front page does not name {module}");
    }
}

#[test]
fn the_code_of_each_page_is_compiled() {
    let documents = read("tests/harness/documents.rs");
    let mut pages: Vec<_> = pages().iter().map(|name| format!("docs/{name}")).collect();
    pages.push("README.md".to_owned());
    let with_code = pages.iter().filter(|page| read(page).contains("```rust\n"));
    let with_code: Vec<_> = with_code.collect();
    assert!(with_code.len() > 4, "{with_code:?}");
    for page in with_code {
        let included = format!("#[doc = include_str!(\"../../{page}\")]");
        assert!(documents.contains(&included), "{page}");
    }
}

/// Code that needs crates which the tests lack must be an excerpt of a recipe, which `tests/run --all` compiles.
#[test]
fn code_that_is_not_compiled_in_its_page_is_part_of_a_recipe() {
    let words = |code: &str| code.split_whitespace().collect::<Vec<_>>().join(" ");
    let programs = below(&root().join("examples/recipes"), "rs");
    let programs: String = programs.iter().map(|path| read_at(path)).collect();
    let mut count = 0;
    for page in pages() {
        let page = read(&format!("docs/{page}"));
        for block in page.split("```rust,ignore\n").skip(1) {
            let (code, _) = block.split_once("```").expect("an end");
            count += 1;
            assert!(words(&programs).contains(&words(code)), "{code}");
        }
    }
    assert!(count > 3, "{count}");
}

#[test]
#[ignore = "needs Python: left to `tests/run --all`"]
fn the_picture_of_a_lock_is_what_its_program_draws() {
    let output = Command::new("python3")
        .arg(root().join("docs/life.py"))
        .output()
        .expect("python3");
    assert!(output.status.success(), "{output:?}");
    let picture = String::from_utf8(output.stdout).expect("text");
    assert!(picture.len() < 20_000, "{}", picture.len());
    assert_is("docs/life.svg", &picture);
}
