//! The store's side of a fencing token: how to refuse a holder that was paused beyond the end of its lease.
//!
//! A store remembers the largest [`Fence`] that it has seen for each resource, and refuses smaller ones. It is not enough
//! to check only writes: if a holder is paused after it has read, the next holder may read too. If the paused holder then
//! writes first, no larger token has written yet, so its write is accepted, and lost when the next holder writes. Therefore
//! a holder *announces* its fence before it reads, and its write is refused if another fence has been announced since.
//!
//! For SQLite and PostgreSQL, with the columns `fencing_token BIGINT NOT NULL DEFAULT 0` and
//! `fencing_holder BIGINT NOT NULL DEFAULT 0` in the table `account`, and one row for each resource, which must exist:
//!
//! ```sql
//! -- Announce. If no row was changed, a later holder has been announced: stop.
//! UPDATE account SET fencing_token = $2, fencing_holder = $3
//!     WHERE id = $1 AND (fencing_token < $2 OR fencing_token = $2 AND fencing_holder = $3);
//! -- Read.
//! SELECT balance FROM account WHERE id = $1;
//! -- Write. If no row was changed, a later holder has been announced, and nothing was written.
//! UPDATE account SET balance = $4 WHERE id = $1 AND fencing_token = $2 AND fencing_holder = $3;
//! ```
//!
//! Each statement must be a separate transaction: two of them in one transaction would hide the announcement from other
//! holders until the commit. A holder that is refused may acquire the lock again, but must not raise its token and retry.
//!
//! The token alone is not enough where another server may take over from the first, as with Sentinel and Cluster: while two
//! servers act as the primary, both can give out the same number. So the store also compares the holder.
//!
//! - *Shared locks*: the holders of one phase have the same token, and 0 as the holder, and the store accepts each of them.
//!   A fence keeps out the holders of earlier phases, but cannot tell two holders of one phase apart. Work that writes
//!   should take the lock exclusively.
//! - *Permits*: tokens of different permits are not comparable, so a store remembers one fence for each
//!   [permit](Fence::permit). The resource is then the thing that the permit represents, such as one of several accounts.
//! - *Several keys*: [`Lease::fences`](crate::Lease::fences) returns a fence for each key, and each resource compares the
//!   fence of its own key.

pub use crate::fencing::Fence;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{key::LockKey, manager::LockManager, options::LockOptions};

    #[tokio::test]
    async fn only_exclusive_holders_have_a_holder_number() {
        let locks = LockManager::in_memory();
        let keys = ["reads", "writes"].map(LockKey::new);
        let options = LockOptions::new(Duration::from_secs(10));
        let own = [options.clone().shared(), options.clone()];
        let in_modes = keys.iter().zip(own);
        let guard = locks.acquire_all(in_modes, options).await;
        let lease = guard.expect("free").lease();
        let fences = lease.fences();
        assert_eq!(fences[0], (keys[0].clone(), lease.fence()));
        assert_eq!(lease.fence().holder, 0);
        assert_eq!(fences[1].0, keys[1]);
        assert_ne!(fences[1].1.holder, 0);
        let tokens = fences.into_iter().map(|(key, fence)| (key, fence.token));
        assert_eq!(tokens.collect::<Vec<_>>(), lease.fencing_tokens());
    }
}
