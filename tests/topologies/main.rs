//! The same lock on other kinds of servers: sentinels, clusters, replicas, several servers, servers without scripts.

mod cluster;
mod failover;
mod redlock;
mod replicas;
mod sentinel;
mod servers;
mod slots;
mod without_scripts;
