//! The handlers of actix, whose routes are called for HEAD only if they name that method.

use std::fmt;

use actix_web::{
    App as Application, HttpResponse, HttpServer, Resource, Responder, ResponseError,
    body::SizedStream,
    http::{Method, StatusCode},
    web,
};
use lock_core::distributed_lock;

use super::{
    App, LOG, PIECE, Returned, Site, answered, assert_held_until_sent_or_warns, install_log, piece,
    warnings,
};

/// An alias, which hides the response from the attribute.
type Reply = HttpResponse;

type Answered = Result<HttpResponse, Refused>;

type Refused = super::Refused<StatusCode>;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed")
    }
}

impl ResponseError for Refused {
    fn status_code(&self) -> StatusCode {
        self.0
    }
}

/// A responder of a library, such as one that sends a file, which makes its response once it knows the request.
struct Later(App, String);

impl Responder for Later {
    type Body = actix_web::body::BoxBody;

    fn respond_to(self, _: &actix_web::HttpRequest) -> HttpResponse {
        response(&self.0, &self.1)
    }
}

fn response(app: &App, kind: &str) -> HttpResponse {
    match kind {
        "sized" => HttpResponse::Ok().body(SizedStream::new(PIECE.len() as u64, piece(app))),
        "streamed" => HttpResponse::Ok().streaming(piece(app)),
        "failed" => HttpResponse::NotFound().body("failed"),
        text => HttpResponse::Ok().body(text.to_owned()),
    }
}

fn later(app: &App, kind: &str) -> Later {
    Later(app.clone(), kind.to_owned())
}

fn with_status(app: &App, kind: &str) -> (HttpResponse, StatusCode) {
    let response = response(app, kind);
    let status = response.status();
    (response, status)
}

fn result(app: &App, kind: &str) -> Answered {
    answered(app, kind, StatusCode::NOT_FOUND, response)
}

fn opaque_result(app: &App, kind: &str) -> Result<Later, Refused> {
    answered(app, kind, StatusCode::NOT_FOUND, later)
}

/// Defines the three handlers of a return type, and their test.
macro_rules! returned {
    ($name:ident sees_the_method = $sees_the_method:literal [$bounded:literal $sized:literal $streamed:literal] -> $returned:ty = $make:path $(; $on_error:expr)?) => {
        mod $name {
            use super::*;

            #[distributed_lock(key = $bounded, max_hold = "60s", locks = app.locks $(, on_error = $on_error)?)]
            async fn bounded(app: web::Data<App>, kind: web::Path<String>) -> $returned {
                $make(&app, &kind)
            }

            #[distributed_lock(key = $sized, locks = app.locks $(, on_error = $on_error)?)]
            async fn sized(app: web::Data<App>, kind: web::Path<String>) -> $returned {
                $make(&app, &kind)
            }

            #[distributed_lock(key = $streamed, locks = app.locks $(, on_error = $on_error)?)]
            async fn streamed(app: web::Data<App>, kind: web::Path<String>) -> $returned {
                $make(&app, &kind)
            }

            #[tokio::test]
            async fn keeps_its_lock_until_it_has_been_sent_or_warns() {
                let resource = |variant: &str| {
                    web::resource(format!("/{}/{variant}/{{kind}}", stringify!($name)))
                };
                let routes = move || [
                    both(resource("bounded"), bounded),
                    both(resource("sized"), sized),
                    both(resource("streamed"), streamed),
                ];
                let returned = Returned {
                    framework: "actix",
                    name: stringify!($name),
                    sees_the_method: $sees_the_method,
                };
                assert_held_until_sent_or_warns(&start(routes), returned).await;
            }
        }
    };
}

returned!(opaque sees_the_method = true ["actix:opaque:bounded" "actix:opaque:sized" "actix:opaque:streamed"]
    -> impl Responder = later);
returned!(opaque_in_a_result sees_the_method = true ["actix:opaque_in_a_result:bounded" "actix:opaque_in_a_result:sized" "actix:opaque_in_a_result:streamed"]
    -> Result<impl Responder, Refused> = opaque_result);
returned!(alias sees_the_method = false ["actix:alias:bounded" "actix:alias:sized" "actix:alias:streamed"]
    -> Reply = response);
returned!(alias_of_a_result sees_the_method = false ["actix:alias_of_a_result:bounded" "actix:alias_of_a_result:sized" "actix:alias_of_a_result:streamed"]
    -> Answered = result);
returned!(response_and_status sees_the_method = false ["actix:response_and_status:bounded" "actix:response_and_status:sized" "actix:response_and_status:streamed"]
    -> (HttpResponse, StatusCode) = with_status; |error| (HttpResponse::Ok().finish(), error.into()));

/// As in `actix_ws`, the data on the upgraded connection is the body of the response, and thus an ordinary stream.
#[tokio::test]
async fn an_upgraded_connection_is_protected_with_a_bound_and_warns_without_one() {
    #[distributed_lock(key = "actix:upgraded:bounded", max_hold = "60s", locks = app.locks)]
    async fn bounded(app: &App) -> HttpResponse {
        upgraded(app)
    }

    #[distributed_lock(key = "actix:upgraded", locks = app.locks)]
    async fn unbounded(app: &App) -> HttpResponse {
        upgraded(app)
    }

    fn upgraded(app: &App) -> HttpResponse {
        let mut response = HttpResponse::SwitchingProtocols();
        response.upgrade("websocket").streaming(piece(app))
    }

    install_log();
    let app = App::in_memory();
    let response = bounded(&app).await;
    assert!(app.try_hold("actix:upgraded:bounded").await.is_none());
    drop(response);
    drop(app.hold("actix:upgraded:bounded").await);
    for _ in 0..2 {
        let _response = unbounded(&app).await;
        assert!(app.try_hold("actix:upgraded").await.is_some());
    }
    assert_eq!(warnings("actix:upgraded:bounded"), 0, "{}", LOG.text());
    assert_eq!(warnings("actix:upgraded"), 1, "{}", LOG.text());
}

/// Calls a handler for GET and HEAD.
fn both<F, Args>(resource: Resource, handler: F) -> Resource
where
    F: actix_web::Handler<Args, Output: Responder>,
    Args: actix_web::FromRequest + 'static,
{
    let get = web::get().to(handler.clone());
    resource
        .route(get)
        .route(web::method(Method::HEAD).to(handler))
}

fn start(routes: impl Fn() -> [Resource; 3] + Clone + Send + 'static) -> Site {
    let app = App::in_memory();
    let data = web::Data::new(app.clone());
    let server = HttpServer::new(move || {
        let mut services = Application::new().app_data(data.clone());
        for route in routes() {
            services = services.service(route);
        }
        services
    });
    let server = server
        .workers(1)
        .disable_signals()
        .h1_allow_half_closed(false)
        .bind("127.0.0.1:0")
        .expect("a free port");
    let url = format!("http://{}", server.addrs()[0]);
    tokio::spawn(server.run());
    Site { url, app }
}
