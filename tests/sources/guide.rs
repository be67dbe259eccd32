//! The guide of lock-core and its packaged README. Both are made from the pages of the project, and their links have to lead somewhere
//! from the package alone.
//!
//! `BLESS=1` writes the packaged README and the drawn picture anew.

use std::{collections::BTreeMap, env, fs, process::Command};

use syn::{Expr, Item, ItemMod, LitStr, Meta};

use crate::{
    files::{below, root},
    links::anchors,
    manifests::packaged,
};
use markdown::{Link, with_links};

/// The same for these tests as for the documentation that is made from the pages.
#[path = "../../lock-macros/src/guide/links.rs"]
mod markdown;

/// A page on the code itself, which the package does not have.
const NOT_FOR_USERS: &str = "design";

fn read(file: &str) -> String {
    let path = root().join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares a file with what it has to be. With `BLESS=1`, writes it.
fn assert_is(file: &str, expected: &str) {
    if env::var_os("BLESS").is_some() {
        fs::write(root().join(file), expected).expect("a folder that can be written");
    }
    assert!(
        read(file) == expected,
        "{file} is not what it is made from: BLESS=1 writes it anew"
    );
}

/// The part of the version that all compatible versions have, as docs.rs resolves it.
fn version() -> String {
    let numbers: Vec<_> = env!("CARGO_PKG_VERSION").split('.').collect();
    match numbers[..] {
        ["0", minor, _] => format!("0.{minor}"),
        [major, ..] => major.to_owned(),
        [] => panic!("no version"),
    }
}

/// The start of the addresses of the guide's modules.
fn guide_address() -> String {
    format!("https://docs.rs/lock-core/{}/lock_core/guide/", version())
}

/// The start of the addresses of the package's files.
fn file_address() -> String {
    format!("https://docs.rs/crate/lock-core/{}/source/", version())
}

/// The modules of the guide, each with the file in the package that it shows.
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
            panic!("an item of the guide that is no module");
        };
        let file = shown(&module).expect("a page");
        (module.ident.to_string(), file)
    });
    modules.collect()
}

/// The module that shows a page.
fn module_of(file: &str, modules: &BTreeMap<String, String>) -> Option<String> {
    let mut modules = modules.iter();
    let found = modules.find(|(_, shown)| *shown == file);
    found.map(|(module, _)| module.clone())
}

/// What becomes of a link of the README in the package. A file that the package does not have leaves the text of its link.
fn packaged_link(link: &Link<'_>, modules: &BTreeMap<String, String>, files: &[String]) -> String {
    let (file, anchor) = link
        .target
        .find('#')
        .map_or((link.target, ""), |at| link.target.split_at(at));
    if file.is_empty() || file.contains("://") {
        link.to(link.target)
    } else if let Some(module) = module_of(file, modules) {
        link.to(&format!("{}{module}/index.html{anchor}", guide_address()))
    } else if link.is_picture && file == "docs/life.svg" {
        // The first page of the guide shows it. A registry shows pictures of a repository, and not those of a package.
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

#[test]
fn each_link_of_the_packaged_readmes_leads_to_a_page_and_a_heading_or_to_a_file_of_the_package() {
    let (modules, files) = (modules(), packaged("lock-core"));
    let mut count = 0;
    for readme in ["lock-core/README.md", "lock-macros/README.md"] {
        let page = read(readme);
        with_links(&page, |link| {
            count += 1;
            let (address, anchor) = link.target.split_once('#').unwrap_or((link.target, ""));
            let shown = if address.is_empty() {
                Some(page.clone())
            } else if address == "https://docs.rs/lock-core" {
                None
            } else if let Some(file) = address.strip_prefix(&file_address()) {
                assert!(files.iter().any(|other| other == file), "{file}");
                None
            } else if let Some(module) = address.strip_prefix(&guide_address()) {
                let module = module.strip_suffix("index.html").expect("a page");
                let file = module.strip_suffix('/').map(|module| &modules[module]);
                file.map(|file| read(&format!("lock-core/{file}")))
            } else {
                panic!("{readme}: {} is relative, or leads elsewhere", link.target);
            };
            let headings = shown.map_or_else(Vec::new, |page| anchors(&page));
            let is_there = anchor.is_empty() || headings.iter().any(|other| other == anchor);
            assert!(is_there, "{readme}: no heading for {}", link.target);
            assert!(!link.is_picture, "{readme}: a picture");
            String::new()
        });
    }
    assert!(count > 20, "{count} links");
}

/// The pages in `docs/`, by their names.
fn pages() -> Vec<String> {
    let entries = fs::read_dir(root().join("docs")).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("a name of ours"));
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
    let harness = read("tests/harness/lib.rs");
    let mut pages: Vec<_> = pages().iter().map(|name| format!("docs/{name}")).collect();
    pages.push("README.md".to_owned());
    let with_code = pages.iter().filter(|page| read(page).contains("```rust\n"));
    let with_code: Vec<_> = with_code.collect();
    assert!(with_code.len() > 4, "{with_code:?}");
    for page in with_code {
        let included = format!("#[doc = include_str!(\"../../{page}\")]");
        assert!(harness.contains(&included), "{page}");
    }
}

/// Code that needs crates which the tests lack is an excerpt of a recipe, which `tests/run --all` compiles.
#[test]
fn code_that_is_not_compiled_in_its_page_is_part_of_a_recipe() {
    let words = |code: &str| code.split_whitespace().collect::<Vec<_>>().join(" ");
    let programs = below(&root().join("examples/recipes"));
    let programs = programs.iter().map(fs::read_to_string);
    let programs: String = programs.map(|text| text.expect("text")).collect();
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

#[test]
fn a_link_leads_into_the_package_or_is_text() {
    let modules = BTreeMap::from([("web".to_owned(), "docs/web.md".to_owned())]);
    let files = ["LICENSE-MIT".to_owned(), "docs/life.svg".to_owned()];
    let (guide, source) = (guide_address(), file_address());
    let page = "[a](docs/web.md#b) [c](#d) [e](LICENSE-MIT) [f](tests/run) ![g](docs/life.svg) ![h](i.png)";
    let made = with_links(page, |link| packaged_link(link, &modules, &files));
    assert_eq!(
        made,
        format!(
            "[a]({guide}web/index.html#b) [c](#d) [e]({source}LICENSE-MIT) f [g]({guide}index.html) h"
        )
    );
}
