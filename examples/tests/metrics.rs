//! The example that shows the text for Prometheus.

use std::time::Duration;

use lock_tests::{HttpRequest, Process, eventually};

const HANG: Duration = Duration::from_mins(1);

#[tokio::test]
async fn prometheus_sees_each_shelf_by_one_template() {
    let mut process = Process::spawn(env!("CARGO_BIN_EXE_metrics"), &[], &[("PORT", "0")]);
    let line = process.line();
    let url = line.strip_prefix("curl ").expect("what to type").to_owned();
    let mut text = String::new();
    eventually(HANG, "every figure of a busy lock is there", async || {
        let asked = HttpRequest::send("GET", &url, "").await.expect("sent");
        text = asked.answer().await.expect("answered").body;
        [
            "# HELP lock_wait_seconds",
            "lock_wait_seconds_bucket{key=\"shelf:{shelf}\",mode=\"exclusive\",le=\"0.1\"}",
            "lock_hold_seconds_count{key=\"shelf:{shelf}\",mode=\"exclusive\"}",
            "lock_waiting{key=\"shelf:{shelf}\",mode=\"exclusive\"}",
            "lock_held{key=\"shelf:{shelf}\",mode=\"exclusive\"} 3",
            "lock_acquired_total{key=\"shelf:{shelf}\",mode=\"exclusive\"}",
        ]
        .iter()
        .all(|figure| text.contains(figure))
    })
    .await;
    for line in text.lines().filter(|line| line.starts_with("lock_")) {
        assert!(line.contains("key=\"shelf:{shelf}\""), "{line}");
    }
}
