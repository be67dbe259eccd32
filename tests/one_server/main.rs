//! Locks on one server: waiting, fencing, every way out, and faults between a manager and the server.
//!
//! Each test starts a server of its own. A manager represents a process.

mod background;
mod between;
mod companions;
mod credentials;
mod faults;
mod fencing;
mod fencing_clock;
mod gathered;
mod listing;
mod migrating;
mod nothing_stays;
mod once;
mod outage;
mod own_client;
mod permits;
mod plain_threads;
mod queue;
mod request_connection;
mod runtimes;
mod several_on_a_server;
mod shared;
mod stopped_waiter;
mod uncontended_release;
mod waiting;
mod ways_out;
