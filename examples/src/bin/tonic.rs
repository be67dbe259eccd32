//! A gRPC service that handles one request at a time for each order, across all its processes.
//!
//!     cargo run -p examples --bin tonic -F tonic
//!     cargo run -p examples --bin tonic -F tonic -- pay 42
//!
//! The first command starts the server, the second a client. Set `LOCK_URL=redis://127.0.0.1` to run more than one server process;
//! without it, locks are in memory. `PORT` defaults to 50051, and `PAYMENT_MS` to 3000.
#![expect(clippy::print_stdout, reason = "an example shows what to try")]

use std::{env, time::Duration};

use examples::{shut_down_on_signal, shutdown_signal};
use lock_core::{LockManager, distributed_lock};
use prost::Message;
use tonic::{
    Request, Response, Status,
    transport::{Channel, Server, server::TcpIncoming},
};

use self::generated::{
    payments_client::PaymentsClient,
    payments_server::{Payments, PaymentsServer},
};

#[allow(clippy::allow_attributes_without_reason, reason = "generated")]
#[allow(clippy::pedantic, unreachable_pub, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/shop.Payments.rs"));
}

#[derive(Clone, PartialEq, Message)]
struct Order {
    #[prost(uint64, tag = "1")]
    id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Receipt {
    #[prost(string, tag = "1")]
    text: String,
}

struct Shop {
    locks: LockManager,
    payment_takes: Duration,
}

#[tonic::async_trait]
impl Payments for Shop {
    /// Pays an order. A second payment gets `ABORTED` and `grpc-retry-pushback-ms`, without any code for it here.
    #[distributed_lock(key = "order:{order.get_ref().id}", wait = "0s", locks = self.locks)]
    async fn pay(&self, order: Request<Order>) -> Result<Response<Receipt>, Status> {
        tokio::time::sleep(self.payment_takes).await;
        let text = format!("order {}: paid", order.into_inner().id);
        Ok(Response::new(Receipt { text }))
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let number = |name, unset| env::var(name).map_or(Ok(unset), |text| text.parse());
    let port = u16::try_from(number("PORT", 50051)?)?;
    if let [_, verb, id] = env::args().collect::<Vec<_>>().as_slice() {
        anyhow::ensure!(verb == "pay", "unknown command: the only one is `pay`");
        return pay(port, id.parse()?).await;
    }

    let lock_url = env::var("LOCK_URL").unwrap_or_else(|_| "memory://".to_owned());
    let locks = LockManager::connect(&lock_url).await?;
    let payment_takes = Duration::from_millis(number("PAYMENT_MS", 3000)?);
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], port).into())?;
    let signal = shutdown_signal();
    println!("tonic on {}", incoming.local_addr()?);
    let service = PaymentsServer::new(Shop {
        locks: locks.clone(),
        payment_takes,
    });
    // After the signal, no request is accepted and no lock granted. A handler that outlasts the grace period loses its lock.
    let server = Server::builder()
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, signal);
    tokio::join!(server, shut_down_on_signal(locks)).0?;
    Ok(())
}

async fn pay(port: u16, id: u64) -> anyhow::Result<()> {
    let url = format!("http://127.0.0.1:{port}");
    let mut client = PaymentsClient::new(Channel::from_shared(url)?.connect().await?);
    match client.pay(Order { id }).await {
        Ok(receipt) => println!("{}", receipt.into_inner().text),
        Err(status) => println!("{}: {}", status.code(), status.message()),
    }
    Ok(())
}
