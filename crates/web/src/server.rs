//! The server: connections, routes and headers.

use crate::access::check;
use crate::admin::lights;
use crate::admin::{Access, Administrator, Peer, check_action, check_upload, routes, streams, views};
use crate::origin::Origin;
use crate::recorder::Recorder;
use crate::sampler::Sampler;
use crate::tls::WebTls;
use crate::{api, files, page, ranges, why};
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
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use weir_front::{Connection, FrontEnd, Limits};
use weir_machine::{Clock, Machine};

/// Limits of the connections. Beyond them, the connection of the busiest host that was quiet longest is closed.
const LIMITS: Limits = Limits::new(1024);
/// Time for a client to send the header of a request, also after an earlier one.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// Maximum size of the header of a request in bytes.
const MAX_HEADER_BYTES: usize = 16 << 10;

/// The page needs no resource of another origin, and no script or style in its text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The server cannot be started.
#[derive(Debug, Error)]
pub enum WebError {
    /// The address cannot be used.
    #[error("cannot listen on {address} for HTTP: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// Tokens and what is shown would be readable on the network.
    #[error("{0} is not a loopback address: HTTP beyond this machine needs TLS")]
    ClearText(IpAddr),
}

/// Address of a server, and its certificate.
#[derive(Clone)]
pub struct WebOptions {
    /// Address and port; port 0 is any free one.
    pub address: SocketAddr,
    /// TLS; without it, the address must be a loopback one.
    pub tls: Option<WebTls>,
}

impl WebOptions {
    /// Without TLS, on this port of 127.0.0.1.
    pub fn loopback(port: u16) -> Self {
        WebOptions { address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port), tls: None }
    }
}

/// A running server. Dropping it stops it.
pub struct Web {
    address: SocketAddr,
    origin: Arc<Origin>,
    access: Arc<Access>,
    _stop: watch::Sender<bool>,
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
    /// Serves what a recorder keeps. Those with a token of the role for it administer the process, if there is an administrator.
    ///
    /// # Errors
    /// If the port is taken, or the address is one of a network and there is no TLS.
    pub async fn start(
        machine: &Machine,
        recorder: &Recorder,
        options: WebOptions,
        access: Arc<Access>,
        administrator: Option<Arc<Administrator>>,
    ) -> Result<Web, WebError> {
        let WebOptions { address, tls } = options;
        if tls.is_none() && !address.ip().is_loopback() {
            return Err(WebError::ClearText(address.ip()));
        }
        let listener = machine.net.listen(address).await.map_err(|source| WebError::Listen { address, source })?;
        let address = listener.address();
        let origin = Arc::new(Origin::new(tls.as_ref().map(WebTls::names)));
        let state = AppState { access: access.clone(), sampler: recorder.sampler.clone(), administrator };
        let router = router(state, origin.clone());
        let (stop, stopped) = watch::channel(false);
        let front = FrontEnd::of_brief_connections(machine.clock.clone(), machine.tasks.clone(), LIMITS);
        let clock = machine.clock.clone();
        let stopping = stopped.clone();
        let session = move |connection| serve(connection, tls.clone(), router.clone(), clock.clone(), stopping.clone());
        // It ends when the sender is dropped.
        drop(machine.tasks.spawn(weir_front::serve(front, listener, stopped, session)));
        Ok(Web { address, origin, access, _stop: stop })
    }

    /// Address and port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Address of the page, without the token. A server on all addresses is named by its loopback address.
    pub fn page(&self) -> String {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        format!("{}://{}/", self.origin.scheme(), SocketAddr::new(ip, self.address.port()))
    }

    /// Address of the page, with the token: a secret.
    pub fn url(&self) -> String {
        format!("{}?token={}", self.page(), self.access.own().secret())
    }
}

fn router(state: AppState, origin: Arc<Origin>) -> Router {
    let page = page::FILES.iter().fold(Router::new().route("/", get(page::index)), |router, file| {
        router.route(file.0, get(move || async move { file.answer() }))
    });
    let actions = Router::new()
        .route("/api/v1/admin/command", post(routes::command))
        .route("/api/v1/admin/preview", post(routes::preview))
        .route("/api/v1/admin/act", post(routes::act))
        .route_layer(from_fn(check_action));
    let uploads =
        Router::new().route("/api/v1/admin/receive", post(streams::receive)).route_layer(from_fn(check_upload));
    page.route("/metrics", get(api::prometheus))
        .route("/api/v1/pools", get(api::pools))
        .route("/api/v1/series", get(api::series))
        .route("/api/v1/pools/{pool}/sample", get(api::sample))
        .route("/api/v1/pools/{pool}/files", get(files::files))
        .route("/api/v1/pools/{pool}/history", get(ranges::history))
        .route("/api/v1/pools/{pool}/latency", get(ranges::latency))
        .route("/api/v1/pools/{pool}/dips", get(ranges::dips))
        .route("/api/v1/live", get(api::live))
        .route("/api/v1/why", get(why::why))
        .route("/api/v1/openapi.json", get(api::description))
        .route("/api/v1/admin/me", get(routes::me))
        .route("/api/v1/admin/lights", get(lights::lights))
        .route("/api/v1/admin/view/{what}", get(views::view))
        .route("/api/v1/admin/devices", get(views::devices))
        .route("/api/v1/admin/disks", get(views::disks))
        .route("/api/v1/admin/capacity", get(views::capacity))
        .route("/api/v1/admin/send", get(streams::send))
        .route("/api/v1/admin/log", get(views::log))
        .route("/api/v1/admin/audit", get(routes::audited))
        .merge(actions)
        .merge(uploads)
        .fallback(api::unknown)
        .layer(from_fn_with_state(state.clone(), check))
        .layer(from_fn(with_headers))
        .layer(Extension(origin))
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

/// Serves a connection until the client closes it or the server stops.
async fn serve(
    connection: Connection,
    tls: Option<WebTls>,
    router: Router,
    clock: Clock,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let Connection { reader, writer, handle } = connection;
    let counted = handle.clone();
    // A client that waits for a long command is not idle.
    let router = router.layer(Extension(Peer(handle.peer()))).layer(from_fn(move |request: Request, next: Next| {
        let call = counted.begin_call();
        async move {
            let response = next.run(request).await;
            drop(call);
            response
        }
    }));
    let stream = tokio::io::join(reader, writer);
    let served = async {
        match tls {
            None => http(stream, router).await,
            Some(tls) => match tls.accept(stream, &clock, HEADER_TIME).await? {
                Some(stream) => http(stream, router).await,
                None => Ok(()),
            },
        }
    };
    tokio::select! {
        served = served => served,
        _ = stop.wait_for(|stop| *stop) => Ok(()),
    }
}

async fn http(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) -> io::Result<()> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME).max_buf_size(MAX_HEADER_BYTES);
    let service = TowerToHyperService::new(router);
    http.serve_connection(TokioIo::new(stream), service).await.map_err(io::Error::other)
}
