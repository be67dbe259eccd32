//! Keys and lists of keys that the parser refuses.

use lock_core::{LockError, distributed_lock};

// error: a key must not contain control characters, but this is '\n'
// at: "order\n{order_id}"
#[distributed_lock(key = "order\n{order_id}")]
async fn a_control_character_in_the_key(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: the fixed text has 513 bytes, but a key may have at most 512
// at: "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"
#[distributed_lock(
    key = "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"
)]
async fn a_fixed_text_that_is_too_long(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: a key must be text: write `key = "order:42"`, or an expression that is one
// at: 5
#[distributed_lock(key = 5)]
async fn a_key_that_is_a_number(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: this key is already in the list: write the other one, or leave it out
// at: "name:{name}"
#[distributed_lock(key = ["name:{name}", "order:{order_id}", "name:{name}"])]
async fn a_key_twice_in_a_list(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: write all keys in one
// at: ["b", "c"]
#[distributed_lock(key = ["a:{name}", ["b", "c"]])]
async fn a_list_in_a_list_of_keys(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: write all keys in one list
// at: ["b", "c"]
macro_rules! locked {
    ($name:ident($arg:ident), $list:expr) => {
        #[distributed_lock(key = ["a:{name}", $list])]
        async fn $name(name: String, $arg: u64) -> Result<u64, LockError> {
            Ok($arg + name.len() as u64)
        }
    };
}
locked!(f(order_id), ["b", "c"]);

// error: a list names its keys one by one: write `["from:{from}", "to:{to}"]`
// at: ["a:{name}"; 2]
#[distributed_lock(key = ["a:{name}"; 2])]
async fn a_list_that_repeats_its_key(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: the list has no key
// at: []
#[distributed_lock(key = [])]
async fn a_list_without_keys(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: the key is empty: name what is locked, as in `"order:{order_id}"`
// at: ""
#[distributed_lock(key = "")]
async fn an_empty_key(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: did you mean `order_id`?
// at: "order:{oder_id}"
// error: the key is empty
// at: ""
// error: no fixed text
// at: "{name}"
// error: two values touch
// at: "k:{order_id}{name}"
#[distributed_lock(key = ["order:{oder_id}", "fine:{name}", "", "{name}", "k:{order_id}{name}", name.as_str()])]
async fn mistakes_in_several_keys_of_a_list(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }
