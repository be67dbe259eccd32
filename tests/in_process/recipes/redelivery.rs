use lock_core::{LockError, run_once};

enum Delivery {
    /// Done, by this delivery or by an earlier one: delete the message.
    Acknowledge,
    /// Another consumer is working on it, or it failed: let the queue deliver it again.
    Return,
}

#[run_once(key = "message:{id}", keep = "336h", wait = "0s")]
async fn handle(id: String, text: String) -> Result<(), LockError> {
    ship(&text).await
}

async fn deliver(id: &str, text: &str) -> Delivery {
    match handle(id.to_owned(), text.to_owned()).await {
        Ok(()) => Delivery::Acknowledge,
        Err(_) => Delivery::Return,
    }
}
