//! A model of a Redis server: what lock-core uses of one, in plain Rust, over a clock that can be stepped. Its scripts are the
//! shipped ones, in Lua as a server runs them.
//!
//! - `server`: its clients, and what makes it another server than the data alone;
//! - `store`: the keys, and the commands on them;
//! - `script`: Lua;
//! - `protocol`: requests and replies as bytes.

mod protocol;
mod script;
mod server;
mod store;

pub(crate) use protocol::Reply;
pub(crate) use server::{Dialect, Server};
pub(crate) use store::Value;
