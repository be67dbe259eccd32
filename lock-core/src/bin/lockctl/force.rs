//! `break` and `forget`: takes a lock away from its holder, or deletes the result of a run.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use lock_core::LockManager;
use serde_json::json;

use crate::{
    Failed,
    output::{Row, print_json, table},
};

#[derive(Args)]
pub(crate) struct Break {
    key: String,
    /// Release it without asking
    #[arg(long)]
    yes: bool,
    /// Release it only if this is the holder, as printed by `show`
    #[arg(long, value_name = "HOLDER")]
    holder: Option<String>,
}

pub(crate) async fn force(locks: &LockManager, order: Break, json: bool) -> Result<u8, Failed> {
    let Break { key, yes, holder } = order;
    let seen = locks.inspect(key.as_str()).await?;
    let Some(info) = seen.filter(|info| info.holders > 0) else {
        report(&key, false, json)?;
        return Ok(0);
    };
    let found = info.holder.to_string();
    if let Some(holder) = holder.filter(|holder| *holder != found) {
        return Err(Failed::usage(format!(
            "`{key}` is held by {found}, not by {holder}: nothing was done"
        )));
    }
    if !yes {
        if !io::stdin().is_terminal() {
            return Err(Failed::usage(format!(
                "`{key}` is held by {found}: pass --yes to release it without confirmation"
            )));
        }
        let shown = Row {
            key: key.clone(),
            info,
        };
        let mut stderr = io::stderr();
        write!(
            stderr,
            "{}\nIts holder may still be working, and would then run concurrently with the next one. Release the lock? [y/N] ",
            table(&[shown], usize::MAX).join("\n")
        )?;
        let mut reply = String::new();
        io::stdin().lock().read_line(&mut reply)?;
        if !matches!(reply.trim(), "y" | "Y" | "yes") {
            writeln!(stderr, "nothing was done")?;
            return Ok(1);
        }
    }
    locks.force_release(key.as_str()).await?;
    report(&key, true, json)?;
    Ok(0)
}

pub(crate) async fn forget(locks: &LockManager, key: &str, json: bool) -> Result<u8, Failed> {
    let seen = locks.inspect(key).await?;
    let was_kept = seen.is_some_and(|info| info.result_kept_for.is_some());
    locks.forget(key).await?;
    if json {
        print_json(&json!({ "key": key, "forgotten": was_kept }))?;
    } else if was_kept {
        writeln!(io::stdout(), "forgotten")?;
    } else {
        writeln!(io::stdout(), "no result: nothing was done")?;
    }
    Ok(0)
}

fn report(key: &str, was_held: bool, json: bool) -> io::Result<()> {
    if json {
        return print_json(&json!({ "key": key, "broken": was_held }));
    }
    let what = if was_held {
        "taken away"
    } else {
        "free: nothing was done"
    };
    writeln!(io::stdout(), "{what}")
}
