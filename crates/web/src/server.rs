//! The server: connections, routes and headers.
#![allow(
    clippy::disallowed_methods,
    reason = "hyper reads and writes tokio's sockets, and times are those of a real client"
)]

use crate::access::check;
use crate::admin::lights;
use crate::admin::{Access, Administrator, Peer, check_action, routes, views};
use crate::recorder::Recorder;
use crate::sampler::Sampler;
use crate::{api, page, why};
use axum::Router;
use axum::extract::{Extension, FromRef, Request};
use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

/// Maximum number of connections; further ones wait.
const MAX_CONNECTIONS: usize = 1024;
/// Time for a client to send the header of a request, also after an earlier one.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// Maximum size of the header of a request in bytes.
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Pause after `accept` failed, for example because no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The page needs no resource of another origin, and no script or style in its text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The server cannot listen.
#[derive(Debug, Error)]
#[error("cannot listen on {address} for HTTP: {source}")]
pub struct WebError {
    address: SocketAddr,
    source: io::Error,
}

/// A running server. Dropping it stops it.
pub struct Web {
    address: SocketAddr,
    access: Arc<Access>,
    task: JoinHandle<()>,
}

impl Drop for Web {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct AppState {
    access: Arc<Access>,
    sampler: Arc<Sampler>,
    administrator: Option<Arc<Administrator>>,
}

impl FromRef<AppState> for Arc<Access> {
    fn from_ref(state: &AppState) -> Self {
        state.access.clone()
    }
}

impl FromRef<AppState> for Option<Arc<Administrator>> {
    fn from_ref(state: &AppState) -> Self {
        state.administrator.clone()
    }
}

impl FromRef<AppState> for Arc<Sampler> {
    fn from_ref(state: &AppState) -> Self {
        state.sampler.clone()
    }
}

impl Web {
    /// Serves what a recorder keeps on this port of 127.0.0.1; 0 takes any free port. Those with a token of the role for it
    /// administer the process, if there is an administrator. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the port is taken.
    pub async fn start(
        recorder: &Recorder,
        port: u16,
        access: Arc<Access>,
        administrator: Option<Arc<Administrator>>,
    ) -> Result<Web, WebError> {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let failed = |source| WebError { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let state = AppState { access: access.clone(), sampler: recorder.sampler.clone(), administrator };
        let task = tokio::spawn(accept(listener, router(state)));
        Ok(Web { address, access, task })
    }

    /// Address and port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Address of the page, with the token: a secret.
    pub fn url(&self) -> String {
        format!("http://{}/?token={}", self.address, self.access.own().secret())
    }
}

fn router(state: AppState) -> Router {
    let page = page::FILES.iter().fold(Router::new().route("/", get(page::index)), |router, file| {
        router.route(file.0, get(move || async move { file.answer() }))
    });
    let actions = Router::new()
        .route("/api/v1/admin/command", post(routes::command))
        .route("/api/v1/admin/preview", post(routes::preview))
        .route("/api/v1/admin/act", post(routes::act))
        .route_layer(from_fn(check_action));
    page.route("/metrics", get(api::prometheus))
        .route("/api/v1/pools", get(api::pools))
        .route("/api/v1/series", get(api::series))
        .route("/api/v1/pools/{pool}/sample", get(api::sample))
        .route("/api/v1/pools/{pool}/history", get(api::history))
        .route("/api/v1/live", get(api::live))
        .route("/api/v1/why", get(why::why))
        .route("/api/v1/openapi.json", get(api::description))
        .route("/api/v1/admin/me", get(routes::me))
        .route("/api/v1/admin/lights", get(lights::lights))
        .route("/api/v1/admin/view/{what}", get(views::view))
        .route("/api/v1/admin/devices", get(views::devices))
        .route("/api/v1/admin/capacity", get(views::capacity))
        .route("/api/v1/admin/log", get(views::log))
        .route("/api/v1/admin/audit", get(routes::audited))
        .merge(actions)
        .layer(from_fn_with_state(state.clone(), check))
        .layer(from_fn(with_headers))
        .with_state(state)
}

/// Adds the headers that every answer has.
async fn with_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Accepts connections until the task is dropped, which closes all of them.
async fn accept(listener: TcpListener, router: Router) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, peer)) => {
                let service = router.clone().layer(Extension(Peer(peer)));
                connections.spawn(async move {
                    serve(stream, service).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("HTTP: a connection was not accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME).max_buf_size(MAX_HEADER_BYTES);
    let service = TowerToHyperService::new(router);
    // An error is the client's: it sent no HTTP, or is gone.
    let _ended = http.serve_connection(TokioIo::new(stream), service).await;
}
