//! Asks the server, while a lease is held, for what its next holders in this process will need: fencing tokens, more time,
//! and whether other processes wait.
//!
//! It runs beside the holder, so that handing over costs no message. An answer that comes too late, or never, has the lease
//! go back to the server: there is no harm in it.

use std::sync::Arc;

use crate::{
    error::LeaseLost,
    lock::{context::validity, held::server_lease::Tenure, registry::Arbiter},
    store::{Prefetch, Prefetched},
};

/// How many fencing tokens are taken ahead at the most. Those that are not used are lost, and the server gives no more than
/// its clock is ahead of its counter.
pub(crate) const BLOCK: u32 = 64;

/// Starts to ask. The turn has noted that a question is on its way.
pub(crate) fn ask(arbiter: &Arc<Arbiter>, tenure: &Arc<Tenure>) {
    let (arbiter, tenure) = (arbiter.clone(), tenure.clone());
    let spawner = arbiter.engine.spawner.clone();
    // The lock may stand between two tasks until the answer: a shutdown waits for it.
    let open = arbiter.engine.on_its_way.open();
    spawner.spawn(async move {
        let _open = open;
        let engine = &arbiter.engine;
        // Before the request is handed over: the server's time starts later than this, never earlier.
        let sent = engine.clock.now();
        let request = Prefetch {
            full_key: tenure.full_key.clone(),
            token: tenure.token.clone(),
            ttl: tenure.ttl,
            known_fencing: engine.known_fencing(),
            tokens: BLOCK,
        };
        let answer = match engine.store.prefetch(request).await {
            Ok(Prefetched::Tokens { tokens, contended }) => {
                engine.learn_fencing(tokens.last());
                tenure.renewed_until(validity(sent, tenure.ttl));
                Some((tokens, contended))
            }
            // The task that has it then, or had it, hears of it; a release that came first is no loss.
            Ok(Prefetched::NotOurs) => {
                tenure.lose(LeaseLost::TakenAway);
                None
            }
            Err(failure) => {
                tracing::debug!(key = %tenure.key, ?failure, "no fencing tokens ahead");
                None
            }
        };
        arbiter.end_asking(&tenure, answer);
    });
}
