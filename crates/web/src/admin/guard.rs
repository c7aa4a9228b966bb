//! What a request that acts must have, beside its token, so that no other site can make a browser send it.

use crate::access::token_of_query;
use crate::api::Problem;
use crate::origin::Origin;
use axum::Json;
use axum::extract::{Extension, Request};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::SocketAddr;
use std::sync::Arc;

/// Header that the page sends. A script of another site cannot: the browser would ask this server first, which does not agree.
const OWN_HEADER: &str = "x-weir-request";

/// Address of the client of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub SocketAddr);

/// The reason why a request is refused, if there is one.
fn refusal(
    scheme: &str,
    headers: &HeaderMap,
    has_query_token: bool,
    (body, why): (&str, &'static str),
) -> Option<(StatusCode, &'static str)> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(origin) = text(ORIGIN.as_str()) {
        let own = text(HOST.as_str()).map(|host| format!("{scheme}://{host}"));
        if own.as_deref() != Some(origin) {
            return Some((StatusCode::FORBIDDEN, "the request comes from a page of another origin"));
        }
    }
    if text("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none") {
        return Some((StatusCode::FORBIDDEN, "the request comes from a page of another site"));
    }
    if has_query_token {
        return Some((StatusCode::FORBIDDEN, "an action takes its token from a header, not from the address"));
    }
    if !headers.contains_key(AUTHORIZATION) && text(OWN_HEADER) != Some("1") {
        return Some((StatusCode::FORBIDDEN, "an action needs the header Authorization, or X-Weir-Request: 1"));
    }
    let kind = text(CONTENT_TYPE.as_str()).unwrap_or_default();
    if kind.split(';').next().is_none_or(|kind| !kind.trim().eq_ignore_ascii_case(body)) {
        return Some((StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    None
}

/// The body of an action, and why another one is refused.
const ACTION: (&str, &str) = ("application/json", "an action is JSON: Content-Type: application/json");
/// The body of an upload. No form of another site can send this type either.
const UPLOAD: (&str, &str) =
    ("application/octet-stream", "a stream has no other type: Content-Type: application/octet-stream");

/// Passes on requests with an action that no other site can have made. Other methods than POST are refused behind it.
pub(crate) async fn check_action(Extension(origin): Extension<Arc<Origin>>, request: Request, next: Next) -> Response {
    pass(&origin, request, next, ACTION).await
}

/// Passes on requests with a stream that no other site can have made.
pub(crate) async fn check_upload(Extension(origin): Extension<Arc<Origin>>, request: Request, next: Next) -> Response {
    pass(&origin, request, next, UPLOAD).await
}

async fn pass(origin: &Origin, request: Request, next: Next, body: (&'static str, &'static str)) -> Response {
    if request.method() != Method::POST {
        return next.run(request).await;
    }
    match refusal(origin.scheme(), request.headers(), token_of_query(request.uri()).is_some(), body) {
        Some((code, why)) => (code, Json(Problem { error: why.to_owned() })).into_response(),
        None => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_another_site_could_make_are_refused() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            pairs.iter().for_each(|(name, value)| drop(headers.insert(*name, value.parse().unwrap())));
            refusal("http", &headers, false, ACTION).map(|(code, _)| code.as_u16())
        };
        let json = ("content-type", "application/json; charset=utf-8");
        let host = ("host", "127.0.0.1:8420");
        let own = ("x-weir-request", "1");
        assert_eq!(of(&[host, json, own]), None);
        assert_eq!(of(&[host, json, ("authorization", "Bearer x")]), None);
        assert_eq!(
            of(&[host, json, own, ("origin", "http://127.0.0.1:8420"), ("sec-fetch-site", "same-origin")]),
            None
        );
        assert_eq!(of(&[host, json]), Some(403));
        assert_eq!(of(&[host, own]), Some(415));
        assert_eq!(of(&[host, own, ("content-type", "text/plain")]), Some(415));
        // Another port, scheme or name of this machine is another origin.
        for origin in
            ["http://evil.example", "http://127.0.0.1:8421", "https://127.0.0.1:8420", "http://localhost:8420", "null"]
        {
            assert_eq!(of(&[host, json, own, ("origin", origin)]), Some(403), "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(of(&[host, json, own, ("sec-fetch-site", site)]), Some(403), "{site}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("host", "nas:1".parse().unwrap());
        headers.insert("origin", "https://nas:1".parse().unwrap());
        headers.insert("content-type", "application/json".parse().unwrap());
        headers.insert(OWN_HEADER, "1".parse().unwrap());
        assert_eq!(refusal("https", &headers, false, ACTION), None);
        assert_eq!(refusal("https", &headers, false, UPLOAD).map(|(code, _)| code.as_u16()), Some(415));
        assert_eq!(refusal("http", &headers, false, ACTION).map(|(code, _)| code.as_u16()), Some(403));
        let mut headers = HeaderMap::new();
        headers.insert("authorization", "Bearer x".parse().unwrap());
        assert_eq!(refusal("http", &headers, true, ACTION).map(|(code, _)| code.as_u16()), Some(403));
    }
}
