//! The flash sale, as a process and in a browser.
//!
//! The last test takes the picture in the README:
//!
//! ```text
//! FLASH_SALE_SCREENSHOT=docs/flash_sale.png cargo test -p examples --test flash_sale page
//! ```

mod browser;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use lock_core::{LockGuard, LockManager, LockOptions};
use lock_tests::{HttpRequest, HttpResponse, Process, RedisServer, eventually};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use browser::Browser;

/// A sale takes five seconds, and ends by itself after two and a half minutes.
const OVER_WITHIN: Duration = Duration::from_mins(3);

/// Many times longer than any other step takes, to allow for a machine that is busy with a build.
const SOON: Duration = Duration::from_mins(1);

/// Limits concurrent sales, each of which has a thousand tasks and two processes: more at once would only test the machine's load.
static AT_ONCE: Semaphore = Semaphore::const_new(2);

/// The example, started.
struct Sale {
    process: Process,
    url: String,
    _turn: SemaphorePermit<'static>,
}

impl Sale {
    async fn open(lock_url: &str) -> Self {
        let turn = AT_ONCE.acquire().await.expect("never closed");
        let variables = [("LOCK_URL", lock_url), ("PORT", "0")];
        let program = env!("CARGO_BIN_EXE_flash_sale");
        let mut process = Process::spawn(program, &[], &variables);
        let line = process.line();
        let url = line.strip_prefix("flash sale on ").expect("its address");
        Self {
            process,
            url: url.to_owned(),
            _turn: turn,
        }
    }

    async fn ask(&self, method: &str, path: &str) -> HttpResponse {
        let request = HttpRequest::send(method, &format!("{}{path}", self.url), "").await;
        let response = request.expect("the example listens").response().await;
        response.expect("a response")
    }

    /// Starts a sale. It may be refused only because the backend replies too slowly, as on a busy machine.
    async fn start(&self) {
        eventually(SOON, "the sale starts", async || {
            let response = self.ask("POST", "/start").await;
            assert!(matches!(response.status, 202 | 503), "{response:?}");
            response.status == 202
        })
        .await;
    }

    async fn board(&self) -> Value {
        let response = self.ask("GET", "/board").await;
        serde_json::from_str(&response.body).expect("JSON")
    }

    async fn finished(&self) -> Value {
        eventually(OVER_WITHIN, "the sale is over", async || {
            self.board().await["phase"] == "finished"
        })
        .await;
        self.board().await
    }

    /// Returns the one process that the example has started, which stays as long as a [`Hold`] keeps its buyers waiting.
    fn second(&self) -> u32 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("it runs");
        let children = threads.map(|thread| {
            let file = thread.expect("a thread").path().join("children");
            // A thread may have ended meanwhile.
            fs::read_to_string(file).unwrap_or_default()
        });
        let children: String = children.collect();
        children.trim().parse().expect("one child")
    }
}

/// The lock of the sale, held by the test: all buyers with the lock wait, so the sale cannot end.
struct Hold {
    locks: LockManager,
    guard: LockGuard,
}

impl Hold {
    const KEY: &str = "sale:ticket";

    async fn take(redis: &RedisServer) -> Self {
        let locks = LockManager::connect(&redis.url()).await;
        Self::wait(locks.expect("the server is up")).await
    }

    /// Takes the lock with a ttl longer than any test, so that the lease survives while the server is stopped.
    async fn wait(locks: LockManager) -> Self {
        let options = LockOptions::new(2 * OVER_WITHIN).wait(SOON);
        let guard = locks.acquire(Self::KEY, options).await;
        let guard = guard.expect("free, or its turn");
        Self { locks, guard }
    }

    /// Waits until both processes wait for the lock. The sale is then under way, and stays so for the buyers' wait of two minutes.
    async fn is_waited_for(&self) {
        self.has_waiters(2).await;
    }

