//! tonic, with a hand-written service instead of generated code.

use std::{
    convert::Infallible,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::StreamExt as _;
use lock_core::{LockError, LockOptions, distributed_lock};
use lock_tests::{HANG, RedisServer};
use prost::Message;
use tokio::task::JoinHandle;
use tonic::{
    Code, Request, Response, Status, Streaming,
    body::Body,
    client,
    codegen::{BoxFuture, BoxStream, Service, http, http::uri::PathAndQuery},
    server::{Grpc, NamedService, ServerStreamingService, UnaryService},
    transport::{Channel, Server, server::TcpIncoming},
};
use tonic_prost::ProstCodec;

use super::{App, SOON, connected, hang_up::Payments, pieces};

#[derive(Clone, PartialEq, Message)]
struct Order {
    #[prost(uint64, tag = "1")]
    id: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Receipt {
    #[prost(string, tag = "1")]
    pub(super) text: String,
}

#[tonic::async_trait]
trait Orders {
    type FollowStream;
    async fn pay(&self, request: Request<Order>) -> Result<Response<Receipt>, Status>;
    async fn hang(&self, request: Request<Order>) -> Result<Response<Receipt>, Status>;
    async fn follow(&self, request: Request<Order>)
    -> Result<Response<Self::FollowStream>, Status>;
}

#[tonic::async_trait]
impl Orders for App {
    type FollowStream = BoxStream<Receipt>;

    #[distributed_lock(key = "order:{request.get_ref().id}", wait = "0s", locks = self.locks)]
    async fn pay(&self, request: Request<Order>) -> Result<Response<Receipt>, Status> {
        let text = format!("order {}", request.into_inner().id);
        Ok(Response::new(Receipt { text }))
    }

    #[distributed_lock(key = "order:{request.get_ref().id}", locks = self.locks)]
    async fn hang(&self, request: Request<Order>) -> Result<Response<Receipt>, Status> {
        std::future::pending().await
    }

    async fn follow(
        &self,
        request: Request<Order>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let key = format!("order:{}", request.into_inner().id);
        let guard = self.locks.acquire(key, LockOptions::default()).await?;
        let receipts = pieces(self.clone()).map(|piece| {
            let text = String::from_utf8_lossy(&piece?).into_owned();
            Ok::<_, Status>(Receipt { text })
        });
        Ok(Response::new(Box::pin(guard.hold_during(receipts))))
    }
}

/// One call of a method.
struct Call {
    server: OrdersServer,
    path: String,
}

impl UnaryService<Order> for Call {
    type Response = Receipt;
    type Future = BoxFuture<Response<Receipt>, Status>;

    fn call(&mut self, request: Request<Order>) -> Self::Future {
        let Self { server, path } = self;
        let (OrdersServer { app, payments }, path) = (server.clone(), path.clone());
        Box::pin(async move {
            match path.as_str() {
                "/shop.Orders/once" => {
                    let text = payments.pay(request.into_inner().id).await?;
                    Ok(Response::new(Receipt { text }))
                }
                "/shop.Orders/pay" => app.pay(request).await,
                "/shop.Orders/hang" => app.hang(request).await,
                path => Err(Status::unimplemented(path)),
            }
        })
    }
}

impl ServerStreamingService<Order> for Call {
    type Response = Receipt;
    type ResponseStream = BoxStream<Receipt>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Order>) -> Self::Future {
        let app = self.server.app.clone();
        Box::pin(async move { app.follow(request).await })
    }
}

#[derive(Clone)]
struct OrdersServer {
    app: App,
    payments: Payments,
}

impl NamedService for OrdersServer {
    const NAME: &'static str = "shop.Orders";
}

impl Service<http::Request<Body>> for OrdersServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path().to_owned();
        let follows = path.ends_with("follow");
        let server = self.clone();
        let call = Call { server, path };
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::default());
            Ok(if follows {
                grpc.server_streaming(call, request).await
            } else {
                grpc.unary(call, request).await
            })
        })
    }
}

/// A server, with a client.
pub(super) struct Site {
    app: App,
    channel: Channel,
}

async fn start(app: App) -> Site {
    let payments = Payments::new(app.clone());
    start_with(app, payments).await
}

pub(super) async fn start_with(app: App, payments: Payments) -> Site {
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let url = format!("http://{}", incoming.local_addr().expect("bound"));
    let service = OrdersServer {
        app: app.clone(),
        payments,
    };
    let server = Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = Channel::from_shared(url).expect("a url").connect().await;
    let channel = channel.expect("a listening server");
    Site { app, channel }
}

