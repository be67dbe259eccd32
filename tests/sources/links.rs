//! The links of the pages: each leads to a file of the project, and to a heading that is there.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The pages, and the folder of the project.
fn pages() -> (PathBuf, Vec<PathBuf>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = ["", ".github", "docs", "examples"].map(|folder| root.join(folder));
    let entries = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).expect("a folder"))
        .map(|entry| entry.expect("an entry").path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    (root, entries.filter(is_page).collect())
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The targets of the links, in code or not.
fn targets(page: &str) -> Vec<&str> {
    let starts = page.match_indices("](").map(|(at, start)| at + start.len());
    starts
        .filter_map(|at| page[at..].split_once(')').map(|(target, _)| target))
        .collect()
}

/// The anchors of a page's headings, as the large forges make them: lower case, words joined by hyphens.
pub(crate) fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let words = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    words
        .map(|heading| {
            let kept = heading
                .chars()
                .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            kept.map(|letter| if letter == ' ' { '-' } else { letter })
                .collect()
        })
        .collect()
}

#[test]
fn each_link_leads_to_a_file_and_a_heading() {
    let (root, pages) = pages();
    let (mut broken, mut count) = (Vec::new(), 0);
    for page in &pages {
        let text = read(page);
        for target in targets(&text) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if file.contains("://") {
                continue;
            }
            count += 1;
            let path = if file.is_empty() {
                page.clone()
            } else {
                page.parent().expect("a folder").join(file)
            };
            let is_there = path.exists()
                && (anchor.is_empty() || anchors(&read(&path)).iter().any(|other| other == anchor));
            if !is_there {
                let page = page.strip_prefix(&root).expect("below it").display();
                broken.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(count > 50, "{count} links");
    assert!(broken.is_empty(), "{broken:#?}");
}
