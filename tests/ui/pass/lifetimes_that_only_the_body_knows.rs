//! Lifetimes that only the body knows.

use lock_core::{LockError, distributed_lock};

struct Reader<'a> {
    text: &'a str,
}
impl<'a> Reader<'a> {
    #[distributed_lock(key = "r:{self.text}")]
    async fn rest(&mut self, from: usize) -> Result<&'a str, LockError> {
        self.text = &self.text[from..];
        Ok(self.text)
    }
    #[distributed_lock(key = "r:{other.text}")]
    async fn longer<'b>(&self, other: &'b Reader<'a>) -> Result<&'b str, LockError>
    where
        'a: 'b,
    {
        Ok(if other.text.len() > self.text.len() {
            other.text
        } else {
            self.text
        })
    }
}