impl Site {
    pub(super) async fn call(&self, path: &'static str) -> Result<Receipt, Status> {
        let mut client = client::Grpc::new(self.channel.clone());
        client.ready().await.expect("a connection");
        let request = Request::new(Order { id: 7 });
        let path = PathAndQuery::from_static(path);
        let response = client.unary(request, path, ProstCodec::default());
        let response = tokio::time::timeout(HANG, response)
            .await
            .expect("a response");
        response.map(Response::into_inner)
    }

    /// Calls a method in a new task. Aborting the task ends the call.
    pub(super) fn spawn_call(&self, path: &'static str) -> JoinHandle<Result<Receipt, Status>> {
        let (app, channel) = (self.app.clone(), self.channel.clone());
        let site = Self { app, channel };
        tokio::spawn(async move { site.call(path).await })
    }

    /// Calls a method that never returns, and waits until it holds the lock.
    async fn hang(&self) -> JoinHandle<Result<Receipt, Status>> {
        let call = self.spawn_call("/shop.Orders/hang");
        self.app.held("order:7").await;
        call
    }

    async fn follow(&self) -> Streaming<Receipt> {
        let mut client = client::Grpc::new(self.channel.clone());
        client.ready().await.expect("a connection");
        let request = Request::new(Order { id: 7 });
        let path = PathAndQuery::from_static("/shop.Orders/follow");
        let response = client.server_streaming(request, path, ProstCodec::default());
        let mut receipts: Streaming<Receipt> = response.await.expect("a stream").into_inner();
        let first = receipts.message().await.expect("an item");
        assert_eq!(first.expect("an item").text, "first");
        assert!(self.app.is_held("order:7").await);
        receipts
    }
}

async fn in_memory() -> Site {
    start(App::in_memory()).await
}

#[tokio::test]
async fn a_call_for_a_busy_lock_is_aborted_with_a_pushback() {
    let site = in_memory().await;
    let guard = site.app.hold("order:7").await;
    let status = site.call("/shop.Orders/pay").await.expect_err("no lock");
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    let text = format!("{} {:?}", status.message(), status.metadata());
    for secret in ["order", "redis", "lock"] {
        assert!(!text.contains(secret), "`{secret}` in {text}");
    }
    let pushback = status.metadata().get("grpc-retry-pushback-ms");
    let pushback = pushback.expect("a pause").to_str().expect("text");
    let millis: u64 = pushback.parse().expect("milliseconds");
    // The rest of the ttl of 10 s, of which more than half is left because the lease is renewed after a third.
    assert!((5_000..=10_000).contains(&millis), "{millis} ms");

    guard.release().await.expect("held until now");
    let receipt = site.call("/shop.Orders/pay").await;
    assert_eq!(receipt.expect("a receipt").text, "order 7");
}

#[tokio::test]
async fn a_call_that_loses_its_lease_is_unavailable() {
    let redis = RedisServer::start();
    let site = start(connected(&redis).await).await;
    let call = site.hang().await;
    redis.cli(&["DEL", "lock:order:7"]);
    let status = call
        .await
        .expect("no panic")
        .expect_err("the lease is lost");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("interrupted"), "{status:?}");
}

#[tokio::test]
async fn a_client_that_hangs_up_releases_the_lock() {
    let site = in_memory().await;
    site.hang().await.abort();
    drop(site.app.hold("order:7").await);
}

#[tokio::test]
async fn a_lock_is_held_until_the_stream_has_ended() {
    let site = in_memory().await;
    let mut receipts = site.follow().await;
    site.app.finish.notify_one();
    let last = receipts.message().await.expect("an item");
    assert_eq!(last.expect("an item").text, "last");
    assert_eq!(receipts.message().await.expect("the end"), None);
    drop(site.app.hold("order:7").await);
}

#[tokio::test]
async fn a_client_that_hangs_up_ends_the_stream_and_its_lock() {
    let site = in_memory().await;
    drop(site.follow().await);
    drop(site.app.hold("order:7").await);
}

#[tokio::test]
async fn a_stream_ends_with_its_lease() {
    let site = in_memory().await;
    let mut receipts = site.follow().await;
    site.app.locks.shutdown(Duration::ZERO).await;
    let next = tokio::time::timeout(SOON, receipts.message()).await;
    let status = next.expect("an item").expect_err("the lease is lost");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
}

#[test]
fn the_question_mark_turns_a_lock_error_into_a_status() {
    fn asks() -> Result<(), Status> {
        let refused: Result<(), LockError> = Err(LockError::NotConfigured);
        Ok(refused?)
    }
    assert_eq!(asks().expect_err("refused").code(), Code::Internal);
}
