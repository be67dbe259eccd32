//! Lists of keys.

use lock_core::{LockError, LockKey, distributed_lock, key};

/// A type that is not `Sync`, borrowed by one key while the next one awaits.
struct Account {
    id: std::cell::Cell<u64>,
}

async fn owner(id: u64) -> Result<String, LockError> {
    tokio::task::yield_now().await;
    Ok(format!("owner:{id}"))
}

#[distributed_lock(key = ["account:{from}", "account:{to}"], ttl = "10s", lease = lease)]
async fn templates(from: u64, to: u64) -> Result<usize, LockError> {
    tokio::task::yield_now().await;
    Ok(lease.fencing_tokens().len())
}

/// Templates and expressions, with a comma after the last one, and names that the expansion also uses.
#[distributed_lock(key = [
    "account:{account.id.get()}",
    owner(key1).await?,
    LockKey::new("all"),
    key!("k:{key1}"),
    "n:{key2:>4}",
])]
async fn mixed(account: Account, key1: u64, key2: &str) -> Result<u64, LockError> {
    tokio::task::yield_now().await;
    Ok(account.id.get() + key1 + key2.len() as u64)
}

macro_rules! locked {
    ($name:ident($text:ident), $list:expr) => {
        #[distributed_lock(key = $list)]
        async fn $name($text: &str) -> Result<String, LockError> {
            Ok($text.to_owned())
        }
    };
    ($name:ident($text:ident), $template:literal, $expr:expr) => {
        #[distributed_lock(key = [$template, $expr])]
        async fn $name($text: &str) -> Result<String, LockError> {
            Ok($text.to_owned())
        }
    };
}

locked!(keys_by_macro(text), "t:{text}", "u:{text}");
locked!(list_by_macro(text), ["t:{text}", "u:{text}"]);

struct Store(u64);

#[async_trait::async_trait]
trait Move {
    async fn change(&mut self, to: u64) -> Result<u64, LockError>;
}

#[async_trait::async_trait]
impl Move for Store {
    #[distributed_lock(key = ["store:{self.0}", "store:{to}", format!("all:{}", self.0)])]
    async fn change(&mut self, to: u64) -> Result<u64, LockError> {
        tokio::task::yield_now().await;
        self.0 = to;
        Ok(to)
    }
}

fn is_send(_: impl Send) {}

fn all_are_send(store: &mut Store) {
    is_send(templates(1, 2));
    let id = std::cell::Cell::new(1);
    is_send(mixed(Account { id }, 1, "a"));
    is_send(keys_by_macro("a"));
    is_send(list_by_macro("a"));
    is_send(store.change(2));
}
