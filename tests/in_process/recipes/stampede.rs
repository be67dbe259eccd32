use lock_core::{LockError, distributed_lock};

async fn price(id: u64, cache: &Cache) -> Result<u64, LockError> {
    if let Some(price) = cache.get(id).await {
        return Ok(price);
    }
    computed(id, cache).await
}

#[distributed_lock(key = "price:{id}", wait = "5s")]
async fn computed(id: u64, cache: &Cache) -> Result<u64, LockError> {
    // Another caller may have filled the cache while this one waited.
    if let Some(price) = cache.get(id).await {
        return Ok(price);
    }
    let price = compute(id).await;
    cache.put(id, price).await;
    Ok(price)
}
