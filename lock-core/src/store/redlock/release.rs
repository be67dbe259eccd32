//! Releasing a lock on several servers: a release at each of them, and a count of the results.

use std::sync::Arc;

use crate::store::{
    CertainRelease, ENDED, Failure, Release, ReleaseOutcome, Store,
    redlock::{ballot::quorum::Replies, redlock_servers::RedlockServers},
};

/// Releases at all servers that may have the lock, and returns as soon as a majority has replied. Each server has a release of its
/// own, which goes on until it is certain there.
pub(super) async fn release(
    servers: Arc<RedlockServers>,
    release: CertainRelease,
) -> Result<ReleaseOutcome, Failure> {
    let count = servers.servers.len();
    let owner = release.request.owner.clone();
    let records = owner.servers(count);
    let mut incoming = servers.ask_all(|position, server| {
        let record = records[position].clone();
        let release = CertainRelease {
            request: Release {
                at_server: Some(record.clone()),
                ..release.request.clone()
            },
            ..release.clone()
        };
        async move {
            if record.close().await {
                server.node.release(release).await
            } else {
                Ok(ReleaseOutcome::NotOurs)
            }
        }
    });
    let mut replies = Replies::of(count);
    while let Some((_, reply)) = incoming.recv().await {
        replies.count(reply);
        if let Some(result) = replies.result() {
            return result;
        }
    }
    Err(Failure::no_reply(ENDED))
}
