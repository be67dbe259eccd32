//! `ls`, `show` and `watch`: the locks that are held.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use lock_core::LockManager;
use serde_json::{Value, json};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

use crate::{
    Failed, UNAVAILABLE,
    output::{Row, millis, print_in_full, print_json, print_kept, print_rows},
    screen::{draw, say},
};

pub(crate) async fn list(locks: &LockManager, prefix: &str, json: bool) -> Result<u8, Failed> {
    let rows = rows(locks, prefix).await?;
    if json {
        print_json(&Value::Array(rows.iter().map(Row::json).collect()))?;
    } else {
        print_rows(&rows)?;
    }
    Ok(0)
}

pub(crate) async fn show(locks: &LockManager, key: &str, json: bool) -> Result<u8, Failed> {
    let info = locks.inspect(key).await?;
    let kept_for = info.as_ref().and_then(|info| info.result_kept_for);
    let row = info.filter(|info| info.holders > 0).map(|info| Row {
        key: key.to_owned(),
        info,
    });
    if json {
        let free = || json!({ "key": key, "holder": null });
        let mut shown = row.map_or_else(free, |row| row.json_in_full());
        shown["result_kept_ms"] = json!(millis(kept_for));
        print_json(&shown)?;
        return Ok(0);
    }
    match row {
        Some(row) => print_in_full(&row)?,
        None => writeln!(io::stdout(), "free")?,
    }
    if let Some(kept_for) = kept_for {
        print_kept(kept_for)?;
    }
    Ok(0)
}

/// Draws the table until Ctrl-C. If the server does not reply, the error is shown, and the request is repeated.
pub(crate) async fn watch(
    locks: &LockManager,
    prefix: &str,
    interval: Duration,
) -> Result<u8, Failed> {
    if !io::stdout().is_terminal() {
        return Err(Failed::usage("`watch` needs a terminal: use `ls`"));
    }
    let mut resized = signal(SignalKind::window_change())?;
    loop {
        match rows(locks, prefix).await {
            Ok(rows) => draw(rows)?,
            Err(Failed {
                code: UNAVAILABLE,
                reason,
            }) => say(&format!(
                "{reason}\n\nretrying every {interval:?}; Ctrl-C ends\n"
            ))?,
            Err(failed) => return Err(failed),
        }
        tokio::select! {
            () = sleep(interval) => {}
            _ = resized.recv() => {}
        }
    }
}

/// Returns all locks under the prefix, each once, sorted by key.
async fn rows(locks: &LockManager, prefix: &str) -> Result<Vec<Row>, Failed> {
    let mut held = locks.list(prefix);
    let mut rows = Vec::new();
    while let Some(lock) = held.next().await {
        let lock = lock?;
        rows.push(Row {
            key: lock.key.to_string(),
            info: lock.info,
        });
    }
    rows.sort_by(|one, other| one.key.cmp(&other.key));
    rows.dedup_by(|one, other| one.key == other.key);
    Ok(rows)
}
