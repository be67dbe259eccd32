//! The links of the pages: each leads to an existing file of the project, and to an existing heading.

use std::fs;

use crate::files::{read_at, root};

/// Returns the targets of the links, in code or not.
fn targets(page: &str) -> impl Iterator<Item = &str> {
    let ends = page.split("](").skip(1);
    ends.filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// Returns the anchors of a page's headings, as the large forges make them: lower case, words joined by hyphens.
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
    let (mut broken, mut count) = (Vec::new(), 0);
    for folder in ["", ".github", "docs", "examples"] {
        let folder = root().join(folder);
        for entry in fs::read_dir(&folder).expect("a folder") {
            let page = entry.expect("an entry").path();
            if page.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            for target in targets(&read_at(&page)) {
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                if file.contains("://") {
                    continue;
                }
                count += 1;
                let path = match file {
                    "" => page.clone(),
                    file => folder.join(file),
                };
                let has_anchor = || anchors(&read_at(&path)).iter().any(|other| other == anchor);
                if !path.exists() || !(anchor.is_empty() || has_anchor()) {
                    broken.push(format!("{}: {target}", page.display()));
                }
            }
        }
    }
    assert!(count > 50, "{count} links");
    assert!(broken.is_empty(), "{broken:#?}");
}
