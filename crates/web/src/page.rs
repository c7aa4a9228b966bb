//! The page: its files are part of the program.

use crate::access::{COOKIE_NAME, Token, token_of_query};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, LOCATION, SET_COOKIE};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

const INDEX: &str = include_str!("../page/index.html");
const SCRIPT: &str = include_str!("../page/weir.js");
const STYLE: &str = include_str!("../page/weir.css");

/// The page. A token in the address becomes a cookie, which scripts cannot read and other sites do not send, and leaves the
/// address bar and the browser's history.
pub(crate) async fn index(State(token): State<Arc<Token>>, uri: Uri) -> Response {
    if token_of_query(&uri).is_some() {
        let cookie = format!("{COOKIE_NAME}={}; HttpOnly; SameSite=Strict; Path=/", token.secret());
        return (StatusCode::SEE_OTHER, [(LOCATION, "/".to_owned()), (SET_COOKIE, cookie)]).into_response();
    }
    ([(CONTENT_TYPE, "text/html; charset=utf-8")], INDEX).into_response()
}

pub(crate) async fn script() -> Response {
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8")], SCRIPT).into_response()
}

pub(crate) async fn style() -> Response {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], STYLE).into_response()
}
