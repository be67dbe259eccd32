//! Locks on servers of other kinds: sentinels, clusters, replicas, several servers, proxies, and servers without scripts.

mod cluster;
mod failover;
mod moved_address;
mod own_client;
mod redlock;
mod replicas;
mod rotation;
mod sentinel;
mod server_kinds;
mod servers;
mod slots;
mod split_brain;
mod waist;
mod waiters;
mod without_scripts;
