//! The second process: the same program again, with the other half of the buyers.
//!
//! The two talk through its standard streams. It says when it is ready, and is told when to begin. When its input ends it
//! stops, and that is also what happens when the first process dies in whatever way.

use std::{env, ops::Range, path::Path, process::Stdio};

use anyhow::{Context, ensure};
use examples::told_to_end;
use lock_core::LockManager;
use tokio::{
    io::{self, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::{
    GRACE,
    buyers::{self, BUYERS},
    shop::Shop,
};

/// The argument by which the program knows that it is the second one; the database follows.
pub(crate) const OPTION: &str = "--second";

/// The buyers that it brings.
pub(crate) const NUMBERS: Range<u32> = BUYERS / 2 + 1..BUYERS + 1;

/// Runs the second process.
pub(crate) async fn run(locks: &LockManager, database: &Path) -> anyhow::Result<()> {
    let shop = Shop::open(database, 'B').await?;
    let told = told_to_end();
    println!("ready");
    let mut input = io::stdin();
    let mut word = [0];
    if input.read(&mut word).await? == 0 {
        return Ok(());
    }
    tokio::select! {
        sold = buyers::let_in(&shop, NUMBERS) => sold?,
        _ = input.read(&mut word) => locks.shutdown(GRACE).await,
        // It comes to both, from whatever ends all processes of a service.
        () = told => locks.shutdown(GRACE).await,
    }
    // The thread that reads the input would keep the runtime from ending.
    std::process::exit(0)
}

/// A second process that is ready to begin.
#[derive(Debug)]
pub(crate) struct Second {
    child: Child,
}

impl Second {
    pub(crate) async fn start(database: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .arg(OPTION)
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-c is for the first one, which ends this one in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("the second process did not start")?;
        let mut ready = String::new();
        let output = child.stdout.take().context("piped")?;
        timeout(GRACE * 5, BufReader::new(output).read_line(&mut ready))
            .await
            .context("the second process is not ready")??;
        ensure!(ready == "ready\n", "the second process did not get ready");
        Ok(Self { child })
    }

    /// Has its buyers begin, and waits until they are done, or until it has stopped after the signal to end.
    pub(crate) async fn sell(mut self) -> anyhow::Result<()> {
        let mut input = self.child.stdin.take().context("piped")?;
        input.write_all(b"!").await?;
        tokio::select! {
            status = self.child.wait() => {
                let status = status?;
                ensure!(status.success(), "the second process ended: {status}");
            }
            () = told_to_end() => {
                drop(input);
                timeout(GRACE * 2, self.child.wait()).await.context("the second process does not stop")??;
            }
        }
        Ok(())
    }
}
