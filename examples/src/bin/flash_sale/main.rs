//! A flash sale on a page: 100 items, 500 buyers at once, without the lock and with it.
//!
//! ```text
//! cargo run -p examples --bin flash_sale -F flash_sale
//! LOCK_URL=redis://127.0.0.1 cargo run -p examples --bin flash_sale -F flash_sale
//! ```
//!
//! Each buyer reads the stock, pays, and writes back the new stock. Without the lock all buyers read the same number, and far too
//! many items are sold. The one line that prevents it is in `buyers.rs`. With Redis, the program starts a second process, and each
//! process brings half of the buyers. Locks in memory exclude only inside a process, so without Redis there is only one.
//!
//! | variable | says | if unset |
//! | --- | --- | --- |
//! | `LOCK_URL` | where the locks are, as in `redis://127.0.0.1` | `memory://`: one process |
//! | `PORT` | where to listen on 127.0.0.1 | 3000, or any free port if that is taken |

#![expect(clippy::print_stdout, reason = "it says where to look")]

mod board;
mod buyers;
mod sale;
mod second;
mod shop;
mod web;

use std::{env, io, path::Path, process::ExitCode, time::Duration};

use anyhow::Context;
use examples::shutdown_signal;
use lock_core::LockManager;
use tokio::net::TcpListener;

use self::{sale::Sale, shop::Shop};

/// How long a buyer with the lock may continue after the shutdown signal.
const GRACE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flash_sale: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<()> {
    let lock_url = env::var("LOCK_URL").unwrap_or_else(|_| "memory://".to_owned());
    // Every annotated function of the process takes its locks here.
    let locks = LockManager::connect(&lock_url).await?;
    lock_core::set_global(locks.clone());

    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [] => first(locks, lock_url.starts_with("memory:")).await,
        [option, database] if option == second::OPTION => {
            second::run(&locks, Path::new(database)).await
        }
        _ => anyhow::bail!("it takes no arguments"),
    }
}

/// The process with the page.
async fn first(locks: LockManager, alone: bool) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("sale.db");
    let shop = Shop::open(&file, 'A').await?;
    let sale = Sale::new(shop, (!alone).then_some(file), locks.clone());
    let listener = listen().await?;
    let signal = shutdown_signal();
    println!("flash sale on http://{}", listener.local_addr()?);

    // At SIGTERM and at ctrl-c these begin to stop: the page, the second process, and the buyers of this process.
    let server = axum::serve(listener, web::router(sale.clone()));
    let server = server.with_graceful_shutdown(signal);
    let shutdown = async {
        shutdown_signal().await;
        tokio::join!(locks.shutdown(GRACE), sale.stopped()).1
    };
    let server = async { Ok(server.await?) };
    tokio::select! {
        never = sale.watch_backend() => match never {},
        ended = async { tokio::try_join!(server, shutdown) } => ended?,
    };
    Ok(())
}

async fn listen() -> anyhow::Result<TcpListener> {
    if let Ok(port) = env::var("PORT") {
        let port: u16 = port.parse().context("PORT is not a valid port number")?;
        return Ok(TcpListener::bind(("127.0.0.1", port)).await?);
    }
    match TcpListener::bind("127.0.0.1:3000").await {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Ok(TcpListener::bind("127.0.0.1:0").await?)
        }
        bound => Ok(bound?),
    }
}
