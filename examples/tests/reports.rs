//! The example of shared locks and permits, as two processes on one Redis and one database file.

use std::{collections::BTreeSet, time::Duration};

use lock_tests::{HttpRequest, HttpResponse, Process, RedisServer, eventually};
use tempfile::TempDir;
use tokio::task::{JoinHandle, JoinSet};

/// A lock that was not released would be renewed, and would stay held for longer than this.
const SOON: Duration = Duration::from_secs(30);

struct Instance {
    process: Process,
    url: String,
}

impl Instance {
    fn start(variables: &[(&str, &str)]) -> Self {
        let variables = [variables, &[("PORT", "0")]].concat();
        let program = env!("CARGO_BIN_EXE_reports");
        let mut process = Process::spawn(program, &[], &variables);
        let line = process.line();
        let url = line.strip_prefix("reports on ").expect("its address first");
        let url = url.to_owned();
        Self { process, url }
    }

    fn send(&self, method: &'static str, path: &str) -> JoinHandle<HttpResponse> {
        let url = format!("{}{path}", self.url);
        tokio::spawn(async move {
            let sent = HttpRequest::send(method, &url, "").await;
            let response = sent.expect("a listening server").response().await;
            response.expect("a response")
        })
    }

    async fn ask(&self, method: &'static str, path: &str) -> HttpResponse {
        self.send(method, path).await.expect("no panic")
    }
}

struct Service {
    redis: RedisServer,
    instances: [Instance; 2],
    _folder: TempDir,
}

impl Service {
    fn start(step_ms: &str) -> Self {
        let redis = RedisServer::start();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let database = format!("sqlite:{}", folder.path().join("catalog.db").display());
        let instances = [(); 2].map(|()| {
            Instance::start(&[
                ("LOCK_URL", &*redis.url()),
                ("DATABASE_URL", &*database),
                ("STEP_MS", step_ms),
            ])
        });
        Self {
            redis,
            instances,
            _folder: folder,
        }
    }

    /// Returns the number of leases of the key, in all processes.
    fn holders(&self, key: &str) -> usize {
        // One member of the set is not a holder.
        let holders = format!("__lock_core__:holders:lock:{key}");
        self.redis.queue(&holders).len().saturating_sub(1)
    }
}

#[tokio::test]
async fn reports_run_together_and_see_one_edition_whatever_is_imported() {
    let service = Service::start("5");
    let [one, other] = &service.instances;
    let first = one.ask("POST", "/import").await;
    assert_eq!(first.status, 200, "{first:?}");
    let mut responses = JoinSet::new();
    let mut editions = Vec::new();
    for _ in 0..4 {
        for instance in &service.instances {
            for _ in 0..10 {
                responses.spawn(instance.send("GET", "/report"));
            }
        }
        let imported = other.ask("POST", "/import").await;
        assert_eq!(imported.status, 200, "{imported:?}");
        editions.push(imported.body);
    }
    for response in responses.join_all().await {
        let response = response.expect("no panic");
        assert_eq!(response.status, 200, "{response:?}");
    }
    assert!(editions.is_sorted(), "{editions:?}");
    let last = one.ask("GET", "/report").await;
    let edition = last.body.rsplit_once(' ').expect("an edition").1;
    assert!(editions[3].ends_with(edition), "{last:?} {editions:?}");
}

#[tokio::test]
async fn reports_of_both_processes_run_together_and_keep_an_import_out() {
    let service = Service::start("100");
    let [one, other] = &service.instances;
    let first = one.ask("POST", "/import").await;
    assert_eq!(first.status, 200, "{first:?}");
    let reports = [one.send("GET", "/report"), other.send("GET", "/report")];
    eventually(SOON, "both share the catalog", async || {
        service.holders("catalog") == 2
    })
    .await;
    let import = one.send("POST", "/import");
    for report in reports {
        let read = report.await.expect("no panic");
        assert_eq!(read.status, 200, "{read:?}");
        let edition = read.body.rsplit_once(' ').expect("an edition").1;
        assert!(
            first.body.ends_with(edition),
            "a page was imported meanwhile: {read:?} {first:?}"
        );
    }
    assert_eq!(import.await.expect("no panic").status, 200);
}

#[tokio::test]
async fn three_exports_run_at_a_time_and_each_has_its_permit() {
    let service = Service::start("600");
    let [one, other] = &service.instances;
    let exports = [one, other, one].map(|instance| instance.send("POST", "/export"));
    eventually(SOON, "all permits are taken", async || {
        service.holders("export") == 3
    })
    .await;
    let fourth = other.ask("POST", "/export").await;
    assert_eq!(fourth.status, 409, "{fourth:?}");
    assert!(fourth.head.contains("retry-after: "), "{fourth:?}");
    let mut permits = Vec::new();
    for export in exports {
        permits.push(export.await.expect("no panic").body);
    }
    permits.sort();
    let expected = [0, 1, 2].map(|permit| format!("exported with permit {permit}\n"));
    assert_eq!(permits, expected);
}

#[tokio::test]
async fn one_process_needs_neither_a_lock_server_nor_a_file() {
    let instance = Instance::start(&[("LOCK_URL", "memory://"), ("STEP_MS", "1")]);
    let imported = instance.ask("POST", "/import").await;
    let (_, edition) = imported.body.rsplit_once(' ').expect("an edition");
    let read = instance.ask("GET", "/report").await;
    assert_eq!(read.body, format!("the catalog of edition {edition}"));
    let exported = instance.ask("POST", "/export").await;
    assert_eq!(exported.body, "exported with permit 0\n");
}

/// The requests are sent by other threads, while this one reads the service's lines.
#[tokio::test(flavor = "multi_thread")]
async fn after_sigterm_it_finishes_requests_in_flight_and_releases_the_locks() {
    let mut service = Service::start("100");
    let [one, _] = &mut service.instances;
    let (report, export) = (one.send("GET", "/report"), one.send("POST", "/export"));
    // The lock on the server is not proof enough: a shutdown refuses a handler that has not received its lock yet.
    let mut begun = BTreeSet::new();
    while begun.len() < 2 {
        let line = one.process.line();
        if line.ends_with(" begins") {
            begun.insert(line);
        }
    }
    one.process.terminate();
    for response in [report, export] {
        assert_eq!(response.await.expect("no panic").status, 200);
    }
    let Service {
        redis,
        instances: [mut one, _other],
        ..
    } = service;
    eventually(SOON, "it ends", async || one.process.ended().is_some()).await;
    one.process.join();
    assert_eq!(redis.keys("lock:*"), [""; 0]);
    assert_eq!(redis.keys("*holders*"), [""; 0]);
}