    /// Lets the first buyers of both processes in, and then holds the lock again.
    ///
    /// A process hands the lock to its own buyers for 20 ms at most while another process waits.
    async fn let_some_in(self, redis: &RedisServer) -> Self {
        let locks = LockManager::connect(&redis.url()).await;
        let next = tokio::spawn(Self::wait(locks.expect("the server is up")));
        self.has_waiters(3).await;
        self.end().await;
        next.await.expect("its turn after both processes")
    }

    async fn has_waiters(&self, processes: usize) {
        eventually(SOON, "this many processes wait", async || {
            let seen = self.locks.inspect(Self::KEY).await;
            // A busy server may be late with a reply.
            seen.is_ok_and(|seen| seen.is_some_and(|seen| seen.waiters == processes))
        })
        .await;
    }

    /// Lets the sale continue.
    async fn end(self) {
        drop(self.guard);
        self.locks.shutdown(SOON).await;
    }
}

fn is_running(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    // A dead process is still listed until its parent has read its status.
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// A panel with the number of waits instead of five hundred of them.
fn figures(panel: &Value) -> Value {
    let mut figures = panel.clone();
    let waits = figures["waits"].take();
    figures["answers"] = waits.as_array().map(Vec::len).into();
    figures
}

fn assert_right_and_wrong(board: &Value) {
    let (without, with) = (
        figures(&board["without_lock"]),
        figures(&board["with_lock"]),
    );
    assert!(without["sold"].as_u64() > Some(100), "{without}");
    assert!(without["oversold"].as_u64() > Some(0), "{without}");
    assert!(without["most_inside"].as_u64() > Some(1), "{without}");
    assert_eq!(with["sold"], 100, "{with}");
    assert_eq!(with["oversold"], 0, "{with}");
    assert_eq!(with["left"], 0, "{with}");
    assert_eq!(with["most_inside"], 1, "{with}");
    for side in [without, with] {
        assert_eq!(side["waiting"], 0, "{side}");
        assert_eq!(side["gave_up"], 0, "{side}");
        assert_eq!(side["answers"], 500, "{side}");
    }
    assert_eq!(board["sale_trouble"], Value::Null);
}

#[tokio::test]
async fn one_process_oversells_only_without_the_lock_however_often_it_is_run() {
    let sale = Sale::open("memory://").await;
    for _ in 0..2 {
        sale.start().await;
        let board = sale.finished().await;
        assert_eq!(board["processes"], 1);
        assert_right_and_wrong(&board);
    }
}

/// Starts a sale, and waits until its buyers wait for a lock that the test holds.
async fn a_sale_that_waits() -> (RedisServer, Sale, Hold) {
    let redis = RedisServer::start();
    let sale = Sale::open(&redis.url()).await;
    let hold = Hold::take(&redis).await;
    sale.start().await;
    hold.is_waited_for().await;
    (redis, sale, hold)
}

#[tokio::test]
async fn two_processes_oversell_only_without_the_lock() {
    let (_redis, sale, hold) = a_sale_that_waits().await;
    let second = sale.second();
    assert_eq!(
        sale.ask("POST", "/start").await.status,
        409,
        "only one sale at a time"
    );
    hold.end().await;
    let board = sale.finished().await;
    assert_eq!(board["processes"], 2);
    assert_right_and_wrong(&board);
    assert!(!is_running(second));
}

#[tokio::test]
async fn a_backend_that_hangs_is_noticed_and_the_sale_continues_when_it_is_back() {
    let (redis, sale, hold) = a_sale_that_waits().await;
    let hold = hold.let_some_in(&redis).await;
    redis.stop();
    eventually(SOON, "the trouble is on the board", async || {
        !sale.board().await["backend_trouble"].is_null()
    })
    .await;
    let board = sale.board().await;
    let with = figures(&board["with_lock"]);
    assert_eq!(board["phase"], "running");
    assert!(
        (1..100).contains(&with["sold"].as_u64().expect("a number")),
        "{with}"
    );
    redis.cont();
    hold.end().await;
    let board = sale.finished().await;
    let with = figures(&board["with_lock"]);
    assert_eq!(with["sold"], 100, "{with}");
    assert_eq!(with["waiting"], 0, "{with}");
    // The example checks the server twice a second, so the board may be half a second late.
    eventually(SOON, "the trouble is over", async || {
        sale.board().await["backend_trouble"].is_null()
    })
    .await;
}

#[tokio::test]
async fn without_a_backend_no_sale_starts_until_it_is_back() {
    let redis = RedisServer::start();
    let sale = Sale::open(&redis.url()).await;
    redis.kill9();
    // The first responses may say that the connection broke; all later ones say that none can be opened.
    eventually(
        SOON,
        "the board shows the same reason as the response",
        async || {
            let response = sale.ask("POST", "/start").await;
            assert_eq!(response.status, 503, "{response:?}");
            let board = sale.board().await;
            assert_eq!(board["phase"], "ready");
            assert!(!board["backend_trouble"].is_null() && !response.body.is_empty());
            board["backend_trouble"] == response.body
        },
    )
    .await;

    redis.restart();
    eventually(SOON, "the trouble is over", async || {
        sale.board().await["backend_trouble"].is_null()
    })
    .await;
    sale.start().await;
}

#[tokio::test]
async fn ctrl_c_shuts_both_processes_down() {
    let (redis, sale, hold) = a_sale_that_waits().await;
    let second = sale.second();
    // Four seconds of the sale are left. On a machine that stalls for longer, ctrl-c arrives after the sale.
    hold.let_some_in(&redis).await.end().await;
    sale.process.interrupt();
    sale.process.join();
    assert!(!is_running(second));
    assert_eq!(redis.get("lock:sale:ticket"), None);
}

/// When a container is stopped, all of its processes may get the signal.
#[tokio::test]
async fn sigterm_to_both_processes_shuts_them_down() {
    let (redis, sale, hold) = a_sale_that_waits().await;
    let second = sale.second();
    let hold = hold.let_some_in(&redis).await;
    for process in [second, sale.process.id()] {
        send("-TERM", process);
    }
    sale.process.join();
    assert!(!is_running(second));
    hold.end().await;
    assert_eq!(redis.get("lock:sale:ticket"), None);
}

#[tokio::test]
async fn the_second_process_ends_when_the_first_is_killed() {
    let (redis, mut sale, _hold) = a_sale_that_waits().await;
    let second = sale.second();
    // With the server stopped, the buyers of the second process would wait for minutes instead of ending by themselves.
    redis.stop();
    assert!(is_running(second));
    sale.process.kill9();
    eventually(SOON, "it has ended", async || !is_running(second)).await;
}

#[tokio::test]
async fn the_death_of_the_second_process_is_shown_and_the_next_sale_starts_another() {
    let (_redis, sale, hold) = a_sale_that_waits().await;
    send("-KILL", sale.second());
    hold.end().await;
    let board = sale.finished().await;
    let trouble = board["sale_trouble"].as_str().unwrap_or_default();
    assert!(trouble.contains("the second process ended"), "{trouble}");

    sale.start().await;
    assert_right_and_wrong(&sale.finished().await);
}

#[tokio::test]
async fn the_page_says_that_locks_in_memory_are_for_one_process() {
    let browser = Browser::start().await;
    let sale = Sale::open("memory://").await;
    browser.open(&sale.url).await;
    shows(&browser, "#status", "Ready.").await;
    let setting = browser.text("#setting").await;
    assert!(setting.starts_with("One process"), "{setting}");
}

#[tokio::test]
async fn the_page_shows_a_sale_from_the_click_to_the_result() {
    let browser = Browser::start().await;
    let redis = RedisServer::start();
    let sale = Sale::open(&redis.url()).await;
    browser.look(DESKTOP, "light").await;
    browser.open(&sale.url).await;
    shows(&browser, "#status", "Ready.").await;
    let setting = browser.text("#setting").await;
    assert!(setting.starts_with("Two processes"), "{setting}");
    shoot(&browser, "ready").await;
    let line = browser.text("#with_lock pre strong").await;
    let source = include_str!("../../src/bin/flash_sale/buyers.rs");
    assert!(source.contains(&line));
    assert!(source.contains("PAYMENT: Duration = Duration::from_millis(40)"));
    let rule = browser.text("#rule").await;
    assert!(rule.contains("pays, which takes 40 ms,"), "{rule}");

    // A holder is shown for a moment, so the page records what it shows.
    browser.record("#status").await;
    browser.record("#with_lock [data-of=holder]").await;
    let hold = Hold::take(&redis).await;
    browser.click("#start").await;
    shows(&browser, "#status", "The sale is running.").await;
    let disabled = "return document.querySelector('#start').disabled";
    assert_eq!(browser.script(disabled).await, true);
    hold.is_waited_for().await;
    hold.end().await;
    eventually(SOON, "a third is sold", async || {
        let sold = browser.text("#with_lock [data-of=sold]").await;
        sold.parse::<u32>().is_ok_and(|sold| sold >= 33)
    })
    .await;
    shoot(&browser, "running").await;
    eventually(OVER_WITHIN, "the result is shown", async || {
        let status = browser.text("#status").await;
        status.ends_with("With it: 100 sold, none too many.")
    })
    .await;
    let holders = browser.recorded("#with_lock [data-of=holder]").await;
    let is_buyer = |text: &String| text.starts_with("process ") && text.contains(", buyer ");
    assert!(holders.iter().any(is_buyer), "{holders:?}");
    let spoken = browser.recorded("#status").await;
    assert_eq!(spoken.len(), 2, "each word once: {spoken:?}");

    let board = sale.board().await;
    for panel in ["without_lock", "with_lock"] {
        for figure in ["sold", "oversold", "waiting", "most_inside", "left"] {
            let shown = browser.text(&format!("#{panel} [data-of={figure}]")).await;
            assert_eq!(shown, board[panel][figure].to_string(), "{panel} {figure}");
        }
        let bars = format!(
            "return document.querySelectorAll('#{panel} svg line:not(.grid, .stock)').length"
        );
        assert_eq!(browser.script(&bars).await, 500);
    }
    assert_right_and_wrong(&board);
    shoot(&browser, "finished").await;
    if let Ok(file) = env::var("FLASH_SALE_SCREENSHOT") {
        browser.screenshot(&from_root(&file)).await;
    }
    for (size, scheme) in [(DESKTOP, "dark"), (PHONE, "light"), (PHONE, "dark")] {
        browser.look(size, scheme).await;
        let overflow = "return document.documentElement.scrollWidth - innerWidth";
        assert_eq!(browser.script(overflow).await, 0, "{size:?}");
        shoot(&browser, &format!("finished-{}-{scheme}", size.0)).await;
    }
    assert_eq!(browser.complaints().await, Vec::<Value>::new());

    redis.kill9();
    eventually(SOON, "the trouble is shown", async || {
        let trouble = browser.text("#trouble").await;
        trouble.starts_with("The locks cannot be reached now: ")
    })
    .await;
    assert_eq!(browser.script(disabled).await, true);
    shoot(&browser, "trouble").await;

    sale.process.interrupt();
    sale.process.join();
    shows(
        &browser,
        "#trouble",
        "The example does not answer. Is it still running?",
    )
    .await;
}

const DESKTOP: (u32, u32) = (1280, 800);
const PHONE: (u32, u32) = (390, 844);

async fn shows(browser: &Browser, selector: &str, text: &str) {
    eventually(SOON, text, async || browser.text(selector).await == text).await;
}

/// Takes a picture of a step, for developers of the page.
async fn shoot(browser: &Browser, step: &str) {
    if let Ok(folder) = env::var("FLASH_SALE_SCREENSHOTS") {
        let file = Path::new(&folder).join(format!("{step}.png"));
        browser.screenshot(&from_root(file)).await;
    }
}

/// Cargo runs a test in the folder of its package.
fn from_root(file: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)
}

fn send(signal: &str, process: u32) {
    let killed = Command::new("kill")
        .args([signal, &process.to_string()])
        .status();
    assert!(killed.expect("the program").success());
}
