//! Files that other programs read: the workflow, the forms for issues, the alert rules and the dashboard. No other test would show a
//! mistake in them, but `examples/tests/metrics/` checks the names in the last two.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{files::root, links};

fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Value {
    let text = text_of(path);
    if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        return serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of a folder in the project, with their contents.
fn files(folder: &str) -> Vec<(PathBuf, Value)> {
    let entries =
        fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.map(|path| (path.clone(), read(&path))).collect()
}

fn list(value: &Value) -> &[Value] {
    value
        .as_array()
        .unwrap_or_else(|| panic!("a list: {value}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text: {value}"))
}

#[test]
fn the_workflow_runs_all_checks_with_no_right_to_change_a_thing() {
    let workflows = files(".github/workflows");
    let [(path, workflow)] = &workflows[..] else {
        panic!("one workflow: {workflows:?}");
    };
    assert_eq!(
        workflow["permissions"],
        serde_json::json!({"contents": "read"})
    );
    let on = workflow["on"].as_object().expect("events");
    let events: Vec<_> = on.keys().collect();
    assert_eq!(
        events,
        ["pull_request", "push"],
        "no event that has secrets"
    );
    let mut runs = Vec::new();
    for (name, job) in workflow["jobs"].as_object().expect("jobs") {
        assert!(job["permissions"].is_null(), "{name} has more rights");
        assert!(job["timeout-minutes"].is_u64(), "{name} may run for ever");
        for step in list(&job["steps"]) {
            runs.extend(step["run"].as_str());
            // A tag can be moved to another commit.
            let action = step["uses"]
                .as_str()
                .map_or("", |uses| uses.rsplit('@').next().unwrap_or(""));
            let is_commit = action.len() == 40 && action.chars().all(|c| c.is_ascii_hexdigit());
            assert!(is_commit || step["uses"].is_null(), "not pinned: {step}");
        }
    }
    assert_eq!(runs, [".ci/run"]);
    assert!(root().join(".ci/run").exists());
    for path in [path, &root().join(".ci/run"), &root().join("tests/run")] {
        let text = text_of(path);
        for word in [
            "cargo publish",
            "cargo login",
            "secrets.",
            "docker push",
            "git push",
            "upload-artifact",
        ] {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
    }
}

#[test]
fn the_form_for_a_bug_asks_for_what_finds_it_and_warns_of_secrets() {
    let forms = files(".github/ISSUE_TEMPLATE");
    assert_eq!(forms.len(), 4);
    for (path, form) in &forms {
        let path = path.display().to_string();
        if path.ends_with("config.yml") {
            continue;
        }
        assert!(
            form["name"].is_string() && form["description"].is_string(),
            "{path}"
        );
        let mut ids = BTreeSet::new();
        for field in list(&form["body"]) {
            if field["type"] == "markdown" {
                continue;
            }
            assert!(ids.insert(text(&field["id"])), "{path}: {field}");
            assert!(field["attributes"]["label"].is_string(), "{path}: {field}");
        }
        if path.ends_with("bug.yml") {
            for needed in ["version", "topology", "doctor", "steps"] {
                assert!(ids.contains(needed), "{path} asks for no {needed}");
            }
            let warning = text(&form["body"][0]["attributes"]["value"]);
            assert!(warning.contains("SECURITY.md") && warning.contains("passwords"));
        }
    }
}

#[test]
fn each_alert_says_what_to_do_and_where_to_read_on() {
    let folder = root().join("docs/dashboards");
    let rules = read(&folder.join("alerts.yml"));
    let (mut names, mut tested) = (BTreeSet::new(), BTreeSet::new());
    for rule in list(&rules["groups"])
        .iter()
        .flat_map(|group| list(&group["rules"]))
    {
        let name = text(&rule["alert"]);
        names.insert(name);
        let severity = text(&rule["labels"]["severity"]);
        assert!(["critical", "warning"].contains(&severity), "{name}");
        let annotations = &rule["annotations"];
        let words = |field: &str| text(&annotations[field]).split_whitespace().count();
        assert!(words("summary") > 4 && words("description") > 15, "{name}");
        // Absolute, or left out: Alertmanager and Grafana show it as a link, which leads nowhere if it is a path of a checkout.
        let link = &annotations["runbook_url"];
        assert!(
            link.is_null() || text(link).starts_with("https://"),
            "{name}: {link}"
        );
        let page = text(&annotations["page"]);
        let (file, heading) = page.split_once('#').expect("a heading");
        let anchors = links::anchors(&text_of(&root().join(file)));
        assert!(
            anchors.iter().any(|anchor| anchor == heading),
            "{name}: {page}"
        );
    }
    assert!(names.len() > 5, "{names:?}");
    // By promtool, which is not on each machine: so that no alert is left out there.
    let cases = text_of(&root().join("tests/sources/alerts_test.yml"));
    let cases: Value = serde_saphyr::from_str(&cases).expect("YAML");
    let cases = cases.to_string();
    tested.extend(names.iter().filter(|name| cases.contains(**name)));
    assert_eq!(tested, names, "each alert has a case");
}
