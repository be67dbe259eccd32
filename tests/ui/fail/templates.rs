//! Templates that the parser refuses, and names in them that the function does not have.

use lock_core::{LockError, distributed_lock};

// error: this `}` closes nothing
// at: "order:}{order_id}"
#[distributed_lock(key = "order:}{order_id}")]
async fn a_brace_that_closes_nothing(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: more than a parameter, a path, a field, an index or a call cannot be used in a key template: write `key = expression` instead
// at: "order:{|| 1}"
#[distributed_lock(key = "order:{|| 1}")]
async fn a_template_with_a_closure(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: a literal needs no braces
// at: "order:{'x'}"
#[distributed_lock(key = "order:{'x'}")]
async fn a_template_with_a_literal(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: a macro cannot be used in a key template: write `key = expression` instead
// at: "order:{line!()}"
#[distributed_lock(key = "order:{line!()}")]
async fn a_template_with_a_macro(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: values have names, not numbers
// at: "order:{0}"
#[distributed_lock(key = "order:{0}")]
async fn a_template_with_a_number(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: an address differs in every process
// at: "order:{name:p}"
#[distributed_lock(key = "order:{name:p}")]
async fn a_template_with_a_pointer(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `?` cannot be used in a key template: write `key = expression` instead
// at: "order:{name.parse()?}"
#[distributed_lock(key = "order:{name.parse()?}")]
async fn a_template_with_a_question_mark(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: a width or precision in a key must be a plain number
// at: "order:{name:1$}"
#[distributed_lock(key = "order:{name:1$}")]
async fn a_template_with_a_width_argument(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: an empty `{}` names no value
// at: "order:{}"
#[distributed_lock(key = "order:{}")]
async fn a_template_with_an_empty_value(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: an operator cannot be used in a key template: write `key = expression` instead
// at: "order:{order_id + 1}"
#[distributed_lock(key = "order:{order_id + 1}")]
async fn a_template_with_an_operator(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `.await` cannot be used in a key template: write `key = expression` instead
// at: "order:{name.await}"
#[distributed_lock(key = "order:{name.await}")]
async fn a_template_with_await(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `Debug` output may change with any release
// at: "order:{name:?}"
#[distributed_lock(key = "order:{name:?}")]
async fn a_template_with_debug_output(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `name name` is not a value
// at: "order:{name name}"
#[distributed_lock(key = "order:{name name}")]
async fn a_template_with_nonsense(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: the key has no fixed text
// at: "{order_id}"
#[distributed_lock(key = "{order_id}")]
async fn a_template_without_fixed_text(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: this `{` is never closed
// at: "order:{order_id"
#[distributed_lock(key = "order:{order_id")]
async fn a_value_that_is_not_closed(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// The compiler alone would point at a wrong place.
// error: unknown format `zz`: a width, a precision and `x`, `X`, `o`, `b`, `e` or `E` may follow the colon, as in `{id:08x}`
// at: "order:{id:zz}"
#[distributed_lock(key = "order:{id:zz}")]
async fn a_value_with_an_unknown_format(id: u64) -> Result<u64, LockError> { Ok(id) }

// error: no parameter is called `ordr`
// at: "order:{ordr.id}"
#[distributed_lock(key = "order:{ordr.id}")]
async fn an_unknown_name_in_a_field(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: no parameter is called `customer`: the function has `order_id`, `name`
// at: "order:{customer}"
#[distributed_lock(key = "order:{customer}")]
async fn an_unknown_name_that_resembles_none(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: no parameter is called `id`: the function has none
// at: "order:{id}"
#[distributed_lock(key = "order:{id}")]
async fn an_unknown_name_where_there_are_none() -> Result<(), LockError> { Ok(()) }

// error: only `%` separates two values, so different ones could make the same key: put a `:` between them
// at: "order:{order_id}%{name}"
#[distributed_lock(key = "order:{order_id}%{name}")]
async fn only_a_percent_sign_between_two_values(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: only `x1` separates two values, so different ones could make the same key: put a `:` between them
// at: "order:{order_id}x1{name}"
#[distributed_lock(key = "order:{order_id}x1{name}")]
async fn only_letters_between_two_values(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: two values touch
// at: "order:{order_id}{name}"
#[distributed_lock(key = "order:{order_id}{name}")]
async fn two_values_that_touch(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }
