//! Running one sale after another, and the state of the current one.

use std::{
    collections::VecDeque,
    convert::Infallible,
    ops::Range,
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use examples::shutdown_signal;
use lock_core::LockManager;
use tokio::{
    sync::{Mutex, watch},
    time::{interval, sleep, timeout},
};

use crate::{
    GRACE,
    board::{Board, Panel, Phase},
    buyers::{self, BUYERS},
    second::{self, Second},
    shop::{Shop, Side},
};

/// How often the page is updated.
const FRAME: Duration = Duration::from_millis(100);

/// How often the backend of the locks is checked.
const LOOK: Duration = Duration::from_millis(500);

/// Longer than the longest wait of a buyer. It bounds the wait for a second process that hangs.
const LONGEST_SALE: Duration = Duration::from_secs(150);

/// The reason why a sale did not start.
#[derive(Debug)]
pub(crate) enum NotStarted {
    Running,
    Unavailable(String),
}

/// The sale, as a cheap clone for the tasks that run or watch it.
#[derive(Debug, Clone)]
pub(crate) struct Sale {
    shop: Shop,
    /// The file of the shop for the second process, if there is one.
    shared: Option<PathBuf>,
    locks: LockManager,
    board: watch::Sender<Board>,
    /// Locked by the running sale.
    running: Arc<Mutex<()>>,
}

impl Sale {
    /// Creates the sale. If there is a shared file, two processes sell from it.
    pub(crate) fn new(shop: Shop, shared: Option<PathBuf>, locks: LockManager) -> Self {
        let processes = if shared.is_some() { 2 } else { 1 };
        Self {
            shop,
            shared,
            locks,
            board: watch::Sender::new(Board::new(processes)),
            running: Arc::default(),
        }
    }

    /// Starts a sale in the background, unless one is running.
    pub(crate) async fn start(&self) -> Result<(), NotStarted> {
        let running = Arc::clone(&self.running).try_lock_owned();
        let running = running.map_err(|_locked| NotStarted::Running)?;
        if let Some(trouble) = self.look_at_backend().await {
            return Err(NotStarted::Unavailable(trouble));
        }
        self.board.send_modify(|board| {
            *board = Board::new(board.processes);
            board.phase = Phase::Running;
        });
        let sale = self.clone();
        tokio::spawn(async move {
            let trouble = sale.run().await.err().map(|error| format!("{error:#}"));
            sale.board.send_modify(|board| {
                board.phase = Phase::Finished;
                board.sale_trouble = trouble;
                // Released while the board is written: after a read of `Finished`, the next sale can start at once.
                drop(running);
            });
        });
        Ok(())
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Board> {
        self.board.subscribe()
    }

    /// Waits, after the shutdown signal, until the current sale has stopped.
    pub(crate) async fn stopped(&self) -> anyhow::Result<()> {
        if self.running.try_lock().is_ok() {
            return Ok(());
        }
        let stops = timeout(3 * GRACE, self.running.lock()).await;
        let _stopped = stops.context("the sale did not stop in time")?;
        match &self.board.borrow().sale_trouble {
            Some(trouble) => bail!(trouble.clone()),
            None => Ok(()),
        }
    }

    /// Checks the backend of the locks again and again.
    pub(crate) async fn watch_backend(&self) -> Infallible {
        loop {
            self.look_at_backend().await;
            sleep(LOOK).await;
        }
    }

    /// Inspects the lock, within the manager's time-outs, and returns why there was no reply.
    async fn look_at_backend(&self) -> Option<String> {
        let trouble = self.locks.inspect(buyers::KEY).await.err();
        let trouble = trouble.map(|error| error.to_string());
        self.board.send_if_modified(|board| {
            let news = board.backend_trouble != trouble;
            board.backend_trouble.clone_from(&trouble);
            news
        });
        trouble
    }

    async fn run(&self) -> anyhow::Result<()> {
        self.shop.refill().await?;
        let mut handed_over = HandedOver::default();
        let mut selling = pin!(timeout(LONGEST_SALE, self.sell()));
        let mut frames = interval(FRAME);
        let sold = loop {
            tokio::select! {
                sold = &mut selling => break sold,
                _ = frames.tick() => self.show(|turns, _| handed_over.per_second(turns)).await?,
            }
        };
        // The last figures are those of the whole sale.
        self.show(|turns, ms| turns * 1_000 / ms.max(1)).await?;
        sold.context("the sale did not end in time")?
    }

    async fn sell(&self) -> anyhow::Result<()> {
        let Some(file) = &self.shared else {
            return self.let_in(1..BUYERS + 1).await;
        };
        let second = tokio::select! {
            second = Second::start(file) => second?,
            () = shutdown_signal() => return Ok(()),
        };
        tokio::try_join!(self.let_in(1..second::NUMBERS.start), second.sell())?;
        Ok(())
    }

    /// Lets in the buyers of this process, and drops them all at the shutdown signal.
    async fn let_in(&self, numbers: Range<u32>) -> anyhow::Result<()> {
        tokio::select! {
            sold = buyers::let_in(&self.shop, numbers) => Ok(sold?),
            () = shutdown_signal() => Ok(()),
        }
    }

    /// Copies the figures of the shop to the board. `rate` computes the hand-offs per second from the turns and the longest wait so
    /// far.
    async fn show(&self, mut rate: impl FnMut(u32, u32) -> u32) -> Result<(), sqlx::Error> {
        for side in [Side::WithoutLock, Side::WithLock] {
            let visits = self.shop.visits(side).await?;
            let mut panel = Panel::new(&visits, self.shop.stock(side).await?);
            if side == Side::WithLock {
                let longest = panel.waits.iter().map(|&(ms, _)| ms).max();
                panel.hand_offs_per_second = rate(panel.turns, longest.unwrap_or(0));
            }
            self.board.send_modify(|board| *board.panel(side) = panel);
        }
        Ok(())
    }
}

/// The numbers of turns in the last second, for their rate.
#[derive(Debug, Default)]
struct HandedOver {
    seen: VecDeque<(Instant, u32)>,
}

impl HandedOver {
    fn per_second(&mut self, turns: u32) -> u32 {
        let now = Instant::now();
        self.seen.push_back((now, turns));
        while self.seen.len() > 2 && now - self.seen[0].0 > Duration::from_secs(1) {
            self.seen.pop_front();
        }
        let (since, before) = self.seen[0];
        let ms = u32::try_from((now - since).as_millis()).unwrap_or(u32::MAX);
        turns.saturating_sub(before) * 1_000 / ms.max(1)
    }
}
