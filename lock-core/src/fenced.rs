//! The store's side of a fencing token: how to refuse a holder that was paused beyond the end of its lease.
//!
//! A store remembers, for each resource, the largest [`Fence`] that it was shown, and refuses smaller ones. Refusing them only
//! when writing is not enough: a paused holder may read, then the next holder reads, and if the paused holder writes first, its
//! token is still the largest that wrote. Its change is lost when the next holder writes. So a holder *announces* its fence
//! before it reads, and its write is refused if another fence has been announced since.
//!
//! For SQLite and PostgreSQL, with the columns `fencing_token BIGINT NOT NULL DEFAULT 0` and `fencing_holder BIGINT NOT NULL DEFAULT 0`
//! in the table `account`, and one row for each resource, which must exist:
//!
//! ```sql
//! -- Announce. If no row was changed, a later holder was here: stop.
//! UPDATE account SET fencing_token = $2, fencing_holder = $3
//!     WHERE id = $1 AND (fencing_token < $2 OR fencing_token = $2 AND fencing_holder = $3);
//! -- Read.
//! SELECT balance FROM account WHERE id = $1;
//! -- Write. If no row was changed, a later holder has been announced, and nothing happened.
//! UPDATE account SET balance = $4 WHERE id = $1 AND fencing_token = $2 AND fencing_holder = $3;
//! ```
//!
//! Each statement is a transaction of its own. Two of them in one transaction would hide the announcement from other holders
//! until the commit. A holder that is refused acquires the lock again, and never raises its token to try again.
//!
//! The token alone is not enough where another server may take the place of the first, as with Sentinel and Cluster: while two
//! servers act as the primary, both can give out the same number. So the store also compares the holder.
//!
//! - *Shared locks*: the holders of one phase have the same token, and 0 as the holder, and the store accepts each of them. A fence
//!   keeps out the holders of earlier phases, but cannot tell two holders of one phase apart. Work that writes takes the lock
//!   exclusively.
//! - *Permits*: tokens of different permits are not comparable, so a store remembers one fence for each
//!   [permit](Fence::permit). The resource is then the thing that the permit represents, such as one of several accounts.
//! - *Several keys*: [`Lease::fences`](crate::Lease::fences) returns a fence for each key, and each resource compares that of its own key.

pub use crate::fencing::Fence;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{key::LockKey, manager::LockManager, options::LockOptions};

    #[tokio::test]
    async fn only_exclusive_holders_have_a_number_of_their_own() {
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
