//! Loops with breaks and labels.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id}")]
async fn search(id: u64) -> Result<u64, LockError> {
    let mut n = id;
    let found = 'outer: loop {
        while n < 10 {
            n += 1;
            if n == 7 {
                break 'outer n;
            }
        }
        for i in 0..n {
            if i == 3 {
                return Ok(i);
            }
        }
    };
    Ok(found)
}
