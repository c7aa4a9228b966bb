//! The page: its files are part of the program.

use crate::access::{COOKIE_NAME, token_of_query};
use crate::origin::Origin;
use axum::extract::Extension;
use axum::http::header::{CONTENT_TYPE, LOCATION, SET_COOKIE};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

const INDEX: &str = include_str!("../page/index.html");
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// A file of the page: path, type and text.
pub(crate) struct PageFile(pub &'static str, pub &'static str, pub &'static str);

/// Files of the page, besides its index.
pub(crate) static FILES: [PageFile; 24] = [
    PageFile("/weir.css", STYLE, include_str!("../page/weir.css")),
    PageFile("/weir.js", SCRIPT, include_str!("../page/weir.js")),
    PageFile("/dom.js", SCRIPT, include_str!("../page/dom.js")),
    PageFile("/format.js", SCRIPT, include_str!("../page/format.js")),
    PageFile("/graph.js", SCRIPT, include_str!("../page/graph.js")),
    PageFile("/heat.js", SCRIPT, include_str!("../page/heat.js")),
    PageFile("/breakdown.js", SCRIPT, include_str!("../page/breakdown.js")),
    PageFile("/flow.js", SCRIPT, include_str!("../page/flow.js")),
    PageFile("/series.js", SCRIPT, include_str!("../page/series.js")),
    PageFile("/tables.js", SCRIPT, include_str!("../page/tables.js")),
    PageFile("/api.js", SCRIPT, include_str!("../page/api.js")),
    PageFile("/act.js", SCRIPT, include_str!("../page/act.js")),
    PageFile("/screens.js", SCRIPT, include_str!("../page/screens.js")),
    PageFile("/pools.js", SCRIPT, include_str!("../page/pools.js")),
    PageFile("/vdevs.js", SCRIPT, include_str!("../page/vdevs.js")),
    PageFile("/disks.js", SCRIPT, include_str!("../page/disks.js")),
    PageFile("/create.js", SCRIPT, include_str!("../page/create.js")),
    PageFile("/datasets.js", SCRIPT, include_str!("../page/datasets.js")),
    PageFile("/streams.js", SCRIPT, include_str!("../page/streams.js")),
    PageFile("/shares.js", SCRIPT, include_str!("../page/shares.js")),
    PageFile("/alerts.js", SCRIPT, include_str!("../page/alerts.js")),
    PageFile("/system.js", SCRIPT, include_str!("../page/system.js")),
    PageFile("/why.js", SCRIPT, include_str!("../page/why.js")),
    PageFile("/worksheet.js", SCRIPT, include_str!("../page/worksheet.js")),
];

impl PageFile {
    /// The answer to a request for the file.
    pub fn answer(&self) -> Response {
        ([(CONTENT_TYPE, self.1)], self.2).into_response()
    }
}

/// The page. A token in the address becomes a cookie, which scripts cannot read and other sites do not send, and leaves the
/// address bar and the browser's history.
pub(crate) async fn index(Extension(origin): Extension<Arc<Origin>>, uri: Uri) -> Response {
    // The request has passed the check of tokens; one that is no token's text is in no header.
    if let Some(token) = token_of_query(&uri).filter(|token| token.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        let secure = if origin.is_secure() { "; Secure" } else { "" };
        let cookie = format!("{COOKIE_NAME}={token}; HttpOnly; SameSite=Strict; Path=/{secure}");
        return (StatusCode::SEE_OTHER, [(LOCATION, "/".to_owned()), (SET_COOKIE, cookie)]).into_response();
    }
    ([(CONTENT_TYPE, "text/html; charset=utf-8")], INDEX).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts between `start` and `end`.
    fn between<'a>(text: &'a str, start: &str, end: &str) -> Vec<&'a str> {
        text.split(start).skip(1).filter_map(|rest| rest.split(end).next()).collect()
    }

    #[test]
    fn what_the_page_loads_is_served_and_nothing_else_is() {
        let mut wanted = vec!["/weir.css", "/weir.js"];
        assert!(wanted.iter().all(|path| INDEX.contains(&format!("\"{}\"", &path[1..]))), "{INDEX}");
        for PageFile(path, _, text) in &FILES {
            let imports = between(text, " from \"", "\"");
            let served = |import: &str| FILES.iter().map(|file| file.0).find(|path| import == format!(".{path}"));
            wanted.extend(imports.iter().map(|import| served(import).unwrap_or_else(|| panic!("{path}: {import}"))));
        }
        for PageFile(path, ..) in &FILES {
            assert!(wanted.contains(path), "{path} is not loaded");
        }
    }

    #[test]
    fn no_script_makes_elements_from_text() {
        for PageFile(path, _, text) in &FILES {
            for wrong in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!text.contains(wrong), "{path}: {wrong}");
            }
        }
        assert!(!INDEX.contains(" style=") && !INDEX.contains(" onclick="), "the policy of the page forbids them");
    }
}
