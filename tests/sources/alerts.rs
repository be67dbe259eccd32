//! The alert rules for operators. `examples/tests/metrics/` checks the names of the metrics in them.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use crate::{files::root, links};

fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn read(file: &str) -> Value {
    serde_saphyr::from_str(&text_of(&root().join(file)))
        .unwrap_or_else(|error| panic!("{file}: {error}"))
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
fn each_alert_says_what_to_do_and_where_to_read_on() {
    let rules = read("docs/dashboards/alerts.yml");
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
    let cases = read("tests/sources/alerts_test.yml").to_string();
    tested.extend(names.iter().filter(|name| cases.contains(**name)));
    assert_eq!(tested, names, "each alert has a case");
}
