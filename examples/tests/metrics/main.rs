//! The example that exports metrics to Prometheus, and the dashboard and alert rules for these metrics.

mod page;
mod promql;

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use lock_tests::{Cluster, HttpRequest, Process, RedisServer, eventually};
use serde_json::Value;

use page::Page;
use promql::Query;

const HANG: Duration = Duration::from_mins(1);

/// The labels that Prometheus gives to every series of a process.
const OF_PROMETHEUS: [&str; 2] = ["job", "instance"];

/// The example, started.
struct Example {
    _process: Process,
    url: String,
}

impl Example {
    fn start(variables: &[(&str, &str)]) -> Self {
        let mut all = vec![("PORT", "0")];
        all.extend_from_slice(variables);
        let mut process = Process::spawn(env!("CARGO_BIN_EXE_metrics"), &[], &all);
        let line = process.line();
        Self {
            _process: process,
            url: line.strip_prefix("curl ").expect("what to type").to_owned(),
        }
    }

    async fn page(&self) -> String {
        let asked = HttpRequest::send("GET", &self.url, "").await.expect("sent");
        asked.response().await.expect("answered").body
    }
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of all metrics, as the crate describes them.
fn exported() -> BTreeSet<String> {
    let source = read("lock-core/src/telemetry/figures.rs");
    let described = source.lines().filter(|line| line.starts_with("lock_"));
    let names = described.filter_map(|line| line.split_once(": "));
    names.map(|(name, _)| name.to_owned()).collect()
}

/// A page with every metric: locks were taken away, and the server was stopped.
async fn page_with_every_metric() -> Page {
    let server = RedisServer::start();
    let example = Example::start(&[("LOCK_URL", &server.url())]);
    let has = async |series: &str| example.page().await.contains(series);
    eventually(HANG, "a lease is taken away", async || {
        server.cli(&["DEL", "lock:stocktaking"]);
        has("lock_lost_total{").await
    })
    .await;
    eventually(HANG, "bodies run, and callers give up", async || {
        has("outcome=\"ran\"").await && has("lock_abandoned_total{").await
    })
    .await;
    server.kill9();
    let expected = exported();
    let mut page = Page::default();
    eventually(HANG, "every metric is on the page", async || {
        page = Page::read(&example.page().await);
        expected.iter().all(|name| page.kinds.contains_key(name))
    })
    .await;
    page
}

/// A query of the dashboard or of a rule, with the texts that name labels of its result.
struct Used {
    place: String,
    query: Query,
    shown: String,
}

fn dashboard() -> Value {
    serde_json::from_str(&read("docs/dashboards/lock-core.json")).expect("JSON")
}

fn rules() -> Vec<Value> {
    let file: Value = serde_saphyr::from_str(&read("docs/dashboards/alerts.yml")).expect("YAML");
    let groups = list(&file["groups"]);
    let rules: Vec<_> = groups
        .iter()
        .flat_map(|group| list(&group["rules"]))
        .collect();
    rules.into_iter().cloned().collect()
}

fn list(value: &Value) -> &[Value] {
    value
        .as_array()
        .unwrap_or_else(|| panic!("a list: {value}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text: {value}"))
}

fn of_the_dashboard() -> Vec<Used> {
    let dashboard = dashboard();
    let mut all = Vec::new();
    for panel in list(&dashboard["panels"]) {
        // A row has none.
        for target in panel["targets"].as_array().into_iter().flatten() {
            all.push(Used {
                place: format!("the panel {}", panel["title"]),
                query: Query::read(text(&target["expr"])),
                shown: text(&target["legendFormat"]).to_owned(),
            });
        }
    }
    all
}

fn of_the_rules() -> Vec<Used> {
    let rules = rules();
    let used = rules.iter().map(|rule| Used {
        place: format!("the alert {}", rule["alert"]),
        query: Query::read(text(&rule["expr"])),
        shown: rule["annotations"].to_string().replace("$labels.", ""),
    });
    used.collect()
}

/// The labels between double braces, as in `{{key}}` and `{{ key }}`. `$value` is not a label.
fn labels_shown(text: &str) -> Vec<&str> {
    let parts = text
        .split("{{")
        .skip(1)
        .filter_map(|rest| rest.split_once("}}"));
    let names = parts.map(|(inside, _)| inside.trim());
    names.filter(|name| !name.starts_with('$')).collect()
}

/// Returns the mistakes in a query, which are names that no page has.
fn unknown(used: &Used, page: &Page) -> Vec<String> {
    let Used {
        place,
        query,
        shown,
    } = used;
    let mut found = Vec::new();
    let mut known: BTreeSet<&str> = OF_PROMETHEUS.into();
    for (series, labels) in &query.series {
        let Some(exported) = page.labels.get(series) else {
            found.push(format!("{place}: no series {series}"));
            continue;
        };
        let is_known =
            |label: &&String| exported.contains(*label) || OF_PROMETHEUS.contains(&&***label);
        let wrong = labels.iter().filter(|label| !is_known(label));
        found.extend(wrong.map(|label| format!("{place}: {series} has no label {label}")));
        known.extend(exported.iter().map(String::as_str));
    }
    let groups = query
        .groups
        .iter()
        .filter(|label| !known.contains(&***label));
    found.extend(groups.map(|label| format!("{place}: grouped by {label}")));
    let shown = labels_shown(shown).into_iter();
    let shown = shown.filter(|label| !query.groups.iter().any(|group| group == label));
    found.extend(shown.map(|label| format!("{place}: shows {label}, and groups by others")));
    found
}

#[tokio::test]
async fn the_page_shows_each_kind_of_lock_by_one_template() {
    let example = Example::start(&[]);
    eventually(HANG, "every figure of a busy lock is there", async || {
        let text = example.page().await;
        [
            "# HELP lock_wait_seconds",
            "lock_wait_seconds_bucket{key=\"shelf:{shelf}\",mode=\"exclusive\",le=\"0.1\"}",
            "lock_hold_seconds_count{key=\"shelf:{shelf}\",mode=\"exclusive\"}",
            "lock_waiting{key=\"shelf:{shelf}\",mode=\"exclusive\"}",
            "lock_held{key=\"shelf:{shelf}\",mode=\"exclusive\"} 3",
            "lock_acquired_total{key=\"shelf:{shelf}\",mode=\"exclusive\"}",
            "lock_once_total{key=\"delivery:{number}\",outcome=\"replayed\"}",
        ]
        .iter()
        .all(|figure| text.contains(figure))
    })
    .await;
    let text = example.page().await;
    let templates = ["shelf:{shelf}", "delivery:{number}", "stocktaking"];
    for line in text.lines().filter(|line| line.starts_with("lock_")) {
        let is_known = |template: &&str| line.contains(&format!("key=\"{template}\""));
        assert!(templates.iter().any(is_known), "{line}");
    }
}

#[tokio::test]
async fn the_dashboard_and_the_alerts_name_only_exported_metrics() {
    let page = page_with_every_metric().await;
    let ours = page.kinds.keys().filter(|name| name.starts_with("lock_"));
    assert_eq!(ours.cloned().collect::<BTreeSet<_>>(), exported());

    let (dashboard, rules) = (of_the_dashboard(), of_the_rules());
    assert!(dashboard.len() > 20 && rules.len() > 5);
    let all = dashboard.iter().chain(&rules);
    let found: Vec<_> = all.flat_map(|used| unknown(used, &page)).collect();
    assert!(found.is_empty(), "{found:#?}");

    let series = dashboard.iter().flat_map(|used| &used.query.series);
    let shown: BTreeSet<_> = series
        .map(|(name, _)| page.metric_of(name).to_owned())
        .collect();
    assert_eq!(shown, exported(), "each metric has a panel");

    // The example, the page for operators, and the thresholds agree.
    let operations = read("docs/operations.md");
    assert_eq!(page.bounds.len(), 2, "{:?}", page.bounds);
    for (histogram, bounds) in &page.bounds {
        let (infinity, bounds) = bounds.split_last().expect("a bound");
        assert_eq!(infinity, "+Inf");
        let listed = format!("| `{histogram}` | `{}` |", bounds.join(", "));
        assert!(operations.contains(&listed), "no line {listed}");
    }
    let waits = &page.bounds["lock_wait_seconds"];
    for used in rules.iter().filter(|used| used.place.contains("Waits")) {
        let threshold = used.query.numbers.last().expect("a threshold");
        assert!(waits.contains(threshold), "{threshold} is not in {waits:?}");
    }
}

#[tokio::test]
async fn a_node_that_left_its_cluster_is_no_longer_out_of_reach() {
    let cluster = Cluster::start();
    let example = Example::start(&[("LOCK_URL", &cluster.url())]);
    let is_out_of_reach = async || {
        let page = example.page().await;
        let mut gauges = page
            .lines()
            .filter(|line| line.starts_with("lock_connected{"));
        gauges.any(|line| line.ends_with(" 0"))
    };
    eventually(HANG, "locks are taken", async || {
        example
            .page()
            .await
            .contains("lock_acquired_total{key=\"stocktaking\"")
    })
    .await;
    let killed = cluster.kill_master_of("lock:stocktaking");
    eventually(HANG, "the node is out of reach", is_out_of_reach).await;
    cluster.failed_over(killed);
    eventually(HANG, "the node is left", async || !is_out_of_reach().await).await;
}

#[test]
fn the_crate_contains_each_label_value_of_the_dashboard_and_the_rules() {
    let sources = [
        "telemetry/figures.rs",
        "telemetry/mod.rs",
        "once/run.rs",
        "template.rs",
        "mode.rs",
    ];
    let sources: String = sources
        .map(|file| read(&format!("lock-core/src/{file}")))
        .concat();
    let all = of_the_dashboard().into_iter().chain(of_the_rules());
    let mut count = 0;
    for Used { place, query, .. } in all {
        for (label, value) in query.values {
            count += 1;
            let is_there = sources.contains(&format!("\"{value}\""));
            assert!(is_there, "{place}: {label} is never {value}");
        }
    }
    assert!(count > 5, "{count}");
}

#[test]
fn the_dashboard_can_be_imported_everywhere() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(36), "Grafana 9");
    // An id would identify a dashboard of one installation.
    assert!(dashboard["id"].is_null());
    let variables = list(&dashboard["templating"]["list"]);
    let mut names: Vec<_> = variables.iter().map(|one| text(&one["name"])).collect();
    assert_eq!(variables[0]["type"], "datasource");
    assert_eq!(names, ["datasource", "job", "instance", "key", "mode"]);
    names.push("__rate_interval");
    for used in of_the_dashboard() {
        for variable in &used.query.variables {
            assert!(names.contains(&&**variable), "{}: {variable}", used.place);
        }
    }
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in list(&dashboard["panels"]) {
        let title = text(&panel["title"]);
        assert!(
            ids.insert(panel["id"].to_string()),
            "{title}: its id is taken"
        );
        let side = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        for x in side("x")..side("x") + side("w") {
            for y in side("y")..side("y") + side("h") {
                assert!(
                    x < 24 && cells.insert((x, y)),
                    "{title} covers another panel"
                );
            }
        }
        if panel["type"] != "row" {
            assert!(!text(&panel["description"]).is_empty(), "{title}");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
            for target in list(&panel["targets"]) {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            }
        }
    }
}

#[test]
fn the_variables_of_the_dashboard_are_labels() {
    let dashboard = dashboard();
    let variables = list(&dashboard["templating"]["list"]);
    for variable in variables.iter().filter(|one| one["type"] == "query") {
        assert_eq!(variable["datasource"]["uid"], "${datasource}", "{variable}");
        let query = text(&variable["query"]["query"]);
        let name = text(&variable["name"]);
        // `label_values(series, label)`
        let label = query.trim_end_matches(')').rsplit(", ").next();
        assert_eq!(label, Some(name), "{query}");
        let series = Query::read(query).series;
        assert_eq!(series[0].0, "lock_wait_seconds_count", "{query}");
    }
}
