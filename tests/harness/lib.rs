//! The test harness. Tests need ten things:
//!
//! | need | use |
//! | --- | --- |
//! | a server | [`RedisServer`], of each [`Kind`]; several are [`Sentinels`] or a [`Cluster`] |
//! | a claim on servers of any number and kind | [`Deployment`], and `the_suite_on!` in `topologies/servers.rs`; for one server, [`on_every_kind!`] |
//! | a network that fails | [`Proxy`], which delays, loses, cuts and resets; [`ThirdParty`] is `HAProxy` or twemproxy |
//! | a server that cannot be installed | [`StandIn`], a real one that refuses more; the replies of [`FakeServer`] come from a closure; [`ThirdParty`] is also fakeredis |
//! | another process | [`Process`], by lines and signals; [`Holders`] lock all the time, and [`Forks`] may call `fork()` |
//! | a history | [`mod@history`]: the events that processes write, and the checkers that find two holders or a token that does not grow |
//! | another time | [`ShiftedClock`] for a server; for a test, tokio's paused clock |
//! | a lock that must be free, held or refused | [`connect`], [`AcquireFree`], [`ReleaseHeld`], [`invalid`], [`unavailable`], [`assert_fails!`] |
//! | a condition instead of a sleep | [`fn@eventually`] and [`eventually!`] |
//! | a record | [`Log`] of a process, [`Monitor`] of the commands that a server executes |
//!
//! Besides, there are [`options`] and [`patient`] for an acquire in a [`Mode`], and [`HANG`], after which a test gives up;
//! [`Certificates`], an [`HttpRequest`], [`Random`] numbers of a seed, the [`scripts`] of lock-core, tables of [`error_texts`], and the
//! [`mod@stall`] of 100,000 leases.
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
mod documents;
pub mod error_texts;
mod fake_server;
mod fork;
pub mod history;
mod holders;
mod http;
mod locking;
mod log;
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
mod wait;

pub use certificates::{Certificates, KeyAndCertificate};
pub use child::fetched;
pub use cluster::{Cluster, ClusterBuilder, Migration};
pub use deployment::Deployment;
pub use documents::{key_prefix_in_docs, rights_in_docs};
pub use fake_server::{FakeServer, Reply};
pub use fork::{Child, Forks, fork};
pub use holders::{Holders, Load};
pub use http::{HttpRequest, HttpResponse};
pub use locking::{
    AcquireFree, Mode, ReleaseHeld, checked, connect, connect_in_some_tries, connect_with_time_out,
    granted, invalid, nothing_is_left, nothing_is_left_blocking, options, patient, reason_of_loss,
    reason_of_refusal, run_in_a_row, unavailable,
};
pub use log::Log;
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
pub use wait::{HANG, SECOND, eventually, eventually_blocking};
