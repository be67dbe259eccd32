//! Asks the server, while a lease is held, for what its next holders in this process will need: fencing tokens, more time,
//! and whether other processes wait.
//!
//! It runs beside the holder, so that handing over costs no message. An answer that comes too late, or never, has the lease
//! go back to the server: there is no harm in it.

use std::sync::Arc;

use crate::{
    error::LeaseLost,
    lock::{context::validity, held::server_lease::ServerLease, registry::Registry},
    store::{Prefetch, Prefetched},
};

/// How many fencing tokens are taken ahead at the most. Those that are not used are lost, and the server gives no more than
/// its clock is ahead of its counter.
pub(crate) const BLOCK: u32 = 64;

/// Starts to ask. The turn has noted that a question is on its way.
pub(crate) fn start(registry: &Arc<Registry>, server_lease: &Arc<ServerLease>) {
    let (registry, server_lease) = (registry.clone(), server_lease.clone());
    let executor = registry.context.executor.clone();
    // The lock may stand between two tasks until the answer: a shutdown waits for it.
    let open = registry.context.in_progress.open();
    executor.spawn(async move {
        let _open = open;
        let context = &registry.context;
        // Before the request is handed over: the server's time starts later than this, never earlier.
        let sent = context.clock.now();
        let request = Prefetch {
            full_key: server_lease.full_key.clone(),
            token: server_lease.token.clone(),
            ttl: server_lease.ttl,
            known_fencing: context.known_fencing(),
            tokens: BLOCK,
        };
        let answer = match context.store.prefetch(request).await {
            Ok(Prefetched::Tokens { tokens, contended }) => {
                context.learn_fencing(tokens.last());
                server_lease.renewed_until(validity(sent, server_lease.ttl));
                Some((tokens, contended))
            }
            // The task that has it then, or had it, hears of it; a release that came first is no loss.
            Ok(Prefetched::NotOurs) => {
                server_lease.lose(LeaseLost::TakenAway);
                None
            }
            Err(failure) => {
                tracing::debug!(key = %server_lease.key, ?failure, "no fencing tokens ahead");
                None
            }
        };
        registry.end_prefetch(&server_lease, answer);
    });
}
