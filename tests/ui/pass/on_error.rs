//! Values of `on_error`, and the arguments that it sees: references and `Copy`, even in texts and from patterns.

use lock_core::{LockError, distributed_lock};

struct Path<T>(T);
struct State<T>(T);
struct Order {
    id: u64,
    item: String,
}

#[allow(clippy::needless_pass_by_value)]
fn is_busy(error: LockError) -> u8 {
    u8::from(error.is_busy())
}

impl Order {
    #[distributed_lock(key = "n", on_error = |error| format!("{}: {error}", self.id))]
    async fn with_self(&self) -> String {
        String::new()
    }
}

#[distributed_lock(key = "n", on_error = |error: LockError| -> Result<u8, String> { Err(error.to_string()) })]
async fn annotated() -> Result<u8, String> {
    Ok(1)
}

#[distributed_lock(key = "n", on_error = |_| Box::new(1))]
async fn coerced() -> Box<dyn std::fmt::Debug> {
    Box::new("x")
}

#[distributed_lock(key = "n", on_error = match 1 { 1 => is_busy, _ => |_| 0 })]
async fn chosen() -> u8 {
    1
}

#[distributed_lock(key = "order:{id}", on_error = |e| Err(format!("{id} {name}: {e}")))]
async fn captured(id: u64, name: &str) -> Result<u64, String> {
    Ok(id)
}

#[allow(clippy::used_underscore_binding)]
#[distributed_lock(key = "order", on_error = |e: LockError| Err(format!("{_id}: {e:_width$}")))]
async fn underscored(_id: u64, _width: usize) -> Result<(), String> {
    Ok(())
}

#[distributed_lock(key = "order", on_error = |e| Err(format!("{}: {e}", id + 1)))]
async fn from_a_pattern(Path(mut id): Path<u64>) -> Result<u64, String> {
    id += 1;
    Ok(id)
}

#[distributed_lock(key = "order:{id}", on_error = |e| Err(format!("{id}: {e}")))]
async fn beside_moved_arguments(
    State(app): State<String>,
    Order { id, item, .. }: Order,
    (first, [second, rest @ ..]): (u8, [u8; 3]),
) -> Result<String, String> {
    Ok(format!("{app}{item}{first}{second}{}", rest[0]))
}

/// None of the names in the closure is an argument.
#[distributed_lock(key = "order:{name}", on_error = |app| { let item = app.to_string(); Err(item) }, locks = locks)]
async fn shadowed(
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
