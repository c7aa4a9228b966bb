//! Who may read: those who know a token.

use crate::admin::Access;
use crate::origin::Origin;

use axum::extract::{Extension, Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, HOST};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::fmt;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use weir_machine::Machine;

/// Name of the cookie that holds the token.
pub(crate) const COOKIE_NAME: &str = "weir_token";
/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;
/// Longest file of a token that is read.
const FILE_BYTES: u64 = 1024;

/// A secret that a client must know.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// The secret is not shown.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Error of a token's file.
#[derive(Debug, Error)]
pub enum TokenError {
    /// The file cannot be read or written.
    #[error("token file {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The table of named tokens is damaged.
    #[error("token file {path}: it is damaged: remove the file, and make the tokens again")]
    Table {
        /// The file.
        path: PathBuf,
    },
    /// The file holds no token.
    #[error("token file {path}: it holds no token of 64 hexadecimal digits: remove the file, and a new one is made")]
    Contents {
        /// The file.
        path: PathBuf,
    },
}

impl Token {
    /// A new random token.
    pub fn new(machine: &Machine) -> Self {
        let mut bytes = [0; TOKEN_BYTES];
        machine.entropy.fill(&mut bytes);
        Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The token in a file, which only its owner can read; it is made if it is absent.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn in_file(machine: &Machine, path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::File { path: path.to_owned(), source };
        let mut text = String::new();
        match File::open(path) {
            Ok(file) => {
                file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
                file.take(FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
                let text = text.trim();
                let is_token = text.len() == 2 * TOKEN_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                if is_token { Ok(Token(text.to_owned())) } else { Err(TokenError::Contents { path: path.to_owned() }) }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let token = Token::new(machine);
                let mut file = File::options().create_new(true).write(true).mode(0o600).open(path).map_err(failed)?;
                file.write_all(format!("{}\n", token.0).as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
                Ok(token)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The secret.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Whether a client's text is the token. Takes the same time for every text of a length.
    pub(crate) fn is(&self, text: &str) -> bool {
        // The comparison of hashes takes constant time.
        blake3::hash(text.as_bytes()) == blake3::hash(self.0.as_bytes())
    }
}

/// The token in a query, if there is one.
pub(crate) fn token_of_query(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

/// The tokens of a request: of the header `Authorization: Bearer …`, of the address, and of the cookies. Cookies are of a host,
/// whatever the port, so that they may be another server's.
fn tokens<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> impl Iterator<Item = &'a str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| bearer_token(value.to_str().ok()?));
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|value| value.split(';'));
    let of_cookies = pairs.filter_map(|pair| pair.trim().strip_prefix(COOKIE_NAME)?.strip_prefix('='));
    bearer.into_iter().chain(token_of_query(uri)).chain(of_cookies)
}

/// The token of credentials of the scheme `Bearer`, whose case does not matter (RFC 9110, 11.1).
fn bearer_token(credentials: &str) -> Option<&str> {
    let (scheme, token) = credentials.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}

/// Passes on requests to this host that have a token, with the identity that it gives.
pub(crate) async fn check(
    State(access): State<Arc<Access>>,
    Extension(origin): Extension<Arc<Origin>>,
    mut request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !origin.has(host) {
        let why = if origin.is_secure() {
            "the server's certificate is not valid for this name: use its address or a name of the certificate\n"
        } else {
            "this server answers requests to localhost only: to reach it from another machine, use ssh -L, or set http_listen\n"
        };
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    let Some(identity) = tokens(headers, request.uri()).find_map(|given| access.identify(given)) else {
        let why = "a token is missing or wrong: use the address that the server printed, with ?token=…, or the header \
                   Authorization: Bearer TOKEN\n";
        return (StatusCode::UNAUTHORIZED, why).into_response();
    };
    request.extensions_mut().insert(identity);
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_in_headers_cookies_and_queries() {
        let mut headers = HeaderMap::new();
        let all = |headers: &HeaderMap, uri: &str| {
            tokens(headers, &uri.parse().unwrap()).map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(all(&headers, "/").is_empty());
        headers.insert(COOKIE, "a=b; weir_token=xyz; weir_token2=no".parse().unwrap());
        assert_eq!(all(&headers, "/"), ["xyz"]);
        assert_eq!(all(&headers, "/?token=new"), ["new", "xyz"], "the cookie may be another server's");
        headers.insert(AUTHORIZATION, "Bearer abc".parse().unwrap());
        assert_eq!(all(&headers, "/"), ["abc", "xyz"]);
        for (credentials, token) in
            [("bearer abc", Some("abc")), ("BEARER  abc", Some("abc")), ("Bearerabc", None), ("Basic abc", None)]
        {
            assert_eq!(bearer_token(credentials), token, "{credentials}");
        }
        assert_eq!(token_of_query(&"/x?a=b&token=t1".parse().unwrap()), Some("t1"));
        assert_eq!(token_of_query(&"/x?atoken=t1".parse().unwrap()), None);
        let token = Token("secret".into());
        assert!(token.is("secret") && !token.is("secres") && !token.is(""));
        assert_eq!(format!("{token:?}"), "Token(…)");
    }
}
