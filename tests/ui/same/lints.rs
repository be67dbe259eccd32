//! Warnings about the body, the arguments and the calls of a locked function.
#![warn(dead_code, missing_docs)]

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
#[deprecated]
async fn a_deprecated_function(n: u64) -> Result<u64, LockError> { Ok(n) }
async fn calls_it() { let _ = a_deprecated_function(1).await; }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
pub async fn a_missing_doc(n: u64) -> Result<u64, LockError> { Ok(n) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}", on_error = |_| 0))]
#[must_use = "really"]
async fn a_must_use_function(n: u64) -> u64 { n }
async fn drops_its_result() { a_must_use_function(1).await; }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn a_name_in_the_wrong_case(n: u64, badName: u64) -> Result<u64, LockError> { let otherBad = badName; Ok(n + otherBad) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn a_short_body_in_braces(n: u64) -> Result<u64, LockError> {
    { Ok(n) }
}

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn an_assignment_that_is_never_read(n: u64, mut x: u64) -> Result<u64, LockError> { x = 5; Ok(n) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn a_function_that_is_called(n: u64) -> Result<u64, LockError> { Ok(n) }
async fn ignores_the_future() { a_function_that_is_called(1); }
async fn ignores_the_result() { a_function_that_is_called(1).await; }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn an_unused_argument(n: u64, unused: u64) -> Result<u64, LockError> { Ok(n) }

struct S { c: u64, d: u64 }
impl S {
    #[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
    async fn an_unused_argument_of_a_method(&self, n: u64, unused: u64) -> Result<u64, LockError> { Ok(n) }

    #[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
    async fn an_unused_mut_self(mut self, n: u64) -> Result<u64, LockError> { Ok(n) }
}

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn an_unused_mut_in_a_pattern(n: u64, (mut x, _): (u64, u64)) -> Result<u64, LockError> { Ok(n + x) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn an_unused_mut_on_an_argument(n: u64, mut x: u64) -> Result<u64, LockError> { Ok(n + x) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn an_unused_part_of_a_pattern(n: u64, (a, b): (u64, u64), S { c, d }: S) -> Result<u64, LockError> { Ok(n + a + c) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn an_unused_variable(n: u64) -> Result<u64, LockError> { let unused = n; Ok(n) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn superfluous_parentheses(n: u64) -> Result<u64, LockError> { if (n > 1) { return Ok(1); } Ok(n) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn unreachable_code(n: u64) -> Result<u64, LockError> { return Ok(n); println!("x"); Ok(1) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn unreachable_code_after_todo(n: u64) -> Result<u64, LockError> { if n > 1 { panic!() } todo!(); Ok(n) }
