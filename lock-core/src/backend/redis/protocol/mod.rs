//! The protocol between locks and a server: requests, scripts, replies, grants, and the health check.

pub(crate) mod acquire;
pub(crate) mod calls;
pub(crate) mod health;
pub(crate) mod listing;
mod messages;
mod operate;
mod programs;
pub(crate) mod pub_sub;
pub(crate) mod redis_store;
pub(crate) mod release;
pub(crate) mod renewals;
pub(crate) mod replies;
mod rights;
pub(crate) mod scripts;
mod server_info;
mod trial;
pub(crate) mod voting_server;
