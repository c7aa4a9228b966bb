//! HTTP for the crate `object_store`: hyper's client over TCP or TLS (rustls), one attempt per request, and what became of each
//! request in a slot that its sender looks at ([`Slot`]).

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use rustls::pki_types::ServerName;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use weir_machine::lock::Mutex;

/// Most bytes of an error's body that are read.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Most characters of each part of an error's text.
const MAX_TEXT: usize = 200;
/// Connections without a request are closed after this time: before servers close them.
const IDLE: Duration = Duration::from_secs(20);

/// The outcome of a request.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Status of the answer; `None` without one.
    pub status: Option<StatusCode>,
    /// Code and message of an error's body, or why there is no answer.
    pub why: String,
}

/// Place for the [`Outcome`] of a request, sent with it as an extension.
#[derive(Clone, Debug, Default)]
pub struct Slot(Arc<Mutex<Option<Outcome>>>);

impl Slot {
    /// The outcome; `None` if no request was made.
    pub fn take(&self) -> Option<Outcome> {
        self.0.lock().take()
    }

    fn put(&self, outcome: Outcome) {
        *self.0.lock() = Some(outcome);
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection, plain or encrypted.
struct Conn(TokioIo<Box<dyn Stream>>);

impl Connection for Conn {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Conn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for Conn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Connects to servers.
#[derive(Clone)]
struct Connector {
    tls: Arc<OnceLock<Result<TlsConnector, String>>>,
}

impl Connector {
    fn tls(&self) -> io::Result<TlsConnector> {
        let made = self.tls.get_or_init(|| {
            let found = rustls_native_certs::load_native_certs();
            let mut roots = rustls::RootCertStore::empty();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err("this machine has no certificates of authorities (package ca-certificates)".to_owned());
            }
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let config = rustls::ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|error| error.to_string())?
                .with_root_certificates(roots)
                .with_no_client_auth();
            Ok(TlsConnector::from(Arc::new(config)))
        });
        made.clone().map_err(io::Error::other)
    }

    async fn connect(self, uri: Uri) -> io::Result<Conn> {
        let Some(host) = uri.host() else { return Err(io::Error::other("the address names no host")) };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        #[allow(clippy::disallowed_methods, reason = "connects to servers outside of the simulator only")]
        let tcp = TcpStream::connect((host.as_str(), port)).await?;
        tcp.set_nodelay(true)?;
        if !is_tls {
            return Ok(Conn(TokioIo::new(Box::new(tcp))));
        }
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let tls = self.tls()?.connect(name, tcp).await?;
        Ok(Conn(TokioIo::new(Box::new(tls))))
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = Conn;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Conn>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

/// The client of a store.
#[derive(Clone)]
pub struct Http(Client<Connector, HttpRequestBody>);

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Http")
    }
}

impl Default for Http {
    fn default() -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            // Whether a request is repeated is decided elsewhere.
            .retry_canceled_requests(false)
            .build(Connector { tls: Arc::default() });
        Http(client)
    }
}

impl HttpConnector for Http {
    fn connect(&self, _: &object_store::ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

/// The innermost reason of an error: the outer ones repeat it.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}

/// Azure's header with the code of an error, also where an answer has no body.
const ERROR_CODE: &str = "x-ms-error-code";

/// `<Code>` and `<Message>` of an error in XML: the rest may have parts of the request's signature. Without them, the code
/// in the headers.
fn code_and_message(headers: &HeaderMap, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        let (value, _) = rest.split_once(&format!("</{name}>"))?;
        Some(value.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect::<String>())
    };
    let found = [element("Code"), element("Message")].into_iter().flatten().collect::<Vec<_>>().join(": ");
    if !found.is_empty() {
        return found;
    }
    let code = headers.get(ERROR_CODE).and_then(|code| code.to_str().ok()).unwrap_or_default();
    code.chars().take(MAX_TEXT).collect()
}

impl Http {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let slot = request.extensions().get::<Slot>().cloned().unwrap_or_default();
        let response = self.0.request(request).await.map_err(|error| {
            slot.put(Outcome { status: None, why: innermost(&error) });
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Request };
            HttpError::new(kind, error)
        })?;
        let (parts, body) = response.into_parts();
        let lost = |error| HttpError::new(HttpErrorKind::Interrupted, error);
        if parts.status.is_success() {
            slot.put(Outcome { status: Some(parts.status), why: String::new() });
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body.map_err(lost))));
        }
        let body: Bytes = match Limited::new(body, MAX_ERROR_BYTES).collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => Bytes::new(),
        };
        slot.put(Outcome { status: Some(parts.status), why: code_and_message(&parts.headers, &body) });
        Ok(HttpResponse::from_parts(parts, body.into()))
    }

    /// Sends a request whose answer has no body that matters, and returns its status.
    ///
    /// # Errors
    /// As an [`Outcome`] without a status.
    pub async fn bare(&self, mut request: HttpRequest) -> Outcome {
        let slot = Slot::default();
        request.extensions_mut().insert(slot.clone());
        let _ = self.send(request).await;
        slot.take().unwrap_or_default()
    }
}

impl HttpService for Http {
    // What `async_trait` makes of an `async fn`.
    fn call<'s, 'f>(&'s self, request: HttpRequest) -> BoxFuture<'f, Result<HttpResponse, HttpError>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(self.send(request))
    }
}
