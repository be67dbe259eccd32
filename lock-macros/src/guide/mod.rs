//! Module documentation, made from a page of the project.
//!
//! In a checkout the links of a page lead from file to file. In the documentation they must lead from module to module, and
//! pictures must be part of the text. This is done while the documentation is built, so that each page exists once.

use std::{fmt::Write as _, fs, path::Path};

use crate::guide::links::{Link, with_links};

mod links;

/// The beginning of the addresses of the guide in the packaged README, for readers outside of the documentation.
const ADDRESS: &str = "https://docs.rs/lock-core/";

/// The beginning of the addresses of the package's files.
const FILES: &str = "https://docs.rs/crate/lock-core/";

/// A page that is in a checkout, but not in the package.
const LEFT_OUT: &str = "design.md";

/// Returns the text of a page, with links for the modules of `lock_core::guide`. For a picture, returns the picture as text.
pub(crate) fn page(package: &Path, file: &str) -> Result<String, String> {
    let path = package.join(file);
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let text = read(&path)?;
    if is_picture(file) {
        return Ok(format!("![{}]({})", title(&text), as_address(&text)));
    }
    let mut failed = None;
    let made = with_links(&text, |link| {
        let picture = path.with_file_name(link.target);
        if link.is_picture && is_picture(link.target) {
            return match read(&picture) {
                Ok(picture) => link.to(&as_address(&picture)),
                Err(error) => failed.insert(error).clone(),
            };
        }
        in_guide(link, |file| package.join(file).is_file())
    });
    failed.map_or(Ok(made), Err)
}

/// Converts a link to another page into one to its module. A link to another file leads to the files of the package, as docs.rs
/// shows them. A link to a file that the package does not have is replaced by its text.
fn in_guide(link: &Link<'_>, is_packaged: impl Fn(&str) -> bool) -> String {
    let (target, anchor) = match link.target.split_once('#') {
        Some((target, anchor)) => (target, format!("#{anchor}")),
        None => (link.target, String::new()),
    };
    if let Some(module) = module(target) {
        return link.to(&format!("crate::guide::{module}{anchor}"));
    }
    if target.is_empty() || target.contains("://") {
        return link.to(link.target);
    }
    let file = target
        .strip_prefix("../")
        .map_or_else(|| format!("docs/{target}"), str::to_owned);
    if target != LEFT_OUT && is_packaged(&file) {
        let version = env!("CARGO_PKG_VERSION");
        return link.to(&format!("{FILES}{version}/source/{file}"));
    }
    link.text.to_owned()
}

/// Returns the module that shows the page to which a link leads.
fn module(target: &str) -> Option<&str> {
    if target == "../README.md" {
        return Some("overview");
    }
    if let Some(address) = target.strip_prefix(ADDRESS) {
        let (_, module) = address.split_once("/lock_core/guide/")?;
        return module.strip_suffix("/index.html");
    }
    let page = target.strip_suffix(".md")?;
    (target != LEFT_OUT && !page.contains('/')).then_some(page)
}

fn is_picture(file: &str) -> bool {
    Path::new(file)
        .extension()
        .is_some_and(|extension| extension == "svg")
}

/// Returns the title of a picture.
fn title(picture: &str) -> &str {
    let title = picture
        .split_once("<title>")
        .and_then(|(_, rest)| rest.split_once("</title>"));
    title.map_or("", |(title, _)| title)
}

/// Returns an address that contains the picture.
fn as_address(picture: &str) -> String {
    let mut address = "data:image/svg+xml,".to_owned();
    for byte in picture.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            address.push(char::from(byte));
        } else {
            write!(address, "%{byte:02X}").expect("a string accepts any text");
        }
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(target: &str) -> String {
        let link = Link {
            is_picture: false,
            text: "text",
            target,
        };
        let files = ["SECURITY.md", "docs/alerts.yml", "docs/design.md"];
        in_guide(&link, |file| files.contains(&file))
    }

    #[test]
    fn a_link_leads_to_a_module_or_out_of_the_documentation_or_is_text() {
        for (target, expected) in [
            ("web.md", "[text](crate::guide::web)"),
            ("web.md#streams", "[text](crate::guide::web#streams)"),
            ("../README.md#urls", "[text](crate::guide::overview#urls)"),
            (
                "https://docs.rs/lock-core/0.1/lock_core/guide/web/index.html#a",
                "[text](crate::guide::web#a)",
            ),
            ("#below", "[text](#below)"),
            ("https://docs.rs/metrics", "[text](https://docs.rs/metrics)"),
            (
                "https://docs.rs/lock-core/0.1/lock_core/",
                "[text](https://docs.rs/lock-core/0.1/lock_core/)",
            ),
            (
                "../SECURITY.md",
                concat!(
                    "[text](https://docs.rs/crate/lock-core/",
                    env!("CARGO_PKG_VERSION"),
                    "/source/SECURITY.md)"
                ),
            ),
            (
                "alerts.yml",
                concat!(
                    "[text](https://docs.rs/crate/lock-core/",
                    env!("CARGO_PKG_VERSION"),
                    "/source/docs/alerts.yml)"
                ),
            ),
            ("design.md", "text"),
            ("../CONTRIBUTING.md#rules", "text"),
        ] {
            assert_eq!(made(target), expected);
        }
    }

    #[test]
    fn a_picture_is_part_of_the_text_and_has_its_title() {
        let picture = "<svg><title>a lock</title></svg>";
        assert_eq!(title(picture), "a lock");
        assert_eq!(
            as_address("<a b=\"#1\"/>"),
            "data:image/svg+xml,%3Ca%20b%3D%22%231%22%2F%3E"
        );
    }
}
