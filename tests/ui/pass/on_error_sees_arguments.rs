//! `on_error` sees arguments that are references or `Copy`, also in texts and from patterns.

use lock_core::{LockError, distributed_lock};

struct Path<T>(T);
struct State<T>(T);
struct Order {
    id: u64,
    item: String,
}

#[distributed_lock(key = "order:{id}", on_error = |e| Err(format!("{id} {name}: {e}")))]
async fn captured(id: u64, name: &str) -> Result<u64, String> {
    Ok(id)
}

#[distributed_lock(key = "order", on_error = |e| Err(format!("{}: {e}", id + 1)))]
async fn from_a_pattern(Path(mut id): Path<u64>) -> Result<u64, String> {
    id += 1;
    Ok(id)
}

#[distributed_lock(key = "order:{id}", on_error = |e| failed(e, id))]
async fn beside_what_is_moved(
    State(app): State<String>,
    Order { id, item, .. }: Order,
    (first, [second, rest @ ..]): (u8, [u8; 3]),
) -> Result<String, String> {
    Ok(format!("{app}{item}{first}{second}{}", rest[0]))
}

/// Of the names in the closure, none is an argument.
#[distributed_lock(key = "order:{name}", on_error = |app| { let item = app.to_string(); Err(item) }, locks = locks)]
async fn not_meant(
    State(app): State<String>,
    Path((name, item)): Path<(String, String)>,
    locks: lock_core::LockManager,
) -> Result<String, String> {
    Ok(app + &name + &item)
}

#[distributed_lock(key = "order", on_error = |e| Err(format!("{rest:?} {}: {e}", order.id)))]
async fn bound_by_reference(
    Path(order): Path<&Order>,
    Path([_, rest @ ..]): Path<[u8; 3]>,
) -> Result<u64, String> {
    Ok(order.id)
}

#[distributed_lock(key = "order:{id}", on_busy = skip, on_error = |e| Some(format!("{id}: {e}")))]
async fn skipped(id: u64) -> Option<String> {
    None
}

#[allow(clippy::needless_pass_by_value)]
fn failed(error: LockError, id: u64) -> Result<String, String> {
    Err(format!("{id}: {error}"))
}
