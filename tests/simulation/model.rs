//! A model of a Redis server: the part that lock-core uses, in plain Rust, over a clock that can be stepped. It runs the
//! shipped scripts in Lua, as a server does.
//!
//! - `server`: its clients, its scripts, and the commands that it knows;
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
