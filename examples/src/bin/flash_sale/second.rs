//! The second process, which runs the same program with the other half of the buyers.
//!
//! The two processes talk through the standard streams of the second one. It reports when it is ready, and reads when to begin. It
//! stops when its input ends, which also happens when the first process dies in any way.

use std::{env, ops::Range, path::Path, process::Stdio};

use anyhow::{Context, ensure};
use examples::shutdown_signal;
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

/// The argument that makes the program the second process; the database follows.
pub(crate) const OPTION: &str = "--second";

/// The buyers of the second process.
pub(crate) const NUMBERS: Range<u32> = BUYERS / 2 + 1..BUYERS + 1;

/// Runs the second process.
pub(crate) async fn run(locks: &LockManager, database: &Path) -> anyhow::Result<()> {
    let shop = Shop::open(database, 'B').await?;
    let signal = shutdown_signal();
    println!("ready");
    let mut input = io::stdin();
    let mut word = [0];
    if input.read(&mut word).await? == 0 {
        return Ok(());
    }
    tokio::select! {
        sold = buyers::let_in(&shop, NUMBERS) => sold?,
        _ = input.read(&mut word) => locks.shutdown(GRACE).await,
        // Both processes get this signal when a whole service is terminated.
        () = signal => locks.shutdown(GRACE).await,
    }
    // Without the exit, the thread that reads the input would keep the runtime from ending.
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
            // Ctrl-c must reach only the first process, which then shuts this one down.
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

    /// Lets its buyers begin, and waits until they are done, or until the process has stopped after the signal to end.
    pub(crate) async fn sell(mut self) -> anyhow::Result<()> {
        let mut input = self.child.stdin.take().context("piped")?;
        input.write_all(b"!").await?;
        tokio::select! {
            status = self.child.wait() => {
                let status = status?;
                ensure!(status.success(), "the second process ended: {status}");
            }
            () = shutdown_signal() => {
                drop(input);
                timeout(GRACE * 2, self.child.wait()).await.context("the second process did not stop in time")??;
            }
        }
        Ok(())
    }
}
