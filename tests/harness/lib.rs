//! The test harness. Tests need ten things:
//!
//! | need | use |
//! | --- | --- |
//! | a server | [`RedisServer`], of each [`Kind`]; several are [`Sentinels`] or a [`Cluster`] |
//! | a claim on servers of any number and kind | [`Deployment`], and `the_suite_on!` in `topologies/servers.rs` |
//! | a network that fails | [`Proxy`], which delays, loses, cuts and resets; [`ThirdParty`] is `HAProxy` or twemproxy |
//! | a server that cannot be installed | [`StandIn`], a real one that refuses more; the replies of [`FakeServer`] come from a closure |
//! | another process | [`Process`], by lines and signals; [`Holders`] lock all the time, and [`Forks`] may call `fork()` |
//! | a history | [`mod@history`]: the events that processes write, and the checkers that find two holders or a token that does not grow |
//! | another time | [`ShiftedClock`] for a server; for a test, tokio's paused clock |
//! | a lock that must be free, held or refused | [`connect`], [`AcquireFree`], [`ReleaseHeld`], [`invalid`], [`unavailable`], [`assert_fails!`] |
//! | a condition instead of a sleep | [`fn@eventually`] and [`eventually!`] |
//! | a record | [`Log`] of a process, [`Monitor`] of the commands that a server executes |
//!
//! ```no_run
//! use lock_tests::{Proxy, RedisServer};
//!
//! let server = RedisServer::start();
//! let proxy = Proxy::start(server.port());
//! assert!(server.keys("*").is_empty(), "clients connect to {}", proxy.url());
//! ```
//!
//! Most calls block for a few milliseconds at most, and need no runtime, so they serve a plain `#[test]`, a `#[tokio::test]` of any
//! flavour, and a test that stalls or drops its runtime. A set-up that fails panics with one line that says why: no test is skipped.
//!
//! The harness has tests of its own only where a mistake in it would let other tests pass: for faults, checkers and parsers.

#![expect(
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "in a test harness every failure is a panic, and results may be ignored"
)]

mod background;
mod certificates;
mod child;
mod cluster;
mod deployment;
pub mod error_texts;
mod fake_server;
mod fork;
pub mod history;
mod holders;
mod http;
mod locking;
mod log;
mod migrating;
mod mode;
mod monitor;
mod port;
mod postgres;
mod preload;
mod process;
mod proxy;
mod random;
mod resp;
pub mod scripts;
mod sentinels;
mod server;
mod shifted_clock;
mod slot;
pub mod stall;
mod stand_in;
mod third_party;
mod tools;
mod wait;

pub use certificates::{Certificates, KeyAndCertificate};
pub use cluster::{Cluster, ClusterBuilder, Migration};
pub use deployment::Deployment;
pub use fake_server::{FakeServer, Reply};
pub use fork::{Child, Forks, fork};
pub use holders::{Holders, Load};
pub use http::{HttpRequest, HttpResponse};
pub use locking::{
    AcquireFree, ReleaseHeld, connect, invalid, options, patient, reason_of_loss, run_in_a_row,
    unavailable,
};
pub use log::Log;
pub use migrating::key_prefix_in_docs;
pub use mode::Mode;
pub use monitor::{Monitor, ServerHold};
pub use postgres::PostgresServer;
pub use process::Process;
pub use proxy::{AfterLoss, Direction, Frames, Proxy, Request, Scope};
pub use random::Random;
pub use resp::{frames, take_request};
pub use sentinels::{Sentinels, SentinelsBuilder};
pub use server::{AskClients, Kind, RedisServer, RedisServerBuilder};
pub use shifted_clock::ShiftedClock;
pub use slot::{slot_of, tag_of_slot};
pub use stand_in::{Quirk, StandIn};
pub use third_party::ThirdParty;
pub use tools::tool;
pub use wait::{HANG, SECOND, eventually, eventually_blocking};

/// Makes a test of each function on each kind of server, which `start` starts. Only `tests/run --all` runs those on fetched servers.
///
/// The file that uses this macro defines both: `fn start(kind: Kind) -> RedisServer` and
/// `async fn claim(server: &RedisServer)`.
#[macro_export]
macro_rules! on_every_kind {
    ($start:ident: $($claim:ident)*) => {
        $crate::on_every_kind! { @kind [] distribution Distribution $start: $($claim)* }
        $crate::on_every_kind! { @fetched redis_6_2 Redis62 $start: $($claim)* }
        $crate::on_every_kind! { @fetched redis_8_6 Redis86 $start: $($claim)* }
        $crate::on_every_kind! { @fetched valkey_9 Valkey9 $start: $($claim)* }
    };
    (@fetched $($kind_and_claims:tt)*) => {
        $crate::on_every_kind! { @kind [#[ignore = "fetched by `tests/run --all`"]] $($kind_and_claims)* }
    };
    (@kind $attributes:tt $module:ident $kind:ident $start:ident: $($claim:ident)*) => {
        mod $module {
            $($crate::on_every_kind! { @test $attributes $kind $start $claim })*
        }
    };
    (@test [$($attribute:tt)*] $kind:ident $start:ident $claim:ident) => {
        #[tokio::test]
        $($attribute)*
        async fn $claim() {
            super::$claim(&super::$start($crate::Kind::$kind)).await;
        }
    };
}

/// The examples of the README, compiled and run as they are printed.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;

/// The examples of the page on reliability.
#[cfg(doctest)]
#[doc = include_str!("../../docs/reliability.md")]
#[derive(Debug)]
pub struct Reliability;

/// The examples of the page on web frameworks.
#[cfg(doctest)]
#[doc = include_str!("../../docs/web.md")]
#[derive(Debug)]
pub struct Web;

/// The examples of the page for operators.
#[cfg(doctest)]
#[doc = include_str!("../../docs/operations.md")]
#[derive(Debug)]
pub struct Operations;

/// The examples of the page on migration from another lock.
#[cfg(doctest)]
#[doc = include_str!("../../docs/migrating.md")]
#[derive(Debug)]
pub struct Migrating;

/// The recipes.
#[cfg(doctest)]
#[doc = include_str!("../../docs/recipes.md")]
#[derive(Debug)]
pub struct Recipes;

/// The examples of the page on leader election.
#[cfg(doctest)]
#[doc = include_str!("../../docs/leader.md")]
#[derive(Debug)]
pub struct Leader;

/// The examples of the attribute `distributed_lock`.
#[cfg(doctest)]
#[doc = include_str!("../../lock-macros/docs/distributed_lock.md")]
#[derive(Debug)]
pub struct DistributedLock;

/// The examples of the attribute `run_once`.
#[cfg(doctest)]
#[doc = include_str!("../../lock-macros/docs/run_once.md")]
#[derive(Debug)]
pub struct RunOnce;

/// The examples of the macro `key!`.
#[cfg(doctest)]
#[doc = include_str!("../../lock-macros/docs/key.md")]
#[derive(Debug)]
pub struct Key;
