//! The alert rules for operators. `examples/tests/metrics/` reads them as YAML, and checks the names of the metrics in them.

use crate::{files::read, links::anchors};

#[test]
fn each_alert_has_a_severity_a_section_to_read_and_a_test() {
    let rules = read("docs/dashboards/alerts.yml");
    // Run by promtool, which is not on each machine. So this test checks that no alert is left out.
    let cases = read("tests/sources/alerts_test.yml");
    let alerts: Vec<_> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 5, "{} alerts", alerts.len());
    for alert in alerts {
        let (name, _) = alert.split_once('\n').expect("more lines");
        let field = |name: &str| {
            let mut lines = alert.lines();
            lines.find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "))
        };
        let severity = field("severity");
        assert!(
            matches!(severity, Some("critical" | "warning")),
            "{name}: {severity:?}"
        );
        let page = field("page").unwrap_or_default();
        let (file, heading) = page.split_once('#').expect("a heading");
        let headings = anchors(&read(file));
        assert!(
            headings.iter().any(|other| other == heading),
            "{name}: no section {page}"
        );
        assert!(
            cases.contains(name),
            "{name} has no case in alerts_test.yml"
        );
    }
}
