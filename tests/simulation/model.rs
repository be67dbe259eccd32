//! A model of the part of a Redis server that lock-core uses, on a clock that can be stepped. It runs the shipped scripts in Lua,
//! as a server does.

mod protocol;
mod script;
mod server;
mod store;

pub(crate) use protocol::Reply;
pub(crate) use server::{Dialect, Server};
pub(crate) use store::Value;
